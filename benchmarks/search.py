"""How far the rules of thumb are from what a search finds, on one thread of the CPU.

    python benchmarks/search.py [--width 3] [--seconds 40] [--out FILE] [words of names]

Each kernel of a workload is searched anew, whatever the disk cache holds. What is compared is
the processor time of this process, the least of several launches, default and winner in turn:
on a machine that others use, too, it says more than a clock on the wall. `roof` is the share of
the roofline that the default reaches; `model` what the cost model predicts for it over what it
took; `default / model's` how much faster than the default that one is which the model would
choose of all that were tried.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

from tinyml import Tensor, config, trace  # noqa: E402
from tinyml.codegen.compile import cost  # noqa: E402
from tinyml.device import ceilings, open_device  # noqa: E402
from tinyml.kernel import Kernel  # noqa: E402
from tinyml.runtime.machine import Executable  # noqa: E402
from tinyml.schedule import KernelItem, schedule  # noqa: E402
from tinyml.search import Found, Opts, Trial, search  # noqa: E402
from tinyml.search.runner import Here  # noqa: E402

HEAD = """| kernel | default ms | roof | model | best ms | default / best | default / model's | \
tried | Opts of the best |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"""


def _given(*shape: int) -> Tensor:
    return Tensor(np.random.default_rng(0).random(shape, np.float32), device="CPU")


WORKLOADS: dict[str, Callable[[], Tensor]] = {
    "matmul 512": lambda: _given(512, 512) @ _given(512, 512),
    "matmul 512, right transposed": lambda: _given(512, 512) @ _given(512, 512).T,
    "matmul 512, left transposed": lambda: _given(512, 512).T @ _given(512, 512),
    "matmul 1024": lambda: _given(1024, 1024) @ _given(1024, 1024),
    "matmul 1024, right transposed": lambda: _given(1024, 1024) @ _given(1024, 1024).T,
    "matmul 1024, left transposed": lambda: _given(1024, 1024).T @ _given(1024, 1024),
    "conv 3x3, 8x64x56x56": lambda: _given(8, 64, 56, 56).conv2d(_given(64, 64, 3, 3), padding=1),
    "softmax 4096x1024": lambda: _given(4096, 1024).softmax(),
    "sum axis 0, 4096x1024": lambda: _given(4096, 1024).sum(0),
    "sum axis 1, 4096x1024": lambda: _given(4096, 1024).sum(1),
    "gelu(a*b+c) 1M": lambda: (_given(1 << 20) * _given(1 << 20) + _given(1 << 20)).gelu(),
    "matrix @ vector 4096": lambda: _given(4096, 4096) @ _given(4096),
    "vector @ matrix 4096": lambda: _given(4096) @ _given(4096, 4096),
    "transposed copy 1024": lambda: _given(1024, 1024).T.contiguous(),
}


def processor_time(executable: Executable, memories: Sequence[Any]) -> float:
    """Seconds of this process that a launch takes."""
    start = time.process_time()
    executable.launch(memories)
    return time.process_time() - start


def kernels(node: Tensor) -> Iterator[Kernel]:
    for item in schedule([node.lazy]).items:
        if isinstance(item, KernelItem):
            yield item.kernel


def row(name: str, trial: Trial, found: Found, works: Sequence[Opts]) -> str:
    """A line of the table; `works` are all Opts that were tried and right."""
    known = ceilings("CPU")
    expected = trial.expected(trial.default)
    assert known is not None
    assert expected is not None
    spent = cost(trial.plain)
    picked = min(works, key=lambda opts: trial.expected(opts) or 1e9)
    again = list(dict.fromkeys((trial.default, found.opts, picked)))
    seconds = trial.time_in_turn(again)
    default, best = seconds[trial.default], seconds[found.opts]
    roof = known.roofline(spent.flops, spent.nbytes, spent.stored) / default
    model = expected / default
    opts = "the same" if found.opts == trial.default else "; ".join(map(str, found.opts))
    return (
        f"| {name} | {default * 1e3:.3g} | {100 * roof:.0f} % | {model:.2f} | {best * 1e3:.3g} | "
        f"{default / best:.2f} | {default / seconds[picked]:.2f} | {found.tried} | {opts} |"
    )


def measure(words: Sequence[str], width: int, seconds: float) -> Iterator[str]:
    """The lines of the table, as they come."""
    opened = open_device("CPU")
    assert opened.target is not None
    for name, make in WORKLOADS.items():
        if words and not any(word in name for word in words):
            continue
        for k in kernels(make()):
            trial = Trial(k, opened, opened.target, partial(Here, timer=processor_time))
            with trace.listen(trace.Tried) as tried:
                found = search(trial, width, seconds)
            works = [event.opts for event in tried if event.seconds is not None]
            yield row(name, trial, found, works)


def main() -> None:
    """Print the table, and keep it if there is to be a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--width", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    lines = [HEAD]
    print(HEAD)
    with config.override(threads=1):
        for line in measure(asked.words, asked.width, asked.seconds):
            print(line, flush=True)
            lines.append(line)
    if asked.out:
        asked.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
