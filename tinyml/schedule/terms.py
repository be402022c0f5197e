"""Terms: a product of a sum is a sum of products, if each term is made along rows of its own.

Attention's weights may be the difference of two, as those of differential transformers:

    (softmax(a @ b.T) - x * softmax(c @ d.T)) @ v

No kernel makes rows of two products of matrices, so one of both weights would be stored. But folds
of sums are sums of folds: softmax(a @ b.T) @ v - x * (softmax(c @ d.T) @ v). What nothing is folded
along, as x is, stays outside. That is a product more, and takes longer than to store short rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

from tinyml import lazy
from tinyml.frozen import dataclass
from tinyml.graph import toposort
from tinyml.lazy import LazyBuffer
from tinyml.ops import Op
from tinyml.schedule.balance import WIDEST
from tinyml.schedule.contracts import contracts
from tinyml.schedule.labels import FIXED, MIXED, PLACED, Labels, edges, through, trace
from tinyml.schedule.recompute import has_steps
from tinyml.schedule.rewrite import Changed, renewed
from tinyml.schedule.units import CARDS, by_element, ends_of, readers_of

MOST = 64  # nodes that a product is looked for in, or a sum


@dataclass(frozen=True)
class _Step:
    """From a node down to one of its sources, of which it is a multiple or a sum."""

    node: LazyBuffer
    number: int  # of the source
    outside: bool = False  # what that is multiplied by is the same all along what is folded

    @property
    def below(self) -> LazyBuffer:
        return self.node.sources[self.number]


_Path = tuple[_Step, ...]  # from factors multiplied with each other to a term of one of them


def apart(order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer]) -> Changed:
    """The same values; a product of what is added up of rows of several products is several."""
    folds = (n for n in order if isinstance(n, lazy.Reduce) and has_steps(n))
    found = {n: paths for n in folds if contracts(n) and (paths := _paths(n))}
    if not found:
        return {}
    rows = _Rows(order, roots)
    changed: Changed = {}
    for node, _ in renewed(order, changed):
        if not isinstance(node, lazy.Reduce) or node not in found:
            continue
        terms = [(path, rows.term(node, path[-1].below, changed)) for path in found[node]]
        made = [_folded(node, path, term, changed) for path, term in terms if term is not None]
        if len(made) == len(terms):
            changed[node] = reduce(partial(lazy.map_, Op.ADD), made)
    return changed


class _Rows:
    """Knows what kernels make along rows of a product, so that neither is stored.

    In training rows are no reason: products are read both ways, and stored or made again.
    """

    def __init__(self, order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer]) -> None:
        self.roots, self.readers = {*roots}, readers_of(order)
        self.folds = {n for n in order if isinstance(n, lazy.Reduce)}

    def term(self, node: lazy.Reduce, term: LazyBuffer, changed: Changed) -> LazyBuffer | None:
        """What a term became, if one kernel makes it and adds it up, and nobody else reads it."""
        product, *more = _products(term)
        ends, _, wanted = ends_of(product, self.readers, self.roots)
        if more or wanted or all(map(contracts, ends)):
            return None
        columns = node.sources[0].size // term.size
        if node.device in CARDS and columns > WIDEST:
            return None
        along, below = self._along(node, product), {*toposort([node])}
        alike = all(e in below and self._along(e, product) == along for e in ends)
        return changed.get(term, term) if alike else None

    def _along(self, end: lazy.Reduce, product: lazy.Reduce) -> set[tuple[int, ...]]:
        """The axes of a product that a fold walks, for each way in which it reads it."""
        axes = enumerate(end.sources[0].shape)
        labels = tuple([a if a in end.axes and n > 1 else FIXED for a, n in axes])
        uses, _ = trace([(end.sources[0], labels)], self.folds)
        found = (use.labels for use in uses if use.node is product)
        return {tuple([a for a, x in enumerate(each) if x != FIXED]) for each in found}


def _products(node: LazyBuffer) -> set[lazy.Reduce]:
    """The products of matrices that a node is made of, element by element."""
    same = (e for e in by_element(node) if isinstance(e, lazy.Reduce) and e.size == node.size)
    return {e for e in same if contracts(e)}


def _paths(node: lazy.Reduce) -> list[_Path]:
    """The ways down to the terms of a factor, if each of them is made of another product."""
    multiplied, labels = node.sources[0], tuple(range(len(node.sources[0].shape)))
    for number in range(len(multiplied.sources)):
        paths = _ways((_Step(multiplied, number),), labels, node)
        if len(paths) > 1:
            return paths
    return []


def _ways(path: _Path, labels: Labels, fold: lazy.Reduce) -> list[_Path]:
    """The ways down from here: further ones for each term of a sum."""
    node = path[-1].below
    if len(path) == MOST:
        return [path]
    if lazy.is_map(node, Op.ADD):
        one, other = map(_products, node.sources)
        if one and other and one.isdisjoint(other):
            both = [(*path, _Step(node, n)) for n in range(2)]
            return [way for each in both for way in _ways(each, labels, fold)]
        return [path]
    if (step := _step(node, labels, fold)) is None:
        return [path]
    labels = through(node, labels) if isinstance(node, lazy.Move) else labels
    ways = _ways((*path, step), labels, fold)
    kept = len(node.sources) > 1 and not step.outside
    return [path] if kept and len(ways) == 1 else ways


def _step(node: LazyBuffer, labels: Labels, fold: lazy.Reduce) -> _Step | None:
    """The way down to that source of which a node is a multiple, if there is one."""
    if isinstance(node, lazy.Move):
        return _Step(node, 0) if node.movement in PLACED else None
    if type(node) is not lazy.Map:
        return None
    match node.op:
        case Op.NEG | Op.DIV:
            return _Step(node, 0)
        case Op.CAST if node.dtype.is_float and node.sources[0].dtype.is_float:
            return _Step(node, 0)
        case Op.MUL:
            made = [n for n, source in enumerate(node.sources) if _products(source)]
            if len(made) == 1:
                other = node.sources[1 - made[0]]
                return _Step(node, made[0], not _folded_along(other, labels, fold))
    return None


def _folded_along(node: LazyBuffer, labels: Labels, fold: lazy.Reduce) -> bool:
    """Whether a node changes along what is folded."""
    walked = set[int]()
    while isinstance(node, lazy.Move):
        walked.update(labels[a] for a in edges(node))
        labels = through(node, labels)
        (node,) = node.sources
    walked.update(x for x, n in zip(labels, node.shape, strict=True) if n > 1)
    return not walked.isdisjoint((MIXED, *fold.axes))


def _folded(node: lazy.Reduce, path: _Path, value: LazyBuffer, changed: Changed) -> LazyBuffer:
    """The product of one term, of that value, times what stays outside."""
    negative = False
    outside: list[LazyBuffer] = []
    for step in reversed(path):
        sources = [changed.get(s, s) for s in step.node.sources]
        match step.node:
            case lazy.Move():
                outside = [_moved(step.node, x) for x in outside]
            case lazy.Map(op=Op.NEG):
                negative = not negative
                continue
            case lazy.Map(op=Op.ADD):
                continue
        if step.outside:
            outside.append(sources[1 - step.number])
        else:
            sources[step.number] = value
            value = step.node.with_sources(tuple(sources))
    made = lazy.reduce_(node.op, value, node.axes)
    spans = tuple([(0, n) for n in node.shape])
    for each in outside:
        made = lazy.map_(Op.MUL, made, lazy.cast(lazy.shrink(each, spans), node.dtype))
    return lazy.map_(Op.NEG, made) if negative else made


def _moved(move: lazy.Move, node: LazyBuffer) -> LazyBuffer:
    """What is multiplied before a movement, moved the same way, whatever its dtype."""
    return lazy.node(lazy.Move, move.shape, node.dtype, node.device, (node,), move.arg)
