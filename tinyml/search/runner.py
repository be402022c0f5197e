"""A runner: programs of one kernel compiled, checked against the default, and timed, here.

They run on scratch memory: random numbers in the shapes of the kernel's slots. Nothing live is
touched, so that a search may run before, between or after real launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod, sqrt
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tinyml.codegen.nest import LoopNest
from tinyml.device import OpenDevice
from tinyml.dtype import DType, bfloat16, float16, float32, float64, to_compute, to_storage
from tinyml.frozen import dataclass
from tinyml.kernel import Kernel
from tinyml.lazy import Shape
from tinyml.program import Program
from tinyml.runtime.machine import Buffer, Executable, Machine

Array: TypeAlias = npt.NDArray[Any]
Timer: TypeAlias = Callable[[Executable, Sequence[int]], float]  # seconds of one launch

_SLOW = 2.5  # times the fastest so far: who takes that long twice is timed no further
_SPAN, _LEAST, _MOST = 0.03, 3, 40  # seconds to time one for; launches at least, and at most
_STEP = {float64: 2.0**-52, float32: 2.0**-23, float16: 2.0**-10, bfloat16: 2.0**-7}
_STEPS = 8  # by which results may differ, times the root of how many numbers are summed up


# ---- scratch memory, and what to expect of its numbers ----


@dataclass(frozen=True)
class Drawn:
    """What is to be drawn for a kernel."""

    slots: tuple[tuple[tuple[int, ...], DType], ...]
    outputs: tuple[tuple[int, Shape], ...]  # slots that it writes, and what of each is data
    longest: int  # numbers in a sum at most
    faults: bool  # whether it may find fault with numbers


def drawn_for(k: Kernel, plain: LoopNest, faults: bool) -> Drawn:
    outputs = sorted({(output.slot, output.held) for output in k.outputs})
    folds = (prod(a.size for a in fold.axes) for one in plain.nests for fold in one.folds)
    return Drawn(k.slots, tuple(outputs), max(folds, default=1), faults)


class Scratch:
    """A buffer for each slot of a kernel."""

    def __init__(self, drawn: Drawn, machine: Machine) -> None:
        self._drawn, self._machine = drawn, machine
        whole = 1 if drawn.faults else 2  # whole numbers are less than this: they may be indices
        self._given = [_numbers(n, *slot, whole) for n, slot in enumerate(drawn.slots)]
        self._buffers = [
            Buffer(machine, given.size, dtype).write(given)
            for given, (_, dtype) in zip(self._given, drawn.slots, strict=True)
        ]
        self.memories = [buffer.memory for buffer in self._buffers]

    def results(self, executable: Executable) -> list[Array]:
        """What one launch makes of the numbers that were drawn."""
        for slot, _ in self._drawn.outputs:
            self._buffers[slot].write(self._given[slot])
        executable.launch(self.memories)
        self._machine.synchronize()
        return [self._data(slot, held) for slot, held in self._drawn.outputs]

    def _data(self, slot: int, held: Shape) -> Array:
        shape, dtype = self._drawn.slots[slot]
        values = to_compute(self._buffers[slot].read(), dtype)
        return values if held == shape else values.reshape(shape)[tuple(map(slice, held))]

    def agree(self, results: Sequence[Array], right: Sequence[Array]) -> bool:
        """Whether results are the same, up to the rounding of sums in another order."""
        dtypes = [self._drawn.slots[slot][1] for slot, _ in self._drawn.outputs]
        pairs = zip(results, right, dtypes, strict=True)
        return all(same(a, b, self._tolerance(dtype)) for a, b, dtype in pairs)

    def _tolerance(self, dtype: DType) -> float:
        step = _STEP.get(dtype, 0.0)
        summed = min(step, _STEP[float32])  # halves are summed up in float32
        return _STEPS * max(step, summed * sqrt(self._drawn.longest))


def _numbers(seed: int, shape: tuple[int, ...], dtype: DType, whole: int) -> Array:
    """Numbers for a slot, in storage dtype: without signs, so that sums keep their digits."""
    rng = np.random.default_rng(seed)
    if dtype.is_float:
        return to_storage((rng.random(prod(shape)) + 0.5).astype(dtype.compute), dtype)
    return rng.integers(0, whole, prod(shape)).astype(dtype.storage)


def same(result: Array, right: Array, tolerance: float) -> bool:
    """Whether all differences are within `tolerance` of the largest value; NaN equals NaN."""
    if not np.issubdtype(right.dtype, np.floating):
        return bool(np.array_equal(result, right))
    result, right = result.astype(np.float64), right.astype(np.float64)
    finite = np.isfinite(right)
    if not np.array_equal(result[~finite], right[~finite], equal_nan=True):
        return False
    largest = np.abs(right[finite]).max(initial=0.0)
    return bool((np.abs(result[finite] - right[finite]) <= tolerance * largest).all())


# ---- running programs on it ----


@dataclass(frozen=True)
class Given:
    """What programs are tried on, and the one whose results count as right."""

    drawn: Drawn
    default: Program


class Runner(Protocol):
    """Who runs programs; an error says that one is not to be had, or fails."""

    def load(self, program: Program) -> None:
        """Compile a program."""

    def check(self, program: Program) -> None:
        """ArithmeticError if a loaded program does not compute what the default does."""

    def seconds(self, program: Program, best: float) -> float:
        """The least of some launches of a loaded program; few, if it takes longer than `best`."""

    def close(self) -> None:
        """Nothing more is asked."""


def launch_timed(executable: Executable, memories: Sequence[int]) -> float:
    """Seconds of one launch, by the device's own clock."""
    return executable.launch_timed(memories)


class Here:
    """A runner in this process, which has to survive what it runs."""

    def __init__(self, opened: OpenDevice, given: Given, timer: Timer = launch_timed) -> None:
        self._machine, self.timer = opened.machine, timer
        self._scratch = Scratch(given.drawn, opened.machine)
        self._executables: dict[Program, Executable] = {}
        self.load(given.default)
        self._right = self._scratch.results(self._executables[given.default])

    def load(self, program: Program) -> None:
        (self._executables[program],) = self._machine.load([program])

    def check(self, program: Program) -> None:
        if not self._scratch.agree(self._scratch.results(self._executables[program]), self._right):
            raise ArithmeticError("does not compute what the default computes")

    def seconds(self, program: Program, best: float) -> float:
        executable, memories = self._executables[program], self._scratch.memories
        fastest, spent = self.timer(executable, memories), 0.0
        for n in range(_MOST):
            if (n >= 1 and fastest > _SLOW * best) or (n >= _LEAST and spent > _SPAN):
                break
            seconds = self.timer(executable, memories)
            fastest, spent = min(fastest, seconds), spent + seconds
        return fastest

    def close(self) -> None:
        self._executables.clear()
