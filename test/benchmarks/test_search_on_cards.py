"""benchmarks/search.py as the last part of cuda.py: rehearsed without a card."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import card, cuda, search
from benchmarks.search import Compared
from tinyml import Device


def asked(out: Path, *words: str) -> Any:
    given = ["--small", "--device", "EMU", "--out", str(out), "--peers", "", "--beam", "0.5"]
    return cuda.arguments([*given, *words])


def test_what_is_searched_for_is_timed_too() -> None:
    for small in (False, True):
        assert {item.name for item in card.items(small) if item.searched} == {*search.ON_CARDS}
        assert search.asked_for("EMU", small).keys() == {*search.ON_CARDS}


@pytest.mark.skipif(not Device.available("EMU"), reason="EMU does not answer")
def test_a_search_comes_last_and_stands_beside_the_rules_of_thumb(tmp_path: Path) -> None:
    args = asked(tmp_path / "made.json", "sum all")
    record: dict[str, Any] = {"results": {}, "facts": {}}
    worker = cuda.Worker(args)
    lines = list(cuda.measure(worker, record, args))
    worker.close()
    searched = [": beam: " in line for line in lines]
    assert searched == sorted(searched)  # when all else is done
    found = json.loads(args.out.read_text())["results"]
    answer = found["sum all 8192x4096"][card.BEAM]
    assert answer[card.RATIO] > 0
    (k,) = answer["kernels"]
    line = search.line(f"sum all 8192x4096: {k['kernel']}", Compared(**k))
    assert line in cuda.document(record)
    assert not list(cuda.measure(worker, record, args))  # what is there is not asked for again


def test_a_search_that_would_not_end_in_time_is_not_begun(tmp_path: Path) -> None:
    args = asked(tmp_path / "made.json", "sum all", "--seconds", "1")
    done = {card.OWN: {"seconds": 1.0}}
    record = {"results": {"sum all 8192x4096": done}, "ceilings": {}, "facts": {}}
    (line,) = cuda.measure(cuda.Worker(args), record, args)
    assert line.startswith("the time is over")


def test_a_kernel_beside_what_a_search_found() -> None:
    found = Compared("sum_1", 2e-3, 1e-3, 4e-3, 0.5, 0.8, 7, "lanes r0 4")
    assert search.line("sum", found) == (
        "| sum | 2 | 50 % | 0.80 | 1 | 2.00 | 0.50 | 7 | lanes r0 4 |"
    )
    assert search.HEAD.splitlines()[1].count("|") == search.line("sum", found).count("|")
