"""What stands in the brackets of x[...]: one part per axis, and what the parts do to a shape.

    index  ::= int | slice | None | ... | mask | integer tensor | a tuple of these
    choice ::= Choice(shape of what is chosen from, indexed axes, shape of the indices, ...)

A choice is of elements at places that tensors of indices name, as one step: the indexed axes are
flattened into one and so are the indices; then it is one gather. What depends on shapes alone is
worked out once for each index that programs write.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tinyml import lazy, mlops, moves
from tinyml.dtype import bool_, index_dtype
from tinyml.errors import AxisError
from tinyml.frozen import dataclass, replace
from tinyml.functional.axes import check_tensors, is_tensor
from tinyml.functional.bounded import wrapped
from tinyml.functional.path import Path
from tinyml.functional.steps import composition
from tinyml.lazy import LazyBuffer, Shape
from tinyml.ops import Op
from tinyml.shape import broadcast_shape, inverse_order

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


class Places(NamedTuple):
    """What stands for a tensor of indices where only its shape matters."""

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """What an index says about one axis of the source (or about a new axis)."""

    kind: str  # "int", "slice", "new", "tensor"; before it is placed, "mask" or "list" too
    start: int = 0
    stop: int = 1
    step: int = 1
    index: Any = None  # the Tensor of a "tensor"; the bool that a "new" stands for, if it does
    run: Part | None = None  # the slice that has the elements of a list


def parse(x: Tensor, index: Any) -> list[Part]:
    return placed_on(x.shape, [g for item in items_of(index) for g in _expanded(x, item)])


def placed_on(shape: tuple[int, ...], given: list[Any]) -> list[Part]:
    """One part for each axis, and for each new one."""
    ndim = len(shape)
    if sum(item is Ellipsis for item in given) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    counted = sum(not (item is Ellipsis or is_new(item)) for item in given)
    if counted > ndim:
        raise IndexError(f"too many indices ({counted}) for a tensor of shape {shape}")
    rest: list[Any] = [slice(None)] * (ndim - counted)
    at = next((i for i, item in enumerate(given) if item is Ellipsis), len(given))
    given[at : at + 1] = rest
    parts, axis = [], 0
    for item in given:
        if is_new(item):  # a bool is a mask of no axes: none or one
            parts.append(Part("new", stop=1 if item is None else int(item), index=item))
            continue
        parts.append(_part(shape, item, axis))
        axis += 1
    return parts


def items_of(index: Any) -> list[Any]:
    """One item per axis or more; a list of more than numbers stands for a tuple, as in torch."""
    if isinstance(index, list) and not all(isinstance(i, (int, float, np.generic)) for i in index):
        return index
    return list(index) if isinstance(index, tuple) else [index]


def is_new(item: Any) -> bool:
    """Whether an item stands for a new axis; a bool is a mask of no axes, and chooses 0 or 1."""
    return item is None or isinstance(item, (bool, np.bool_))


def _expanded(x: Tensor, item: Any) -> list[Any]:
    """Masks as tensors of indices, lists as tensors; everything else as it is."""
    if isinstance(item, (list, tuple, range, np.ndarray)):
        item = _from_host(x, item)
    if isinstance(item, np.ndarray) and item.dtype.kind != "b":
        least, most = int(item.min(initial=0)), int(item.max(initial=-1))
        made = type(x)(item.astype(np.int64), x.device)
        part = Part("list", least, most + 1, index=made, run=_run(item))
        return [part if item.ndim else int(item)]
    mask = item if isinstance(item, np.ndarray) else None
    if is_tensor(item):
        check_tensors("index", x, index=item)
        mask = item.numpy() if item.dtype is bool_ else None
    if mask is not None and not mask.ndim:
        return [bool(mask)]
    if mask is not None:
        found = [type(x)(p.astype(np.int64), x.device) for p in np.nonzero(mask)]
        return [Part("mask", stop=n, index=p) for n, p in zip(mask.shape, found, strict=True)]
    return [item]


def _run(listed: np.ndarray[Any, Any]) -> Part | None:
    """The elements of a list as a slice, if they lie at even distances.

    Of two only neighbours: others differ from call to call, and would be compiled each time.
    """
    if listed.ndim != 1 or not listed.size or int(listed.min()) < 0 <= int(listed.max()):
        return None
    step, *others = {*np.diff(listed).tolist()} or {1}
    if others or not step or (listed.size == 2 and abs(step) != 1):
        return None
    return Part("slice", int(listed.min()), int(listed.max()) + 1, int(step))


def _from_host(x: Tensor, item: Any) -> Any:
    """What a list holds as an array, or as a tensor where it holds tensors."""
    if isinstance(item, (list, tuple)) and not _only_numbers(item):
        if not _only_numbers(item, or_tensors=True):
            raise IndexError(f"an index holds integers, got {item!r}")
        parts = [_from_host(x, v) if isinstance(v, (list, tuple)) else v for v in item]
        parts = [p if is_tensor(p) else type(x)(p, x.device) for p in parts]
        return parts[0].stack(*parts[1:])
    values = np.asarray(item) if np.size(item) else np.zeros(np.shape(item), np.int32)
    if values.dtype.kind not in "iub":
        raise IndexError(f"an index holds integers, got {values.dtype}: {item!r}")
    return values


def _only_numbers(item: Any, or_tensors: bool = False) -> bool:
    if isinstance(item, (list, tuple)):
        return all(_only_numbers(v, or_tensors) for v in item)
    return isinstance(item, (int, np.integer)) or (or_tensors and is_tensor(item))


def is_advanced(parts: Sequence[Part]) -> bool:
    """Whether an index holds tensors, or bools that broadcast together as if they were."""
    given = [p.kind for p in parts if p.index is not None]
    return "tensor" in given or len(given) > 1


def as_slices(parts: Sequence[Part]) -> list[Part] | None:
    """The same without a list, if its elements are a slice and no other index meets it."""
    given = [p for p in parts if p.index is not None]
    return [p.run or p for p in parts] if len(given) == 1 and given[0].run else None


def _part(shape: tuple[int, ...], item: Any, axis: int) -> Part:
    n = shape[axis]
    if isinstance(item, Part):
        if item.kind == "mask" and item.stop != n:
            raise IndexError(f"a mask of size {item.stop} does not fit axis {axis} of {shape}")
        if item.kind == "list" and not -n <= item.start <= item.stop <= n:
            wrong = item.start if item.start < -n else item.stop - 1
            raise IndexError(f"index {wrong} is out of bounds for axis {axis} of {shape}")
        run = item.run and replace(item.run, start=item.run.start % n, stop=item.run.stop % n or n)
        return Part("tensor", index=item.index, run=run)
    if isinstance(item, slice):
        return _slice(item, n)
    if isinstance(item, Places):
        return Part("tensor", index=item)
    if is_tensor(item):
        if not item.dtype.is_int:
            raise IndexError(f"an index is a tensor of integers, got {item.dtype}")
        return Part("tensor", index=item)
    if not hasattr(item, "__index__"):
        raise IndexError(
            f"an index is an int, slice, None, ..., list or integer Tensor; got {item!r}"
        )
    place = int(item)
    if not -n <= place < n:
        raise IndexError(f"index {place} is out of bounds for axis {axis} of {shape}")
    place %= n
    return Part("int", place, place + 1)


def _slice(item: slice, n: int) -> Part:
    for bound in (item.start, item.stop, item.step):
        if bound is not None and not isinstance(bound, (int, np.integer)):
            raise TypeError(
                f"a slice is made of integers or None, not of {type(bound).__name__}: a shape does "
                "not depend on values. x[i] takes a Tensor i, x[i + Tensor.arange(n)] n from there"
            )
    start, stop, step = item.indices(n)  # ValueError if the step is 0
    count = len(range(start, stop, step))
    if not count:
        return Part("slice", 0, 0)
    if step < 0:
        start, stop = start + (count - 1) * step, start + 1
    else:
        stop = start + (count - 1) * step + 1
    return Part("slice", start, stop, step)


def key_of(index: Any, kind: type[Tensor]) -> tuple[tuple[Any, ...] | None, list[Tensor]]:
    """An index of ints, slices, None, dots and tensors of ints as something to look up, and the
    tensors in it. The first is None if it holds others."""
    key: list[Any] = []
    tensors: list[Tensor] = []
    for item in index if type(index) is tuple else (index,):
        if type(item) is slice:
            item = (item.start, item.stop, item.step)
            for bound in item:
                if bound is not None and type(bound) is not int:
                    return None, tensors
        elif type(item) is kind and item._lazy.dtype.is_int:
            tensors.append(item)
            item = Places(item._lazy.shape)
        elif type(item) is not int and item is not None and item is not Ellipsis:
            return None, tensors
        key.append(item)
    return tuple(key), tensors


def items_from(key: tuple[Any, ...]) -> list[Any]:
    """The items that a key was made of."""
    return [slice(*item) if type(item) is tuple else item for item in key]


def box_of(shape: tuple[int, ...], parts: Sequence[Part]) -> Path:
    """What slices, integers and new axes do to a shape; axes with tensors stay whole."""
    axes = [p for p in parts if p.kind != "new"]
    pairs = zip(axes, shape, strict=True)
    spans = tuple([(0, n) if p.kind == "tensor" else (p.start, p.stop) for p, n in pairs])
    path = Path(shape).shrink(spans)
    path = path.flip(tuple([i for i, p in enumerate(axes) if p.step < 0]))
    for i, p in enumerate(axes):
        path = path.every(i, abs(p.step)) if path.shape[i] else path
    left = iter(path.shape)
    placed = [(p, 1 if p.kind == "new" else next(left)) for p in parts]
    kept = [(p, n) for p, n in placed if p.kind != "int"]
    path = path.reshape(tuple([n for _, n in kept]))  # a bool that is false leaves nothing
    return path.shrink(tuple([(0, p.stop if p.kind == "new" else n) for p, n in kept]))


# ---- what tensors of indices choose ----


@dataclass(frozen=True)
class Choice:
    """Which axes are indexed, by indices of which shape, and where the chosen ones go."""

    order: Shape  # the indexed axes, then the others
    sizes: Shape  # of the indexed axes
    rest: Shape  # the sizes of the others
    names: tuple[str, ...]  # what the indexed axes are called
    shape: Shape  # that the indices broadcast to
    places: Shape  # the order in which the axes of the result belong

    def rows(self, indices: Sequence[LazyBuffer]) -> LazyBuffer:
        """The rows of the table that are chosen, one for each element of them."""
        wide, flat = index_dtype(prod(self.sizes)), None
        for i, (index, size, name) in enumerate(zip(indices, self.sizes, self.names, strict=True)):
            place = lazy.cast(wrapped(index, size, name), wide)
            if i + 1 < len(self.sizes):
                step = lazy.const_like(place, prod(self.sizes[i + 1 :]))
                place = lazy.map_(Op.MUL, place, step)
            flat = place if flat is None else lazy.map_(Op.ADD, flat, place)
        assert flat is not None
        count = prod(self.shape)
        rows = lazy.reshape(lazy.broadcast(flat, self.shape), (count, *(1 for _ in self.rest)))
        return lazy.expand(rows, (count, *self.rest))


class Choose(mlops.Function):
    """What a choice takes of the first input; the second are its rows."""

    __slots__ = ("how",)
    reads_inputs = True

    def __init__(self, how: Choice) -> None:
        self.how = how

    def forward(self, x: LazyBuffer, rows: LazyBuffer) -> LazyBuffer:
        how = self.how
        table = lazy.reshape(lazy.permute(x, how.order), (prod(how.sizes), *how.rest))
        found = lazy.gather(table, rows, 0)
        return lazy.permute(lazy.reshape(found, (*how.shape, *how.rest)), how.places)

    def backward(self, grad: Tensor, out: Tensor) -> mlops.Grads:
        how, (_, rows) = self.how, self.inputs
        chosen = grad.permute(inverse_order(how.places)).reshape(rows.shape)
        table = grad._full((prod(how.sizes), *how.rest), 0, grad.dtype)
        table = table._apply(moves.Scatter(0, Op.ADD), rows, chosen)
        return table.reshape((*how.sizes, *how.rest)).permute(inverse_order(how.order)), None


@composition
def choose(x: Tensor, how: Choice, indices: Sequence[Tensor]) -> Tensor:
    """The elements of x that a choice with these indices takes; IndexError if one is outside."""
    return x._apply(Choose(how), x._of(how.rows([index.lazy for index in indices])))


@lru_cache(maxsize=4096)  # programs index the same few shapes in the same few ways
def placed_choice(shape: Shape, key: tuple[object, ...]) -> tuple[Path, Choice]:
    """What `choice_of` says of the items of an index."""
    return choice_of(shape, placed_on(shape, items_from(key)))


def choice_of(shape: Shape, parts: Sequence[Part]) -> tuple[Path, Choice]:
    """What slices, integers and new axes do to a shape, and the choice from what they leave."""
    box = box_of(shape, parts)
    kept = [p for p in parts if p.kind != "int"]
    axes = [i for i, p in enumerate(kept) if p.index is not None]
    given = [kept[i] for i in axes]  # beside others, a bool is a tensor of one index or none
    shapes = [p.index.shape if p.kind == "tensor" else (p.stop,) for p in given]
    own = [i for i, p in enumerate(p for p in parts if p.kind != "new") if p.kind == "tensor"]
    of_x = iter(f"axis {i} of {shape}" for i in own)
    names = tuple([next(of_x) if p.kind == "tensor" else "a new axis" for p in given])
    together = broadcast_shape("index", *shapes, error=AxisError)
    sizes = tuple([box.shape[a] for a in axes])
    if 0 in sizes and 0 not in together:
        raise IndexError(f"index out of bounds: an axis of {box.shape} that is indexed is empty")
    others = [a for a in range(len(kept)) if a not in axes]
    rest = tuple([box.shape[a] for a in others])
    spread = [a for a, s in zip(axes, shapes, strict=True) if s]  # a number is like an int
    left = [a for a in range(len(kept)) if a not in axes or a in spread]
    where = [left.index(a) for a in spread]
    first, count = where[0] if where else 0, len(together)
    if where != list(range(first, first + len(where))):
        first = 0  # indices apart from each other: their axes come first
    order = (*range(count, count + first), *range(count), *range(count + first, count + len(rest)))
    return box, Choice((*axes, *others), sizes, rest, names, together, order)
