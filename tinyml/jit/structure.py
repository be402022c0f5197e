"""The structure of arguments and results: containers, tensors, and whatever else is in them.

    structure ::= TensorPart(shape, dtype, device)
                | ListPart(kind, part*)              list, tuple, named tuple, dataclass
                | DictPart(keys, part*)
                | ValuePart(type, value)             compared by value

Two calls may share one capture if their structures are equal.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from operator import attrgetter
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tinyml.dtype import DType
from tinyml.errors import JitError
from tinyml.jit.outside import content
from tinyml.jit.picture import is_plain, same
from tinyml.lazy import LazyBuffer, Shape
from tinyml.tensor import Tensor

# Named tuples, because they are made and compared in every replay.


class TensorPart(NamedTuple):
    """A tensor, whatever its values are."""

    shape: Shape
    dtype: DType
    device: str


class ListPart(NamedTuple):
    """A sequence, or the fields of a dataclass."""

    kind: type[Any]
    parts: tuple[Any, ...]


class DictPart(NamedTuple):
    """A dict. Its order is no part of it where it is an argument."""

    keys: tuple[Any, ...]
    parts: tuple[Any, ...]


class ValuePart(NamedTuple):
    """Anything else: 1, 1.0 and True are three values, 0.0 and -0.0 are two."""

    kind: type[Any]
    value: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ValuePart) or self.kind is not other.kind:
            return False
        return same(self.value, other.value)


class _Array:
    """A numpy array that is compared as a whole."""

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self.values = values.copy()

    def equals(self, values: npt.NDArray[Any]) -> bool:
        """Whether these are the values, of the same dtype."""
        return self.values.dtype == values.dtype and np.array_equal(self.values, values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Array) and self.equals(other.values)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"array of shape {self.values.shape}"


def flatten(value: Any, tensors: list[Tensor], in_order: bool = False) -> Any:
    """The structure of `value`; its tensors are added to `tensors`.

    `in_order`: the order of a dict counts.
    """
    if isinstance(value, Tensor):
        tensors.append(value)
        node = value.lazy
        return TensorPart(node.shape, node.dtype, node.device)
    if isinstance(value, (list, tuple)):
        parts = tuple([flatten(v, tensors, in_order) for v in value])
        return ListPart(type(value), parts)
    if isinstance(value, dict):
        keys = tuple(value) if in_order or len(value) < 2 else tuple(sorted(value, key=repr))
        return DictPart(keys, tuple([flatten(value[k], tensors, in_order) for k in keys]))
    if isinstance(value, np.ndarray):
        return ValuePart(np.ndarray, _Array(value))
    if read := _fields(type(value)):
        return ListPart(type(value), tuple([flatten(v, tensors, in_order) for v in read(value)]))
    return ValuePart(type(value), value)


def fits(structure: Any, value: Any, tensors: list[Tensor]) -> bool:
    """Whether `value` has this structure; its tensors are added to `tensors`.

    As flatten(value) == structure says it, in the time of a replay, but for what tensors look
    like: see `looks`.
    """
    kind = type(structure)
    if kind is TensorPart:
        tensors.append(value)
        return isinstance(value, Tensor)
    own, parts = structure
    if kind is ValuePart:
        if own is np.ndarray:
            return isinstance(value, np.ndarray) and parts.equals(value)
        return type(value) is own and same(value, parts)
    if kind is DictPart:
        if not isinstance(value, dict) or len(value) != len(own):
            return False
        value = [value[key] for key in own if key in value] if own else ()
    elif type(value) is not own:
        return False
    elif not isinstance(value, (list, tuple)):
        value = _fields(own)(value)
    if len(value) != len(parts):
        return False
    if not parts:
        return True
    if set(map(type, value)) == _ONLY_TENSORS:  # no step of Python for each
        tensors += value
        return set(map(type, parts)) == _ONLY_PARTS
    for part, one in zip(parts, value, strict=True):  # noqa: SIM110  all() takes twice as long
        if not fits(part, one, tensors):
            return False
    return True


def _read_fields(kind: type[Any]) -> Any:
    """What reads the fields of a dataclass, and puts them into a tuple; None for another type."""
    names = [field.name for field in dataclasses.fields(kind)] if _is_dataclass(kind) else []
    return (lambda value: [getattr(value, name) for name in names]) if names else None


_fields: Callable[[Any], Any] = lru_cache(maxsize=1000)(_read_fields)


def _is_dataclass(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) and not kind.__module__.startswith("tinyml.")


def _filled(kind: Any, values: Iterable[Any]) -> Any:
    """A dataclass with these fields, as it was: nothing is computed from them again."""
    made = object.__new__(kind)
    for field, value in zip(dataclasses.fields(kind), values, strict=True):
        object.__setattr__(made, field.name, value)
    return made


_ONLY_TENSORS, _ONLY_PARTS = {Tensor}, {TensorPart}
_node: Callable[[Tensor], LazyBuffer] = attrgetter("lazy")
_looks: Callable[[LazyBuffer], tuple[Any, ...]] = attrgetter("shape", "dtype", "device")


def looks(tensors: Iterable[Tensor]) -> list[tuple[Any, ...]]:
    """What a TensorPart says, of each."""
    return [*map(_looks, map(_node, tensors))]


def objects(structure: Any) -> Iterator[Any]:
    """What is in a structure and is no tensor, container or number."""
    if isinstance(structure, ValuePart):
        if not is_plain(structure.value) and not isinstance(structure.value, _Array):
            yield structure.value
    elif not isinstance(structure, TensorPart):
        for part in structure.parts:
            yield from objects(part)


def check_objects(structure: Any, before: Iterable[Callable[[], Any]]) -> None:
    """JitError if a result is an object, made in the call, that tensors are in."""
    known = {id(x) for reference in before if (x := reference()) is not None}
    for value in objects(structure):
        if id(value) not in known and any(isinstance(x, Tensor) for x in _inside(value)):
            raise JitError(
                f"the function returns tensors in a {type(value).__name__}, and a replay would "
                "return the same one each time: return them in lists, tuples, dicts or dataclasses"
            )


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, (set, frozenset, deque)):
        return value
    if isinstance(value, FunctionType):
        return [*map(content, value.__closure__ or ()), *(value.__defaults__ or ())]
    return vars(value).values() if hasattr(value, "__dict__") else ()


def records(args: Iterable[Any]) -> list[Any]:
    """The dataclasses among arguments, of which all is compared by `fits`."""
    return [x for x in args if _fields(type(x))]


def rebuild(structure: Any, tensors: Iterator[Tensor]) -> Any:
    """The value that has this structure and these tensors."""
    match structure:
        case TensorPart():
            return next(tensors)
        case ListPart(kind=kind, parts=parts):
            values = [rebuild(part, tensors) for part in parts]
            if not issubclass(kind, (list, tuple)):
                return _filled(kind, values)
            return kind(*values) if hasattr(kind, "_fields") else kind(values)
        case DictPart(keys=keys, parts=parts):
            return {k: rebuild(part, tensors) for k, part in zip(keys, parts, strict=True)}
        case ValuePart(value=value):
            return value.values.copy() if isinstance(value, _Array) else value
    raise AssertionError(structure)


def difference(captured: Any, given: Any, path: str) -> str | None:
    """Where and how `given` is not what was captured; None if they are equal."""
    if captured == given:
        return None
    if type(captured) is not type(given):
        return f"{path} was {_words(captured)} when captured, and is now {_words(given)}"
    match captured:
        case ListPart(kind=kind, parts=parts):
            if kind is given.kind and len(parts) == len(given.parts):
                names = [f"{path}[{i}]" for i in range(len(parts))]
                if not issubclass(kind, (list, tuple)):
                    names = [f"{path}.{field.name}" for field in dataclasses.fields(kind)]
                return _first(parts, given.parts, names)
        case DictPart(keys=keys, parts=parts):
            if keys == given.keys:
                return _first(parts, given.parts, [f"{path}[{k!r}]" for k in keys])
        case TensorPart(shape=(n, *rest)) if given == captured._replace(shape=given.shape):
            if list(given.shape[1:]) == rest and given.shape[0] < n:
                return (
                    f"{path} was {_words(captured)} when captured, and is now of {given.shape}. Is "
                    f"it a last, smaller batch: leave it out, pad it to {n} and mask the loss, or "
                    "give it to another TinyJit of the function"
                )
    now = _words(given)
    now = f"another {given.kind.__name__}" if now == _words(captured) else now
    return f"{path} was {_words(captured)} when captured, and is now {now}"


def _first(captured: Iterable[Any], given: Iterable[Any], paths: Iterable[str]) -> str | None:
    found = (difference(*three) for three in zip(captured, given, paths, strict=True))
    return next((text for text in found if text is not None), None)


def _words(part: Any) -> str:
    match part:
        case TensorPart(shape=shape, dtype=dtype, device=device):
            return f"a {dtype} tensor of shape {shape} on {device}"
        case ListPart(kind=kind, parts=parts):
            return f"a {kind.__name__} of {len(parts)}"
        case DictPart(keys=keys):
            return f"a dict of {list(keys)}"
        case ValuePart(kind=kind, value=value):
            return f"{value!r} ({kind.__name__})"
    raise AssertionError(part)
