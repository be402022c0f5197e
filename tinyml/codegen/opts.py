"""Opts: decisions about a kernel, as values. Each is applied by a pure function on LoopNests.

    COLLAPSE  two neighbouring axes become one; with an amount, even if conditions then divide
    SPLIT     an axis becomes an outer one and an inner one of a given size
    PEEL      what remains of a row axis after whole steps of a given size gets a nest of its own
    PAD       an axis grows to whole steps of a given size; the surplus is masked
    GRID      an axis is walked by blocks (CUDA) or pieces of work (CPU)
    THREAD    the inner part of an axis is walked by the threads of a block
    LANES     the inner part of an axis is the lanes of a vector
    UNROLL    the inner part of an axis is written out, in registers
    ORDER     a row axis moves to the front
    STAGE     what a slot's load reads at each step of an axis is copied to a tile first

A list of Opts can be printed, cached, searched and written by hand; it never changes results
beyond the rounding of sums in another order.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from tinyml.codegen.expr import (
    Alu,
    Expr,
    Fold,
    Load,
    Place,
    Select,
    Stored,
    const,
    rewrite,
    select,
    substitute,
)
from tinyml.codegen.linear import TX
from tinyml.codegen.nest import Kind, LoopNest, Nest, Split, Store, Tile, Walk, axes, folds, roots
from tinyml.errors import TinymlError
from tinyml.graph import toposort
from tinyml.index import (
    Axis,
    Linear,
    Quotient,
    Range,
    Remainder,
    both,
    inside,
    linear,
    map_looked,
    row_major,
)
from tinyml.interpret import identity
from tinyml.ops import Op


class OptKind(Enum):
    COLLAPSE = "collapse"
    SPLIT = "split"
    PEEL = "peel"
    PAD = "pad"
    GRID = "grid"
    THREAD = "thread"
    LANES = "lanes"
    UNROLL = "unroll"
    ORDER = "order"
    STAGE = "stage"

    __hash__ = object.__hash__


@dataclass(frozen=True)
class Opt:
    """One decision. `axis` is a name; `amount` the size of the inner part; `slot` for STAGE."""

    kind: OptKind
    axis: str
    amount: int = 0
    slot: int = 0

    def __str__(self) -> str:
        amount = f" {self.amount}" if self.amount else ""
        slot = f" slot{self.slot}" if self.kind is OptKind.STAGE else ""
        return f"{self.kind.value} {self.axis}{amount}{slot}"


class OptError(TinymlError, ValueError):
    """An Opt that this nest does not admit."""


def optimize(nest: LoopNest, opts: Sequence[Opt]) -> LoopNest:
    """The nest with all opts applied, in order."""
    return functools.reduce(apply, opts, nest)


def apply(nest: LoopNest, opt: Opt) -> LoopNest:
    """The nest with one decision made; OptError if it does not fit."""
    axis = find(nest, opt.axis)
    staged = any(one.tiles and axis in axes(one) for one in nest.nests)
    late = opt.kind is OptKind.STAGE or (opt.kind is OptKind.COLLAPSE and not is_row(nest, axis))
    _require(late or not staged, opt, "tiles are staged last")
    match opt.kind:
        case OptKind.COLLAPSE:
            return collapse(nest, axis, opt.amount > 0)
        case OptKind.GRID:
            _require(is_row(nest, axis), opt, "only row axes are walked by blocks")
            _require(not axis.more, opt, "a rest is walked after it")
            return bind(nest, axis, Kind.GRID)
        case OptKind.ORDER:
            _require(is_row(nest, axis), opt, "only row axes are ordered")
            return first(nest, axis)
        case OptKind.STAGE:
            return stage(nest, axis, opt.slot)
        case OptKind.PEEL:
            _require(is_row(nest, axis), opt, "only row axes are peeled")
            _require(0 < opt.amount <= axis.size, opt, f"{axis.name} has {axis.size} steps")
            return peel(nest, axis, opt.amount)
        case OptKind.PAD:
            _require(opt.amount > 0 and not axis.more, opt, "a rest is walked after it")
            return pad(nest, axis, opt.amount)
    enough = opt.amount <= axis.size or opt.kind is OptKind.THREAD
    _require(opt.amount > 1 and enough, opt, f"{axis.name} has {axis.size} steps")
    if opt.kind is OptKind.THREAD:
        _require(_apart(nest, axis), opt, "a fold over tx would depend on tx")
        name = f"{axis.name}t" if is_row(nest, axis) else TX
        return split(nest, axis, Axis(name, opt.amount), Kind.THREAD)
    letter, kind = {
        OptKind.LANES: ("v", Kind.LANE),
        OptKind.UNROLL: ("u", Kind.UNROLL),
        OptKind.SPLIT: ("s", Kind.LOOP),
    }[opt.kind]
    masked = opt.kind is OptKind.SPLIT
    made = split(nest, axis, Axis(axis.name + letter, opt.amount), kind, masked)
    _require(_one_lane(made), opt, "values would have lanes along two axes")
    return made


def _one_lane(nest: LoopNest) -> bool:
    """Whether no value depends on two axes of lanes."""
    lanes = {a for a, kind in nest.kinds if kind is Kind.LANE}
    values = [e.free for one in nest.nests for e in toposort(roots(one))]
    stores = [s for one in nest.nests for walk in one.walks for s in walk.stores]
    return len(lanes) < 2 or all(
        len(free & lanes) < 2
        for free in (*values, *(s.position.free | s.value.free for s in stores))
    )


def _apart(nest: LoopNest, axis: Axis) -> bool:
    """Whether tx stays either an axis that a fold walks or one that it depends on, never both."""
    for one in nest.nests:
        inside = {a for walk in one.walks for a in walk.axes}
        for fold in folds(one):
            over = any(a.name == TX or a is axis for a in fold.axes)
            under = any(a.name == TX or a is axis for a in fold.free & inside)
            if over and under:
                return False
    return True


def _require(holds: bool, opt: Opt, why: str) -> None:
    if not holds:
        raise OptError(f"cannot {opt}: {why}")


def find(nest: LoopNest, name: str) -> Axis:
    """The axis of that name; OptError if there is none."""
    for one in nest.nests:
        for axis in axes(one):
            if axis.name == name:
                return axis
    raise OptError(f"no axis {name} in {nest.name}")


def is_row(nest: LoopNest, axis: Axis) -> bool:
    return any(axis in one.rows for one in nest.nests)


def bind(nest: LoopNest, axis: Axis, kind: Kind) -> LoopNest:
    """`axis` walked by somebody else."""
    kinds = dict(nest.kinds)
    kinds[axis] = kind
    return replace(nest, kinds=tuple(kinds.items()))


def first(nest: LoopNest, axis: Axis) -> LoopNest:
    """`axis` before all other rows."""

    def ordered(one: Nest) -> Nest:
        if axis not in one.rows:
            return one
        return replace(one, rows=(axis, *(a for a in one.rows if a is not axis)))

    return replace(nest, nests=tuple(ordered(one) for one in nest.nests))


def split(nest: LoopNest, axis: Axis, inner: Axis, kind: Kind, masked: bool = False) -> LoopNest:
    """`axis` in steps of `inner.size`.

    What remains after the last whole step is done by a shorter step; or, where threads walk
    and all must walk alike, by a whole one whose surplus is masked.
    """
    _check_inner(nest, axis, inner)
    masked = masked or kind is Kind.THREAD or nest.kind(axis) is not Kind.LOOP
    whole, rest = divmod(axis.size, inner.size)
    if masked and axis.more:
        raise OptError(f"cannot mask {axis.name}: a rest is walked after it")
    if masked:
        outer = Axis(axis.name, whole + (rest > 0))
    else:
        outer = Axis(axis.name, whole, rest > 0 or axis.more)
    index = linear(outer) * inner.size + linear(inner)
    guard = both([inside(index, 0, axis.size - 1)]) if masked and rest else ()
    assert guard is not None
    change = _Change({axis: index}, {axis: (outer, inner)}, {axis: guard})
    kinds = {outer if a is axis else a: k for a, k in nest.kinds}
    kinds[inner] = kind
    splits = tuple(_resplit(s, axis, outer, inner) for s in nest.splits)
    if rest and not masked:
        splits = (Split(outer, inner, rest, ((outer, whole),)), *splits)
    return replace(
        nest,
        nests=tuple(change.nest(one) for one in nest.nests),
        kinds=tuple(kinds.items()),
        splits=splits,
    )


def _check_inner(nest: LoopNest, axis: Axis, inner: Axis) -> None:
    """Whether `axis` can be split by `inner`; OptError if not."""
    if any(s.inner is axis for s in nest.splits):
        raise OptError(f"cannot split {axis.name}: it has a shorter last step")
    if inner.name != TX and any(a.name == inner.name for one in nest.nests for a in axes(one)):
        raise OptError(f"cannot split {axis.name}: there is an axis {inner.name} already")
    walks = [w.axes for one in nest.nests for w in one.walks]
    for group in [*walks, *(f.axes for one in nest.nests for f in folds(one))]:
        if axis in group and any(a.name == inner.name for a in group):
            raise OptError(f"cannot split {axis.name}: {inner.name} walks beside it already")


def _resplit(old: Split, axis: Axis, outer: Axis, inner: Axis) -> Split:
    """What remained after `axis` remains after `outer`, where that and `inner` now stand."""
    if all(a is not axis for a, _ in old.at):
        return old
    at = [(a, n) for a, n in old.at if a is not axis]
    steps = dict(old.at)[axis]
    at += [(outer, steps // inner.size), (inner, steps % inner.size)]
    return replace(old, outer=outer if old.outer is axis else old.outer, at=tuple(at))


@dataclass
class _Change:
    """Axes replaced by others: in expressions by an index, in lists by several axes."""

    index: Mapping[Axis, Linear]
    listed: Mapping[Axis, tuple[Axis, ...]]
    guards: Mapping[Axis, tuple[Range, ...]]

    def axes(self, group: tuple[Axis, ...]) -> tuple[Axis, ...]:
        changed = [b for a in group for b in self.listed.get(a, (a,))]
        return tuple(a for a in changed if a.high > 0 or a.name == TX)

    def nest(self, one: Nest) -> Nest:
        if not any(a in self.listed for a in axes(one)):
            return one
        return Nest(
            self.axes(one.rows),
            tuple(
                Walk(self.axes(walk.axes), tuple(self.store(s) for s in walk.stores))
                for walk in one.walks
            ),
            tuple(
                Tile(tile.name, tile.axes, self.expr(tile.value), self._after(tile.after))
                for tile in one.tiles
            ),
        )

    def _after(self, axis: Axis) -> Axis:
        return self.listed[axis][0] if axis in self.listed else axis

    def store(self, store: Store) -> Store:
        guards = [g for a in store.position.free | store.value.free for g in self.guards.get(a, ())]
        valid = both((v for v in store.valid), guards)
        assert valid is not None
        changed = both(inside(v.index.substitute(self.index), v.low, v.high) for v in valid)
        looked = map_looked(store.position, lambda a: self.expr(a.value).looked(a.size))
        position = looked.substitute(self.index)
        value = self.expr(store.value)
        return Store(store.slot, store.dtype, position, value, changed or (), store.op)

    def expr(self, root: Expr) -> Expr:
        """Indices substituted; folds walk the new axes; surplus steps load and add nothing."""
        guarded = rewrite(root, self._guard) if any(self.guards.values()) else root
        return substitute(rewrite(guarded, self._folded), self.index)

    def _guard(self, e: Expr) -> Expr | None:
        if isinstance(e, Load):
            guards = [g for a in e.free for g in self.guards.get(a, ())]
            valid = both(e.valid, guards)
            assert valid is not None
            made: Expr = Load(e.slot, e.dtype, e.position, valid)
            return made
        if isinstance(e, Fold):
            guards = [g for a in e.axes for g in self.guards.get(a, ())]
            start = const(identity(e.op, e.dtype), e.dtype)
            body = e.body
            if not (e.op is Op.ADD and guards and _is_zero_outside(e.body, {*e.axes})):
                body = select(both(guards), e.body, start)
            again: Expr = Fold(e.op, body, e.axes)
            return again
        return None

    def _folded(self, e: Expr) -> Expr | None:
        """A fold binds its axes: only here are they replaced in its body."""
        if isinstance(e, Fold) and any(a in self.listed for a in e.axes):
            bound = {a: self.index[a] for a in e.axes if a in self.index}
            made: Expr = Fold(e.op, substitute(e.body, bound), self.axes(e.axes))
            return made
        return None


def _is_zero_outside(body: Expr, axes: set[Axis]) -> bool:
    """Whether a product is 0 where its loads, which all depend on `axes`, are not valid."""
    if isinstance(body, Alu) and body.op is Op.CAST:
        return _is_zero_outside(body.operands[0], axes)
    if isinstance(body, Alu) and body.op is Op.MUL:
        return all(_is_zero_outside(operand, axes) for operand in body.operands)
    return isinstance(body, Load) and axes <= body.free


def peel(nest: LoopNest, axis: Axis, amount: int) -> LoopNest:
    """Whole steps of `amount` stay; the rest of the row axis becomes a nest beside it."""
    whole = axis.size // amount * amount
    if whole == axis.size:
        return nest
    for one in nest.nests:
        if axis in one.rows and (
            one.tiles or any(nest.kind(a) is not Kind.LOOP for a in axes(one))
        ):
            raise OptError(f"cannot peel {axis.name}: peel before anything else is decided")
    nests: list[Nest] = []
    rests: list[Nest] = []
    main = Axis(axis.name, whole)
    for one in nest.nests:
        if axis not in one.rows:
            nests.append(one)
            continue
        nests.append(_Change({axis: linear(main)}, {axis: (main,)}, {}).nest(one))
        mark = f"e{len(nest.nests) + len(rests)}"
        named = {a: Axis(a.name + mark, a.size) for a in axes(one)}
        named[axis] = Axis(axis.name + mark, axis.size - whole)
        index = {a: linear(b) for a, b in named.items()}
        index[axis] = index[axis] + whole
        rests.append(_Change(index, {a: (b,) for a, b in named.items()}, {}).nest(one))
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
    change = _Change({axis: index}, {axis: (padded,)}, {axis: guard})
    return replace(nest, nests=tuple(change.nest(one) for one in nest.nests))


def collapse(nest: LoopNest, outer: Axis, divided: bool = False) -> LoopNest:
    """`outer` and the axis after it become one; OptError unless all positions stay plain.

    Conditions may divide the joined axis again only if that is `divided`.
    """
    inner = _next(nest, outer)
    whole = inner is not None and not outer.more and not inner.more
    if inner is None or not whole or {nest.kind(outer), nest.kind(inner)} != {Kind.LOOP}:
        raise OptError(f"cannot collapse {outer.name}: no loop follows it everywhere")
    joined = Axis(outer.name, outer.size * inner.size)
    index = {outer: linear(joined) // inner.size, inner: linear(joined) % inner.size}
    change = _Change(index, {outer: (joined,), inner: ()}, {})
    collapsed = replace(nest, nests=tuple(change.nest(one) for one in nest.nests))
    if any(
        _divides(e, joined, divided) for one in collapsed.nests for e in toposort(roots(one))
    ) or any(
        _has_division(s.position, joined)
        for one in collapsed.nests
        for walk in one.walks
        for s in walk.stores
    ):
        raise OptError(f"cannot collapse {outer.name} and {inner.name}: they are read apart")
    return collapsed


def _next(nest: LoopNest, outer: Axis) -> Axis | None:
    """The axis that directly follows `outer` wherever it is walked."""
    found: set[Axis | None] = set()
    for one in nest.nests:
        groups = [one.rows, *(w.axes for w in one.walks), *(f.axes for f in folds(one))]
        for group in groups:
            if outer in group:
                at = group.index(outer) + 1
                found.add(group[at] if at < len(group) else None)
    for one in nest.nests:
        groups = [one.rows, *(w.axes for w in one.walks), *(f.axes for f in folds(one))]
        if any(found & set(group) and outer not in group for group in groups):
            return None
    return found.pop() if len(found) == 1 else None


def _divides(e: Expr, axis: Axis, in_conditions: bool) -> bool:
    """Whether `e` divides `axis`; conditions do not count where they may."""
    indices: list[Linear] = []
    match e:
        case Load(position=position):
            indices = [position]
        case Place(index=index) | Stored(index=index):
            indices = [index]
    if isinstance(e, (Load, Select)) and not in_conditions:
        indices += [v.index for v in e.valid]
    return any(_has_division(i, axis) for i in indices)


def _has_division(index: Linear, axis: Axis) -> bool:
    return any(isinstance(a, (Quotient, Remainder)) and axis in a.free for a, _ in index.terms)


def stage(nest: LoopNest, after: Axis, slot: int) -> LoopNest:
    """Loads of `slot` inside `after` read a tile that is filled at each step of `after`."""
    number = sum(len(one.tiles) for one in nest.nests)
    staged = []
    for one in nest.nests:
        found = [e for e in toposort(roots(one)) if isinstance(e, Load) and e.slot == slot]
        if after not in axes(one) or not found:
            staged.append(one)
            continue
        outside = _walked_before(nest, one, after)
        tile, changed = _tile(nest, one, found, after, outside, f"tile{number}")
        staged.append(replace(changed, tiles=(*one.tiles, tile)))
        number += 1
        if (lane := _lane_of(nest, tile)) is not None:
            nest = bind(nest, lane, Kind.LANE)
    return replace(nest, nests=tuple(staged))


def _lane_of(nest: LoopNest, tile: Tile) -> Axis | None:
    """The axis of a tile that can be filled a vector at a time: the image of a lane axis."""
    last = tile.axes[-1]
    lanes = {a.name for a, kind in nest.kinds if kind is Kind.LANE}
    value = tile.value
    plain = isinstance(value, Load) and value.position.stride(last) == 1
    return last if last.name.rsplit("_tile", 1)[0] in lanes and plain else None


def _walked_before(nest: LoopNest, one: Nest, after: Axis) -> set[Axis]:
    """The axes whose step is known when `after` begins one."""
    order = [a for a in axes(one) if nest.kind(a) is Kind.GRID]
    loops = [a for a in axes(one) if nest.kind(a) is Kind.LOOP]
    return {*order, *loops[: loops.index(after) + 1]} if after in loops else {*order, after}


def _tile(
    nest: LoopNest, one: Nest, found: list[Load], after: Axis, outside: set[Axis], name: str
) -> tuple[Tile, Nest]:
    load = found[0]
    order = {Kind.LOOP: 0, Kind.UNROLL: 1, Kind.THREAD: 2, Kind.LANE: 3}
    inner = sorted(
        load.free - outside,
        key=lambda a: (
            order[nest.kind(a)],
            a not in one.rows,
            -abs(load.position.factor(a)),
            a.name,
        ),
    )  # what lies side by side in the tile is what lanes or threads read side by side
    if len(found) > 1 or not inner:
        raise OptError(f"cannot stage slot{load.slot}: it is read {len(found)} ways")
    if any(not {s.outer, s.inner}.isdisjoint({after, *load.free}) for s in nest.splits):
        raise OptError(f"cannot stage slot{load.slot}: its last step is shorter")
    own = {a: Axis(f"{a.name}_{name}", a.size) for a in inner}
    value = substitute(load, {a: linear(b) for a, b in own.items()})
    index = row_major([linear(a) for a in inner], [a.size for a in inner])
    stored: Expr = Stored(name, load.dtype, index, after)

    def read(e: Expr) -> Expr | None:
        return stored if e is load else None

    walks = tuple(
        Walk(w.axes, tuple(replace(s, value=rewrite(s.value, read)) for s in w.stores))
        for w in one.walks
    )
    return Tile(name, tuple(own.values()), value, after), replace(one, walks=walks)
