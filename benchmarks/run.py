"""Time tinyml beside its peers, in one interleaved run.

python benchmarks/run.py                        # everything; writes benchmarks/results/
python benchmarks/run.py --quick softmax matmul # what has these words in its name
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import multiprocessing
import os
import platform
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout need not be installed

import numpy as np
import numpy.typing as npt

from benchmarks import ceilings, machine, peers, report, steps, timing, workloads
from benchmarks.peers import Call, Peer, Work
from benchmarks.steps import GPTSize
from benchmarks.workloads import Arrays
from tinyml import config

RESULTS = Path(__file__).resolve().parent / "results"
ROOF = "the machine"  # as a competitor that does nothing else than what bounds
TIMEOUT = 600  # seconds for one workload: what hangs or crashes must not end the run

# With these, glibc keeps memory that was freed, for all competitors alike: otherwise the time of
# those who take large outputs from malloc is mostly the kernel's, clearing pages.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}


def main() -> None:
    args = arguments()
    with config.override(threads=args.threads):
        run(args)


def run(args: argparse.Namespace) -> None:
    threads = ceilings.threads()
    environment = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "CPU_COUNT": str(threads)}
    environment |= {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    environment |= {"OPENBLAS_THREAD_TIMEOUT": "8"}  # its idle threads sleep soon, as others' do
    environment |= {} if args.memory == "fresh" else KEEP_MEMORY
    if any(os.environ.get(name) != value for name, value in environment.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **environment})
    found, missing = peers.open_peers(args.peers, threads)
    print("\n".join(missing), file=sys.stderr)
    chosen = [w for w in everything(args.quick) if matches(w, args.names)]
    top = _apart(lambda: dataclasses.asdict(ceilings.measure(threads, 7 if args.quick else 20)))
    if "error" in top:
        sys.exit(f"the ceilings cannot be measured: {top['error']}")
    limits = ceilings.Ceilings(**top)
    results = [_one(work, found, limits, args) for work in chosen]
    write(summary(found, limits, results, args, environment), args)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="words: workloads whose name has one of them")
    parser.add_argument("--rounds", type=int, default=0, help="calm rounds (15; quick: 5)")
    parser.add_argument("--threads", type=int, default=0, help="0: one per core")
    parser.add_argument("--peers", default=",".join(peers.PEERS), help="%(default)s")
    parser.add_argument("--quick", action="store_true", help="fewer workloads, fewer rounds")
    parser.add_argument("--memory", choices=("kept", "fresh"), default="kept", help="see README")
    parser.add_argument("--budget", type=float, default=0, help="seconds of rounds per workload")
    parser.add_argument("--out", type=Path, help="JSON file to write (markdown goes beside it)")
    args = parser.parse_args()
    args.peers = [name for name in args.peers.split(",") if name]
    if unknown := set(args.peers) - set(peers.PEERS):
        parser.error(f"--peers {', '.join(unknown)}: there are {', '.join(peers.PEERS)}")
    args.rounds = args.rounds or (5 if args.quick else 15)
    args.budget = args.budget or (5.0 if args.quick else 40.0)
    return args


def everything(quick: bool) -> list[Work]:
    """All workloads, or those of --quick."""
    gpt2 = GPTSize(12, 768, 12, 1024, 1, 50257)  # of 124M parameters
    decoders = [steps.decode(GPTSize(batch=1)), steps.decode(gpt2)]
    all_of_them: list[Work] = [*workloads.kernels(), *steps.steps(), *decoders]
    return [work for work in all_of_them if work.quick or not quick]


def matches(work: Work, words: list[str]) -> bool:
    """Whether the command line asks for this workload."""
    return not words or any(word in work.name or word == work.group for word in words)


# ---- one workload, in a process of its own ----


def _apart(function: Any) -> dict[str, Any]:
    """What `function` returns in a child process, or {"error": ...} if that one dies."""
    context = multiprocessing.get_context("fork")
    mine, its = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(its, function))
    child.start()
    its.close()
    try:
        answer = mine.recv() if mine.poll(TIMEOUT) else {"error": f"took over {TIMEOUT} s"}
    except EOFError:
        child.join()
        answer = {"error": f"the process died, exit code {child.exitcode}"}
    child.join(10)
    child.kill()
    child.join()
    found: dict[str, Any] = answer
    return found


def _answer(pipe: Connection, function: Any) -> None:
    try:
        pipe.send(function())
    except BaseException as error:
        pipe.send({"error": words(error)})


def _one(
    work: Work, found: list[Peer], limits: ceilings.Ceilings, args: argparse.Namespace
) -> dict[str, Any]:
    start = time.perf_counter()
    result = _apart(lambda: measure(work, found, limits, args))
    if "error" in result:  # find out who it was
        result = {"name": work.name, "peers": {}, "errors": {"tinyml": result["error"]}}
        others = [peer for peer in found if peer.name != "tinyml"]
        if others:
            again = _apart(lambda: measure(work, others, limits, args))
            if "error" not in again:
                again["errors"] |= result["errors"]
                result = again
    names = [peer.name for peer in found]
    print(report.table([result], names).split("\n")[-1], end="  ", file=sys.stderr)
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return result


def measure(
    work: Work, found: list[Peer], limits: ceilings.Ceilings, args: argparse.Namespace
) -> dict[str, Any]:
    """Check everybody's results, then time those who are right."""
    inputs = work.inputs()
    expected = work.reference(inputs)
    calls, errors = {}, {}
    for peer in found:
        try:
            calls[peer.name] = checked(peer, work, inputs, expected)
        except NotImplementedError as error:
            errors[peer.name] = f"left out: {error}"
        except Exception as error:
            errors[peer.name] = words(error)
    result: dict[str, Any] = {"name": work.name, "group": work.group, "errors": errors, "peers": {}}
    if not calls:
        return result
    read, written = work.traffic(inputs, expected)
    roof = limits.seconds(read, written, work.flops)
    bound = "B" if limits.moving(read, written) >= roof else "F"
    bare = (
        ceilings.mover(read, written, limits.threads)
        if bound == "B"
        else ceilings.multiplier(work.flops, limits.threads)
    )
    timed = {**calls, ROOF: bare} if bare else calls
    timings = timing.interleave(timed, args.rounds, args.budget)
    roof = timings.seconds(ROOF) if bare else roof
    result |= {"bytes": read + written, "flops": work.flops, "roof seconds": roof, "bound": bound}
    result |= {"kept": len(timings.kept), "taken": timings.taken, "calm": timings.calm}
    for name in calls:
        entry = {"seconds": timings.seconds(name), "spread": timings.spread(name)}
        entry |= {"fraction": timings.speedup(name, ROOF) if bare else roof / entry["seconds"]}
        if "tinyml" in calls:
            entry |= {"speedup": timings.speedup("tinyml", over=name)}
        result["peers"][name] = entry
    if "tinyml" in calls:
        result |= {"fraction": result["peers"]["tinyml"]["fraction"]}
    return result


def checked(peer: Peer, work: Work, inputs: Any, expected: Any) -> Call:
    """The peer's call, after its first four results were compared with float64."""
    call = peer.prepare(work, inputs)
    for _ in range(4):  # a JIT runs plainly, captures, then replays
        results = [peer.numpy(result) for result in call()]
    off(work, results, expected)
    return call


def off(work: Work, results: Arrays, expected: Arrays) -> float:
    """How far results are off, of the largest value; AssertionError if too far."""
    worst, dropped = 0.0, getattr(work, "dropped", 0.0)
    for number, (result, right) in enumerate(zip(results, expected, strict=True)):
        if result.shape != right.shape:
            raise AssertionError(f"result {number} is {result.shape}, and not {right.shape}")
        if dropped:
            _check_share(number, result == 0, dropped)
            right = np.where(result == 0, 0, right)
        error = float(np.abs(result - right).max() / max(float(np.abs(right).max()), 1e-30))
        if not error <= work.rtol:
            raise AssertionError(f"result {number} is off by {error:.2g} of its largest value")
        worst = max(worst, error)
    return worst


def _check_share(number: int, chosen: npt.NDArray[Any], share: float) -> None:
    """AssertionError if it is less likely than one in a million that chance chose these."""
    found, spread = chosen.mean(), math.sqrt(share * (1 - share) / chosen.size)
    if abs(found - share) > 5 * spread:
        raise AssertionError(f"result {number}: {found:.2%} of it are 0, and not {share:.0%}")


def words(error: BaseException, most: int = 240) -> str:
    """One short line that says what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"[:most]


# ---- the report ----


def summary(
    found: list[Peer],
    limits: ceilings.Ceilings,
    results: list[dict[str, Any]],
    args: argparse.Namespace,
    environment: dict[str, str],
) -> dict[str, Any]:
    """Everything that goes into the JSON file."""
    words = " ".join(f"{name}={value}" for name, value in environment.items())
    settings = {
        "threads": limits.threads,
        "output memory": args.memory,
        "environment": words,
        "rounds": args.rounds,
        "command": " ".join(sys.argv),
        "host": platform.node(),
    }
    settings |= {f"version of {peer.name}": peer.version for peer in found}
    return {
        "title": "tinyml beside its peers, CPU, float32",
        "machine": machine.facts(),
        "settings": settings,
        "ceilings": dataclasses.asdict(limits),
        "peers": [peer.name for peer in found],
        "results": results,
    }


def write(full: dict[str, Any], args: argparse.Namespace) -> None:
    """Print the report; keep it when it is one of everything, or a file was named."""
    text = report.document(full)
    print(text)
    path = args.out
    if path is None and not args.quick and not args.names:
        facts = full["machine"]
        path = RESULTS / f"{facts['date']}-cpu-{machine.slug(facts['cpu'])}.json"
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(full, indent=1) + "\n")
        path.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
