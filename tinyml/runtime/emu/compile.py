"""CUDA C to shared objects by the host's C++ compiler, behind the shim header cuda_emu.h.

A unit exports, under the name of each of its programs, a function
    const char *NAME(Launch *launch)
that runs the program's whole grid and returns null, or what went wrong.
"""

from __future__ import annotations

import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tinyml.cache import DiskCache, key
from tinyml.errors import CompileError, DeviceError
from tinyml.program import Program
from tinyml.runtime.compiler import Compiler, build

SHIM = Path(__file__).parent
_NAMES = ("c++", "g++", "clang++")

# -O1: the kernels of tests run briefly, so that compiling them is what takes time.
_COMMON = (
    *("-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-U_FORTIFY_SOURCE"),
    *("-w", f"-I{SHIM}"),
)
_UNIT_FLAGS = (
    *("-O1", "-shared", "-ffp-contract=off"),
    "-U_GNU_SOURCE",  # C's headers declare less: half of their text is about types of no kernel
    "-nodefaultlibs",  # libstdc++ takes longer to link with than most kernels to compile
    *("-include", "cuda_emu.h"),
    # A misaligned access and an index beyond a fixed-size array end in a trap instruction.
    *("-fsanitize=alignment,bounds", "-fsanitize-undefined-trap-on-error"),
)
_WATCHED = ("-fsanitize=thread",)  # for its calls alone: emu_races.h answers them
_LIBRARIES = ("-lm", "-lc", "-lgcc")
_SCHEDULER_FLAGS = ("-O2", "-c")

_DYNAMIC_SHARED = re.compile(
    r"extern\s+__shared__\s+(?:__align__\s*\(\s*(\d+)\s*\)\s*)?([\w\s]+?)\s*(\w+)\s*\[\s*\]\s*;"
)
_LEAST_ALIGNMENT = 16  # bytes, of memory that follows a kernel's shared variables


def find(requested: str, cache: DiskCache, watched: bool = False) -> Compiler:
    """The C++ compiler `requested` or, for "", the first that works, linking the scheduler.

    What it makes is `watched` for races, if that is asked: several times as slow.
    """
    why = []
    for name in [requested] if requested else _NAMES:
        try:
            return _with_scheduler(tuple(shlex.split(name)), cache, watched)
        except (OSError, CompileError, subprocess.SubprocessError) as error:
            why.append(f"{name}: {error}")
    raise DeviceError(
        f"EMU compiles its kernels with a C++ compiler, and none works here ({'; '.join(why)}). "
        "Install one: `apt install g++` (Debian, Ubuntu), `dnf install gcc-c++` (Fedora)"
    )


def render(programs: Sequence[Program]) -> str:
    """One C++ source text that exports a launcher for each of `programs`."""
    pieces = dict.fromkeys(piece for program in programs for piece in program.prelude)
    alignments = dict[str, int]()
    return "\n".join([*pieces, *(_render_one(program, alignments) for program in programs)])


def _render_one(program: Program, alignments: dict[str, int]) -> str:
    """One kernel; of all that name dynamic memory alike, the first says how it is aligned.

    So does a card's compiler, to which these are declarations of one array.
    """
    # The launcher takes the program's name, so the kernel itself goes by another one. The line
    # numbers of messages count from the first line of the program's own source.
    name, kernel = program.name, f"{program.name}_kernel"
    alignment = _LEAST_ALIGNMENT
    for given, _, array in _DYNAMIC_SHARED.findall(program.source):
        alignment = max(alignment, alignments.setdefault(array, int(given or 0)))
    source = _DYNAMIC_SHARED.sub(r"EMU_DYNAMIC_SHARED(\2, \3);", program.source)
    section = f'#undef EMU_SECTION\n#define EMU_SECTION "emu_shared_{name}"'
    begin, end = f"#define {name} {kernel}", f"#undef {name}"
    launcher = f"EMU_KERNEL({kernel}, {name}, {alignment})"
    return f'{section}\n{begin}\n#line 1 "{name}"\n{source}\n{end}\n{launcher}'


def _with_scheduler(command: tuple[str, ...], cache: DiskCache, watched: bool) -> Compiler:
    if not command or shutil.which(command[0]) is None:
        raise FileNotFoundError("not found on PATH")
    said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    # Everything that a binary depends on and that is not in its own text.
    shim = sorted(path for path in SHIM.rglob("*") if path.suffix in (".h", ".cpp"))
    version = key(said.stdout, platform.machine(), *map(Path.read_bytes, shim))
    flags = (*_SCHEDULER_FLAGS, *["-DEMU_RACES"] * watched)
    scheduler = Compiler(command, (*_COMMON, *flags), ".cpp", (), version, "")
    text = (SHIM / "emu_scheduler.cpp").read_text()
    built = build(scheduler, cache, text).binary.read_bytes()
    # Every unit is linked with it, so it must not go when another process makes room in the cache.
    scheduled = str(DiskCache(None).put(scheduler.key_of(text), ".o", built))
    libraries = (scheduled, *_LIBRARIES)
    flags = (*_COMMON, *_UNIT_FLAGS, *_WATCHED * watched)
    return Compiler(command, flags, ".cpp", libraries, version, "")
