"""Regroup: what is made of a sum, element by element, is made along the axes of the sum.

Groups and the channels of each are two axes of a sum, and one axis of all that follows it. Along
that one a bias or an activation would be another kernel, which reads the sums from memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from tinyml import lazy
from tinyml.lazy import LazyBuffer
from tinyml.ops import Movement
from tinyml.schedule.labels import merges, unmoved
from tinyml.schedule.rewrite import Changed, renewed


def regroup(order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer]) -> Changed:
    """The same values; what joins axes of a sum comes behind all that it alone is made into."""
    readers = Counter(chain(roots, *[node.sources for node in order]))

    def alone(node: LazyBuffer) -> bool:
        reshaped = node.sources[0] if isinstance(node, lazy.Move) else node
        return readers[node] == 1 and readers[reshaped] == 1

    def of_sum(node: LazyBuffer) -> bool:
        return isinstance(unmoved(node.sources[0], (Movement.PERMUTE,)), lazy.Reduce)

    joined = {node for node in order if joins(node) and of_sum(node) and alone(node)}
    if not any(type(node) is lazy.Map and not joined.isdisjoint(node.sources) for node in order):
        return {}
    assigned = {node.sources[1] for node in order if isinstance(node, lazy.Assign)}
    changed: Changed = {}
    sums = set[LazyBuffer]()
    for node, again in renewed(order, changed):
        permuted = lazy.is_move(again, Movement.PERMUTE) and again.sources[0] in sums
        if permuted or isinstance(again, lazy.Reduce):
            sums.add(again)
        if type(node) is not lazy.Map or node in assigned:
            continue
        now = (changed.get(s, s) for s in node.sources if alone(s))
        found = (s.sources[0] for s in now if joins(s))
        below = next((s for s in found if s in sums), None)
        if below is not None:
            same = tuple([lazy.reshape(source, below.shape) for source in again.sources])
            made = node.with_sources(same, below.shape)
            sums.add(made)
            changed[node] = lazy.reshape(made, node.shape)
    return changed


def joins(node: LazyBuffer) -> bool:
    """Whether axes of the source are one axis here, each of which is what some of them were."""
    if not lazy.is_move(node, Movement.RESHAPE):
        return False
    shape, below = node.shape, node.sources[0].shape
    return merges(shape, below) and not merges(below, shape)
