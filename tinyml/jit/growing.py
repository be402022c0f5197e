"""Growing: what a function adds tensors to in each call, as `losses.append(loss)` does.

A replay does not call the function, and would add nothing. A list that has what the call before
left behind, and more of this call's, grows; an attribute, a gradient or a key whose tensor is
replaced does not, and what is made once is not made again.
"""

from __future__ import annotations

import dis
import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any
from weakref import ref

from tinyml.errors import JitError
from tinyml.tensor import Tensor

_GROWS = (list, dict, set, deque)
_DEPTH = 3  # of containers within each other


class Growing:
    """What holds some tensors, outside, and how much that was."""

    def __init__(self, left: Iterable[ref[Tensor]]) -> None:
        """`left` is what the call before left behind."""
        self._before: list[tuple[Any, int]] = []
        level: list[Any] = [tensor for reference in left if (tensor := reference()) is not None]
        own = {id(self._before)}
        for _ in range(_DEPTH):
            own.add(id(level))
            held = gc.get_referrers(*level) if level else []
            own.add(id(held))
            level = [x for x in held if _holds(x) and id(x) not in own]
            own.update(map(id, level))
            self._before += [(x, len(x)) for x in level if type(x) in _GROWS]

    def check(self, function: Callable[..., Any], given: Sequence[Any], left: list[Any]) -> None:
        """JitError if something has grown by what this call left behind."""
        new = set(map(id, left))
        for container, count in self._before:
            if len(container) > count and any(id(t) in new for t in _within(container, _DEPTH)):
                name = getattr(function, "__name__", repr(function))
                raise JitError(
                    f"{name}: each call adds a Tensor to {_named(function, given, container)}. A "
                    "replay does not call the function, and would add nothing: return the tensor, "
                    "and add it outside"
                )


def _holds(value: Any) -> bool:
    """Whether this is a container, and not what Python keeps a tensor's attributes in."""
    return type(value) in (*_GROWS, tuple) and not (type(value) is dict and "_lazy" in value)


def _within(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth >= 0 and isinstance(value, (*_GROWS, tuple)):
        for part in list(value.values() if isinstance(value, dict) else value):
            yield from _within(part, depth - 1)


def _named(function: Callable[..., Any], given: Sequence[Any], container: Any) -> str:
    """What the function calls a container, and where, as far as its text says so."""
    kind = type(container).__name__
    if not isinstance(function, FunctionType):
        return f"a {kind} outside"
    code = function.__code__
    known = {name: function.__globals__.get(name) for name in code.co_names}
    known |= dict(zip(code.co_freevars, map(content, function.__closure__ or ()), strict=True))
    known |= dict(zip(code.co_varnames, given, strict=False))
    for name, value in known.items():
        if value is container:
            return f"the {kind} {name}{_line(code, name)}"
        for attribute, part in getattr(value, "__dict__", {}).items():
            if part is container and attribute in code.co_names:
                return f"the {kind} {name}.{attribute}{_line(code, attribute)}"
    return f"a {kind} outside"


def content(cell: CellType, nothing: object = None) -> Any:
    """What a name of a function around stands for, or `nothing` if it has no value yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return nothing


def _line(code: CodeType, name: str) -> str:
    line = code.co_firstlineno
    starts = dict(dis.findlinestarts(code))
    for instruction in dis.get_instructions(code):
        line = starts.get(instruction.offset) or line
        if instruction.argval == name:
            return f" ({code.co_filename}:{line})"
    return ""
