"""Special functions: compositions of series and of Newton's steps, each with its derivative."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tinyml.dtype import float64
from tinyml.functional.composed import composition_of_floats, with_gradient_of_result, with_slope

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


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
