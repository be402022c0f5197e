"""The ceilings of a processor, measured by three small C programs on the machine's own threads.

Measured when somebody asks for the first time (DEBUG=2, BEAM), in about a quarter of a second,
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
_MEMORY = (48 << 20, 96 << 20)  # bytes to stream for the memory: least, most
_SPAN = 0.5e-3  # seconds of one round
_ROUNDS = 8
_STEPS = 4096  # of the loop around them
_CHAINS = 12  # of multiply-adds: enough to hide their latency, few enough for 16 registers

_PRELUDE = "typedef float wide __attribute__((vector_size({width}), aligned(64)));"
_HEAD = """void ceiling_{name}(void *const *buffers, long start, long end) {{
  const long *asked = buffers[1], each = asked[0], repeats = asked[1], blocks = asked[2];
  for (long block = start; block < end && block < blocks; ++block) {{
    wide *data = (wide *)buffers[0] + block * each; (void)data;
"""
_READ = """    wide s0 = {}, s1 = {}, s2 = {}, s3 = {};
    for (long n = 0; n < repeats; ++n) {
      for (long i = 0; i < each; i += 4) {
        s0 += data[i]; s1 += data[i + 1]; s2 += data[i + 2]; s3 += data[i + 3];
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

Launch = Callable[[Sequence[int]], None]


def programs(vector_bytes: int, threads: int) -> tuple[Program, ...]:
    """Reading, writing and multiplying; each takes its data and two numbers."""
    prelude = (_PRELUDE.format(width=vector_bytes),)
    bodies = {"read": _READ, "write": _WRITE, "fma": _fma()}
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
    """The three programs, ready to run on memory of their own.

    What each core has for itself is measured on one thread, and taken times the threads: two at
    once are seldom both left alone. What they share is measured on all of them.
    """

    def __init__(self, launches: Sequence[Launch], width: int, threads: int) -> None:
        self.read, self.write, self.fma = launches
        self.width, self.threads = width, threads
        self.caches = _caches()
        self._asked = np.zeros(3, np.int64)
        self._most = min(max(2 * self.caches[-1], _MEMORY[0]), _MEMORY[1])
        self._data = np.zeros(self._most + 64, np.uint8)
        self._data[::4096] = 1  # pages that were never written are all one page

    def measure(self) -> Ceilings:
        """All ceilings."""
        per_step = 2 * _CHAINS * (self.width // 4) * self.threads
        flops = per_step * _STEPS / self._best(self.fma, _STEPS, 1)
        launch = self._time(self.fma, 0, 0, 0, _ROUNDS)
        *own, shared = self.caches
        levels = [self._level(size, size // 2, 1) for size in own]
        levels.append(self._level(shared // self.threads, shared // 4, self.threads))
        levels.append(self._level(1 << 60, self._most, self.threads))
        return Ceilings(flops, self.width // 4, self.threads, launch, tuple(levels))

    def _level(self, size: int, nbytes: int, blocks: int) -> Level:
        each = nbytes // blocks // self.width // 4 * 4
        moved = each * self.width * self.threads
        seconds = [self._best(launch, each, blocks) for launch in (self.read, self.write)]
        return Level(size, moved / seconds[0], moved / seconds[1])

    def _best(self, launch: Launch, each: int, blocks: int) -> float:
        """Seconds of one repetition."""
        once = self._time(launch, each, 1, blocks, 2)
        repeats = max(1, int(_SPAN / once))
        return self._time(launch, each, repeats, blocks, _ROUNDS) / repeats

    def _time(self, launch: Launch, each: int, repeats: int, blocks: int, rounds: int) -> float:
        self._asked[:] = each, repeats, blocks
        start = self._data.ctypes.data
        memories = [start + -start % 64, self._asked.ctypes.data]
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            launch(memories)
            times.append(time.perf_counter() - began)
        return min(times)


def _caches() -> tuple[int, ...]:
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
