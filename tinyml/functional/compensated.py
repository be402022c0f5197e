"""Arithmetic that keeps what rounding loses: a pair stands for high + low.

T. J. Dekker, A floating-point technique for extending the available precision, 1971; with a
fused multiply-add as in S. Boldo and J.-M. Muller, Exact and approximated error of the FMA, 2011.
Infinities and overflow in between make low parts NaN: whoever calls keeps them away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tinyml import mlops
from tinyml.functional.operands import constant

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


class Pair(NamedTuple):
    high: Tensor
    low: Tensor


def fma(a: Tensor, b: Tensor | float, c: Tensor | float) -> Tensor:
    """a * b + c, rounded once; numbers are of the shape and dtype of a."""
    return a._apply(mlops.Fma(), _like(a, b), _like(a, c))


def _like(a: Tensor, value: Tensor | float) -> Tensor:
    return constant(a, value, a.dtype) if isinstance(value, (int, float)) else value


def sorted_total(a: Tensor | float, b: Tensor) -> Pair:
    """Exactly a + b, where the magnitude of a is not below that of b, or a has few bits."""
    high = b + a
    return Pair(high, b - (high - a))
