"""In which dtype a composition computes: every primitive rounds, so halves go through float32."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from tinyml.dtype import DType, float32, int64, uint64
from tinyml.dtypes import dtypes

if TYPE_CHECKING:
    from tinyml.tensor import Tensor

_P = ParamSpec("_P")
_R = TypeVar("_R")


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
