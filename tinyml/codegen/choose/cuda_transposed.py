"""Rules of thumb in CUDA for maps that read along another axis than they store: through tiles.

A warp stores what lies side by side. What it would read with jumps, a line of memory for each
element, its block reads in lines, too, puts into shared memory, and takes from there.
"""

from __future__ import annotations

from collections.abc import Iterable

from tinyml.codegen.choose.chooser import Chooser, all_or_nothing
from tinyml.codegen.expr import Load
from tinyml.codegen.nest import Nest
from tinyml.codegen.optimize.opts import OptKind
from tinyml.codegen.optimize.tiles import ways
from tinyml.index import Axis

EDGE = 32  # of a tile
THREADS = 8  # beside each other, across what is stored
SHORT = 16  # steps across that are not divided
SECTOR = 32  # bytes of a line that are read at least
MOST = 4  # tiles


@all_or_nothing
def transposed(chooser: Chooser) -> bool:
    """Choose tiles for what is read across; False if there is nothing."""
    one = chooser.one
    last = one.rows[-1]
    jumping = _jumping(one, last)
    across = _across(one, jumping)
    slots = [load.slot for load in jumping]
    if across is None or len(slots) > MOST or len({*slots}) < len(slots):
        return False
    _to_tiles(chooser, across, last)
    chooser.bind_grid()
    grid = chooser.nest.grid(chooser.one)
    alone = sum(last in e.free for e in one.loads) == 1  # then tiles hold what is made of it
    return grid != () and all(_staged(chooser, grid[-1], slot, alone) for slot in slots)


def _staged(chooser: Chooser, after: Axis, slot: int, alone: bool) -> bool:
    which = 0 if alone else len(ways(chooser.one, slot)) + 1  # only what is loaded
    return chooser.apply(OptKind.STAGE, after, which, slot)


def _jumping(one: Nest, last: Axis) -> list[Load]:
    """Loads whose neighbours along the last axis lie in other lines, if stores' do not."""
    alone = not (one.adds or one.folds or any(walk.axes for walk in one.walks))
    if not alone or last.size < EDGE or any(s.position.stride(last) != 1 for s in one.stores):
        return []
    steps = [(e, e.position.stride(last) or 0) for e in one.loads if last in e.free]
    return [e for e, step in steps if not e.sources and abs(step) * e.dtype.itemsize > SECTOR]


def _across(one: Nest, jumping: Iterable[Load]) -> Axis | None:
    """The axis along which all of them lie side by side."""
    found = {next((a for a in one.rows if e.position.stride(a) == 1), None) for e in jumping}
    return found.pop() if len(found) == 1 else None


def _to_tiles(chooser: Chooser, across: Axis, last: Axis) -> None:
    chooser.apply(OptKind.THREAD, last.name, EDGE)
    if across.size <= SHORT:
        chooser.apply(OptKind.THREAD, across.name, across.size)
        return
    if across.size % EDGE:
        chooser.apply(OptKind.PAD, across, EDGE)
    chooser.apply(OptKind.UNROLL, across.name, EDGE // THREADS)
    chooser.apply(OptKind.THREAD, across.name, THREADS)
