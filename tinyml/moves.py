"""Differentiable primitives that say where elements are: movements, and what indices choose.

See `mlops`, whose Functions these are.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from tinyml import lazy
from tinyml.lazy import LazyBuffer, Shape
from tinyml.mlops import Function, Grads, folded, product_of_others, zeros_apart
from tinyml.ops import Movement, Op
from tinyml.shape import Spans, inverse_order, replaced, spans_along

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


class Rearrangement(Function):
    """The same elements at other places. Its gradient depends on the shape of its input alone."""

    __slots__ = ("arg",)
    move: ClassVar[Callable[..., LazyBuffer]]
    back: Callable[[Tensor, Shape], Tensor]  # the gradient of what had that shape

    def __init__(self, arg: Any) -> None:
        self.arg = arg

    def forward(self, x: LazyBuffer) -> LazyBuffer:
        return type(self).move(x, self.arg)

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        return (self.back(grad, self.inputs[0].shape),)


class Path(Rearrangement):
    """Rearrangements one after the other, each with the shape of what it is applied to."""

    __slots__ = ()

    def forward(self, x: LazyBuffer) -> LazyBuffer:
        for step, _ in self.arg:
            x = step.forward(x)
        return x

    def back(self, grad: Tensor, shape: Shape) -> Tensor:
        for step, before in reversed(self.arg):
            grad = step.back(grad, before)
        return grad


class Reshape(Rearrangement):
    __slots__ = ()
    move = staticmethod(lazy.reshape)

    def back(self, grad: Tensor, shape: Shape) -> Tensor:
        return grad._apply(Reshape(shape))


class Permute(Rearrangement):
    __slots__ = ()
    move = staticmethod(lazy.permute)

    def back(self, grad: Tensor, shape: Shape) -> Tensor:
        return grad._apply(Permute(inverse_order(self.arg)))


class Expand(Rearrangement):
    """Axes of size 1 repeated, and new axes in front."""

    __slots__ = ()
    move = staticmethod(lazy.broadcast)

    def back(self, grad: Tensor, shape: Shape) -> Tensor:
        return folded(grad, shape)


class Pad(Rearrangement):
    __slots__ = ("counts", "value")

    def __init__(self, counts: Spans, value: float | int | bool = 0) -> None:
        self.counts, self.value = counts, value

    def forward(self, x: LazyBuffer) -> LazyBuffer:
        return lazy.pad(x, self.counts, self.value)

    def back(self, grad: Tensor, shape: Shape) -> Tensor:
        sizes = zip(self.counts, shape, strict=True)
        return grad._apply(Shrink(tuple([(before, before + n) for (before, _), n in sizes])))


class Shrink(Rearrangement):
    """Elements start <= i < stop of each axis."""

    __slots__ = ()
    move = staticmethod(lazy.shrink)

    def back(self, grad: Tensor, shape: Shape) -> Tensor:
        sizes = zip(self.arg, shape, strict=True)
        return grad._apply(Pad(tuple([(start, n - stop) for (start, stop), n in sizes])))


class Flip(Rearrangement):
    __slots__ = ()
    move = staticmethod(lazy.flip)

    def back(self, grad: Tensor, shape: Shape) -> Tensor:
        return grad._apply(Flip(self.arg))


class Skew(Rearrangement):
    """out[.. i .. k ..] = x[.. i + step*k .. k ..], 0 outside: see lazy.skew."""

    __slots__ = ("axis", "by", "size", "step")

    def __init__(self, axis: int, by: int, step: int, size: int) -> None:
        self.axis, self.by, self.step, self.size = axis, by, step, size

    def forward(self, x: LazyBuffer) -> LazyBuffer:
        return _skew(x, self.axis, self.by, self.step, self.size)

    def back(self, grad: Tensor, shape: Shape) -> Tensor:
        return grad._apply(Skew(self.axis, self.by, -self.step, shape[self.axis]))


# ---- indexing ----


class Gather(Function):
    """out[.. i ..] = data[.. index[.. i ..] ..]; inputs are data and index (in range)."""

    __slots__ = ("axis",)
    reads_inputs = True

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def forward(self, x: LazyBuffer, index: LazyBuffer) -> LazyBuffer:
        return lazy.gather(x, index, self.axis)

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        x, index, *known = self.inputs
        none = [None for _ in (index, *known)]
        if index.shape[self.axis] == 1:  # each row picks one: nothing is added up, or stored
            places = x._arange(x.shape[self.axis])
            places = places.reshape((-1, *(1 for _ in x.shape[self.axis + 1 :])))
            return (places == index.cast(places.dtype)).where(grad, 0), *none
        base = x._full(x.shape, 0, grad.dtype)
        return base._apply(Scatter(self.axis, Op.ADD), index, grad), *none


class Found(Gather):
    """Gather whose result, the third input, is known already."""

    __slots__ = ()

    def forward(self, x: LazyBuffer, index: LazyBuffer, *known: LazyBuffer) -> LazyBuffer:
        return known[0]


class Scatter(Function):
    """base, with base[.. index[.. i ..] ..] `op=` source[.. i ..] for every i.

    Without an op what is there is replaced; where indices are equal, so are the source's values,
    and only one of them has a gradient.
    Of extremes, whoever equals the result shares its gradient, as of a Reduce. The gradient of a
    factor is the product of the others at its place: those that are not zero, and their only zero,
    which is added up so that it has a gradient in turn.
    """

    __slots__ = ("axis", "op")
    reads_inputs = True

    def __init__(self, axis: int, op: Op | None) -> None:
        self.axis, self.op = axis, op

    def forward(self, base: LazyBuffer, index: LazyBuffer, source: LazyBuffer) -> LazyBuffer:
        return lazy.scatter(base, index, source, self.axis, self.op)

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        if self.op is Op.ADD:
            return grad, None, self._there(grad)
        if self.op is None:
            source, index = self.inputs[2], self.inputs[1]
            nothing = source._full(source.shape, 0, grad.dtype)
            return grad._apply(Scatter(self.axis, None), index, nothing), None, self._there(grad)
        return self._of_factors(grad) if self.op is Op.MUL else self._of_extremes(grad)

    def _there(self, x: Tensor) -> Tensor:
        """x at the places that the index names."""
        return x._apply(Gather(self.axis), self.inputs[1])

    def _of_extremes(self, grad: Tensor) -> Grads:
        base, index, source = self.inputs
        best = base._apply(Scatter(self.axis, self.op), index, source)
        base_won = (base == best).cast(grad.dtype)
        won = (source == self._there(best)).cast(grad.dtype)
        share = grad / base_won._apply(Scatter(self.axis, Op.ADD), index, won).maximum(1)
        return base_won * share, None, won * self._there(share)

    def _of_factors(self, grad: Tensor) -> Grads:
        base, index, source = self.inputs
        of_base = grad * base.ones_like()._apply(Scatter(self.axis, Op.MUL), index, source)
        kinds = (Op.ADD, Op.MUL, Op.ADD)  # the zeros' count, other factors, the zeros
        parts = zip(zeros_apart(base), zeros_apart(source), kinds, strict=True)
        totals = [x._apply(Scatter(self.axis, op), index, y) for x, y, op in parts]
        zeros, product, only = map(self._there, totals)
        others = product_of_others(source, product, zeros, only)
        return of_base, None, others * self._there(grad)


# ---- windows over products ----
# The gradient of a convolution is a skew of (gradient x weights). The weights do not change along
# the skewed axis, so that the skew may act on the gradient alone, and what remains is a plain sum
# of products, as the convolution itself is. (Zeros beyond the edge are then multiplied by weights.)

DEEPEST = 32  # nodes looked through


def _skew(x: LazyBuffer, axis: int, by: int, step: int, size: int) -> LazyBuffer:
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
