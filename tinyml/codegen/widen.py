"""Bits of small integers that are asked for as larger numbers: taken of larger numbers at once.

    float32(x >> 4 & 3)        float32(int32(x) >> 4 & 3)

Processors shift whole numbers, each by its own count: of bytes gcc shifts one lane after another
without AVX-512.
"""

from __future__ import annotations

from tinyml.codegen.expr import Alu, Expr, Select, alu, select
from tinyml.dtype import int32
from tinyml.ops import Op

DEEP = 8  # ops in each other that are made anew
BITWISE = {Op.AND, Op.OR, Op.XOR, Op.SHR}


def widened(e: Expr) -> Expr | None:
    """The integer as an int32, if it is smaller and made by a shift to the right."""
    small = e.dtype.is_int and e.dtype.itemsize < int32.itemsize
    return _wide(e, DEEP) if small and _shifts(e, DEEP) else None


def _shifts(e: Expr, depth: int) -> bool:
    if isinstance(e, Alu) and e.op is Op.SHR:
        return True
    return depth > 0 and any(_shifts(made, depth - 1) for made in _made_of(e))


def _made_of(e: Expr) -> tuple[Expr, ...]:
    """What bits of a value are taken from."""
    match e:
        case Alu(op=op, operands=operands) if op in BITWISE:
            return operands
        case Alu(op=Op.WHERE, operands=(_, value, other)) | Select(value=value, other=other):
            return value, other
    return ()


def _wide(e: Expr, depth: int) -> Expr:
    parts = [_wide(made, depth - 1) for made in _made_of(e)] if depth else []
    match e:
        case Alu(op=Op.WHERE, operands=(chosen, *_)) if parts:
            return alu(Op.WHERE, int32, chosen, *parts)
        case Alu(op=op) if parts:
            return alu(op, int32, *parts)
        case Select(valid=valid) if parts:
            return select(valid, *parts)
    return alu(Op.CAST, int32, e)
