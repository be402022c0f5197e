"""How many rows C walks at a time, of those that do not wait for one another."""

from __future__ import annotations

from math import prod

from tinyml.codegen.choose.chooser import Chooser
from tinyml.codegen.expr import Alu
from tinyml.codegen.nest import Nest
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
    lanes of one are folded, for which the row's next fold waits. What memory delivers comes sooner
    in several runs, if it is of one array; of more, one row after the other hides its latency.
    """
    one = chooser.one(number)
    sizes = [a.size for fold in one.folds for a in fold.axes]
    pieces = prod(a.size for a in one.rows)
    for least, most, rows in _choices(chooser, one, row):
        fits = row.size % rows == 0 and pieces >= rows * PIECES
        if fits and all(least * chooser.lanes <= n <= most * chooser.lanes for n in sizes):
            return rows
    return 1


def _choices(chooser: Chooser, one: Nest, row: Axis) -> list[tuple[int, int, int]]:
    """Vectors of a row, at least and at most, and so many rows: the first that fits is taken."""
    costly, far = calls(one), chooser.nbytes >= chooser.target.last_cache
    alone = far and len({e.slot for e in one.loads if row in e.free}) == 1
    if any(fold.body.has_fold for fold in one.folds):
        some = (0, 8 * FEW, ROWS // 2) if costly else (4 * FEW, 8 * FEW, ROWS // 2)
        first = (0, 4 * FEW if costly or not far else FEW, ROWS)
        return [first, some] if costly or alone else [first]
    return [(4 * FEW, 16 * FEW, ROWS)] if alone and not costly and one.walks[0].axes else []
