"""A runner: programs of one kernel compiled, checked against the default, and timed, here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from tinyml.device import OpenDevice
from tinyml.frozen import dataclass
from tinyml.program import Program
from tinyml.runtime.machine import Executable
from tinyml.search.scratch import Drawn, Scratch

Timer: TypeAlias = Callable[[Executable, Sequence[Any]], float]  # seconds of one launch

_SLOW = 2.5  # times the fastest so far: who takes that long twice is timed no further
_SPAN, _LEAST, _MOST = 0.03, 3, 40  # seconds to time one for; launches at least, and at most


@dataclass(frozen=True)
class Given:
    """What programs are tried on, and the one whose results count as right."""

    drawn: Drawn
    default: Program


class Runner(Protocol):
    """Who runs programs; an error says that one is not to be had, or fails."""

    def load(self, program: Program) -> None:
        """Compile a program."""

    def check(self, program: Program) -> None:
        """ArithmeticError if a loaded program does not compute what the default does."""

    def seconds(self, program: Program, best: float) -> float:
        """The least of some launches of a loaded program; few, if it takes longer than `best`."""

    def close(self) -> None:
        """Nothing more is asked."""


def launch_timed(executable: Executable, memories: Sequence[Any]) -> float:
    """Seconds of one launch, by the device's own clock."""
    return executable.launch_timed(memories)


class Here:
    """A runner in this process, which has to survive what it runs."""

    def __init__(self, opened: OpenDevice, given: Given, timer: Timer = launch_timed) -> None:
        self._machine, self.timer = opened.machine, timer
        self._scratch = Scratch(given.drawn, opened.machine)
        self._executables: dict[Program, Executable] = {}
        self.load(given.default)
        self._right = self._scratch.results(self._executables[given.default])

    def load(self, program: Program) -> None:
        (self._executables[program],) = self._machine.load([program])

    def check(self, program: Program) -> None:
        if not self._scratch.agree(self._scratch.results(self._executables[program]), self._right):
            raise ArithmeticError("does not compute what the default computes")

    def seconds(self, program: Program, best: float) -> float:
        executable, memories = self._executables[program], self._scratch.memories
        fastest, spent = self.timer(executable, memories), 0.0
        for n in range(_MOST):
            if (n >= 1 and fastest > _SLOW * best) or (n >= _LEAST and spent > _SPAN):
                break
            seconds = self.timer(executable, memories)
            fastest, spent = min(fastest, seconds), spent + seconds
        return fastest

    def close(self) -> None:
        self._executables.clear()
