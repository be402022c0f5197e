"""Rules of thumb for maps in C that read across: along other rows than they write.

They are walked in squares of elements, so that what one row of a square brings to the cache serves
all. Large ones are copied to a tile in whole vectors, where memory delivers them or no line is
fetched ahead, or where rows begin so far apart that their lines would push each other out.
"""

from __future__ import annotations

from tinyml.codegen.choose.chooser import Chooser, all_or_nothing
from tinyml.codegen.choose.estimate import CROWDED
from tinyml.codegen.expr import Expr, Load, nodes
from tinyml.codegen.optimize.opts import OptKind
from tinyml.codegen.optimize.tiles import loads_of, ways
from tinyml.index import Axis

SQUARE = 16  # elements of float32 in a cache line
TILE = 256  # bytes of a row of a square that is copied
LONGER = 2  # times as long are the lines of it that are read
FAR = 8192  # bytes from row to row, whose lines no processor fetches ahead: it sees pages


def transposed(chooser: Chooser, last: Axis) -> bool:
    """Choose squares for a map that reads across its last row; False if it does not."""
    across = _read_across(chooser, last)
    if across is None:
        return False
    jumps = _jumping(chooser, across, last)
    side = min(4 * SQUARE, *(TILE // e.dtype.itemsize for e in jumps))
    apart = [(e.position.stride(last) or 0) * e.dtype.itemsize for e in jumps]
    far = chooser.nbytes > chooser.target.cache and max(apart) >= FAR
    beyond = chooser.nbytes > chooser.target.last_cache
    worth = far or beyond or any(n % CROWDED == 0 for n in apart)
    large = worth and min(across.size, last.size) >= side
    if not (large and _copied(chooser, across, last, side)):
        _square(chooser, across, last, SQUARE, SQUARE)
    chooser.apply(OptKind.LANES, f"{last.name}s", chooser.lanes)
    return True


def _read_across(chooser: Chooser, last: Axis) -> Axis | None:
    """Another row axis along which some load lies side by side, and jumps along the last."""
    rows = chooser.one.rows[:-1]
    found = [a for a in rows if _jumping(chooser, a, last)]
    longest = max(found, key=lambda a: a.size, default=None)
    return longest if longest is not None and min(longest.size, last.size) >= SQUARE else None


def _jumping(chooser: Chooser, across: Axis, last: Axis) -> list[Load]:
    """The loads that lie side by side along one axis, and jump along another."""
    return [
        load
        for load in chooser.one.loads
        if load.position.stride(across) == 1 and abs(load.position.stride(last) or 0) > 1
    ]


@all_or_nothing
def _copied(chooser: Chooser, across: Axis, last: Axis, side: int) -> bool:
    """Whether what jumps along a square could be copied to tiles, in whole vectors.

    Memory is read in longer runs than it is written: two squares that are one.
    """
    longer = LONGER * side
    read = longer if across.size % longer == 0 else side
    _square(chooser, across, last, read, side)
    grid = chooser.nest.grid(chooser.one)
    down, along = (chooser.row(f"{axis.name}s") for axis in (across, last))
    if not grid or down is None or along is None:
        return False
    while jumps := _jumping(chooser, down, along):
        one, slot = chooser.one, jumps[0].slot
        made = [*ways(one, slot), *loads_of(one, slot)]
        which = next(n for n, e in enumerate(made, 1) if _lies_along(e, jumps[0], down))
        if not chooser.apply(OptKind.STAGE, grid[-1], which, slot):
            return False
    for tile in chooser.one.tiles:
        chooser.apply(OptKind.LANES, tile.axes[-1], chooser.lanes)
    return True


def _lies_along(e: Expr, load: Load, axis: Axis) -> bool:
    """Whether all that is loaded for what is made of a load lies side by side along an axis."""
    found = nodes(e)
    return load in found and all(
        other.position.stride(axis) in (0, 1) for other in found if isinstance(other, Load)
    )


def _square(chooser: Chooser, across: Axis, last: Axis, read: int, written: int) -> None:
    """Neighbouring squares follow each other: the other rows, of images mostly, change last."""
    others = [a for a in chooser.one.rows if a not in (across, last)]
    for axis, side in ((across, read), (last, written)):
        chooser.apply(OptKind.PEEL, axis.name, side)
        chooser.apply(OptKind.SPLIT, axis.name, side)
    for axis in (last, across, *reversed(others)):
        chooser.apply(OptKind.ORDER, axis.name)
    chooser.bind_grid(but=(f"{across.name}s", f"{last.name}s"))
