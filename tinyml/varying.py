"""Varying: numbers that are others each time become data, so that one plan serves all of them.

A learning rate that is computed anew, the place of a batch in its data set and of a row that is
written are parts of what nodes say, and so of a kernel. A loop over them would compile in every
turn. Graphs that differ in such numbers only are a family: its first two are compiled as they are,
with numbers that the compiler knows; from then on each number that was not always the same is read
from memory.

    x * 0.25             x * c                                 c: a leaf of shape ()
    x[3:5]               gather(x, [0, 1] + start)             start: a leaf
    pad(x, 3, 5)         start <= [0 ... n] < start + size ? gather(x, [0 ... n] - start) : value
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tinyml import lazy
from tinyml.dtype import DType, from_text, int32
from tinyml.graph import toposort
from tinyml.lazy import Assign, Const, Data, LazyBuffer, is_map, is_move
from tinyml.ops import Movement, Op

_MOST_FAMILIES = 1024
_PLAIN = 2  # members of a family that are compiled as they are
_FEW, _OFTEN = 8, 32  # and of so few each that has come so often


class Number(NamedTuple):
    """A number of a graph that may be another in the next one."""

    node: LazyBuffer
    axis: int  # whose start it is; -1: the number that a Const is
    text: str

    @property
    def dtype(self) -> DType:
        return self.node.dtype if self.axis < 0 else int32


class _Family:
    """Graphs that differ in numbers only."""

    __slots__ = ("first", "members", "met", "varying")

    def __init__(self, first: Sequence[str]) -> None:
        self.first, self.members = first, 0
        self.varying: set[int] = set()
        self.met: dict[int, int] = {}  # how often the first few of them came, by a hash

    def known_well(self, texts: Sequence[str]) -> bool:
        """Note that a member came, of these numbers; whether it is worth a compilation of its own.

        So are the first two members, and one of few that come again and again.
        """
        self.members += 1
        which = hash(tuple(texts))
        if len(self.met) <= _FEW:
            self.met[which] = self.met.get(which, 0) + 1
        often = len(self.met) <= _FEW and self.met[which] > _OFTEN
        return often or self.members <= _PLAIN


_families: dict[int, _Family] = {}  # by a hash: what says all of a graph is long


def numbers(order: Iterable[LazyBuffer]) -> list[Number]:
    """The numbers of a graph, in the order of its nodes."""
    found: list[Number] = []
    for node in order:
        if type(node) is Const:
            found.append(Number(node, -1, node.arg))
        elif is_move(node, *_STARTS):
            starts = _starts(node)
            found += [Number(node, axis, str(starts[axis])) for axis in _changed(node)]
    return found


def besides(node: LazyBuffer) -> Any:
    """What a node says besides its numbers (and besides its shape)."""
    if type(node) is Const:
        return None
    if is_move(node, *_STARTS):
        movement, said = node.arg
        return (movement, said[1]) if movement is Movement.PAD else (movement,)
    return node.arg


def varying(family: Hashable, found: Sequence[Number]) -> list[int]:
    """Which of a graph's numbers are to be data; `family` is all else that the graph says."""
    texts = [number.text for number in found]
    known = _families.get(hash(family))
    if known is None or len(known.first) != len(texts):
        if len(_families) >= _MOST_FAMILIES:
            del _families[next(iter(_families))]
        known = _families[hash(family)] = _Family(texts)
    known.varying.update(i for i, text in enumerate(texts) if text != known.first[i])
    return [] if known.known_well(texts) else sorted(known.varying)


def with_data(roots: Sequence[LazyBuffer], leaves: Mapping[Number, LazyBuffer]) -> list[LazyBuffer]:
    """The same graphs, in which these numbers are read from leaves."""
    of: dict[LazyBuffer, dict[int, LazyBuffer]] = {}
    for number, leaf in leaves.items():
        of.setdefault(number.node, {})[number.axis] = leaf
    made: dict[LazyBuffer, LazyBuffer] = {}
    for node in toposort(roots):
        again = node.made_of(made)
        made[node] = _read(again, of[node]) if node in of else again
        if type(node) is Assign and (line := _line(node, of)) is not None:
            made[node] = _written(made[node], line, node.sources[1].sources[1], made, of)
    return [_stored(made[root]) for root in roots]


class _Line(NamedTuple):
    """What an assignment writes: elements along an axis, from one on whose place is data."""

    axis: int
    size: int
    start: LazyBuffer


def _line(node: Assign, of: Mapping[LazyBuffer, Mapping[int, LazyBuffer]]) -> _Line | None:
    target, value = node.sources
    if not (is_map(value, Op.WHERE) and value.sources[2] is target):
        return None
    mask = value.sources[0]
    starts = of.get(mask, {})
    if len(starts) != 1 or mask.arg[0] is not Movement.PAD or _changed(mask) != [*starts]:
        return None
    ((axis, start),), (inside,), (_, beside) = starts.items(), mask.sources, mask.arg[1]
    size, number = inside.shape[axis], inside
    while is_move(number, Movement.EXPAND, Movement.RESHAPE):
        (number,) = number.sources
    true = type(number) is Const and number.value and not from_text(beside, mask.dtype)
    return _Line(axis, size, start) if true else None


def _written(
    assign: LazyBuffer,
    line: _Line,
    node: LazyBuffer,
    made: Mapping[LazyBuffer, LazyBuffer],
    of: Mapping[LazyBuffer, Mapping[int, LazyBuffer]],
) -> LazyBuffer:
    """An assignment to what it writes of `node`, and to nothing else, which is not read then."""
    target, axis, size = assign.sources[0], line.axis, line.size
    rows = lazy.map_(Op.ADD, _counted(size, target), lazy.broadcast(line.start, (size,)))
    places, starts = _along(rows, target, axis), of.get(node, {})
    if [*starts] == [axis] and node.arg[0] is Movement.PAD and _changed(node) == [axis]:
        first = lazy.map_(Op.NEG, lazy.broadcast(starts[axis], (size,)))
        place = lazy.map_(Op.ADD, rows, first)
        changed = _padded(made[node.sources[0]], axis, place, node.arg[1][1])
    else:
        changed = lazy.gather(made[node], places, axis)
    return lazy.assign(target, lazy.scatter(target, places, changed, axis, None))


def _counted(size: int, beside: LazyBuffer) -> LazyBuffer:
    return lazy.broadcast(lazy.iota(size, int32, beside.device), (size,))


def _stored(node: LazyBuffer) -> LazyBuffer:
    """In memory of its own, also if that is one number in a leaf."""
    if not isinstance(node, Data):
        return node
    return lazy.node(lazy.Contiguous, node.shape, node.dtype, node.device, (node,))


def _read(node: LazyBuffer, leaves: Mapping[int, LazyBuffer]) -> LazyBuffer:
    """A node some of whose numbers are in leaves."""
    if type(node) is Const:
        return leaves[-1]
    (x,) = node.sources
    movement, said = node.arg
    for axis, start in leaves.items():
        size, is_pad = node.shape[axis], movement is Movement.PAD
        counted, first = _counted(size, node), lazy.broadcast(start, (size,))
        if is_pad:
            place = lazy.map_(Op.ADD, counted, lazy.map_(Op.NEG, first))
            x = _padded(x, axis, place, said[1])
        else:
            x = lazy.gather(x, _along(lazy.map_(Op.ADD, counted, first), x, axis), axis)
    spans = said[0] if movement is Movement.PAD else said
    rest = tuple(
        ((0, 0) if movement is Movement.PAD else (0, x.shape[axis])) if axis in leaves else span
        for axis, span in enumerate(spans)
    )
    if movement is Movement.PAD:
        return lazy.pad(x, rest, from_text(said[1], x.dtype))
    return lazy.shrink(x, rest)


def _padded(x: LazyBuffer, axis: int, place: LazyBuffer, value: str) -> LazyBuffer:
    """x along an axis, at `place` of it; `value` where that is outside."""
    size = x.shape[axis]

    def const(number: Any, dtype: DType = int32) -> LazyBuffer:
        return lazy.const(number, dtype, x.device)

    inside = lazy.map_(
        Op.AND, lazy.map_(Op.LESS_EQUAL, const(0), place), lazy.map_(Op.LESS, place, const(size))
    )
    nearest = lazy.map_(Op.MAX, lazy.map_(Op.MIN, place, const(size - 1)), const(0))
    found = lazy.gather(x, _along(nearest, x, axis), axis)
    return lazy.map_(
        Op.WHERE, _along(inside, x, axis), found, const(from_text(value, x.dtype), x.dtype)
    )


def _along(line: LazyBuffer, x: LazyBuffer, axis: int) -> LazyBuffer:
    """`line`, of shape (n,), along an axis of x and repeated along all others."""
    n = line.shape[0]
    ones = tuple(n if i == axis else 1 for i in range(len(x.shape)))
    to = tuple(n if i == axis else size for i, size in enumerate(x.shape))
    return lazy.expand(lazy.reshape(line, ones), to)


_STARTS = (Movement.SHRINK, Movement.PAD)


def _starts(node: LazyBuffer) -> list[int]:
    """Where each axis starts: in what is shrunk, or in the result."""
    movement, said = node.arg
    return [first for first, _ in (said[0] if movement is Movement.PAD else said)]


def _changed(node: LazyBuffer) -> list[int]:
    """The axes that are made shorter or longer."""
    before, after = node.sources[0].shape, node.shape
    return [
        axis
        for axis in range(len(after))
        if before[axis] != after[axis]
        and max(before[axis], after[axis]) <= int32.max
        and min(before[axis], after[axis]) > 0
    ]
