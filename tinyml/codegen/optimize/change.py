"""Axes of a LoopNest changed: split, joined, padded, peeled, bound, moved to the front."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tinyml.codegen.bounds import require
from tinyml.codegen.expr import (
    Alu,
    Expr,
    Fold,
    Held,
    Load,
    Place,
    Require,
    Select,
    Stored,
    alu,
    const,
    rewrite,
    select,
    substitute,
)
from tinyml.codegen.linear import TX
from tinyml.codegen.nest import Kind, LoopNest, Nest, Split, Store, Tile, Walk, rewritten
from tinyml.errors import TinymlError
from tinyml.frozen import cached_property, replace
from tinyml.index import (
    Axis,
    Linear,
    Quotient,
    Range,
    Remainder,
    Valid,
    both,
    inside,
    linear,
    map_looked,
    numbered,
)
from tinyml.interpret import identity
from tinyml.ops import Op

CONDITIONS, STORES, LOADS = 1, 2, 3  # what may divide an axis that joins two


class OptError(TinymlError, ValueError):
    """An Opt that this nest does not admit."""


def find(nest: LoopNest, name: str) -> Axis:
    """The axis of that name; OptError if there is none."""
    axis = nest.axis(name)
    if axis is None:
        known = dict.fromkeys(f"{a.name} {a.size}" for one in nest.nests for a in one.axes)
        raise OptError(f"no axis {name} in {nest.name}; there are: {', '.join(known)}")
    return axis


def is_row(nest: LoopNest, axis: Axis) -> bool:
    return any(axis in one.rows for one in nest.nests)


def is_shared_out(nest: LoopNest, axis: Axis) -> bool:
    """Whether it walks a tile, or what is made of tiles that are computed: then by any thread."""
    return any(
        axis in tile.axes or (not tile.copies and any(axis in walk.axes for walk in one.walks))
        for one in nest.nests
        for tile in one.tiles
    )


def bind(nest: LoopNest, axis: Axis, kind: Kind) -> LoopNest:
    """`axis` walked by somebody else."""
    kinds = dict(nest.kinds)
    kinds[axis] = kind
    return replace(nest, kinds=tuple(kinds.items()))


def first(nest: LoopNest, axis: Axis) -> LoopNest:
    """`axis` before all other rows, or before all others of the folds over it."""

    def ordered(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return (axis, *(a for a in axes if a is not axis)) if axis in axes else axes

    def folded(e: Expr) -> Expr | None:
        return Fold(e.op, e.body, ordered(e.axes)) if isinstance(e, Fold) else None

    def changed(one: Nest) -> Nest:
        if axis in one.folded:
            return rewritten(one, folded)
        return one.with_rows(ordered(one.rows)) if axis in one.rows else one

    return replace(nest, nests=tuple([changed(one) for one in nest.nests]))


def split(nest: LoopNest, axis: Axis, inner: Axis, kind: Kind, masked: bool = False) -> LoopNest:
    """`axis` in steps of `inner.size`.

    What remains after the last whole step is done by a shorter step; or, where threads walk
    and all must walk alike, by a whole one whose surplus is masked.
    """
    check_inner(nest, axis, inner)
    masked = masked or kind is Kind.THREAD or nest.kind(axis) is not Kind.LOOP
    whole, rest = divmod(axis.size, inner.size)
    if masked and axis.more:
        raise OptError(f"cannot mask {axis.name}: a rest is walked after it")
    if masked:
        outer = Axis(axis.name, whole + (rest > 0))
    else:
        outer = Axis(axis.name, whole, rest > 0 or axis.more)
    index = numbered((outer, inner))
    guard = both([inside(index, 0, axis.size - 1)]) if masked and rest else ()
    change = Change({axis: index}, {axis: (outer, inner)}, {axis: guard} if guard else {})
    kinds = {outer if a is axis else a: k for a, k in nest.kinds}
    kinds[inner] = kind
    splits = tuple([_resplit(s, axis, outer, inner) for s in nest.splits])
    if rest and not masked:
        splits = (Split(outer, inner, rest, ((outer, whole),)), *splits)
    return replace(
        nest,
        nests=tuple([change.nest(one) for one in nest.nests]),
        kinds=tuple(kinds.items()),
        splits=splits,
    )


def check_inner(nest: LoopNest, axis: Axis, inner: Axis) -> None:
    """Whether `axis` can be split by `inner`; OptError if not."""
    if any(s.inner is axis for s in nest.splits):
        raise OptError(f"cannot split {axis.name}: it has a shorter last step")
    if inner.name != TX:
        if nest.axis(inner.name) is not None:
            raise OptError(f"cannot split {axis.name}: there is an axis {inner.name} already")
        return
    walks = [w.axes for one in nest.nests for w in one.walks]
    for group in [*walks, *(f.axes for one in nest.nests for f in one.folds)]:
        if axis in group and any(a.name == TX for a in group):
            raise OptError(f"cannot split {axis.name}: {TX} walks beside it already")


def _resplit(old: Split, axis: Axis, outer: Axis, inner: Axis) -> Split:
    """What remained after `axis` remains after `outer`, where that and `inner` now stand."""
    if all(a is not axis for a, _ in old.at):
        return old
    at = [(a, n) for a, n in old.at if a is not axis]
    steps = dict(old.at)[axis]
    at += [(outer, steps // inner.size), (inner, steps % inner.size)]
    return replace(old, outer=outer if old.outer is axis else old.outer, at=tuple(at))


@dataclass
class Change:
    """Axes replaced by others: in expressions by an index, in lists by several axes."""

    index: Mapping[Axis, Linear]
    listed: Mapping[Axis, tuple[Axis, ...]]
    guards: Mapping[Axis, tuple[Range, ...]]
    done: dict[Expr, Expr] = field(default_factory=dict)  # guarded expressions, and what became

    def axes(self, group: tuple[Axis, ...]) -> tuple[Axis, ...]:
        if self.listed.keys().isdisjoint(group):
            return group
        changed = [b for a in group for b in self.listed.get(a, (a,))]
        return tuple([a for a in changed if a.high > 0 or a.name == TX])

    def nest(self, one: Nest) -> Nest:
        if self.listed.keys().isdisjoint(one.axes):
            return one
        rows = self.axes(one.rows)
        if one.tiles or one.asks or self.guards:
            return Nest(rows, self.walks(one), tuple([self._tile(tile) for tile in one.tiles]))
        later, before = _Later(self, one), one.walks
        if isinstance(before, _Later) and not before.is_made:  # several changes in a row are one
            later = _Later(before.change.then(self), before.one)
        axes, folded = (tuple(dict.fromkeys(self.axes(group))) for group in (one.axes, one.folded))
        made = Nest(rows, later).knowing(axes=axes, folded=folded, adds=one.adds, asks=False)
        return made.knowing(groups=tuple(map(self.axes, one.groups)))

    def then(self, other: Change) -> Change:
        """This change and another one, neither of which has guards."""
        index = {a: i.substitute(other.index) for a, i in self.index.items()}
        listed = {a: other.axes(axes) for a, axes in self.listed.items()}
        return Change({**other.index, **index}, {**other.listed, **listed}, {})

    def walks(self, one: Nest) -> tuple[Walk, ...]:
        return tuple([self._walk(walk, one.rows) for walk in one.walks])

    def _walk(self, walk: Walk, rows: tuple[Axis, ...]) -> Walk:
        walked = {*rows, *walk.axes}
        stores = tuple([self.store(store, walked) for store in walk.stores])
        return Walk(self.axes(walk.axes), stores, walk.after)

    def _tile(self, tile: Tile) -> Tile:
        axes, index = self.axes(tile.axes), tile.index.substitute(self.index)
        value, after = self.expr(tile.value), self._after(tile.after)
        if (axes, index, value, after) == (tile.axes, tile.index, tile.value, tile.after):
            return tile
        return replace(tile, axes=axes, index=index, value=value, after=after)

    def _after(self, axis: Axis) -> Axis:
        return self.listed[axis][0] if axis in self.listed else axis

    def store(self, store: Store, walked: set[Axis]) -> Store:
        """The store, once where it was: surplus steps may repeat a value, but add nothing."""
        valid = store.valid
        if self.guards:
            free = walked if store.op else store.position.free | store.value.free
            guarded = both(valid, self._of_store(store, free))
            assert guarded is not None
            valid = guarded
        changed: Valid | None = valid
        if valid:
            changed = both([inside(v.index.substitute(self.index), v.low, v.high) for v in valid])
        if changed is None:
            raise OptError("nothing would be stored there")
        looked = map_looked(store.position, lambda a: self.expr(a.value).looked(a.size))
        position = looked.substitute(self.index)
        value = self.expr(store.value)
        return replace(store, position=position, value=value, valid=changed)

    def expr(self, root: Expr) -> Expr:
        """Indices substituted; folds walk the new axes; surplus steps load and add nothing."""
        guarded = rewrite(root, self._guard) if self.guards else root
        return substitute(guarded, self.index, self.done, self.axes)

    def _of(self, axes: Iterable[Axis]) -> list[Range]:
        return [guard for a in axes for guard in self.guards.get(a, ())]

    def _of_store(self, store: Store, axes: Iterable[Axis]) -> list[Range]:
        """The guards of a store: it may go on behind its row, up to the next one."""
        found = {a: self.guards.get(a, ()) for a in axes}
        whole, own = store.row or (0, 0)
        for a in found if store.row else ():
            if a.size == own and store.position.stride(a) == 1:
                found[a] = both([inside(g.index, g.low, whole - 1) for g in found[a]]) or ()
        return [guard for guards in found.values() for guard in guards]

    def _guard(self, e: Expr) -> Expr | None:
        if isinstance(e, Load):
            valid = both(e.valid, self._of(e.free))
            assert valid is not None
            return Load(e.slot, e.dtype, e.position, valid)
        if isinstance(e, Require):  # nothing is demanded of surplus steps
            return require(e.fault, e.operands, both(self._of(e.free)))
        if isinstance(e, Fold):
            outside = both(self._of(e.axes))
            assert outside is not None
            start = const(identity(e.op, e.dtype), e.dtype)
            product = e.op is Op.ADD and isinstance(e.body, (Alu, Held))
            bound = {a for a in e.axes if a in self.guards}
            body = _masked(e.body, outside, bound) if product else select(outside, e.body, start)
            return Fold(e.op, body, e.axes)
        return None


class _Later(Sequence[Walk]):
    """The walks of a nest whose axes were changed, made when somebody looks at them.

    Most Opts ask for axes only, and each of them would have rewritten all expressions.
    """

    def __init__(self, change: Change, one: Nest) -> None:
        self.change, self.one = change, one
        self.is_made = False

    @cached_property
    def made(self) -> tuple[Walk, ...]:
        walks = self.change.walks(self.one)
        self.is_made = True
        return walks

    def __len__(self) -> int:
        return len(self.one.walks)

    def __iter__(self) -> Iterator[Walk]:
        return iter(self.made)

    def __getitem__(self, at: Any) -> Any:
        return self.made[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.made == tuple(other)

    def __hash__(self) -> int:
        return hash(self.made)


def _masked(body: Expr, guards: Valid, axes: set[Axis]) -> Expr:
    """`body` where the guards hold, else 0: each factor of a product for itself."""
    made: dict[Expr, Expr] = {}  # a factor may be met again and again

    def masked(e: Expr) -> Expr:
        if e not in made:
            made[e] = _masked_once(e, guards, axes, masked)
        return made[e]

    return masked(body) if guards else body


def _masked_once(
    body: Expr, guards: Valid, axes: set[Axis], masked: Callable[[Expr], Expr]
) -> Expr:
    if isinstance(body, Load) and axes <= body.free:
        return body  # the load is not made there, and gives 0
    if isinstance(body, Alu) and body.op is Op.CAST:
        return alu(Op.CAST, body.dtype, masked(body.operands[0]))
    if isinstance(body, Held):
        return body.again(tuple(map(masked, body.sources)), {})
    if isinstance(body, Alu) and body.op is Op.MUL and all(axes <= o.free for o in body.operands):
        return alu(Op.MUL, body.dtype, *map(masked, body.operands))
    return select(guards, body, const(0, body.dtype))


def is_decided(nest: LoopNest, axis: Axis) -> bool:
    """Whether anything is decided yet about the nests whose rows `axis` walks."""
    return any(
        one.tiles or any(nest.kind(a) is not Kind.LOOP for a in one.axes)
        for one in nest.nests
        if axis in one.rows
    )


def beside(one: Nest, axis: Axis, size: int, mark: str, start: int, step: int = 1) -> Nest:
    """A nest like `one`, with axes of its own, that walks `size` steps of `axis` from `start`."""
    named = {a: Axis(a.name + mark, a.size) for a in one.axes if mark}
    named[axis] = Axis(axis.name + mark, size)
    known = {a: linear(b) for a, b in named.items()}
    known[axis] = known[axis] * step + start
    return Change(known, {a: (b,) for a, b in named.items()}, {}).nest(one)


def peel(nest: LoopNest, axis: Axis, amount: int) -> LoopNest:
    """Whole steps of `amount` stay; the rest of the row axis becomes a nest beside it."""
    whole = axis.size // amount * amount
    return nest if whole == axis.size else cut(nest, axis, whole)


def cut(nest: LoopNest, axis: Axis, first: int) -> LoopNest:
    """The `first` steps of a row axis stay; the others become a nest beside it."""
    if is_decided(nest, axis):
        raise OptError(f"cannot cut {axis.name}: cut before anything else is decided")
    nests: list[Nest] = []
    rests: list[Nest] = []
    main = Axis(axis.name, first)
    for one in nest.nests:
        if axis not in one.rows:
            nests.append(one)
            continue
        nests.append(Change({axis: linear(main)}, {axis: (main,)}, {}).nest(one))
        mark = f"e{len(nest.nests) + len(rests)}"
        rests.append(beside(one, axis, axis.size - first, mark, first))
    return replace(nest, nests=(*nests, *rests))


def pad(nest: LoopNest, axis: Axis, amount: int) -> LoopNest:
    """`axis` with a size that `amount` divides; what lies beyond its end is masked."""
    size = -(-axis.size // amount) * amount
    if size == axis.size:
        return nest
    if nest.kind(axis) is not Kind.LOOP or any(s.inner is axis for s in nest.splits):
        raise OptError(f"cannot pad {axis.name}: pad before it is split")
    padded = Axis(axis.name, size)
    index = linear(padded)
    guard = both([inside(index, 0, axis.size - 1)])
    assert guard is not None
    change = Change({axis: index}, {axis: (padded,)}, {axis: guard})
    return replace(nest, nests=tuple(change.nest(one) for one in nest.nests))


def collapse(nest: LoopNest, outer: Axis, divided: int = 0) -> LoopNest:
    """`outer` and the axis after it become one; OptError unless all positions stay plain.

    What may divide the joined axis again: from 1 on conditions, from 2 on stores, from 3 on loads.
    """
    inner = _next(nest, outer)
    if inner is None:
        raise OptError(f"cannot collapse {outer.name}: no loop follows it everywhere")
    if _are_apart(nest, outer, inner, divided):
        raise OptError(f"cannot collapse {outer.name} and {inner.name}: they are read apart")
    joined, index = _joined(outer, inner)
    change = Change(index, {outer: (joined,), inner: ()}, {})
    return replace(nest, nests=tuple(change.nest(one) for one in nest.nests))


def joins(nest: LoopNest, outer: Axis, divided: int) -> bool:
    """Whether `collapse` would do: most often it would not."""
    inner = _next(nest, outer)
    return inner is not None and not _are_apart(nest, outer, inner, divided)


def _next(nest: LoopNest, outer: Axis) -> Axis | None:
    """The loop that directly follows the loop over `outer` wherever it is walked."""
    walking = [group for one in nest.nests if outer in one.axes for group in one.groups]
    around = [(*group, None) for group in walking if outer in group]
    found = {group[group.index(outer) + 1] for group in around}
    inner = found.pop() if len(found) == 1 else None
    if inner is None or outer.more or inner.more:
        return None
    loops = nest.kind(outer) is nest.kind(inner) is Kind.LOOP
    groups = [group for one in nest.nests if inner in one.axes for group in one.groups]
    alone = any(inner in group and outer not in group for group in groups)
    return inner if loops and not alone else None


def _are_apart(nest: LoopNest, outer: Axis, inner: Axis, divided: int) -> bool:
    """Whether something would divide the axis that two become."""
    walking = [one for one in nest.nests if outer in one.axes]
    return any(_divides(i, outer, inner) for one in walking for i in _undivided(one, divided))


def _undivided(one: Nest, divided: int) -> Iterator[Linear]:
    """The indices that must not divide an axis."""
    if divided < STORES:
        yield from (store.position for store in one.stores)
    for e in one.exprs:
        if isinstance(e, Stored) or (divided < LOADS and isinstance(e, Place)):
            yield e.index
        elif divided < LOADS and isinstance(e, Load):
            yield e.position
        if divided < CONDITIONS and isinstance(e, (Load, Select)):
            yield from (v.index for v in e.valid)


def _joined(outer: Axis, inner: Axis) -> tuple[Axis, Mapping[Axis, Linear]]:
    """The axis that two become, and what these are then."""
    joined = Axis(outer.name, outer.size * inner.size)
    return joined, {outer: linear(joined) // inner.size, inner: linear(joined) % inner.size}


def _divides(i: Linear, outer: Axis, inner: Axis) -> bool:
    """Whether an index has a division once two axes are joined."""
    if outer not in i.free and inner not in i.free:
        return False
    further, along = i.stride(outer), i.stride(inner)
    if further is not None and along is not None and outer.size > 1 < inner.size:
        return further != along * inner.size
    joined, index = _joined(outer, inner)
    made = i.substitute(index)
    return any(isinstance(a, (Quotient, Remainder)) and joined in a.free for a, _ in made.terms)
