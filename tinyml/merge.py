"""Merge: equal nodes become one object, so that nothing is computed twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinyml import lazy
from tinyml.graph import toposort
from tinyml.lazy import LazyBuffer

Rule = Callable[[LazyBuffer], "LazyBuffer | None"]  # of merged sources; None: leave it be


def merged(roots: Sequence[LazyBuffer], rule: Rule = lambda _: None) -> list[LazyBuffer]:
    """The same graphs of known nodes; what equal roots ask for is one node, too.

    A root that `rule` finds in memory already, or written there, becomes a copy of it.
    """
    one: dict[LazyBuffer, LazyBuffer] = {}
    with lazy.known:  # so that nodes made here are known
        for node in toposort(roots):
            again = node.made_of(one)
            again = rule(again) or again
            own = again is node and type(node) is not lazy.Data
            one[node] = lazy.known.one(node) if own else again
    return [_own(root, one[root]) for root in roots]


def _own(root: LazyBuffer, found: LazyBuffer) -> LazyBuffer:
    """What a root became, in memory that it shares with none that it was made of."""
    if type(found) is type(root) or not isinstance(found, (lazy.Data, lazy.Assign)):
        return found
    return lazy.node(lazy.Contiguous, found.shape, found.dtype, found.device, (found,))
