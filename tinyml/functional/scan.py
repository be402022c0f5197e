"""Along an axis, in order: running sums, products, extremes.

A running value over n elements is made of blocks, on several levels: the total of each block, the
running totals of the blocks before, and inside a block a window that grows. Levels are as few as
blocks of 64 admit, and blocks as small as these levels admit, down to 16: elements are many on the
first level. That is some 16 n steps in 2 k - 1 kernels for k levels, each as parallel as any
reduction, and an error that grows with the block and the levels, not with n (Blelloch 1990,
"Prefix sums and their applications", with blocks in place of pairs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tinyml import moves
from tinyml.dtype import DType, bool_, uint8
from tinyml.dtypes import DTypeLike
from tinyml.frozen import dataclass
from tinyml.functional.axes import resolve_axis
from tinyml.functional.composed import composition_of_floats, sum_dtype
from tinyml.functional.elementwise import add, maximum, minimum, mul
from tinyml.functional.movement import along, pad_axis, part
from tinyml.functional.reduction import exponentials, max_, min_, prod, sum_
from tinyml.functional.steps import composition

if TYPE_CHECKING:
    from tinyml.tensor import Scalar, Tensor

BLOCK = 64  # the longest window that is folded anew for each element
LEAST = 16  # elements of a block: smaller ones are not worth their totals
LANES = 8  # of a vector, mostly: blocks of a last axis are whole ones


@dataclass(frozen=True)
class _Running:
    """An associative op: on many values, on two, and the value that changes nothing."""

    fold: Callable[[Tensor, int], Tensor]
    join: Callable[[Tensor, Tensor], Tensor]
    nothing: Callable[[DType], Scalar]
    block: int = BLOCK


def _log_total(x: Tensor, axis: int) -> Tensor:
    total, high = exponentials(x, axis)
    return (_log(total) + high).squeeze(axis)


def _log_both(x: Tensor, y: Tensor) -> Tensor:
    high = maximum(x, y).detach()
    high = high.isfinite().where(high, 0)
    return _log((x - high).exp() + (y - high).exp()) + high


def _log(total: Tensor) -> Tensor:
    """The logarithm; that of nothing is -inf and constant: it passes no NaN to its block."""
    nothing = total == 0
    return nothing.where(-float("inf"), nothing.where(1, total).log())


_SUM = _Running(lambda x, axis: sum_(x, axis, dtype=x.dtype), add, lambda dtype: 0)
_PROD = _Running(lambda x, axis: prod(x, axis, dtype=x.dtype), mul, lambda dtype: 1)
_MAX = _Running(max_, maximum, lambda dtype: dtype.min)
_MIN = _Running(min_, minimum, lambda dtype: dtype.max)
_LOGSUMEXP = _Running(_log_total, _log_both, lambda dtype: dtype.min, BLOCK // 4)  # steps cost much


def _block(n: int, most: int, by: int) -> int:
    """The size of a block: the least that needs no more levels; if possible it divides `n`."""
    sizes = [max(most // 4, LEAST), max(most // 2, LEAST), most]
    size = next(m for m in sizes if _levels(n, m, most) == _levels(n, most, most))
    even = [m for m in range(size, min(3 * size, most + 1), by) if n % m == 0]
    return min(even, default=size)


def _levels(n: int, size: int, most: int) -> int:
    """How many there are above blocks of some size."""
    blocks = -(-n // size)
    return 1 if blocks <= most else 1 + _levels(blocks, most, most)


def _within(running: _Running, x: Tensor, axis: int) -> Tensor:
    """Along a short axis: each element with all before it."""
    n, nothing = x.shape[axis], running.nothing(x.dtype)
    until = along(x._arange(n).reshape((n, 1)) >= x._arange(n), axis, x)
    shape = (*x.shape[:axis], n, *x.shape[axis:])
    return running.fold(until.where(x.unsqueeze(axis)._broadcast_to(shape), nothing), axis + 1)


def _run(running: _Running, x: Tensor, axis: int) -> Tensor:
    """Along an axis."""
    n, front, back = x.shape[axis], x.shape[:axis], x.shape[axis + 1 :]
    if n <= running.block:
        return _within(running, x, axis)
    in_lanes = all(size == 1 for size in back)  # else those of a vector lie along a later axis
    nothing, size = running.nothing(x.dtype), _block(n, running.block, LANES if in_lanes else 1)
    padded = pad_axis(x, axis, 0, -n % size, nothing)
    blocks = padded.reshape((*front, -1, size, *back))
    totals = _run(running, running.fold(blocks, axis + 1), axis).contiguous()
    before = pad_axis(totals, axis, 1, -1, nothing).unsqueeze(axis + 1)
    inside = _within(running, blocks, axis + 1)
    joined = running.join(before._broadcast_to(blocks.shape), inside)
    return part(joined.reshape(padded.shape), axis, 0, n)


def _along(running: _Running, x: Tensor, axis: int, name: str) -> Tensor:
    axis = resolve_axis(axis, x.ndim, name)
    if not x.ndim or not x.numel() or x.shape[axis] == 1:
        return x._own()
    return _run(running, x, axis)


# ---- sums and products ----


@composition
def cumsum(x: Tensor, axis: int = 0, dtype: DTypeLike | None = None) -> Tensor:
    """The sum of each element and all before it; without dtype int64 for integers and bool."""
    return _sums(_SUM, x, axis, dtype, "cumsum")


@composition
def cumprod(x: Tensor, axis: int, dtype: DTypeLike | None = None) -> Tensor:
    """The product of each element and all before it; without dtype int64 for integers.

    In the dtype of the result: what has overflowed stays infinite, and does not come back. (torch
    multiplies float32 as float64 on a CPU.) Beside a zero, inf and NaN have NaN as gradients.
    """
    return _sums(_PROD, x, axis, dtype, "cumprod")


def _sums(running: _Running, x: Tensor, axis: int, dtype: DTypeLike | None, name: str) -> Tensor:
    x = x.cast(sum_dtype(x.dtype) if dtype is None else dtype)
    if x.dtype.is_half:
        return _along(running, x.float(), axis, name).cast(x.dtype)
    return _along(running, x, axis, name)


@composition_of_floats
def logcumsumexp(x: Tensor, axis: int = 0) -> Tensor:
    """log(cumsum(exp(x))) without overflow."""
    return _along(_LOGSUMEXP, x, axis, "logcumsumexp")


# ---- extremes ----


@composition
def cummax(x: Tensor, axis: int = 0) -> Tensor:
    """The largest of each element and all before it; NaN from the first NaN on.

    The gradient goes to where the value was met last, as torch has it.
    """
    return _extreme(_MAX, x, axis, "cummax")


@composition
def cummin(x: Tensor, axis: int = 0) -> Tensor:
    """The smallest of each element and all before it; like cummax."""
    return _extreme(_MIN, x, axis, "cummin")


def _extreme(running: _Running, x: Tensor, axis: int, name: str) -> Tensor:
    if x.dtype is bool_:
        return _extreme(running, x.cast(uint8), axis, name).cast(bool_)
    axis = resolve_axis(axis, x.ndim, name)
    values = _along(running, x.detach(), axis, name)
    if not x.ndim or not x.dtype.is_float:
        return values if x.ndim else x._own()
    places = along(x._arange(x.shape[axis]), axis, x)
    found = _along(running, x.detach(), axis, name)  # anew, as by ReduceMax
    met = ((x == found) | (x != x)).detach()  # an element that is the extreme of those so far
    last = _along(_MAX, met.where(places, 0), axis, name)
    return x._apply(moves.Found(axis), last, values)
