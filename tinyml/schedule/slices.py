"""Slices: a slice of what is made of a product of matrices is made of slices of its factors.

The weights of differential attention may be slices of one softmax, of every other head:

    p = softmax(q @ k.T).reshape(batch, heads, 2, queries, keys)
    (p[:, :, 0] - x * p[:, :, 1]) @ v

Made of every other head of q and k, both are products of their own (`schedule/terms.py`). In
training, where products are made again wherever they are read, all that is made of them is made in
slices, and gradients are put together in the end.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from functools import partial, reduce
from math import prod

from tinyml import lazy
from tinyml.dtype import from_text
from tinyml.frozen import dataclass, replace
from tinyml.graph import toposort
from tinyml.lazy import LazyBuffer
from tinyml.ops import Movement, Op
from tinyml.schedule.labels import FIXED, MIXED, factor_groups, trace
from tinyml.schedule.remake import INLINE, is_made_again
from tinyml.schedule.rewrite import Changed
from tinyml.schedule.sweep import is_zero
from tinyml.schedule.units import Readers, by_element, contracts, readers_of

Part = tuple[lazy.Reduce, LazyBuffer | None]  # a product, and where it is cut, if it is


@dataclass(frozen=True)
class Slice:
    """Of an axis of before x n x behind elements those that lie from start to stop of the n."""

    axis: int
    before: int
    n: int
    behind: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.before * (self.stop - self.start) * self.behind

    def shape(self, node: LazyBuffer) -> lazy.Shape:
        """What a node's shape becomes."""
        return (*node.shape[: self.axis], self.size, *node.shape[self.axis + 1 :])

    def of(self, node: LazyBuffer) -> LazyBuffer:
        """The slice of a node, as a movement."""
        head, tail = node.shape[: self.axis], node.shape[self.axis + 1 :]
        whole = lazy.reshape(node, (*head, self.before, self.n, self.behind, *tail))
        spans = [(0, n) for n in whole.shape]
        spans[self.axis + 1] = self.start, self.stop
        return lazy.reshape(lazy.shrink(whole, tuple(spans)), self.shape(node))

    def into(self, node: LazyBuffer) -> LazyBuffer:
        """A slice where it lies, among zeros."""
        head, tail = node.shape[: self.axis], node.shape[self.axis + 1 :]
        part = lazy.reshape(node, (*head, self.before, self.stop - self.start, self.behind, *tail))
        counts = [(0, 0) for _ in part.shape]
        counts[self.axis + 1] = self.start, self.n - self.stop
        whole = (*head, self.before * self.n * self.behind, *tail)
        return lazy.reshape(lazy.pad(part, tuple(counts)), whole)


def in_slices(order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer]) -> Changed:
    """The same values; what is made of products that are made again, and cut, is made in slices."""
    cuts: dict[LazyBuffer, list[LazyBuffer]] = {}
    for node in order:
        if isinstance(node, lazy.Move) and node.movement is Movement.SHRINK:
            cuts.setdefault(node.sources[0], []).append(node)
    whole = {source: shrinks for source, shrinks in cuts.items() if _is_whole(shrinks)}
    readers = readers_of(order) if whole else {}
    products = {node for node in readers if contracts(node)}
    found: Changed = {}
    for source, shrinks in whole.items():
        again = [product for product, _ in products_of(source) if is_made_again(product, readers)]
        if len(again) == 1:
            made, ends = _followed(again[0], readers, {*shrinks}, {*roots})
            if ends and source in made:
                found |= _put_together(again[0], shrinks, ends, _Slices(made, {}), products)
    return _resolved(roots, found)


def _is_whole(shrinks: Sequence[LazyBuffer]) -> bool:
    """Whether each element of what is cut is in one of the slices."""
    parts = [part for shrink in shrinks if (part := _cut(shrink))]
    parts.sort(key=lambda part: part.start)
    if len(parts) < len(shrinks) or len({part.axis for part in parts}) > 1:
        return False
    return [p.start for p in parts] + [parts[0].n] == [0, *(p.stop for p in parts)]


def _followed(
    product: LazyBuffer,
    readers: Readers,
    shrinks: Container[LazyBuffer],
    roots: Container[LazyBuffer],
) -> tuple[set[LazyBuffer], list[lazy.Reduce]]:
    """What is made of a product, but not of slices, and the products in which that ends.

    There are none if more is wanted.
    """
    stack, made, ends = [product], {product}, dict[lazy.Reduce, None]()
    while stack:
        node = stack.pop()
        if node in roots:
            return made, []
        for reader in readers[node]:
            if isinstance(reader, lazy.Reduce) and contracts(reader):
                ends[reader] = None
            elif not isinstance(reader, INLINE):
                return made, []
            elif reader not in made and reader not in shrinks:
                made.add(reader)
                stack.append(reader)
    return made.union(ends), [*ends]


def _put_together(
    product: LazyBuffer,
    shrinks: Sequence[LazyBuffer],
    ends: Sequence[lazy.Reduce],
    slices: _Slices,
    products: Container[LazyBuffer],
) -> Changed:
    """Slices made of slices, and ends put together of these; nothing if one cannot be."""
    found: Changed = {}
    for shrink in shrinks:
        part = _cut(shrink)
        if part is None or (made := slices.make(shrink.sources[0], part)) is None:
            return {}
        found[shrink] = made
    below = [part for node, part in slices.known if node is product]
    if len(below) != len(shrinks):
        return {}
    for end in ends:
        axes = _axes_along(end, product, {part.axis for part in below}, products)
        if len(axes) != 1 or not axes.isdisjoint((FIXED, MIXED, *end.axes)):
            return {}
        parts = [replace(part, axis=axis) for part in below for axis in axes]
        pieces = [slices.make(end, part) for part in parts]
        lying = [part.into(x) for part, x in zip(parts, pieces, strict=True) if x is not None]
        if len(lying) < len(parts):
            return {}
        found[end] = reduce(partial(lazy.map_, Op.ADD), lying)
    return found


def _axes_along(
    end: lazy.Reduce, product: LazyBuffer, axes: Iterable[int], products: Container[LazyBuffer]
) -> set[int]:
    """The axes of what a fold folds that walk some of those of a product."""
    uses, _ = trace([(end.sources[0], tuple(range(len(end.sources[0].shape))))], products)
    return {use.labels[axis] for use in uses if use.node is product for axis in axes}


def _resolved(roots: Sequence[LazyBuffer], found: Changed) -> Changed:
    """What all nodes become where some become others, which are made of nodes as they were."""

    def below(node: LazyBuffer) -> tuple[LazyBuffer, ...]:
        return (found[node],) if node in found else node.sources

    changed: Changed = {}
    for node in toposort(roots, (), below) if found else ():
        again = changed.get(found[node], found[node]) if node in found else node.made_of(changed)
        if again is not node:
            changed[node] = again
    return changed


def sliced(shrink: LazyBuffer, product: LazyBuffer, changed: Changed) -> LazyBuffer | None:
    """A slice of what is made of a product, made of slices of its factors; None if it cannot be."""
    (source,), part = shrink.sources, _cut(shrink)
    return None if part is None else _Slices(_made({product}, [source]), changed).make(source, part)


def _cut(shrink: LazyBuffer) -> Slice | None:
    """Where a node is cut, if that is along one axis."""
    shape, spans = shrink.sources[0].shape, shrink.arg[1]
    cut = [a for a, span in enumerate(spans) if span != (0, shape[a])]
    return Slice(cut[0], 1, shape[cut[0]], 1, *spans[cut[0]]) if len(cut) == 1 else None


def _made(start: set[LazyBuffer], wanted: Iterable[LazyBuffer]) -> set[LazyBuffer]:
    """All that is made of some nodes on the way to others."""
    made = {*start}
    for node in toposort(wanted, made, lambda e: e.sources):
        if not made.isdisjoint(node.sources):
            made.add(node)
    return made


def products_of(node: LazyBuffer) -> set[Part]:
    """The products of matrices that a node is made of, element by element, or slices of them."""
    found: set[Part] = set()
    for each in (e for e in by_element(node) if e.size == node.size):
        if isinstance(each, lazy.Reduce) and contracts(each):
            found.add((each, None))
        elif isinstance(each, lazy.Move) and each.movement is Movement.SHRINK:
            found.update((product, each) for product, _ in products_of(each.sources[0]))
    return found


def _is_joined(node: LazyBuffer) -> bool:
    """Whether a node is made, element by element, of what is padded: of parts, each among zeros."""
    moves = (e for e in by_element(node) if isinstance(e, lazy.Move))
    return any(move.movement is Movement.PAD for move in moves)


class _Slices:
    """Makes slices of nodes, of those that are `made` of a product out of slices of others."""

    def __init__(self, made: set[LazyBuffer], changed: Changed) -> None:
        self.made, self.changed = made, changed
        self.known: dict[tuple[LazyBuffer, Slice], LazyBuffer | None] = {}

    def make(self, node: LazyBuffer, part: Slice) -> LazyBuffer | None:
        """The slice; None if a node that is made of the product has none that is made of slices."""
        key = node, part
        if key not in self.known:
            self.known[key] = self._make(node, part)
            if self.known[key] is None and node not in self.made:
                self.known[key] = part.of(self.changed.get(node, node))
        return self.known[key]

    def _make(self, node: LazyBuffer, part: Slice) -> LazyBuffer | None:
        match node:
            case lazy.Move():
                return self._moved(node, part)
            case lazy.Reduce() if node in self.made and part.axis not in node.axes:
                self.made.add(node.sources[0])  # factors that are multiplied
            case lazy.Map() if node in self.made or node.op is Op.CAST or _is_joined(node):
                pass
            case _:
                return None
        sources = [self.make(source, part) for source in node.sources]
        if any(source is None for source in sources):
            return None
        given = tuple([source for source in sources if source is not None])
        if isinstance(node, lazy.Map) and node.op is Op.ADD and any(map(is_zero, given)):
            return given[is_zero(given[0])]
        return lazy.node(type(node), part.shape(node), node.dtype, node.device, given, node.arg)

    def _moved(self, node: lazy.Move, part: Slice) -> LazyBuffer | None:
        (source,), (movement, arg), axis = node.sources, node.arg, part.axis
        match movement:
            case Movement.RESHAPE:
                return self._reshaped(node, part)
            case Movement.PERMUTE:
                inner = self.make(source, replace(part, axis=arg[axis]))
                return inner and lazy.permute(inner, arg)
            case Movement.EXPAND:
                alike = source.shape[axis] == 1
                inner = self.changed.get(source, source) if alike else self.make(source, part)
                return inner and lazy.expand(inner, part.shape(node))
            case Movement.PAD:
                return self._padded(node, part)
        return None

    def _padded(self, node: lazy.Move, part: Slice) -> LazyBuffer | None:
        """A slice of what is padded along the same axis alone, if it has all of that or nothing."""
        (source,), (counts, text), axis = node.sources, node.arg[1], part.axis
        first = counts[axis][0]
        if part.before * part.behind > 1 or sum(map(any, counts)) > 1 or not any(counts[axis]):
            return None
        if part.stop <= first or part.start >= first + source.shape[axis]:
            return lazy.const(
                from_text(text, node.dtype), node.dtype, node.device, part.shape(node)
            )
        same = part.start == first and part.size == source.shape[axis]
        return self.changed.get(source, source) if same else None

    def _reshaped(self, node: lazy.Move, part: Slice) -> LazyBuffer | None:
        """A slice of what is reshaped, if the axis is one of the axes that one was split into."""
        (source,) = node.sources
        groups = factor_groups(node.shape, source.shape)
        tops, bottoms = next(group for group in groups if part.axis in group[0])
        long = [a for a in bottoms if source.shape[a] > 1]
        if prod(node.shape[a] for a in tops) == node.shape[part.axis] and len(long) > 1:
            return self._split(node, part, bottoms)
        if len(long) != 1:
            return None
        at = tops.index(part.axis)
        before, behind = (prod(node.shape[a] for a in each) for each in (tops[:at], tops[at + 1 :]))
        below = Slice(
            long[0], before * part.before, part.n, part.behind * behind, part.start, part.stop
        )
        inner = self.make(source, below)
        return inner and lazy.reshape(inner, part.shape(node))

    def _split(self, node: lazy.Move, part: Slice, axes: Sequence[int]) -> LazyBuffer | None:
        """A slice along an axis that some were joined to, if it is one of one of them."""
        (source,), before = node.sources, 1
        for axis in axes:
            if before == part.before and source.shape[axis] == part.n:
                inner = self.make(source, replace(part, axis=axis, before=1, behind=1))
                return inner and lazy.reshape(inner, part.shape(node))
            before *= source.shape[axis]
        return None
