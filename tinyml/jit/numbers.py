"""Numbers: what a function's code reads besides tensors, and a replay computes with as it was.

The values of `self.momentum`, of a global `SCALE`, of a `beta` of the function around are parts of
captured kernels, and a `mode` or a `None` says which these are. They are found by walking the code,
from the function to those that it names. What is reached in other ways, or set by that code, is not
watched. How a value is compared, `picture.py` says.
"""

from __future__ import annotations

import dis
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import chain, islice
from operator import attrgetter, itemgetter
from types import CellType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from tinyml.autograd import mode
from tinyml.errors import JitError
from tinyml.frozen import dataclass
from tinyml.functional.views import shown_by
from tinyml.graph import toposort
from tinyml.jit.outside import content
from tinyml.jit.picture import (
    CONTAINERS,
    MANY,
    Compared,
    are_objects,
    compared,
    difference,
    members,
    picture,
    same,
)
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
    values: tuple[Any, ...]  # plain values, pictures of containers, or the ids of objects
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
        if self.by in (id, members):
            called = f"what is in {called}" if self.by is members else called
            raise JitError(
                f"{called} was replaced by another object after the capture, and a replay would "
                f"go on with the one before. assign() to a tensor instead of replacing it. {RESET}"
            )
        raise JitError(
            f"{difference(called, value, other)}; a replay would compute with what it was. "
            f"{INSTEAD}. {RESET}"
        )

    @property
    def by(self) -> Compared:
        """How the values are compared."""
        return self.read.by if isinstance(self.read, _Each) else same

    def objects(self) -> tuple[Any, list[Callable[[Any], Any]], list[int]]:
        """Who has objects, or lists of only such; what reads each lot of them; all their ids."""
        get = _getter(self.holder())
        if self.by is members:
            return self.holder, [*map(get, self.names)], [*chain.from_iterable(self.values)]
        return self.holder, [get(*self.names, self.names[0])], [*self.values, self.values[0]]

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle takes layers and optimizers along, or none that is alive."""
        holder = self.holder()
        goes = any(kind.__module__.startswith(_LAYERS) for kind in type(holder).__mro__)
        values = self.values if self.by is same else None
        return _loaded, (holder if goes else None, self.names, self.called, self.by, values)


def _loaded(
    holder: Any, names: Any, called: tuple[str, ...], by: Compared, values: tuple[Any, ...] | None
) -> Assumed:
    if holder is None:
        return Assumed(weakref.ref(set()), names, called, (), attrgetter(*names))
    read = _reads(holder, names, by)
    return Assumed(weakref.ref(holder), names, called, values or read(holder), read)


class _Each:
    """Reads which objects, or containers of what, these are, and keeps none of them."""

    def __init__(self, by: Compared, read: Callable[[Any], Any]) -> None:
        self.by, self.read = by, read

    def __call__(self, holder: Any) -> tuple[Any, ...]:
        return tuple(map(self.by, self.read(holder)[:-1]))


def _getter(holder: Any) -> Callable[..., Callable[[Any], Any]]:
    return itemgetter if isinstance(holder, (dict, list)) else attrgetter


def _reads(holder: Any, names: tuple[Any, ...], by: Compared) -> Callable[[Any], Any]:
    read = _getter(holder)(*names, names[0])  # of two or more it gives a tuple, which may have NaN
    return read if by is same else _Each(by, read)


_GONE = AttributeError, LookupError, TypeError, ValueError


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
        numbers = [one for one in silent if one.by not in (id, members)]
        self._numbers = [(one.holder, one.read) for one in numbers]
        self._values = [one.values for one in numbers]
        objects = [one.objects() for one in silent if one.by in (id, members)]
        self._objects = [(of, read) for of, reads, _ in objects for read in reads]
        self._ids = [*chain.from_iterable(ids for _, _, ids in objects)]

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
# of which an object is asked without being named by it, and more like these
_UNASKED = ("__init__", "__new__", "__eq__", "__hash__", "__repr__", "__str__", "__setattr__")
_ABOUT = (*_UNASKED, "__delattr__", "__post_init__", "__reduce__", "__getstate__", "__setstate__")
# methods of containers that tell nothing of what is in them
_CHANGES = {"append", "appendleft", "add", "extend", "insert", "update", "setdefault", "clear"}
_NO_CODE = (Tensor, type, ModuleType, FunctionType, MethodType, partial, *CONTAINERS)
_BAGS = {"types", "argparse"}  # whose objects have what is put there
_BY_NAME = {"getattr", "hasattr", "attrgetter"}


@lru_cache(maxsize=1000)
def _walked(name: str | None) -> bool:
    """Whether code of a module may read numbers that somebody sets."""
    name = str(name)
    return name.startswith(_LAYERS) or name.partition(".")[0] not in _KNOWN


@lru_cache(maxsize=1000)
def _asked(kind: Any) -> tuple[str, ...]:
    """The methods of people's own that Python calls where an object is handed on."""
    own = [vars(k).items() for k in kind.__mro__ if _walked(k.__module__)]
    named = (name for name, x in chain(*own) if isinstance(x, FunctionType) and name not in _ABOUT)
    return tuple(dict.fromkeys(name for name in named if name.startswith("__")))


@lru_cache(maxsize=1000)
def _read(code: CodeType) -> tuple[tuple[str, Any], ...]:
    """Instructions, as Python 3.11 has them: later ones load, or store, two names at once."""
    found = list[tuple[str, Any]]()
    for op, name, text in ((i.opname, i.argval, i.argrepr) for i in dis.get_instructions(code)):
        if op == "LOAD_ATTR" and "NULL" in text:
            found.append(("LOAD_METHOD", name))
        elif op.startswith(("LOAD_FAST", "STORE_FAST")) and isinstance(name, tuple):
            last = "STORE_FAST" if op.endswith("STORE_FAST") else "LOAD_FAST"
            found += [(op.partition("_FAST")[0] + "_FAST", name[0]), (last, name[1])]
        else:
            found.append((op, name))
    return tuple(found)


class _Walk:
    """What names lead to, from a function on."""

    def __init__(self) -> None:
        self._read: dict[tuple[int, Any], tuple[Any, str, Any, Compared]] = {}  # whose, and name
        self._whose: dict[int, tuple[Any, Any, Any, str]] = {}  # who has a container, and as what
        self._set: set[str] = set()  # names that the code sets
        self._others: set[str] = set()  # attributes of who knows what
        self._some: dict[int, Any] = {}  # objects in containers: perhaps of these
        self._left: list[tuple[CodeType, Mapping[str, Any], dict[str, Any]]] = []  # to be walked
        self._seen: dict[tuple[int, ...], Any] = {}
        self.tensors: list[Tensor] = []

    def found(self, earlier: Mapping[tuple[int, Any], Any] | None = None) -> list[Assumed]:
        """What only others set, and what was the same `earlier`, by who has it; all tensors."""
        by_holder: dict[tuple[int, Compared], tuple[Any, dict[Any, str], Compared]] = {}
        for (key, name), (holder, called, value, by) in self._read.items():
            by = members if by is picture and are_objects(value) else by
            then = _NOTHING if earlier is None else earlier.get((key, name), _NOTHING)
            free = earlier is None or (then,) == (by(value),) or isinstance(value, Tensor)  # or NaN
            if free and name not in self._set and called not in self._set:
                by_holder.setdefault((key, by), (holder, {}, by))[1][name] = called
        return [_watched(*entry) for entry in by_holder.values()]

    def go_on(self) -> None:
        """Look at objects in containers for the attributes of who knows what, until all are."""
        known = -1
        while known != (known := len(self._seen) + len(self._others) + len(self._some)):
            while self._left:
                self._code(*self._left.pop())
            for holder in [*self._some.values()]:
                for name in [*self._others]:
                    self._hand_on(self._attribute(holder, name))

    def value(self, value: Any, *given: Any, **named: Any) -> None:
        """Code names this, and is about to call it, or to hand it on: walk what a call runs."""
        match value:
            case Tensor():
                self.tensors.append(value)
            case FunctionType():
                self._function(value, *given, **named)
            case MethodType():
                self._function(value.__func__, value.__self__, *given, **named)
            case partial():
                self.value(value.func, *value.args, **value.keywords)
            case dict() | list() | tuple() | set() if (id(value),) not in self._seen:
                self._seen[(id(value),)] = value
                self._elements(value.values() if isinstance(value, dict) else value)
            case _ if self._has_code(value):
                self.value(_own(value).get("__wrapped__"), *given, **named)
                for name in _asked(type(value)):  # type: ignore[arg-type]
                    self._attribute(value, name)

    def _has_code(self, value: Any) -> bool:
        if isinstance(value, _NO_CODE):
            return False
        module = type(value).__module__
        return _walked(module) or module in _BAGS or "__wrapped__" in _own(value)

    def _elements(self, values: Iterable[Any]) -> None:
        for value in islice(values, MANY):
            self._hand_on(value)

    def _hand_on(self, value: Any) -> None:
        """Some code gets this that may read whatever is in it."""
        if value is _NOTHING:
            return
        if isinstance(value, CONTAINERS) and id(value) in self._whose:
            holder, name, _, called = self._whose[id(value)]
            self._read[id(holder), name] = holder, called, value, picture
        elif self._has_code(value):
            self._some[id(value)] = value
        self.value(value)

    def _note(self, holder: Any, name: Any, value: Any, called: str = "") -> None:
        """Code reads this of an object; a container is looked at where more is said of it."""
        by = compared(value)
        if by is picture:
            self._whose.setdefault(id(value), (holder, name, value, called or name))
            return
        told = by is same or callable(value) or isinstance(value, Tensor) or self._has_code(value)
        if told and not (isinstance(value, type) and isinstance(holder, (ModuleType, dict))):
            self._read[id(holder), name] = holder, called or name, value, by

    def _attribute(self, holder: Any, name: str) -> Any:
        """What holder.name is, if that is known without running anything."""
        if isinstance(holder, (Tensor, *CONTAINERS)):  # of which methods tell what is in it
            if isinstance(holder, dict) and name in holder and not hasattr(dict, name):
                return self._item(holder, name)  # as people's own dicts have it
            self.value(holder) if name in _CHANGES else self._hand_on(holder)
            return _NOTHING
        kind, own = holder if isinstance(holder, type) else type(holder), _own(holder)
        places = [own, *map(vars, kind.__mro__)] if _walked(kind.__module__) else [own]
        if isinstance(holder, ModuleType) and not _walked(holder.__name__):
            return _NOTHING
        found = next((place[name] for place in places if name in place), _NOTHING)
        if isinstance(found, MemberDescriptorType):  # of __slots__
            found = getattr(holder, name, _NOTHING)
            own = {name: found}
        if name in own or compared(found) is not id:
            self._note(holder, name, found)
        method = found
        if isinstance(found, (property, staticmethod, classmethod)):
            method = found.fget if isinstance(found, property) else found.__func__
        elif self._has_code(found):  # perhaps a TinyJit
            method = _own(found).get("__wrapped__")
        if name not in own and isinstance(method, FunctionType):
            self._function(method, *[] if isinstance(found, staticmethod) else [holder])
            return _NOTHING
        return found

    def _item(self, holder: Any, key: Any) -> Any:
        """What holder[key] is; of whom nothing else holds tensors alive, it is watched."""
        items = dict(enumerate(holder)) if isinstance(holder, list) else holder
        value = items.get(key, _NOTHING)
        if compared(value) is not id and not any(isinstance(x, Tensor) for x in items.values()):
            self._note(holder, key, value, repr(key))
        if id(holder) in self._whose:  # perhaps another one in its place
            whose, name, _, called = self._whose[id(holder)]
            by = picture if isinstance(holder, list) and compared(value) is id else id
            self._read.setdefault((id(whose), name), (whose, called, holder, by))
        return value

    def _function(self, function: Any, *given: Any, **named: Any) -> None:
        scope, key = function.__globals__, (id(function), *map(id, given[:1]))
        if key in self._seen or not _walked(scope.get("__name__")):
            return
        self._seen[key] = function, given
        code, cells = function.__code__, function.__closure__ or ()
        names = _defaults(function) | dict(zip(code.co_varnames, given, strict=False)) | named
        names.update(zip(code.co_freevars, cells, strict=True))
        if given and "super" in code.co_names:
            for kind in type(given[0]).__mro__:
                above = vars(kind).get(function.__name__)
                if isinstance(above, FunctionType):
                    self._function(above, *given)
        self._left.append((code, scope, names))

    def _code(self, code: CodeType, scope: Mapping[str, Any], names: dict[str, Any]) -> None:
        at = key = _NOTHING  # what the last instructions loaded
        called = False  # it is, next
        if not _BY_NAME.isdisjoint(code.co_names):
            self._others.update(
                x for x in code.co_consts if isinstance(x, str) and x.isidentifier()
            )
        module: Any = sys.modules.get(scope.get("__name__", ""))
        if module is None or vars(module) is not scope:  # a doctest, or what exec runs
            module = scope
        for op, name in _read(code):
            if op in ("LOAD_ATTR", "LOAD_METHOD"):
                if at is _NOTHING:
                    self._others.add(name)
                else:
                    at = self._attribute(at, name)
                called = op == "LOAD_METHOD"
                continue
            if op == "LOAD_CONST" and isinstance(at, (dict, list)):
                key = name
                continue
            if op == "BINARY_SUBSCR" and key is not _NOTHING:
                at, key = self._item(at, key), _NOTHING
                continue
            self.value(at) if called else self._hand_on(at)
            key, called = _NOTHING, False
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


def _own(value: Any) -> Mapping[str, Any]:
    """What an object has of its own."""
    return vars(value) if hasattr(value, "__dict__") else {}


def _defaults(function: Any) -> dict[str, Any]:
    """What a function has for arguments that are not given, by name."""
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    return {**dict(zip(names, values, strict=True)), **(function.__kwdefaults__ or {})}


def _watched(holder: Any, called: dict[Any, str], by: Compared) -> Assumed:
    """What one object has."""
    names, told = tuple(called), tuple(called.values())
    if not isinstance(holder, (CellType, ModuleType)):
        kind = holder if isinstance(holder, type) else type(holder)
        told = tuple(f"{kind.__name__}: {name}" for name in told)
    reference: Callable[[], Any] = lambda: holder  # noqa: E731  for what allows no weak references
    with suppress(TypeError):
        reference = weakref.ref(holder)
    read = _reads(holder, names, by)
    return Assumed(reference, names, told, read(holder), read)
