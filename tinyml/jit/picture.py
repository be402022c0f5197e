"""Picture: what a replay compares of a value that code reads besides tensors.

plain      a number, text, None, a member of an enum, a dtype, ...   itself
container  a list, dict, set, small array, ...                       its Picture
object     a tensor, a layer, a function, ...                        which one it is

picture ::= Picture(kind, key*, part*)    part ::= plain | picture | id
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Collection
from functools import lru_cache
from itertools import islice
from numbers import Number
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from tinyml.dtype import DType
from tinyml.frozen import dataclass

CONTAINERS = (list, dict, tuple, set, frozenset, deque, np.ndarray)
MANY = 1000  # elements of a container are looked at
_DEEP = 3  # containers within each other
_BYTES = 1 << 14  # of an array that is compared element by element
_WHOLE, _OBJECTS = {set, frozenset, np.ndarray, object}, {object}
_PLAIN = (Number, np.generic, str, bytes, NoneType, enum.Enum, slice, range, DType, type)


class Picture(NamedTuple):
    """What is in a container: ids, if its kind is `object`."""

    kind: Any
    keys: Any
    parts: tuple[Any, ...]


@lru_cache(maxsize=1000)
def _sort(kind: Any) -> Any:
    """What values of a type are, for what is compared of them: `Number` is all that is plain."""
    if issubclass(kind, _PLAIN):
        return Number
    return next((container for container in CONTAINERS if issubclass(kind, container)), object)


def is_plain(value: Any) -> bool:
    """Whether a value is compared as it is."""
    kind: Any = type(value)
    return _sort(kind) is Number or (_sort(kind) is tuple and all(map(is_plain, value)))


def picture(value: Any, deep: int = _DEEP) -> Any:
    """What is compared of a value; its objects are not kept."""
    kind: Any = type(value)
    sort = _sort(kind)
    if sort is list:
        return _pictured(kind, value, deep)
    if sort is Number or (sort is tuple and is_plain(value)):
        return value
    if sort is object:
        return Picture(object, None, (id(value),))
    if sort is np.ndarray:
        said = value.tobytes() if value.nbytes <= _BYTES else id(value)
        return Picture(sort, None, (value.dtype.str, value.shape, said))
    if sort is dict:
        return _pictured(kind, value.values(), deep, _pictured(kind, value, 0).parts)
    if sort in _WHOLE:
        return Picture(sort, None, (len(value), frozenset(_pictured(kind, value, 0).parts)))
    return _pictured(kind, value, deep)


def _pictured(kind: type[Any], values: Collection[Any], deep: int, keys: Any = None) -> Picture:
    found = values if len(values) <= MANY else tuple(islice(values, MANY))
    if {*map(_sort, {*map(type, found)})} == _OBJECTS:  # no step of Python for each of many layers
        return Picture(object, keys, tuple(map(id, found)))
    shown = [picture(v, deep - 1) if deep else v if is_plain(v) else id(v) for v in found]
    return Picture(kind, keys, tuple(shown))


def parts(container: Any) -> Collection[Any]:
    """What is in a container: the values of a dict."""
    found: Collection[Any] = container.values() if isinstance(container, dict) else container
    return found


def are_objects(value: Any) -> bool:
    """Whether a value is a list of nothing but objects."""
    return type(value) is list and picture(value)[:2] == (object, None) and len(value) <= MANY


def members(value: Any) -> tuple[int, ...]:
    """What is compared of such a list, as of layers: a picture takes longer."""
    return tuple(map(id, value))


def same(value: Any) -> Any:
    """What is compared of something plain."""
    return value


@dataclass(frozen=True)
class _Entries:
    """What a dict or list has at keys that it had."""

    keys: tuple[Any, ...]

    def __call__(self, value: Any) -> Any:
        return picture({key: value[key] for key in self.keys})


Compared = Callable[[Any], Any]  # `same`, `picture`, `members`, `entries`, or `id`


def entries(container: Any) -> Compared:
    """How a container is compared that the code itself fills, as a cache: others may come."""
    if are_objects(container) or not isinstance(container, (dict, list)):
        return picture
    items = container.items() if isinstance(container, dict) else enumerate(container)
    return _Entries(tuple(key for key, value in islice(items, MANY) if value is not None))


def compared(value: Any) -> Compared:
    """How a value is compared that code reads."""
    if is_plain(value):
        return same
    return picture if isinstance(value, CONTAINERS) else id


def difference(called: str, then: Any, now: Any) -> str:
    """What is another one in a picture, as a sentence of whom it belongs to."""
    if not (isinstance(then, Picture) and isinstance(now, Picture)):
        one, other = ("an object" if isinstance(x, Picture) else x for x in (then, now))
        return f"{called} was {one} when the function was captured, and is {other} now"
    if then[:2] != now[:2] or len(then.parts) != len(now.parts) or _sort(then.kind) in _WHOLE:
        return f"{called} holds something else than when the function was captured"
    names = then.keys or range(len(then.parts))
    pairs = zip(names, then.parts, now.parts, strict=True)
    name, one, other = next(three for three in pairs if three[1] != three[2])
    return difference(f"{called}[{name!r}]", one, other)
