"""What tinyml's Python costs: recording, realizing again, replaying, and making new kernels.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --peers   # only recording, beside other libraries; it is kept

All tensors are small, so that the device's own work is next to nothing. Times are those of the
fastest of several repetitions: this is the cost of code, and not of what else the machine did.
"""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout need not be installed

from benchmarks import recording as recording_peers
from benchmarks import steps
from benchmarks.steps import GPTSize, tinyml_step
from tinyml import Device, Tensor, TinyJit, config, trace
from tinyml.graph import toposort
from tinyml.realize import compute

Row = tuple[str, str]
RESULTS = Path(__file__).resolve().parent / "results"


def main() -> None:
    if "--peers" in sys.argv[1:]:
        beside_peers()
        return
    print(f"on {Device.DEFAULT}\n\n| what | cost |\n| --- | ---: |")
    for row in [*recording(), *repeating(), *replaying(), *compiling(), *doubling()]:
        print(f"| {row[0]} | {row[1]} |", flush=True)


def beside_peers() -> None:
    """Print what recording costs, and keep it in `results/`."""
    lines = []
    for line in recording_peers.document():
        print(line, flush=True)
        lines.append(line)
    path = RESULTS / f"{datetime.date.today().isoformat()}-cpu-recording.md"
    path.write_text("\n".join(lines) + "\n")
    print(f"\nkept in {path}")


def fastest(call: Callable[[], Any], repeats: int, rounds: int = 7) -> float:
    """Seconds per call, in the fastest of several rounds."""
    call()
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        best = min(best, (time.perf_counter() - start) / repeats)
    return best


def microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:.2f} µs" if seconds < 1e-5 else f"{1e6 * seconds:.1f} µs"


def recording(count: int = 1000) -> list[Row]:
    """Ops that are only recorded."""
    found = []
    for gradient in (False, True):
        x = Tensor([1.0, 2.0], requires_grad=gradient).realize()

        def chain(x: Tensor = x) -> Tensor:
            y = x
            for n in range(count // 2):
                y = (y + n) * x
            return y

        word = ", with gradient" if gradient else ""
        found.append((f"recording an op{word}", microseconds(fastest(chain, 3) / count)))
    return found


def repeating() -> list[Row]:
    """Graphs whose plan is known."""
    x, y = Tensor.ones(4, 4).contiguous().realize(), Tensor.ones(4, 4).contiguous().realize()

    def graph(ops: int) -> Tensor:
        z = x
        for n in range(ops // 2):
            z = (z + float(n)) * y
        return z.realize()

    return [
        (f"record and realize again, {ops} ops", microseconds(fastest(partial(graph, ops), 50)))
        for ops in (2, 20, 200)
    ]


def kernels(x: Tensor, count: int) -> Tensor:
    """Sums along one axis and then the other: no two of them fit into one kernel."""
    for n in range(count):
        x = x * 0.5 + x.sum(axis=n % 2, keepdim=True) / 4
    return x


def replaying() -> list[Row]:
    """TinyJit, by number of kernels; and the same plans without it, recorded before."""
    found = []
    for count in (1, 32, 128):
        x, run = Tensor.ones(4, 4).contiguous().realize(), TinyJit(partial(kernels, count=count))
        for _ in range(2):  # plainly, then captured
            run(x)
        with trace.listen(trace.KernelRan) as launches:
            run(x)
        seconds = fastest(partial(run, x), 200, 20)
        found.append((f"TinyJit replay of {len(launches)} kernels", microseconds(seconds)))
        graph = [kernels(x, count).lazy]
        seconds = fastest(partial(compute, graph), 50)
        nodes = len(toposort(graph))
        found.append((f"realize again, {nodes} nodes, {count} kernels", microseconds(seconds)))
    return [*found, *replaying_states()]


def replaying_states() -> list[Row]:
    """TinyJit that updates tensors outside, and that draws random numbers."""
    found = []
    for count in (1, 100):
        states = [Tensor.ones(4).contiguous().realize() for _ in range(count)]

        def update(x: Tensor, states: list[Tensor] = states) -> Tensor:
            for state in states:
                state.assign(state * 0.5 + x)
            return x.sum()

        def draw(x: Tensor, count: int = count) -> Tensor:
            for _ in range(count):
                x = x + Tensor.rand(4)
            return x

        x = Tensor.ones(4).contiguous().realize()
        for function, word in ((update, "updates of tensors outside"), (draw, "random draws")):
            run = TinyJit(function)
            for _ in range(2):
                run(x)
            seconds = fastest(partial(run, x), 200, 20)
            found.append((f"TinyJit replay with {count} {word}", microseconds(seconds)))
    return found


@dataclass
class Making:
    """What new kernels cost."""

    schedule: float = 0.0
    lower: float = 0.0
    compile: float = 0.0
    kernels: int = 0
    total: float = 0.0

    @property
    def python(self) -> float:
        """Everything but the compiler."""
        return self.total - self.compile


def make(layers: int) -> Making:
    """The first step of a GPT without any cache, in a configuration that nobody used before."""
    size = GPTSize(layers=layers, dim=32 + 8 * layers, heads=2, context=16, batch=2)
    step = steps.gpt(size)
    call = tinyml_step(step, [Tensor(array) for array in step.inputs()])
    making = Making()

    def scheduled(event: trace.Scheduled) -> None:
        making.schedule += event.seconds

    def lowered(event: trace.KernelLowered) -> None:
        making.lower += event.seconds
        making.kernels += 1

    def compiled(event: trace.Compiled) -> None:
        making.compile += event.seconds

    ends = [
        trace.subscribe(trace.Scheduled, scheduled),
        trace.subscribe(trace.KernelLowered, lowered),
        trace.subscribe(trace.Compiled, compiled),
    ]
    start = time.perf_counter()
    call()
    making.total = time.perf_counter() - start
    for end in ends:
        end()
    return making


def compiling() -> list[Row]:
    """Schedule, lower, render: per new kernel of a GPT training step."""
    made = make(layers=4)
    count = made.kernels or 1
    return [
        ("first step of a 4-layer GPT", f"{made.total:.2f} s"),
        ("- new kernels", f"{made.kernels}"),
        ("- scheduling, in all", f"{1000 * made.schedule:.0f} ms"),
        ("- lowering and rendering, per kernel", f"{1000 * made.lower / count:.2f} ms"),
        ("- the C compiler (summed over its processes)", f"{1000 * made.compile:.0f} ms"),
    ]


def doubling() -> list[Row]:
    """How the cost grows with the graph; most kernels are those of the smallest, never shown."""
    found = []
    for layers in (2, 3, 6, 12):
        step = steps.gpt(GPTSize(layers=layers, dim=16, heads=2, context=8, batch=1))
        call = tinyml_step(step, [Tensor(array) for array in step.inputs()])
        start = time.perf_counter()
        call()
        first = time.perf_counter() - start
        again = fastest(call, 1, 5)
        text = f"{1000 * first:.0f} ms first, {1000 * again:.1f} ms again"
        found.append((f"GPT step of {layers} layers, without TinyJit", text))
    return found[1:]


if __name__ == "__main__":
    with config.override(cache=""):
        main()
