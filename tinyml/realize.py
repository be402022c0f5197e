"""Realize: make nodes real, and remember where their values are.

`memory` is the only place that says which leaf has which buffer; the graph does not know.

What is overwritten in place must have been read by everybody who wanted the old values. So
whoever holds a node that is not real yet is watched: before an assignment runs, all graphs
that still read the old values are made real together with it.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Container, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tinyml import config, interpret, kernel, lazy, trace
from tinyml.device import open_device
from tinyml.dtype import DType, to_compute, to_storage
from tinyml.graph import toposort
from tinyml.lazy import Data, LazyBuffer
from tinyml.plan import (
    Call,
    CopyCall,
    KernelCall,
    Plan,
    ReferenceCall,
    last_versions,
)
from tinyml.roster import Roster
from tinyml.runtime.machine import Buffer

memory: weakref.WeakKeyDictionary[Data, Buffer] = weakref.WeakKeyDictionary()
_plans: dict[tuple[Any, ...], Plan] = {}
_MOST_PLANS = 1024


class Holder(Protocol):
    """Somebody who holds a node: a Tensor."""

    @property
    def lazy(self) -> LazyBuffer: ...

    @lazy.setter
    def lazy(self, node: LazyBuffer) -> None: ...

    @property
    def follows(self) -> bool: ...  # it shows what another holder has, and is read anew from there


# ---- who holds what ----


_pending = Roster()


def watch(holder: Holder, node: LazyBuffer) -> None:
    """Note that `holder` holds `node` now. To be called whenever its node changes."""
    (node.readers if type(node) is Data else _pending).note(holder)


def pending() -> list[Holder]:
    """Everybody who holds a node that is not real yet."""
    return _pending.retain(_is_pending)


def _is_pending(holder: Holder) -> bool:
    return type(holder.lazy) is not Data


def _with_readers(order: Sequence[LazyBuffer]) -> list[tuple[Holder, LazyBuffer]]:
    """Holders of graphs that read what these nodes overwrite, and nodes that save their values."""
    targets = {lazy.assigned(n) for n in order if type(n) is lazy.Assign}
    buffers = {id(memory[t]) for t in targets if isinstance(t, Data)}
    return _readers_of(buffers) if buffers else []


def _readers_of(buffers: set[int]) -> list[tuple[Holder, LazyBuffer]]:
    """Those that follow another holder are left out: they read what that one has then."""
    found: dict[int, tuple[Holder, LazyBuffer]] = {}
    for leaf in [leaf for leaf, buffer in memory.items() if id(buffer) in buffers]:
        saved: LazyBuffer = lazy.Contiguous(leaf.shape, leaf.dtype, leaf.device, (leaf,))
        found.update({id(h): (h, saved) for h in _own_readers(leaf)})
    holders = [h for h in pending() if not h.follows]
    reading = _reading([holder.lazy for holder in holders], buffers)
    found.update({id(h): (h, h.lazy) for h in holders if h.lazy in reading})
    return list(found.values())


def _own_readers(leaf: Data) -> list[Holder]:
    return [h for h in leaf.readers.members() if not h.follows and h.lazy is leaf]


def _reading(nodes: Sequence[LazyBuffer], buffers: Container[int]) -> set[LazyBuffer]:
    """Every node below `nodes` that is computed from one of these buffers (ids), in one pass."""
    found: set[LazyBuffer] = set()
    for node in toposort(nodes):
        leaf = isinstance(node, Data) and node in memory and id(memory[node]) in buffers
        if leaf or not found.isdisjoint(node.sources):
            found.add(node)
    return found


def keep_values(buffers: set[int], besides: Container[int]) -> None:
    """These buffers (ids) are about to be overwritten: save what is still to be read from them.

    `besides` are the ids of the holders that want the new values.
    """
    readers = [(h, n) for h, n in _readers_of(buffers) if id(h) not in besides]
    for (holder, _), leaf in zip(readers, realize([n for _, n in readers]), strict=True):
        holder.lazy = leaf


def reads(node: LazyBuffer, buffers: Container[int]) -> bool:
    """Whether `node` is computed from one of these buffers (ids)."""
    return node in _reading([node], buffers)


# ---- realizing ----


def realize(nodes: Sequence[LazyBuffer]) -> list[Data]:
    """Compute `nodes`; each answer is a leaf, so that the graph below it can be forgotten."""
    wanted, order = list(nodes), toposort(nodes)
    readers: list[tuple[Holder, LazyBuffer]] = []
    while more := _new_readers(order, readers):
        readers += more
        order = toposort([*wanted, *(node for _, node in readers)])
    unreal = [n for n in [*wanted, *(n for _, n in readers)] if type(n) is not Data]
    if unreal:
        unreal = list(dict.fromkeys(unreal))
        leaves = [n for n in order if type(n) is Data]
        made = dict(zip(unreal, _announced(unreal, order, leaves), strict=True))
    for holder, node in readers:
        if type(holder.lazy) is Data and trace.wanted(trace.ValuesKept):
            trace.emit(trace.ValuesKept(holder))
        holder.lazy = made[node]
    return [n if isinstance(n, Data) else made[n] for n in wanted]


def _new_readers(
    order: list[LazyBuffer], readers: list[tuple[Holder, LazyBuffer]]
) -> list[tuple[Holder, LazyBuffer]]:
    known = {id(holder) for holder, _ in readers}
    return [(h, n) for h, n in _with_readers(order) if id(h) not in known]


def _announced(unreal: list[LazyBuffer], order: list[LazyBuffer], leaves: list[Data]) -> list[Data]:
    if trace.wanted(trace.Realizing):
        trace.emit(trace.Realizing(tuple(leaves)))
    results = _run(unreal, order, leaves)
    if trace.wanted(trace.Realized):
        trace.emit(trace.Realized(tuple(unreal), tuple(results)))
    return results


def _run(unreal: list[LazyBuffer], order: list[LazyBuffer], leaves: list[Data]) -> list[Data]:
    if {node.device for node in order} == {"NUMPY"}:
        return _run_reference(unreal, leaves)
    buffers: list[Buffer | None] = [memory[leaf] for leaf in leaves]
    key = _structure(unreal, order, leaves, buffers)
    plan = _plans.get(key)
    if plan is None:
        plan = _prepare(unreal, leaves)
        if len(_plans) >= _MOST_PLANS:
            del _plans[next(iter(_plans))]
        _plans[key] = plan
    for new in plan.new:
        machine = open_device(new.device).machine
        buffers.append(Buffer(machine, new.size, new.dtype))
    for call, forget in zip(plan.calls, plan.forget, strict=True):
        execute(call, [b for n in call.buffers if (b := buffers[n]) is not None])
        for number in forget:
            buffers[number] = None
    results = []
    for node, number in zip(unreal, plan.results, strict=True):
        leaf = lazy.data(node.shape, node.dtype, node.device)
        buffer = buffers[number]
        assert buffer is not None
        memory[leaf] = buffer
        results.append(leaf)
    return results


def _prepare(unreal: Sequence[LazyBuffer], leaves: Sequence[Data]) -> Plan:
    """A new plan. The compiler is loaded when there is something to compile."""
    from tinyml.prepare import prepare

    return prepare(unreal, leaves)


def _run_reference(unreal: list[LazyBuffer], leaves: list[Data]) -> list[Data]:
    """NUMPY: the whole graph by the interpreter; what the other devices must agree with."""
    last, results = last_versions(unreal), []
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
    unreal: list[LazyBuffer],
    order: list[LazyBuffer],
    leaves: list[Data],
    buffers: Sequence[Buffer | None],
) -> tuple[Any, ...]:
    """What two graphs that run by the same plan have in common."""
    number = {node: n for n, node in enumerate(order)}
    shared = {id(b): n for n, b in reversed(list(enumerate(buffers)))}
    parts: list[Any] = [config.current.noopt, *(number[n] for n in unreal)]
    for node in order:
        arg = None if type(node) is Data else node.arg  # of leaves only what they look like
        sources = tuple(map(number.__getitem__, node.sources))
        parts += (type(node), node.shape, node.dtype, node.device, arg, sources)
    parts += [shared[id(b)] for b in buffers]
    return tuple(parts)


def execute(call: Call | ReferenceCall, buffers: Sequence[Buffer]) -> None:
    """Issue one call on these buffers."""
    if trace.wanted(trace.Launched):
        trace.emit(trace.Launched(call, tuple(buffers)))
    if isinstance(call, CopyCall):
        _copy(buffers[0], buffers[1])
    elif isinstance(call, ReferenceCall):
        _interpret_graph(call, buffers)
    elif call.executable is None:
        _interpret(call, buffers)
    elif trace.wanted(trace.KernelRan):
        seconds = call.executable.launch_timed([b.memory for b in buffers])
        in_use = buffers[0].machine.memory_stats().in_use
        shapes = tuple(shape for shape, _ in call.kernel.slots)
        program, outputs = call.executable.program, len({o.slot for o in call.kernel.outputs})
        trace.emit(trace.KernelRan(call.device, program, seconds, shapes, in_use, outputs))
    else:
        call.executable.launch([b.memory for b in buffers])


def _interpret_graph(call: ReferenceCall, buffers: Sequence[Buffer]) -> None:
    """Node by node, without scheduler or codegen. All is read before anything is written."""
    known: dict[LazyBuffer, npt.NDArray[Any]] = {
        leaf: to_compute(buffer.read(), leaf.dtype).reshape(leaf.shape)
        for leaf, buffer in zip(call.leaves, buffers, strict=False)
    }
    start = time.perf_counter()
    values = interpret.interpret(call.nodes, known)
    if trace.wanted(trace.Interpreted):
        nodes = toposort(call.nodes, set(call.leaves))
        words = dict.fromkeys(n.op.name.lower() for n in nodes if isinstance(n, lazy.Map))
        name = "_".join([*list(words)[:4], f"{len(nodes)}nodes"])
        _announce(name, [node.shape for node in call.nodes], start)
    for node, buffer in zip(call.nodes, buffers[len(call.leaves) :], strict=True):
        buffer.write(to_storage(values[node], node.dtype))


def _interpret(call: KernelCall, buffers: Sequence[Buffer]) -> None:
    arrays = [
        to_compute(b.read(), dtype).reshape(shape)
        for b, (shape, dtype) in zip(buffers, call.kernel.slots, strict=True)
    ]
    arrays = [a if a.flags.writeable else a.copy() for a in arrays]
    start = time.perf_counter()
    kernel.run(call.kernel, arrays)
    if trace.wanted(trace.Interpreted):
        _announce(kernel.name(call.kernel), [o.shape for o in call.kernel.outputs], start)
    for output in call.kernel.outputs:
        buffers[output.slot].write(to_storage(arrays[output.slot], output.value.dtype))


def _announce(name: str, shapes: Sequence[lazy.Shape], start: float) -> None:
    seconds = time.perf_counter() - start
    in_use = open_device("NUMPY").machine.memory_stats().in_use
    trace.emit(trace.Interpreted("NUMPY", name, tuple(shapes), seconds, in_use))


def _copy(source: Buffer, target: Buffer) -> None:
    start = time.perf_counter()
    target.write(source.read())
    if trace.wanted(trace.Copied):
        seconds = time.perf_counter() - start
        trace.emit(trace.Copied(source.machine.name, target.machine.name, source.nbytes, seconds))


# ---- between numpy and leaves ----


def upload(values: npt.NDArray[Any], dtype: DType, device: str) -> Data:
    """A leaf that holds `values` (storage dtype) on `device`."""
    leaf = lazy.data(values.shape, dtype, device)
    buffer = Buffer(open_device(device).machine, values.size, dtype)
    memory[leaf] = buffer.write(values)
    if trace.wanted(trace.Uploaded):
        trace.emit(trace.Uploaded(leaf, values))
    return leaf


def adopt(address: int, shape: lazy.Shape, dtype: DType, device: str, owner: Any) -> Data | None:
    """A leaf on memory that belongs to `owner`; None if the device cannot use that memory."""
    machine, leaf = open_device(device).machine, lazy.data(shape, dtype, device)
    handle = machine.adopt(address, leaf.size * dtype.itemsize)
    if handle is None:
        return None
    memory[leaf] = Buffer(machine, leaf.size, dtype, handle, owner)
    return leaf


def download(leaf: Data) -> npt.NDArray[Any]:
    """The values of a leaf, in storage dtype, in memory of their own."""
    if trace.wanted(trace.HostRead):
        trace.emit(trace.HostRead(leaf.device))
    return memory[leaf].read().reshape(leaf.shape)


def write(leaf: Data, values: npt.NDArray[Any]) -> None:
    """Overwrite a leaf's memory (random counters only; everything else is `lazy.assign`)."""
    memory[leaf].write(np.ascontiguousarray(values))


def buffers_of(leaves: Iterable[Data]) -> list[Buffer]:
    """The memory of leaves."""
    return [memory[leaf] for leaf in leaves]
