"""Inlined: who computes a node that has no memory, and how many times over.

A unit that reads a value in two places, as a step of a simulation reads its neighbours, computes it
for each place. What is cut into parts and joined again is computed once.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import TypeAlias, TypeVar

from tinyml import lazy
from tinyml.lazy import LazyBuffer
from tinyml.ops import Movement

T = TypeVar("T")
MOST_PLACES = 16  # that are told apart
_Sinks = frozenset[LazyBuffer]
_Places = frozenset[tuple[int, float]]  # by number, and which part of all elements is asked for
_HERE: _Places = frozenset(((-1, 1.0),))
_Read: TypeAlias = dict[LazyBuffer, tuple[LazyBuffer, ...]]  # nodes and what each reads
# what these move is one place still: turned about often, it comes back
_STILL = frozenset({Movement.RESHAPE, Movement.EXPAND, Movement.PERMUTE, Movement.FLIP})


def askers(read: _Read, units: Container[LazyBuffer]) -> Iterator[tuple[LazyBuffer, _Sinks, float]]:
    """Readers first, each node with two at most of the units that it is inlined into.

    With them comes how many times over they compute it, counting parts as parts. Look-ups count by
    as many elements as they pick, and only beside others. Whoever is told may change whether the
    node is a unit.
    """
    sinks: dict[LazyBuffer, _Sinks] = dict.fromkeys(read, frozenset())
    places: dict[LazyBuffer, _Places] = dict.fromkeys(read, frozenset())
    picked: dict[LazyBuffer, _Places] = dict.fromkeys(read, frozenset())
    numbers: dict[object, int] = {}
    for node, sources in reversed(read.items()):
        asked = places[node]
        if asked:
            asked = _few(either(asked, picked[node]), numbers)
        yield node, sinks[node], sum([part for _, part in asked])
        if node in units:
            below, asked = frozenset((node,)), _HERE
        else:
            below = sinks[node]
        if isinstance(node, lazy.Move):
            asked = _moved(node, asked, numbers)
        if isinstance(node, lazy.Gather):
            table, sources = sources[0], sources[1:]
            picked[table] = either(picked[table], _picked(node, asked, numbers))
        for source in sources:
            if len(sinks[source]) < 2:
                sinks[source] = below if len(below) > 1 else either(sinks[source], below)
            places[source] = _few(either(places[source], asked), numbers)


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
