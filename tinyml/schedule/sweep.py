"""Sweep: what is made of a product of matrices is folded along one of its axes first.

The gradient of a bias that many scores of attention share adds up theirs along queries, keys, heads
and batch at once, and no kernel has all of these. But those that make the gradients of queries, or
of keys, go along one axis of the scores anyway: what they add up on the way is an element of a row.

Where the bias is a slope for each head times a distance, a sum over the batch is multiplied by the
distance and added up further. That becomes one sum of products: what lies between, an element of
each pair of a query and a key, is stored nowhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

from tinyml import lazy
from tinyml.dtype import DType, float32
from tinyml.lazy import LazyBuffer, Shape
from tinyml.ops import Movement, Op
from tinyml.schedule.contracts import contracts
from tinyml.schedule.labels import MIXED, constant_of, trace
from tinyml.schedule.recompute import Ways, is_worth_it, own_axes, ways_of
from tinyml.schedule.rewrite import Changed, renewed
from tinyml.schedule.split import folds_read, unfolded, with_tail

Path = tuple[LazyBuffer, ...]  # from what a sum adds up down to another sum
# in these operands; what is added up is not rounded before
LINEAR = {Op.MUL: (0, 1), Op.DIV: (0,), Op.NEG: (0,), Op.WHERE: (1,), Op.CAST: (0,)}

MOST = 32  # nodes from a sum down to another


def sweep(order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer]) -> Changed:
    """The same values, with folds over what products make done along one axis of these first."""
    ways = ways_of(order, {*roots})
    ends: dict[LazyBuffer, lazy.Reduce] = {}
    for product, each in ways.items():
        ends |= dict.fromkeys(each.ends, product)
    if not ends:
        return {}
    readers = Counter(chain(roots, *[node.sources for node in order]))
    changed: Changed = {}
    for node, again in renewed(order, changed):
        if not isinstance(again, lazy.Reduce) or contracts(node):
            continue
        path = () if node in ends else _path(node, readers)
        last = path[-1] if path else node
        if last in ends:
            whole = _joined(again, path, changed) if path else again
            swept = _swept(whole, ends[last], changed, ways[ends[last]])
            if swept is not None:
                changed[node] = lazy.cast(lazy.reshape(swept, node.shape), node.dtype)
    return changed


def _path(node: LazyBuffer, readers: Mapping[LazyBuffer, int]) -> Path:
    """The way down to a sum that nobody else reads, if `node` adds up multiples of it."""
    stack: list[Path] = [(node,)]
    while stack:
        *_, last = path = stack.pop()
        if len(path) > 1 and isinstance(last, lazy.Reduce):
            return path[1:] if last.op is Op.ADD else ()
        for below in _multiplied(last) if len(path) < MOST else ():
            if readers[below] == 1 and below.dtype.is_float:
                stack.append((*path, below))
    return ()


def _multiplied(node: LazyBuffer) -> Sequence[LazyBuffer]:
    """Those sources of which `node` is a multiple, element by element, or a sum of multiples."""
    match node:
        case lazy.Reduce(op=Op.ADD):
            return node.sources
        case lazy.Move(movement=movement):
            return () if movement is Movement.EXPAND else node.sources
        case lazy.Map(op=op) if op in LINEAR:
            beside = constant_of(node.sources[2]) if op is Op.WHERE else None
            if op is Op.WHERE and (beside is None or beside.value != 0):
                return ()
            return [node.sources[n] for n in LINEAR[op]]
    return ()


def _joined(node: lazy.Reduce, path: Path, changed: Changed) -> lazy.Reduce:
    """A sum of multiples of a sum as one sum, with the inner sum's axes behind all others."""
    *steps, inner = path
    assert isinstance(inner, lazy.Reduce)
    wide = max((float32, *[each.dtype for each in path]), key=lambda dtype: dtype.itemsize)
    source = lazy.cast(changed.get(inner.sources[0], inner.sources[0]), wide)
    value, tail = unfolded(inner, source)
    below: LazyBuffer = inner
    for step in reversed(steps):
        if isinstance(step, lazy.Move):
            value = with_tail(step, value, tail)
        elif isinstance(step, lazy.Map) and step.op is not Op.CAST:
            beside = (_repeated(changed.get(s, s), tail, wide) for s in step.sources)
            operands = [
                value if s is below else x for s, x in zip(step.sources, beside, strict=True)
            ]
            value = lazy.map_(step.op, *operands)
        below = step
    last = range(len(value.shape) - len(tail), len(value.shape))
    made = lazy.reduce_(Op.ADD, value, (*node.axes, *last))
    assert isinstance(made, lazy.Reduce)
    return made


def _repeated(node: LazyBuffer, tail: Shape, wide: DType) -> LazyBuffer:
    """The same for each step of more axes behind its own; floats as `wide` ones."""
    shape = node.shape + (1,) * len(tail)
    made = lazy.cast(node, wide) if node.dtype.is_float else node
    return lazy.expand(lazy.reshape(made, shape), node.shape + tail)


def _swept(
    node: lazy.Reduce, product: lazy.Reduce, changed: Changed, ways: Ways
) -> LazyBuffer | None:
    """A fold along one axis of a product, then along the others; None if that is no way to do it.

    The axis is the longest that only one factor walks; of equal ones the first, which walks rows:
    a CPU makes all gradients of attention along these.
    """
    source = node.sources[0]
    base = changed.get(product, product)
    uses, _ = trace([(source, tuple(range(len(source.shape))))], {*folds_read(node)})
    labels = next((use.labels for use in uses if use.node is base), (MIXED,))
    walked = [a for a in node.axes if source.shape[a] > 1]
    if MIXED in labels or len(walked) == 1 or source.size != base.size:
        return None
    one, other = own_axes(product)
    own = [a for a in sorted(one | other) if labels[a] in walked]
    axis = max(own, key=lambda a: base.shape[a], default=None)
    if axis is None or not is_worth_it(product, {axis: base.shape[axis]}, ways.few):
        return None
    if node.dtype.is_half:  # what is between is not rounded
        source = lazy.cast(source, float32)
    first = lazy.reduce_(node.op, source, labels[axis : axis + 1])
    return lazy.reduce_(node.op, first, (a for a in node.axes if a != labels[axis]))
