"""Repeats: a fold of what is the same all along an axis is made once, and repeated.

The gradient of `(x @ w).sum()` by w is a sum over rows of x times 1, the same for each column of w,
and that of a convolution the same for each channel that it makes. No factor is left to say so, as
what is multiplied by 1 is gone; and a kernel of all columns would add up x for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from tinyml import lazy
from tinyml.lazy import LazyBuffer
from tinyml.ops import Movement
from tinyml.schedule.labels import factor_groups
from tinyml.schedule.rewrite import Changed, moved, renewed

MOST = 64  # nodes that are looked at for a fold
Axes = frozenset[int]  # of a fold's operand
NONE: Axes = frozenset()


def once(order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer]) -> Changed:
    """The same values; folds have one step along axes on which nothing depends."""
    changed: Changed = {}
    for node, again in renewed(order, changed):
        if not isinstance(again, lazy.Reduce) or again.size == 1:
            continue
        (operand,) = again.sources
        kept = {a for a, n in enumerate(again.shape) if n > 1}
        same = kept - _walked(operand, kept)
        if same:
            spans = tuple((0, 1 if a in same else n) for a, n in enumerate(operand.shape))
            part = moved(operand, partial(lazy.shrink, spans=spans))
            made = lazy.reduce_(again.op, part, again.axes)
            changed[node] = lazy.expand(made, again.shape)
    return changed


def _walked(operand: LazyBuffer, wanted: set[int]) -> set[int]:
    """Axes on which values may depend, of those wanted."""
    found: set[int] = set()
    stack = [(operand, tuple(frozenset({a} & wanted) for a in range(len(operand.shape))))]
    seen = {*stack}
    while stack and not wanted <= found:
        node, axes = stack.pop()
        if type(node) is lazy.Map:
            below = [(source, axes) for source in node.sources]
        elif isinstance(node, lazy.Move):
            found.update(*_edges(node, axes))
            below = [(node.sources[0], _below(node, axes))]
        else:
            found.update(*axes)
            continue
        new = [each for each in below if each not in seen]
        seen.update(new)
        stack += new
        if len(seen) > MOST:
            return wanted
    return found


def _edges(node: lazy.Move, axes: tuple[Axes, ...]) -> Iterator[Axes]:
    """The axes along which a movement puts something else beside what it moves."""
    if node.movement is Movement.PAD:
        yield from (each for each, count in zip(axes, node.arg[1][0], strict=True) if any(count))
    elif node.movement is Movement.SKEW:
        yield from (axes[a] for a in node.arg[1][:2])


def _below(node: lazy.Move, axes: tuple[Axes, ...]) -> tuple[Axes, ...]:
    """On which axes the places in a movement's source depend; on none along an axis of size 1."""
    source, (_, arg) = node.sources[0], node.arg
    found = list(axes)
    match node.movement:
        case Movement.PERMUTE:
            for out, axis in enumerate(arg):
                found[axis] = axes[out]
        case Movement.SKEW:
            found[arg[0]] = axes[arg[0]] | axes[arg[1]]
        case Movement.RESHAPE if 0 not in node.shape:
            found = [NONE] * len(source.shape)
            for tops, bottoms in factor_groups(node.shape, source.shape):
                for axis in bottoms:
                    found[axis] = NONE.union(*(axes[a] for a in tops))
        case Movement.RESHAPE:
            found = [NONE.union(*axes)] * len(source.shape)
    return tuple(x if n > 1 else NONE for x, n in zip(found, source.shape, strict=True))
