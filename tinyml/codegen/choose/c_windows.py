"""Rules of thumb for contractions in C that fold over the places of windows.

So it is with the gradient of a convolution's weights: a pixel takes part in the sums of all steps
of a window. What a piece of the fold reads is copied once for all of them: the other factor in
panels along vectors, the pixels as they lie, each once, with the zeros around them. A register
tile is a few vectors of the other factor by a few rows of the one with windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product
from math import prod

from tinyml.codegen.choose.c_contraction import apart
from tinyml.codegen.choose.chooser import Candidate, Chooser, Contraction
from tinyml.codegen.choose.estimate import Factor, Product, Tiling
from tinyml.codegen.expr import Fold, Load
from tinyml.codegen.long_fold import is_grouped
from tinyml.codegen.optimize.opts import OptKind
from tinyml.codegen.optimize.overlaps import Held, windows
from tinyml.codegen.target import Target
from tinyml.frozen import dataclass
from tinyml.index import Axis, linear

DEPTH = 256  # elements of the fold that are walked at a time, about,
MOST = 1024  # and at most, where an axis further out need not be walked at each time
VECTORS = 4  # of a register tile's row, at most
AGAIN = 4  # times that a pixel is read of its copy, at least
SHARE = 3  # of the cache, for the sums that wait


@dataclass(frozen=True)
class _Walk:
    """`rows` are those of the factor with windows, the `inner` ones last."""

    fold: Fold
    lane: Axis
    rows: tuple[Axis, ...]
    inner: int
    panel: Load
    pixels: Load
    held: int  # of them, each once


@dataclass(frozen=True)
class _Tiles:
    vectors: int
    counts: tuple[int, ...]  # steps of each axis of rows that are written out
    some: int  # times the first of these, in a piece of work
    panels: int


def windowed(chooser: Chooser, found: Contraction) -> Candidate | None:
    """Tiles for a contraction over places of windows; None if it is none."""
    kept = (found.kept, found.kept_load, found.kept_factor)
    streamed = (found.streamed, found.streamed_load, found.streamed_factor)
    for (along, panel, _), (own, pixels, factor) in ((kept, streamed), (streamed, kept)):
        if panel is None or pixels is None or len(along) > 1:
            continue
        (lane,) = along
        held = windows(factor, {a: linear(a) for a in own | {*found.fold.axes}}, set())
        inner = _moved_by_last(held, own, found.fold)
        if inner is not None and lane.size >= chooser.lanes:
            rows = tuple(sorted(own, key=lambda a: (a in inner, -a.size, a.name)))
            walk = _Walk(found.fold, lane, rows, len(inner), panel, pixels, held.size)
            tiles = _tiles(chooser, walk)
            cycles = _cycles(chooser, walk, tiles)
            return Candidate(cycles, partial(_apply, chooser, walk, tiles))
    return None


def _moved_by_last(held: Held, rows: frozenset[Axis], fold: Fold) -> set[Axis] | None:
    """The rows that move along with the last axis of the fold; None if none are steps of windows.

    A window has fewer steps than there are places of it.
    """
    folded = {*fold.axes}
    moved = [(i.free & rows, i.free & folded) for i in held.stands.values() if len(i.free) > 1]
    if not moved or not all(a and b and _size(a) < _size(b) for a, b in moved):
        return None
    return {a for steps, places in moved if fold.axes[-1] in places for a in steps}


def _size(axes: Iterable[Axis]) -> int:
    return prod(a.size for a in axes)


def _tiles(chooser: Chooser, walk: _Walk) -> _Tiles:
    """Sizes: sums that wait have a share of the cache, and there is work for all cores."""
    target, lanes, rows = chooser.target, chooser.lanes, walk.rows
    outer = _size({*chooser.one.rows} - {*rows, walk.lane})
    whole = -(-walk.lane.size // lanes)
    # neighbours along the last axis would wait for the next step of the fold, and fill registers
    vectors, counts = _register_tile(target, whole, rows[: len(rows) - walk.inner])
    steps = rows[0].size // (counts or (1,))[0]
    results = _size(rows) // steps * vectors * lanes * walk.fold.dtype.itemsize

    def worth(sizes: tuple[int, int]) -> tuple[bool, int, int, int]:
        some, panels = sizes
        fits = some * panels * results <= target.cache // SHARE
        pieces = outer * (steps // some) * (whole // vectors // panels)
        return fits, min(pieces, 2 * target.cores), some, panels

    some, panels = max(product(_divisors(steps), _divisors(whole // vectors)), key=worth)
    return _Tiles(vectors, counts, some, panels)


def _cycles(chooser: Chooser, walk: _Walk, tiles: _Tiles) -> float:
    """How long that takes by estimate."""
    one, rows, depth = chooser.one, _size(walk.rows), _size(walk.fold.axes)
    known = Product(
        others=_size({*one.rows} - {*walk.rows, walk.lane}),
        rows=rows,
        panels=-(-walk.lane.size // chooser.lanes) // tiles.vectors,
        depth=depth,
        itemsize=chooser.target.vector_bytes // chooser.lanes,
        nbytes=chooser.nbytes,
        scattered=walk.panel.position.stride(walk.lane) != 1,
        apart=apart(chooser, one, walk.fold, walk.lane),
        columns=Factor(),
        other=Factor(),
        target=chooser.target,
        beside=True,
        again=rows * depth / walk.held,
    )
    piece = rows // walk.rows[0].size * (tiles.counts or (1,))[0] * tiles.some
    tiling = Tiling(tiles.vectors, prod(tiles.counts), tiles.panels, piece, repacks=True)
    axis, step = _step(walk.fold)
    return known.cycles(tiling, depth // axis.size * step if step else depth)


def _apply(chooser: Chooser, walk: _Walk, tiles: _Tiles) -> None:
    lane, rows, (long, *_) = walk.lane, walk.rows, walk.rows
    chooser.apply(OptKind.PAD, lane, chooser.lanes)
    chooser.apply(OptKind.LANES, lane, chooser.lanes)
    chooser.apply(OptKind.UNROLL, lane, tiles.vectors)
    for axis, count in zip(rows, tiles.counts, strict=False):
        chooser.apply(OptKind.UNROLL, axis, count)
    loops = []
    for axis, size in ((lane, tiles.panels), (long, tiles.some)):
        if chooser.apply(OptKind.SPLIT, axis.name, size):
            loops.append(f"{axis.name}s")
    loops += [axis.name for axis in rows[1:]]
    for name in (*reversed(loops), *(f"{axis.name}u" for axis in rows)):
        chooser.apply(OptKind.ORDER, name)
    chooser.bind_grid(but=tuple(loops))
    if not chooser.nest.grid(chooser.one):
        chooser.bind_grid(but=tuple(loops[:-1]))
    _stage(chooser, walk)


def _register_tile(target: Target, whole: int, rows: Sequence[Axis]) -> tuple[int, tuple[int, ...]]:
    """Vectors of a row, and how many steps of each axis of rows are written out.

    As many sums as there may be; of these the ones that need the fewest loads, and no memory.
    """

    def worth(tile: tuple[int, tuple[int, ...]]) -> tuple[int, bool, int]:
        vectors, height = tile[0], prod(tile[1])
        fits = vectors * height + vectors < target.vector_registers
        return vectors * height, fits, -vectors - height

    sums = 2 * target.tile_height
    some = product(*(_divisors(a.size) for a in rows))
    every = [(n, c) for c in some for n in _divisors(whole) if n <= VECTORS and n * prod(c) <= sums]
    return max(every, key=worth)


def _divisors(size: int) -> list[int]:
    return [n for n in range(1, size + 1) if size % n == 0]


def _step(fold: Fold) -> tuple[Axis, int]:
    """The axis along which a long fold is made in steps, and their size; 0 for all at once."""
    depth = _size(fold.axes)
    for axis in fold.axes if depth > MOST else ():
        most = max(DEPTH * axis.size // depth, 1)
        step = max(n for n in _divisors(axis.size) if n <= most)
        if depth // axis.size <= MOST and is_grouped(axis.size // step, [fold]):
            return axis, step
    return fold.axes[0], 0


def _stage(chooser: Chooser, walk: _Walk) -> None:
    """What a piece of the fold reads is copied to tiles; pixels if enough steps read each."""
    grid = chooser.nest.grid(chooser.one)
    if not grid:
        return
    axis, step = _step(walk.fold)
    stepped = step and chooser.apply(OptKind.BLOCK, axis, step)
    after = axis.name if stepped else grid[-1].name
    again = _size(walk.rows) * _size(walk.fold.axes) / walk.held
    for load in (walk.panel, *([walk.pixels] if again >= AGAIN else [])):
        chooser.apply(OptKind.STAGE, after, slot=load.slot)
