"""Frozen dataclasses and enums as Python's library has them, at a quarter of the cost.

For each dataclass the library compiles six functions, which were a third of the time that importing
tinyml took. Here only `__init__` is compiled; the others read the fields by one attrgetter.
`replace()`, `fields()` and `match` know these classes as dataclasses.

`Op.ADD` of a class of the library takes 140 ns in Python 3.11, and `op.name` calls two functions:
a new kernel, which asks 1500 times for a member, took 3 % longer. Here both are plain attributes.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

_C = TypeVar("_C", bound=type)
# What is read of an object is found at once only if nobody asked for its `__dict__`, or gave it one
_set = object.__setattr__

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace
    from enum import Enum as Enum
    from functools import cached_property as cached_property
else:

    class _Members(type):
        """Whose classes have their attributes without an underscore as their only instances."""

        def __init__(cls, name: str, bases: tuple[type, ...], own: dict[str, Any]) -> None:
            cls._of: dict[Any, Any] = {}  # by value
            for text, value in own.items():
                if not text.startswith("_"):
                    number = len(cls._of) + 1 if isinstance(value, enum.auto) else value
                    member = cls._of[number] = object.__new__(cls)
                    member.name, member.value = text, number
                    setattr(cls, text, member)

        def __call__(cls, value: Any) -> Any:
            return cls._of[value]

        def __iter__(cls) -> Iterator[Any]:
            return iter(cls._of.values())

        def __len__(cls) -> int:
            return len(cls._of)

        def __contains__(cls, member: Any) -> bool:
            return member in cls._of.values()

    class Enum(metaclass=_Members):
        """`enum.Enum` without aliases, and with methods of underscored names only."""

        def __repr__(self) -> str:
            return f"{type(self).__name__}.{self.name}"

        def __reduce__(self) -> tuple[type, tuple[Any]]:
            return type(self), (self.value,)

    class cached_property:
        """`functools.cached_property` as it is from Python 3.12 on: without a lock."""

        def __init__(self, make: Callable[[Any], Any]) -> None:
            self.make, self.name, self.__doc__ = make, make.__name__, make.__doc__

        def __get__(self, one: Any, cls: type) -> Any:
            value = self.make(one)
            _set(one, self.name, value)
            return value

    def dataclass(
        cls: _C | None = None, /, *, frozen: bool = False, eq: bool = True
    ) -> _C | Callable[[_C], _C]:
        """`dataclasses.dataclass`; frozen ones have no factories of defaults."""
        if not frozen:
            return dataclasses.dataclass(cls, eq=eq)
        return _compared if eq else _made

    def replace(one: Any, **changes: Any) -> Any:
        """`dataclasses.replace`, of those that are made here."""
        made, names = object.__new__(type(one)), one.__match_args__
        kept = one.__dict__
        if len(kept) > len(names):  # it knows more, which need not hold of the other
            kept = {name: kept[name] for name in names}
        values = {**kept, **changes}
        if len(values) > len(names):
            raise TypeError(f"{type(one).__name__} has no {', '.join(changes)}")
        _set(made, "__dict__", values)
        return made


def _made(cls: _C) -> _C:
    """`cls` with __init__ and __repr__, and without a way to change what it made."""
    told = cls.__doc__
    cls.__doc__ = told or cls.__name__  # else the library writes out a signature: a third of all
    dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    cls.__doc__ = told
    fields = dataclasses.fields(cls)
    names = [f.name for f in fields]
    defaults = {
        f"_default_{f.name}": f.default for f in fields if f.default is not dataclasses.MISSING
    }
    asked = [
        f"{name}=_default_{name}" if f"_default_{name}" in defaults else name for name in names
    ]
    values = ", ".join([f"{name!r}: {name}" for name in names])
    scope: dict[str, Any] = {**defaults, "_set": _set}
    head = f"def __init__({', '.join(['self', *asked])}):"
    exec(f"{head} _set(self, '__dict__', {{{values}}})", scope)

    def __repr__(self: Any) -> str:
        said = ", ".join([f"{name}={getattr(self, name)!r}" for name in names])
        return f"{type(self).__qualname__}({said})"

    own = {"__init__": scope["__init__"], "__repr__": __repr__}
    _add(cls, {**own, "__setattr__": _refuse, "__delattr__": _refuse})
    return cls


def _compared(cls: _C) -> _C:
    """As `_made`; equal where all fields are."""
    names = [f.name for f in dataclasses.fields(_made(cls))]
    values: Callable[[Any], Any] = attrgetter(*names or ["__class__"])

    def __eq__(self: Any, other: object) -> bool:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(values(self))

    _add(cls, {"__eq__": __eq__, "__hash__": __hash__})
    return cls


def _add(cls: type, methods: dict[str, Any]) -> None:
    for name, method in methods.items():
        if vars(cls).get(name) is None:  # what the class says itself stays
            setattr(cls, name, method)


def _refuse(self: object, name: str, *_: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"{type(self).__name__} is frozen, also its {name!r}")
