"""What a card has to know of a slot before it copies boxes of it: tensor maps, in global memory.

A map as a parameter would have to lie where only the compiler knows, and PyCUDA sends one packed
buffer; so kernels take its address. Maps are kept for good, because graphs know their addresses:
128 bytes for each box and memory that it was asked of. They are copied on the stream of kernels,
out of page-locked memory of their own: any other copy waits until the card has done all work.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from tinyml.errors import KernelError
from tinyml.program import Box

_BYTES, _ALIGNMENT = 128, 64  # of a CUtensorMap
_TOGETHER = 256  # maps in one allocation
# of cuda.h: 16 bits, or tf32; the third size of a swizzle; lines of the L2 cache
_TYPES, _SWIZZLE_128, _PROMOTE_128 = {2: 1, 4: 11}, 3, 2


class TensorMaps:
    """Maps by box and address of the slot. The caller sees to it that a context is current."""

    def __init__(self, driver: Any, stream: Any) -> None:
        self._driver, self._stream, self._turn = driver, stream, threading.Lock()
        self._known: dict[tuple[Box, int], int] = {}
        self._chunks: list[tuple[Any, npt.NDArray[np.uint8]]] = []  # on the card, and on the host

    def address(self, box: Box, slot: int) -> int:
        """Where the map of boxes of a slot is, on the card. Copies it there the first time."""
        found = self._known.get((box, slot))
        if found is None:
            with self._turn:
                found = self._known.setdefault((box, slot), self._write(encoded(box, slot)))
        return found

    def _write(self, content: bytes) -> int:
        number = len(self._known) % _TOGETHER
        if number == 0:
            size = _TOGETHER * _BYTES
            host = self._driver.pagelocked_empty(size, np.uint8)
            self._chunks.append((self._driver.mem_alloc(size), host))
        chunk, host = self._chunks[-1]
        begin = number * _BYTES
        staged = host[begin : begin + _BYTES]
        staged[:] = np.frombuffer(content, np.uint8)
        self._driver.memcpy_htod_async(int(chunk) + begin, staged, self._stream)
        return int(chunk) + begin

    def forget(self) -> None:
        """Release the memory: for the end of the process."""
        self._known, self._chunks = {}, []


def encoded(box: Box, slot: int) -> bytes:
    """The card's own form of a box; KernelError where it takes no such box."""
    room = ctypes.create_string_buffer(_BYTES + _ALIGNMENT)
    place = -(-ctypes.addressof(room) // _ALIGNMENT) * _ALIGNMENT
    answer = _encoder()(
        ctypes.c_void_p(place),
        ctypes.c_int(_TYPES[box.itemsize]),
        ctypes.c_uint(len(box.sizes)),
        ctypes.c_void_p(slot + box.offset),
        (ctypes.c_ulonglong * 3)(*box.sizes),
        (ctypes.c_ulonglong * 2)(*box.strides),
        (ctypes.c_uint * 3)(*box.box, 1),
        (ctypes.c_uint * 3)(1, 1, 1),
        *map(ctypes.c_int, (0, _SWIZZLE_128, _PROMOTE_128, 0)),
    )
    if answer:
        raise KernelError(f"the driver has no tensor map for {box} at {slot:#x}: it says {answer}")
    return ctypes.string_at(place, _BYTES)


@functools.cache
def _encoder() -> Any:
    return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
