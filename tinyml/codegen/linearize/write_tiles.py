"""Write tiles: the instructions that fill what lies in tiles, copied or computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from math import prod

from tinyml.codegen import crop
from tinyml.codegen import linear as ir
from tinyml.codegen.ahead import Ahead
from tinyml.codegen.copies import alike_in_tile
from tinyml.codegen.expr import Const, Expr, Fold, Stored, const, nodes, substitute
from tinyml.codegen.linear import Instr
from tinyml.codegen.linearize.fill import Filler, fences
from tinyml.codegen.linearize.namer import Namer
from tinyml.codegen.nest import Kind, LoopNest, Tile, Walk
from tinyml.codegen.optimize.filled import by_fold
from tinyml.codegen.optimize.tiles import by_stride, names_read
from tinyml.codegen.scope import Body, Enter, Known, Loops, Scope, at_each, every_step, nothing
from tinyml.frozen import replace
from tinyml.index import Axis, linear
from tinyml.interpret import identity
from tinyml.ops import Op


class TileWriter(Namer):
    """Fills the tiles of a nest; whoever writes the rest of it opens the loops."""

    _open: Callable[[Scope, Loops, Known], None]
    _folds: Callable[[Scope, Iterable[Expr]], None]
    _walks: Callable[[Scope, Iterable[Walk], Known, list[Axis]], None]

    def __init__(self, nest: LoopNest, number: int, block: tuple[int, int], vectors: bool) -> None:
        lanes = [a for a, kind in nest.kinds if vectors and kind is Kind.LANE]
        one = nest.nests[number]
        filled = {a for tile in one.tiles for a in tile.axes}
        ahead = Ahead({a: n for a, n in nest.ahead if a in one.axes}, filled, {*lanes}, one)
        super().__init__(f"_{number}" if number else "", lanes, ahead)
        self.kinds, self.block, self.vectors = dict(nest.kinds), block, vectors
        self.parts, self.grid = nest.parts(one), nest.grid(one)
        self.within = {a for a, kind in nest.kinds if kind in (Kind.UNROLL, Kind.LANE)}
        self.filler = Filler(block, self.emit, self.numbered, nest.turn(one))
        self.tiles: tuple[Tile, ...] = ()
        self.by_fold = [tile for tile in one.tiles if by_fold(one, tile)]
        self.walks: tuple[Walk, ...] = ()  # at each step of what tiles combine

    def kind(self, axis: Axis) -> Kind:
        return self.kinds.get(axis, Kind.LOOP)

    def _loops(self, group: Iterable[Axis], enter: Enter = nothing, body: Body = nothing) -> Loops:
        """The axes of one walk or fold: those that are loops, and those that are written out."""
        group, written_out = list(group), {Kind.UNROLL}
        if not self.vectors:
            written_out.add(Kind.LANE)
        return Loops(
            [a for a in group if self.kind(a) is Kind.LOOP],
            [a for a in group if self.kind(a) in written_out],
            enter,
            body,
        )

    def _filled(self, after: Axis) -> list[Tile]:
        return [tile for tile in self.tiles if tile.after is after]

    def _fill_step(
        self, scope: Scope, axis: Axis, loops: Loops, known: Known, again: bool = True
    ) -> list[Instr]:
        """The tiles of one step of a loop; the answer is what ends the step.

        That is a barrier where tiles are filled `again`, by the next step or a loop around it.
        """
        whole = loops.whole(axis)
        filled = self._filled(whole)
        if any(tile.stages > 1 for tile in filled):
            at = known.get(whole, linear(axis))
            return self.filler.go_on(scope, {**known, whole: at}, filled)
        self._fill_tiles(scope, whole, known)
        return [ir.Barrier()] if filled and again and prod(self.block) > 1 else []

    def _fill_tiles(self, scope: Scope, after: Axis, known: Known) -> None:
        """The tiles that start here: what is copied is shared out evenly among threads."""
        block = prod(self.block) > 1
        for copied, group in groupby(self._filled(after), lambda t: block and t.copies):
            if copied:
                filled = list(group)
                self.filler.fill(scope, filled, known)
                scope.instrs += [*fences(filled), ir.Barrier()]
                continue
            for over, tiles in groupby(group, lambda tile: tile.over):
                self._fill_in_turn(scope, list(tiles), over, known)

    def _fill_in_turn(
        self, scope: Scope, tiles: Sequence[Tile], over: Axis | None, known: Known
    ) -> None:
        """Tiles one after the other; those that combine the steps of an axis in one loop."""
        for tile in tiles:
            value = substitute(tile.value, known)
            if tile in self.by_fold:
                self._folds(scope, [value])
                continue
            start = const(identity(tile.op, value.dtype), value.dtype)
            self._write_tile(scope, tile, start if over else value, None)
        if over is None:
            return
        inner = Scope(scope.bound | {over}, scope)
        self._fill_tiles(inner, over, known)
        for tile in tiles:
            op = None if tile.name in names_read([tile.value]) else tile.op
            self._write_tile(inner, tile, substitute(tile.value, known), op)
        walks = [walk for walk in self.walks if walk.after is over]
        self._walks(inner, walks, known, [])
        values = [tile.value for tile in tiles]
        values += [store.value for walk in walks for store in walk.stores]
        begin = crop.steps(over, values, self._filled(over), known, scope.bound)
        scope.instrs += [begin, *inner.instrs, ir.End(over)]

    def _write_tile(self, scope: Scope, tile: Tile, value: Expr, op: Op | None) -> None:
        def enter(inner: Scope, known: Known) -> None:
            self._folds(inner, [substitute(value, known)] if value.has_fold else [])

        def body(inner: Scope, known: Known, unrolled: list[Axis]) -> None:
            steps = every_step(known, self._but_copied(tile, value, unrolled))
            (values,) = at_each([value], steps)
            self._folds(inner, values)
            for index, made in zip(tile.index.at_each(steps), values, strict=True):
                stored = self.emit(inner, made)
                inner.instrs.append(ir.PutTile(tile.name, value.dtype, index, stored, (), op))
            inner.instrs += self._end_of_copies()

        outside = crop.known_outside(value, tile.axes) if op is None else ()
        number = next((n for _, n in outside), None)

        def instead(inner: Scope, known: Known, unrolled: list[Axis]) -> None:
            assert number is not None
            for index in tile.index.at_each(every_step(known, unrolled)):
                inner.instrs.append(ir.PutTile(tile.name, value.dtype, index, number, ()))

        loops = replace(self._loops(by_stride(tile), enter, body), alike=isinstance(value, Const))
        if number is not None:
            only = tuple(r for r, n in outside if n is number)
            loops = loops.cropped(only, instead)
        if tile.over is None and any(isinstance(e, Fold) for e in nodes(value)):
            loops.waiting.reverse()  # what lies along the last axis is read for all rows at once
        with self._shared_out(scope, tile.name, tile.axes) as (within, at):
            self._open(within, loops, at)
        if prod(self.block) > 1:
            scope.instrs.append(ir.Barrier())

    def _filled_by(self, folds: Iterable[Fold]) -> list[Tile]:
        """The tiles that the loop of folds fills: they are the first that read them."""
        if not self.by_fold:
            return []
        read = names_read(fold.body for fold in folds if not fold.body.has_fold)
        return [tile for tile in self.by_fold if tile.name in read]

    def _put_step(self, scope: Scope, tiles: Iterable[Tile], steps: Sequence[Known]) -> None:
        """Values of tiles at the steps that are written out, which have names from now on."""
        for tile in tiles:
            stored = Stored(tile.name, tile.value.dtype, tile.index, tile.after)
            values, places = at_each([tile.value, stored], steps)
            for value, place in zip(values, places, strict=True):
                name = self.emit_named(scope, value)
                assert isinstance(place, Stored)
                scope.instrs.append(ir.PutTile(tile.name, value.dtype, place.index, name, ()))
                scope.name(place, name)

    def _but_copied(self, tile: Tile, value: Expr, unrolled: list[Axis]) -> list[Axis]:
        """The axes whose steps are written out one by one; the first one's text may be copied.

        Unless memory is asked for ahead: by each step, even if several lie in one line.
        """
        several = self.vectors and unrolled and unrolled[0].size > 1
        if not several or not {*self.ahead.filled}.isdisjoint(tile.axes):
            return unrolled
        if not alike_in_tile(unrolled[0], tile, value, self.within):
            return unrolled
        self._copy(unrolled[0])
        return unrolled[1:]

    @contextmanager
    def _shared_out(
        self, scope: Scope, name: str, group: Iterable[Axis]
    ) -> Iterator[tuple[Scope, Known]]:
        """Where a thread makes its steps of a group's axes, and which they are."""
        threads = [a for a in group if self.kind(a) is Kind.THREAD and a.name != ir.TX]
        with self.ahead.in_loop():
            if not threads:
                yield scope, {}
                return
            inner, begin, at = self.filler.shared_out(scope, name, threads)
            yield inner, at
            scope.instrs += [begin, *inner.instrs, ir.End(begin.axis)]
