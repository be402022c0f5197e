"""Levels: weights that kernels make again are powers of scores less one number of their row.

exp(x - top) / total is exp(x - (top + log(total))): who makes it again reads one number of a row
instead of two, and divides no more. It is rounded otherwise, so it is done where halves are
multiplied; and not where the powers themselves are there, as for what a softmax is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinyml import lazy
from tinyml.dtype import float32
from tinyml.lazy import LazyBuffer
from tinyml.ops import Op
from tinyml.schedule.balance import in_halves
from tinyml.schedule.contracts import is_repeated
from tinyml.schedule.labels import unmoved
from tinyml.schedule.recompute import recomputed
from tinyml.schedule.rewrite import Changed, renewed
from tinyml.schedule.units import readers_of, until_folds


def levels(order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer]) -> Changed:
    """The same values, with one number of a row for weights that are made again."""
    shares = [node for node in order if _is_share(node)]
    if not shares:
        return {}
    again, readers = recomputed(order, {*roots}), readers_of(order)

    def is_made_again(share: LazyBuffer) -> bool:
        """Whether it is made of such a product, and others take its power as it is."""
        power, total = share.sources[0], _chosen(share.sources[1])
        products = (n for n in until_folds([power]) if n in again)
        return any(map(in_halves, products)) and not {*readers[power]} <= {share, total}

    found = {share for share in shares if is_made_again(share)}
    changed: Changed = {}
    for node, same in renewed(order, changed) if found else ():
        if node in found:
            changed[node] = _of_level(same)
    return changed


def _is_share(node: LazyBuffer) -> bool:
    """Whether it is a power of what is less than its row's largest, divided by their sum."""
    if not (lazy.is_map(node, Op.DIV) and node.dtype is float32):
        return False
    power, total = node.sources
    if not (lazy.is_map(power, Op.EXP) and lazy.is_map(power.sources[0], Op.ADD)):
        return False
    x, less = power.sources[0].sources
    negative, whole = unmoved(less), _chosen(total)
    if not (lazy.is_map(negative, Op.NEG) and is_repeated(less) and is_repeated(total)):
        return False
    top, alike = _chosen(negative.sources[0]), less.sources[0].shape == total.sources[0].shape
    if not (isinstance(top, lazy.Reduce) and isinstance(whole, lazy.Reduce) and alike):
        return False
    leads = top.op is Op.MAX and unmoved(top.sources[0]) is x
    return leads and whole.op is Op.ADD and unmoved(whole.sources[0]) is power


def _chosen(node: LazyBuffer) -> LazyBuffer:
    """What is below moves, and below the choice of a number where there is nothing to add up."""
    node = unmoved(node)
    if lazy.is_map(node, Op.WHERE):
        node = next(
            (n for n in map(unmoved, node.sources[1:]) if not isinstance(n, lazy.Const)), node
        )
    return node


def _of_level(share: LazyBuffer) -> LazyBuffer:
    power, total = share.sources
    x, less = power.sources[0].sources
    logarithm = lazy.map_(Op.LOG, total.sources[0])
    level = lazy.map_(Op.ADD, less.sources[0], lazy.map_(Op.NEG, logarithm))
    return lazy.map_(Op.EXP, lazy.map_(Op.ADD, x, lazy.expand(level, x.shape)))
