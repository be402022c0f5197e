"""Ranges: what the host starts, by name, on the timeline of NVIDIA's profilers (NVTX=1).

Nsight shows each kernel by its name on the card's line anyway; a range says which launch it
belongs to on the host's, or which replay of how many. Without a profiler a range does nothing.
NVTX, "Push/Pop Ranges".
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

from tinyml.errors import DeviceError
from tinyml.runtime.nvcc import library_folders

_NAMES = "libnvtx3interop.so.1", "libnvToolsExt.so.1"  # since CUDA 13, and before
_T = TypeVar("_T")


class Ranges:
    """Names for stretches of time, one inside the other."""

    def __init__(self, library: Any) -> None:
        self._push, self._pop = library.nvtxRangePushA, library.nvtxRangePop

    def around(self, name: str, work: Callable[[_T], None]) -> Callable[[_T], None]:
        """`work` as a range of that name."""
        spelled = f"tinyml: {name}".encode()

        def named(given: _T) -> None:
            self._push(spelled)
            try:
                work(given)
            finally:
                self._pop()

        return named


def open_ranges() -> Ranges:
    """The library that profilers look at; DeviceError if it is not here."""
    for name in _NAMES:
        for place in (name, *(str(folder / name) for folder in library_folders())):
            with contextlib.suppress(OSError):
                return Ranges(ctypes.CDLL(place))
    raise DeviceError(f"NVTX=1 needs {' or '.join(_NAMES)}: pip install nvidia-nvtx")
