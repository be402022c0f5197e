"""Transpose: a product lies in memory in the order in which it is read.

The result of attention is made by heads and read by tokens, all heads of one side by side; the
gradient of a second factor is made along the rows of the product. A kernel stores its results in
any order at the same cost; who reads them number by number, jumping, pays for each of them. But
vectors lie along an axis that one factor has and the other is spread over: an axis of both, as the
channels of a depthwise convolution, would be read across.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import partial

from tinyml import lazy
from tinyml.lazy import LazyBuffer
from tinyml.ops import Movement, Op
from tinyml.schedule.balance import factors_of
from tinyml.schedule.contracts import contracts
from tinyml.schedule.labels import FIXED, through
from tinyml.schedule.rewrite import Changed, moved, renewed
from tinyml.schedule.units import readers_of

Axes = tuple[int, ...]  # those of a product that have several steps, in the order of a permutation
Placed = dict[LazyBuffer, tuple[LazyBuffer, Axes]]  # the product that it is, permuted so


def transpose(order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer]) -> Changed:
    """The same values; products that are permuted in one way are made of permuted factors."""
    placed: Placed = {}
    for node in order:
        if isinstance(node, lazy.Reduce) and node.size and contracts(node):
            placed[node] = node, _walked(node)
        elif isinstance(node, lazy.Move) and (below := placed.get(node.sources[0])) is not None:
            moved = _moved(node, below[1])
            placed |= {node: (below[0], moved)} if moved is not None else {}
    stored = _orders(order, {*roots}, placed)
    if not stored:
        return {}
    changed: Changed = {}
    made: dict[LazyBuffer, LazyBuffer] = {}  # a product without axes of one step, as it is stored
    for node, again in renewed(order, changed):
        product, axes = placed.get(node, (node, ()))
        if product in stored:
            if node is product:
                made[node] = _product(again, stored[node])
            permuted = lazy.permute(made[product], [stored[product].index(a) for a in axes])
            changed[node] = lazy.reshape(permuted, node.shape)
    return changed


def _orders(
    order: Sequence[LazyBuffer], roots: Container[LazyBuffer], placed: Placed
) -> dict[LazyBuffer, Axes]:
    """The products that are read in one order which is not their own, and that order."""
    if all(axes == _walked(product) for product, axes in placed.values()):
        return {}
    readers, read = readers_of(order), dict[LazyBuffer, set[Axes]]()
    for node, (product, axes) in placed.items():
        permuted = axes != _walked(product)
        if node in roots or (permuted and any(r not in placed for r in readers[node])):
            read.setdefault(product, set()).add(axes)
    found = {product: next(iter(orders)) for product, orders in read.items() if len(orders) == 1}
    return {
        product: axes
        for product, axes in found.items()
        if axes != _walked(product)
        and not all(_lies_along(factor, axes[-1]) for factor in factors_of(product))
    }


def _lies_along(factor: LazyBuffer, axis: int) -> bool:
    labels = tuple([axis if a == axis else FIXED for a in range(len(factor.shape))])
    while isinstance(factor, lazy.Move) or lazy.is_map(factor, Op.CAST):
        labels = through(factor, labels) if isinstance(factor, lazy.Move) else labels
        factor = factor.sources[0]
    return any(label != FIXED for label in labels)


def _walked(node: LazyBuffer) -> Axes:
    return tuple([a for a, size in enumerate(node.shape) if size > 1])


def _moved(move: lazy.Move, axes: Axes) -> Axes | None:
    """Where axes are behind a permutation, or what leaves all in place."""
    source = move.sources[0]
    before = _walked(source)
    if move.movement is Movement.PERMUTE:
        return tuple([axes[before.index(a)] for a in move.arg[1] if a in before])
    same = [source.shape[a] for a in before] == [move.shape[a] for a in _walked(move)]
    return axes if same and move.movement is Movement.RESHAPE else None


def _product(node: LazyBuffer, stored: Axes) -> LazyBuffer:
    """A product with those of its axes that have several steps in another order."""
    assert isinstance(node, lazy.Reduce)
    axes = iter(stored)
    order = [next(axes) if size > 1 else a for a, size in enumerate(node.shape)]
    terms = moved(node.sources[0], partial(lazy.permute, order=order))
    made = lazy.reduce_(node.op, terms, node.axes)
    return lazy.reshape(made, tuple([size for size in made.shape if size > 1]))
