"""Merge: equal nodes become one object, so that nothing is computed twice."""

from __future__ import annotations

from collections.abc import Sequence

from tinyml import lazy
from tinyml.graph import toposort
from tinyml.lazy import LazyBuffer


def merged(roots: Sequence[LazyBuffer]) -> list[LazyBuffer]:
    """The same graphs of known nodes; what equal roots ask for is one node, too."""
    one: dict[LazyBuffer, LazyBuffer] = {}
    for node in toposort(roots):
        again = node.with_sources(tuple([one[source] for source in node.sources]))
        one[node] = again if type(again) is lazy.Data else lazy.known.one(again)
    return [one[root] for root in roots]
