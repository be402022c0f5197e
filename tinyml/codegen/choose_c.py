"""Rules of thumb for C: lanes where memory is contiguous, pieces for all cores, tiles in cache."""

from __future__ import annotations

from math import prod

from tinyml.codegen.choose_c_contraction import contract
from tinyml.codegen.chooser import Chooser, Contraction, side_by_side
from tinyml.codegen.nest import Kind, folds
from tinyml.codegen.opts import OptKind
from tinyml.index import Axis


class CChooser(Chooser):
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
        return self.lanes > 1 and contract(self, number, found)
