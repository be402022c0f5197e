"""The values as numbers of another dtype, or on another device."""

from __future__ import annotations

from collections.abc import Callable
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


def _as(dtype: DType, name: str) -> Callable[[Tensor], Tensor]:
    def converted(x: Tensor) -> Tensor:
        return cast(x, dtype)

    converted.__name__, converted.__doc__ = name, f"The values as {dtype}."
    return converted


float_ = _as(dt.float32, "float_")
double = _as(dt.float64, "double")
half = _as(dt.float16, "half")
bfloat16 = _as(dt.bfloat16, "bfloat16")
short = _as(dt.int16, "short")
int_ = _as(dt.int32, "int_")
long = _as(dt.int64, "long")
bool_ = _as(dt.bool_, "bool_")


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
