"""Images and signals of another size."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any, cast

from tinyml.dtype import float32, float64, int32, uint8
from tinyml.errors import ArgumentError, DTypeError, ShapeError
from tinyml.functional.axes import number, whole, wrong_type
from tinyml.functional.movement import along
from tinyml.functional.steps import composition

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


_MODES = {
    "linear": "linear",
    "bilinear": "linear",
    "trilinear": "linear",
    "cubic": "cubic",
    "bicubic": "cubic",
    "nearest": "nearest",
    "nearest-exact": "nearest-exact",
}


@composition
def interpolate(
    x: Tensor,
    size: int | Sequence[int] | None = None,
    mode: str = "linear",
    align_corners: bool = False,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """The last axes in other sizes, or so many times as long: "linear", "cubic" or "nearest".

    One number is for all axes but the first two. "nearest-exact" looks at the centres; "bilinear",
    "trilinear" and "bicubic" are names of others. Linear between uint8 is blended in fixed point,
    last axis first, as torch does it.
    """
    if mode not in _MODES:
        raise ValueError(f"interpolate: mode is one of {', '.join(_MODES)}, got {mode!r}")
    mode, dtype = _MODES[mode], x.dtype
    if align_corners and mode not in ("linear", "cubic"):
        raise ValueError("interpolate: align_corners is for linear and cubic interpolation")
    if mode == "cubic" and not dtype.is_float:
        raise DTypeError(f"interpolate: cubic is between floats, got {dtype}; cast them")
    sizes, factors = _new_sizes(x, size, scale_factor)
    for i, n in reversed(list(enumerate(sizes))):
        axis = x.ndim - len(sizes) + i
        place = _places(x, x.shape[axis], n, mode, align_corners, factors[i])
        if mode.startswith("nearest"):
            x = _pick(x, axis, place.cast(int32))
        elif mode == "cubic":
            x = _cubic(x, axis, place)
        elif dtype is uint8:
            x = _blend(x, axis, place, _weight_bits(x.shape[axis], n, align_corners, factors[i]))
        else:
            x = _read(x, axis, place)
    if not dtype.is_float and mode == "linear":
        return x.round().cast(dtype)
    return x.cast(dtype)


def _new_sizes(
    x: Tensor, size: int | Sequence[int] | None, factor: float | Sequence[float] | None
) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """The sizes of the last axes, and by what they were multiplied, where that is given."""
    if (size is None) == (factor is None):
        raise ArgumentError("interpolate: either size or scale_factor is given")
    given: Any = size if factor is None else factor
    if isinstance(given, (int, float)):
        given = (given,) * (x.ndim - 2)
    if not isinstance(given, (tuple, list)):
        name = "scale_factor" if size is None else "size"
        raise wrong_type("interpolate", name, "a number or a tuple of them", given)
    if factor is None:
        sizes = tuple(whole(n, "interpolate", "a size") for n in given)
    else:
        factors = tuple(float(number(f, "interpolate", "a scale_factor")) for f in given)
        if not all(0 < f < inf for f in factors):
            raise ShapeError(f"interpolate: a scale_factor is above 0 and finite, got {factors}")
        sizes = tuple(int(n * f) for n, f in zip(x.shape[-len(given) :], factors, strict=False))
    if not sizes or len(given) >= x.ndim or min(sizes) < 1:
        raise ShapeError(f"interpolate: sizes {sizes} do not fit the last axes of {x.shape}")
    return sizes, (None,) * len(sizes) if factor is None else factors


def _step(old: int, new: int, align_corners: bool, factor: float | None) -> float:
    """How far apart new elements lie in the old axis."""
    if align_corners:
        return (old - 1) / (new - 1) if new > 1 else 0.0
    return old / new if factor is None else 1 / factor


def _places(
    x: Tensor, old: int, new: int, mode: str, align_corners: bool, factor: float | None
) -> Tensor:
    """Where in the old axis each new element lies; in float64 for that, and for 8-bit blending."""
    exact = x.dtype is float64 or (x.dtype is uint8 and mode == "linear")
    i = x._arange(new).cast(float64 if exact else float32)
    step = _step(old, new, align_corners, factor)
    if align_corners or mode == "nearest":
        return i * step
    centre = (i + 0.5) * step
    if mode == "nearest-exact":
        return centre
    return centre - 0.5 if mode == "cubic" else (centre - 0.5).clip(0, old - 1)


def _pick(x: Tensor, axis: int, index: Tensor) -> Tensor:
    index = along(index.minimum(x.shape[axis] - 1), axis, x)
    return x._gather(axis, index.expand((*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :])))


def _neighbours(x: Tensor, axis: int, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The elements on both sides of each place, and how near the place is to the second."""
    low = place.floor()
    share = along(place - low, axis, x)
    return _pick(x, axis, low.cast(int32)), _pick(x, axis, place.ceil().cast(int32)), share


def _read(x: Tensor, axis: int, place: Tensor) -> Tensor:
    x = x if x.dtype.is_float and not x.dtype.is_half else x.cast(float32)
    left, right, share = _neighbours(x, axis, place)
    return left + (right - left) * share


def _cubic(x: Tensor, axis: int, place: Tensor) -> Tensor:
    """Four neighbours, weighted by Keys' kernel of -0.75; beyond an end lies what is there."""
    x = x.cast(float32) if x.dtype.is_half else x
    low, last = place.floor(), x.shape[axis] - 1
    total: Any = 0
    for k in (-1, 0, 1, 2):
        d = (place - low - k).abs()
        near = (1.25 * d - 2.25) * d * d + 1
        weight = near if k in (0, 1) else ((-0.75 * d + 3.75) * d - 6) * d + 3
        column = along(weight.cast(x.dtype), axis, x)
        total = _pick(x, axis, (low + k).clip(0, last).cast(int32)) * column + total
    return cast("Tensor", total)


def _blend(x: Tensor, axis: int, place: Tensor, bits: int) -> Tensor:
    """Both neighbours times weights of so many bits after the point, rounded to uint8."""
    left, right, share = _neighbours(x.cast(int32), axis, place)
    one = float(1 << bits)
    total = left * ((1 - share) * one + 0.5).cast(int32) + right * (share * one + 0.5).cast(int32)
    return ((total + (1 << (bits - 1))) >> bits).clip(0, 255).cast(uint8)


def _weight_bits(old: int, new: int, align_corners: bool, factor: float | None) -> int:
    """As many bits as keep the largest weight below 2**15: one less if a weight is 1."""
    by = _step(old, new, align_corners, factor)
    places = [i * by if align_corners else (i + 0.5) * by - 0.5 for i in range(new)]
    whole = any(p <= 0 or p >= old - 1 or abs(p - round(p)) <= 2**-16 for p in places)
    return 14 if whole else 15
