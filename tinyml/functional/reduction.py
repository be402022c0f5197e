"""Many elements to one: sums, extremes, and statistics."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tinyml import mlops
from tinyml.dtype import DType, bool_, int32, int64, uint8, uint64
from tinyml.dtypes import dtypes, to_dtype
from tinyml.functional.axes import Axes, resolve_axes, resolve_axis
from tinyml.functional.precision import in_float32

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


def _reduced(function: type[mlops.Reduction], x: Tensor, axis: Axes, keepdim: bool) -> Tensor:
    axes = resolve_axes(axis, x.ndim, function.__name__.removeprefix("Reduce").lower())
    if not axes:
        return x
    result = x._apply(function(axes)) if any(x.shape[a] != 1 for a in axes) else x
    return result if keepdim else _without(result, axes)


def _without(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return x.reshape(tuple(n for i, n in enumerate(x.shape) if i not in axes))


def _summing(x: Tensor, dtype: DType | str | None) -> Tensor:
    """x in the dtype its sum has: int64 for integers and bool."""
    if dtype is not None:
        return x.cast(to_dtype(dtype))
    return x if x.dtype.is_float or x.dtype is uint64 else x.cast(int64)


def sum_(
    x: Tensor, axis: Axes = None, keepdim: bool = False, dtype: DType | str | None = None
) -> Tensor:
    """The sum over axes; halves are added up in float32, integers in int64."""
    return _reduced(mlops.Sum, _summing(x, dtype), axis, keepdim)


def prod(
    x: Tensor, axis: Axes = None, keepdim: bool = False, dtype: DType | str | None = None
) -> Tensor:
    """The product over axes."""
    return _reduced(mlops.Prod, _summing(x, dtype), axis, keepdim)


def max_(x: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """The largest element over axes; NaN if there is one."""
    if x.dtype is bool_:
        return max_(x.cast(uint8), axis, keepdim).cast(bool_)
    return _reduced(mlops.ReduceMax, x, axis, keepdim)


def min_(x: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """The smallest element over axes; NaN if there is one."""
    if x.dtype is bool_:
        return min_(x.cast(uint8), axis, keepdim).cast(bool_)
    return _reduced(mlops.ReduceMin, x, axis, keepdim)


def any_(x: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """Whether an element is not zero."""
    return max_(x.cast(bool_), axis, keepdim)


def all_(x: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """Whether no element is zero."""
    return min_(x.cast(bool_), axis, keepdim)


def _count(x: Tensor, axis: Axes, op: str) -> int:
    return math.prod(x.shape[a] for a in resolve_axes(axis, x.ndim, op))


@in_float32
def mean(x: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """The sum divided by how many there are: NaN of nothing."""
    count = _count(x, axis, "mean")
    total = x.sum(axis, keepdim)
    return total * (1 / count) if count else total / 0


@in_float32
def var(x: Tensor, axis: Axes = None, keepdim: bool = False, correction: int = 1) -> Tensor:
    """The mean square distance from the mean, divided by count - correction."""
    axes = resolve_axes(axis, x.ndim, "var")
    centred = x - x.mean(axes, keepdim=True) if axes else x - x
    total = (centred * centred).sum(axes, keepdim)
    return total / max(0, _count(x, axis, "var") - correction)


@in_float32
def std(x: Tensor, axis: Axes = None, keepdim: bool = False, correction: int = 1) -> Tensor:
    """The root of the variance."""
    return var(x, axis, keepdim, correction).sqrt()


def std_mean(
    x: Tensor, axis: Axes = None, keepdim: bool = False, correction: int = 1
) -> tuple[Tensor, Tensor]:
    """Both."""
    return std(x, axis, keepdim, correction), mean(x, axis, keepdim)


def var_mean(
    x: Tensor, axis: Axes = None, keepdim: bool = False, correction: int = 1
) -> tuple[Tensor, Tensor]:
    """Both."""
    return var(x, axis, keepdim, correction), mean(x, axis, keepdim)


@in_float32
def logsumexp(x: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) without overflow."""
    axes = resolve_axes(axis, x.ndim, "logsumexp")
    if not axes:
        return x.exp().log() if x.ndim else x
    total, high = exponentials(x, axes)
    result = total.log() + high
    return result if keepdim else _without(result, axes)


def exponentials(x: Tensor, axes: Axes) -> tuple[Tensor, Tensor]:
    """(the sum of exp(x - high), high), with `high` such that nothing overflows; axes stay."""
    high = x.detach().max(axes, keepdim=True)
    high = high.isfinite().where(high, 0)
    return (x - high).exp().sum(axes, keepdim=True), high


def argmax(x: Tensor, axis: int | None = None, keepdim: bool = False) -> Tensor:
    """Where the largest element is; the first one if there are several, or the first NaN."""
    return _position(x, axis, keepdim, max_)


def argmin(x: Tensor, axis: int | None = None, keepdim: bool = False) -> Tensor:
    """Where the smallest element is; the first one if there are several, or the first NaN."""
    return _position(x, axis, keepdim, min_)


def _position(x: Tensor, axis: int | None, keepdim: bool, extreme: object) -> Tensor:
    x = x.detach()
    if axis is None:
        found = _position(x.reshape(-1) if x.numel() else x.reshape(0), 0, False, extreme)
        return found.reshape((1,) * x.ndim) if keepdim else found
    axis = resolve_axis(axis, x.ndim, "argmax")
    if not x.ndim:
        return x._full((), 0, int32)
    best = max_(x, axis, True) if extreme is max_ else min_(x, axis, True)
    n = x.shape[axis]
    places = x._arange(n).reshape((n,) + (1,) * (x.ndim - axis - 1))
    hit = (x == best) | (x != x) if x.dtype.is_float else x == best
    return min_(hit.where(places, n), axis, keepdim).cast(dtypes.default_int)
