"""Rules of thumb for maps in C that read other arrays in some rows than in others.

What joins arrays, or pads one, asks at each element which array it is of. Where a condition begins
or ceases to hold along a row axis, the axis is cut: each piece reads what it is made of and asks
nothing, as a copy does. Pieces of the innermost loop are loops one after the other, so that rows
are written in order, and no Opt makes them (linearize/write_loops.py); here are the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import prod

from tinyml.codegen.choose.chooser import Chooser
from tinyml.codegen.expr import Load, Select
from tinyml.codegen.nest import Nest
from tinyml.codegen.optimize.opts import OptKind
from tinyml.index import Axis, Range

MOST = 16  # nests that cuts make of one
NEAR = 16  # vectors of a piece at least, where all is in cache
FAR = 4096  # elements of one, where it is not: memory is walked once for each piece


def cut_where_conditions_change(chooser: Chooser) -> None:
    """Cut maps, and their pieces, each time in the middle, until none of them is asked for."""
    more = True
    while more:
        more = False
        maps = [n for n, one in enumerate(chooser.nest.nests) if not one.folds and not one.adds]
        found = [where for number in maps if (where := _middle(chooser, number))]
        for axis, step in dict.fromkeys(found):
            if len(chooser.nest.nests) < MOST and chooser.apply(OptKind.CUT, axis, step):
                more = True


def _middle(chooser: Chooser, number: int) -> tuple[Axis, int] | None:
    """The row axis that has most pieces, and the step between them that is next to its middle."""
    one = chooser.one(number)
    every = {axis: _cuts(chooser, one, axis) for axis in one.rows}
    axis = max(every, key=lambda a: len(every[a]), default=None)
    if axis is None or not every[axis]:
        return None
    return axis, min(every[axis], key=lambda step: abs(2 * step - axis.size))


def _cuts(chooser: Chooser, one: Nest, axis: Axis) -> list[int]:
    """The steps between pieces of an axis, if none of these is too short."""
    inner = prod(a.size for a in one.rows[one.rows.index(axis) + 1 :])
    near = inner > 1 and chooser.nbytes <= chooser.target.cache
    least = NEAR * chooser.lanes if near else FAR
    steps = sorted({step for step in _changes(one, axis) if 0 < step < axis.size})
    short = any((b - a) * inner < least for a, b in pairwise([0, *steps, axis.size]))
    return [] if short else steps


def _changes(one: Nest, axis: Axis) -> Iterator[int]:
    """The steps of an axis at which a condition on it alone begins or ceases to hold."""
    for e in one.exprs:
        for condition in e.valid if isinstance(e, (Select, Load)) else ():
            if condition.free == {axis}:
                yield from _ends(condition, axis)


def _ends(condition: Range, axis: Axis) -> tuple[int, ...]:
    stride = condition.index.stride(axis)
    if not stride:  # a remainder: it changes all the time
        return ()
    start = condition.index.constant
    low, high = condition.low - start, condition.high - start
    if stride < 0:
        stride, low, high = -stride, -high, -low
    return -(-low // stride), high // stride + 1
