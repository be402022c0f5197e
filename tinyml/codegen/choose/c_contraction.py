"""Tilings of contractions in C: packed panels, register tiles, cache blocks.

The loops are those of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
(2008). One factor is packed in panels as wide as a register tile, which stay in the L2 cache
while rows of the other factor pass over them. Where the fold is so long that a row of the other
factor would not stay in the L1 cache, or where that factor is read with jumps and has to be packed
too, the fold is made in steps, and sums wait in a tile between them. Where much is made of the
sums, those of a register tile wait for a loop that does it. Sizes are what estimate.py says.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import pairwise
from math import gcd, inf, lcm, prod

from tinyml.codegen.ahead import LINE
from tinyml.codegen.choose.c_ahead import fill_ahead, read_behind, read_rows_ahead
from tinyml.codegen.choose.c_around import packed_beside, with_steps_around
from tinyml.codegen.choose.c_tilings import MOST, NEARLY, even, fastest, is_padded, without_rest
from tinyml.codegen.choose.chooser import Candidate, Chooser, Contraction, contraction_of
from tinyml.codegen.choose.estimate import (
    CLOSEST,
    CROWDED,
    DIVIDED,
    MASKED,
    PAGE,
    PUSHED,
    WRITTEN,
    Edges,
    Factor,
    Product,
    Tiling,
)
from tinyml.codegen.expr import Alu, Expr, Fold, Load, nodes
from tinyml.codegen.nest import Kind, Nest, Store, Tile
from tinyml.codegen.optimize.change import CONDITIONS, LOADS, STORES
from tinyml.codegen.optimize.opts import OptKind
from tinyml.codegen.optimize.pair_steps import is_of_halves
from tinyml.codegen.optimize.tiles import LEAST_LANES, ways
from tinyml.codegen.pairs import Dot, Pair
from tinyml.codegen.two_rows import is_in_rows, steps_of_rows
from tinyml.frozen import dataclass, replace
from tinyml.graph import toposort
from tinyml.index import Axis, Quotient, Remainder, numbered
from tinyml.ops import WORK

HEAVY = 48  # work on a sum that is better done in a loop of its own
FEW = 8  # steps of a loop of the fold that is written out, at most,
SUMMED = 256  # and multiply-adds of it,
SPARED = 5  # where as many registers hold no sums
PAIRING = 2  # work that it takes to make a pair
LOST = 16  # times what lanes of a row's last vector to spare are of it, if rows are joined
PAIRED = 16  # odd steps of a fold at least that are worth another one behind it


@dataclass(frozen=True)
class _Sides:
    """`lane` is the axis along vectors, `kept` the one whose elements are spread over them.

    The loads are what their factors are made of, where one depends on all axes.
    """

    lane: Axis
    kept: Axis
    packed: Load | None
    other: Load | None
    across: int  # loads of its factor along whose lanes elements lie apart
    packed_work: int  # that makes a vector of the factor of that load
    other_work: int
    plain: bool  # vectors are loaded and stored as they lie, without masks


@dataclass(frozen=True)
class _Proposal:
    """A tiling along some lanes, and the cycles that it takes; of loads, what estimates know."""

    cycles: float
    sides: _Sides
    tiling: Tiling
    product: Product | None


def packed(chooser: Chooser, found: Contraction) -> Candidate | None:
    """Tiles for a contraction; None if it has no axis that vectors can lie along."""
    before, chooser.opts = (chooser.nest, chooser.opts), [*chooser.opts]
    found = prepared(chooser, found)
    proposals = _proposals(chooser, found)
    after = chooser.nest, chooser.opts
    chooser.nest, chooser.opts = before  # until this is found to be the best
    if not proposals:
        return None
    least = min(proposal.cycles for proposal in proposals)
    nearly = min(1 + (NEARLY - 1) / chooser.share(), MOST)
    best = next(made for made in proposals if made.cycles <= nearly * least)

    def apply() -> None:
        chooser.nest, chooser.opts = after
        tiling = _in_whole(chooser, found.fold, best)
        passing = best.product.passing(tiling) if best.product else 1
        _apply(chooser, found, best.sides, tiling, passing)

    return Candidate(least, apply)


def prepared(chooser: Chooser, found: Contraction) -> Contraction:
    """The contraction along axes that are joined, and in the order in which it is best walked."""
    if found.kept_load is not None and found.streamed_load is not None:
        one = chooser.one
        across = all(s.position.stride(a) != 1 for a in one.rows for s in one.walks[0].stores)
        chooser.collapse([one], STORES if across else CONDITIONS)
        found = contraction_of(chooser.one) or found
        _join_rows(chooser, found)
        _walk_closely(chooser, found.fold)
        found = contraction_of(chooser.one) or found
    return with_steps_around(chooser.one, _in_pairs(chooser, found))


def _proposals(chooser: Chooser, found: Contraction) -> list[_Proposal]:
    """What lanes may lie along, the best first, with a tiling and the cycles that it takes."""
    proposals: list[_Proposal] = []
    for sides in _sides(chooser, found):
        most = NEARLY * min((proposal.cycles for proposal in proposals), default=inf)
        proposal = _proposal(chooser, found, sides, most)
        proposals += [] if proposal is None else [proposal]
    return proposals


def _join_rows(chooser: Chooser, found: Contraction) -> None:
    """As many rows of pixels as are whole vectors become one axis, where one of them is not.

    What is packed of them is read in vectors that may end in the next row; see two_rows.py.
    """
    one, lanes = chooser.one, chooser.lanes
    for outer, row in pairwise(one.rows):
        count = lanes // gcd(lanes, row.size)
        lost = -row.size % lanes
        pixels = any({outer, row} <= side for side in (found.kept, found.streamed))
        if not pixels or row.size < lanes or LOST * lost < row.size or outer.size % count:
            continue
        if not _is_one_run(one, outer, row, (found.kept_load, found.streamed_load)):
            continue
        if count == outer.size or chooser.apply(OptKind.SPLIT, outer, count):
            name = outer.name if count == outer.size else f"{outer.name}s"
            chooser.apply(OptKind.COLLAPSE, name, LOADS)
        return


def _is_one_run(one: Nest, outer: Axis, row: Axis, but: Container[Load | None]) -> bool:
    """Whether rows follow each other in all that is stored and read, but for some loads."""
    stored = [store.position for store in one.stores]
    read = [e.position for e in one.loads if e not in but and e.free & {outer, row}]
    after = all(i.stride(outer) == row.size * (i.stride(row) or 0) for i in (*stored, *read))
    return after and all(i.stride(row) == 1 for i in stored)


def _walk_closely(chooser: Chooser, fold: Fold) -> None:
    """The innermost axis of the fold is the one along which factors lie closest."""
    loads = [e for e in nodes(fold.body) if isinstance(e, Load)]
    apart = {a: sum(abs(e.position.stride(a) or 0) for e in loads) for a in fold.axes}
    axes = sorted(fold.axes, key=lambda a: apart[a], reverse=True)
    for axis in reversed(axes if axes != [*fold.axes] else []):
        chooser.apply(OptKind.ORDER, axis)


def _in_pairs(chooser: Chooser, found: Contraction) -> Contraction:
    """Two steps of the fold at once, where there is an instruction for that."""
    even = [a for a in found.fold.axes if a.size % 2 == 0]
    for axis in (even or [a for a in found.fold.axes if a.size > PAIRED])[-1:]:
        if chooser.target.pairs and is_of_halves(found.fold, axis):
            chooser.apply(OptKind.PAIR, axis)
    return contraction_of(chooser.one) or found


def _sides(chooser: Chooser, found: Contraction) -> list[_Sides]:
    """What row axes the lanes may lie along, the best first: stored and loaded side by side.

    It is the best one wherever a factor is computed, for which there are no estimates.
    """
    lanes = chooser.lanes
    position = chooser.one.walks[0].stores[0].position
    candidates = []
    streamed = found.streamed, found.streamed_load, found.streamed_factor
    kept = found.kept, found.kept_load, found.kept_factor
    for (own, load, packed), (others, other, factor) in ((streamed, kept), (kept, streamed)):
        longest = max(others, key=lambda a: (a.size, a.name))
        for axis in own:
            direct = (
                load is not None
                and load.position.stride(axis) == 1
                and not any(axis in v.free for v in load.valid)
            )
            along = position.stride(axis) == 1
            score = 4 * along + 2 * direct + (axis.size % 16 == 0)
            if axis.size >= lanes or longest.size >= 12 > lanes // 2 < axis.size:
                across = _across(packed, axis)
                work = _work((packed,)), _work((factor,)) + _masks(factor)
                sides = _Sides(axis, longest, load, other, across, *work, along and direct)
                candidates.append((score, axis.size, axis.name, sides))
    ranked = [c[3] for c in sorted(candidates, key=lambda c: c[:3], reverse=True)]
    return ranked[:1] if any(e.packed is None or e.other is None for e in ranked) else ranked


def _across(factor: Expr, lane: Axis) -> int:
    """How many numbers of each lane lie apart; those that push each other out count as several."""
    loads = [e for e in nodes(factor) if isinstance(e, Load) and lane in e.free]
    strides = [(e.position.stride(lane), e.dtype.itemsize) for e in loads]
    return sum(
        PUSHED if stride is not None and stride * size % PAGE == 0 else 1
        for stride, size in strides
        if stride != 1
    )


def _proposal(chooser: Chooser, found: Contraction, sides: _Sides, most: float) -> _Proposal | None:
    """The tiling that is estimated to take the least; None if all take longer than `most`.

    Columns left over take as long as others.
    """
    one, fold, lanes = chooser.one, found.fold, chooser.lanes
    widest, highest = _register_tile(chooser, fold, sides)
    highest = highest if fold in one.folds else highest // 2  # what is made of sums has as many
    height = even(sides.kept.size, highest)
    packs = sides.packed is not None and sides.kept.size >= 2 * height
    vectors = sides.lane.size // lanes
    if vectors < (2 if packs else 1):
        vectors = min(-(-sides.lane.size // lanes), 2)
    width = min(vectors, widest)
    padded = is_padded(sides.lane.size, width * lanes, sides.plain)
    whole = -(-sides.lane.size // (width * lanes)) if padded else vectors // width
    if sides.packed is None:
        panel = prod(a.size for a in fold.axes) * width * chooser.target.vector_bytes
        panels = even(whole, max(chooser.target.cache // 2 // panel, 1))
        return _Proposal(0, sides, Tiling(width, height, panels), None)
    product = _product(chooser, one, fold, sides, whole, height)
    fast = fastest(product, fold, width, height, most)
    if fast is None:
        return None
    taken, best = fast
    taken *= max(sides.lane.size / (whole * width * lanes), 1)
    return _Proposal(taken, sides, best, product)


def _in_whole(chooser: Chooser, fold: Fold, proposal: _Proposal) -> Tiling:
    """The tiling without rows left over, if that pays, and with a loop for what much is made of."""
    tiling, product = proposal.tiling, proposal.product
    if product is None:
        return tiling
    tiling = without_rest(product, tiling, chooser.share())
    made = [store.value for store in chooser.one.stores]
    heavy = _work(made, (fold,)) > HEAVY and not tiling.step
    return replace(tiling, step=fold.axes[0].size) if heavy else tiling


def _register_tile(chooser: Chooser, fold: Fold, sides: _Sides) -> tuple[int, int]:
    """Vectors and rows of its sums, at most.

    Many registers hold a tile twice as wide and half as high, too. It takes as many vectors of
    panels for each multiply-add as caches deliver, but fewer rows: of those that lie a page apart
    the closest cache holds eight beside a panel, and more come from afar for each panel.
    """
    height, other = chooser.target.tile_height, sides.other
    if chooser.target.vector_registers == 16 or sides.packed is None or other is None:
        return 2, height
    if _are_three(chooser, sides):
        return 3, 2 * height // 3
    as_they_lie = len(fold.axes) == 1 and not (sides.other_work or _jump(other, fold))
    apart = (other.position.stride(sides.kept) or 0) * other.dtype.itemsize
    return (4, height // 2) if as_they_lie and apart > 0 == apart % PAGE else (2, height)


def _are_three(chooser: Chooser, sides: _Sides) -> bool:
    """Whether columns are three vectors, of which two and one would take longer.

    A few may be left over, as pixels of 7 rows of 7, if several products have such, whose rest is
    a nest of its own that reads the other factor once more; but not if masks are all it takes.
    """
    size = sides.lane.size
    left, alone = size - 3 * chooser.lanes, {*chooser.one.rows} == {sides.lane, sides.kept}
    return left == 0 or (LOST * left < size and left > 0 and not (alone or sides.plain))


def _product(
    chooser: Chooser, one: Nest, fold: Fold, sides: _Sides, panels: int, height: int
) -> Product:
    """What estimates know of a contraction whose factors are loaded."""
    assert sides.packed is not None
    run_on = panels == 1 and sides.packed.position.stride(fold.axes[-1]) == sides.lane.size
    jump = (sides.across > 0 or not run_on) and _jump(sides.packed, fold)
    apart_by = (sides.packed.position.stride(fold.axes[-1]) or 0) * sides.packed.dtype.itemsize
    others = [a for a in one.rows if a not in (sides.lane, sides.kept)]
    work = sides.packed_work + sides.across * chooser.lanes
    return Product(
        others=prod(a.size for a in others),
        rows=sides.kept.size,
        panels=panels,
        depth=prod(a.size for a in fold.axes),
        itemsize=chooser.target.vector_bytes // chooser.lanes,
        nbytes=chooser.nbytes,
        scattered=sides.across,
        apart=apart(chooser, one, fold, sides.lane),
        columns=Factor(work, jump, jump and apart_by % PAGE == 0),
        other=_other(sides, fold, height),
        target=chooser.target,
        edges=_edges(sides.packed, sides.lane, fold),
        beside=_beside(sides, fold, height),
        alike=prod(a.size for a in others if a not in sides.packed.free),
    )


def _other(sides: _Sides, fold: Fold, height: int) -> Factor:
    """What it takes to read the factor that is not packed."""
    if sides.other is None:
        return Factor(sides.other_work)
    along = sides.other.position.stride
    apart = abs(along(fold.axes[-1]) or 0) * sides.other.dtype.itemsize
    lines = height * fold.axes[-1].size * LINE if apart >= LINE and along(sides.kept) != 1 else 0
    jump = _jump(sides.other, fold) or lines > CLOSEST
    together = jump and apart > LINE and along(sides.kept) == 1 and not sides.across
    return Factor(sides.other_work, jump, jump and apart % PAGE == 0, together)


def _beside(sides: _Sides, fold: Fold, height: int) -> bool:
    """Whether numbers of the other factor are copied to a tile in vectors; see tiles.stage."""
    if sides.other is None:
        return False
    along = sides.other.position.stride
    return along(fold.axes[-1]) == 1 or (height % LEAST_LANES == 0 and along(sides.kept) == 1)


def apart(chooser: Chooser, one: Nest, fold: Fold, lane: Axis) -> int:
    """How many numbers of each result lie across, and are read and written one by one.

    Those whose lines push each other out of the closest cache count as several.
    """
    after = toposort([store.value for store in one.stores], (fold,))
    vectors, lanes = Axis("vectors", -(-lane.size // chooser.lanes)), Axis("lanes", chooser.lanes)
    within = {lane: numbered((vectors, lanes))}
    count = 0
    for e in (e for e in (*after, *one.stores) if isinstance(e, (Load, Store))):
        stride = e.position.stride(lane)
        if stride is None:
            stride = e.position.substitute(within).stride(lanes)
        spread = isinstance(e, Load) or chooser.target.vector_registers > 16
        if stride not in ((0, 1, 2) if spread else (0, 1)):
            crowded = stride is not None and stride * e.dtype.itemsize % CROWDED == 0
            count += PUSHED if crowded else 1
    return count


def _edges(load: Load, lane: Axis, fold: Fold) -> Edges | None:
    """The masks of a load along vectors, if it has such."""
    asked = [v for v in load.valid if lane in v.free]
    if not asked:
        return None
    divided = [a for v in asked for a, _ in v.index.terms if lane in a.free and a is not lane]
    row = lcm(*(atom.by for atom in divided if isinstance(atom, (Quotient, Remainder))))
    strides = {a: abs(load.position.stride(a) or 0) for a in fold.axes}
    summed = [a for a in fold.axes if 0 < strides[a] < lane.size and strides[a] % row == 0]
    if load.position.stride(lane) != 1:
        summed = []
    further = sum(strides[a] * (a.size - 1) for a in summed)
    steps = {a for v in asked for a in v.free} & {*fold.axes} - {*summed}
    each = MASKED if all(a.size <= FEW for a in steps) else DIVIDED
    together = prod(a.size for a in summed)
    return Edges(prod(a.size for a in steps), each * len(asked), further, together)


def _jump(load: Load | None, fold: Fold) -> bool:
    """Whether each element of a fold is in another line, and all of them miss the closest cache."""
    last = fold.axes[-1]
    stride = load.position.stride(last) if load is not None else None
    beside = 2 if isinstance(fold.body, Dot) else 1
    if load is None or abs(stride or 0) <= beside:
        return False
    return abs(stride or 0) * load.dtype.itemsize // beside * last.size > CLOSEST


def _work(values: Iterable[Expr], made: Container[Expr] = ()) -> int:
    """What it takes to make values of what is loaded."""
    found = toposort(values, made)
    joined = PAIRING * sum(isinstance(e, Pair) for e in found)
    return joined + sum(max(WORK[e.op], 1) for e in found if isinstance(e, Alu))


def _masks(factor: Expr) -> int:
    """How many ranges loads of a factor are asked for."""
    return sum(len(e.valid) for e in nodes(factor) if isinstance(e, Load))


def _apply(
    chooser: Chooser, found: Contraction, sides: _Sides, tiling: Tiling, passing: int
) -> None:
    lane, kept, lanes = sides.lane.name, sides.kept.name, chooser.lanes
    depth = found.fold.axes[0]
    masked = 0 < tiling.step < depth.size or tiling.repacks
    if is_padded(sides.lane.size, tiling.vectors * lanes, sides.plain):
        chooser.apply(OptKind.PAD, lane, tiling.vectors * lanes)
    chooser.apply(OptKind.PEEL, lane, tiling.panels * tiling.vectors * lanes)
    if tiling.step:
        chooser.apply(OptKind.PAD, depth, tiling.step)
    if tiling.piece or tiling.step:  # sums that wait are those of whole register tiles
        whole = tiling.piece or tiling.height
        chooser.apply(OptKind.PAD if masked else OptKind.PEEL, kept, whole)
    chooser.apply(OptKind.LANES, lane, lanes)
    chooser.apply(OptKind.UNROLL, lane, tiling.vectors)
    panels = tiling.panels > 1 and chooser.apply(OptKind.SPLIT, lane, tiling.panels)
    loops = [f"{lane}s"] if panels else []
    if tiling.piece and chooser.apply(OptKind.SPLIT, kept, tiling.piece):
        chooser.apply(OptKind.GRID, kept)
        kept = f"{kept}s"
    if tiling.height > 1:
        chooser.apply(OptKind.UNROLL, kept, tiling.height)
        chooser.apply(OptKind.ORDER, f"{kept}u")  # a number is done with before the next is loaded
    chooser.apply(OptKind.ORDER, kept)
    loops += [kept]
    loops += _passing(chooser, sides, passing, {lane, sides.kept.name, *loops})
    chooser.bind_grid(but=(*loops,))
    _stage(chooser, sides, tiling, depth)
    chooser.collapse([chooser.one])
    write_out_fold(chooser, tiling.vectors * tiling.height)
    if not chooser.one.folds:
        return  # a mask leaves nothing of these rows, which remained of others
    rows = chooser.row(kept)
    if sides.other is not None and rows is not None and not tiling.repacks:
        read_rows_ahead(chooser, rows, sides.other)
    read_behind(chooser)
    fill_ahead(chooser)


def _passing(
    chooser: Chooser, sides: _Sides, passing: int, walked: Container[str]
) -> Iterator[str]:
    """Rows of products with the same panels: so many of these pass over them in turn.

    As images of a batch do, and rows of pixels where lanes lie along channels.
    """
    free = sides.packed.free if sides.packed else frozenset[Axis]()
    rows = [a for a in chooser.one.rows if chooser.nest.kind(a) is Kind.LOOP]
    for axis in reversed([a for a in rows if a.name not in walked and a not in free]):
        count = gcd(axis.size, passing)
        passing //= count
        if chooser.apply(OptKind.SPLIT, axis, count):
            chooser.apply(OptKind.ORDER, inner := f"{axis.name}s")
            yield inner


def write_out_fold(chooser: Chooser, copies: int) -> None:
    """Few steps of the fold, as those of a window that did not become one axis, have no loop, if
    registers are left: gcc loads ahead. There are `copies` multiply-adds in each."""
    most = SUMMED if chooser.target.vector_registers - copies >= SPARED else 0
    for axis in reversed([a for fold in chooser.one.folds for a in fold.axes[1:]]):
        copies *= axis.size
        if axis.size > FEW or copies > most:
            return
        chooser.apply(OptKind.UNROLL, axis, axis.size)


def _stage(chooser: Chooser, sides: _Sides, tiling: Tiling, depth: Axis) -> None:
    """Copy what is read again to tiles, before a piece of work or each step of the fold."""
    stepped = tiling.step and chooser.apply(OptKind.BLOCK, depth, tiling.step)
    grid = chooser.nest.grid(chooser.one)
    if not (grid and tiling.packs) or sides.packed is None:
        return
    after = depth.name if stepped and tiling.step < depth.size else grid[-1].name
    for load in (sides.packed, *packed_beside(chooser, sides.packed)):
        _stage_factor(chooser, after, load.slot, packed=True)
    if tiling.repacks and sides.other is not None:
        _stage_factor(chooser, after, sides.other.slot, packed=False)
    for tile in chooser.one.tiles:
        _write_out(chooser, tile)


def _stage_factor(chooser: Chooser, after: str, slot: int, packed: bool) -> None:
    """Copy what folds read of a slot, wherever else that is read, as the other factor, too."""
    one = chooser.one
    found, folded = ways(one, slot), toposort([fold.body for fold in one.folds])
    lanes = chooser.nest.lanes
    inside = [n for n, e in enumerate(found, 1) if e in folded and (not lanes & e.free) != packed]
    which = inside[0] if len(inside) == 1 < len(found) else 0
    chooser.apply(OptKind.STAGE, after, which, slot)


def _write_out(chooser: Chooser, tile: Tile) -> None:
    """Where vectors of a tile are masked, all steps that masks depend on are written out.

    Then most turn out to need none, as those of pixels that are on no edge, and others are numbers,
    or are known before the loops over channels. So it is where vectors may end in the next row.
    """
    lane, loads = tile.axes[-1], [e for e in nodes(tile.value) if isinstance(e, Load)]
    rows = [steps_of_rows(e, lane) for e in loads if is_in_rows(e.position, lane)]
    asked = frozenset().union(*rows) if rows else chooser.steps_of_masks(loads)
    kinds = {a: chooser.nest.kind(a) for a in (*asked, *tile.axes)}
    steps = {a for a in asked if kinds[a] is not Kind.GRID}
    loops = [a for a in tile.axes if a in steps and kinds[a] is Kind.LOOP]
    copies = prod(a.size for a in tile.axes if a in loops or kinds[a] is Kind.UNROLL)
    if steps <= {*tile.axes} and copies <= WRITTEN:
        for axis in loops:
            chooser.apply(OptKind.UNROLL, axis, axis.size)
