"""Numbers: what a function's code reads besides tensors, and a replay computes with as it was.

The values of `self.momentum`, of a global `SCALE`, of a `beta` of the function around are parts of
captured kernels. They are found by walking the code, from the function to those that it names. What
is reached in other ways, as by keys that are computed, or set by that code, is not watched.
"""

from __future__ import annotations

import dis
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import chain, islice
from numbers import Number
from operator import attrgetter, itemgetter
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from tinyml.autograd import mode
from tinyml.errors import JitError
from tinyml.frozen import dataclass
from tinyml.functional.views import shown_by
from tinyml.graph import toposort
from tinyml.jit.outside import content
from tinyml.jit.record import INSTEAD, RESET
from tinyml.ledger import has_data
from tinyml.telling import Telling
from tinyml.tensor import Tensor


@dataclass(frozen=True)
class Assumed:
    """What an object has under some names, and a function computed with."""

    holder: Callable[[], Any]  # a weak reference, of what can have one
    names: tuple[Any, ...]
    called: tuple[str, ...]
    values: tuple[Any, ...]  # numbers, or the ids of objects
    read: Callable[[Any], Any]

    def check(self) -> None:
        """JitError if the object has something else there now."""
        holder = self.holder()
        try:
            if holder is None or (now := self.read(holder)) == self.values:
                return
        except _GONE:
            names = ", ".join(dict.fromkeys(self.called))
            raise JitError(f"{names}: gone since the function was captured. {RESET}") from None
        called, value, other = next(
            (called, value, other)
            for called, value, other in zip(self.called, self.values, now, strict=False)
            if value is not other and value != other
        )
        if isinstance(self.read, _Ids):
            raise JitError(
                f"{called} was replaced by another object after the capture, and a replay would "
                f"go on with the one before. assign() to a tensor instead of replacing it. {RESET}"
            )
        raise JitError(
            f"{called} was {value} when the function was captured, and is {other} now; a replay "
            f"would compute with what it was. {INSTEAD}. {RESET}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle takes layers and optimizers along, or none that is alive."""
        holder, ids = self.holder(), isinstance(self.read, _Ids)
        goes = any(kind.__module__.startswith(_LAYERS) for kind in type(holder).__mro__)
        values = None if ids else self.values
        return _loaded, (holder if goes else None, self.names, self.called, values)


def _loaded(
    holder: Any, names: tuple[Any, ...], called: tuple[str, ...], values: tuple[Any, ...] | None
) -> Assumed:
    if holder is None:
        return Assumed(weakref.ref(set()), names, called, (), attrgetter(*names))
    read = _reads(holder, names, ids=values is None)
    return Assumed(weakref.ref(holder), names, called, values or read(holder), read)


class _Ids:
    """Reads which objects these are, and keeps none of them."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self.read = read

    def __call__(self, holder: Any) -> tuple[int, ...]:
        return tuple(map(id, self.read(holder)))


def _reads(holder: Any, names: tuple[Any, ...], ids: bool) -> Callable[[Any], Any]:
    get = itemgetter if isinstance(holder, (dict, list)) else attrgetter
    read = get(*names, names[0])  # of two or more it gives a tuple, which may have NaN
    return _Ids(read) if ids else read


_GONE = AttributeError, LookupError, ValueError


class Watch:
    """All that a captured function computed with."""

    def __init__(self, every: Sequence[Assumed] = (), constants: Iterable[Tensor] = ()) -> None:
        """Constants without memory became parts of kernels."""
        self.every = every
        self._constants = [*constants]  # kept, so that none that comes later has its id
        self._clock = self._asked = mode.assignments
        self._settings = -1
        self._sort()

    def _sort(self) -> None:
        alive = [(one, holder) for one in self.every if (holder := one.holder()) is not None]
        self._told = [one for one, holder in alive if isinstance(holder, Telling)]
        silent = [one for one, holder in alive if not isinstance(holder, Telling)]
        numbers = [one for one in silent if not isinstance(one.read, _Ids)]
        self._numbers = [(one.holder, one.read) for one in numbers]
        self._values = [one.values for one in numbers]
        self._objects = [
            (one.holder, one.read.read) for one in silent if isinstance(one.read, _Ids)
        ]
        objects = [one.values for one in silent if isinstance(one.read, _Ids)]
        self._ids = [*chain.from_iterable(objects)]

    def assigned(self) -> list[Tensor]:
        """The constants that have been assigned to since."""
        if not self._constants or self._asked == mode.assignments:
            return []
        self._asked = mode.assignments
        return [shown_by(t)[0] for t in self._constants if t._changed_after(self._clock)]

    def check(self) -> None:
        """JitError if something is not what it was; layers are asked if one was told anything."""
        try:
            now = [read(of()) for of, read in self._objects]
            same = [*map(id, chain.from_iterable(now))] == self._ids
            same = same and [read(of()) for of, read in self._numbers] == self._values
        except _GONE:  # or whoever had it is
            same = False
        if not same:
            for one in self.every:
                one.check()
            self._sort()
        if (settings := Telling.settings) != self._settings:
            for one in self._told:
                one.check()
            self._settings = settings

    def __reduce__(self) -> tuple[Any, ...]:
        return Watch, (self.every,)


def constants(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Those of them that are, or show, what is made of no data and is not in memory."""
    known = {id(t): t for t in tensors}
    return [t for t in known.values() if not has_data(shown_by(t)[0]._lazy)]


def check_constants(before: Iterable[Tensor], now: Sequence[Tensor]) -> None:
    """JitError if a constant that the code names became another that is made of it: a counter."""
    gone = {t._lazy for t in before}.difference([t._lazy for t in now])
    for tensor in now if gone else ():
        if not gone.isdisjoint(toposort([tensor._lazy])):
            raise JitError(
                f"the function puts another object in the place of a tensor {tensor.shape} that is "
                "made of no data, and makes it of that: a replay would not go on from there. "
                "assign() to a tensor instead of replacing it"
            )


def assumed(
    function: Callable[..., Any], before: Iterable[Assumed] | None = None
) -> tuple[list[Assumed], list[Tensor]]:
    """What a function computes with, as far as its code says so, and the constants that it names.

    If the call `before` did the same, it is what had the same values then.
    """
    walk = _walked_from(function)
    if before is None:
        return walk.found(), constants(walk.tensors)
    earlier = [
        (id(one.holder()), *pair)
        for one in before
        for pair in zip(one.names, one.values, strict=False)
    ]
    found = walk.found({(holder, name): value for holder, name, value in earlier})
    return found, constants(walk.tensors)


def named(function: Callable[..., Any], *bound: Any) -> list[Tensor]:
    """The tensors that the code of a function, or method, leads to, but for its arguments."""
    return _walked_from(partial(function, *bound)).tensors


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
    """Instructions, as Python 3.11 has them: later ones load, or store, two names at once."""
    found = list[tuple[str, Any]]()
    for op, name in ((i.opname, i.argval) for i in dis.get_instructions(code)):
        if op.startswith(("LOAD_FAST", "STORE_FAST")) and isinstance(name, tuple):
            last = "STORE_FAST" if op.endswith("STORE_FAST") else "LOAD_FAST"
            found += [(op.partition("_FAST")[0] + "_FAST", name[0]), (last, name[1])]
        else:
            found.append((op, name))
    return tuple(found)


class _Walk:
    """What names lead to, from a function on."""

    def __init__(self) -> None:
        self._read: dict[tuple[int, Any], tuple[Any, str, Any]] = {}  # of whom, and the name
        self._set: set[str] = set()  # names that the code sets
        self._others: set[str] = set()  # attributes of who knows what
        self._some: dict[int, Any] = {}  # objects in containers: perhaps of these
        self._left: list[tuple[CodeType, Mapping[str, Any], dict[str, Any]]] = []  # to be walked
        self._seen: dict[tuple[int, ...], Any] = {}
        self.tensors: list[Tensor] = []

    def found(self, earlier: Mapping[tuple[int, Any], Any] | None = None) -> list[Assumed]:
        """What only others set, and what was the same `earlier`, by who has it; all tensors."""
        by_holder: dict[tuple[int, bool], tuple[Any, dict[Any, str]]] = {}
        for (key, name), (holder, called, value) in self._read.items():
            number = _is_number(value)
            then = _NOTHING if earlier is None else earlier.get((key, name), _NOTHING)
            same = (then,) == (value if number else id(value),)  # or NaN
            free = earlier is None or same or isinstance(value, Tensor)
            if free and name not in self._set and called not in self._set:
                by_holder.setdefault((key, number), (holder, {}))[1][name] = called
        return [_watched(*entry, not number) for (_, number), entry in by_holder.items()]

    def go_on(self) -> None:
        """Look at objects in containers for the attributes of who knows what, until all are."""
        known = -1
        while known != (known := len(self._seen) + len(self._others) + len(self._some)):
            while self._left:
                self._code(*self._left.pop())
            for holder in [*self._some.values()]:
                for name in [*self._others]:
                    self.value(self._attribute(holder, name))

    def value(self, value: Any, *given: Any) -> None:
        """Code names this, and is about to call it, or to hand it on: walk what a call runs."""
        match value:
            case Tensor():
                self.tensors.append(value)
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

    def _note(self, holder: Any, name: Any, value: Any, called: str = "") -> None:
        """Code reads this of an object: a number, a tensor, or what it may call."""
        object_ = isinstance(value, Tensor) or (callable(value) and not isinstance(value, type))
        if object_ or _is_number(value):
            self._read[id(holder), name] = holder, called or name, value

    def _attribute(self, holder: Any, name: str) -> Any:
        """What holder.name is, if that is known without running anything."""
        if isinstance(holder, (Tensor, dict, list)):  # of which methods tell what is in it
            self.value(holder)
            return _NOTHING
        kind = holder if isinstance(holder, type) else type(holder)
        own = vars(holder) if hasattr(holder, "__dict__") else {}
        places = [own, *map(vars, kind.__mro__)] if _walked(kind.__module__) else [own]
        if isinstance(holder, ModuleType) and not _walked(holder.__name__):
            return _NOTHING
        found = next((place[name] for place in places if name in place), _NOTHING)
        if name in own or _is_number(found):
            self._note(holder, name, found)
        method = found
        if isinstance(found, (property, staticmethod, classmethod)):
            method = found.fget if isinstance(found, property) else found.__func__
        elif self._has_code(found):  # perhaps a TinyJit
            method = vars(found).get("__wrapped__")
        if name not in own and isinstance(method, FunctionType):
            self._function(method, *[] if isinstance(found, staticmethod) else [holder])
            return _NOTHING
        return found

    def _item(self, holder: Any, key: Any) -> Any:
        """What holder[key] is; of whom nothing else holds tensors alive, it is watched."""
        items = dict(enumerate(holder)) if isinstance(holder, list) else holder
        value = items.get(key, _NOTHING)
        if _is_number(value) and not any(isinstance(x, Tensor) for x in items.values()):
            self._note(holder, key, value, repr(key))
        return value

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
        self._left.append((code, scope, names))

    def _code(self, code: CodeType, scope: Mapping[str, Any], names: dict[str, Any]) -> None:
        at = key = _NOTHING  # what the last instructions loaded
        module: Any = sys.modules.get(scope.get("__name__", ""))
        if module is None or vars(module) is not scope:  # a doctest, or what exec runs
            module = scope
        for op, name in _read(code):
            if op in ("LOAD_ATTR", "LOAD_METHOD"):
                if at is _NOTHING:
                    self._others.add(name)
                else:
                    at = self._attribute(at, name)
                continue
            if op == "LOAD_CONST" and isinstance(at, (dict, list)):
                key = name
                continue
            if op == "BINARY_SUBSCR" and key is not _NOTHING:
                at, key = self._item(at, key), _NOTHING
                continue
            self.value(at)
            key = _NOTHING
            if op in ("STORE_FAST", "STORE_DEREF") and not isinstance(names.get(name), CellType):
                names[name], at = at, _NOTHING
                continue
            at = _NOTHING
            if op in ("LOAD_GLOBAL", "LOAD_NAME"):
                at = scope.get(name, _NOTHING)
                self._note(module, name, at)
            elif op.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF")):
                at = names.get(name, _NOTHING)
                if isinstance(at, CellType):
                    cell, at = at, content(at, _NOTHING)
                    self._note(cell, _CELL, at, name)
            elif op in ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF"):
                self._set.add(name)
            elif isinstance(name, CodeType):
                own = name.co_varnames[: name.co_argcount]
                self._code(name, scope, {n: v for n, v in names.items() if n not in own})


def _walked_from(function: Callable[..., Any]) -> _Walk:
    walk = _Walk()
    walk.value(function)
    walk.go_on()
    return walk


def _watched(holder: Any, called: dict[Any, str], ids: bool) -> Assumed:
    """What one object has."""
    names, told = tuple(called), tuple(called.values())
    if not isinstance(holder, (CellType, ModuleType)):
        kind = holder if isinstance(holder, type) else type(holder)
        told = tuple(f"{kind.__name__}: {name}" for name in told)
    reference: Callable[[], Any] = lambda: holder  # noqa: E731  for what allows no weak references
    with suppress(TypeError):
        reference = weakref.ref(holder)
    read = _reads(holder, names, ids)
    return Assumed(reference, names, told, read(holder), read)
