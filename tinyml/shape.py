"""What becomes of shapes. Programs ask the same of the same few shapes, so answers are kept.

Each function takes tuples of ints and gives the new shape; a ShapeError says why there is none.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TypeAlias, TypeVar

from tinyml.errors import ShapeError

Shape: TypeAlias = tuple[int, ...]
Spans: TypeAlias = tuple[tuple[int, int], ...]
_T = TypeVar("_T")
_kept = lru_cache(maxsize=4096)


def replaced(items: tuple[_T, ...], axis: int, item: _T) -> tuple[_T, ...]:
    """What is said of each axis, with something else for one of them."""
    return (*items[:axis], item, *items[axis + 1 :])


def spans_along(shape: Shape, axis: int, start: int, stop: int) -> Spans:
    """Elements start <= i < stop of one axis, and all of the others."""
    return replaced(tuple([(0, n) for n in shape]), axis, (start, stop))


@_kept
def broadcast_shape(op: object, *shapes: Shape, error: type[ShapeError] = ShapeError) -> Shape:
    """The shape that all `shapes` expand to."""
    first = shapes[0]
    if shapes.count(first) == len(shapes):
        return first
    ndim = max(map(len, shapes))
    padded = [(1,) * (ndim - len(s)) + s for s in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        grown = set(sizes)
        grown.discard(1)
        if len(grown) > 1:
            raise error(
                f"{op}: shapes {' and '.join(map(str, shapes))} do not broadcast: counted from "
                "the last axis, sizes must be equal or 1"
            )
        result.append(grown.pop() if grown else 1)
    return tuple(result)


@_kept
def reduced_shape(shape: Shape, axes: Shape) -> tuple[Shape, Shape]:
    """Axes in order, each once, and the shape in which their size is 1."""
    named = tuple(sorted(set(axes)))
    if named and not 0 <= named[0] <= named[-1] < len(shape):
        raise ShapeError(f"cannot reduce axes {named} of shape {shape}")
    return named, tuple([1 if a in named else n for a, n in enumerate(shape)])


@_kept
def dropped_shape(shape: Shape, axes: Shape) -> Shape:
    """The sizes of the other axes."""
    return tuple([n for a, n in enumerate(shape) if a not in axes])


@_kept
def size_along(shape: Shape, axes: Shape) -> int:
    """How many elements there are along axes."""
    return prod([shape[a] for a in axes])


@_kept
def squeezed_shape(shape: Shape, axes: Shape) -> Shape:
    """The sizes without these axes, where they are 1."""
    return tuple([n for a, n in enumerate(shape) if n != 1 or a not in axes])


@_kept
def reshaped_shape(shape: Shape, to: Shape) -> Shape:
    """`to`, if it has as many elements."""
    if prod(to) != prod(shape) or (to and min(to) < 0):
        raise ShapeError(f"cannot reshape {shape} ({prod(shape)} elements) to {to} ({prod(to)})")
    return to


@_kept
def permuted_shape(shape: Shape, order: Shape) -> Shape | None:
    """Axis i is axis order[i]; None if each stays where it is."""
    straight = tuple(range(len(shape)))
    if tuple(sorted(order)) != straight:
        raise ShapeError(f"permute order {order} is no permutation of the axes of {shape}")
    return None if order == straight else tuple([shape[i] for i in order])


@_kept
def inverse_order(order: Shape) -> Shape:
    """The order that puts permuted axes back."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


@_kept
def expanded_shape(shape: Shape, to: Shape) -> Shape:
    """`to`, if it differs only where the size is 1."""
    if len(to) != len(shape):
        raise ShapeError(f"cannot expand {shape} to {to}: the number of axes differs")
    for axis, (old, new) in enumerate(zip(shape, to, strict=True)):
        if old != new and old != 1:
            raise ShapeError(
                f"cannot expand {shape} to {to}: axis {axis} has size {old}, "
                "and only size 1 can grow"
            )
    return to


@_kept
def padded_shape(shape: Shape, counts: Spans) -> Shape:
    """(before, after) more of each axis."""
    if len(counts) != len(shape) or any(b < 0 or a < 0 for b, a in counts):
        raise ShapeError(f"cannot pad {shape} by {counts}: one (before, after) >= 0 per axis")
    return tuple([n + b + a for n, (b, a) in zip(shape, counts, strict=True)])


@_kept
def shrunk_shape(shape: Shape, spans: Spans) -> Shape:
    """start <= i < stop of each axis."""
    fits = [0 <= a <= b <= n for (a, b), n in zip(spans, shape, strict=False)]
    if len(spans) != len(shape) or not all(fits):
        raise ShapeError(f"cannot shrink {shape} to {spans}: 0 <= start <= stop <= size")
    return tuple([b - a for a, b in spans])


@_kept
def row_major_strides(shape: Shape) -> Shape:
    """How many elements lie between neighbours along each axis."""
    return tuple([prod(shape[axis + 1 :]) for axis in range(len(shape))])


@_kept
def turned_axes(shape: Shape, axes: Shape) -> Shape:
    """Those of the axes, in order, that have more than one element to walk backwards."""
    return tuple(sorted([a for a in set(axes) if shape[a] > 1]))
