"""How axes and shapes are written by users, and what they mean."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from tinyml.errors import AxisError, ShapeError
from tinyml.lazy import Shape

Axes = int | Sequence[int] | None


def resolve_axis(axis: int, ndim: int, op: str) -> int:
    """`axis` counted from the front; AxisError (an IndexError) if there is no such axis."""
    span = ndim or 1  # a number has an axis 0, as far as naming it goes
    if not -span <= axis < span:
        raise AxisError(
            f"{op}: axis {axis} is out of range for {ndim} dimensions; it lies in "
            f"[{-span}, {span - 1}]"
        )
    return axis % span


def resolve_axes(axis: Axes, ndim: int, op: str) -> tuple[int, ...]:
    """Which axes are meant, in order; None is all of them."""
    if axis is None:
        return tuple(range(ndim))
    named = (axis,) if isinstance(axis, int) else tuple(axis)
    axes = tuple(sorted(resolve_axis(a, ndim, op) for a in named))
    if len(set(axes)) != len(axes):
        raise AxisError(f"{op}: each axis can be named once, got {named}")
    return axes if ndim else ()


def as_shape(sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shape given as `f(2, 3)` or `f((2, 3))`."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        return tuple(sizes[0])
    if any(isinstance(n, (tuple, list)) for n in sizes):
        raise ShapeError(f"sizes are given as f(2, 3) or as f((2, 3)), not both at once: {sizes}")
    return sizes


def new_shape(sizes: tuple[Any, ...], op: str) -> Shape:
    """The shape of a tensor to be made; ValueError if a size is negative or no whole number."""
    try:
        shape = tuple(operator.index(n) for n in as_shape(sizes))
    except TypeError:
        raise ShapeError(
            f"{op}: sizes are whole numbers or one tuple of them, got {sizes}"
        ) from None
    if any(n < 0 for n in shape):
        raise ShapeError(f"{op}: a size cannot be negative, got {shape}")
    return shape


def broadcast_shape(op: str, *shapes: Shape) -> Shape:
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
            raise ShapeError(
                f"{op}: shapes {' and '.join(map(str, shapes))} do not broadcast: counted from "
                "the last axis, sizes must be equal or 1"
            )
        result.append(grown.pop() if grown else 1)
    return tuple(result)


def per_axis(value: Any, count: int, op: str, name: str, least: int = 1) -> tuple[int, ...]:
    """One number per axis, none below `least`, from an int or a sequence of them."""
    values = (value,) * count if isinstance(value, int) else tuple(value)
    if len(values) != count:
        raise ShapeError(f"{op}: {name} needs {count} values or one, got {values}")
    if any(v < least for v in values):
        raise ShapeError(f"{op}: {name} must be at least {least}, got {values}")
    return values
