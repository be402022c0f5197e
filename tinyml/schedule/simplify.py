"""Simplify: an op that leaves its operand as it is is no op.

Only where that is exact, for every number and the sign of zero: x + 0.0 is not, as it turns -0.0
into 0.0, but x - 0.0 is, which is recorded as x + -0.0. Codegen knows the same of expressions; here
it lets what reads them see a factor, a mask or a value in memory that lies behind such ops.
"""

from __future__ import annotations

from functools import cache

from tinyml import lazy
from tinyml.dtype import DType, to_text
from tinyml.lazy import LazyBuffer
from tinyml.ops import Movement, Op

# the second operand that leaves the first as it is; of the COMMUTING also the other way round
NEUTRAL: dict[Op, float] = {
    Op.ADD: -0.0, Op.MUL: 1, Op.DIV: 1, Op.IDIV: 1, Op.POW: 1,
    Op.AND: -1, Op.OR: 0, Op.XOR: 0, Op.SHL: 0, Op.SHR: 0, Op.ROTL: 0,
}  # fmt: skip
COMMUTING = frozenset({Op.ADD, Op.MUL, Op.AND, Op.OR, Op.XOR})
REPEATS = frozenset({Movement.EXPAND, Movement.RESHAPE})
UNDONE = frozenset({Op.NEG, Op.NOT})  # by themselves


def simpler(node: LazyBuffer) -> LazyBuffer | None:
    """Which node has the same values with less below it; None if nothing says that one does."""
    if type(node) is lazy.Move:
        return _moved_back(node)
    if type(node) is not lazy.Map:
        return None
    op, first = node.op, node.sources[0]
    if len(node.sources) == 1:
        if type(first) is not lazy.Map:
            return None
        if op is Op.ABS and first.op is Op.NEG and node.dtype.is_float:  # the same as of -x
            return lazy.map_(Op.ABS, first.sources[0])
        return first.sources[0] if first.op is op and _undone(op, node, first) else None
    if op not in NEUTRAL:
        return None
    nothing = _neutral(op, node.dtype)
    if _number(node.sources[1]) == nothing:
        return first
    return node.sources[1] if op in COMMUTING and _number(first) == nothing else None


@cache
def _neutral(op: Op, dtype: DType) -> str:
    return to_text(NEUTRAL[op], dtype)


def _undone(op: Op, node: LazyBuffer, first: LazyBuffer) -> bool:
    """Whether `op` undoes the same one below it."""
    if op in UNDONE:
        return True
    narrow, wide = node.dtype, first.dtype
    holds = wide.kind == narrow.kind and wide.itemsize > narrow.itemsize  # each number
    back = first.sources[0].dtype is narrow
    return back and (op is Op.BITCAST or (op is Op.CAST and holds))


def _number(node: LazyBuffer) -> str | None:
    """The text of the number that `node` is everywhere, if it is a constant or minus one."""
    negative = False
    while type(node) is not lazy.Const:
        if type(node) is lazy.Map and node.arg is Op.NEG:
            negative = not negative
        elif type(node) is not lazy.Move or node.arg[0] not in REPEATS:
            return None
        node = node.sources[0]
    return to_text(-node.value, node.dtype) if negative else str(node.arg)


def _moved_back(node: lazy.Move) -> LazyBuffer | None:
    first = node.sources[0]
    if type(first) is not lazy.Move or first.movement is not node.movement:
        return None
    now, before = node.arg[1], first.arg[1]
    if node.movement is Movement.PERMUTE:
        back = tuple(before[axis] for axis in now) == tuple(range(len(now)))
    else:
        back = node.movement is Movement.FLIP and now == before
    return first.sources[0] if back else None
