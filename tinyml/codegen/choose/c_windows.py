"""Rules of thumb for contractions in C that fold over the places of windows.

So it is with the gradient of a convolution's weights: a pixel takes part in the sums of all steps
of a window. What a piece of the fold reads is copied once for all of them: the other factor in
panels along vectors, the pixels as they lie, each once, with the zeros around them. A register
tile is a few vectors of the other factor by a few rows of the one with windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from tinyml.codegen.choose.chooser import Chooser, Contraction
from tinyml.codegen.expr import Expr, Fold, Load
from tinyml.codegen.long_fold import is_grouped
from tinyml.codegen.optimize.opts import OptKind
from tinyml.codegen.optimize.overlaps import windows
from tinyml.codegen.target import Target
from tinyml.index import Axis, linear

DEPTH = 256  # elements of the fold that are walked at a time, about,
MOST = 1024  # and at most, where an axis further out need not be walked at each time
VECTORS = 4  # of a register tile's row, at most
SHARE = 3  # of the cache, for the sums that wait


def windowed(chooser: Chooser, number: int, found: Contraction) -> bool:
    """Choose tiles for a contraction over places of windows; False if it is none."""
    kept = (found.kept, found.kept_load, found.kept_factor)
    streamed = (found.streamed, found.streamed_load, found.streamed_factor)
    for (along, panel, _), (own, pixels, factor) in ((kept, streamed), (streamed, kept)):
        if panel is None or pixels is None or len(along) > 1:
            continue
        (lane,) = along
        inner = _moved_by_last(factor, own, found.fold)
        if inner is not None and lane.size >= chooser.lanes:
            rows = sorted(own, key=lambda a: (a in inner, -a.size, a.name))
            _apply(chooser, number, found.fold, lane, rows, len(inner))
            _stage(chooser, number, found.fold, (panel, pixels))
            return True
    return False


def _moved_by_last(factor: Expr, rows: frozenset[Axis], fold: Fold) -> set[Axis] | None:
    """The rows that move along with the last axis of the fold; None if none are steps of windows.

    A window has fewer steps than there are places of it.
    """
    folded = {*fold.axes}
    stands = windows(factor, {a: linear(a) for a in rows | folded}, set()).stands
    moved = [(i.free & rows, i.free & folded) for i in stands.values() if len(i.free) > 1]
    if not moved or not all(a and b and _size(a) < _size(b) for a, b in moved):
        return None
    return {a for steps, places in moved if fold.axes[-1] in places for a in steps}


def _size(axes: frozenset[Axis]) -> int:
    return prod(a.size for a in axes)


def _apply(
    chooser: Chooser, number: int, fold: Fold, lane: Axis, rows: Sequence[Axis], inner: int
) -> None:
    """`rows` are those of the factor with windows, the `inner` ones last."""
    target, lanes = chooser.target, chooser.lanes
    outer = prod(a.size for a in chooser.one(number).rows if a not in rows and a is not lane)
    chooser.apply(OptKind.PAD, lane, lanes)
    whole = -(-lane.size // lanes)
    # neighbours along the last axis would wait for the next step of the fold, and fill registers
    vectors, counts = _register_tile(target, whole, rows[: len(rows) - inner])
    chooser.apply(OptKind.LANES, lane, lanes)
    chooser.apply(OptKind.UNROLL, lane, vectors)
    for axis, count in zip(rows, counts, strict=False):
        chooser.apply(OptKind.UNROLL, axis, count)
    long, steps = rows[0], rows[0].size // (counts or (1,))[0]
    results = _size(frozenset(rows)) // steps * vectors * lanes * fold.dtype.itemsize

    def worth(sizes: tuple[int, int]) -> tuple[bool, int, int, int]:
        some, panels = sizes
        fits = some * panels * results <= target.cache // SHARE
        pieces = outer * (steps // some) * (whole // vectors // panels)
        return fits, min(pieces, 2 * target.cores), some, panels

    some, panels = max(product(_divisors(steps), _divisors(whole // vectors)), key=worth)
    loops = []
    for axis, size in ((lane, panels), (long, some)):
        if chooser.apply(OptKind.SPLIT, axis.name, size):
            loops.append(f"{axis.name}s")
    loops += [axis.name for axis in rows[1:]]
    for name in (*reversed(loops), *(f"{axis.name}u" for axis in rows)):
        chooser.apply(OptKind.ORDER, name)
    chooser.bind_grid(number, but=tuple(loops))
    if not chooser.nest.grid(chooser.one(number)):
        chooser.bind_grid(number, but=tuple(loops[:-1]))


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


def _stage(chooser: Chooser, number: int, fold: Fold, loads: Sequence[Load]) -> None:
    """What a piece of the fold reads is copied to tiles."""
    grid = chooser.nest.grid(chooser.one(number))
    if not grid:
        return
    after = grid[-1].name
    depth = _size(frozenset(fold.axes))
    for axis in fold.axes if depth > MOST else ():
        most = max(DEPTH * axis.size // depth, 1)
        step = max(n for n in _divisors(axis.size) if n <= most)
        if depth // axis.size <= MOST and is_grouped(axis.size // step, [fold]):
            if chooser.apply(OptKind.BLOCK, axis, step):
                after = axis.name
            break
    for load in loads:
        chooser.apply(OptKind.STAGE, after, slot=load.slot)
