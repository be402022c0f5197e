"""What compositions are made with: a dtype to compute in, a gradient of their own, one rounding."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from tinyml import mlops
from tinyml.dtype import DType, float32, int64, uint64
from tinyml.dtypes import dtypes
from tinyml.functional.operands import constant
from tinyml.functional.steps import composition

if TYPE_CHECKING:
    from tinyml.tensor import Tensor

_P = ParamSpec("_P")
_R = TypeVar("_R")


# ---- in which dtype: every primitive rounds, so halves go through float32 ----


def in_float32(
    function: Callable[Concatenate[Tensor, _P], _R],
) -> Callable[Concatenate[Tensor, _P], _R]:
    """Compute a composition on halves in float32, rounding once; integers become floats."""

    @functools.wraps(function)
    def computed(x: Tensor, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        own = x._lazy.dtype
        if own.is_half:
            return cast(_R, _rounded(function(x.cast(float32), *args, **kwargs), own))
        return function(x if own.is_float else to_float(x), *args, **kwargs)

    return cast("Callable[Concatenate[Tensor, _P], _R]", computed)


def composition_of_floats(
    function: Callable[Concatenate[Tensor, _P], _R],
) -> Callable[Concatenate[Tensor, _P], _R]:
    """A composition that is computed `in_float32`."""
    return composition(in_float32(function))


def _rounded(result: Any, dtype: DType) -> Any:
    if isinstance(result, tuple):
        return tuple(_rounded(part, dtype) for part in result)
    return result.cast(dtype)


def sum_dtype(dtype: DType) -> DType:
    """The dtype of a sum: int64 for integers and bool, but uint64 for what might not fit."""
    return dtype if dtype.is_float or dtype is uint64 else int64


def to_float(x: Tensor) -> Tensor:
    """x if it is of a floating dtype, else x in the default one."""
    return x if x._lazy.dtype.is_float else x.cast(dtypes.default_float)


# ---- whose gradient is written down, instead of found by going through the parts ----


def with_gradient(
    compute: Callable[..., Tensor], rule: Callable[..., mlops.Grads], *inputs: Tensor
) -> Tensor:
    """compute(*inputs), whose gradients are `rule(grad, out, *inputs)`: one for each input.

    A rule is made of tensor ops, so a gradient of the gradient follows from it.
    """
    first, *others = inputs
    return first._apply(mlops.Composed(first._passing, compute, rule), *others)


def with_gradient_of_result(
    compute: Callable[[Tensor], Tensor], rule: Callable[[Tensor, Tensor], Tensor], x: Tensor
) -> Tensor:
    """compute(x), whose gradient is `rule(grad, out)`: x is not kept for it."""
    made = mlops.OfResult(x._passing, compute, lambda grad, out: (rule(grad, out),))
    return x._apply(made)


def with_slope(
    compute: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], x: Tensor
) -> Tensor:
    """compute(x), element by element, where slope(x) is its derivative."""
    return with_gradient(compute, lambda grad, _, x: (grad * slope(x),), x)


# ---- what keeps what rounding loses ----


def fma(a: Tensor, b: Tensor | float, c: Tensor | float) -> Tensor:
    """a * b + c, rounded once; numbers are of the shape and dtype of a."""
    b, c = (constant(a, v, a.dtype) if isinstance(v, (int, float)) else v for v in (b, c))
    return a._apply(mlops.Fma(), b, c)
