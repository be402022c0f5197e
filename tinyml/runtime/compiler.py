"""The host's compiler: found once, asked what the processor can do, run on source text.

find      name?                 -> Compiler       the first one on PATH that works
build     Compiler, text        -> Built          a shared object on disk, from the cache if there
functions Compiler, Program*    -> address*       through a few units that are built in parallel
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tinyml import trace
from tinyml.cache import DiskCache, key
from tinyml.errors import CompileError, DeviceError
from tinyml.program import Program, translation_unit

# Values stay those of IEEE arithmetic, up to a*b+c in one rounding: no -ffast-math. What is given
# up is what no kernel looks at: errno after a math function, and the floating-point exceptions.
# Integers wrap around. Tuned for AMD's processors, gcc reads a vector that takes part in up to five
# products from memory for each of them.
FLAGS: tuple[str, ...] = (
    *("-std=gnu11", "-O2", "-march=native", "-mtune=generic", "-ffp-contract=fast", "-fwrapv"),
    *("-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared", "-w"),
)
_NAMES = ("cc", "gcc", "clang")
_UNIT = 4096  # bytes of source from which a further compiler process pays for its start
_PROBE = "#include <math.h>\n#include <pthread.h>\nint tinyml_probe(void) { return 0; }\n"
_VERSION = "1"  # of what this module keeps in the disk cache

Render = Callable[[tuple[Program, ...]], str]


@dataclass(frozen=True)
class Compiler:
    """A compiler with its flags, known to work, and what it says about itself."""

    command: tuple[str, ...]
    flags: tuple[str, ...]
    suffix: str  # of source files: ".c"
    libraries: tuple[str, ...]
    version: str
    macros: str  # what it predefines under `flags`: the instruction sets of this processor

    @functools.cached_property
    def fingerprint(self) -> str:
        """A key of everything but the source that a binary depends on."""
        parts = (*self.command, *self.flags, self.suffix, *self.libraries)
        return key(_VERSION, *parts, self.version, self.macros)

    def defines(self, macro: str) -> bool:
        """Whether `macro` is predefined."""
        return re.search(rf"^#define {macro}\b", self.macros, re.MULTILINE) is not None

    def key_of(self, text: str) -> str:
        """The cache key of `text` compiled by this compiler."""
        return key(self.fingerprint, text)


@dataclass(frozen=True)
class Built:
    """A shared object, and how it came to be."""

    path: Path
    seconds: float
    cached: bool
    command: str
    output: str  # what the compiler said


def find(requested: str, cache: DiskCache) -> Compiler:
    """The C compiler `requested` by the user or, for "", the first one that works."""
    why = []
    for name in [requested] if requested else _NAMES:
        try:
            compiler = _ask(tuple(shlex.split(name)))
            build(compiler, cache, _PROBE)
            return compiler
        except (OSError, CompileError) as error:
            why.append(f"{name}: {error}")
    wish = f"the C compiler that CC names, {requested}," if requested else "a C compiler"
    raise DeviceError(
        f"{wish} does not work here, and CPU compiles its kernels with one ({'; '.join(why)}). "
        "Install one: `apt install gcc libc6-dev` (Debian, Ubuntu), `dnf install gcc` (Fedora), "
        "`xcode-select --install` (macOS); or use DEVICE=NUMPY, which needs none"
    )


def build(compiler: Compiler, cache: DiskCache, text: str, keep: bool = True) -> Built:
    """Compile `text` to a shared object, or find it in the cache.

    CompileError has what the compiler said and, with `keep`, a file with the refused text.
    """
    start = time.perf_counter()
    path = cache.path(compiler.key_of(text), ".so")
    if path is not None:
        return Built(path, time.perf_counter() - start, True, shlex.join(compiler.command), "")
    with tempfile.TemporaryDirectory(prefix="tinyml-") as folder:
        source, target = Path(folder, "unit" + compiler.suffix), Path(folder, "unit.so")
        source.write_text(text)
        command = [*compiler.command, *compiler.flags, str(source), "-o", str(target)]
        command += compiler.libraries
        try:
            output = _run(command)
        except CompileError as error:
            where = str(_kept(text, compiler.suffix) if keep else source)
            raise CompileError(str(error).replace(str(source), where)) from None
        path = cache.put(compiler.key_of(text), ".so", target.read_bytes())
    return Built(path, time.perf_counter() - start, False, shlex.join(command), output)


def open_library(path: Path) -> ctypes.CDLL:
    """Load a shared object; CompileError if the system refuses."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CompileError(
            f"cannot load {path}: {error}. If its file system forbids programs (mount option "
            "noexec), TINYML_CACHE names another folder"
        ) from None


def _opened(path: Path) -> ctypes.CDLL | None:
    """A shared object, unless another process has just made room in the cache."""
    try:
        return open_library(path)
    except CompileError:
        if path.exists():
            raise
        return None


class Functions:
    """Addresses of compiled programs; each is compiled once per process, and once per cache.

    Programs that are new are compiled together in a few units, since a compiler's start costs
    more than a kernel. The cache holds each unit by its text, and for each program the key of
    the unit that it went into: so a program is found again in whatever company it is asked for.
    """

    def __init__(
        self,
        device: str,
        compiler: Compiler,
        cache: DiskCache,
        processes: int,
        render: Render = translation_unit,
    ) -> None:
        self.device, self.compiler, self.cache = device, compiler, cache
        self.processes, self.render = processes, render
        self._units: dict[str, ctypes.CDLL] = {}  # by key of the text
        self._addresses: dict[str, int] = {}  # by key of the program's text

    def addresses(self, programs: Iterable[Program]) -> list[tuple[Program, int]]:
        """Each program with the address of its function; CompileError if one does not compile.

        Compilers start while `programs` still makes the next ones.
        """
        keys: list[tuple[Program, str]] = []
        with ThreadPoolExecutor(self.processes) as pool:
            units = _Units(self, pool)
            for program in programs:
                keys.append((program, self.compiler.key_of(self.render((program,)))))
                self._want(*keys[-1], units)
            units.start(self.processes)
        for unit in units.started:
            self._load(unit)
        return [(program, self._addresses[program_key]) for program, program_key in keys]

    def _want(self, program: Program, program_key: str, units: _Units) -> None:
        known = program_key in self._addresses or program in units.keys
        if not known and not self._recall(program_key, program):
            units.add(program, program_key)

    def _recall(self, program_key: str, program: Program) -> bool:
        """Find a program in the disk cache."""
        start = time.perf_counter()
        content = self.cache.get(program_key, ".unit")
        if content is None:
            return False
        unit_key = content.decode()
        if unit_key not in self._units:
            path = self.cache.path(unit_key, ".so")
            opened = None if path is None else _opened(path)
            if opened is None:
                return False
            self._units[unit_key] = opened
        self._remember(program_key, program, unit_key)
        seconds = time.perf_counter() - start
        trace.emit(trace.Compiled(self.device, (program.name,), seconds, True, "", ""))
        return True

    def _load(self, unit: _Unit) -> None:
        try:
            built = unit.built.result()
        except CompileError as error:
            raise self._blame(tuple(unit.programs), error) from None
        names = tuple(program.name for program in unit.programs)
        event = (built.seconds, built.cached, built.command, built.output)
        trace.emit(trace.Compiled(self.device, names, *event))
        unit_key = self.compiler.key_of(unit.text)
        if unit_key not in self._units:
            self._units[unit_key] = open_library(built.path)
        for program, program_key in unit.programs.items():
            self._remember(program_key, program, unit_key)
            self.cache.put(program_key, ".unit", unit_key.encode())

    def _remember(self, program_key: str, program: Program, unit_key: str) -> None:
        try:
            function = getattr(self._units[unit_key], program.name)
        except AttributeError:
            raise CompileError(f"program {program.name} does not define {program.name}") from None
        self._addresses[program_key] = ctypes.cast(function, ctypes.c_void_p).value or 0

    def _blame(self, unit: tuple[Program, ...], error: CompileError) -> CompileError:
        """The error of the one program that is to blame for a unit's failure."""
        for program in unit:
            try:
                build(self.compiler, self.cache, self.render((program,)))
            except CompileError as alone:
                return CompileError(f"{self.device}: program {program.name}: {alone}")
        names = ", ".join(program.name for program in unit)
        return CompileError(f"{self.device}: {names} compile alone, but not together: {error}")


@dataclass(frozen=True)
class _Unit:
    """Programs that are compiled together, with their keys."""

    programs: dict[Program, str]
    text: str
    built: Future[Built]


class _Units:
    """Programs on their way to the compiler.

    As soon as there is a process to spare, and enough text to be worth its start, the programs
    that wait become a unit. The more processes are at work, the larger units become.
    """

    def __init__(self, functions: Functions, pool: ThreadPoolExecutor) -> None:
        self._functions, self._pool = functions, pool
        self._waiting: list[Program] = []
        self.keys: dict[Program, str] = {}
        self.started: list[_Unit] = []

    def add(self, program: Program, program_key: str) -> None:
        """Compile a program, now or soon."""
        self.keys[program] = program_key
        self._waiting.append(program)
        running = sum(not unit.built.done() for unit in self.started)
        enough = sum(len(waiting.source) for waiting in self._waiting) >= _UNIT
        if enough and running < self._functions.processes:
            self.start(1)

    def start(self, processes: int) -> None:
        """Compile all that wait, in as many processes."""
        own = self._functions
        for unit in divide(self._waiting, processes) if self._waiting else ():
            text = own.render(unit)
            built = self._pool.submit(build, own.compiler, own.cache, text, False)
            self.started.append(_Unit({p: self.keys[p] for p in unit}, text, built))
        self._waiting = []


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


def _ask(command: tuple[str, ...]) -> Compiler:
    """A command as a Compiler; OSError or CompileError if it is none."""
    if not command or shutil.which(command[0]) is None:
        raise FileNotFoundError("not found on PATH")
    version = _run([*command, "--version"])
    listing = ("-dM", "-E", "-x", "c", os.devnull)
    try:
        flags = FLAGS
        macros = _run([*command, *flags, *listing])
    except CompileError:  # some compilers do not know the processor that they run on
        flags = tuple(flag for flag in FLAGS if flag != "-march=native")
        macros = _run([*command, *flags, *listing])
    return Compiler(command, flags, ".c", ("-lm", "-lpthread"), version, macros)


def _run(command: Sequence[str]) -> str:
    """Run a command and return what it says; CompileError with that if it fails."""
    environment = {**os.environ, "LC_ALL": "C"}  # messages in English, for whoever reads a report
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
        )
    except OSError as error:
        raise CompileError(f"cannot start {command[0]}: {error.strerror or error}") from None
    output = done.stdout + done.stderr
    if done.returncode != 0:
        line = shlex.join(command)
        raise CompileError(f"`{line}` failed ({done.returncode}):\n{output.strip()}")
    return output


def _kept(text: str, suffix: str) -> Path:
    """A file with `text` that stays for whoever reads the error message."""
    handle, name = tempfile.mkstemp(prefix="tinyml-refused-", suffix=suffix)
    with open(handle, "w") as file:
        file.write(text)
    return Path(name)
