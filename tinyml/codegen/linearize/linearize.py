"""Linearize: a LoopNest becomes instructions in order.

Loops are opened from the outside in. Whatever does not depend on an inner loop is computed
outside of it; a fold becomes an accumulator and the loops that fill it, placed in the
outermost scope that knows all axes it depends on. Folds over the same axes share one walk.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import chain, groupby
from math import prod
from operator import attrgetter, itemgetter

from tinyml.codegen import crop
from tinyml.codegen import linear as ir
from tinyml.codegen.chosen_places import with_chosen_places
from tinyml.codegen.copies import APART, alike, alike_abreast, gathered, named_at
from tinyml.codegen.dense import made_once, shared_by
from tinyml.codegen.expr import Alu, Expr, Fold, Load, Name, Wide, const, lanes_of, substitute
from tinyml.codegen.linear import Instr, LinearKernel, Local
from tinyml.codegen.linearize.bring import late, whole
from tinyml.codegen.linearize.fill import held
from tinyml.codegen.linearize.group_products import grouped
from tinyml.codegen.linearize.in_registers import begun, in_registers
from tinyml.codegen.linearize.quads import by_quads
from tinyml.codegen.linearize.share_places import share_places
from tinyml.codegen.linearize.write_along import AlongWriter, followers, together
from tinyml.codegen.long_fold import LongFold, joined
from tinyml.codegen.matrices import Product
from tinyml.codegen.nest import Kind, LoopNest, Nest, Store, Tile, Walk, block_of
from tinyml.codegen.optimize.fragments import placed
from tinyml.codegen.optimize.tiles import names_read
from tinyml.codegen.optimize.turns import in_turns
from tinyml.codegen.scope import Known, Scope, every_step, in_turn
from tinyml.codegen.wide_stores import at_steps, side_by_side, store_at, wide_loads
from tinyml.frozen import replace
from tinyml.graph import toposort
from tinyml.index import Axis, Range, linear, numbered
from tinyml.interpret import identity
from tinyml.ops import FUNCTIONS

SEPARATE = 8  # accumulators at most that one fold is spread over
AT_ONCE = 16  # elements of a slot that a thread of a card makes before it stores them,
READ = 2  # if they are made of so many arrays beside sums; of more, fewer,
VECTORS_AT_ONCE = 2  # and vectors of what is made of sums, in C


def linearize(nest: LoopNest, vectors: bool = True) -> LinearKernel:
    """Instructions for all nests. Without `vectors`, lanes are scalars loaded side by side."""
    block, threads = block_of(nest)
    parts = []
    tiles: list[Local] = []
    for number, (one, group) in enumerate(zip(nest.nests, threads, strict=True)):
        emitter = _Emitter(nest, number, block, vectors)
        written = emitter.nest(with_chosen_places(nest, one) if vectors else placed(one))
        if not vectors:
            written = by_quads(written, group, block)
            written = begun(written) if nest.along else written
        if prod(block) > 1:
            written = in_registers(written, one.tiles, emitter.mark)
        deferred = {tile.after: tile.stages for tile in one.tiles if tile.late}
        grid, instrs = in_turns(nest, one, late(grouped(written, deferred)))
        parts.append(ir.Part(grid, tuple(group), instrs))
        own = held(one.tiles, number)
        tiles += share_places(instrs, one.tiles, own) if prod(block) > 1 else own
    lanes = frozenset(a for a, kind in nest.kinds if kind is Kind.LANE) if vectors else frozenset()
    return LinearKernel(nest.name, tuple(parts), nest.slots, block, tuple(tiles), lanes)


class _Emitter(AlongWriter):
    """Writes one nest."""

    def __init__(self, nest: LoopNest, number: int, block: tuple[int, int], vectors: bool) -> None:
        super().__init__(nest, number, block, vectors)
        one = nest.nests[number]
        self.tx: set[Axis] = set()
        self.along = {*nest.along}
        self.shared = shared_by(one.exprs, self.free_lanes) if vectors else []
        self.calls = any(isinstance(e, Alu) and e.op in FUNCTIONS for e in one.exprs)

    # ---- rows and walks ----

    def nest(self, nest: Nest) -> tuple[Instr, ...]:
        self.tiles = nest.tiles
        self.walks = tuple(walk for walk in nest.walks if walk.after is not None)
        walks = [walk for walk in nest.walks if walk.after is None]
        fixed = [a for a in nest.rows if self.kind(a) in (Kind.GRID, Kind.TURN, Kind.THREAD)]
        fixed += self.parts
        self.tx = {a for a in nest.axes if a.name == ir.TX}
        scope = Scope(frozenset((*fixed, *self.tx)), None)
        for axis in fixed:
            self._fill_tiles(scope, axis, {})
        values = [store.value for walk in walks for store in walk.stores]

        def enter(inner: Scope, known: Known) -> None:
            self._folds(inner, [substitute(v, known) for v in values if v.has_fold])

        def body(inner: Scope, known: Known, unrolled: list[Axis]) -> None:
            self._walks(inner, walks, known, unrolled)

        only, numbers = crop.steady(values, nest.rows)

        def instead(inner: Scope, known: Known, unrolled: list[Axis]) -> None:
            self._walks(inner, crop.plain(walks, numbers), known, unrolled)

        self._open(scope, self._loops(nest.rows, enter, body).cropped(only, instead), {})
        return gathered(scope.instrs, self.families, self.copies)

    def _walks(
        self, scope: Scope, walks: Iterable[Walk], known: Known, unrolled: list[Axis]
    ) -> None:
        walks = list(walks)
        made = self._of_each_step(walks, known, unrolled) or [
            at_steps(walk.stores, known, unrolled, self.kinds) for walk in walks
        ]
        for walk, stores in zip(walks, made, strict=True):
            once = bool(self.tx) and self.tx.isdisjoint(walk.axes)
            self._walk(scope, walk.axes, stores, once)
            if self.copied is not None:
                scope.instrs.append(APART)
        self._end_of_copies()

    def _of_each_step(
        self, walks: list[Walk], known: Known, unrolled: list[Axis]
    ) -> list[list[list[Store]]] | None:
        """What walks store at one step of the outermost axis that is written out, if that will do.

        Then each step has names of its own, as a vector has lanes, and its text is a copy.
        """
        if not (self.vectors and unrolled and unrolled[0].size > 1) or self.along or self.walks:
            return None
        if self.shared:  # by several steps
            return None
        first, *others = unrolled
        made = [at_steps(walk.stores, known, others, self.kinds) for walk in walks]
        stores = [*chain(*chain(*made))]
        abreast = not any(store.value.has_fold for store in stores)
        if self.copies.get(first, abreast) is not abreast:
            return None  # an axis has been copied in the other way, and so would all of it be
        few = self.calls and sum(map(len, made)) < VECTORS_AT_ONCE * len({s.slot for s in stores})
        if abreast:
            same = alike_abreast(first, stores, self.within)
        else:
            same = not few and alike(first, stores, self.within)
        if same:
            self._copy(first, abreast)
        return made if same else None

    def _walk(
        self, scope: Scope, group: tuple[Axis, ...], stores: list[list[Store]], once: bool
    ) -> None:
        flat = [store for wide in stores for store in wide]

        def enter(inner: Scope, known: Known) -> None:
            values = [store.value for store in flat if store.value.has_fold]
            self._folds(inner, [substitute(value, known) for value in values])

        def body(inner: Scope, known: Known, unrolled: list[Axis]) -> None:
            self._put_all(inner, stores, known, unrolled, once)

        only, numbers = crop.steady([store.value for store in flat], group)

        def instead(inner: Scope, known: Known, unrolled: list[Axis]) -> None:
            number = dict(zip(flat, numbers, strict=True))
            plain = [[replace(s, value=number[s]) for s in wide] for wide in stores]
            self._put_all(inner, plain, known, unrolled, once)

        with self._shared_out(scope, f"walk{self.names}", group) as (inner, known):
            self._open(inner, self._loops(group, enter, body).cropped(only, instead), known)

    def _put_all(
        self,
        scope: Scope,
        stores: list[list[Store]],
        known: Known,
        unrolled: list[Axis],
        once: bool,
    ) -> None:
        varied = [
            again
            for wide in stores
            for again in (
                at_steps(wide, known, unrolled, self.kinds) if unrolled or known else [wide]
            )
        ]
        self._folds(scope, [store.value for wide in varied for store in wide])
        for lane in self.shared:
            values = [store.value for wide in varied for store in wide]
            again = iter(made_once(values, lane, scope.known))
            varied = [[replace(store, value=next(again)) for store in wide] for wide in varied]
        for some in self._at_once(varied, scope.known):
            # all values before any store: a store may overwrite what another one read
            made, first, parts = list[list[Expr]](), len(scope.instrs), list[list[Instr]]()
            for wide in some:
                start = len(scope.instrs)
                made.append([self.emit(scope, store.value) for store in wide])
                parts.append(scope.instrs[start:])
            if self.calls or self.vectors:
                scope.instrs[first:] = in_turn(parts)
            each = sorted(zip(some, made, strict=True), key=lambda one: one[0][0].slot)
            for wide, values in each:  # a line of each at a time
                for stored, made_there in self._abreast(wide, values):
                    self._put(scope, stored, made_there, once)

    def _abreast(
        self, stores: list[Store], values: list[Expr]
    ) -> Iterator[tuple[list[Store], list[Expr]]]:
        """What is stored, and the names of values, at each step of what is copied abreast."""
        axis = self.copied
        if axis is None or not self.copies[axis]:
            yield stores, values
            return
        for n in range(axis.size):
            at = {axis: linear(n)}
            there = [named_at(substitute(value, at), n) for value in values]
            pairs = zip((store_at(s, at, s.value) for s in stores), there, strict=True)
            some = [(store, value) for store, value in pairs if store is not None]
            if some:
                yield [store for store, _ in some], [value for _, value in some]

    def _at_once(
        self, stores: list[list[Store]], made: Container[Expr]
    ) -> Iterator[list[list[Store]]]:
        """All, or what a thread's registers hold of them, if none reads what another overwrites."""
        first = [wide[0] for wide in stores]
        slots = {store.slot for store in first}
        most = VECTORS_AT_ONCE if self.vectors else AT_ONCE
        some = most * len(slots) // len(stores[0]) if stores else 0
        few = len(stores) <= some + some // 2
        whole = few or any(s.op or (self.vectors and not s.value.has_fold) for s in first)
        values = [s.value for s in first] if some and not whole else []
        read = {e.slot for e in toposort(values, made) if isinstance(e, (Load, Wide))}
        if not values or not slots.isdisjoint(read):
            yield stores
            return
        if not self.vectors and len(read) > READ:
            some = max(1, some // -(-len(read) // READ))
        for start in range(0, len(stores), some):
            yield stores[start : start + some]

    def _put(self, scope: Scope, stores: list[Store], values: list[Expr], once: bool) -> None:
        """Stores to one slot; several are side by side and go in one wide access if aligned."""
        first = stores[0]
        if len(stores) > 1 and not side_by_side(stores):
            for store, value in zip(stores, values, strict=True):
                self._put(scope, [store], [value], once)
            return
        position = self._place(scope, first.position)
        valid, op, streams = first.valid, first.op, first.streams
        step = self._lanes(position.free) if streams else 1
        some = _not_all(first.some, len(stores))
        made = ir.Put(
            first.slot, first.dtype, position, (*values,), valid, op, once, streams, step, some
        )
        before = scope.instrs[-1] if scope.instrs else None
        if isinstance(before, ir.Put) and _goes_on(before, made):
            scope.instrs[-1] = replace(before, values=(*before.values, *values))
        else:
            scope.instrs.append(made)

    # ---- folds ----

    def _folds(self, scope: Scope, values: Iterable[Expr]) -> None:
        """Compute every fold below `values` that this scope knows enough for."""
        roots = [v for v in values if v.has_fold and v not in scope.known]
        if not roots:
            return
        ready = self._ready(scope, roots)
        groups: dict[tuple[int, tuple[Axis, ...]], list[Fold]] = {}
        order = [*toposort(roots, scope.known)] if self.along else []
        for fold in together([e for e in order if e not in scope.known], ready, self.along):
            del ready[fold]
        for fold, level in ready.items():
            groups.setdefault((level, fold.axes), []).append(fold)
        for level, group in sorted(groups, key=lambda key: key[0]):
            folds, tiles, later = groups[level, group], self.tiles, list[Fold]()
            if not self.along.isdisjoint(a.name for a in group):
                alike = (own for n, own in groups if n == level + 1 and self._goes(own, group))
                next_ = [f for own in alike for f in groups[level + 1, own]]
                later = followers([f for f in next_ if f not in scope.known], folds)
            if prod(self.block) > 1 and tiles:  # others are not filled
                read = names_read(fold.body for fold in (*folds, *later))
                self.tiles = tuple(t for t in tiles if t.name in read or not t.copies)
            folds = [fold for fold in folds if fold not in scope.known]
            if later:
                self._run_along(scope, group, folds, later)
            elif folds:
                scope.instrs += self.ahead.behind(group, roots, scope)
                self._fold_group(scope, group, folds)
            self.tiles = tiles
            if folds and not later and not {*self.parts}.isdisjoint(group):
                names = tuple(self.emit_named(scope, fold) for fold in folds)
                tile, part = map(numbered, (self.grid, self.parts))
                scope.instrs.append(ir.AcrossBlocks(names, tile, part))
                scope.instrs += whole(names, folds[0].op, part.high + 1)

    def _goes(self, axes: tuple[Axis, ...], group: tuple[Axis, ...]) -> bool:
        """Whether folds walk a group, alone or shared out among threads that know all leaders."""
        return axes == group or tuple(a for a in axes if self.kind(a) is not Kind.THREAD) == group

    def _ready(self, scope: Scope, roots: Iterable[Expr]) -> dict[Fold, int]:
        """The folds that a scope knows enough for, and how many of them each reads in turn."""
        ready: dict[Fold, int] = {}
        depth: dict[Expr, int] = {}
        for e in toposort(roots, scope.known, attrgetter("folding")):
            if e in scope.known:
                continue
            below = max([depth.get(s, 0) for s in e.folding], default=0)
            if type(e) is Fold and e.free - self.loose <= scope.bound:
                ready[e] = below
                below += 1
            depth[e] = below
        return ready

    def _fold_group(self, scope: Scope, group: tuple[Axis, ...], folds: list[Fold]) -> None:
        """Accumulators, and the loops over `group` that fill all of them."""
        loops, filled = self._loops(group), self._filled_by(folds)
        if not filled:
            loops = loops.cropped(crop.needed(folds), asked=crop.asked(folds))
        lane = next((a for a in group if a in self.free_lanes), None)
        steps = prod(a.size for a in loops.unrolled)
        each = sum((lanes_of(fold.body) or 1) * self._steps(fold) for fold in folds)
        most = max(1, SEPARATE // each)
        spread = steps if steps <= most else most if self.along and steps % most == 0 else 1

        def declare(within: Scope) -> list[list[Name]]:
            return [[self._declare(within, fold, lane) for _ in range(spread)] for fold in folds]

        accumulators = declare(scope)
        has_rest = lane is not None and any(split.inner is lane for split in self.splits)
        rests = [self._declare(scope, fold, None) if has_rest else None for fold in folds]

        def enter(inner: Scope, known: Known) -> None:
            self._folds(inner, [substitute(f.body, known) for f in folds if f.body.has_fold])

        def body(inner: Scope, known: Known, unrolled: list[Axis], into: list[list[Name]]) -> None:
            bodies = self._bodies(inner, folds, filled, known, unrolled)
            values = [*crop.changing(folds, bodies, every_step(known, unrolled))]
            self._folds(inner, [value for _, _, value in values])
            targets = [
                [rest] if rest is not None and lane in known else into[n]
                for n, rest in enumerate(rests)
            ]
            self._take_up(inner, folds, values, targets)

        opening = (self._open, self._open_rests, self._begin)
        long = LongFold(*opening, folds, steps // spread, self._steps, declare, body)
        # the parts of a loop have one beginning
        if begun := [t for t in self.tiles if t.stages > 1 and t.after is long.parted(loops)]:
            self.filler.begin(scope, ir.Begin(begun[0].after), {}, begun)
        with self.ahead.in_loop():
            long.open(scope, replace(loops, enter=enter), {}, accumulators)
        for n, fold in enumerate(folds):
            self._finish(scope, fold, accumulators[n], lane, rests[n])

    def _bodies(
        self, scope: Scope, folds: list[Fold], fill: list[Tile], known: Known, unrolled: list[Axis]
    ) -> list[Expr]:
        """What folds take up, in wide accesses, of tiles that they fill; without what is known."""
        self._put_step(scope, fill, every_step(known, unrolled))
        bodies = [crop.without(fold.body, scope.held) for fold in folds]
        for axis in (a for a in unrolled if self.kind(a) is Kind.LANE and a not in known):
            bodies = [wide_loads(value, axis) for value in bodies]
        return bodies

    def _take_up(
        self,
        scope: Scope,
        folds: list[Fold],
        values: list[tuple[int, int, Expr]],
        into: list[list[Name]],
    ) -> None:
        """Values of folds at the steps that are written out, in their accumulators."""
        first, parts = len(scope.instrs), list[list[Instr]]()
        for number, changes in groupby(values, itemgetter(1)):
            start = len(scope.instrs)
            scope.instrs.append(APART)
            for n, _, value in changes:
                target = into[n][number % len(into[n])]
                scope.instrs.append(ir.Update(target, folds[n].op, self.emit(scope, value)))
            parts.append(scope.instrs[start:])
        # without functions, more loads than a processor follows would come first
        if self.vectors and self.calls and self.copied is None:
            scope.instrs[first:] = in_turn(parts)

    def _steps(self, fold: Fold) -> int:
        """How many folds one is: one for each step of what is copied."""
        return self.copied.size if self.copied is not None and self.copied in fold.free else 1

    def _declare(self, scope: Scope, fold: Fold, lane: Axis | None) -> Name:
        size = lane.size if lane is not None else self._lanes(fold.free)
        size = fold.body.lanes if isinstance(fold.body, Product) else size
        name = self._name("acc", fold, size)
        start = const(identity(fold.op, fold.dtype), fold.dtype)
        scope.instrs.append(ir.Declare(name, start))
        return name

    def _finish(
        self, scope: Scope, fold: Fold, parts: list[Name], lane: Axis | None, rest: Name | None
    ) -> None:
        """Bring the accumulators of a fold together, in a fixed order."""
        result = joined(scope, fold, parts)
        if lane is not None:
            across = self._name("acc", fold, 1)
            scope.instrs.append(ir.AcrossLanes(across, fold.op, result))
            result = across
        if rest is not None:
            scope.instrs.append(ir.Update(result, fold.op, rest))
        threads = self._sharing(fold)
        if threads > 1:
            scope.instrs.append(ir.AcrossThreads(result, fold.op, threads))
        scope.name(fold, result)

    def _sharing(self, fold: Fold) -> int:
        """The threads that share the steps of a fold."""
        threads = prod(a.size for a in fold.axes if self.kind(a) is Kind.THREAD)
        return self.block[0] if self.tx & {*fold.axes} else threads


def _not_all(some: Range | None, count: int) -> Range | None:
    """Which of so many values are stored, if that may be others than all."""
    if some is None or (some.low <= some.index.low and some.index.high + count - 1 <= some.high):
        return None
    return some


def _goes_on(put: ir.Put, next_: ir.Put) -> bool:
    """Whether values lie right behind those of another store, and go past the caches as they do."""
    past = put.streams and next_.streams and put.step == next_.step > 1
    same = put.slot == next_.slot and put.valid == next_.valid and put.once == next_.once
    return past and same and next_.position is put.position + len(put.values) * put.step
