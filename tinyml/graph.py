"""Graphs of immutable nodes: building equal nodes once, and walking without recursion."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar
from weakref import ref


class Says(Protocol):
    """What nodes are compared by."""

    arg: Any
    shape: Any
    dtype: Any
    device: str
    sources: Any


_M = TypeVar("_M", bound=Says)


class Known:
    """Nodes that are alive, by what they are made of.

    `with known:`, and while there are listeners, each new node is looked up here. Entries of dead
    nodes are dropped now and then. Keys name sources by their ids, so that they keep none alive.
    """

    __slots__ = ("listeners", "nodes", "room")

    def __init__(self) -> None:
        self.nodes: dict[Hashable, ref[Any]] = {}
        self.room = 4096
        # are told of each new node; None: of none
        self.listeners: list[Callable[[Any], None] | None] = []

    def __enter__(self) -> None:
        self.listeners.append(None)

    def __exit__(self, *_: object) -> None:
        self.listeners.remove(None)

    def __len__(self) -> int:
        return sum(reference() is not None for reference in self.nodes.copy().values())

    def one(self, made: _M) -> _M:
        """The known node that says the same as this new one, which is it if there was none."""
        key = type(made), made.arg, made.shape, made.dtype, made.device, *map(id, made.sources)
        reference = self.nodes.get(key)
        found: _M | None = None if reference is None else reference()
        if found is not None:
            return found
        self.nodes[key] = ref(made)
        if len(self.nodes) > self.room:
            self.sweep()
        for listener in self.listeners:
            if listener is not None:
                listener(made)
        return made

    def sweep(self) -> None:
        """Drop the dead. (Of equal nodes that two threads make at once both may live on.)"""
        alive = {key: node for key, node in self.nodes.copy().items() if node() is not None}
        self.nodes, self.room = alive, 2 * len(alive) + 4096


_nodes: dict[Hashable, Any] = {}  # those of classes that are Interned
_LEAST = 1 << 14  # that a sweep is worth: most that there are live on, and each takes a microsecond
_room = [_LEAST]  # for so many, and those that nobody else knows any more
_known, _make = _nodes.get, object.__new__


class Interned:
    """Base of nodes of which two that are built from equal parts are one, so `is` is equality.

    Graphs share subtrees. Comparing them by structure walks a shared subtree once per path
    to it, which is exponential; comparing them by identity is free. Only one thread at a time may
    build nodes. (No metaclass: `isinstance` would take three times as long.)
    """

    __slots__ = ("__weakref__",)

    def _fill(self, *parts: Any) -> None:
        """What a class has as `__init__`, which is done once for a node, when it is new."""

    if not TYPE_CHECKING:  # for whom classes make nodes as others do

        def __init_subclass__(cls) -> None:
            if "__init__" in vars(cls):
                cls._fill = fill = cls.__init__
                del cls.__init__
                code = _new_of(fill.__code__.co_argcount - 1, "cls, ")
                # a copy, which the interpreter adapts to this class alone
                cls.__new__ = FunctionType(code.replace(), globals(), "__new__", fill.__defaults__)


_P = ParamSpec("_P")
_T = TypeVar("_T")


def maker(cls: Callable[_P, _T]) -> Callable[_P, _T]:
    """A function that makes nodes of a class, in half the time: to call a class is a detour."""
    fill: Any = vars(cls)["_fill"]
    code = _new_of(fill.__code__.co_argcount - 1, "")
    return FunctionType(code.replace(), {**globals(), "cls": cls}, "new", fill.__defaults__)


@lru_cache
def _new_of(count: int, cls: str) -> CodeType:
    """The code of a `__new__` with so many parts by name: a list of them takes twice as long."""
    parts = ", ".join(f"part{n}" for n in range(count))
    scope: dict[str, Any] = {}
    exec(_NEW.format(cls=cls, parts=parts), scope)
    code: CodeType = scope["__new__"].__code__
    return code


_NEW = """
def __new__({cls}{parts}):
    key = cls, {parts}
    node = _known(key)
    if node is None:
        node = _make(cls)
        node._fill({parts})
        _nodes[key] = node
        if len(_nodes) > _room[0]:
            _sweep()
    return node
"""


def _sweep() -> None:
    """Drop what nobody else knows, from the latest on: then what only that was made of is next."""
    alive = []
    while _nodes:
        key, node = _nodes.popitem()
        reference = ref(node)
        del node
        if (node := reference()) is not None:
            alive.append((key, node))
    _nodes.update(reversed(alive))
    _room[0] = 2 * len(_nodes) + _LEAST


class HasSources(Protocol):
    """What a graph is walked by."""

    @property
    def sources(self) -> tuple[Any, ...]: ...


_N = TypeVar("_N", bound=HasSources)


_all_sources: Callable[[Any], tuple[Any, ...]] = attrgetter("sources")


def toposort(
    roots: Iterable[_N],
    leaves: Container[_N] = (),
    sources: Callable[[_N], Sequence[_N]] = _all_sources,
) -> list[_N]:
    """Every node that `roots` need, sources first; does not look below `leaves`.

    Iterative, because graphs outgrow Python's stack.
    """
    done: dict[_N, None] = {}
    above: list[Any] = []  # nodes whose sources are looked at, each behind the walk it came up in
    push, pop, walk = above.append, above.pop, iter(roots)
    while True:
        for node in walk:
            if node in done:
                continue
            needed = sources(node)
            if needed and node not in leaves:
                push(walk)
                push(node)
                walk = iter(needed)
                break
            done[node] = None
        else:  # all that the last one needs is done
            if not above:
                return list(done)
            done[pop()] = None
            walk = pop()


def needing(
    roots: Collection[_N], wanted: Callable[[_N], bool], besides: Container[_N] = ()
) -> list[_N]:
    """The roots that are, or need, a node that is `wanted`, as one without sources may be.

    Does not look below `besides`, and no further for a root of which the answer is known.
    """
    needs: dict[_N, bool] = {}
    for root in roots:
        above: list[_N] = []  # nodes whose sources are looked at, by the walks behind the first
        walks: list[Iterator[_N]] = [iter((root,))]
        while walks:
            for node in walks[-1]:
                if node not in needs:
                    if node.sources and node not in besides:
                        above.append(node)
                        walks.append(iter(node.sources))
                        break
                    needs[node] = not node.sources and wanted(node)
                if needs[node]:
                    needs.update(dict.fromkeys(above, True))
                    walks.clear()
                    break
            else:
                walks.pop()
                if above:
                    needs[above.pop()] = False
    return [root for root in roots if needs[root]]


def reached(starts: Iterable[_N], onward: Callable[[_N], Iterable[_N]]) -> Iterator[_N]:
    """The starts, and all that leads `onward` from them, each once and in no order."""
    stack = [*starts]
    seen = {*stack}
    while stack:
        node = stack.pop()
        yield node
        for other in onward(node):
            if other not in seen:
                seen.add(other)
                stack.append(other)


def numbered(roots: Iterable[_N], known: dict[_N, int] | None = None) -> dict[_N, int]:
    """As `toposort`, in no such order, but sooner: every node, and the number it is found as.

    Graphs of the same structure have the same numbers. Those of a graph that is `known` are kept,
    and what else the roots need is added.
    """
    numbers = {} if known is None else known
    found = []
    for root in roots:
        if root not in numbers:
            numbers[root] = len(numbers)
            found.append(root)
    for node in found:  # grows
        for source in node.sources:
            if source not in numbers:
                numbers[source] = len(numbers)
                found.append(source)
    return numbers
