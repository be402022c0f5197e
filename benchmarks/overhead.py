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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout need not be installed

from benchmarks import recording as recording_peers
from benchmarks import steps
from benchmarks.dialect import TinymlOps
from benchmarks.steps import GPTSize, differentiated, tinyml_step
from tinyml import Device, Tensor, TinyJit, config, nn, realize, trace
from tinyml.graph import toposort
from tinyml.realize import compute

Row = tuple[str, str]
RESULTS = Path(__file__).resolve().parent / "results"


def main() -> None:
    if "--peers" in sys.argv[1:]:
        beside_peers()
        return
    print(f"on {Device.DEFAULT}\n\n| what | cost |\n| --- | ---: |")
    rows = recording, repeating, replaying, stepping, compiling, doubling
    for row in (row for found in rows for row in found()):
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


class Kernels:
    """Those of a plan, which note how long they run."""

    seconds = 0.0  # all of them since the process began

    def __init__(self, plan: Any) -> None:
        self._plan = plan

    def run_on(self, memories: Sequence[int]) -> None:
        """As the plan."""
        start = time.thread_time()
        self._plan.run_on(memories)
        Kernels.seconds += time.thread_time() - start


def stepping() -> list[Row]:
    """Training steps without TinyJit: from the graph, recorded anew each time, to the kernels."""
    gpt = steps.gpt(GPTSize(layers=2, dim=128, heads=4, context=32, batch=2))
    convnet = steps.residual(widths=(8, 16, 32), size=8, batch=2)
    found = []
    for word, step in (("2-layer GPT", gpt), ("residual convnet", convnet)):
        seconds, nodes = known_step(step)
        what = f"realize a known step of a {word}, each of {nodes} nodes, without kernels"
        found.append((what, microseconds(seconds / nodes)))
    return found


def known_step(step: steps.Step, repeats: int = 100) -> tuple[float, int]:
    """Seconds of Python to realize a step whose plan is known, the fewest, and its nodes."""
    parameters, data = step.split([Tensor(array) for array in step.inputs()])
    for parameter in parameters.values():
        parameter.requires_grad = True
    optimizer = nn.optim.AdamW(list(parameters.values()), lr=step.rate)
    loss_of = step.loss and partial(step.loss, TinymlOps(), parameters)

    def realized() -> tuple[float, int]:
        with Tensor.train():
            optimizer.zero_grad()
            _ = differentiated(loss_of, parameters, data)  # the loss lives on
            updated = optimizer.schedule_step()
        nodes = len(toposort([tensor.lazy for tensor in updated]))
        start = time.thread_time() - Kernels.seconds
        Tensor.realize(*updated)
        return time.thread_time() - Kernels.seconds - start, nodes

    for _ in range(4):  # plainly, then with what changes from step to step as data
        realized()
    for runner in realize._runners.values():
        if runner._free is not None and not isinstance(runner._free, Kernels):
            runner._free = Kernels(runner._free)
    return min(realized() for _ in range(repeats))


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
