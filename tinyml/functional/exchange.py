"""Arrays of other libraries: DLPack, numpy's protocols, CUDA's array interface.

    gives away              takes
    __dlpack__              from_dlpack        memory is shared where that can be done
    __array__               Tensor(array)      the values are copied, whoever writes later
    __array_ufunc__         np.exp(t) is t.exp(); what Tensor lacks, numpy computes on the values
    __array_function__      np.concatenate([t, u]) and the like give arrays
    __cuda_array_interface__                   what has only that: from_dlpack (foreign.py)

Memory that is shared is one memory: what one side writes, the other reads, and so does every
tensor that holds these values, or is a view of one that does. Ask for copy=True where that is
not wanted. What was computed from a tensor before its memory is given away, or merely equals it,
keeps the values of then. A part or another order of a tensor (x[1:], x.T) is given away in memory
of its own, with the values of then: what is written there, x does not see, and the other way.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tinyml import ledger
from tinyml import realize as realizing
from tinyml.device import open_device
from tinyml.dtype import bfloat16
from tinyml.errors import GradientError
from tinyml.functional import views
from tinyml.functional.axes import is_tensor
from tinyml.functional.foreign import CARD, HOST, SeenAsArray, code, opened, taken

if TYPE_CHECKING:
    from tinyml.tensor import Tensor

Array = npt.NDArray[Any]


def _view(x: Tensor, storage: np.dtype[Any] | None = None, read_only: bool = False) -> Array:
    """The memory of x as an array that keeps it alive. On a card: not to be looked into."""
    leaf = views.leaf_of(x)
    if not leaf.size:
        return np.empty(leaf.shape, storage or leaf.dtype.storage)
    buffer = ledger.memory[leaf]
    if not read_only:
        views.give_away(x)
    data, typestr = (buffer.memory, read_only), (storage or leaf.dtype.storage).str
    return np.asarray(SeenAsArray(data, leaf.shape, typestr, buffer))


# ---- numpy ----


def to_array(x: Tensor, dtype: Any = None, copy: bool | None = None) -> Array:
    """`numpy.asarray(x)`: a copy, or with copy=False a view of memory that cannot be written."""
    on_host = open_device(x.device).machine.dlpack_device[0] == HOST
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


# ---- DLPack, and CUDA's array interface ----


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
        if target[0] != HOST or copy is False:
            raise BufferError(f"__dlpack__: no way from {x.device} to DLPack's device {target}")
        return to_dlpack(x.to("NUMPY"), None, max_version)
    if copy is False and views.root_of(x) is not None:
        raise BufferError(
            "__dlpack__: a part of a tensor is memory of its own; leave out copy=False"
        )
    array = _view(_duplicate(x) if copy else x, np.dtype(f"u{x.dtype.itemsize}"))
    if target[0] == CARD and stream != -1:
        own.synchronize()
    has_versions = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
    version = {"max_version": max_version} if max_version and has_versions else {}
    capsule: Any = array.__dlpack__(**version)  # type: ignore[arg-type]
    tensor, _ = opened(capsule)
    tensor.device_type, tensor.device_id = target
    tensor.code, tensor.bits = code(x.dtype)
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
    found = taken(x, device)
    leaf = None if copy else found.shared()
    if copy is False and leaf is None:
        raise BufferError("from_dlpack: this memory cannot be shared; leave out copy=False")
    result = kind._of(found.copied() if leaf is None else leaf)
    return result if device is None else result.to(device)


def interface_of(x: Tensor) -> dict[str, Any]:
    """CUDA's array interface of a realized x; AttributeError for what is not on a card.

    Its memory is ready: all launched work is done.
    """
    machine = open_device(x.device).machine
    if machine.dlpack_device[0] != CARD or x.dtype is bfloat16:
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
