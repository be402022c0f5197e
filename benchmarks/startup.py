"""From `python` to the first training step: whole processes, cold and warm disk caches.

    python benchmarks/startup.py                          # the digits convnet
    python benchmarks/startup.py --step GPT --rounds 3

Each process makes its data and parameters, runs one step, says so and ends. Processes of the
libraries alternate. Cold means an empty folder for everything that a library caches on disk.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

LIBRARIES = ("tinyml", "torch", "compile", "jax", "tinygrad")
if TYPE_CHECKING:
    from benchmarks.peers import Peer

IMPORTS = ("numpy", "tinyml", "torch", "jax", "tinygrad")
FIRST_OP = "from tinyml import Tensor; print((Tensor([1.0, 2.0]) + 1).tolist())"


@dataclass(frozen=True)
class Life:
    """A process: seconds to its first step, to its end, and the most memory it held."""

    step: float
    end: float
    megabytes: float
    processor: float = 0.0  # seconds that it computed, which others on the machine change less


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", default="digits", help="a word of the step's name: %(default)s")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", default=",".join(LIBRARIES), help="%(default)s")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return first_step(args.child, args.step)
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors\n")
    print(imports(args.rounds))
    print()
    print(first_steps(args.peers.split(","), args.step, args.rounds))
    return None


def first_step(library: str, word: str) -> None:
    """What the child does: one step, waited for."""
    from benchmarks import peers, steps

    threads = len(os.sched_getaffinity(0))
    openers: dict[str, Callable[[], Peer]] = {
        "tinyml": peers.TinymlPeer,
        "torch": lambda: peers.TorchPeer(threads),
        "compile": lambda: peers.CompilePeer(threads),
        "jax": lambda: peers.JaxPeer(threads),
        "tinygrad": peers.TinygradPeer,
    }
    peer = openers[library]()
    step = next(s for s in steps.steps() if word in s.name)
    (loss,) = peer.prepare(step, step.inputs())()
    print(float(peer.numpy(loss)), flush=True)


def imports(rounds: int) -> str:
    """A table of what `import` costs, beyond starting Python."""
    lines = ["| process | s | processor s | of numpy | MB |", "| --- | ---: | ---: | ---: | ---: |"]
    commands = {"pass": "python, nothing imported"} | {
        f"import {n}": f"import {n}" for n in IMPORTS
    }
    commands[FIRST_OP] = "tinyml's first op"
    present = [c for c in commands if live([sys.executable, "-c", c], {}) is not None]
    lives: dict[str, list[Life]] = {command: [] for command in present}
    for _ in range(rounds):
        for command in present:
            lives[command].append(live([sys.executable, "-c", command], {}) or Life(0, 0, 0))
    least = {c: min(life.processor for life in lives[c]) for c in present}
    bare, numpy = least["pass"], least["import numpy"]
    for command in present:
        median = statistics.median(life.end for life in lives[command])
        ratio = (least[command] - bare) / (numpy - bare)  # beyond starting Python
        numbers = f"{median:.2f} | {least[command]:.3f} | {ratio:.2f}"
        megabytes = f"{lives[command][0].megabytes:.0f}"
        lines.append(f"| {commands[command]} | {numbers} | {megabytes} |")
    return "\n".join(lines)


def first_steps(libraries: list[str], word: str, rounds: int) -> str:
    """A table of the first step, cold and warm."""
    head = f"| first step: {word} | cold: step s | end s | warm: step s | end s | peak MB |"
    lines = [head, "| --- | ---: | ---: | ---: | ---: | ---: |"]
    cold: dict[str, list[Life]] = {library: [] for library in libraries}
    warm: dict[str, list[Life]] = {library: [] for library in libraries}
    for _ in range(rounds):
        for library in libraries:
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, __file__, "--child", library, "--step", word]
                for lives in (cold, warm):
                    if (life := live(command, caches(folder))) is not None:
                        lives[library].append(life)
    for library in libraries:
        lines.append(f"| {library} | {' | '.join(_cells(cold[library], warm[library]))} |")
    return "\n".join(lines)


def _cells(cold: list[Life], warm: list[Life]) -> list[str]:
    if not cold or not warm:
        return ["failed or not installed", "", "", "", ""]
    median = statistics.median
    times = [median(life.step for life in cold), median(life.end for life in cold)]
    times += [median(life.step for life in warm), median(life.end for life in warm)]
    peak = max(life.megabytes for life in warm)
    return [*(f"{seconds:.2f}" for seconds in times), f"{peak:.0f}"]


def caches(folder: str) -> dict[str, str]:
    """Settings that send each library's disk cache into `folder`."""
    return {
        "TINYML_CACHE": f"{folder}/tinyml",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "CACHEDB": f"{folder}/tinygrad.db",
        "JAX_COMPILATION_CACHE_DIR": f"{folder}/jax",
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",  # else it keeps what took a second
    }


def live(command: list[str], environment: dict[str, str]) -> Life | None:
    """Run a process to its end; None if it fails. Its first line of output marks the step."""
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    paths = filter(None, (str(ROOT), inherited.get("PYTHONPATH")))
    start = time.perf_counter()
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**inherited, "PYTHONPATH": os.pathsep.join(paths), **environment},
    )
    assert child.stdout is not None
    child.stdout.readline()
    step = time.perf_counter() - start
    child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    child.stdout.close()
    end = time.perf_counter() - start
    # the children's memory (compilers) is not in it; Linux counts kilobytes
    processor = usage.ru_utime + usage.ru_stime
    return None if child.returncode else Life(step, end, usage.ru_maxrss / 1024, processor)


if __name__ == "__main__":
    main()
