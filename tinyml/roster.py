"""Roster: a list of weak references, in order, that tells listeners (bells) when it grows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

from tinyml.turn import turn


class Bell:
    """A flag that is set when a roster changes; one may hang on many rosters."""

    __slots__ = ("__weakref__", "rung")

    def __init__(self) -> None:
        self.rung = True

    def ring(self, _: object = None) -> None:
        """There is news. Takes what a weak reference hands to its callback."""
        self.rung = True


class Roster:
    """Objects that were noted and are alive.

    Every op that is recorded notes one, so this costs no more than a weak reference without a
    callback; the dead are dropped now and then, in somebody's turn (turn.py).
    """

    __slots__ = ("_bells", "_limit", "_references", "_room", "_sweeps")

    def __init__(self) -> None:
        self._references: list[ref[Any]] = []
        self._bells: tuple[ref[Bell], ...] = ()
        self._sweeps = 0
        self._limit = self._room = 64  # there is no room where bells are to be rung each time

    def __bool__(self) -> bool:
        """Whether somebody was noted, who may be dead."""
        return bool(self._references)

    def note(self, somebody: object) -> None:
        """Add somebody; more than once does no harm."""
        references = self._references
        references.append(ref(somebody))
        if len(references) > self._room:
            self._noted()

    def note_all(self, those: Iterable[object]) -> None:
        """Add several."""
        self._references += map(ref, those)
        if len(self._references) > self._room:
            self._noted()

    def _noted(self) -> None:
        references = self._references
        if len(references) > self._limit and turn.begin():
            try:
                self._keep(len(references), lambda _: True)
                self._limit = 2 * len(references) + 64
            finally:
                turn.end()
        self._room = -1 if self._bells else self._limit
        self.ring()

    def hang(self, bell: Bell) -> None:
        """Ring this bell, while it is alive, when somebody is noted."""
        alive = [r for r in self._bells if r() is not None and r() is not bell]
        self._bells, self._room = (*alive, ref(bell)), -1

    def _keep(self, count: int, condition: Callable[[Any], bool]) -> list[Any]:
        """Of the first `count` that were noted, those that are alive and fulfil a condition.

        Another thread may note somebody meanwhile, at the end; so the list stays the same one.
        """
        kept = [member for member in _alive(self._references[:count]) if condition(member)]
        references = list(map(ref, kept))
        self._references[:count] = references
        self._sweeps += 1
        return kept

    def ring(self) -> None:
        """Somebody comes or goes."""
        for reference in self._bells:
            if (bell := reference()) is not None:
                bell.ring()

    def members(self) -> list[Any]:
        """All of them, each once, in order."""
        return _alive(self._references[:])

    def since(self, mark: tuple[int, int]) -> tuple[tuple[int, int], list[Any]]:
        """A mark of now, and who was noted since another one; all, if some were dropped meanwhile.

        In the caller's turn.
        """
        sweeps, count = mark
        end = len(self._references)
        new = self._references[count if sweeps == self._sweeps else 0 : end]
        return (self._sweeps, end), _alive(new)

    def first(self, condition: Callable[[Any], bool]) -> Any:
        """The earliest member that fulfils a condition, or None."""
        alive = (o for r in self._references if (o := r()) is not None)
        return next(filter(condition, alive), None)

    def retain(self, condition: Callable[[Any], bool]) -> list[Any]:
        """The members that fulfil a condition; the others are not members any more."""
        with turn:
            return self._keep(len(self._references), condition)


def _alive(references: list[ref[Any]]) -> list[Any]:
    return list({id(o): o for r in references if (o := r()) is not None}.values())
