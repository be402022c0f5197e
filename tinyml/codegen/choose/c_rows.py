"""How many rows C walks at a time, of those that do not wait for one another."""

from __future__ import annotations

from math import prod

from tinyml.codegen.choose.chooser import Chooser
from tinyml.codegen.expr import Alu
from tinyml.codegen.nest import Kind, Nest
from tinyml.codegen.optimize.opts import OptKind
from tinyml.index import Axis
from tinyml.ops import FUNCTIONS

ROWS = 4  # that are walked at a time
FEW = 8  # vectors of a row whose folds take less time than to add up their lanes
PIECES = 64  # of work, about, are left for threads by what is walked together


def calls(one: Nest) -> bool:
    """Whether something is a function, which takes longer than memory does."""
    return any(isinstance(e, Alu) and e.op in FUNCTIONS for e in one.exprs)


def rows_at_a_time(chooser: Chooser, number: int, row: Axis) -> int:
    """How many rows are walked side by side.

    Where folds read folds of a short row, other rows' vectors go through the same ops while the
    lanes of one are folded, for which the row's next fold waits.
    """
    one = chooser.one(number)
    if not any(fold.body.has_fold for fold in one.folds):
        return 1
    longest = max(a.size for fold in one.folds for a in fold.axes)
    pieces = prod(a.size for a in one.rows)
    for vectors, rows in ((4 * FEW, ROWS), (8 * FEW, ROWS // 2)):
        if longest <= vectors * chooser.lanes and row.size % rows == 0 and pieces >= rows * PIECES:
            return rows
    return 1


def looked_up_together(chooser: Chooser, number: int, pieces: int) -> bool:
    """Whether two rows are made at a time, as it takes as long to find places as to read there.

    Four rows take no less time than two. So many `pieces` of work are left for threads.
    """
    rows = [a for a in chooser.one(number).rows if chooser.nest.kind(a) is Kind.LOOP][:-1]
    found = [(e, at.free) for e in chooser.one(number).loads for at in e.position.looked]
    for row in reversed(rows if prod(a.size for a in rows) >= 2 * pieces else ()):
        shared = any(row in e.free and free and row not in free for e, free in found)
        if shared and row.size % 2 == 0:
            return chooser.apply(OptKind.UNROLL, row, 2)
    return False
