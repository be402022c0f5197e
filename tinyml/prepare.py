"""Prepare: schedule a graph, compile its kernels, and number its buffers.

All that turns a graph into a plan is imported by this file, so that a program which only
records, or only imports tinyml, need not wait for the compiler to be loaded.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tinyml import config, lazy, trace
from tinyml.alike import alike
from tinyml.codegen.program_cache import cached_program
from tinyml.device import along_folds, open_device
from tinyml.errors import DeviceError
from tinyml.kernel import Kernel, Output, takers
from tinyml.lazy import Data, LazyBuffer
from tinyml.plan import Call, CopyCall, FixedNumber, KernelCall, NewBuffer, Plan, last_versions
from tinyml.program import Program
from tinyml.runtime.cpu import host_cache
from tinyml.runtime.machine import Executable
from tinyml.schedule import CopyItem, Item, KernelItem, schedule

if TYPE_CHECKING:
    from tinyml.codegen.optimize.opts import Opt

_executables: dict[tuple[Kernel, str, bool, int], Executable] = {}


def prepare(nodes: Sequence[LazyBuffer], leaves: Sequence[Data]) -> Plan:
    """Schedule and compile what `nodes` need, given the leaves that they read or overwrite."""
    start = time.perf_counter()
    made = schedule(nodes, along_folds())
    items, held = alike(made.items)
    trace.emit(trace.Scheduled(tuple(items), time.perf_counter() - start))
    numbers: dict[LazyBuffer, int] = {leaf: n for n, leaf in enumerate([*leaves, *held.values()])}
    given = len(numbers)
    for node, leaf in made.in_place.items():
        numbers[node] = numbers[leaf]
    new = _number(items, numbers, given, {*made.roots})
    _compile([item for item in items if isinstance(item, KernelItem)])
    kernels: dict[Kernel, Kernel] = {}  # equal ones are one object, which is stored and read once
    calls = [call for item in items if (call := _call(item, numbers, kernels)) is not None]
    last = last_versions(made.roots)
    late = [r for r in dict.fromkeys(made.roots) if r in last and r not in made.in_place]
    calls += _store(late, numbers)
    for root in late:
        numbers[root] = numbers[lazy.assigned(root)]
    results = [numbers[root] for root in made.roots]
    forget = _forget(calls, given, set(results))
    overwrites = bool(made.in_place or late)
    own = tuple(FixedNumber(*said) for said in held)
    return Plan(given, tuple(new), tuple(calls), forget, tuple(results), overwrites, own)


def _number(
    items: Sequence[Item], numbers: dict[LazyBuffer, int], given: int, kept: set[LazyBuffer]
) -> list[NewBuffer]:
    """New buffers for all nodes of `items` that have no number yet, from `given` on.

    But for the `kept` nodes, what is not read any more may be overwritten.
    """
    new = list[NewBuffer]()
    last = {node: item for item in items for node in item.nodes}
    for item in items:
        over = _over(item, {n for n in item.nodes if last[n] is item and n not in kept})
        for node, size in zip(item.nodes, item.sizes, strict=True):
            if node in numbers:
                continue
            wanted = NewBuffer(size, node.dtype, node.device)
            free = (numbers[old] for old in over.get(node, ()))
            number = next((n for n in free if n >= given and new[n - given] == wanted), None)
            if number is None:
                number = given + len(new)
                new.append(wanted)
            numbers[node] = number
    return new


def _over(item: Item, free: set[LazyBuffer]) -> Mapping[LazyBuffer, Sequence[LazyBuffer]]:
    """Which of the nodes that are `free` after an item each of its outputs may overwrite."""
    found: dict[LazyBuffer, list[LazyBuffer]] = {}
    if isinstance(item, KernelItem) and not free.isdisjoint(item.inputs):
        for old, output in takers(item.kernel).items():
            if item.nodes[old] in free:
                found.setdefault(item.nodes[output], []).append(item.nodes[old])
    return found


def _store(late: Sequence[LazyBuffer], numbers: dict[LazyBuffer, int]) -> list[Call]:
    """Copy assignments that could not be done in place into their targets, at the very end."""
    calls: list[Call] = []
    for device in dict.fromkeys(root.device for root in late):
        roots = [root for root in late if root.device == device and root.size]
        for first in range(0, len(roots), _MOST_STORED):
            some = roots[first : first + _MOST_STORED]
            units = tuple((root, "the old values were read until now") for root in some)
            item = KernelItem(_copies(some), device, (), (), units)
            _compile([item])
            targets = [numbers[lazy.assigned(root)] for root in some]
            buffers = (*targets, *(numbers[root] for root in some))
            executable = _executables.get(_key(item.kernel, device))
            calls.append(KernelCall(device, item.kernel, executable, buffers))
    return calls


_MOST_STORED = 32  # copies in one kernel


def _copies(nodes: Sequence[LazyBuffer]) -> Kernel:
    """A kernel that copies one buffer for each node."""
    slots = tuple(((node.size,), node.dtype) for node in nodes)
    parts = []
    for slot, (shape, dtype) in enumerate(slots):
        value = lazy.node(lazy.Slot, shape, dtype, "", (), len(slots) + slot)
        parts.append((Output(slot, shape, value, (0,) if shape != (1,) else ()),))
    return Kernel(tuple(parts), slots + slots)


def _call(item: Item, numbers: dict[LazyBuffer, int], kernels: dict[Kernel, Kernel]) -> Call | None:
    if isinstance(item, CopyItem):
        return CopyCall((numbers[item.source], numbers[item.output]))
    if not any(output.value.size for output in item.kernel.outputs):
        return None
    buffers = tuple(numbers[node] for node in item.nodes)
    k = kernels.setdefault(item.kernel, item.kernel)
    return KernelCall(item.device, k, _executables.get(_key(k, item.device)), buffers)


def _key(k: Kernel, device: str) -> tuple[Kernel, str, bool, int]:
    return k, device, config.current.noopt, config.current.beam


def _forget(calls: Sequence[Call], leaves: int, kept: set[int]) -> tuple[tuple[int, ...], ...]:
    last = {number: n for n, call in enumerate(calls) for number in call.buffers}
    forget: list[list[int]] = [[] for _ in calls]
    for number, n in last.items():
        if number >= leaves and number not in kept:
            forget[n].append(number)
    return tuple(map(tuple, forget))


def _compile(items: Sequence[KernelItem]) -> None:
    """Programs for all kernels that have none yet, compiled together per device."""
    wanted: dict[str, dict[Kernel, KernelItem]] = {}
    for item in items:
        empty = not any(output.value.size for output in item.kernel.outputs)
        if not empty and _key(item.kernel, item.device) not in _executables:
            wanted.setdefault(item.device, {})[item.kernel] = item
    for device, kernels in wanted.items():
        opened = open_device(device)
        if opened.target is None:
            continue
        # the first is compiled while the next is made; but a search has the machine to itself
        programs = map(_program, kernels.values())
        executables = opened.machine.load(list(programs) if config.current.beam else programs)
        for k, executable in zip(kernels, executables, strict=True):
            _executables[_key(k, device)] = executable


def use(opts: Sequence[Opt], item: KernelItem) -> None:
    """Have a kernel run as Opts say that somebody wrote, from here on."""
    from tinyml.codegen.compile import compile as compiled

    opened = open_device(item.device)
    if opened.target is None:
        raise DeviceError(f"{item.device} runs no programs")
    program = compiled(item.kernel, opened.target, opts, verify=True)
    (_executables[_key(item.kernel, item.device)],) = opened.machine.load([program])


def _program(item: KernelItem) -> Program:
    k, opened, settings = item.kernel, open_device(item.device), config.current
    if opened.target is None:
        raise DeviceError(f"{item.device} runs no programs")
    opts: Sequence[Opt] | None = [] if settings.noopt else None
    if settings.beam > 0 and not settings.noopt:
        from tinyml import search

        opts = search.found(k, opened, settings.beam, settings.beam_seconds)
    disk = host_cache(settings.cache_folder)
    return cached_program(k, opened.target, opts, settings.verify, disk)
