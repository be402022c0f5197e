"""The values as numbers of another dtype, or on another device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinyml import dtype as dt
from tinyml import mlops
from tinyml.device import Device, open_device
from tinyml.dtype import DType
from tinyml.dtypes import DTypeLike, to_dtype

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


def cast(x: Tensor, dtype: DTypeLike) -> Tensor:
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


def to(
    x: Tensor,
    device: str | Tensor | DType | type[Any] | None = None,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """The same values on another device (None: the default one), as another dtype, or both.

    Of a Tensor in the device's place both are taken.
    """
    if isinstance(device, (DType, type)):
        return x.cast(device)
    place: Any = device
    if isinstance(place, type(x)):
        return to(x, place.device, place.dtype)
    if dtype is not None:
        x, place = x.cast(dtype), place or x.device
    name = Device.canonical(place)
    if name == x.device:
        return x
    open_device(name)  # where there is none, it is this line that is wrong
    return x._apply(mlops.Copy(name))


def cpu(x: Tensor) -> Tensor:
    """The same values on the CPU."""
    return to(x, "CPU")


def cuda(x: Tensor) -> Tensor:
    """The same values on the CUDA device; DeviceError where there is none."""
    return to(x, "CUDA")
