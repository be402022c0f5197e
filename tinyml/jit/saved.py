"""A captured step in a pickle: what it runs, and the memory that it runs on.

The programs go along, so that nothing is captured, scheduled or generated where it is read again.
The tensors that the step uses are pickled as tensors are: in one pickle with a model, they are
the model's. States that nobody else holds are held by the step. Interim memory is not kept.
An optimizer goes along, too, whose momentum a replay is to find unchanged.
"""

from __future__ import annotations

import copyreg
import sys
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy.typing as npt

from tinyml.errors import JitError
from tinyml.jit.outside import State
from tinyml.jit.step import Parts, Span, Step, share_memory
from tinyml.launch import make
from tinyml.ledger import memory
from tinyml.plan import NewBuffer
from tinyml.runtime.machine import Buffer


def _parts_of(step: Step) -> tuple[Any, ...]:
    from tinyml.plan_cache import dumps

    parts = step.parts
    others = {state.number for state in parts.states} | set(parts.counters)
    own = {n: b for n, b in enumerate(step.table) if b is not None and n not in others}
    interim = {n for n, buffer in own.items() if isinstance(buffer, Span)}
    values = {n: buffer.read() for n, buffer in own.items() if n not in interim}
    calls = dumps([launch.call for launch in parts.launches])
    launches = [replace(launch, call=None) for launch in parts.launches]
    bare = replace(parts, launches=launches)
    return _from_parts, (bare, calls, values, interim)


def _from_parts(
    parts: Parts, calls: bytes, values: dict[int, npt.NDArray[Any]], interim: set[int]
) -> Step:
    from tinyml.plan_cache import loads

    launches = zip(parts.launches, loads(calls), strict=True)
    parts.launches = [replace(launch, call=call) for launch, call in launches]
    used = {n for launch in parts.launches for n in launch.buffers}
    spans = share_memory(parts.launches, {n: parts.buffers[n] for n in interim})
    table: list[Buffer | None] = [spans.get(n) for n in range(len(parts.buffers))]
    for n in used - interim:
        table[n] = make(parts.buffers[n])
    for n, array in values.items():
        table[n] = make(parts.buffers[n]).write(array)
    for state in parts.states:
        table[state.number] = state.buffer = _held(state, parts.buffers[state.number])
    return Step(parts, table, [tensor for state in parts.states for tensor in state.alive()])


def _held(state: State, like: NewBuffer) -> Buffer:
    """The memory that all holders of a state have in common, as they did."""
    holders = state.alive()
    if not holders:
        return make(like)
    leaf = holders[0].realize().lazy  # a view's copy is not computed yet
    for other in holders[1:]:
        other.lazy = leaf
    return memory[leaf]  # type: ignore[index]


copyreg.pickle(Step, _parts_of)


def findable(function: Any) -> Any:
    """The function, if a pickle can say where it is: what replaces it raises JitError."""
    if not isinstance(function, FunctionType):
        return function
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return function if found is function else _left_behind


def _left_behind(*_: Any, **__: Any) -> Any:
    raise JitError(
        "this TinyJit was pickled after its capture, and its function, which has no name to be "
        "found by, stayed behind: it can only replay. Make a TinyJit of the function"
    )
