"""Rules of thumb for products of matrices in CUDA: which tiles blocks, warps and threads get.

Tensor cores multiply halves, and floats if TF32 says that they may lose bits; all others threads
that keep sums in registers. What blocks read in all shrinks with the edges of a tile; but each
multiprocessor is to have blocks, so tiles are as small as that asks, and several share a fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tinyml.codegen.choose.chooser import Chooser, all_or_nothing, padded
from tinyml.codegen.choose.cuda_cascade import cascade, cascade_of_warpgroups
from tinyml.codegen.choose.cuda_stages import bytes_of, fill_ahead, to_tile
from tinyml.codegen.choose.cuda_tile import (
    BYTES,
    ROWS,
    fits,
    folded,
    loads_of,
    reads_more,
    shared,
    tile_of,
    whole_parts,
)
from tinyml.codegen.expr import Stored
from tinyml.codegen.matrices import WARP
from tinyml.codegen.nest import Kind, Nest, Tile
from tinyml.codegen.optimize.change import LOADS
from tinyml.codegen.optimize.fragments import (
    COLUMNS,
    EDGE,
    Sides,
    all_in_panels,
    overlap,
    sides_of,
    sides_within,
)
from tinyml.codegen.optimize.opts import OptKind
from tinyml.codegen.optimize.panels import row_of
from tinyml.codegen.optimize.stages import SIZES, copied
from tinyml.codegen.target import THREAD, WORKING
from tinyml.dtype import bfloat16, float16, float32
from tinyml.index import Axis, Quotient, linear

PANELS = (ROWS, 2 * ROWS), COLUMNS  # edges of what one or two warpgroups have
THREADS = 16  # along either edge of a tile, where each thread has sums of its own
NEIGHBOURS = 4  # floats that are read at once
MULTIPLYING = {float16: 75, bfloat16: 80, float32: 80}  # and of those whose tensor cores know these
COLUMNS_APART = 4  # lanes that hold sums of other columns
LOOKED = 64  # registers for the addresses of rows that are looked up, for all of a thread's sums
GROUP = 8  # tiles of rows whose blocks run one after the other: they share columns in a cache


@all_or_nothing
def multiply(chooser: Chooser) -> bool:
    """Choose tiles for a product of matrices; False if it is too small, or of other numbers."""
    sides = sides_of(chooser.one) or of_groups(chooser)
    if sides is None or not sides.depth:
        return False
    inner = sides_within(chooser.one, sides)
    if inner is None or (inner and len(chooser.nest.nests) > 1):
        return False
    if not inner:
        windows = [a for a in sides.fold.axes if _is_window(chooser.one, a)]
        sides = _joined(chooser, sides, sides.columns)
        sides = _joined_rows(chooser, sides)
        sides = _joined_columns(chooser, sides)
        sides = _one_fold(chooser, sides, windows)
    axis = sides.longest
    small = not inner and min(sides.rows.size, sides.columns.size, axis.size) < EDGE // 2
    target = chooser.target
    if small or axis not in sides.a.free & sides.b.free:
        return False
    known = all(target.capability >= MULTIPLYING[s.a.dtype] for s in (sides, *inner) if s.depth)
    if inner:
        by_groups = known and cascade_of_warpgroups(chooser, sides, inner)
        return by_groups or (known and cascade(chooser, sides, inner))
    if not (sides.around or sides.beside) and _by_warpgroups(chooser, sides):
        return True
    if known and (sides.depth == 16 or target.tf32):
        return _on_tensor_cores(chooser, sides, axis)
    return sides.depth == 8 and _in_registers(chooser, sides, axis)


def of_groups(chooser: Chooser) -> Sides | None:
    """A product in each step of a row axis that both factors divide, as groups of channels are."""
    for axis in chooser.one.rows:
        atoms = {atom for load in chooser.one.loads for atom, _ in load.position.terms}
        found = (a for a in atoms if isinstance(a, Quotient) and a.inner == linear(axis))
        for size in {atom.by for atom in found}:
            chooser.apply(OptKind.SPLIT, axis, size)
    return sides_of(chooser.one)


def _joined(chooser: Chooser, sides: Sides, last: Axis, most: int = 4 * EDGE) -> Sides:
    """A short axis made one with those before it, as long as that leaves a product of matrices.

    Images and windows have several short ones. Whoever puts elements into tiles divides again.
    """
    while last.size <= most:
        group = next(g for g in chooser.one.groups if last in g)
        before = chooser.nest, [*chooser.opts]
        outer = group[group.index(last) - 1]
        joined = Axis(outer.name, outer.size * last.size)
        done = outer is not group[-1] and chooser.apply(OptKind.COLLAPSE, outer, LOADS)
        again = sides_of(chooser.one) if done else None
        if again is None or joined not in (again.rows, again.columns, *again.fold.axes):
            chooser.nest, chooser.opts[:] = before
            break
        sides, last = again, joined
    return sides


def _joined_rows(chooser: Chooser, sides: Sides) -> Sides:
    """Rows made one axis with those before them, further if tiles of them would be far from full.

    Columns that come between are walked before.
    """
    sides = _joined(chooser, sides, sides.rows)
    size, edge = sides.rows.size, 4 * EDGE
    if (-(-size // edge) * edge - size) * 8 <= size:
        return sides
    before = chooser.nest, [*chooser.opts]
    chooser.apply(OptKind.ORDER, sides.columns.name)
    joined = _joined(chooser, sides, sides.rows, size)
    if joined is sides:
        chooser.nest, chooser.opts[:] = before
    return joined


def _joined_columns(chooser: Chooser, sides: Sides) -> Sides:
    """Columns too few for a tile, as pixels of a small image, made one axis with those before them.

    Rows that come between are walked before.
    """
    before = chooser.nest, [*chooser.opts]
    if sides.columns.size >= 2 * EDGE or not chooser.apply(OptKind.ORDER, sides.rows.name):
        return sides
    joined = _joined(chooser, sides, sides.columns, 2 * EDGE - 1)
    if joined is sides:
        chooser.nest, chooser.opts[:] = before
    return joined


def _one_fold(chooser: Chooser, sides: Sides, windows: Sequence[Axis]) -> Sides:
    """The axes of a fold made one: places of windows before a step of the others, if it is whole.

    So places are the same for all of a step, and the next steps read the same elements, but for
    their edges. Where blocks share the fold, they have axes of their own.
    """
    rest = [a for a in sides.fold.axes if a not in windows]
    if not (windows and rest) or rest[-1].size % EDGE:
        return _joined(chooser, sides, sides.fold.axes[-1])
    *_, parts = tile_of(chooser, sides)
    last, step = rest[-1].name, BYTES // sides.a.dtype.itemsize
    outer = [a.name for a in (*rest[:-1], *windows)]
    if rest[-1].size % step == 0 and chooser.apply(OptKind.SPLIT, last, step):
        outer.insert(len(rest) - 1, last)
        last += "s"
    for name in reversed(outer):
        chooser.apply(OptKind.ORDER, name)
    most = 4 * EDGE if parts > 1 else folded(sides)
    ordered = sides_of(chooser.one)
    assert ordered is not None
    return _joined(chooser, ordered, ordered.fold.axes[-1], most)


def _is_window(one: Nest, axis: Axis) -> bool:
    """Whether a fold's axis walks windows, whose places are steps of a longer row axis."""
    longer = [a for a in one.rows if a.size > axis.size]
    return any(overlap(load, axis, a) for load in one.loads for a in longer)


def _on_tensor_cores(chooser: Chooser, sides: Sides, axis: Axis) -> bool:
    *edges, parts = tile_of(chooser, sides)
    step = BYTES // sides.a.dtype.itemsize
    step = step if axis.size > step // 2 else step // 2
    read = _read_for_columns(chooser.one, sides)
    depths = dict.fromkeys((axis, *(s.longest for s in sides.beside)))
    whole = padded(chooser, [sides.rows, sides.columns, *depths], [*edges, *[step] * len(depths)])
    if not (whole and chooser.apply(OptKind.FRAGMENT, axis.name, sides.depth)):
        return False
    before = chooser.nest, [*chooser.opts]
    for most in (2, 2), (4, 2):  # warps along an edge: more, if there is no other block beside
        chooser.nest, chooser.opts[:] = before
        warps = [min(n, edge // EDGE) for n, edge in zip(most, edges, strict=True)]
        for walked, edge, n in zip((sides.rows, sides.columns), edges, warps, strict=True):
            chooser.apply(OptKind.UNROLL, walked.name, edge // EDGE // n)
            chooser.apply(OptKind.THREAD, walked.name, n)
        _to_grid(chooser, sides)
        name = shared(chooser, axis.name, step // sides.depth, parts)
        _stage(chooser, sides, name, step // sides.depth)
        one = chooser.one
        looks_up = any(e.position.looked for e in loads_of(one))  # each row has its own address
        beside = LOOKED * looks_up + read * (edges[1] // warps[1] // COLUMNS_APART)
        held = _held(one, prod(edges) * (1 + len(sides.beside)), WARP * prod(warps)) + beside
        if not (parts > 1 or beside >= LOOKED) or held + WORKING <= THREAD:
            break
    return True


def _held(one: Nest, sums: int, threads: int) -> int:
    """Registers of a thread for sums, and for what it loads of a tile before it is put there."""
    loaded = (prod(a.size for a in t.axes) for t in one.tiles if copied(t) is None and t.stages > 1)
    return (sums + sum(loaded)) // threads


def _read_for_columns(one: Nest, sides: Sides) -> int:
    """Arrays of which sums meet the same number in each row, which compilers read but once."""
    once = {*one.rows} - {sides.rows}
    return sum(sides.columns in e.free <= once for e in loads_of(one))


def _by_warpgroups(chooser: Chooser, sides: Sides) -> bool:
    """One or two warpgroups have 64 rows each of a block's tile, and all of its columns.

    If factors can be copied to panels ahead: in boxes, or by threads in pieces of 16 bytes. What
    threads load by themselves, they have to put there before they go on to their products: where
    warps took 24 us for a convolution, warpgroups took 76 us.
    """
    known = sides.depth == EDGE or chooser.target.tf32
    wanted = chooser.target.warpgroups and len(chooser.nest.nests) == 1
    if not (wanted and known) or reads_more(chooser, sides, *PANELS):
        return False
    return _of_one_loop(chooser, sides) or _in_panels(chooser, sides)


@all_or_nothing
def _of_one_loop(chooser: Chooser, sides: Sides) -> bool:
    """Where several axes are folded, as sequences of a batch are: boxes are counted by one loop."""
    if sides.fold.axes[-1].size % row_of(sides.a.dtype):
        return False  # a box would begin in one and end in another
    joined = _joined(chooser, sides, sides.fold.axes[-1], folded(sides))
    made = joined is not sides and _in_panels(chooser, joined)
    return made and any(tile.bulk for tile in chooser.one.tiles)


@all_or_nothing
def _in_panels(chooser: Chooser, sides: Sides) -> bool:
    rows, columns, parts = tile_of(chooser, sides, *PANELS)
    axis, row = sides.longest, row_of(sides.a.dtype)
    name, steps = axis.name, row // sides.depth
    full = fits(sides.rows.size, rows) and fits(sides.columns.size, columns)
    each = row if parts == 1 or len(sides.fold.axes) > 1 else whole_parts(axis.size, parts, row)
    if not full or not padded(chooser, (sides.rows, sides.columns, axis), (rows, columns, each)):
        return False
    if not chooser.apply(OptKind.WARPGROUP, name, columns):
        return False
    chooser.apply(OptKind.THREAD, sides.rows.name, rows // ROWS)
    _to_grid(chooser, sides)
    name = shared(chooser, name, steps, parts)
    _stage(chooser, sides, name, steps, written_out=True)
    one = chooser.one
    return all_in_panels(one) and all(tile.bulk or _in_pieces(tile) for tile in one.tiles)


def _in_pieces(tile: Tile) -> bool:
    """Whether a tile is copied ahead, 16 bytes at a time."""
    found = copied(tile)
    return found is not None and found[1] * tile.value.dtype.itemsize == SIZES[0]


def _in_registers(chooser: Chooser, sides: Sides, axis: Axis) -> bool:
    """Each of 16 x 16 threads keeps sums of several rows and columns, four of which are neighbours.

    So it reads 16 bytes of shared memory at a time, along either axis of a tile. Where a tile holds
    columns as rows, neighbours are those of other threads: four rows of a tile are as many banks
    apart as lead every other thread to the same ones (A @ B.T took 1.8 times as long as A.T @ B).
    """
    *edges, parts = tile_of(chooser, sides)
    step = BYTES // sides.a.dtype.itemsize
    if min(edges) < 2 * EDGE:
        return False
    if not padded(chooser, (sides.rows, sides.columns, axis), (*edges, step)):
        return False
    before = chooser.nest, [*chooser.opts]
    for beside in NEIGHBOURS, 1:
        chooser.nest, chooser.opts[:] = before
        _to_threads(chooser, sides.rows, OptKind.UNROLL, edges[0] // THREADS, NEIGHBOURS)
        _to_threads(chooser, sides.columns, OptKind.LANES, edges[1] // THREADS, beside)
        _to_grid(chooser, sides)
        name = shared(chooser, axis.name, step, parts)
        _stage(chooser, sides, name, step)
        if _lie_in_lanes(chooser):
            break
    return True


def _to_threads(chooser: Chooser, walked: Axis, kind: OptKind, each: int, most: int) -> None:
    """So many steps of an axis for each thread, of which at most `most` are neighbours."""
    beside = min(each, most)
    chooser.apply(kind, walked.name, beside)
    chooser.apply(OptKind.THREAD, walked.name, THREADS)
    chooser.apply(OptKind.SPLIT, walked.name, each // beside)
    chooser.apply(OptKind.UNROLL, f"{walked.name}s", each // beside)


def _lie_in_lanes(chooser: Chooser) -> bool:
    """Whether neighbours lie side by side in tiles."""
    lanes = [a for a, kind in chooser.nest.kinds if kind is Kind.LANE]
    read = [e for e in chooser.one.exprs if isinstance(e, Stored)]
    return all(e.index.stride(a) == 1 for e in read for a in lanes if a in e.free)


def _to_grid(chooser: Chooser, sides: Sides) -> None:
    """Blocks of a group of rows go through the columns together."""
    rows, columns = (chooser.row(a.name) for a in (sides.rows, sides.columns))
    if rows and columns and max(rows.size, columns.size) > GROUP:
        even = (n for n in range(1, rows.size + 1) if rows.size % n == 0)
        group = min(even, key=lambda n: max(n / GROUP, GROUP / n))
        others = [a for a in chooser.one.rows if chooser.nest.kind(a) is Kind.LOOP]
        front = [a.name for a in others if a not in (rows, columns)]
        if 1 < group < rows.size and chooser.apply(OptKind.SPLIT, rows, group):
            front.append(rows.name)
        if group > 1:
            for name in reversed([*front, columns.name]):
                chooser.apply(OptKind.ORDER, name)
    chooser.bind_grid()


def _stage(
    chooser: Chooser, sides: Sides, name: str, steps: int, written_out: bool = False
) -> None:
    """Both factors in tiles, `steps` steps of an axis at a time, filled ahead if there are more."""
    inner = _inner(chooser, name, steps, written_out)
    walked = [a for fold in chooser.one.folds for a in fold.axes if a.name not in inner]
    whole = sides.in_turn and not sides.around  # rows of factors
    folded = [a for a in walked if chooser.nest.kind(a) is Kind.LOOP and not whole]
    grid = chooser.nest.grid(chooser.one)
    if not folded and not grid:
        return
    after, before = (folded or grid)[-1], (chooser.nest, [*chooser.opts])
    for each in (sides, *sides.beside):
        for factor in (each.a, each.b):
            to_tile(chooser, factor, after)
    if sides.in_turn and bytes_of(chooser.one.tiles) > chooser.target.cache:
        chooser.nest, chooser.opts[:] = before
    elif folded:
        fill_ahead(chooser, after)


def _inner(chooser: Chooser, name: str, steps: int, written_out: bool = False) -> set[str]:
    """Names of the axes that `steps` steps of a fold become, four or all of them written out."""
    walked = next((a for a in chooser.one.axes if a.name == name), None)
    if walked is None or steps == 1:
        return set()
    if walked.size > steps and chooser.apply(OptKind.SPLIT, name, steps):
        name = f"{name}s"
    if written_out:
        chooser.apply(OptKind.UNROLL, name, min(walked.size, steps))
    elif steps > NEIGHBOURS:  # products of single numbers
        chooser.apply(OptKind.UNROLL, name, NEIGHBOURS)
    return {name, f"{name}u"}
