"""Interleaved rounds: A B C, A B C, ... on a machine that others may be using too.

In each round each competitor is called, untimed, once, and then as often as makes a span that
the clock can measure. What the rest of the machine did meanwhile is read from /proc/stat; a
round in which others took more than a share of the processors does not count.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPAN = 0.03  # seconds that one competitor is timed for in a round, at least
FOREIGN = 0.08  # share of the processors that others may take in a round that counts
FEWEST = 3  # calm rounds without which no median is taken
PAUSE = 0.05  # seconds for the threads of the one before to sleep: OpenBLAS spins some 25 ms


@dataclass(frozen=True)
class Round:
    """Seconds per call of each competitor, and the share of the machine that others had."""

    seconds: Mapping[str, float]
    least: Mapping[str, float]  # seconds of the fastest single call
    foreign: float


@dataclass(frozen=True)
class Timings:
    """The rounds that count."""

    kept: tuple[Round, ...]
    taken: int  # rounds in all
    calm: int  # rounds in which the machine was ours

    @property
    def disturbed(self) -> bool:
        """Whether there were too few calm rounds to use nothing else."""
        return self.calm < len(self.kept)

    def seconds(self, name: str) -> float:
        """Seconds per call: the median; the fastest single call if all rounds were disturbed."""
        if self.disturbed:
            return min(r.least[name] for r in self.kept)
        return statistics.median(r.seconds[name] for r in self.kept)

    def speedup(self, name: str, over: str) -> float:
        """How many times faster `name` is than `over`: the median of the rounds' ratios.

        Of the fastest single calls, if all rounds were disturbed.
        """
        if self.disturbed:
            return self.seconds(over) / self.seconds(name)
        return statistics.median(r.seconds[over] / r.seconds[name] for r in self.kept)

    def spread(self, name: str) -> float:
        """Half the distance between the quartiles, as a share of the median."""
        values = [r.seconds[name] for r in self.kept]
        if len(values) < 2:
            return 0.0
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return (high - low) / 2 / statistics.median(values)


class Watch:
    """What others did on this machine between two moments; 0 where the system does not say."""

    def __init__(self) -> None:
        self._start = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        return _busy_seconds(), time.process_time(), time.perf_counter()

    def foreign(self) -> float:
        """Share of all processors that went to others, stolen time included."""
        busy, own, wall = (b - a for a, b in zip(self._start, self._now(), strict=True))
        return max(0.0, busy - own) / (wall * (os.cpu_count() or 1)) if wall > 0 else 0.0


def _busy_seconds() -> float:
    """Processor seconds since boot that somebody used, or the host took away."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
    except (OSError, ValueError):
        return time.process_time()
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def interleave(
    calls: Mapping[str, Callable[[], Any]], rounds: int, budget: float, pause: float = PAUSE
) -> Timings:
    """Time all competitors against each other until `rounds` calm rounds, or for `budget` s."""
    repeats = {name: _calibrate(call) for name, call in calls.items()}
    taken: list[Round] = []
    start = time.perf_counter()
    while True:
        taken.append(_round(calls, repeats, pause))
        calm = sum(r.foreign <= FOREIGN for r in taken)
        late = time.perf_counter() - start > budget
        if calm >= rounds or (len(taken) >= FEWEST and (late or len(taken) >= 4 * rounds)):
            return keep(taken)


def keep(taken: list[Round]) -> Timings:
    """The calm rounds; all, and so `disturbed`, if there are too few of them."""
    ordered = sorted(taken, key=lambda r: r.foreign)
    calm = sum(r.foreign <= FOREIGN for r in ordered)
    kept = ordered[:calm] if calm >= FEWEST else taken
    return Timings(tuple(kept), len(taken), calm)


def _calibrate(call: Callable[[], Any]) -> int:
    """How many calls make a span. The first calls compile, capture, and fill caches."""
    for _ in range(3):
        call()
    start = time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    return max(1, min(10_000, math.ceil(SPAN / max(seconds, 1e-7))))


def _round(
    calls: Mapping[str, Callable[[], Any]], repeats: Mapping[str, int], pause: float
) -> Round:
    watch, seconds, least = Watch(), {}, {}
    for name, call in calls.items():
        time.sleep(pause)
        times = _time(call, repeats[name])
        seconds[name], least[name] = statistics.fmean(times), min(times)
    return Round(seconds, least, watch.foreign())


def _time(call: Callable[[], Any], repeats: int) -> list[float]:
    """Seconds of each call. The results of a call are dropped before the next one."""
    call()
    times, clock = [0.0] * repeats, time.perf_counter
    gc.disable()
    try:
        for i in range(repeats):
            start = clock()
            call()
            times[i] = clock() - start
    finally:
        gc.enable()
    return times
