"""Host memory for buffers: what was freed is kept and given out again.

A step that repeats then gets the blocks of the step before, whose pages the system has already
handed over; a fresh page costs about as much as computing on it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

from tinyml import trace
from tinyml.errors import OutOfMemoryError
from tinyml.runtime.machine import MemoryStats
from tinyml.turn import short_lock

ALIGNMENT = _LINE = 64  # bytes of a cache line, and of the widest vector
_HUGE = 2 << 20  # bytes of a huge page
_ADVISE_HUGE_PAGES = 14  # MADV_HUGEPAGE of Linux
_CGROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of version 2, of version 1


@functools.lru_cache(1 << 12)
def size_class(nbytes: int, _line: int = _LINE) -> int:
    """The bytes of a block that holds nbytes: at most an eighth more, in whole cache lines."""
    lines = max(1, -(-nbytes // _line))
    step = 1 << max(0, lines.bit_length() - 4)
    return -(-lines // step) * step * _line


class HostMemory:
    """Blocks by size class, never more than `limit` bytes of them, in use and kept together."""

    def __init__(self, device: str, limit: int | None = None, keep: int | None = None) -> None:
        self.device = device
        self.limit = physical_memory() if limit is None else limit
        self.keep = self.limit // 2 if keep is None else keep  # most bytes kept for reuse
        self._in_use = self._cached = self._peak = 0
        self._blocks: dict[int, list[int]] = {}  # addresses of free blocks by size class
        # Re-entrant, since the garbage collector may free a buffer while one is allocated.
        self._lock = short_lock()
        self._libc = ctypes.CDLL(None)
        self._libc.free.argtypes = [ctypes.c_void_p]
        self._libc.free.restype = None
        self._libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._libc.posix_memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]

    def allocate(self, nbytes: int) -> int:
        """The address of a block of nbytes; OutOfMemoryError if there is none."""
        size = size_class(nbytes)
        with self._lock:
            blocks = self._blocks.get(size)
            if blocks:
                address = blocks.pop()
                self._cached -= size
            else:
                address = self._fresh(nbytes, size)
            self._in_use += size
            self._peak = max(self._peak, self._in_use)
        if trace.wanted(trace.Allocated):
            trace.emit(trace.Allocated(self.device, nbytes, self._in_use))
        return address

    def free(
        self, address: int, nbytes: int, _size: Callable[[int], int] = size_class
    ) -> None:  # what it calls is bound here: at exit it may outlive the names of this module
        """Keep a block for reuse, or return it to the system if enough is kept."""
        size = _size(nbytes)
        with self._lock:
            self._in_use -= size
            if self._cached + size > self.keep:
                self._libc.free(address)
            else:
                self._cached += size
                self._blocks.setdefault(size, []).append(address)

    def empty(self) -> None:
        """Return every kept block to the system."""
        with self._lock:
            blocks, self._blocks, self._cached = self._blocks, {}, 0
            for addresses in blocks.values():
                for address in addresses:
                    self._libc.free(address)

    def stats(self) -> MemoryStats:
        """Bytes in use and kept."""
        return MemoryStats(self._in_use, self._cached, self._peak)

    def _fresh(self, nbytes: int, size: int) -> int:
        address = self._ask(size)
        if address is None and self._cached:
            self.empty()
            address = self._ask(size)
        if address is None:
            raise OutOfMemoryError(
                f"{self.device} has no memory for {nbytes:,} bytes: {self._in_use:,} of at most "
                f"{self.limit:,} bytes are in use, and none are kept for reuse"
            )
        return address

    def _ask(self, size: int) -> int | None:
        """A block from the system. Beyond the limit None: Linux would promise, and kill later."""
        if self._in_use + self._cached + size > self.limit:
            return None
        pointer = ctypes.c_void_p()
        alignment = _HUGE if size >= _HUGE else _LINE
        if self._libc.posix_memalign(ctypes.byref(pointer), alignment, size) != 0:
            return None
        if size >= _HUGE and sys.platform == "linux":
            self._libc.madvise(pointer, size, _ADVISE_HUGE_PAGES)  # a wish: it may be refused
        return pointer.value


def physical_memory() -> int:
    """Bytes of memory that this process may hope for: the machine's, or its container's."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in _CGROUP_LIMITS:
        try:
            found.append(int(Path("/sys/fs/cgroup", name).read_text()))
        except (OSError, ValueError):  # no such file, or the word "max"
            continue
    return min(found)
