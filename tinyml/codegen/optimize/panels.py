"""Panels: tiles as the four warps of a warpgroup read them, out of shared memory.

A row of a panel is 128 bytes of a factor: halves that lie side by side in memory, or floats along
the fold. Rows follow one another, then panels; eight rows are a piece in which 16 bytes of a row
stand where the row's number says (the renderer and copies of boxes see to that, nobody else has to
know it). Floats are rounded to what tensor cores take when they are put there.
PTX ISA, "Shared memory matrix layout" of wgmma: 128-byte swizzle, K-major or, crosswise, MN-major.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tinyml.codegen.expr import Expr, Stored
from tinyml.codegen.matrices import Matrix
from tinyml.codegen.optimize.change import OptError
from tinyml.dtype import DType
from tinyml.index import Axis, Linear, linear, numbered

ROW, STEP = 128, 32  # bytes: of a row, and what of it is multiplied at once
ROWS = 8  # of a piece


def row_of(dtype: DType) -> int:
    """How many elements a row has."""
    return ROW // dtype.itemsize


def in_panels(lines: Sequence[Axis], along: Sequence[Axis], row: int) -> Linear:
    """Where elements lie whose rows walk `along`, for all `lines`."""
    count, length = prod(a.size for a in lines), prod(a.size for a in along)
    if length % row or count % ROWS:
        raise OptError(f"cannot lay {count} lines of {length} in panels: pad them first")
    place = numbered(along)
    return (place // row * count + numbered(lines)) * row + place % row


def across_panels(along: Sequence[Axis], row: int) -> tuple[Axis, int] | None:
    """The axis that goes on in the next panel, and how many of its steps one panel has."""
    length = 1
    for axis in reversed(along):
        if length < row < length * axis.size:
            return axis, row // length
        length *= axis.size
    return None


def matrix(operand: Expr, edge: Axis, steps: Axis) -> Expr:
    """The matrix of `edge` by `steps` that an operand is, where it begins in its tile."""
    if isinstance(operand, Stored):
        row, size = row_of(operand.dtype), operand.dtype.itemsize
        within, panel = (
            Axis(f"{edge.name}m", min(edge.size, row)),
            Axis(f"{edge.name}p", edge.size // row),
        )
        index = operand.index.substitute({edge: linear(panel) * row + linear(within)})
        strides = index.stride(within), index.stride(steps)
        apart = index.stride(panel) if panel.size > 1 else 0
        start = index.substitute({within: linear(0), panel: linear(0), steps: linear(0)})
        if strides == (row, 1) and apart in (0, row * row) and _begins(start, row, STEP // size):
            return _matrix(operand, start, edge, False, 0)
        mirrored = strides == (1, row) and operand.dtype.is_half  # only halves can be
        if mirrored and apart is not None and _begins(start, row, row):
            return _matrix(operand, start, edge, True, apart * size)
    raise OptError(f"cannot multiply {operand} by warpgroups: it is not staged in panels")


def _matrix(e: Stored, start: Linear, edge: Axis, crosswise: bool, leading: int) -> Expr:
    return Matrix(e.name, e.dtype, start, e.after, edge.size, crosswise, leading)


def _begins(start: Linear, row: int, step: int) -> bool:
    """Whether it begins with eight rows, or with a step of the first of them."""
    factors = [f for _, f in start.terms] + [start.constant]
    return all(f % (ROWS * row) == 0 or (f % step == 0 and f < row) for f in factors)
