"""Windows over products: where one factor is the same in all of them, only the other is moved.

The gradient of a convolution is a skew of (gradient x weights). The weights do not change along
the skewed axis, so that the skew may act on the gradient alone, and what remains is a plain sum of
products, as the convolution itself is. (Zeros beyond the edge are then multiplied by weights.)
"""

from __future__ import annotations

from math import prod

from tinyml import lazy
from tinyml.lazy import LazyBuffer, Shape
from tinyml.ops import Movement, Op
from tinyml.shape import replaced, spans_along

DEEPEST = 32  # nodes looked through


def skew(x: LazyBuffer, axis: int, by: int, step: int, size: int) -> LazyBuffer:
    """lazy.skew, inside of sums and on one factor of a product where that says the same."""
    inner = _inside(x, axis, by, step, size, DEEPEST) if x.dtype.is_float and x.size else None
    return lazy.skew(x, axis, by, step, size) if inner is None else inner


def _inside(
    x: LazyBuffer, axis: int, by: int, step: int, size: int, depth: int
) -> LazyBuffer | None:
    """The skew of `x` done below it; None if there is no product to do it in."""
    source = x.sources[0] if x.sources and depth else None
    match x:
        case lazy.Map(op=Op.MUL):
            return _of_product(x, axis, by, step, size)
        case lazy.Reduce(op=Op.ADD, axes=axes) if source is not None:
            if axis in axes or by in axes:
                return None
            inner = _inside(source, axis, by, step, size, depth - 1)
            return None if inner is None else lazy.reduce_(Op.ADD, inner, axes)
        case lazy.Move(movement=Movement.PERMUTE, arg=(_, order)) if source is not None:
            inner = _inside(source, order[axis], order[by], step, size, depth - 1)
            return None if inner is None else lazy.permute(inner, order)
        case lazy.Move(movement=Movement.RESHAPE) if source is not None:
            places = [_same_axis(x.shape, source.shape, a) for a in (axis, by)]
            if places[0] is None or places[1] is None:
                return None
            inner = _inside(source, places[0], places[1], step, size, depth - 1)
            return None if inner is None else lazy.reshape(inner, replaced(x.shape, axis, size))
    return None


def _of_product(x: LazyBuffer, axis: int, by: int, step: int, size: int) -> LazyBuffer | None:
    for moved, fixed in (x.sources, x.sources[::-1]):
        if _is_constant(fixed, axis, DEEPEST):
            one = lazy.shrink(fixed, spans_along(fixed.shape, axis, 0, 1))
            spread = lazy.expand(one, replaced(x.shape, axis, size))
            return lazy.map_(Op.MUL, lazy.skew(moved, axis, by, step, size), spread)
    return None


def _is_constant(x: LazyBuffer, axis: int, depth: int) -> bool:
    """Whether the values are known to be equal all along an axis."""
    while depth:
        depth -= 1
        if x.shape[axis] == 1:
            return True
        if not isinstance(x, lazy.Move):
            return False
        movement, arg = x.arg
        x, shape = x.sources[0], x.shape
        if movement is Movement.PERMUTE:
            axis = arg[axis]
        elif movement is Movement.RESHAPE:
            place = _same_axis(shape, x.shape, axis)
            if place is None:
                return False
            axis = place
        elif movement not in (Movement.EXPAND, Movement.SHRINK, Movement.FLIP):
            return False
    return False


def _same_axis(shape: Shape, below: Shape, axis: int) -> int | None:
    """The axis of `below` that a reshape to `shape` made into `axis` as it was."""
    before, size = prod(shape[:axis]), shape[axis]
    for place, n in enumerate(below):
        if n == size and prod(below[:place]) == before and size > 1:
            return place
    return None
