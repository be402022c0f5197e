"""Launch: run calls on buffers, one by one, or all of a plan in one call of the machine.

One by one is the rule: whoever listens hears of each launch. Where nobody does, a plan whose calls
are all one machine's programs is handed over whole, if that machine takes plans on memory that
is another one each time: then Python costs nothing per kernel.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tinyml import interpret, kernel, lazy, trace
from tinyml.device import open_device
from tinyml.dtype import from_text, to_compute, to_storage
from tinyml.graph import toposort
from tinyml.lazy import LazyBuffer
from tinyml.plan import Call, CopyCall, FixedNumber, KernelCall, NewBuffer, Plan, ReferenceCall
from tinyml.runtime.machine import Buffer, Machine
from tinyml.runtime.memory import size_class
from tinyml.turn import turn

_ran, _launched = trace.listeners(trace.KernelRan), trace.listeners(trace.Launched)

# ---- one by one ----


def execute(call: Call | ReferenceCall, buffers: Sequence[Buffer]) -> None:
    """Issue one call on these buffers."""
    if _launched:
        trace.emit(trace.Launched(call, tuple(buffers)))
    if isinstance(call, CopyCall):
        _copy(buffers[0], buffers[1])
    elif isinstance(call, ReferenceCall):
        _interpret_graph(call, buffers)
    elif call.executable is None:
        _interpret(call, buffers)
    elif _ran:
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


# ---- all at once ----


class NativePlan(Protocol):
    """Launches that a machine runs in order without coming back to Python in between."""

    def run(self) -> None:
        """Run all launches."""

    def rebind(self, call: int, slot: int, address: int) -> None:
        """From now on, launch number `call` uses the memory at `address` for `slot`."""


class _FreePlan(NativePlan, Protocol):
    """A plan that may run on other memory each time."""

    def run_on(self, memories: Sequence[int]) -> None:
        """Run once on these memories: those of the first launch, then those of the second, ..."""


def machine_of(calls: Sequence[Call | ReferenceCall]) -> Machine | None:
    """The machine whose programs all the calls are; None if there is none."""
    devices = set()
    for call in calls:
        if not isinstance(call, KernelCall) or call.executable is None:
            return None
        devices.add(call.device)
    return open_device(devices.pop()).machine if len(devices) == 1 else None


def native(calls: Sequence[Any], memories: Sequence[Sequence[int]]) -> NativePlan | None:
    """The calls on these memories as a plan of their machine; None if it takes none."""
    make = getattr(machine_of(calls), "plan", None)
    if make is None:
        return None
    plan: NativePlan = make([(call.executable, m) for call, m in zip(calls, memories, strict=True)])
    return plan


def watched() -> bool:
    """Whether somebody wants to hear of each launch."""
    return bool(_ran or _launched)


class PlanRunner:
    """Runs a plan again and again: in one call of the machine if it can, else call by call."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._own = [hold(number) for number in plan.numbers]
        self._numbers = [number for call in plan.calls for number in call.buffers]
        self._blocks, self._block_of = _place(plan)
        self._free: _FreePlan | None = None
        if len(plan.calls) > 1:  # a single launch is one call as it is
            none = [(0,) * len(call.buffers) for call in plan.calls]
            made: Any = native(plan.calls, none)
            self._free = made if hasattr(made, "run_on") else None

    def run(self, given: Sequence[Buffer]) -> list[Buffer]:
        """Run all calls on the buffers of the leaves; the buffers of the results."""
        if self._plan.overwrites:
            turn.hold()
        given = [*given, *self._own]
        if self._free is None or watched():
            return self._one_by_one(given)
        blocks = [make(block) for block in self._blocks]
        buffers = [*given, *map(blocks.__getitem__, self._block_of)]
        memories = [buffer.memory for buffer in buffers]
        self._free.run_on([memories[number] for number in self._numbers])
        return [buffers[number] for number in self._plan.results]

    def _one_by_one(self, given: Sequence[Buffer]) -> list[Buffer]:
        plan = self._plan
        buffers: list[Buffer | None] = [*given, *map(make, plan.new)]
        for call, forget in zip(plan.calls, plan.forget, strict=True):
            execute(call, [b for n in call.buffers if (b := buffers[n]) is not None])
            for number in forget:
                buffers[number] = None
        return [b for n in plan.results if (b := buffers[n]) is not None]


def make(new: NewBuffer) -> Buffer:
    """A buffer as a plan describes it."""
    return Buffer(open_device(new.device).machine, new.size, new.dtype)


def hold(number: FixedNumber) -> Buffer:
    """Memory with a number in it."""
    value = np.array([from_text(number.text, number.dtype)], number.dtype.compute)
    buffer = Buffer(open_device(number.device).machine, 1, number.dtype)
    return buffer.write(to_storage(value, number.dtype))


def _place(plan: Plan) -> tuple[list[NewBuffer], list[int]]:
    """Blocks of memory, and which of them each new buffer gets.

    As the machine would give them out one by one: what is forgotten is free for the next buffer
    of its size. So a plan that runs in one go needs no more memory. A block is described as
    the last buffer in it, which may be a result that somebody keeps.
    """
    blocks: list[NewBuffer] = []
    found: dict[int, int] = {}
    free: dict[tuple[str, int], list[int]] = {}
    for number, after in _lives(plan):
        new = plan.new[number]
        kind = new.device, size_class(new.size * new.dtype.itemsize)
        if after:
            free.setdefault(kind, []).append(found[number])
        elif free.get(kind):
            found[number] = free[kind].pop()
            blocks[found[number]] = new
        else:
            found[number] = len(blocks)
            blocks.append(new)
    return blocks, [found[number] for number in range(len(plan.new))]


def _lives(plan: Plan) -> Iterator[tuple[int, bool]]:
    """New buffers in the order in which they are first needed (False) and forgotten (True)."""
    begun: set[int] = set()
    for call, forget in zip(plan.calls, plan.forget, strict=True):
        for number in call.buffers:
            if number >= plan.leaves and number not in begun:
                begun.add(number)
                yield number - plan.leaves, False
        for number in forget:
            yield number - plan.leaves, True
    for number in range(plan.leaves, plan.leaves + len(plan.new)):
        if number not in begun:  # empty, so that no kernel writes it
            yield number - plan.leaves, False
