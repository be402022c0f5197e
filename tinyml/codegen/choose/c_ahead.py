"""What products in C ask memory for before they need it."""

from __future__ import annotations

from math import prod

from tinyml.codegen.choose.chooser import Chooser
from tinyml.codegen.expr import Fold, Load
from tinyml.codegen.optimize.opts import OptKind
from tinyml.graph import toposort
from tinyml.index import Axis

LONG = 64  # steps of a fold that take longer than memory to answer


def read_rows_ahead(chooser: Chooser, number: int, rows: Axis, other: Load) -> None:
    """Rows that the cache does not hold are asked for while those before them are multiplied.

    That takes as many loads again, for which only large register tiles leave room.
    """
    last = chooser.one(number).folds[0].axes[-1]
    nbytes = prod(a.size for a in other.free) * other.dtype.itemsize
    room = chooser.target.vector_registers > 16 and nbytes > chooser.target.cache
    if room and not other.valid and other.position.stride(last) == 1:
        chooser.apply(OptKind.AHEAD, rows)


def read_behind(chooser: Chooser, number: int) -> None:
    """What is read once for each sum is asked for before a long sum is made, not behind it."""
    one = chooser.one(number)
    values = [store.value for walk in one.walks for store in walk.stores]
    behind = toposort(values, (), lambda e: () if isinstance(e, Fold) else e.sources)
    sums = prod(a.size for a in one.rows)
    each = any(isinstance(e, Load) and prod(a.size for a in e.free) >= sums for e in behind)
    depth = one.folds[0].axes[0]
    if each and depth.size >= LONG:
        chooser.apply(OptKind.AHEAD, depth)
