"""Write docs/tour.md: the text of docs/tour.in.md, with what tinyml says when this runs.

python docs/make_tour.py    # needs a C compiler, and Graphviz for the picture; every trace is real
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "test"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

import numpy as np
from simulate import simulate

from tinyml import Tensor, config, defaults, interpret, kernel, trace
from tinyml.codegen.compile import compile as to_program
from tinyml.codegen.target import Target
from tinyml.debug import compiled_text, schedule_text
from tinyml.explain import drawn, graph_text
from tinyml.program import Language

HERE = Path(__file__).resolve().parent
NO_CACHE = {"DEVICE": "CPU", "TINYML_CACHE": ""}  # so that the compiler is seen at work


@dataclass
class Traces:
    """What the rooms announced while something was realized."""

    scheduled: list[trace.Scheduled]
    lowered: list[trace.KernelLowered]
    compiled: list[trace.Compiled]


@contextlib.contextmanager
def listening() -> Iterator[Traces]:
    with contextlib.ExitStack() as stack:
        kinds = (trace.Scheduled, trace.KernelLowered, trace.Compiled)
        yield Traces(*(stack.enter_context(trace.listen(kind)) for kind in kinds))


def block(text: object, language: str = "") -> str:
    return f"```{language}\n{str(text).rstrip()}\n```"


def uploaded(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def realized(result: Tensor) -> Traces:
    with listening() as traces:
        result.realize()
    return traces


def python(code: str, **environment: str) -> str:
    """What a program says on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **NO_CACHE, "PYTHONPATH": str(HERE.parent), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr


def position(result: Tensor) -> str:
    """The one line of a nest that stores a result."""
    nest = str(realized(result).lowered[0].nest)
    return next(line.strip() for line in nest.splitlines() if "slot0[" in line)


# ---- pieces that need more than one call ----


def runners(step: trace.KernelLowered) -> str:
    """The same numbers from three values on the way."""
    a, b = (np.random.default_rng(n).standard_normal((4, 256)).astype(np.float32) for n in (0, 1))
    whole, simulated = np.zeros((), np.float32), np.zeros(1, np.float32)
    kernel.run(step.kernel, [whole, a, b])
    simulate(step.linear, [simulated, a.reshape(-1), b.reshape(-1)])
    left, right = Tensor(a), Tensor(b)
    graph = (left + right).sum().lazy
    values = interpret.interpret([graph], {left.lazy: a, right.lazy: b})
    machine = (left + right).sum().item()
    return "\n".join(
        [
            f"LazyBuffer    interpret.py         {float(values[graph]):.5f}",
            f"Kernel        kernel.run           {float(whole):.5f}",
            f"LinearKernel  test/simulate.py     {float(simulated[0]):.5f}",
            f"Program       the CPU              {machine:.5f}",
        ]
    )


TRAINING = """
    from tinyml import Tensor, nn

    Tensor.manual_seed(0)
    model = [nn.Linear(64, 32), Tensor.relu, nn.Linear(32, 10)]
    optimizer = nn.optim.SGD(nn.state.get_parameters(model), lr=0.1)
    x, y = Tensor.randn(128, 64).realize(), Tensor.randint(128, low=0, high=10).realize()
    with Tensor.train():
        for step in range(3):
            loss = x.sequential(model).sparse_categorical_crossentropy(y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


def third_step() -> str:
    """The launches of the third step of TRAINING, and the totals."""
    mark = "import sys; step == 2 and sys.stderr.write('third\\n')"
    said = python(TRAINING.replace("loss =", f"{mark}\n            loss =", 1), DEBUG="2")
    return "\n".join(line.rstrip() for line in said.partition("third\n")[2].splitlines())


# ---- the page ----


def page() -> str:
    a, b = uploaded(4, 256), uploaded(4, 256, seed=1)
    total = (a + b).sum()
    recorded = graph_text([total.lazy], {a.lazy: "a", b.lazy: "b"})
    left = Tensor(uploaded(4, 256).numpy(), requires_grad=True)
    slope = (left * b).sum().gradient(left)[0]
    gradient = graph_text([slope.lazy], {b.lazy: "b"})
    traces = realized(total)
    step = traces.lowered[0]
    cuda = to_program(step.kernel, Target(Language.CUDA, cores=132, cache=48 << 10))
    x, w = uploaded(64, 128), uploaded(128, 32)
    apart = realized(x.softmax() @ w)
    again = realized((uploaded(4, 256, seed=2) + b).sum())
    return (
        (HERE / "tour.in.md")
        .read_text()
        .format(
            recorded=block(recorded),
            gradient=block(gradient),
            schedule=block(schedule_text(traces.scheduled[0])),
            apart=block(schedule_text(apart.scheduled[0])),
            kernel=block(step.kernel),
            nest=block(step.nest),
            positions=block(positions()),
            opts=block("\n".join(map(str, step.opts))),
            optimized=block(step.optimized),
            linear=block(step.linear),
            c=block(step.program.source, "c"),
            cuda=block(cuda.source, "cuda"),
            compiled=block(textwrap.fill(compiled_text(traces.compiled[0]), 96)),
            runners=block(runners(step)),
            again=len(again.scheduled),
            training=block(textwrap.dedent(TRAINING).strip(), "python"),
            launches=block(third_step()),
        )
    )


def positions() -> str:
    moves = {
        "a.T": uploaded(4, 256).T.contiguous(),
        "a.flip(1)": uploaded(4, 256).flip(1).contiguous(),
        "a[1:3, ::2]": uploaded(4, 256)[1:3, ::2].contiguous(),
        "a.pad((1, 1))": uploaded(4, 256).pad((1, 1)).contiguous(),
        "a.reshape(8, 128).T": uploaded(4, 256).reshape(8, 128).T.contiguous(),
    }
    return "\n".join(f"{name:20} {position(result)}" for name, result in moves.items())


def draw(target: Path) -> None:
    """The picture of two kernels."""
    with defaults(device="CPU"):
        text = drawn("x.softmax() @ w", {})
    svg = subprocess.run(["dot", "-Tsvg"], input=text, capture_output=True, text=True, check=True)
    target.write_text(svg.stdout)


def main() -> None:
    target = HERE / "tour.md"
    with config.override(device="CPU", cache=""):
        target.write_text(page())
        if shutil.which("dot"):
            draw(HERE / "kernels.svg")
    sys.stdout.write(f"wrote {target}\n")


if __name__ == "__main__":
    main()
