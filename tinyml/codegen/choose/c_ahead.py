"""What products in C ask memory for before they need it."""

from __future__ import annotations

from math import prod

from tinyml.codegen.choose.chooser import Chooser
from tinyml.codegen.expr import Fold, Load, nodes
from tinyml.codegen.nest import Kind, Tile
from tinyml.codegen.optimize.opts import OptKind
from tinyml.codegen.optimize.tiles import by_stride, is_gathered
from tinyml.graph import toposort
from tinyml.index import Axis

LONG = 64  # steps of a fold that take longer than memory to answer


def read_rows_ahead(chooser: Chooser, rows: Axis, other: Load) -> None:
    """Rows that the cache does not hold are asked for while those before them are multiplied.

    That takes as many loads again, for which only large register tiles leave room.
    """
    last = chooser.one.folds[0].axes[-1]
    nbytes = prod(a.size for a in other.free) * other.dtype.itemsize
    room = chooser.target.vector_registers > 16 and nbytes > chooser.target.cache
    if room and not other.valid and other.position.stride(last) == 1:
        chooser.apply(OptKind.AHEAD, rows)


def read_behind(chooser: Chooser) -> None:
    """What is read once for each sum is asked for before a long sum is made, not behind it."""
    one = chooser.one
    values = [store.value for store in one.stores]
    behind = toposort(values, (), lambda e: () if isinstance(e, Fold) else e.sources)
    sums = prod(a.size for a in one.rows)
    each = any(isinstance(e, Load) and prod(a.size for a in e.free) >= sums for e in behind)
    depth = one.folds[0].axes[0]
    if each and depth.size >= LONG:
        chooser.apply(OptKind.AHEAD, depth)


def fill_ahead(chooser: Chooser) -> None:
    """What tiles are filled with is asked for a few steps before, if the cache does not hold it."""
    for tile in chooser.one.tiles:
        axis = _filled_along(chooser, tile)
        if axis is not None:
            chooser.apply(OptKind.AHEAD, axis)


def _filled_along(chooser: Chooser, tile: Tile) -> Axis | None:
    """The axis of whose steps a tile is copied one after the other, if that comes from memory."""
    nest = chooser.nest
    loads = [e for e in nodes(tile.value) if isinstance(e, Load)]
    sizes = (prod(nest.slots[e.slot][0]) * e.dtype.itemsize for e in loads)
    far = any(nbytes > chooser.target.cache for nbytes in sizes)
    lane = next((a for a in tile.axes if nest.kind(a) is Kind.LANE), None)
    if not (tile.copies and far) or lane is None or is_gathered(tile, lane):
        return None
    return next((a for a in by_stride(tile) if nest.kind(a) is Kind.LOOP), None)
