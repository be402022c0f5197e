"""Choices: elements at places that tensors of indices name, as one step.

    choice ::= Choice(shape of what is chosen from, indexed axes, shape of the indices, ...)

The indexed axes are flattened into the rows of a and so are the indices; then it is one
gather. What depends on shapes alone is worked out once for each index that programs write.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from tinyml import lazy, mlops, moves
from tinyml.dtype import int32, int64
from tinyml.errors import AxisError
from tinyml.frozen import dataclass
from tinyml.functional.bounded import wrapped
from tinyml.functional.path import Path
from tinyml.functional.steps import composition
from tinyml.functional.subscript import Part, box_of, items_from, placed_on
from tinyml.lazy import LazyBuffer, Shape
from tinyml.ops import Op
from tinyml.shape import broadcast_shape, inverse_order

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


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
        wide, flat = int64 if prod(self.sizes) > int32.max else int32, None
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
