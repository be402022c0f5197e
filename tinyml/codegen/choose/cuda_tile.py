"""How large a tile a block has of a product of matrices in CUDA, and how many share its fold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import isqrt, prod

from tinyml.codegen.choose.chooser import Chooser
from tinyml.codegen.choose.cuda_stages import STAGES
from tinyml.codegen.expr import Alu, Load
from tinyml.codegen.nest import Nest
from tinyml.codegen.optimize.fragments import EDGE, WARPS, Sides
from tinyml.codegen.optimize.opts import OptKind
from tinyml.graph import toposort

EDGES = EDGE, 2 * EDGE, 4 * EDGE, 8 * EDGE  # rows and columns of a block's tile
ROWS = WARPS * EDGE  # that a warpgroup has
BYTES = 64  # of the fold that a row of a tile holds
PADDING = 16  # bytes behind such a row
SUM = 4  # bytes
BALANCE = 80  # sums whose next products take warpgroups as long as an element of a factor to come
BY_THREADS = 24  # and threads, which take an element of a tile as long as two that are to come
BESIDE = 4  # blocks of a multiprocessor that wait for what they read through windows
MUCH = 2  # times as many bytes are too many
LONG = 512  # steps of a fold that such a block has at least
HEAVY, HEAVY_EDGE = 64, 64  # ops on each sum, of which a tile then has no more rows and columns


def tile_of(
    chooser: Chooser, sides: Sides, down: Sequence[int] = EDGES, across: Sequence[int] = EDGES
) -> tuple[int, int, int]:
    """Rows and columns of a block's tile, and how many blocks share the fold of each."""
    rows, columns, parts = _least(chooser, sides, down, across)[2:]
    small = parts > 1 and rows * columns <= HEAVY_EDGE**2
    if small and any(load.valid for load in loads_of(chooser.one)):
        parts = min(parts * BESIDE, max(parts, folded(sides) // LONG))
    return rows, columns, parts


def reads_more(chooser: Chooser, sides: Sides, down: Sequence[int], across: Sequence[int]) -> bool:
    """Whether such tiles are too few, or too large, for a product that others suit better.

    64 x 16384 x 64 on an H200: 16 parts of one tile took 19.5 us, 22 parts of four 14.2.
    """
    read, best = (_least(chooser, sides, *e)[0] for e in ((down, across), (EDGES, EDGES)))
    return read > MUCH * best


def _least(
    chooser: Chooser, sides: Sides, down: Sequence[int], across: Sequence[int]
) -> tuple[int, int, int, int, int]:
    """The tile for which least is read: how much, its edges' sum, rows, columns, parts of a fold.

    Counted are the bytes that one multiprocessor reads: of factors, by all blocks that it runs one
    after the other, or what it could read while it multiplies, if that is more; and the sums that
    it sets aside and brings together. A part has a multiprocessor of its own: on an H200 96 tiles
    took 68 us as they are, where 36 multiprocessors are idle, and 82 as 384 parts in three rounds.
    But small tiles of windows wait for elements: 72 parts of a gradient took 82 us, 504 of them 52.
    """
    length, cores = folded(sides), chooser.target.cores
    factors, least = length * sides.a.dtype.itemsize, STAGES * BYTES
    nests = len(chooser.nest.nests)  # alike, as phases of a window are
    others = nests * prod(a.size for a in chooser.one.rows)
    others //= sides.rows.size * sides.columns.size
    found, (each, balance) = [], _pace(chooser, sides, others)
    alone = nests == 1 and not (sides.around or sides.beside)
    for rows, columns in _known_tiles(chooser, sides, down, across):
        blocks = others * -(-sides.rows.size // rows) * -(-sides.columns.size // columns)
        sums = rows * columns * SUM
        edge = max((rows + columns) * each, rows * columns // balance)
        even = isqrt((rows + columns) * factors // sums)  # as much of sums as of factors
        most = min(even, factors // least) if alone else 1
        parts = max(1, min(most, cores // blocks))
        waves = -(-blocks * parts // cores)
        read = waves * edge * factors // parts + (parts > 1) * (1 + parts) * sums
        found.append((read, -rows - columns, rows, columns, parts))
    return min(found)


def _pace(chooser: Chooser, sides: Sides, others: int) -> tuple[int, int]:
    """How long elements of factors take, beside their bytes; and sums whose products take as long.

    Of threads it counts where tiles are more than multiprocessors, else they wait for sums, too:
    on 132 multiprocessors 192 tiles of 128 x 128 took 207 us, 384 of half the size 157.
    """
    largest = others * -(-sides.rows.size // EDGES[-1]) * -(-sides.columns.size // EDGES[-1])
    tensor_cores = sides.depth == EDGE or chooser.target.tf32
    return (1, BALANCE) if tensor_cores or largest < chooser.target.cores else (2, BY_THREADS)


def _known_tiles(
    chooser: Chooser, sides: Sides, down: Sequence[int], across: Sequence[int]
) -> Iterable[tuple[int, int]]:
    """Rows and columns that tiles may have."""
    if sides.in_turn:
        down = across = _edges_around(chooser, sides)
    elif _is_heavy(chooser.one, sides):
        down, across = ([n for n in known if n <= HEAVY_EDGE] for known in (down, across))
    return product(_edges(sides.rows.size, down), _edges(sides.columns.size, across))


def shared(chooser: Chooser, name: str, steps: int, parts: int) -> str:
    """The fold in so many parts, each for a block: what then walks the axis of that name.

    Other axes are divided first, and that one into whole steps.
    """
    every = [fold.axes for fold in chooser.one.folds]
    axes = next((own for own in every if any(a.name == name for a in own)), every[0])
    for axis in sorted(axes, key=lambda a: a.name == name):
        unit = steps if axis.name == name else 1
        size = _of_part(axis.size, parts, unit)
        if parts == 1 or size >= axis.size:
            continue
        if size > 1:
            chooser.apply(OptKind.SPLIT, axis, size)
            name = f"{name}s" if axis.name == name else name
        chooser.apply(OptKind.GRID, axis.name)
        parts //= -(-axis.size // size)
    return name


def _of_part(steps: int, parts: int, unit: int) -> int:
    """Steps of each part, in whole units: a quarter more, if all then have as many."""
    size = -(-steps // (parts * unit)) * unit
    even = range(size, size * 5 // 4 + 1, unit)
    return next((n for n in even if steps % n == 0), size)


def whole_parts(steps: int, parts: int, unit: int) -> int:
    """Of how many steps an axis is to be a multiple, so that all its parts have as many."""
    whole = -(-steps // unit) * unit
    return parts * unit if whole % _of_part(whole, parts, unit) else unit


def loads_of(one: Nest) -> list[Load]:
    """What is loaded for the values that are stored."""
    values = toposort([store.value for store in one.stores])
    return [e for e in values if isinstance(e, Load)]


def folded(sides: Sides) -> int:
    return prod(a.size for a in sides.fold.axes)


def _edges_around(chooser: Chooser, sides: Sides) -> Sequence[int]:
    """Edges of tiles made one after the other, so that all rows of factors have room, if any."""
    steps = max(prod(a.size for a in each.fold.axes) for each in (sides, *sides.beside))
    row = -(-steps * sides.a.dtype.itemsize // BYTES) * BYTES + PADDING
    most = min(chooser.target.cache // (2 * (1 + len(sides.beside)) * row), HEAVY_EDGE)
    least = EDGE if sides.depth == EDGE else 2 * EDGE
    return [n for n in EDGES if least <= n <= most] or [HEAVY_EDGE]


def _is_heavy(one: Nest, sides: Sides) -> bool:
    """Whether so much is made of each sum that its text, written out, takes long to compile."""
    made = (e for e in one.exprs if isinstance(e, Alu) and sides.columns in e.free)
    return sum(e.free.isdisjoint(sides.fold.axes) for e in made) > HEAVY


def _edges(size: int, known: Sequence[int]) -> list[int]:
    """Edges of a tile that make an axis of `size` not much longer."""
    return [n for n in known if n > EDGE and fits(size, n)] or [known[0]]


def fits(size: int, edge: int) -> bool:
    """Whether whole tiles are not much longer than an axis."""
    return -(-size // edge) * edge * 5 <= size * 8
