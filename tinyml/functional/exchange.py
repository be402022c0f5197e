"""Arrays of other libraries: DLPack, numpy's protocols, CUDA's array interface.

    gives away              takes
    __dlpack__              from_dlpack        memory is shared where that can be done
    __array__               Tensor(array)      the values are copied, whoever writes later
    __array_ufunc__         np.exp(t) is t.exp(); what Tensor lacks, numpy computes on the values
    __array_function__      np.concatenate([t, u]) and the like give arrays
    __cuda_array_interface__                   (cuda_arrays.py) what has only that: from_dlpack

Memory that is shared is one memory: what one side writes, the other reads, and so does every
tensor that holds these values, or is a view of one that does. Ask for copy=True where that is
not wanted. What was computed from a tensor before its memory is given away, or merely equals it,
keeps the values of then. A part or another order of a tensor (x[1:], x.T) is given away in memory
of its own, with the values of then: what is written there, x does not see, and the other way.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tinyml import lazy, ledger
from tinyml import realize as realizing
from tinyml.device import Device, open_device
from tinyml.dtype import ALL, DType, bfloat16, to_compute
from tinyml.errors import DTypeError, GradientError
from tinyml.functional import cuda_arrays, views
from tinyml.functional.axes import is_tensor
from tinyml.shape import row_major_strides

if TYPE_CHECKING:
    from tinyml.lazy import Shape
    from tinyml.tensor import Tensor

Array = npt.NDArray[Any]


class _Memory:
    """Somebody's memory, as numpy's array interface says it; alive as long as its owner."""

    def __init__(self, data: tuple[int, bool], shape: Shape, typestr: str, owner: Any) -> None:
        """`data` is the address, and whether nobody may write there."""
        said = {"version": 3, "data": data, "shape": shape, "typestr": typestr}
        self.__array_interface__: dict[str, Any] = said
        self.owner = owner


def _view(x: Tensor, storage: np.dtype[Any] | None = None, read_only: bool = False) -> Array:
    """The memory of x as an array that keeps it alive. On a card: not to be looked into."""
    leaf = views.leaf_of(x)
    if not leaf.size:
        return np.empty(leaf.shape, storage or leaf.dtype.storage)
    buffer = ledger.memory[leaf]
    if not read_only:
        views.give_away(x)
    data, typestr = (buffer.memory, read_only), (storage or leaf.dtype.storage).str
    return np.asarray(_Memory(data, leaf.shape, typestr, buffer))


# ---- numpy ----


def to_array(x: Tensor, dtype: Any = None, copy: bool | None = None) -> Array:
    """`numpy.asarray(x)`: a copy, or with copy=False a view of memory that cannot be written."""
    on_host = open_device(x.device).machine.dlpack_device[0] == _HOST
    if copy is False:
        wanted = x.dtype.compute if dtype is None else np.dtype(dtype)
        if not on_host or x.dtype is bfloat16 or wanted != x.dtype.storage:
            raise ValueError(
                f"__array__: a tensor of {x.dtype} on {x.device} cannot be seen as an array of "
                f"{wanted} without a copy; leave out copy=False"
            )
        return _view(x, read_only=True)
    values = x.numpy()
    return values if dtype is None else values.astype(dtype, copy=False)


_UFUNCS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "power": operator.pow,
    "matmul": operator.matmul,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "left_shift": operator.lshift,
    "right_shift": operator.rshift,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
}
_METHODS = {
    "negative": "neg",
    "absolute": "abs",
    "fabs": "abs",
    "rint": "round",
    "arctan2": "atan2",
    "invert": "bitwise_not",
    **{f"arc{f}": f"a{f}" for f in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{
        name: name
        for name in (
            *("exp", "exp2", "log", "log2", "sqrt", "square", "reciprocal", "sign"),
            *("sin", "cos", "tan", "sinh", "cosh", "tanh", "floor", "ceil", "trunc"),
            *("isnan", "isinf", "isfinite", "logical_not"),
            *("maximum", "minimum", "copysign", "logaddexp"),
        )
    },
}


def ufunc(x: Tensor, function: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
    """A numpy ufunc that meets a tensor: the op of the same meaning, or numpy on the values."""
    name = function.__name__
    if method == "__call__" and not options and (name in _UFUNCS or name in _METHODS):
        given = [_operand(x, value) for value in inputs]
        if name in _UFUNCS:
            return _UFUNCS[name](*given)
        first = given[0] if isinstance(given[0], type(x)) else x._coerce(given[0])
        return getattr(first, _METHODS[name])(*given[1:])
    return getattr(function, method)(*_values(x, inputs, name), **_values(x, options, name))


def _operand(x: Tensor, value: Any) -> Any:
    """Numbers as Python has them, which are weak; arrays as tensors beside x."""
    if isinstance(value, np.generic):
        return value.item()
    return x._coerce(value) if isinstance(value, np.ndarray) else value


def array_function(x: Tensor, function: Any, _: Any, args: Any, kwargs: Any) -> Any:
    """A numpy function that meets tensors computes on their values and gives arrays."""
    name = function.__name__
    if name in ("ndim", "shape", "size"):  # asks for no values
        args, kwargs = args[1:], {key: value for key, value in kwargs.items() if key != "a"}
        return function(np.broadcast_to(np.False_, x.shape), *args, **kwargs)
    return function(*_values(x, args, name), **_values(x, kwargs, name))


def _values(x: Tensor, given: Any, name: str) -> Any:
    """`given` with arrays in place of the tensors in it."""
    if is_tensor(given):
        if given.requires_grad:
            raise GradientError(
                f"numpy.{name} would lose the gradient of a tensor that requires one: use the "
                "Tensor's own ops, or .detach() it first"
            )
        return given.numpy()
    if isinstance(given, (list, tuple)):
        return type(given)(_values(x, value, name) for value in given)
    if isinstance(given, dict):
        return {key: _values(x, value, name) for key, value in given.items()}
    return given


# ---- DLPack ----

_HOST, _CARD, _PINNED = 1, 2, 3  # kDLCPU, kDLCUDA, kDLCUDAHost
_LEGACY_STREAM = 1  # the default stream; ours waits for it (see runtime/cuda.py)
_READ_ONLY = 1  # a flag of version 1
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}
_BFLOAT = 4


def _code(dtype: DType) -> tuple[int, int]:
    """(code, bits) of a dtype."""
    return (_BFLOAT if dtype is bfloat16 else _CODES[dtype.kind]), 8 * dtype.itemsize


_DTYPES = {_code(dtype): dtype for dtype in ALL}


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


def _opened(capsule: Any) -> tuple[_DLTensor, bool]:
    """What a capsule holds, and whether it must not be written."""
    if _valid(capsule, b"dltensor_versioned"):
        found = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if found.major > 1:
            raise BufferError(f"from_dlpack: version {found.major} of DLPack is not known; 1 is")
        return found.tensor, bool(found.flags & _READ_ONLY)
    return _DLTensor.from_address(_pointer(capsule, b"dltensor")), False


def dlpack_device(x: Tensor) -> tuple[int, int]:
    """(1, 0) for the host's memory, (2, n) for card n."""
    return open_device(x.device).machine.dlpack_device


def to_dlpack(
    x: Tensor,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """A capsule with the memory of x, or with a copy of it. Made by numpy, which also frees it;
    what numpy has no word for (bfloat16, cards) is then written into it."""
    if x.requires_grad:
        raise BufferError("__dlpack__: the gradient of a tensor ends here; .detach() it first")
    own = open_device(x.device).machine
    target = (int(dl_device[0]), int(dl_device[1])) if dl_device else own.dlpack_device
    if target != own.dlpack_device:
        if target[0] != _HOST or copy is False:
            raise BufferError(f"__dlpack__: no way from {x.device} to DLPack's device {target}")
        return to_dlpack(x.to("NUMPY"), None, max_version)
    if copy is False and views.root_of(x) is not None:
        raise BufferError(
            "__dlpack__: a part of a tensor is memory of its own; leave out copy=False"
        )
    array = _view(_duplicate(x) if copy else x, np.dtype(f"u{x.dtype.itemsize}"))
    if target[0] == _CARD and stream != -1:
        own.synchronize()
    has_versions = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
    version = {"max_version": max_version} if max_version and has_versions else {}
    capsule: Any = array.__dlpack__(**version)  # type: ignore[arg-type]
    tensor, _ = _opened(capsule)
    tensor.device_type, tensor.device_id = target
    tensor.code, tensor.bits = _code(x.dtype)
    return capsule


def _duplicate(x: Tensor) -> Tensor:
    """x in memory that nobody else knows."""
    leaf = views.leaf_of(x)
    return x._of(realizing.upload(realizing.download(leaf), leaf.dtype, leaf.device))


def from_dlpack(
    kind: type[Tensor], x: Any, /, *, device: str | None = None, copy: bool | None = None
) -> Tensor:
    """A tensor on the memory of another library's array, where it can be shared: row-major,
    aligned and writable, on the same device. Otherwise, and with copy=True, on a copy; copy=False
    raises BufferError instead. What either side writes later, both see if the memory is shared.
    An array on a card that has `__cuda_array_interface__` only is taken by that.
    """
    if not hasattr(x, "__dlpack__") and hasattr(x, "__cuda_array_interface__"):
        return _from_card(kind, x, device, copy)
    if not hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__"):
        raise TypeError(
            f"from_dlpack: {type(x).__name__} has no __dlpack__; Tensor(...) takes numbers, nested "
            "lists and arrays"
        )
    memory = int(x.__dlpack_device__()[0])
    if memory not in (_HOST, _CARD, _PINNED):
        raise BufferError(f"from_dlpack: memory of DLPack's device type {memory} is out of reach")
    capsule = _capsule_of(x, memory)
    tensor, read_only = _opened(capsule)
    place = _place(memory, device)
    on_card, own = memory == _CARD, bool(copy) or read_only
    leaf = None if own and not on_card else _shared(tensor, capsule, place)
    if copy is False and (leaf is None or own):
        raise BufferError("from_dlpack: this memory cannot be shared; leave out copy=False")
    result = kind._of(_copied(tensor, capsule, place) if leaf is None else leaf)
    result = _duplicate(result) if own and on_card else result
    return result if device is None else result.to(device)


def _from_card(kind: type[Tensor], x: Any, device: str | None, copy: bool | None) -> Tensor:
    leaf = cuda_arrays.leaf_on(x, shared=not copy)
    if leaf is None and copy is False:
        raise BufferError("from_dlpack: this memory cannot be shared; leave out copy=False")
    result = kind._of(cuda_arrays.copied(x) if leaf is None else leaf)
    return result if device is None else result.to(device)


def _capsule_of(x: Any, memory: int) -> Any:
    stream = _LEGACY_STREAM if memory == _CARD else None
    try:
        return x.__dlpack__(stream=stream, max_version=(1, 1))
    except TypeError:  # from before version 1
        return x.__dlpack__(stream=stream) if stream else x.__dlpack__()


def _place(memory: int, device: str | None) -> str:
    """The device with that memory: the wanted one, the default one, or the first there is."""
    wanted = [Device.canonical(device), "CUDA" if memory == _CARD else "CPU", "NUMPY"]
    kind = _CARD if memory == _CARD else _HOST
    for name in wanted:
        if Device.available(name) and open_device(name).machine.dlpack_device[0] == kind:
            return name
    raise BufferError("from_dlpack: the array is on a card, and there is no device CUDA here")


def _described(tensor: _DLTensor) -> tuple[DType, Shape, tuple[int, ...], int]:
    """dtype, shape, strides in elements, and address."""
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
    if all(n == 1 or s == p for n, s, p in zip(shape, strides, plain, strict=True)):
        strides = plain
    return dtype, shape, strides, address


def _shared(tensor: _DLTensor, capsule: Any, place: str) -> lazy.Data | None:
    """A leaf on the capsule's own memory, which lives as long as the capsule does."""
    dtype, shape, strides, address = _described(tensor)
    if strides != row_major_strides(shape) or 0 in shape:
        return None
    return realizing.adopt(address, shape, dtype, place, capsule)


def _copied(tensor: _DLTensor, capsule: Any, place: str) -> lazy.Data:
    dtype, shape, strides, address = _described(tensor)
    if tensor.device_type == _CARD and 0 not in shape:
        raise BufferError(f"from_dlpack: make the {shape} on the card contiguous first")
    return realizing.upload(_read(dtype, shape, strides, address, capsule), dtype, place)


def _read(dtype: DType, shape: Shape, strides: tuple[int, ...], address: int, owner: Any) -> Array:
    """A copy of memory of the host, row-major and in storage dtype."""
    if 0 in shape:
        return np.empty(shape, dtype.storage)
    memory = _Memory((address, False), shape, dtype.storage.str, owner)
    memory.__array_interface__["strides"] = tuple(s * dtype.itemsize for s in strides)  # bytes
    return np.array(np.asarray(memory), order="C")


def values_of(x: Any) -> tuple[Array, DType]:
    """A copy of the values of an object with `__dlpack__`, and their dtype."""
    if getattr(x, "requires_grad", False) is True:
        raise GradientError(
            f"Tensor: no gradient flows into this {type(x).__module__} tensor; .detach() it first"
        )
    host = x.cpu() if hasattr(x, "cpu") and int(x.__dlpack_device__()[0]) == _CARD else x
    capsule = _capsule_of(host, _HOST)
    tensor, _ = _opened(capsule)
    dtype, shape, strides, address = _described(tensor)
    return to_compute(_read(dtype, shape, strides, address, capsule), dtype), dtype
