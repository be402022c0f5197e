"""Bring: sums whose parts blocks have set aside come together late, a few at a time.

whole   AcrossBlocks   -> Together*      all lanes of all names
late    Instr*         -> Instr*         where they are used, as many as registers hold beside
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tinyml.codegen.expr import Expr, Name, Part
from tinyml.codegen.linear import Instr, Let, Put, PutTile, Together
from tinyml.codegen.scope import read_by
from tinyml.frozen import replace
from tinyml.graph import toposort
from tinyml.ops import Op

BROUGHT = 64  # registers of a thread for what is brought together at once
WORD = 4  # bytes


def whole(names: Iterable[Name], op: Op, parts: int) -> list[Instr]:
    """What brings names together."""
    return [Together(name, op, parts, 0, name.lanes) for name in names]


def late(instrs: Sequence[Instr]) -> tuple[Instr, ...]:
    """The instructions, with sums brought together before what first uses some of them."""
    if Together not in map(type, instrs):
        return tuple(instrs)
    made: list[Instr] = []
    waiting: list[list[Together]] = []
    for instr in instrs:
        if isinstance(instr, Together):
            for some in _pieces(instr):
                if not waiting or _registers(*waiting[-1], some) > BROUGHT:
                    waiting.append([])
                waiting[-1].append(some)
            continue
        used = _used(instr) if waiting else None
        for group in waiting.copy():
            if used is None or any(_uses(used, some) for some in group):
                made += group
                waiting.remove(group)
        made.append(instr)
    return tuple(made)


def _pieces(whole: Together) -> Iterator[Together]:
    size = whole.lanes * BROUGHT // max(BROUGHT, _registers(whole))
    for first in range(0, whole.lanes, size):
        yield replace(whole, first=first, lanes=min(size, whole.lanes - first))


def _registers(*brought: Together) -> int:
    return sum(t.lanes * -(-t.name.dtype.itemsize // WORD) for t in brought)


def _used(instr: Instr) -> set[Expr] | None:
    """Names that an instruction uses, and single lanes of them; None if it may be any."""
    if not isinstance(instr, (Put, PutTile, Let)):
        return None  # a loop, say, in which they would be brought together at each step
    values = read_by(instr)
    used = set(values)
    for e in toposort(values):
        lane = isinstance(e, Part) and isinstance(e.wide, Name) and not e.lane.terms
        used.update((e,) if lane else e.sources)
    return used


def _uses(used: Iterable[Expr], some: Together) -> bool:
    lanes = range(some.first, some.end)
    return any(
        e is some.name or (isinstance(e, Part) and e.wide is some.name and e.lane.constant in lanes)
        for e in used
    )
