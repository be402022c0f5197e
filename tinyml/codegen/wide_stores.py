"""Stores whose lanes lie side by side, and loads that can be made in one access."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tinyml.codegen.expr import Expr, Fold, Load, Part, Stored, Wide, nodes, rewrite, select, zero
from tinyml.codegen.matrices import Piece
from tinyml.codegen.nest import Kind, LoopNest, Store, with_stores
from tinyml.codegen.scope import Known, at_each, every_step
from tinyml.frozen import replace
from tinyml.index import (
    ZERO,
    Axis,
    Linear,
    Range,
    Valid,
    both,
    inside,
    linear,
    steps_by,
    substitute_valid,
    uniform,
)


def store_at(store: Store, at: Known, value: Expr) -> Store | None:
    """The store at a step, and its value there; None if it never happens."""
    valid = substitute_valid(store.valid, at)
    if valid is None:
        return None
    position = store.position.substitute(at)
    some = store.some and Range(store.some.index.substitute(at), store.some.low, store.some.high)
    if value is store.value and position is store.position and valid is store.valid:
        return store if some is store.some else replace(store, some=some)
    return replace(store, position=position, value=value, valid=valid, some=some)


def widened(store: Store, lane: Axis) -> Store:
    """The store with loads that lie side by side along `lane` done in one access.

    Conditions that hold for all lanes or for none are those of the first lane.
    """
    valid, some = _of_all(store.valid, lane), store.some
    value = wide_loads(store.value, lane)
    if store.op is None and _in_one(store.dtype.itemsize, store.position, lane):
        valid, which = _apart(valid, lane)
        if which is not None:
            some = Range(which.index.substitute({lane: ZERO}), which.low, which.high)
    return replace(store, value=value, valid=valid, some=some)


def wide_loads(value: Expr, lane: Axis) -> Expr:
    """The value with loads that lie side by side along `lane` done in one access.

    If some lanes are masked, all are read where any is not: memory begins at a vector and goes on
    to the end of one.
    """

    pieces = not _is_folded(value, lane)

    def widen(e: Expr) -> Expr | None:
        if pieces and isinstance(e, Stored) and _is_piece(e, lane):
            at = e.index.substitute({lane: ZERO})
            return Part(Piece(e.name, e.dtype, at, e.after), linear(lane))
        if not isinstance(e, Load) or not _in_one(e.dtype.itemsize, e.position, lane):
            return None
        first, last = {lane: ZERO}, lane.size - 1
        valid, some = _apart(_of_all(e.valid, lane), lane)
        if any(lane in v.free for v in valid):
            return None
        if some is not None:
            valid += (inside(some.index.substitute(first), some.low - last, some.high),)
        held = both(valid)
        if held is None:
            return zero(e.dtype)
        part = Part(
            Wide(e.slot, e.dtype, e.position.substitute(first), held, lane.size), linear(lane)
        )
        return part if some is None else select((some,), part, zero(e.dtype))

    return rewrite(value, widen, lane)


def _is_folded(value: Expr, lane: Axis) -> bool:
    """Whether each lane has a fold of its own: a compiler reads what those share as it likes."""
    return value.has_fold and any(type(e) is Fold and lane in e.free for e in nodes(value))


def _is_piece(e: Stored, lane: Axis) -> bool:
    return e.dtype.itemsize * lane.size == 16 and steps_by(e.index, (lane,), lane.size)


def _apart(valid: Valid, lane: Axis) -> tuple[Valid, Range | None]:
    """Conditions on all lanes, and the one that says which of them, if a single one does."""
    some = [v for v in valid if lane in v.free]
    if len(some) != 1 or some[0].index.stride(lane) != 1:
        return valid, None
    return tuple(v for v in valid if v is not some[0]), some[0]


def asked_once(value: Expr, lane: Axis) -> Expr:
    """The value with conditions that hold for all lanes or for none asked of the first lane."""

    def first(e: Expr) -> Expr | None:
        if not isinstance(e, Load):
            return None
        return Load(e.slot, e.dtype, e.position, _of_all(e.valid, lane))

    return rewrite(value, first, lane)


def _of_all(valid: Valid, lane: Axis) -> Valid:
    """Conditions without the lane, where it makes no difference."""
    first = {lane: ZERO}
    changed = (
        inside(v.index.substitute(first), v.low, v.high) if uniform(v, (lane,), lane.size) else v
        for v in valid
    )
    return both(changed) or ()


def _in_one(itemsize: int, position: Linear, lane: Axis) -> bool:
    """Whether one access has what is at a position for all lanes."""
    return itemsize * lane.size in (4, 8, 16) and steps_by(position, (lane,), lane.size)


def stream(nest: LoopNest, lane: Axis) -> LoopNest:
    """Whole vectors along `lane` are stored past the caches, where they are aligned."""

    def streamed(store: Store) -> Store:
        whole = store.op is None and not any(lane in v.free for v in store.valid)
        also = whole and steps_by(store.position, (lane,), lane.size)
        return replace(store, streams=store.streams or also)

    return replace(nest, nests=tuple(with_stores(one, streamed) for one in nest.nests))


def side_by_side(stores: Sequence[Store]) -> bool:
    first, n = stores[0], len(stores)
    return (
        first.op is None
        and first.dtype.itemsize * n in (4, 8, 16)
        and all(f % n == 0 for _, f in first.position.terms)
        and first.position.constant % n == 0
        and all(s.position is first.position + i for i, s in enumerate(stores))
        and all(s.valid == first.valid and s.some is first.some for s in stores)
    )


def at_steps(
    stores: Sequence[Store], known: Known, unrolled: list[Axis], kinds: Mapping[Axis, Kind]
) -> list[list[Store]]:
    """Every store for every step of the unrolled axes; lanes of one store side by side."""
    if not (unrolled or known):
        return [[store] for store in stores]
    lanes = [a for a in unrolled if kinds.get(a) is Kind.LANE]
    others = [a for a in unrolled if a not in lanes]
    varied: list[list[Store]] = []
    for at, values in _with_values(stores, every_step(known, others)):
        for store, value in zip(stores, values, strict=True):
            one = store_at(store, at, value)
            if one is None:
                continue
            side = [one]
            for lane in lanes:
                one = widened(one, lane)
                numbered = [{lane: linear(n)} for n in range(lane.size)]
                each = _with_values([one], numbered)
                side = [s for at, (made,) in each if (s := store_at(one, at, made)) is not None]
            varied.append(side)
    return varied


def _with_values(
    stores: Sequence[Store], steps: Sequence[Known]
) -> Iterable[tuple[Known, tuple[Expr, ...]]]:
    """Each step, and what is stored there."""
    return zip(steps, zip(*at_each([s.value for s in stores], steps), strict=True), strict=True)
