"""The same generated C by gcc and by clang, run in turn on the same memory.

    python benchmarks/compilers.py                     # everything; some two minutes
    python benchmarks/compilers.py --compilers gcc,clang,clang-17 matmul

On one thread, timed by processor seconds, since others may be using the machine too: a compiler's
time is its fastest run of all rounds. All must compute the same.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout need not be installed

from benchmarks import run, workloads
from benchmarks.peers import TinymlPeer
from benchmarks.workloads import Workload
from tinyml import config, defaults, trace
from tinyml.runtime.cpu import CpuMachine, CpuPlan

SLICE = 0.04  # processor seconds of one compiler's runs in one round, at least
MANY = 1e10  # operations of a workload that is left out, for it would take a minute


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="words: workloads whose name has one of them")
    parser.add_argument("--compilers", default="gcc,clang", help="%(default)s")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    compilers = args.compilers.split(",")
    print(head(compilers), flush=True)
    with config.override(threads=1), defaults(device="CPU"):
        for work in everything():
            if run.matches(work, args.names):
                print(line(work.name, fastest(work, compilers, args.rounds)), flush=True)


def everything() -> list[Workload]:
    """The kernels that are timed beside peers, and some of other dtypes and with integers."""
    shared = [work for work in workloads.kernels() if work.flops < MANY]
    return [*shared, *_others()]


def _others() -> list[Workload]:
    runs: dict[str, tuple[workloads.Shape, Callable[..., Any]]] = {
        "exp of float64": (_MILLION, lambda ops, x: x.double().exp().float()),
        "log of float64": (_MILLION, lambda ops, x: x.double().abs().log().float()),
        "int32 arithmetic": (_MILLION, lambda ops, x: _whole((x * 1000).int())),
        "int64 arithmetic": (_MILLION, lambda ops, x: _whole((x * 1000).long())),
        "float16 gelu": (_MILLION, lambda ops, x: x.half().gelu().float()),
        "compare and select": (_MILLION, lambda ops, x: (x < 0.5).where(x, x * x).clip(-1, 2)),
        "any of bools": (_ROWS, lambda ops, x: (x > 4).any(1)),
        "argmax": (_ROWS, lambda ops, x: x.argmax(1)),
        "sort": ((512, 256), lambda ops, x: x.sort(1)[0]),
        "max pool": ((8, 32, 56, 56), lambda ops, x: ops.max_pool(x)),
        "two masks": (_MILLION, lambda ops, x: (x > 0) & (x * x < 1)),
        "each four times": (_ROWS, lambda ops, x: x.repeat_interleave(4, 1)),
        "rotated pairs": (_ROWS, lambda ops, x: _rotated(x.reshape(4096, 512, 2))),
        "colours last": ((8, 3, 224, 224), lambda ops, x: x.permute(0, 2, 3, 1).contiguous()),
        "running product": ((1024, 128), lambda ops, x: (x * 0.01 + 1).cumprod(1)),
        "twice as large": ((8, 32, 56, 56), lambda ops, x: x.interpolate((112, 112))),
        "softmax bfloat16": (_ROWS, lambda ops, x: x.bfloat16().softmax(1)),
        "binary loss": (_ROWS, lambda ops, x: x.binary_crossentropy_logits((x > 0).float())),
    }
    found = [Workload(name, "other", (shape,), one) for name, (shape, one) in runs.items()]
    product = Workload("", "other", ((512, 512),) * 2, lambda ops, a, b: a @ b)
    return found + [
        replace(product, name=f"matmul {dtype} 512", dtype=dtype, rtol=rtol)
        for dtype, rtol in (("bfloat16", 5e-3), ("float16", 1e-3), ("float64", 1e-9))
    ]


def _whole(x: Any) -> Any:
    return ((x * 7 + 3) ^ (x >> 1)) % 5 + x // 3


def _rotated(x: Any) -> Any:
    return type(x).stack([-x[..., 1], x[..., 0]], dim=-1)


_MILLION, _ROWS = (1 << 20,), (4096, 1024)


def head(compilers: list[str]) -> str:
    """The first lines of the table."""
    columns = " | ".join(f"{c} ms | of the best" for c in compilers)
    return f"| workload | {columns} |\n| --- |" + " ---: | ---: |" * len(compilers)


def line(name: str, seconds: list[float]) -> str:
    """Milliseconds by compiler, and the share of the best one's speed that each reaches."""
    cells = [f"{1e3 * s:.3g} | {min(seconds) / s:.2f}" for s in seconds]
    return f"| {name} | {' | '.join(cells)} |"


def fastest(work: Workload, compilers: Sequence[str], rounds: int) -> list[float]:
    """Seconds of the fastest run by each compiler; AssertionError if their results differ."""
    peer = TinymlPeer()
    call = peer.prepare(work, work.inputs())
    for _ in range(2):  # the second call puts the inputs into memory
        call()
    with trace.listen(trace.Launched) as launches:
        results = call()
    plans = [_plan(_machine(compiler), launches) for compiler in compilers]
    values = []
    for plan in plans:
        plan.run()
        values.append([peer.numpy(result).copy() for result in results])
    for other in values[1:]:
        for a, b in zip(values[0], other, strict=True):
            np.testing.assert_allclose(a, b, 0, work.rtol * np.abs(a).max(), err_msg=work.name)
    times = [[_least(plan.run) for plan in plans] for _ in range(rounds)]
    return [min(column) for column in zip(*times, strict=True)]


@functools.cache
def _machine(compiler: str) -> CpuMachine:
    with config.override(compiler=compiler):
        return CpuMachine()


def _plan(machine: CpuMachine, launches: Sequence[trace.Launched]) -> CpuPlan:
    """The same launches on the same memory, by programs of that machine."""
    loaded = machine.load(launch.call.executable.program for launch in launches)
    memories = [[buffer.memory for buffer in launch.buffers] for launch in launches]
    return machine.plan(list(zip(loaded, memories, strict=True)))


def _least(call: Callable[[], Any]) -> float:
    """Processor seconds of the fastest of the calls that fill a slice."""
    times: list[float] = []
    while not times or sum(times) < SLICE:
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


if __name__ == "__main__":
    main()
