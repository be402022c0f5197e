"""What a function does while it is captured: every launch, draw and upload, in order."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import field
from itertools import chain, islice
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from tinyml import kernel, lazy, trace
from tinyml.errors import JitError
from tinyml.frozen import dataclass
from tinyml.graph import toposort
from tinyml.ledger import has_data, memory, pending
from tinyml.plan import Call, CopyCall, KernelCall, NewBuffer, ReferenceCall, computed_by
from tinyml.runtime.machine import Buffer


def flows(call: Call | ReferenceCall) -> dict[int, set[int]]:
    """Positions among a call's buffers that it writes, each with those that this is made of."""
    if isinstance(call, KernelCall):
        return {output.slot: _made_of(output) for output in call.kernel.outputs}
    if isinstance(call, CopyCall):
        return {1: {0}}
    number = {leaf: n for n, leaf in enumerate(call.leaves)}
    return {
        n: {number[x] for x in toposort([node], sources=lazy.read_sources) if x in number}
        for n, node in enumerate(call.nodes, len(number))
    }


def _made_of(output: kernel.Output) -> set[int]:
    slots = {node.arg for node in toposort(output.roots) if isinstance(node, lazy.Slot)}
    return slots | {output.slot} if output.keeps else slots


def _key(call: Call | ReferenceCall) -> int:
    """The same for all launches of one kernel, while one of them is there."""
    return id(call.kernel if isinstance(call, KernelCall) else call)


@dataclass(frozen=True)
class Launch:
    """A call, and what it makes of what, by the numbers that a capture gives to buffers."""

    call: Any  # plan.Call or plan.ReferenceCall
    buffers: tuple[int, ...]
    flows: dict[int, frozenset[int]]

    @property
    def reads(self) -> frozenset[int]:
        return frozenset(self.buffers).difference(self.flows).union(*self.flows.values())

    @property
    def writes(self) -> frozenset[int]:
        return frozenset(self.flows)

    @property
    def finds_faults(self) -> bool:
        """Whether values can be such that it raises."""
        return any(isinstance(node, lazy.Require) for node in computed_by(self.call))


class Said(NamedTuple):
    """What the nodes of a graph say, sources first; none of them is kept for it."""

    kinds: tuple[type[lazy.LazyBuffer], ...]
    shapes: tuple[lazy.Shape, ...]
    dtypes: tuple[Any, ...]
    args: tuple[Any, ...]
    counts: tuple[int, ...]  # of sources
    sources: tuple[int, ...]  # of all nodes, one after the other, by number


def said(nodes: Sequence[lazy.LazyBuffer]) -> Said:
    """What nodes say; without a step of Python for each, as whole training steps are asked."""
    number = {node: n for n, node in enumerate(nodes)}
    sources = [*map(_sources, nodes)]
    shapes, dtypes, args = (tuple(map(part, nodes)) for part in _PARTS)
    numbers = tuple(map(number.__getitem__, chain.from_iterable(sources)))
    return Said(tuple(map(type, nodes)), shapes, dtypes, args, tuple(map(len, sources)), numbers)


_PARTS = attrgetter("shape"), attrgetter("dtype"), attrgetter("arg")
_sources: Callable[[lazy.LazyBuffer], tuple[lazy.LazyBuffer, ...]] = attrgetter("sources")
_Done: TypeAlias = tuple[tuple[Any, ...], tuple[Any, ...]]  # a graph, and the numbers in it
_ByNode: TypeAlias = WeakKeyDictionary[lazy.LazyBuffer, list[weakref.ref[Any]]]


def _pending_by_node() -> _ByNode:
    """Who holds which node that is not real yet, but for views, which are read from others."""
    found: _ByNode = WeakKeyDictionary()
    for holder in pending():
        if holder._followed is None:
            found.setdefault(holder._lazy, []).append(weakref.ref(holder))
    return found


@dataclass
class Recording:
    """One run of a function. Buffers have numbers, and live no longer than without us.

    But of those that were there before, which `outside` has, the ones that are used are kept.
    """

    outside: Container[Buffer] = ()
    kept: list[Buffer] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    buffers: list[NewBuffer] = field(default_factory=list)
    numbers: WeakKeyDictionary[Buffer, int] = field(default_factory=WeakKeyDictionary)
    draws: list[trace.RandomDrawn] = field(default_factory=list)
    uploads: list[trace.Uploaded] = field(default_factory=list)
    _flows: dict[int, dict[int, set[int]]] = field(default_factory=dict)  # by key
    _said_by: dict[int, Said] = field(default_factory=dict)  # likewise
    _asked: list[Said] = field(default_factory=list)
    waiting: list[weakref.ref[Any]] = field(default_factory=list)  # outside, and used as pending
    _outside: _ByNode = field(default_factory=WeakKeyDictionary)
    _assigned: list[weakref.ref[Any]] = field(default_factory=list)
    flagged: dict[int, weakref.ref[Any]] = field(default_factory=dict)  # by id
    graded: dict[int, weakref.ref[Any]] = field(default_factory=dict)  # who got gradients, by id
    _changed: dict[int, weakref.ref[Any]] = field(default_factory=dict)
    _keeping: set[int] = field(default_factory=set)  # ids of tensors that will hold copies
    foreign: set[int] = field(default_factory=set)  # what another thread assigns to is there
    required: tuple[bool, ...] = ()  # who of the arguments required a gradient
    recorded: bool | None = None  # whether ops were, if gradients were found
    disturbed: bool = False  # what the function makes is made of what another thread assigns

    def begin(self) -> None:
        """Forget what was noted: all that there is until now is from outside."""
        self._outside = _pending_by_node()
        self._changed.clear()

    def launched(self, event: trace.Launched) -> None:
        """Note a launch."""
        own, call = tuple(map(self.number, event.buffers)), event.call
        key = _key(call)
        if key not in self._flows:
            self._flows[key] = flows(call)
        made = self._flows[key].items()
        numbered = {own[slot]: frozenset([own[i] for i in of]) for slot, of in made}
        self.launches.append(Launch(call, own, numbered))

    def number(self, buffer: Buffer) -> int:
        """The number of a buffer, a new one if it has none."""
        number = self.numbers.get(buffer)
        if number is None:
            number = self.numbers[buffer] = len(self.buffers)
            if buffer in self.outside:
                self.kept.append(buffer)
            self.buffers.append(NewBuffer(buffer.size, buffer.dtype, buffer.machine.name))
        return number

    def assigning(self, event: trace.Assigning) -> None:
        """Note who is assigned to."""
        self._assigned.append(weakref.ref(event.tensor))

    def flags(self, event: trace.Flagged) -> None:
        """Note that the function says itself whether a tensor requires a gradient."""
        self.flagged[id(event.tensor)] = weakref.ref(event.tensor)

    def grades(self, event: trace.GradientSet) -> None:
        """Note who gets a gradient, perhaps for a while."""
        self.graded[id(event.tensor)] = weakref.ref(event.tensor)

    def assigned(self) -> list[Any]:
        """Who was assigned to and is still there."""
        alive = [t for reference in self._assigned if (t := reference()) is not None]
        return list({id(t): t for t in alive}.values())

    def realizing(self, event: trace.Realizing) -> None:
        """Note pending tensors from outside whose graphs are a part of what is computed."""
        held = _pending_by_node().items()
        now = {node: of for node, of in held if not any(self.changed(t()) for t in of)}
        nodes = toposort(event.wanted)
        self._asked.append(said(nodes))
        for node in filter({*self._outside, *now}.__contains__, nodes):
            if has_data(node):
                self.waiting += [*self._outside.get(node, ()), *now.get(node, ())]

    def left(self) -> list[Any]:
        """The tensors that were made or assigned to, and are still there."""
        return [t for reference in self._changed.values() if (t := reference()) is not None]

    def held(self, event: trace.Held) -> None:
        """Note a tensor with another node, unless that only saves its values (values_kept)."""
        key = id(event.holder)
        if key in self._keeping:
            self._keeping.remove(key)
        else:
            self._changed[key] = weakref.ref(event.holder)

    def values_kept(self, event: trace.ValuesKept) -> None:
        """A tensor from outside gets a copy of its values: it is not changed by the function."""
        if not self.changed(event.holder):
            self._keeping.add(id(event.holder))
            ours = self._overwritten(tensor.lazy for tensor in self.assigned())
            theirs = {
                node
                for node in toposort([event.holder.lazy])
                if isinstance(node, lazy.Assign) and not self._overwritten([node]) <= ours
            }
            self.foreign |= self._overwritten(theirs)
            own = [holder.lazy for holder in pending() if self.changed(holder)]
            self.disturbed |= not theirs.isdisjoint(toposort(own))

    def _overwritten(self, nodes: Iterable[lazy.LazyBuffer]) -> set[int]:
        targets = [t for node in nodes if isinstance(t := lazy.assigned(node), lazy.Data)]
        return {self.number(memory[target]) for target in targets}

    def changed(self, tensor: Any) -> bool:
        """Whether the function made a tensor or assigned to it."""
        reference = self._changed.get(id(tensor))
        return reference is not None and reference() is tensor

    def constants(self) -> list[lazy.Data]:
        """Leaves with values of the host, other than random counters."""
        return [upload.leaf for upload in self._uploaded()]

    def _uploaded(self) -> list[trace.Uploaded]:
        counters = {event.leaf for event in self.draws}
        return [event for event in self.uploads if event.leaf not in counters]

    def outline(self) -> Outline:
        """What was done, without tensors and memory."""
        uploads = [upload.values for upload in self._uploaded()]
        shapes = tuple((u.shape, u.dtype) for u in uploads)
        values = tuple(np.asarray(u).tobytes() for u in uploads)
        if self.foreign:  # what others compute with is not compared
            return Outline(shapes, values, (), ())
        launched = tuple(map(self._said, self.launches))
        return Outline(shapes, values, tuple(self._asked), launched)

    def _said(self, launch: Launch) -> Said:
        key = _key(launch.call)
        if key not in self._said_by:
            self._said_by[key] = said(computed_by(launch.call))
        return self._said_by[key]


@dataclass(frozen=True)
class Outline:
    """What two runs of a function are compared by: what they did, and with what numbers.

    Graphs are compared as they were asked for, because x * 1 is no kernel where x * 2 is one; and
    as they were launched, because states are computed in another order by a capture.
    """

    uploads: tuple[Any, ...]
    uploaded: tuple[bytes, ...]
    asked: tuple[Said, ...]
    launched: tuple[Said, ...]

    def check_same(self, earlier: Outline) -> None:
        """JitError if two runs did the same things with other numbers: a replay could not."""
        if self.uploads == earlier.uploads and self.uploaded != earlier.uploaded:
            number = _first_difference(self.uploaded, earlier.uploaded)
            shape, dtype = self.uploads[number]
            raise JitError(
                f"the function makes a Tensor of {dtype} {shape} from host values that were not "
                f"the same in its last two calls; a replay would repeat the last ones. {INSTEAD}"
            )
        _check_numbers(self.asked, earlier.asked)
        _check_numbers(self.launched, earlier.launched)


def _check_numbers(ours: Sequence[Said], theirs: Sequence[Said]) -> None:
    if ours == theirs or len(ours) != len(theirs):
        return
    graphs = {id(graph): graph for graph in (*ours, *theirs)}  # kernels are launched many times
    done = {number: _done(graph) for number, graph in graphs.items()}
    now, then = ([done[id(graph)] for graph in those] for those in (ours, theirs))
    if now == then or [graph for graph, _ in now] != [graph for graph, _ in then]:
        return
    number = _first_difference(now, then)
    new, old = now[number][1], then[number][1]
    which = _first_difference(new, old)
    raise JitError(
        "the function computes with a Python number that was not the same in its last "
        f"two calls ({_plain(old[which])}, then {_plain(new[which])}); a replay would "
        f"repeat the last one. {INSTEAD}"
    )


def _plain(arg: Any) -> str:
    """A constant is written in hexadecimal, so that it is exact."""
    return str(float.fromhex(arg)) if isinstance(arg, str) and "0x" in arg else str(arg)


RESET = "After .reset() the function is captured anew"
INSTEAD = "Pass what changes as a Tensor argument, or keep it in a Tensor and assign() to it"


def _first_difference(ours: Sequence[Any], theirs: Sequence[Any]) -> int:
    pairs = enumerate(zip(ours, theirs, strict=True))
    return next(number for number, (a, b) in pairs if a != b)


def _done(graph: Said) -> _Done:
    """What a graph computes, without the numbers in it, and these numbers."""
    left = iter(graph.sources)
    sources = [tuple(islice(left, count)) for count in graph.counts]
    constant: dict[int, tuple[Any, ...]] = {}  # what is one number everywhere
    for n, (kind, arg) in enumerate(zip(graph.kinds, graph.args, strict=True)):
        if kind is lazy.Const or (kind is lazy.Move and sources[n][0] in constant):
            constant[n] = (arg, *_told(constant, sources[n]))
    # it counts wherever it is read: numbers that are equal may be one node
    read = constant.keys() & set(graph.sources)
    kept = [n for n in range(len(sources)) if n not in read]
    place = {n: number for number, n in enumerate(kept)}

    def at(n: int) -> Any:
        number = constant[n] if n in read else ()
        return (graph.shapes[n], graph.dtypes[n], len(number)) if number else place[n]

    parts = graph.kinds, graph.shapes, graph.dtypes
    shown = tuple((*(part[n] for part in parts), tuple(map(at, sources[n]))) for n in kept)
    numbers = [
        *(graph.args[n] for n in kept if graph.kinds[n] in (lazy.Const, lazy.Move)),
        *(number for n in kept for number in _told(constant, sources[n])),
    ]
    return shown, tuple(numbers)


def _told(constant: dict[int, tuple[Any, ...]], sources: Iterable[int]) -> list[Any]:
    return [number for source in sources for number in constant.get(source, ())]


class _Capturing(threading.local):
    """Whether a capture is under way: a TinyJit inside of it runs its function plainly."""

    active = False


capturing = _Capturing()


@contextmanager
def record(refuse_reads: bool, outside: Container[Buffer] = ()) -> Iterator[Recording]:
    """Collect what this thread does; `refuse_reads`: reading a value on the host is an error."""
    found = Recording(outside)
    listeners: dict[type[trace.Event], trace.Listener] = {
        trace.RandomDrawn: found.draws.append,
        trace.Uploaded: found.uploads.append,
        trace.Launched: found.launched,
        trace.Realizing: found.realizing,
        trace.Assigning: found.assigning,
        trace.Flagged: found.flags,
        trace.GradientSet: found.grades,
        trace.Held: found.held,
        trace.ValuesKept: found.values_kept,
    }
    if refuse_reads:
        listeners[trace.HostRead] = _refuse
    with ExitStack() as stack:
        for kind, listener in listeners.items():
            stack.callback(trace.subscribe(kind, listener, here=True))
        found.begin()
        yield found


def _refuse(event: trace.HostRead) -> None:
    raise JitError(
        f"a value on {event.device} is read on the host (numpy(), item(), bool(), a mask as "
        "an index, ...) while "
        "TinyJit captures the function: a replay would not read it again. Return the tensor and "
        "read it outside; choose between tensors with .where()"
    )


def needed(launches: list[Launch], roots: set[int]) -> tuple[list[Launch], set[int]]:
    """The launches that the buffers `roots` are computed by, and all that these are made of.

    What a launch makes besides may be made of anything, unless it could find fault with it.
    """
    wanted, kept = set(roots), []
    for launch in reversed(launches):
        if made := launch.writes & wanted:
            wanted |= launch.reads if launch.finds_faults else set()
            wanted.update(*[launch.flows[number] for number in made])
            kept.append(launch)
    return kept[::-1], wanted
