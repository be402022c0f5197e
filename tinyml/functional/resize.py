"""Images and signals of another size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinyml.dtype import float32, int32
from tinyml.errors import ShapeError

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


def interpolate(
    x: Tensor, size: Sequence[int], mode: str = "linear", align_corners: bool = False
) -> Tensor:
    """The last axes in other sizes: "linear", "nearest" or "nearest-exact"."""
    if mode not in ("linear", "nearest", "nearest-exact"):
        raise ValueError(f"interpolate: mode is linear, nearest or nearest-exact, got {mode!r}")
    if align_corners and mode != "linear":
        raise ValueError("interpolate: align_corners is for linear interpolation")
    sizes = tuple(size)
    if not sizes or len(sizes) >= x.ndim or any(n < 1 for n in sizes):
        raise ShapeError(f"interpolate: sizes {sizes} do not fit the last axes of {x.shape}")
    dtype = x.dtype
    for i, n in enumerate(sizes):
        axis = x.ndim - len(sizes) + i
        place = _places(x, x.shape[axis], n, mode, align_corners)
        x = _read(x, axis, place) if mode == "linear" else _pick(x, axis, place.cast(int32))
    if not dtype.is_float and mode == "linear":
        return x.round().cast(dtype)
    return x.cast(dtype)


def _places(x: Tensor, old: int, new: int, mode: str, align_corners: bool) -> Tensor:
    """Where in the old axis each new element lies."""
    i = x._arange(new).cast(float32)
    if align_corners:
        return i * ((old - 1) / (new - 1) if new > 1 else 0.0)
    if mode == "nearest":
        return i * (old / new)
    centre = (i + 0.5) * (old / new)
    return centre if mode == "nearest-exact" else (centre - 0.5).clip(0, old - 1)


def _pick(x: Tensor, axis: int, index: Tensor) -> Tensor:
    index = index.minimum(x.shape[axis] - 1).reshape((-1,) + (1,) * (x.ndim - axis - 1))
    return x._gather(axis, index.expand((*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :])))


def _read(x: Tensor, axis: int, place: Tensor) -> Tensor:
    low = place.floor()
    weight = (place - low).reshape((-1,) + (1,) * (x.ndim - axis - 1))
    x = x if x.dtype.is_float and not x.dtype.is_half else x.cast(float32)
    left, right = _pick(x, axis, low.cast(int32)), _pick(x, axis, place.ceil().cast(int32))
    return left + (right - left) * weight
