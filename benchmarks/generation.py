"""What a new kernel costs in Python: scheduling and code generation, before any compiler.

    python benchmarks/generation.py                    # all steps and kernels; some minutes
    python benchmarks/generation.py step               # training steps only

Each program runs once, without a disk cache, in a process that has imported scheduler and generator
for another one before. All kernels of a plan are made before any is compiled, so that no compiler
has the other processor meanwhile. A kernel's time is its shortest of all rounds; it is the
processor's, so that what else a machine does counts for little.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout need not be installed

from benchmarks import run, steps, workloads
from benchmarks.peers import TinymlPeer
from tinyml import Tensor, config, defaults, trace
from tinyml.device import open_device

GOAL = 5.0  # milliseconds for a kernel
HEAD = "| program | kernels | ms each | median generated in | longest | which |"


class Made(NamedTuple):
    """Milliseconds that it took to make a program's kernels."""

    scheduled: float
    generated: list[tuple[str, float]]

    @property
    def each(self) -> float:
        return (self.scheduled + sum(ms for _, ms in self.generated)) / len(self.generated)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="words: programs whose name or group has one")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(f"{HEAD}\n| --- | ---: | ---: | ---: | ---: | --- |", flush=True)
    found: list[Made] = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as children:
        for work in (*steps.steps(), *workloads.kernels()):
            if run.matches(work, args.names):
                rounds = [children.apply(made, (work.name,)) for _ in range(args.rounds)]
                found.append(least(rounds))
                print(line(work.name, found[-1]), flush=True)
    print(f"\n{summary(found)}")


def made(name: str) -> Made:
    """What a child does: one run of a program."""
    with config.override(cache=""), defaults(device="CPU"):
        (Tensor([1.0, 2.0]) + 1).realize()
        (work,) = (w for w in (*steps.steps(), *workloads.kernels()) if w.name == name)
        machine = open_device("CPU").machine
        load, call = machine.load, TinymlPeer().prepare(work, work.inputs())
        with (
            mock.patch.object(time, "perf_counter", time.process_time),
            mock.patch.object(machine, "load", lambda programs: load([*programs])),
            trace.listen(trace.Scheduled) as plans,
            trace.listen(trace.KernelLowered) as kernels,
        ):
            call()
    scheduled = 1e3 * sum(plan.seconds for plan in plans)
    return Made(scheduled, [(k.program.name, 1e3 * k.seconds) for k in kernels])


def least(rounds: Sequence[Made]) -> Made:
    """The shortest of each; all rounds made the same."""
    each = zip(*(one.generated for one in rounds), strict=True)
    return Made(min(one.scheduled for one in rounds), [min(k, key=lambda m: m[1]) for k in each])


def line(name: str, one: Made) -> str:
    """A row of the table."""
    which, longest = max(one.generated, key=lambda made: made[1])
    median = statistics.median(ms for _, ms in one.generated)
    cells = f"{len(one.generated)} | {one.each:.1f} | {median:.1f} | {longest:.1f}"
    return f"| {name} | {cells} | {which.rpartition('_')[0]} |"


def summary(found: Sequence[Made]) -> str:
    """All of them together."""
    times = [ms for one in found for _, ms in one.generated]
    each = (sum(times) + sum(one.scheduled for one in found)) / len(times)
    within = sum(ms <= GOAL for ms in times)
    return (
        f"{len(times)} kernels, {each:.1f} ms each with scheduling; "
        f"{within} were generated in {GOAL:.0f} ms or less."
    )


if __name__ == "__main__":
    main()
