"""What the figures of run.py were set out to reach, and which of them fall short.

python benchmarks/goals.py FILE.json...            # README's table; the last one wins a line
python benchmarks/goals.py --spread FILE.json...   # how much each line varies between these runs
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout need not be installed

from benchmarks.report import LEFT_OUT, Record, milliseconds

PEERS = ("torch", "compile", "jax")
TITLES = {"compile": "torch.compile"}


@dataclass(frozen=True)
class Goal:
    """The least share of the roofline, and how many times faster than peers at least.

    `best` is the speedup over the fastest peer of the run, `torch` that over eager torch.
    """

    roof: float = 0.0
    best: float = 0.0
    torch: float = 0.0

    def missed(self, line: Record) -> list[str]:
        """In words, what a line of a report falls short of, as rounded there."""
        peers = _speedups(line)
        wanted = [
            (
                "roof",
                round(line.get("fraction", 0), 2),
                self.roof,
                f"{100 * self.roof:.0f} % of the roof",
            ),
            ("best", min(peers.values(), default=1), self.best, f"{self.best:g}x of the best"),
            ("torch", peers.get("torch", 0), self.torch, f"{self.torch:g}x of torch"),
        ]
        return [text for _, reached, least, text in wanted if round(reached, 2) < least]


def _speedups(line: Record) -> dict[str, float]:
    return {name: e["speedup"] for name, e in line["peers"].items() if name != "tinyml"}


STREAM = Goal(roof=0.9, best=1.0)
ROW = Goal(roof=0.85, best=1.0)
PRODUCT = Goal(roof=0.9, best=1.0)
AHEAD = Goal(best=1.0)

# The first of these words that a workload's name begins with decide.
GOALS = {
    "sin-exp-tanh-sigmoid": Goal(best=1.0, torch=5.0),
    "dropout": AHEAD,
    "softmax 512x32000": AHEAD,
    "running sum": AHEAD,
    "transposed copy": AHEAD,
    "add": STREAM,
    "gelu": STREAM,
    **dict.fromkeys(("softmax", "log-softmax", "layernorm", "rmsnorm"), ROW),
    **dict.fromkeys(("sum all",), AHEAD),
    **dict.fromkeys(("sum axis", "cross-entropy"), ROW),
    **dict.fromkeys(("matmul 256", "matmul 333"), AHEAD),
    **dict.fromkeys(("matmul", "A", "linear"), PRODUCT),
    "4-bit weights": AHEAD,
    **dict.fromkeys(("matrix times vector", "vector times matrix"), PRODUCT),
    "conv": AHEAD,  # of oneDNN, by which torch and torch.compile make convolutions
    "attention": AHEAD,
    "GPT 4x256 T128 B8 step": Goal(best=2.0),
    **dict.fromkeys(("digits", "MLP", "residual", "GPT"), Goal(best=1.5)),
}


def goal(name: str) -> Goal:
    """What was set out for the workload of that name."""
    return next(goal for words, goal in GOALS.items() if name.startswith(words))


def merged(reports: Sequence[Record]) -> list[Record]:
    """The lines of several reports, each as the last report that measured it has it."""
    lines: dict[str, Record] = {}
    for report in reports:
        lines |= {line["name"]: line for line in report["results"]}
    return list(lines.values())


def table(lines: Sequence[Record]) -> str:
    """README's table: a line for each workload, with what it falls short of."""
    head = ["workload", "tinyml ms", "roof", *(TITLES.get(p, p) for p in PEERS), "falls short of"]
    rows = [head, ["---", *["---:"] * (len(head) - 2), "---"], *map(_cells, lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cells(line: Record) -> list[str]:
    if "tinyml" not in line["peers"]:
        return [line["name"], "failed", *[""] * len(PEERS), "", "all"]
    own = line["peers"]["tinyml"]["seconds"]
    roof = f"{100 * line['fraction']:.0f} % {line['bound']}"
    peers = [_speedup(line, name) for name in PEERS]
    short = ", ".join(goal(line["name"]).missed(line))
    return [line["name"], milliseconds(own), roof, *peers, short]


def _speedup(line: Record, peer: str) -> str:
    if peer in line["peers"]:
        return f"{line['peers'][peer]['speedup']:.2f}x"
    return "-" if line["errors"].get(peer, LEFT_OUT).startswith(LEFT_OUT) else "failed"


def spread(reports: Sequence[Record]) -> str:
    """A line for each workload: what several runs said of it, and how many of them met its goal."""
    runs: dict[str, list[Record]] = {}
    for line in (line for report in reports for line in report["results"]):
        if "tinyml" in line["peers"]:
            runs.setdefault(line["name"], []).append(line)
    head = ["workload", "runs", "tinyml ms", "roof", "fastest peer", "met its goal"]
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    for name, lines in runs.items():
        seconds = median(line["peers"]["tinyml"]["seconds"] for line in lines)
        roof = _range([100 * line["fraction"] for line in lines], ".0f")
        peers = [min(found.values()) for line in lines if (found := _speedups(line))]
        met = sum(not goal(name).missed(line) for line in lines)
        cells = [milliseconds(seconds), f"{roof} % {lines[0]['bound']}", _range(peers, ".2f")]
        rows.append([name, str(len(lines)), *cells, f"{met} of {len(lines)}"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _range(values: Sequence[float], form: str) -> str:
    """The least, the median and the greatest."""
    low, middle, high = (format(x, form) for x in (min(values), median(values), max(values)))
    return f"{low} .. **{middle}** .. {high}"


def main(arguments: Sequence[str]) -> None:
    paths = [path for path in arguments if path != "--spread"]
    reports: list[dict[str, Any]] = [json.loads(Path(path).read_text()) for path in paths]
    print(spread(reports) if "--spread" in arguments else table(merged(reports)))


if __name__ == "__main__":
    main(sys.argv[1:])
