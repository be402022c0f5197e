"""Nonlinearities, normalisations and what else layers are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tinyml import mlops
from tinyml.dtype import float32
from tinyml.dtypes import DTypeLike
from tinyml.errors import ArgumentError, DTypeError, ShapeError
from tinyml.functional.axes import (
    Axes,
    check_numbers,
    check_tensors,
    number,
    resolve_axes,
    resolve_axis,
    wrong_type,
)
from tinyml.functional.composed import (
    composition_of_floats,
    fma,
    in_float32,
    to_float,
    with_gradient,
    with_gradient_of_result,
    with_slope,
)
from tinyml.functional.operands import constant
from tinyml.functional.reduction import largest
from tinyml.functional.steps import composition
from tinyml.functional.unary import expm1, log1p

if TYPE_CHECKING:
    from tinyml.tensor import Tensor

GELU_SCALE = math.sqrt(8 / math.pi)
GELU_CUBE = GELU_SCALE * 0.044715
(_N, _D), (_M, _E), (_P, _Q) = (x.as_integer_ratio() for x in (GELU_SCALE, 0.044715, GELU_CUBE))
GELU_CUBE_REST = (_N * _M * _Q - _P * _D * _E) / (_D * _E * _Q)  # whole numbers: exact


def relu(x: Tensor) -> Tensor:
    """The greater of x and 0, in the dtype of x; the gradient at 0 is 0."""
    return x._apply(mlops.Relu())


def relu6(x: Tensor) -> Tensor:
    """x, not below 0 and not above 6."""
    return hardtanh(x, 0, 6)


def _sigmoid(x: Tensor) -> Tensor:
    small = (-x.abs()).exp()
    larger = (x < 0).where(small, 1.0)
    return larger - larger * (small / (small + 1))


@composition_of_floats
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), by the exponential of the negative one of x and -x."""
    return with_gradient_of_result(_sigmoid, lambda grad, out: grad * (out * (1 - out)), x)


@composition_of_floats
def logsigmoid(x: Tensor) -> Tensor:
    """log(sigmoid(x)) without overflow; a float."""
    return -softplus(-x)


def _logistic(x: Tensor, power: Tensor, more: Tensor | float) -> Tensor:
    """x / (1 + (1 + more) * exp(power))."""
    more = constant(x, more, x.dtype) if isinstance(more, (int, float)) else more
    return x._apply(mlops.Logistic(), power, more)


@composition_of_floats
def silu(x: Tensor) -> Tensor:
    """x / (1 + exp(-x)); a float. arXiv 1702.03118"""
    return _logistic(x, -x, 0)


def _gelu(x: Tensor) -> Tensor:
    """x / (1 + exp(u)). exp makes a rounding of u |u| times as large: all of them are in `low`."""
    bits, inside = (20, 121) if x.dtype is float32 else (49, 484)
    head = round(GELU_SCALE * 2**bits) / 2**bits  # so that a difference with it is exact
    cube = float(np.asarray(GELU_CUBE, x.dtype.compute))
    opposite = -x
    below = opposite * x
    slope = fma(below, -cube, head)
    u = opposite * slope
    low = fma(below, cube - GELU_CUBE - GELU_CUBE_REST, GELU_SCALE - head)
    low = fma(fma(x, x, below), cube, fma(below, -cube, head - slope) + low)
    low = fma(opposite, low, -fma(x, slope, u))
    # outside, where low may be NaN, the result is x or 0
    return _logistic(x, u, (below > -inside).where(low, 0))


@composition
def _gelu_slope(x: Tensor) -> Tensor:
    square = x * x
    return _slope_by(sigmoid(x * (square * GELU_CUBE + GELU_SCALE)), x, square)


def _slope_by(share: Tensor, x: Tensor, square: Tensor) -> Tensor:
    return share * (1 + x * (1 - share) * (square * (3 * GELU_CUBE) + GELU_SCALE))


def _gelu_of_half(x: Tensor) -> Tensor:
    """What is rounded to a half has no use for what roundings of u make of it: |u| <= 89 ulp."""
    return _logistic(x, -x * (x * x * GELU_CUBE + GELU_SCALE), 0)


@composition
def _gelu_slope_of_half(x: Tensor) -> Tensor:
    square = x * x
    power = -x * (square * GELU_CUBE + GELU_SCALE)
    return _slope_by(_logistic(constant(x, 1, x.dtype), power, 0), x, square)


@in_float32
def _gelu_by_tanh(x: Tensor, half: bool) -> Tensor:
    if half:
        return with_slope(_gelu_of_half, _gelu_slope_of_half, x)
    return with_slope(_gelu, _gelu_slope, x)


@in_float32
def _gelu_by_erf(x: Tensor) -> Tensor:
    return x._apply(mlops.Ndtr(), x)


@composition
def gelu(x: Tensor, approximate: str = "tanh") -> Tensor:
    """x * P(N(0, 1) < x), a float: by tanh, within 5e-4; with approximate="none" exactly, by erf.

    torch's default is "none". arXiv 1606.08415
    """
    if approximate == "tanh":
        return _gelu_by_tanh(x, x._lazy.dtype.is_half)
    if approximate != "none":
        raise ValueError(f'gelu: approximate is "tanh" or "none", got {approximate!r}')
    return _gelu_by_erf(x)


@composition_of_floats
def quick_gelu(x: Tensor) -> Tensor:
    """x * sigmoid(1.702 * x), near `gelu`; a float. arXiv 1606.08415"""
    return x * sigmoid(x * 1.702)


@composition_of_floats
def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x above 0, alpha * (exp(x) - 1) below; a float. arXiv 1511.07289"""
    number(alpha, "elu", "alpha")
    return (x > 0).where(x, expm1((x > 0).where(0, x)) * alpha)


@composition_of_floats
def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x above 0, alpha * (exp(x / alpha) - 1) below; a float. arXiv 1704.07483

    ArgumentError if alpha is 0.
    """
    if number(alpha, "celu", "alpha") == 0:
        raise ArgumentError("celu: alpha is what x is divided by, and cannot be 0")
    return (x > 0).where(x, expm1((x > 0).where(0, x / alpha)) * alpha)


@composition_of_floats
def selu(x: Tensor, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Tensor:
    """gamma * elu(x, alpha), which keeps mean 0 and variance 1. arXiv 1706.02515"""
    check_numbers("selu", alpha=alpha, gamma=gamma)
    return elu(x, alpha) * gamma


def _softplus(x: Tensor) -> Tensor:
    return x.maximum(0) + log1p((-x.abs()).exp())


@composition_of_floats
def softplus(x: Tensor, beta: float = 1.0, threshold: float | None = None) -> Tensor:
    """log(1 + exp(beta * x)) / beta without overflow; x itself where beta * x > threshold.

    Without a threshold nothing is cut off; torch has 20, where float32 makes no difference.
    """
    scaled = x * number(beta, "softplus", "beta")
    result: Tensor = with_slope(_softplus, sigmoid, scaled) / beta
    if threshold is None:
        return result
    linear: Tensor = scaled > number(threshold, "softplus", "threshold")
    return linear.where(x, result)


def _mish(x: Tensor) -> Tensor:
    """With e = exp(x), x / (1 + (1 - e / (e + 2)) / e); where that is near x, x less the rest."""
    near = x > 0.25
    some = x.clip(max_=40)  # beyond, nothing is left
    power = some.exp()
    more = near.where(power * 0.5, -(power / (power + 2)))
    share = _logistic(some, near.where(some, -some), more)
    return near.where(x - share, share)


@composition
def _mish_slope(x: Tensor) -> Tensor:
    share = softplus(x).tanh()
    return share + x * sigmoid(x) * (1 - share * share)


@composition_of_floats
def mish(x: Tensor) -> Tensor:
    """x * tanh(softplus(x)); a float. arXiv 1908.08681"""
    return with_slope(_mish, _mish_slope, x)


@composition_of_floats
def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|); a float in [-1, 1]."""
    return x / (x.abs() + 1)


@composition
def leaky_relu(x: Tensor, neg_slope: float = 0.01) -> Tensor:
    """x above 0, neg_slope * x below; a float."""
    x = to_float(x)
    number(neg_slope, "leaky_relu", "neg_slope")
    return (x > 0).where(x, x * neg_slope)


@composition
def hardtanh(x: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    """Clipped, in the dtype of x; the gradient at a bound is 0, as torch has it.

    For integers the bounds are cut to whole numbers; ArgumentError if min_val is above max_val.
    """
    low, high = number(min_val, "hardtanh", "min_val"), number(max_val, "hardtanh", "max_val")
    if low > high:
        raise ArgumentError(f"hardtanh: min_val {low} is above max_val {high}")
    if x.dtype.is_int:
        if not x.dtype.min <= low <= high <= x.dtype.max:
            raise DTypeError(f"hardtanh: {x.dtype} does not reach from {low} to {high}; cast first")
        low, high = int(low), int(high)
    inside: Tensor = (x > low) & (x < high)
    return inside.where(x, x.detach().clip(low, high))


@composition_of_floats
def hardsigmoid(x: Tensor, alpha: float = 1 / 6, beta: float = 0.5) -> Tensor:
    """alpha * x + beta, not below 0 and not above 1; a float."""
    check_numbers("hardsigmoid", alpha=alpha, beta=beta)
    # x * alpha + beta in one rounding would not be 0 where x is -beta / alpha
    return hardtanh(x / (1 / alpha if alpha else math.inf) + beta, 0, 1)


@composition_of_floats
def hardswish(x: Tensor) -> Tensor:
    """x * relu6(x + 3) / 6; a float. arXiv 1905.02244"""
    return x * relu6(x + 3) * (1 / 6)


# ---- over an axis ----


def _not_above_zero(x: Tensor, axis: int) -> Tensor:
    """x less its largest element along an axis, so that no exp of it overflows."""
    return x - largest(x, axis) if x.numel() else x


def softmax(x: Tensor, axis: int = -1, dtype: DTypeLike | None = None) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis; of x in `dtype`, if one is given."""
    return _softmax(x if dtype is None else x.cast(dtype), axis)


def log_softmax(x: Tensor, axis: int = -1, dtype: DTypeLike | None = None) -> Tensor:
    """log(softmax(x)), without the detour; of x in `dtype`, if one is given."""
    return _log_softmax(x if dtype is None else x.cast(dtype), axis)


@composition_of_floats
def _softmax(x: Tensor, axis: int) -> Tensor:
    axis = resolve_axis(axis, x.ndim, "softmax")
    return shares(x, axis, lambda x: powers_and_total(x, axis))


def powers_and_total(x: Tensor, axis: int = -1) -> tuple[Tensor, Tensor]:
    """What a softmax along an axis is a quotient of."""
    power = _not_above_zero(x, axis).exp()
    return power, power.sum(axis, keepdim=True)


def shares(x: Tensor, axis: int, powers: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
    """A softmax along an axis, by its powers and total, with a gradient that is made of it."""

    def quotient(x: Tensor) -> Tensor:
        power, total = powers(x)
        return power / total

    def rule(grad: Tensor, out: Tensor) -> Tensor:
        return out * (grad - (grad * out).sum(axis, keepdim=True))

    return with_gradient_of_result(quotient, rule, x)


@composition_of_floats
def _log_softmax(x: Tensor, axis: int) -> Tensor:
    axis = resolve_axis(axis, x.ndim, "log_softmax")
    shifted = _not_above_zero(x, axis)
    return shifted - shifted.exp().sum(axis, keepdim=True).log()


@composition_of_floats
def layernorm(x: Tensor, axis: Axes = -1, eps: float = 1e-5) -> Tensor:
    """Mean 0 and variance 1 along axes."""
    axes = resolve_axes(axis, x.ndim, "layernorm")
    number(eps, "layernorm", "eps")

    def centred(x: Tensor) -> Tensor:
        return x - x.mean(axes, keepdim=True)

    def scale(deviation: Tensor) -> Tensor:
        return (deviation.square().mean(axes, keepdim=True) + eps).rsqrt()

    def rule(grad: Tensor, out: Tensor, x: Tensor) -> mlops.Grads:
        deviation = centred(x)
        # none of the means is made of another one, so that one pass finds them all
        along = (grad * deviation).mean(axes, keepdim=True)
        by = scale(deviation)
        return ((grad - grad.mean(axes, keepdim=True) - out * (along * by)) * by,)

    return with_gradient(lambda x: (d := centred(x)) * scale(d), rule, x)


@composition_of_floats
def rmsnorm(x: Tensor, axis: Axes = -1, eps: float = 1e-5) -> Tensor:
    """Mean square 1 along axes."""
    axes = resolve_axes(axis, x.ndim, "rmsnorm")
    number(eps, "rmsnorm", "eps")
    return x * ((x * x).mean(axes, keepdim=True) + eps).rsqrt()


@composition
def batchnorm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    invstd: Tensor,
    axis: Axes = 1,
) -> Tensor:
    """(x - mean) * invstd * weight + bias, where those have the sizes of `axis`."""
    axes = resolve_axes(axis, x.ndim, "batchnorm")
    check_tensors("batchnorm", x, weight=weight, bias=bias, mean=mean, invstd=invstd)
    shape = tuple(n if i in axes else 1 for i, n in enumerate(x.shape))
    _check_sizes(shape, weight=weight, bias=bias, mean=mean)
    result = x - mean.reshape(shape)
    if weight is not None:
        result = result * weight.reshape(shape)
    result = result * (invstd.reshape(shape) if invstd.ndim == len(axes) else invstd)
    return result if bias is None else result + bias.reshape(shape)


def _check_sizes(shape: tuple[int, ...], **others: Tensor | None) -> None:
    for name, other in others.items():
        if other is not None and other.numel() != math.prod(shape):
            raise ShapeError(f"batchnorm: {name} {other.shape} does not fit the axes {shape}")


def sequential(x: Tensor, layers: Sequence[Callable[[Any], Any]]) -> Tensor:
    """layers[-1](...layers[1](layers[0](x)))."""
    if callable(layers) or not hasattr(layers, "__iter__"):
        raise wrong_type("sequential", "layers", "a list of functions", layers)
    for number_, layer in enumerate(layers):
        if not callable(layer):
            raise wrong_type("sequential", f"layer {number_}", "a function or a layer", layer)
        x = layer(x)
    return x
