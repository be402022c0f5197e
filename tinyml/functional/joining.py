"""Tensors joined along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinyml import lazy, mlops, moves
from tinyml.dtype import index_dtype, promote
from tinyml.errors import AxisError, ShapeError
from tinyml.functional.axes import apart, is_tensor, resolve_axis, wrong_type
from tinyml.functional.steps import composition
from tinyml.lazy import LazyBuffer
from tinyml.ops import Op
from tinyml.shape import replaced, spans_along

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


class _Join(mlops.Function):
    """Each input is padded to the whole and chosen where it belongs."""

    __slots__ = ("axis",)

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def forward(self, *parts: LazyBuffer) -> LazyBuffer:
        while len(parts) > 1:  # pairwise, so that depth stays small
            pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
            parts = tuple([self._pair(*p) if len(p) == 2 else p[0] for p in pairs])
        return parts[0]

    def _pair(self, x: LazyBuffer, y: LazyBuffer) -> LazyBuffer:
        n, m, ndim = x.shape[self.axis], y.shape[self.axis], len(x.shape)
        nothing = ((0, 0),) * ndim
        head = lazy.pad(x, replaced(nothing, self.axis, (0, m)))
        tail = lazy.pad(y, replaced(nothing, self.axis, (n, 0)))
        place = lazy.iota(n + m, index_dtype(n + m), x.device)
        place = lazy.reshape(place, replaced((1,) * ndim, self.axis, n + m))
        first = lazy.map_(Op.LESS, place, lazy.const_like(place, n))
        return lazy.map_(Op.WHERE, first, head, tail)

    def backward(self, grad: Tensor, out: Tensor) -> mlops.Grads:
        parts, start = [], 0
        for x, wanted in zip(self.inputs, self.wanted, strict=True):
            stop = start + x.shape[self.axis]
            spans = spans_along(grad.shape, self.axis, start, stop)
            parts.append(grad._apply(moves.Shrink(spans)) if wanted else None)
            start = stop
        return tuple(parts)


@composition
def cat(x: Tensor, *others: Any, dim: int = 0) -> Tensor:
    """Tensors one after the other along `dim`; one of shape (0,) goes with any, as in torch."""
    parts = _all_of("cat", x, others)
    dtype = promote(*{p.dtype: None for p in parts})
    first = next((p for p in parts if p.shape != (0,)), parts[0]).shape
    if not first:
        raise AxisError("cat: numbers have no axis to join along; use stack")
    dim = resolve_axis(dim, len(first), "cat")
    before, after = first[:dim], first[dim + 1 :]
    for i, part in enumerate(parts):
        shape = part.shape
        if shape == (0,):
            parts[i] = part._reshape_to((*before, 0, *after))
        elif len(shape) != len(first) or shape[:dim] != before or shape[dim + 1 :] != after:
            raise ShapeError(f"cat: {first} and {shape} must agree on every axis but {dim}")
    parts = [p.cast(dtype) for p in parts if p.shape[dim] or p.requires_grad] or parts[:1]
    return parts[0]._apply(_Join(dim), *parts[1:]) if len(parts) > 1 else parts[0]._own()


@composition
def stack(x: Tensor, *others: Any, dim: int = 0) -> Tensor:
    """Tensors of one shape along a new axis."""
    parts = _all_of("stack", x, others)
    shape = parts[0].shape
    for part in parts:
        if part.shape != shape:
            raise ShapeError(f"stack: shapes {shape} and {part.shape} must be equal")
    dim = resolve_axis(dim, len(shape) + 1, "stack")
    new = [part._reshape_to((*shape[:dim], 1, *shape[dim:])) for part in parts]
    return cat(new[0], *new[1:], dim=dim)


def _all_of(op: str, x: Any, others: Sequence[Any]) -> list[Tensor]:
    listed = isinstance(x, (list, tuple)) and not others
    given = [*x] if listed else [x, *others]
    if not given:
        raise ShapeError(f"{op}: at least one tensor is needed")
    for number, part in enumerate(given):
        if not listed and isinstance(part, (list, tuple, int) if number else (list, tuple)):
            raise ShapeError(f"{op}: takes tensors or one list of them, and the axis as dim=")
        if not is_tensor(part):
            raise wrong_type(op, f"part {number}", "a Tensor", part)
        if part._lazy.device != given[0]._lazy.device:
            raise apart(op, given[0], part)
    return given
