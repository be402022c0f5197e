"""Elements chosen by position: slices, tensors of indices, and their inverse.

Slices are movements. Tensors of indices become one gather: the axes they index are flattened
into one, and so are the indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tinyml import moves
from tinyml.dtype import bool_, index_dtype
from tinyml.dtypes import dtypes
from tinyml.errors import DTypeError, ShapeError
from tinyml.frozen import dataclass
from tinyml.functional.axes import check_tensors, is_tensor, resolve_axis, whole, wrong_type
from tinyml.functional.bounded import classes, wrapped
from tinyml.functional.movement import along, pad_by
from tinyml.functional.operands import check_fits
from tinyml.functional.path import Path
from tinyml.functional.steps import composition
from tinyml.functional.subscript import (
    Part,
    as_slices,
    box_of,
    choice_of,
    choose,
    is_advanced,
    is_new,
    items_from,
    items_of,
    key_of,
    parse,
    placed_choice,
    placed_on,
)
from tinyml.functional.values import to_write
from tinyml.functional.views import follow, placed, shows
from tinyml.ops import Op
from tinyml.shape import broadcast_shape

if TYPE_CHECKING:
    from tinyml.tensor import Scalar, Tensor


# ---- __getitem__ ----


def getitem(x: Tensor, index: Any) -> Tensor:
    """x[index]."""
    shape, (key, indices) = x._lazy.shape, key_of(index, type(x))
    if key is None:
        parts = parse(x, index)
        if not is_advanced(parts):
            return _shown(x, box_of(shape, parts), _Indexed(tuple(parts)))
        slices = as_slices(parts)
        if slices is not None and (taken := box_of(shape, slices).of(x)) is not x:
            return taken  # no view: who writes to it writes to a copy
        given = [p for p in parts if p.index is not None]
        indices = [p.index if p.kind == "tensor" else x._arange(p.stop) for p in given]
        box, choice = choice_of(shape, parts)
    elif not indices:
        return _shown(x, *_plain(shape, key))
    else:
        for tensor in indices:
            check_tensors("index", x, index=tensor)
        box, choice = placed_choice(shape, key)
    return choose(box.of(x), choice, indices)


@lru_cache(maxsize=4096)  # loops index the same few shapes at the same few places
def _plain(shape: tuple[int, ...], key: tuple[Any, ...]) -> tuple[Path, _Indexed]:
    """An index without tensors, as what it does to this shape, and as a view."""
    parts = placed_on(shape, items_from(key))
    return box_of(shape, parts), _Indexed(tuple(parts))


def _shown(x: Tensor, box: Path, move: _Indexed) -> Tensor:
    """A box of x as a view of it."""
    chosen = box.of(x)
    return follow(chosen, x, move) if chosen is not x else x


@dataclass(frozen=True)
class _Indexed:
    """What slices and integers choose: a views.Move."""

    parts: tuple[Part, ...]

    def read(self, x: Tensor) -> Tensor:
        return _shown(x, box_of(x.shape, self.parts), self)

    def write(self, old: Tensor, value: Tensor) -> Tensor:
        return _set_box(old, self.parts, value)


# ---- __setitem__ ----


def setitem(x: Tensor, index: Any, value: Any) -> None:
    """x[index] = value, as a new version of x.

    Nothing is read on the host, except for a mask on a device with one value per chosen element, or
    beside tensors of indices: a JitError while TinyJit captures, where mask.where(value, x) does.
    """
    source = to_write("setitem", x, value).cast(x.dtype)
    if (masked := _masked(x, index, source)) is not None:
        x.assign(masked.where(source.reshape(()), x._before_assignment()))
        return
    parts = parse(x, index)
    if is_tensor(value) and shows(value, x, _Indexed(tuple(parts))):
        return  # x[index] op= y has changed x through the view x[index] already
    old = x._before_assignment()
    if is_advanced(parts):
        x.assign(_set_places(old, index, parts, source))
    else:
        x.assign(_set_box(old, parts, source))


def _masked(x: Tensor, index: Any, source: Tensor) -> Tensor | None:
    """Where x[index] = source writes, for an index of slices and one mask, and one number."""
    items = [_mask(x, item) for item in items_of(index)]
    masks = [i for i in items if is_tensor(i) and i.dtype is bool_]
    others = [i for i in items if not (i is Ellipsis or is_new(i) or isinstance(i, (int, slice)))]
    if source.numel() != 1 or len(masks) != 1 or len(others) != 1:
        return None
    mask = masks[0]
    at = next(n for n, item in enumerate(items) if item is mask)
    whole: list[Any] = [slice(None)] * mask.ndim
    parts = parse(x, (*items[:at], *whole, *items[at + 1 :]))
    first = _axis_of(x, items, at, mask.ndim)
    if mask.shape != x.shape[first : first + mask.ndim]:
        raise IndexError(f"a mask of {mask.shape} does not fit {x.shape} at axis {first}")
    after = (1,) * (x.ndim - first - mask.ndim)
    here = mask.reshape((*mask.shape, *after))._broadcast_to(x.shape)
    box = _set_box(x._full(x.shape, False, bool_), parts, x._full((), True, bool_))
    return box & here


def _mask(x: Tensor, item: Any) -> Any:
    """A mask of the host as a tensor; anything else as it is."""
    if isinstance(item, np.ndarray) and item.dtype == np.bool_:
        return type(x)(item, x.device)
    if isinstance(item, (list, tuple)) and item and all(isinstance(v, bool) for v in item):
        return type(x)(np.array(item), x.device)
    return item


def _axis_of(x: Tensor, items: list[Any], at: int, ndim: int) -> int:
    """The axis of x at which the mask, the item number `at`, begins."""
    counts = [0 if i is Ellipsis or is_new(i) else 1 for i in items]
    dots = [n for n, i in enumerate(items) if i is Ellipsis and n < at]
    if dots:
        return x.ndim - sum(counts[at + 1 :]) - ndim
    return sum(counts[:at])


def _shape_of_value(source: Tensor, shape: tuple[int, ...]) -> Tensor:
    while source.ndim > len(shape) and source.shape[0] == 1:
        source = source.reshape(source.shape[1:])
    if broadcast_shape("setitem", source.shape, shape) != shape:
        raise ShapeError(f"setitem: a value of {source.shape} does not fit into {shape}")
    return source._broadcast_to(shape)


def _set_box(x: Tensor, parts: Sequence[Part], source: Tensor) -> Tensor:
    """Where the slices reach, `source`; elsewhere x."""
    box = box_of(x.shape, parts)
    if not prod(box.shape):
        return x
    return placed(moves.Path(box.steps), x, _shape_of_value(source, box.shape))


def _set_places(x: Tensor, index: Any, parts: Sequence[Part], source: Tensor) -> Tensor:
    """Lines of x where one axis is indexed; else the flat elements that x[index] would read."""
    tensors = [a for a, p in enumerate(parts) if p.kind == "tensor"]
    if len(parts) == x.ndim and len(tensors) == 1:
        (axis,) = tensors
        others = [(p, n) for a, (p, n) in enumerate(zip(parts, x.shape, strict=True)) if a != axis]
        if all(p == Part("slice", 0, n) for p, n in others):
            return _set_lines(x, axis, parts[axis].index, source)
    places = getitem(x._arange(x.numel()).reshape(x.shape), index)
    source = _shape_of_value(source, places.shape).reshape(-1)
    flat, places = x.reshape((x.numel(),)), places.reshape(-1)
    if all(parts[a].index.numel() == 1 for a in tensors):
        return flat._apply(moves.Scatter(0, None), places, source).reshape(x.shape)
    return scatter(flat, 0, places, source).reshape(x.shape)


def _set_lines(x: Tensor, axis: int, place: Tensor, value: Tensor) -> Tensor:
    """x with `value` at some places along an axis, the last one where they are several."""
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    lines = (*before, place.numel(), *after)
    source = _shape_of_value(value, (*before, *place.shape, *after)).reshape(lines)
    if not source.numel():
        return x
    found = x._of(wrapped(place.lazy, size, f"axis {axis} of {x.shape}")).reshape(-1)
    line = (-1, *(1 for _ in after))
    if value.numel() > 1 < place.numel():
        turns = x._arange(place.numel())
        none = x._full((size,), -1, turns.dtype)
        last = _gather(none._apply(moves.Scatter(0, Op.MAX), found, turns), 0, found)
        rows = last.reshape(line)._broadcast_to(lines)
        source = (last == turns).reshape(line).where(source, _gather(source.detach(), axis, rows))
    rows = found.reshape(line)._broadcast_to(lines)
    return x._apply(moves.Scatter(axis, None), rows, source)


# ---- gather and scatter along an axis ----


def _gather(x: Tensor, axis: int, index: Tensor) -> Tensor:
    """The primitive: shapes agree on all other axes, indices are in range."""
    return x._apply(moves.Gather(axis), index)


@composition
def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """out[i][j] = x[index[i][j]][j] for dim 0, and so on; a number is a row of one.

    As in torch, an index without elements may have any shape, here and in `scatter`.
    """
    check_tensors("gather", x, index=index)
    if not x.ndim or not index.ndim:
        return gather(_row(x), dim, _row(index)).reshape(index.shape)
    nothing = _with_axes(x, index)
    if nothing is not index:
        return gather(x, dim, nothing).reshape(index.shape)
    _check_ranks("gather", x, index)
    dim = resolve_axis(dim, x.ndim, "gather")
    _check_room("gather", x, dim, index)
    if any(i > n for a, (i, n) in enumerate(zip(index.shape, x.shape, strict=True)) if a != dim):
        raise ShapeError(f"gather: index {index.shape} is larger than {x.shape} beside axis {dim}")
    shape, pairs = x.shape, zip(index.shape, x.shape, strict=True)
    x = x.shrink([(0, n if a == dim else i) for a, (i, n) in enumerate(pairs)])
    place = f"axis {dim} of {shape} (gather)"
    return _gather(x, dim, x._of(wrapped(index.lazy, x.shape[dim], place)))


def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """What x holds at the places `index` along `dim`; `index` has one axis, or is a number."""
    check_tensors("index_select", x, index=index)
    dim = resolve_axis(dim, x.ndim, "index_select")
    if index.ndim > 1 or not index.dtype.is_int:
        raise DTypeError(
            f"index_select: the index is integers along one axis, got {index.dtype} {index.shape}"
        )
    picked = _row(x)[(slice(None),) * dim + (index.reshape(-1),)]
    return picked if x.ndim else picked.reshape(())


def _row(x: Tensor) -> Tensor:
    """A number as a row of one."""
    return x if x.ndim else x.reshape((1,))


def _with_axes(x: Tensor, index: Tensor) -> Tensor:
    """An index; one without elements, whose shape nothing depends on, with as many axes as x."""
    fits = x.ndim == index.ndim or index.numel() or not x.ndim
    return index if fits else index.reshape((0,) * x.ndim)


def _check_ranks(op: str, x: Tensor, index: Tensor) -> None:
    check_tensors(op, x, index=index)
    if not index.dtype.is_int:
        raise DTypeError(f"{op}: indices are integers, got {index.dtype}")
    _check_same_rank(op, x, index)


def _check_same_rank(op: str, x: Tensor, index: Tensor) -> None:
    if x.ndim != index.ndim:
        raise ShapeError(f"{op}: {x.shape} and index {index.shape} must have as many axes")


def _check_room(op: str, x: Tensor, dim: int, index: Tensor) -> None:
    if not x.shape[dim] and index.numel():
        raise IndexError(f"{op}: index out of bounds: axis {dim} of {x.shape} is empty")


_NOTHING: dict[str, Any] = {"sum": 0, "mean": 0, "prod": 1}
_COMBINED = {"prod": Op.MUL, "amax": Op.MAX, "amin": Op.MIN}  # all else is added up


@composition
def scatter(
    x: Tensor, dim: int, index: Tensor, src: Tensor | Scalar, reduce: str | None = None
) -> Tensor:
    """x, with x[index[i][j]][j] = src[i][j] for dim 0; or += or *= with reduce.

    Where several go to one place the last one stays. A number is a row of one.
    """
    if reduce not in (None, "add", "multiply"):
        raise TypeError(f'scatter: reduce is None, "add" or "multiply", got {reduce!r}')
    check_tensors("scatter", x, index=index)
    if not (is_tensor(src) or isinstance(src, (bool, int, float))):
        raise wrong_type("scatter", "src", "a Tensor or a number", src)
    index = _with_axes(x, index)
    source: Any = src if is_tensor(src) else None
    if source is None:
        number: Any = src
        check_fits("scatter", number, x.dtype)
        source = x._full(index.shape, number, x.dtype)
    if reduce is not None:
        return _combined("scatter", x, dim, index, source, "sum" if reduce == "add" else "prod")
    if not (x.ndim and index.ndim and source.ndim):
        return scatter(_row(x), dim, _row(index), _row(source)).reshape(x.shape)
    dim, index, source = _aligned("scatter", x, dim, index, source)
    if index.shape == (*x.shape[:dim], 1, *x.shape[dim + 1 :]):
        return x._apply(moves.Scatter(dim, None), index, source)
    place = along(x._arange(source.shape[dim]), dim, x)._broadcast_to(source.shape)
    place, index_full = _filled(x, dim, place, index, -1)
    none = x._full(x.shape, -1, place.dtype)
    winner = none._apply(moves.Scatter(dim, Op.MAX), index_full, place)  # the last one
    source, _ = _filled(x, dim, source, index, 0)
    if not source.shape[dim]:
        return x._own()
    return (winner >= 0).where(_gather(source, dim, winner.maximum(0)), x)


def _aligned(
    op: str, x: Tensor, dim: int, index: Tensor, source: Tensor
) -> tuple[int, Tensor, Tensor]:
    """The axis, indices counted from the front, and as much of the source as is indexed."""
    _check_ranks(op, x, index)
    check_tensors(op, x, src=source)
    _check_same_rank(op, source, index)
    dim = resolve_axis(dim, x.ndim, op)
    if x.ndim:
        _check_room(op, x, dim, index)
    if source.dtype is not x.dtype:
        raise DTypeError(f"{op}: a source of {source.dtype} does not go into {x.dtype}; cast it")
    for a, (i, n, m) in enumerate(zip(index.shape, x.shape, source.shape, strict=True)):
        if i > m or (a != dim and i > n):
            raise ShapeError(
                f"{op}: index {index.shape} must not be larger than the source {source.shape}, nor "
                f"than {x.shape} beside axis {dim}"
            )
    places = wrapped(index.lazy, x.shape[dim], f"axis {dim} of {x.shape} ({op})")
    return dim, x._of(places), source.shrink([(0, i) for i in index.shape])


def _filled(
    x: Tensor, dim: int, source: Tensor, index: Tensor, value: Scalar
) -> tuple[Tensor, Tensor]:
    """Source and index grown to the other axes of x, with a value that changes nothing."""
    sizes = zip(source.shape, x.shape, strict=True)
    counts = tuple((0, 0 if a == dim else n - m) for a, (m, n) in enumerate(sizes))
    return pad_by(source, counts, value), pad_by(index, counts)


@composition
def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    """x combined with src at the indices: "sum", "prod", "mean", "amax" or "amin"."""
    if reduce not in ("sum", "prod", "mean", "amax", "amin"):
        raise RuntimeError(f"scatter_reduce: there is no {reduce!r}; sum, prod, mean, amax, amin")
    check_tensors("scatter_reduce", x, index=index, src=src)
    if reduce == "mean" and x.dtype is bool_:
        raise DTypeError('scatter_reduce: bools have no "mean"; cast them')
    return _combined("scatter_reduce", x, dim, _with_axes(x, index), src, reduce, include_self)


def _combined(
    op: str, x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True
) -> Tensor:
    if not (x.ndim and index.ndim and src.ndim):
        rows = _combined(op, _row(x), dim, _row(index), _row(src), reduce, include_self)
        return rows.reshape(x.shape)
    dim, index, source = _aligned(op, x, dim, index, src)
    extremes = {"amax": x.dtype.min, "amin": x.dtype.max}
    nothing = extremes[reduce] if reduce in extremes else _NOTHING[reduce]
    source, places = _filled(x, dim, source, index, nothing)
    ones, _ = _filled(x, dim, x._full(index.shape, 1, x.dtype), index, 0)
    count = x.zeros_like()._apply(moves.Scatter(dim, Op.ADD), places, ones)
    base = x if include_self else (count > 0).where(x._full((), nothing, x.dtype), x)
    join = _COMBINED.get(reduce, Op.ADD)
    total = base._apply(moves.Scatter(dim, join), places, source)
    if reduce != "mean":
        return total
    number = (count + 1 if include_self else count).maximum(1)
    return total.div(number, rounding_mode=None if x.dtype.is_float else "floor")


# ---- repeats, masks and classes ----


def repeat_interleave(x: Tensor, repeats: int | Tensor, dim: int | None = None) -> Tensor:
    """Each element this many times in a row; without dim, of x flattened.

    A Tensor says it for each element along dim, and is read on the host: the shape depends on it.
    """
    if not isinstance(repeats, int) and is_tensor(repeats):
        return _repeat_each(x, repeats, dim)
    times = whole(repeats, "repeat_interleave", "repeats")
    if times < 0:
        raise ShapeError(f"repeat_interleave: repeats cannot be negative, got {repeats}")
    if dim is None:
        x, dim = x.reshape((x.numel(),)), 0
    dim = resolve_axis(dim, x.ndim, "repeat_interleave")
    before, after = x.shape[: dim + 1], x.shape[dim + 1 :]
    spread = x.reshape((*before, 1, *after))._broadcast_to((*before, times, *after))
    return spread.reshape((*before[:-1], before[-1] * times, *after))._own()


def _repeat_each(x: Tensor, repeats: Tensor, dim: int | None) -> Tensor:
    check_tensors("repeat_interleave", x, repeats=repeats)
    if not repeats.dtype.is_int:
        raise DTypeError(f"repeat_interleave: repeats are integers, got {repeats.dtype}")
    if dim is None or not x.ndim:
        x, dim = x.reshape((x.numel(),)), 0
    dim = resolve_axis(dim, x.ndim, "repeat_interleave")
    n = x.shape[dim]
    if repeats.ndim > 1 or repeats.numel() not in (1, n):
        raise ShapeError(
            f"repeat_interleave: repeats are one number, or {n} for axis {dim} of {x.shape}, and "
            f"not of shape {repeats.shape}"
        )
    times = repeats.numpy().reshape(-1)
    if (times < 0).any():
        raise ShapeError(f"repeat_interleave: repeats cannot be negative, got {times.min()}")
    places = np.repeat(np.arange(n), times if len(times) == n else times[0])
    return getitem(x, (*(slice(None) for _ in range(dim)), type(x)(places, x.device)))


def masked_select(x: Tensor, mask: Tensor) -> Tensor:
    """The elements where the mask holds; how many there are is read on the host."""
    check_tensors("masked_select", x, mask=mask)
    shape = broadcast_shape("masked_select", x.shape, mask.shape)
    (places,) = np.nonzero(mask._broadcast_to(shape).numpy().reshape(-1))
    index = type(x)(places.astype(np.int64), x.device)
    return getitem(x._broadcast_to(shape).reshape(-1), index)


def nonzero(x: Tensor) -> Tensor:
    """The positions of elements that are not zero, one row each; read on the host."""
    places = np.argwhere(x.numpy())
    return type(x)(places.astype(index_dtype(max(x.shape, default=0)).storage), x.device)


def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """1 at the index, 0 elsewhere, along a new last axis."""
    if not x.dtype.is_int:
        raise DTypeError(f"one_hot: classes are integers, got {x.dtype}")
    if whole(num_classes, "one_hot", "num_classes") == -1:
        num_classes = int(x.max().item()) + 1
    return _one_hot(x, num_classes)


@composition
def _one_hot(x: Tensor, num_classes: int) -> Tensor:
    places = x._arange(num_classes)
    chosen = classes("one_hot", x, num_classes).cast(places.dtype).unsqueeze(-1)
    return (chosen == places).cast(dtypes.default_int)
