"""Graphs of immutable nodes: building equal nodes once, and walking without recursion."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Hashable, Iterable
from operator import attrgetter
from typing import Any, Protocol, TypeVar


class _Entry(weakref.ref[Any]):
    """A node in the table of `Interned`, and the parts by which it is found."""

    __slots__ = ("key",)
    key: Hashable


class Interned(type):
    """Metaclass: two nodes built from equal parts are one object, so `is` is equality.

    Graphs share subtrees. Comparing them by structure walks a shared subtree once per path
    to it, which is exponential; comparing them by identity is free.
    """

    def __call__(cls, *parts: Any) -> Any:
        key = (cls, *parts)
        entry = _interned.get(key)
        node = None if entry is None else entry()
        if node is None:
            node = _make(cls, *parts)
            entry = _interned[key] = _Entry(node, _forget)
            entry.key = key
        return node


_interned: dict[Hashable, _Entry] = {}
_make = type.__call__


def _forget(entry: _Entry) -> None:
    if _interned.get(entry.key) is entry:  # else there is an equal node again
        del _interned[entry.key]


class Known:
    """Nodes that are alive, by keys that hold no other node: for those that every op makes.

    A key names the sources by their ids. They live as long as the node does, and once it is dead
    its key leads nowhere. So nobody waits for a node to die; the dead are dropped now and then.
    """

    __slots__ = ("listeners", "nodes", "room")

    def __init__(self) -> None:
        self.nodes: dict[Hashable, weakref.ref[Any]] = {}
        self.room = 256
        self.listeners: list[Callable[[Any], None]] = []  # are told of each new node

    def __len__(self) -> int:
        return sum(reference() is not None for reference in self.nodes.copy().values())

    def sweep(self) -> None:
        """Drop the dead. (Of equal nodes that two threads make at once both may live on.)"""
        alive = {key: node for key, node in self.nodes.copy().items() if node() is not None}
        self.nodes, self.room = alive, 2 * len(alive) + 256


class HasSources(Protocol):
    """A node of a graph, as far as walking it is concerned."""

    @property
    def sources(self) -> tuple[Any, ...]: ...


_N = TypeVar("_N", bound=HasSources)


_all_sources: Callable[[Any], tuple[Any, ...]] = attrgetter("sources")


def toposort(
    roots: Iterable[_N],
    leaves: Container[_N] = (),
    sources: Callable[[_N], tuple[_N, ...]] = _all_sources,
) -> list[_N]:
    """Every node that `roots` need, sources first; does not look below `leaves`.

    Iterative, because graphs outgrow Python's stack.
    """
    return list(numbered(roots, leaves, sources))


def numbered(
    roots: Iterable[_N],
    leaves: Container[_N] = (),
    sources: Callable[[_N], tuple[_N, ...]] = _all_sources,
) -> dict[_N, int]:
    """The nodes of `toposort`, in its order, each with its place in it."""
    done: dict[_N, int] = {}
    stack: list[_N | None] = [*roots]
    stack.reverse()
    pop, push = stack.pop, stack.append
    while stack:
        node = pop()
        if node is None:  # all that the node below this mark needs is done
            below = pop()
            assert below is not None
            done[below] = len(done)
        elif node not in done:
            needed = sources(node)
            if needed and node not in leaves:
                push(node)
                push(None)
                stack += needed[::-1]
            else:
                done[node] = len(done)
    return done
