"""Rules of thumb for C: lanes where memory is contiguous, pieces for all cores, tiles in cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from tinyml.codegen.ahead import LINE
from tinyml.codegen.choose.c_cascade import cascade
from tinyml.codegen.choose.c_contraction import packed, prepared
from tinyml.codegen.choose.c_cuts import cut_where_conditions_change
from tinyml.codegen.choose.c_dots import dots
from tinyml.codegen.choose.c_online import run_along
from tinyml.codegen.choose.c_rows import PIECES, calls, in_order, looked_up, rows_at_a_time
from tinyml.codegen.choose.c_short import few_rows_in_vectors, is_long_rest, join_short
from tinyml.codegen.choose.c_strided import strided
from tinyml.codegen.choose.c_transposes import transposed
from tinyml.codegen.choose.c_windows import windowed
from tinyml.codegen.choose.chooser import (
    Chooser,
    Contraction,
    all_or_nothing,
    is_little_of_rows,
    side_by_side,
)
from tinyml.codegen.choose.estimate import CLOSEST
from tinyml.codegen.crop import needed, steady
from tinyml.codegen.expr import Alu, Expr, Fold, Load, nodes
from tinyml.codegen.long_fold import is_grouped
from tinyml.codegen.nest import Kind, Tile
from tinyml.codegen.optimize.keep import made_again
from tinyml.codegen.optimize.opts import OptKind
from tinyml.graph import toposort
from tinyml.index import Axis
from tinyml.ops import FUNCTIONS, WORK, Op

VECTORS = 4  # that go through a long chain of ops at a time
CHAIN = 24  # work of one: two functions, or the rounds of a random number
IN_A_ROW = 36  # work of three functions, in which nearly every op waits for the last one: four
# cycles, in each of which two others may begin, so that twice as many vectors go through them
NEAR = 1 << 15  # bytes of the nearest cache, from which a tile is brought back at no cost
FILLING = 32  # registers for the sums of a loop and what it fills a tile with
LEAST = 16  # bytes of a vector: with fewer, C compilers do as with single elements
ROWS = 4  # that share what they fold
FEW = 8  # vectors of a row whose folds take less time than to add up their lanes
READ = 8 << 10  # bytes of rows that are read until memory has answered,
PAST = 32 << 10  # and that are read or stored, where it also takes what goes past the caches
MASKS = 32  # bytes of a vector, from which on processors load and store some of its lanes
SUMS = 8  # of narrow columns, of which each waits for itself
ACCUMULATORS = 8  # in all, where several rows are folded at a time
WINDOW = 16  # places of a window at most whose sums are made in one walk
SHORT = 64  # elements of a fold that takes no longer than to add up lanes, about
WRITTEN = 12  # vectors of a row whose folds are written out
TEXT = 512  # nodes at most of a fold that is written out
ABREAST = 2  # vectors of rows at least, of which each has a sum that waits for itself
RUNS = 8  # rows of columns that are walked in turn, of all that is read together
NEARBY = 3  # times the cache, which delivers what is walked twice as far in turn
WIDE = 64  # groups of columns at most: runs of two pages, if they are of four vectors


def _longest(exprs: Iterable[Expr], work: Mapping[Op, int]) -> int:
    """The work of ops, those that have some, that wait for one another; expressions in order."""
    waits: dict[Expr, int] = {}
    for e in exprs:
        own = work.get(e.op, 0) if isinstance(e, Alu) else 0
        waits[e] = own + max([waits[s] for s in e.sources], default=0)
    return max(waits.values(), default=0)


class CChooser(Chooser):
    """Lanes where memory is contiguous, pieces for all cores, tiles for contractions."""

    def cuts(self) -> None:
        cut_where_conditions_change(self)

    def map(self) -> None:
        join_short(self)
        rows = self.one.rows
        if not rows:
            return
        last = rows[-1]
        if self.lanes > 1 and transposed(self, last):
            self._stream()
            return
        outer = prod(a.size for a in rows[:-1])
        piece = max(self.lanes, 4096 // self.lanes * self.lanes)
        if outer < 4 * self.target.cores and last.size >= 2 * piece:
            self.apply(OptKind.PEEL, last, piece)
            self.apply(OptKind.SPLIT, last.name, piece)
            self.apply(OptKind.GRID, last.name)
            self._in_vectors(f"{last.name}s")
        elif few_rows_in_vectors(self):
            pass
        elif self.lanes > 1 and self._masked(last).size >= self.lanes:
            self._in_vectors(last.name)
        self._share()
        self._stream()

    def _masked(self, row: Axis) -> Axis:
        """A row in whole vectors, if what is left over of them takes long."""
        able = self.target.vector_bytes >= MASKS and not self.narrow
        long = able and is_long_rest(self.one, row, self.lanes)
        if long and self.apply(OptKind.PAD, row, self.lanes):
            return self.nest.axis(row.name) or row
        return row

    def _in_vectors(self, row: str) -> None:
        """Lanes; where op waits for op for long, several vectors go through them at a time.

        A processor looks some 200 instructions ahead: not as far as the next step's beginning.
        """
        exprs = self.one.exprs
        if looked_up(self, row):
            return
        constant = not any(store.value.free for store in self.one.stores)
        if (constant and self.nbytes <= self.target.cache) or _longest(exprs, WORK) >= CHAIN:
            functions = _longest(exprs, {op: WORK[op] for op in FUNCTIONS})
            self.apply(OptKind.UNROLL, row, VECTORS * (2 if functions >= IN_A_ROW else 1))

    def scatter(self) -> None:
        """Only rows that alone decide where their stores go are shared out: no two of them meet."""
        one = self.one
        atoms = [[atom for atom, _ in store.position.terms] for store in one.stores]
        looked = {
            a for own in atoms for atom in own if not isinstance(atom, Axis) for a in atom.free
        }
        apart = [a for a in one.rows if a not in looked and all(a in own for own in atoms)]
        if apart and apart[-1] is one.rows[-1] and apart[-1].size >= self.lanes > 1:
            self.apply(OptKind.LANES, apart[-1], self.lanes)
        for axis in apart[:-1]:
            self.apply(OptKind.GRID, axis)

    def _share(self) -> None:
        """Outer rows to the grid, while what stays inside is worth a call."""
        if any(self.nest.kind(a) is Kind.GRID for a in self.one.rows):
            return
        rows = [a for a in self.one.rows if self.nest.kind(a) is Kind.LOOP]
        for axis in rows[:-1] if len(rows) > 1 else ():
            self.apply(OptKind.GRID, axis)
        rests = {split.outer for split in self.nest.splits if split.rest}
        if len(rows) == 1 and rows[0].size >= 2 and rows[0] not in rests:
            self.apply(OptKind.GRID, rows[0])

    def rows(self) -> None:
        if run_along(self):
            return
        if self.one.ordered:
            self._within_rows(None)
            return
        if self.one.adds:
            self.scatter()
            return
        join_short(self)
        one = self.one
        last_row = one.rows[-1] if one.rows else None
        inner = dict.fromkeys(a for group in one.groups[1:] for a in group[-1:])
        long = [a for a in inner if a.size >= self.lanes]
        along = sum(side_by_side(one, a) for a in long)
        # what is costly and made again is made for masked lanes, too; a long fold has lanes as well
        masked = not (long and made_again(one, {*one.rows}))
        least = self.lanes // 2 + 1 if masked else self.lanes
        down = last_row is not None and side_by_side(one, last_row) > along
        wide = last_row is not None and last_row.size >= least and self.lanes > 1
        if wide and last_row and (down or not long or self._spreads(last_row)):
            shared = prod(a.size for a in one.rows[:-1]) >= 2 * self.target.cores
            most = 8 if shared and len(one.folds) == 1 else 4
            most = WRITTEN if self._write_out(last_row) else most
            self._columns(last_row, most, masked)
            self._stream()
            return
        if not (down and last_row is not None and self._narrow_columns(last_row)):
            self._within_rows(last_row)

    @all_or_nothing
    def _narrow_columns(self, row: Axis) -> bool:
        """Columns that fill no vector are a shorter one: along the fold they would be read across.

        Several elements of the fold at a time have sums of their own. Functions want all lanes.
        """
        folds, lanes = self.one.folds, 1 << (row.size - 1).bit_length()
        costly = calls(self.one)
        least = LEAST * self.lanes // self.target.vector_bytes
        if costly or len(folds) != 1 or not least <= lanes < self.lanes:
            return False
        if row.size < lanes:
            self.apply(OptKind.PAD, row, lanes)
        made = self.apply(OptKind.LANES, row.name, lanes)
        steps = folds[0].axes[-1]
        sums = next(n for n in range(SUMS, 0, -1) if steps.size % n == 0)
        before = self.nest
        if made and self._rows_of_columns(1):
            loops = [a for a in self.one.folded if self.nest.kind(a) is Kind.LOOP]
            for axis in loops:
                self.apply(OptKind.UNROLL, axis, axis.size)
        elif made and self.nest is not before:
            self._write_out_masks()
        elif made and sums > 1:
            self.apply(OptKind.UNROLL, steps, sums)
        self.bind_grid()
        self._stream()
        return made

    def _within_rows(self, last_row: Axis | None) -> None:
        """Lanes and accumulators along each row; several rows at a time where that pays."""
        last_row = self._write_out_windows(last_row)
        together = self._read_together() if last_row is not None else None
        if together is not None:
            self.apply(OptKind.PEEL, together, ROWS)
        elif last_row is not None:
            self.apply(OptKind.UNROLL, *rows_at_a_time(self, self._one_by_one()))
        kinds = ((a.size, self.nest.kind(a)) for a in self.one.rows)
        at_once = prod(size for size, kind in kinds if kind is Kind.UNROLL)
        most = ACCUMULATORS // (at_once if together is None else ROWS * at_once)
        for axis in dict.fromkeys(a for g in self.one.groups[1:] for a in g[-1:]):
            if 2 * axis.size > self.lanes:
                self._masked(axis)
        self._keep()
        for axis in dict.fromkeys(f.axes[-1] for f in self.one.folds):
            self._vector_fold(axis, most)
        if together is not None:
            self.apply(OptKind.UNROLL, together.name, ROWS)
        for walk in self.one.walks:
            if walk.axes and walk.axes[-1].size >= self.lanes > 1:
                self._along(walk.axes[-1], [s.value for s in walk.stores])
        in_order(self)
        self._stream()
        self._read_ahead()

    def _write_out_windows(self, row: Axis | None) -> Axis | None:
        """Few rows that read something together, as all places of a window do, in one walk.

        The last row that is left; what they share is loaded once, and each has a sum of its own.
        """
        folds, written = self.one.folds, 1
        pieces = prod(a.size for a in self.one.rows)
        while row is not None and len(folds) == 1 and row.size * written <= WINDOW:
            written *= row.size
            shared = {row in load.free for load in self.one.loads} == {True, False}
            enough = pieces >= written * PIECES // 4
            if not (shared and enough and self.apply(OptKind.UNROLL, row.name, row.size)):
                break
            row = next(reversed(self._one_by_one()), None)
        return row

    def _read_ahead(self) -> None:
        """Memory is asked for the next row, where all that rows are made of fits the cache.

        It takes its time to answer, in which short rows are done.
        """
        rows = self._one_by_one()
        if not rows or self.nbytes <= self.target.cache:
            return
        each = max(1, self.nbytes // prod(a.size for a in rows))
        past = any(store.streams for store in self.one.stores)
        steps = -(-(PAST if past else READ) // each) if self.nbytes >= self.target.last_cache else 1
        if 2 * each <= self.target.cache:
            self.apply(OptKind.AHEAD, rows[-1], steps if steps > 1 else 0)

    def _one_by_one(self) -> list[Axis]:
        """The rows that are walked one after the other, by one thread or several."""
        return [a for a in self.one.rows if self.nest.kind(a) is not Kind.UNROLL]

    def _stream(self) -> None:
        """Results go past the caches, which could not hold them until they are read.

        A line at a time: what has begun one, of several results in turn, would send it in parts.
        """
        stores, read = self.one.stores, {load.slot for load in self.one.loads}
        if self.nbytes < self.target.last_cache or any(s.slot in read for s in stores):
            return
        for lane in [a for a, kind in self.nest.kinds if kind is Kind.LANE]:
            if any(lane in store.position.free for store in stores):
                self.apply(OptKind.STREAM, lane)
        past = [s for s in self.one.stores if s.streams]
        for lane in {a for s in past for a in s.position.free if self.nest.kind(a) is Kind.LANE}:
            vector = lane.size * min(s.dtype.itemsize for s in past)
            self.apply(OptKind.UNROLL, lane.name.removesuffix("v"), LINE // vector)

    def _spreads(self, row: Axis) -> bool:
        """Whether neighbouring rows fold the same elements, each in its own way.

        Few of them, or many that have nothing of a row: each is read once for all its lanes.
        """
        one, folded = self.one, {*self.one.folded}
        short = all(prod(a.size for a in fold.axes) <= SHORT for fold in one.folds)
        apart = not any(row in load.free and load.free & folded for load in one.loads)
        return (
            (short or (apart and row.size >= ABREAST * self.lanes))
            and any(row in fold.free for fold in one.folds)
            and all(e.position.stride(row) in (0, 1) for e in one.loads)
            and all(store.position.stride(row) == 1 for store in one.stores)
        )

    def _keep(self) -> None:
        """What costs much and several loops would compute again waits in tiles, row by row."""
        rows = self.one.rows
        most = self.target.cache // 2
        while rows and (found := made_again(self.one, {*rows})):
            (axis,) = found[0].free - {*rows}
            in_order(self)
            if axis.size * found[0].dtype.itemsize > most:
                return
            tile = self.keep(self._one_by_one()[-1])
            if tile is None:
                return
            most -= tile.nbytes
            if tile.axes[-1].size >= self.lanes > 1 and not self._fills(tile):
                self._along(tile.axes[-1], [tile.value])

    def _along(self, axis: Axis, values: Sequence[Expr]) -> None:
        """Vectors along a loop of a row. Few have none, if each takes long or is not there for all.

        How many steps a short loop has is not foreseen, where masks of rows say so.
        """
        made = toposort(values, (), lambda e: () if isinstance(e, Fold) else e.sources)
        long = any(isinstance(e, Alu) and e.op in FUNCTIONS and axis in e.free for e in made)
        steps, rest = divmod(axis.size, self.lanes)
        self.apply(OptKind.LANES, axis, self.lanes)
        if 1 < steps <= VECTORS and not rest and (long or steady(values, (axis,))[0]):
            self.apply(OptKind.UNROLL, axis.name, steps)

    def _fills(self, tile: Tile) -> bool:
        """Whether a fold fills a tile: one beyond the nearest cache, where registers are many."""
        if tile.nbytes < NEAR or self.target.vector_registers < FILLING:
            return False
        along = dict.fromkeys(fold.axes[-1] for fold in self.one.folds)
        return any(self.apply(OptKind.FILL, axis) for axis in along)

    def _read_together(self) -> Axis | None:
        """The rows of which several are walked as they share a part of what long folds read.

        The last ones share a vector, say, which is near, and others a matrix: that is read once for
        several images, in which rows are worth it that are half as long, and of several folds.
        """
        found, steps = self.one.folds, self.one.folds[0].axes[-1]
        alike = all(f.axes == found[0].axes and not f.body.has_fold for f in found)
        read = [load.free for load in self.one.loads if steps in load.free]
        rows = [*reversed(self._one_by_one())]
        for row in rows if alike else ():
            near = row is rows[0]
            long = steps.size >= (16 if near else 8) * self.lanes and not (near and len(found) > 1)
            if long and row.size >= 2 * ROWS and {row in free for free in read} == {True, False}:
                return row
        return None

    def _write_out(self, row: Axis) -> bool:
        """A short fold, of which each column takes its own part, has no loop: masks are known.

        Steps that a whole vector leaves out are not there then, and sums that several vectors
        begin with are made once, as the C compiler sees.
        """
        found = self.one.folds
        short = row.size <= WRITTEN * self.lanes and all(
            len(fold.axes) == 1
            and fold.axes[0].size <= SHORT
            and fold.axes[0].size * len(nodes(fold.body)) <= TEXT
            for fold in found
        )
        if not (found and short and any(row in r.free for r in needed(found))):
            return False
        for axis in dict.fromkeys(fold.axes[0] for fold in found):
            self.apply(OptKind.UNROLL, axis, axis.size)
        return True

    def _write_out_masks(self) -> None:
        """Steps of folds that masks of vectors depend on have no loop: then most need no mask."""
        steps = self.steps_of_masks(self.one.exprs)
        copies = prod(a.size for a in self.one.axes if self.nest.kind(a) is Kind.UNROLL)
        for axis in self.one.folded:
            copies *= axis.size if axis in steps else 1
            if axis in steps and copies * len(toposort(self.one.exprs)) <= TEXT:
                self.apply(OptKind.UNROLL, axis, axis.size)

    def _vector_fold(self, axis: Axis, most: int) -> None:
        """Several vector accumulators, so that one addition need not wait for the last.

        Twice as many of what is widened fourfold, as bools and small integers are: vectors of it
        come from so few bytes that the loop itself takes as long as they do. Up to four vectors
        of several rows have no loop where functions are called, as these have none, either.
        """
        lanes, half = self.lanes, self.lanes // 2
        rest = axis.size < FEW * lanes and axis.size % lanes and axis.size % max(half, 1) == 0
        if half > 1 and (rest or axis.size < lanes):  # else steps are left over, one by one
            lanes = half
        read = max((e.dtype.itemsize for e in self.one.loads if axis in e.free), default=4)
        counts = (8, 4, 2) if 4 * read * lanes <= self.target.vector_bytes else (4, 2)
        if axis.size >= lanes > 1 and self.apply(OptKind.LANES, axis, lanes):
            steps = axis.size // lanes
            fitting = (n for n in counts if n <= most and steps >= 2 * n)
            whole = most < steps <= VECTORS and axis.size % self.lanes == 0
            if count := steps if whole and calls(self.one) else next(fitting, 0):
                self.apply(OptKind.UNROLL, axis.name, count)

    def _columns(self, row: Axis, most: int, masked: bool) -> None:
        """Folds down columns: lanes and up to `most` vectors of neighbouring columns at once.

        Where there are many columns, several groups of them walk a few elements of the fold in
        turn, so that memory is read in longer runs; their sums wait in a tile.
        """
        if masked and row.size < 16 * self.lanes and row.size % self.lanes:
            self.apply(OptKind.PAD, row, self.lanes)  # the last vector has lanes to spare
            row = self.row(row.name) or row
        fitting = [n for n in range(WRITTEN, 0, -1) if row.size % (n * self.lanes) == 0]
        fitting += [n for n in (4, 2, 1) if row.size >= n * self.lanes]
        vectors = min(fitting[0] if row.size < 16 * self.lanes else 4, most)
        groups = self._groups(row, vectors)
        step = self._step_of_columns() if groups > 1 else 0
        read = self._read_down() if step else []
        if not any(row in load.free for load in read):
            step = 0  # all columns read the same
        width = vectors * self.lanes
        self.apply(OptKind.PEEL, row, width * groups if step else width)
        self.apply(OptKind.LANES, row.name, self.lanes)
        self.apply(OptKind.UNROLL, row.name, vectors)
        self._write_out_masks()
        self._rows_of_columns(vectors)
        inner = f"{row.name}s" if step and self.apply(OptKind.SPLIT, row.name, groups) else ""
        self.bind_grid(but=(inner,))
        if inner:
            self._walk_in_turn(step, vectors)

    def _groups(self, row: Axis, vectors: int) -> int:
        """How many groups of so many vectors of columns may be walked in turn."""
        all_rows = prod(a.size for a in self.one.rows) // (vectors * self.lanes)
        own = row.size // (vectors * self.lanes)
        return min(WIDE, all_rows // (2 * self.target.cores), own)

    def _rows_of_columns(self, vectors: int) -> bool:
        """Short folds that share something with the row above, as a window's weights, are made for
        several rows at a time: one row alone has few sums that need not wait for one another.

        The answer is whether these are all, so that it is known which of them windows reach beyond.
        """
        one, axis = self.one, self.one.rows[-1]
        rows = [a for a in one.rows if self.nest.kind(a) is Kind.LOOP]
        short = all(prod(a.size for a in fold.axes) <= SHORT for fold in one.folds)
        beside = all(load.position.stride(axis) in (0, 1) for load in one.loads)
        if not (rows and short and beside):
            return False
        most = self.target.vector_registers // 4 // vectors
        most = min(most, prod(a.size for a in rows) // PIECES)
        count = next((n for n in range(most, 1, -1) if rows[-1].size % n == 0), 1)
        shared = {rows[-1] in load.free for load in one.loads} == {True, False}
        made = count > 1 and shared and self.apply(OptKind.UNROLL, rows[-1], count)
        return made and count == rows[-1].size

    def _walk_in_turn(self, step: int, vectors: int) -> None:
        """A few elements of the fold at a time, written out: gcc leaves such a loop as it is."""
        folds = self.one.folds
        axis, body = folds[0].axes[0], toposort([fold.body for fold in folds])
        count = 2 * step if self._are_near(axis, 2 * step) else step
        if self.apply(OptKind.BLOCK, axis, count) and step * vectors * len(body) <= TEXT:
            self.apply(OptKind.UNROLL, f"{axis.name}b", step)

    def _are_near(self, axis: Axis, step: int) -> bool:
        """Whether the closest cache holds so many elements of the fold for all columns."""
        read = self._read_down()
        each = sum(abs(e.position.stride(axis) or 0) * e.dtype.itemsize for e in read)
        fits = step * each <= CLOSEST and self.nbytes <= NEARBY * self.target.cache
        return fits and axis.size % step == 0

    def _read_down(self) -> list[Load]:
        """What folds down columns read of each column."""
        one = self.one
        axis, rows = one.folds[0].axes[0], {*one.rows}
        return [e for e in one.loads if axis in e.free and e.free & rows]

    def _step_of_columns(self) -> int:
        """How many elements of a fold are walked before the next columns; 0 if it is short."""
        found = self.one.folds
        axis = found[0].axes[0]
        alike = all(fold.axes == (axis,) and not fold.body.has_fold for fold in found)
        if not alike or axis.size <= SHORT:  # then in order, whatever the number of cores
            return 0
        least = max(RUNS // max(1, len(self._read_down())), 4)
        steps = (n for n in range(least, 6 * RUNS + 1) if axis.size % n == 0)
        return next((n for n in steps if is_grouped(axis.size // n, found)), 0)

    def contraction(self, found: Contraction) -> bool:
        if self.lanes == 1 or self.one.adds:
            return False
        alone = all(f is found.fold for f in self.one.folds)
        if alone and strided(self, found):
            return True
        if not alone and (run_along(self) or cascade(self, found)):
            return True
        if is_little_of_rows(self.one, found):
            return False
        every = (windowed, dots, packed) if alone else (packed,)
        candidates = [made for choose in every if (made := choose(self, found))]
        best = min(candidates, key=lambda candidate: candidate.cycles, default=None)
        if best is None:
            prepared(self, found)  # folds of rows walk joined axes, too
            return False
        best.apply()
        return True
