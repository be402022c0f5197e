"""Rules of thumb for convolutions in C whose rows of pixels are no vectors.

Where a window moves by several pixels and a row of results is shorter than a vector, lanes lie
along the results' channels: the weights of several images' results are packed once, and the pixels
of a row, which follow each other in memory, are the rows of a register tile.
"""

from __future__ import annotations

from math import prod

from tinyml.codegen.choose.c_contraction import write_out_fold
from tinyml.codegen.choose.chooser import Chooser, Contraction
from tinyml.codegen.choose.estimate import PORTS, WAIT
from tinyml.codegen.expr import Load
from tinyml.codegen.nest import Nest
from tinyml.codegen.optimize.opts import OptKind
from tinyml.frozen import dataclass
from tinyml.index import Axis

PIECES = 2  # of images, for each core
MOST = 2  # vectors of a register tile's row


@dataclass(frozen=True)
class _Found:
    lane: Axis  # channels of the result
    weights: Load
    pixels: Load
    short: Axis  # pixels of a row
    images: Axis
    rows: tuple[Axis, ...]  # of pixels


def strided(chooser: Chooser, found: Contraction) -> bool:
    """Choose tiles for a contraction with jumps between the pixels of short rows; False if not."""
    one, lanes, target = chooser.one, chooser.lanes, chooser.target
    seen = _found(one, found, lanes)
    if seen is None:
        return False
    folded = {*found.fold.axes}
    vectors = min(seen.lane.size // lanes, MOST)
    rows = _rows_abreast(seen, 2 * target.tile_height // vectors)
    sums = vectors * seen.short.size * rows
    panel = prod(a.size for a in folded) * vectors * target.vector_bytes
    image = _size(seen.pixels, {*folded, *seen.rows, seen.short}) * seen.pixels.dtype.itemsize
    fits = sums <= 2 * target.tile_height and max(panel, image) <= target.cache
    if not fits or sums < PORTS * WAIT:  # few sums would wait for each other
        return False
    chooser.apply(OptKind.PEEL, seen.lane, vectors * lanes)
    if rows > 1:
        chooser.apply(OptKind.UNROLL, seen.rows[-1], rows)
    _apply(chooser, seen, vectors, target.cache // panel)
    write_out_fold(chooser, sums)
    return True


def _rows_abreast(seen: _Found, most: int) -> int:
    """How many rows of pixels are part of a register tile, of so many pixels at most."""
    size = seen.rows[-1].size if seen.rows else 1
    even = (n for n in range(size, 0, -1) if size % n == 0)
    return next((n for n in even if n * seen.short.size <= most), 1)


def _found(one: Nest, found: Contraction, lanes: int) -> _Found | None:
    """What is what, if results are short rows of pixels, and the channels fill vectors."""
    position = one.walks[0].stores[0].position
    kept, streamed = (found.kept, found.kept_load), (found.streamed, found.streamed_load)
    for (along, weights), (own, pixels) in ((kept, streamed), (streamed, kept)):
        if weights is None or pixels is None or len(along) != 1 or len(own) < 2:
            continue
        (lane,) = along
        strides = {a: pixels.position.stride(a) or 0 for a in own}
        short = next((a for a in own if position.stride(a) == 1 and a.size < lanes), None)
        if short is None or strides[short] < 2 or lane.size < lanes:
            continue
        others = sorted(own - {short}, key=lambda a: -strides[a])
        shared = own == {a for a in one.rows if a is not lane}
        if shared and all(strides[a] > 0 for a in others):
            return _Found(lane, weights, pixels, short, others[0], tuple(others[1:]))
    return None


def _apply(chooser: Chooser, seen: _Found, vectors: int, most: int) -> None:
    """`most` panels of weights are packed at once."""
    lane, short, images = seen.lane.name, seen.short.name, seen.images.name
    chooser.apply(OptKind.LANES, lane, chooser.lanes)
    chooser.apply(OptKind.UNROLL, lane, vectors)
    chooser.apply(OptKind.UNROLL, short, seen.short.size)
    loops = [a.name for a in seen.rows if chooser.row(a.name) is not None]
    panels = chooser.row(lane)
    if panels is not None and panels.size > most:
        chooser.apply(OptKind.SPLIT, lane, most)
        loops.append(f"{lane}s")
    elif panels is not None:
        loops.append(lane)
    each = seen.images.size // (PIECES * chooser.target.cores)
    if each > 1 and chooser.apply(OptKind.SPLIT, images, each):
        loops.append(f"{images}s")
    for name in loops:
        chooser.apply(OptKind.ORDER, name)
    chooser.bind_grid(but=tuple(loops))
    grid = chooser.nest.grid(chooser.one)
    if not grid:
        return
    chooser.apply(OptKind.STAGE, grid[-1], slot=seen.weights.slot)
    if seen.pixels.valid:  # edges are asked for once
        after = f"{images}s" if f"{images}s" in loops else grid[-1].name
        chooser.apply(OptKind.STAGE, after, slot=seen.pixels.slot)


def _size(load: Load, axes: set[Axis]) -> int:
    """How many elements a load reads along axes."""
    return 1 + sum((a.size - 1) * abs(load.position.stride(a) or 0) for a in axes)
