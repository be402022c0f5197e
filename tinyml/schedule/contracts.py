"""Sums of products: what a reduction adds up, and what of it is read many times over."""

from __future__ import annotations

from tinyml import lazy
from tinyml.lazy import LazyBuffer
from tinyml.ops import Movement, Op


def contracts(unit: LazyBuffer) -> bool:
    """Whether a reduction is a contraction: a sum of products of two factors, both broadcast."""
    return _sums(unit) and _is_product(added_by(unit))


def contracts_moved(unit: LazyBuffer) -> bool:
    """Likewise of products that are moved, as into windows, before they are added up."""
    if not _sums(unit):
        return False
    node = added_by(unit)
    while isinstance(node, lazy.Move) and not is_repeated(node):
        node = node.sources[0]
    return _is_product(node) and not any(isinstance(narrowest(s), lazy.Const) for s in node.sources)


def _sums(unit: LazyBuffer) -> bool:
    return isinstance(unit, lazy.Reduce) and unit.op is Op.ADD


def _is_product(node: LazyBuffer) -> bool:
    return lazy.is_map(node, Op.MUL) and all(map(_repeats, node.sources))


def added_by(total: LazyBuffer) -> LazyBuffer:
    """What a sum adds up, before it is cast."""
    (node,) = total.sources
    while lazy.is_map(node, Op.CAST):
        (node,) = node.sources
    return node


def _repeats(node: LazyBuffer) -> bool:
    while isinstance(node, lazy.Move) or lazy.is_map(node, Op.CAST):
        if is_repeated(node):
            return True
        node = node.sources[0]
    return False


def is_repeated(node: LazyBuffer) -> bool:
    """Whether a node has the same elements many times over."""
    return lazy.is_move(node, Movement.EXPAND)


def narrowest(node: LazyBuffer) -> LazyBuffer:
    """What a node is without its moves, and without casts that make halves wider."""
    while isinstance(node, lazy.Move) or widens(node):
        node = node.sources[0]
    return node


def widens(node: LazyBuffer) -> bool:
    return lazy.is_map(node, Op.CAST) and node.sources[0].dtype.is_half
