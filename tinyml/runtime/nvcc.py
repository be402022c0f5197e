"""CUDA C to cubins: by NVRTC (a library, some five times faster) or by nvcc (a program).

find            -> Toolchain            NVRTC where its library is found, else nvcc
Images          Program* -> Image*      through a few units (translation_units.py)

NVRTC reads no system headers: source uses CUDA's own types (`unsigned`, `long long`) rather than
<stdint.h>, and bit patterns rather than the macros INFINITY and NAN.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import itertools
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tinyml.cache import DiskCache, key
from tinyml.errors import CompileError, DeviceError
from tinyml.frozen import dataclass
from tinyml.program import REGISTERS, Program, translation_unit
from tinyml.runtime.compiler import run
from tinyml.runtime.translation_units import Unit, Units

_VERSION = "1"  # of what this module keeps in the disk cache
_FOLDERS = ("/usr/local/cuda", "/opt/cuda", "/usr/lib/cuda")
_STANDARD = "-std=c++17"


@dataclass(frozen=True)
class Image:
    """A binary that a driver can load."""

    key: str  # equal keys are equal images
    data: bytes


@dataclass(frozen=True)
class Resources:
    """What ptxas says that one kernel takes of a multiprocessor."""

    registers: int  # per thread
    shared: int  # static bytes per block
    spill_stores: int  # bytes per thread
    spill_loads: int
    stack: int  # bytes per thread

    @property
    def spills(self) -> bool:
        """Whether registers did not suffice."""
        return self.spilled > 0

    @property
    def spilled(self) -> int:
        return self.spill_stores + self.spill_loads


class Toolchain(Protocol):
    """Something that turns CUDA C into a cubin."""

    command: str  # for people
    fingerprint: str  # everything but the source and architecture that the binary depends on

    def compile(self, source: str, architecture: str, in_order: bool = False) -> tuple[bytes, str]:
        """The cubin, and what the compiler said; CompileError if the source is wrong.

        Asked for the order of the source, ptxas is told to optimize little: it schedules anew.
        """


def architecture(capability: tuple[int, int]) -> str:
    """The compiler's name of a compute capability: (9, 0) is "sm_90a"."""
    major, minor = capability
    # From Hopper on the newest instructions (wgmma, tcgen05) belong to one chip: the suffix "a".
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


@functools.cache
def find(nvcc: str = "", newest: int = 99) -> Toolchain:
    """The nvcc that the user names or, for "", NVRTC, else an nvcc; DeviceError if none works.

    `newest` is the major version of CUDA that the driver knows: it loads no later one's cubins.
    """
    if not nvcc:
        library = find_nvrtc(newest)
        if library is not None:
            return library
    return find_nvcc(nvcc)


def parse_resources(output: str) -> dict[str, Resources]:
    """What `ptxas -v` said, by name of the kernel."""
    found = {}
    for part in output.split("Compiling entry function '")[1:]:
        name = part.partition("'")[0]
        matches = (re.search(pattern, part) for pattern in _RESOURCES)
        found[name] = Resources(*(int(match[1]) if match else 0 for match in matches))
    return found


_RESOURCES = (
    r"Used (\d+) registers",
    r"(\d+) bytes smem",
    r"(\d+) bytes spill stores",
    r"(\d+) bytes spill loads",
    r"(\d+) bytes stack frame",
)


# ------------------------------------------------------------------ nvcc


class Nvcc:
    """The compiler driver of the CUDA toolkit."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._flags = ("-cubin", _STANDARD, "-O3", "-Xptxas=-v")
        version = run([path, "--version"])
        self.command = shlex.join([path, *self._flags])
        self.fingerprint = key(_VERSION, "nvcc", *self._flags, version)

    def compile(self, source: str, architecture: str, in_order: bool = False) -> tuple[bytes, str]:
        with tempfile.TemporaryDirectory(prefix="tinyml-") as folder:
            given, made = Path(folder, "kernels.cu"), Path(folder, "kernels.cubin")
            given.write_text(source)
            command = [
                self.path,
                *self._flags,
                f"-arch={architecture}",
                str(given),
                "-o",
                str(made),
            ]
            output = run([*command, *["-Xptxas=-O1"] * in_order])
            return made.read_bytes(), output


def find_nvcc(requested: str = "") -> Nvcc:
    """The nvcc `requested` or, for "", one on PATH or in a usual place; DeviceError if none."""
    places = [requested] if requested else ["nvcc", *(f"{f}/bin/nvcc" for f in _FOLDERS)]
    for place in places:
        path = shutil.which(place)
        if path is not None:
            return Nvcc(path)
    raise DeviceError(
        f"no CUDA compiler: {', '.join(places)} not found, and no NVRTC library. Install one: "
        "`pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl`, or the CUDA "
        "toolkit (NVCC=path names its nvcc)"
    )


# ------------------------------------------------------------------ NVRTC


class Nvrtc:
    """NVIDIA's compiler as a library, called through ctypes."""

    def __init__(self, path: Path, includes: Sequence[Path]) -> None:
        # NVRTC opens this one by its bare name, which the loader finds only if it is there already.
        for builtins in path.parent.glob("libnvrtc-builtins.so*"):
            ctypes.CDLL(str(builtins))
        self._library = ctypes.CDLL(str(path))
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)
        paths = [f"-I{folder}" for folder in includes]
        self._options = (_STANDARD, "--ptxas-options=-v", *paths)
        self.command = shlex.join([str(path), *self._options])
        self.fingerprint = key(_VERSION, "nvrtc", *self._options, f"{major.value}.{minor.value}")

    def compile(self, source: str, architecture: str, in_order: bool = False) -> tuple[bytes, str]:
        program = ctypes.c_void_p()
        create = self._library.nvrtcCreateProgram
        self._check(
            create(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None), ""
        )
        try:
            options = [f"--gpu-architecture={architecture}", *self._options]
            options += ["--ptxas-options=-O1"] * in_order
            texts = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            answer = self._library.nvrtcCompileProgram(program, len(options), texts)
            output = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            self._check(answer, output)
            return self._read(program, "CUBIN"), output
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), "")
        data = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, data), "")
        return data.raw

    def _check(self, answer: int, output: str) -> None:
        if answer:
            why = self._library.nvrtcGetErrorString(answer).decode()
            raise CompileError(f"NVRTC failed ({why}):\n{output.strip()}")


@functools.cache
def find_nvrtc(newest: int = 99) -> Nvrtc | None:
    """NVRTC (of CUDA `newest` or older) with CUDA's headers, of the toolkit or of pip packages."""
    includes = next((found for home in _homes() if (found := _headers(home))), None)
    if includes is None:
        return None
    for path in itertools.chain.from_iterable(f.glob("libnvrtc.so.*") for f in library_folders()):
        try:
            library = Nvrtc(path, includes)
        except (OSError, AttributeError):  # damaged, or for another processor
            continue
        if library.version[0] <= newest:
            return library
    return None


def _homes() -> list[Path]:
    return [*map(Path, _FOLDERS), *_pip_folders()]


def library_folders() -> list[Path]:
    """Where libraries of CUDA's toolkit are, or of NVIDIA's pip packages."""
    return [folder for home in _homes() for folder in (home / "lib64", home / "lib")]


def _headers(home: Path) -> list[Path] | None:
    """Folders to search for cuda_fp16.h and what that includes, or None if it is not there."""
    include = home / "include"
    if not (include / "cuda_fp16.h").exists():
        return None
    return [folder for folder in (include, include / "cccl") if folder.exists()]


def _pip_folders() -> Iterator[Path]:
    """Folders of NVIDIA's pip packages: nvidia/cu13, nvidia/cuda_nvrtc, ..."""
    found = importlib.util.find_spec("nvidia")  # a namespace package: folders without a module
    for root in (found and found.submodule_search_locations) or ():
        yield from sorted(Path(root).iterdir())


# ------------------------------------------------------------------ programs to images


class Builder(Protocol):
    """What CudaMachine compiles with: `CudaBuilder`, or in tests the emulator's compiler."""

    command: str
    fingerprint: str

    def render(self, programs: tuple[Program, ...]) -> str:
        """The text of one unit."""

    def build(self, programs: tuple[Program, ...]) -> tuple[bytes, str]:
        """The image of a unit, and what the compiler said; CompileError if it is wrong."""


class CudaBuilder:
    """Programs to cubins for one architecture.

    How many blocks a multiprocessor is to run is a guess of whoever wrote the text, or of ptxas.
    If registers do not suffice for so many, a kernel is compiled again for fewer.
    """

    def __init__(self, toolchain: Toolchain, architecture: str) -> None:
        self._toolchain, self._architecture = toolchain, architecture
        self.command = f"{toolchain.command} -arch={architecture}"
        self.fingerprint = key(toolchain.fingerprint, architecture)

    def render(self, programs: tuple[Program, ...]) -> str:
        return translation_unit(programs)

    def build(self, programs: tuple[Program, ...]) -> tuple[bytes, str]:
        last, made = programs, self._compiled(programs)
        best = {name: said for name, said in parse_resources(made[1]).items() if said.spills}
        ways = {p.name: _fewer(p.bounds, best[p.name]) for p in programs if p.name in best}
        while trying := {n: ways[n].pop(0) for n, one in best.items() if one.spills and ways[n]}:
            last = _bounded(programs, trying)
            made = self._compiled(last)
            new = parse_resources(made[1])
            for name in (n for n in trying if new[n].spilled < best[n].spilled):
                best[name], programs = new[name], _bounded(programs, {name: trying[name]})
        return made if last == programs else self._compiled(programs)

    def _compiled(self, programs: tuple[Program, ...]) -> tuple[bytes, str]:
        in_order = any(program.in_order for program in programs)  # then all are
        return self._toolchain.compile(self.render(programs), self._architecture, in_order)


def _fewer(bounds: tuple[int, ...], found: Resources) -> list[tuple[int, ...]]:
    """Bounds to try where registers did not suffice: for one block fewer, for one, for any."""
    if not bounds:
        return []
    threads, blocks = bounds[0], REGISTERS // (bounds[0] * found.registers)
    ways = (threads, max(1, blocks - 1)), (threads, 1), (threads,)
    return [way for way in dict.fromkeys(ways) if way != bounds]


def _bounded(
    programs: tuple[Program, ...], bounds: Mapping[str, tuple[int, ...]]
) -> tuple[Program, ...]:
    return tuple(p.bounded(bounds[p.name]) if p.name in bounds else p for p in programs)


class Images(Units[Image]):
    """Programs in images for a card. What the compiler said of each is in the cache, too."""

    def __init__(self, device: str, builder: Builder, cache: DiskCache, processes: int) -> None:
        super().__init__(device, cache, processes)
        self.builder, self.render = builder, builder.render

    def key_of(self, text: str) -> str:
        return key(self.builder.fingerprint, text)

    def recall(self, unit_key: str) -> Unit[Image] | None:
        data, output = self.cache.get(unit_key, ".cubin"), self.cache.get(unit_key, ".log")
        if data is None:
            return None
        return Unit(Image(unit_key, data), 0.0, True, "", (output or b"").decode())

    def make(self, programs: tuple[Program, ...], keep: bool) -> Unit[Image]:
        start, unit_key = time.perf_counter(), self.key_of(self.render(programs))
        data, output = self.builder.build(programs)
        self.cache.put(unit_key, ".cubin", data)
        self.cache.put(unit_key, ".log", output.encode())
        seconds = time.perf_counter() - start
        return Unit(Image(unit_key, data), seconds, False, self.builder.command, output)
