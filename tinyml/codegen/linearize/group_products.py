"""Group: products of warpgroups, which are made while threads go on, are begun and waited for.

Those of one step of a loop are a group, up to where their sums are read. It is waited for at once;
or, where a step's boxes are released behind the next step's products, a group later, and by all at
the end of the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
from tinyml.codegen.linearize.deferred import deferred
from tinyml.codegen.matrices import Matrix, Product, by_warpgroup
from tinyml.codegen.scope import names_of
from tinyml.index import Axis


def grouped(instrs: Sequence[Instr], late: Mapping[Axis, int]) -> tuple[Instr, ...]:
    """The instructions with what begins and ends groups of products.

    Loops over axes that are `late` make a step's last products with the next step's first, if they
    can: so many stages their tiles have.
    """
    if not any(by_warpgroup(i.value) for i in instrs if type(i) is Update):
        return tuple(instrs)
    made: list[Instr] = []
    groups: list[list[int]] = []  # where products are that no inner loop makes
    between, every = set[str](), set[str]()  # names of what else is read: since the last of them
    boxes, at = False, 0
    while at < len(instrs):
        instr, end, read = instrs[at], at, set[str]()
        boxes = boxes or isinstance(instr, AwaitBoxes)
        if isinstance(instr, Update) and by_warpgroup(instr.value):
            if not groups or not between.isdisjoint(names_of(made[n] for n in groups[-1])):
                groups.append([])
            groups[-1].append(len(made))
            between = set()
            made.append(instr)
        elif isinstance(instr, Begin):
            end = end_of(instrs, at)
            inner = grouped(instrs[at + 1 : end], late)
            again = _deferred(instrs, instr, inner, late)
            made += again or [instr, *inner, instrs[end], *_left(inner)]
            read = names_of(inner)
        else:
            made.append(instr)
            read = names_of([instr])
        between, every, at = between | read, every | read, end + 1
    for group in reversed(groups):
        updates = [i for n in group if isinstance(i := made[n], Update)]
        sums = tuple(dict.fromkeys(i.name for i in updates))
        apart = every.isdisjoint(n.name for n in sums) and all(map(_in_memory, updates))
        under_way = boxes and apart
        behind = [EndProducts(), AwaitProducts(sums, int(under_way), under_way)]
        made[group[-1] + 1 : group[-1] + 1] = behind
        made.insert(group[0], BeginProducts(sums))
    return tuple(made)


def _in_memory(product: Update) -> bool:
    """Whether both factors lie in shared memory: registers are needed for others."""
    return isinstance(product.value, Product) and isinstance(product.value.a, Matrix)


def _left(inner: Iterable[Instr]) -> list[Instr]:
    """What waits for the groups that a loop leaves behind."""
    waits = [i for i in inner if isinstance(i, AwaitProducts)]
    return [AwaitProducts(waits[-1].names, 0)] if waits and waits[-1].under_way else []


def _deferred(
    instrs: Sequence[Instr], begin: Begin, inner: Sequence[Instr], late: Mapping[Axis, int]
) -> list[Instr] | None:
    """The loop with its last products deferred, if it is the only one over its axis here."""
    same = sum(isinstance(i, Begin) and i.axis.name == begin.axis.name for i in instrs)
    stages = late.get(begin.axis) if same == 1 else None
    return deferred(begin, inner, stages) if stages else None
