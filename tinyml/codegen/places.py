"""Places: ops on indices that are indices again, and comparisons of them that are conditions.

    r0 + 3                                    the index r0 + 3
    where(r0 <= i2, x, -inf)                  x if 0 <= i2 - r0 else -inf
    where(!(r0 < i2 & i0 < 4), x, y)          y if r0 < i2 and i0 < 4 else x
    where(r0 <= i2, 0, x)                     x if i2 < r0 else 0
    !=(1 if r0 <= i2 else 0, 0)               True if r0 <= i2 else False

So a mask that is made of positions says by its bounds where it holds, however it was written.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from tinyml.codegen.expr import Alu, Const, Expr, Place, Require, Select, alu, const, select
from tinyml.codegen.widen import widened
from tinyml.dtype import DType, bool_, int32
from tinyml.graph import toposort
from tinyml.index import Linear, Range, Valid, both, inside, linear
from tinyml.interpret import known_result
from tinyml.ops import COMPARE, Op

DEEP = 16  # choices in each other in which a condition is looked for
LOGICAL = COMPARE | {Op.NOT, Op.AND, Op.OR, Op.XOR}
_Between: TypeAlias = tuple[int, int]  # from, up to and with


class _Condition(NamedTuple):
    """Where a bool is True: wherever `valid` holds (None: nowhere), or wherever it does not."""

    valid: Valid | None
    holds: bool


def mapped(op: Op, dtype: DType, *operands: Expr) -> Expr:
    """The op, or what comes to the same and says more about indices."""
    if op is Op.WHERE:
        found = _condition(operands[0])
        # what an op demands is demanded of all elements: a Select would ask only those it chooses
        if found is not None and not any(isinstance(e, Require) for e in toposort(operands)):
            return _selected(found, *operands[1:])
    exact = op in LOGICAL or dtype.is_int or (op is Op.CAST and not dtype.is_half)
    answer = _answer(op, dtype, operands) if exact else None
    if answer is not None:
        return answer
    index = _index(op, operands) if dtype.is_int else None
    if index is not None and dtype.min <= index.low and index.high <= dtype.max:
        return Place(index, dtype)
    chosen = _chosen(op, dtype, operands) if exact else None
    if op is Op.CAST and dtype.itemsize >= int32.itemsize:
        operands = (widened(operands[0]) or operands[0],)
    return chosen or alu(op, dtype, *operands)


def _selected(found: _Condition, value: Expr, other: Expr) -> Expr:
    """A choice, the number among the two as the other one if possible."""
    turned = _turned(found, isinstance(other, Const)) or found
    if not turned.holds:
        value, other = other, value
    if turned.valid is not None and len(turned.valid) == 1:
        (r,) = turned.valid
        index, value_at, other_at = _bounds(r, r.index.low, r.index.high)
        value, other = _told(value, index, value_at), _told(other, index, other_at)
    return select(turned.valid, value, other)


def _bounds(r: Range, low: int, high: int) -> tuple[Linear, _Between, _Between]:
    """An index from low to high, and between what it lies if a condition holds, and if not.

    It has no constant, so that one that was moved is the same.
    """
    by = r.index.constant
    least, most = max(low, r.low) - by, min(high, r.high) - by
    low, high = low - by, high - by
    if least <= low:
        return r.index - by, (least, most), (most + 1, high)
    return r.index - by, (least, most), (low, least - 1 if most >= high else high)


def _told(e: Expr, index: Linear, between: _Between, depth: int = DEEP) -> Expr:
    """A choice, where it is known between what an index lies.

    Arrays put side by side are moved, with 0 elsewhere, before one of them is chosen. What is read
    keeps its own conditions, as a choice between lanes makes both sides.
    """
    if not isinstance(e, Select) or not depth:
        return e
    low, high = between
    left: list[Range] = []
    inner, outer = between, between
    for v in e.valid:
        at, held, failed = _bounds(v, low + v.index.constant, high + v.index.constant)
        if at != index:
            left.append(v)
        elif held[0] > held[1]:
            return _told(e.other, index, between, depth - 1)
        elif held != between:
            left.append(v)
            inner = max(inner[0], held[0]), min(inner[1], held[1])
            outer = failed
    if len(left) > 1 or outer[0] > outer[1]:
        outer = between
    value = _told(e.value, index, inner, depth - 1)
    return select(tuple(left), value, _told(e.other, index, outer, depth - 1))


def _index(op: Op, operands: tuple[Expr, ...]) -> Linear | None:
    """What the op makes of indices, if that is one."""
    if not all(isinstance(o, (Place, Const)) for o in operands):
        return None
    known = [_linear(o) for o in operands]
    match op, known:
        case Op.ADD, [Linear() as a, Linear() as b]:
            return a + b
        case Op.MUL, [Linear() as a, Linear() as b] if not a.terms:
            return b * a.constant
        case Op.MUL, [Linear() as a, Linear() as b] if not b.terms:
            return a * b.constant
        case Op.NEG, [Linear() as a]:
            return a * -1
        case Op.CAST, [Linear() as a]:
            return a
    return None


def _linear(e: Expr) -> Linear | None:
    match e:
        case Place(index=index):
            return index
        case Const() if e.dtype.is_int:
            return linear(int(e.value))
    return None


def _condition(e: Expr) -> _Condition | None:
    """Where a bool is True, if conditions on indices say it."""
    match e:
        case Alu(op=Op.NOT, operands=(inner,)):
            found = _condition(inner)
            return None if found is None else _Condition(found.valid, not found.holds)
        case Alu(op=Op.AND | Op.OR as op, operands=(left, right)):
            held = op is Op.AND  # x | y is not both of their opposites
            one, other = (_turned(_condition(side), held) for side in (left, right))
            if one is None or other is None:
                return None
            if one.valid is None or other.valid is None:
                return _Condition(None, held)
            return _Condition(both(one.valid, other.valid), held)
        case Alu(op=Op.LESS | Op.LESS_EQUAL | Op.EQUAL as op, operands=(left, right)):
            a, b = _linear(left), _linear(right)
            if a is None or b is None:
                return None
            apart = a - b
            low = 0 if op is Op.EQUAL else apart.low
            return _Condition(both([inside(apart, low, -1 if op is Op.LESS else 0)]), True)
        case Select(valid=valid, value=Const() as value, other=Const() as other):
            if e.dtype is bool_ and value.value != other.value:
                return _Condition(valid, bool(value.value))
    return None


def _turned(found: _Condition | None, holds: bool) -> _Condition | None:
    """The same, said by where it `holds` or by where it does not; only of one bound both can be."""
    if found is None or found.holds is holds:
        return found
    if found.valid is None or not found.valid:
        return _Condition(None if found.valid == () else (), holds)
    if len(found.valid) > 1:
        return None
    (bound,) = found.valid
    if bound.low <= bound.index.low:
        return _Condition(both([inside(bound.index, bound.high + 1, bound.index.high)]), holds)
    if bound.high >= bound.index.high:
        return _Condition(both([inside(bound.index, bound.index.low, bound.low - 1)]), holds)
    return None


def _chosen(op: Op, dtype: DType, operands: tuple[Expr, ...]) -> Expr | None:
    """What is asked of a choice between numbers is a choice between the answers."""
    chosen = [o for o in operands if isinstance(o, Select)]
    if len(chosen) != 1:
        return None
    (found,) = chosen
    answers = []
    for branch in (found.value, found.other):
        inputs = tuple(branch if o is found else o for o in operands)
        answer = _answer(op, dtype, inputs)
        if answer is None:
            return None
        answers.append(answer)
    return select(found.valid, *answers)


def _answer(op: Op, dtype: DType, inputs: tuple[Expr, ...]) -> Expr | None:
    """An op on numbers, as a number."""
    numbers = [i for i in inputs if isinstance(i, Const)]
    if len(numbers) < len(inputs) or (op is Op.CAST and inputs[0].dtype.is_float and dtype.is_int):
        return None
    values = [number.value for number in numbers]
    made = bool_ if op in COMPARE else dtype
    number = known_result(op, made, values, [i.dtype for i in inputs])
    return None if number is None else const(number, made)
