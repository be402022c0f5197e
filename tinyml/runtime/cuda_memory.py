"""Device memory for buffers, where what was freed is given out again; copies; words for faults.

All work goes to one stream, so that a block may be reused as soon as it is freed: whoever uses
it next comes later on the stream. Only the driver's own alloc and free wait for the card, and a
step that repeats calls neither. `free` calls no driver function, so that the garbage collector
may run it on any thread and at exit.

Copies go through page-locked memory: the card reads and writes only memory that the system cannot
move, and the driver copies anything else by itself, slowly, after a wait for all earlier work. Here
the host's part of a copy (to or from a page-locked chunk) runs while the card does its part of the
chunk before.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from tinyml.faults import Fault, raise_noted
from tinyml.runtime.memory import Blocks, size_class

_SMALLEST = 512  # bytes; the driver hands out no less
_CHUNK = 4 << 20  # bytes: large enough for full speed, small enough to stay in the host's cache
_CHUNKS = 3  # in each direction
_ALIGNMENT = 64  # bytes
_MEMORY_TYPE, _OF_HOST = 2, 1  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_MEMORYTYPE_HOST

Bytes = npt.NDArray[np.uint8]


class CudaMemory(Blocks):
    """Memory of a card.

    The caller tries `reuse` first, and sees to it that a context is current for `allocate`.
    """

    def __init__(self, driver: Any, limit: int | None = None) -> None:
        super().__init__("CUDA", limit, size=lambda nbytes: size_class(max(nbytes, _SMALLEST)))
        self._driver = driver
        self._blocks: dict[int, Any] = {}  # the driver's objects by address, in use and kept

    def forget(self) -> None:
        """Return every block to the driver, also those in use: for the end of the process."""
        with self._lock:
            self._blocks.clear()
            self._kept.clear()

    def _ask(self, size: int) -> int | None:
        try:
            block = self._driver.mem_alloc(size)
        except self._driver.MemoryError:
            return None
        self._blocks[int(block)] = block
        return int(block)

    def _give_back(self, address: int) -> None:
        self._blocks.pop(address).free()

    def _full(self, nbytes: int) -> str:
        free, total = self._driver.mem_get_info()
        most = f" of at most {self.limit:,}" if self.limit is not None else ""
        return (
            f"CUDA has no memory for {nbytes:,} bytes: {self._in_use:,}{most} bytes are in "
            f"use here and none are kept for reuse; {free:,} of the card's {total:,} are free"
        )


def is_of_card(address: int) -> bool:
    """Whether a card's memory is there; also where the driver does not say."""
    kind = ctypes.c_uint()
    try:
        ask = ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute
    except (OSError, AttributeError):
        return True
    known = ask(ctypes.byref(kind), _MEMORY_TYPE, ctypes.c_void_p(address)) == 0
    return known and kind.value != _OF_HOST


class CudaFaults:
    """Where kernels note a value that is wrong: two words of the host that the card can write.

    Nothing is copied for it, and nobody waits: the host looks there when it has waited for the
    card. The caller sees to it that a context is current.
    """

    def __init__(self, driver: Any) -> None:
        mapped = driver.host_alloc_flags.DEVICEMAP
        self._words = driver.pagelocked_empty(2, np.int64, mem_flags=mapped)
        self._words[:] = 0
        self._known: dict[Fault, None] = {}
        self.address = int(self._words.base.get_device_pointer())

    def learn(self, faults: Iterable[Fault]) -> None:
        """Programs that may note these are loaded."""
        self._known.update(dict.fromkeys(faults))

    def raise_noted(self) -> None:
        """Raise what was noted by work that is done."""
        if self._words[0]:
            raise_noted(self._words, self._known)

    def forget(self) -> None:
        """Release the memory: for the end of the process."""
        self._words = np.zeros(2, np.int64)


class _Chunk:
    """Page-locked memory, and an event that says when the card is done with it."""

    def __init__(self, driver: Any) -> None:
        self.memory: Bytes = driver.pagelocked_empty(_CHUNK, np.uint8)
        self.done = driver.Event(driver.event_flags.DISABLE_TIMING)
        self.used = 0  # bytes that copies under way occupy


class Staging:
    """Copies on one stream. The caller sees to it that a context is current, one at a time."""

    def __init__(self, driver: Any, stream: Any) -> None:
        self._driver, self._stream = driver, stream
        self._to_card: list[_Chunk] = []
        self._to_host: list[_Chunk] = []
        self._current = 0  # index of the chunk that copies to the card fill

    def copy_in(self, address: int, data: Bytes) -> None:
        """Copy `data` to the card; it may be reused at once. Waits for no earlier work."""
        position = 0
        while position < data.size:
            chunk = self._room()
            size = min(data.size - position, _CHUNK - chunk.used)
            staged = chunk.memory[chunk.used : chunk.used + size]
            staged[:] = data[position : position + size]
            self._driver.memcpy_htod_async(address + position, staged, self._stream)
            chunk.used = -(-(chunk.used + size) // _ALIGNMENT) * _ALIGNMENT
            chunk.done.record(self._stream)
            position += size

    def copy_out(self, data: Bytes, address: int) -> None:
        """Fill `data` from the card, after all earlier work on the stream."""
        pieces = range(0, data.size, _CHUNK)
        chunks = self._chunks(self._to_host)
        for number, start in enumerate(pieces):
            if number >= _CHUNKS:
                self._collect(data, pieces[number - _CHUNKS], chunks[number % _CHUNKS])
            chunk = chunks[number % _CHUNKS]
            staged = chunk.memory[: min(_CHUNK, data.size - start)]
            self._driver.memcpy_dtoh_async(staged, address + start, self._stream)
            chunk.done.record(self._stream)
        for number in range(max(0, len(pieces) - _CHUNKS), len(pieces)):
            self._collect(data, pieces[number], chunks[number % _CHUNKS])

    def forget(self) -> None:
        """Release the page-locked memory: for the end of the process."""
        self._to_card.clear()
        self._to_host.clear()

    def _collect(self, data: Bytes, start: int, chunk: _Chunk) -> None:
        chunk.done.synchronize()
        size = min(_CHUNK, data.size - start)
        data[start : start + size] = chunk.memory[:size]

    def _room(self) -> _Chunk:
        """A chunk that has room, after the card is done with what it held before."""
        chunks = self._chunks(self._to_card)
        chunk = chunks[self._current]
        if chunk.used >= _CHUNK:
            self._current = (self._current + 1) % _CHUNKS
            chunk = chunks[self._current]
            if chunk.used:
                chunk.done.synchronize()
                chunk.used = 0
        return chunk

    def _chunks(self, chunks: list[_Chunk]) -> list[_Chunk]:
        """The chunks of a direction, page-locked when they are first needed."""
        while len(chunks) < _CHUNKS:
            chunks.append(_Chunk(self._driver))
        return chunks
