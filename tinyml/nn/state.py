"""Where a model's tensors are, by name; and those tensors in a file.

A name is the way to a tensor through attributes, keys and positions: `layers.0.weight`. Names
agree with PyTorch's for models that are put together alike.
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping, Set, ValuesView
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np

from tinyml import dtype as dt
from tinyml.cache import write_whole
from tinyml.errors import ShapeError, TinymlError
from tinyml.functional.axes import wrong_type
from tinyml.tensor import Tensor

# The file format's names for the dtypes.
_CODES = {"BOOL": dt.bool_, "BF16": dt.bfloat16}
_CODES |= {f"{d.kind.upper()}{d.bitsize}": d for d in dt.ALL if d not in _CODES.values()}
# What is never part of a model: looking inside would find the attributes of someone else.
_OPAQUE = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType)
_ONCE = (GeneratorType, map, filter, zip, reversed)  # looking inside would use it up


class StateError(TinymlError, RuntimeError, KeyError):
    """The names in a state dict are not the names in the model."""

    __str__ = Exception.__str__  # KeyError would print the repr of the message


def get_state_dict(obj: Any, prefix: str = "") -> dict[str, Tensor]:
    """Every tensor of a model by name; a tensor that is shared has several names."""
    return _found(obj, prefix)


def get_parameters(obj: Any) -> list[Tensor]:
    """Every tensor of a model once, in the order in which it was put together."""
    return list({id(tensor): tensor for tensor in _found(obj, "").values()}.values())


def _found(obj: Any, prefix: str) -> dict[str, Tensor]:
    once = isinstance(obj, (Iterator, Set)) and not hasattr(obj, "__dict__")
    if once or isinstance(obj, type):  # a class has no tensors: Model() does
        raise wrong_type("nn.state", "a model", "an object or a list", obj)
    found: dict[str, Tensor | None] = {}
    _walk(obj, prefix.rstrip("."), [], found)
    if generators := ", ".join(name for name, tensor in found.items() if tensor is None):
        said = "a generator has no tensors that could be found, make a list of it"
        warnings.warn(f"nn.state: {said}: {generators}", stacklevel=3)
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def _walk(obj: Any, name: str, above: list[Any], found: dict[str, Tensor | None]) -> None:
    if isinstance(obj, (Tensor, *_ONCE)):
        found[name] = obj if isinstance(obj, Tensor) else None
        return
    if any(obj is other for other in above):  # a cycle: this object is being walked already
        return
    for key, child in _children(obj):
        _walk(child, f"{name}.{key}" if name else key, [*above, obj], found)


def _children(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, Mapping):
        yield from ((str(key), child) for key, child in obj.items())
    elif isinstance(obj, tuple) and hasattr(obj, "_fields"):  # a named tuple
        yield from zip(obj._fields, obj, strict=True)
    elif isinstance(obj, (list, tuple, deque, ValuesView)):
        yield from ((str(i), child) for i, child in enumerate(obj))
    elif not isinstance(obj, _OPAQUE):
        for kind in type(obj).__mro__:
            slots = getattr(kind, "__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if hasattr(obj, slot) and slot not in ("__dict__", "__weakref__"):
                    yield slot, getattr(obj, slot)
        yield from getattr(obj, "__dict__", {}).items()


def load_state_dict(
    model: Any,
    state_dict: MutableMapping[str, Tensor],
    strict: bool = True,
    verbose: bool = True,
    consume: bool = False,
    realize: bool = True,
) -> list[Tensor]:
    """Assign a state dict's values to the model's tensors, and return those tensors.

    Values are cast to the model's dtypes and moved to its devices. `strict=False` leaves alone
    what only the model has. What only the state dict has is skipped, with a warning if `verbose`.
    A shape that differs is always an error, but one number may have shape () or (1,), as older
    files of PyTorch have it. Nothing is changed if there is an error.

    `consume` takes what was loaded out of the state dict. With `realize=False` the values are
    computed when they are needed.
    """
    _check_names("load_state_dict", state_dict)
    mine = get_state_dict(model)
    common = [name for name in mine if name in state_dict]
    unexpected = [name for name in state_dict if name not in mine]
    missing = [name for name in mine if name not in state_dict] if strict else []
    _check_fit(mine, state_dict, missing, unexpected)
    if unexpected and verbose:
        names = ", ".join(unexpected)
        warnings.warn(f"in the state dict, but not in the model: {names}", stacklevel=2)
    for name in common:
        tensor, value = mine[name], state_dict.pop(name) if consume else state_dict[name]
        value = value.to(tensor.device).cast(tensor.dtype).reshape(tensor.shape)
        tensor.assign(value.detach())
    loaded = [mine[name] for name in common]
    if loaded and realize:
        Tensor.realize(*loaded)
    return loaded


def _check_names(op: str, tensors: Any) -> None:
    if not isinstance(tensors, Mapping):
        made = "safe_load(file) reads" if op == "load_state_dict" else "get_state_dict(model) makes"
        wanted = f"a dict of tensors by name, as nn.state.{made} one"
        raise wrong_type(op, "the state dict", wanted, tensors)
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise wrong_type(op, "a name", "a str", name)
        if not isinstance(tensor, Tensor):
            raise wrong_type(op, repr(name), "a Tensor", tensor)


def _check_fit(
    mine: Mapping[str, Tensor],
    state_dict: Mapping[str, Tensor],
    missing: list[str],
    unexpected: list[str],
) -> None:
    unlike = [
        f"  Shape mismatch in layer `{name}`: Expected shape {tensor.shape}, "
        f"but found {state_dict[name].shape} in state dict."
        for name, tensor in mine.items()
        if name in state_dict
        and state_dict[name].shape != tensor.shape
        and {state_dict[name].shape, tensor.shape} != {(), (1,)}
    ]
    lines = ["the state dict does not fit the model"]
    if missing:
        lines.append(f"  missing in the state dict: {', '.join(missing)}")
        if unexpected:
            lines.append(f"  not in the model: {', '.join(unexpected)}")
        lines += [*unlike, "  strict=False loads the names that both have"]
        raise StateError("\n".join(lines))
    if unlike:
        raise ShapeError("\n".join(lines + unlike))


def safe_save(
    tensors: Mapping[str, Tensor],
    fn: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a state dict to a .safetensors file, which appears complete or not at all."""
    safetensors = _safetensors()
    _check_names("safe_save", tensors)
    if tensors:
        Tensor.realize(*tensors.values())
    specs, alive = {}, []  # a spec holds an address only, so the arrays are kept alive here
    for name, tensor in tensors.items():
        array = np.ascontiguousarray(dt.to_storage(tensor.numpy(), tensor.dtype))
        alive.append(array)
        specs[name] = safetensors.TensorSpec(
            dtype=tensor.dtype.name,
            shape=list(tensor.shape),
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
    content = safetensors.serialize(specs, dict(metadata) if metadata else None)
    write_whole(Path(fn), content, lasting=True)


def safe_load(fn: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read a .safetensors file into a state dict of tensors on the default device."""
    safetensors = _safetensors()
    try:
        entries = safetensors.deserialize(Path(fn).read_bytes())
    except safetensors.SafetensorError as error:
        raise ValueError(f"{fn} is not a complete safetensors file: {error}") from error
    return {name: _tensor(name, entry) for name, entry in entries}


def _tensor(name: str, entry: Mapping[str, Any]) -> Tensor:
    dtype = _CODES.get(entry["dtype"])
    if dtype is None:
        known = ", ".join(_CODES)
        raise ValueError(f"{name} is stored as {entry['dtype']}; tinyml can read {known}")
    stored = np.frombuffer(entry["data"], dtype.storage).reshape(entry["shape"])
    return Tensor(dt.to_compute(stored, dtype), dtype=dtype)


def _safetensors() -> Any:
    try:
        import safetensors
    except ImportError as error:
        raise ImportError(
            "reading and writing .safetensors files needs the package safetensors: "
            "pip install safetensors (tinyml's extra 'state')"
        ) from error
    return safetensors
