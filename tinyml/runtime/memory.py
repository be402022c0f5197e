"""Memory for buffers: what was freed is kept and given out again.

A step that repeats then gets the blocks of the step before, whose pages the system has already
handed over; a fresh page costs about as much as computing on it.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Iterable

import numpy as np

from tinyml import trace
from tinyml.errors import DeviceError, OutOfMemoryError
from tinyml.program import Program
from tinyml.runtime import limits
from tinyml.runtime.machine import Executable, MemoryStats, OnHost
from tinyml.turn import short_lock

ALIGNMENT = _LINE = 64  # bytes of a cache line, and of the widest vector
_HUGE = 2 << 20  # bytes of a huge page
_ADVISE_HUGE_PAGES = 14  # MADV_HUGEPAGE of Linux
_listening = trace.listeners(trace.Allocated)


@functools.lru_cache(1 << 12)
def size_class(nbytes: int, _line: int = _LINE) -> int:
    """The bytes of a block that holds nbytes: at most an eighth more, in whole cache lines."""
    lines = max(1, -(-nbytes // _line))
    step = 1 << max(0, lines.bit_length() - 4)
    return -(-lines // step) * step * _line


class Blocks:
    """Blocks by size class: those that are freed are kept, and given out again.

    At most `limit` bytes (None: any number) are in use and kept together, and at most `keep` bytes
    are kept. Subclasses say where blocks come from, and who takes them back.
    """

    _ask: Callable[[int], int | None]  # the address of a new block of that size, if there is one
    _give_back: Callable[[int], None]
    _full: Callable[[int], str]  # what there is to say when there is no memory

    def __init__(
        self,
        device: str,
        limit: int | None,
        keep: float = float("inf"),
        size: Callable[[int], int] = size_class,
    ) -> None:
        self.device, self.limit, self.keep = device, limit, keep
        self._size = size  # kept here: at exit a buffer may outlive the names of this module
        self._in_use = self._cached = self._peak = 0
        self._kept: dict[int, list[int]] = {}  # addresses of free blocks by size class
        # Re-entrant, since the garbage collector may free a buffer while one is allocated.
        self._lock = short_lock()

    def reuse(self, nbytes: int) -> int | None:
        """The address of a kept block for nbytes, if there is one: nobody else is asked."""
        with self._lock:
            kept = self._kept.get(self._size(nbytes))
            return self.allocate(nbytes) if kept else None

    def allocate(self, nbytes: int) -> int:
        """The address of a block for nbytes; OutOfMemoryError if there is none."""
        size = self._size(nbytes)
        with self._lock:
            kept = self._kept.get(size)
            if kept:
                address = kept.pop()
                self._cached -= size
            else:
                address = self._new(nbytes, size)
            self._in_use += size
            if self._in_use > self._peak:  # in every replay: max() takes as long as the rest
                self._peak = self._in_use
        if _listening:
            trace.emit(trace.Allocated(self.device, nbytes, self._in_use))
        return address

    def free(self, address: int, nbytes: int) -> None:
        """Keep a block for reuse, or give it back if enough is kept."""
        size = self._size(nbytes)
        with self._lock:
            self._in_use -= size
            if self._cached + size > self.keep:
                self._give_back(address)
            else:
                self._cached += size
                self._kept.setdefault(size, []).append(address)

    def empty(self) -> None:
        """Give back every kept block."""
        with self._lock:
            kept, self._kept, self._cached = self._kept, {}, 0
            for address in (address for addresses in kept.values() for address in addresses):
                self._give_back(address)

    def stats(self) -> MemoryStats:
        """Bytes in use and kept."""
        return MemoryStats(self._in_use, self._cached, self._peak)

    def _new(self, nbytes: int, size: int) -> int:
        found = self._fresh(size)
        if found is None and self._cached:
            self.empty()
            found = self._fresh(size)
        if found is None:
            raise OutOfMemoryError(self._full(nbytes))
        return found

    def _fresh(self, size: int) -> int | None:
        """A new block, if there is room for it."""
        room = self.limit is None or self._in_use + self._cached + size <= self.limit
        return self._ask(size) if room else None


class HostMemory(Blocks):
    """Memory of the system. Beyond the limit Linux would promise more, and kill later."""

    def __init__(self, device: str, limit: int | None = None, keep: int | None = None) -> None:
        most = limits.memory() if limit is None else limit
        super().__init__(device, most, most // 2 if keep is None else keep)
        self._libc = ctypes.CDLL(None)
        self._libc.free.argtypes = [ctypes.c_void_p]
        self._libc.free.restype = None
        self._libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._libc.posix_memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]

    def _ask(self, size: int) -> int | None:
        pointer = ctypes.c_void_p()
        alignment = _HUGE if size >= _HUGE else _LINE
        if self._libc.posix_memalign(ctypes.byref(pointer), alignment, size) != 0:
            return None
        if size >= _HUGE and sys.platform == "linux":
            self._libc.madvise(pointer, size, _ADVISE_HUGE_PAGES)  # a wish: it may be refused
        return pointer.value

    def _give_back(self, address: int) -> None:
        self._libc.free(address)

    def _full(self, nbytes: int) -> str:
        return (
            f"{self.device} has no memory for {nbytes:,} bytes: {self._in_use:,} of at most "
            f"{self.limit:,} bytes are in use, and none are kept for reuse"
        )


class NumpyMachine(OnHost):
    """Where the reference interpreter has its arrays; it runs no programs."""

    def __init__(self) -> None:
        self.name, memory = "NUMPY", HostMemory("NUMPY")
        self.allocate, self.free, self.memory_stats = memory.allocate, memory.free, memory.stats

    def load(self, programs: Iterable[Program]) -> list[Executable]:
        """NUMPY has no compiler: DeviceError."""
        raise DeviceError(
            f"NUMPY runs no programs (asked to load {', '.join(p.name for p in programs)}): its "
            "values come from the reference interpreter; CPU, EMU and CUDA run programs"
        )

    @property
    def identity(self) -> str:
        """numpy, of this version."""
        return f"numpy {np.__version__}"

    def ceilings(self) -> None:
        """None: it runs no programs."""
