"""The same workloads on an NVIDIA card, timed by the card's own events.

    python benchmarks/cuda.py                # all; beside torch where it has CUDA
    python benchmarks/cuda.py matmul softmax

The time of a workload is the sum of what its kernels took between two events each
(`Executable.launch_timed`), so that neither Python nor the launches are in it; torch is timed
between two events around the whole call, queued behind others. Medians; nothing is interleaved.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout need not be installed

from benchmarks import peers, run, workloads
from benchmarks.workloads import Workload
from tinyml import Device, config, trace
from tinyml.device import open_device
from tinyml.errors import TinymlError

ROUNDS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="words: workloads whose name has one of them")
    args = parser.parse_args()
    try:
        open_device("CUDA")
    except (TinymlError, ImportError, OSError) as error:
        sys.exit(f"nothing is measured, there is no card that answers: {error}")
    Device.DEFAULT = "CUDA"
    torch = torch_with_cuda()
    print("| workload | kernels | tinyml ms | GB/s | TFLOP/s | torch ms | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for work in [*run.everything(quick=False), *workloads.for_cards()]:
        if isinstance(work, Workload) and run.matches(work, args.names):
            print(line(work, torch), flush=True)


def line(work: Workload, torch: Any) -> str:
    """One row of the table: checked, then timed."""
    inputs = work.inputs()
    expected = work.reference(inputs)
    try:
        with config.override(jit=False):  # each kernel is to be seen
            call = run.checked(peers.TinymlPeer(), work, inputs, expected)
            kernels, seconds = device_seconds(call)
    except Exception as error:
        return f"| {work.name} | | failed: {type(error).__name__}: {str(error)[:80]} | | | | |"
    rates = work.nbytes(inputs, expected) / seconds / 1e9, work.flops / seconds / 1e12
    cells = [work.name, str(kernels), f"{1e3 * seconds:.4f}", *(f"{rate:.1f}" for rate in rates)]
    other = torch_seconds(torch, work, inputs) if torch else None
    cells += [f"{1e3 * other:.4f}", f"{other / seconds:.2f}"] if other else ["", ""]
    return f"| {' | '.join(cells)} |"


def device_seconds(call: Callable[[], Any]) -> tuple[int, float]:
    """How many kernels a call launches, and what they take together."""
    sums, count = [], 0
    for _ in range(ROUNDS):
        with trace.listen(trace.KernelRan) as launches:
            call()
        sums.append(sum(launch.seconds for launch in launches))
        count = len(launches)
    return count, statistics.median(sums)


def torch_with_cuda() -> Any:
    """torch, if it is installed and sees the card."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def torch_seconds(torch: Any, work: Workload, inputs: Any) -> float:
    """What torch takes for the same; float32 stays float32, as in tinyml."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    call = peers.TorchPeer(1, device="cuda").prepare(work, inputs)
    for _ in range(3):
        call()
    times = []
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(2_000_000)  # so that the launches are queued before the first event
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return float(statistics.median(times))


if __name__ == "__main__":
    main()
