"""Memory that notices who leaves it: each buffer ends where a forbidden page begins.

    | forbidden page | ... | canary | buffer | canary | forbidden page |

A buffer starts at a multiple of 16 bytes, so that up to 15 bytes lie between its end and the
forbidden page. Those bytes, and some before the buffer, hold a canary: a write to them is found
after the launch; a read of them, or of a buffer that nobody has written yet, gives NaN.
"""

from __future__ import annotations

import ctypes
import mmap

from tinyml import trace
from tinyml.errors import OutOfMemoryError
from tinyml.frozen import dataclass
from tinyml.runtime.machine import MemoryStats
from tinyml.turn import short_lock

_ALIGNMENT = 16  # bytes: the widest access of a CUDA thread; more would hide stray accesses
_CANARY = 64  # bytes watched before a buffer
_POISON = 0xFF  # a NaN in every float format
_CANARY_BYTE = bytes([_POISON])
_KEPT = 64 << 20  # bytes of freed memory that are kept for reuse
_FAILED = ctypes.c_void_p(-1).value


@dataclass(frozen=True)
class _Span:
    """Pages with a forbidden one at each end, and the buffer in them."""

    base: int
    pages: int  # without the forbidden ones
    address: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.base + (1 + self.pages) * mmap.PAGESIZE


class GuardedMemory:
    """Buffers between guard pages, at most `limit` bytes of them."""

    def __init__(self, device: str, limit: int) -> None:
        self.device, self.limit = device, limit
        self._live: dict[int, _Span] = {}  # by address of the buffer
        self._free: dict[int, list[int]] = {}  # base addresses by number of pages
        self._in_use = self._cached = self._peak = 0
        # Re-entrant, since the garbage collector may free a buffer while one is allocated.
        self._lock = short_lock()
        self._libc = _libc()

    def allocate(self, nbytes: int) -> int:
        """The address of a buffer of nbytes, full of poison."""
        with self._lock:
            # At least one page, whose end is the canary of an empty buffer.
            pages = -(-(nbytes + _CANARY + _ALIGNMENT) // mmap.PAGESIZE)
            base = self._pages(nbytes, pages)
            end = base + (1 + pages) * mmap.PAGESIZE
            ctypes.memset(base + mmap.PAGESIZE, _POISON, pages * mmap.PAGESIZE)
            address = end - -(-nbytes // _ALIGNMENT) * _ALIGNMENT
            self._live[address] = _Span(base, pages, address, nbytes)
            self._in_use += nbytes
            self._peak = max(self._peak, self._in_use)
        if trace.wanted(trace.Allocated):
            trace.emit(trace.Allocated(self.device, nbytes, self._in_use))
        return address

    def free(self, address: int) -> None:
        """Give a buffer back."""
        with self._lock:
            span = self._live.pop(address)
            self._in_use -= span.nbytes
            size = span.pages * mmap.PAGESIZE
            if self._cached + size > _KEPT:
                self._libc.munmap(span.base, size + 2 * mmap.PAGESIZE)
            else:
                self._cached += size
                self._free.setdefault(span.pages, []).append(span.base)

    def stats(self) -> MemoryStats:
        """Bytes in use and kept."""
        return MemoryStats(self._in_use, self._cached, self._peak)

    def damage(self, address: int) -> str:
        """What was written around a buffer, or "" if its canaries are whole; makes them whole."""
        span = self._live.get(address)
        if span is None:  # the inside of a buffer
            return ""
        end = address + span.nbytes
        for start, size, where in (
            (address - _CANARY, _CANARY, "before its start"),
            (end, span.end - end, "after its end"),
        ):
            if ctypes.string_at(start, size).strip(_CANARY_BYTE):
                ctypes.memset(start, _POISON, size)
                return f"bytes just {where} were overwritten (it has {span.nbytes:,})"
        return ""

    def describe(self, fault: int, address: int) -> str:
        """Where an illegal access lies relative to a buffer, or "" if it is far from it."""
        span = self._live.get(address)
        if span is None or not span.base <= fault < span.end + mmap.PAGESIZE:
            return ""
        if fault < address:
            return f"{address - fault} bytes before its start"
        return f"byte {fault - address:,} of {span.nbytes:,}"

    def _pages(self, nbytes: int, pages: int) -> int:
        """Base address of so many pages between forbidden ones."""
        kept = self._free.get(pages)
        size = pages * mmap.PAGESIZE
        if kept:
            self._cached -= size
            return kept.pop()
        base = None
        if self._in_use + nbytes <= self.limit:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            whole = size + 2 * mmap.PAGESIZE
            base = self._libc.mmap(None, whole, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if base is None or base == _FAILED:
            raise OutOfMemoryError(
                f"{self.device} has no memory for {nbytes:,} bytes: {self._in_use:,} of at most "
                f"{self.limit:,} bytes are in use, {self._cached:,} are kept for reuse"
            )
        for forbidden in (base, base + mmap.PAGESIZE + size):
            self._libc.mprotect(forbidden, mmap.PAGESIZE, 0)  # 0 is PROT_NONE
        return int(base)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_long]
    libc.mmap.restype = pointer
    libc.mprotect.argtypes = [pointer, size, number]
    libc.munmap.argtypes = [pointer, size]
    return libc
