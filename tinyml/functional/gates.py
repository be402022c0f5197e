"""x times a share of it between 0 and 1: silu, gelu, mish, to about one rounding everywhere.

exp turns a rounding of its argument u into a relative error of |u| roundings, and products and
sums around it each add one: so both the argument and what is made of the exponential are pairs.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from tinyml.dtype import float32
from tinyml.functional.compensated import Pair, fma, product, quotient, sorted_total

if TYPE_CHECKING:
    from tinyml.tensor import Tensor

# exp(u) of float32 is denormal below -87: far from 0 it is
# exp(u + FAR_UP) * (1 + FAR_REST) * FAR_DOWN
FAR, FAR_DOWN = -64.0, 2.0**-64
FAR_UP = round(64 * math.log(2) * 2**16) / 2**16  # in few bits: the sum is exact
FAR_REST = math.expm1(64 * math.log(2) - FAR_UP)
ALL = 30.0  # above it the share is 1

GELU_SCALE = math.sqrt(8 / math.pi)
GELU_CUBE = GELU_SCALE * 0.044715


class _Power:
    """exp(-|u|), brought up where it is tiny."""

    def __init__(self, u: Tensor) -> None:
        self.below_zero = u < 0
        near = self.below_zero.where(u, -u)
        self.far = u < FAR if u.dtype is float32 else None
        self.value = near.exp() if self.far is None else self.far.where(u + FAR_UP, near).exp()

    def low(self, top: Pair) -> Tensor:
        """The low part of a product with the power."""
        return top.low if self.far is None else top.high * self.far.where(FAR_REST, 0) + top.low

    def brought_down(self, x: Tensor, made: Tensor) -> Tensor:
        """What was made of the power and x; x itself where the share is 1."""
        if self.far is not None:
            made = made * self.far.where(FAR_DOWN, 1)
        return (x > ALL).where(x, made)


def gated(x: Tensor, u: Tensor, lost: Tensor | None = None) -> Tensor:
    """x / (1 + exp(-(u + lost))), for u of the sign of x, by the exponential of -|u|."""
    power = _Power(u)
    top = product(x, power.below_zero.where(power.value, 1))
    low = power.low(top)
    inverse = (power.value + 1).reciprocal()
    near = top.high * inverse
    rest = fma(near, power.value, near - top.high) - low  # the difference is exact
    if lost is not None:  # the slope of the share's logarithm is 1 - share
        rest = rest - near * (lost * power.below_zero.where(1, power.value))
    return power.brought_down(x, near - rest * inverse)


def gelu_tanh(x: Tensor) -> Tensor:
    """x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x**3))."""
    size = (x < -ALL).where(-ALL, x)  # there the result is 0, and beyond it squares overflow
    square = product(size, size)
    exact = Fraction(GELU_SCALE) * Fraction(0.044715)
    cube = product(square.high, x._full(x.shape, GELU_CUBE, x.dtype))
    few = 2.0 ** (15 if x.dtype is float32 else 44)
    head = round(GELU_SCALE * few) / few  # in so few bits that sums lose none of them
    slope = sorted_total(head, cube.high)
    low = square.low * GELU_CUBE + square.high * _rest(exact, x)
    low = slope.low + (cube.low + (low + (GELU_SCALE - head)))
    u = product(size, slope.high)
    return gated(x, u.high, u.low + size * low)


def _rest(constant: Fraction, x: Tensor) -> float:
    """What the dtype of x cannot hold of a number."""
    held = np.asarray(float(constant), x.dtype.compute)
    return float(constant - Fraction(float(held)))


def mish_fraction(x: Tensor) -> Tensor:
    """x * tanh(log(1 + exp(x))), where the tanh of that logarithm is a fraction of polynomials."""
    power = _Power(x)
    p, below_zero = power.value, power.below_zero
    # x < 0: (p * p + 2 * p) / (p * p + 2 * p + 2); else (2 * p + 1) / (2 * p + 1 + 2 * p * p)
    times, plus = below_zero.where(p, 2), below_zero.where(p + p, 1)
    area = fma(times, p, plus)
    area_low = fma(times, p, plus - area)  # the difference is exact
    below = sorted_total(below_zero.where(2, area), below_zero.where(area, p * p * 2))
    top = product(x, area)
    made = quotient(
        Pair(top.high, power.low(top) + x * area_low), Pair(below.high, below.low + area_low)
    )
    return power.brought_down(x, made)
