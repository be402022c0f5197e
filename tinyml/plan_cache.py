"""The plan cache: plans that were made before, by any process, come from the disk.

A plan follows from the structure of its graph, from what its devices' programs are made for, and
from the files of the scheduler and the generator; the key of its entry is made of these. A process
whose graphs are all known neither schedules nor generates, and does not load what would.
"""

from __future__ import annotations

import gc
import pickle
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any

from tinyml import config, lazy, trace
from tinyml.cache import key
from tinyml.codegen.program_cache import generator
from tinyml.device import open_device
from tinyml.graph import toposort
from tinyml.lazy import Data, LazyBuffer
from tinyml.plan import Call, KernelCall, Plan, ReferenceCall, computed_by
from tinyml.program import Program
from tinyml.runtime.cpu import host_cache
from tinyml.turn import watch_forks

watch_forks()  # last of all imports: see there


def cached_plan(
    structure: tuple[Any, ...], devices: Iterable[str], make: Callable[[], Plan]
) -> Plan:
    """The plan of all graphs of this structure: as it was made before, or as `make` does now."""
    collects = gc.isenabled()
    gc.disable()  # many small nodes and no circles: the collector would only walk them
    try:
        entry = _entry(structure, devices)
        if entry is None:
            return make()
        disk = host_cache(config.current.cache_folder)
        content = disk.get(entry, ".plan")
        plan: Plan
        if content is not None:
            plan, calls = pickle.loads(content)
            return replace(plan, calls=loads(calls))
        plan = make()
        disk.put(entry, ".plan", pickle.dumps((replace(plan, calls=()), dumps(plan.calls))))
        return plan
    finally:
        if collects:
            gc.enable()


def _entry(structure: tuple[Any, ...], devices: Iterable[str]) -> str | None:
    """The key of a plan; None where it is made anew: somebody looks on, or nothing is kept."""
    now, made_by = config.current, generator()
    watched = map(trace.wanted, (trace.Scheduled, trace.KernelLowered))
    if made_by is None or now.verify or now.beam or now.cache_folder is None or any(watched):
        return None
    targets = [f"{name} {open_device(name).target}" for name in sorted(devices)]
    return key("plan", made_by, *_text(structure), *targets)


def _text(structure: tuple[Any, ...]) -> tuple[str, bytes]:
    """What no other structure is written as: all that is in it, once, and what is where."""
    number = {part: n for n, part in enumerate(dict.fromkeys(structure))}
    return repr([*number]), array("I", map(number.__getitem__, structure)).tobytes()


class _Pickler(pickle.Pickler):
    """Nodes go by what they say: read again, they are the nodes that there are."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, LazyBuffer):
            return NotImplemented
        if isinstance(value, Data):
            return lazy.data, (value.shape, value.dtype, value.device)
        said = (value.shape, value.dtype, value.device, value.sources, value.arg)
        return lazy.node, (type(value), *said)


def dumps(calls: Sequence[Call | ReferenceCall]) -> bytes:
    """Calls with their programs, for another process."""
    # each node after its sources, so that no depth of a graph is one of the pickler
    nodes = toposort(node for call in calls for node in computed_by(call))
    content = BytesIO()
    _Pickler(content).dump((nodes, list(map(_parts, calls))))
    return content.getvalue()


def _parts(call: Call | ReferenceCall) -> tuple[Call | ReferenceCall, Program | None]:
    """A call as it was before its program was loaded, and the program."""
    if not isinstance(call, KernelCall) or call.executable is None:
        return call, None
    return replace(call, executable=None), call.executable.program


def loads(content: bytes) -> tuple[Any, ...]:
    """The inverse of `dumps`."""
    with lazy.known:
        _, parts = pickle.loads(content)  # as much to be trusted as the machine code beside
    calls: list[Any] = [call for call, _ in parts]
    wanted: dict[str, list[int]] = {}
    for number, (call, program) in enumerate(parts):
        if program is not None:
            wanted.setdefault(call.device, []).append(number)
    for device, own in wanted.items():
        executables = open_device(device).machine.load([parts[number][1] for number in own])
        for number, executable in zip(own, executables, strict=True):
            calls[number] = replace(calls[number], executable=executable)
    return tuple(calls)
