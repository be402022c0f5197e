"""The sweep of small programs: lines that can be read, and results that are checked."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sweep = pytest.importorskip("benchmarks.sweep")


def test_each_line_is_a_name_inputs_and_one_or_two_expressions() -> None:
    lines = Path(sweep.__file__).with_suffix(".txt").read_text().splitlines()[1:]
    for name, _, *texts in (line.split(" ; ") for line in lines):
        assert 1 <= len(texts) <= 2, name
        for text in texts:
            sweep.spoken(text.removeprefix("random "), torch)


def test_results_and_gradients_are_those_of_torch() -> None:
    ours, theirs = sweep.calls("grad f3x5 l5:4", "x[:, y].tanh()")
    assert (
        [tuple(t.shape) for t in ours()] == [tuple(t.shape) for t in theirs()] == [(3, 4), (3, 5)]
    )


def test_other_results_are_refused() -> None:
    with pytest.raises(AssertionError, match="off by"):
        sweep.calls("f3x5", "x + 1", "x + 2")
