"""Roster: who is interested in something, in order, without being kept alive by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref


def _everybody(_: Any) -> bool:
    return True


class Roster:
    """Objects that were noted, are alive and, if a condition is given, still fulfil it.

    Noting one is on the path of every op that is recorded, so it costs one weak reference
    without a callback; those that need not stay are dropped now and then.
    """

    __slots__ = ("_condition", "_dropped", "_limit", "_references")

    def __init__(self, condition: Callable[[Any], bool] = _everybody) -> None:
        self._references: list[ref[Any]] = []
        self._condition = condition
        self._dropped, self._limit = 0, 8

    def note(self, somebody: object) -> None:
        """Add somebody; more than once does no harm."""
        references = self._references
        references.append(ref(somebody))
        if len(references) > self._limit:
            self._limit = 2 * len(self.members()) + 8

    @property
    def noted(self) -> int:
        """How often somebody was noted. It never falls, so it tells whether there is news."""
        return self._dropped + len(self._references)

    def members(self) -> list[Any]:
        """All of them, each once."""
        references, condition = self._references, self._condition
        alive = {id(o): o for r in references if (o := r()) is not None and condition(o)}
        if len(alive) < len(references):
            self._dropped += len(references) - len(alive)
            references[:] = map(ref, alive.values())
        return list(alive.values())
