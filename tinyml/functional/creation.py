"""Tensors out of nothing. Values that a formula gives are computed, never uploaded."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinyml import lazy
from tinyml.device import Device
from tinyml.dtype import DType, float32, index_dtype, int64
from tinyml.dtypes import DTypeLike, dtypes, to_dtype
from tinyml.errors import ArgumentError, ShapeError
from tinyml.functional.axes import check_numbers, new_shape, number, whole
from tinyml.functional.operands import check_fits
from tinyml.functional.steps import composition
from tinyml.lazy import LazyBuffer

if TYPE_CHECKING:
    from tinyml.tensor import Scalar, Tensor


def full(
    kind: type[Tensor],
    /,
    shape: Any,
    fill_value: Scalar,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """`fill_value` everywhere."""
    sizes = new_shape((shape,), "full")
    number(fill_value, "full", "fill_value")
    target = dtypes.from_py(fill_value) if dtype is None else to_dtype(dtype)
    check_fits("full", fill_value, target)
    node = lazy.const(fill_value, target, Device.canonical(device), sizes)
    return kind._of(node)._requiring(requires_grad)


def _filled(name: str, value: int, text: str) -> Callable[..., Tensor]:
    """What makes tensors of one number, of which `text` is the docstring."""

    def filled(
        kind: type[Tensor],
        /,
        *shape: Any,
        dtype: DTypeLike | None = None,
        device: str | None = None,
        requires_grad: bool | None = None,
    ) -> Tensor:
        sizes = new_shape(shape, name)
        return full(kind, sizes, value, dtype or dtypes.default_float, device, requires_grad)

    filled.__name__, filled.__doc__ = name, text
    return filled


_RULES = "of `dtypes.default_float` unless told; ShapeError for a negative size."
zeros = _filled("zeros", 0, f"Zeros, {_RULES}")
ones = _filled("ones", 1, f"Ones, {_RULES}")
empty = _filled("empty", 0, "Values do not matter (they are zero).")


def eye(
    kind: type[Tensor],
    /,
    n: int,
    m: int | None = None,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """Ones on the diagonal."""
    rows, columns = new_shape((n, n if m is None else m), "eye")
    place = Device.canonical(device)
    i, j = (kind._constant(_places(count, place)) for count in (rows, columns))
    target = to_dtype(dtype) if dtype is not None else dtypes.default_float
    return _diagonal(i, j, target)._requiring(requires_grad)


@composition
def _diagonal(i: Tensor, j: Tensor, target: DType) -> Tensor:
    return (i.unsqueeze(-1) == j).cast(target)


def _places(count: int, device: str) -> LazyBuffer:
    return lazy.iota(count, index_dtype(count), device)


def arange(
    kind: type[Tensor],
    /,
    start: float,
    stop: float | None = None,
    step: float = 1,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """start, start + step, ... before stop; with an integer dtype start and step are cut to it.

    ArgumentError (a ValueError) where the step is 0 or leads away from stop.
    """
    start, stop = (0, start) if stop is None else (start, stop)
    whole = type(start) is type(stop) is type(step) is int
    if not whole:
        check_numbers("arange", start=start, stop=stop, step=step)
        whole = all(isinstance(value, int) for value in (start, stop, step))
    target = (
        to_dtype(dtype)
        if dtype is not None
        else dtypes.from_py([int(start), int(stop)])
        if whole
        else dtypes.default_float
    )
    count = _count(start, stop, step)
    if target.is_int and not whole:  # as torch counts: of int64 from the whole numbers
        first, by = int(start), int(step)
        count = _count(first, int(stop), by) if target is int64 or not by else count
        start, step, whole = first, by, True
    for value in (start, start + (count - 1) * step) if count else ():
        check_fits("arange", value, target)
    wide = int64 if target is int64 else index_dtype(count)
    places = kind._of(lazy.iota(count, wide, Device.canonical(device)))
    values = places.cast(target if whole and target.is_int else _exact(target))
    if start or step != 1:
        values = _line(values, start, step)
    return values.cast(target)._requiring(requires_grad)


def _exact(target: DType) -> DType:
    """The floating dtype in which values are computed that are to be of `target`."""
    return target if target.is_float and not target.is_half else float32


@composition
def _line(places: Tensor, start: float, step: float) -> Tensor:
    values = places if step == 1 else places * step
    return values if start == 0 else values + start


def _count(start: float, stop: float, step: float) -> int:
    """How many steps there are before stop."""
    if step == 0:
        raise ArgumentError("arange: the step cannot be 0, nor be cut to 0 by an integer dtype")
    if not all(map(math.isfinite, (start, stop, step))):
        raise ArgumentError(f"arange: bounds and step are finite, got {start}, {stop} and {step}")
    if (stop - start) * step < 0:
        raise ArgumentError(f"arange: steps of {step} do not lead from {start} to {stop}")
    return math.ceil((stop - start) / step)


def linspace(
    kind: type[Tensor],
    /,
    start: float,
    stop: float,
    steps: int,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """`steps` values from start to stop, both included; an integer dtype cuts both to it."""
    target = to_dtype(dtype) if dtype is not None else dtypes.default_float
    check_numbers("linspace", start=start, stop=stop)
    if whole(steps, "linspace", "steps") < 0:
        raise ShapeError(f"linspace: the number of steps cannot be negative, got {steps}")
    if target is dtypes.bool:
        raise ShapeError("linspace: bool has no values between; use a number dtype")
    places = kind._constant(_places(steps, Device.canonical(device)))
    if target.is_int:
        values = _spaced_whole(places.cast(int64), int(start), int(stop)).cast(target)
    else:
        values = _spaced(places, start, stop, target)
    return values._requiring(requires_grad)


@composition
def _spaced(places: Tensor, start: float, stop: float, target: DType) -> Tensor:
    exact, steps = places.cast(_exact(target)), places.numel()
    if steps > 1:  # from both ends, so that the last value is exact
        by = (stop - start) / (steps - 1)
        rising, falling = exact * by + start, stop - (steps - 1 - exact) * by
        exact = (places < steps // 2).where(rising, falling)
    elif steps == 1:
        exact = exact + start
    return exact.cast(target)


@composition
def _spaced_whole(places: Tensor, start: int, stop: int) -> Tensor:
    """The same in whole numbers, which are cut towards 0: floats would miss some of them."""
    gaps = max(places.numel() - 1, 1)
    step, rest = divmod(stop - start, gaps)
    rests = places * rest
    low = places * step + start + rests // gaps
    return low if min(start, stop) >= 0 else low + ((low < 0) & (rests % gaps != 0))


def full_like(
    x: Tensor, fill_value: Scalar, dtype: DTypeLike | None = None, requires_grad: bool | None = None
) -> Tensor:
    """`fill_value` in the shape of x, in its dtype and on its device unless told."""
    number(fill_value, "full_like", "fill_value")
    target = x.dtype if dtype is None else to_dtype(dtype)
    check_fits("full_like", fill_value, target)
    return x._full(x.shape, fill_value, target)._requiring(requires_grad)


def zeros_like(
    x: Tensor, dtype: DTypeLike | None = None, requires_grad: bool | None = None
) -> Tensor:
    """Zeros in the shape of x, in its dtype and on its device unless told."""
    return full_like(x, 0, dtype, requires_grad)


def ones_like(
    x: Tensor, dtype: DTypeLike | None = None, requires_grad: bool | None = None
) -> Tensor:
    """Ones in the shape of x, in its dtype and on its device unless told."""
    return full_like(x, 1, dtype, requires_grad)
