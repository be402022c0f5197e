"""Where kernels on a card note a value that is wrong: memory of the host that the card can write.

Nothing is copied for it, and nobody waits: the host looks there when it has waited for the card.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tinyml.faults import Fault, raise_noted


class CudaFaults:
    """Two words in page-locked memory. The caller sees to it that a context is current."""

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
