"""Begun: what a step of a loop folds, all of it written out, begins with its first value.

A largest of 64 scores in four accumulators is 60 comparisons, not 64: nobody compares with -inf or
adds to 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinyml.codegen.linear import Begin, Declare, End, Instr, Update
from tinyml.codegen.scope import names_of


def begun(instrs: Sequence[Instr]) -> tuple[Instr, ...]:
    """The instructions with accumulators of loops' steps declared where they are updated first."""
    depth, waiting = 0, dict[str, tuple[int, int]]()  # where a name is declared, and how deep
    made: list[Instr | None] = [*instrs]
    for at, instr in enumerate(instrs):
        depth += (type(instr) is Begin) - (type(instr) is End)
        read = names_of([instr])
        found = waiting.get(instr.name.name) if isinstance(instr, Update) else None
        if found is not None and found[1] == depth and isinstance(instr, Update):
            made[found[0]], made[at] = None, Declare(instr.name, instr.value)
        for name in read:
            waiting.pop(name, None)
        if isinstance(instr, Declare) and depth and instr.name.lanes == 1:
            waiting[instr.name.name] = at, depth
    return tuple([instr for instr in made if instr is not None])
