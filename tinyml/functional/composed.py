"""Compositions whose gradient is written down, instead of found by going through their parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tinyml import mlops

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


def with_gradient(
    compute: Callable[..., Tensor], rule: Callable[..., mlops.Grads], *inputs: Tensor
) -> Tensor:
    """compute(*inputs), whose gradients are `rule(grad, out, *inputs)`: one for each input.

    A rule is made of tensor ops, so a gradient of the gradient follows from it.
    """
    first, *others = inputs
    return first._apply(mlops.Composed(first._passing, compute, rule), *others)


def with_slope(
    compute: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], x: Tensor
) -> Tensor:
    """compute(x), element by element, where slope(x) is its derivative."""
    return with_gradient(compute, lambda grad, _, x: (grad * slope(x),), x)
