"""Rows that look something up at the same places, as where columns of each are selected."""

from __future__ import annotations

from math import prod

from tinyml.codegen.choose.chooser import Chooser
from tinyml.codegen.nest import Kind
from tinyml.codegen.optimize.opts import OptKind


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
