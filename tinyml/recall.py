"""Recall: plans that were made before come from the disk cache.

A plan follows from the structure of its graph, from what its devices' programs are made for, and
from the files of the scheduler and the generator; the key of its entry is made of these. A process
whose graphs are all known neither schedules nor generates, and does not load what would.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import replace
from io import BytesIO
from typing import Any

from tinyml import config, lazy, trace
from tinyml.cache import key
from tinyml.codegen.remember import generator
from tinyml.device import open_device
from tinyml.graph import toposort
from tinyml.lazy import LazyBuffer
from tinyml.plan import Call, CopyCall, KernelCall, Plan
from tinyml.program import Program
from tinyml.runtime.cpu import host_cache
from tinyml.turn import watch_forks

watch_forks()  # last of all imports: see there


def recalled(structure: tuple[Any, ...], devices: Iterable[str], make: Callable[[], Plan]) -> Plan:
    """The plan of all graphs of this structure: as it was made before, or as `make` does now."""
    entry = _entry(structure, devices)
    if entry is None:
        return make()
    disk = host_cache(config.current.cache_folder)
    content = disk.get(entry, ".plan")
    if content is not None:
        return _loaded(content)
    plan = make()
    disk.put(entry, ".plan", _spelled(plan))
    return plan


def _entry(structure: tuple[Any, ...], devices: Iterable[str]) -> str | None:
    """The key of a plan; None where it is made anew: somebody looks on, or nothing is kept."""
    now, made_by = config.current, generator()
    watched = map(trace.wanted, (trace.Scheduled, trace.KernelScheduled, trace.KernelLowered))
    if made_by is None or now.verify or now.beam or now.cache_folder is None or any(watched):
        return None
    targets = [f"{name} {open_device(name).target}" for name in sorted(devices)]
    return key("plan", made_by, repr(structure), *targets)


class _Pickler(pickle.Pickler):
    """Nodes go by what they say: read again, they are the nodes that there are."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, LazyBuffer):
            return NotImplemented
        said = (value.shape, value.dtype, value.device, value.sources, value.arg)
        return lazy.node, (type(value), *said)


def _spelled(plan: Plan) -> bytes:
    kernels = [call.kernel for call in plan.calls if isinstance(call, KernelCall)]
    # each node after its sources, so that no depth of a graph is one of the pickler
    nodes = toposort(root for k in kernels for output in k.outputs for root in output.roots)
    content = BytesIO()
    bare, programs = zip(*map(_parts, plan.calls), strict=True) if plan.calls else ((), ())
    _Pickler(content).dump((nodes, replace(plan, calls=bare), programs))
    return content.getvalue()


def _parts(call: Call) -> tuple[Call, Program | None]:
    """A call as it was before its program was loaded, and the program."""
    if isinstance(call, CopyCall) or call.executable is None:
        return call, None
    return replace(call, executable=None), call.executable.program


def _loaded(content: bytes) -> Plan:
    plan: Plan
    _, plan, programs = pickle.loads(content)  # as much to be trusted as the machine code beside
    calls = list(plan.calls)
    wanted: dict[str, dict[int, KernelCall]] = {}
    for number, call in enumerate(calls):
        if isinstance(call, KernelCall) and programs[number] is not None:
            wanted.setdefault(call.device, {})[number] = call
    for device, own in wanted.items():
        executables = open_device(device).machine.load([programs[number] for number in own])
        for (number, call), executable in zip(own.items(), executables, strict=True):
            calls[number] = replace(call, executable=executable)
    return replace(plan, calls=tuple(calls))
