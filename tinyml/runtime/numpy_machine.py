"""NUMPY: memory that numpy arrays look at. It runs no programs: the reference interpreter does."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from tinyml import trace
from tinyml.errors import DeviceError, OutOfMemoryError
from tinyml.program import Program
from tinyml.runtime.machine import Executable, MemoryStats

_ALIGNMENT = 64  # bytes

Bytes = npt.NDArray[np.uint8]


class NumpyMachine:
    """Host memory for the reference interpreter. A handle is an array of bytes."""

    def __init__(self) -> None:
        self.name = "NUMPY"
        self.dlpack_device = (1, 0)
        self._in_use = self._peak = 0

    def address(self, memory: Bytes) -> int:
        return int(memory.ctypes.data)

    def inside(self, memory: Bytes, offset: int) -> Bytes:
        return memory[offset:]

    def adopt(self, address: int, nbytes: int) -> Bytes:
        """Memory of somebody else, as an array of bytes."""
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))

    def allocate(self, nbytes: int) -> Bytes:
        try:
            raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
        except MemoryError:
            raise OutOfMemoryError(
                f"NUMPY has no memory for {nbytes:,} bytes; {self._in_use:,} are in use"
            ) from None
        offset = -int(raw.ctypes.data) % _ALIGNMENT
        self._in_use += nbytes
        self._peak = max(self._peak, self._in_use)
        if trace.wanted(trace.Allocated):
            trace.emit(trace.Allocated(self.name, nbytes, self._in_use))
        return raw[offset : offset + nbytes]

    def free(self, memory: Bytes, nbytes: int) -> None:
        """Forget the memory: numpy returns it when the last array that looks at it is gone."""
        self._in_use -= nbytes

    def copy_in(self, memory: Bytes, data: npt.NDArray[Any]) -> None:
        memory[: data.nbytes] = data.reshape(-1).view(np.uint8)

    def clear(self, memory: Bytes, nbytes: int) -> None:
        memory[:nbytes] = 0

    def copy_out(self, data: npt.NDArray[Any], memory: Bytes) -> None:
        data.reshape(-1).view(np.uint8)[:] = memory[: data.nbytes]

    def load(self, programs: Iterable[Program]) -> list[Executable]:
        """NUMPY has no compiler: DeviceError."""
        raise DeviceError(
            f"NUMPY runs no programs (asked to load {', '.join(p.name for p in programs)}): its "
            "values come from the reference interpreter; CPU, EMU and CUDA run programs"
        )

    def synchronize(self) -> None:
        """Nothing is ever under way."""

    def memory_stats(self) -> MemoryStats:
        return MemoryStats(self._in_use, 0, self._peak)

    @property
    def identity(self) -> str:
        """numpy, of this version."""
        return f"numpy {np.__version__}"

    def ceilings(self) -> None:
        """None: it runs no programs."""
