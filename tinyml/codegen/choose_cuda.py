"""Rules of thumb for CUDA: threads side by side in memory, shared tiles."""

from __future__ import annotations

from math import prod

from tinyml.codegen.choose_cuda_online import run_along
from tinyml.codegen.choose_cuda_products import multiply
from tinyml.codegen.chooser import Chooser, Contraction, side_by_side
from tinyml.codegen.fragments import is_plain, sides_of, sides_within
from tinyml.codegen.nest import Kind
from tinyml.codegen.opts import OptKind
from tinyml.index import Axis


class CudaChooser(Chooser):
    """Threads side by side in memory, a warp or a block per row, shared tiles."""

    def map(self, number: int) -> None:
        one = self.one(number)
        if not one.rows:
            return
        last = one.rows[-1]
        self._wide(number, last, last.size)
        self.apply(OptKind.GRID, last.name)
        axis = self.row(number, last.name)
        size = axis.size if axis is not None else 1
        self.apply(
            OptKind.THREAD, last.name, next(t for t in (256, 128, 64, 32) if t <= size or t == 32)
        )
        self.bind_grid(number)

    def _wide(self, number: int, axis: Axis, size: int) -> None:
        """16-byte accesses where the axis divides evenly."""
        itemsize = max(
            (s.dtype.itemsize for w in self.one(number).walks for s in w.stores), default=4
        )
        for load in self.one(number).loads:
            itemsize = max(itemsize, load.dtype.itemsize)
        lanes = 16 // itemsize
        if lanes > 1 and size % lanes == 0 and size >= 32 * lanes:
            self.apply(OptKind.LANES, axis, lanes)

    def rows(self, number: int) -> None:
        if multiply(self, number) or run_along(self, number):
            return
        one = self.one(number)
        folded = {f.axes[-1] for f in one.folds}
        last_row = one.rows[-1] if one.rows else None
        along_fold = sum(side_by_side(one, a) for a in folded)
        longest = max((a.size for a in folded), default=1)
        columns = last_row is not None and side_by_side(one, last_row) > along_fold
        if prod(a.size for a in one.rows) >= 32 and (columns or longest < 32):
            self._thread_per_row(number)
            return
        threads = 32 if longest <= 1024 else 256
        for axis in folded:
            self.apply(OptKind.THREAD, axis, threads)
        for walk in one.walks:
            if walk.axes:
                self.apply(OptKind.THREAD, walk.axes[-1], threads)
        if threads == 32 and last_row is not None and last_row.size >= 4:
            self.apply(OptKind.GRID, last_row)
            self.apply(OptKind.THREAD, last_row.name, 4)
        self.bind_grid(number)

    def _thread_per_row(self, number: int, most: int = 128) -> None:
        """Neighbouring rows to the threads of a block, each of which folds by itself."""
        rows = [a for a in self.one(number).rows if self.nest.kind(a) is Kind.LOOP]
        for axis in reversed(rows):
            size = min(axis.size, most)
            self.apply(OptKind.GRID, axis)
            if size > 1 and self.apply(OptKind.THREAD, axis.name, size):
                most //= size
        self.bind_grid(number)

    def contraction(self, number: int, found: Contraction) -> bool:
        if multiply(self, number):
            return True
        one = self.one(number)
        if len(one.folds) > 1 and run_along(self, number):
            return True
        sides = sides_of(one)
        if sides is not None and is_plain(one, sides) and sides_within(one, sides):
            # each thread has a row of both products
            self.apply(OptKind.UNROLL, sides.columns, sides.columns.size)
            self._thread_per_row(number)
            return True
        if any(len(f.axes) and f is not found.fold for f in one.folds) or len(one.walks) > 1:
            return False
        return self._small_tiles(number, found)

    def _small_tiles(self, number: int, found: Contraction) -> bool:
        """Each thread has sums of up to four rows and columns, of factors in shared memory."""
        position = self.one(number).walks[0].stores[0].position
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
            if steps > 1:
                self.apply(OptKind.UNROLL, axis.name, steps)
        self.bind_grid(number)
        inner = prod(a.size for a in found.fold.axes[1:])
        step = 16 // inner if inner < 16 else 1
        after = depth.name
        if 1 < step < depth.size:
            self.apply(OptKind.SPLIT, depth, step)
        elif depth.size <= step:  # all of it fits at once
            grid = self.nest.grid(self.one(number))
            after = grid[-1].name if grid else ""
        for load in (found.kept_load, found.streamed_load):
            if load is not None and after:
                self.apply(OptKind.STAGE, after, slot=load.slot)
        return True
