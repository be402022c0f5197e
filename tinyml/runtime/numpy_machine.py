"""NUMPY: memory of numpy arrays. It runs no programs: the reference interpreter does."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tinyml import trace
from tinyml.errors import DeviceError, OutOfMemoryError
from tinyml.program import Program
from tinyml.runtime.machine import Executable, MemoryStats, OnHost

_ALIGNMENT = 64  # bytes


class NumpyMachine(OnHost):
    """Host memory for the reference interpreter, each piece in an array of bytes."""

    def __init__(self) -> None:
        self.name = "NUMPY"
        self._arrays: dict[int, npt.NDArray[np.uint8]] = {}  # by the address inside
        self._in_use = self._peak = 0

    def allocate(self, nbytes: int) -> int:
        try:
            raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
        except MemoryError:
            raise OutOfMemoryError(
                f"NUMPY has no memory for {nbytes:,} bytes; {self._in_use:,} are in use"
            ) from None
        address = -(-raw.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        self._arrays[address] = raw
        self._in_use += nbytes
        self._peak = max(self._peak, self._in_use)
        if trace.wanted(trace.Allocated):
            trace.emit(trace.Allocated(self.name, nbytes, self._in_use))
        return address

    def free(self, memory: int, nbytes: int) -> None:
        del self._arrays[memory]
        self._in_use -= nbytes

    def load(self, programs: Iterable[Program]) -> list[Executable]:
        """NUMPY has no compiler: DeviceError."""
        raise DeviceError(
            f"NUMPY runs no programs (asked to load {', '.join(p.name for p in programs)}): its "
            "values come from the reference interpreter; CPU, EMU and CUDA run programs"
        )

    def memory_stats(self) -> MemoryStats:
        return MemoryStats(self._in_use, 0, self._peak)

    @property
    def identity(self) -> str:
        """numpy, of this version."""
        return f"numpy {np.__version__}"

    def ceilings(self) -> None:
        """None: it runs no programs."""
