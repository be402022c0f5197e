"""The same workloads on an NVIDIA card, beside torch, torch.compile and tinygrad where they are.

    python benchmarks/cuda.py                            # all; writes benchmarks/results/
    python benchmarks/cuda.py --seconds 540 --out FILE   # again with the same FILE goes on with it
    python benchmarks/cuda.py matmul softmax --peers torch
    python benchmarks/cuda.py --processes 8              # the host's part side by side
    python benchmarks/cuda.py --device EMU --small       # a rehearsal without a card

First everything by tinyml, checked against float64 and timed, then by one peer after the other;
last, kernels by the rules of thumb beside the best that a search finds (`--beam 0`: no search).
A process of its own measures (card.py): who fails a kernel, dies or hangs is one line of the
table, and another process goes on. The file is written after each workload. With more
`--processes` the card is still one's at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout need not be installed

from benchmarks import card, machine, report, run, search
from benchmarks.card import BEAM, CEILINGS, OWN, PRODUCTS, RATIO, Item
from benchmarks.search import Compared
from benchmarks.steps import Step

RESULTS = Path(__file__).resolve().parent / "results"
PEERS = "torch", "compile", "tinygrad"
LIMIT = 120.0  # seconds for one workload: what hangs must not end the run
PATIENCE = 3  # times as long for torch.compile of a whole step, for a first call, and a search
HANGS = 2  # of one kind, after which nobody asks for the rest
NO_ANSWER = "no answer"
HEAD = "| workload | kernels | tinyml ms | roof | GB/s | TFLOP/s | host us | {} |"
SAME = "card", "driver", "commit"  # in all of a file
CACHES = "TINYML_CACHE", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR"  # folders
Record = dict[str, Any]


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="words: workloads whose name has one of them")
    parser.add_argument("--peers", default=",".join(PEERS), help="%(default)s")
    parser.add_argument("--seconds", type=float, default=1e9, help="for all of it")
    parser.add_argument("--limit", type=float, default=LIMIT, help="for a workload: %(default)s")
    parser.add_argument("--out", type=Path, help="JSON file to write, or to go on with")
    parser.add_argument("--beam", type=float, default=20.0, help="for a search: %(default)s")
    parser.add_argument("--processes", type=int, default=1, help="that measure: %(default)s")
    parser.add_argument("--device", default="CUDA")
    parser.add_argument("--small", action="store_true", help="tiny inputs: a rehearsal")
    args = parser.parse_args(given)
    if unknown := {*filter(None, args.peers.split(","))} - {*PEERS}:
        parser.error(f"--peers {', '.join(unknown)}: there are {', '.join(PEERS)}")
    works = [item.work for item in card.items(args.small)]
    if vain := [w for w in args.names if not any(run.matches(work, [w]) for work in works)]:
        parser.error(f"no workload's name has {', '.join(map(repr, vain))}, and no group is that")
    args.end = time.monotonic() + args.seconds
    return args


def main() -> None:
    args = arguments()
    workers = Workers(args)
    facts = workers.first.facts()
    if "error" in facts:
        workers.close()
        sys.exit(f"nothing is measured, there is no card that answers: {facts['error']}")
    slug = machine.slug(facts["card"])[:40]
    args.out = args.out or RESULTS / f"{datetime.date.today()}-{slug}.json"
    record = begun(args.out, facts)
    if "error" in record:
        workers.close()
        sys.exit(record["error"])
    record |= {"facts": facts, "command": " ".join(sys.argv)}
    try:
        for line in measure(workers, record, args):
            print(line, flush=True)
    finally:
        workers.close()
    print(document(record))


def begun(out: Path, facts: Record) -> Record:
    """What a file has that is to be gone on with: of the same card and program, or an error."""
    record: Record = json.loads(out.read_text()) if out.exists() else {"results": {}}
    before = record.get("facts", facts)
    others = [name for name in SAME if before.get(name) != facts.get(name)]
    if others:
        return {"error": f"{out} has figures of another {' and '.join(others)}: name another --out"}
    return record


def measure(workers: Workers, record: Record, args: argparse.Namespace) -> Iterator[str]:
    """Ask for all that the record does not have yet; a line for each answer."""
    chosen = [i for i in card.items(args.small) if run.matches(i.work, args.names)]
    if chosen and "error" in record.get(CEILINGS, {"error": ""}):
        record[CEILINGS] = workers.first.ask("", Item(chosen[0].work), CEILINGS)
    last = [BEAM] if args.beam > 0 else []
    for who in (OWN, *(name for name in args.peers.split(",") if name), *last):
        asked = [i for i in chosen if (i.searched if who == BEAM else who == OWN or i.of_peers)]
        asked = [
            i for i in asked if "seconds" not in record["results"].get(i.name, {}).get(who, {})
        ]
        asked.sort(key=lambda i: (i.first, i.settings))
        for item, answer in workers.answers(who, asked):
            record["results"].setdefault(item.name, {})[who] = answer
            save(record, args.out)
            said = answer.get("error") or f"{report.milliseconds(answer['seconds'])} ms"
            ratio = f", the default {answer[RATIO]:.2f}x" if RATIO in answer else ""
            yield f"{item.name}: {who}: {said}{ratio}"
        if workers.late(who):
            yield f"the time is over; the same command with --out {args.out} goes on"
            return


def save(record: Record, out: Path) -> None:
    """Write the file; whoever is killed meanwhile leaves the old one."""
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_suffix(".new")
    draft.write_text(json.dumps(record, indent=1) + "\n")
    draft.replace(out)


class Workers:
    """As many processes as are wanted, which take turns with the card."""

    def __init__(self, args: argparse.Namespace, kind: type[Worker] | None = None) -> None:
        self.args = args
        self._folder = tempfile.TemporaryDirectory(prefix="tinyml-turns-")
        turns = Path(self._folder.name, "turns")
        turns.touch()
        self.all = [(kind or Worker)(args, str(turns)) for _ in range(args.processes)]
        self.first, self._free = self.all[0], [*reversed(self.all)]
        self._hung: Counter[tuple[str, ...]] = Counter()

    def late(self, who: str) -> bool:
        """Whether there is no time left to ask for more."""
        patience = PATIENCE * self.args.beam if who == BEAM else 0
        return bool(time.monotonic() + patience > self.args.end)

    def answers(self, who: str, items: Sequence[Item]) -> Iterator[tuple[Item, Record]]:
        """What is answered for each, as it comes; first calls and searches are alone."""
        crowd = [item for item in items if not item.first and who != BEAM]
        with ThreadPoolExecutor(len(self.all)) as pool:
            asked = {pool.submit(self._answer, who, item): item for item in crowd}
            for done in as_completed(asked):
                answer = done.result()
                if answer is not None:
                    yield asked[done], answer
        for item in items[len(crowd) :]:
            answer = self._answer(who, item)
            if answer is not None:
                yield item, answer

    def _answer(self, who: str, item: Item) -> Record | None:
        """By whoever is free; None if it is too late to ask."""
        if self.late(who):
            return None
        kind = who, item.work.group, *item.settings
        if self._hung[kind] >= HANGS:
            return {"error": f"left out: {HANGS} before it gave no answer"}
        worker = self._free.pop()
        try:
            answer = worker.ask(who, item)
        finally:
            self._free.append(worker)
        self._hung[kind] += NO_ANSWER in answer.get("error", "")
        return answer

    def close(self) -> None:
        """End all processes."""
        for worker in self.all:
            worker.close()
        self._folder.cleanup()


_SPAWN = multiprocessing.get_context("spawn")  # a context of CUDA's does not fork
_STARTING = threading.Lock()  # a process starts with what this one's environment is then


class Worker:
    """A process that measures: another one after whatever it did not survive."""

    def __init__(self, args: argparse.Namespace, turns: str = os.devnull) -> None:
        self.args, self.turns, self.child = args, turns, None
        self.settings = tuple[str, ...]()
        self.said: Record = {}

    def facts(self) -> Record:
        """Start the process, if there is none; what it says of where it runs."""
        if self.child is None:
            self.pipe, its = _SPAWN.Pipe()
            arguments = its, self.args.device, self.args.small, self.args.beam, self.turns
            self.child = _SPAWN.Process(target=card.serve, args=arguments, daemon=True)
            with _STARTING:
                before = dict(os.environ)
                os.environ.update(s.split("=") for s in self.settings)
                self.child.start()
                os.environ.clear()
                os.environ.update(before)
            its.close()
            self.said = self._answer(PATIENCE)  # torch is imported
        return self.said

    def ask(self, who: str, item: Item, name: str = "") -> Record:
        """What `who` takes for a workload, or the error."""
        return self._first(who, item) if item.first else self._ask(who, item, name)

    def _first(self, who: str, item: Item) -> Record:
        """The first call of a process whose caches are empty, and of another after it."""
        with tempfile.TemporaryDirectory() as folder:
            caches = tuple(f"{name}={folder}" for name in CACHES)
            at_first = replace(item, settings=item.settings + caches)
            cold = self._ask(who, at_first, item.name)
            self.close()
            warm = self._ask(who, at_first, item.name)
            self.close()
        return cold | ({"warm seconds": warm["seconds"]} if "seconds" in warm else warm)

    def _ask(self, who: str, item: Item, name: str) -> Record:
        if item.settings != self.settings:
            self.close()
        self.settings = item.settings
        facts = self.facts()
        if "error" in facts:
            return facts
        self.pipe.send((who, name or item.name))
        whole = item.first or who == BEAM or (who == "compile" and isinstance(item.work, Step))
        answer = self._answer(PATIENCE if whole else 1)
        if "CUDA" in answer.get("error", ""):  # after a fault a card refuses the process
            self.close()
        return answer

    def _answer(self, patience: int = 1) -> Record:
        limit = max(1.0, min(patience * self.args.limit, self.args.end - time.monotonic() + 30))
        try:
            if self.pipe.poll(limit):
                found: Record = self.pipe.recv()
                return found
            why = f"{NO_ANSWER} within {limit:.0f} s"
        except EOFError:
            self.child.join()
            why = f"the process died, exit code {self.child.exitcode}"
        self.close(kill=True)
        return {"error": why}

    def close(self, kill: bool = False) -> None:
        """End the process."""
        if self.child is None:
            return
        if not kill:
            with contextlib.suppress(OSError):
                self.pipe.send(None)
            self.child.join(20)
        self.child.kill()
        self.child.join()
        self.child = None


# ---- the table ----


def document(record: Record) -> str:
    """All figures as a table, with where they were measured, and what failed."""
    results = record["results"]
    others = [name for name in PEERS if any(name in found for found in results.values())]
    lines = [f"- {name}: {value}" for name, value in record["facts"].items()]
    said = record.get(CEILINGS, {})
    ceilings = {n: x for n, x in said.items() if not isinstance(x, str)}
    lines += [f"- ceiling, {name}: {value:.4g}" for name, value in ceilings.items()]
    lines += [f"- products of matrices made by: {said[PRODUCTS]}"] if PRODUCTS in said else []
    head = HEAD.format(" | ".join([f"{name} ms" for name in others])).replace(" |  |", " |")
    lines += ["", head, "| --- " + "| ---: " * (head.count("|") - 2) + "|"]
    first = {name: found for name, found in results.items() if name.endswith("first call")}
    usual = results.keys() - first.keys()
    lines += [row(n, found, others, ceilings) for n, found in results.items() if n in usual]
    searched = [
        search.line(name, Compared(**found))
        for name, results_of in results.items()
        for found in results_of.get(BEAM, {}).get("kernels", ())
    ]
    lines += ["", search.HEAD, *searched] if searched else []
    lines += ["", *(f"- {name}: {seconds_of_first(found)}" for name, found in first.items())]
    failed = [
        f"- {name}: {who}: {answer['error']}"
        for name, found in results.items()
        for who, answer in found.items()
        if "error" in answer
    ]
    return "\n".join([*lines, *(["", "Failed, or left out:", "", *failed] if failed else [])])


def seconds_of_first(found: Record) -> str:
    """Everybody's, in words."""
    return ", ".join(
        f"{who} {answer['seconds']:.2f} s (caches filled: {answer['warm seconds']:.2f} s)"
        for who, answer in found.items()
        if "error" not in answer
    )


def row(name: str, found: Record, others: list[str], ceilings: Record) -> str:
    """A line of the table; in brackets how many times faster tinyml is."""
    own = found.get(OWN, {})
    seconds = own.get("seconds")
    cells = [name, *[""] * 6]
    if seconds:
        rates = own["bytes"] / seconds / 1e9, own["flops"] / seconds / 1e12
        roof = roofline(own, ceilings) / seconds
        cells = [name, str(len(own["kernels"])), report.milliseconds(seconds)]
        cells += [f"{100 * roof:.0f} %" if roof else "", *(f"{rate:.1f}" for rate in rates)]
        cells.append(f"{1e6 * own['host seconds']:.0f}")
    elif own:
        cells[2] = "failed"
    for who in others:
        other = found.get(who, {}).get("seconds")
        ratio = f" ({other / seconds:.2f}x)" if other and seconds else ""
        cells.append(f"{report.milliseconds(other)}{ratio}" if other else "")
    return f"| {' | '.join(cells)} |"


def roofline(own: Record, ceilings: Record) -> float:
    """The least seconds that a call takes, by what was measured of the card."""
    copy, rate = ceilings.get("copy"), ceilings.get(own["dtype"])
    by_bytes = own["bytes"] / copy if copy else 0.0
    return max(by_bytes, own["flops"] / rate if rate else 0.0)


if __name__ == "__main__":
    main()
