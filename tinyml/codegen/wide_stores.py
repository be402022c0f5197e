"""Stores whose lanes lie side by side, and loads that can be made in one access."""

from __future__ import annotations

from collections.abc import Sequence

from tinyml.codegen.expr import Expr, Load, Part, Wide, rewrite, substitute
from tinyml.codegen.nest import Store
from tinyml.codegen.scope import Known
from tinyml.index import ZERO, Axis, linear, substitute_valid


def substitute_store(store: Store, known: Known) -> Store | None:
    """The store with axes replaced; None if it never happens."""
    valid = substitute_valid(store.valid, known)
    if valid is None:
        return None
    position = store.position.substitute(known)
    value = substitute(store.value, known)
    return Store(store.slot, store.dtype, position, value, valid, store.op)


def widened(store: Store, lane: Axis) -> Store:
    """The store with loads that lie side by side along `lane` done in one access."""

    def widen(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or not _wide_at(e, lane):
            return None
        wide = Wide(e.slot, e.dtype, e.position.substitute({lane: ZERO}), e.valid, lane.size)
        part: Expr = Part(wide, linear(lane))
        return part

    value = rewrite(store.value, widen)
    return Store(store.slot, store.dtype, store.position, value, store.valid, store.op)


def _wide_at(e: Load, lane: Axis) -> bool:
    start = e.position - linear(lane)
    return (
        e.position.stride(lane) == 1
        and not any(lane in v.free for v in e.valid)
        and e.dtype.itemsize * lane.size in (4, 8, 16)
        and all(f % lane.size == 0 for _, f in start.terms)
        and start.constant % lane.size == 0
    )


def side_by_side(stores: Sequence[Store]) -> bool:
    first, n = stores[0], len(stores)
    return (
        first.op is None
        and first.dtype.itemsize * n in (4, 8, 16)
        and all(f % n == 0 for _, f in first.position.terms)
        and first.position.constant % n == 0
        and all(s.position is first.position + i for i, s in enumerate(stores))
        and all(s.valid == first.valid for s in stores)
    )
