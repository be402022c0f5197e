"""Online: folds over one axis, of which some read others, are made in steps of it, all at once.

The largest m of s, and sums of f(s, m): after each step m may be another, and a sum of what was
seen so far is right once it is multiplied by what f(s, m) changes by. That can be done if this
does not depend on s, as for exp(s - m), which changes by exp(m before - m now). So softmax,
logsumexp and attention walk what they fold once, and remember one step of it:

    top   = largest of top and the step's s
    scale = f(s, top) / f(s, top before); 0 where nothing was seen before
    sums  = sums * scale + sum of the step's f(s, top)

Where nothing has been seen yet but -inf, f is asked for m = 0. In the end sums are multiplied by
f(s, m) / f(s, 0) there, so that such a row gives what it gives all at once. After Milakov and
Gimelshein, "Online normalizer calculation for softmax", and Dao, "FlashAttention-2".
"""

from __future__ import annotations

from math import inf

from tinyml.codegen.expr import (
    Alu,
    Expr,
    Fold,
    Held,
    Select,
    Stored,
    alu,
    is_number,
    nodes,
    select,
    substitute,
    zero,
)
from tinyml.codegen.nest import Kind, LoopNest, Nest, Store, Tile, Walk, rewritten
from tinyml.codegen.optimize.change import Change, OptError, check_inner
from tinyml.codegen.optimize.keep import divided_last, keep
from tinyml.codegen.optimize.scales import (
    changes_alike,
    finite,
    follows,
    last_scale_of,
    multiple,
    replaced,
    scale_of,
)
from tinyml.codegen.optimize.tiles import ORDER, reading, walked_before, within_fold
from tinyml.dtype import DType
from tinyml.frozen import dataclass, replace
from tinyml.graph import toposort
from tinyml.index import Axis, Linear, both, inside, linear, numbered
from tinyml.ops import Op


@dataclass(frozen=True)
class Running:
    """Folds over `axis` that one walk can make: some that lead, and others that may follow them.

    Those that read what is known only in the end are left to another walk.
    """

    axis: Axis
    leaders: tuple[Fold, ...]
    followers: tuple[Fold, ...]


def running(one: Nest) -> Running | None:
    """The first folds of a nest that can be made online, if there is something to be won.

    That is, if others read them, or products that are nowhere but in the tile of a step.
    """
    found = (_running_over(one, axis) for axis in sorted(one.folded, key=lambda a: -a.size))
    return next((each for each in found if each is not None), None)


def _running_over(one: Nest, axis: Axis) -> Running | None:
    group = [fold for fold in one.folds if axis in fold.axes]
    below = {f: {*nodes(f.body)} & {*group} for f in group}
    leaders = {f: f for f in group if not below[f] and f.op in (Op.MAX, Op.MIN)}
    others = [f for f in group if f not in leaders]
    rest = [f for f in others if below[f] <= {*leaders} and follows(f, leaders)]
    inner = any(axis in f.free and f.has_fold for f in one.folds)
    known = (leaders and rest) or (inner and (leaders or rest))
    return Running(axis, (*leaders,), (*rest,)) if known else None


def running_along(nest: LoopNest, axis: Axis) -> LoopNest:
    """The folds over an axis made together, with sums in registers: see write_along.py."""
    one = _scaled_last(divided_last(nest.nests[0]))
    found = running(one)
    if found is None or found.axis is not axis or not found.leaders or len(nest.nests) > 1:
        raise OptError(f"cannot run along {axis.name}: no sum follows another fold")
    leaders = {f: f for f in found.leaders}
    for fold in one.folds:
        led = not leaders.keys().isdisjoint(nodes(fold.body))
        if led and fold not in found.followers and changes_alike(fold, leaders):
            raise OptError(f"cannot run along {axis.name}: sums are larger than what they follow")
    return replace(nest, nests=(one,), along=(*nest.along, axis.name))


def _scaled_last(one: Nest) -> Nest:
    """The largest of multiples by a positive number as the multiple of the largest: the same.

    So is what is masked first, and multiplied then.
    """

    def rule(e: Expr) -> Expr | None:
        if isinstance(e, Select) and is_number(e.other, -inf):
            found = multiple(e.value)
            made = found and select(e.valid, found[0], e.other)
        elif type(e) is Fold and e.op is Op.MAX:
            found = multiple(e.body)
            made = found and Fold(e.op, found[0], e.axes)
        else:
            return None
        return alu(Op.MUL, e.dtype, made, found[1]) if made and found else None

    return rewritten(one, rule)


def at_once(nest: LoopNest, one: Nest) -> bool:
    """Whether folds that run along are all that walk what blocks share, so that one walk is all."""
    shared = nest.parts(one) if nest.along else ()
    found = _running_over(one, shared[0]) if shared else None
    if found is None or any(nest.kind(a) is Kind.LOOP for w in one.walks for a in w.axes):
        return False
    led = {*found.leaders, *found.followers}
    walked = {a for fold in led for a in fold.axes}
    if len({fold.dtype for fold in led}) > 1 or any(isinstance(f.body, Held) for f in led):
        return False
    return all(fold in led or walked.isdisjoint(fold.axes) for fold in one.folds)


def sides_along(one: Nest, found: Running) -> tuple[Axis, tuple[Axis, ...]] | None:
    """The row axis that products inside of the folds walk and what they meet does not; others."""
    rows, kept, others = {*one.rows}, set[Axis](), set[Axis]()
    for fold in one.folds:
        body = fold.body
        if found.axis not in fold.free or not (isinstance(body, Alu) and body.op is Op.MUL):
            continue
        others |= fold.free & rows
        for own, met in (body.operands, body.operands[::-1]):
            if found.axis in met.free - own.free:
                kept |= (own.free - met.free) & rows
    if not kept:
        return None
    longest = max(kept, key=lambda a: (a.size, a.name))
    return longest, tuple(a for a in one.rows if a in others and a != longest)


def online(nest: LoopNest, after: Axis, amount: int) -> LoopNest:
    """What folds read of each other, in steps of `amount` for the rows inside of `after`."""
    if nest.kind(after) not in (Kind.GRID, Kind.LOOP) or within_fold(nest, after):
        raise OptError(f"cannot run along with {after.name}: it is walked by many at once")
    made = nest
    for number, one in enumerate(nest.nests):
        found = running(divided_last(one)) if after in one.axes else None
        if found is not None:
            made = _Tiles(made, number, found, after, amount).made()
    if made is nest:
        raise OptError(f"cannot run along with {after.name}: no sum follows another fold")
    return made


@dataclass(frozen=True)
class _Memory:
    """Where a value of each row waits."""

    name: str
    dtype: DType
    rows: tuple[Axis, ...]

    def read(self, after: Axis) -> Expr:
        return Stored(self.name, self.dtype, numbered(self.rows), after)


class _Tiles:
    """What one nest remembers between steps."""

    def __init__(
        self, nest: LoopNest, number: int, found: Running, after: Axis, amount: int
    ) -> None:
        self.nest, self.number, self.found, self.after = nest, number, found, after
        self.one, axis = divided_last(nest.nests[number]), found.axis
        whole = axis.size % amount == 0 and axis.size > amount and not axis.more
        if not whole or nest.kind(axis) is not Kind.LOOP:
            raise OptError(f"cannot walk {axis.name} in steps of {amount}; pad it first")
        self.names = sum(len(other.tiles) for other in nest.nests)
        mark = self.names or ""  # there may be a walk before
        self.steps = Axis(f"{axis.name}o{mark}", axis.size // amount)
        self.inner = Axis(f"{axis.name}b{mark}", amount)
        for made in (self.steps, self.inner):
            check_inner(nest, axis, made)
        outside = walked_before(nest, self.one, after)
        walked = dict.fromkeys(
            a for group in self.one.groups[: 1 + len(self.one.walks)] for a in group
        )
        if any(not f.free <= {*walked, *outside} for f in (*found.leaders, *found.followers)):
            raise OptError(f"cannot run along {axis.name}: another fold makes its folds again")
        rows = [a for a in walked if a not in outside]
        self.rows = sorted(rows, key=lambda a: ORDER[nest.kind(a)])
        if any(not {s.outer, s.inner}.isdisjoint(rows) for s in nest.splits):
            raise OptError(f"cannot run along with {after.name}: a last step is shorter")
        self.tiles: list[Tile] = []

    def made(self) -> LoopNest:
        """The nest with tiles for all of it, and for what a step makes."""
        tops = {f: self._memory("top", f) for f in self.found.leaders}
        old = {f: top.read(self.steps) for f, top in tops.items()}
        now = {f: alu(f.op, f.dtype, old[f], self._step(f, f.body)) for f in tops}
        for f, top in tops.items():
            self._tile(top, now[f], f.op)
        done = {f: top.read(self.after) for f, top in tops.items()}
        scales: dict[Expr, _Memory] = {}
        final: dict[Fold, Expr] = {}
        for f in self.found.followers:
            sums, part = self._memory("sums", f), self._step(f, replaced(f.body, finite(now)))
            final[f] = sums.read(self.after)
            led = {leader: top for leader, top in old.items() if leader in nodes(f.body)}
            if led:
                scale = scale_of(f, led, now)
                if scale not in scales:
                    scales[scale] = self._memory("scale", scale)
                    self._tile(scales[scale], scale)
                seen = alu(Op.MUL, f.dtype, sums.read(self.steps), scales[scale].read(self.steps))
                part = alu(Op.ADD, f.dtype, seen, part)
                final[f] = alu(Op.MUL, f.dtype, final[f], last_scale_of(f, done))
            self._tile(sums, part, Op.ADD)
        stores = [(w.axes, s) for w in self.one.walks for s in w.stores if s.op is not None]
        added = [self._added(axes, store) for axes, store in stores]
        walks = tuple(w for w in self.one.walks if all(s.op is None for s in w.stores))
        one = replace(self.one, walks=walks, tiles=(*self.one.tiles, *self.tiles))
        for f, value in [*final.items(), *done.items()]:
            one = reading(one, f, value)
        nest = self._kept(self._shared_out(one))
        for each in added:
            nest = each.walked(nest, self.number)
        return nest

    def _shared_out(self, one: Nest) -> Nest:
        """Rows within walks, if threads have them: shared out as those of tiles are."""
        rows = [a for a in self.rows if a in one.rows]
        if all(self.nest.kind(a) is not Kind.THREAD for a in rows):
            return one
        walks = tuple(replace(walk, axes=(*rows, *walk.axes)) for walk in one.walks)
        return replace(one, rows=tuple(a for a in one.rows if a not in rows), walks=walks)

    def _memory(self, kind: str, value: Expr) -> _Memory:
        self.names += 1
        rows = tuple(a for a in self.rows if a in value.free)
        return _Memory(f"{kind}{self.names - 1}", value.dtype, rows)

    def _step(self, fold: Fold, body: Expr) -> Expr:
        """A step's part of a fold."""
        index = {self.found.axis: linear(self.steps) * self.inner.size + linear(self.inner)}
        axes = tuple(self.inner if a is self.found.axis else a for a in fold.axes)
        return Fold(fold.op, substitute(body, index), axes)

    def _tile(self, memory: _Memory, value: Expr, op: Op | None = None) -> None:
        """A tile on axes that all of them have in common, so that equal parts of them are equal."""
        value = substitute(value, {a: linear(self._own(a)) for a in self.rows})
        axes = tuple(map(self._own, memory.rows))
        index = numbered(axes)
        if op is None:
            tile = Tile(memory.name, axes, index, value, self.steps)
        else:
            tile = Tile(memory.name, axes, index, value, self.after, self.steps, op)
        self.tiles.append(tile)

    def _own(self, row: Axis) -> Axis:
        return Axis(f"{row.name}_on{self.number}", row.size)

    def _kept(self, one: Nest) -> LoopNest:
        """The nest with what several of the tiles are made of in tiles of its own."""
        nests = (*self.nest.nests[: self.number], one, *self.nest.nests[self.number + 1 :])
        kinds = dict(self.nest.kinds)
        for a in self.rows:
            kinds[self._own(a)] = self.nest.kind(a)
        nest = replace(self.nest, nests=nests, kinds=tuple(kinds.items()))
        while True:
            try:
                nest = keep(nest, self.steps, 0)
            except OptError:
                break
        for tile in self.tiles:
            nest = _apart(nest, self.number, tile.name)
        return nest

    def _added(self, axes: tuple[Axis, ...], store: Store) -> _Added:
        """What a step adds to memory: the sum of what all rows of a block would.

        It is a tile, as sums are, until all is known that it shares with them.
        """
        axis, folds = self.found.axis, {*self.one.folds}
        made = ((a, toposort([substitute(store.value, {a: linear(axis)})])) for a in axes)
        found = (a for a, es in made if any(axis in e.free for e in es if e in folds))
        along = next(found, None)
        if along is None:
            raise OptError(f"cannot run along {axis.name}: slot{store.slot} is made otherwise")
        rows = [a for a in self.rows if a in self.one.rows]
        own: dict[Axis, Linear] = {a: linear(self._own(a)) for a in self.rows}
        own[along] = linear(self.steps) * self.inner.size + linear(self.inner)
        whole = tuple(r for r in store.valid if r.free.isdisjoint(rows))
        masks = tuple(r for r in store.valid if r not in whole)
        value = substitute(select(masks, store.value, zero(store.dtype)), own)
        memory = self._memory("added", value)
        tile = (self.inner, *(self._own(a) for a in axes if a is not along))
        part: Expr = Fold(Op.ADD, value, tuple(map(self._own, rows)))
        index = numbered(tile)
        self.tiles.append(Tile(memory.name, tile, index, part, self.after, self.steps))
        valid = both(inside(r.index.substitute(own), r.low, r.high) for r in whole)
        position = store.position.substitute(own)
        return _Added(memory.name, tile, replace(store, position=position, valid=valid or ()))


@dataclass(frozen=True)
class _Added:
    """What each step adds to memory, while it is a tile of some axes.

    The gradient of attention's queries is a sum over keys, those of keys and values are sums over
    queries, of the same scores. A kernel of rows of keys that makes a step of the latter has all
    that this step's queries get of these keys: it is added to what they got of the keys before.
    """

    name: str
    axes: tuple[Axis, ...]
    store: Store

    def walked(self, nest: LoopNest, number: int) -> LoopNest:
        """The nest with a walk at each step in place of the tile."""
        one, kinds = nest.nests[number], dict(nest.kinds)
        tile = next(t for t in one.tiles if t.name == self.name)
        names = {a: linear(b) for a, b in zip(self.axes, tile.axes, strict=True)}
        ranges = (inside(r.index.substitute(names), r.low, r.high) for r in self.store.valid)
        position = self.store.position.substitute(names)
        store = replace(self.store, position=position, value=tile.value, valid=both(ranges) or ())
        walk = Walk(tile.axes, (store,), tile.over)
        tiles = tuple(t for t in one.tiles if t is not tile)
        made = replace(one, walks=(*one.walks, walk), tiles=tiles)
        for a in (a for e in nodes(tile.value) if isinstance(e, Fold) for a in e.axes):
            kinds.pop(a, None)
        nests = tuple(made if o is one else o for o in nest.nests)
        return replace(nest, nests=nests, kinds=tuple(kinds.items()))


def _apart(nest: LoopNest, number: int, name: str) -> LoopNest:
    """The nest with axes for one tile that no other tile walks."""
    one, kinds = nest.nests[number], dict(nest.kinds)
    tile = next(t for t in one.tiles if t.name == name)
    folded = [a for e in nodes(tile.value) if isinstance(e, Fold) for a in e.axes]
    own = {a: Axis(f"{a.name}_{name}", a.size) for a in dict.fromkeys([*tile.axes, *folded])}
    image = {a: linear(b) for a, b in own.items()}
    made = replace(
        tile,
        axes=tuple(own[a] for a in tile.axes),
        index=tile.index.substitute(image),
        value=Change(image, {a: (b,) for a, b in own.items()}, {}).expr(tile.value),
    )
    kinds.update({b: kinds[a] for a, b in own.items() if a in kinds})
    tiles = tuple(made if t is tile else t for t in one.tiles)
    nests = tuple(replace(o, tiles=tiles) if o is one else o for o in nest.nests)
    return replace(nest, nests=nests, kinds=tuple(kinds.items()))
