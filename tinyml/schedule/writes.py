"""Writes: what an assignment changes of its target, and where it reads the target for that.

x[2:5] = v        assign(x, where(pad(True), pad(v), x))               a part, known beforehand
x[i] = v          assign(x, scatter(x, i, v))                          places that data name
x[2:5] += v       assign(x, where(pad(True), pad(x[2:5] + v), x))      reads what it writes
"""

from __future__ import annotations

from collections.abc import Container
from typing import TypeAlias

from tinyml import lazy
from tinyml.dtype import to_text
from tinyml.lazy import LazyBuffer
from tinyml.ops import Movement, Op
from tinyml.schedule.labels import unshaped

MOST = 256  # ways from what is written to what is read, that are looked at
_Moves: TypeAlias = tuple[lazy.Move, ...]


def part(node: LazyBuffer) -> tuple[LazyBuffer, LazyBuffer] | None:
    """Where an assignment changes anything, as a moved True, and to what; None if it may be all."""
    if not isinstance(node, lazy.Assign):
        return None
    target, value = node.sources
    value = unshaped(value)
    if not lazy.is_map(value, Op.WHERE):
        return None
    mask, new, old = value.sources
    if not isinstance(target, lazy.Data) or unshaped(old) is not target or not _is_moved_true(mask):
        return None
    return lazy.reshape(mask, node.shape), lazy.reshape(new, node.shape)


def _is_moved_true(node: LazyBuffer) -> bool:
    """Whether a mask is True wherever it is not padded."""
    while isinstance(node, lazy.Move):
        if node.movement is Movement.PAD and node.arg[1][1] != to_text(False, node.dtype):
            return False
        (node,) = node.sources
    return isinstance(node, lazy.Const) and bool(node.value)


def scattered(node: LazyBuffer) -> lazy.Scatter | None:
    """The scatter into a leaf that an assignment to this leaf takes its values from."""
    if not isinstance(node, lazy.Assign):
        return None
    target, value = node.sources
    value = unshaped(value)
    if isinstance(value, lazy.Scatter) and unshaped(value.sources[0]) is target:
        return value if isinstance(target, lazy.Data) else None
    return None


def reads_what_it_writes(node: LazyBuffer, units: Container[LazyBuffer]) -> bool:
    """Whether each element of a part is made of no other element of the target, but by units.

    So it is where every move on the way to the target is undone by another one.
    """
    found = part(node)
    if found is None:
        return False
    target = node.sources[0]
    waiting: list[tuple[LazyBuffer, _Moves]] = [(found[1], ())]
    for _ in range(MOST):
        if not waiting:
            return True
        below, moves = waiting.pop()
        if below is target:
            if moves:
                return False
        elif below in units:
            continue
        elif isinstance(below, lazy.Move):
            undone = bool(moves) and _undoes(below, moves[-1])
            waiting.append((below.sources[0], moves[:-1] if undone else (*moves, below)))
        elif isinstance(below, lazy.Map):
            waiting += [(source, moves) for source in below.sources]
        elif below.sources:
            return False
    return False


def _undoes(below: lazy.Move, above: lazy.Move) -> bool:
    """Whether what a move takes apart, or turns, is put together again by one above it."""
    kinds, (_, made), (_, took) = (above.movement, below.movement), above.arg, below.arg
    if above.shape != below.sources[0].shape:
        return False
    if kinds == (Movement.PAD, Movement.SHRINK):
        return [before for before, _ in made[0]] == [start for start, _ in took]
    if kinds == (Movement.PERMUTE, Movement.PERMUTE):
        return [made[a] for a in took] == [*range(len(took))]
    if kinds == (Movement.FLIP, Movement.FLIP):
        return sorted(made) == sorted(took)
    return kinds == (Movement.RESHAPE, Movement.RESHAPE)
