"""The same generated C by gcc and by clang: processes of both in turn.

    python benchmarks/compilers.py                     # --compilers gcc,clang --rounds 5
    python benchmarks/compilers.py --threads 1 matmul

Each process compiles the workloads with one compiler (or finds them in the disk cache), checks them
against float64 and prints its fastest call of each. The table has the medians of the processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

WORDS = ["gelu(a*b+c)", "sin-exp", "softmax", "layernorm", "sum axis", "matmul 512", "matmul 1024"]
WORDS += ["A.T @ B", "matrix times", "conv 3x3", "attention B2 H8 T512"]
SPAN = 0.3  # seconds of calls of one workload in one process


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=WORDS, help="words of names of workloads")
    parser.add_argument("--compilers", default="gcc,clang", help="%(default)s")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="0: one per core")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return print(json.dumps(fastest_calls(args.names)))
    compilers = args.compilers.split(",")
    rounds = [[_live(c, args) for c in compilers] for _ in range(args.rounds)]
    print(table(compilers, rounds))
    return None


def table(compilers: list[str], rounds: list[list[dict[str, float]]]) -> str:
    """Milliseconds by compiler, and the share of the best one's speed that each reaches."""
    lines = [f"| workload | {' | '.join(f'{c} ms | of the best' for c in compilers)} |"]
    lines.append("| --- |" + " ---: | ---: |" * len(compilers))
    for name in rounds[0][0]:
        medians = [statistics.median(r[n][name] for r in rounds) for n in range(len(compilers))]
        cells = [f"{1e3 * m:.3g} | {min(medians) / m:.2f}" for m in medians]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def fastest_calls(names: list[str]) -> dict[str, float]:
    """Seconds of the fastest call of each workload, in this process."""
    from benchmarks import run
    from benchmarks.peers import TinymlPeer

    peer, found = TinymlPeer(), {}
    for work in run.everything(quick=False):
        if work.group != "step" and run.matches(work, names):
            inputs = work.inputs()
            call = run.checked(peer, work, inputs, work.reference(inputs))
            times, end = [], time.perf_counter() + SPAN
            while len(times) < 5 or time.perf_counter() < end:
                start = time.perf_counter()
                call()
                times.append(time.perf_counter() - start)
            found[work.name] = min(times)
    return found


def _live(compiler: str, args: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", *args.names]
    environment = {**os.environ, "CC": compiler, "DEVICE": "CPU"}
    if args.threads:
        environment["THREADS"] = str(args.threads)
    found: dict[str, float] = json.loads(subprocess.check_output(command, env=environment))
    return found


if __name__ == "__main__":
    main()
