"""The driver of NVIDIA cards, if it is here, and what a card is by its word.

Asked for first: the rest of CUDA is slow to load.
"""

from __future__ import annotations

import os
from typing import Any

from tinyml.ceilings import Ceilings, Level
from tinyml.errors import DeviceError
from tinyml.frozen import dataclass

_LAUNCH = 2e-6  # seconds between two small kernels of one stream, on cards of these years
_SHARED = 128  # bytes that a multiprocessor reads of its own memory in a cycle
_WARP = 32
_initialized: set[int] = set()  # the process that did it, also where a child asks
FORKED = (
    "CUDA does not survive a fork: this process is a child of the one that opened the card, and "
    "what was made there before is the parent's. Start processes that use CUDA by "
    'multiprocessing.get_context("spawn"), or let none but the children open it'
)


def open_driver() -> Any:
    """pycuda.driver, initialized; DeviceError that says what is missing."""
    try:
        import pycuda.driver as driver
    except ImportError as error:
        if "libcuda" in str(error):
            raise DeviceError(
                f"CUDA needs NVIDIA's driver, whose library is not here ({error}). Without an "
                "NVIDIA card use DEVICE=CPU, or DEVICE=EMU to run CUDA kernels on the CPU"
            ) from None
        raise DeviceError(
            f"CUDA needs PyCUDA: pip install pycuda (tinyml's extra 'cuda'; {error})"
        ) from None
    if not _initialized <= {os.getpid()}:
        raise DeviceError(FORKED)
    try:
        driver.init()
        if driver.Device.count() == 0:
            raise DeviceError("CUDA finds no card: PyCUDA and NVIDIA's driver are here")
    except driver.Error as error:
        raise DeviceError(
            f"CUDA finds no card that answers: PyCUDA and NVIDIA's driver are here, but {error}"
        ) from None
    _initialized.add(os.getpid())
    return driver


@dataclass(frozen=True)
class Properties:
    """What a card is."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_per_block: int  # bytes, at most, when a kernel asks for them
    memory: int  # bytes
    clock: float  # of the multiprocessors, cycles per second; 0 where the driver does not say
    bandwidth: float  # of the memory, bytes per second; likewise


def properties(driver: Any, card: Any) -> Properties:
    """Ask the driver."""
    attribute, get = driver.device_attribute, card.get_attribute
    transfers = 2e3 * get(attribute.MEMORY_CLOCK_RATE)  # kHz, two transfers in a cycle
    return Properties(
        name=card.name(),
        capability=card.compute_capability(),
        multiprocessors=get(attribute.MULTIPROCESSOR_COUNT),
        shared_per_block=get(attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        memory=card.total_memory(),
        clock=1e3 * get(attribute.CLOCK_RATE),
        bandwidth=transfers * get(attribute.GLOBAL_MEMORY_BUS_WIDTH) / 8,
    )


def nominal(card: Properties) -> Ceilings | None:
    """Ceilings by clocks and widths; nothing is measured. None where the driver has no clocks."""
    if not (card.clock and card.bandwidth):
        return None
    # multiply-adds of one multiprocessor in a cycle: the data-centre chips before Hopper have 64
    fmas = 64 if card.capability in ((6, 0), (7, 0), (7, 5), (8, 0)) else 128
    cycles = card.multiprocessors * card.clock
    close = Level(card.shared_per_block, _SHARED * cycles, _SHARED * cycles)
    memory = Level(1 << 60, card.bandwidth, card.bandwidth)
    return Ceilings(2 * fmas * cycles, _WARP, card.multiprocessors, _LAUNCH, (close, memory))
