"""How far the rules of thumb are from what a search finds: on the CPU, or a card.

    python benchmarks/search.py [--threads 1] [--width 3] [--seconds 40] [--out FILE] [words]
    python benchmarks/search.py --device CUDA            # as the last part of cuda.py
    python benchmarks/search.py --device EMU --small     # a rehearsal without a card

Each kernel of a workload is searched anew, whatever the disk cache holds; one that several
workloads or layers have, once. A line is printed, and written to the file, after each; where a
workload has several launches, another one sums them up. What is compared is the least of several
launches, default and winner in turn. On one thread of the CPU it is the processor time of this
process: on a machine that others use, too, it says more than a clock on the wall. On several
threads it is that clock, which wants a machine alone. On a card it is the time between two events;
small arrays stay in its caches, and another process runs what may hang.
`roof` is the share of the roofline that the default reaches; `model` what the cost model predicts
for it over what it took; `default / model's` how much faster than the default that one is which
the model would choose of all that were tried. Without ceilings (EMU) these are 0.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

from benchmarks import run, steps, workloads  # noqa: E402
from benchmarks.peers import Work  # noqa: E402
from benchmarks.scheduled import kernels_of  # noqa: E402
from benchmarks.workloads import Workload  # noqa: E402
from tinyml import config, defaults, kernel, trace  # noqa: E402
from tinyml.codegen.compile import cost  # noqa: E402
from tinyml.device import ceilings, open_device  # noqa: E402
from tinyml.kernel import Kernel  # noqa: E402
from tinyml.runtime.machine import Executable  # noqa: E402
from tinyml.search import Found, Opts, Trial, search  # noqa: E402
from tinyml.search.apart import Apart  # noqa: E402
from tinyml.search.runner import Here  # noqa: E402

HEAD = """| kernel | default ms | roof | model | best ms | default / best | default / model's | \
tried | Opts of the best |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"""

_IMAGES = "8x64x56x56"
ON_CPU = (  # of what run.py times
    *("add 16M", "gelu(a*b+c) 16M", "sin-exp-tanh-sigmoid 256k", "transposed copy 4096"),
    *(f"sum {axis} 8192x4096" for axis in ("axis 0", "axis 1")),
    *("cross-entropy 4096x32000", "cross-entropy 4096x32000, backward too"),
    *(
        f"{row} 8192x1024{back}"
        for row in ("softmax", "log-softmax", "layernorm", "rmsnorm")
        for back in ("", ", backward too")
    ),
    *(f"matmul {size}" for size in (256, 333, 512, 1021, 1024, 2048)),
    *(f"matmul {size}" for size in ("16384x512x64", "64x16384x64", "64x(256x64x256)")),
    *("matmul bf16 1024", "A @ B.T 1024", "A.T @ B 1024", "linear+gelu 1024x768->3072"),
    *("matrix times vector 4096", "vector times matrix 4096"),
    *(
        f"conv {kind}{rest}"
        for kind in ("3x3 64->64", "1x1 64->64", "3x3, stride 2, 64->128", "3x3, depthwise")
        for rest in (f" {_IMAGES}", ", backward too")
    ),
    *(
        f"attention B2 H8 T512 D64{kind}{back}"
        for kind in ("", ", causal")
        for back in ("", ", backward too")
    ),
    *("MLP 784-512-512-10 step", "GPT 2x128 T64 B8 step"),
)
ON_CARDS = (  # of what cuda.py times
    *("gelu(a*b+c) 16M", "softmax 8192x1024", "layernorm 8192x1024", "softmax 512x32000"),
    *(f"sum {axis} 8192x4096" for axis in ("axis 0", "axis 1", "all")),
    *("transposed copy 4096", "cross-entropy 4096x32000", "attention B2 H8 T512 D64"),
    *("matmul 1021", "matmul 1024", "matmul 2048", "A @ B.T 1024", "A.T @ B 1024"),
    *("matmul bf16 1024", "matmul 4096 bf16", "matmul 64x16384x64", "matmul 64x(256x64x256)"),
    *("matrix times vector 4096", "vector times matrix 4096", "linear+gelu 1024x768->3072"),
    *("conv 3x3 64->64 8x64x56x56", "conv 3x3 64->64 8x64x56x56 bf16"),
)
WIDTH = 3  # places in the beam
FAR = 1.1  # times as fast as the default: the goal is that no search finds more


@dataclass(frozen=True)
class Compared:
    """A kernel by the rules of thumb and by a search, in seconds."""

    kernel: str
    default: float
    best: float
    picked: float  # by the cost model, of all that were tried
    roof: float
    model: float
    tried: int
    opts: str


def processor_time(executable: Executable, memories: Sequence[Any]) -> float:
    """Seconds of this process that a launch takes."""
    start = time.process_time()
    executable.launch(memories)
    return time.process_time() - start


def compared(k: Kernel, device: str, seconds: float, width: int = WIDTH) -> Compared:
    """A kernel searched anew."""
    alone = partial(Here, timer=processor_time) if config.current.threads == 1 else Here
    runner = alone if device == "CPU" else Apart
    trial = Trial(k, open_device(device), runner)
    with contextlib.closing(trial), trace.listen(trace.Tried) as tried:
        found = search(trial, width, seconds)
        works = [event.opts for event in tried if event.seconds is not None]
        return _told(trial, found, works)


def _told(trial: Trial, found: Found, works: Sequence[Opts]) -> Compared:
    """What came of it; `works` are all Opts that were tried and right."""
    known, spent = ceilings(trial.opened.name), cost(trial.plain)
    expected = {opts: trial.expected(opts) or 1e9 for opts in (trial.default, *works)}
    picked = min(expected, key=expected.__getitem__)
    seconds = trial.time_in_turn(list(dict.fromkeys((trial.default, found.opts, picked))))
    default = seconds[trial.default]
    opts = "the same" if found.opts == trial.default else "; ".join(map(str, found.opts))
    return Compared(
        kernel.name(trial.kernel),
        default,
        seconds[found.opts],
        seconds[picked],
        known.roofline(spent.flops, spent.nbytes, spent.stored) / default if known else 0.0,
        expected[trial.default] / default if known else 0.0,
        found.tried,
        opts,
    )


def together(found: Sequence[Compared]) -> Compared:
    """Launches one after the other; what is the same is tried once."""
    default = sum(c.default for c in found)
    return Compared(
        f"all {len(found)} launches",
        default,
        sum(c.best for c in found),
        sum(c.picked for c in found),
        sum(c.roof * c.default for c in found) / default,
        sum(c.model * c.default for c in found) / default,
        sum(c.tried for c in dict.fromkeys(found)),
        "",
    )


def line(name: str, c: Compared) -> str:
    """A line of the table."""
    return (
        f"| {name}: {c.kernel} | {c.default * 1e3:.3g} | {100 * c.roof:.0f} % | {c.model:.2f} | "
        f"{c.best * 1e3:.3g} | {c.default / c.best:.2f} | {c.default / c.picked:.2f} | "
        f"{c.tried} | {c.opts} |"
    )


def summary(found: Collection[Compared]) -> str:
    """All of them, in words."""
    ratios = [c.default / c.best for c in found]
    far = sum(ratio > FAR for ratio in ratios)
    return (
        f"Of {len(ratios)} kernels {far} are more than {FAR} times as fast after a search, "
        f"{max(ratios):.2f} times at most."
    )


def asked_for(device: str, small: bool) -> list[Work]:
    """What is searched for on a device; small: on tiny inputs, where nothing means anything."""
    names = ON_CPU if device == "CPU" else ON_CARDS
    works = [*workloads.kernels(), *workloads.for_cards(), *steps.steps()]
    chosen = [work for work in works if work.name in names]
    return [w.shrunk() if small and isinstance(w, Workload) else w for w in chosen]


def measure(asked: argparse.Namespace) -> Iterator[str]:
    """The lines of the table, as they come, and a summary."""
    found: dict[Kernel, Compared] = {}
    for work in asked_for(asked.device, asked.small):
        if run.matches(work, asked.words):
            with defaults(device=asked.device):
                launched = kernels_of(work)
            for k in dict.fromkeys(launched):
                if k not in found:
                    yield _searched(work.name, k, asked, found)
            if len(launched) > 1 and found.keys() >= {*launched}:
                yield line(work.name, together([found[k] for k in launched]))
    if found:
        yield f"\n{summary(found.values())}"


def _searched(
    name: str, k: Kernel, asked: argparse.Namespace, found: dict[Kernel, Compared]
) -> str:
    """The line of a kernel, which is among what was found if all went well."""
    try:
        found[k] = compared(k, asked.device, asked.seconds, asked.width)
    except Exception as error:  # of whatever was tried
        return f"| {name}: {kernel.name(k)} | {run.words(error)} |"
    return line(name, found[k])


def main() -> None:
    """Print the table, and keep what there is of it if there is to be a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--small", action="store_true", help="tiny inputs: a rehearsal")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    lines: list[str] = []
    with config.override(threads=asked.threads):
        for one in itertools.chain([HEAD], measure(asked)):
            print(one, flush=True)
            lines.append(one)
            if asked.out:
                asked.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
