"""benchmarks/search.py: rules of thumb beside a search, alone and as the last part of cuda.py.

Nothing that is timed here means anything.
"""

from __future__ import annotations

import json
import re
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import card, cuda, run, search
from benchmarks.search import Compared
from tinyml import Device, config, kernel
from tinyml.errors import KernelError
from tinyml.kernel import Kernel


def asked(out: Path, *words: str) -> Any:
    given = ["--small", "--device", "EMU", "--out", str(out), "--peers", "", "--beam", "0.5"]
    return cuda.arguments([*given, *words])


def test_what_is_searched_for_is_timed_too() -> None:
    for small in (False, True):
        assert {item.name for item in card.items(small) if item.searched} == {*search.ON_CARDS}
        assert {w.name for w in search.asked_for("EMU", small)} == {*search.ON_CARDS}
    assert {w.name for w in search.asked_for("CPU", small=False)} == {*search.ON_CPU}
    assert {w.name for w in run.everything(quick=False)} >= {*search.ON_CPU}


def lines(*words: str, device: str = "CPU") -> list[str]:
    """Of the table, and the summary."""
    small = Namespace(device=device, small=True, width=1, seconds=0.0, words=list(words))
    with config.override(threads=1):
        return list(search.measure(small))


def pretended(monkeypatch: pytest.MonkeyPatch, *fails: str) -> list[Kernel]:
    """The kernels that are compared from now on: each takes 1.2 times the best."""
    met = list[Kernel]()

    def compared(k: Kernel, *asked: Any) -> Compared:
        met.append(k)
        if any(word in kernel.name(k) for word in fails):
            raise KernelError("it fails\n")
        return Compared(kernel.name(k), 1.2e-3, 1e-3, 1.2e-3, 0.5, 0.9, 4, "the same")

    monkeypatch.setattr(search, "compared", compared)
    return met


def test_a_kernel_of_several_workloads_is_searched_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    met = pretended(monkeypatch)
    said = lines("rmsnorm")
    assert len(met) == len({*met})
    forward, *_, both, end = said
    assert forward.startswith(f"| rmsnorm 8192x1024: {kernel.name(met[0])} | 1.2 | 50 % ")
    assert [line.count(f": {kernel.name(met[0])} |") for line in said].count(1) == 1
    assert re.match(r"\| rmsnorm 8192x1024, backward too: all [2-9] launches \| ", both)
    assert f"Of {len(met)} kernels {len(met)} are" in end
    assert end.endswith(" 1.20 times at most.")


def test_layers_have_their_kernels_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    met = pretended(monkeypatch)
    *_, every, _ = lines("GPT 2x128")
    launches = re.search(r"all (\d+) launches", every)
    assert launches is not None
    assert len(met) == len({*met}) < int(launches[1])


def test_a_kernel_that_fails_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    met = pretended(monkeypatch, "sum")
    said = lines("sum axis", "add 16M")
    failed = [line for line in said if line.endswith(" | KernelError: it fails |")]
    assert len(failed) == len(met) - 1
    assert not [line for line in said if "launches" in line]
    assert said[-1].startswith("\nOf 1 kernels")


@pytest.mark.skipif(not Device.available("CPU"), reason="CPU does not answer")
def test_a_search_on_one_thread_of_the_cpu() -> None:
    said, end = lines("gelu(a*b+c)")
    assert re.match(r"\| gelu\(a\*b\+c\) 16M: \w+ \| [\d.e-]+ \| \d+ % \| [\d.]+ \|", said)
    assert end.startswith("\nOf 1 kernels")


def test_launches_together_take_the_sum_of_their_times() -> None:
    a = Compared("a", 2e-3, 1e-3, 2e-3, 0.5, 1.0, 7, "the same")
    b = Compared("b", 4e-3, 3e-3, 4e-3, 0.8, 0.7, 5, "the same")
    whole = search.together([a, b, a])
    assert (whole.kernel, whole.tried) == ("all 3 launches", 12)
    seconds = whole.default, whole.best, whole.picked
    assert [*seconds, whole.roof, whole.model] == pytest.approx([8e-3, 5e-3, 8e-3, 0.65, 0.85])


@pytest.mark.skipif(not Device.available("EMU"), reason="EMU does not answer")
def test_a_search_comes_last_and_stands_beside_the_rules_of_thumb(tmp_path: Path) -> None:
    args = asked(tmp_path / "made.json", "sum all")
    record: dict[str, Any] = {"results": {}, "facts": {}}
    workers = cuda.Workers(args)
    lines = list(cuda.measure(workers, record, args))
    workers.close()
    searched = [": beam: " in line for line in lines]
    assert searched == sorted(searched)  # when all else is done
    found = json.loads(args.out.read_text())["results"]
    answer = found["sum all 8192x4096"][card.BEAM]
    assert answer[card.RATIO] > 0
    (k,) = answer["kernels"]
    line = search.line("sum all 8192x4096", Compared(**k))
    assert line in cuda.document(record)
    assert not list(cuda.measure(workers, record, args))  # what is there is not asked for again


def test_a_search_that_would_not_end_in_time_is_not_begun(tmp_path: Path) -> None:
    args = asked(tmp_path / "made.json", "sum all", "--seconds", "1")
    done = {card.OWN: {"seconds": 1.0}}
    record = {"results": {"sum all 8192x4096": done}, "ceilings": {}, "facts": {}}
    workers = cuda.Workers(args)
    (line,) = cuda.measure(workers, record, args)
    workers.close()
    assert line.startswith("the time is over")


def test_a_kernel_beside_what_a_search_found() -> None:
    found = Compared("sum_1", 2e-3, 1e-3, 4e-3, 0.5, 0.8, 7, "lanes r0 4")
    assert search.line("sum", found) == (
        "| sum: sum_1 | 2 | 50 % | 0.80 | 1 | 2.00 | 0.50 | 7 | lanes r0 4 |"
    )
    assert search.HEAD.splitlines()[1].count("|") == search.line("sum", found).count("|")
