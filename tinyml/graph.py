"""Graphs of immutable nodes: building equal nodes once, and walking without recursion."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Hashable, Iterable
from typing import Any, ClassVar, Protocol, TypeVar


class Interned(type):
    """Metaclass: two nodes built from equal parts are one object, so `is` is equality.

    Graphs share subtrees. Comparing them by structure walks a shared subtree once per path
    to it, which is exponential; comparing them by identity is free.
    """

    _nodes: ClassVar[dict[Hashable, weakref.ref[Any]]] = {}

    def __call__(cls, *parts: Any) -> Any:
        key = (cls, *parts)
        nodes = Interned._nodes
        found = nodes.get(key)
        if found is not None:
            node = found()
            if node is not None:
                return node
        node = super().__call__(*parts)

        def forget(reference: weakref.ref[Any]) -> None:
            if nodes.get(key) is reference:
                del nodes[key]

        nodes[key] = weakref.ref(node, forget)
        return node


class HasSources(Protocol):
    """A node of a graph, as far as walking it is concerned."""

    @property
    def sources(self) -> tuple[Any, ...]: ...


_N = TypeVar("_N", bound=HasSources)


def _all_sources(node: Any) -> tuple[Any, ...]:
    sources: tuple[Any, ...] = node.sources
    return sources


def toposort(
    roots: Iterable[_N],
    leaves: Container[_N] = (),
    sources: Callable[[_N], tuple[_N, ...]] = _all_sources,
) -> list[_N]:
    """Every node that `roots` need, sources first; does not look below `leaves`.

    Iterative, because graphs outgrow Python's stack.
    """
    done: dict[_N, None] = {}
    stack: list[tuple[_N, bool]] = [(root, False) for root in reversed(list(roots))]
    while stack:
        node, ready = stack.pop()
        if node in done:
            continue
        below = () if ready or node in leaves else sources(node)
        if not below:
            done[node] = None
            continue
        stack.append((node, True))
        for source in reversed(below):
            if source not in done:
                stack.append((source, False))
    return list(done)
