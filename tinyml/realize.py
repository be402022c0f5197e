"""Realize: make nodes real.

What is overwritten in place must have been read by everybody who wanted the old values: before an
assignment runs, all graphs that still read them (ledger.py) are made real together with it.

Threads compute in turn (`tinyml.turn`), since graphs of several may end in the same memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from itertools import chain, islice
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from tinyml import config, interpret, lazy, trace
from tinyml.device import open_device
from tinyml.dtype import DType, to_compute, to_storage
from tinyml.faults import Fault, fault_of
from tinyml.graph import numbered, toposort
from tinyml.launch import PlanRunner, execute, hold
from tinyml.lazy import Data, LazyBuffer
from tinyml.ledger import (
    Holder,
    gradients_in,
    is_pending,
    memory,
    overwritten,
    parameters_in,
    pending,
    readers_of,
)
from tinyml.merge import merged
from tinyml.plan import FixedNumber, Plan, ReferenceCall, last_versions
from tinyml.reused import go_on, mark, reused, reused_by_step
from tinyml.runtime.machine import Buffer
from tinyml.turn import turn
from tinyml.varying import Number, besides, varying, with_data
from tinyml.varying import numbers as numbers_of

_runners: dict[tuple[Any, ...], PlanRunner] = {}
_MOST_RUNNERS = 1024
_Order = dict[LazyBuffer, int]  # nodes by number


def keep_values(buffers: Collection[int], besides: Container[int]) -> None:
    """These buffers (ids) are about to be overwritten: save what is still to be read from them.

    `besides` are the ids of the holders that want the new values, and their views with them.
    """
    found = [(h, n) for h, n in readers_of(buffers) if id(h) not in besides]
    readers = [(h, n) for h, n in found if id(h._followed) not in besides]
    holders = [h for h, _ in readers]
    for holder, leaf in zip(holders, compute([n for _, n in readers], holders), strict=True):
        holder.lazy = leaf


def realize(holders: Sequence[Holder]) -> None:
    """Compute what these hold; each then holds a leaf, so that its graph can be forgotten."""
    if not any(map(is_pending, holders)):
        return
    with turn:
        unreal = list(filter(is_pending, holders))
        goes_on = not trace.wanted(trace.ValuesKept)  # a captured step begins alike each time
        leaves = compute([holder.lazy for holder in unreal], unreal, goes_on)
        for holder, leaf in zip(unreal, leaves, strict=True):
            holder.lazy = leaf


def compute(
    nodes: Sequence[LazyBuffer], holders: Sequence[Holder] = (), goes_on: bool = False
) -> list[Data]:
    """Compute `nodes`, which `holders` hold, in one plan: a leaf for each. In the caller's turn.

    Whoever else reads memory that is overwritten by that gets its values first, and holds a leaf
    afterwards, too. Where a program `goes_on`, what was computed before and is needed again is
    kept for what it does next (see reused.py), and gradients that wait are computed beside what
    they are gradients of.
    """
    wanted, order = list(nodes), numbered(nodes)
    gradients = gradients_in(order) if goes_on else []
    order = numbered([node for _, node in gradients], order)
    readers: list[tuple[Holder, LazyBuffer]] = []
    buffers, seen = set[int](), 0
    while not (found := overwritten(islice(order, seen, None))) <= buffers:
        seen, buffers = len(order), buffers | found  # what is saved may be assigned to, too
        if readers := readers_of(buffers):
            order = numbered([node for _, node in readers], order)
    readers += gradients
    if parameters := parameters_in(order):
        known = {*map(id, holders), *(id(h) for h, _ in readers)}
        readers += [(h, node) for h, node in parameters if id(h) not in known]
    asked = [*wanted, *(node for _, node in readers)]
    again = (reused_by_step if buffers else reused)(asked, order) if goes_on else []
    unreal = [n for n in [*asked, *again] if type(n) is not Data]
    made = _made(list(dict.fromkeys(unreal)), wanted, order) if unreal else {}
    if trace.wanted(trace.ValuesKept):  # while all still hold what they are computed by
        for holder, _ in readers:
            trace.emit(trace.ValuesKept(holder))
    if len(holders) + len(readers) > 1:
        holding = [*zip(holders, wanted, strict=False), *readers]
        _note_several({id(h): made[n] for h, n in holding if n in made and h._followed is None})
    for holder, node in readers:
        holder.lazy = made[node]
    if goes_on:
        mark(order)
    if again:
        go_on({node: made[node] for node in again})
    return [n if isinstance(n, Data) else made[n] for n in wanted]


def _made(
    unreal: list[LazyBuffer], wanted: Sequence[LazyBuffer], order: _Order
) -> dict[LazyBuffer, Data]:
    """A leaf with the values of each node that is not real, each of them once."""
    leaves = [n for n in order if type(n) is Data]
    try:
        if trace.wanted(trace.Realizing):
            trace.emit(trace.Realizing(tuple(leaves), tuple(wanted)))
        made = dict(zip(unreal, _run(unreal, order, leaves), strict=True))
        if trace.wanted(trace.Realized):
            trace.emit(trace.Realized(tuple(unreal), tuple(made.values())))
    except Exception as error:
        if (fault := fault_of(error)) is not None:
            _drop(fault, order)
        raise
    return made


def _note_several(leaves: dict[int, Data]) -> None:
    """Mark the memory that several holders have, whose ids these are: it is not overwritten."""
    for buffer, times in Counter(memory[leaf] for leaf in leaves.values()).items():
        buffer.several = buffer.several or times > 1


def _drop(fault: Fault, nodes: Iterable[LazyBuffer]) -> None:
    """Forget the assignments that wait for a value with a fault: their targets keep what they have.

    Nothing was overwritten yet: schedules put whatever may find fault before the first write.
    """
    wrong: set[LazyBuffer] = set()
    for node in toposort(nodes):
        asked = isinstance(node, lazy.Require) and node.arg == fault
        below = not wrong.isdisjoint(lazy.read_sources(node))
        if below or (asked and not _can_be_computed(node)):
            wrong.add(node)
    for holder in pending():
        node = holder.lazy
        while isinstance(node, lazy.Assign) and node in wrong and holder._followed is None:
            holder.lazy = node = node.sources[0]


def _can_be_computed(node: LazyBuffer) -> bool:
    """Whether `node` finds no fault, by the interpreter."""
    leaves = [leaf for leaf in toposort([node]) if isinstance(leaf, Data)]
    values = [to_compute(memory[x].read(), x.dtype).reshape(x.shape) for x in leaves]
    try:
        interpret.interpret([node], dict(zip(leaves, values, strict=True)))
    except Exception as error:
        if fault_of(error) is None:
            raise
        return False
    return True


def _run(unreal: list[LazyBuffer], order: _Order, leaves: list[Data]) -> list[Data]:
    devices = set(map(_device, order))
    if devices == {"NUMPY"}:
        return _run_reference(unreal, leaves)
    buffers = buffers_of(leaves)
    key = _structure(unreal, order, buffers, map(_said, order))
    runner = _runners.get(key)
    numbers: dict[Number, Data] = {}
    if runner is None and not trace.wanted(trace.Launched):  # a capture's numbers stay
        key, numbers = _varying(key, unreal, order, buffers)
        runner = _runners.get(key)
        buffers += buffers_of(numbers.values())
    if runner is None:
        roots = with_data(unreal, numbers) if numbers else unreal
        runner = PlanRunner(_planned(key, devices, roots, [*leaves, *numbers.values()]))
        if len(_runners) >= _MOST_RUNNERS:
            del _runners[next(iter(_runners))]
        _runners[key] = runner
    results: list[Data] = []
    known: dict[tuple[Any, ...], Data] = {}
    for node, buffer in zip(unreal, runner.run(buffers), strict=True):
        said = buffer, node.shape, node.dtype
        if said not in known:  # equal nodes have one leaf
            known[said] = lazy.data(node.shape, node.dtype, node.device)
            memory[known[said]] = buffer
        results.append(known[said])
    return results


def _varying(
    key: tuple[Any, ...], unreal: list[LazyBuffer], order: _Order, buffers: Sequence[Buffer]
) -> tuple[tuple[Any, ...], dict[Number, Data]]:
    """The numbers of a graph that are to be data, in memory, and the key of all such graphs."""
    family = _structure(unreal, order, buffers, map(besides, order))
    found = numbers_of(order)
    which = varying(family, found)
    if not which:
        return key, {}
    fixed = [None if i in which else number.text for i, number in enumerate(found)]
    leaves: dict[Number, Data] = {}
    for number in map(found.__getitem__, which):
        said = number.dtype, number.node.device
        leaf = leaves[number] = lazy.data((), *said)
        memory[leaf] = hold(FixedNumber(number.text, *said))
    return ("varying", *fixed, *family), leaves


def _planned(
    structure: tuple[Any, ...],
    devices: Iterable[str],
    unreal: Sequence[LazyBuffer],
    leaves: Sequence[Data],
) -> Plan:
    """A new plan. What makes it is loaded when there is something to compile."""
    from tinyml.plan_cache import cached_plan

    def make() -> Plan:
        from tinyml.prepare import prepare

        with lazy.known:
            return prepare(unreal, leaves)

    return cached_plan(structure, devices, make)


def _run_reference(unreal: list[LazyBuffer], leaves: list[Data]) -> list[Data]:
    """NUMPY: the whole graph by the interpreter; what the other devices must agree with."""
    unreal = merged(unreal)
    last = last_versions(unreal)
    results: list[Data] = []
    if last:
        turn.hold()
    for node in unreal:
        target = lazy.assigned(node)
        leaf = lazy.data(node.shape, node.dtype, node.device)
        if isinstance(target, Data) and node in last:
            memory[leaf] = memory[target]
        else:
            memory[leaf] = Buffer(open_device("NUMPY").machine, node.size, node.dtype)
        results.append(leaf)
    execute(ReferenceCall(tuple(unreal), tuple(leaves)), buffers_of([*leaves, *results]))
    return results


def _structure(
    unreal: list[LazyBuffer], order: _Order, buffers: Sequence[Buffer], args: Iterable[Any]
) -> tuple[Any, ...]:
    """What two graphs that run by the same plan have in common.

    It is made and compared whenever a graph is realized, so by nothing that takes a step of Python
    for each node. What a node says (`args`) tells how many of the sources' numbers are its own.
    """
    number, shared = order.__getitem__, {id(b): n for n, b in enumerate(buffers)}
    return (
        config.current.noopt,
        config.current.beam,
        *map(number, unreal),
        *map(_kind, order),
        *args,
        *map(number, chain.from_iterable(map(_sources, order))),
        *[shared[id(b)] for b in buffers],
    )


_kind: Callable[[LazyBuffer], Any] = attrgetter("__class__", "device", "shape", "dtype")
_said: Callable[[LazyBuffer], Any] = attrgetter("arg")
_device: Callable[[LazyBuffer], str] = attrgetter("device")
_sources: Callable[[LazyBuffer], tuple[LazyBuffer, ...]] = attrgetter("sources")


# ---- between numpy and leaves ----


def upload(values: npt.NDArray[Any], dtype: DType, device: str) -> Data:
    """A leaf that holds `values` (storage dtype) on `device`."""
    leaf = lazy.data(values.shape, dtype, device)
    buffer = Buffer(open_device(device).machine, values.size, dtype)
    memory[leaf] = buffer.write(values)
    if trace.wanted(trace.Uploaded):
        trace.emit(trace.Uploaded(leaf, values.copy()))  # the array may be the user's
    return leaf


def filled(shape: lazy.Shape, dtype: DType, device: str, value: float) -> Data:
    """A leaf of one number, made without a kernel: that would have to be compiled first.

    Zeros are memory that the device clears by itself.
    """
    if value or np.signbit(value) or trace.wanted(trace.Uploaded):  # who listens wants values
        return upload(to_storage(np.full(shape, value, dtype.compute), dtype), dtype, device)
    leaf = lazy.data(shape, dtype, device)
    memory[leaf] = Buffer(open_device(device).machine, leaf.size, dtype).clear()
    return leaf


def adopt(address: int, shape: lazy.Shape, dtype: DType, device: str, owner: Any) -> Data | None:
    """A leaf on memory that belongs to `owner`; None if the device cannot use that memory."""
    machine, leaf = open_device(device).machine, lazy.data(shape, dtype, device)
    if address % dtype.itemsize or not machine.adopts(address):
        return None
    memory[leaf] = Buffer(machine, leaf.size, dtype, address, owner)
    return leaf


def download(leaf: Data) -> npt.NDArray[Any]:
    """The values of a leaf, in storage dtype, in memory of their own."""
    if trace.wanted(trace.HostRead):
        trace.emit(trace.HostRead(leaf.device))
    return memory[leaf].read().reshape(leaf.shape)


def buffers_of(leaves: Iterable[Data]) -> list[Buffer]:
    """The memory of leaves."""
    return [memory[leaf] for leaf in leaves]
