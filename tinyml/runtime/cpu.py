"""CPU: C programs, compiled by the host's compiler, on all threads of the host."""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tinyml import config
from tinyml.cache import DiskCache, key
from tinyml.ceilings import Ceilings, loads
from tinyml.faults import raise_noted
from tinyml.program import Program
from tinyml.runtime import compiler, limits, pool
from tinyml.runtime.cpu_ceilings import Probe, processor, programs
from tinyml.runtime.machine import OnHost
from tinyml.runtime.memory import HostMemory

# What a thread must have to do before it pays to hand it over: a few microseconds of work.
_BYTES_PER_THREAD = 16 << 10
_FLOPS_PER_THREAD = 25_000
_WAKES = 32  # times as much: some 20 microseconds, which it takes a sleeping thread to come

_CEILINGS_VERSION = "3"  # of what `ceilings` keeps in the disk cache

_VECTORS = (  # what compilers predefine, bytes of a vector register, registers
    *(("__AVX512F__", 64, 32), ("__AVX__", 32, 16), ("__SSE2__", 16, 16)),
    *(("__aarch64__", 16, 32), ("__ARM_NEON", 16, 16)),
)


@functools.cache
def host_cache(folder: Path | None) -> DiskCache:
    """The disk cache in a folder: one per process, so that its complaints come once."""
    return DiskCache(folder)


_compilers: dict[tuple[str, DiskCache], compiler.Compiler] = {}


def _compiler(
    requested: str, cache: DiskCache, meanwhile: Callable[[], None] | None = None
) -> compiler.Compiler:
    found = _compilers.get((requested, cache))
    if found is None:
        text = pool.SOURCE.read_text()
        found = _compilers[requested, cache] = compiler.find(requested, cache, text, meanwhile)
    return found


def host_compiler() -> compiler.Compiler:
    """The C compiler in force; DeviceError if there is none that works."""
    return _compiler(config.current.compiler, host_cache(config.current.cache_folder))


def vectors(found: compiler.Compiler | None = None) -> tuple[int, int]:
    """Bytes of the widest vector registers of this host (8, a plain word, if it has none).

    And how many of them there are.
    """
    found = found or host_compiler()
    return next(
        ((width, count) for macro, width, count in _VECTORS if found.defines(macro)), (8, 16)
    )


def multiplies_pairs() -> bool:
    """Whether this host has an instruction that multiplies pairs of bfloat16 on lanes."""
    found = host_compiler()
    return found.defines("__AVX512BF16__") and found.defines("__AVX512VL__")


def thread_count() -> int:
    """Threads that a kernel is spread over."""
    return config.current.threads or available_threads()


@functools.cache
def available_threads() -> int:
    """OMP_NUM_THREADS if that is set, else the cores this process may use."""
    wish = config.current.omp_threads.split(",")[0]
    if wish.isdigit() and int(wish) > 0:
        return int(wish)
    return limits.cores()


class CpuExecutable:
    """A compiled C program at its address."""

    __slots__ = (
        *("_array", "_fault", "_function", "_grid", "_run"),
        *("address", "most_chunks", "program", "work"),
    )

    def __init__(self, program: Program, address: int, threads: pool.Pool) -> None:
        self.program, self.address = program, address
        self.work = max(
            program.cost.nbytes // _BYTES_PER_THREAD, program.cost.flops // _FLOPS_PER_THREAD
        )
        self.most_chunks = max(1, min(program.grid, self.work))
        self._array = ctypes.c_void_p * program.slots
        self._function, self._grid = ctypes.c_void_p(address), ctypes.c_long(program.grid)
        self._fault = (ctypes.c_long * 2)() if program.faults else None
        self._run = threads.run

    @property
    def chunks(self) -> int:
        """How many threads take part: 1 where starting others takes longer than the work."""
        most = self.most_chunks
        return most if most == 1 else min(most, thread_count())

    def launch(self, memories: Sequence[int]) -> None:
        """Run the program and return when it is done; raises the first fault that it finds."""
        array, fault = self._array(*memories), self._fault
        wakes = self.work >= _WAKES
        faulty = self._run(self._function, array, self._grid, self.chunks, wakes, fault)
        if faulty and fault is not None:
            raise_noted(fault, self.program.faults)

    def launch_timed(self, memories: Sequence[int]) -> float:
        start = time.perf_counter()
        self.launch(memories)
        return time.perf_counter() - start


class CpuPlan:
    """A fixed sequence of launches that runs without coming back to Python in between."""

    def __init__(
        self, calls: Sequence[tuple[CpuExecutable, Sequence[int]]], threads: pool.Pool
    ) -> None:
        self._keep = tuple(executable for executable, _ in calls)
        self._first: list[int] = []  # of each call's slots among all pointers
        pointers: list[int] = []
        self._launches = (pool.Launch * len(calls))()
        for launch, (executable, memories) in zip(self._launches, calls, strict=True):
            launch.function, launch.first = executable.address, len(pointers)
            launch.grid, launch.most_chunks = executable.program.grid, executable.most_chunks
            launch.checks = bool(executable.program.faults)
            self._first.append(len(pointers))
            pointers += memories
        self._array = ctypes.c_void_p * len(pointers)
        self._pointers = self._array(*pointers)
        self._count = ctypes.c_long(len(calls))
        self._wakes = sum(executable.work for executable, _ in calls) >= _WAKES
        self._fault = (ctypes.c_long * 2)()
        self._run_plan = threads.run_plan

    def run(self, pointers: Any = None) -> None:
        """Run all launches in order and return when the last is done.

        A fault is raised after the launch that found it; later ones are not run.
        """
        threads, fault = thread_count(), self._fault
        pointers = pointers or self._pointers
        failed = self._run_plan(self._launches, self._count, pointers, threads, self._wakes, fault)
        if failed:
            raise_noted(fault, self._keep[failed - 1].program.faults)

    def run_on(self, memories: Sequence[int]) -> None:
        """Run once on other memories: those of the first launch, then those of the second, ..."""
        self.run(self._array(*memories))

    def rebind(self, call: int, slot: int, address: int) -> None:
        self._pointers[self._first[call] + slot] = address


class CpuMachine(OnHost):
    """The host's processor and memory.

    Where its own C has to be compiled first, `meanwhile` is called while one waits for that.
    """

    def __init__(
        self,
        cache: DiskCache | None = None,
        memory_limit: int | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        self.name = "CPU"
        memory = HostMemory(self.name, memory_limit)
        self.allocate, self.free, self.memory_stats = memory.allocate, memory.free, memory.stats
        cache = host_cache(config.current.cache_folder) if cache is None else cache
        self._cache = cache
        self.compiler = _compiler(config.current.compiler, cache, meanwhile)
        self._pool = threads = pool.load(self.compiler, cache)
        own = self.name, self.compiler, cache, limits.cores()
        self._functions = compiler.Functions(*own, lambda p, at: CpuExecutable(p, at, threads))
        self.load = self._functions.load

    def plan(self, calls: Sequence[tuple[Any, Sequence[int]]]) -> CpuPlan:
        return CpuPlan(calls, self._pool)

    @property
    def identity(self) -> str:
        """The processor, the compiler and its flags, the threads."""
        return f"{processor()} {self.compiler.fingerprint} {thread_count()}"

    def ceilings(self) -> Ceilings:
        """What this processor can do at best: measured once, then read from the disk cache."""
        entry = key("ceilings", _CEILINGS_VERSION, self.identity)
        kept = self._cache.get(entry, ".ceilings")
        if kept is not None:
            return loads(kept)
        threads = thread_count()
        width, _ = vectors(self.compiler)
        launches = [e.launch for e in self.load(programs(width, threads))]
        measured = Probe(launches, width, threads).measure()
        self._cache.put(entry, ".ceilings", measured.dumps())
        return measured
