"""Rooms announce what they do; listeners print, count, record or draw.

A room calls `emit(event)` and knows none of its listeners. Emitting is free when nobody
listens: hot paths ask `wanted(KernelRan)` before they build an event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, NamedTuple, TypeAlias, TypeVar

Event: TypeAlias = tuple[Any, ...]  # one of the classes below


class DeviceOpened(NamedTuple):
    """A device was used for the first time."""

    name: str
    target: Any  # codegen.target.Target, or None
    seconds: float


class DevicePassedOver(NamedTuple):
    """A faster device than the one that became the default does not answer."""

    name: str
    reason: str


class Scheduled(NamedTuple):
    """The scheduler turned a graph into kernels and copies, each with its reasons."""

    items: tuple[Any, ...]  # schedule.KernelItem and schedule.CopyItem
    seconds: float


class KernelLowered(NamedTuple):
    """Codegen went from a Kernel to a Program; every value on the way, for printing."""

    kernel: Any  # kernel.Kernel
    nest: Any  # codegen LoopNest before the Opts
    opts: tuple[Any, ...]
    optimized: Any  # codegen LoopNest after the Opts
    linear: Any  # codegen LinearKernel
    program: Any  # program.Program
    seconds: float


class Tried(NamedTuple):
    """A search tried one list of Opts for a kernel."""

    device: str
    name: str
    opts: tuple[Any, ...]
    seconds: float | None  # None: it was discarded
    why: str  # it was discarded


class Searched(NamedTuple):
    """A search for the fastest list of Opts ended."""

    device: str
    name: str
    opts: tuple[Any, ...]  # the best
    seconds: float  # of a launch with them
    default: float  # of a launch with what the rules of thumb choose
    tried: int
    took: float  # seconds


class Compiled(NamedTuple):
    """A compiler turned source into a binary (or a cache held it)."""

    device: str
    names: tuple[str, ...]
    seconds: float
    cached: bool
    command: str  # the command line, or the library call
    output: str  # what the compiler said: warnings, registers, spills


class KernelRan(NamedTuple):
    """A kernel was launched, and waited for because somebody listens."""

    device: str
    program: Any  # program.Program
    seconds: float
    shapes: tuple[tuple[int, ...], ...]
    memory_used: int  # bytes in use on the device
    outputs: int = 1  # how many of the shapes, from the first on, are written


class Interpreted(NamedTuple):
    """numpy computed what other devices have kernels for."""

    device: str
    name: str  # what was computed
    shapes: tuple[tuple[int, ...], ...]  # of the results
    seconds: float
    memory_used: int  # bytes in use on the device


class Launched(NamedTuple):
    """A call was issued to a machine (not waited for). What TinyJit captures."""

    call: Any  # plan.Call or plan.ReferenceCall
    buffers: tuple[Any, ...]  # machine Buffers, in the order the call takes them


class Copied(NamedTuple):
    """Bytes went between the host and a device or between devices."""

    source: str
    target: str
    nbytes: int
    seconds: float


class Allocated(NamedTuple):
    """A machine gave out memory."""

    device: str
    nbytes: int
    in_use: int


class Uploaded(NamedTuple):
    """Values of the host became a leaf."""

    leaf: Any  # lazy.Data
    values: Any  # numpy array, in storage dtype


class Realizing(NamedTuple):
    """A graph is about to be computed: leaves may be overwritten."""

    leaves: tuple[Any, ...]  # lazy.Data
    wanted: tuple[Any, ...]  # lazy.LazyBuffer: what was asked for, without those that read it


class Realized(NamedTuple):
    """A graph was computed: these leaves hold the values of the nodes now."""

    nodes: tuple[Any, ...]  # lazy.LazyBuffer
    results: tuple[Any, ...]  # lazy.Data


class Held(NamedTuple):
    """A tensor holds another node than before, or its first."""

    holder: Any  # a Tensor


class Assigning(NamedTuple):
    """A tensor is about to be assigned to."""

    tensor: Any


class Flagged(NamedTuple):
    """Whether a tensor that is in memory requires a gradient is about to be said."""

    tensor: Any


class GradientSet(NamedTuple):
    """`backward` gave a tensor a gradient, or added to it."""

    tensor: Any


class ValuesKept(NamedTuple):
    """A tensor is about to hold a copy of its values, because an assignment overwrites them."""

    holder: Any  # a Tensor


class HostRead(NamedTuple):
    """A value is about to be read on the host (`numpy()`, `item()`, `bool()`, ...)."""

    device: str


class RandomDrawn(NamedTuple):
    """A random stream advanced. `leaf` is the node that holds the counter of this draw."""

    leaf: Any  # lazy.Data
    offset: int  # first counter value of this draw


Listener = Callable[[Any], None]
_E = TypeVar("_E", bound=Event)
_listeners: dict[type[Event], list[Listener]] = {}


def listeners(kind: type[Event]) -> list[Listener]:
    """Who listens for this kind of event, now and whenever one looks again."""
    return _listeners.setdefault(kind, [])


def wanted(kind: type[Event]) -> bool:
    """Whether anybody listens for this kind of event."""
    return bool(_listeners.get(kind))


def emit(event: Event) -> None:
    """Announce an event to whoever listens."""
    for listener in tuple(_listeners.get(type(event), ())):
        listener(event)


def subscribe(
    kind: type[_E], listener: Callable[[_E], None], here: bool = False
) -> Callable[[], None]:
    """Call `listener` for every event of `kind`, or of this thread; returns what ends it."""
    thread, those = get_ident(), listeners(kind)

    def told(event: _E) -> None:
        if not here or get_ident() == thread:
            listener(event)

    those.append(told)
    return lambda: those.remove(told)


@contextmanager
def listen(kind: type[_E]) -> Iterator[list[_E]]:
    """Collect the events of one kind: `with listen(KernelRan) as launches: ...`."""
    collected: list[_E] = []
    unsubscribe = subscribe(kind, collected.append)
    try:
        yield collected
    finally:
        unsubscribe()
