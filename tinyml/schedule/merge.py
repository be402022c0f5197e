"""Merge: equal nodes become one object, so that nothing is computed twice."""

from __future__ import annotations

from collections.abc import Sequence

from tinyml import lazy
from tinyml.graph import toposort
from tinyml.lazy import LazyBuffer


def merged(roots: Sequence[LazyBuffer]) -> list[LazyBuffer]:
    """The same graphs of known nodes. No two roots become one: each has memory of its own."""
    one: dict[LazyBuffer, LazyBuffer] = {}
    for node in toposort(roots):
        again = node.with_sources(tuple([one[source] for source in node.sources]))
        one[node] = again if type(again) is lazy.Data else lazy.known.one(again)
    found: dict[LazyBuffer, None] = {}
    for root in [one[root] for root in roots]:
        while root in found:
            root = lazy.node(lazy.Contiguous, root.shape, root.dtype, root.device, (root,))
        found[root] = None
    return list(found)
