"""Bounds: the least and the largest value of an expression, as far as its parts tell.

A bool is 0 or 1 here, so that a condition with the bounds (1, 1) is proven. What is proven is not
asked at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TypeAlias

from tinyml.codegen.expr import (
    Alu,
    Const,
    Expr,
    Fold,
    Name,
    Place,
    Require,
    Select,
    alu,
    const,
    nodes,
    select,
    zero,
)
from tinyml.dtype import DType, bool_
from tinyml.faults import Fault
from tinyml.graph import toposort
from tinyml.index import Valid
from tinyml.ops import Op

Bounds: TypeAlias = tuple[float, float]


def require(fault: Fault, operands: Sequence[Expr], valid: Valid | None) -> Expr:
    """The first operand; a fault where the conditions hold and the second may not."""
    value, holds = operands
    demanded = select(valid, holds, const(True, bool_))
    if bounds(demanded)[0] == 1:
        return value
    return Require(fault, (value, demanded))


def settled(e: Expr) -> Expr:
    """A choice between two values as one of them, if the condition is proven either way."""
    match e:
        case Alu(op=Op.CAST, operands=(inner,)):
            return alu(Op.CAST, e.dtype, settled(inner))
        case Alu(op=Op.WHERE, operands=(chosen, value, other)):
            low, high = bounds(chosen)
            return value if low == 1 else other if high == 0 else e
    return e


def looked_up(value: Expr, index: Expr, place: Sequence[Expr] = ()) -> Expr:
    """What is found at an index, or goes there: one that is outside is a fault, though all values
    be the same, or all places. `place` is what is looked up to find the place in memory."""
    demands = {e for e in nodes(index) if isinstance(e, Require)}
    if demands.issubset(toposort([value, *place])):
        return value
    inside = alu(Op.LESS_EQUAL, bool_, zero(index.dtype), index)
    unlike = const(value is zero(value.dtype), bool_)  # a choice among equals would vanish
    other = alu(Op.CAST, value.dtype, unlike)
    return alu(Op.WHERE, value.dtype, inside, value, other)


def range_asked(value: Expr, holds: Expr) -> tuple[int, int] | None:
    """(low, high) if `holds` says no more than low <= value <= high, of a signed integer."""
    match holds:
        case Alu(
            op=Op.AND,
            operands=(
                Alu(op=Op.LESS_EQUAL, operands=(Const() as low, left)),
                Alu(op=Op.LESS, operands=(right, Const() as end)),
            ),
        ) if left is value and right is value and value.dtype.name in ("int32", "int64"):
            return int(low.value), int(end.value) - 1
    return None


def bounds(root: Expr, named: Mapping[str, Expr] | None = None) -> Bounds:
    """What the values of an expression lie between; floats may be anything.

    `named` are the values of names, in a program that keeps to what `range_asked` says.
    """
    found: dict[Expr, Bounds] = {}
    for e in nodes(root) if named is None else toposort([root], (), lambda e: _made_of(e, named)):
        if isinstance(e, Require) and named is not None and range_asked(*e.operands) is None:
            found[e] = found[e.operands[0]]
        elif isinstance(e, Name) and named is not None and e.name in named:
            found[e] = found[named[e.name]]
        else:
            found[e] = _fitting(e.dtype, _bounds(e, found))
    return found[root]


def _made_of(e: Expr, named: Mapping[str, Expr]) -> tuple[Expr, ...]:
    return (named[e.name],) if isinstance(e, Name) and e.name in named else e.sources


def _bounds(e: Expr, of: Mapping[Expr, Bounds]) -> Bounds:
    match e:
        case Const() if not e.dtype.is_float:
            return int(e.value), int(e.value)
        case Place(index=index):
            return index.low, index.high
        case Select(value=value, other=other):
            return _hull(of[value], of[other])
        case Fold(op=Op.MAX | Op.MIN, body=body):
            return of[body]
        case Require(operands=(value, holds)):
            return _where(value, holds, True, of)
        case Alu(op=Op.CAST, operands=(value,)) if e.dtype is not bool_:
            return of[value]
        case Alu(op=Op.WHERE, operands=(chosen, value, other)):
            return _hull(_where(value, chosen, True, of), _where(other, chosen, False, of))
        case Alu(op=op, operands=operands) if op in _RULES:
            return _RULES[op](*[of[o] for o in operands])
    return -inf, inf


def _fitting(dtype: DType, found: Bounds) -> Bounds:
    """What a dtype can hold: a value that is not sure to fit may have wrapped around."""
    if dtype.is_float:
        return -inf, inf
    low, high = (0, 1) if dtype is bool_ else (int(dtype.min), int(dtype.max))
    return found if low <= found[0] and found[1] <= high else (low, high)


def _where(value: Expr, holds: Expr, truth: bool, of: Mapping[Expr, Bounds]) -> Bounds:
    """The bounds of a value where a condition is `truth`: its comparisons with the value tell."""
    low, high = of[value]
    match value:
        case Alu(op=Op.ADD, operands=(inner, Const() as more)) if not value.dtype.is_float:
            least, most = _where(inner, holds, truth, of)
            beside = _fitting(value.dtype, (least + int(more.value), most + int(more.value)))
            low, high = max(low, beside[0]), min(high, beside[1])
    waiting = [holds]
    while waiting:
        match waiting.pop():
            case Alu(op=Op.AND | Op.OR as op, operands=operands) if (op is Op.AND) == truth:
                waiting += operands
            case Alu(op=Op.LESS | Op.LESS_EQUAL as op, operands=(small, large)):
                if not truth:
                    small, large = large, small
                strictly = (op is Op.LESS) == truth
                if small is value:
                    high = min(high, of[large][1] - strictly)
                if large is value:
                    low = max(low, of[small][0] + strictly)
    return low, high


def _hull(a: Bounds, b: Bounds) -> Bounds:
    return min(a[0], b[0]), max(a[1], b[1])


def _mul(a: Bounds, b: Bounds) -> Bounds:
    if inf in (*a, *b) or -inf in (*a, *b):
        return -inf, inf
    products = [x * y for x in a for y in b]
    return min(products), max(products)


def _idiv(a: Bounds, b: Bounds) -> Bounds:
    by, most = b
    return (a[0] // by, a[1] // by) if by == most > 0 else (-inf, inf)


def _mod(a: Bounds, b: Bounds) -> Bounds:
    if b[0] <= 0:
        return -inf, inf
    return a if a[0] >= 0 and a[1] < b[0] else (0, b[1] - 1)


def _and(a: Bounds, b: Bounds) -> Bounds:
    if a == b and a[0] == a[1]:
        return a
    most = [high for low, high in (a, b) if low >= 0]
    return (0, min(most)) if most else (-inf, inf)


def _or(a: Bounds, b: Bounds) -> Bounds:
    """No bit is set that neither has."""
    high = max(a[1], b[1])
    if a[0] < 0 or b[0] < 0 or high == inf:
        return -inf, inf
    return max(a[0], b[0]), 2 ** int(high).bit_length() - 1


def _shr(a: Bounds, b: Bounds) -> Bounds:
    if a[0] < 0 or a[1] == inf or not 0 <= b[0] <= 64:
        return -inf, inf
    return 0, int(a[1]) >> int(b[0])


_RULES: dict[Op, Callable[..., Bounds]] = {
    Op.NEG: lambda a: (-a[1], -a[0]),
    Op.ADD: lambda a, b: (a[0] + b[0], a[1] + b[1]),
    Op.MUL: _mul,
    Op.IDIV: _idiv,
    Op.MOD: _mod,
    Op.MAX: lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    Op.MIN: lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    Op.LESS: lambda a, b: (a[1] < b[0], a[0] < b[1]),
    Op.LESS_EQUAL: lambda a, b: (a[1] <= b[0], a[0] <= b[1]),
    Op.AND: _and,
    Op.OR: _or,
    Op.SHR: _shr,
}
