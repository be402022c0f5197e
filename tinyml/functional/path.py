"""Paths: movements one after the other, which are applied as one step.

    path ::= shape at the end, (movement, the shape before it)*

What depends on shapes alone is worked out here, once, and not for each tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinyml import moves
from tinyml.errors import ShapeError
from tinyml.frozen import dataclass
from tinyml.lazy import Shape
from tinyml.moves import Rearrangement
from tinyml.shape import Spans, replaced, spans_along

if TYPE_CHECKING:
    from tinyml.tensor import Scalar, Tensor


@dataclass(frozen=True)
class Path:
    """Movements that end at a shape. A method adds one, unless it would move nothing."""

    shape: Shape
    steps: tuple[tuple[Rearrangement, Shape], ...] = ()

    def of(self, x: Tensor) -> Tensor:
        """What the path makes of a tensor of the shape at its beginning."""
        return x._apply(moves.Path(self.steps)) if self.steps else x

    def back(self, x: Tensor) -> Tensor:
        """The way back from the end: zeros at all other places, and sums of what was repeated."""
        return moves.Path(self.steps).back(x, ())

    def _to(self, movement: Rearrangement, shape: Shape) -> Path:
        return Path(shape, (*self.steps, (movement, self.shape)))

    def reshape(self, to: Shape) -> Path:
        """Another shape of as many elements."""
        return self if to == self.shape else self._to(moves.Reshape(to), to)

    def permute(self, order: Sequence[int]) -> Path:
        """Axis i becomes that of number order[i]."""
        order = tuple(order)
        to = tuple([self.shape[a] for a in order])
        return self if order == tuple(range(len(order))) else self._to(moves.Permute(order), to)

    def expand(self, to: Shape) -> Path:
        """Axes of size 1 repeated."""
        return self if to == self.shape else self._to(moves.Expand(to), to)

    def flip(self, axes: tuple[int, ...]) -> Path:
        """These axes walked backwards."""
        return self._to(moves.Flip(axes), self.shape) if axes else self

    def shrink(self, spans: Spans) -> Path:
        """Elements start <= i < stop of each axis."""
        to = tuple([stop - start for start, stop in spans])
        return self if to == self.shape else self._to(moves.Shrink(spans), to)

    def pad(self, counts: Spans, value: Scalar = 0) -> Path:
        """`value` added (before, after) each axis; a negative count takes away."""
        pairs = list(zip(counts, self.shape, strict=True))
        if any(n + min(b, 0) + min(a, 0) < 0 for (b, a), n in pairs):
            raise ShapeError(f"pad: {counts} takes more away than {self.shape} has")
        left = self.shrink(tuple([(max(0, -b), n - max(0, -a)) for (b, a), n in pairs]))
        more = tuple([(max(0, b), max(0, a)) for b, a in counts])
        to = tuple([n + b + a for (b, a), n in zip(more, left.shape, strict=True)])
        return left if to == left.shape else left._to(moves.Pad(more, value), to)

    def first(self, axis: int, count: int) -> Path:
        """The first elements of one axis."""
        return self.shrink(spans_along(self.shape, axis, 0, count))

    def every(self, axis: int, step: int) -> Path:
        """Elements 0, step, 2 * step, ... of one axis."""
        if step == 1:
            return self
        before, n, after = self.shape[:axis], self.shape[axis], self.shape[axis + 1 :]
        count = -(-n // step)
        missing = count * step - n
        padded = self.pad(replaced(((0, 0),) * len(self.shape), axis, (0, missing)))
        return (
            padded.reshape((*before, count, step, *after))
            .first(axis + 1, 1)
            .reshape((*before, count, *after))
        )

    def windows(
        self, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
    ) -> Path:
        """(.., *spatial) to (.., *out, *sizes): element [o, k] is x[o * stride + k * dilation]."""
        rank = len(self.shape)
        path = self.reshape((*self.shape, *(1,) * len(sizes))).expand((*self.shape, *sizes))
        for i, (k, stride, dilation) in enumerate(zip(sizes, strides, dilations, strict=True)):
            axis = rank - len(sizes) + i
            n = path.shape[axis]
            size = ((n - dilation * (k - 1) - 1) // stride + 1) * stride
            if k > 1 or size > n:
                to = (*path.shape[:axis], size, *path.shape[axis + 1 :])
                path = path._to(moves.Skew(axis, rank + i, dilation, size), to)
            path = path.first(axis, size).every(axis, stride)
        return path
