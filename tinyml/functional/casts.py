"""The values as numbers of another dtype, or on another device; their bits read as another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinyml import dtype as dt
from tinyml import lazy, mlops
from tinyml.device import Device, open_device
from tinyml.dtype import DType, by_name
from tinyml.dtypes import DTypeLike, to_dtype
from tinyml.errors import DTypeError, ShapeError
from tinyml.functional.axes import is_tensor
from tinyml.functional.views import Bitcasted, follow

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
    if is_tensor(place):
        return to(x, place.device, place.dtype)
    if dtype is not None:
        x, place = x.cast(dtype), place or x.device
    name = Device.canonical(place)
    if name == x._lazy.device:
        return x
    open_device(name)  # where there is none, it is this line that is wrong
    return x._apply(mlops.Copy(name))


def cpu(x: Tensor) -> Tensor:
    """The same values on the CPU."""
    return to(x, "CPU")


def cuda(x: Tensor) -> Tensor:
    """The same values on the CUDA device; DeviceError where there is none."""
    return to(x, "CUDA")


# ---- bits ----


def bitcast(x: Tensor, dtype: DTypeLike) -> Tensor:
    """The bits of x read as `dtype`; the last axis grows or shrinks where sizes differ.

    As torch's `view(dtype)` on a little-endian machine: the low bytes of a number come first.
    A signalling NaN may turn into a quiet one on its way.
    DTypeError for bool; ShapeError where the last axis does not make whole numbers.
    """
    target = to_dtype(dtype)
    if target is not x.dtype and dt.bool_ in (x.dtype, target):
        raise DTypeError(f"bitcast: {x.dtype} to {target}: a bool is no pattern of bits; cast it")
    own, new = x.dtype.itemsize, target.itemsize
    if own != new and (not x.ndim or x.shape[-1] * own % new):
        raise ShapeError(
            f"bitcast: the last axis of {x.shape} {x.dtype} does not make whole {target}: it must "
            f"be there, with a multiple of {new} bytes"
        )
    bits = x
    if own != new:
        numbers = _same_size(x, by_name(f"uint{8 * own}"))
        bits = _split(numbers, new) if own > new else _joined(numbers, new)
    return follow(_same_size(bits, target), x, Bitcasted(target))


def _same_size(x: Tensor, dtype: DType) -> Tensor:
    return x._of(lazy.bitcast(x.lazy, dtype))


def _split(bits: Tensor, size: int) -> Tensor:
    """Each number as several of `size` bytes."""
    places = bits._arange(bits.dtype.itemsize // size).cast(bits.dtype) * (8 * size)
    parts = (bits.unsqueeze(-1) >> places).cast(by_name(f"uint{8 * size}"))
    return parts.flatten(-2)


def _joined(bits: Tensor, size: int) -> Tensor:
    """Numbers side by side as one of `size` bytes."""
    wide, ratio = by_name(f"uint{8 * size}"), size // bits.dtype.itemsize
    parts = bits.unflatten(-1, (bits.shape[-1] // ratio, ratio)).cast(wide)
    places = bits._arange(ratio).cast(wide) * (8 * bits.dtype.itemsize)
    return (parts << places).sum(-1, dtype=wide)
