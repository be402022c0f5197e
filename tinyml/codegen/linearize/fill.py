"""Fill: the threads of a block copy what lies in tiles, each its share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import NamedTuple

from tinyml.codegen import linear as ir
from tinyml.codegen.expr import Const, Expr, Load, alu, nodes, rewrite, substitute, zero
from tinyml.codegen.linear import Instr
from tinyml.codegen.nest import Tile
from tinyml.codegen.optimize.boxes import boxed
from tinyml.codegen.optimize.change import OptError
from tinyml.codegen.optimize.overlaps import guarded
from tinyml.codegen.optimize.stages import copied, end_of
from tinyml.codegen.optimize.tiles import by_stride
from tinyml.codegen.optimize.turns import counted
from tinyml.codegen.scope import Known, Scope
from tinyml.codegen.wide_stores import wide_loads
from tinyml.dtype import DType, uint16, uint64
from tinyml.frozen import replace
from tinyml.index import (
    ZERO,
    Axis,
    Linear,
    Quotient,
    Range,
    Remainder,
    Valid,
    both,
    inside,
    linear,
    steps_by,
    substitute_valid,
    unravel,
)
from tinyml.ops import Op

WAITING = 32  # values of a thread, at most, that wait in registers while a step is computed


class _Site(NamedTuple):
    """What is filled at a step: a tile from a place on, its axes in `order`, if `when`."""

    tile: Tile
    place: Linear
    order: list[Axis]
    when: Valid

    @staticmethod
    def at(tile: Tile, known: Known, when: Valid) -> _Site:
        """The site at a step."""
        return _Site(tile, tile.index.substitute(known), by_stride(tile, together=True), when)


class Filler:
    """Fills tiles by all threads of a block together."""

    def __init__(
        self,
        block: tuple[int, int],
        emit: Callable[[Scope, Expr], Expr],
        numbered: Callable[[Scope, Linear], Linear],
        turn: Axis | None = None,
    ) -> None:
        self.emit, self.numbered = emit, numbered
        self.threads, self.begun = prod(block), set[Axis]()
        self.turn = turn  # what counts the tiles of a block
        self.number = linear(Axis("ty", block[1])) * block[0] + linear(Axis(ir.TX, block[0]))

    def fill(
        self,
        scope: Scope,
        tiles: Iterable[Tile],
        known: Known,
        when: Valid = (),
        later: list[Instr] | None = None,
    ) -> None:
        """What the tiles hold at the step of `known`, if `when`; a barrier is still to come.

        Tiles that are filled ahead are copied in pieces, if they lie so: then somebody has to wait
        for the copies, too. Else values are loaded here and put into tiles `later`, if there is
        such a place, and if they are few enough to wait in registers.
        """
        for tile in tiles:
            site, found = _Site.at(tile, known, when), copied(tile)
            if found is not None:
                self._by_piece(scope, site, substitute(found[0], known), found[1])
            else:
                self._by_value(scope, site, substitute(tile.value, known), later)

    def shared_out(
        self, scope: Scope, name: str, axes: Sequence[Axis]
    ) -> tuple[Scope, ir.Begin, Known]:
        """Where the steps of a tile's axes are made, each by a thread of its own, if there are any.

        The loop around them is made once, by as many threads as there are steps.
        """
        once, sizes = Axis(f"c_{name}", 1), tuple(a.size for a in axes)
        count = prod(sizes)
        if count > self.threads:
            raise OptError(
                f"cannot fill {name}: {count} steps are more than {self.threads} threads"
            )
        stop = () if count == self.threads else (count - self.number,)
        inner = Scope(scope.bound | {once} | self.number.free, scope)
        known = dict(zip(axes, unravel(self.number, sizes), strict=True))
        return inner, ir.Begin(once, (), stop), known

    def begin(self, scope: Scope, begin: ir.Begin, known: Known, tiles: list[Tile]) -> None:
        """Before a loop: what tiles that are filled ahead hold at its first steps.

        Where an earlier loop has filled them, all have to be done with what it read.
        """
        axis = tiles[0].after
        if tiles[0].bulk:
            if axis in self.begun or scope.parent is not None:  # phases are counted from 0
                raise OptError(f"cannot copy boxes ahead of {axis.name}: the loop is in another")
            self.begun.add(axis)
            copies = _boxes(tiles, {**known, axis: linear(axis)})
            step = counted(self.turn, linear(axis), axis)
            scope.instrs.insert(0, ir.Produce(begin, step, tiles[0].stages, copies))
            return
        if axis in self.begun or scope.parent is not None:
            scope.instrs += [ir.Await(0), ir.Barrier()]
        self.begun.add(axis)
        firsts = _first_steps(begin)
        for n in range(tiles[0].ahead):
            for first, when in firsts:
                there = both([inside(first + n, 0, axis.high)], when)
                if there is not None:
                    self.fill(scope, tiles, {**known, axis: first + n}, there)
            scope.instrs.append(ir.Commit())

    def go_on(self, inner: Scope, known: Known, tiles: list[Tile]) -> list[Instr]:
        """At a step of the loop: the tiles of this one are there, those of a later one begun.

        What was read one step before is filled: the barrier says that all have read it. The
        answer is the end of the step.
        """
        axis, ahead = tiles[0].after, tiles[0].ahead
        if tiles[0].bulk:
            step, stages = counted(self.turn, known[axis], axis), tiles[0].stages
            inner.instrs.append(ir.AwaitBoxes(axis, step, stages, _boxes(tiles, known)))
            return [ir.Release(axis, step - 1, stages)]  # whose products are made
        inner.instrs += [ir.Await(ahead - 1), *fences(tiles), ir.Barrier()]
        further = known[axis] + ahead
        later: list[Instr] = []
        there = both([inside(further, 0, axis.size - 1)])
        if there is not None:
            self.fill(inner, tiles, {**known, axis: further}, there, later)
        inner.instrs.append(ir.Commit())
        return later

    def _by_value(self, scope: Scope, site: _Site, value: Expr, later: list[Instr] | None) -> None:
        """Through registers, as many neighbours at a time as lie side by side."""
        tile, index, order, when = site
        lane, sizes = Axis(f"{tile.name}v", self._neighbours(value, order)), [a.size for a in order]
        sizes[-1] //= lane.size
        step, at, guard = self._share(tile, prod(sizes), when)
        where = dict(zip(order, unravel(at, tuple(sizes)), strict=True))
        where[order[-1]] = where[order[-1]] * lane.size + linear(lane)
        made = guarded(substitute(value, where), guard, alone=True)
        wide, place = _bits(wide_loads(made, lane)), index.substitute(where)

        def write(inner: Scope, puts: list[Instr], known: Known) -> None:
            valid = substitute_valid(guard, known)
            if valid is None:
                return
            for n in range(lane.size):
                one = {**known, lane: linear(n)}
                stored = self.emit(inner, self._placed(inner, substitute(wide, one)))
                spot, stored = place.substitute(one), _of_bits(stored, value.dtype)
                puts.append(ir.PutTile(tile.name, value.dtype, spot, stored, valid))

        if later is not None and step.size * lane.size <= WAITING:
            for n in range(step.size):
                write(scope, later, {step: linear(n)})
            return
        inner = Scope(scope.bound | {step} | at.free, scope)
        write(inner, inner.instrs, {})
        _add(scope, step, inner)

    def _placed(self, scope: Scope, value: Expr) -> Expr:
        """A value whose loads have places with names, so that many elements share them."""

        def named(e: Expr) -> Expr | None:
            if not isinstance(e, Load) or e.sources:
                return None
            valid = self._conditions(scope, e.valid)
            return Load(e.slot, e.dtype, self._place(scope, e.position), valid)

        return rewrite(value, named)

    def _place(self, scope: Scope, index: Linear) -> Linear:
        """A place as one that neighbours begin at, which has a name, and how far it is from that.

        Else a compiler would work it out behind the conditions of each load, by branches.
        """
        begin = self._undivided(scope, index - index.constant)
        return self.numbered(scope, begin) + index.constant if begin.terms else index

    def _conditions(self, scope: Scope, valid: Valid) -> Valid:
        return tuple(Range(self._undivided(scope, v.index), v.low, v.high) for v in valid)

    def _undivided(self, scope: Scope, index: Linear) -> Linear:
        """An index with names for what is divided, by other numbers than powers of two."""
        made = linear(index.constant)
        for atom, factor in index.terms:
            divided = isinstance(atom, (Quotient, Remainder)) and atom.by & atom.by - 1
            part = self.numbered(scope, linear(atom)) if divided else linear(atom)
            made += part * factor
        return made

    def _neighbours(self, value: Expr, order: list[Axis]) -> int:
        """How many neighbours a thread loads: 16 bytes, if that leaves work for all.

        Else two halves, so that they are put into a tile at once.
        """
        loads = [e for e in nodes(value) if isinstance(e, Load) and order[-1] in e.free]
        size = 16 // max((e.dtype.itemsize for e in loads), default=16)
        even, count = order[-1].size % size == 0, prod(a.size for a in order)
        enough = count >= size * self.threads
        wide = any(steps_by(e.position, order[-1:], size) for e in loads)
        if even and enough and wide:
            return size
        halves = isinstance(value, Load) and value.dtype.is_half and order[-1].size % 2 == 0
        return 2 if halves and count % (2 * self.threads) == 0 else 1

    def _by_piece(self, scope: Scope, site: _Site, value: Expr, size: int) -> None:
        tile, index, order, when = site
        sizes = tuple(a.size for a in order)
        step, at, guard = self._share(tile, prod(sizes) // size, when)
        where = dict(zip(order, unravel(at * size, sizes), strict=True))
        end = end_of(value, order, size) if isinstance(value, Load) else None
        source = substitute(_endless(value, end), where)
        inner = Scope(scope.bound | {step} | at.free, scope)
        place = index.substitute(where)
        if isinstance(source, Load):
            at = self._place(inner, source.position)
            valid = self._conditions(inner, source.valid)
            copy = ir.Copy(tile.name, value.dtype, place, source.slot, at, valid, guard, size)
            if end is not None:
                left = end.index.substitute(where) * -1 + (end.high + 1)
                copy = replace(copy, left=self._undivided(inner, left))
            inner.instrs.append(copy)
            _add(scope, step, inner)
        else:  # zeros
            self._by_value(scope, site, value, None)

    def _share(self, tile: Tile, count: int, when: Valid) -> tuple[Axis, Linear, Valid]:
        """A loop, the number of what each thread copies at a step of it, and whether it does."""
        step = Axis(f"c_{tile.name}", -(-count // self.threads))
        at = linear(step) * self.threads + self.number
        return step, at, both([inside(at, 0, count - 1)], when) or ()


def _first_steps(begin: ir.Begin) -> list[tuple[Linear, Valid]]:
    """Where a loop begins, and when it does there: at its start, or at 0 if that lies before."""
    if not begin.starts:
        return [(ZERO, ())]
    (start,) = begin.starts
    ways = (start, inside(start, 0, begin.axis.high)), (ZERO, inside(start, start.low, -1))
    return [(first, when) for first, r in ways if (when := both([r])) is not None]


def held(tiles: Sequence[Tile], part: int) -> Iterator[ir.Local]:
    """Where tiles are."""
    for tile in tiles:
        yield ir.Local(tile.name, tile.value.dtype, tile.size, tile.panels, part)
    for axis, stages in dict.fromkeys((t.after, t.stages) for t in tiles if t.bulk):
        for name in (ir.FULL, ir.EMPTY):
            yield ir.Local(f"{name}_{axis.name}", uint64, stages, part=part)


def _endless(value: Expr, end: Range | None) -> Expr:
    """A load without the condition on how far a row goes."""
    if end is None or not isinstance(value, Load):
        return value
    return Load(value.slot, value.dtype, value.position, tuple(v for v in value.valid if v != end))


def _bits(value: Expr) -> Expr:
    """A half that is only copied as its bits: nothing is converted."""
    if isinstance(value, Load) and value.dtype.is_half:
        return Load(value.slot, uint16, value.position, value.valid)
    return value


def _of_bits(value: Expr, dtype: DType) -> Expr:
    if not (dtype.is_half and value.dtype is uint16):
        return value
    return zero(dtype) if isinstance(value, Const) else alu(Op.BITCAST, dtype, value)


def _boxes(tiles: Iterable[Tile], known: Known) -> tuple[ir.BoxCopy, ...]:
    copies = []
    for tile in tiles:
        found = boxed(tile)
        assert found is not None
        at = tuple(
            (x.substitute(known), y.substitute(known), z.substitute(known)) for x, y, z in found.at
        )
        index = tile.index.substitute({**known, **dict.fromkeys(tile.axes, ZERO)})
        copies.append(ir.BoxCopy(tile.name, index, found.box, at))
    return tuple(copies)


def fences(tiles: Iterable[Tile]) -> list[Instr]:
    """What comes before the barrier behind which tiles are read."""
    return [ir.Fence()] if any(tile.panels for tile in tiles) else []


def _add(scope: Scope, step: Axis, inner: Scope) -> None:
    if step.size > 1:
        scope.instrs += [ir.Begin(step), *inner.instrs, ir.End(step)]
    else:
        scope.instrs += inner.instrs
