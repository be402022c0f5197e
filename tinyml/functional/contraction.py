"""Contractions: two tensors multiplied element by element and added up along axes, as one step.

    contraction ::= Alignment(first), Alignment(second), Alignment(result), space

All three lie in one space of axes, with size 1 along those that they do not have. What is added up
is what the result lacks. The gradient of a factor is the contraction of the result's gradient
with the other factor, in the same space.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tinyml import lazy, mlops
from tinyml.dtype import DType, bool_, float32, int32, promote
from tinyml.frozen import dataclass
from tinyml.lazy import LazyBuffer, Shape
from tinyml.ops import Op
from tinyml.shape import inverse_order

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


@dataclass(frozen=True)
class Alignment:
    """How a tensor lies in a space: axis i is axis order[i] of its own, and then it is `shape`."""

    own: Shape
    order: tuple[int, ...]
    shape: Shape

    @classmethod
    def straight(cls, own: Shape, shape: Shape) -> Alignment:
        """With all axes in their order."""
        return cls(own, tuple(range(len(own))), shape)

    @cached_property
    def _ordered(self) -> Shape:
        return tuple([self.own[i] for i in self.order])

    @cached_property
    def _inverse(self) -> tuple[int, ...]:
        return inverse_order(self.order)

    def place(self, node: LazyBuffer) -> LazyBuffer:
        """The tensor's node in the space."""
        return lazy.reshape(lazy.permute(node, self.order), self.shape)

    def take(self, node: LazyBuffer) -> LazyBuffer:
        """The way back."""
        return lazy.permute(lazy.reshape(node, self._ordered), self._inverse)


@dataclass(frozen=True)
class Contraction:
    """Where two factors and the result lie in `space`."""

    first: Alignment
    second: Alignment
    result: Alignment
    space: Shape

    @cached_property
    def summed(self) -> tuple[int, ...]:
        """The axes of the space that the result does not have."""
        pairs = zip(self.result.shape, self.space, strict=True)
        return tuple([axis for axis, (own, all_) in enumerate(pairs) if own != all_])

    @cached_property
    def of_first(self) -> Contraction:
        """From the result's gradient and the second factor, the gradient of the first."""
        return Contraction(self.result, self.second, self.first, self.space)

    @cached_property
    def of_second(self) -> Contraction:
        """From the result's gradient and the first factor, the gradient of the second."""
        return Contraction(self.result, self.first, self.second, self.space)


class _Contract(mlops.Function):
    """The sum of x * y, multiplied and added up as `wide` and rounded to `dtype`."""

    __slots__ = ("dtype", "how", "wide")
    reads_inputs = True

    def __init__(self, how: Contraction, wide: DType, dtype: DType) -> None:
        self.how, self.wide, self.dtype = how, wide, dtype

    def forward(self, x: LazyBuffer, y: LazyBuffer) -> LazyBuffer:
        how, wide = self.how, self.wide
        first = lazy.expand(how.first.place(lazy.cast(x, wide)), how.space)
        second = lazy.expand(how.second.place(lazy.cast(y, wide)), how.space)
        product = lazy.map_(Op.MUL, first, second)
        return lazy.cast(how.result.take(lazy.reduce_(Op.ADD, product, how.summed)), self.dtype)

    def backward(self, grad: Tensor, out: Tensor) -> mlops.Grads:
        x, y = self.inputs
        of_x = of_y = None
        if self.wanted[0]:
            of_x = grad._apply(_Contract(self.how.of_first, self.wide, x.dtype), y)
        if self.wanted[1]:
            of_y = grad._apply(_Contract(self.how.of_second, self.wide, y.dtype), x)
        return of_x, of_y


def contract(x: Tensor, y: Tensor, how: Contraction, dtype: DType | None) -> Tensor:
    """x and y contracted; halves are multiplied and added up in float32."""
    result = dtype or promote(x.dtype, y.dtype)
    wide = float32 if result.is_half else (int32 if result is bool_ else result)
    return x._apply(_Contract(how, wide, result), y)
