"""Turns: all elements of an array in another order, as permutations, flips and reshapes make it.

An array is its elements in memory, whatever its shape: a reshape alone turns nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

from tinyml import lazy
from tinyml.ops import Movement
from tinyml.shape import Shape, row_major_strides

Turn: TypeAlias = tuple[tuple[int, int], ...]  # of each axis, how long it is and how far it steps
TURNS = frozenset({Movement.PERMUTE, Movement.FLIP})


@lru_cache(maxsize=4096)
def turn_of(kind: Movement, axes: Any, shape: Shape) -> Turn:
    """What a movement of TURNS makes of a source of that shape."""
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
