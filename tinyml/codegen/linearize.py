"""Linearize: a LoopNest becomes instructions in order.

Loops are opened from the outside in. Whatever does not depend on an inner loop is computed
outside of it; a fold becomes an accumulator and the loops that fill it, placed in the
outermost scope that knows all axes it depends on. Folds over the same axes share one walk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from math import prod

from tinyml.codegen import linear as ir
from tinyml.codegen.expr import (
    Alu,
    Const,
    Expr,
    Fold,
    Load,
    Name,
    Part,
    Place,
    Select,
    Wide,
    const,
    rewrite,
    substitute,
    with_sources,
)
from tinyml.codegen.linear import Instr, LinearKernel, Local
from tinyml.codegen.nest import Kind, LoopNest, Nest, Split, Store, Tile, axes
from tinyml.dtype import DType
from tinyml.graph import toposort
from tinyml.index import (
    ZERO,
    Axis,
    Linear,
    Range,
    both,
    inside,
    linear,
    map_looked,
    row_major,
    substitute_valid,
    unravel,
)
from tinyml.interpret import identity
from tinyml.ops import WORK, Op

Known = Mapping[Axis, Linear]

DEEPEST = 8  # ops written into one another before a value gets a name
SEPARATE = 8  # accumulators at most that one fold is spread over
STEPS = 32  # terms that a sum of floats adds up one by one, about


def linearize(nest: LoopNest, vectors: bool = True) -> LinearKernel:
    """Instructions for all nests. Without `vectors`, lanes are scalars loaded side by side."""
    kinds = dict(nest.kinds)
    threads = [[a for a in n.rows if kinds.get(a) is Kind.THREAD] for n in nest.nests]
    along_y = max((prod(a.size for a in group) for group in threads), default=1)
    along_x = max((a.size for n in nest.nests for a in axes(n) if a.name == ir.TX), default=1)
    parts = []
    tiles: list[Local] = []
    for number, (one, group) in enumerate(zip(nest.nests, threads, strict=True)):
        emitter = _Emitter(nest, number, (along_x, along_y), vectors)
        grid = tuple(a for a in one.rows if kinds.get(a) is Kind.GRID)
        parts.append(ir.Part(grid, tuple(group), emitter.nest(one)))
        tiles += [Local(t.name, t.value.dtype, t.size) for t in one.tiles]
    lanes = frozenset(a for a, kind in nest.kinds if kind is Kind.LANE) if vectors else frozenset()
    return LinearKernel(
        nest.name, tuple(parts), nest.slots, (along_x, along_y), tuple(tiles), lanes
    )


class _Scope:
    """A loop body being written: what is bound, what is known by name."""

    def __init__(self, bound: frozenset[Axis], parent: _Scope | None) -> None:
        self.bound, self.parent = bound, parent
        self.instrs: list[Instr] = []
        self.known: dict[Expr, Expr] = {}

    def find(self, e: Expr) -> Expr | None:
        scope: _Scope | None = self
        while scope is not None:
            if (found := scope.known.get(e)) is not None:
                return found
            scope = scope.parent
        return None

    def home(self, free: frozenset[Axis]) -> _Scope:
        """The outermost scope, from here outwards, that binds all of `free`."""
        scope = self
        while scope.parent is not None and free <= scope.parent.bound:
            scope = scope.parent
        return scope


class _Emitter:
    """Writes one nest."""

    def __init__(self, nest: LoopNest, number: int, block: tuple[int, int], vectors: bool) -> None:
        self.kinds = dict(nest.kinds)
        self.splits = [split for split in nest.splits if split.rest]
        self.mark = f"_{number}" if number else ""
        self.block, self.vectors = block, vectors
        self.names = 0
        self.tiles: tuple[Tile, ...] = ()
        self.free_lanes: set[Axis] = set()
        if vectors:
            self.free_lanes.update(a for a, kind in nest.kinds if kind is Kind.LANE)

    def kind(self, axis: Axis) -> Kind:
        return self.kinds.get(axis, Kind.LOOP)

    # ---- rows and walks ----

    def nest(self, nest: Nest) -> tuple[Instr, ...]:
        self.tiles = nest.tiles
        fixed = [a for a in nest.rows if self.kind(a) in (Kind.GRID, Kind.THREAD)]
        tx = {a for a in axes(nest) if a.name == ir.TX}
        scope = _Scope(frozenset((*fixed, *tx)), None)
        for axis in fixed:
            self._fill_tiles(scope, axis, {})
        values = [store.value for walk in nest.walks for store in walk.stores]

        def enter(inner: _Scope, known: Known) -> None:
            self._folds(inner, [substitute(value, known) for value in values])

        def body(inner: _Scope, known: Known, unrolled: list[Axis]) -> None:
            for walk in nest.walks:
                stores = self._varied(walk.stores, known, unrolled)
                self._walk(inner, walk.axes, stores, once=bool(tx) and tx.isdisjoint(walk.axes))

        self._open(scope, _Loops(self, nest.rows), {}, enter, body)
        return tuple(scope.instrs)

    def _walk(
        self, scope: _Scope, group: tuple[Axis, ...], stores: list[list[Store]], once: bool
    ) -> None:
        flat = [store for wide in stores for store in wide]

        def enter(inner: _Scope, known: Known) -> None:
            self._folds(inner, [substitute(store.value, known) for store in flat])

        def body(inner: _Scope, known: Known, unrolled: list[Axis]) -> None:
            varied = [
                again
                for wide in stores
                for again in (self._varied(wide, known, unrolled) if unrolled or known else [wide])
            ]
            self._folds(inner, [store.value for wide in varied for store in wide])
            made = {  # all values before any store: a store may overwrite what another one read
                store: self.emit(inner, store.value) for wide in varied for store in wide
            }
            for wide in varied:
                self._put(inner, wide, made, once)

        self._open(scope, _Loops(self, group), {}, enter, body)

    def _put(
        self, scope: _Scope, stores: list[Store], made: Mapping[Store, Expr], once: bool
    ) -> None:
        """Stores to one slot; several are side by side and go in one wide access if aligned."""
        first = stores[0]
        if len(stores) > 1 and not _side_by_side(stores):
            for store in stores:
                self._put(scope, [store], made, once)
            return
        values = tuple(made[store] for store in stores)
        position = self._place(scope, first.position)
        scope.instrs.append(
            ir.Put(first.slot, first.dtype, position, values, first.valid, first.op, once)
        )

    def _open(
        self,
        scope: _Scope,
        loops: _Loops,
        known: Known,
        enter: Callable[[_Scope, Known], None],
        body: Callable[[_Scope, Known, list[Axis]], None],
    ) -> None:
        """Open all loops, then write `body`; and once more for what remains after a split."""
        enter(scope, known)
        if not loops.waiting:
            body(scope, known, loops.unrolled)
            return
        first = loops.waiting[0]
        if first.size == 1:
            self._fill_tiles(scope, first, known)
            self._open(scope, loops.without(first), {**known, first: ZERO}, enter, body)
        else:
            self._loop(scope, first, loops, known, enter, body)
        self._open_rests(scope, first, loops, known, enter, body)

    def _open_rests(
        self,
        scope: _Scope,
        first: Axis,
        loops: _Loops,
        known: Known,
        enter: Callable[[_Scope, Known], None],
        body: Callable[[_Scope, Known, list[Axis]], None],
    ) -> None:
        """What remains after the splits whose outer axis is `first`."""
        for split in self.splits:
            if split.outer is first and split.inner not in known:
                rest = Axis(f"{split.inner.name}_", split.rest)
                at: Known = {axis: linear(step) for axis, step in split.at}
                more = {**known, **at, split.inner: linear(rest)}
                self._open(scope, loops.rest(split, rest), more, enter, body)

    def _loop(
        self,
        scope: _Scope,
        axis: Axis,
        loops: _Loops,
        known: Known,
        enter: Callable[[_Scope, Known], None],
        body: Callable[[_Scope, Known, list[Axis]], None],
    ) -> None:
        inner = _Scope(scope.bound | {axis}, scope)
        self._fill_tiles(inner, axis, known)
        self._open(inner, loops.without(axis), known, enter, body)
        if any(tile.after is axis for tile in self.tiles) and prod(self.block) > 1:
            inner.instrs.append(ir.Barrier())  # before the next step fills the tile again
        scope.instrs += [ir.Begin(axis), *inner.instrs, ir.End(axis)]

    def _varied(
        self, stores: Sequence[Store], known: Known, unrolled: list[Axis]
    ) -> list[list[Store]]:
        """Every store for every step of the unrolled axes; lanes of one store side by side."""
        lanes = [a for a in unrolled if self.kind(a) is Kind.LANE]
        others = [a for a in unrolled if a not in lanes]
        varied: list[list[Store]] = []
        for steps in product(*(range(a.size) for a in others)):
            at = _stepped(known, others, steps)
            for store in stores:
                one = _substitute_store(store, at)
                if one is None:
                    continue
                side = [one]
                for lane in lanes:
                    one = _widened(one, lane)
                    numbered = ({lane: linear(n)} for n in range(lane.size))
                    side = [s for at in numbered if (s := _substitute_store(one, at)) is not None]
                varied.append(side)
        return varied

    # ---- folds ----

    def _folds(self, scope: _Scope, values: Iterable[Expr]) -> None:
        """Compute every fold below `values` that this scope knows enough for."""
        ready: dict[Fold, int] = {}
        depth: dict[Expr, int] = {}
        for e in toposort(values, _Known(scope)):
            below = max((depth[s] for s in e.sources if s in depth), default=0)
            depth[e] = below
            new = isinstance(e, Fold) and scope.find(e) is None
            if isinstance(e, Fold) and new and e.free - self.free_lanes <= scope.bound:
                ready[e] = below
                depth[e] = below + 1
        groups: dict[tuple[int, tuple[Axis, ...]], list[Fold]] = {}
        for fold, level in ready.items():
            groups.setdefault((level, fold.axes), []).append(fold)
        for level, group in sorted(groups, key=lambda key: key[0]):
            self._fold_group(scope, group, groups[level, group])

    def _fold_group(self, scope: _Scope, group: tuple[Axis, ...], folds: list[Fold]) -> None:
        """Accumulators, and the loops over `group` that fill all of them."""
        loops = _Loops(self, group)
        lane = next((a for a in group if a in self.free_lanes), None)
        steps = prod(a.size for a in loops.unrolled)
        spread = steps if len(folds) * steps <= SEPARATE else 1

        def declare(within: _Scope) -> list[list[Name]]:
            return [[self._declare(within, fold, lane) for _ in range(spread)] for fold in folds]

        accumulators = declare(scope)
        has_rest = lane is not None and any(split.inner is lane for split in self.splits)
        rests = [self._declare(scope, fold, None) if has_rest else None for fold in folds]

        def enter(inner: _Scope, known: Known) -> None:
            self._folds(inner, [substitute(fold.body, known) for fold in folds])

        def body(inner: _Scope, known: Known, unrolled: list[Axis], into: list[list[Name]]) -> None:
            values: list[tuple[int, int, Expr]] = []
            for number, at in enumerate(self._steps(known, unrolled)):
                for n, fold in enumerate(folds):
                    values.append((n, number, substitute(fold.body, at)))
            self._folds(inner, [value for _, _, value in values])
            for n, number, value in values:
                rest = rests[n] if lane is not None and lane in known else None
                target = rest or into[n][number % spread]
                inner.instrs.append(ir.Update(target, folds[n].op, self.emit(inner, value)))

        long = _LongFold(self, folds, declare, enter, body)
        long.open(scope, loops, {}, accumulators)
        for n, fold in enumerate(folds):
            self._finish(scope, fold, accumulators[n], lane, rests[n])

    def _steps(self, known: Known, unrolled: list[Axis]) -> list[Known]:
        every = product(*(range(a.size) for a in unrolled))
        return [_stepped(known, unrolled, steps) for steps in every]

    def _declare(self, scope: _Scope, fold: Fold, lane: Axis | None) -> Name:
        size = lane.size if lane is not None else self._lanes(fold.free)
        name = self._name("acc", fold.dtype, size)
        start = const(identity(fold.op, fold.dtype), fold.dtype)
        scope.instrs.append(ir.Declare(name, start))
        return name

    def _finish(
        self, scope: _Scope, fold: Fold, parts: list[Name], lane: Axis | None, rest: Name | None
    ) -> None:
        """Bring the accumulators of a fold together, in a fixed order."""
        while len(parts) > 1:
            half = len(parts) // 2
            for one, other in zip(parts[:half], parts[-half:], strict=True):
                scope.instrs.append(ir.Update(one, fold.op, other))
            parts = parts[: len(parts) - half]
        result = parts[0]
        if lane is not None:
            across = self._name("acc", fold.dtype, 1)
            scope.instrs.append(ir.AcrossLanes(across, fold.op, result))
            result = across
        if rest is not None:
            scope.instrs.append(ir.Update(result, fold.op, rest))
        if any(a.name == ir.TX for a in fold.axes):
            scope.instrs.append(ir.AcrossThreads(result, fold.op))
        scope.known[fold] = result

    # ---- tiles ----

    def _fill_tiles(self, scope: _Scope, after: Axis, known: Known) -> None:
        """Every thread of the block copies its share of the tiles that start here."""
        filled = [tile for tile in self.tiles if tile.after is after]
        threads = prod(self.block)
        for tile in filled:
            value = substitute(tile.value, known)
            if threads == 1:
                self._fill_serially(scope, tile, value, known)
                continue
            number = linear(Axis("ty", self.block[1])) * self.block[0]
            number = number + linear(Axis(ir.TX, self.block[0]))
            step = Axis(f"c_{tile.name}", -(-tile.size // threads))
            at = linear(step) * threads + number
            order = _by_stride(tile)  # neighbouring threads read neighbouring elements
            index = dict(zip(order, unravel(at, tuple(a.size for a in order)), strict=True))
            guard = both([inside(at, 0, tile.size - 1)]) or ()
            place = row_major((index[a] for a in tile.axes), (a.size for a in tile.axes))
            inner = _Scope(scope.bound | {step} | at.free, scope)
            stored = self.emit(inner, _guarded(substitute(value, index), guard))
            inner.instrs.append(ir.PutTile(tile.name, value.dtype, place, stored, guard))
            if step.size > 1:
                scope.instrs += [ir.Begin(step), *inner.instrs, ir.End(step)]
            else:
                scope.instrs += inner.instrs
        if filled and threads > 1:
            scope.instrs.append(ir.Barrier())

    def _fill_serially(self, scope: _Scope, tile: Tile, value: Expr, known: Known) -> None:
        if tile.over is None:
            self._write_tile(scope, tile, value, None)
            return
        start = const(identity(tile.op, value.dtype), value.dtype)
        self._write_tile(scope, tile, start, None)
        inner = _Scope(scope.bound | {tile.over}, scope)
        self._fill_tiles(inner, tile.over, known)
        self._write_tile(inner, tile, value, tile.op)
        scope.instrs += [ir.Begin(tile.over), *inner.instrs, ir.End(tile.over)]

    def _write_tile(self, scope: _Scope, tile: Tile, value: Expr, op: Op | None) -> None:
        at = row_major(map(linear, tile.axes), [a.size for a in tile.axes])

        def body(inner: _Scope, known: Known, unrolled: list[Axis]) -> None:
            steps = self._steps(known, unrolled)
            self._folds(inner, [substitute(value, step) for step in steps])
            for step in steps:
                stored = self.emit(inner, substitute(value, step))
                index = at.substitute(step)
                inner.instrs.append(ir.PutTile(tile.name, value.dtype, index, stored, (), op))

        order = _Loops(self, _by_stride(tile))
        self._open(scope, order, {}, lambda _scope, _known: None, body)

    # ---- expressions ----

    def emit(self, scope: _Scope, root: Expr) -> Expr:
        """`root` in terms of names; what is used twice, or outside this loop, gets a name."""
        order = toposort([root], _Known(scope))
        homes = {e: scope.home(e.free - self.free_lanes) for e in order}
        fresh = [e for e in order if scope.find(e) is None]
        named = self._worth_naming(fresh, homes, scope)
        made: dict[Expr, Expr] = {}
        depth: dict[Expr, int] = {}
        for e in order:
            found = scope.find(e)
            if found is not None:
                made[e], depth[e] = found, 0
                continue
            made[e] = self._on(e, made)
            depth[e] = 1 + max((depth[s] for s in e.sources), default=0)
            trivial = isinstance(e, (Const, Name, Part)) or (isinstance(e, Place) and not e.sources)
            if not trivial and (e in named or depth[e] > DEEPEST):
                name = self._name("v", e.dtype, _lanes_of(e) or self._lanes(e.free))
                homes[e].instrs.append(ir.Let(name, made[e]))
                homes[e].known[e] = made[e] = name
                depth[e] = 0
        return made[root]

    def _worth_naming(
        self, order: Sequence[Expr], homes: Mapping[Expr, _Scope], scope: _Scope
    ) -> set[Expr]:
        readers: dict[Expr, int] = {}
        named: set[Expr] = set()
        for e in order:
            looked = set(e.sources) - set(e.operands if isinstance(e, Alu) else ())
            looked -= {e.value, e.other} if isinstance(e, Select) else set()
            for source in e.sources:
                readers[source] = readers.get(source, 0) + 1
                if source in looked and not isinstance(e, Part):
                    named.add(source)
                if homes[source] is not homes[e]:
                    named.add(source)
        for e in order:
            costly = isinstance(e, Alu) and WORK[e.op] > 4
            if isinstance(e, (Load, Wide)) or costly or readers.get(e, 0) > 1:
                named.add(e)
        if order and homes[order[-1]] is not scope:
            named.add(order[-1])
        return named

    def _on(self, e: Expr, made: Mapping[Expr, Expr]) -> Expr:
        """`e` on what its operands were made into."""
        if isinstance(e, Fold):
            raise AssertionError(f"{e} is not known here")
        return with_sources(e, tuple(made[s] for s in e.sources))

    def _place(self, scope: _Scope, position: Linear) -> Linear:
        """A position in terms of names."""
        return map_looked(position, lambda a: self.emit_named(scope, a.value).looked(a.size))

    def emit_named(self, scope: _Scope, value: Expr) -> Expr:
        """Like emit, but the result is a name."""
        made = self.emit(scope, value)
        if isinstance(made, Name):
            return made
        name = self._name("v", value.dtype, self._lanes(value.free))
        scope.instrs.append(ir.Let(name, made))
        scope.known[value] = name
        return name

    def _name(self, kind: str, dtype: DType, lanes: int) -> Name:
        self.names += 1
        name: Name = Name(f"{kind}{self.names - 1}{self.mark}", dtype, lanes)
        return name

    def _lanes(self, free: frozenset[Axis]) -> int:
        return max((a.size for a in free & self.free_lanes), default=1)


class _LongFold:
    """The loops of a fold. A long sum of floats becomes sums of at most STEPS terms each.

    So its error grows with the logarithm of its length, as pairwise summation's does.
    """

    def __init__(
        self,
        emitter: _Emitter,
        folds: list[Fold],
        declare: Callable[[_Scope], list[list[Name]]],
        enter: Callable[[_Scope, Known], None],
        body: Callable[[_Scope, Known, list[Axis], list[list[Name]]], None],
    ) -> None:
        self.emitter, self.folds, self.declare = emitter, folds, declare
        self.enter, self.body = enter, body
        self.filled = {tile.after for tile in emitter.tiles}
        self.sums = any(fold.op is Op.ADD and fold.dtype.is_float for fold in folds)

    def open(self, scope: _Scope, loops: _Loops, known: Known, into: list[list[Name]]) -> None:
        """Open the loops, and add up what they make in `into`."""

        def body(inner: _Scope, known: Known, unrolled: list[Axis]) -> None:
            self.body(inner, known, unrolled, into)

        size = self._step(loops)
        if not size:
            self.emitter._open(scope, loops, known, self.enter, body)
            return
        self.enter(scope, known)
        first = loops.waiting[0]
        whole = first.size // size * size
        step, within = Axis(f"{first.name}_s", first.size // size), Axis(f"{first.name}_i", size)
        index = linear(step) * size + linear(within)
        self._part(scope, step, loops.renamed(first, within), _also(known, first, index), into)
        if whole < first.size:
            left = Axis(f"{first.name}_l", first.size - whole)
            index = linear(left) + whole
            self._part(scope, None, loops.renamed(first, left), _also(known, first, index), into)
        self.emitter._open_rests(scope, first, loops, known, self.enter, body)

    def _step(self, loops: _Loops) -> int:
        """How many steps of the outermost loop are summed apart; 0 if there is no need."""
        every = prod(a.size for a in loops.waiting)
        if not self.sums or every <= 2 * STEPS or self.filled & set(loops.waiting):
            return 0
        first = loops.waiting[0].size
        size = max(1, STEPS // (every // first))
        while size * 2 * STEPS < first:
            size *= STEPS
        even = next((n for n in range(size, size // 2, -1) if first % n == 0), size)
        return even if even < first else 0

    def _part(
        self,
        scope: _Scope,
        step: Axis | None,
        loops: _Loops,
        known: Known,
        into: list[list[Name]],
    ) -> None:
        """Sum in accumulators of its own, for every `step`, and add them to `into`."""
        inner = _Scope(scope.bound | ({step} if step else set()), scope)
        parts = self.declare(inner)
        self.open(inner, loops, known, parts)
        for fold, whole, part in zip(self.folds, into, parts, strict=True):
            for one, other in zip(whole, part, strict=True):
                inner.instrs.append(ir.Update(one, fold.op, other))
        scope.instrs += [ir.Begin(step), *inner.instrs, ir.End(step)] if step else inner.instrs


def _also(known: Known, axis: Axis, index: Linear) -> Known:
    """`known`, and what `axis` is, which it may itself refer to."""
    return {**{a: i.substitute({axis: index}) for a, i in known.items()}, axis: index}


def _stepped(known: Known, unrolled: Sequence[Axis], steps: Sequence[int]) -> Known:
    """`known` at one step of the unrolled axes, which it may itself refer to."""
    at: Known = {a: linear(n) for a, n in zip(unrolled, steps, strict=True)}
    return {**{a: index.substitute(at) for a, index in known.items()}, **at}


def _by_stride(tile: Tile) -> list[Axis]:
    """The axes of a tile, the one along which its source lies side by side last."""
    found = [e for e in toposort([tile.value]) if isinstance(e, Load)]
    if tile.over is not None or not found:
        return list(tile.axes)
    position = max(found, key=lambda e: len(e.free)).position
    return sorted(tile.axes, key=lambda a: -abs(position.stride(a) or 0))


def _guarded(value: Expr, guard: tuple[Range, ...]) -> Expr:
    """Loads that are not made where the guard does not hold."""

    def guarded(e: Expr) -> Expr | None:
        if not (guard and isinstance(e, Load)):
            return None
        made: Expr = Load(e.slot, e.dtype, e.position, both(e.valid, guard) or ())
        return made

    return rewrite(value, guarded)


class _Loops:
    """The axes of one walk or fold: those still to be opened, and those to be unrolled."""

    def __init__(self, emitter: _Emitter, group: Iterable[Axis]) -> None:
        unrolled = (Kind.UNROLL,) if emitter.vectors else (Kind.UNROLL, Kind.LANE)
        group = list(group)
        self.emitter = emitter
        self.waiting = [a for a in group if emitter.kind(a) is Kind.LOOP]
        self.unrolled = [a for a in group if emitter.kind(a) in unrolled]

    def without(self, axis: Axis) -> _Loops:
        return self._changed([a for a in self.waiting if a is not axis], self.unrolled)

    def renamed(self, axis: Axis, other: Axis) -> _Loops:
        return self._changed([other if a is axis else a for a in self.waiting], self.unrolled)

    def rest(self, split: Split, rest: Axis) -> _Loops:
        """What is left to do with the last, shorter step of a split."""
        fixed = [axis for axis, _ in split.at]
        waiting = [a for a in self.waiting if a not in fixed]
        unrolled = [a for a in self.unrolled if a not in fixed]
        if split.inner in unrolled:
            unrolled = [rest if a is split.inner else a for a in unrolled]
        elif split.inner in waiting:
            waiting = [rest if a is split.inner else a for a in waiting]
        elif rest.size > 1:
            waiting.append(rest)
        return self._changed(waiting, unrolled)

    def _changed(self, waiting: list[Axis], unrolled: list[Axis]) -> _Loops:
        changed = _Loops(self.emitter, ())
        changed.waiting, changed.unrolled = waiting, unrolled
        return changed


class _Known:
    """What needs no second look: expressions that a scope has a name for."""

    def __init__(self, scope: _Scope) -> None:
        self.scope = scope

    def __contains__(self, e: object) -> bool:
        return isinstance(e, Expr) and self.scope.find(e) is not None


def _lanes_of(e: Expr) -> int:
    return e.lanes if isinstance(e, (Wide, Name)) else 0


def _substitute_store(store: Store, known: Known) -> Store | None:
    """The store with axes replaced; None if it never happens."""
    valid = substitute_valid(store.valid, known)
    if valid is None:
        return None
    position = store.position.substitute(known)
    value = substitute(store.value, known)
    return Store(store.slot, store.dtype, position, value, valid, store.op)


def _widened(store: Store, lane: Axis) -> Store:
    """The store with loads that lie side by side along `lane` done in one access."""

    def widen(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or not _wide_at(e, lane):
            return None
        wide = Wide(e.slot, e.dtype, e.position.substitute({lane: ZERO}), e.valid, lane.size)
        part: Expr = Part(wide, linear(lane))
        return part

    value = rewrite(store.value, widen)
    return Store(store.slot, store.dtype, store.position, value, store.valid, store.op)


def _wide_at(e: Load, lane: Axis) -> bool:
    start = e.position - linear(lane)
    return (
        e.position.stride(lane) == 1
        and not any(lane in v.free for v in e.valid)
        and e.dtype.itemsize * lane.size in (4, 8, 16)
        and all(f % lane.size == 0 for _, f in start.terms)
        and start.constant % lane.size == 0
    )


def _side_by_side(stores: Sequence[Store]) -> bool:
    first, n = stores[0], len(stores)
    return (
        first.op is None
        and first.dtype.itemsize * n in (4, 8, 16)
        and all(f % n == 0 for _, f in first.position.terms)
        and first.position.constant % n == 0
        and all(s.position is first.position + i for i, s in enumerate(stores))
        and all(s.valid == first.valid for s in stores)
    )
