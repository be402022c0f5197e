"""What a function does while it is captured: every launch, draw and upload, in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinyml import kernel, lazy, trace
from tinyml.errors import JitError
from tinyml.graph import toposort
from tinyml.plan import CopyCall, KernelCall
from tinyml.runtime.machine import Buffer


@dataclass
class Recording:
    """The events of one run of a function."""

    launches: list[trace.Launched] = field(default_factory=list)
    draws: list[trace.RandomDrawn] = field(default_factory=list)
    uploads: list[trace.Uploaded] = field(default_factory=list)
    kept: list[trace.ValuesKept] = field(default_factory=list)

    def constants(self) -> list[lazy.Data]:
        """Leaves with values of the host, other than random counters."""
        counters = {event.leaf for event in self.draws}
        return [event.leaf for event in self.uploads if event.leaf not in counters]

    def outline(self) -> Outline:
        """What was done, without tensors and memory."""
        counters = {event.leaf for event in self.draws}
        uploads = [u.values for u in self.uploads if u.leaf not in counters]
        coarse, fine = zip(*map(_outline, self.launches), strict=True) if self.launches else ((), ())
        return Outline(
            tuple((u.shape, u.dtype) for u in uploads),
            tuple(np.asarray(u).tobytes() for u in uploads),
            coarse,
            fine,
        )


@dataclass(frozen=True)
class Outline:
    """What two runs of a function are compared by: first what they did, then with what numbers."""

    uploads: tuple[Any, ...]
    uploaded: tuple[bytes, ...]
    launches: tuple[Any, ...]
    launched: tuple[Any, ...]

    def check_same(self, earlier: Outline) -> None:
        """JitError if two runs did the same things with other numbers: a replay could not."""
        if self.uploads == earlier.uploads and self.uploaded != earlier.uploaded:
            number = _first_difference(self.uploaded, earlier.uploaded)
            shape, dtype = self.uploads[number]
            raise JitError(
                f"the function makes a Tensor of {dtype} {shape} from host values that were not "
                f"the same in its last two calls; a replay would repeat the last ones. {_INSTEAD}"
            )
        if self.launches == earlier.launches and self.launched != earlier.launched:
            number = _first_difference(self.launched, earlier.launched)
            raise JitError(
                f"the function computes with a Python number (in {self.launches[number]}) that "
                "was not the same in its last two calls; a replay would repeat the last one. "
                f"{_INSTEAD}"
            )


_INSTEAD = "Pass what changes as a Tensor argument, or keep it in a Tensor and assign() to it"


def _first_difference(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> int:
    pairs = enumerate(zip(ours, theirs, strict=True))
    return next(number for number, (a, b) in pairs if a != b)


def _outline(event: trace.Launched) -> tuple[Any, Any]:
    """What a call does in words, and exactly."""
    call = event.call
    if isinstance(call, KernelCall):
        return kernel.name(call.kernel), call.kernel
    if isinstance(call, CopyCall):
        return "copy", None
    order = toposort(call.nodes)
    number = {node: n for n, node in enumerate(order)}
    words = ", ".join(sorted({type(n).__name__.lower() for n in order}))
    sources = tuple(tuple(number[s] for s in n.sources) for n in order)
    return f"{len(order)} nodes: {words}", tuple(
        (type(n), n.shape, n.dtype, None if isinstance(n, lazy.Data) else n.arg, s)
        for n, s in zip(order, sources, strict=True)
    )


class _Capturing:
    """Whether a capture is under way: a TinyJit inside of it runs its function plainly."""

    __slots__ = ("active",)

    def __init__(self) -> None:
        self.active = False


capturing = _Capturing()


@contextmanager
def record(refuse_reads: bool) -> Iterator[Recording]:
    """Collect what happens; `refuse_reads`: reading a value on the host is an error."""
    found = Recording()
    with ExitStack() as stack:
        for kind, events in (
            (trace.Launched, found.launches),
            (trace.RandomDrawn, found.draws),
            (trace.Uploaded, found.uploads),
            (trace.ValuesKept, found.kept),
        ):
            stack.callback(trace.subscribe(kind, events.append))
        if refuse_reads:
            stack.callback(trace.subscribe(trace.HostRead, _refuse))
        yield found


def _refuse(event: trace.HostRead) -> None:
    raise JitError(
        f"a value on {event.device} is read on the host (numpy(), item(), bool(), ...) while "
        "TinyJit captures the function: a replay would not read it again. Return the tensor and "
        "read it outside; choose between tensors with .where()"
    )


def written(call: Any) -> tuple[int, ...]:
    """Positions among a call's buffers that it writes."""
    if isinstance(call, KernelCall):
        return tuple(dict.fromkeys(output.slot for output in call.kernel.outputs))
    if isinstance(call, CopyCall):
        return (1,)
    return tuple(range(len(call.leaves), len(call.leaves) + len(call.nodes)))


def read(call: Any) -> tuple[int, ...]:
    """Positions among a call's buffers that it reads: a scatter reads what it adds to."""
    if isinstance(call, KernelCall):
        only_written = {o.slot for o in call.kernel.outputs} - {
            o.slot for o in call.kernel.outputs if o.index is not None
        }
        return tuple(s for s in range(len(call.kernel.slots)) if s not in only_written)
    if isinstance(call, CopyCall):
        return (0,)
    return tuple(range(len(call.leaves)))


@dataclass(frozen=True)
class Launch:
    """A call, and what it reads and writes by the numbers that a capture gives to buffers."""

    call: Any  # plan.Call or plan.ReferenceCall
    buffers: tuple[int, ...]
    reads: frozenset[int]
    writes: frozenset[int]


def number_buffers(launches: list[trace.Launched]) -> tuple[list[Launch], list[Buffer]]:
    """Launches with numbers for buffers, and the buffers."""
    numbers: dict[int, int] = {}
    buffers: list[Buffer] = []
    numbered = []
    for event in launches:
        for buffer in event.buffers:
            if id(buffer) not in numbers:
                numbers[id(buffer)] = len(buffers)
                buffers.append(buffer)
        own = tuple(numbers[id(b)] for b in event.buffers)
        reads = frozenset(own[i] for i in read(event.call))
        writes = frozenset(own[i] for i in written(event.call))
        numbered.append(Launch(event.call, own, reads, writes))
    return numbered, buffers


def needed(launches: list[Launch], roots: set[int]) -> list[Launch]:
    """The launches that the buffers `roots` are computed by."""
    wanted, kept = set(roots), []
    for launch in reversed(launches):
        if launch.writes & wanted:
            wanted |= launch.reads
            kept.append(launch)
    return kept[::-1]
