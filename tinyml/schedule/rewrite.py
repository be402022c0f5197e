"""Rewrite: passes over a graph, each of which says what some nodes become."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

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
