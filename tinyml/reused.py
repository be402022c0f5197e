"""Reused: what is computed for the second time is kept.

A loop that goes on from a tensor that nobody made real, and that looks at something made of it,

    h = cell(x, h)
    print(h.sum().item())

would compute h from its beginning in each turn, by a graph and kernels that grow. What a plan has
computed is marked. Where another graph needs some of it again, the last nodes that were computed
before are made real with it, and everybody's graphs go on from there: a turn costs two steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tinyml.graph import toposort
from tinyml.lazy import Assign, Data, Gather, LazyBuffer, Move
from tinyml.ledger import has_data, pending
from tinyml.ops import Movement

_MOST = 8  # nodes: of more, as all activations of a network, a plan knows better which to store
_WHOLE = frozenset({Movement.EXPAND, Movement.RESHAPE, Movement.PERMUTE, Movement.FLIP})


def mark(order: Iterable[LazyBuffer]) -> None:
    """Note that these nodes were computed, but for what only says where their elements are."""
    for node in order:
        if type(node) is not Move:
            node.computed = True


def reused(order: Iterable[LazyBuffer]) -> list[LazyBuffer]:
    """What these nodes need of those among them that were computed before."""
    again = {n for n in order if n.computed and n.sources}
    if not again or any(type(n) is Assign for n in order):
        return []
    found = dict[LazyBuffer, None]()
    for node in order:
        if node not in again:
            found.update(dict.fromkeys(_whole(s) for s in _all_of(node) if s in again))
    needed = [n for n in found if n.sources and has_data(n)]
    return needed if len(needed) <= _MOST else []


def _all_of(node: LazyBuffer) -> tuple[LazyBuffer, ...]:
    """The sources of which a node reads all elements: of others only parts were computed before."""
    if type(node) is Gather:
        return node.sources[1:]
    return () if type(node) is Move and node.movement is Movement.SHRINK else node.sources


def _whole(node: LazyBuffer) -> LazyBuffer:
    """What has all the elements of a node, each once."""
    while type(node) is Move and node.movement in _WHOLE:
        (node,) = node.sources
    return node


def go_on(made: Mapping[LazyBuffer, Data]) -> None:
    """Let everybody's graphs go on from what these nodes are in memory."""
    holders = [h for h in pending() if h._followed is None]
    now: dict[LazyBuffer, LazyBuffer] = {**made}
    for node in toposort([h._lazy for h in holders], made):
        if node not in made and type(node) is not Assign:
            again = node.made_of(now)
            if again is not node:
                again.computed, now[node] = node.computed, again
    for holder in holders:
        if holder._lazy in now:
            holder.lazy = now[holder._lazy]
