"""Panels: tiles as the four warps of a warpgroup read them, out of shared memory.

A row of a panel is 64 halves of a factor that lie side by side in memory. Rows follow one another,
then panels; eight rows are a piece of 1024 bytes in which 16 bytes of a row stand where the row's
number says (the renderer and copies of boxes see to that, nobody else has to know it).
PTX ISA, "Shared memory matrix layout" of wgmma: 128-byte swizzle, K-major or, crosswise, MN-major.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tinyml.codegen.change import OptError
from tinyml.codegen.expr import Expr, Stored
from tinyml.codegen.matrices import Matrix
from tinyml.index import Axis, Linear, linear, numbered

ROW = 64  # halves
PIECE = 8 * ROW  # of eight rows
BYTES = 2  # of a half


def in_panels(lines: Sequence[Axis], along: Sequence[Axis]) -> Linear:
    """Where elements lie whose rows walk `along`, for all `lines`."""
    count, length = prod(a.size for a in lines), prod(a.size for a in along)
    if length % ROW or count * ROW % PIECE:
        raise OptError(f"cannot lay {count} lines of {length} in panels: pad them first")
    place = numbered(along)
    return (place // ROW * count + numbered(lines)) * ROW + place % ROW


def across_panels(along: Sequence[Axis]) -> tuple[Axis, int] | None:
    """The axis that goes on in the next panel, and how many of its steps one panel has."""
    length = 1
    for axis in reversed(along):
        if length < ROW < length * axis.size:
            return axis, ROW // length
        length *= axis.size
    return None


def matrix(operand: Expr, edge: Axis, steps: Axis) -> Expr:
    """The matrix of `edge` by `steps` that an operand is, where it begins in its tile."""
    if isinstance(operand, Stored):
        within, panel = (
            Axis(f"{edge.name}m", min(edge.size, ROW)),
            Axis(f"{edge.name}p", edge.size // ROW),
        )
        index = operand.index.substitute({edge: linear(panel) * ROW + linear(within)})
        strides = index.stride(within), index.stride(steps)
        apart = index.stride(panel) if panel.size > 1 else 0
        start = index.substitute({within: linear(0), panel: linear(0), steps: linear(0)})
        if strides == (ROW, 1) and apart in (0, ROW * ROW) and _begins(start, False):
            return _matrix(operand, start, edge, False, 0)
        if strides == (1, ROW) and apart is not None and _begins(start, True):
            return _matrix(operand, start, edge, True, apart * BYTES)
    raise OptError(f"cannot multiply {operand} by warpgroups: it is not staged in panels")


def _matrix(e: Stored, start: Linear, edge: Axis, crosswise: bool, leading: int) -> Expr:
    made: Expr = Matrix(e.name, e.dtype, start, e.after, edge.size, crosswise, leading)
    return made


def _begins(start: Linear, crosswise: bool) -> bool:
    """Whether it begins with eight rows, or with some halves of the first of them."""
    inner = 1 << 30 if crosswise else 16
    factors = [f for _, f in start.terms] + [start.constant]
    return all(f % PIECE == 0 or (f % inner == 0 and f < ROW) for f in factors)
