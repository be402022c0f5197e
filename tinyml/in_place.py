"""In place: which output of a kernel may have the memory of an input that nobody needs afterwards.

Each element of that input is read for the same element of the output alone, by ops on elements,
so it does not matter when others are written. What is folded, or moved to other elements, stays.
"""

from __future__ import annotations

from tinyml import lazy
from tinyml.graph import toposort
from tinyml.kernel import Kernel, Output
from tinyml.lazy import LazyBuffer
from tinyml.ops import Movement


def takers(k: Kernel) -> dict[int, int]:
    """Slots of inputs that one output alone reads, element by element, and that output's slot."""
    found: dict[int, int] = {}
    elsewhere: set[int] = set()
    for output in k.outputs:
        beside, others = _slots(output)
        elsewhere |= others | (beside & found.keys())
        found |= dict.fromkeys(beside, output.slot)
    return {slot: taker for slot, taker in found.items() if slot not in elsewhere}


def _slots(output: Output) -> tuple[set[int], set[int]]:
    """The slots that an output reads at its own element only, and those it reads elsewhere."""
    whole = not (output.keeps or output.across or output.padding)
    waiting, rest = ([output.value], [*output.roots[1:]]) if whole else ([], [*output.roots])
    beside, seen = set[int](), set[LazyBuffer]()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, lazy.Slot):
            beside.add(node.arg)
        elif isinstance(node, lazy.Map) or lazy.is_move(node, Movement.RESHAPE):
            waiting += node.sources
        else:
            rest.append(node)
    return beside, {node.arg for node in toposort(rest) if isinstance(node, lazy.Slot)}
