"""Scratch memory: random numbers in the shapes of a kernel's slots, and what to expect of them.

Nothing live is touched: a search may run before, between or after real launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tinyml.codegen.nest import LoopNest
from tinyml.dtype import DType, bfloat16, float16, float32, float64, to_compute, to_storage
from tinyml.frozen import dataclass
from tinyml.kernel import Kernel
from tinyml.runtime.machine import Buffer, Executable, Machine

Array: TypeAlias = npt.NDArray[Any]

_STEP = {float64: 2.0**-52, float32: 2.0**-23, float16: 2.0**-10, bfloat16: 2.0**-7}
_STEPS = 8  # by which results may differ, times the root of how many numbers are summed up


@dataclass(frozen=True)
class Drawn:
    """What is to be drawn for a kernel."""

    slots: tuple[tuple[tuple[int, ...], DType], ...]
    outputs: tuple[int, ...]  # slots that it writes
    longest: int  # numbers in a sum at most
    faults: bool  # whether it may find fault with numbers


def drawn_for(k: Kernel, plain: LoopNest, faults: bool) -> Drawn:
    outputs = sorted({output.slot for output in k.outputs})
    return Drawn(k.slots, tuple(outputs), _longest_fold(plain), faults)


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
        for slot in self._drawn.outputs:
            self._buffers[slot].write(self._given[slot])
        executable.launch(self.memories)
        self._machine.synchronize()
        return [
            to_compute(self._buffers[slot].read(), self._drawn.slots[slot][1])
            for slot in self._drawn.outputs
        ]

    def agree(self, results: Sequence[Array], right: Sequence[Array]) -> bool:
        """Whether results are the same, up to the rounding of sums in another order."""
        dtypes = [self._drawn.slots[slot][1] for slot in self._drawn.outputs]
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


def _longest_fold(plain: LoopNest) -> int:
    """How many numbers a fold combines at most."""
    found = (prod(a.size for a in fold.axes) for one in plain.nests for fold in one.folds)
    return max(found, default=1)


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
