"""Differentiable primitives that say where elements are: movements, and what indices choose.

See `mlops`, whose Functions these are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from tinyml import lazy, windows
from tinyml.dtype import int32
from tinyml.lazy import LazyBuffer, Shape
from tinyml.mlops import Function, Grads, folded, product_of_others, zeros_apart
from tinyml.ops import Op
from tinyml.shape import Spans, inverse_order

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


# ---- movement ----


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
        return windows.skew(x, self.axis, self.by, self.step, self.size)

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
            return (places == index.cast(int32)).where(grad, 0), *none
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
