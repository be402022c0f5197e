"""Translation units: programs compiled together, as a compiler's start costs more than a kernel.

The disk cache holds each unit by its text, and for each program the key of the unit that it went
into: so a program is found again in whatever company it is asked for.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import Generic, TypeVar

from tinyml import trace
from tinyml.cache import DiskCache
from tinyml.errors import CompileError
from tinyml.frozen import dataclass
from tinyml.program import Program

# Bytes of text that a compiler reads in the time that it takes to start, and for a loop.
_START, _LOOP = 8192, 1024
_B = TypeVar("_B")  # what a unit is once it is compiled: a loaded library, an image


@dataclass(frozen=True)
class Unit(Generic[_B]):
    """Several programs in one binary, and how that came to be."""

    binary: _B
    seconds: float
    cached: bool
    command: str = ""
    output: str = ""  # what the compiler said


class Units(Generic[_B]):
    """The binary that each program is in; each is made once per process, and once per cache."""

    render: Callable[[tuple[Program, ...]], str]  # the text of a unit
    key_of: Callable[[str], str]  # the cache key of a text
    recall: Callable[[str], Unit[_B] | None]  # a unit of the disk cache, if it is still there
    # compiles programs; CompileError with a file of their text, if the bool says so
    make: Callable[[tuple[Program, ...], bool], Unit[_B]]

    def __init__(self, device: str, cache: DiskCache, processes: int) -> None:
        self.device, self.cache, self.processes = device, cache, processes
        self._units: dict[str, Unit[_B]] = {}  # by key of the text
        self._unit_of: dict[str, str] = {}  # the unit's key by key of the program's text

    def units(self, programs: Iterable[Program]) -> list[tuple[Program, _B]]:
        """Each program with its binary; CompileError if one does not compile.

        Compilers start while `programs` still makes the next ones.
        """
        keys: list[tuple[Program, str]] = []
        with ThreadPoolExecutor(self.processes) as pool, _Waiting(self, pool) as waiting:
            for program in programs:
                program_key = self.key_of(self.render((program,)))
                keys.append((program, program_key))
                known = program_key in self._unit_of or program in waiting.keys
                if not known and not self._recalled(program, program_key):
                    waiting.add(program, program_key)
        for begun in waiting.begun:
            self._finish(begun)
        return [(program, self._units[self._unit_of[known]].binary) for program, known in keys]

    def _recalled(self, program: Program, program_key: str) -> bool:
        """Whether a program is found in the disk cache."""
        start = time.perf_counter()
        content = self.cache.get(program_key, ".unit")
        if content is None:
            return False
        unit_key = content.decode()
        unit = self._units.get(unit_key) or self.recall(unit_key)
        if unit is None:
            return False
        self._units[unit_key], self._unit_of[program_key] = unit, unit_key
        seconds = time.perf_counter() - start
        trace.emit(trace.Compiled(self.device, (program.name,), seconds, True, "", unit.output))
        return True

    def _finish(self, begun: _Begun[_B]) -> None:
        try:
            unit = begun.made.result()
        except CompileError as error:
            raise self._blame(tuple(begun.programs), error) from None
        names = tuple(program.name for program in begun.programs)
        how = (unit.seconds, unit.cached, unit.command, unit.output)
        trace.emit(trace.Compiled(self.device, names, *how))
        unit_key = self.key_of(begun.text)
        self._units.setdefault(unit_key, unit)
        for program_key in begun.programs.values():
            self._unit_of[program_key] = unit_key
            self.cache.put(program_key, ".unit", unit_key.encode())

    def _blame(self, unit: tuple[Program, ...], error: CompileError) -> CompileError:
        """The error of the one program that is to blame for a unit's failure."""
        for program in unit:
            try:
                self.make((program,), True)
            except CompileError as alone:
                return CompileError(f"{self.device}: program {program.name}: {alone}")
        names = ", ".join(program.name for program in unit)
        return CompileError(f"{self.device}: {names} compile alone, but not together: {error}")


@dataclass(frozen=True)
class _Begun(Generic[_B]):
    """A unit that is being compiled: its programs, with their keys, and what work that is."""

    programs: dict[Program, str]
    text: str
    work: int
    start: float
    made: Future[Unit[_B]]


class _Waiting(Generic[_B]):
    """Programs on their way to the compiler.

    A process that has nothing to do takes its share of all that is yet to be done from those that
    wait, as soon as they are worth its start. So the last processes end at about the same time.
    """

    def __init__(self, own: Units[_B], pool: ThreadPoolExecutor) -> None:
        self._own, self._pool, self._lock = own, pool, Lock()
        self._programs: dict[Program, int] = {}  # and what work each is
        self._running: list[_Begun[_B]] = []
        self._complete = False
        self._done, self._seconds = 0, 0.0  # work of processes that have ended, and its time
        self.keys: dict[Program, str] = {}
        self.begun: list[_Begun[_B]] = []

    def add(self, program: Program, program_key: str) -> None:
        """Compile a program, now or soon."""
        self.keys[program] = program_key
        with self._lock:
            self._programs[program] = work(program)
            self._start()

    def __enter__(self) -> _Waiting[_B]:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        """Compile all that waits, as no more will come; or nothing of it, after a failure."""
        with self._lock:
            self._complete = True
            if failed is not None:
                self._programs.clear()
            while self._start():
                pass

    def _start(self) -> bool:
        """Start a process, if there is one to spare and something to do."""
        spare = len(self._running) < self._own.processes
        begun = self._take() if spare else None
        if begun is not None:
            self._pool.submit(self._work, begun)
        return begun is not None

    def _work(self, begun: _Begun[_B] | None) -> None:
        """One unit after the other."""
        while begun is not None:
            try:
                begun.made.set_result(self._own.make(tuple(begun.programs), False))
            except BaseException as error:
                begun.made.set_exception(error)
            with self._lock:
                self._running.remove(begun)
                self._done += begun.work
                self._seconds += time.perf_counter() - begun.start
                begun = self._take()

    def _take(self) -> _Begun[_B] | None:
        """The next unit; None if too little waits."""
        waiting = sum(self._programs.values())
        if not waiting or (waiting < _START and not self._complete):
            return None
        left = waiting + sum(map(self._left, self._running))
        taken = share(self._programs, left // self._own.processes)
        size = _START + sum(map(self._programs.pop, taken))
        text, keys = self._own.render(taken), {program: self.keys[program] for program in taken}
        begun = _Begun(keys, text, size, time.perf_counter(), Future[Unit[_B]]())
        self.begun.append(begun)
        self._running.append(begun)
        return begun

    def _left(self, begun: _Begun[_B]) -> float:
        """What is left of a unit's work, if it goes on as other work did."""
        elapsed = time.perf_counter() - begun.start
        speed = self._done / self._seconds if self._seconds else 0.0
        return max(begun.work - elapsed * speed, 0.0)


def share(programs: Mapping[Program, int], most: float) -> tuple[Program, ...]:
    """A unit: programs, the largest first, that are no more work than `most` together.

    One is taken in any case, and so are those that would be left over and not worth a start of
    their own. Two programs of one name cannot share a unit, nor can those whose order is kept and
    others.
    """
    taken: dict[str, Program] = {}
    size = 0
    by_size = sorted(programs, key=lambda program: (-programs[program], program.name))
    by_size = [program for program in by_size if program.in_order is by_size[0].in_order]
    left = sum(programs[program] for program in by_size)
    for program in by_size:
        if program.name not in taken and (not taken or size + programs[program] <= most):
            taken[program.name] = program
            size += programs[program]
    if left - size < _START:
        taken |= {program.name: program for program in by_size if program.name not in taken}
    return tuple(taken[name] for name in sorted(taken))


def work(program: Program) -> int:
    """How many bytes of plain text a compiler takes as long for, about.

    A function is put wherever it is called, and what was text is then read as fast as twice that.
    """
    source = program.source
    called = sum(
        len(piece) * source.count(f"{name}(") for piece in program.prelude for name in _names(piece)
    )
    return len(source) + called // 2 + _LOOP * source.count("for (")


@cache
def _names(piece: str) -> list[str]:
    """The function that a piece of prelude is there for, if it defines one."""
    return re.findall(r"(\w+)\([^()]*\) {\n", piece)[-1:]
