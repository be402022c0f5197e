"""The ceilings of a processor, measured by four small C programs on the machine's own threads.

Measured when somebody asks for the first time (DEBUG=2, BEAM), in about half a second,
and kept in the disk cache. Each figure is the best of several rounds: a ceiling is what was
reached when nobody disturbed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tinyml.ceilings import Ceilings, Level
from tinyml.program import Cost, Language, Program

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_USUAL = (32 << 10, 512 << 10, 8 << 20)  # bytes of caches, where the system does not say
_MEMORY = (48 << 20, 128 << 20)  # bytes to stream for the memory: least, most (pages cost time)
_MOVED = 24 << 20  # bytes of a round, from a cache: so few that some rounds are undisturbed
_ROUNDS = 24
_PIECES = 32  # of the memory; each is read or written once, for then it is in a cache
_PASSES = 6  # over all pieces, if the caches hold less than half of them
_STEPS = 1 << 17  # of the loop around them: as long as the other rounds
_CHAINS = 12  # of multiply-adds: enough to hide their latency, few enough for 16 registers

_PRELUDE = """typedef float wide __attribute__((vector_size({width}), aligned(64)));
#if defined(__AVX__)
#define PAST(place, value) __asm__ volatile("vmovntps %1, %0" : "=m"(place) : "v"(value))
#elif defined(__SSE__)
#define PAST(place, value) __asm__ volatile("movntps %1, %0" : "=m"(place) : "x"(value))
#else
#define PAST(place, value) place = value
#endif"""
_HEAD = """void ceiling_{name}(void *const *buffers, long start, long end) {{
  const long *asked = buffers[1], each = asked[0], repeats = asked[1], blocks = asked[2];
  for (long block = start; block < end && block < blocks; ++block) {{
    wide *data = (wide *)buffers[0] + block * each; (void)data;
"""
_READ = """    wide s0 = {}, s1 = {}, s2 = {}, s3 = {};
    for (long n = 0; n < repeats; ++n) {
      for (long i = 0, part = each / 4; i < part; i++) {
        s0 += data[i]; s1 += data[i + part]; s2 += data[i + 2 * part]; s3 += data[i + 3 * part];
      }
      asm volatile("" ::: "memory");
    }
    s0 += s1 + s2 + s3;
    asm volatile("" :: "m"(s0));
  }
}"""
_WRITE = """    for (long n = 0; n < repeats; ++n) {
      wide value = {}; value += (float)n;
      for (long i = 0; i < each; i += 4) {
        data[i] = value; data[i + 1] = value; data[i + 2] = value; data[i + 3] = value;
      }
      asm volatile("" ::: "memory");
    }
  }
}"""
_COPY = """    for (long n = 0; n < repeats; ++n) {
      for (long i = 0, half = each / 2; i < half; i += 2) {
        PAST(data[half + i], data[i]); PAST(data[half + i + 1], data[i + 1]);
      }
    }
  }
}"""

Launch = Callable[[Sequence[int]], None]


def programs(vector_bytes: int, threads: int) -> tuple[Program, ...]:
    """Reading, writing, copying, multiplying; each takes its data and two numbers."""
    prelude = (_PRELUDE.format(width=vector_bytes),)
    bodies = {"read": _READ, "write": _WRITE, "copy": _COPY, "fma": _fma()}
    return tuple(
        Program(
            f"ceiling_{name}",
            Language.C,
            prelude,
            _HEAD.format(name=name) + body,
            slots=2,
            grid=threads,
            cost=Cost(nbytes=1 << 40),  # so that all threads take part
        )
        for name, body in bodies.items()
    )


def _fma() -> str:
    names = [f"x{i}" for i in range(_CHAINS)]
    made = " ".join(f"wide {n} = a + {i};" for i, n in enumerate(names))
    steps = " ".join(f"{n} = {n} * a + b;" for n in names)
    return f"""    wide a = {{}}, b = {{}}; a += 0.999f; b += 1e-3f;
    asm volatile("" : "+m"(a), "+m"(b));
    {made}
    for (long i = 0; i < each * repeats; ++i) {{ {steps} }}
    wide sum = {" + ".join(names)};
    asm volatile("" :: "m"(sum));
  }}
}}"""


class Probe:
    """The four programs, ready to run on memory of their own.

    What each core has for itself is measured on one thread, and taken times the threads: two at
    once are seldom both left alone. What they share is measured on all of them.
    """

    def __init__(self, launches: Sequence[Launch], width: int, threads: int) -> None:
        self.read, self.write, self.copy, self.fma = launches
        self.width, self.threads = width, threads
        self.caches = caches()
        self._asked = np.zeros(3, np.int64)
        self._most = min(max(4 * self.caches[-1], _MEMORY[0]), _MEMORY[1])
        self._data = np.zeros(self._most + 64, np.uint8)
        self._data[::4096] = 1  # pages that were never written are all one page

    def measure(self) -> Ceilings:
        """All ceilings."""
        memory = self._memory()  # before a part of it has come into a cache
        per_step = 2 * _CHAINS * (self.width // 4) * self.threads
        flops = per_step * _STEPS / self._best(self.fma, _STEPS, 1, 1)
        launch = self._best(self.fma, 0, 0, 0)
        *own, shared = self.caches
        levels = [self._level(size, size // 2, 1) for size in own]
        levels.append(self._level(shared // self.threads, shared // 4, self.threads))
        levels.append(memory)
        return Ceilings(flops, self.width // 4, self.threads, launch, tuple(levels))

    def _level(self, size: int, nbytes: int, blocks: int) -> Level:
        each = nbytes // blocks // self.width // 4 * 4
        moved = each * self.width * self.threads
        repeats = max(1, _MOVED // (each * self.width))
        read, write = (self._best(f, each, blocks, repeats) for f in (self.read, self.write))
        return Level(size, moved * repeats / read, moved * repeats / write)

    def _memory(self) -> Level:
        """What lies behind the caches; a piece has left them when it comes again."""
        each = self._most // _PIECES // self.threads // self.width // 4 * 4
        ways = (self.read, self.write, self.copy)
        passes = _PASSES if self._most >= 2 * self.caches[-1] else 1
        seconds = [1.0] * len(ways)
        for n in range(passes * _PIECES):
            which = n % len(ways)
            taken = self._time(ways[which], each, 1, self.threads, n % _PIECES)
            seconds[which] = min(seconds[which], taken)
        moved = each * self.width * self.threads
        return Level(1 << 60, *(moved / taken for taken in seconds))

    def _best(self, launch: Launch, each: int, blocks: int, repeats: int) -> float:
        return min(self._time(launch, each, repeats, blocks) for _ in range(_ROUNDS))

    def _time(self, launch: Launch, each: int, repeats: int, blocks: int, piece: int = 0) -> float:
        self._asked[:] = each, repeats, blocks
        start = self._data.ctypes.data + piece * (self._most // _PIECES)
        memories = [start + -start % 64, self._asked.ctypes.data]
        began = time.perf_counter()
        launch(memories)
        return time.perf_counter() - began


def caches() -> tuple[int, ...]:
    """Bytes of each cache of data, from the first level, as far as one thread may use it."""
    found: dict[int, int] = {}
    for folder in sorted(_CACHES.glob("index*")):
        try:
            kind = (folder / "type").read_text().strip()
            level, size = (folder / "level").read_text(), (folder / "size").read_text().strip()
            if kind in ("Data", "Unified") and size.endswith("K"):
                found[int(level)] = int(size[:-1]) << 10
        except (OSError, ValueError):
            continue
    return tuple(found[level] for level in sorted(found)) or _USUAL


def processor() -> str:
    """The model of the processor, as the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line[:10] == "model name"), "")
