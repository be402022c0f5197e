"""Overlaps: axes of which only a sum counts, as of a window's step and its place, walked as one.

So a tile holds each place once, however many steps of windows read it. Lanes are part of a sum
where rows of an image follow each other: vectors begin anywhere in the tile then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import permutations
from math import prod

from tinyml.codegen.bounds import require
from tinyml.codegen.expr import Expr, Load, Require, nodes, rewrite, substitute
from tinyml.index import ZERO, Axis, Linear, Valid, both, inside, linear


def position_of(factor: Expr) -> Linear:
    """Where the load lies that a factor is made of."""
    loads = (e for e in nodes(factor) if isinstance(e, Load))
    return next(e.position for e in loads if e.free == factor.free)


def windows(
    factor: Expr, stands: Mapping[Axis, Linear], apart: set[Axis]
) -> tuple[Expr, dict[Axis, Linear]]:
    """Axes that count only as a sum, as those of windows do, walked as one: places are held once.

    The answer is the factor on such axes, and what each of them stands for.
    """
    found = dict(stands)
    while (window := _window(factor, [a for a in found if a not in apart])) is not None:
        factor, outer, step, inner, wide = window
        found[wide] = found.pop(outer) * step + found.pop(inner)
    return factor, found


def _window(factor: Expr, axes: Iterable[Axis]) -> tuple[Expr, Axis, int, Axis, Axis] | None:
    position = position_of(factor)
    strides = {a: position.stride(a) for a in sorted(axes, key=lambda a: a.name)}
    for outer, inner in permutations([a for a, stride in strides.items() if stride], 2):
        by, along = strides[inner] or 1, strides[outer] or 0
        step = along // by
        if along == step * by and 0 < step < inner.size:
            wide = Axis(f"{inner.name}w", (outer.size - 1) * step + inner.size)
            image = {inner: linear(wide) - linear(outer) * step}
            if outer in position.substitute(image).free:
                continue
            again = substitute(factor, image)
            if outer not in again.free:
                return again, outer, step, inner, wide
    return None


def run(
    factor: Expr, stands: Mapping[Axis, Linear], base: Axis, lanes: int
) -> tuple[Expr, dict[Axis, Linear]] | None:
    """Axes that only count in a sum with `base`, walked as one, also where none of them overlap.

    As `windows`; None if no element is held less often then. With `lanes`, that many elements
    along `base` are a vector: it stays an axis, behind one of whole vectors.
    """
    found = _summed(factor, stands, base)
    if found is None:
        return None
    value, wide, place, parts = found
    others = {a: stand for a, stand in stands.items() if a not in parts}
    if not lanes:
        return value, {**others, wide: place}
    vectors = Axis(f"{base.name}w", -(-wide.size // lanes))
    index = linear(vectors) * lanes + linear(base)
    value = guarded(substitute(value, {wide: index}), both([inside(index, 0, wide.high)]) or ())
    return value, {**others, vectors: ZERO, base: place}


def _summed(
    factor: Expr, axes: Iterable[Axis], base: Axis
) -> tuple[Expr, Axis, Linear, list[Axis]] | None:
    """The factor on one axis, the sum that it stands for, and the axes that are in the sum."""
    position = position_of(factor)
    by, size, place, moved, parts = position.stride(base), base.size, linear(base), factor, [base]
    steps = {a: (position.stride(a) or 0) // by for a in axes if by and a is not base}
    # whole lengths of the base come first: they are most of what there is to hold
    for axis in sorted(steps, key=lambda a: (abs(steps[a]) < base.size, abs(steps[a]), a.name)):
        step, last = steps[axis], axis.high
        if not 0 < abs(step) <= size or position.stride(axis) != step * (by or 1):
            continue
        longer = place + linear(axis) * step + max(-step, 0) * last
        wide = Axis(f"{base.name}w", size + abs(step) * last)
        tried = substitute(factor, {base: linear(wide) + linear(base) - longer})
        if tried.free.isdisjoint([*parts, axis]):
            moved, place, size, parts = tried, longer, wide.size, [*parts, axis]
    if size == prod(a.size for a in parts):
        return None
    return moved, Axis(f"{base.name}w", size), place, parts


def guarded(value: Expr, guard: Valid, alone: bool = False) -> Expr:
    """Loads that are not made, and nothing required, where the guard does not hold.

    With `alone`, loads that do not depend on a condition are made whether it holds or not.
    """

    def rule(e: Expr) -> Expr | None:
        if guard and isinstance(e, Require):
            return require(e.fault, e.operands, guard)
        if not (guard and isinstance(e, Load)):
            return None
        own = tuple(v for v in guard if not (alone and v.free.isdisjoint(e.free)))
        return Load(e.slot, e.dtype, e.position, both(e.valid, own) or ())

    return rewrite(value, rule)
