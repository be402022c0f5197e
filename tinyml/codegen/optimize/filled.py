"""Filled: the first fold that reads a tile fills it in its own loop.

A row that is longer than the nearest cache holds would have to be brought back from a slower one
to be added up, as the exps of a softmax are. So the loop that adds them up writes them into the
tile, too: this has the fold's axis for its own then, and whatever divides the one divides the
other. What else reads it comes after that loop, or is a fold in the same one, at the same steps.
"""

from __future__ import annotations

from tinyml.codegen.expr import Fold, Stored, nodes, substitute
from tinyml.codegen.nest import Kind, LoopNest, Nest, Tile
from tinyml.codegen.optimize.change import OptError
from tinyml.codegen.optimize.tiles import names_read, walked_before
from tinyml.frozen import replace
from tinyml.index import Axis, linear


def filled(nest: LoopNest, along: Axis) -> LoopNest:
    """The tiles of a fold over `along` that it may fill, filled by it."""
    alone = nest.kind(along) is Kind.LOOP and Kind.THREAD not in dict(nest.kinds).values()
    if not alone or nest.along:
        raise OptError(f"cannot fill tiles along {along.name}: it is no loop of one fold")
    nests = tuple([_filled(nest, one, along) for one in nest.nests])
    if nests == nest.nests:
        raise OptError(f"cannot fill tiles along {along.name}: no fold is the first to read one")
    return replace(nest, nests=nests)


def by_fold(one: Nest, tile: Tile) -> bool:
    """Whether a fold fills a tile."""
    return any(axis in one.folded for axis in tile.axes)


def read_before(one: Nest, tile: Tile) -> bool:
    """Whether another tile is filled with what it holds, and with nothing that is folded of it."""
    for other in one.tiles:
        read = tile.name in names_read([other.value])
        folds = (e.body for e in nodes(other.value) if isinstance(e, Fold))
        if read and tile.name not in names_read(folds):
            return True
    return False


def _filled(nest: LoopNest, one: Nest, along: Axis) -> Nest:
    return replace(one, tiles=tuple([_of_fold(nest, one, tile, along) for tile in one.tiles]))


def _of_fold(nest: LoopNest, one: Nest, tile: Tile, along: Axis) -> Tile:
    whole = len(tile.axes) == 1 and tile.axes[0].size == along.size and tile.over is None
    if not whole or read_before(one, tile):
        return tile
    axis, outside = tile.axes[0], walked_before(nest, one, tile.after)
    read = [fold for fold in one.folds if tile.name in names_read([fold.body])]
    there = [f for f in read if f.axes == (along,) and not (f.free - outside or f.body.has_fold)]
    first = there[:1] == read[:1] and all(
        fold in there or there[0] in nodes(fold.body) for fold in read
    )
    places = {e.index for f in there for e in nodes(f.body) if isinstance(e, Stored)}
    if not first or places != {linear(along)} or tile.index != linear(axis):
        return tile
    value = substitute(tile.value, {axis: linear(along)})
    return replace(tile, axes=(along,), index=linear(along), value=value)
