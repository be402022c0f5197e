"""Kernels of one schedule that differ in numbers: many of them are one, and stay right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinyml import Tensor, TinyJit, trace
from tinyml.alike import FEW

Array = np.ndarray[Any, Any]
TURNS = FEW + 3
ROWS = np.random.default_rng(0).standard_normal((TURNS, 3, 4)).astype(np.float32)
WEIGHT = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32) / 3

# a turn of ours with its number, and the same in numpy
CASES: dict[str, Callable[[Any, Any, Any, int], Any]] = {
    "rows": lambda h, rows, w, i: (h + rows[i]) @ w,
    "between": lambda h, rows, w, i: (h + rows.reshape(3, TURNS, 4)[:, i]) @ w,
    "numbers": lambda h, rows, w, i: (h * (0.3 * i - 1) + rows[0]) @ w,
    "both": lambda h, rows, w, i: (h / (i + 1) - rows[-1 - i]) @ w,
    "sliced sums": lambda h, rows, w, i: (h + (rows * 2 + 1)[i]) @ w,
}


def kernels(made: list[trace.Scheduled]) -> set[Any]:
    return {item.kernel for event in made for item in event.items}


@pytest.mark.parametrize("name", CASES)
def test_turns_have_one_kernel_and_numpys_values(device: str, name: str) -> None:
    turn, rows, weight = CASES[name], Tensor(ROWS).realize(), Tensor(WEIGHT).realize()
    h, want = Tensor.zeros(3, 4), np.zeros((3, 4), np.float32)
    for i in range(TURNS):
        h, want = turn(h, rows, weight, i), turn(want, ROWS, WEIGHT, i)
    with trace.listen(trace.Scheduled) as made:
        np.testing.assert_allclose(h.numpy(), want, 1e-4, 1e-5)
    assert device == "NUMPY" or len(kernels(made)) <= 4


def test_few_turns_have_kernels_that_know_their_numbers(device: str) -> None:
    rows, weight, h = Tensor(ROWS).realize(), Tensor(WEIGHT).realize(), Tensor.zeros(3, 4)
    for i in range(FEW):
        h = (h + rows[i]) @ weight
    with trace.listen(trace.Scheduled) as made:
        h.realize()
    assert device == "NUMPY" or len(kernels(made)) == FEW


def test_gradients_along_a_sequence(device: str) -> None:
    rows, weight = Tensor(ROWS).realize(), Tensor(WEIGHT, requires_grad=True)
    h, whole = Tensor.zeros(3, 4), []
    for i in range(TURNS):
        h = ((h + rows[i]) @ weight).tanh()
        whole.append(h)
    loss = Tensor.stack(*whole).square().sum()
    (gradient,) = loss.gradient(weight)
    with trace.listen(trace.Scheduled) as made:
        Tensor.realize(loss, gradient)
    step = np.zeros((4, 4), np.float32)
    step[1, 2] = 1e-2

    def value(w: Array) -> float:
        h, total = np.zeros((3, 4)), 0.0
        for row in ROWS:
            h = np.tanh((h + row) @ w)
            total += float(np.square(h).sum())
        return total

    slope = (value(WEIGHT + step) - value(WEIGHT - step)) / 2e-2
    assert loss.item() == pytest.approx(value(WEIGHT), rel=1e-4)
    assert gradient[1, 2].item() == pytest.approx(slope, rel=1e-2)
    assert device == "NUMPY" or len(kernels(made)) < TURNS + 8


def test_a_captured_step_keeps_its_numbers(device: str) -> None:
    weight = Tensor(WEIGHT).realize()

    @TinyJit
    def step(rows: Tensor) -> Tensor:
        h = Tensor.zeros(3, 4)
        for i in range(TURNS):
            h = (h * (0.1 * i) + rows[i]) @ weight
        return h

    for factor in range(1, 5):
        want = np.zeros((3, 4), np.float32)
        for i in range(TURNS):
            want = (want * np.float32(0.1 * i) + ROWS[i] * factor) @ WEIGHT
        got = step((Tensor(ROWS) * factor).realize()).numpy()
        np.testing.assert_allclose(got, want, 1e-4, 1e-5)
