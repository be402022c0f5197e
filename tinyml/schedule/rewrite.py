"""Rewrite: passes over a graph, each of which says what some nodes become."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from tinyml import lazy
from tinyml.graph import toposort
from tinyml.lazy import LazyBuffer

Changed = dict[LazyBuffer, LazyBuffer]  # what nodes became, of those that became others
# what becomes of all nodes, sources first; and those that are wanted
Pass = Callable[[Sequence[LazyBuffer], Sequence[LazyBuffer]], Changed]


def rewritten(roots: Sequence[LazyBuffer], *passes: Pass) -> list[LazyBuffer]:
    """What `roots` are after all passes. One that changes nothing costs no new nodes or order."""
    roots = list(roots)
    order = toposort(roots)
    for one in passes:
        changed = one(order, roots)
        became = [changed.get(root, root) for root in roots]
        if became != roots:
            roots, order = became, toposort(became)
    return roots


def moved(node: LazyBuffer, move: Callable[[LazyBuffer], LazyBuffer]) -> LazyBuffer:
    """A node moved by moving what maps are made of: so a product still is one."""
    made: Changed = {}
    for each in toposort([node], (), lambda e: e.sources if type(e) is lazy.Map else ()):
        if type(each) is lazy.Map:
            sources = tuple([made[source] for source in each.sources])
            made[each] = each.with_sources(sources, sources[0].shape)
        else:
            made[each] = move(each)
    return made[node]


def renewed(
    order: Iterable[LazyBuffer], changed: Changed
) -> Iterator[tuple[LazyBuffer, LazyBuffer]]:
    """Each node, and itself on what its sources became; both are noted in `changed`."""
    same = changed.keys().isdisjoint
    for node in order:
        if same(node.sources):
            yield node, node
        else:
            again = changed[node] = node.made_of(changed)
            yield node, again
