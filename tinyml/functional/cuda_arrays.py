"""CUDA's array interface, version 3: memory of a card, given away and taken.

Memory that is given away is ready: all launched work is done. What is taken is read behind the
work of the stream that its owner names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tinyml import lazy, ledger
from tinyml import realize as realizing
from tinyml.device import Device, open_device
from tinyml.dtype import ALL, DType, bfloat16, uint8
from tinyml.errors import DTypeError
from tinyml.functional import views
from tinyml.runtime.machine import Buffer
from tinyml.shape import row_major_strides

if TYPE_CHECKING:
    from tinyml.lazy import Shape
    from tinyml.tensor import Tensor

_CARD = 2  # DLPack's number for memory of a card
_IN_ORDER = (None, 1)  # no stream, or the default one, with which ours is in order


def interface_of(x: Tensor) -> dict[str, Any]:
    """The interface of a realized x; AttributeError for what is not on a card."""
    machine = open_device(x.device).machine
    if machine.dlpack_device[0] != _CARD or x.dtype is bfloat16:
        raise AttributeError(f"a tensor of {x.dtype} on {x.device} has no CUDA array interface")
    leaf = views.leaf_of(x)
    views.give_away(x)
    address = ledger.memory[leaf].memory if leaf.size else 0
    machine.synchronize()
    return {
        "version": 3,
        "shape": leaf.shape,
        "typestr": leaf.dtype.storage.str,
        "data": (address, False),
        "strides": None,  # row-major
        "stream": None,  # nobody has to wait
    }


def leaf_on(x: Any, shared: bool) -> lazy.Data | None:
    """A leaf on the memory of x, if it may be `shared` and can be as it lies; else None."""
    shape, dtype, strides, address, read_only = _read(x)
    plain = _row_major(shape, dtype.itemsize)
    if not shared or read_only or 0 in shape or strides != plain:
        return None
    return realizing.adopt(address, shape, dtype, "CUDA", x)


def copied(x: Any) -> lazy.Data:
    """A leaf with the values of x, whatever its strides: they pass through the host."""
    shape, dtype, strides, address, _ = _read(x)
    if 0 in shape:
        return realizing.upload(np.empty(shape, dtype.storage), dtype, "CUDA")
    ends = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    first = address + sum(min(end, 0) for end in ends)
    nbytes = sum(map(abs, ends)) + dtype.itemsize
    read = Buffer(open_device("CUDA").machine, nbytes, uint8, first, x).read()
    start = address - first
    values = np.ndarray(shape, dtype.storage, read.data, start, strides)
    return realizing.upload(np.array(values, order="C"), dtype, "CUDA")


def _read(x: Any) -> tuple[Shape, DType, tuple[int, ...], int, bool]:
    """Shape, dtype, strides in bytes, address, and whether it must not be written."""
    if not Device.available("CUDA"):
        raise BufferError("the array is on a card, and there is no device CUDA here")
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
    strides = said.get("strides") or _row_major(shape, dtype.itemsize)
    return shape, dtype, tuple(map(int, strides)), int(address), bool(read_only)


def _row_major(shape: Shape, itemsize: int) -> tuple[int, ...]:
    return tuple(stride * itemsize for stride in row_major_strides(shape))
