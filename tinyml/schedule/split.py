"""Split: a large reduction to few results becomes two, so that it has rows to share out.

The pieces depend on sizes alone, never on the machine or its threads: a program gives the
same bits wherever it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tinyml import lazy
from tinyml.dtype import float32
from tinyml.graph import toposort
from tinyml.interpret import identity
from tinyml.lazy import LazyBuffer

FEW_RESULTS = 256  # more results than this keep a machine busy by themselves
LARGE = 16384  # elements folded into one result
PIECE = 2048  # elements that one piece folds, about


def split_reductions(roots: Sequence[LazyBuffer]) -> list[LazyBuffer]:
    """The same values, with large reductions done in two steps."""
    changed: dict[LazyBuffer, LazyBuffer] = {}
    for node in toposort(roots):
        again = node.with_sources(tuple(changed[s] for s in node.sources))
        changed[node] = _split(again) if isinstance(again, lazy.Reduce) else again
    return [changed[root] for root in roots]


def share_assigned(roots: Sequence[LazyBuffer]) -> list[LazyBuffer]:
    """The same values, with what is assigned read from its new place.

    Whoever reads the value of an assignment then reads the assignment itself, so that a kernel
    makes both at once and need not keep the old values for it.
    """
    order = toposort(roots)
    places: dict[LazyBuffer, LazyBuffer] = {}
    for node in order:
        if isinstance(node, lazy.Assign):
            target, value = node.sources
            if isinstance(target, lazy.Data) and isinstance(value, lazy.Map):
                places.setdefault(value, node)
    changed: dict[LazyBuffer, LazyBuffer] = {}
    plain: dict[LazyBuffer, LazyBuffer] = {}  # what is asked for by itself has its own memory
    for node in order:
        if isinstance(node, lazy.Assign) and places.get(node.sources[1]) is node:
            continue  # made where its value was
        plain[node] = changed[node] = node.with_sources(tuple(changed[s] for s in node.sources))
        assign = places.get(node)
        if assign is not None:
            changed[node] = plain[assign] = changed[assign] = assign.with_sources(
                (assign.sources[0], plain[node])
            )
    return [plain[root] for root in roots]


def _split(node: lazy.Reduce) -> LazyBuffer:
    source = node.sources[0]
    folded = prod(source.shape[a] for a in node.axes)
    if node.size > FEW_RESULTS or folded < LARGE or source.size == 0:
        return node
    if node.dtype.is_half:  # pieces are not rounded: a half is summed in float32
        wide = lazy.reduce_(node.op, lazy.cast(source, float32), node.axes)
        assert isinstance(wide, lazy.Reduce)
        return lazy.cast(_split(wide), node.dtype)
    axis = max(node.axes, key=lambda a: source.shape[a])
    size = source.shape[axis]
    pieces = min(512, max(2, folded // PIECE), size)
    pieces = next((p for p in range(pieces, pieces // 2, -1) if size % p == 0), pieces)
    length = -(-size // pieces)
    counts = [(0, pieces * length - size if a == axis else 0) for a in range(len(source.shape))]
    source = lazy.pad(source, counts, identity(node.op, node.dtype))
    shape = (*source.shape[:axis], pieces, length, *source.shape[axis + 1 :])
    inner = tuple(a + (a >= axis) for a in node.axes)
    first = lazy.reduce_(node.op, lazy.reshape(source, shape), inner)
    return lazy.reshape(lazy.reduce_(node.op, first, (axis,)), node.shape)
