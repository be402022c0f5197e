"""Values in and out of tensors."""

from __future__ import annotations

import array
import ctypes
import math
import types
from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from tinyml import lazy, trace
from tinyml import realize as realizing
from tinyml.device import Device, open_device
from tinyml.dtype import DType, bool_, by_name, from_numpy, int64, to_compute, to_storage, uint64
from tinyml.dtypes import DTypeLike, dtypes, to_dtype
from tinyml.errors import DTypeError, RangeError, ShapeError
from tinyml.functional import views
from tinyml.functional.axes import is_tensor, new_shape, whole, wrong_type
from tinyml.functional.foreign import values_of
from tinyml.functional.operands import check_fits
from tinyml.lazy import LazyBuffer

if TYPE_CHECKING:
    from tinyml.tensor import Scalar, Tensor

Array = npt.NDArray[Any]


def fill(
    x: Tensor, value: Any, device: str | None, dtype: DType | None, requires_grad: bool | None
) -> None:
    """Let x be made of `value`; of a list of tensors as `stack` makes it, with its gradient.

    That is where they are, unless another device is named, and so are the numbers among them.
    """
    kind = type(x)
    held = _tensor_in(value) if isinstance(value, (list, tuple)) else None
    if held is not None:
        place = held._lazy.device if device is None else device
        parts = [v if is_tensor(v) else kind(v, device=place) for v in value]
        if device is not None:
            parts = [part.to(device) for part in parts]
        joined = parts[0].stack(*parts[1:])
        joined = joined if dtype is None else joined.cast(dtype)
        x._begin(joined.lazy)
        if requires_grad is None:
            x._record, x._requires_grad = joined._record, joined._requires_grad
            return
    else:
        x._begin(_to_node(value, device, dtype))
    x.requires_grad = requires_grad


def _to_node(value: Any, device: str | None, dtype: DType | None) -> LazyBuffer:
    """The node for what is no list of tensors."""
    if is_tensor(value):
        moved = value if device is None else value.to(device)
        return (moved if dtype is None else moved.cast(dtype)).lazy
    place = Device.canonical(device)
    if isinstance(value, LazyBuffer):
        return value
    if isinstance(value, (bool, int, float)):
        _check_number(value)
        target = dtype or dtypes.from_py(value)
        check_fits("Tensor", value, target)
        return lazy.const(value, target, place)
    if value is None:
        return lazy.const(0, dtype or dtypes.default_float, place, (0,))
    values, own = _to_array(value, dtype)
    target = dtype or own
    if values.ndim == 0:
        return lazy.const(values.item(), target, place)
    return realizing.upload(_stored(values, target), target, place)


def _check_number(value: Any) -> None:
    if isinstance(value, int) and not int64.min <= value <= uint64.max:
        raise RangeError(f"Tensor: {value} does not fit into 64 bits; a float may be near it")


def _tensor_in(value: Any) -> Tensor | None:
    """The first tensor in a nested list."""
    for v in value:
        found = _tensor_in(v) if isinstance(v, (list, tuple)) else v
        if is_tensor(found):
            return found
    return None


def has_values(value: Any) -> bool:
    """Whether an operand may stand beside a tensor; a string, None or a set may not."""
    if isinstance(value, (bool, int, float, list, tuple, np.ndarray, np.generic, array.array)):
        return True
    return hasattr(value, "__array__") or hasattr(value, "__dlpack__")


def to_write(op: str, x: Tensor, value: Any) -> Tensor:
    """What is assigned to x or a part of it, as a tensor; TypeError if it is no values."""
    if is_tensor(value):
        return value
    if not has_values(value):
        raise wrong_type(op, "the value", "a Tensor, a number, a list or an array", value)
    return type(x)(value, x.device, x.dtype)


def _to_array(value: Any, dtype: DType | None) -> tuple[Array, DType]:
    """A numpy array of the values, and the dtype they have unless another is asked for."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value), from_numpy(value.dtype)
    if isinstance(value, (bytes, bytearray)) or type(value).__name__ == "mmap":
        return _from_bytes(value, dtype or dtypes.uint8)
    if hasattr(value, "__dlpack__"):
        return values_of(value)
    if isinstance(value, (memoryview, array.array)) or hasattr(value, "__array__"):
        values = np.asarray(value)
        return values, from_numpy(values.dtype)
    if not isinstance(value, (list, tuple, range)):
        raise TypeError(
            f"Tensor: cannot be made from {value!r} ({type(value).__name__}); numbers, nested "
            f"lists, arrays, bytes and tensors will do{_ADVICE.get(type(value), '')}"
        )
    try:
        values = np.array(value)
    except ValueError:
        raise ShapeError(f"Tensor: a nested list must be rectangular, {_uneven(value)}") from None
    if dtype is not None and dtype.is_int and values.size and values.dtype.kind in "iufO":
        values = _exact(value, values, dtype)
    if values.dtype.kind not in "buif":
        _complain_of_elements(value)
    return values, _dtype_of_list(values)


_ADVICE: dict[type, str] = {
    str: "; did you mean dtype= or device=?",
    complex: ": a complex number is two floats, so keep real and imaginary parts apart",
    set: ": a set has no order, so make a sorted list of it",
    types.GeneratorType: ": make a list of it",
}


def _from_bytes(value: Any, dtype: DType) -> tuple[Array, DType]:
    if len(value) % dtype.itemsize:
        raise ShapeError(
            f"Tensor: {len(value)} bytes are no whole number of {dtype} ({dtype.itemsize} bytes)"
        )
    return to_compute(np.frombuffer(value, dtype.storage), dtype), dtype


def _uneven(value: Any) -> str:
    """The first two parts of a nested list that differ in length."""
    level = [("", value)]
    while level:
        level = [(f"{path}[{i}]", v) for path, part in level for i, v in enumerate(part)]
        counts = [len(v) if hasattr(v, "__len__") else None for _, v in level]
        for (path, _), count in zip(level, counts, strict=True):
            if count != counts[0]:
                return f"but {level[0][0]} {_holding(counts[0])} and {path} {_holding(count)}"
        if counts and counts[0] is None:
            break
    return "and its parts differ"


def _holding(count: int | None) -> str:
    return "is no list" if count is None else f"has {count} element{'s' * (count != 1)}"


def _complain_of_elements(value: Any) -> NoReturn:
    """Say which element of a nested list is none that a tensor can hold."""
    for element in value:
        if isinstance(element, (list, tuple)):
            _complain_of_elements(element)
        elif not isinstance(element, (bool, int, float, np.generic, np.ndarray)):
            raise DTypeError(
                f"Tensor: a list holds numbers, bools and tensors, and not {element!r} "
                f"({type(element).__name__})"
            )
        elif not isinstance(element, np.ndarray):
            _check_number(element)
    raise DTypeError("Tensor: these numbers have no dtype in common")


def _exact(value: Any, values: Array, dtype: DType) -> Array:
    """Numbers that fit into an integer dtype; numpy makes floats of ints beyond int64."""
    if values.dtype.kind in "fO":
        given = np.array(value, object)
        if not all(isinstance(v, (int, float)) for v in given.flat):
            return values
        if all(isinstance(v, int) for v in given.flat):
            values = given
    for extreme in np.array([values.min(), values.max()], values.dtype).tolist():
        check_fits("Tensor", extreme, dtype)
    return values.astype(dtype.compute) if values.dtype == object else values


def _dtype_of_list(values: Array) -> DType:
    if values.dtype.kind == "b":
        return bool_
    if values.dtype.kind == "i":
        narrow = dtypes.default_int
        lowest, highest = (int(values.min()), int(values.max())) if values.size else (0, 0)
        return narrow if narrow.min <= lowest and highest <= narrow.max else int64
    return dtypes.default_float if values.dtype.kind == "f" else from_numpy(values.dtype)


def _stored(values: Array, dtype: DType) -> Array:
    """The bits of `values` as `dtype`, row by row: they may be those of the array itself."""
    if values.dtype != dtype.compute:
        with np.errstate(all="ignore"):
            if dtype is bool_:
                values = values != 0
            elif values.dtype.kind == "f" and dtype.is_int and dtype.itemsize < 8:
                values = values.astype(np.int64)
            values = values.astype(dtype.compute)
    return np.ascontiguousarray(to_storage(values, dtype))


def to_numpy(x: Tensor) -> Array:
    """The values as a numpy array of their own (bfloat16 as float32)."""
    leaf = views.leaf_of(x)
    return to_compute(realizing.download(leaf), leaf.dtype)


def number(x: Tensor, op: str, instead: str = "tolist() gives all of them") -> Scalar:
    """The only element of x, for an op that needs it."""
    if x._lazy.size != 1:
        raise ShapeError(f"{op} needs exactly one element, got shape {x.shape}; {instead}")
    found: Scalar = to_numpy(x).item()
    return found


def realize(x: Tensor, *others: Tensor) -> Tensor:
    """Compute this and other tensors, in one schedule."""
    for number, other in enumerate((x, *others)):
        if not is_tensor(other):  # x is none in Tensor.realize([x, y])
            raise wrong_type("realize", f"argument {number}", "a Tensor", other)
    views.realize((x, *others))
    return x


def item(x: Tensor) -> Scalar:
    """The only element, as a Python number."""
    return number(x, "item()")


def as_index(x: Tensor) -> int:
    """The only element, where Python needs a whole number."""
    if x.dtype.is_float:
        raise TypeError(f"an index is a whole number, and this tensor is {x.dtype}")
    return int(number(x, "an index", "index with the tensor itself"))


def tolist(x: Tensor) -> Any:
    """The values as nested lists."""
    return x.numpy().tolist()


def parts_of(x: Tensor) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """A function and arguments that copy x, here or elsewhere; a view becomes one of the copy."""
    root, view = views.root_of(x), x._view
    if root is not None and view is not None:
        return _copied_view, (root, view.moves(), x.requires_grad)
    leaf = views.leaf_of(x)
    values = realizing.download(leaf)
    return _copied, (type(x), values, leaf.dtype.name, leaf.device, x.requires_grad)


def _copied(
    kind: type[Tensor], values: Array, dtype: str, device: str, requires_grad: bool | None
) -> Tensor:
    stored = np.array(values, order="C", copy=True)
    leaf = realizing.upload(stored, by_name(dtype), Device.canonical(device))
    return kind._of(leaf)._requiring(requires_grad)


def _copied_view(root: Tensor, moves: tuple[views.Move, ...], requires_grad: bool | None) -> Tensor:
    return views.read(root, moves).detach()._requiring(requires_grad)


def deep_copy(x: Tensor, memo: dict[int, Any]) -> Tensor:
    """x in memory of its own, or in that of its root's copy, with a copy of its gradient."""
    make, (first, *others) = parts_of(x)
    copied = memo[id(x)] = make(deepcopy(first, memo), *others)
    copied._grad = deepcopy(x._grad, memo)
    return copied


def from_blob(
    kind: type[Tensor], address: int, shape: Any, dtype: DTypeLike, device: str | None = None
) -> Tensor:
    """A tensor on memory of its device, at this address, which must live as long as it does.

    What is written there is seen here, and the other way round. EMU copies, because its memory has
    guards around it, and so does the host for numbers that lie across their own boundaries.
    """
    target, sizes = to_dtype(dtype), new_shape((shape,), "from_blob")
    place = Device.canonical(device)
    if whole(address, "from_blob", "the address") <= 0:
        raise ValueError(f"from_blob: there is no memory at address {address}")
    shared = realizing.adopt(address, sizes, target, place, "the caller") if all(sizes) else None
    if shared is not None:
        return kind._of(shared)
    if open_device(place).machine.dlpack_device != (1, 0) and all(sizes):  # no memory of the host
        raise ValueError(f"from_blob: {place} cannot use memory that begins at {address:#x}")
    raw: Any = (ctypes.c_char * (math.prod(sizes) * target.itemsize)).from_address(address)
    values = np.frombuffer(raw, target.storage).reshape(sizes).copy()
    return kind._of(realizing.upload(values, target, place))


# ---- how a tensor is shown: nothing is computed for it ----


def describe(x: Tensor) -> str:
    """Values, abbreviated as numpy does, if they are in memory; else what they will be like."""
    grad = ", requires_grad=True" if x.requires_grad else ""
    node = x.lazy
    if type(node) is lazy.Data and not trace.wanted(trace.HostRead):  # a JIT allows no looking
        values = to_compute(realizing.download(node), node.dtype)
        text = np.array2string(values, separator=", ", prefix="Tensor(")
        sizes = "" if values.size else f"shape={x.shape}, "
    elif type(node) is lazy.Const:
        text, sizes = str(node.value), ""
    else:
        return f"<Tensor {x.shape} {x.dtype} on {x.device}{grad}, not computed yet>"
    return f"Tensor({text}, {sizes}dtype={x.dtype}, device={x.device}{grad})"


def format_number(x: Tensor, spec: str) -> str:
    """`f"{x:.2f}"` of a tensor of no axes, as its number; without a spec any tensor as it is."""
    if not x.ndim:
        return format(x.item(), spec)
    if spec:
        raise TypeError(
            f"format: {spec!r} is for one number, and this tensor has shape {x.shape}; index it, "
            "or reduce it first, or format the numbers of .tolist()"
        )
    return str(x)
