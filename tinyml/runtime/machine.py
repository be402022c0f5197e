"""What the rest of tinyml asks of a piece of hardware, and no more."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tinyml.ceilings import Ceilings
from tinyml.dtype import DType
from tinyml.frozen import dataclass
from tinyml.program import Program


@dataclass(frozen=True)
class MemoryStats:
    """Bytes of one machine's memory."""

    in_use: int  # held by live buffers
    cached: int  # kept for reuse
    peak: int  # largest in_use so far
    programs: int = 0  # that loaded programs have of their own


class Executable(Protocol):
    """A program that is ready to run."""

    program: Program

    def launch(self, memories: Sequence[int]) -> None:
        """Start the program on these memories (one per slot). May return before it is done.

        A Fault that it finds is raised here, or where the host next waits for the device.
        """

    def launch_timed(self, memories: Sequence[int]) -> float:
        """Launch, wait, and return the seconds that the device spent on it."""


class Machine(Protocol):
    """One device's memory, pieces of which have addresses, and its ability to run programs."""

    name: str
    dlpack_device: tuple[int, int]  # (1, 0) memory of the host, (2, n) memory of card n

    @property
    def identity(self) -> str:
        """What times depend on: the hardware, and the compiler for it."""

    def ceilings(self) -> Ceilings | None:
        """What this machine can do at best; None if nobody can say."""

    def adopts(self, address: int) -> bool:
        """Whether programs can use memory of somebody else as it lies."""

    def allocate(self, nbytes: int) -> int:
        """Memory for nbytes (>= 0), aligned to 64 bytes at least; OutOfMemoryError if none."""

    def free(self, memory: int, nbytes: int) -> None:
        """Give memory back. Work already launched on it still completes correctly."""

    def copy_in(self, memory: int, data: npt.NDArray[Any]) -> None:
        """Copy a C-contiguous host array into memory; `data` may be reused after return."""

    def clear(self, memory: int, nbytes: int) -> None:
        """Fill memory with zero bits; nothing is copied from the host."""

    def copy_out(self, data: npt.NDArray[Any], memory: int) -> None:
        """Fill a C-contiguous host array from memory, after all launched work is done."""

    def load(self, programs: Iterable[Program]) -> list[Executable]:
        """Compile programs together (or find them in the disk cache); CompileError if not.

        The first may be compiled while the last are still made.
        """

    def synchronize(self) -> None:
        """Wait until all launched work is done; KernelError, or its Fault, if some of it failed."""

    def memory_stats(self) -> MemoryStats:
        """How much memory is in use."""


class OnHost:
    """A machine whose memory is the host's, and whose launches return when they are done."""

    dlpack_device = (1, 0)

    def adopts(self, address: int) -> bool:
        return True

    def copy_in(self, memory: int, data: npt.NDArray[Any]) -> None:
        ctypes.memmove(memory, data.ctypes.data, data.nbytes)

    def clear(self, memory: int, nbytes: int) -> None:
        ctypes.memset(memory, 0, nbytes)

    def copy_out(self, data: npt.NDArray[Any], memory: int) -> None:
        if data.nbytes:  # to ask numpy for the address takes twice as long
            there = ctypes.byref(ctypes.c_char.from_buffer(data.data))
            ctypes.memmove(there, memory, data.nbytes)

    def synchronize(self) -> None:
        """Nothing is ever under way."""


class Buffer:
    """A span of one machine's memory: allocated on first use, freed when forgotten.

    With an `owner` the memory is somebody else's, who is kept alive and frees it. It is `shared`
    if others may write to it at any time. Where `several` tensors have it, since they were equal,
    it is never overwritten: their threads need not know of each other.
    """

    __slots__ = (
        "__weakref__", "_memory", "dtype", "machine", "nbytes", "owner", "several", "shared", "size"
    )  # fmt: skip

    def __init__(
        self,
        machine: Machine,
        size: int,
        dtype: DType,
        memory: int | None = None,
        owner: Any = None,
    ) -> None:
        self.owner, self.shared, self.several = owner, owner is not None, False
        self.machine, self.size, self.dtype = machine, size, dtype
        self.nbytes = size * dtype.itemsize
        self._memory = memory

    @property
    def memory(self) -> int:
        """The address, allocated now if it was not yet."""
        if self._memory is None:
            self._memory = self.machine.allocate(self.nbytes)
        return self._memory

    def write(self, data: npt.NDArray[Any]) -> Buffer:
        """Copy a host array (storage dtype, same number of elements) into the buffer."""
        self.machine.copy_in(self.memory, np.ascontiguousarray(data))
        return self

    def clear(self) -> Buffer:
        """Fill the buffer with zero bits."""
        self.machine.clear(self.memory, self.nbytes)
        return self

    def read(self) -> npt.NDArray[Any]:
        """A fresh host array with the buffer's elements, in storage dtype, flat."""
        data = np.empty(self.size, self.dtype.storage)
        self.machine.copy_out(data, self.memory)
        return data

    def __repr__(self) -> str:
        return f"Buffer({self.machine.name}, {self.size} x {self.dtype})"

    def __del__(self, _at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._memory is not None and self.owner is None and not _at_exit():
            self.machine.free(self._memory, self.nbytes)
            self._memory = None
