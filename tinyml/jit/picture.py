"""Picture: what a replay compares of a value that code reads besides tensors.

picture ::= Plain(type, text)       a number, text, None, a member of an enum, a dtype, ...
          | (type, size, picture*)  a list, dict, set, small array, ...; bytes if all is plain
          | id                      an object: a tensor, a layer, a function, ...
"""

from __future__ import annotations

import enum
import marshal
from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache, partial
from itertools import islice
from numbers import Number
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from tinyml.dtype import DType

CONTAINERS = (list, dict, tuple, set, frozenset, deque, np.ndarray)
MANY = 1000  # elements of a container are looked at
_DEEP = 3  # containers within each other
_BYTES = 1 << 14  # of an array that is compared element by element
_PLAIN = (Number, np.generic, str, bytes, NoneType, enum.Enum, slice, range, DType)
_EXACT = {int, float, complex, bool, str, bytes, NoneType}  # which marshal tells apart


class Plain(NamedTuple):
    """A value that is compared as it is written: 2 and 2.0 are two, and 0.0 and -0.0."""

    kind: Any
    text: str


@lru_cache(maxsize=1000)
def _sort(kind: Any) -> Any:
    """What values of a type are, for what is compared of them: `Number` is all that is plain."""
    if issubclass(kind, _PLAIN):
        return Number
    return next((container for container in CONTAINERS if issubclass(kind, container)), object)


def is_plain(value: Any) -> bool:
    """Whether a value is compared as it is, and does not change."""
    kind: Any = type(value)
    return _sort(kind) is Number or (_sort(kind) is tuple and all(map(is_plain, value)))


def _plain(value: Any) -> Plain:
    kind: Any = type(value)
    if isinstance(value, enum.Enum):  # which people give texts of their own
        return Plain(kind, f"{kind.__name__}.{value.name}")
    return Plain(kind, str(value) if isinstance(value, np.generic) else repr(value))


def same(one: Any, other: Any) -> bool:
    """Whether two values of one type are the same, or equal if they are not plain."""
    if one is other or not is_plain(one):
        return one is other or bool(one == other)
    return _plain(one) == _plain(other)


def picture(value: Any, deep: int = _DEEP) -> Any:
    """What is compared of a value; its objects are not kept."""
    kind: Any = type(value)
    sort = _sort(kind)
    if sort is Number or (sort is tuple and is_plain(value)):
        return _plain(value)
    if sort is object or deep < 0:
        return id(value)
    if sort is np.ndarray:
        said = value.tobytes() if value.nbytes <= _BYTES else id(value)
        return kind, (value.dtype.str, value.shape), said
    if sort is dict:
        return kind, _parts(value, 0), _parts(value.values(), deep)
    shown = _parts(value, deep)
    return kind, len(value), frozenset(shown) if sort in (set, frozenset) else shown


@lru_cache(maxsize=1000)
def _lot(kinds: frozenset[Any]) -> Any:
    """What values of these types are: `Number` if marshal tells them apart, `object` if such."""
    sorts = {*map(_sort, kinds)}
    return Number if kinds <= _EXACT else object if sorts == {object} else None


def _parts(values: Collection[Any], deep: int) -> Any:
    """Pictures of what is in a container, in one go where it can be."""
    found = values if len(values) <= MANY else tuple(islice(values, MANY))
    lot = _lot(frozenset(map(type, found)))
    if lot is Number:
        return marshal.dumps(tuple(found), 2)
    return tuple(map(id, found) if lot is object else [picture(v, deep - 1) for v in found])


def parts(container: Any) -> Collection[Any]:
    """What is in a container: the values of a dict."""
    found: Collection[Any] = container.values() if isinstance(container, dict) else container
    return found


Compared = Callable[[Any], Any]  # `picture`, `entries`, or `id`


def entries(container: Any) -> Compared:
    """How a container is compared that the code itself fills, as a cache: others may come."""
    if not isinstance(container, (dict, list)):
        return picture
    items = container.items() if isinstance(container, dict) else enumerate(container)
    keys = [key for key, value in islice(items, MANY) if value is not None]
    is_full = isinstance(container, list) and len(keys) == len(container)
    return picture if is_full else partial(_entries, keys)


def _entries(keys: Iterable[Any], container: Any) -> Any:
    return picture({key: container[key] for key in keys})


def compared(value: Any) -> Compared:
    """How a value is compared that code reads."""
    return picture if is_plain(value) or isinstance(value, CONTAINERS) else id
