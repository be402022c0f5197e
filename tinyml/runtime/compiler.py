"""The host's compiler: found once, asked what the processor can do, run on source text.

find      name?                 -> Compiler       the first one on PATH that works
build     Compiler, text        -> Unit           a shared object on disk, from the cache if there
load      Compiler, text        -> Unit           the same in this process
functions Compiler, Program*    -> Executable*    through a few units (translation_units.py)
"""

from __future__ import annotations

import ctypes
import functools
import os
import pickle
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tinyml.cache import DiskCache, key
from tinyml.errors import CompileError, DeviceError
from tinyml.frozen import dataclass, replace
from tinyml.program import Program, translation_unit
from tinyml.runtime.machine import Executable
from tinyml.runtime.translation_units import Unit, Units

# Values stay those of IEEE arithmetic, up to a*b+c in one rounding: no -ffast-math. What is given
# up is what no kernel looks at: errno after a math function, and the floating-point exceptions.
# Integers wrap around. Tuned for AMD's processors, gcc reads a vector that takes part in up to five
# products from memory for each of them. Before gcc 12, -O2 leaves loops over a vector's lanes, as
# of square roots and of products that are rounded once, as they are.
FLAGS: tuple[str, ...] = (
    *("-std=gnu11", "-O2", "-march=native", "-mtune=generic", "-ffp-contract=fast", "-fwrapv"),
    *("-fno-math-errno", "-fno-trapping-math", "-ftree-vectorize", "-fPIC", "-shared", "-w"),
)
# Tuned for all processors, gcc keeps addresses in vector registers where it runs out of others, and
# what a product reads in memory then, and zeros are stored by microcode: gradients of 3x3 weights
# took 1.3 times as long, a causal softmax 1.5 times, a projection with two results twice.
GCC = ("-mtune=haswell",)
# Where it has 16 registers it would put constants of one loop in them ahead of all others, and what
# these sum up into memory: a cross-entropy took 1.2 times as long, a sum down columns as well
FEW = ("--param", "max-gcse-insertion-ratio=0")
_NAMES = ("cc", "gcc", "clang")
# clang loads a vector that waits in a function's memory across two lines of a cache, else: cross-
# entropy, whose constants do, took 1.8 times as long
CLANG = ("-mstackrealign",)
# and moves a product behind the branches between it and its sum, where factors do not all have a
# register: a 3x3 depthwise convolution and gelu of halves took 1.15 times as long. No promise of
# clang's: one that does not know it is not told.
UNMOVED = ("-mllvm", "-disable-machine-sink")
# Constants lie beside the code, whose pages are there once it runs: one that is added under a mask
# of no lanes, from a page that none else has read, takes a processor 140 ns each time. Not all
# linkers know how to
BESIDE = ("-Wl,-z,noseparate-code",)
_VERSION = "5"  # of what this module keeps in the disk cache

Render = Callable[[tuple[Program, ...]], str]


@dataclass(frozen=True)
class Compiler:
    """A compiler with its flags, known to work, and what it says about itself."""

    command: tuple[str, ...]
    flags: tuple[str, ...]
    suffix: str  # of source files: ".c"
    libraries: tuple[str, ...]  # to link with: of files, the name tells what is in them
    version: str
    macros: str  # what it predefines under `flags`: the instruction sets of this processor

    @functools.cached_property
    def fingerprint(self) -> str:
        """A key of everything but the source that a binary depends on."""
        parts = (*self.command, *self.flags, self.suffix, *map(os.path.basename, self.libraries))
        return key(_VERSION, *parts, self.version, self.macros)

    def defines(self, macro: str) -> bool:
        """Whether `macro` is predefined."""
        return re.search(rf"^#define {macro}\b", self.macros, re.MULTILINE) is not None

    def key_of(self, text: str) -> str:
        """The cache key of `text` compiled by this compiler."""
        return key(self.fingerprint, text)


def find(
    requested: str, cache: DiskCache, text: str, meanwhile: Callable[[], None] | None = None
) -> Compiler:
    """The C compiler `requested` by the user or, for "", the first one that compiles `text`.

    While it does, `meanwhile` is called.
    """
    why = []
    for name in [requested] if requested else _NAMES:
        try:
            compiler = _known(tuple(shlex.split(name)), cache)
            build(compiler, cache, text, meanwhile=meanwhile)
            return compiler
        except (OSError, CompileError) as error:
            why.append(f"{name}: {error}")
    wish = f"the C compiler that CC names, {requested}," if requested else "a C compiler"
    raise DeviceError(
        f"{wish} does not work here, and CPU compiles its kernels with one ({'; '.join(why)}). "
        "Install one: `apt install gcc libc6-dev` (Debian, Ubuntu), `dnf install gcc` (Fedora), "
        "`xcode-select --install` (macOS); or use DEVICE=NUMPY, which needs none"
    )


def build(
    compiler: Compiler,
    cache: DiskCache,
    text: str,
    keep: bool = True,
    meanwhile: Callable[[], None] | None = None,
) -> Unit[Path]:
    """Compile `text` to a shared object, or find it in the cache.

    CompileError has what the compiler said and, with `keep`, a file with the refused text.
    """
    start = time.perf_counter()
    path = cache.path(compiler.key_of(text), ".so")
    if path is not None:
        return Unit(path, time.perf_counter() - start, True, shlex.join(compiler.command))
    with tempfile.TemporaryDirectory(prefix="tinyml-") as folder:
        source, target = Path(folder, "unit" + compiler.suffix), Path(folder, "unit.so")
        source.write_text(text)
        command = [*compiler.command, *compiler.flags, str(source), "-o", str(target)]
        command += compiler.libraries
        try:
            output = run(command, meanwhile)
        except CompileError as error:
            where = str(_kept(text, compiler.suffix) if keep else source)
            raise CompileError(str(error).replace(str(source), where)) from None
        path = cache.put(compiler.key_of(text), ".so", target.read_bytes())
    return Unit(path, time.perf_counter() - start, False, shlex.join(command), output)


def load(compiler: Compiler, cache: DiskCache, text: str, keep: bool = True) -> Unit[ctypes.CDLL]:
    """As `build`, and loaded into this process."""
    while True:
        built = build(compiler, cache, text, keep)
        library = _opened(built.binary)
        if library is not None:
            return Unit(library, built.seconds, built.cached, built.command, built.output)


def _opened(path: Path) -> ctypes.CDLL | None:
    """A shared object; None if another process has just made room in the cache."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        if not path.exists():
            return None
        raise CompileError(
            f"cannot load {path}: {error}. If its file system forbids programs (mount option "
            "noexec), TINYML_CACHE names another folder"
        ) from None


class Functions(Units[ctypes.CDLL]):
    """Programs as functions of shared objects that this process has loaded."""

    def __init__(
        self,
        device: str,
        compiler: Compiler,
        cache: DiskCache,
        processes: int,
        executable: Callable[[Program, int], Executable],
        render: Render = translation_unit,
    ) -> None:
        """`executable` makes one of a program and the address of its function."""
        super().__init__(device, cache, processes)
        self.compiler, self.executable, self.render = compiler, executable, render
        self.loaded: dict[Program, Executable] = {}

    def load(self, programs: Iterable[Program]) -> list[Executable]:
        """An executable of each program; CompileError if one does not compile."""
        found = self.units(programs)
        for program, unit in found:
            if program not in self.loaded:
                self.loaded[program] = self.executable(program, _address(program, unit))
        return [self.loaded[program] for program, _ in found]

    def key_of(self, text: str) -> str:
        return self.compiler.key_of(text)

    def recall(self, unit_key: str) -> Unit[ctypes.CDLL] | None:
        path = self.cache.path(unit_key, ".so")
        opened = None if path is None else _opened(path)
        return None if opened is None else Unit(opened, 0.0, True)

    def make(self, programs: tuple[Program, ...], keep: bool) -> Unit[ctypes.CDLL]:
        return load(self.compiler, self.cache, self.render(programs), keep)


def _address(program: Program, unit: ctypes.CDLL) -> int:
    try:
        function = getattr(unit, program.name)
    except AttributeError:
        raise CompileError(f"program {program.name} does not define {program.name}") from None
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _known(command: tuple[str, ...], cache: DiskCache) -> Compiler:
    """As `_ask`; as the same file answered before on the same processor, if that is kept."""
    found = shutil.which(command[0]) if command else None
    if found is None:
        raise FileNotFoundError("not found on PATH")
    processor, file = _processor(), os.stat(found)
    of = (os.path.realpath(found), str(file.st_size), str(file.st_mtime_ns))
    entry = key(
        "compiler", _VERSION, *FLAGS, *GCC, *FEW, *CLANG, *UNMOVED, *command, *of, processor
    )
    kept = cache.get(entry, ".compiler") if processor else None
    if kept is not None:
        answered: Compiler = pickle.loads(kept)  # as much to be trusted as the machine code beside
        return answered
    compiler = _ask(command)
    cache.put(entry, ".compiler", pickle.dumps(compiler))
    return compiler


def _processor() -> str:
    """What the instruction sets of this processor follow from; "" where the system does not say."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return ""
    lasting = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")
    return "\n".join(line for line in first.splitlines() if line.startswith(lasting))


def _ask(command: tuple[str, ...]) -> Compiler:
    """A command as a Compiler; OSError or CompileError if it is none."""
    version = run([*command, "--version"])
    listing = ("-dM", "-E", "-x", "c", os.devnull)
    try:
        flags = FLAGS
        macros = run([*command, *flags, *listing])
    except CompileError:  # some compilers do not know the processor that they run on
        flags = tuple(flag for flag in FLAGS if flag != "-march=native")
        macros = run([*command, *flags, *listing])
    beside = BESIDE if _knows([*command, *BESIDE, "-Wl,--version"]) else ()
    found = Compiler(command, flags, ".c", (*beside, "-lm", "-lpthread"), version, macros)
    x86 = found.defines("__x86_64__") or found.defines("__i386__")
    more = (GCC,) if found.defines("__AVX512F__") else (GCC + FEW, GCC)
    if found.defines("__clang__"):
        more = (CLANG + UNMOVED, CLANG)
    known = (flags + own for own in more if _knows([*command, *own, *listing]))
    return replace(found, flags=next(known, flags)) if x86 else found


def _knows(command: Sequence[str]) -> bool:
    """Whether a compiler takes all that it is told."""
    try:
        run(command)
    except CompileError:
        return False
    return True


def run(command: Sequence[str], meanwhile: Callable[[], None] | None = None) -> str:
    """Run a command and return what it says; CompileError with that if it fails.

    What this process can do while it would wait is `meanwhile`.
    """
    environment = {**os.environ, "LC_ALL": "C"}  # messages in English, for whoever reads a report
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
        )
    except OSError as error:
        raise CompileError(f"cannot start {command[0]}: {error.strerror or error}") from None
    with process:
        if meanwhile is not None:
            meanwhile()
        output = "".join(process.communicate())
    if process.returncode != 0:
        line = shlex.join(command)
        raise CompileError(f"`{line}` failed ({process.returncode}):\n{output.strip()}")
    return output


def _kept(text: str, suffix: str) -> Path:
    """A file with `text` that stays for whoever reads the error message."""
    handle, name = tempfile.mkstemp(prefix="tinyml-refused-", suffix=suffix)
    with open(handle, "w") as file:
        file.write(text)
    return Path(name)
