"""Cascades in CUDA: products whose factors are made of products, as attention is.

Rows stay where they are, in registers; what they meet comes step by step. Halves are multiplied
by tensor cores, a warp or a warpgroup at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tinyml.codegen.choose.chooser import Chooser, all_or_nothing, padded
from tinyml.codegen.choose.cuda_stages import bytes_of, fill_ahead, fill_by_boxes, to_tile
from tinyml.codegen.choose.cuda_tile import ROWS, fits, loads_of, shared
from tinyml.codegen.crop import begin, needed
from tinyml.codegen.matrices import WARP
from tinyml.codegen.optimize.fragments import (
    COLUMNS,
    EDGE,
    WARPS,
    Sides,
    all_in_panels,
    products_of,
)
from tinyml.codegen.optimize.opts import OptKind
from tinyml.codegen.optimize.panels import row_of
from tinyml.index import Axis
from tinyml.program import REGISTERS

WIDEST = 256  # columns whose sums a warp keeps, for 16 rows
PART = 32  # steps of a fold at least, of which a block has a part
EACH = 4  # warps that keep a multiprocessor busy
FEW = 8  # blocks for each multiprocessor, of which the last ones leave others idle
MOST = 0.75  # of all multiprocessors
WIDE = 128  # columns of what a factor is made of, where boxes are copied
LONG = 16  # steps of a loop, at least, that a block walks alone
BUSY = 192  # steps and columns of both products, at least: powers take less than these then
TAKEN = 232  # registers of a thread, where another warpgroup has boxes copied
ASIDE = 32  # registers of a warpgroup's thread beside its sums, about


def cascade(chooser: Chooser, sides: Sides, inner: list[Sides]) -> bool:
    """A product whose factor is made of products: each warp has rows of both, in registers."""
    rows, columns, axis = sides.rows, sides.columns, sides.fold.axes[0]
    parts, width = _parts(columns.size, 1 + len(sides.beside))
    every = parts * prod(a.size for a in chooser.one.rows if a is not columns)
    read = sum(EDGE * s.longest.size * s.a.dtype.itemsize for s in inner)  # of rows, by a warp
    most = min(2 * rows.size - 1, every // chooser.target.cores) // EDGE
    most = min(most, chooser.target.cache // (2 * read))  # as much is left for what they meet
    warps = next(n for n in (8, 4, 2, 1) if n <= max(1, most))
    most = min(2 * axis.size // EDGE, WIDEST // (width * (1 + len(sides.beside))))
    steps = next(n for n in (4, 2, 1) if n <= max(1, most))
    folded = [(s.longest, EDGE) for s in inner]
    whole = [(rows, EDGE * warps), (columns, width * parts), (axis, EDGE * steps), *folded]
    if not padded(chooser, [a for a, _ in whole], [n for _, n in whole]):
        return False
    chooser.apply(OptKind.ONLINE, axis.name)
    if not chooser.apply(OptKind.FRAGMENT, axis.name, EDGE):
        return False
    chooser.apply(OptKind.THREAD, rows.name, warps)
    chooser.apply(OptKind.UNROLL, columns.name, width // EDGE)
    chooser.apply(OptKind.UNROLL, axis.name, steps)
    chooser.bind_grid()
    busy = warps * prod(a.size for a in chooser.nest.grid(chooser.one))
    name = _among_blocks(chooser, axis.name, EACH * chooser.target.cores // busy)
    before = chooser.nest, [*chooser.opts]
    for waits in (True, False), (False,), ():  # rows of a warp, and what they meet
        chooser.nest, chooser.opts[:] = before
        if walked := _staged_within(chooser, name, waits):
            fill_ahead(chooser, walked, boxes=False)
        if bytes_of(chooser.one.tiles) <= chooser.target.cache:
            return True
    return False


@all_or_nothing
def cascade_of_warpgroups(chooser: Chooser, sides: Sides, inner: list[Sides]) -> bool:
    """The same by warpgroups: each has 64 rows, what they meet lies in panels.

    If most multiprocessors have a block: 128 on 132 took 11.6 us where blocks of warps took 14.8.
    """
    rows, columns, axis = sides.rows, sides.columns, sides.fold.axes[0]
    others = prod(a.size for a in chooser.one.rows if a not in (rows, columns))
    each, most = row_of(sides.a.dtype), max(COLUMNS) // (1 + len(sides.beside))
    width = -(-columns.size // each) * each
    blocks, products = others * -(-rows.size // (2 * ROWS)), len(inner) + 1 + len(sides.beside)
    groups = _groups(chooser, products, width <= each, blocks)
    enough = others * -(-rows.size // (groups * ROWS)) >= MOST * chooser.target.cores
    if not (chooser.target.warpgroups and enough and width <= most):
        return False
    if groups == 2 and _by_boxes(chooser, sides, inner, width):
        return True
    if not _made_by(chooser, sides, inner, (groups, width, each)):
        return False
    sums = (width * (1 + len(sides.beside)) + each * len(inner)) // 2
    room = REGISTERS // (WARPS * WARP * (sums + ASIDE))  # for blocks of one warpgroup
    held = (1 + len(sides.beside)) * each // 4  # what products that are deferred multiply
    as_many = room * WARPS * WARP * (sums + held + ASIDE) <= REGISTERS
    defer = groups == 1 and products > 2 and as_many
    if walked := _staged_within(chooser, axis.name, (True, False)):
        some = room if groups == 1 else 2
        fill_ahead(chooser, walked, boxes=False, blocks=some, defer=defer)
    one = chooser.one
    return all_in_panels(one) and bytes_of(one.tiles) <= chooser.target.cache


@all_or_nothing
def _by_boxes(chooser: Chooser, sides: Sides, inner: list[Sides], width: int) -> bool:
    """Two warpgroups for which the card copies boxes, and twice as much is made at a step.

    A multiprocessor has one such block, so a step's sums are made beside the next one's scores. It
    pays where tensor cores take longer than powers, and loops are so long that it does not matter
    that no other block is busy while one begins and ends.
    """
    axis, deep = sides.fold.axes[0], sum(s.longest.size for s in inner)
    sums, held = (width + WIDE * len(inner)) // 2, WIDE // 4
    steps = axis.size // WIDE
    own = any(needed([fold]) for fold in chooser.one.folds)  # half of them, about
    if steps < (2 if own else 1) * LONG or deep + width < BUSY or sums + held + ASIDE > TAKEN:
        return False
    if not _made_by(chooser, sides, inner, (2, width, WIDE)):
        return False
    walked = _staged_within(chooser, axis.name, (True, False))
    if walked is None or not fill_by_boxes(chooser, walked):
        return False
    one = chooser.one
    only = [r for fold in one.folds for r in needed([fold])]
    late = begin(walked, only, {}, chooser.nest.grid(one)).starts  # phases are counted from 0
    return not late and all_in_panels(one)


def _made_by(
    chooser: Chooser, sides: Sides, inner: list[Sides], shape: tuple[int, int, int]
) -> bool:
    """Rows shared out to so many warpgroups, which make so many columns, and so many within."""
    (groups, width, wide), each = shape, row_of(sides.a.dtype)
    rows, columns, axis = sides.rows, sides.columns, sides.fold.axes[0]
    folded = [(s.longest, each) for s in inner]
    whole = [(rows, groups * ROWS), (columns, width), (axis, wide), *folded]
    if not all(fits(a.size, n) for a, n in whole if a is not axis):
        return False
    if not padded(chooser, [a for a, _ in whole], [n for _, n in whole]):
        return False
    chooser.apply(OptKind.ONLINE, axis.name)
    within = wide if wide > each else 0
    if not chooser.apply(OptKind.WARPGROUP, axis.name, width, within):
        return False
    chooser.apply(OptKind.THREAD, rows.name, groups)
    for name, size in dict.fromkeys((s.longest.name, s.longest.size) for s in inner):
        chooser.apply(OptKind.UNROLL, name, -(-size // each) * each // EDGE)
    chooser.bind_grid()
    return True


def _groups(chooser: Chooser, products: int, narrow: bool, blocks: int) -> int:
    """How many warpgroups share what they copy: two, unless that is multiplied often.

    Blocks of one wait for nobody else, and more of them fit. On an H200 gradients of 128 columns
    took 2.58 ms for 2.82 (three products), 4.40 for 4.84 (four); but two products 2.42 for 2.01, as
    they wait for copies, if no other results take registers: 2.62 for 2.90. Where rows have steps
    of their own, the longest of few blocks keep others waiting: 64 columns took 57 us for 65.
    """
    one, cores = chooser.one, chooser.target.cores
    own = narrow and blocks < FEW * cores and any(needed([fold]) for fold in one.folds)
    return 1 if products > 2 or own or len(one.stores) > 1 or blocks < cores else 2


def _among_blocks(chooser: Chooser, name: str, most: int) -> str:
    """A long fold of products in parts for blocks, if rows are too few for multiprocessors."""
    walked = next((a for a in chooser.one.axes if a.name == name), None)
    parts = min(most, walked.size // PART) if walked is not None and not chooser.nest.along else 1
    return shared(chooser, name, 1, parts) if parts > 1 else name


def _staged_within(chooser: Chooser, name: str, waits: Sequence[bool]) -> Axis | None:
    """What products of a cascade multiply in tiles, if it `waits` from step to step, or does not.

    The steps are those of the axis of that name, which is the answer: tiles are filled ahead of it.
    """
    grid = chooser.nest.grid(chooser.one)
    walked = [a for fold in chooser.one.folds for a in fold.axes if a.name == name]
    for made in products_of(chooser.nest):
        for factor in (made.a, made.b):
            each = bool(walked) and walked[0] in factor.free
            after = walked[0] if each else grid[-1] if grid else None
            if after is not None and (not each) in waits and not factor.has_fold:
                to_tile(chooser, factor, after)
    if not walked:
        return None
    _others_staged(chooser, walked[0])
    return walked[0]


def _others_staged(chooser: Chooser, walked: Axis) -> None:
    """What else a step reads that is the same for all rows, as statistics of columns, in tiles.

    Else each step would wait for memory.
    """
    rows = {product.lane[0] for product in products_of(chooser.nest)}
    for load in loads_of(chooser.one):
        if walked not in load.free or not rows.isdisjoint(load.free):
            continue
        before = chooser.nest, [*chooser.opts]
        to_tile(chooser, load, walked)
        if not all(tile.copies for tile in chooser.one.tiles if tile.after is walked):
            chooser.nest, chooser.opts[:] = before


def _parts(columns: int, products: int) -> tuple[int, int]:
    """How many blocks share columns of so many products, and how many each has: registers full.

    Each of them makes again what the products are made of.
    """
    parts = -(-columns * products // WIDEST)
    return parts, -(-columns // (parts * EDGE)) * EDGE
