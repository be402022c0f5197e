"""Channels: images that a card's products read through windows lie with their channels innermost.

A card copies pieces of 16 bytes to its tiles past the registers. Along channels all of a piece lies
at one place of a window, and so within the image's edge or beyond it; along pixels a window begins
anywhere. So who makes an image, or the weights of a window, stores them so, at the same cost; and
what is made of an image element by element, or what it is made of, lies as it does. What is asked
for stays as it is; what is in memory already is copied, if it is multiplied for long enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tinyml import lazy
from tinyml.lazy import LazyBuffer
from tinyml.ops import Movement, Op
from tinyml.schedule.balance import worth_a_copy
from tinyml.schedule.labels import MIXED, Labels, through
from tinyml.schedule.rewrite import Changed, renewed
from tinyml.schedule.units import CARDS, narrowest, widens
from tinyml.shape import inverse_order

PIECE = 16  # bytes

Order = tuple[int, ...]  # of axes, as a permutation has it


def channels_last(order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer]) -> Changed:
    """The same values; images and weights of windows are made with their axes in another order."""
    wanted = list(_wanted(order))
    orders = _spread(order, wanted, {*roots}) if wanted else {}
    copies: Changed = {}
    for base, lying in wanted:
        copies |= {base: copied(base, lying)} if isinstance(base, lazy.Data) else {}
    changed: Changed = {}
    made: Changed = {}  # as it is stored
    for node, _again in renewed(order, changed) if orders or copies else ():
        folded = isinstance(node, lazy.Reduce) and node.sources[0] in made
        axes = orders.get(node.sources[0] if folded else node)
        if axes is not None:
            sources = [made.get(s) or _permuted(changed.get(s, s), axes) for s in node.sources]
            lies = _lying(node, axes, tuple(sources))
            made |= {} if folded else {node: lies}
            changed[node] = lazy.permute(lies, inverse_order(axes))
        elif (isinstance(node, lazy.Move) or widens(node)) and node.sources[0] in copies:
            changed[node] = node.made_of(copies)
    return changed


def copied(base: LazyBuffer, axes: Order) -> LazyBuffer:
    """What is in memory, read from a copy of it in another order."""
    return lazy.permute(lazy.contiguous(lazy.permute(base, axes)), inverse_order(axes))


def _lying(node: LazyBuffer, axes: Order, sources: tuple[LazyBuffer, ...]) -> LazyBuffer:
    """A map or a fold whose sources have their axes in this order."""
    if isinstance(node, lazy.Reduce):
        return lazy.reduce_(node.op, sources[0], [axes.index(a) for a in node.axes])
    return node.with_sources(sources, sources[0].shape)


def _permuted(node: LazyBuffer, axes: Order) -> LazyBuffer:
    """What is repeated is repeated along other axes, so that it can still be seen to be."""
    if lazy.is_move(node, Movement.EXPAND):
        return lazy.expand(_permuted(node.sources[0], axes), tuple([node.shape[a] for a in axes]))
    return lazy.permute(node, axes)


def _wanted(order: Iterable[LazyBuffer]) -> Iterator[tuple[LazyBuffer, Order]]:
    """Factors of products with windows, and in which order they are to lie."""
    for node in order:
        if not (isinstance(node, lazy.Reduce) and node.op is Op.ADD and node.device in CARDS):
            continue
        read, windows = _factors(node)
        for base, labels in read if windows else ():
            inner = [a for a, x in enumerate(labels) if x == MIXED or x in windows]
            outer = [a for a in range(min(inner, default=0)) if base.shape[a] > 1]
            if not (outer and base.dtype.is_half and isinstance(base, (lazy.Map, lazy.Data))):
                continue
            last, times = outer[-1], node.sources[0].size // base.size
            worth = isinstance(base, lazy.Map) or worth_a_copy(base, times)
            if worth and base.shape[last] * base.dtype.itemsize % PIECE == 0:
                yield base, (*(a for a in range(len(labels)) if a != last), last)


def _factors(product: lazy.Reduce) -> tuple[list[tuple[LazyBuffer, Labels]], set[int]]:
    """What is multiplied, its axes as the sum walks them, and the sum's axes that step windows."""
    windows, source = set[int](), product.sources[0]
    top, labels = _below(source, tuple(range(len(source.shape))), windows)
    if not lazy.is_map(top, Op.MUL):
        return [], windows
    return [_below(factor, labels, windows) for factor in top.sources], windows


def _below(node: LazyBuffer, labels: Labels, windows: set[int]) -> tuple[LazyBuffer, Labels]:
    """What lies below moves and casts that make halves wider."""
    base = narrowest(node)
    while node is not base:
        if isinstance(node, lazy.Move):
            if lazy.is_move(node, Movement.SKEW):
                windows.add(labels[node.arg[1][1]])
            labels = through(node, labels)
        node = node.sources[0]
    return base, labels


def _spread(
    order: Iterable[LazyBuffer],
    wanted: Iterable[tuple[LazyBuffer, Order]],
    roots: set[LazyBuffer],
) -> dict[LazyBuffer, Order]:
    """By map, in which order it is made: as all that are connected with it element by element.

    Those stay as they are if some of them are asked for, or are read in several orders.
    """
    maps = [node for node in order if isinstance(node, lazy.Map)]
    groups: dict[LazyBuffer, list[LazyBuffer]] = {}
    for node in maps:
        joined = {id(g): g for s in node.sources if (g := groups.get(s)) and s.shape == node.shape}
        group = max(joined.values(), key=len, default=list[LazyBuffer]())
        for other in joined.values():
            group += other if other is not group else []
            groups |= dict.fromkeys(other, group)
        group.append(node)
        groups[node] = group
    kept = roots.union(n.sources[1] for n in order if isinstance(n, lazy.Assign))
    found: dict[int, set[Order]] = {}
    for group, axes in ((groups[b], axes) for b, axes in wanted if isinstance(b, lazy.Map)):
        found.setdefault(id(group), set()).add(axes if kept.isdisjoint(group) else ())
    return {
        node: axes
        for node in maps
        for axes in found.get(id(groups[node]), ())
        if axes and len(found[id(groups[node])]) == 1
    }
