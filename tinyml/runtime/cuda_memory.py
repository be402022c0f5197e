"""Device memory for buffers, where what was freed is given out again; and the words for faults.

All work goes to one stream, so that a block may be reused as soon as it is freed: whoever uses
it next comes later on the stream. Only the driver's own alloc and free wait for the card, and a
step that repeats calls neither. `free` calls no driver function, so that the garbage collector
may run it on any thread and at exit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tinyml.faults import Fault, raise_noted
from tinyml.runtime.memory import Blocks, size_class

_SMALLEST = 512  # bytes; the driver hands out no less


def _size(nbytes: int) -> int:
    return size_class(max(nbytes, _SMALLEST))


class CudaMemory(Blocks):
    """Memory of a card.

    The caller tries `reuse` first, and sees to it that a context is current for `allocate`.
    """

    def __init__(self, driver: Any, limit: int | None = None) -> None:
        super().__init__("CUDA", limit, size=_size)
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
