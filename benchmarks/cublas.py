"""cuBLAS called directly: how fast a card multiplies matrices, where torch is not installed.

Numbers of types and ways to compute are those of library_types.h and cublas_api.h, of CUDA 11 to
13. A library is found where NVRTC is: in a toolkit's folder, or in NVIDIA's pip packages.
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tinyml.dtype import by_name, to_compute, to_storage
from tinyml.errors import DeviceError
from tinyml.runtime.nvcc import library_folders

SIZE = 8192
OLDEST = 11  # version of CUDA whose library is used
_32F, _16F, _16BF = 0, 2, 14  # CUDA_R_...: of matrices
_COMPUTE_32F, _FAST_TF32 = 68, 77  # CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32
_AS_IT_IS, _DEFAULT = 0, -1  # CUBLAS_OP_N, CUBLAS_GEMM_DEFAULT
_KINDS = {  # of matrices, of what multiplies them, and how far off a result may be of the largest
    "bfloat16": (_16BF, _COMPUTE_32F, 2e-2),
    "float16": (_16F, _COMPUTE_32F, 5e-3),
    "tf32": (_32F, _FAST_TF32, 3e-3),
    "float32": (_32F, _COMPUTE_32F, 3e-5),  # no tensor core rounded factors
}
_int, _address = ctypes.c_int, ctypes.c_void_p
_MATRIX = _address, _int, _int  # where, type, and how far a column is from the next
_ARGUMENTS = {
    "cublasGetProperty": (_int, ctypes.POINTER(_int)),
    "cublasCreate_v2": (ctypes.POINTER(_address),),
    "cublasSetStream_v2": (_address, _address),
    "cublasDestroy_v2": (_address,),
    # handle, two operations, m, n, k, alpha, A, B, beta, C, how to compute, and by what algorithm
    "cublasGemmEx": (
        *(_address, *(_int,) * 5, _address, *_MATRIX, *_MATRIX, _address, *_MATRIX, _int, _int),
    ),
}


class Cublas:
    """A library whose work goes to a stream of the context that is current."""

    def __init__(self, library: Any, stream: int) -> None:
        self._library, self._handle = library, _address()
        for name, arguments in _ARGUMENTS.items():
            getattr(library, name).argtypes = arguments
        self.version = ".".join(str(self._property(n)) for n in range(3))
        self._call("cublasCreate_v2", ctypes.byref(self._handle))
        self._call("cublasSetStream_v2", self._handle, stream)

    def multiply(self, kind: str, size: int, a: int, b: int, c: int) -> None:
        """c = a @ b, of square matrices. Rows to us are columns to cuBLAS, so b comes first."""
        of, by, _ = _KINDS[kind]
        one, zero = (ctypes.byref(ctypes.c_float(x)) for x in (1.0, 0.0))
        sizes, turns = (size,) * 3, (_AS_IT_IS,) * 2
        factors = one, b, of, size, a, of, size, zero
        self._call(
            "cublasGemmEx", self._handle, *turns, *sizes, *factors, c, of, size, by, _DEFAULT
        )

    def close(self) -> None:
        self._call("cublasDestroy_v2", self._handle)

    def _property(self, number: int) -> int:
        found = _int()
        self._call("cublasGetProperty", number, ctypes.byref(found))
        return found.value

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise DeviceError(f"{name} of cuBLAS says {status}")


def opened(stream: int, newest: int) -> Cublas:
    """The library of CUDA `newest`, or of an older one; DeviceError if none can be used."""
    why = ""
    for place in _places(newest):
        try:
            return Cublas(ctypes.CDLL(place), stream)
        except OSError:
            continue
        except (AttributeError, DeviceError) as error:
            why = why or f"{place}: {error}"
    raise DeviceError(why or f"no libcublas.so.{newest}: pip install nvidia-cublas, or torch")


def _places(newest: int) -> Iterator[str]:
    for version in range(newest, OLDEST - 1, -1):
        for folder in library_folders():
            yield str(folder / f"libcublas.so.{version}")
        yield f"libcublas.so.{version}"  # where the loader looks


def rates(
    library: Cublas, machine: Any, timed: Callable[[Callable[[], None]], Sequence[float]], size: int
) -> dict[str, float]:
    """FLOPs per second of products of square matrices, by what multiplies them."""
    random = np.random.default_rng(0)
    numbers = [random.standard_normal((size, size), np.float32) for _ in range(2)]
    memories = [machine.allocate(4 * size**2) for _ in range(3)]
    found = {}
    try:
        for kind, (_, _, most) in _KINDS.items():
            dtype = by_name("float32" if kind == "tf32" else kind)
            stored = [to_storage(each, dtype) for each in numbers]
            for memory, each in zip(memories, stored, strict=False):
                machine.copy_in(memory, each)
            call = partial(library.multiply, kind, size, *memories)
            found[kind] = 2 * size**3 / statistics.median(timed(call))
            row = np.empty(size, dtype.storage)
            machine.copy_out(row, memories[2])
            a, b = (
                to_compute(each, dtype).astype(np.float64) for each in (stored[0][0], stored[1])
            )
            _check(kind, to_compute(row, dtype), a @ b, most)
    finally:
        for memory in memories:
            machine.free(memory, 4 * size**2)
    return found


def _check(kind: str, row: npt.NDArray[Any], right: npt.NDArray[np.float64], most: float) -> None:
    """DeviceError where a row of a result is not what it is to be."""
    off = float(np.abs(row - right).max() / np.abs(right).max())
    if not off <= most:
        raise DeviceError(f"a product of cuBLAS, {kind}, is off by {off:.2g} of its largest value")
