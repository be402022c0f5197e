"""Functions of one number, on every element."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tinyml import mlops
from tinyml.dtype import bool_
from tinyml.functional.composed import with_slope
from tinyml.functional.precision import in_float32, to_float

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


def neg(x: Tensor) -> Tensor:
    return ~x if x.dtype is bool_ else x._apply(mlops.Neg())


def exp(x: Tensor) -> Tensor:
    return to_float(x)._apply(mlops.Exp())


def exp2(x: Tensor) -> Tensor:
    return to_float(x)._apply(mlops.Exp2())


def log(x: Tensor) -> Tensor:
    return to_float(x)._apply(mlops.Log())


def log2(x: Tensor) -> Tensor:
    return to_float(x)._apply(mlops.Log2())


@in_float32
def log10(x: Tensor) -> Tensor:
    return x.log2() * math.log10(2)


def sin(x: Tensor) -> Tensor:
    return to_float(x)._apply(mlops.Sin())


def cos(x: Tensor) -> Tensor:
    return to_float(x)._apply(mlops.Cos())


@in_float32
def tan(x: Tensor) -> Tensor:
    return x.sin() / x.cos()


def tanh(x: Tensor) -> Tensor:
    return to_float(x)._apply(mlops.Tanh())


def erf(x: Tensor) -> Tensor:
    return to_float(x)._apply(mlops.Erf())


def sqrt(x: Tensor) -> Tensor:
    return to_float(x)._apply(mlops.Sqrt())


@in_float32
def rsqrt(x: Tensor) -> Tensor:
    return reciprocal(x.sqrt())


def reciprocal(x: Tensor) -> Tensor:
    x = to_float(x)
    return x._full(x.shape, 1, x.dtype)._apply(mlops.Div(), x)


def square(x: Tensor) -> Tensor:
    return x * x


def abs_(x: Tensor) -> Tensor:
    return x if x.dtype.kind in "bu" else (x * sign(x) if x.dtype.is_int else _abs_float(x))


def _abs_float(x: Tensor) -> Tensor:
    # At 0 a tie: both halves of the gradient cancel, as torch has it. -x of 0 would be -0.
    return x.maximum(0 - x)


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1; 0 for NaN, as torch has it."""
    if x.dtype.kind in "bu":
        return x.cast(bool_).cast(x.dtype)
    return x._apply(mlops.Sign())


@in_float32
def atan(x: Tensor) -> Tensor:
    return x._apply(mlops.Atan())


def _asin(x: Tensor) -> Tensor:
    return atan(x / ((1 - x) * (1 + x)).sqrt())


def _asin_slope(x: Tensor) -> Tensor:
    return (1 - x * x).rsqrt()


@in_float32
def asin(x: Tensor) -> Tensor:
    return with_slope(_asin, _asin_slope, x)


@in_float32
def acos(x: Tensor) -> Tensor:
    return math.pi / 2 - asin(x)


@in_float32
def sinh(x: Tensor) -> Tensor:
    return (x.exp() - (-x).exp()) * 0.5


@in_float32
def cosh(x: Tensor) -> Tensor:
    return (x.exp() + (-x).exp()) * 0.5


def _asinh(x: Tensor) -> Tensor:
    size = x.abs()
    huge = size > 1e9  # the square would overflow
    small = huge.where(1, size)
    near = huge.where(size, small + (small * small + 1).sqrt()).log()
    return (near + huge.where(math.log(2), 0.0)) * sign(x)


@in_float32
def asinh(x: Tensor) -> Tensor:
    return with_slope(_asinh, lambda x: (x * x + 1).rsqrt(), x)


def _acosh(x: Tensor) -> Tensor:
    huge = x > 1e9  # where x + x would overflow
    small = huge.where(1, x)
    near = huge.where(x, small + (small - 1).sqrt() * (small + 1).sqrt())
    return near.log() + huge.where(math.log(2), 0.0)


@in_float32
def acosh(x: Tensor) -> Tensor:
    """NaN below 1, where the formula of the gradient has numbers, as torch has it."""
    return with_slope(_acosh, lambda x: (x * x - 1).rsqrt(), x)


@in_float32
def atanh(x: Tensor) -> Tensor:
    return with_slope(
        lambda x: ((1 + x) / (1 - x)).log() * 0.5, lambda x: (1 - x * x).reciprocal(), x
    )


def trunc(x: Tensor) -> Tensor:
    return x._apply(mlops.Trunc()) if x.dtype.is_float else x


def floor(x: Tensor) -> Tensor:
    if not x.dtype.is_float:
        return x
    cut = trunc(x)
    return cut - (x < cut).cast(x.dtype)


def ceil(x: Tensor) -> Tensor:
    if not x.dtype.is_float:
        return x
    cut = trunc(x)
    return cut + (x > cut).cast(x.dtype)


def round_(x: Tensor) -> Tensor:
    """To the nearest whole number; halves go to the even one."""
    if not x.dtype.is_float:
        return x
    low = floor(x)
    rest = x - low
    odd = low * 0.5 != trunc(low * 0.5)
    return low + ((rest > 0.5) | ((rest == 0.5) & odd)).cast(x.dtype)


def isnan(x: Tensor) -> Tensor:
    return x != x


def isinf(x: Tensor, detect_positive: bool = True, detect_negative: bool = True) -> Tensor:
    if not x.dtype.is_float:
        return x._full(x.shape, False, bool_)
    found = x._full(x.shape, False, bool_)
    if detect_positive:
        found = found | (x == math.inf)
    return found | (x == -math.inf) if detect_negative else found


def isfinite(x: Tensor) -> Tensor:
    if not x.dtype.is_float:
        return x._full(x.shape, True, bool_)
    return x.abs() < math.inf
