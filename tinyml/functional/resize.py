"""Images and signals of another size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinyml.dtype import float32, float64, int32, uint8
from tinyml.errors import ShapeError
from tinyml.functional.axes import whole, wrong_type
from tinyml.functional.steps import composition

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


@composition
def interpolate(
    x: Tensor, size: Sequence[int], mode: str = "linear", align_corners: bool = False
) -> Tensor:
    """The last axes in other sizes: "linear", "nearest" or "nearest-exact".

    Linear between uint8 is blended in fixed point, last axis first, as torch does it.
    """
    if mode not in ("linear", "nearest", "nearest-exact"):
        raise ValueError(f"interpolate: mode is linear, nearest or nearest-exact, got {mode!r}")
    if align_corners and mode != "linear":
        raise ValueError("interpolate: align_corners is for linear interpolation")
    if not isinstance(size, (tuple, list)):
        raise wrong_type("interpolate", "size", "a tuple of whole numbers", size)
    sizes = tuple(whole(n, "interpolate", "a size") for n in size)
    if not sizes or len(sizes) >= x.ndim or any(n < 1 for n in sizes):
        raise ShapeError(f"interpolate: sizes {sizes} do not fit the last axes of {x.shape}")
    dtype = x.dtype
    for i, n in reversed(list(enumerate(sizes))):
        axis = x.ndim - len(sizes) + i
        place = _places(x, x.shape[axis], n, mode, align_corners)
        if mode != "linear":
            x = _pick(x, axis, place.cast(int32))
        elif dtype is uint8:
            x = _blend(x, axis, place, _weight_bits(x.shape[axis], n, align_corners))
        else:
            x = _read(x, axis, place)
    if not dtype.is_float and mode == "linear":
        return x.round().cast(dtype)
    return x.cast(dtype)


def _places(x: Tensor, old: int, new: int, mode: str, align_corners: bool) -> Tensor:
    """Where in the old axis each new element lies; in float64 for that, and for 8-bit blending."""
    exact = x.dtype is float64 or (x.dtype is uint8 and mode == "linear")
    i = x._arange(new).cast(float64 if exact else float32)
    if align_corners:
        return i * ((old - 1) / (new - 1) if new > 1 else 0.0)
    if mode == "nearest":
        return i * (old / new)
    centre = (i + 0.5) * (old / new)
    return centre if mode == "nearest-exact" else (centre - 0.5).clip(0, old - 1)


def _pick(x: Tensor, axis: int, index: Tensor) -> Tensor:
    index = index.minimum(x.shape[axis] - 1).reshape((-1,) + (1,) * (x.ndim - axis - 1))
    return x._gather(axis, index.expand((*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :])))


def _neighbours(x: Tensor, axis: int, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The elements on both sides of each place, and how near the place is to the second."""
    low = place.floor()
    share = (place - low).reshape((-1,) + (1,) * (x.ndim - axis - 1))
    return _pick(x, axis, low.cast(int32)), _pick(x, axis, place.ceil().cast(int32)), share


def _read(x: Tensor, axis: int, place: Tensor) -> Tensor:
    x = x if x.dtype.is_float and not x.dtype.is_half else x.cast(float32)
    left, right, share = _neighbours(x, axis, place)
    return left + (right - left) * share


def _blend(x: Tensor, axis: int, place: Tensor, bits: int) -> Tensor:
    """Both neighbours times weights of so many bits after the point, rounded to uint8."""
    left, right, share = _neighbours(x.cast(int32), axis, place)
    one = float(1 << bits)
    total = left * ((1 - share) * one + 0.5).cast(int32) + right * (share * one + 0.5).cast(int32)
    return ((total + (1 << (bits - 1))) >> bits).clip(0, 255).cast(uint8)


def _weight_bits(old: int, new: int, align_corners: bool) -> int:
    """As many bits as keep the largest weight below 2**15: one less if a weight is 1."""
    by = (old - 1) / max(1, new - 1) if align_corners else old / new
    places = [i * by if align_corners else (i + 0.5) * by - 0.5 for i in range(new)]
    whole = any(p <= 0 or p >= old - 1 or abs(p - round(p)) <= 2**-16 for p in places)
    return 14 if whole else 15
