"""Repeats: a fold of what is the same all along an axis is made once, and repeated.

The gradient of `(x @ w).sum()` by w is a sum over rows of x times 1, the same for each column of w,
and that of a convolution the same for each channel that it makes. No factor is left to say so, as
what is multiplied by 1 is gone; and a kernel of all columns would add up x for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tinyml import lazy
from tinyml.lazy import LazyBuffer
from tinyml.schedule.labels import FIXED, Labels, edges, step
from tinyml.schedule.rewrite import Changed, moved, renewed

MOST = 64  # nodes that are looked at for a fold


def once(order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer]) -> Changed:
    """The same values; folds have one step along axes on which nothing depends."""
    changed: Changed = {}
    for node, again in renewed(order, changed):
        if not isinstance(again, lazy.Reduce) or again.size == 1:
            continue
        (operand,) = again.sources
        kept = (a for a, n in enumerate(again.shape) if n > 1)
        same = {a for a in kept if not _varies(operand, a)}
        if same:
            spans = tuple((0, 1 if a in same else n) for a, n in enumerate(operand.shape))
            part = moved(operand, partial(lazy.shrink, spans=spans))
            made = lazy.reduce_(again.op, part, again.axes)
            changed[node] = lazy.expand(made, again.shape)
    return changed


def _varies(operand: LazyBuffer, axis: int) -> bool:
    """Whether values may depend on where they are along an axis."""
    labels: Labels = tuple([0 if a == axis else FIXED for a in range(len(operand.shape))])
    stack, seen = [(operand, labels)], {(operand, labels)}
    while stack:
        node, labels = stack.pop()
        inline = type(node) is lazy.Map or isinstance(node, lazy.Move)
        if not inline or any(labels[a] != FIXED for a in edges(node)) or len(seen) > MOST:
            return True
        below = [each for each in step(node, labels) if any(x != FIXED for x in each[1])]
        stack += [each for each in below if each not in seen]
        seen.update(below)
    return False
