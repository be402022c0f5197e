"""Rules of thumb for CUDA: threads side by side in memory, shared tiles."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import gcd, prod

from tinyml.codegen import crop
from tinyml.codegen.choose.chooser import Chooser, Contraction, all_or_nothing, side_by_side
from tinyml.codegen.choose.cuda_few import by_warps
from tinyml.codegen.choose.cuda_online import run_along
from tinyml.codegen.choose.cuda_products import multiply
from tinyml.codegen.choose.cuda_tile import shared
from tinyml.codegen.choose.cuda_transposed import transposed
from tinyml.codegen.expr import Load, Require
from tinyml.codegen.linear import TX
from tinyml.codegen.matrices import WARP
from tinyml.codegen.nest import Kind, Nest
from tinyml.codegen.optimize.change import LOADS
from tinyml.codegen.optimize.keep import divided_last
from tinyml.codegen.optimize.online import running
from tinyml.codegen.optimize.opts import OptKind, find
from tinyml.codegen.optimize.tiles import loads_of, ways
from tinyml.graph import toposort
from tinyml.index import Axis

THREADS = 2048  # that a multiprocessor runs at once
ACCESSES = 8  # that a thread has under way
FEW_COLUMNS = 1024  # of which threads of a block share each
PART = 256  # steps of a fold that threads of a block share before blocks do
SHARED = 64  # steps of a fold at least, of which a block has a part
LONG = 8  # vectors of a row that are worth the masks of the first and the last one
VECTORS, BESIDE = 1 << 14, 1 << 10  # bytes that 1024 threads read at once; beside a row in tiles
BOTH = 112 << 10  # bytes of a row of which a cache has two for each multiprocessor
AT_ONCE = 16  # elements of a row whose largest a thread knows before it adds up what follows that
EACH = 16  # elements of a row for a thread, where rows are few: more threads have less
MOST_STEPS, OFTEN = 16, 256  # of a fold in one thread's registers; that a thread does by itself
STEPS = 15  # of a thread that walks a row once, beside what it takes to begin and to end
KEPT, MOST_KEPT = 32, 96  # elements of a row that a thread has in registers: of one array, of all


class CudaChooser(Chooser):
    """Threads side by side in memory, a warp or a block per row, shared tiles."""

    def map(self) -> None:
        one = self.one
        if not one.rows or transposed(self):
            return
        last = one.rows[-1]
        alone = not (one.adds or any(one.folds for one in self.nest.nests))  # no products of warps
        self._wide(last, self._least() if alone else WARP)
        size, most = self._left(last), 256 if alone or one.adds else 128
        threads = next(t for t in (256, 128, 64, 32) if t <= min(size, most) or t == 32)
        if alone and len(one.rows) > 1 and threads < most:  # the rest of a block has rows before
            threads = threads if size >= WARP else 1 << (size - 1).bit_length()
            before = one.rows[-2]
            others = min(most // threads, before.size)
            self.apply(OptKind.THREAD, last.name, threads)
            self.apply(OptKind.THREAD, before.name, others)
            threads *= others
        else:
            self.apply(OptKind.THREAD, last.name, threads)
        if not one.adds:
            self._in_flight(threads)
        self.bind_grid()

    def _least(self) -> int:
        """Threads that a row's last axis is to leave for a warp, which others fill."""
        return max(1, WARP // prod(a.size for a in self.one.rows[:-1]))

    def _left(self, axis: Axis) -> int:
        """Steps of a row axis that are still a loop's."""
        found = self.row(axis.name)
        return found.size if found is not None else 1

    def _wide(self, axis: Axis, threads: int = WARP, lanes: int = 0) -> int:
        """Accesses of up to 16 bytes, where the axis is enough for threads.

        Where rows begin anywhere and are long, the axis begins at a vector; else it is whole ones.
        """
        lanes = lanes or self._elements([axis])
        while lanes > 1 and axis.size < threads * lanes:
            lanes //= 2
        if lanes > 1 and axis.size >= LONG * lanes and not self.one.adds:
            self.apply(OptKind.ALIGN, axis, lanes)
            axis = find(self.nest, axis.name)
        while lanes > 1 and axis.size % lanes:
            lanes //= 2
        return lanes if self.apply(OptKind.LANES, axis, lanes) else 1

    def _elements(self, along: Collection[Axis]) -> int:
        """Of the widest that is read or stored along some axes, in 16 bytes."""
        one, apart = self.one, {*along}.isdisjoint
        sizes = [store.dtype.itemsize for store in one.stores if not apart(store.position.free)]
        sizes += [load.dtype.itemsize for load in one.loads if not apart(load.free)]
        return 16 // max(sizes, default=4)

    def _in_flight(self, threads: int) -> None:
        """Several accesses of each thread at a time, where blocks are still enough for the card."""
        one = self.one
        accesses = sum(len(walk.stores) for walk in one.walks)
        accesses += sum(bool(load.free) for load in one.loads)
        rows = [a for a in one.rows if self.nest.kind(a) is Kind.LOOP]
        waves = prod(a.size for a in rows) * threads // (THREADS * self.target.cores)
        for steps in (4, 2):
            for axis in reversed(rows):
                if steps * accesses <= ACCESSES and steps <= waves and axis.size % steps == 0:
                    self.apply(OptKind.UNROLL, axis.name, steps)
                    return

    def rows(self) -> None:
        if any(choose(self) for choose in (by_warps, multiply, run_along)):
            return
        one = self.one
        folded = list(dict.fromkeys(f.axes[-1] for f in one.folds))
        last_row = one.rows[-1] if one.rows else None
        beside = sum(side_by_side(one, a) for a in folded)
        columns = last_row is not None and side_by_side(one, last_row) > beside
        if not columns and self._joined():
            one = self.one
            folded = list(dict.fromkeys(self._last(f.axes) for f in one.folds))
        longest = max((self._steps(a) for a in folded), default=1)
        whole = max((prod(a.size for a in f.axes) for f in one.folds), default=1)
        short = longest < WARP and whole < WARP * WARP
        if prod(a.size for a in one.rows) >= 32 and (columns or short or _is_read_often(one)):
            alone = len(folded) == 1 and not any(walk.axes for walk in one.walks)
            if not columns and alone and whole == longest <= MOST_STEPS:
                self._to_registers(folded[0])
            self._columns(one.rows[-1] if columns else None)
            return
        walked = list(dict.fromkeys(self._last(walk.axes) for walk in one.walks if walk.axes))
        along = {*folded, *walked, *self.nest.lanes}
        apart = [x for x in one.loads if not (x.free.isdisjoint(along) or x.free <= along)]
        arrays = len({load.slot for load in apart})  # what all rows share is in a cache
        walks = ([s.value for s in walk.stores] for walk in one.walks if walk.axes)
        bodies = [*([f.body] for f in one.folds), *walks]
        again = sum(not {*apart}.isdisjoint(toposort(body)) for body in bodies) > 1
        asks = any(isinstance(e, Require) and not e.free.isdisjoint(along) for e in one.exprs)
        branches = asks or any(crop.needed([fold]) for fold in one.folds)
        most = 0 if branches else min(KEPT, MOST_KEPT // max(arrays, 1))
        threads, tiles, most = self._of_row(folded, most, apart if again else [])
        threads = self._share_out((*folded, *walked), threads, most)
        for axis in (*folded[:1], *walked) if self.nest.along else ():
            self.apply(OptKind.UNROLL, axis.name, AT_ONCE // self._elements(along))
        if threads == 32 and last_row is not None and last_row.size >= 4:
            self.apply(OptKind.GRID, last_row)
            self.apply(OptKind.THREAD, last_row.name, 4)
        self.bind_grid()
        if tiles:
            self._in_tiles({load.slot for load in apart})

    @all_or_nothing
    def _joined(self) -> bool:
        """Whether all that is folded, and walked, of a row is one axis now, beside its vectors.

        It is made where a warp for each row leaves a card idle, as for channels of images.
        """
        one = self.one
        groups = list(dict.fromkeys([f.axes for f in one.folds] + [w.axes for w in one.walks]))
        busy = prod(a.size for a in one.rows) * WARP
        several = [axes for axes in groups if len(axes) > 1]
        if not several or busy > THREADS * self.target.cores:
            return False
        for *outer, last in several:
            lanes = self._elements({a for axes in groups for a in axes[-1:]})
            lanes = gcd(last.size, lanes) if side_by_side(one, last) >= 0 else 1
            self.apply(OptKind.LANES, last, lanes)
            for axis in reversed(outer):
                if not self.apply(OptKind.COLLAPSE, axis, LOADS):
                    return False
        return True

    def _last(self, axes: Sequence[Axis]) -> Axis:
        """The innermost axis of some that is a loop's."""
        return next((a for a in reversed(axes) if a not in self.nest.lanes), axes[-1])

    def _steps(self, axis: Axis) -> int:
        """Of an axis, with the vectors that are walked beside it."""
        groups = (g for g in self.one.groups if axis in g)
        return axis.size * max(prod(a.size for a in g if a in self.nest.lanes) for g in groups)

    def _of_row(
        self, folded: Sequence[Axis], most: int, again: Collection[Load]
    ) -> tuple[int, bool, int]:
        """A row's threads; whether what they read `again` waits in shared memory, as it has room.

        There it is as long as registers do not hold `most` of it, which cost no barrier, and unless
        its folds run along: to walk it twice, from a cache, takes 0.88 of the time (cross-entropy
        with its gradient, of 32000 floats or 50304 halves), as no block waits for a whole row.
        """
        longest = max((self._steps(a) for a in folded), default=1)
        sizes = {load.slot: load.dtype.itemsize for load in again}
        stored = [s.value for w in self.one.walks if w.axes for s in w.stores]
        once = {*again}.isdisjoint(toposort(stored))
        alone = len(sizes) == len(self.one.stores) == 1  # in 64 registers of a thread
        alone = alone and len(self.one.folds) <= 2
        # halves are read in fewer steps, between which threads of a smaller block wait less
        walking = 512 if longest >= 512 * STEPS * self._elements(folded) else 256
        if alone and 256 * KEPT < longest <= 1024 * KEPT:
            walked = once and self._online(folded)
            return (walking, False, 1) if walked else (1024, False, most)
        threads = 32 if longest <= 1024 else 256
        rows = prod(a.size for a in self.one.rows)
        while EACH * threads < longest and 2 * rows * threads <= THREADS * self.target.cores:
            threads *= 2
        if not (most and sizes and longest > threads * most):
            return threads, False, most
        each = most - most % self._elements({*folded, *self.nest.lanes})
        if enough := [t for t in (64, 128, 256) if longest <= t * each]:
            return enough[0], False, most
        nbytes = sum(-(-longest * size // VECTORS) * VECTORS for size in sizes.values())
        blocks = self.target.cache // (nbytes + BESIDE)
        if self._online(folded):
            # the fewer rows are under way, the sooner a cache has what is read again
            return walking if once else 512 if nbytes <= BOTH else 1024, False, 1
        if not blocks:
            return threads, False, most
        return next(t for t in (256, 512, 1024) if t * blocks >= 1024), True, 1

    def _online(self, folded: Sequence[Axis]) -> bool:
        """Whether all folds of a row are made in one walk from now on."""
        one = divided_last(self.one)
        found = running(one)
        led = [*found.leaders, *found.followers] if found is not None else []
        whole = len(folded) == 1 and {*led} == {*one.folds}
        return whole and self.apply(OptKind.ONLINE, folded[0].name)

    def _in_tiles(self, slots: Collection[int]) -> None:
        """What threads read of slots along the row is copied to shared memory, and read there."""
        before, grid = (self.nest, [*self.opts]), self.nest.grid(self.one)
        for slot in slots if grid else ():
            while which := self._along_row(slot):
                if not self.apply(OptKind.STAGE, grid[-1], which, slot):
                    break
        if sum(tile.nbytes for tile in self.one.tiles) + BESIDE > self.target.cache:
            self.nest, self.opts[:] = before

    def _along_row(self, slot: int) -> int:
        """Which of the ways to read a slot is a load by all threads of a row; 0 if none is."""
        one = self.one
        numbers = enumerate(loads_of(one, slot), len(ways(one, slot)) + 1)
        return next((n for n, load in numbers if any(a.name == TX for a in load.free)), 0)

    def _columns(self, last: Axis | None) -> None:
        """A column to each thread, or several side by side; blocks share folds if they are few."""
        one = self.one
        together = one.alike and not any(walk.axes for walk in one.walks)
        if last is not None and together:
            self._wide(last, self._least())
        axes = self.one.folds[0].axes
        together = together and all(self.nest.kind(a) is Kind.LOOP for a in axes)
        if together and self._by_threads():
            return
        self._thread_per_row()
        parts = 4 * self.target.cores // prod(a.size for a in self.nest.grid(self.one))
        if together and parts > 1:
            axis = max(axes, key=lambda a: a.size)
            shared(self, axis.name, min(axis.size, SHARED), parts)

    def _to_registers(self, axis: Axis) -> None:
        """All that a thread folds, in wide accesses; or, if all steps of a row read it, stores.

        So are steps of a running sum, for each of which a cache would be asked again.
        """
        one = self.one
        last = one.rows[-1]
        if not any({axis, last} <= load.free for load in one.loads):
            self._wide(last, 1)
            self.apply(OptKind.UNROLL, axis.name, axis.size)
        elif side_by_side(one, axis) > 0:
            lanes = self._wide(axis, 1)
            if 1 < lanes < axis.size:
                self.apply(OptKind.UNROLL, axis.name, axis.size // lanes)

    @all_or_nothing
    def _by_threads(self) -> bool:
        """Whether columns are so few that threads of a block share each of them, before blocks do.

        The last block to come adds up what others left, one after the other, while all others are
        done. The more columns a block has, the more of a line it reads.
        """
        one = self.one
        columns = prod(a.size for a in one.rows if a not in self.nest.lanes)
        longest = max(one.folds[0].axes, key=lambda a: a.size)
        steps = prod(a.size for a in one.folds[0].axes)
        if longest.size < SHARED or columns >= FEW_COLUMNS:
            return False
        across = self._across()  # by nests before
        for side in (PART // across,) if across else (64, 32, 16, 8):
            blocks = -(-columns // side)
            parts = max(1, min(4 * self.target.cores // blocks, steps // PART))
            if blocks * parts >= self.target.cores:
                break
        self._thread_per_row(side)
        name = shared(self, longest.name, SHARED, parts)
        return self.apply(OptKind.THREAD, name, PART // side)

    def _across(self) -> int:
        """The threads that share a fold where others of this kernel do already, or 0."""
        axes = (a for one in self.nest.nests for a in one.axes)
        return next((a.size for a in axes if a.name == TX), 0)

    def _share_out(self, along: Collection[Axis], threads: int, most: int) -> int:
        """A row to threads; what each has of it stays in registers, if it is no more than `most`.

        Folds are not written out. The answer is how many threads: those of nests before, if any.
        """
        threads = self._across() or threads
        widest = self._elements(along)  # what is read along one is used along all
        for axis in along:
            one = self.one
            plain = most > 0 and not any(axis in fold.free for fold in one.folds)
            wide = plain and side_by_side(one, axis) >= 0
            steps = self._steps(axis)
            lanes = self._wide(axis, threads, widest) if wide else steps // axis.size
            each = -(-find(self.nest, axis.name).size // threads)
            few = -(-steps // (threads * lanes)) <= most // lanes
            self.apply(OptKind.THREAD, axis.name, threads)
            if plain and few:
                self.apply(OptKind.UNROLL, axis.name, each)
        return threads

    def _thread_per_row(self, most: int = 128) -> None:
        """Neighbouring rows to the threads of a block, each of which folds by itself."""
        rows = [a for a in self.one.rows if self.nest.kind(a) is Kind.LOOP]
        for axis in reversed(rows):
            size = min(axis.size, most)
            self.apply(OptKind.GRID, axis)
            if self.apply(OptKind.THREAD, axis.name, size):
                most //= size
        self.bind_grid()

    def contraction(self, found: Contraction) -> bool:
        if multiply(self):
            return True
        one = self.one
        if len(one.folds) > 1 and run_along(self):
            return True
        if any(len(f.axes) and f is not found.fold for f in one.folds) or len(one.walks) > 1:
            return False
        return self._small_tiles(found)

    @all_or_nothing
    def _small_tiles(self, found: Contraction) -> bool:
        """Each thread has sums of up to four rows and columns, of factors in shared memory."""
        position = self.one.walks[0].stores[0].position
        across = max(
            found.kept | found.streamed, key=lambda a: (position.stride(a) == 1, a.size, a.name)
        )
        down_side = found.streamed if across in found.kept else found.kept
        down = max(down_side, key=lambda a: (a.size, a.name))
        depth = found.fold.axes[0]
        if min(across.size, down.size) < 16:
            return False
        for axis in (down, across):
            steps = 4 if axis.size >= 64 else 1
            self.apply(OptKind.GRID, axis)
            self.apply(OptKind.THREAD, axis.name, 16)
            self.apply(OptKind.UNROLL, axis.name, steps)
        self.bind_grid()
        inner = prod(a.size for a in found.fold.axes[1:])
        step = 16 // inner if inner < 16 else 1
        after = depth.name
        if 1 < step < depth.size:
            self.apply(OptKind.SPLIT, depth, step)
        elif depth.size <= step:  # all of it fits at once
            grid = self.nest.grid(self.one)
            after = grid[-1].name if grid else ""
        for load in (found.kept_load, found.streamed_load):
            if load is not None and after:
                self.apply(OptKind.STAGE, after, slot=load.slot)
        return sum(tile.nbytes for tile in self.one.tiles) <= self.target.cache


def _is_read_often(one: Nest) -> bool:
    """Whether few rows' worth of memory is folded by a warp of others each: it is in a cache."""
    folded = {*one.folded}
    read = [load.free for load in one.loads if not load.free.isdisjoint(folded)]
    every = min((prod(a.size for a in one.rows if a not in free) for free in read), default=0)
    return every >= WARP and prod(a.size for a in folded) <= OFTEN
