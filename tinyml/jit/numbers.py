"""Numbers: what a function's code reads besides tensors, and a replay computes with as it was.

The values of `self.momentum`, of a global `SCALE`, of a `beta` of the function around are parts of
captured kernels. They are found by walking the code, from the function to those that it names. What
is reached in other ways, as by a key of a dict, or set by that code itself, is not watched.
"""

from __future__ import annotations

import dis
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from itertools import islice
from numbers import Number
from operator import attrgetter
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from tinyml.errors import JitError
from tinyml.frozen import dataclass
from tinyml.jit.record import INSTEAD, RESET
from tinyml.tensor import Tensor


@dataclass(frozen=True)
class Assumed:
    """Numbers that are attributes of an object, and that a function computed with."""

    holder: Callable[[], Any]  # a weak reference, of what can have one
    names: tuple[str, ...]
    called: tuple[str, ...]
    numbers: tuple[Any, ...]
    read: Callable[[Any], Any]

    def check(self) -> None:
        """JitError if the object has others now."""
        holder = self.holder()
        if holder is None or (now := self.read(holder)) == self.numbers:
            return
        called, number, other = next(
            (called, number, other)
            for called, number, other in zip(self.called, self.numbers, now, strict=False)
            if number is not other and number != other
        )
        raise JitError(
            f"{called} was {number} when the function was captured, and is {other} now; a replay "
            f"would compute with what it was. {INSTEAD}. {RESET}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle takes layers and optimizers along, or none that is alive."""
        holder = self.holder()
        goes = any(kind.__module__.startswith(_LAYERS) for kind in type(holder).__mro__)
        return _loaded, (holder if goes else None, self.names, self.called, self.numbers)


def _loaded(
    holder: Any, names: tuple[str, ...], called: tuple[str, ...], numbers: tuple[Any, ...]
) -> Assumed:
    reference = weakref.ref(set() if holder is None else holder)
    return Assumed(reference, names, called, numbers, _reads(names))


def _reads(names: tuple[str, ...]) -> Callable[[Any], Any]:
    return attrgetter(*names, names[0])  # of two or more it gives a tuple, which may have NaN


def assumed(function: Callable[..., Any], before: Iterable[Assumed] | None = None) -> list[Assumed]:
    """What a function computes with, as far as its code says so.

    If the call `before` did the same, it is what had the same values then.
    """
    walk = _Walk()
    walk.value(function)
    walk.go_on()
    if before is None:
        return walk.found()
    earlier = [
        (id(one.holder()), *pair)
        for one in before
        for pair in zip(one.names, one.numbers, strict=False)
    ]
    return walk.found({(holder, name): number for holder, name, number in earlier})


_CELL = "cell_contents"
_LAYERS = "tinyml.nn."
_KNOWN = {*sys.stdlib_module_names, "numpy", "tinyml"}
_NOTHING: Any = object()
_MANY = 1000  # elements of a container are looked at


def _walked(module: Any) -> bool:
    """Whether code of a module may read numbers that somebody sets."""
    name = str(module)
    return name.startswith(_LAYERS) or name.partition(".")[0] not in _KNOWN


def _is_number(value: Any) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(map(_is_number, value))
    return isinstance(value, (Number, np.generic, str))


@lru_cache(maxsize=1000)
def _read(code: CodeType) -> tuple[tuple[str, Any], ...]:
    return tuple((i.opname, i.argval) for i in dis.get_instructions(code))


class _Walk:
    """What names lead to, from a function on."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self._set: set[str] = set()  # names that the code sets
        self._others: set[str] = set()  # attributes of who knows what
        self._some: dict[int, Any] = {}  # objects in containers: perhaps of these
        self._seen: dict[tuple[int, ...], Any] = {}

    def found(self, earlier: Mapping[tuple[int, str], Any] | None = None) -> list[Assumed]:
        """The numbers that only others set, if they were the same `earlier`, by who has them."""
        by_holder: dict[int, tuple[Any, dict[str, str]]] = {}
        for (key, name), (holder, called, number) in self._numbers.items():
            same = earlier is None or (earlier.get((key, name), _NOTHING),) == (number,)  # or NaN
            if same and name not in self._set and called not in self._set:
                by_holder.setdefault(key, (holder, {}))[1][name] = called
        return [_watched(*entry) for entry in by_holder.values()]

    def go_on(self) -> None:
        """Look at objects in containers for the attributes of who knows what, until all are."""
        known = -1
        while known != (known := len(self._seen) + len(self._others) + len(self._some)):
            for holder in [*self._some.values()]:
                for name in [*self._others]:
                    self.value(self._attribute(holder, name))

    def value(self, value: Any, *given: Any) -> None:
        """Code names this, and is about to call it, or to hand it on: walk what a call runs."""
        match value:
            case FunctionType():
                self._function(value, *given)
            case MethodType():
                self._function(value.__func__, value.__self__, *given)
            case partial():
                self.value(value.func, *value.args)
            case dict() | list() | tuple() | set() if (id(value),) not in self._seen:
                self._seen[(id(value),)] = value
                self._elements(value.values() if isinstance(value, dict) else value)
            case _ if self._has_code(value):
                self.value(vars(value).get("__wrapped__"), *given)
                self._attribute(value, "__call__")

    def _has_code(self, value: Any) -> bool:
        known = isinstance(value, (Tensor, type, ModuleType)) or not hasattr(value, "__dict__")
        return not known and (_walked(type(value).__module__) or "__wrapped__" in vars(value))

    def _elements(self, values: Iterable[Any]) -> None:
        for value in islice(values, _MANY):
            if self._has_code(value):
                self._some[id(value)] = value
            self.value(value)

    def _number(self, holder: Any, name: str, value: Any, called: str = "") -> None:
        if _is_number(value):
            self._numbers[id(holder), name] = holder, called or name, value

    def _attribute(self, holder: Any, name: str) -> Any:
        """What holder.name is, if that is known without running anything."""
        if isinstance(holder, Tensor):
            return _NOTHING
        kind = holder if isinstance(holder, type) else type(holder)
        own = vars(holder) if hasattr(holder, "__dict__") else {}
        places = [own, *map(vars, kind.__mro__)] if _walked(kind.__module__) else [own]
        if isinstance(holder, ModuleType) and not _walked(holder.__name__):
            return _NOTHING
        found = next((place[name] for place in places if name in place), _NOTHING)
        self._number(holder, name, found)
        method = found
        if isinstance(found, (property, staticmethod, classmethod)):
            method = found.fget if isinstance(found, property) else found.__func__
        elif self._has_code(found):  # perhaps a TinyJit
            method = vars(found).get("__wrapped__")
        if name not in own and isinstance(method, FunctionType):
            self._function(method, *[] if isinstance(found, staticmethod) else [holder])
            return _NOTHING
        return found

    def _function(self, function: Any, *given: Any) -> None:
        scope, key = function.__globals__, (id(function), *map(id, given[:1]))
        if key in self._seen or not _walked(scope.get("__name__")):
            return
        self._seen[key] = function, given
        code, cells = function.__code__, function.__closure__ or ()
        names: dict[str, Any] = dict(zip(code.co_varnames, given, strict=False))
        names.update(zip(code.co_freevars, cells, strict=True))
        if given and "super" in code.co_names:
            for kind in type(given[0]).__mro__:
                above = vars(kind).get(function.__name__)
                if isinstance(above, FunctionType):
                    self._function(above, *given)
        self._code(code, scope, names)

    def _code(self, code: CodeType, scope: Mapping[str, Any], names: dict[str, Any]) -> None:
        at: Any = _NOTHING  # what the last instruction loaded
        module = sys.modules.get(scope.get("__name__", ""))
        for op, name in _read(code):
            if op in ("LOAD_ATTR", "LOAD_METHOD"):
                if at is _NOTHING:
                    self._others.add(name)
                else:
                    at = self._attribute(at, name)
                continue
            self.value(at)
            if op in ("STORE_FAST", "STORE_DEREF") and not isinstance(names.get(name), CellType):
                names[name], at = at, _NOTHING
                continue
            at = _NOTHING
            if op in ("LOAD_GLOBAL", "LOAD_NAME"):
                at = scope.get(name, _NOTHING)
                self._number(module, name, at)
            elif op.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF")):
                at = names.get(name[-1] if isinstance(name, tuple) else name, _NOTHING)
                if isinstance(at, CellType):
                    cell, at = at, _content(at)
                    self._number(cell, _CELL, at, name)
            elif op in ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF"):
                self._set.add(name)
            elif isinstance(name, CodeType):
                own = name.co_varnames[: name.co_argcount]
                self._code(name, scope, {n: v for n, v in names.items() if n not in own})


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name without a value yet
        return _NOTHING


def _watched(holder: Any, called: dict[str, str]) -> Assumed:
    """Numbers of one object."""
    names, told = tuple(called), tuple(called.values())
    if not isinstance(holder, (CellType, ModuleType)):
        kind = holder if isinstance(holder, type) else type(holder)
        told = tuple(f"{kind.__name__}: {name}" for name in told)
    reference: Callable[[], Any] = lambda: holder  # noqa: E731  for what allows no weak references
    with suppress(TypeError):
        reference = weakref.ref(holder)
    read = _reads(names)
    return Assumed(reference, names, told, read(holder), read)
