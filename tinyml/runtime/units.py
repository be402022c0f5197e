"""Units: programs that are compiled together, since a compiler's start costs more than a kernel.

The disk cache holds each unit by its text, and for each program the key of the unit that it went
into: so a program is found again in whatever company it is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from tinyml import trace
from tinyml.cache import DiskCache
from tinyml.errors import CompileError
from tinyml.frozen import dataclass
from tinyml.program import Program

_UNIT = 4096  # bytes of source from which a further compiler process pays for its start
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

    def __init__(self, device: str, cache: DiskCache, processes: int) -> None:
        self.device, self.cache, self.processes = device, cache, processes
        self._units: dict[str, Unit[_B]] = {}  # by key of the text
        self._unit_of: dict[str, str] = {}  # the unit's key by key of the program's text

    def key_of(self, text: str) -> str:
        """The cache key of a text."""
        raise NotImplementedError

    def recall(self, unit_key: str) -> Unit[_B] | None:
        """A unit of the disk cache; None if there is none any more."""
        raise NotImplementedError

    def make(self, programs: tuple[Program, ...], keep: bool) -> Unit[_B]:
        """Compile programs; CompileError with a file of their text, if that is to be kept."""
        raise NotImplementedError

    def units(self, programs: Iterable[Program]) -> list[tuple[Program, _B]]:
        """Each program with its binary; CompileError if one does not compile.

        Compilers start while `programs` still makes the next ones.
        """
        keys: list[tuple[Program, str]] = []
        with ThreadPoolExecutor(self.processes) as pool:
            waiting = _Waiting(self, pool)
            for program in programs:
                program_key = self.key_of(self.render((program,)))
                keys.append((program, program_key))
                known = program_key in self._unit_of or program in waiting.keys
                if not known and not self._recalled(program, program_key):
                    waiting.add(program, program_key)
            waiting.start(self.processes)
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
                self.make((program,), keep=True)
            except CompileError as alone:
                return CompileError(f"{self.device}: program {program.name}: {alone}")
        names = ", ".join(program.name for program in unit)
        return CompileError(f"{self.device}: {names} compile alone, but not together: {error}")


@dataclass(frozen=True)
class _Begun(Generic[_B]):
    """A unit that is being compiled: its programs, with their keys."""

    programs: dict[Program, str]
    text: str
    made: Future[Unit[_B]]


class _Waiting(Generic[_B]):
    """Programs on their way to the compiler.

    As soon as there is a process to spare, and enough text to be worth its start, the programs
    that wait become a unit. The more processes are at work, the larger units become.
    """

    def __init__(self, own: Units[_B], pool: ThreadPoolExecutor) -> None:
        self._own, self._pool = own, pool
        self._programs: list[Program] = []
        self.keys: dict[Program, str] = {}
        self.begun: list[_Begun[_B]] = []

    def add(self, program: Program, program_key: str) -> None:
        """Compile a program, now or soon."""
        self.keys[program] = program_key
        self._programs.append(program)
        running = sum(not begun.made.done() for begun in self.begun)
        enough = sum(len(program.source) for program in self._programs) >= _UNIT
        if enough and running < self._own.processes:
            self.start(1)

    def start(self, processes: int) -> None:
        """Compile all that wait, in as many processes."""
        for unit in divide(self._programs, processes) if self._programs else ():
            text = self._own.render(unit)
            made = self._pool.submit(self._own.make, unit, False)
            self.begun.append(_Begun({p: self.keys[p] for p in unit}, text, made))
        self._programs = []


def divide(programs: Iterable[Program], processes: int) -> list[tuple[Program, ...]]:
    """Programs in units of about equal size: as many as pay, and at most `processes`.

    Two programs of one name cannot share a unit; for those there are more units.
    """
    by_size = sorted(programs, key=lambda program: (-len(program.source), program.name))
    total = sum(len(program.source) for program in by_size)
    count = max(1, min(processes, len(by_size), total // _UNIT))
    units: list[list[Program]] = [[] for _ in range(count)]
    sizes = [0] * count
    for program in by_size:
        free = [i for i, unit in enumerate(units) if program.name not in {p.name for p in unit}]
        if not free:
            free = [len(units)]
            units.append([])
            sizes.append(0)
        lightest = min(free, key=sizes.__getitem__)
        units[lightest].append(program)
        sizes[lightest] += len(program.source)
    return [tuple(sorted(unit, key=lambda program: program.name)) for unit in units]
