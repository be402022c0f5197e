"""The values as numbers of another dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinyml import dtype as dt
from tinyml import mlops
from tinyml.dtype import DType
from tinyml.dtypes import to_dtype

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


def cast(x: Tensor, dtype: DType | str) -> Tensor:
    """The values as numbers of another dtype."""
    target = dtype if type(dtype) is DType else to_dtype(dtype)
    return x if x._lazy.dtype is target else x._apply(mlops.Cast(target))


def float_(x: Tensor) -> Tensor:
    """The values as float32."""
    return x.cast(dt.float32)


def double(x: Tensor) -> Tensor:
    """The values as float64."""
    return x.cast(dt.float64)


def half(x: Tensor) -> Tensor:
    """The values as float16."""
    return x.cast(dt.float16)


def bfloat16(x: Tensor) -> Tensor:
    """The values as bfloat16."""
    return x.cast(dt.bfloat16)


def short(x: Tensor) -> Tensor:
    """The values as int16."""
    return x.cast(dt.int16)


def int_(x: Tensor) -> Tensor:
    """The values as int32."""
    return x.cast(dt.int32)


def long(x: Tensor) -> Tensor:
    """The values as int64."""
    return x.cast(dt.int64)


def bool_(x: Tensor) -> Tensor:
    """Where the values are not 0."""
    return x.cast(dt.bool_)
