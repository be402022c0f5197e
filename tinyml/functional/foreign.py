"""Foreign memory: what DLPack and CUDA's array interface say of an array of another library.

It is shared where it is row-major, aligned and writable, and copied otherwise. On a card, what is
taken is read behind the work of the stream that its owner names.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tinyml import lazy
from tinyml import realize as realizing
from tinyml.device import Device, open_device
from tinyml.dtype import ALL, DType, bfloat16, to_compute, uint8
from tinyml.errors import DTypeError, GradientError
from tinyml.frozen import dataclass
from tinyml.runtime.machine import Buffer
from tinyml.shape import row_major_strides

if TYPE_CHECKING:
    from tinyml.lazy import Shape

Array = npt.NDArray[Any]

HOST, CARD, _PINNED = 1, 2, 3  # kDLCPU, kDLCUDA, kDLCUDAHost
_LEGACY_STREAM = 1  # the default stream; ours waits for it (see runtime/cuda.py)
_IN_ORDER = (None, _LEGACY_STREAM)


class SeenAsArray:
    """Memory as numpy's array interface says it; alive as long as its owner."""

    def __init__(
        self,
        data: tuple[int, bool],
        shape: Shape,
        typestr: str,
        owner: Any,
        strides: tuple[int, ...] | None = None,
    ) -> None:
        """`data` is the address, and whether nobody may write there; strides are in bytes."""
        said = {"version": 3, "data": data, "shape": shape, "typestr": typestr, "strides": strides}
        self.__array_interface__: dict[str, Any] = said
        self.owner = owner


@dataclass(frozen=True)
class Foreign:
    """Memory of somebody else, and what lies there."""

    shape: Shape
    dtype: DType
    strides: tuple[int, ...]  # in bytes
    address: int
    read_only: bool
    device: str  # that has such memory
    owner: Any

    def shared(self) -> lazy.Data | None:
        """A leaf on the memory as it lies; None if it cannot be used so."""
        plain = [n * self.dtype.itemsize for n in row_major_strides(self.shape)]
        lies = zip(self.shape, self.strides, plain, strict=True)
        if self.read_only or 0 in self.shape or any(n > 1 and s != p for n, s, p in lies):
            return None
        return realizing.adopt(self.address, self.shape, self.dtype, self.device, self.owner)

    def copied(self) -> lazy.Data:
        """A leaf with the values; those of a card pass through the host."""
        return realizing.upload(self.values(), self.dtype, self.device)

    def values(self) -> Array:
        """A copy on the host, row-major and in storage dtype."""
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype.storage)
        address, owner, machine = self.address, self.owner, open_device(self.device).machine
        if machine.dlpack_device[0] == CARD:
            ends = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
            first = address + sum(min(end, 0) for end in ends)
            nbytes = sum(map(abs, ends)) + self.dtype.itemsize
            owner = Buffer(machine, nbytes, uint8, first, owner).read()
            address += owner.ctypes.data - first
        typestr = self.dtype.storage.str
        seen = SeenAsArray((address, False), self.shape, typestr, owner, self.strides)
        return np.array(np.asarray(seen), order="C")


def taken(x: Any, device: str | None) -> Foreign:
    """What an array of another library is, by DLPack or else by CUDA's array interface."""
    if not hasattr(x, "__dlpack__") and hasattr(x, "__cuda_array_interface__"):
        return _of_interface(x)
    if not hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__"):
        raise TypeError(
            f"from_dlpack: {type(x).__name__} has no __dlpack__; Tensor(...) takes numbers, nested "
            "lists and arrays"
        )
    memory = int(x.__dlpack_device__()[0])
    if memory not in (HOST, CARD, _PINNED):
        raise BufferError(f"from_dlpack: memory of DLPack's device type {memory} is out of reach")
    capsule = _capsule_of(x, memory)
    tensor, read_only = opened(capsule)
    dtype = _DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise DTypeError(
            f"from_dlpack: no dtype for DLPack's code {tensor.code} of {tensor.bits} bits (5 is "
            f"complex); there are: {', '.join(d.name for d in ALL)}"
        )
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    plain = row_major_strides(shape)
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else plain
    address = (tensor.data or 0) + tensor.byte_offset
    in_bytes = tuple(n * dtype.itemsize for n in strides)
    return Foreign(shape, dtype, in_bytes, address, read_only, _place(memory, device), capsule)


def values_of(x: Any) -> tuple[Array, DType]:
    """A copy of the values of an object with `__dlpack__`, and their dtype."""
    if getattr(x, "requires_grad", False) is True:
        raise GradientError(
            f"Tensor: no gradient flows into this {type(x).__module__} tensor; .detach() it first"
        )
    host = x.cpu() if hasattr(x, "cpu") and int(x.__dlpack_device__()[0]) == CARD else x
    found = taken(host, "NUMPY")
    return to_compute(found.values(), found.dtype), found.dtype


def _place(memory: int, device: str | None) -> str:
    """The device with that memory: the wanted one, the default one, or the first there is."""
    wanted = [Device.canonical(device), "CUDA" if memory == CARD else "CPU", "NUMPY"]
    kind = CARD if memory == CARD else HOST
    for name in wanted:
        if Device.available(name) and open_device(name).machine.dlpack_device[0] == kind:
            return name
    raise BufferError(_NO_CARD)


_NO_CARD = "from_dlpack: the array is on a card, and there is no device CUDA here"


# ---- DLPack ----

_READ_ONLY = 1  # a flag of version 1
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_BFLOAT = 4


def code(dtype: DType) -> tuple[int, int]:
    """(code, bits) of a dtype."""
    return (_BFLOAT if dtype is bfloat16 else _CODES[dtype.kind]), 8 * dtype.itemsize


_DTYPES = {code(dtype): dtype for dtype in ALL}


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),  # in elements; NULL: row-major
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_valid = ctypes.pythonapi.PyCapsule_IsValid
_valid.argtypes, _valid.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


def opened(capsule: Any) -> tuple[_DLTensor, bool]:
    """What a capsule holds, and whether it must not be written."""
    if _valid(capsule, b"dltensor_versioned"):
        found = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if found.major > 1:
            raise BufferError(f"from_dlpack: version {found.major} of DLPack is not known; 1 is")
        return found.tensor, bool(found.flags & _READ_ONLY)
    return _DLTensor.from_address(_pointer(capsule, b"dltensor")), False


def _capsule_of(x: Any, memory: int) -> Any:
    stream = _LEGACY_STREAM if memory == CARD else None
    try:
        return x.__dlpack__(stream=stream, max_version=(1, 1))
    except TypeError:  # from before version 1
        return x.__dlpack__(stream=stream) if stream else x.__dlpack__()


# ---- CUDA's array interface, version 3 ----


def _of_interface(x: Any) -> Foreign:
    if not Device.available("CUDA"):
        raise BufferError(_NO_CARD)
    said = x.__cuda_array_interface__
    if said.get("mask") is not None:
        raise BufferError("a CUDA array with a mask has no values where that is set")
    dtype = next((d for d in ALL if d is not bfloat16 and d.storage.str == said["typestr"]), None)
    if dtype is None:
        names = ", ".join(d.name for d in ALL if d is not bfloat16)
        raise DTypeError(f"no dtype for a CUDA array of {said['typestr']!r}; there are: {names}")
    stream = said.get("stream")
    if stream == 0:
        raise ValueError("a CUDA array's stream is None or a number from 1 on, not 0")
    if stream not in _IN_ORDER:
        machine: Any = open_device("CUDA").machine
        machine.wait_for_all()
    shape, (address, read_only) = tuple(map(int, said["shape"])), said["data"]
    plain = [n * dtype.itemsize for n in row_major_strides(shape)]
    strides = tuple(map(int, said.get("strides") or plain))
    return Foreign(shape, dtype, strides, int(address), bool(read_only), "CUDA", x)
