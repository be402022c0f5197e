"""What this machine can do at best, measured: memory bandwidth and multiply-adds.

Both come from small C programs that tinyml's own CPU machine compiles and runs on its own
threads. Bandwidth is the best of copy and triad, with plain and with non-temporal stores, over
arrays of several sizes: a workload is compared with the size next to its own, so that what fits
into a cache is held against the cache. What is read beyond what is written is held against reading.

Bandwidth and clocks change within minutes where a machine has other guests. So a workload is held
against a `mover` of as many bytes or a `multiplier` of as many numbers, whichever bounds it, which
takes part in its rounds as one more competitor.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinyml import config
from tinyml.device import open_device
from tinyml.program import Cost, Language, Program
from tinyml.runtime import limits

Call = Callable[[], object]

SIZES = tuple(1 << n for n in range(20, 29, 2))  # bytes that one pass moves: 1 MB to 256 MB
_CHAINS = 12  # of multiply-adds: enough to hide their latency, few enough for 16 registers
_STEPS = 200_000

_PRELUDE = """
#if defined(__AVX512F__)
#define WIDTH 64
#elif defined(__AVX__)
#define WIDTH 32
#else
#define WIDTH 16
#endif
#if defined(__AVX__)
#include <immintrin.h>
#define STREAM(p, v) _mm256_stream_ps((float *)(p), v)
#define STREAM_WIDTH 32
#else
#define STREAM(p, v) *(p) = v
#define STREAM_WIDTH 16
#endif
typedef float wide __attribute__((vector_size(WIDTH)));
typedef float piece __attribute__((vector_size(STREAM_WIDTH)));
"""
_HEAD = "void %s(void *const *buffers, long start, long end) {\n"
_PASS = """  piece *a = buffers[0]; (void)a;
  {pointers}
  long count = {elements} / (STREAM_WIDTH / 4), each = count / {grid};
  piece s0 = {{}}, s1 = {{}}, s2 = {{}}, s3 = {{}};
  for (long i = start * each; i < end * each; i += {step}) {{ {body} }}
  s0 += s1 + s2 + s3;
  asm volatile("" :: "m"(s0));
}}
"""
_STREAMS = {  # how many arrays, and what is done with them
    "copy": (2, "a[i] = b[i];"),
    "copy, non-temporal": (2, "STREAM(a + i, b[i]);"),
    "triad": (3, "a[i] = b[i] + 3.0f * c[i];"),
    "triad, non-temporal": (3, "STREAM(a + i, b[i] + 3.0f * c[i]);"),
}
_READING = {"read": (2, "s0 += b[i]; s1 += c[i]; s2 += b[i + 1]; s3 += c[i + 1];")}
_ARRAYS = "bcde"  # beside a, which is written
_KEEP = "s0 += {};"
_LEAST = 1 << 20  # bytes: less takes no longer than to start the threads
_FEWEST = 1e7  # floating-point operations, likewise


@dataclass(frozen=True)
class Ceilings:
    """Bytes per second by bytes moved, and floating-point operations per second."""

    bandwidth: dict[int, float]  # half read, half written, or two thirds and one
    reading: dict[int, float]  # nothing written
    flops: float
    threads: int

    def seconds(self, read: int, written: int, flops: int) -> float:
        """The least time for so much work, if all is done at once."""
        return max(self.moving(read, written), flops / self.flops)

    def moving(self, read: int, written: int) -> float:
        """The least time for so many bytes: those that are only read go at the rate of reading."""
        nbytes, alone = read + written, max(read - written, 0)
        copied = (nbytes - alone) / _at(self.bandwidth, nbytes)
        return copied + alone / _at(self.reading, nbytes)


def _at(rates: dict[int, float], nbytes: int) -> float:
    """The rate over the measured size that is closest to this one."""
    return rates[min(rates, key=lambda s: abs(math.log(s / max(nbytes, 1))))]


def measure(threads: int, rounds: int = 7) -> Ceilings:
    """Measure both, the best of several rounds: a ceiling is what was reached when undisturbed."""
    flops = _fma_peak(threads, rounds)
    moved = {size: _rates(size, threads, rounds) for size in SIZES}
    copied = {size: max(rates[name] for name in _STREAMS) for size, rates in moved.items()}
    reading = {size: max(rates.values()) for size, rates in moved.items()}
    return Ceilings(copied, reading, flops, threads)


def mover(read: int, written: int, threads: int) -> Call | None:
    """The machine itself: reads and writes so many bytes, each once; None if they are few.

    As many arrays are read at once as there are for each that is written, up to four, and then
    what is left over. Of several ways to write, the one that is fastest here.
    """
    if read + written < _LEAST:
        return None
    at_once = min(4, read // written) if written else 0
    alone = read - written * at_once
    ways = []
    if written:
        memories, stores = _memories(1 + at_once, written), ("a[i] = {};", "STREAM(a + i, {});")
        ways.append([_moving(memories, written, store, threads) for store in stores])
    if alone:
        ways.append([_moving(_memories(1 + 4, alone // 4), alone // 4, _KEEP, threads)])
    fastest = [min(calls, key=lambda call: min(_timed(call) for _ in range(5))) for calls in ways]

    def move() -> None:
        for call in fastest:
            call()

    return move


def _moving(memories: list[Any], nbytes: int, kept: str, threads: int) -> Call:
    """One pass over arrays of `nbytes`, all but the first, whose sum is `kept`."""
    arrays, elements = len(memories) - 1, nbytes // 4 // 1024 * 1024
    name = f"ceiling_move_{arrays}_{nbytes}_{len(kept)}"
    body = kept.format(" + ".join([f"{x}[i]" for x in _ARRAYS[:arrays]] or ["s0"]))
    program = _passing(name, body, arrays, elements, threads, nbytes)
    launch = open_device("CPU").machine.load([program])[0].launch
    return lambda: launch(memories)


def _memories(count: int, nbytes: int) -> list[Any]:
    """So many arrays, written once: all pages that were never written are one page."""
    machine = open_device("CPU").machine
    memories = [machine.allocate(nbytes) for _ in range(count)]
    for memory in memories:
        machine.copy_in(memory, np.ones(nbytes // 4, np.float32))
    return memories


def _passing(
    name: str, body: str, arrays: int, elements: int, threads: int, nbytes: int, step: int = 1
) -> Program:
    """One pass in which each thread does `body` for its elements of a and some arrays more."""
    named = enumerate(_ARRAYS[:arrays], start=1)
    pointers = " ".join(f"const piece *{x} = buffers[{n}]; (void){x};" for n, x in named)
    grid = threads * 4
    loop = _PASS.format(pointers=pointers, elements=elements, grid=grid, body=body, step=step)
    return _program(name, _HEAD % name + loop, arrays + 1, grid, nbytes)


def _timed(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _rates(size: int, threads: int, rounds: int) -> dict[str, float]:
    """Bytes per second of each stream that moves `size` bytes."""
    rates, machine = {}, open_device("CPU").machine
    memories = _memories(3, size // 2)
    for number, (stream, (arrays, body)) in enumerate({**_STREAMS, **_READING}.items()):
        elements = size // arrays // 4 // 1024 * 1024
        name = f"ceiling_stream_{number}_{size}"
        step = 2 if stream in _READING else 1
        program = _passing(name, body, 2, elements, threads, size, step)
        run = machine.load([program])[0].launch
        repeats = max(4, (1 << 28) // size)  # a single pass may find much of it in a cache
        seconds = min(_seconds(run, memories, repeats) for _ in range(rounds))
        rates[stream] = arrays * elements * 4 / seconds
    for memory in memories:
        machine.free(memory, size // 2)
    return rates


def multiplier(flops: float, threads: int) -> Call | None:
    """The machine itself: as many multiply-adds, in registers, on all threads; None if few."""
    if flops < _FEWEST:
        return None
    steps = math.ceil(flops / (2 * _CHAINS * _lanes() * threads))
    return _multiplying(steps, threads)


def _fma_peak(threads: int, rounds: int) -> float:
    """One thread's peak times the threads: two at once are seldom both left alone."""
    run = _multiplying(_STEPS, 1)
    seconds = min(_timed(run) for _ in range(rounds * 20))
    return 2 * _CHAINS * _STEPS * _lanes() * threads / seconds


def _multiplying(steps: int, threads: int) -> Call:
    """So many steps of multiply-adds by each thread."""
    machine = open_device("CPU").machine
    names = [f"x{i}" for i in range(_CHAINS)]
    lines = [f"  wide {n} = a + {i};" for i, n in enumerate(names)]
    step = " ".join(f"{n} = {n} * a + b;" for n in names)
    name = f"ceiling_fma_{steps}_{threads}"
    text = "\n".join(
        [
            _HEAD % name + "  float *out = buffers[0]; wide a = {}, b = {};",
            "  a += 0.999f; b += 1e-3f;",
            '  asm volatile("" : "+x"(a), "+x"(b));',  # values that the compiler cannot know
            *lines,
            f"  for (long i = 0; i < {steps} * (end - start); i++) {{ {step} }}",
            f"  wide sum = {' + '.join(names)};",
            "  out[16 * start] = sum[0];\n}\n",
        ]
    )
    launch = machine.load([_program(name, text, 1, threads, 1 << 40)])[0].launch
    memories = [machine.allocate(64 * threads)]
    return lambda: launch(memories)


def _lanes() -> int:
    """Floats in the vector that `wide` is on this machine."""
    compiler = open_device("CPU").machine.compiler  # type: ignore[attr-defined]
    for macro, lanes in (("__AVX512F__", 16), ("__AVX__", 8)):
        if compiler.defines(macro):
            return lanes
    return 4


def _program(name: str, text: str, slots: int, grid: int, nbytes: int) -> Program:
    return Program(name, Language.C, (_PRELUDE,), text, slots, grid, cost=Cost(0, nbytes))


def _seconds(run: Any, memories: list[Any], repeats: int) -> float:
    run(memories)
    start = time.perf_counter()
    for _ in range(repeats):
        run(memories)
    return (time.perf_counter() - start) / repeats


def threads() -> int:
    """How many threads everybody gets: those of tinyml."""
    return config.current.threads or limits.cores()
