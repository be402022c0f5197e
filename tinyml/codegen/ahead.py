"""Ahead: while a row is computed, memory is asked for the next one.

Where several loops of a row read the same elements, the first of them waits for memory, and the
others compute on what a cache holds, while memory has nothing to do. So the second loop asks for
the same elements some steps of an axis further on: a line at a time, where it reads this step's.
Where results go past the caches, to store them takes longest, unless folds call functions; so the
loop that does asks for what it reads. Then what is asked for lies a quarter of a page further on
than whole rows do, which may be whole pages: lines at the same place of one hinder each other.

Numbers that are spread over lanes are multiplied for longer than memory takes to deliver them. So
the loop that reads them asks for them, too, if no other one does.

And what is made of sums, behind the loop that adds them up, waits for all else that it is made of.
So that is asked for in front of the loop.

What is copied to a tile is computed with later, so that only memory is waited for: each step of an
axis of the tile asks for what a few steps further on are filled with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager

from tinyml.codegen import linear as ir
from tinyml.codegen.expr import Alu, Expr, Fold, Load
from tinyml.codegen.nest import Nest
from tinyml.codegen.scope import Scope
from tinyml.graph import toposort
from tinyml.index import ZERO, Axis, Linear, linear
from tinyml.ops import FUNCTIONS

LINE = 64  # bytes that memory delivers at once
FURTHER = 4  # steps of a tile's axis, which take much less time than rows that are computed with
ASIDE = 16 * LINE  # bytes further, if results go past the caches: not the place that they go to,
SHORT = 32 << 10  # for rows of so many bytes in all at most: longer ones are far enough

Read = tuple[int, Axis, int]  # a slot, and how far its elements are from those of the next step


class Ahead:
    """What the loops of one nest read, in the order in which they are written.

    `axes` are those of which so many steps further on are asked for; some of them are `filled`,
    axes of tiles. What loops over `storing` read is asked for there alone.
    """

    def __init__(
        self, axes: Mapping[Axis, int], filled: Set[Axis], lanes: Set[Axis], one: Nest
    ) -> None:
        self.axes = {a: steps for a, steps in axes.items() if a not in filled}
        self.filled, self.lanes = [a for a in axes if a in filled], lanes
        self.storing = _storing(one) if self.axes else {}
        self.aside = {a for a in self.axes if _goes_past(one, a)}
        self.walked = {a for walk in one.walks for a in walk.axes}  # inside of a row
        self.made = self.loop = 0
        self.first: dict[Read, int] = {}  # the loop that reads it first
        self.asking: dict[Read, int] = {}  # the one after that
        self.asked: set[tuple[Scope, int, Linear]] = set()

    @contextmanager
    def in_loop(self) -> Iterator[None]:
        """What is read meanwhile is read by a loop of its own."""
        outer, self.made = self.loop, self.made + 1
        self.loop = self.made
        yield
        self.loop = outer

    def behind(self, fold: Iterable[Axis], values: Sequence[Expr], scope: Scope) -> list[ir.Fetch]:
        """What to ask for in front of a loop over a fold, behind which `values` are made of it."""
        found = list[ir.Fetch]()
        if not any(axis in self.axes for axis in fold):
            return found
        below = toposort(values, scope.known, lambda e: () if type(e) is Fold else e.sources)
        outside = scope.parent.bound if scope.parent is not None else frozenset[Axis]()
        for load in below:
            if isinstance(load, Load) and not (load.sources or load.free <= outside):
                start = load.position.substitute({a: linear(0) for a in load.free & self.lanes})
                if start.free.isdisjoint(self.walked):
                    found += self._once(load, scope, _line(start, load), 0)
        return found

    def fetches(self, load: Load, scope: Scope) -> list[ir.Fetch]:
        """What to ask for where `load` stands."""
        if load.sources:
            return []
        found = self._of_rows(load, scope) if self.axes and not load.valid else []
        for axis in self.filled:
            for start in _lines(load, self.lanes) if axis in load.position.free else ():
                line = _line(start, load)
                if stride := line.stride(axis):
                    found += self._once(load, scope, line, FURTHER * stride)
        return found

    def _of_rows(self, load: Load, scope: Scope) -> list[ir.Fetch]:
        along = {a: linear(0) for a in load.free if a in self.lanes}
        spread = scope.parent if self.lanes and not along else None
        outside = spread.bound if spread is not None else frozenset[Axis]()
        line = _line(load.position.substitute(along), load)
        found = []
        later = load.free.isdisjoint(self.storing.get(load.slot, load.free))
        for axis, steps in self.axes.items():
            stride = line.stride(axis)
            read = load.slot, axis, stride or 0
            first = self.first.setdefault(read, self.loop) == self.loop
            if not stride or later or (first and axis not in outside):
                continue
            new = (scope, load.slot, line) not in self.asked
            if new and self.asking.setdefault(read, self.loop) == self.loop:
                aside = ASIDE // load.dtype.itemsize if axis in self.aside and spread is None else 0
                found += self._once(load, scope, line, steps * stride + aside)
        return found

    def _once(self, load: Load, scope: Scope, line: Linear, further: int) -> list[ir.Fetch]:
        asked = scope, load.slot, line
        if asked in self.asked:
            return []
        self.asked.add(asked)
        return [ir.Fetch(load.slot, line + further)]


def _storing(one: Nest) -> dict[int, frozenset[Axis]]:
    """The slots that loops read which store past the caches, and the axes of these loops."""
    rows, found = {*one.rows}, dict[int, frozenset[Axis]]()
    folded = toposort([fold.body for fold in one.folds])
    if any(isinstance(e, Alu) and e.op in FUNCTIONS and not e.free <= rows for e in folded):
        return found
    for walk in one.walks:
        values = [store.value for store in walk.stores if store.streams]
        for e in toposort(values, (), lambda e: () if type(e) is Fold else e.sources):
            if isinstance(e, Load) and not e.free <= rows:
                found[e.slot] = e.free.difference(rows).union(found.get(e.slot, ()))
    return found


def _goes_past(one: Nest, axis: Axis) -> bool:
    """Whether steps of an axis go past the caches, and are short in all slots together."""
    apart = {e.slot: (e.position.stride(axis) or 0) * e.dtype.itemsize for e in one.loads}
    apart |= {s.slot: (s.position.stride(axis) or 0) * s.dtype.itemsize for s in one.stores}
    return any(s.streams for s in one.stores) and sum(map(abs, apart.values())) <= SHORT


def _line(start: Linear, load: Load) -> Linear:
    return start - start.constant % (LINE // load.dtype.itemsize)


def _lines(load: Load, lanes: Set[Axis]) -> list[Linear]:
    """Where lines begin that a vector is loaded from."""
    lane = next((a for a in load.free if a in lanes), None)
    if lane is None:
        return [load.position]
    first, stride = load.position.substitute({lane: ZERO}), load.position.stride(lane)
    if stride is not None:
        apart = max(abs(stride) * load.dtype.itemsize, 1)
        return [first + stride * n for n in range(0, lane.size, max(LINE // apart, 1))]
    second = load.position.substitute({lane: linear(1)})
    apart = abs(second.constant - first.constant) * load.dtype.itemsize
    steps = range(0, lane.size, max(LINE // max(apart, 1), 1))
    return [load.position.substitute({lane: linear(n)}) for n in steps]
