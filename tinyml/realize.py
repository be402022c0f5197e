"""Realize: make nodes real, and remember where their values are.

`memory` is the only place that says which leaf has which buffer; the graph does not know.

What is overwritten in place must have been read by everybody who wanted the old values. So
whoever holds a node that is not real yet is watched: before an assignment runs, all graphs
that still read the old values are made real together with it.

Threads compute in turn (`tinyml.turn`), since graphs of several may end in the same memory.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tinyml import config, interpret, lazy, trace
from tinyml.device import open_device
from tinyml.dtype import DType, to_compute, to_storage
from tinyml.faults import Fault, fault_of
from tinyml.graph import numbered, toposort
from tinyml.launch import Routine, execute
from tinyml.lazy import Data, LazyBuffer
from tinyml.merge import merged
from tinyml.plan import Plan, ReferenceCall, last_versions
from tinyml.roster import Roster
from tinyml.runtime.machine import Buffer
from tinyml.turn import turn
from tinyml.varying import Number, besides, varying, with_data
from tinyml.varying import numbers as numbers_of

memory: weakref.WeakKeyDictionary[Data, Buffer] = weakref.WeakKeyDictionary()
_routines: dict[tuple[Any, ...], Routine] = {}
_MOST_ROUTINES = 1024
_Order = dict[LazyBuffer, int]  # nodes by number


class Holder(Protocol):
    """Somebody who holds a node: a Tensor."""

    @property
    def lazy(self) -> LazyBuffer: ...

    @lazy.setter
    def lazy(self, node: LazyBuffer) -> None: ...

    @property
    def _lazy(self) -> LazyBuffer: ...  # the same, though it may be read anew when it is asked for

    @property
    def _is_leaf(self) -> bool: ...  # whether it is a parameter, if it was given to `keep`

    @property
    def _followed(self) -> Holder | None: ...  # whose values it shows, read anew from there


class Tape(Protocol):
    """The record of a composition, which makes the tensors between its steps when it is opened."""

    @property
    def closed(self) -> bool: ...  # whether they are not there yet

    def opened(self) -> object: ...  # makes them


# ---- who holds what ----


_pending, _deferred, _parameters = Roster(), Roster(), Roster()
_held = trace.listeners(trace.Held)  # every op asks whether there are any


def watch(holder: Holder, node: LazyBuffer) -> None:
    """Note that `holder` holds `node` now. To be called whenever its node changes."""
    (node.readers if type(node) is Data else _pending).note(holder)
    if _held:
        trace.emit(trace.Held(holder))


def watch_all(holders: Sequence[Holder], nodes: Sequence[LazyBuffer]) -> None:
    """As `watch`, of several."""
    if _held or Data in map(type, nodes):
        for holder, node in zip(holders, nodes, strict=True):
            watch(holder, node)
    else:
        _pending.note_all(holders)


def keep(holder: Holder) -> None:
    """Note a parameter: who computes with its values before they are real makes it real, too."""
    if type(holder._lazy) is not Data:
        _parameters.note(holder)


def defer(tape: Tape) -> None:
    """Note a record whose steps, and the tensors between them, are not there yet."""
    _deferred.note(tape)
    if _held:
        tape.opened()


def _open_deferred() -> None:
    while _deferred:  # what is opened is noted no more
        for tape in _deferred.retain(lambda tape: tape.closed):
            tape.opened()


def pending() -> list[Holder]:
    """Everybody who holds a node that is not real yet."""
    _open_deferred()
    return _pending.retain(lambda holder: type(holder._lazy) is not Data)


def has_data(node: LazyBuffer) -> bool:
    """Whether values in memory are a part of what a node says."""
    return any(isinstance(n, Data) for n in toposort([node]))


def _is_pending(holder: Holder) -> bool:
    return type(holder.lazy) is not Data


def _overwritten(order: Iterable[LazyBuffer]) -> set[int]:
    """The buffers (ids) that these nodes assign to."""
    targets = {lazy.assigned(n) for n in order if type(n) is lazy.Assign}
    return {id(memory[t]) for t in targets if isinstance(t, Data)}


def _readers_of(buffers: Collection[int]) -> list[tuple[Holder, LazyBuffer]]:
    """Holders of graphs that read these buffers (ids), and nodes that save their values.

    Views are left out: they read what their root holds then.
    """
    found: dict[int, tuple[Holder, LazyBuffer]] = {}
    for leaf, _ in in_memory(buffers):
        if own := _own_readers(leaf):
            saved = lazy.node(lazy.Contiguous, leaf.shape, leaf.dtype, leaf.device, (leaf,))
            found.update({id(h): (h, saved) for h in own})
    found.update({id(h): (h, h._lazy) for h in pending_readers(buffers)})
    return list(found.values())


class _Harmless:
    """Nodes that were held, pending, and read none of some buffers: nor ever will they.

    What is made of such a node is walked down to it, and who was asked is not asked again: a sum
    that goes on from step to step, and that nobody looks at, costs each step the same.
    """

    def __init__(self, buffers: frozenset[int]) -> None:
        self.nodes: list[weakref.ref[LazyBuffer]] = []  # the latest, which what follows is made of
        self.asked = 0, 0  # so far, but for those who read some, or may
        self.again: list[weakref.ref[Holder]] = []
        forget = partial(_forget, buffers)  # an id may be that of another one then
        self._buffers = [weakref.ref(buffer, forget) for _, buffer in in_memory(buffers)]


def _forget(buffers: frozenset[int], _: object) -> None:
    _harmless.pop(buffers, None)


_harmless: dict[frozenset[int], _Harmless] = {}
_MOST_NODES = 128
_MOST_HARMLESS = 16  # optimizers and captured steps that take turns


def pending_readers(buffers: Iterable[int]) -> list[Holder]:
    """Holders of pending graphs that read these buffers (ids); no views. In the caller's turn."""
    key = frozenset(buffers)
    known = _harmless.get(key)
    if known is None:
        while len(_harmless) >= _MOST_HARMLESS:
            del _harmless[next(iter(_harmless))]
        known = _harmless[key] = _Harmless(key)
    _open_deferred()
    known.asked, new = _pending.since(known.asked)
    new += [h for reference in known.again if (h := reference()) is not None]
    if not new:
        return []
    others = [node for reference in known.nodes if (node := reference()) is not None]
    harmless = set(others)
    held = {h: node for h in new if type(node := h._lazy) is not Data and node not in harmless}
    reading = _reading(list(held.values()), key, harmless)
    others += [node for node in held.values() if node not in reading]
    known.nodes = list(map(weakref.ref, others[-_MOST_NODES:]))
    found = [h for h, node in held.items() if node in reading]
    known.again = list(map(weakref.ref, found))
    return [h for h in found if h._followed is None]


def _parameters_in(order: _Order, besides: Container[int]) -> list[tuple[Holder, LazyBuffer]]:
    """Parameters that these nodes are computed from, and that are not real yet: else each result
    would draw their first values again, or repeat all updates that nobody realized."""
    if not _parameters:
        return []
    waiting = _parameters.retain(lambda holder: type(holder._lazy) is not Data)
    found = [h for h in waiting if h._lazy in order and id(h) not in besides and h._is_leaf]
    return [(h, h._lazy) for h in found if h._followed is None and has_data(h._lazy)]


def in_memory(buffers: Container[int] | None = None) -> list[tuple[Data, Buffer]]:
    """Every leaf and its memory, if that is one of these (ids).

    Threads may add to it meanwhile, and leaves may die: what is collected where Python makes an
    item of a dict changes the dict, so its keys are listed, which makes nothing.
    """
    held = memory.data  # type: ignore[attr-defined]  # a look-up by reference takes half the time
    known = [(reference, held.get(reference)) for reference in memory.keyrefs()]
    if buffers is not None:
        known = [item for item in known if id(item[1]) in buffers]
    return [(leaf, buf) for ref, buf in known if buf is not None and (leaf := ref()) is not None]


def _own_readers(leaf: Data) -> list[Holder]:
    """Who holds this leaf, without views that will be read anew, as their root was assigned to."""
    holders = [(h, h._followed) for h in leaf.readers.members() if h.lazy is leaf]
    return [h for h, root in holders if root is None or not _is_version(root.lazy, leaf)]


def _is_version(node: LazyBuffer, leaf: Data) -> bool:
    return node is not leaf and lazy.assigned(node) is leaf


def _reading(
    nodes: Sequence[LazyBuffer], buffers: Container[int], others: Container[LazyBuffer]
) -> set[LazyBuffer]:
    """What is in these buffers (ids), or made of it, below `nodes` but not below `others`."""
    found = set[LazyBuffer]()
    for node in toposort(nodes, others):
        in_them = type(node) is Data and id(memory[node]) in buffers
        if in_them or not found.isdisjoint(node.sources):
            found.add(node)
    return found


def keep_values(buffers: Collection[int], besides: Container[int]) -> None:
    """These buffers (ids) are about to be overwritten: save what is still to be read from them.

    `besides` are the ids of the holders that want the new values, and their views with them.
    """
    found = [(h, n) for h, n in _readers_of(buffers) if id(h) not in besides]
    readers = [(h, n) for h, n in found if id(h._followed) not in besides]
    holders = [h for h, _ in readers]
    for holder, leaf in zip(holders, compute([n for _, n in readers], holders), strict=True):
        holder.lazy = leaf


# ---- realizing ----


def realize(holders: Sequence[Holder]) -> None:
    """Compute what these hold; each then holds a leaf, so that its graph can be forgotten."""
    if not any(map(_is_pending, holders)):
        return
    with turn:
        unreal = list(filter(_is_pending, holders))
        leaves = compute([holder.lazy for holder in unreal], unreal)
        for holder, leaf in zip(unreal, leaves, strict=True):
            holder.lazy = leaf


def compute(nodes: Sequence[LazyBuffer], holders: Sequence[Holder] = ()) -> list[Data]:
    """A leaf with the values of each node, which `holders` hold. In the caller's turn."""
    wanted, order = list(nodes), numbered(nodes)
    readers: list[tuple[Holder, LazyBuffer]] = []
    buffers: set[int] = set()
    while not (found := _overwritten(order)) <= buffers:  # what is saved may be assigned to, too
        buffers |= found
        if readers := _readers_of(buffers):
            order = numbered([*wanted, *(node for _, node in readers)])
    readers += _parameters_in(order, {*map(id, holders), *(id(h) for h, _ in readers)})
    unreal = [n for n in [*wanted, *(n for _, n in readers)] if type(n) is not Data]
    made: dict[LazyBuffer, Data] = {}
    if unreal:
        unreal = list(dict.fromkeys(unreal))
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
    if trace.wanted(trace.ValuesKept):  # while all still hold what they are computed by
        for holder, _ in readers:
            trace.emit(trace.ValuesKept(holder))
    holding = [*zip(holders, wanted, strict=False), *readers]
    if len(holding) > 1:
        _note_several({id(h): made[n] for h, n in holding if n in made and h._followed is None})
    for holder, node in readers:
        holder.lazy = made[node]
    return [n if isinstance(n, Data) else made[n] for n in wanted]


def _note_several(leaves: dict[int, Data]) -> None:
    """Note which memory several have, whose ids these are."""
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
    routine = _routines.get(key)
    numbers: dict[Number, Data] = {}
    if routine is None and not trace.wanted(trace.Launched):  # a capture's numbers stay
        key, numbers = _varying(key, unreal, order, buffers)
        routine = _routines.get(key)
        buffers += buffers_of(numbers.values())
    if routine is None:
        roots = with_data(unreal, numbers) if numbers else unreal
        routine = Routine(_planned(key, devices, roots, [*leaves, *numbers.values()]))
        if len(_routines) >= _MOST_ROUTINES:
            del _routines[next(iter(_routines))]
        _routines[key] = routine
    results: list[Data] = []
    known: dict[tuple[Any, ...], Data] = {}
    for node, buffer in zip(unreal, routine.run(buffers), strict=True):
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
        dtype, device = number.dtype, number.node.device
        leaf = leaves[number] = lazy.data((), dtype, device)
        value = to_storage(np.array([number.value], dtype.compute), dtype)
        memory[leaf] = Buffer(open_device(device).machine, 1, dtype).write(value)
    return ("varying", *fixed, *family), leaves


def _planned(
    structure: tuple[Any, ...],
    devices: Iterable[str],
    unreal: Sequence[LazyBuffer],
    leaves: Sequence[Data],
) -> Plan:
    """A new plan. What makes it is loaded when there is something to compile."""
    from tinyml.recall import recalled

    def make() -> Plan:
        from tinyml.prepare import prepare

        return prepare(unreal, leaves)

    return recalled(structure, devices, make)


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
    number = order.__getitem__
    sources = map(number, chain.from_iterable(map(_sources, order)))
    shared = {id(b): n for n, b in reversed(list(enumerate(buffers)))}
    return (
        config.current.noopt,
        config.current.beam,
        *map(number, unreal),
        *chain.from_iterable(map(said, order) for said in _SAID),
        *args,
        *sources,
        *[shared[id(b)] for b in buffers],
    )


_SAID = tuple(map(attrgetter, ("__class__", "device", "shape", "dtype")))
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


def zeros(shape: lazy.Shape, dtype: DType, device: str) -> Data:
    """A leaf of zeros: memory that the device clears by itself, without a kernel or a copy."""
    if trace.wanted(trace.Uploaded):  # who listens wants to see values
        return upload(np.zeros(shape, dtype.storage), dtype, device)
    leaf = lazy.data(shape, dtype, device)
    memory[leaf] = Buffer(open_device(device).machine, leaf.size, dtype).clear()
    return leaf


def adopt(address: int, shape: lazy.Shape, dtype: DType, device: str, owner: Any) -> Data | None:
    """A leaf on memory that belongs to `owner`; None if the device cannot use that memory."""
    machine, leaf = open_device(device).machine, lazy.data(shape, dtype, device)
    handle = None
    if address % dtype.itemsize == 0:
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


def buffers_of(leaves: Iterable[Data]) -> list[Buffer]:
    """The memory of leaves."""
    return [memory[leaf] for leaf in leaves]
