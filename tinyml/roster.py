"""Roster: who is interested in something, in order, without being kept alive by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref


class Roster:
    """Objects that were noted and are alive.

    Noting one is on the path of every op that is recorded, so it costs one weak reference
    without a callback (of which there is one per object); the dead are dropped now and then.
    """

    __slots__ = ("_dropped", "_limit", "_references")

    def __init__(self) -> None:
        self._references: list[ref[Any]] = []
        self._dropped, self._limit = 0, 64

    def note(self, somebody: object) -> None:
        """Add somebody; more than once does no harm."""
        references = self._references
        references.append(ref(somebody))
        if len(references) > self._limit:
            alive = {id(r): r for r in references if r() is not None}
            self._keep(list(alive.values()))
            self._limit = 2 * len(alive) + 64

    def _keep(self, references: list[ref[Any]]) -> None:
        self._dropped += len(self._references) - len(references)
        self._references = references

    @property
    def noted(self) -> int:
        """How often somebody was noted. It never falls, so it tells whether there is news."""
        return self._dropped + len(self._references)

    def members(self) -> list[Any]:
        """All of them, each once, in order."""
        return list({id(o): o for r in self._references if (o := r()) is not None}.values())

    def retain(self, condition: Callable[[Any], bool]) -> list[Any]:
        """The members that fulfil a condition; the others are not members any more."""
        kept = [member for member in self.members() if condition(member)]
        self._keep(list(map(ref, kept)))
        return kept
