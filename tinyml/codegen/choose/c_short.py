"""Rules of thumb for C about rows that are no whole vectors: in maps several become one axis.

Where a row ends in a vector is known beforehand then, and so is where its lanes are read: they are
picked out of vectors (text/c_shuffles.py).
"""

from __future__ import annotations

from math import gcd

from tinyml.codegen.choose.c_rows import calls
from tinyml.codegen.choose.chooser import Chooser, all_or_nothing
from tinyml.codegen.expr import Alu, Load, Require
from tinyml.codegen.nest import Nest
from tinyml.codegen.optimize.change import LOADS
from tinyml.codegen.optimize.opts import OptKind
from tinyml.dtype import bool_
from tinyml.graph import toposort
from tinyml.index import Axis
from tinyml.ops import Op

FEW = 8  # vectors at most of a short row
TEXT = 512  # nodes at most of what is written out
WIDE = 4  # bytes of an element at least that is picked out of vectors


def join_short(chooser: Chooser) -> None:
    """Rows that divide a vector become one axis with those around them."""
    one = chooser.one
    inner = [a for group in one.groups[1:] for a in group]
    if any(a.size >= chooser.lanes for a in inner):
        return
    while len(rows := chooser.one.rows) > 1:
        known = rows[-1].size < chooser.lanes and chooser.lanes % rows[-1].size == 0
        if not (known and chooser.apply(OptKind.COLLAPSE, rows[-2], LOADS)):
            break
    if rows and rows != one.rows:
        chooser.apply(OptKind.PEEL, rows[-1], chooser.lanes)


@all_or_nothing
def few_rows_in_vectors(chooser: Chooser) -> bool:
    """Rows that divide no vector: the fewest that are whole vectors, written out."""
    one, lanes = chooser.one, chooser.lanes
    if len(one.rows) < 2 or not _ends_early(one.rows[-1].size, lanes, calls(one)):
        return False
    outer, row = one.rows[-2:]
    shared = gcd(row.size, lanes)
    vectors, count = row.size // shared, lanes // shared
    made = toposort(one.exprs)
    wide = any(e.dtype.itemsize * lanes > chooser.target.vector_bytes for e in made if e.free)
    once = any(isinstance(e, Require) and row not in e.free for e in made)  # it is asked of a row
    if wide or once or outer.size < count or vectors * len(made) > TEXT:
        return False
    chooser.apply(OptKind.PEEL, outer, count)
    name = outer.name
    if outer.size >= 2 * count:
        chooser.apply(OptKind.SPLIT, outer, count)
        name += "s"
    return (
        _near(one, outer, row, lanes)
        and chooser.apply(OptKind.COLLAPSE, name, LOADS)
        and chooser.apply(OptKind.LANES, name, lanes)
        and chooser.apply(OptKind.UNROLL, name, vectors)
    )


def _ends_early(size: int, lanes: int, costly: bool) -> bool:
    """Whether a row of so many elements ends within its first vector, or early in its second."""
    rest = size % lanes
    return rest > 0 and (size < lanes or (size < 2 * lanes and (costly or 2 * rest <= lanes)))


def _near(one: Nest, outer: Axis, row: Axis, lanes: int) -> bool:
    """Whether results lie side by side, and what each vector of them is made of in two vectors."""
    steps = range(lanes * row.size // gcd(row.size, lanes))

    def held(load: Load) -> bool:
        along, down = (load.position.stride(axis) for axis in (row, outer))
        if along is None or down is None or load.position.looked:
            return False
        if load.dtype.itemsize < WIDE or any(outer in v.free for v in load.valid):
            return False
        at = [n // row.size * down + n % row.size * along for n in steps]
        vectors = (at[n : n + lanes] for n in steps[::lanes])
        return all(max(vector) - min(vector) < 2 * lanes for vector in vectors)

    beside = all(
        store.position.stride(row) == 1 and store.position.stride(outer) == row.size
        for store in one.stores
    )
    return beside and all(map(held, one.loads))


def is_long_rest(one: Nest, row: Axis, lanes: int) -> bool:
    """Whether what is left over of whole vectors of a row takes long: half a vector or more.

    Where functions are called two elements do, and in a short row that is walked more than once,
    or of which the largest is looked for, or in a map where truths become numbers.
    """
    rest = row.size % lanes
    vectors = [-(-a.size // lanes) for group in one.groups[1:] for a in group[-1:]]
    again = vectors.count(-(-row.size // lanes)) > 1  # others may have whole ones by now
    largest = any(row in fold.axes and fold.op in (Op.MAX, Op.MIN) for fold in one.folds)
    short = row.size < FEW * lanes and row.size % max(lanes // 2, 1) > 0
    counted = not one.folds and _counts_truths(one, row)
    each = calls(one) or (short and (again or largest or counted))
    return rest > 1 if each else 2 * rest > lanes


def _counts_truths(one: Nest, row: Axis) -> bool:
    """Whether comparisons along a row become numbers: of single ones compilers make branches."""
    made = (e for e in toposort(one.exprs) if isinstance(e, Alu) and e.op is Op.CAST)
    return any(e.operands[0].dtype is bool_ and row in e.free for e in made)
