"""Rules of thumb for maps in C that read other arrays in some rows than in others.

What joins arrays, or pads one, asks at each element which array it is of. Where a condition begins
or ceases to hold along a row axis, the axis is cut: each piece reads what it is made of and asks
nothing, as a copy does. Pieces of the innermost loop are loops one after the other, so that rows
are written in order, and no Opt makes them (linearize/write_loops.py); here are the others.
"""

from __future__ import annotations

from math import prod

from tinyml.codegen.choose.chooser import Chooser
from tinyml.codegen.crop import asked_of, pieces
from tinyml.codegen.nest import Nest
from tinyml.codegen.optimize.opts import OptKind
from tinyml.index import Axis

MOST = 16  # nests that cuts make of one
NEAR = 16  # vectors of a piece at least, where all is in cache
FAR = 4096  # elements of one, where it is not: memory is walked once for each piece


def cut_where_conditions_change(chooser: Chooser) -> None:
    """Cut maps, and their pieces, each time in the middle, until none of them is asked for."""
    more = True
    while more:
        more = False
        maps = [one for one in chooser.nest.nests if not one.folds and not one.adds]
        found = [where for one in maps if (where := _middle(chooser, one))]
        for axis, step in dict.fromkeys(found):
            if len(chooser.nest.nests) < MOST and chooser.apply(OptKind.CUT, axis, step):
                more = True


def _middle(chooser: Chooser, one: Nest) -> tuple[Axis, int] | None:
    """The row axis that has most pieces, and the step between them that is next to its middle."""
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
    alone = (r for r in asked_of(one) if r.free == {axis})
    runs = pieces(axis, alone, {}, (), axis.size)
    short = any(len(run) * inner < least for run in runs)
    return [] if short else [run.start for run in runs[1:]]
