"""Scalar expressions: what one element costs.

    expr ::= Const(number)                       a number
           | Load(slot, position, valid)         an element of a buffer; 0 where not valid
           | Place(linear)                       an index as a value
           | Alu(op, expr*)                      an op
           | Require(fault, expr, expr)          an Alu: the first where the second holds
           | Select(valid, expr, expr)           the first where all conditions hold
           | Fold(op, axes, body)                body combined over axes
           | Stored(name, index, after, outside) an element of a tile filled at steps of `after`;
                                                 a number where a condition does not hold
           | Wide(slot, position, valid, lanes)  elements side by side, in one access
           | Part(wide, lane)                    one of them, or of what is side by side else
           | held                                what lanes hold of matrices: matrices.py
           | Name(name, lanes)                   a local variable (after linearize)

Equal expressions are one object. `free` are the axes an expression depends on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from tinyml.dtype import DType, bool_, from_text, to_text
from tinyml.faults import Fault
from tinyml.graph import Interned, maker, toposort
from tinyml.index import (
    ZERO,
    Axis,
    Linear,
    Looked,
    Range,
    Valid,
    map_looked,
    moved,
    substitute_valid,
)
from tinyml.ops import COMPARE, SIGN, Op


class Expr(Interned):
    """Base of all expressions."""

    __slots__ = ("dtype", "folding", "free", "has_fold", "sources")
    dtype: DType
    free: frozenset[Axis]
    sources: tuple[Expr, ...]  # operands, and the values that indices and conditions look up
    folding: tuple[Expr, ...]  # sources with a Fold in them
    has_fold: bool  # whether there is a Fold in it, or it is one

    def _of(self, sources: tuple[Expr, ...]) -> None:
        self.sources, self.folding, self.has_fold = sources, (), False
        for source in sources:
            if source.has_fold:
                self.folding += (source,)
                self.has_fold = True

    def substitute(self, known: Mapping[Axis, Linear]) -> Expr:
        """The same expression with axes replaced by indices."""
        return substitute(self, known)

    def looked(self, size: int, known: Mapping[Axis, Linear] | None = None) -> Looked:
        """This value, with axes replaced, as an index into `size` elements."""
        value = substitute(self, known) if known else self
        return Looked(value, size, digest(value))

    def __repr__(self) -> str:
        lines, text = describe([self])
        return "; ".join([*lines, text[self]])


class Const(Expr):
    __slots__ = ("text",)

    def __init__(self, dtype: DType, text: str) -> None:
        self.dtype, self.text, self.free = dtype, text, frozenset()
        self._of(())

    @property
    def value(self) -> float | int | bool:
        return from_text(self.text, self.dtype)


class Load(Expr):
    __slots__ = ("position", "slot", "valid")

    def __init__(self, slot: int, dtype: DType, position: Linear, valid: Valid) -> None:
        self.slot, self.dtype, self.position, self.valid = slot, dtype, position, valid
        self.free = _free(position, valid)
        self._of(looked_in(position, valid))


class Place(Expr):
    __slots__ = ("index",)

    def __init__(self, index: Linear, dtype: DType) -> None:
        self.index, self.dtype, self.free = index, dtype, index.free
        self._of(looked_in(index, ()))


class Alu(Expr):
    __slots__ = ("op", "operands")

    def __init__(self, op: Op, dtype: DType, operands: tuple[Expr, ...]) -> None:
        self.op, self.dtype, self.operands, self.sources = op, dtype, operands, operands
        free, self.folding = operands[0].free, ()
        for operand in operands:
            if not operand.free <= free:  # most often it is: then no new set is made
                free |= operand.free
            if operand.has_fold:
                self.folding += (operand,)
        self.free, self.has_fold = free, self.folding != ()


class Require(Alu):
    __slots__ = ("fault",)

    def __init__(self, fault: Fault, operands: tuple[Expr, ...]) -> None:
        super()._fill(Op.REQUIRE, operands[0].dtype, operands)
        self.fault = fault


class Select(Expr):
    __slots__ = ("other", "valid", "value")

    def __init__(self, valid: Valid, value: Expr, other: Expr) -> None:
        self.valid, self.value, self.other, self.dtype = valid, value, other, value.dtype
        self.free = value.free.union(other.free, *[v.free for v in valid])
        self._of((value, other, *looked_in(None, valid)))


class Fold(Expr):
    __slots__ = ("axes", "body", "op")

    def __init__(self, op: Op, body: Expr, axes: tuple[Axis, ...]) -> None:
        self.op, self.body, self.axes, self.dtype = op, body, axes, body.dtype
        self.free = body.free.difference(axes)
        self._of((body,))
        self.has_fold = True


plain_alu = maker(Alu)  # an op as it stands; `alu` simplifies
Outside: TypeAlias = tuple[tuple[Range, Const], ...]  # the number where a range does not hold


class Stored(Expr):
    __slots__ = ("after", "index", "name", "outside")

    def __init__(
        self, name: str, dtype: DType, index: Linear, after: Axis, outside: Outside = ()
    ) -> None:
        self.name, self.dtype, self.index, self.after = name, dtype, index, after
        self.outside = outside
        # another step of `after` fills it with other values
        self.free = index.free.union((after,), *[r.free for r, _ in outside])
        self._of(())


class Wide(Expr):
    __slots__ = ("lanes", "position", "slot", "valid")

    def __init__(self, slot: int, dtype: DType, position: Linear, valid: Valid, lanes: int) -> None:
        self.slot, self.dtype, self.position, self.valid = slot, dtype, position, valid
        self.lanes, self.free = lanes, _free(position, valid)
        self._of(looked_in(position, valid))


class Part(Expr):
    __slots__ = ("lane", "wide")

    def __init__(self, wide: Expr, lane: Linear) -> None:
        self.wide, self.lane, self.dtype = wide, lane, wide.dtype
        self.free = wide.free | lane.free
        self._of((wide,))


class Held(Expr):
    """What lanes hold of matrices, or of a product of such: see matrices.py."""

    __slots__ = ("lanes",)
    lanes: int

    def again(self, sources: tuple[Expr, ...], known: Mapping[Axis, Linear]) -> Expr:
        """The same of other operands, with axes replaced."""
        raise NotImplementedError

    def written(self, sources: list[str]) -> str:
        """Its text, given that of its operands."""
        raise NotImplementedError


class Name(Expr):
    __slots__ = ("lanes", "name")

    def __init__(self, name: str, dtype: DType, lanes: int) -> None:
        self.name, self.dtype, self.lanes, self.free = name, dtype, lanes, frozenset()
        self._of(())


def _free(position: Linear, valid: Valid) -> frozenset[Axis]:
    return position.free.union(*[v.free for v in valid]) if valid else position.free


def lanes_of(e: Expr) -> int:
    """How many values a value is; 0 if that is for its axes to say."""
    return e.lanes if isinstance(e, (Wide, Name, Held)) else 0


def lookups(index: Linear | None, valid: Valid) -> tuple[Looked, ...]:
    """The atoms of an index and of conditions that look a value up."""
    found = () if index is None else index.looked
    for v in valid:
        found += v.index.looked
    return found if len(found) < 2 else tuple({atom.value: atom for atom in found}.values())


def looked_in(index: Linear | None, valid: Valid) -> tuple[Expr, ...]:
    """The values that an index and conditions look up."""
    return tuple([atom.value for atom in lookups(index, valid)])


Image: TypeAlias = Mapping[Axis, Linear]  # indices that stand for axes
Walked: TypeAlias = Callable[[tuple[Axis, ...]], tuple[Axis, ...]]


def substitute(
    root: Expr, known: Image, done: dict[Expr, Expr] | None = None, walked: Walked | None = None
) -> Expr:
    """`root` with axes replaced.

    Folds keep the axes they bind, which mean another there, or walk those that `walked` says.
    `done` is what was made before, of expressions that have parts in common with this one.
    """
    made: dict[Expr, Expr] = {} if done is None else done
    for e in [e for e in _along(root, frozenset(known), walked is not None) if e not in made]:
        if type(e) is Alu:  # most are
            made[e] = plain_alu(e.op, e.dtype, tuple([made.get(s, s) for s in e.operands]))
        elif type(e) is Fold and (own := _own(e, known, walked)):
            below = {a: index for a, index in known.items() if a not in own}
            made[e] = Fold(e.op, substitute(e.body, below, None, walked), e.axes)
        elif type(e) is Fold and walked is not None:
            made[e] = Fold(e.op, made.get(e.body, e.body), walked(e.axes))
        else:
            made[e] = substituted(e, known, tuple([made.get(s, s) for s in e.sources]))
            if walked is not None and e.folding:  # in an index that looks them up they walk as ever
                walking = {substitute(s, known): made.get(s, s) for s in e.folding}
                made[e] = rewrite(made[e], walking.get)
    return made.get(root, root)


@lru_cache(maxsize=64)  # the same, for each step that is written out
def _along(root: Expr, axes: frozenset[Axis], folds: bool) -> list[Expr]:
    """All that depends on any of the axes, or on a fold over one, operands first."""
    apart = axes.isdisjoint
    if not (folds and root.has_fold):
        return [] if apart(root.free) else [e for e in nodes(root) if not apart(e.free)]
    found: dict[Expr, None] = {}
    for e in nodes(root):
        walked = type(e) is Fold and not apart(e.axes)
        if walked or not apart(e.free) or not found.keys().isdisjoint(e.folding):
            found[e] = None
    return [*found]


def _own(fold: Fold, known: Image, walked: Walked | None) -> list[Axis]:
    """The axes that mean something else outside of the fold, which goes on to walk them."""
    return [a for a in fold.axes if a in known and (walked is None or a in walked((a,)))]


def substituted(e: Expr, known: Image, sources: tuple[Expr, ...]) -> Expr:
    """One node on other sources, with axes replaced in its own indices."""
    match e:
        case Alu() | Fold():
            return with_sources(e, sources)
        case Load():
            valid = substitute_valid(e.valid, known)
            if valid is None:
                return zero(e.dtype)
            return Load(e.slot, e.dtype, e.position.substitute(known), valid)
        case Place():
            return Place(e.index.substitute(known), e.dtype)
        case Select():
            valid = substitute_valid(e.valid, known)
            return select(valid, sources[0], sources[1])
        case Stored():
            outside = tuple((moved(r, known), n) for r, n in e.outside)
            return Stored(e.name, e.dtype, e.index.substitute(known), e.after, outside)
        case Held():
            return e.again(sources, known)
        case Wide():
            valid = substitute_valid(e.valid, known)
            if valid is None:
                return zero(e.dtype)
            return Wide(e.slot, e.dtype, e.position.substitute(known), valid, e.lanes)
        case Part():
            wide = sources[0]
            return wide if isinstance(wide, Const) else Part(wide, e.lane.substitute(known))
    return e


def with_sources(e: Expr, sources: tuple[Expr, ...]) -> Expr:
    """`e` on other operands, among them the values that its index and conditions look up."""
    if sources == e.sources:
        return e
    if type(e) is Alu:  # most are
        return plain_alu(e.op, e.dtype, sources)
    match e:
        case Require():
            return Require(e.fault, sources)
        case Fold():
            return Fold(e.op, sources[0], e.axes)
        case Part():
            return Part(sources[0], e.lane)
        case Held():
            return e.again(sources, {})
        case Select():
            _, valid = _relooked(ZERO, e.valid, sources[2:])
            return Select(valid, sources[0], sources[1])
        case Load() if sources:
            position, valid = _relooked(e.position, e.valid, sources)
            return Load(e.slot, e.dtype, position, valid)
        case Wide() if sources:
            position, valid = _relooked(e.position, e.valid, sources)
            return Wide(e.slot, e.dtype, position, valid, e.lanes)
        case Place() if sources:
            return Place(_relooked(e.index, (), sources)[0], e.dtype)
    return e


def _relooked(index: Linear, valid: Valid, sources: tuple[Expr, ...]) -> tuple[Linear, Valid]:
    """An index and conditions that look up `sources` instead, in the order of `looked_in`."""
    known = dict(zip(looked_in(index, valid), sources, strict=True))

    def change(atom: Looked) -> Looked:
        return known[atom.value].looked(atom.size)

    ranges = [Range(map_looked(v.index, change), v.low, v.high) for v in valid]
    return map_looked(index, change), tuple(ranges)


@lru_cache(maxsize=256)  # one pass after the other asks for the same
def nodes(root: Expr) -> tuple[Expr, ...]:
    """An expression and all that it is made of, operands first."""
    return tuple(toposort([root]))


def parts_of(values: Iterable[Expr]) -> list[Expr]:
    """All that values of instructions are made of: trees, as what is used twice has a name."""
    found = [*values]
    for e in found:  # grows
        found += e.sources
    return found


def rewrite(root: Expr, rule: Callable[[Expr], Expr | None], along: Axis | None = None) -> Expr:
    """Apply `rule` to every node, operands first. A rule returns None to leave a node be.

    With `along`, what does not depend on that axis, as a fold over it, stays as it is.
    """
    changed: dict[Expr, Expr] = {}
    order: Sequence[Expr] = nodes(root)
    if along is not None:
        order = toposort([root], (), lambda e: [s for s in e.sources if along in s.free])
    for e in order:
        again = e
        if not changed.keys().isdisjoint(e.sources):
            again = with_sources(e, tuple([changed.get(s, s) for s in e.sources]))
        again = rule(again) or again
        if again is not e:
            changed[e] = again
    return changed.get(root, root)


# ---- building, with the simplifications that are exact ----


def const(value: float | int | bool, dtype: DType) -> Const:
    """A number; an integer that the dtype does not hold wraps around, as a cast does."""
    return Const(dtype, to_text(value, dtype))


def zero(dtype: DType) -> Const:
    return const(0, dtype)


def is_number(e: Expr, number: float) -> bool:
    return isinstance(e, Const) and e.value == number


def alu(op: Op, dtype: DType, *operands: Expr) -> Expr:
    """An op; casts to the same dtype, of truths on their way, and double negations vanish."""
    first = operands[0]
    if op is Op.CAST and first.dtype is dtype:
        return first
    if op is Op.CAST and type(first) is Alu and first.op is op and first.operands[0].dtype is bool_:
        return alu(op, dtype, *first.operands)
    inexact = dtype.is_half or (first.dtype.is_float and dtype.is_int)
    if op is Op.CAST and isinstance(first, Const) and not inexact:
        value = first.value
        return const(float(dtype.compute.type(value)) if dtype.is_float else value, dtype)
    if op is Op.NEG and isinstance(first, Alu) and first.op is Op.NEG:
        return first.operands[0]
    if op is Op.MUL:
        for one, other in (operands, operands[::-1]):
            if is_number(one, 1):
                return other
    if op is Op.WHERE and operands[1] is operands[2]:
        return operands[1]
    return plain_alu(op, bool_ if op in COMPARE else dtype, operands)


def select(valid: Valid | None, value: Expr, other: Expr) -> Expr:
    """`value` where `valid` holds, else `other`. No select if it is a load, or cast, 0 there."""
    if valid is None:
        return other
    if not valid or value is other:
        return value
    if isinstance(value, Select) and value.valid == valid:
        value = value.value
    load = value
    while isinstance(load, Alu) and load.op is Op.CAST:
        (load,) = load.operands
    if isinstance(load, Load) and {*valid} <= {*load.valid} and other is zero(other.dtype):
        return value
    return Select(valid, value, other)


# ---- text ----


def describe(roots: Iterable[Expr], most: int = 60) -> tuple[list[str], dict[Expr, str]]:
    """Lines that name what is used twice or long, and the text of every expression.

    Graphs share subtrees: written out as one formula they would grow without bound.
    """
    order = toposort(roots)
    readers = dict.fromkeys(order, 0)
    for e in order:
        for source in e.sources:
            readers[source] += 1
    lines: list[str] = []
    text: dict[Expr, str] = {}
    for e in order:
        text[e] = _text(e, text)
        if e.sources and (readers[e] > 1 or len(text[e]) > most):
            lines.append(f"v{len(lines)} = {text[e]}")
            text[e] = f"v{len(lines) - 1}"
    return lines, text


def digest(e: Expr) -> str:
    """Twelve letters that are equal for equal expressions, in every process."""
    lines, text = describe([e], 200)
    return hashlib.sha256("\n".join([*lines, text[e]]).encode()).hexdigest()[:12]


def _text(e: Expr, known: Mapping[Expr, str]) -> str:
    match e:
        case Const():
            return f"{e.value:g}" if isinstance(e.value, float) else str(e.value)
        case Load():
            return f"slot{e.slot}[{place_text(e.position, e.valid, known)}]"
        case Place():
            return f"({place_text(e.index, (), known)})"
        case Stored():
            return f"{e.name}[{e.index}]"
        case Wide():
            return f"slot{e.slot}[{place_text(e.position, e.valid, known)}]x{e.lanes}"
        case Part():
            return f"{known[e.wide]}.{e.lane}"
        case Name():
            return e.name
        case Held():
            return e.written([known[s] for s in e.sources])
        case Select():
            return f"({known[e.value]}{_conditions(e.valid)} else {known[e.other]})"
        case Fold():
            axes = " ".join(f"{a.name}:{a.size}" for a in e.axes)
            return f"fold {e.op.name.lower()} {axes} of {known[e.body]}"
        case Alu() if e.op in SIGN:
            return f"({known[e.operands[0]]} {SIGN[e.op]} {known[e.operands[1]]})"
        case Alu():
            head = e.dtype.name if e.op is Op.CAST else e.op.name.lower()
            return f"{head}({', '.join(known[o] for o in e.operands)})"
    raise TypeError(f"no text for {type(e)}")


def place_text(index: Linear, valid: Valid, known: Mapping[Expr, str]) -> str:
    """A position and its conditions; `known` has texts for values that they look up."""
    text = f"{index}{_conditions(valid)}"
    for atom in lookups(index, valid):
        text = text.replace(atom.text, known.get(atom.value) or str(atom.value))
    return text


def _conditions(valid: Valid) -> str:
    return " if " + " and ".join(map(str, valid)) if valid else ""
