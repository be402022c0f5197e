"""Rules of thumb in CUDA for folds that run along: a block's rows of a product, in shared memory.

Neighbouring threads have neighbouring rows. All that a step makes is a tile, whose other axis the
threads share: what is multiplied is read as 16 bytes along what is folded, and each thread has
sums of several rows and columns in registers.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from math import prod

from tinyml.codegen.choose.chooser import Chooser, all_or_nothing
from tinyml.codegen.expr import Fold, Load, nodes
from tinyml.codegen.matrices import WARP
from tinyml.codegen.nest import Kind
from tinyml.codegen.optimize.keep import divided_last
from tinyml.codegen.optimize.online import running, sides_along
from tinyml.codegen.optimize.opts import OptKind
from tinyml.index import Axis

ACROSS = 16  # threads along the rows
OTHERS = 8  # threads along the other axis of a tile
NEIGHBOURS = 4  # floats that are read at once
ROWS = 4 * WARP, 2 * WARP, WARP, WARP // 2, WARP // 4  # of a block
STEPS = 64, 32, 16, 8  # of a fold
FEWEST = (8, 4), (4, 4), (4, 2)  # rows and steps, where nothing is staged


def run_along(chooser: Chooser) -> bool:
    """Choose rows and steps; False if no folds run along, or tiles of them are too large."""
    one = divided_last(chooser.one)
    found = running(one)
    sides = sides_along(one, found) if found is not None else None
    if found is None or sides is None:
        return False
    walked = found.axis, *sides
    sizes = sorted(product(ROWS, STEPS), key=_reads)
    ways = (*product((True, False), sizes), *product((False,), FEWEST))
    return any(_tiled(chooser, walked, *size, staged) for staged, size in ways)


@all_or_nothing
def _tiled(
    chooser: Chooser,
    walked: tuple[Axis, Axis, tuple[Axis, ...]],
    rows: int,
    step: int,
    staged: bool,
) -> bool:
    """Whether blocks of so many rows fit, that meet so many others in a step."""
    one, (folded, kept, others) = chooser.one, walked
    blocks = prod(a.size for a in others) * -(-kept.size // rows)
    if rows > WARP and (kept.size <= rows // 2 or blocks < chooser.target.cores):
        return False
    chooser.apply(OptKind.PAD, folded, step)
    columns = [a for a in one.rows if a not in (kept, *others)]
    for axis in (*columns, *(a for walk in one.walks for a in walk.axes)):
        chooser.apply(OptKind.PAD, axis, OTHERS)
    _rows_of_block(chooser, kept, rows, rows if others else 2 * rows)
    for axis in others:
        chooser.apply(OptKind.GRID, axis)
    after = chooser.nest.grid(chooser.one)[-1]
    if not chooser.apply(OptKind.ONLINE, after, step):
        return False
    while chooser.apply(OptKind.ONLINE, after, step):
        pass  # another walk, of folds that read what the last one made
    if staged:
        _stage(chooser)
    for tile in chooser.one.tiles:
        if not tile.copies:
            folds = [e for e in nodes(tile.value) if isinstance(e, Fold)]
            _to_threads(chooser, tile.axes, bool(folds))
            for axis in dict.fromkeys(fold.axes[-1] for fold in folds):
                chooser.apply(OptKind.UNROLL, axis, NEIGHBOURS)
    for walk in chooser.one.walks:
        if any(chooser.nest.kind(a) is Kind.LOOP for a in walk.axes):
            _to_threads(chooser, walk.axes, False)
    return sum(tile.nbytes for tile in chooser.one.tiles) <= chooser.target.cache


def _rows_of_block(chooser: Chooser, kept: Axis, rows: int, least: int) -> None:
    """Threads side by side, a few steps of each, and blocks: two if there is nothing else."""
    inner, size = kept.name, max(least, -(-kept.size // rows) * rows)
    chooser.apply(OptKind.PAD, kept, size)
    if size > rows:
        chooser.apply(OptKind.SPLIT, inner, rows)
        chooser.apply(OptKind.GRID, inner)
        inner = f"{inner}s"
    chooser.apply(OptKind.THREAD, inner, min(rows, ACROSS))
    if rows > ACROSS:
        chooser.apply(OptKind.UNROLL, inner, rows // ACROSS)


def _stage(chooser: Chooser) -> None:
    """What is multiplied, in tiles: of the block's rows, or of a step."""
    grid = chooser.nest.grid(chooser.one)[-1]
    for name in [tile.name for tile in chooser.one.tiles]:
        tile = next(t for t in chooser.one.tiles if t.name == name)
        bound = {a for e in nodes(tile.value) if isinstance(e, Fold) for a in e.axes}
        for load in [e for e in nodes(tile.value) if isinstance(e, Load)]:
            if load.free.isdisjoint(bound) or load.free.isdisjoint(tile.axes):
                continue
            steps = [a for a in (tile.over, tile.after) if a is not None and a in load.free]
            chooser.stage((*steps, grid)[0], load)


def _to_threads(chooser: Chooser, axes: Iterable[Axis], folded: bool) -> None:
    """Steps of a tile's other axis beside those of its rows; or, of rows alone, to more threads."""
    loops = [a for a in axes if chooser.nest.kind(a) is Kind.LOOP and a.size % OTHERS == 0]
    if not loops:
        for axis in axes:
            if chooser.nest.kind(axis) is Kind.UNROLL:
                chooser.apply(OptKind.THREAD, axis, axis.size)
        return
    name, each = loops[-1].name, loops[-1].size // OTHERS
    side = next(n for n in (NEIGHBOURS, 2, 1) if each % n == 0)
    chooser.apply(OptKind.UNROLL, name, side)
    chooser.apply(OptKind.THREAD, name, OTHERS)
    if folded and each > side:
        chooser.apply(OptKind.SPLIT, name, each // side)
        chooser.apply(OptKind.UNROLL, f"{name}s", each // side)


def _reads(sizes: tuple[int, int]) -> float:
    """Elements that are read for each product of a tile's: rows first, if all else is equal."""
    rows, step = sizes
    return 1 / rows + 1 / step
