"""Estimates: how long a contraction takes by how it is tiled, before any Opt is applied.

The model of `model.py` reads finished instructions, which take milliseconds to make. A chooser has
microseconds for each of its proposals, so what is counted here are the same things of a loop nest
that is known beforehand: instructions, and bytes by the place that they come from; see
`c_contraction.py`. The unit is the cycle of a core as cores are today. It follows from the
target's description alone: what is generated for a machine must not depend on who else used it
while it was measured.

Threads that take pieces of work from each other end at the latest when Graham's bound says, "Bounds
on Multiprocessing Timing Anomalies" (1969): one piece begins when all others end. Half of that is
counted, or what is left over when pieces are shared out evenly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import inf, prod

from tinyml.codegen.ahead import LINE
from tinyml.codegen.target import Target
from tinyml.frozen import dataclass

PORTS = 2  # vectors that a core loads in a cycle, and multiplies and adds
PIPES = 4  # instructions on vectors in a cycle
WAIT = 5  # cycles until a sum can be added to again
CLOSEST = 32 << 10  # bytes of the L1 cache
SPEED = (64, 32, 8)  # bytes of a cycle from L1, L2 and the last cache, if all cores read
MEMORY = 6  # bytes of a cycle from memory
OVERLAP = 0.3  # share of the shorter of computing and fetching that shows beside the longer
BEGUN = 20  # cycles that a register tile takes besides its multiply-adds
COPIED = 4  # cycles that a vector takes to be copied to a tile
ASKED = 16  # cycles more, if it takes to find out which of its lanes are masked
MASKED = 4  # instructions that it takes to ask which lanes are in a range,
DIVIDED = 32  # and if the step of a window has to be found out first
GATHERED = 0.75  # cycles that an element takes, if vectors are put together of such as lie apart
NUMBER = 3  # cycles that an element takes to be copied alone
BESIDE = 1  # and in a vector of such as lie side by side
ACROSS = 4  # cycles that the lanes of a sum take to be added up
SPREAD = 2  # cycles until a number that was computed is in all lanes; what is loaded takes none
JUMP = 4  # cycles that a step of the fold takes to another line, if these fit the closest cache
AHEAD = 0.25  # to a line that is there before it is needed
FAR = 6  # times that at most, if they do not
CROWDED = 2048  # bytes: lines at multiples of it share a few places of the closest cache
PUSHED = 3  # times longer that a number takes if they do
PASSES = 10  # over lines that do, at least: to copy them takes longer, too
PAGE = 4096  # bytes
LONG = 1024  # bytes side by side that memory delivers as fast as any more
REACH = 8 << 20  # bytes whose pages a processor knows where to find
TORN = 2  # times more that it takes for single lines, each of another page
RUNS = 16  # that a processor follows at a time: so many jump to and fro for nothing
WRITTEN = 128  # vectors that are copied to a tile one after the other, at most
HELD = 2 << 20  # bytes of tiles at most: they lie on a stack
PIECES = 4  # of rows for each core at most, and of products that share panels at least
SHARED = 16_000  # cycles of work for which another thread is woken


@dataclass(frozen=True)
class Tiling:
    """Sizes of a contraction's loops; from the outside: pieces, steps, rows, panels."""

    vectors: int  # of one row of a register tile
    height: int  # rows of a register tile
    panels: int  # packed at once
    piece: int = 0  # rows that one piece of work walks; 0 for all
    step: int = 0  # of the first axis of the fold, before sums wait in a tile; 0 if none do
    packs: bool = True  # whether there is a tile for panels at all
    repacks: bool = False  # whether the other factor is packed too


@dataclass(frozen=True)
class Factor:
    """What it takes to read a factor where it lies."""

    work: float = 0  # on each of its elements, or vectors
    jump: bool = False  # whether it takes another line, which misses the closest cache
    crowded: bool = False  # whether these lines push each other out of it
    together: bool = False  # whether a register tile's rows are in one line, or two


@dataclass(frozen=True)
class Edges:
    """Where vectors of a factor are masked, as pixels of windows are that reach beyond an image.

    Masks depend on so many `steps` of the fold, and take so many instructions if they are `asked`
    for each of them. As many elements as `further` says, beyond those of one step, are all that
    `together` other steps take: a tile holds each of them once.
    """

    steps: int
    asked: int = MASKED
    further: int = 0
    together: int = 1

    def share(self, columns: int) -> float:
        """Of what all steps take of so many columns, how much a tile holds."""
        return min((columns + self.further) / (columns * self.together), 1)

    def are_written_out(self, columns: int, lanes: int) -> bool:
        """Whether the vectors that masks differ in are so few that each is copied by itself."""
        return columns * self.together * self.share(columns) * self.steps / lanes <= WRITTEN


@dataclass(frozen=True, eq=False)
class Product:
    """A contraction: columns are packed in panels, rows of the other factor pass over them."""

    others: int  # products side by side
    rows: int
    panels: int
    depth: int
    itemsize: int
    nbytes: int  # of all that is read and written
    scattered: int  # loads of columns that lie apart: vectors of them are put together
    apart: int  # numbers that are read or written one by one with each sum
    columns: Factor
    other: Factor
    target: Target
    edges: Edges | None = None  # of columns
    beside: bool = False  # whether numbers of the other factor are copied in vectors
    again: float = 1  # times that a number of the other factor is read of one copy, as of a window
    alike: int = 1  # of the products side by side, how many have the same columns

    def cycles(self, t: Tiling, depth: int, most: float = inf) -> float:
        """How long all cores take, with steps of `depth`; inf if to compute is more than `most`."""
        vector, sums = self.target.vector_bytes, t.vectors * t.height
        lanes, piece = vector // self.itemsize, t.piece or self.rows
        pieces, blocks = -(-self.rows // piece), -(-self.panels // t.panels)
        tiles, computing = self.multiplying(t, depth)
        passing = self.passing(t)
        if computing * (shared := self._shared(t, piece, blocks * pieces / passing)) > most:
            return inf  # whatever it takes to copy
        panel, slab = depth * t.vectors * vector, int(depth * piece * self.itemsize / self.again)
        share = self.edges.share(t.panels * t.vectors * lanes) if self.edges else 1
        packed = int(panel * t.panels * share)
        kept = piece * t.panels * t.vectors * vector if depth < self.depth else 0
        if t.packs * packed + t.repacks * slab + kept > HELD:
            return inf
        factor = self.others * self.rows * self.depth / self.again  # elements
        copied = self.others / passing * self.panels * t.vectors * self.depth * pieces * share
        if t.packs:
            computing += copied * self._copying(t, lanes)
        if t.repacks:
            computing += blocks * factor * ((BESIDE if self.beside else NUMBER) + self.other.work)
        if kept:
            computing += 2 * tiles * sums
        computing += NUMBER * self.apart * self.others * self.rows * self.panels * t.vectors * lanes
        if computing * shared > most:
            return inf
        run = t.vectors * vector * (t.panels if t.packs or depth <= RUNS else 1)
        torn = TORN * self.columns.jump * max(0, 1 - run / LONG) * (self.nbytes > REACH)
        read = factor * self.itemsize
        fetched: list[tuple[float, int]] = [  # bytes, and among how many they are read again
            (int(tiles * panel * share), 2 * packed if t.panels > 1 else packed),
            (read + copied * vector * (1 + torn), self.nbytes),
            ((blocks - 1) * read, slab + packed),
        ]
        if t.repacks:
            fetched.append((2 * blocks * read, slab + packed))
        if kept:
            fetched.append((2 * tiles * sums * vector, kept + packed))
        return _together(self.target, computing, fetched) * shared

    def multiplying(self, t: Tiling, depth: int) -> tuple[int, float]:
        """How many register tiles there are, and the cycles that all of them take."""
        tiles = self.others * -(-self.rows // t.height) * self.panels * -(-self.depth // depth)
        step = _step(self, t.vectors, t.height, t.packs, t.repacks, depth, t.panels)
        return tiles, tiles * (depth * step + 2 * t.vectors * t.height + BEGUN)

    def least(self, t: Tiling) -> float:
        """What such register tiles take at least, if all cores multiply at a time."""
        return self.multiplying(t, self.depth)[1] / self._threads(t)

    def passing(self, t: Tiling) -> int:
        """How many products with the same columns a piece of work makes of panels packed once."""
        if not t.packs or t.step or t.repacks:
            return 1
        pieces = -(-self.rows // (t.piece or self.rows)) * -(-self.panels // t.panels)
        most = self.others * pieces // (PIECES * self.target.cores)
        return next((n for n in range(min(self.alike, most), 1, -1) if self.alike % n == 0), 1)

    def _copying(self, t: Tiling, lanes: int) -> float:
        """Cycles that a vector of columns takes to be packed."""
        if self.scattered:
            return self.scattered * GATHERED * lanes
        known = self.edges is None or self.edges.are_written_out(
            t.panels * t.vectors * lanes, lanes
        )
        return COPIED if known else COPIED + ASKED

    def _shared(self, t: Tiling, piece: int, count: float) -> float:
        """The share of all work that the threads for which there is enough to do wait for.

        There are `count` pieces of it for each of the products side by side; rests are smaller.
        """
        threads = self._threads(t)
        late = 1 / threads + (1 - 1 / threads) / 2 / (self.others * count)
        whole = -(-self.others * (self.panels // t.panels) * (self.rows // piece) // threads)
        return max(whole / (self.others * (self.panels / t.panels) * (self.rows / piece)), late)

    def _threads(self, t: Tiling) -> int:
        """How many there is enough to do for."""
        useful = self.others * self.rows * self.panels * t.vectors * self.depth / PORTS
        return min(self.target.cores, 1 + int(useful / SHARED))


def cycles_of_dots(
    target: Target, tiles: float, depth: int, itemsize: int, counts: Sequence[int]
) -> float:
    """How long it takes with vectors along the fold, and so many rows and columns at a time."""
    lanes, sums = target.vector_bytes // itemsize, prod(counts)
    step = max(sums / PORTS, sum(counts) / PORTS, WAIT)
    read = sum(counts) * depth * itemsize
    computing = tiles * (depth / lanes * step + sums * ACROSS + BEGUN)
    threads = min(target.cores, 1 + int(tiles * sums * depth / lanes / PORTS / SHARED))
    return _together(target, computing, [(tiles * read, read)]) / threads


def _together(target: Target, computing: float, fetched: Iterable[tuple[float, int]]) -> float:
    """Cycles for computing while caches deliver, and waiting for memory."""
    levels = CLOSEST, target.cache, target.last_cache // 2  # shared with others
    fetching = waiting = 0.0
    for nbytes, among in fetched:
        level = bisect_left(levels, among)
        if level == len(levels):
            waiting += nbytes / MEMORY
        else:
            fetching += nbytes / SPEED[level]
    return max(computing, fetching) + OVERLAP * min(computing, fetching) + waiting


@lru_cache(maxsize=16)  # most tilings of a product differ in what is around their register tiles
def _step(
    p: Product, vectors: int, height: int, packs: bool, repacks: bool, depth: int, panels: int
) -> float:
    """Cycles of a register tile for one element of the fold."""
    sums, loaded = vectors * height, vectors + height
    asked = p.edges.asked * vectors if p.edges and not packs else 0
    step = max(sums / PORTS, loaded / PORTS, WAIT, (sums + loaded + asked) / PIPES)
    if not repacks:
        spread = p.other.work + SPREAD if p.other.work else 0
        step += spread * height + p.other.jump * _jumping(p, height, depth, panels)
    if not packs:
        step += p.columns.work * vectors
        passes = -(-p.rows // height)
        crowded = p.columns.crowded and passes >= PASSES
        passes = passes if depth * vectors * LINE <= CLOSEST and not crowded else 1
        step += p.columns.jump * JUMP * (depth > RUNS) / passes
    return step


def _jumping(p: Product, height: int, depth: int, panels: int) -> float:
    """Cycles that a step of the fold takes to where the other factor's next numbers lie.

    A line that has those of all rows of a register tile is there before they are needed, but for
    the first of some panels that pass over it; unless such lines push each other out so fast that
    less than half of each is read, or results that lie apart do.
    """
    lost = min(max(depth * LINE / CLOSEST, 1), FAR)
    stays = not p.other.crowded or 2 * height * p.itemsize >= LINE
    if p.other.together and stays and depth > RUNS and lost == 1 and not p.apart:
        return AHEAD + JUMP / panels
    return JUMP * lost
