"""Rules of thumb in C for a product of what folds over another product make, as in attention.

A block of rows goes through all of it before the next one: the first product's rows, what is
folded of them, and the factor made of both wait in tiles that fit the L2 cache together. Both
products are made by register tiles that pass over packed panels, as in c_contraction.py.
"""

from __future__ import annotations

from math import prod

from tinyml.codegen.choose.c_tilings import low
from tinyml.codegen.choose.chooser import Chooser, Contraction
from tinyml.codegen.expr import Fold, Load, nodes
from tinyml.codegen.nest import Kind, Tile
from tinyml.codegen.optimize.opts import OptKind
from tinyml.index import Axis
from tinyml.ops import Op

MOST_ROWS = 96
LEAST_ROWS = 12


def cascade(chooser: Chooser, found: Contraction) -> bool:
    """Choose blocks and tiles; False if no factor of the product is made of other folds."""
    factors = found.kept_factor, found.streamed_factor
    made = [f for f in factors if any(isinstance(e, Fold) for e in nodes(f))]
    if len(made) != 1:
        return False
    (other,) = [f for f in factors if f is not made[0]]
    rows = {*chooser.one.rows}
    kept = max((made[0].free - other.free) & rows, key=lambda a: (a.size, a.name))
    lane = max((other.free - made[0].free) & rows, key=lambda a: (a.size, a.name))
    inner = _blocks(chooser, found, kept, rows - {kept, lane})
    lanes = chooser.target.vector_bytes // 4
    if lane.size >= lanes and chooser.apply(OptKind.LANES, lane, lanes):
        chooser.apply(OptKind.UNROLL, lane.name, 2)
    outer = [inner[:-1]] if inner != kept.name else []
    for name in (inner, lane.name, *outer):
        chooser.apply(OptKind.ORDER, name)
    chooser.bind_grid(but=(inner, lane.name, *outer))
    after = _walked_last(chooser, inner, lane.name)
    while tile := chooser.keep(after, 2 * lanes) or chooser.keep(after):
        _fill(chooser, tile, lanes)
    row = chooser.row(inner)
    if row is not None:
        chooser.apply(OptKind.UNROLL, inner, low(row.size, chooser.target.tile_height))
    _pack(chooser)
    return True


def _blocks(chooser: Chooser, found: Contraction, kept: Axis, others: set[Axis]) -> str:
    """Divide the rows into pieces of work, and these into blocks: the axis that walks a block."""
    row = 4 * max(a.size for a in found.fold.axes)
    most = min(MOST_ROWS, max(LEAST_ROWS, chooser.target.cache // 2 // (2 * row)))
    if kept.size <= most and others:
        return kept.name
    most = min(most, -(-kept.size // 2))
    block = next((n for n in range(most, most // 2, -1) if kept.size % n == 0), 0)
    height = chooser.target.tile_height
    block = block or max(most // height, 1) * min(height, most)
    if others:  # else what is peeled would have nothing around it; surplus rows are masked
        chooser.apply(OptKind.PEEL, kept, block)
    count = kept.size // block if others else -(-kept.size // block)
    wanted = -(-4 * chooser.target.cores // prod(a.size for a in others))
    each = next(
        n for n in range(count, 0, -1) if count % n == 0 and (count // n >= wanted or n == 1)
    )
    inner = f"{kept.name}s"
    if each in (1, count):
        chooser.apply(OptKind.SPLIT, kept, block)
        if each == 1:
            chooser.apply(OptKind.GRID, kept.name)
        return inner
    chooser.apply(OptKind.SPLIT, kept, each * block)
    chooser.apply(OptKind.GRID, kept.name)
    chooser.apply(OptKind.SPLIT, inner, block)
    return f"{inner}s"


def _walked_last(chooser: Chooser, *inner: str) -> str:
    """The innermost axis around those that walk a block."""
    rows = [a for a in chooser.one.rows if a.name not in inner]
    loops = [a.name for a in rows if chooser.nest.kind(a) is Kind.LOOP]
    return (loops or [a.name for a in rows if chooser.nest.kind(a) is Kind.GRID])[-1]


def _fill(chooser: Chooser, tile: Tile, lanes: int) -> None:
    """How a tile is filled: a product in register tiles, the rest in vectors along rows."""
    longest = max(tile.axes, key=lambda a: tile.index.stride(a) == 1)
    folded = [e for e in nodes(tile.value) if isinstance(e, Fold)]
    if folded and len(tile.axes) == 1:  # a fold of each row
        _vectors(chooser, folded[-1].axes[-1], lanes)
        return
    if longest.size >= lanes and chooser.apply(OptKind.LANES, longest, lanes):
        chooser.apply(OptKind.UNROLL, longest.name, 2)
    if folded:
        for axis in tile.axes:
            if axis is not longest and axis.size > 1:
                chooser.apply(OptKind.UNROLL, axis.name, low(axis.size, chooser.target.tile_height))
                break


def _vectors(chooser: Chooser, axis: Axis, lanes: int) -> None:
    if axis.size >= lanes and chooser.apply(OptKind.LANES, axis, lanes):
        chooser.apply(OptKind.UNROLL, axis.name, 4 if axis.size >= 8 * lanes else 2)


def _pack(chooser: Chooser) -> None:
    """Panels of the factors that all rows of a piece of work pass over, packed once for it."""
    grid = chooser.nest.grid(chooser.one)
    lanes = chooser.nest.lanes
    products = [f for f in chooser.one.folds if f.op is Op.ADD]
    for fold in products if grid else ():
        for load in (e for e in nodes(fold.body) if isinstance(e, Load)):
            if load.free & lanes and load.free & {*fold.axes}:
                chooser.stage(grid[-1], load)
