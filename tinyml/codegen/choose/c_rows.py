"""How many rows C walks at a time, and in which order: they do not wait for one another."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tinyml.codegen.ahead import LINE
from tinyml.codegen.choose.chooser import Chooser
from tinyml.codegen.choose.estimate import OVERLAP, PAGE, PORTS
from tinyml.codegen.expr import Alu, Expr, Fold, Load, Select
from tinyml.codegen.nest import Kind, Nest, Store, roots
from tinyml.codegen.optimize.keep import made_again
from tinyml.codegen.optimize.opts import OptKind
from tinyml.graph import toposort
from tinyml.index import Axis
from tinyml.ops import FUNCTIONS, WORK, Op

WAITING = 50  # cycles for the lanes of a fold, where nothing else is there to be done
CROWDED = 0.1  # more for each vector, if twice as many rows are walked
DELIVERED = 10  # bytes of a cycle from memory, if it is asked for them early
TORN = 1.5  # times longer, if several rows are stored in turn that do not begin with lines
NEARLY = 1.02  # times the least: fewer rows have less text
WAYS = 8  # lines of one place of pages, of rows and arrays, that the closest cache holds surely
BYTES = 4  # that are looked up at a time
PIECES = 64  # of work, about, are left for threads by what is walked together


def calls(one: Nest) -> bool:
    """Whether something is a function, which takes longer than memory does."""
    return any(isinstance(e, Alu) and e.op in FUNCTIONS for e in one.exprs)


def rows_at_a_time(chooser: Chooser, rows: Sequence[Axis]) -> tuple[Axis, int]:
    """Which rows are walked side by side, and how many: as many as possible of those that pay.

    Where folds read folds, other rows' vectors go through the same ops while the lanes of one are
    folded, for which the row's next fold waits. Best are rows that share what they read and ask,
    as heads share a mask; but neighbours if all comes from memory, which is read in longer runs
    then, or if lines of rows a page apart push each other out of the cache.
    """
    one = chooser.one
    if not any(fold.body.has_fold for fold in one.folds):
        return rows[-1], 1
    rows = rows[-1:] if chooser.nbytes > chooser.target.last_cache else rows
    counts, walked = _counts(chooser, one, rows), {*one.rows}
    asked = [v.free for e in one.exprs if isinstance(e, (Load, Select)) for v in e.valid]
    found = [own for own in (*asked, *(e.free for e in one.loads)) if not own <= walked]
    places: list[Load | Store] = [*one.loads, *one.stores]
    along = {at.slot: at for at in places if not at.position.free <= walked}

    def worth(row: Axis) -> tuple[bool, int, int]:
        apart = [(p.position.stride(row) or 0) * p.dtype.itemsize for p in along.values()]
        crowded = counts[row] * sum(nbytes % PAGE == 0 < abs(nbytes) for nbytes in apart) > WAYS
        return not crowded, counts[row], sum(row not in own for own in found)

    best = max(reversed(rows), key=worth)
    return best, counts[best]


def _counts(chooser: Chooser, one: Nest, rows: Sequence[Axis]) -> dict[Axis, int]:
    """Of each axis the fewest rows that take about as long as any number.

    More are no gain where memory is waited for.
    """
    pieces, vectors = prod(a.size for a in one.rows), _vectors(one, chooser.lanes)
    computing, waiting = _computing(one, chooser.lanes), WAITING * len(one.folds)
    far = chooser.nbytes > chooser.target.last_cache
    fetching = chooser.nbytes / pieces / DELIVERED if far else 0
    stored = [s for s in one.stores if not s.position.free <= {*one.rows}]
    counts = {}
    for row in rows:
        apart = [(s.position.stride(row) or 0) * s.dtype.itemsize for s in stored]
        torn = TORN if any(nbytes % LINE for nbytes in apart) else 1
        takes = {}
        for n in (n for n in (1, 2, 4) if n == 1 or (row.size % n == 0 and pieces >= n * PIECES)):
            cycles = computing + CROWDED * vectors * (n.bit_length() - 1) + waiting / n
            fetched = fetching * torn if n > 1 else fetching
            takes[n] = max(cycles, fetched) + OVERLAP * min(cycles, fetched)
        least = min(takes.values())
        counts[row] = next(n for n, cycles in takes.items() if cycles <= NEARLY * least)
    return counts


def _vectors(one: Nest, lanes: int) -> float:
    """How many of them the loops of a row walk."""
    walked = [*(fold.axes for fold in one.folds), *(walk.axes for walk in one.walks if walk.axes)]
    return sum(prod(a.size for a in axes) for axes in walked) / lanes


def _computing(one: Nest, lanes: int) -> float:
    """Cycles of arithmetic on a row; what several loops would make again is kept."""
    rows = {*one.rows}
    kept = {*made_again(one, rows)[1:]}
    steps = 0
    for e in toposort(roots(one), (), lambda e: () if e in kept else e.sources):
        inner = e.free.union(e.axes if isinstance(e, Fold) else ()) - rows
        if inner and isinstance(e, (Alu, Fold)) and e not in kept:
            steps += prod(a.size for a in inner) * (WORK[e.op] if isinstance(e, Alu) else 1)
    return steps / lanes / PORTS


def in_order(chooser: Chooser) -> None:
    """Rows are walked in the order in which most of what is read and stored along them lies.

    The last of several is a loop: to find out which row a piece of work is takes a short one long.
    """
    one = chooser.one
    if any(chooser.nest.kind(a) is Kind.GRID for a in one.rows):
        return
    places = [*(e.position for e in one.loads), *(s.position for s in one.stores)]
    along = [at for at in places if not at.free <= {*one.rows}]
    rows = [a for a in one.rows if chooser.nest.kind(a) is Kind.LOOP]
    lying = sorted(rows, key=lambda a: -sum(abs(at.stride(a) or 0) for at in along))
    for axis in reversed(lying if lying != rows else []):
        chooser.apply(OptKind.ORDER, axis)
    many = prod(a.size for a in lying[:-1] if a not in one.ordered) >= PIECES
    chooser.bind_grid(but=(lying[-1].name,) if many else ())


def looked_up(chooser: Chooser, row: str) -> bool:
    """Lanes along a row, or single elements that bytes say where to find.

    Whether what is looked up decides how many rows or elements are made at a time.
    """
    axis = chooser.nest.axis(row)
    if axis is not None and _looks_bytes_up(chooser.one, axis):
        return chooser.apply(OptKind.UNROLL, row, BYTES)
    chooser.apply(OptKind.LANES, row, chooser.lanes)
    return _looked_up_together(chooser)


def _looked_up_together(chooser: Chooser) -> bool:
    """Whether two rows are made at a time, as it takes as long to find places as to read there.

    Four rows take no less time than two.
    """
    rows = [a for a in chooser.one.rows if chooser.nest.kind(a) is Kind.LOOP][:-1]
    found = [(e, at.free) for e in chooser.one.loads for at in e.position.looked]
    for row in reversed(rows if prod(a.size for a in rows) >= 2 * PIECES else ()):
        shared = any(row in e.free and free and row not in free for e, free in found)
        if shared and row.size % 2 == 0:
            return chooser.apply(OptKind.UNROLL, row, 2)
    return False


def _looks_bytes_up(one: Nest, row: Axis) -> bool:
    """Whether a map copies what bytes in memory, as they are, say where to find along a row.

    One is loaded as a place; vectors of them are widened only to be taken apart again.
    """

    def is_byte(e: Expr) -> bool:
        while isinstance(e, Alu) and e.op is Op.CAST:
            e = e.operands[0]
        return isinstance(e, Load) and e.dtype.itemsize == 1

    found = [store.value.position.looked for store in one.stores if isinstance(store.value, Load)]
    along = [[is_byte(at.value) for at in looked if row in at.free] for looked in found]
    return len(found) == len(one.stores) and all(own and all(own) for own in along)
