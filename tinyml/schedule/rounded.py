"""Rounded: what is compared with one of its own elements is rounded alike wherever it is made.

An extreme is found where x equals its largest: argmax, windows and gradients of extremes do so, and
sorting asks how many elements are less. If x is a * b + c * d, and in no memory, it is made once
for the largest and again for the comparison, and a compiler fuses one of both products with the
sum as it likes: other bits, and no element is the largest any more. So sums that both sides of
comparisons are made of say themselves which product they fuse. Nothing else needs that: bits that
nobody compares are as good either way.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinyml import lazy
from tinyml.dtype import float32, float64
from tinyml.graph import reached
from tinyml.lazy import LazyBuffer
from tinyml.ops import COMPARE, Op
from tinyml.schedule.labels import WHOLE
from tinyml.schedule.rewrite import Changed, renewed

_EXTREMES = frozenset({Op.MAX, Op.MIN, None})


def rounded_once(order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer]) -> Changed:
    """The same values; sums that are compared with themselves fuse a product, as one op."""
    adds = [n for n in order if lazy.is_map(n, Op.ADD) and n.dtype in (float32, float64)]
    sums = set(filter(_product_of, adds))
    pairs = [n.sources for n in order if sums and type(n) is lazy.Map and n.op in COMPARE]
    lefts, rights = ([pair[side] for pair in pairs if pair[0] is not pair[1]] for side in (0, 1))
    beside = sums.intersection(reached(lefts, _passed))
    compared = beside.intersection(reached(rights, _passed))  # perhaps in others of them: no harm
    changed: Changed = {}
    for node, again in renewed(order, changed) if compared else ():
        if node in compared and (found := _product_of(again)):
            factors, other = found
            changed[node] = lazy.map_(Op.FMA, *factors, other)
    return changed


def _passed(node: LazyBuffer) -> Sequence[LazyBuffer]:
    """The sources whose elements a node has, or makes one of its own of."""
    match node:
        case lazy.Map() | lazy.Move():
            return node.sources
        case lazy.Reduce() | lazy.Scatter() if node.op in _EXTREMES:
            return node.sources
        case lazy.Gather():
            return node.sources[:1]
    return ()


def _product_of(add: LazyBuffer) -> tuple[Sequence[LazyBuffer], LazyBuffer] | None:
    """The factors of the first operand that is a product, and the other operand."""
    one, other = add.sources
    if factors := _factors(one):
        return factors, other
    return (factors, one) if (factors := _factors(other)) else None


def _factors(node: LazyBuffer) -> Sequence[LazyBuffer]:
    """What a node is the product of, if it is one behind movements and signs."""
    if lazy.is_map(node, Op.MUL):
        return node.sources
    if lazy.is_map(node, Op.NEG) and (below := _factors(node.sources[0])):
        return lazy.map_(Op.NEG, below[0]), below[1]
    if lazy.is_move(node, *WHOLE):
        return [node.with_sources((factor,)) for factor in _factors(node.sources[0])]
    return ()
