"""Remake: large products of matrices that every kernel that reads them makes again.

Attention's scores are folded along both axes in training: by what is made of them for the result
and the gradient of the queries along one, by the gradients of keys and values along the other. No
one kernel makes all of that, and in memory scores grow with the square of what they are made of.
So each kernel makes those that it meets, a few steps at a time (codegen/optimize/online.py). On a
CPU that takes longer than to read them, but not where a mask of positions leaves half of them out,
as in causal attention: then it stores no smaller ones, either.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from math import prod

from tinyml import lazy
from tinyml.frozen import dataclass
from tinyml.lazy import LazyBuffer
from tinyml.ops import Op
from tinyml.schedule.balance import WIDEST, made_by_all
from tinyml.schedule.labels import MIXED, trace
from tinyml.schedule.masks import Masks
from tinyml.schedule.units import CARDS, Readers, contracts, ends_of, readers_of


@dataclass(frozen=True)
class Limits:
    """From where on a device makes products again."""

    elements: int  # that are too many to store
    masked: int  # the same, if there is a mask on what is made of them
    steps: int  # of each fold over them
    rows: int  # that each fold leaves: what a device shares out
    depth: int  # of the fold that makes them, at most: what each element costs


# A card wants many rows: those of several heads are enough, hidden units of a model are too few. It
# keeps fewer elements than these in its cache, and scores of fewer keys are no larger than these.
CARD = Limits(elements=1 << 20, masked=1 << 20, steps=32, rows=4096, depth=WIDEST)
LIMITS = {
    "CPU": Limits(elements=1 << 28, masked=1 << 24, steps=1024, rows=1, depth=128),
    "CUDA": CARD,
    "EMU": CARD,
}


def remade(order: Sequence[LazyBuffer], roots: Container[LazyBuffer]) -> frozenset[LazyBuffer]:
    """The products among `order` that nobody stores."""
    products = [node for node in order if isinstance(node, lazy.Reduce) and _may_be(node)]
    if not products:
        return frozenset()
    readers = readers_of(order)
    folds = {node for node in order if isinstance(node, lazy.Reduce)}
    large = [n for n in products if n.size >= LIMITS[n.device].elements or _is_masked(n, readers)]
    return frozenset(n for n in large if _folded_both_ways(n, ends_of(n, readers, roots)[0], folds))


def _may_be(node: lazy.Reduce) -> bool:
    """Whether a fold is a product, worth it, and large enough if it has a mask."""
    limits = LIMITS.get(node.device)
    if limits is None or node.size < min(limits.masked, limits.elements) or not contracts(node):
        return False
    deep = node.sources[0].size > limits.depth * node.size
    return not deep and (node.device not in CARDS or made_by_all(node))


def _is_masked(node: LazyBuffer, readers: Readers) -> bool:
    """Whether a mask of positions is put on what is made of each of its elements."""
    masks, stack, below = Masks(()), [node], {node}
    while stack:
        for reader in readers[stack.pop()]:
            if isinstance(reader, lazy.Map) and reader.op is Op.WHERE and masks.of(reader):
                return True
            if isinstance(reader, (lazy.Map, lazy.Move)) and reader not in below:
                below.add(reader)
                stack.append(reader)
    return False


def _folded_both_ways(
    node: LazyBuffer, ends: Iterable[lazy.Reduce], folds: Container[LazyBuffer]
) -> bool:
    """Whether some of the folds that a product ends in are along other long axes than others."""
    found, limits = set(), LIMITS[node.device]
    for end in ends:
        uses, _ = trace([(end.sources[0], tuple(range(len(end.sources[0].shape))))], folds)
        for use in uses:
            if use.node is node:
                along = [a for a, label in enumerate(use.labels) if label in end.axes]
                long = any(node.shape[a] >= limits.steps for a in along)
                rows = node.size // prod(node.shape[a] for a in along)
                if not long or rows < limits.rows or MIXED in use.labels:
                    return False
                found.add(tuple(along))
    return len(found) > 1
