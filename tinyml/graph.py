"""Graphs of immutable nodes: building equal nodes once, and walking without recursion."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Hashable, Iterable
from operator import attrgetter
from typing import Any, Protocol, TypeVar

_T = TypeVar("_T")


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
        entry = _nodes.get(key)
        node = None if entry is None else entry()
        return remember(key, _make(cls, *parts)) if node is None else node


def known(key: Hashable) -> Any:
    """The node of this key; None if there is none."""
    entry = _nodes.get(key)
    return None if entry is None else entry()


def remember(key: Hashable, node: _T) -> _T:
    """A new node, to be found by its key while it is alive."""
    if listeners:
        for listener in listeners:
            listener(node)
    entry = _nodes[key] = _Entry(node, _forget)
    entry.key = key
    return node


listeners: list[Callable[[Any], None]] = []  # are told of each new node
_nodes: dict[Hashable, _Entry] = {}
_make = type.__call__


def _forget(entry: _Entry) -> None:
    if _nodes.get(entry.key) is entry:  # else there is an equal node again
        del _nodes[entry.key]


def count_nodes() -> int:
    """How many nodes are alive."""
    return len(_nodes)


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
