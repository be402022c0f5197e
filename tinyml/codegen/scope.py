"""What is bound, named and still to be opened, while linearize writes a loop body."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, product
from typing import TypeAlias

from tinyml.codegen.expr import (
    Alu,
    Expr,
    Load,
    Name,
    Part,
    Require,
    Select,
    Wide,
    looked_in,
    parts_of,
    plain_alu,
    substituted,
    zero,
)
from tinyml.codegen.linear import Fetch, Instr, Let, Put, PutTile, values_of
from tinyml.codegen.matrices import Fragment, Piece
from tinyml.codegen.nest import Split
from tinyml.frozen import dataclass, replace
from tinyml.graph import toposort
from tinyml.index import Axis, Linear, Range, Valid, both, linear, moved
from tinyml.ops import WORK

Known: TypeAlias = Mapping[Axis, Linear]


class Scope:
    """A loop body being written: what is bound, what is known by name, what holds at each step."""

    def __init__(
        self, bound: frozenset[Axis], parent: Scope | None, held: Mapping[Range, bool] = {}
    ) -> None:
        self.bound, self.parent = bound, parent
        self.held: Mapping[Range, bool] = held if parent is None else {**parent.held, **held}
        self.depth: int = parent.depth + 1 if parent is not None else 0
        self.instrs: list[Instr] = []
        # here or further out: the name of a value, and whose name it is
        self.known: dict[Expr, tuple[Expr, Scope]] = {} if parent is None else {**parent.known}

    def name(self, e: Expr, name: Expr, home: Scope | None = None) -> None:
        """A value has a name from now on, in `home` (from here outwards) and all that is in it."""
        home = home or self
        scope: Scope | None = self
        while scope is not None and scope.depth >= home.depth:
            scope.known[e] = name, home
            scope = scope.parent

    def home(self, free: frozenset[Axis]) -> Scope:
        """The outermost scope, from here outwards, that binds all of `free`."""
        scope = self
        while scope.parent is not None and free <= scope.parent.bound:
            scope = scope.parent
        return scope


def worth_naming(order: Sequence[Expr], homes: Mapping[Expr, Scope], scope: Scope) -> set[Expr]:
    """What of `order` is used twice, costs much, or is used deeper than where it is known."""
    seen: set[Expr] = set()
    named: set[Expr] = set()
    for e in order:
        home = homes[e]
        for source in e.sources:
            if source in seen or homes[source] is not home:
                named.add(source)
            seen.add(source)
        if type(e) is Alu:
            if WORK[e.op] > 4:
                named.add(e)
        elif isinstance(e, Require):  # to ask takes a branch
            named.add(e)
        elif isinstance(e, Select):
            named.update(s for s in e.sources[2:] if s is not e.value and s is not e.other)
        elif not isinstance(e, Part):
            named.update(e.sources)
            if isinstance(e, (Load, Wide, Fragment, Piece)):
                named.add(e)
    if order and homes[order[-1]] is not scope:
        named.add(order[-1])
    return named


def in_turn(parts: Sequence[Sequence[Instr]]) -> list[Instr]:
    """An instruction of each part, then the next one of each ..: none waits for the one before it.

    A part that reads what an earlier one named comes after that.
    """
    if len(parts) < 2:
        return [*chain(*parts)]
    missing = {i.name.name for part in parts for i in part if isinstance(i, Let)}
    waiting = [deque((i, names_of([i]) & missing) for i in part) for part in parts]
    made: list[Instr] = []
    while any(waiting):
        for part in waiting:
            if part and missing.isdisjoint(part[0][1]):
                instr, _ = part.popleft()
                made.append(instr)
                missing -= {instr.name.name} if isinstance(instr, Let) else set()
    return made


def names_of(instrs: Iterable[Instr]) -> set[str]:
    """The names that instructions compute with."""
    return {e.name for e in parts_of(chain(*map(read_by, instrs))) if type(e) is Name}


def read_by(instr: Instr) -> tuple[Expr, ...]:
    """What an instruction computes with, and what it looks up to find its place."""
    if isinstance(instr, (Put, PutTile)):
        index = instr.position if isinstance(instr, Put) else instr.index
        return (*values_of(instr), *looked_in(index, instr.valid))
    return looked_in(instr.position, ()) if isinstance(instr, Fetch) else values_of(instr)


def nothing(scope: Scope, known: Known, unrolled: Sequence[Axis] = ()) -> None:
    """What is written where there is nothing to write."""


@dataclass(frozen=True, eq=False)
class Loops:
    """The axes of one walk or fold: those still to be opened, and those to be unrolled.

    `enter` writes what comes before each loop, `body` what is in all of them. Steps where not all
    of `only` holds are left out, or `instead` is written there. What is `asked` at each step is not
    where it always holds; if all steps are `alike` nothing is.
    """

    waiting: list[Axis]
    unrolled: list[Axis]
    enter: Enter = nothing
    body: Body = nothing
    only: Valid = ()
    instead: Body | None = None
    asked: Valid = ()
    alike: bool = False
    parts: tuple[tuple[Axis, Axis], ...] = ()  # axes that walk parts of others, and the others

    def cropped(self, only: Valid, instead: Body | None = None, asked: Valid = ()) -> Loops:
        return replace(self, only=only, instead=instead, asked=asked)

    def without(self, axis: Axis) -> Loops:
        return replace(self, waiting=[a for a in self.waiting if a is not axis])

    def in_part(self, axis: Axis, part: Axis) -> Loops:
        """With a part of `axis` in its place."""
        waiting = [part if a is axis else a for a in self.waiting]
        return replace(self, waiting=waiting, parts=((part, self.whole(axis)), *self.parts))

    def whole(self, axis: Axis) -> Axis:
        """The axis that it walks, or walks a part of."""
        return next((whole for part, whole in self.parts if part is axis), axis)

    def rest(self, split: Split, rest: Axis) -> Loops:
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
        return replace(self, waiting=waiting, unrolled=unrolled)


def also(known: Known, axis: Axis, index: Linear) -> Known:
    """`known`, and what `axis` is, which it may itself refer to."""
    return {**{a: i.substitute({axis: index}) for a, i in known.items()}, axis: index}


def stepped(known: Known, unrolled: Sequence[Axis], steps: Sequence[int]) -> Known:
    """`known` at one step of the unrolled axes, which it may itself refer to."""
    at: Known = {a: linear(n) for a, n in zip(unrolled, steps, strict=True)}
    return {**{a: index.substitute(at) for a, index in known.items()}, **at}


def every_step(known: Known, unrolled: Sequence[Axis]) -> list[Known]:
    """`known` at each step of the unrolled axes, of which the last one goes fastest."""
    every = product(*(range(a.size) for a in unrolled))
    return [stepped(known, unrolled, steps) for steps in every]


def at_each(roots: Sequence[Expr], steps: Sequence[Known]) -> list[list[Expr]]:
    """What each root is at every step, where the same axes are replaced by other indices.

    Each node is made for all steps at once; and but once for those that look the same to it.
    """
    replaced = frozenset(steps[0]) if steps else frozenset[Axis]()
    apart, made = replaced.isdisjoint, dict[Expr, list[Expr]]()
    alike: dict[frozenset[Axis], tuple[list[int], list[int]]] = {}
    moving = [root for root in roots if not apart(root.free)]
    for e in toposort(moving, (), lambda e: [s for s in e.sources if not apart(s.free)]):
        axes = e.free & replaced
        firsts, number = alike.get(axes) or alike.setdefault(axes, _alike(axes, steps))
        columns = [made.get(s) or [s] * len(steps) for s in e.sources]
        sources = [*zip(*columns, strict=True)] if columns else [()] * len(steps)
        values: list[Expr]
        if type(e) is Alu:  # most are
            values = [plain_alu(e.op, e.dtype, sources[n]) for n in firsts]
        elif type(e) is Load and not e.sources:
            values = _loads(e, [steps[n] for n in firsts])
        else:
            values = [substituted(e, steps[n], sources[n]) for n in firsts]
        made[e] = values if len(firsts) == len(steps) else [values[n] for n in number]
    return [made.get(root) or [root] * len(steps) for root in roots]


def _loads(e: Load, steps: Sequence[Known]) -> list[Expr]:
    """A load at several steps. Few of them differ in what a condition asks."""
    asked: list[list[Range]] = []
    valid: list[Valid | None] = [e.valid] * len(steps)
    for v in e.valid:
        firsts, number = _alike(v.free & steps[0].keys(), steps)
        made = [moved(v, steps[n]) for n in firsts]
        asked.append([made[n] for n in number])
    if any(not v.free.isdisjoint(steps[0]) for v in e.valid):
        valid = [both(held) for held in zip(*asked, strict=True)]
    places = zip(e.position.at_each(steps), valid, strict=True)
    return [zero(e.dtype) if v is None else Load(e.slot, e.dtype, at, v) for at, v in places]


def _alike(axes: frozenset[Axis], steps: Sequence[Known]) -> tuple[list[int], list[int]]:
    """The first steps of each kind, as far as these axes go, and of which kind each step is."""
    kinds: dict[tuple[Linear, ...], int] = {}
    number = [kinds.setdefault(tuple([at[a] for a in axes]), len(kinds)) for at in steps]
    return [number.index(n) for n in range(len(kinds))], number


Enter: TypeAlias = Callable[[Scope, Known], None]  # once before each loop is opened
Body: TypeAlias = Callable[[Scope, Known, list[Axis]], None]  # once all loops are
