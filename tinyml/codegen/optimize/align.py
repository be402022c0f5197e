"""Align: an axis that begins where a vector of memory does, not where its row does.

Rows of 50257 numbers begin anywhere. Where a row is p elements behind the last whole vector, its
step r is the step r + p of an axis that walks whole vectors: these are read and stored in one
access each, but the first and the last one, of which some lanes are masked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod

from tinyml.codegen.expr import Expr, Load
from tinyml.codegen.nest import Kind, LoopNest, Nest, rewritten, with_stores
from tinyml.codegen.optimize.change import Change, OptError
from tinyml.frozen import replace
from tinyml.index import ZERO, Axis, Linear, inside, linear


def align(nest: LoopNest, axis: Axis, lanes: int) -> LoopNest:
    """`axis` in steps of vectors of so many elements, as most of what lies along it is stored."""
    begins = begin_of(nest, axis, lanes)
    if begins is ZERO and axis.size % lanes == 0:
        raise OptError(f"cannot align {axis.name}: it is whole vectors")
    if not all(begins.free <= around for one in nest.nests for around in _around(one, axis)):
        raise OptError(f"cannot align {axis.name}: its rows begin in a way of their own each step")
    decided = nest.kind(axis) is not Kind.LOOP or any(one.tiles for one in nest.nests)
    if decided or any(s.inner is axis for s in nest.splits):
        raise OptError(f"cannot align {axis.name}: align before anything else is decided")
    vectors = -(-(axis.size + begins.high) // lanes)
    aligned = Axis(axis.name, vectors * lanes)
    index = linear(aligned) - begins
    guard = inside(index, 0, axis.size - 1)
    change = Change({axis: index}, {axis: (aligned,)}, {axis: (guard,)})
    changed = (change.nest(one) for one in nest.nests)
    return replace(nest, nests=tuple(_in_vectors(one, aligned, begins, lanes) for one in changed))


def begin_of(nest: LoopNest, axis: Axis, lanes: int) -> Linear:
    """By how many elements most of what lies along the axis begins behind a whole vector."""
    found = Counter[Linear]()
    for position, elements in (at for one in nest.nests for at in _along(one, axis)):
        found[(position - linear(axis)) % lanes] += elements
    return max(found, key=lambda begins: found[begins]) if found else ZERO


def _around(one: Nest, axis: Axis) -> Iterator[set[Axis]]:
    """The axes whose steps are known wherever this one is walked."""
    yield from ({*one.rows, *group} for group in one.groups if axis in group)


def _along(one: Nest, axis: Axis) -> Iterator[tuple[Linear, int]]:
    """Positions that go step by step along the axis, and how many elements are there."""
    for load in one.loads:
        if load.position.stride(axis) == 1 and not load.position.looked:
            yield load.position, prod(a.size for a in load.free)
    for store in one.stores:
        if store.position.stride(axis) == 1 and not store.position.looked:
            yield store.position, prod(a.size for a in store.position.free)


def _in_vectors(one: Nest, axis: Axis, begins: Linear, lanes: int) -> Nest:
    """Positions said as whole vectors and steps in them, wherever they are that."""

    def said(position: Linear) -> Linear:
        if axis not in position.free or position.looked or position.stride(axis) != 1:
            return position
        row = position - linear(axis) + begins
        return row // lanes * lanes + linear(axis) if row % lanes is begins else position

    def load(e: Expr) -> Expr | None:
        return Load(e.slot, e.dtype, said(e.position), e.valid) if isinstance(e, Load) else None

    return with_stores(rewritten(one, load), lambda s: replace(s, position=said(s.position)))
