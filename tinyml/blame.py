"""DEBUG_NAN=1: a result that holds NaN is an error that names the op which made it, and your line.

While this is on, every node remembers the line outside of tinyml that made it, and every realize
keeps the values it starts from. If a result holds NaN, the graph is computed once more, node by
node, by the interpreter; from the result the NaN is followed down, element by element as far as
ops are elementwise, to the node whose sources have none. A step of TinyJit is called plainly.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from tinyml import interpret, lazy, trace
from tinyml.dtype import to_compute
from tinyml.errors import NanError
from tinyml.graph import toposort
from tinyml.lazy import Data, LazyBuffer
from tinyml.ledger import memory

Array = npt.NDArray[Any]
_HOME = os.path.dirname(os.path.abspath(__file__)) + os.sep


def start() -> Callable[[], None]:
    """From now on, raise NanError at a realize whose result holds NaN; returns what ends it."""
    watcher = _Watcher()
    lazy.known.listeners.append(watcher.note)
    ends = ExitStack()
    ends.callback(lazy.known.listeners.remove, watcher.note)
    ends.callback(trace.subscribe(trace.Realized, watcher.check))
    ends.callback(trace.subscribe(trace.Realizing, watcher.keep))
    return ends.close


class _Watcher:
    """Where nodes were made, and what the realize that is going on started from."""

    def __init__(self) -> None:
        self.lines: weakref.WeakKeyDictionary[LazyBuffer, str] = weakref.WeakKeyDictionary()
        self.known: dict[LazyBuffer, Array] = {}

    def note(self, node: LazyBuffer) -> None:
        self.lines[node] = _line_of_the_user()

    def keep(self, event: trace.Realizing) -> None:
        self.known = {leaf: _values(leaf) for leaf in event.leaves}

    def check(self, event: trace.Realized) -> None:
        known, self.known = self.known, {}
        for node, leaf in zip(event.nodes, event.results, strict=True):
            if leaf.dtype.is_float and np.isnan(_values(leaf)).any():
                raise NanError(self._told(node, known))

    def _told(self, node: LazyBuffer, known: dict[LazyBuffer, Array]) -> str:
        order = toposort([node], known)
        values = interpret.interpret(order, known)
        made = first_nan(node, values)
        if made is None:
            return f"a result of shape {node.shape} holds NaN, but not when numpy computes it"
        if isinstance(made, Data):
            return f"a result of shape {node.shape} holds NaN, which is in data it is computed from"
        shapes = ", ".join(str(s.shape) for s in made.sources)
        where = self.lines.get(made, "an unknown line")
        return f"NaN is made by {_name(made)} of {shapes} at {where}"


def first_nan(node: LazyBuffer, values: dict[LazyBuffer, Array]) -> LazyBuffer | None:
    """The node from which the NaN in `node` comes; None if it has none."""
    at: tuple[int, ...] | None = None  # of the element that is followed
    if not _holds(values[node], at):
        return None
    while node.sources:
        if isinstance(node, lazy.Map):
            at = tuple(np.argwhere(np.isnan(values[node]))[0]) if at is None else at
        else:
            at = None
        source = next((s for s in node.sources if s in values and _holds(values[s], at)), None)
        if source is None:
            break
        node = source
    return node


def _holds(array: Array, at: tuple[int, ...] | None) -> bool:
    return array.dtype.kind == "f" and bool(np.isnan(array if at is None else array[at]).any())


def _values(leaf: Data) -> Array:
    return to_compute(memory[leaf].read(), leaf.dtype).reshape(leaf.shape)


def _name(node: LazyBuffer) -> str:
    if isinstance(node, (lazy.Map, lazy.Reduce)):
        return node.op.name
    return type(node).__name__


def _line_of_the_user() -> str:
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_HOME):
        frame = frame.f_back
    if frame is None:
        return "an unknown line"
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
