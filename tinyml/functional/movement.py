"""The same elements at other places."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from tinyml import moves
from tinyml.errors import ShapeError
from tinyml.functional.axes import (
    all_whole,
    as_shape,
    resolve_axes,
    resolve_axis,
    whole,
    wrong_type,
)
from tinyml.functional.joining import cat
from tinyml.functional.operands import check_fits
from tinyml.functional.path import Path
from tinyml.functional.steps import composition
from tinyml.lazy import Shape
from tinyml.shape import Spans, replaced, shrunk_shape, spans_along, squeezed_shape

if TYPE_CHECKING:
    from tinyml.tensor import Scalar, Tensor

Padding = Sequence[int] | Sequence[Sequence[int] | None] | int


def reshape(x: Tensor, *shape: Any) -> Tensor:
    """Another shape, row-major; one size may be -1, and None keeps the size x has there."""
    sizes = as_shape(shape)
    if None in sizes:
        sizes = tuple(_kept(x, i, sizes) if n is None else n for i, n in enumerate(sizes))
    sizes = all_whole(sizes, "reshape", "a size")
    if -1 in sizes:
        sizes = _infer(x, sizes)
    return _shaped(x, sizes)


def _shaped(x: Tensor, sizes: Shape) -> Tensor:
    return x if sizes == x._lazy.shape else x._shown(moves.Reshape, sizes)


def _kept(x: Tensor, axis: int, sizes: tuple[Any, ...]) -> int:
    if axis >= x.ndim:
        raise ShapeError(f"reshape: None in {sizes} keeps size {axis} of {x.shape}, which has none")
    return x.shape[axis]


def _infer(x: Tensor, sizes: Shape) -> Shape:
    if sizes.count(-1) > 1:
        raise ShapeError(f"reshape: only one size can be -1, got {sizes}")
    rest = -prod(sizes)
    if rest == 0 or x.numel() % rest:
        raise ShapeError(f"reshape: cannot reshape {x.shape} ({x.numel()} elements) to {sizes}")
    return tuple([x.numel() // rest if n == -1 else n for n in sizes])


def permute(x: Tensor, *order: Any) -> Tensor:
    """Axis i of the result is axis order[i] of x."""
    return _permuted(x, all_whole(as_shape(order), "permute", "axis"))


def _permuted(x: Tensor, order: tuple[int, ...]) -> Tensor:
    axes = _order(order, x._lazy.shape)
    return x if axes is None else x._shown(moves.Permute, axes)


@lru_cache(maxsize=4096)  # the same few orders of the same few shapes
def _order(given: tuple[int, ...], shape: Shape) -> tuple[int, ...] | None:
    """The axes counted from the front; None if each stays where it is."""
    axes = tuple([resolve_axis(a, len(shape), "permute") for a in given])
    if len(axes) != len(shape) or len(set(axes)) != len(shape):
        raise ShapeError(f"permute: order {given} must name each axis of {shape} once")
    return None if axes == tuple(range(len(shape))) else axes


def transpose(x: Tensor, dim0: int = 1, dim1: int = 0) -> Tensor:
    """Two axes exchanged."""
    ndim = len(x._lazy.shape)
    if ndim == 0 and {dim0, dim1} <= {0, -1}:
        return x
    first, second = resolve_axis(dim0, ndim, "transpose"), resolve_axis(dim1, ndim, "transpose")
    order = list(range(ndim))
    order[first], order[second] = second, first
    return _permuted(x, tuple(order))


def expand(x: Tensor, *shape: Any) -> Tensor:
    """Axes of size 1 repeated to `shape`, new axes in front; -1 and None keep a size."""
    given, own = as_shape(shape), x._lazy.shape
    if None in given:
        given = tuple([-1 if n is None else n for n in given])
    sizes = all_whole(given, "expand", "a size")
    if len(sizes) < len(own):
        raise ShapeError(f"expand: cannot expand {own} to {sizes}: it has more axes than that")
    if -1 in sizes:
        padded = (1,) * (len(sizes) - len(own)) + own
        sizes = tuple([o if n == -1 else n for o, n in zip(padded, sizes, strict=True)])
    return x if sizes == own else x._shown(moves.Expand, sizes)


def broadcast_to(x: Tensor, shape: Shape) -> Tensor:
    """x as `shape`, which has no fewer axes; for ops on elements, and so no view."""
    return x if x._lazy.shape == shape else x._apply(moves.Expand(shape))


def reshape_to(x: Tensor, shape: Shape) -> Tensor:
    """x in another shape of as many elements; for compositions, and so no view."""
    return x if x._lazy.shape == shape else x._apply(moves.Reshape(shape))


def along(line: Tensor, axis: int, x: Tensor) -> Tensor:
    """What lies on last axes, as it broadcasts beside x where the last of them is that axis."""
    return reshape_to(line, (*line.shape, *(1,) * (x.ndim - axis - 1)))


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """The axes from start_dim to end_dim as one."""
    start = resolve_axis(start_dim, x.ndim, "flatten")
    end = resolve_axis(end_dim, x.ndim, "flatten")
    shape = x._lazy.shape
    if start > end and x.ndim:
        raise ShapeError(f"flatten: start_dim {start_dim} lies behind end_dim {end_dim} of {shape}")
    middle = prod(shape[start : end + 1])
    return _shaped(x, (*shape[:start], middle, *shape[end + 1 :]))


def unflatten(x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    """One axis as several."""
    dim = resolve_axis(dim, x.ndim, "unflatten")
    if not isinstance(sizes, (tuple, list)):
        raise wrong_type("unflatten", "sizes", "a tuple or list of whole numbers", sizes)
    sizes = tuple(whole(n, "unflatten", "a size") for n in sizes)
    if sizes.count(-1) == 1:
        sizes = _infer(x._full((x.shape[dim],), 0, x.dtype), sizes)
    if prod(sizes) != x.shape[dim]:
        raise ShapeError(f"unflatten: axis {dim} of {x.shape} cannot become {sizes}")
    return reshape(x, (*x.shape[:dim], *sizes, *x.shape[dim + 1 :]))


def squeeze(x: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Without the axes of size 1, or without these if their size is 1."""
    axes = resolve_axes(dim, x.ndim, "squeeze")
    return _shaped(x, squeezed_shape(x._lazy.shape, axes))


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """With a new axis of size 1 at `dim`."""
    shape = x._lazy.shape
    dim = resolve_axis(dim, len(shape) + 1, "unsqueeze")
    return _shaped(x, (*shape[:dim], 1, *shape[dim:]))


def flip(x: Tensor, *axis: Any) -> Tensor:
    """These axes walked backwards."""
    return x._apply(moves.Flip(resolve_axes(as_shape(axis), len(x._lazy.shape), "flip")))


def shrink(x: Tensor, spans: Sequence[Sequence[int] | None]) -> Tensor:
    """Elements start <= i < stop of each axis; None keeps the axis whole."""
    shape = x._lazy.shape
    if not isinstance(spans, (tuple, list)):
        raise wrong_type("shrink", "spans", "one (start, stop) or None per axis", spans)
    if len(spans) != len(shape):
        raise ShapeError(f"shrink: {shape} needs one (start, stop) per axis, got {spans}")
    kept = tuple([(0, n) if s is None else _span(s) for s, n in zip(spans, shape, strict=True)])
    return _cut(x, kept)


def _cut(x: Tensor, spans: Spans) -> Tensor:
    shape = x._lazy.shape
    return x if shrunk_shape(shape, spans) == shape else x._shown(moves.Shrink, spans)


def _span(given: Sequence[int]) -> tuple[int, int]:
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise wrong_type("shrink", "each span", "(start, stop) or None", given)
    start, stop = all_whole(tuple(given), "shrink", "a bound")
    return start, stop


def shrink_to(x: Tensor, *shape: Any) -> Tensor:
    """The first elements of each axis, as many as `shape` says (None: all)."""
    sizes = _sizes_or_none(x, shape, "shrink_to")
    return shrink(x, [None if n is None else (0, n) for n in sizes])


def _sizes_or_none(x: Tensor, shape: tuple[Any, ...], op: str) -> tuple[int | None, ...]:
    """One size per axis of x, or None."""
    sizes = tuple(n if n is None else whole(n, op, "a size") for n in as_shape(shape))
    if len(sizes) != x.ndim:
        raise ShapeError(f"{op}: {x.shape} needs {x.ndim} sizes, got {sizes}")
    return sizes


def pad_to(x: Tensor, *shape: Any) -> Tensor:
    """Zeros behind each axis up to `shape` (None: none)."""
    sizes = _sizes_or_none(x, shape, "pad_to")
    if any(n is not None and n < own for n, own in zip(sizes, x.shape, strict=True)):
        raise ShapeError(f"pad_to: {sizes} is smaller than {x.shape}; shrink_to makes smaller")
    pairs = zip(sizes, x.shape, strict=True)
    return pad_by(x, tuple((0, 0 if n is None else n - own) for n, own in pairs))


def pad_by(x: Tensor, counts: tuple[tuple[int, int], ...], value: Scalar = 0) -> Tensor:
    """`value` added (before, after) each axis; a negative count takes away."""
    if counts and min(map(min, counts)) < 0:
        path = Path(x.shape).pad(counts, value)
        return path.of(x) if path.steps else x._own()
    return x._apply(moves.Pad(counts, value)) if any(map(any, counts)) else x._own()


# ---- padding as users write it ----


def pad(x: Tensor, padding: Padding, mode: str = "constant", value: Scalar = 0.0) -> Tensor:
    """Elements added around x: flat (last axis first, as torch) or ((before, after), ...)."""
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise NotImplementedError(
            f"pad: there is no mode {mode!r}; there are: constant, reflect, replicate, circular"
        )
    counts = _pad_counts(x, padding)
    if mode != "constant":  # there is no value in it
        return _continued(x, counts, mode)
    check_fits("pad", value, x.dtype)
    return pad_by(x, counts, value)


@composition
def _continued(x: Tensor, counts: tuple[tuple[int, int], ...], mode: str) -> Tensor:
    """Padding made of elements of x."""
    for axis, (before, after) in enumerate(counts):
        if before or after:
            x = _pad_axis(x, axis, before, after, mode)
    return x._own()


def _pad_counts(x: Tensor, padding: Padding) -> tuple[tuple[int, int], ...]:
    ndim = len(x._lazy.shape)
    if isinstance(padding, int):
        return ((padding, padding),) * ndim
    if not isinstance(padding, (tuple, list)):
        raise wrong_type("pad", "padding", "counts, or (before, after) pairs", padding)
    if not padding or isinstance(padding[0], int):
        return _flat_counts(x._lazy.shape, all_whole(tuple(padding), "pad", "a count"))
    if len(padding) != ndim:
        raise ShapeError(f"pad: {x.shape} needs {ndim} (before, after) pairs, got {padding}")
    return tuple((0, 0) if p is None else _pair(p) for p in padding)


@lru_cache(maxsize=4096)  # the same few counts of the same few shapes
def _flat_counts(shape: Shape, flat: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    if len(flat) % 2 or len(flat) > 2 * len(shape):
        raise ShapeError(
            f"pad: flat padding of {shape} is an even number of values, at most {2 * len(shape)} "
            f"(last axis first), got {flat}"
        )
    pairs = tuple(zip(flat[-2::-2], flat[::-2], strict=True))
    return ((0, 0),) * (len(shape) - len(pairs)) + pairs


def _pair(given: Any) -> tuple[int, int]:
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise wrong_type("pad", "each count", "a whole number or a (before, after) pair", given)
    return whole(given[0], "pad", "a count"), whole(given[1], "pad", "a count")


def _pad_axis(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    n = x.shape[axis]
    if mode == "reflect" and max(before, after) >= n:
        raise ShapeError(
            f"pad: reflect padding {(before, after)} is larger than axis {axis} of {x.shape} allows"
        )
    front, back = max(before, 0), max(after, 0)
    left = n - max(0, -before) - max(0, -after)
    if mode == "circular" and max(front, back) > left:
        raise NotImplementedError(
            f"pad: circular padding {(before, after)} of axis {axis} of {x.shape} goes around more "
            f"than once: {max(left, 0)} elements are left to repeat"
        )
    middle = part(x, axis, max(0, -before), n - max(0, -after))
    first, last = _margins(x, middle, axis, (front, back), mode)
    pieces = [*([first] if front else []), middle, *([last] if back else [])]
    return cat(pieces[0], *pieces[1:], dim=axis) if len(pieces) > 1 else middle


def _margins(
    x: Tensor, middle: Tensor, axis: int, counts: tuple[int, int], mode: str
) -> tuple[Tensor, Tensor]:
    """What comes before and after the middle."""
    n, m = x.shape[axis], middle.shape[axis]
    front, back = counts
    if mode == "reflect":
        before, after = part(x, axis, 1, front + 1), part(x, axis, n - 1 - back, n - 1)
        return before.flip(axis), after.flip(axis)
    if mode == "replicate":
        before, after = part(x, axis, 0, 1), part(x, axis, n - 1, n)
        front_shape, back_shape = (replaced(x.shape, axis, count) for count in counts)
        return broadcast_to(before, front_shape), broadcast_to(after, back_shape)
    return part(middle, axis, m - front, m), part(middle, axis, 0, back)


def part(x: Tensor, axis: int, start: int, stop: int) -> Tensor:
    """Elements start <= i < stop of one axis."""
    return _cut(x, spans_along(x._lazy.shape, axis, start, stop))


def pad_axis(x: Tensor, axis: int, before: int, after: int, value: Scalar = 0) -> Tensor:
    """`value` added before and after one axis."""
    return pad_by(x, replaced(((0, 0),) * x.ndim, axis, (before, after)), value)


@composition
def unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    """Windows of `size` along `dim`, `step` apart, as a new last axis.

    Values of their own, unlike in torch: what is assigned to the windows does not go into x.
    """
    dim = resolve_axis(dim, x.ndim, "unfold")
    size, step = whole(size, "unfold", "size"), whole(step, "unfold", "step")
    if size < 0 or step <= 0 or size > (x.shape[dim] if x.ndim else 1):
        raise ShapeError(
            f"unfold: no windows of {size} in steps of {step} along {dim} of {x.shape}"
        )
    if not x.ndim:
        return reshape(x, (1,) if size else (0,))
    order = list(range(x.ndim - 1))
    path = Path(x.shape).permute([a for a in range(x.ndim) if a != dim] + [dim])
    path = path.windows((size,), (step,), (1,))
    return path.permute([*order[:dim], x.ndim - 1, *order[dim:], x.ndim]).of(x)


# ---- splitting ----


def split(x: Tensor, sizes: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Pieces of `sizes` along `dim`; the last may be smaller if sizes is one number."""
    shape = x._lazy.shape
    dim = resolve_axis(dim, len(shape), "split")
    if not isinstance(sizes, (tuple, list)):
        boxes = _pieces(shape, whole(sizes, "split", "a size"), dim)
    else:
        boxes = _pieces(shape, all_whole(tuple(sizes), "split", "a size"), dim)
    return tuple([_cut(x, box) for box in boxes])


@lru_cache(maxsize=4096)  # the same few sizes of the same few shapes
def _pieces(shape: Shape, sizes: int | tuple[int, ...], dim: int) -> tuple[Spans, ...]:
    """What each piece is cut out by."""
    n = shape[dim]
    if isinstance(sizes, int):
        sizes = tuple([min(sizes, n - i) for i in range(0, max(n, 1), max(sizes, 1))])
    if min(sizes, default=0) < 0:
        raise ShapeError(f"split: a size cannot be negative, got {min(sizes)}")
    if sum(sizes) != n:
        raise ShapeError(f"split: sizes {list(sizes)} do not add up to {n}, axis {dim} of {shape}")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple([spans_along(shape, dim, s, s + k) for s, k in zip(starts, sizes, strict=True)])


def unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """What x holds at each place along `dim`, without that axis."""
    dim = resolve_axis(dim, x.ndim, "unbind")
    before = (slice(None),) * dim
    places = [(*before, i) for i in range(x.shape[dim])]
    return tuple([x[place] for place in places])


def chunk(x: Tensor, n: int, dim: int = 0) -> list[Tensor]:
    """At most n pieces of equal size (the last may be smaller) along `dim`."""
    if whole(n, "chunk", "the number of chunks") <= 0:
        raise ShapeError(f"chunk: the number of chunks must be positive, got {n}")
    dim = resolve_axis(dim, x.ndim, "chunk")
    size = -(-x.shape[dim] // n)
    return list(split(x, size if size else [0] * n, dim))


# ---- repeating ----


@composition
def repeat(x: Tensor, *counts: Any) -> Tensor:
    """x this many times along each axis."""
    times = tuple(whole(n, "repeat", "a count") for n in as_shape(counts))
    if any(n < 0 for n in times):
        raise ShapeError(f"repeat: a count cannot be negative, got {times}")
    base = (1,) * (len(times) - x.ndim) + x.shape
    if len(times) < x.ndim:
        raise ShapeError(f"repeat: {x.shape} needs at least {x.ndim} counts, got {times}")
    pairs = list(zip(times, base, strict=True))
    x = reshape(x, [m for n in base for m in (1, n)])
    x = broadcast_to(x, tuple(m for pair in pairs for m in pair))
    return reshape(x, tuple(t * n for t, n in pairs))._own()


@composition
def roll(x: Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Tensor:
    """Elements moved along `dims`, coming in again at the other end."""
    if dims is None:
        return reshape(roll(reshape(x, (x.numel(),)), shifts, 0), x.shape)._own()
    given = shifts if isinstance(shifts, (tuple, list)) else (shifts,)
    moves = tuple(whole(move, "roll", "a shift") for move in given)
    axes = tuple(dims) if isinstance(dims, (tuple, list)) else (dims,)
    if len(moves) != len(axes):
        raise ShapeError(f"roll: shifts {moves} and dims {axes} differ in length")
    for move, given in zip(moves, axes, strict=True):
        axis = resolve_axis(given, x.ndim, "roll")
        n = x.shape[axis] if x.ndim else 0
        cut = -move % n if n else 0
        if cut:
            back, front = split(x, [cut, n - cut], axis)
            x = cat(front, back, dim=axis)
    return x._own()
