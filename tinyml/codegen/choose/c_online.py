"""Rules of thumb in C for folds that run along: long rows of a product, a few steps at a time.

A block of rows lies in lanes. What they meet is read as it lies, one element for all lanes, so
that only the block's own rows are packed, and nothing grows with the length of the fold.
"""

from __future__ import annotations

from math import prod

from tinyml.codegen.choose.c_tilings import low
from tinyml.codegen.choose.chooser import Chooser, all_or_nothing
from tinyml.codegen.expr import Fold, Load, nodes
from tinyml.codegen.nest import Kind, Tile, Walk
from tinyml.codegen.optimize.keep import divided_last
from tinyml.codegen.optimize.online import running, sides_along
from tinyml.codegen.optimize.opts import OptKind
from tinyml.index import Axis

VECTORS = 2  # of rows that meet what is read for all of them
LEAST = 4  # rows of a tile of what is added, if there need be no rest
STEP = 128  # of a fold whose steps are made one after the other
WASTE = 16  # of so many rows one may be surplus in larger blocks
LONG = 1024  # steps of a fold whose rows are not kept whole


@all_or_nothing
def run_along(chooser: Chooser) -> bool:
    """Choose blocks and steps; False if no long fold is made of products that can run along."""
    if len(chooser.one.folds) < 2:  # none reads another
        return False
    one = divided_last(chooser.one)
    found = running(one)
    sides = None if found is None or found.axis.size < LONG else sides_along(one, found)
    if found is None or sides is None:
        return False
    kept, others = sides
    width = chooser.lanes * VECTORS
    adding = [a for w in one.walks for s in w.stores if s.op for a in w.axes]
    if adding and any(not s.position.free.issuperset(others) for s in one.stores):
        return False  # rows that are walked in order
    if kept.size < width + (not others):
        return False
    whole = range(STEP, STEP // 2, -1)
    step = next((n for n in whole if found.axis.size % n == 0), STEP)
    for axis in (found.axis, *(a for a in adding if a.size == found.axis.size)):
        chooser.apply(OptKind.PAD, axis, step)
    inner = _lanes_of_blocks(chooser, kept, others, width, not adding)
    for axis in others:
        chooser.apply(OptKind.GRID, axis)
    blocks = chooser.row(kept.name) if adding and kept.name != inner else None
    after = blocks or chooser.nest.grid(chooser.one)[-1]
    if not chooser.apply(OptKind.ONLINE, after, step):
        return False
    while chooser.apply(OptKind.ONLINE, after, step):
        pass  # another walk, of folds that read what the last one made
    _stage_rows(chooser, after)
    for tile in chooser.one.tiles:
        _in_registers(chooser, tile, inner)
    for walk in chooser.one.walks:
        if walk.after is not None:
            _added_in_registers(chooser, walk)
    return True


def _added_in_registers(chooser: Chooser, walk: Walk) -> None:
    """What is added to memory at each step is made in register tiles, too."""
    (store,) = walk.stores
    for axis in walk.axes:
        if store.position.stride(axis) != 1:
            most = min(chooser.target.tile_height, axis.size)
            whole = (n for n in range(most, LEAST - 1, -1) if axis.size % n == 0)
            height = next(whole, most)  # without a rest, it is better known what a mask leaves
            chooser.apply(OptKind.UNROLL, axis.name, height)
        elif axis.size >= chooser.lanes and chooser.apply(OptKind.LANES, axis, chooser.lanes):
            chooser.apply(OptKind.UNROLL, axis.name, VECTORS)


def _lanes_of_blocks(
    chooser: Chooser, kept: Axis, others: tuple[Axis, ...], width: int, shared: bool
) -> str:
    """Blocks of rows for all cores, and lanes along each of them: the axis that walks a block.

    Surplus rows are masked: only their own loads and stores have conditions.
    """
    wanted = 4 * chooser.target.cores
    count = prod(a.size for a in others)
    sizes = [n for n in (4 * width, 2 * width) if -kept.size % n * WASTE <= kept.size]
    block = next((n for n in sizes if kept.size // n * count >= wanted), width)
    inner = kept.name
    chooser.apply(OptKind.PAD, kept, block)
    if kept.size > block:
        chooser.apply(OptKind.SPLIT, inner, block)
        if shared:
            chooser.apply(OptKind.GRID, inner)
        inner = f"{inner}s"
    chooser.apply(OptKind.LANES, inner, chooser.lanes)
    chooser.apply(OptKind.UNROLL, inner, VECTORS)
    return inner


def _stage_rows(chooser: Chooser, after: Axis) -> None:
    """The block's own rows, side by side in lanes."""
    lanes = chooser.nest.lanes
    for tile in chooser.one.tiles:
        bound = {a for e in nodes(tile.value) if isinstance(e, Fold) for a in e.axes}
        for load in (e for e in nodes(tile.value) if isinstance(e, Load)):
            if load.free & lanes and load.free & bound:
                chooser.stage(after, load)


def _in_registers(chooser: Chooser, tile: Tile, inner: str) -> None:
    """A tile of sums is filled by register tiles, or with several sums for each row."""
    others = [
        a for a in tile.axes if chooser.nest.kind(a) is Kind.LOOP and a.name.split("_")[0] != inner
    ]
    folded = [e for e in nodes(tile.value) if isinstance(e, Fold)]
    if folded and others:
        height = low(others[-1].size, chooser.target.tile_height)
        chooser.apply(OptKind.UNROLL, others[-1].name, height)
    elif folded:
        chooser.apply(OptKind.UNROLL, folded[-1].axes[-1].name, 4)
