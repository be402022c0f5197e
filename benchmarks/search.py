"""How far the rules of thumb are from what a search finds: on one thread of the CPU, or a card.

    python benchmarks/search.py [--width 3] [--seconds 40] [--out FILE] [words of names]
    python benchmarks/search.py --device CUDA            # as the last part of cuda.py
    python benchmarks/search.py --device EMU --small     # a rehearsal without a card

Each kernel of a workload is searched anew, whatever the disk cache holds. What is compared is the
least of several launches, default and winner in turn. On the CPU it is the processor time of this
process: on a machine that others use, too, it says more than a clock on the wall. On a card it is
the time between two events; small arrays stay in its caches, and another process runs what may
hang. `roof` is the share of the roofline that the default reaches; `model` what the cost model
predicts for it over what it took; `default / model's` how much faster than the default that one
is which the model would choose of all that were tried. Without ceilings (EMU) these are 0.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

from benchmarks import workloads  # noqa: E402
from benchmarks.dialect import TinymlOps  # noqa: E402
from benchmarks.peers import narrowed, spelled  # noqa: E402
from benchmarks.workloads import Workload  # noqa: E402
from tinyml import Device, Tensor, config, kernel, trace  # noqa: E402
from tinyml.codegen.compile import cost  # noqa: E402
from tinyml.device import OpenDevice, ceilings, open_device  # noqa: E402
from tinyml.kernel import Kernel  # noqa: E402
from tinyml.runtime.machine import Executable  # noqa: E402
from tinyml.schedule import KernelItem, schedule  # noqa: E402
from tinyml.search import Found, Opts, Trial, search  # noqa: E402
from tinyml.search.apart import Apart  # noqa: E402
from tinyml.search.runner import Here  # noqa: E402
from tinyml.search.warpgroups import decide  # noqa: E402

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


def kernels(*results: Tensor) -> Iterator[Kernel]:
    for item in schedule([result.lazy for result in results]).items:
        if isinstance(item, KernelItem):
            yield item.kernel


def recorded(work: Workload, device: str) -> tuple[Tensor, ...]:
    """The results of a workload, whose inputs are there."""
    with Device.default(device):
        inputs = [narrowed(Tensor(array), work) for array in work.inputs()]
        Tensor.realize(*inputs)
        return spelled(TinymlOps(), work)(*inputs)


def decided(device: str) -> OpenDevice:
    """The device, which says how its products are made."""
    target = open_device(device).target
    if target is not None and target.warpgroups is None:
        decide(device)
    return open_device(device)


def compared(k: Kernel, device: str, seconds: float, width: int = WIDTH) -> Compared:
    """A kernel searched anew."""
    opened = decided(device)
    assert opened.target is not None
    runner = partial(Here, timer=processor_time) if device == "CPU" else Apart
    trial = Trial(k, opened, opened.target, runner)
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


def line(name: str, c: Compared) -> str:
    """A line of the table."""
    return (
        f"| {name} | {c.default * 1e3:.3g} | {100 * c.roof:.0f} % | {c.model:.2f} | "
        f"{c.best * 1e3:.3g} | {c.default / c.best:.2f} | {c.default / c.picked:.2f} | "
        f"{c.tried} | {c.opts} |"
    )


def asked_for(device: str, small: bool) -> dict[str, Callable[[], tuple[Tensor, ...]]]:
    """What is searched for on a device; small: on tiny inputs, where nothing means anything."""
    if device == "CPU" and not small:
        return {name: partial(_alone, make) for name, make in WORKLOADS.items()}
    works = [w for w in (*workloads.kernels(), *workloads.for_cards()) if w.name in ON_CARDS]
    return {w.name: partial(recorded, w.shrunk() if small else w, device) for w in works}


def _alone(make: Callable[[], Tensor]) -> tuple[Tensor, ...]:
    return (make(),)


def measure(asked: argparse.Namespace) -> Iterator[str]:
    """The lines of the table, as they come."""
    for name, make in asked_for(asked.device, asked.small).items():
        if not asked.words or any(word in name for word in asked.words):
            for k in kernels(*make()):
                yield line(name, compared(k, asked.device, asked.seconds, asked.width))


def main() -> None:
    """Print the table, and keep it if there is to be a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--small", action="store_true", help="tiny inputs: a rehearsal")
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    lines = [HEAD]
    print(HEAD)
    with config.override(threads=1):
        for found in measure(asked):
            print(found, flush=True)
            lines.append(found)
    if asked.out:
        asked.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
