"""Along an axis, in order: running sums, sorting, selection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinyml.dtype import DType, bool_, int32, int64, uint8
from tinyml.errors import ShapeError
from tinyml.functional.axes import resolve_axis
from tinyml.functional.movement import pad_by
from tinyml.functional.precision import in_float32
from tinyml.functional.reduction import max_, prod, sum_
from tinyml.ops import Op

if TYPE_CHECKING:
    from tinyml.tensor import Scalar, Tensor

BLOCK = 128  # how far a running value is computed by adding up all that is before it
COUNTED = 1024  # the longest axis that is sorted by comparing every pair


def _reduce_last(op: Op, x: Tensor) -> Tensor:
    axis = x.ndim - 1
    return {Op.ADD: sum_, Op.MUL: prod, Op.MAX: max_}[op](x, axis)


def _identity(op: Op, dtype: DType) -> Scalar:
    return dtype.minimum if op is Op.MAX else (0 if op is Op.ADD else 1)


def _combine(op: Op, x: Tensor, y: Tensor) -> Tensor:
    return x + y if op is Op.ADD else (x * y if op is Op.MUL else x.maximum(y))


def _running(op: Op, x: Tensor) -> Tensor:
    """Along the last axis: within blocks directly, then the totals of the blocks before."""
    n = x.shape[-1]
    nothing = _identity(op, x.dtype)
    if n <= BLOCK:
        before = x._arange(n).reshape((n, 1)) >= x._arange(n)
        spread = x.reshape((*x.shape[:-1], 1, n))._broadcast_to((*x.shape[:-1], n, n))
        return _reduce_last(op, before.where(spread, nothing))
    blocks = -(-n // BLOCK)
    front = ((0, 0),) * (x.ndim - 1)
    padded = pad_by(x, (*front, (0, blocks * BLOCK - n)), nothing)
    inside = _running(op, padded.reshape((*x.shape[:-1], blocks, BLOCK)))
    totals = _running(op, inside[..., -1].contiguous())
    earlier = pad_by(totals, (*front, (1, -1)), nothing).unsqueeze(-1)
    joined = _combine(op, inside, earlier._broadcast_to(inside.shape))
    return joined.reshape(padded.shape).shrink([*(None for _ in front), (0, n)])


def _along(op: Op, x: Tensor, axis: int, name: str) -> Tensor:
    axis = resolve_axis(axis, x.ndim, name)
    if not x.ndim or not x.numel():
        return x
    if x.shape[axis] == 1:
        return x
    return _running(op, x.transpose(axis, -1)).transpose(axis, -1)


def cumsum(x: Tensor, axis: int = 0) -> Tensor:
    """The sum of each element and all before it."""
    wide = x if x.dtype.is_float else x.cast(int64)
    return _along(Op.ADD, wide, axis, "cumsum")


def cumprod(x: Tensor, axis: int) -> Tensor:
    """The product of each element and all before it."""
    wide = x if x.dtype.is_float else x.cast(int64)
    return _along(Op.MUL, wide, axis, "cumprod")


def cummax(x: Tensor, axis: int = 0) -> Tensor:
    """The largest of each element and all before it."""
    if x.dtype is bool_:
        return cummax(x.cast(uint8), axis).cast(bool_)
    return _along(Op.MAX, x, axis, "cummax")


@in_float32
def logcumsumexp(x: Tensor, axis: int = 0) -> Tensor:
    """log(cumsum(exp(x))) without overflow."""
    axis = resolve_axis(axis, x.ndim, "logcumsumexp")
    if not x.ndim or not x.numel():
        return x
    last = x.transpose(axis, -1)
    n = last.shape[-1]
    high = cummax(last.detach(), -1)
    high = high.isfinite().where(high, 0).unsqueeze(-1)
    before = x._arange(n).reshape((n, 1)) >= x._arange(n)
    shifted = before.where(last.unsqueeze(-2) - high, -float("inf"))
    total = shifted.exp().sum(-1).log() + high.reshape(last.shape)
    return total.transpose(axis, -1)


# ---- sorting ----


def _less(a: Tensor, b: Tensor) -> Tensor:
    """a before b in ascending order; NaN is above all numbers."""
    return (a < b) | ((b != b) & (a == a)) if a.dtype.is_float else a < b


def _by_counting(x: Tensor, descending: bool) -> Tensor:
    """Indices that sort the last axis: an element's place is how many come before it."""
    n = x.shape[-1]
    mine, other = x.unsqueeze(-1), x.unsqueeze(-2)
    less, more = _less(other, mine), _less(mine, other)
    earlier = x._arange(n) < x._arange(n).reshape((n, 1))
    first, after = (more, less) if descending else (less, more)
    ranks = (first | (~after & earlier)).cast(int32).sum(-1, dtype=int32)
    places = x._arange(n)._broadcast_to(x.shape)
    return x._full(x.shape, 0, int32).scatter_reduce(-1, ranks, places, "sum")


def _by_merging(x: Tensor, descending: bool) -> Tensor:
    """Indices that sort the last axis, by a bitonic network of pairs (element, index)."""
    n = x.shape[-1]
    stages = (n - 1).bit_length()
    count, front = 1 << stages, x.shape[:-1]
    order = x._arange(count)._broadcast_to((*front, count))
    keys = pad_by(x, (*((0, 0) for _ in front), (0, count - n)))
    for stage in range(1, stages + 1):
        for step in reversed(range(stage)):
            shape = (*front, count >> (step + 1), 2, 1 << step)
            pair, index = keys.reshape(shape), order.reshape(shape)
            a, b, i, j = pair[..., 0, :], pair[..., 1, :], index[..., 0, :], index[..., 1, :]
            first, after = (_less(b, a), _less(a, b)) if descending else (_less(a, b), _less(b, a))
            by_key = (i < n) & (j < n)  # an index from n on is padding, and goes to the end
            ordered = (by_key & first) | (~(by_key & after) & (i < j))
            rising = ((x._arange(count >> (step + 1)) >> (stage - step - 1)) & 1) == 0
            keep = ordered == rising.unsqueeze(-1)
            keys = keep.where(a, b).stack(keep.where(b, a), dim=-2).reshape(keys.shape)
            order = keep.where(i, j).stack(keep.where(j, i), dim=-2).reshape(order.shape)
            keys, order = keys.contiguous(), order.contiguous()
    return order.shrink([*(None for _ in front), (0, n)])


def argsort(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """The indices that put x in order; equal elements keep theirs."""
    dim = resolve_axis(dim, x.ndim, "sort")
    if not x.ndim:
        return x._full((), 0, int32)
    last = x.detach().transpose(dim, -1)
    sorting = _by_counting if last.shape[-1] <= COUNTED else _by_merging
    return sorting(last, descending).transpose(dim, -1)


def sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """(values in order, where they were), stable; NaN counts as the largest."""
    order = argsort(x, dim, descending)
    return (x.gather(dim, order) if x.ndim else x), order


def topk(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True
) -> tuple[Tensor, Tensor]:
    """The k largest or smallest along `dim`, and where they were; in order in any case."""
    dim = resolve_axis(dim, x.ndim, "topk")
    if k < 0 or k > (x.shape[dim] if x.ndim else 1):
        raise ShapeError(f"topk: cannot take {k} of axis {dim} of {x.shape}")
    values, order = sort(x, dim, largest)
    spans = [(0, k) if a == dim else None for a in range(x.ndim)]
    return values.shrink(spans), order.shrink(spans)
