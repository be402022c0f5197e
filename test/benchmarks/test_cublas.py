"""benchmarks/cublas.py, on a library that checks what it is asked (test/fakecuda/fakecublas.c)."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fakecuda import build_fake

from benchmarks import cublas
from tinyml.errors import DeviceError

STREAM, SIZE, VERSION = 0x5EED, 40, 99
KINDS = "bfloat16", "float16", "tf32", "float32"
Array = npt.NDArray[Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a toolkit would have its libraries."""
    folder = tmp_path_factory.mktemp("lib")
    try:
        build_fake.products(folder, VERSION)
    except build_fake.CannotBuildError as error:
        pytest.skip(str(error))
    return folder


@pytest.fixture
def library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The fake library, which is found from now on."""
    monkeypatch.setattr(cublas, "library_folders", lambda: [folder / "none", folder])
    monkeypatch.setattr(cublas, "OLDEST", VERSION - 1)
    fake = ctypes.CDLL(str(folder / f"libcublas.so.{VERSION}"))
    fake.fake_stream.restype = ctypes.c_void_p
    for name in ("handles", "products", "rounds"):
        number(fake, name).value = 0
    return fake


def number(library: Any, name: str) -> ctypes.c_int:
    return ctypes.c_int.in_dll(library, f"fake_{name}")


class Host:
    """Memory of the host as a card's."""

    def __init__(self) -> None:
        self.held: dict[int, Array] = {}

    def allocate(self, nbytes: int) -> int:
        memory = np.full(nbytes, 0xFF, np.uint8)
        self.held[memory.ctypes.data] = memory
        return memory.ctypes.data

    def free(self, memory: int, nbytes: int) -> None:
        assert self.held.pop(memory).nbytes == nbytes

    def copy_in(self, memory: int, data: Array) -> None:
        ctypes.memmove(memory, data.ctypes.data, data.nbytes)

    def copy_out(self, data: Array, memory: int) -> None:
        ctypes.memmove(data.ctypes.data, memory, data.nbytes)


def clock(call: Callable[[], None]) -> list[float]:
    """Seconds of three calls, which means nothing."""
    return [call() or seconds for seconds in (1e-3, 3e-3, 2e-3)]  # type: ignore[func-returns-value]


def test_a_library_is_asked_for_products_of_every_kind(library: Any) -> None:
    """Each result is right, by what is to multiply; work goes to the stream of kernels."""
    opened, host = cublas.opened(STREAM, newest=VERSION), Host()
    assert opened.version == "13.3.2"
    assert library.fake_stream() == STREAM
    found = cublas.rates(opened, host, clock, SIZE)
    assert found == dict.fromkeys(KINDS, 2 * SIZE**3 / 2e-3)
    assert number(library, "products").value == 3 * len(KINDS)
    assert not host.held
    opened.close()
    assert number(library, "handles").value == 0


def test_floats_that_tensor_cores_round_are_no_rate_of_floats(library: Any) -> None:
    number(library, "rounds").value = 1
    opened, host = cublas.opened(STREAM, newest=VERSION), Host()
    with pytest.raises(DeviceError, match=r"of cuBLAS, float32, is off by"):
        cublas.rates(opened, host, clock, SIZE)
    assert not host.held


def test_what_a_library_refuses_is_an_error(library: Any) -> None:
    opened = cublas.opened(STREAM, newest=VERSION)
    with pytest.raises(DeviceError, match="cublasGemmEx of cuBLAS says 7"):
        opened.multiply("float32", -1, 0, 0, 0)


def test_a_library_that_a_driver_cannot_run_is_not_opened(library: Any) -> None:
    with pytest.raises(DeviceError, match=r"no libcublas.so.98: pip install nvidia-cublas"):
        cublas.opened(STREAM, newest=VERSION - 1)


def test_an_older_library_will_do(library: Any) -> None:
    assert cublas.opened(STREAM, newest=VERSION + 1).version == "13.3.2"


def test_a_library_that_lacks_something_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cublas, "library_folders", list)
    monkeypatch.setattr(cublas, "ctypes", SimpleNamespace(CDLL=lambda name: ctypes.CDLL(None)))
    with pytest.raises(DeviceError, match=r"libcublas.so.99: .*cublasGetProperty"):
        cublas.opened(STREAM, newest=VERSION)
