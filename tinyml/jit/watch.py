"""Watch: what a function's code reads besides tensors, and a replay computes with as it was.

The values of `self.momentum`, of a global `SCALE`, of a `beta` of the function around are parts of
captured kernels, and a `mode` or a `None` says which these are. They are found by walking the code,
from the function to those that it names. What is reached in other ways, or set by that code, is not
watched. How a value is compared, `picture.py` says.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from types import CellType, ModuleType
from typing import Any

from tinyml.autograd import mode
from tinyml.errors import JitError
from tinyml.frozen import dataclass
from tinyml.functional.views import shown_by
from tinyml.graph import toposort
from tinyml.jit.picture import Compared, Plain, entries, is_plain, parts
from tinyml.jit.record import INSTEAD, RESET
from tinyml.jit.walk import LAYERS, NOTHING, Path, Walk, walked_from
from tinyml.lazy import LazyBuffer
from tinyml.ledger import has_data
from tinyml.telling import Telling
from tinyml.tensor import Tensor


@dataclass(frozen=True)
class Place:
    """What an object has under a name, or in a container there, and a function computed with."""

    holder: Callable[[], Any]  # a weak reference, of what can have one
    path: Path
    called: str
    by: Compared
    then: Any  # NOTHING if there was none

    def now(self) -> Any:
        """What is compared, as it is now; whoever is forgotten stays as it was."""
        holder = self.holder()
        return self.then if holder is None else _shown(holder, self.path, self.by)

    def check(self) -> None:
        """JitError if something else is there now."""
        now, called = self.now(), self.called
        if now is self.then or now == self.then:
            return
        if now is NOTHING:
            raise JitError(f"{called}: gone since the function was captured. {RESET}")
        if self.by is id:
            raise JitError(
                f"{called} was replaced by another object after the capture, and a replay would "
                f"go on with the one before. assign() to a tensor instead of replacing it. {RESET}"
            )
        text = f"{called} holds something else than when the function was captured"
        if isinstance(self.then, Plain) or self.then is NOTHING:
            then, is_now = (getattr(x, "text", "an object") for x in (self.then, now))
            then = "not there" if self.then is NOTHING else then
            text = f"{called} was {then} when the function was captured, and is {is_now} now"
        raise JitError(f"{text}; a replay would compute with what it was. {INSTEAD}. {RESET}")

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle takes layers and optimizers along, or none that is alive."""
        holder = self.holder()
        goes = any(kind.__module__.startswith(LAYERS) for kind in type(holder).__mro__)
        then = self.then if isinstance(self.then, Plain) else None
        return _loaded, (holder if goes else None, self.path, self.called, self.by, then)


def _loaded(holder: Any, path: Path, called: str, by: Compared, then: Plain | None) -> Place:
    holder = set() if holder is None else holder  # one that is dead at once
    shown = _shown(holder, path, by) if then is None else then
    return Place(weakref.ref(holder), path, called, by, shown)


def _shown(holder: Any, path: Path, by: Compared) -> Any:
    try:
        return by(_at(path, holder))
    except _GONE:
        return NOTHING


def _at(path: Path, value: Any) -> Any:
    for name in path:
        value = value[name] if isinstance(value, _KEYED) else getattr(value, name)
    return value


def _reads(holder: Any, path: Path, names: Sequence[Any]) -> Callable[[Any], Any]:
    """What gives a tuple of what an object, or a container that it has at a path, has there."""
    getter: Any = itemgetter if path or isinstance(holder, _KEYED) else attrgetter
    last = getter(*names, names[0])  # of two or more it gives a tuple
    return (lambda holder: last(_at(path, holder))) if path else last


_KEYED = (dict, list)
_GONE = AttributeError, LookupError, TypeError, ValueError


class Watch:
    """All that a captured function computed with."""

    def __init__(self, every: Iterable[Place] = (), constants: Iterable[Tensor] = ()) -> None:
        """Constants without memory became parts of kernels."""
        self.every = [*every]
        self._constants = [*constants]  # kept, so that none that comes later has its id
        self._clock = self._asked = mode.assignments
        self._settings = -1
        self._sort()

    def _sort(self) -> None:
        """Let a check ask each object once; plain values are kept, so that their ids stay."""
        holders = [one.holder() for one in self.every]
        pairs = [*zip(self.every, holders, strict=True)]
        self._told = [one for one, holder in pairs if isinstance(holder, Telling)]
        silent = [(one, x) for one, x in pairs if x is not None and not isinstance(x, Telling)]
        by_holder: dict[Any, tuple[Callable[[], Any], Any, Path, list[Any]]] = {}
        for one, holder in silent:
            if one.by is id or isinstance(one.then, Plain):
                key, path = (id(holder), one.path[:-1]), one.path[:-1]
                entry = by_holder.setdefault(key, (one.holder, holder, path, []))
                entry[-1].append(one.path[-1])
        whole = [one for one, _ in silent if one.by is not id and not isinstance(one.then, Plain)]
        self._wholes, self._pictures = [one.now for one in whole], [one.then for one in whole]
        self._reads = [(of, _reads(*lot)) for of, *lot in by_holder.values()]
        values = [*chain.from_iterable(read(of()) for of, read in self._reads)]
        self._kept = [value for value in values if is_plain(value)]
        self._ids = [*map(id, values)]

    def assigned(self) -> list[Tensor]:
        """The constants that have been assigned to since."""
        if not self._constants or self._asked == mode.assignments:
            return []
        self._asked = mode.assignments
        return [shown_by(t)[0] for t in self._constants if t._changed_after(self._clock)]

    def check(self) -> None:
        """JitError if something is not what it was; layers are asked if one was told anything."""
        try:
            values = [read(of()) for of, read in self._reads]
            same = [*map(id, chain.from_iterable(values))] == self._ids
            same = same and [now() for now in self._wholes] == self._pictures
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


# ---- what a walk found ----


def watched(walk: Walk, before: Iterable[Place] | None = None) -> list[Place]:
    """What a function computes with, as far as its code says so, and only others set.

    If the call `before` did the same, it is what had the same values then.
    """
    earlier = None
    if before is not None:
        earlier = {(id(one.holder()), one.path): one.then for one in before}
    found = []
    for (key, path), (holder, called, value, by) in walk.read.items():
        is_put = isinstance(value, Tensor)  # perhaps by the code, and a replay writes its memory
        if id(value) in walk.stored:  # another container in its place would not get what is put
            is_put = any(isinstance(x, Tensor) for x in parts(value))
            by = entries(value) if is_put else id
        then = _shown(holder, path, by)
        is_free = earlier is None or (earlier.get((key, path), NOTHING),) == (then,)
        if is_put or (is_free and walk.sets.isdisjoint([path[0], (key, path[:1])])):
            found.append(Place(reference(holder), path, told(holder, called), by, then))
    return found


def reference(holder: Any) -> Callable[[], Any]:
    """A weak reference, or to what allows none one that is not."""
    try:
        return weakref.ref(holder)
    except TypeError:
        return lambda: holder


def told(holder: Any, called: str) -> str:
    """What people call what a holder has."""
    if isinstance(holder, (CellType, ModuleType)):
        return called
    return f"{(holder if isinstance(holder, type) else type(holder)).__name__}: {called}"


def constants(walk: Walk) -> list[Tensor]:
    """The tensors that are, or show, what is made of no data and is not in memory."""
    return [*filter(_is_constant, {id(t): t for t in walk.tensors}.values())]


def _is_constant(tensor: Tensor) -> bool:
    return not has_data(shown_by(tensor)[0]._lazy)


Tensors = dict[tuple[Any, ...], tuple[weakref.ref[Tensor], LazyBuffer | None]]


def there_are(walk: Walk) -> tuple[Tensors, dict[int, str]]:
    """Which tensors there are at the names that code reads, and what containers are called."""
    found = walk.places().items()
    tensors = {at: (weakref.ref(t), t._lazy if _is_constant(t) else None) for at, t in found}
    whose = walk.whose.items()
    return tensors, {key: told(holder, called) for key, (holder, _, _, called) in whose}


def check_places(
    before: Tensors, now: Mapping[tuple[Any, ...], Tensor], read: Iterable[Tensor]
) -> None:
    """JitError if a call put another tensor where there was one that it reads, or made it of."""
    known = set(map(id, read))
    for place, (reference, node) in before.items():
        old, new = reference(), now.get(place)
        is_read = old is not None and id(shown_by(old)[0]) in known
        if new is not old and (is_read or _is_made_of(new, node)):
            how = "it reads" if is_read else "is made of no data, and makes it of that"
            raise JitError(
                f"the function puts another object in the place of a tensor that {how}: a replay "
                "would go on with the one before. assign() to a tensor instead of replacing it"
            )


def _is_made_of(tensor: Tensor | None, node: LazyBuffer | None) -> bool:
    if tensor is None or node is None or tensor._lazy is node:
        return False
    return node in toposort([tensor._lazy])


def named(function: Callable[..., Any], *bound: Any) -> list[Tensor]:
    """The tensors that the code of a function, or method, leads to, but for its arguments."""
    return walked_from(partial(function, *bound)).tensors
