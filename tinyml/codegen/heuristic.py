"""Rules of thumb: which Opts a kernel gets on a target.

Each nest is one of three shapes. A map has no folds; a contraction sums a product whose two
factors each walk a row axis that the other does not; every other fold makes rows. An Opt that
turns out not to fit is left out: the kernel is right with any subset of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tinyml.codegen.expr import Alu, Expr, Fold, Load, Select
from tinyml.codegen.nest import Kind, LoopNest, Nest, axes, folds, loads
from tinyml.codegen.opts import Opt, OptError, OptKind, apply
from tinyml.codegen.target import Target
from tinyml.graph import toposort
from tinyml.index import Axis
from tinyml.ops import Op
from tinyml.program import Language


def choose(nest: LoopNest, target: Target) -> tuple[list[Opt], LoopNest]:
    """The Opts for `nest`, in the order in which they apply, and the nest with them applied."""
    chooser = (_CpuChooser if target.language is Language.C else _CudaChooser)(nest, target)
    chooser.choose()
    return chooser.opts, chooser.nest


@dataclass(frozen=True)
class Contraction:
    """A sum of products. `streamed` is walked along vector lanes or x, `kept` along the other."""

    fold: Fold
    kept: frozenset[Axis]  # row axes of one factor alone
    streamed: frozenset[Axis]  # row axes of the other alone
    kept_loads: tuple[Load, ...]
    streamed_loads: tuple[Load, ...]


def contraction_of(one: Nest) -> Contraction | None:
    """The contraction that a nest is, if it is one."""
    for fold in folds(one):
        body = fold.body
        while isinstance(body, Select) or (isinstance(body, Alu) and body.op is Op.CAST):
            body = body.sources[0]
        if fold.op is Op.ADD and isinstance(body, Alu) and body.op is Op.MUL:
            left, right = (_loads(o) for o in body.operands)
            rows = set(one.rows)
            a = {x for e in left for x in e.free} & rows
            b = {x for e in right for x in e.free} & rows
            both = all(set(fold.axes) & {x for e in side for x in e.free} for side in (left, right))
            if a - b and b - a and both:
                return Contraction(
                    fold, frozenset(a - b), frozenset(b - a), tuple(left), tuple(right)
                )
    return None


def _loads(e: Expr) -> list[Load]:
    return [x for x in toposort([e]) if isinstance(x, Load)]


class _Chooser:
    """Applies Opts as it chooses them, so that each choice sees what the last one made."""

    def __init__(self, nest: LoopNest, target: Target) -> None:
        self.nest, self.target = nest, target
        self.opts: list[Opt] = []

    def choose(self) -> None:
        self._collapse()
        number = 0
        while number < len(self.nest.nests):  # a peeled rest is appended, and chosen for later
            one = self.nest.nests[number]
            contraction = contraction_of(one)
            if contraction is None or not self.contraction(number, contraction):
                if folds(one):
                    self.rows(number)
                elif any(store.op for walk in one.walks for store in walk.stores):
                    self.scatter(number)
                else:
                    self.map(number)
            number += 1

    def contraction(self, number: int, found: Contraction) -> bool:
        """Whether the nest could be given tiles."""
        raise NotImplementedError

    def rows(self, number: int) -> None:
        raise NotImplementedError

    def map(self, number: int) -> None:
        raise NotImplementedError

    def scatter(self, number: int) -> None:
        """Stores that may meet in one place: walked by threads that take turns (atomics)."""
        self.map(number)

    def apply(self, kind: OptKind, axis: Axis | str, amount: int = 0, slot: int = 0) -> bool:
        """Make one choice; False if the nest does not admit it."""
        name = axis if isinstance(axis, str) else axis.name
        opt = Opt(kind, name, amount, slot)
        try:
            self.nest = apply(self.nest, opt)
        except OptError:
            return False
        self.opts.append(opt)
        return True

    def _collapse(self, divided: bool = False) -> None:
        for one in self.nest.nests:
            groups = [one.rows, *(w.axes for w in one.walks), *(f.axes for f in folds(one))]
            for name in dict.fromkeys(a.name for group in groups for a in reversed(group)):
                while any(a.name == name for o in self.nest.nests for a in axes(o)):
                    if not self.apply(OptKind.COLLAPSE, name, int(divided)):
                        break

    def one(self, number: int) -> Nest:
        return self.nest.nests[number]

    def row(self, number: int, name: str) -> Axis | None:
        return next((a for a in self.one(number).rows if a.name == name), None)

    def bind_grid(self, number: int, but: tuple[str, ...] = ()) -> None:
        """Every row axis that is still a loop goes to the grid."""
        for axis in self.one(number).rows:
            if self.nest.kind(axis) is Kind.LOOP and axis.name not in but:
                self.apply(OptKind.GRID, axis)


def side_by_side(one: Nest, axis: Axis) -> int:
    """How many loads go to neighbours along `axis`, less those that jump."""
    score = 0
    for load in loads(one):
        stride = load.position.stride(axis)
        if axis in load.free:
            score += 1 if stride == 1 and not any(axis in v.free for v in load.valid) else -1
    return score


class _CpuChooser(_Chooser):
    """Lanes where memory is contiguous, pieces for all cores, tiles for contractions."""

    @property
    def lanes(self) -> int:
        return self.target.vector_bytes // 4

    def map(self, number: int) -> None:
        rows = self.one(number).rows
        if not rows:
            return
        last = rows[-1]
        outer = prod(a.size for a in rows[:-1])
        piece = max(self.lanes, 4096 // self.lanes * self.lanes)
        if outer < 4 * self.target.cores and last.size >= 2 * piece:
            self.apply(OptKind.PEEL, last, piece)
            self.apply(OptKind.SPLIT, last.name, piece)
            self.apply(OptKind.GRID, last.name)
            self.apply(OptKind.LANES, f"{last.name}s", self.lanes)
        elif last.size >= self.lanes and self.lanes > 1:
            self.apply(OptKind.LANES, last, self.lanes)
        self._share(number)

    def scatter(self, number: int) -> None:
        """Only rows that no looked-up index depends on are shared out: no two stores meet."""
        one = self.one(number)
        looked = {
            a
            for walk in one.walks
            for store in walk.stores
            for atom, _ in store.position.terms
            if not isinstance(atom, Axis)
            for a in atom.free
        }
        apart = [a for a in one.rows if a not in looked]
        if apart and apart[-1] is one.rows[-1] and apart[-1].size >= self.lanes > 1:
            self.apply(OptKind.LANES, apart[-1], self.lanes)
        for axis in apart[:-1]:
            self.apply(OptKind.GRID, axis)

    def _share(self, number: int) -> None:
        """Outer rows to the grid, while what stays inside is worth a call."""
        if any(self.nest.kind(a) is Kind.GRID for a in self.one(number).rows):
            return
        rows = [a for a in self.one(number).rows if self.nest.kind(a) is Kind.LOOP]
        for axis in rows[:-1] if len(rows) > 1 else ():
            self.apply(OptKind.GRID, axis)
        if len(rows) == 1 and rows[0].size >= 2 and not self._peels(rows[0]):
            self.apply(OptKind.GRID, rows[0])

    def _peels(self, axis: Axis) -> bool:
        return any(split.outer is axis and split.rest for split in self.nest.splits)

    def rows(self, number: int) -> None:
        one = self.one(number)
        last_row = one.rows[-1] if one.rows else None
        folded = {f.axes[-1] for f in folds(one)}
        along_fold = sum(side_by_side(one, a) for a in folded)
        if (
            last_row is not None
            and last_row.size >= self.lanes > 1
            and side_by_side(one, last_row) > along_fold
        ):
            self._columns(number, last_row)
            return
        for axis in folded:
            self._vector_fold(axis)
        for walk in self.one(number).walks:
            if walk.axes and walk.axes[-1].size >= self.lanes > 1:
                self.apply(OptKind.LANES, walk.axes[-1], self.lanes)
        self.bind_grid(number)

    def _vector_fold(self, axis: Axis) -> None:
        """Several vector accumulators, so that one addition need not wait for the last."""
        if axis.size >= self.lanes > 1 and self.apply(OptKind.LANES, axis, self.lanes):
            steps = axis.size // self.lanes
            for count in (4, 2):
                if steps >= 2 * count:
                    self.apply(OptKind.UNROLL, axis.name, count)
                    break

    def _columns(self, number: int, row: Axis) -> None:
        """Folds down columns: lanes and a few vectors of neighbouring columns at once."""
        vectors = next((n for n in (4, 2, 1) if row.size >= n * self.lanes), 1)
        self.apply(OptKind.PEEL, row, vectors * self.lanes)
        self.apply(OptKind.LANES, row.name, self.lanes)
        if vectors > 1:
            self.apply(OptKind.UNROLL, row.name, vectors)
        self.bind_grid(number)

    def contraction(self, number: int, found: Contraction) -> bool:
        """Panels of the lanes' operand packed in cache, and rows of the other walked over them."""
        if self.lanes < 2:
            return False
        if len(found.kept_loads) == len(found.streamed_loads) == 1:
            self._collapse(divided=True)
            found = contraction_of(self.one(number)) or found
        best = self._lane_axis(number, found)
        if best is None:
            return False
        lane, kept, lane_loads, kept_loads = best
        most = 2 if lane.size > self.lanes else 1
        height = min(kept.size, 6 if self.target.vector_registers == 16 else 12)
        depth = prod(a.size for a in found.fold.axes)
        packs = len(lane_loads) == 1 and kept.size >= 2 * height
        if packs and lane.size < most * self.lanes:  # a tail of its own, masked
            self.apply(OptKind.PAD, lane, most * self.lanes)
        vectors = most if self._size(number, lane) >= most * self.lanes else 1
        width = vectors * self.lanes
        panels = self._panels(depth, self._size(number, lane), width)
        self.apply(OptKind.PEEL, lane, panels * width)
        piece = self._piece(number, lane, kept, panels * width, height)
        if piece:
            self.apply(OptKind.PEEL, kept, piece)
        repacks = self._jumps(found, kept_loads) and panels > 1
        if repacks and not piece:
            self.apply(OptKind.PAD, kept, height)
        self.apply(OptKind.LANES, lane.name, self.lanes)
        if vectors > 1:
            self.apply(OptKind.UNROLL, lane.name, vectors)
        walked = lane.name
        if panels > 1 and self.apply(OptKind.SPLIT, lane.name, panels):
            walked = f"{lane.name}s"
        inner = kept.name
        if piece and self.apply(OptKind.SPLIT, kept.name, piece):
            inner = f"{kept.name}s"
            self.apply(OptKind.GRID, kept.name)
        if height > 1:
            self.apply(OptKind.UNROLL, inner, height)
        self.apply(OptKind.ORDER, inner)
        self.bind_grid(number, but=(inner, walked) if panels > 1 else (inner,))
        if packs and depth * panels * width * 4 <= 1 << 20:
            self._pack(number, lane_loads[0])
        if repacks:
            self.apply(OptKind.STAGE, inner, slot=kept_loads[0].slot)
        self._collapse()
        return True

    def _size(self, number: int, axis: Axis) -> int:
        """What has become of the size of a row axis."""
        now = self.row(number, axis.name)
        return now.size if now is not None else 1

    def _jumps(self, found: Contraction, kept_loads: tuple[Load, ...]) -> bool:
        """Whether the other operand is read with a jump at each step of the fold."""
        last = found.fold.axes[-1]
        return len(kept_loads) == 1 and abs(kept_loads[0].position.stride(last) or 0) > 1

    def _panels(self, depth: int, size: int, width: int) -> int:
        """How many panels of the lanes' operand are packed at once: what half the cache holds."""
        most = max(self.target.cache // 2 // (depth * width * 4), 1)
        whole = max(size // width, 1)
        return -(-whole // -(-whole // most))

    def _piece(self, number: int, lane: Axis, kept: Axis, width: int, height: int) -> int:
        """How much of the kept axis one piece of work takes; 0 for all of it."""
        others = [a for a in self.one(number).rows if a.name not in (lane.name, kept.name)]
        blocks = prod(a.size for a in others) * (lane.size // width)
        wanted = min(-(-4 * self.target.cores // max(blocks, 1)), kept.size // (2 * height))
        return -(-kept.size // wanted // height) * height if wanted > 1 else 0

    def _lane_axis(
        self, number: int, found: Contraction
    ) -> tuple[Axis, Axis, tuple[Load, ...], tuple[Load, ...]] | None:
        """The row axis for the lanes: long enough, stored and loaded side by side if possible.

        With it the longest axis of the other operand, and the loads of both.
        """
        position = self.one(number).walks[0].stores[0].position
        candidates = []
        streamed, kept = (found.streamed, found.streamed_loads), (found.kept, found.kept_loads)
        for (own, own_loads), (others, other_loads) in ((streamed, kept), (kept, streamed)):
            longest = max(others, key=lambda a: a.size)
            for axis in own:
                direct = all(
                    e.position.stride(axis) == 1 and not any(axis in v.free for v in e.valid)
                    for e in own_loads
                    if axis in e.free
                )
                score = 4 * (position.stride(axis) == 1) + 2 * direct + (axis.size % 16 == 0)
                fits = axis.size >= self.lanes or longest.size >= 12 > self.lanes // 2 < axis.size
                if fits:
                    sides = (axis, longest, own_loads, other_loads)
                    candidates.append((score, axis.size, axis.name, sides))
        return max(candidates, key=lambda c: c[:3])[3] if candidates else None

    def _pack(self, number: int, load: Load) -> None:
        """Copy an operand to panels in cache before a piece of work begins."""
        grid = [a for a in self.one(number).rows if self.nest.kind(a) is Kind.GRID]
        if grid:
            self.apply(OptKind.STAGE, grid[-1], slot=load.slot)


class _CudaChooser(_Chooser):
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
        for load in loads(self.one(number)):
            itemsize = max(itemsize, load.dtype.itemsize)
        lanes = 16 // itemsize
        if lanes > 1 and size % lanes == 0 and size >= 32 * lanes:
            self.apply(OptKind.LANES, axis, lanes)

    def rows(self, number: int) -> None:
        one = self.one(number)
        folded = {f.axes[-1] for f in folds(one)}
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
        for axis in reversed(self.one(number).rows):
            size = min(axis.size, most)
            self.apply(OptKind.GRID, axis)
            if size > 1 and self.apply(OptKind.THREAD, axis.name, size):
                most //= size
        self.bind_grid(number)

    def contraction(self, number: int, found: Contraction) -> bool:
        one = self.one(number)
        if any(len(f.axes) and f is not found.fold for f in folds(one)) or len(one.walks) > 1:
            return False
        position = one.walks[0].stores[0].position
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
            grid = [a for a in self.one(number).rows if self.nest.kind(a) is Kind.GRID]
            after = grid[-1].name if grid else ""
        for side in (found.kept_loads, found.streamed_loads):
            if len(side) == 1 and after:
                self.apply(OptKind.STAGE, after, slot=side[0].slot)
        return True
