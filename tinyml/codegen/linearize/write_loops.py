"""Write loops: loops opened from the outside in, and what remains after splits.

Steps that change nothing are left out, see crop.py; and a loop whose steps have other conditions
here than there, as where arrays are joined, is a loop for each of its pieces.
"""

from __future__ import annotations

from math import prod

from tinyml.codegen import crop
from tinyml.codegen import linear as ir
from tinyml.codegen.linearize.write_tiles import TileWriter
from tinyml.codegen.nest import Kind, LoopNest
from tinyml.codegen.scope import Known, Loops, Scope, also, nothing
from tinyml.frozen import replace
from tinyml.index import ZERO, Axis, linear

PIECES = 64  # steps that are written out at most, of all pieces of a loop


class LoopWriter(TileWriter):
    """Opens the loops of a nest; whoever writes the rest of it says what is in them."""

    def __init__(self, nest: LoopNest, number: int, block: tuple[int, int], vectors: bool) -> None:
        super().__init__(nest, number, block, vectors)
        one = nest.nests[number]
        self.splits = [split for split in nest.splits if split.rest]
        self.apart = {a for a, kind in nest.kinds if kind is Kind.THREAD}
        self.asked = crop.asked_of(one) if vectors else ()
        self.written_out = [a for a in one.rows if self.kind(a) is Kind.UNROLL]
        self.sums = {a for tile in one.tiles if tile.value.has_fold for a in tile.axes}
        # loops that have others in them, which would all be written again
        self.around = {a for tile in one.tiles for a in (tile.after, tile.over)}
        if one.folded or any(walk.axes for walk in one.walks):
            self.around.update(one.rows)

    def _open(self, scope: Scope, loops: Loops, known: Known) -> None:
        """Open all loops, then write their body; and once more for what remains after a split."""
        loops.enter(scope, known)
        if not loops.waiting:
            loops.body(scope, known, loops.unrolled)
            return
        first = loops.waiting[0]
        if first.size == 1:
            around = any(self.kind(a) is Kind.LOOP for a in scope.bound)
            again = loops.whole(first).more or around
            later = self._fill_step(scope, first, loops, known, again)
            self._open(scope, loops.without(first), {**known, first: ZERO})
            scope.instrs += later
        else:
            self._loop(scope, first, loops, known)
        self._open_rests(scope, first, loops, known)

    def _open_rests(self, scope: Scope, first: Axis, loops: Loops, known: Known) -> None:
        """What remains after the splits whose outer axis is `first`."""
        for split in self.splits:
            if split.outer is first and split.inner not in known:
                rest = Axis(f"{split.inner.name}_", split.rest)
                at: Known = {axis: linear(step) for axis, step in split.at}
                more = {**known, **at, split.inner: linear(rest)}
                self._open(scope, loops.rest(split, rest), more)

    def _loop(self, scope: Scope, axis: Axis, loops: Loops, known: Known) -> None:
        filled = self._filled(loops.whole(axis))
        ahead = any(tile.stages > 1 for tile in filled)
        begin = self._begin(scope, axis, loops, known)
        if pieces := self._pieces(scope, begin, loops, known):
            self._in_pieces(scope, axis, pieces, loops, known)
            return
        if ahead and axis is loops.whole(axis):
            self.filler.begin(scope, begin, known, filled)
        left, walked = loops.without(axis), axis
        if axis.more and not (self.vectors or self.tiles):  # what only the rest asks is not asked
            walked = Axis(axis.name, axis.size)
            known = also(known, axis, linear(walked))
        asked = loops.asked if not (filled or left.waiting) else ()
        for part, sure in crop.parts(begin, asked, known, scope.bound - self.apart):
            inner = Scope(scope.bound | {axis, walked, loops.whole(axis)}, scope, sure)
            later = self._fill_step(inner, axis, loops, known)  # tiles know the steps of the whole
            self._open(inner, left, known)
            inner.instrs += later
            scope.instrs += [replace(part, axis=walked), *inner.instrs, ir.End(walked)]
        for start in begin.starts if loops.instead else ():
            self._instead(scope, ir.Begin(axis, (), (start,)), loops, known)
        for stop in begin.stops if loops.instead else ():
            self._instead(scope, ir.Begin(axis, (stop,), ()), loops, known)

    def _pieces(self, scope: Scope, begin: ir.Begin, loops: Loops, known: Known) -> list[range]:
        """Steps that have the same answers to what is asked, if a loop is made of several."""
        axis = begin.axis
        whole = not (begin.starts or begin.stops or loops.whole(axis) is not axis)
        if not self.asked or loops.alike or not whole or axis in self.around:
            return []
        if len(loops.waiting) > 1 and axis not in self.sums:  # what is asked at each step of a fold
            return []  # takes longer than at each row, and registers
        steps = prod(a.size for a in {*loops.unrolled, *self.written_out})
        return crop.pieces(axis, self.asked, known, scope.bound, PIECES // steps)

    def _in_pieces(
        self, scope: Scope, axis: Axis, pieces: list[range], loops: Loops, known: Known
    ) -> None:
        """A loop for each of the pieces, which asks nothing."""
        for number, steps in enumerate(pieces):
            part = Axis(f"{axis.name}p{number}", len(steps))
            if len(steps) > 1:
                at, left = linear(part) + steps.start, loops.in_part(axis, part)
            else:
                at, left = linear(steps.start), loops.without(axis)
            self._open(scope, left, also(known, axis, at))

    def _begin(self, scope: Scope, axis: Axis, loops: Loops, known: Known) -> ir.Begin:
        """All threads of a block walk alike: none of their axes counts as fixed.

        What threads copy ahead of a whole loop is begun where that begins. In C, what is done at
        steps of rows that are left out is so much less that two steps are worth bounds.
        """
        least = 2 if self.vectors and loops.instead else crop.LEAST
        begin = crop.begin(axis, loops.only, known, scope.bound - self.apart, least)
        walked = loops.whole(axis), *(whole for _, whole in loops.parts)  # whose first tiles may be
        ahead = [tile for tile in self.tiles if tile.stages > 1 and tile.after in walked]
        counted = any(tile.bulk or tile.after is not axis for tile in ahead)
        return replace(begin, starts=() if counted else begin.starts[:1]) if ahead else begin

    def _instead(self, scope: Scope, begin: ir.Begin, loops: Loops, known: Known) -> None:
        """What is done at steps that are left out."""
        assert loops.instead is not None
        inner = Scope(scope.bound | {begin.axis}, scope)
        left = replace(loops.without(begin.axis).cropped(()), enter=nothing, body=loops.instead)
        self._open(inner, left, known)
        scope.instrs += [begin, *inner.instrs, ir.End(begin.axis)]
