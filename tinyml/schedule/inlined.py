"""Inlined: who computes a node that has no memory, and how many times over.

A unit that reads a value in two places, as a step of a simulation reads its neighbours, computes it
for each place. What is cut into parts and joined again is computed once. Permutations and flips,
one after the other, are one turn: an array is its elements in memory, whatever its shape, so that a
reshape alone turns nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias, TypeVar

from tinyml import lazy
from tinyml.lazy import LazyBuffer
from tinyml.ops import Movement
from tinyml.shape import Shape, row_major_strides

# ---- turns ----

Turn: TypeAlias = tuple[tuple[int, int], ...]  # of each axis, how long it is and how far it steps
TURNS = frozenset({Movement.PERMUTE, Movement.FLIP})


@lru_cache(maxsize=4096)
def turn_of(kind: Movement, axes: Any, shape: Shape) -> Turn:
    """What a movement of TURNS makes of a source of that shape; of no elements, nothing."""
    if 0 in shape:
        return ()
    steps = row_major_strides(shape)
    if kind is Movement.PERMUTE:
        return _joined((shape[a], steps[a]) for a in axes)
    backward = (-step if a in axes else step for a, step in enumerate(steps))
    return _joined(zip(shape, backward, strict=True))


def is_none(turn: Turn) -> bool:
    """Whether all elements stay where they are."""
    return not turn or turn == ((turn[0][0], 1),)


@lru_cache(maxsize=4096)
def after(last: Turn, first: Turn) -> Turn | None:
    """Both turns as one, if there are axes that both walk."""
    made: list[tuple[int, int]] = []
    whole = prod(n for n, _ in first)
    if whole != prod(n for n, _ in last):
        return None
    for size, step in last:
        least, end, low = abs(step), abs(step) * size, whole
        for count, below in first:
            high, low = low, low // count
            start, stop = max(low, least), min(high, end)
            if start >= stop:
                continue
            if stop % start or start % low or start % least:
                return None
            made.append((stop // start, below * (start // low) * (1 if step > 0 else -1)))
    return _joined(made)


def _joined(axes: Iterable[tuple[int, int]]) -> Turn:
    """Without axes of one element, and with those as one of which one goes on where others end."""
    made: list[tuple[int, int]] = []
    for size, step in axes:
        if made and made[-1][1] == size * step:
            made[-1] = made[-1][0] * size, step
        elif size > 1:
            made.append((size, step))
    return tuple(made)


class Turned:
    """Turns one after the other, by number. What is turned about often comes back."""

    none = 0

    def __init__(self) -> None:
        self.numbers: dict[object, int] = {None: self.none}
        self.made: dict[int, tuple[int, Turn]] = {}  # of which other one, and how it goes on

    def number(self, said: object) -> int:
        return self.numbers.setdefault(said, len(self.numbers))

    def further(self, way: int, node: lazy.Move) -> int:
        """What is read through one, of the source of a movement of TURNS."""
        turn = turn_of(*node.arg, node.sources[0].shape)
        while way in self.made:
            before, last = self.made[way]
            both = after(last, turn)
            if both is None:
                break
            way, turn = before, both
        if is_none(turn):
            return way
        number = self.number((way, turn))
        self.made[number] = way, turn
        return number


# ---- who asks for what ----

T = TypeVar("T")
MOST_PLACES = 16  # that are told apart
_Sinks = frozenset[tuple[LazyBuffer, int, int]]  # units, how they turn it, in how many ways
_Told = tuple[int, int]  # how many units, and the most ways of one
_Places = frozenset[tuple[int, float]]  # by number, and which part of all elements is asked for
_HERE: _Places = frozenset(((-1, 1.0),))
_Read: TypeAlias = dict[LazyBuffer, tuple[LazyBuffer, ...]]  # nodes and what each reads
_STILL = TURNS | {Movement.RESHAPE, Movement.EXPAND}  # what these move is one place still


def askers(read: _Read, units: Container[LazyBuffer]) -> Iterator[tuple[LazyBuffer, int, float]]:
    """Readers first, each node with how many units it is inlined into, of which two are counted.

    With them comes how many times over they compute it, counting parts as parts; or one of them
    does, which turns it in several ways. Look-ups count by as many elements as they pick, and only
    beside others. Whoever is told may change whether the node is a unit.
    """
    sinks: dict[LazyBuffer, _Sinks] = dict.fromkeys(read, frozenset())
    places: dict[LazyBuffer, _Places] = dict.fromkeys(read, frozenset())
    picked: dict[LazyBuffer, _Places] = dict.fromkeys(read, frozenset())
    numbers, turned, known = dict[object, int](), Turned(), dict[_Sinks, _Told]()
    for node, sources in reversed(read.items()):
        asked = places[node]
        if asked:
            asked = _few(either(asked, picked[node]), numbers)
        below = sinks[node]
        if below not in known:
            ways = _ways(below)
            known[below] = len(ways), max(ways.values(), default=0)
        count, most = known[below]
        yield node, count, max(most, sum([part for _, part in asked]))
        if node in units:
            below, asked = frozenset(((node, turned.none, 1),)), _HERE
        if isinstance(node, lazy.Move):
            asked, below = _moved(node, asked, numbers), _turned(node, below, turned)
        if isinstance(node, lazy.Gather):
            table, sources = sources[0], sources[1:]
            picked[table] = either(picked[table], _picked(node, asked, numbers))
        for source in sources:
            if sinks[source] is not below:
                sinks[source] = _of_two(sinks[source], below, turned)
            places[source] = _few(either(places[source], asked), numbers)


def _ways(sinks: _Sinks) -> dict[LazyBuffer, int]:
    """In how many ways each unit turns a node."""
    ways: dict[LazyBuffer, int] = {}
    for unit, _, count in sinks:
        ways[unit] = ways.get(unit, 0) + count
    return ways


def _of_two(one: _Sinks, other: _Sinks, turned: Turned) -> _Sinks:
    """What is in either, of two units."""
    if one >= other:
        return one
    both = one | other
    ways = _ways(both)
    if len(ways) > 2:
        first = _ways(one)
        ways = first if len(first) > 1 else _ways(other)
        both = frozenset([sink for sink in both if sink[0] in ways])
    if max(ways.values()) <= MOST_PLACES:
        return both
    return frozenset([(unit, turned.number(both), count) for unit, count in ways.items()])


def _turned(node: lazy.Move, sinks: _Sinks, turned: Turned) -> _Sinks:
    """How what a node moves is turned. What is repeated is there for each, however it is turned."""
    if node.movement is Movement.EXPAND:
        return frozenset([(unit, turned.none, 1) for unit, _, _ in sinks])
    if node.movement not in TURNS:
        return sinks
    return frozenset([(unit, turned.further(way, node), count) for unit, way, count in sinks])


def either(one: frozenset[T], other: frozenset[T]) -> frozenset[T]:
    """What is in either; most are empty, or one and the same."""
    if one is other or not other:
        return one
    return one | other if one else other


def _number(said: object, numbers: dict[object, int]) -> int:
    return numbers.setdefault(said, len(numbers))


def _moved(node: lazy.Move, asked: _Places, numbers: dict[object, int]) -> _Places:
    """The places in what a node moves."""
    kind, (size, whole) = node.movement, (node.size, node.sources[0].size)
    if kind in _STILL or not whole:
        return asked
    left = size / whole if kind is Movement.SHRINK else 1.0
    return frozenset([(_number((place, node.arg), numbers), part * left) for place, part in asked])


def _picked(node: lazy.Gather, asked: _Places, numbers: dict[object, int]) -> _Places:
    """The places in what a node looks up, of which it evaluates what it picks."""
    table, index = node.sources
    left = min(1.0, node.size / table.size) if table.size else 1.0
    said = index, node.axis
    return frozenset([(_number((place, said), numbers), part * left) for place, part in asked])


def _few(asked: _Places, numbers: dict[object, int]) -> _Places:
    if len(asked) <= MOST_PLACES:
        return asked
    return frozenset(((_number(asked, numbers), sum([part for _, part in asked])),))
