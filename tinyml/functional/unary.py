"""Functions of one number, on every element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from tinyml import mlops
from tinyml.dtype import bool_, float64
from tinyml.errors import DTypeError
from tinyml.functional.axes import whole
from tinyml.functional.composed import (
    composition_of_floats,
    fma,
    in_float32,
    to_float,
    with_gradient_of_result,
    with_slope,
)
from tinyml.functional.operands import constant
from tinyml.functional.steps import composition

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


def neg(x: Tensor) -> Tensor:
    """-x; DTypeError for bools, whose opposite is ~x."""
    if x.dtype is bool_:
        raise DTypeError("neg: bool has no negative; ~x or x.logical_not() is its opposite")
    return x._apply(mlops.Neg())


def _of_floats(function: type[mlops.Elementwise], text: str) -> Callable[[Tensor], Tensor]:
    """What a primitive on floats is as a method, of which `text` is the docstring."""

    def applied(x: Tensor) -> Tensor:
        return to_float(x)._apply(function())

    applied.__name__, applied.__doc__ = function.op.name.lower(), text
    return applied


exp = _of_floats(mlops.Exp, "e to the power of x; a float, within about 2 ulp.")
exp2 = _of_floats(mlops.Exp2, "2 to the power of x; a float.")
expm1 = _of_floats(mlops.Expm1, "exp(x) - 1, precise near 0.")
log = _of_floats(mlops.Log, "The natural logarithm, a float: -inf at 0, NaN below it.")
log2 = _of_floats(mlops.Log2, "The logarithm to base 2, a float: -inf at 0, NaN below it.")
log1p = _of_floats(mlops.Log1p, "log(1 + x), precise near 0.")
sin = _of_floats(mlops.Sin, "The sine of x radians, a float.")
cos = _of_floats(mlops.Cos, "The cosine of x radians, a float.")
tan = _of_floats(mlops.Tan, "The tangent of x radians, a float.")
tanh = _of_floats(mlops.Tanh, "The hyperbolic tangent, a float in [-1, 1].")
erf = _of_floats(mlops.Erf, "2 / sqrt(pi) * integral of exp(-t * t) from 0 to x, in [-1, 1].")
sqrt = _of_floats(mlops.Sqrt, "The square root, a float: NaN below 0.")
atan = _of_floats(mlops.Atan, "The arc tangent, a float in [-pi / 2, pi / 2].")


@in_float32
def log10(x: Tensor) -> Tensor:
    """The logarithm to base 10, a float: -inf at 0, NaN below it."""
    return x.log2() * math.log10(2)


@composition_of_floats
def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x), a float: inf at 0, NaN below it."""
    return reciprocal(x.sqrt())


def reciprocal(x: Tensor) -> Tensor:
    """1 / x, a float: inf at 0."""
    x = to_float(x)
    return constant(x, 1, x._lazy.dtype)._apply(mlops.Div(), x)


def square(x: Tensor) -> Tensor:
    """x ** 2, in the dtype of x; of bools an integer."""
    return x**2 if x.dtype is bool_ else x * x


@composition
def abs_(x: Tensor) -> Tensor:
    """|x|, in the dtype of x; the gradient at 0 is 0."""
    if x.dtype.is_float:
        return x._apply(mlops.Abs())
    return x._own() if x.dtype.kind in "bu" else x * sign(x)


@composition
def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1; 0 for NaN, as torch has it."""
    if x.dtype.kind in "bu":
        return x._own() if x.dtype is bool_ else x.cast(bool_).cast(x.dtype)
    return x._apply(mlops.Sign())


# ---- compositions that subtract nothing that is nearly equal, with their derivatives as formulas


def _cathetus(x: Tensor) -> Tensor:
    """sqrt(1 - x * x), precise near 0 and near 1."""
    return ((x * x < 0.25).where(1 - x * x, (1 - x) * (1 + x))).sqrt()


def _asin_slope(x: Tensor) -> Tensor:
    return _cathetus(x).reciprocal()


def _asin(x: Tensor) -> Tensor:
    """Twice the arctangent of t = x / (1 + cos asin x), whose slope is 1 / (1 + t * t)."""
    cosine = _cathetus(x)
    high = cosine + 1
    low = cosine - (high - 1)  # high + low is exactly 1 + cosine (Dekker 1971)
    t = x / high
    return atan(t) * 2 - (fma(t, high, -x) + t * low)


@composition_of_floats
def asin(x: Tensor) -> Tensor:
    """The arc sine, a float in [-pi / 2, pi / 2]: NaN outside of [-1, 1]."""
    return with_slope(_asin, _asin_slope, x)


@composition_of_floats
def acos(x: Tensor) -> Tensor:
    """The arc cosine, a float in [0, pi]: NaN outside of [-1, 1]."""
    return with_slope(lambda x: atan(((1 - x) / (1 + x)).sqrt()) * 2, lambda x: -_asin_slope(x), x)


_STEP = 0.693359375  # log(2), about, in few bits: subtracting it from a number above 1 is exact


def _half_exp(x: Tensor) -> Tensor:
    """exp(x) / 2, also where exp(x) is beyond the largest float."""
    far = x > 64
    scale = far.where(x._full((), math.exp(_STEP) / 2, x.dtype), 0.5)
    return (x - far.where(_STEP, 0.0)).exp() * scale


def _sinh(x: Tensor) -> Tensor:
    near = (expm1(x) - expm1(-x)) * 0.5
    return (x * x < 1).where(near, _half_exp(x) - _half_exp(-x))


@composition_of_floats
def sinh(x: Tensor) -> Tensor:
    """The hyperbolic sine, a float, precise near 0."""
    return with_slope(_sinh, cosh, x)


@composition_of_floats
def cosh(x: Tensor) -> Tensor:
    """The hyperbolic cosine, a float of at least 1."""
    return with_slope(lambda x: _half_exp(x) + _half_exp(-x), sinh, x)


def _asinh(x: Tensor) -> Tensor:
    size = x.abs()
    huge = size > 1e9  # the square would overflow
    a = huge.where(1, size)
    near = log1p(a + a * a / (1 + (a * a + 1).sqrt()))
    return huge.where(size.log() + math.log(2), near).copysign(x)


@composition_of_floats
def asinh(x: Tensor) -> Tensor:
    """The inverse of sinh, a float, precise near 0 and where x * x overflows."""
    return with_slope(_asinh, lambda x: (x * x + 1).rsqrt(), x)


def _acosh(x: Tensor) -> Tensor:
    huge = x > 1e9
    t = (x < 1).where(math.nan, huge.where(1, x)) - 1
    return huge.where(x.log() + math.log(2), log1p(t + fma(t, t, t + t).sqrt()))


@composition_of_floats
def acosh(x: Tensor) -> Tensor:
    """NaN below 1, where the formula of the gradient has numbers, as torch has it."""
    return with_slope(_acosh, lambda x: ((x.abs() - 1) * (x.abs() + 1)).rsqrt(), x)


def _atanh(x: Tensor) -> Tensor:
    size = x.abs()
    return (log1p((size + size) / (1 - size)) * 0.5).copysign(x)


@composition_of_floats
def atanh(x: Tensor) -> Tensor:
    """The inverse of tanh, a float: NaN outside of [-1, 1]."""
    return with_slope(_atanh, lambda x: ((1 - x) * (1 + x)).reciprocal(), x)


def trunc(x: Tensor) -> Tensor:
    """Rounded towards 0; integers stay as they are. The gradient is 0."""
    return x._apply(mlops.Trunc()) if x.dtype.is_float else x._own()


@composition
def floor(x: Tensor) -> Tensor:
    """The greatest whole number that is not above x, in the dtype of x."""
    if not x.dtype.is_float:
        return x._own()
    cut = trunc(x)
    return cut - (x < cut).cast(x.dtype)


@composition
def ceil(x: Tensor) -> Tensor:
    """The least whole number that is not below x, in the dtype of x; -0 above -1."""
    return -floor(-x) if x.dtype.is_float else x._own()


@composition
def round_(x: Tensor, decimals: int | None = 0) -> Tensor:
    """To so many digits behind the point, with the sign of x; halves go to the even one."""
    if not x.dtype.is_float:
        return x._own()
    if decimals:
        return _round_at(x, 10.0 ** whole(decimals, "round", "decimals"))
    high = ceil(x)  # what is subtracted from -0 leaves its sign
    rest = high - x
    odd = high * 0.5 != trunc(high * 0.5)
    return high - ((rest > 0.5) | ((rest == 0.5) & odd)).cast(x.dtype)


@in_float32
def _round_at(x: Tensor, one: float) -> Tensor:
    return round_(x * one) / one


def isnan(x: Tensor) -> Tensor:
    """Where x is not a number; bools."""
    return x != x


@composition
def isinf(x: Tensor, detect_positive: bool = True, detect_negative: bool = True) -> Tensor:
    """Where x is inf or -inf, or only one of them if the other is not to be detected; bools."""
    if not x.dtype.is_float:
        return x._full(x.shape, False, bool_)
    found = x._full(x.shape, False, bool_)
    if detect_positive:
        found = found | (x == math.inf)
    return found | (x == -math.inf) if detect_negative else found


@composition
def isfinite(x: Tensor) -> Tensor:
    """Where x is neither infinite nor NaN; bools."""
    if not x.dtype.is_float:
        return x._full(x.shape, True, bool_)
    return x.abs() < math.inf


# ---- compositions of series and of Newton's steps, each with its derivative ----


def _erfinv(x: Tensor) -> Tensor:
    """Winitzki's approximation, within 0.2 %, and steps of Halley, each to its third power.

    They ask for erf near 0 and for 1 - erf far from it, of which neither loses digits there.
    """
    size = x.abs()
    rest, near = 1 - size, size < 0.5
    log = (rest * (1 + size)).log()
    half = log * 0.5 + 2 / (math.pi * 0.147)
    square = log * (-1 / 0.147)
    y = (square / ((half * half + square).sqrt() + half)).sqrt()
    for _ in range(3 if x.dtype is float64 else 2):
        scaled = y * -math.sqrt(2)  # gelu(scaled) / scaled is the half of 1 - erf(y)
        beyond = (scaled.gelu("none") / scaled) * 2
        step = near.where(y.erf() - size, rest - beyond) * (y * y).exp() * (math.sqrt(math.pi) / 2)
        y = y - step / (1 + y * step)
    return (size == 1).where(math.inf, y).copysign(x)


@composition_of_floats
def erfinv(x: Tensor) -> Tensor:
    """The inverse of erf, a float: NaN outside of [-1, 1]."""

    def rule(grad: Tensor, out: Tensor) -> Tensor:
        return grad * (out * out).exp() * (math.sqrt(math.pi) / 2)

    return with_gradient_of_result(_erfinv, rule, x)


# log(gamma(w)) - (w - 0.5) * log(w) + w - log(2 * pi) / 2 is a sum of these by 1 / w ** (2 k + 1)
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
_FAR = 8  # from here on that is right to the last digit of float64


def _upwards(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What x is mirrored to, in float64 and above 0.5; pi times what x, if mirrored, has behind the
    point; and the first moved up by `_FAR` where it is less.
    """
    x = x.cast(float64)
    low = x < 0.5
    z = low.where(1 - x, x)
    return z, low.where(x - x.round(), 0.5) * math.pi, (z < _FAR).where(z + _FAR, z)


def _series(w: Tensor, factors: tuple[float, ...]) -> Tensor:
    """The sum of factors[k] / w ** (2 * k)."""
    inverse = (w * w).reciprocal()
    total = inverse * factors[-1]
    for factor in factors[-2::-1]:
        total = (total + factor) * inverse
    return total


def _lgamma(x: Tensor) -> Tensor:
    z, angle, w = _upwards(x)
    product = z
    for k in range(1, _FAR):
        product = product * (z + k)
    above = (w - 0.5) * w.log() - w + 0.5 * math.log(2 * math.pi) + w * _series(w, _STIRLING)
    found = above - (z < _FAR).where(product, 1).log()
    mirrored = (math.pi / angle.sin().abs()).log() - found
    return x.isinf().where(math.inf, (x < 0.5).where(mirrored, found)).cast(x.dtype)


@composition_of_floats
def lgamma(x: Tensor) -> Tensor:
    """log(|gamma(x)|), a float, computed in float64: inf at 0, at -1 and so on."""
    return with_slope(_lgamma, digamma, x)


@composition_of_floats
def digamma(x: Tensor) -> Tensor:
    """The derivative of lgamma, a float, computed in float64: NaN at -1, -2 and so on."""
    z, angle, w = _upwards(x)
    factors = tuple(-(2 * k + 1) * factor for k, factor in enumerate(_STIRLING))
    steps = [(z + k).reciprocal() for k in range(_FAR)]
    found = w.log() - 0.5 / w + _series(w, factors) - (z < _FAR).where(sum(steps), 0)
    mirrored = found - math.pi / angle.tan()
    pole = (x < 0).where(math.nan, -x.reciprocal())
    return (angle == 0).where(pole, (x < 0.5).where(mirrored, found)).cast(x.dtype)
