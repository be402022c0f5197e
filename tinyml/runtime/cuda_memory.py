"""Device memory for buffers: what was freed is kept and given out again.

All work goes to one stream, so that a block may be reused as soon as it is freed: whoever uses
it next comes later on the stream. Only the driver's own alloc and free wait for the card, and a
step that repeats calls neither. `free` calls no driver function, so that the garbage collector
may run it on any thread and at exit.
"""

from __future__ import annotations

from typing import Any

from tinyml import trace
from tinyml.errors import OutOfMemoryError
from tinyml.runtime.machine import MemoryStats
from tinyml.runtime.memory import size_class
from tinyml.turn import short_lock

_SMALLEST = 512  # bytes; the driver hands out no less


class CudaMemory:
    """Blocks by size class, at most `limit` bytes of them in use and kept together.

    The caller tries `reuse` first, and sees to it that a context is current for `allocate`.
    """

    def __init__(self, driver: Any, limit: int | None = None) -> None:
        self.limit = limit
        self._driver = driver
        self._in_use = self._cached = self._peak = 0
        self._blocks: dict[int, Any] = {}  # the driver's objects by address, in use and kept
        self._free: dict[int, list[int]] = {}  # addresses by size class
        # Re-entrant, since the garbage collector may free a buffer while one is allocated.
        self._lock = short_lock()

    def reuse(self, nbytes: int) -> int | None:
        """The address of a kept block for nbytes, if there is one. Calls no driver function."""
        size = size_class(max(nbytes, _SMALLEST))
        with self._lock:
            kept = self._free.get(size)
            if not kept:
                return None
            self._cached -= size
            return self._given(kept.pop(), nbytes, size)

    def allocate(self, nbytes: int) -> int:
        """The address of a new block for nbytes; OutOfMemoryError if there is none."""
        size = size_class(max(nbytes, _SMALLEST))
        with self._lock:
            return self._given(self._fresh(nbytes, size), nbytes, size)

    def free(self, address: int, nbytes: int) -> None:
        """Keep a block for reuse."""
        size = size_class(max(nbytes, _SMALLEST))
        with self._lock:
            self._in_use -= size
            self._cached += size
            self._free.setdefault(size, []).append(address)

    def empty(self) -> None:
        """Return every kept block to the driver."""
        with self._lock:
            free, self._free, self._cached = self._free, {}, 0
            for address in (address for addresses in free.values() for address in addresses):
                self._blocks.pop(address).free()

    def forget(self) -> None:
        """Return every block to the driver, also those in use: for the end of the process."""
        with self._lock:
            self._blocks.clear()
            self._free.clear()

    def stats(self) -> MemoryStats:
        """Bytes in use and kept."""
        return MemoryStats(self._in_use, self._cached, self._peak)

    def _given(self, address: int, nbytes: int, size: int) -> int:
        self._in_use += size
        self._peak = max(self._peak, self._in_use)
        if trace.wanted(trace.Allocated):
            trace.emit(trace.Allocated("CUDA", nbytes, self._in_use))
        return address

    def _fresh(self, nbytes: int, size: int) -> int:
        block = self._ask(size)
        if block is None and self._cached:
            self.empty()
            block = self._ask(size)
        if block is None:
            free, total = self._driver.mem_get_info()
            most = f" of at most {self.limit:,}" if self.limit is not None else ""
            raise OutOfMemoryError(
                f"CUDA has no memory for {nbytes:,} bytes: {self._in_use:,}{most} bytes are in "
                f"use here and none are kept for reuse; {free:,} of the card's {total:,} are free"
            )
        self._blocks[int(block)] = block
        return int(block)

    def _ask(self, size: int) -> Any:
        """A block from the driver, or None."""
        if self.limit is not None and self._in_use + self._cached + size > self.limit:
            return None
        try:
            return self._driver.mem_alloc(size)
        except self._driver.MemoryError:
            return None
