"""Many elements to one: sums, extremes, and statistics."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import TYPE_CHECKING, Any

from tinyml import lazy, mlops
from tinyml.dtype import bool_, int32, uint8, uint32
from tinyml.dtypes import DTypeLike, to_dtype
from tinyml.errors import ArgumentError, AxisError, DTypeError
from tinyml.functional.axes import Axes, is_tensor, number, resolve_axes, resolve_axis, wrong_type
from tinyml.functional.composed import composition_of_floats, sum_dtype, to_float, with_gradient
from tinyml.functional.movement import along
from tinyml.functional.steps import composition
from tinyml.ops import Op
from tinyml.shape import dropped_shape, size_along

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


def _axes(x: Tensor, axis: Axes, op: str, keepdim: bool) -> tuple[int, ...]:
    """Which axes are meant; as torch has it, to name none is to name all."""
    _check_keepdim(op, keepdim)
    all_of_them = isinstance(axis, (tuple, list)) and not axis
    return resolve_axes(None if all_of_them else axis, len(x._lazy.shape), op)


def _check_keepdim(op: str, keepdim: Any) -> None:
    if not isinstance(keepdim, bool):  # sum(0, 1) would be of axis 0 alone
        raise wrong_type(op, "keepdim", "True or False (several axes are a tuple)", keepdim)


def _reduced(
    function: type[mlops.Reduction], x: Tensor, axes: tuple[int, ...], keepdim: bool
) -> Tensor:
    shape = x._lazy.shape
    for a in axes:
        if shape[a] != 1:
            return x._apply(function(axes, keepdim))
    return x._own() if keepdim else _without(x._own(), axes)


def _without(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return x.reshape(dropped_shape(x.shape, axes))


def _summing(x: Tensor, dtype: DTypeLike | None) -> Tensor:
    own = x._lazy.dtype
    target = sum_dtype(own) if dtype is None else to_dtype(dtype)
    return x if target is own else x.cast(target)


def sum_(
    x: Tensor, axis: Axes = None, keepdim: bool = False, dtype: DTypeLike | None = None
) -> Tensor:
    """The sum over axes; halves are added up in float32, integers in int64, bool as `or` does."""
    if dtype is not None and to_dtype(dtype) is bool_:
        return _extreme(mlops.ReduceMax, x.cast(bool_), _axes(x, axis, "sum", keepdim), keepdim)
    return _reduced(mlops.Sum, _summing(x, dtype), _axes(x, axis, "sum", keepdim), keepdim)


def prod(
    x: Tensor, axis: Axes = None, keepdim: bool = False, dtype: DTypeLike | None = None
) -> Tensor:
    """The product over axes; of bool it is what `and` makes.

    The gradient of an inf or NaN beside a zero is NaN: the others are found by a division.
    """
    if dtype is not None and to_dtype(dtype) is bool_:
        return _extreme(mlops.ReduceMin, x.cast(bool_), _axes(x, axis, "prod", keepdim), keepdim)
    return _reduced(mlops.Prod, _summing(x, dtype), _axes(x, axis, "prod", keepdim), keepdim)


def _extreme(
    function: type[mlops.Reduction], x: Tensor, axes: tuple[int, ...], keepdim: bool
) -> Tensor:
    if x._lazy.dtype is bool_:  # as numbers as wide as masks are, of which 0 is the least
        return _reduced(function, x.cast(uint32), axes, keepdim).cast(bool_)
    return _reduced(function, x, axes, keepdim)


def _axes_to_choose(x: Tensor, axis: Axes, op: str, keepdim: bool) -> tuple[int, ...]:
    if is_tensor(axis):
        raise ArgumentError(f"{op}: axis is an int or several; of two tensors, write x.{op}imum(y)")
    axes, shape = _axes(x, axis, op, keepdim), x._lazy.shape
    for a in axes:
        if not shape[a]:
            raise AxisError(f"{op}: axis {a} of {shape} has no elements to choose from")
    return axes


def max_(x: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """The largest element over axes; NaN if there is one."""
    return _extreme(mlops.ReduceMax, x, _axes_to_choose(x, axis, "max", keepdim), keepdim)


def min_(x: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """The smallest element over axes; NaN if there is one."""
    return _extreme(mlops.ReduceMin, x, _axes_to_choose(x, axis, "min", keepdim), keepdim)


@composition
def any_(x: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """Whether any element is not zero; axis=() reduces nothing, and of uint8 it is uint8."""
    _check_keepdim("any", keepdim)
    found = _extreme(mlops.ReduceMax, x.cast(bool_), resolve_axes(axis, x.ndim, "any"), keepdim)
    return found.cast(uint8) if x.dtype is uint8 else found


@composition
def all_(x: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """Whether no element is zero; axis=() reduces nothing, and of uint8 it is uint8."""
    _check_keepdim("all", keepdim)
    found = _extreme(mlops.ReduceMin, x.cast(bool_), resolve_axes(axis, x.ndim, "all"), keepdim)
    return found.cast(uint8) if x.dtype is uint8 else found


def mean(
    x: Tensor, axis: Axes = None, keepdim: bool = False, dtype: DTypeLike | None = None
) -> Tensor:
    """The sum divided by how many there are, NaN of nothing; of x in `dtype`, if one is given.

    DTypeError if that is not a floating dtype.
    """
    if dtype is None:
        return _mean(x, axis, keepdim)
    if not to_dtype(dtype).is_float:
        raise DTypeError(f"mean: a mean is a float, so dtype cannot be {to_dtype(dtype)}")
    return _mean(x.cast(dtype), axis, keepdim)


@composition_of_floats
def _mean(x: Tensor, axis: Axes, keepdim: bool) -> Tensor:
    return _reduced(mlops.Mean, x, _axes(x, axis, "mean", keepdim), keepdim)


def _centred(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return x - x.mean(axes, keepdim=True) if axes else x - x


@composition_of_floats
def var(x: Tensor, axis: Axes = None, keepdim: bool = False, correction: int = 1) -> Tensor:
    """The mean square distance from the mean, divided by count - correction."""
    axes = _axes(x, axis, "var", keepdim)
    number(correction, "var", "correction")
    divisor = max(0, size_along(x.shape, axes) - correction)

    def total(x: Tensor) -> Tensor:
        return _centred(x, axes).square().sum(axes, keepdim=True) / divisor

    def rule(grad: Tensor, _: Tensor, x: Tensor) -> mlops.Grads:
        return (_var_rule(grad, x, axis, axes, correction),)

    result = with_gradient(total, rule, x)
    return result if keepdim else _without(result, axes)


@composition_of_floats
def std(x: Tensor, axis: Axes = None, keepdim: bool = False, correction: int = 1) -> Tensor:
    """The root of the variance; where it is 0, so is its gradient."""
    axes = _axes(x, axis, "std", keepdim)

    def rule(grad: Tensor, out: Tensor, x: Tensor) -> mlops.Grads:
        flat = out == 0
        of_var = flat.where(0, grad / (flat.where(1, out) * 2))
        return (_var_rule(of_var, x, axis, axes, correction),)

    result = with_gradient(lambda x: var(x, axes, True, correction).sqrt(), rule, x)
    return result if keepdim else _without(result, axes)


def _var_rule(
    grad: Tensor, x: Tensor, axis: Axes, axes: tuple[int, ...], correction: int
) -> Tensor:
    """The gradient of the variance; as torch has it where nothing is left to divide by."""
    centred, rest = _centred(x, axes), size_along(x.shape, axes) - correction
    if rest <= 0 and (axis is None or x.ndim == 0):
        return grad * (centred == 0).where(nan, inf)
    return grad * 2 * centred / rest


@composition
def std_mean(
    x: Tensor, axis: Axes = None, keepdim: bool = False, correction: int = 1
) -> tuple[Tensor, Tensor]:
    """Both."""
    return std(x, axis, keepdim, correction), mean(x, axis, keepdim)


@composition
def var_mean(
    x: Tensor, axis: Axes = None, keepdim: bool = False, correction: int = 1
) -> tuple[Tensor, Tensor]:
    """Both."""
    return var(x, axis, keepdim, correction), mean(x, axis, keepdim)


@composition_of_floats
def norm(x: Tensor, p: float = 2, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """(sum of |x| ** p) ** (1 / p), also for p = inf or -inf; where it is 0, so is its gradient.

    Of p below 1 the gradient is also 0 where an element is, to whose side it would be infinite.
    """
    number(p, "norm", "p")
    axes, x = _axes(x, axis, "norm", keepdim), to_float(x)
    even = p > 0 and p % 2 == 0  # then no |x|, whose second derivative is lost at 0
    sizes = x if even else x.abs()
    if p in (inf, -inf):
        return (max_ if p > 0 else min_)(sizes, axes, keepdim)
    there = sizes != 0
    if p == 0:  # a count, with a gradient of 0
        return there.where(there.where(1, sizes), 0).sum(axes, keepdim)
    powers = there.where(there.where(sizes, 1) ** p, 0 if p > 0 else inf) if p < 1 else sizes**p
    total = powers.sum(axes, keepdim)
    if p < 0:
        return total ** (1 / p)
    nothing = total == 0
    return nothing.where(total, nothing.where(1, total) ** (1 / p))


@composition_of_floats
def logsumexp(x: Tensor, axis: Axes = None, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) without overflow."""
    axes = _axes(x, axis, "logsumexp", keepdim)
    if not axes:
        return x._own()
    total, high = exponentials(x, axes)
    result = total.log() + high
    return result if keepdim else _without(result, axes)


def largest(x: Tensor, axes: Axes) -> Tensor:
    """The largest element along axes, which stay: a number to compositions, without a gradient."""
    return x._constant(lazy.reduce_(Op.MAX, x.lazy, resolve_axes(axes, x.ndim, "max")))


def exponentials(x: Tensor, axes: Axes) -> tuple[Tensor, Tensor]:
    """(the sum of exp(x - high), high), with `high` such that nothing overflows; axes stay."""
    named = resolve_axes(axes, x.ndim, "logsumexp")
    high = largest(x, named)
    high = high.isfinite().where(high, 0)
    return (x - high).exp().sum(named, keepdim=True), high


@composition
def argmax(x: Tensor, axis: int | None = None, keepdim: bool = False) -> Tensor:
    """Where the largest element is; the first one if there are several, or the first NaN."""
    return _position(x, axis, keepdim, max_, "argmax")


@composition
def argmin(x: Tensor, axis: int | None = None, keepdim: bool = False) -> Tensor:
    """Where the smallest element is; the first one if there are several, or the first NaN."""
    return _position(x, axis, keepdim, min_, "argmin")


def _position(
    x: Tensor, axis: int | None, keepdim: bool, extreme: Callable[..., Tensor], op: str
) -> Tensor:
    x = x.detach()
    _check_keepdim(op, keepdim)
    if axis is None:
        found = _position(x.reshape(-1), 0, False, extreme, op)
        return found.reshape((1,) * x.ndim) if keepdim else found
    axis = resolve_axis(axis, x.ndim, op)
    if not x.ndim:
        return x._full((), 0, int32)
    _axes_to_choose(x, axis, op, keepdim)
    best = extreme(x, axis, True)
    n = x.shape[axis]
    places = along(x._arange(n), axis, x)
    hit = (x == best) | (x != x) if x.dtype.is_float else x == best
    return min_(hit.where(places, n), axis, keepdim)
