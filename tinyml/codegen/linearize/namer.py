"""Namer: expressions become lines, each where all is known that it depends on."""

from __future__ import annotations

from collections.abc import Iterable

from tinyml.codegen import linear as ir
from tinyml.codegen.ahead import Ahead
from tinyml.codegen.copies import APART
from tinyml.codegen.expr import Alu, Const, Expr, Load, Name, Part, Place, lanes_of, with_sources
from tinyml.codegen.linear import Instr
from tinyml.codegen.matrices import Matrix
from tinyml.codegen.scope import Scope, worth_naming
from tinyml.dtype import int64
from tinyml.graph import toposort
from tinyml.index import Axis, Linear, linear, map_looked
from tinyml.ops import FUNCTIONS

DEEPEST = 8  # ops written into one another before a value gets a name,
DEEP = 5  # likewise, in C, what a function is made of, which vectors abreast then make in turn


class Namer:
    """Gives values of one nest names, whose last letters are `mark`."""

    def __init__(self, mark: str, lanes: Iterable[Axis], ahead: Ahead) -> None:
        self.mark, self.names, self.free_lanes = mark, 0, {*lanes}
        self.loose: set[Axis | None] = {
            *lanes
        }  # axes that are walked within instructions: lanes, and what is copied
        self.copied: Axis | None = None  # whose steps are said once
        self.copies: dict[Axis, bool] = {}  # all such axes so far, and whether they are abreast
        self.families: dict[str, Axis] = {}
        self.ahead = ahead

    def emit(self, scope: Scope, root: Expr) -> Expr:
        """`root` in terms of names; what is used twice, or outside this loop, gets a name."""
        known = scope.known
        if root in known:
            return known[root][0]
        made: dict[Expr, Expr] = {}
        homes: dict[Expr, Scope] = {}
        fresh: list[Expr] = []
        for e in toposort([root], known):
            if (found := known.get(e)) is not None:
                made[e], homes[e] = found
                continue
            fresh.append(e)
            # an op has no axes but its operands'
            home = homes[e.sources[0]] if type(e) is Alu else scope.home(e.free - self.loose)
            for source in e.sources:  # not outside of where its operands have names
                if homes[source].depth > home.depth:
                    home = homes[source]
            homes[e] = home
        named = worth_naming(fresh, homes, scope)
        calls = [e for e in fresh if self.free_lanes and type(e) is Alu and e.op in FUNCTIONS]
        called = {s for e in calls for s in e.sources}
        depth: dict[Expr, int] = {}  # of what has no name
        for e in fresh:
            again, deep = e, 1
            if e.sources:
                again = with_sources(e, tuple([made[s] for s in e.sources]))
                for source in e.sources:
                    if depth.get(source, 0) >= deep:
                        deep = depth[source] + 1
            if (e in named or deep > (DEEP if e in called else DEEPEST)) and not _trivial(e):
                name = self._name("v", e, lanes_of(e) or self._lanes(e.free))
                homes[e].instrs.append(ir.Let(name, again))
                if isinstance(e, Load):
                    homes[e].instrs += self.ahead.fetches(e, homes[e])
                scope.name(e, name, homes[e])
                made[e] = name
            else:
                made[e], depth[e] = again, deep
        return made[root]

    def _place(self, scope: Scope, position: Linear) -> Linear:
        """A position in terms of names."""
        return map_looked(position, lambda a: self.emit_named(scope, a.value).looked(a.size))

    def emit_named(self, scope: Scope, value: Expr) -> Name:
        """Like emit, but the result is a name."""
        made = self.emit(scope, value)
        if isinstance(made, Name):
            return made
        name = self._name("v", value, self._lanes(value.free))
        scope.instrs.append(ir.Let(name, made))
        scope.name(value, name)
        return name

    def numbered(self, scope: Scope, index: Linear) -> Linear:
        """An index by a name of its own: an axis that is nowhere walked, as many steps from 0."""
        low, value = min(index.low, 0), Place(index, int64)
        size = index.high - low + 1
        if value not in scope.known:
            made = self._name("n", value, 1)
            scope.instrs.append(ir.Number((Axis(made.name, size),), index - low))
            scope.name(value, made)
        name, _ = scope.known[value]
        assert isinstance(name, Name)
        return linear(Axis(name.name, size)) + low

    def _copy(self, axis: Axis, abreast: bool = False) -> None:
        """From here on what is written is one step of `axis`, and all others are copies of it."""
        self.copied = axis
        self.copies[axis] = abreast
        self.loose.add(axis)

    def _end_of_copies(self) -> list[Instr]:
        """What stands behind the last of them."""
        if self.copied is None:
            return []
        self.loose.discard(self.copied)
        self.copied = None
        return [APART]

    def _name(self, kind: str, value: Expr, lanes: int) -> Name:
        """A new name for a value; at each step of what is copied it is another one."""
        self.names += 1
        text = f"{kind}{self.names - 1}{self.mark}"
        if self.copied is not None and self.copied in value.free:
            text += f"_{ir.EACH}"
            self.families[text] = self.copied
        name: Name = Name(text, value.dtype, lanes)
        return name

    def _lanes(self, free: frozenset[Axis]) -> int:
        lanes = free & self.free_lanes
        return max([a.size for a in lanes]) if lanes else 1


def _trivial(e: Expr) -> bool:
    """Whether a value is no longer than a name for it."""
    short = (isinstance(e, Place) and not e.sources) or (isinstance(e, Part) and not e.lane.terms)
    return short or isinstance(e, (Const, Name, Matrix))
