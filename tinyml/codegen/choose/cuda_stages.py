"""Stages in CUDA: what products read is put into tiles, which are filled ahead if a card can."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from tinyml.codegen.choose.chooser import Chooser, all_or_nothing
from tinyml.codegen.expr import Expr, Load, nodes
from tinyml.codegen.nest import Tile
from tinyml.codegen.optimize.opts import OptKind
from tinyml.codegen.optimize.stages import LEAST
from tinyml.codegen.optimize.tiles import ways
from tinyml.index import Axis

STAGES = 4  # of a tile, at most
BARRIERS = 16 * STAGES  # bytes: two for each
ASYNCHRONOUS = 80  # capability of the first cards that copy to shared memory past the registers


def to_tile(chooser: Chooser, factor: Expr, after: Axis) -> None:
    """What a factor is made of in a tile, if that is read of one slot."""
    loads = (e for e in nodes(factor) if isinstance(e, Load) and e.free == factor.free)
    for load in loads:
        found = ways(chooser.one, load.slot)
        same = (n for n, e in enumerate(found, 1) if load in nodes(e))
        which = next(same, 1) if len(found) > 1 else 0  # both factors may read it
        chooser.apply(OptKind.STAGE, after, which, load.slot)
        return


def fill_ahead(
    chooser: Chooser, after: Axis, boxes: bool = True, blocks: int = 2, defer: bool = False
) -> None:
    """Tiles filled ahead of an axis, as far as `blocks` of a multiprocessor have room for them.

    If there is room for three, products of what a step makes may be deferred to the next one.
    """
    tiles = [tile for tile in chooser.one.tiles if tile.after is after]
    if tiles and chooser.target.capability >= ASYNCHRONOUS:
        held, cache = bytes_of(tiles), chooser.target.cache
        fixed = bytes_of(chooser.one.tiles) - held
        stages = min(STAGES, after.size, (cache - BARRIERS) // held)
        if boxes and tiles[0].panels and _by_boxes(chooser, after, stages, held):
            return
        shared = max(2, (cache // blocks - fixed) // held)  # if they hold enough each
        stages = min(STAGES, after.size, shared, (cache - fixed) // held)
        ahead = chooser.apply(OptKind.PIPELINE, after, stages)
        if ahead and defer and LEAST <= stages <= after.size // 2:  # many steps have a next
            chooser.apply(OptKind.DEFER, after)


def fill_by_boxes(chooser: Chooser, after: Axis) -> bool:
    """Tiles filled by the card ahead of an axis, for one block of a multiprocessor.

    What a step makes is multiplied at the next one.
    """
    one = chooser.one
    held = bytes_of(tile for tile in one.tiles if tile.after is after)
    left = chooser.target.cache - BARRIERS - (bytes_of(one.tiles) - held)
    stages = min(STAGES, after.size, left // held if held else 0)
    ahead = stages >= LEAST and chooser.apply(OptKind.BULK, after, stages)
    return ahead and chooser.apply(OptKind.DEFER, after)


def bytes_of(tiles: Iterable[Tile]) -> int:
    return sum(tile.nbytes for tile in tiles)


@all_or_nothing
def _by_boxes(chooser: Chooser, after: Axis, stages: int, held: int) -> bool:
    """Tiles filled by the card; no more blocks than it runs at once, if there are more tiles."""
    grid = chooser.nest.grid(chooser.one)
    blocks = chooser.target.cores * (chooser.target.cache // (stages * held + BARRIERS))
    turns = -(-prod(a.size for a in grid) // max(1, blocks))
    if turns > 1:
        chooser.apply(OptKind.PERSIST, grid[0], turns)
    return chooser.apply(OptKind.BULK, after, stages)
