"""Rules of thumb for contractions in C: packed panels, register tiles, cache blocks.

The loops are those of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
(2008). One factor is packed in panels as wide as a register tile, which stay in the L2 cache
while rows of the other factor pass over them. Where the fold is so long that a row of the other
factor would not stay in the L1 cache, or where that factor is read with jumps and has to be packed
too, the fold is made in steps, and sums wait in a tile between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tinyml.codegen.change import CONDITIONS, STORES
from tinyml.codegen.chooser import Chooser, Contraction, contraction_of
from tinyml.codegen.expr import Alu, Fold, Load
from tinyml.codegen.long_fold import is_grouped
from tinyml.codegen.nest import Nest
from tinyml.codegen.opts import OptKind
from tinyml.graph import toposort
from tinyml.index import Axis
from tinyml.ops import WORK

# where the fold is made in steps: its steps, panels packed at a time, rows that pass over them
DEEP = (1024, 4, 384)
HEAVY = 48  # work on a sum that is better done in a loop of its own
PACKED = (128, 32, 516)  # where both factors are packed
OFTEN = 4  # times that a value is computed again which then is better packed, too


@dataclass(frozen=True)
class _Sides:
    """`lane` is the axis along vectors, `kept` the one whose elements are spread over them.

    The loads are what their factors are made of, where one depends on all axes.
    """

    lane: Axis
    kept: Axis
    packed: Load | None
    other: Load | None
    plain: bool  # whether the other factor is nothing but that load


@dataclass(frozen=True)
class _Tiling:
    vectors: int  # of one row of a register tile
    height: int  # rows of a register tile
    panels: int  # packed at once
    piece: int = 0  # rows that one piece of work walks; 0 for all
    step: int = 0  # of the first axis of the fold; 0 for all at once
    repacks: bool = False  # whether the other factor is packed too


def contract(chooser: Chooser, number: int, found: Contraction) -> bool:
    """Choose tiles for a contraction; False if it has no axis that vectors can lie along."""
    if found.kept_load is not None and found.streamed_load is not None:
        one = chooser.one(number)
        apart = all(s.position.stride(a) != 1 for a in one.rows for s in one.walks[0].stores)
        chooser.collapse(STORES if apart else CONDITIONS)
        found = contraction_of(chooser.one(number)) or found
    lanes = chooser.lanes
    sides = _sides(chooser, number, found, lanes)
    if sides is None:
        return False
    height = min(sides.kept.size, 6 if chooser.target.vector_registers == 16 else 12)
    packs = sides.packed is not None and sides.kept.size >= 2 * height
    if sides.lane.size < (2 if packs else 1) * lanes:  # a tail of its own, masked
        chooser.apply(OptKind.PAD, sides.lane, min(-(-sides.lane.size // lanes), 2) * lanes)
    lane = chooser.row(number, sides.lane.name) or sides.lane
    tiling = _tiling(chooser, number, found, sides, lane.size // lanes, height)
    _apply(chooser, number, found, sides, tiling, lanes)
    return True


def _sides(chooser: Chooser, number: int, found: Contraction, lanes: int) -> _Sides | None:
    """The row axis for the lanes: long enough, stored and loaded side by side if possible."""
    position = chooser.one(number).walks[0].stores[0].position
    candidates = []
    streamed = found.streamed, found.streamed_load, found.streamed_factor
    kept = found.kept, found.kept_load, found.kept_factor
    for (own, load, _), (others, other, factor) in ((streamed, kept), (kept, streamed)):
        longest = max(others, key=lambda a: (a.size, a.name))
        for axis in own:
            direct = (
                load is not None
                and load.position.stride(axis) == 1
                and not any(axis in v.free for v in load.valid)
            )
            score = 4 * (position.stride(axis) == 1) + 2 * direct + (axis.size % 16 == 0)
            if axis.size >= lanes or longest.size >= 12 > lanes // 2 < axis.size:
                plain = isinstance(factor, Load) and not factor.valid
                sides = _Sides(axis, longest, load, other, plain)
                candidates.append((score, axis.size, axis.name, sides))
    return max(candidates, key=lambda c: c[:3])[3] if candidates else None


def _tiling(
    chooser: Chooser, number: int, found: Contraction, sides: _Sides, vectors: int, height: int
) -> _Tiling:
    """Sizes for which what is read again lies in the cache it should lie in."""
    width = min(vectors, 2)
    whole = max(vectors // width, 1)
    depth = prod(a.size for a in found.fold.axes)
    panel = depth * width * chooser.target.vector_bytes
    most = max(chooser.target.cache // 2 // panel, 1)
    last = found.fold.axes[-1]
    jumps = sides.other is not None and abs(sides.other.position.stride(last) or 0) > 1
    if sides.packed is None or sides.kept.size < 2 * height:
        return _Tiling(width, height, _even(whole, most))
    others = prod(a.size for a in chooser.one(number).rows if a not in (sides.lane, sides.kept))
    heavy = _work_after(chooser.one(number), found.fold) > HEAVY
    again = not sides.plain and whole > OFTEN
    if not (jumps or heavy or again) and most >= min(2, whole):
        pieces = 4 * chooser.target.cores  # of columns rather than rows: those are packed once
        panels = _even(whole, max(min(most, whole * others // pieces), 1))
        blocks = others * -(-whole // panels)
        wanted = min(-(-pieces // blocks), sides.kept.size // (2 * height))
        piece = sides.kept.size // wanted // height * height if wanted > 1 else 0  # a short rest
        return _Tiling(width, height, panels, piece)
    piece = _round(_even(sides.kept.size, DEEP[2]), height)
    repacks = jumps or not sides.plain or sides.kept.size % piece > 0
    longest, many, rows = PACKED if repacks else DEEP
    piece = _round(_even(sides.kept.size, rows), height)
    steps = -(-depth // longest)
    step = _step(found.fold, steps) if steps > 1 or heavy else 0
    blocks = others * -(-sides.kept.size // piece)
    panels = _even(whole, many)
    while panels > 1 and blocks * (whole // panels) < 2 * chooser.target.cores:
        panels = -(-panels // 2)
    return _Tiling(width, height, panels, piece, step, repacks and panels > 1)


def _step(fold: Fold, count: int) -> int:
    """The size of so many equal steps of a fold, or a few more where groups of them are equal."""
    size = fold.axes[0].size
    step = -(-size // count)
    while step > 1 and not is_grouped(-(-size // step), [fold]):
        count += 1
        step = -(-size // count)
    return step


def _work_after(one: Nest, fold: Fold) -> int:
    """What is done with each sum before it is stored."""
    stored = [store.value for walk in one.walks for store in walk.stores]
    return sum(WORK[e.op] for e in toposort(stored, (fold,)) if isinstance(e, Alu))


def _even(whole: int, most: int) -> int:
    """The size of equal parts of `whole`, none above `most`."""
    return -(-whole // -(-whole // most))


def _round(size: int, by: int) -> int:
    return -(-size // by) * by


def _apply(
    chooser: Chooser, number: int, found: Contraction, sides: _Sides, tiling: _Tiling, lanes: int
) -> None:
    lane, kept = sides.lane.name, sides.kept.name
    depth = found.fold.axes[0]
    blocked = tiling.step or tiling.repacks
    chooser.apply(OptKind.PEEL, lane, tiling.panels * tiling.vectors * lanes)
    if tiling.step:
        chooser.apply(OptKind.PAD, depth, tiling.step)
    if tiling.piece:
        chooser.apply(OptKind.PAD if blocked else OptKind.PEEL, kept, tiling.piece)
    chooser.apply(OptKind.LANES, lane, lanes)
    if tiling.vectors > 1:
        chooser.apply(OptKind.UNROLL, lane, tiling.vectors)
    loops = []
    if tiling.panels > 1 and chooser.apply(OptKind.SPLIT, lane, tiling.panels):
        loops.append(f"{lane}s")
    if tiling.piece and chooser.apply(OptKind.SPLIT, kept, tiling.piece):
        chooser.apply(OptKind.GRID, kept)
        kept = f"{kept}s"
    if tiling.height > 1:
        chooser.apply(OptKind.UNROLL, kept, tiling.height)
        chooser.apply(OptKind.ORDER, f"{kept}u")  # a number is done with before the next is loaded
    chooser.apply(OptKind.ORDER, kept)
    chooser.bind_grid(number, but=(kept, *loops))
    _stage(chooser, number, sides, tiling, depth)
    chooser.collapse()


def _stage(chooser: Chooser, number: int, sides: _Sides, tiling: _Tiling, depth: Axis) -> None:
    """Copy what is read again to tiles, before a piece of work or each step of the fold."""
    grid = chooser.nest.grid(chooser.one(number))
    if not grid or sides.packed is None or sides.kept.size < 2 * tiling.height:
        return
    after = grid[-1].name
    if tiling.step and chooser.apply(OptKind.BLOCK, depth, tiling.step):
        after = depth.name
    chooser.apply(OptKind.STAGE, after, slot=sides.packed.slot)
    if tiling.repacks and sides.other is not None:
        chooser.apply(OptKind.STAGE, after, slot=sides.other.slot)
