"""The bits of numbers, read as numbers of another dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinyml import lazy
from tinyml.dtype import DType, bool_, by_name
from tinyml.dtypes import DTypeLike, to_dtype
from tinyml.errors import DTypeError, ShapeError
from tinyml.functional.views import Bitcasted, follow

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


def bitcast(x: Tensor, dtype: DTypeLike) -> Tensor:
    """The bits of x read as `dtype`; the last axis grows or shrinks where sizes differ.

    As torch's `view(dtype)` on a little-endian machine: the low bytes of a number come first.
    A signalling NaN may turn into a quiet one on its way.
    DTypeError for bool; ShapeError where the last axis does not make whole numbers.
    """
    target = to_dtype(dtype)
    if target is not x.dtype and bool_ in (x.dtype, target):
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
