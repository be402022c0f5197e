"""Numbers that are others each time: a loop over them stops compiling, and stays right."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from tinyml import Tensor, TinyJit, nn, trace

Array = np.ndarray[Any, Any]
ROWS = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
LINE = np.arange(-20, 20, dtype=np.int32)


def plans(each: Callable[[Any], object], turns: Iterable[Any]) -> list[int]:
    """How many plans each turn makes."""
    made = []
    for turn in turns:
        with trace.listen(trace.Scheduled) as scheduled:
            each(turn)
        made.append(len(scheduled))
    return made


# what is done with a number, and the same in numpy
CASES: dict[str, tuple[Callable[[int], Tensor], Callable[[int], Array]]] = {
    "rows": (lambda i: Tensor(ROWS)[i : i + 4] * 2, lambda i: ROWS[i : i + 4] * 2),
    "a row": (lambda i: Tensor(ROWS)[i], lambda i: ROWS[i]),
    "an element": (lambda i: Tensor(ROWS)[-1 - i, i], lambda i: ROWS[-1 - i, i]),
    "columns": (lambda i: Tensor(ROWS)[:, i : i + 2], lambda i: ROWS[:, i : i + 2]),
    "a window": (
        lambda i: Tensor(ROWS)[i : i + 9, i : i + 2],
        lambda i: ROWS[i : i + 9, i : i + 2],
    ),
    "steps": (lambda i: Tensor(ROWS)[i : i + 20 : 3], lambda i: ROWS[i : i + 20 : 3]),
    "padded": (
        lambda i: Tensor(ROWS).pad((i, 6 - i, 6 - i, i), value=float("-inf")),
        lambda i: np.pad(ROWS, ((6 - i, i), (i, 6 - i)), constant_values=-np.inf),
    ),
    "product": (lambda i: Tensor(ROWS) * (0.3 * i - 1), lambda i: ROWS * np.float32(0.3 * i - 1)),
    "remainder": (lambda i: Tensor(LINE) % (i + 1), lambda i: LINE % (i + 1)),
    "quotient": (lambda i: Tensor(LINE) // (i - 7), lambda i: LINE // (i - 7)),
    "power": (
        lambda i: Tensor(LINE).cast("float64") ** (i + 11),
        lambda i: LINE.astype(np.float64) ** (i + 11),
    ),
    "half": (lambda i: Tensor(ROWS).half() + i, lambda i: ROWS.astype(np.float16) + np.float16(i)),
    "bool": (lambda i: Tensor(LINE) < i, lambda i: i > LINE),
    "alone": (lambda i: Tensor(0.5 * i), lambda i: np.float32(0.5 * i)),
    "repeated": (lambda i: Tensor.full((2, 3), i), lambda i: np.full((2, 3), i)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loop_over_a_number_stops_making_plans_and_stays_right(device: str, name: str) -> None:
    ours, numpys = CASES[name]

    def turn(i: int) -> None:
        np.testing.assert_allclose(ours(i).numpy(), numpys(i), rtol=1e-6, err_msg=f"{i}")

    made = plans(turn, [*range(7), 2, 5, 0])
    assert not any(made[4:]), made


def test_special_numbers_are_kept(device: str) -> None:
    with np.errstate(all="ignore"):
        for value in (0.5, 2.0, 0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, 1e-45):
            got, want = (1 / (Tensor([0.0, 1.0, -2.0]) + value)).numpy(), np.float32(value)
            np.testing.assert_array_equal(got, 1 / (np.float32([0, 1, -2]) + want))
            sign = Tensor.full((2,), value).numpy()
            np.testing.assert_array_equal(np.signbit(sign), np.signbit(np.full(2, value)))


def test_writes_into_a_tensor_read_what_was_there_before(device: str) -> None:
    x, y = Tensor(ROWS).contiguous().realize(), ROWS.copy()

    def turn(i: int) -> None:
        x[i] = 0.5 * x[i - 1] + i
        x[i + 5 : i + 15] = x[i + 8 : i + 18].flip(0)
        y[i] = 0.5 * y[i - 1] + i
        y[i + 5 : i + 15] = y[i + 8 : i + 18][::-1].copy()
        np.testing.assert_allclose(x.numpy(), y, rtol=1e-6)

    assert not any(plans(turn, range(1, 20))[5:])


def test_minibatches_and_rates_train_as_with_plans_of_their_own(device: str) -> None:
    def trained(batch: Callable[[int], Tensor], rate: Callable[[float], Any]) -> list[float]:
        weight = Tensor(ROWS[:3].T.copy(), requires_grad=True)
        losses = []
        for i in range(8):
            weight.grad = None
            loss = (batch(i) @ weight).square().mean() * rate(1 / (1 + i))
            loss.backward()
            assert weight.grad is not None
            weight = (weight - rate(0.1 * 0.9**i) * weight.grad).detach().requires_grad_()
            losses.append(loss.item())
        return losses

    whole = Tensor(ROWS).realize()
    varying = trained(lambda i: whole[8 * i : 8 * i + 8], lambda rate: rate)
    data = trained(
        lambda i: Tensor(ROWS[8 * i : 8 * i + 8]),
        lambda rate: Tensor(np.array([rate], np.float32)).reshape(()),
    )
    np.testing.assert_allclose(varying, data, rtol=1e-5)


def test_arguments_of_a_captured_step_may_be_slices_and_numbers(device: str) -> None:
    rows, layer = Tensor(ROWS).realize(), nn.Linear(8, 3)
    weight, bias = layer.weight.numpy(), layer.bias.numpy()
    step = TinyJit(lambda x, scale: layer(x) * scale)

    def turn(i: int) -> None:
        got = step(rows[i : i + 4], Tensor(0.5 * i)).numpy()
        want = (ROWS[i : i + 4] @ weight.T + bias) * np.float32(0.5 * i)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)

    assert not any(plans(turn, range(9))[5:])


def test_the_few_of_a_family_that_come_often_are_compiled_as_they_are(device: str) -> None:
    rows = Tensor(ROWS).realize()

    def turn(i: int) -> None:
        np.testing.assert_array_equal((rows[:, i : i + 3] * 2).numpy(), 2 * ROWS[:, i : i + 3])

    made = plans(turn, [*range(5)] * 40)
    late = 0 if device == "NUMPY" else 3
    assert [sum(made[:15]), sum(made[15:])] == [late, late]
