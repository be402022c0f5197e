"""Walk: what the code of a function leads to, by the names that it reads, calls and hands on.

    path ::= name key*    a global, a name of a function around, an attribute; in dicts and lists

Nothing is run. What is reached in other ways, as by an object that a call returned, is not found.
"""

from __future__ import annotations

import dis
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from itertools import chain, islice
from types import CellType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from tinyml.function import Function
from tinyml.jit.outside import content
from tinyml.jit.picture import CONTAINERS, MANY, Compared, compared, is_plain, picture
from tinyml.tensor import Tensor

CELL, DICT, GETATTR = "cell_contents", "__dict__", "__getattr__"
LAYERS = "tinyml.nn."
_KNOWN = {*sys.stdlib_module_names, "numpy", "tinyml"}
NOTHING: Any = object()
Path = tuple[Any, ...]
# of which an object is asked without being named by it, and more like these
_UNASKED = ("__init__", "__new__", "__eq__", "__hash__", "__repr__", "__str__", "__setattr__")
_ABOUT = (*_UNASKED, "__delattr__", "__post_init__", "__reduce__", "__getstate__", "__setstate__")
# methods of containers that tell nothing of what is in them
_CHANGES = {"append", "appendleft", "add", "extend", "insert", "update", "setdefault", "clear"}
_NO_CODE = (Tensor, type, ModuleType, FunctionType, MethodType, partial, *CONTAINERS)
_BAGS = {"types", "argparse", "_thread"}  # whose objects have what is put there
_BY_NAME = {"getattr", "hasattr", "attrgetter", "vars"}


@lru_cache(maxsize=1000)
def _walked(name: str | None) -> bool:
    """Whether code of a module may read numbers that somebody sets."""
    name = str(name)
    return name.startswith(LAYERS) or name.partition(".")[0] not in _KNOWN


@lru_cache(maxsize=1000)
def _asked(kind: Any) -> tuple[str, ...]:
    """The methods of people's own that Python calls where an object is handed on."""
    own = chain(*[vars(k).items() for k in kind.__mro__ if _walked(k.__module__)])
    named = {n: x for n, x in own if n.startswith("__") and n not in _ABOUT}
    return tuple(n for n, x in named.items() if isinstance(x, FunctionType) and _has_names(x))


def _has_names(function: Any) -> bool:
    return _walked(function.__globals__.get("__name__"))


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


class Walk:
    """What names lead to, from a function on."""

    def __init__(self, besides: Iterable[Any]) -> None:
        self._besides = {id(x) for x in besides}
        self.read: dict[tuple[int, Path], tuple[Any, str, Any, Compared]] = {}  # whose, and as what
        self.whose: dict[int, tuple[Any, Path, Any, str]] = {}  # who has a container, and as what
        self.sets: set[Any] = set()  # whose names the code sets, or which of who knows whom
        self._others: set[tuple[str, bool]] = set()  # attributes of who knows what, and if called
        self._asked: set[str] = set()  # those of them that an object may lack
        self._some: dict[int, Any] = {}  # objects in containers: perhaps of these
        self._left: list[tuple[CodeType, Mapping[str, Any], dict[str, Any]]] = []  # to be walked
        self._seen: dict[tuple[int, ...], Any] = {}
        self.stored: set[int] = set()  # ids of containers that the code puts something into
        self.tensors: list[Tensor] = []

    def places(self) -> dict[tuple[Any, ...], Tensor]:
        """The tensors that there are at these names, in containers and objects there, too."""
        found: dict[tuple[Any, ...], Tensor] = {}
        for (key, path), (_, _, value, _) in self.read.items():
            _put(found, (key, *path), value)
        for holder, path, value, _ in self.whose.values():
            _put(found, (id(holder), *path), value)
        return found

    def go_on(self) -> None:
        """Look at objects in containers for the attributes of who knows what, until all are."""
        known = -1
        while known != (known := len(self._seen) + len(self._others) + len(self._some)):
            while self._left:
                self._code(*self._left.pop())
            for holder in [*self._some.values()]:
                for name, called in [*self._others]:
                    if not (called and is_plain(_own(holder).get(name, NOTHING))):
                        self._hand_on(self._attribute(holder, name))
        for holder in self._some.values():
            lacks = frozenset(n for n in self._asked if not hasattr(type(holder), n))
            if lacks and hasattr(holder, DICT):
                by = partial(_those_of, lacks.difference(_own(holder)))
                self.read[id(holder), (DICT,)] = holder, "an attribute", {}, by

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
        if value is NOTHING:
            return
        if isinstance(value, CONTAINERS) and id(value) in self.whose:
            holder, path, _, called = self.whose[id(value)]
            self.read[id(holder), path] = holder, called, value, picture
        elif self._has_code(value):
            self._some[id(value)] = value
        self.value(value)

    def _note(self, holder: Any, path: Path, value: Any, called: str) -> None:
        """Code reads this of an object; a container is looked at where more is said of it."""
        if id(holder) in self._besides:
            return
        by, plain = compared(value), is_plain(value)
        if by is picture and not plain:
            self.whose.setdefault(id(value), (holder, path, value, called))
        elif plain or callable(value) or isinstance(value, Tensor) or self._has_code(value):
            self.read[id(holder), path] = holder, called, value, by

    def _attribute(self, holder: Any, name: str) -> Any:
        """What holder.name is, if that is known without running anything."""
        if isinstance(holder, (Tensor, *CONTAINERS)):  # of which methods tell what is in it
            if isinstance(holder, dict) and name in holder and not hasattr(dict, name):
                return self._item(holder, name)  # as people's own dicts have it
            self.value(holder) if name in _CHANGES else self._hand_on(holder)
            return NOTHING
        kind, own = holder if isinstance(holder, type) else type(holder), _own(holder)
        if isinstance(holder, type) and issubclass(holder, Function) and name == "apply":
            self.value(holder.forward, holder)
            self.value(holder.backward, holder)
        places = [own, *map(vars, kind.__mro__)] if _walked(kind.__module__) else [own]
        if isinstance(holder, ModuleType) and not _walked(holder.__name__):
            return NOTHING
        if isinstance(holder, type) and not _walked(holder.__module__):
            return NOTHING
        if name == "__class__":
            return kind
        found = own if name == DICT else next((p[name] for p in places if name in p), NOTHING)
        if found is NOTHING and name != GETATTR and GETATTR in _asked(kind):
            self._others.add((name, False))
            return self._attribute(holder, GETATTR)
        if isinstance(found, MemberDescriptorType):  # of __slots__
            found = getattr(holder, name, NOTHING)
            own = {name: found}
        if name in own or compared(found) is not id:
            self._note(holder, (name,), found, name)
        method = found
        if isinstance(found, (property, staticmethod, classmethod)):
            method = found.fget if isinstance(found, property) else found.__func__
        elif self._has_code(found):  # perhaps a TinyJit
            method = _own(found).get("__wrapped__")
        if name not in own and isinstance(method, FunctionType):
            self._function(method, *[] if isinstance(found, staticmethod) else [holder])
            return NOTHING
        return found

    def _item(self, container: Any, key: Any) -> Any:
        """What container[key] is: an item of whoever has the container, where that is known."""
        items = dict(enumerate(container)) if isinstance(container, list) else container
        value = items.get(key, NOTHING)
        if id(container) in self.whose:
            holder, path, _, called = self.whose[id(container)]
            self._note(holder, (*path, key), value, f"{called}[{key!r}]")
        elif not any(isinstance(x, Tensor) for x in items.values()):  # which would be kept alive
            self._note(container, (key,), value, repr(key))
        return value

    def _function(self, function: Any, *given: Any, **named: Any) -> None:
        scope, key = function.__globals__, (id(function), *map(id, given[:1]))
        if key in self._seen or not _has_names(function):
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
        at = key = held = NOTHING  # what the last instructions loaded, and a container before
        called = False  # it is, next
        if not _BY_NAME.isdisjoint(code.co_names):
            known = filter(str.isidentifier, (x for x in code.co_consts if isinstance(x, str)))
            self._asked.update(known)
            self._others.update((name, False) for name in self._asked)
        for op, name in _read(code):
            if op in ("LOAD_ATTR", "LOAD_METHOD"):
                called = op == "LOAD_METHOD"
                if at is NOTHING:
                    self._others.add((name, called))
                else:
                    at = self._attribute(at, name)
                continue
            if op == "LOAD_CONST" and isinstance(at, (dict, list)):
                key = name
                continue
            if op == "BINARY_SUBSCR" and key is not NOTHING:
                at, key = self._item(at, key), NOTHING
                continue
            if op == "STORE_ATTR":
                self.sets.add(name if at is NOTHING else (id(at), (name,)))
                if name in _own(at):
                    self._note(at, (name,), _own(at)[name], name)
            self.value(at) if called else self._hand_on(at)
            held = at if isinstance(at, CONTAINERS) else held
            key, called = NOTHING, False
            if op == "STORE_SUBSCR":
                self.stored.add(id(held))
            if op in ("STORE_FAST", "STORE_DEREF") and not isinstance(names.get(name), CellType):
                names[name], at = at, NOTHING
                continue
            at = self._loaded(op, name, scope, names)

    def _loaded(self, op: str, name: Any, scope: Mapping[str, Any], names: dict[str, Any]) -> Any:
        """What an instruction loads, if it is known; what it stores is noted."""
        at = place = NOTHING
        if op in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL"):
            module: Any = sys.modules.get(scope.get("__name__", ""))
            if module is None or vars(module) is not scope:  # a doctest, or what exec runs
                module = scope
            at, place = scope.get(name, NOTHING), (id(module), (name,))
            self._note(module, (name,), at, name)
        elif op.startswith(("LOAD_FAST", "LOAD_DEREF", "STORE_DEREF")):
            at = names.get(name, NOTHING)
            if isinstance(at, CellType):
                cell, at = at, content(at, NOTHING)
                place = id(cell), (CELL,)
                self._note(cell, (CELL,), at, name)
        elif isinstance(name, CodeType):
            own = name.co_varnames[: name.co_argcount]
            self._code(name, scope, {n: v for n, v in names.items() if n not in own})
        if op in ("STORE_GLOBAL", "STORE_DEREF"):
            self.sets.add(place)
        return NOTHING if op.startswith("STORE") else at


def walked_from(function: Callable[..., Any], besides: Iterable[Any] = ()) -> Walk:
    """The walk from a function on, all of it, but for what objects `besides` have themselves."""
    walk = Walk(besides)
    walk.value(function)
    walk.go_on()
    return walk


def _put(found: dict[tuple[Any, ...], Tensor], path: tuple[Any, ...], value: Any) -> None:
    """Add the tensors of a value to what was found, by where they are."""
    if isinstance(value, Tensor):
        found[path] = value
    elif len(path) < _DEEP:
        items: Iterable[Any] = ()
        if isinstance(value, dict):
            items = value.items()
        elif isinstance(value, (list, tuple, deque)):
            items = enumerate(value)
        elif _walked(type(value).__module__):
            items = _own(value).items()
        for name, part in islice(items, MANY):
            _put(found, (*path, name), part)


_DEEP = 5  # names of a place, of which the first is a holder's id


def _those_of(names: frozenset[str], there: Mapping[str, Any]) -> frozenset[str]:
    """Which of these names an object has got."""
    return names & there.keys()


def _own(value: Any) -> Mapping[str, Any]:
    """What an object has of its own."""
    return vars(value) if hasattr(value, "__dict__") else {}


def _defaults(function: Any) -> dict[str, Any]:
    """What a function has for arguments that are not given, by name."""
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    return {**dict(zip(names, values, strict=True)), **(function.__kwdefaults__ or {})}
