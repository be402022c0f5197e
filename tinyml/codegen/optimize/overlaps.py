"""Overlaps: axes of which only a sum counts, as of a window's step and its place, walked as one.

So a tile holds each place once, however many steps of windows read it. Lanes are part of a sum
where rows of an image follow each other: vectors begin anywhere in the tile then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from math import prod

from tinyml.codegen.bounds import require
from tinyml.codegen.expr import (
    Expr,
    Load,
    Place,
    Require,
    Select,
    Stored,
    nodes,
    rewrite,
    substitute,
)
from tinyml.frozen import dataclass
from tinyml.index import ZERO, Axis, Linear, Valid, both, inside, linear


def position_of(factor: Expr) -> Linear:
    """Where the load lies that a factor is made of."""
    loads = (e for e in nodes(factor) if isinstance(e, Load))
    return next(e.position for e in loads if e.free == factor.free)


@dataclass(frozen=True)
class Held:
    """How a tile holds a factor: on what axes, and what each of them stands for."""

    stands: Mapping[Axis, Linear]
    images: tuple[Mapping[Axis, Linear], ...] = ()  # of axes of the factor, one after the other
    guard: Valid = ()  # on the axes of the tile

    @property
    def size(self) -> int:
        return prod(a.size for a in self.stands)

    def value(self, factor: Expr) -> Expr:
        """The factor on the axes of the tile."""
        for image in self.images:
            factor = substitute(factor, image)
        return guarded(factor, self.guard) if self.guard else factor


def windows(factor: Expr, stands: Mapping[Axis, Linear], apart: set[Axis]) -> Held:
    """Axes that count only as a sum, as those of windows do, walked as one: places are held once.

    What is `apart` is not.
    """
    found, images, indices = dict(stands), list[Mapping[Axis, Linear]](), _indices(factor)
    while (window := _window(indices, [a for a in found if a not in apart])) is not None:
        outer, step, inner, wide = window
        images.append({inner: linear(wide) - linear(outer) * step})
        indices = [i.substitute(images[-1]) for i in indices]
        found[wide] = found.pop(outer) * step + found.pop(inner)
    return Held(found, tuple(images))


def _window(indices: Sequence[Linear], axes: Iterable[Axis]) -> tuple[Axis, int, Axis, Axis] | None:
    strides = {a: indices[0].stride(a) for a in sorted(axes, key=lambda a: a.name)}
    for outer, inner in permutations([a for a, stride in strides.items() if stride], 2):
        by, along = strides[inner] or 1, strides[outer] or 0
        step = along // by
        if along == step * by and 0 < step < inner.size:
            wide = Axis(f"{inner.name}w", (outer.size - 1) * step + inner.size)
            if _vanish([outer], indices, {inner: linear(wide) - linear(outer) * step}):
                return outer, step, inner, wide
    return None


def _vanish(axes: Sequence[Axis], indices: Iterable[Linear], image: Mapping[Axis, Linear]) -> bool:
    """Whether nothing depends on axes any more where others are replaced."""
    return all(i.substitute(image).free.isdisjoint(axes) for i in indices)


def _indices(factor: Expr) -> list[Linear]:
    """All that a factor depends on; where it is loaded from comes first."""
    found = [position_of(factor)]
    for e in nodes(factor):
        match e:
            case Load(position=position, valid=valid):
                found += [position, *(v.index for v in valid)]
            case Select(valid=valid):
                found += [v.index for v in valid]
            case Stored(index=index, outside=outside):
                found += [index, *(v.index for v, _ in outside)]
            case Place(index=index):
                found.append(index)
    return list(dict.fromkeys(found))


def run(factor: Expr, stands: Mapping[Axis, Linear], base: Axis, lanes: int) -> Held | None:
    """Axes that only count in a sum with `base`, walked as one, also where none of them overlap.

    As `windows`; None if no element is held less often then. With `lanes`, that many elements
    along `base` are a vector: it stays an axis, behind one of whole vectors.
    """
    steps = _steps(position_of(factor), stands, base)
    if not _overlap(steps, base.size):
        return None
    indices, parts, place, size = _indices(factor), [base], linear(base), base.size
    image: Mapping[Axis, Linear] = {}
    for axis, step in steps:
        if abs(step) > size:
            continue
        longer = place + linear(axis) * step + max(-step, 0) * axis.high
        wide = Axis(f"{base.name}w", size + abs(step) * axis.high)
        tried = {base: linear(wide) + linear(base) - longer}
        if _vanish([*parts, axis], indices, tried):
            image, place, size, parts = tried, longer, wide.size, [*parts, axis]
    if size == prod(a.size for a in parts):
        return None
    wide, others = Axis(f"{base.name}w", size), {a: i for a, i in stands.items() if a not in parts}
    if not lanes:
        return Held({**others, wide: place}, (image,))
    vectors = Axis(f"{base.name}w", -(-size // lanes))
    index = linear(vectors) * lanes + linear(base)
    guard = both([inside(index, 0, wide.high)]) or ()
    return Held({**others, vectors: ZERO, base: place}, (image, {wide: index}), guard)


def _steps(position: Linear, axes: Iterable[Axis], base: Axis) -> list[tuple[Axis, int]]:
    """The axes a step of which is so many steps of the base.

    Whole lengths of the base come first: they are most of what there is to hold.
    """
    by, found = position.stride(base), list[tuple[Axis, int]]()
    for axis in axes if by else ():
        along = position.stride(axis)
        if axis is not base and by and along and along % by == 0:
            found.append((axis, along // by))
    return sorted(found, key=lambda one: (abs(one[1]) < base.size, abs(one[1]), one[0].name))


def _overlap(steps: Iterable[tuple[Axis, int]], size: int) -> bool:
    """Whether any axis goes on within what those before it, of so many steps of a base, reach."""
    for axis, step in steps:
        if abs(step) < size:
            return True
        if abs(step) == size:
            size *= axis.size
    return False


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
