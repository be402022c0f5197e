"""benchmarks/goals.py: what falls short of its goal is said in README's table, by itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import goals, steps, workloads
from benchmarks.goals import Goal
from benchmarks.steps import GPTSize


def line(name: str, fraction: float, **speedups: float) -> dict[str, Any]:
    peers = {peer: {"seconds": 0.002 * x, "speedup": x} for peer, x in speedups.items()}
    own = {"tinyml": {"seconds": 0.002, "speedup": 1.0}}
    return {"name": name, "errors": {}, "peers": own | peers, "fraction": fraction, "bound": "B"}


def test_every_workload_has_a_goal() -> None:
    works = [*workloads.kernels(), *steps.steps(), steps.decode(GPTSize(batch=1))]
    assert len([goals.goal(work.name) for work in works]) > 50


@pytest.mark.parametrize(
    ("goal", "missed"),
    [
        (Goal(roof=0.9), ["90 % of the roof"]),
        (Goal(roof=0.85), []),
        (Goal(best=1.5), ["1.5x of the best"]),
        (Goal(torch=2), []),
        (
            Goal(roof=0.9, best=1.5, torch=3),
            ["90 % of the roof", "1.5x of the best", "3x of torch"],
        ),
    ],
)
def test_a_goal_is_missed_as_the_figures_are_rounded(goal: Goal, missed: list[str]) -> None:
    assert goal.missed(line("add", 0.849, torch=2.0, jax=1.494)) == missed


def test_the_table_says_what_is_missed() -> None:
    table = goals.table([line("softmax 8192x1024", 0.8, torch=1.5, jax=0.99)]).split("\n")
    assert table[0].split(" | ")[3:6] == ["torch", "torch.compile", "jax"]
    assert table[2] == (
        "| softmax 8192x1024 | 2 | 80 % B | 1.50x | - | 0.99x | 85 % of the roof, 1x of the best |"
    )


def test_what_failed_misses_everything() -> None:
    failed = {"name": "add", "errors": {"tinyml": "CompileError: no"}, "peers": {}}
    assert goals.table([failed]).split("\n")[2] == "| add | failed |  |  |  |  | all |"


def test_later_reports_replace_lines_of_earlier_ones() -> None:
    first = {"results": [line("add", 0.5), line("gelu", 0.5)]}
    merged = goals.merged([first, {"results": [line("add", 0.9)]}])
    assert [(one["name"], one["fraction"]) for one in merged] == [("add", 0.9), ("gelu", 0.5)]


def test_the_spread_has_the_least_the_median_and_the_greatest_of_all_runs() -> None:
    runs = [line("softmax 8192x1024", roof, torch=x, jax=2) for roof, x in ((0.8, 1.5), (0.9, 3))]
    table = goals.spread([{"results": [run]} for run in runs]).split("\n")
    assert table[2] == (
        "| softmax 8192x1024 | 2 | 2 | 80 .. **85** .. 90 % B | 1.50 .. **1.75** .. 2.00 | 1 of 2 |"
    )


def test_a_run_that_failed_is_no_part_of_the_spread() -> None:
    failed = {"name": "add", "errors": {"tinyml": "CompileError: no"}, "peers": {}}
    reports = [{"results": [failed]}, {"results": [line("add", 0.95, torch=1.1)]}]
    assert goals.spread(reports).split("\n")[2].startswith("| add | 1 |")
