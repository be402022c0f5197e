"""The driver of NVIDIA cards, if it is here. Asked for first: the rest of CUDA is slow to load."""

from __future__ import annotations

from typing import Any

from tinyml.errors import DeviceError


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
        raise DeviceError(f"CUDA needs PyCUDA: pip install pycuda ({error})") from None
    try:
        driver.init()
        if driver.Device.count() == 0:
            raise DeviceError("CUDA finds no card: PyCUDA and NVIDIA's driver are here")
    except driver.Error as error:
        raise DeviceError(
            f"CUDA finds no card that answers: PyCUDA and NVIDIA's driver are here, but {error}"
        ) from None
    return driver
