"""Group: products of warpgroups, which are made while threads go on, are begun and waited for.

Those of one step of a loop are a group. It is waited for at once; or, where a step's boxes are
released behind the next step's products, a group later, and by all at the end of the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tinyml.codegen.linear import (
    AwaitBoxes,
    AwaitProducts,
    Begin,
    BeginProducts,
    EndProducts,
    Instr,
    Update,
    end_of,
)
from tinyml.codegen.matrices import by_warpgroup


def grouped(instrs: Sequence[Instr]) -> tuple[Instr, ...]:
    """The instructions with what begins and ends groups of products."""
    if not any(by_warpgroup(i.value) for i in instrs if type(i) is Update):
        return tuple(instrs)
    made: list[Instr] = []
    own: list[int] = []  # where products are that no inner loop makes
    late, at = False, 0
    while at < len(instrs):
        instr = instrs[at]
        late = late or isinstance(instr, AwaitBoxes)
        if isinstance(instr, Begin):
            end = end_of(instrs, at)
            inner = grouped(instrs[at + 1 : end])
            made += [instr, *inner, instrs[end], *_left(inner)]
            at = end
        else:
            own += [len(made)] if isinstance(instr, Update) and by_warpgroup(instr.value) else []
            made.append(instr)
        at += 1
    if own:
        updates = (made[n] for n in own)
        sums = tuple(dict.fromkeys(i.name for i in updates if isinstance(i, Update)))
        made[own[-1] + 1 : own[-1] + 1] = [EndProducts(), AwaitProducts(sums, int(late))]
        made.insert(own[0], BeginProducts(sums))
    return tuple(made)


def _left(inner: Iterable[Instr]) -> list[Instr]:
    """What waits for the groups that a loop leaves behind."""
    waits = [i for i in inner if isinstance(i, AwaitProducts)]
    return [AwaitProducts(waits[-1].names, 0)] if waits and waits[-1].left else []
