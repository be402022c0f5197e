"""Numbers: what a function's code reads besides tensors, and a replay computes with as it was.

The values of `self.momentum`, of a global `SCALE`, of a `beta` of the function around are parts of
captured kernels, and a `mode` or a `None` says which these are. They are found by walking the code,
from the function to those that it names. What is reached in other ways, or set by that code, is not
watched. How a value is compared, `picture.py` says.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
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
from tinyml.jit.picture import (
    Compared,
    are_objects,
    difference,
    entries,
    members,
    parts,
    picture,
    same,
)
from tinyml.jit.record import INSTEAD, RESET
from tinyml.jit.walk import LAYERS, NOTHING, Walk, walked_from
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
        goes = any(kind.__module__.startswith(LAYERS) for kind in type(holder).__mro__)
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


Places = dict[tuple[Any, ...], weakref.ref[Tensor]]


def places(function: Callable[..., Any], besides: Sequence[Any]) -> Places:
    """Which tensors there are at the names that a function's code reads."""
    return {place: weakref.ref(t) for place, t in walked_from(function, besides).places().items()}


def check_places(before: Places, now: Places, read: Iterable[Tensor]) -> None:
    """JitError if a call put another tensor where there was one that it reads."""
    known = set(map(id, read))
    for place, reference in before.items():
        old, new = reference(), now[place]() if place in now else None
        if old is not None and new is not old and id(shown_by(old)[0]) in known:
            raise JitError(
                f"the function puts another object in the place of a tensor {old.shape} that it "
                "reads: a replay would go on with the one before. assign() to a tensor instead of "
                "replacing it"
            )


def assumed(
    function: Callable[..., Any], besides: Sequence[Any], before: Iterable[Assumed] | None = None
) -> tuple[list[Assumed], list[Tensor]]:
    """What a function computes with, as far as its code says so, and the constants that it names.

    `besides` are arguments that are looked at by themselves, and what they have may change.
    If the call `before` did the same, it is what had the same values then.
    """
    walk, earlier = walked_from(function, besides), None
    if before is not None:
        earlier = {
            (id(one.holder()), name): value
            for one in before
            for name, value in zip(one.names, one.values, strict=False)
        }
    return _found(walk, earlier), constants(walk.tensors)


def _found(walk: Walk, earlier: Mapping[tuple[int, Any], Any] | None) -> list[Assumed]:
    """What only others set, and what was the same `earlier`, by who has it; all tensors."""
    by_holder: dict[tuple[int, Compared], tuple[Any, dict[Any, str], Compared]] = {}
    for (key, name), (holder, called, value, how) in walk.read.items():
        is_put = isinstance(value, Tensor)  # perhaps by the code, and a replay writes its memory
        if id(value) in walk.stored and any(isinstance(x, Tensor) for x in parts(value)):
            is_put, how = True, entries(value)
        by = members if how is picture and are_objects(value) else how
        then = NOTHING if earlier is None else earlier.get((key, name), NOTHING)
        free = earlier is None or (then,) == (by(value),)  # or NaN
        if is_put or (free and name not in walk.sets and called not in walk.sets):
            by_holder.setdefault((key, by), (holder, {}, by))[1][name] = called
    return [_watched(*entry) for entry in by_holder.values()]


def named(function: Callable[..., Any], *bound: Any) -> list[Tensor]:
    """The tensors that the code of a function, or method, leads to, but for its arguments."""
    return walked_from(partial(function, *bound)).tensors


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
