"""The operands of an op: tensors and numbers, in one dtype and in shapes that broadcast."""

from __future__ import annotations

from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from tinyml import lazy
from tinyml.dtype import DType, promote, promote_weak
from tinyml.dtypes import dtypes
from tinyml.errors import RangeError
from tinyml.functional.axes import apart, is_tensor
from tinyml.shape import Shape, broadcast_shape

if TYPE_CHECKING:
    from tinyml.tensor import Scalar, Tensor


def weak_dtype(dtype: DType, value: Scalar) -> DType:
    """The dtype of an op between a tensor of `dtype` and a Python number."""
    if dtype.is_float or (dtype.is_int and isinstance(value, int)):
        return dtype
    return promote_weak(dtype, dtypes.from_py(value))


def common_dtype(*tensors: Tensor) -> DType:
    """The dtype of an op between tensors."""
    with_axes = [t.dtype for t in tensors if t.shape]
    without = [t.dtype for t in tensors if not t.shape]
    if not with_axes or not without:
        return reduce(promote, with_axes or without)
    return promote_weak(reduce(promote, with_axes), reduce(promote, without))


@lru_cache(maxsize=4096)  # text tells 0.0 and -0.0 apart, which are equal
def _filled(
    kind: type[Tensor], value: Scalar, text: str, shape: Shape, dtype: DType, device: str
) -> Tensor:
    return kind._constant(lazy.const(value, dtype, device, shape))


def constant(x: Tensor, value: Scalar, dtype: DType) -> Tensor:
    """A number everywhere in the shape of x, as an operand: the same tensor each time."""
    node = x._lazy
    return _filled(type(x), value, "" if value else str(value), node.shape, dtype, node.device)


def alike(op: str, x: Tensor, y: Any) -> tuple[Tensor, Tensor]:
    """x and y with one dtype, in shapes that broadcast."""
    node = x._lazy
    if type(y) is not type(x):
        if isinstance(y, (bool, int, float)):
            dtype = weak_dtype(node.dtype, y)
            return x if node.dtype is dtype else x.cast(dtype), constant(x, y, dtype)
        if isinstance(y, np.generic):
            return alike(op, x, y.item())  # a number, as weak as Python's
        if not is_tensor(y):
            y = x._coerce(y, op)
    other = y._lazy
    if node.device != other.device:
        raise apart(op, x, y)
    if node.dtype is not other.dtype:
        dtype = common_dtype(x, y)
        x, y = x.cast(dtype), y.cast(dtype)
    if node.shape != other.shape:
        broadcast_shape(op, node.shape, other.shape)
    return x, y


def check_fits(op: str, value: Scalar, dtype: DType) -> None:
    """RangeError if no element of an integer dtype is near a Python number."""
    if dtype.is_int and not dtype.min <= value <= dtype.max:
        raise RangeError(
            f"{op}: {dtype} has the integers from {dtype.min} to {dtype.max}, and not {value}; "
            "use a dtype that has it, or .cast() a tensor, which wraps around"
        )


def holding(op: str, x: Tensor, y: Any) -> tuple[Tensor, Tensor]:
    """As `alike`, for an op whose results are elements of x and y: a number must be one."""
    if isinstance(y, int):
        check_fits(op, y, x._lazy.dtype)
    return alike(op, x, y)


def operands(op: str, x: Tensor, y: Any) -> tuple[Tensor, Tensor]:
    """x and y with one dtype and one shape."""
    x, y = alike(op, x, y)
    shape = broadcast_shape(op, x.shape, y.shape)
    return x._broadcast_to(shape), y._broadcast_to(shape)


def ordered(op: str, x: Tensor, y: Any, reverse: bool) -> tuple[Tensor, Tensor]:
    """As `alike`; y and x if `reverse`."""
    x, y = alike(op, x, y)
    return (y, x) if reverse else (x, y)
