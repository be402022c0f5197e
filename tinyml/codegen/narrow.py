"""Kernels that compute with bytes alone: a truth is a byte of a vector then, too, not an int32.

A condition on places is one of int32 lanes, and truths are brought together in words of a register:
where there is one of these, truths are int32.
"""

from __future__ import annotations

from collections.abc import Iterable

from tinyml.codegen.expr import Alu, Const, Expr, Load, Name
from tinyml.dtype import DType


def is_narrow(slots: Iterable[tuple[object, DType]], values: Iterable[Expr]) -> bool:
    """Whether what is in memory, and all that is made of it lane by lane, is bytes."""
    return all(dtype.itemsize == 1 for _, dtype in slots) and all(map(_is_byte, values))


def _is_byte(e: Expr) -> bool:
    plain = type(e) in (Alu, Const, Name) or (type(e) is Load and not e.valid)
    return plain and e.dtype.itemsize == 1
