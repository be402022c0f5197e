"""TinyJit where an argument is what the function, or another argument, is given besides."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest

from tinyml import Tensor, TinyJit
from tinyml.errors import JitError


def vector(device: str, *values: float) -> Tensor:
    """Values in memory."""
    return Tensor([*map(float, values)], device).realize()


@pytest.mark.parametrize("show", [lambda w: w, lambda w: w.detach(), lambda w: w.reshape(2)])
def test_a_tensor_that_the_function_reads_may_be_the_argument_of_the_capture(
    show: Callable[[Tensor], Tensor], device: str
) -> None:
    w, x = vector(device, 1, 2), vector(device, 5, 5)
    step = TinyJit(lambda x: x * 10 + w)
    assert step(x).tolist() == [51, 52]
    for _ in range(3):
        assert step(show(w)).tolist() == [11, 22]
    assert step.captured is not None
    for _ in range(3):
        assert step(x).tolist() == [51, 52]
    assert step.captured is not None
    assert step(w).tolist() == [11, 22]


def test_a_view_that_the_function_reads_may_be_the_argument_of_the_capture(device: str) -> None:
    table = Tensor([[1.0, 2.0], [3.0, 4.0]], device).realize()
    w = vector(device, 0, 0)
    row = table[1]

    @TinyJit
    def step(x: Tensor) -> Tensor:
        w.assign(row)
        return x + w

    for given in (w * 0, row, w * 0, row, w * 0):
        before = given.tolist()
        assert step(given).tolist() == [before[0] + 3, before[1] + 4]


def test_who_gives_one_tensor_after_another_that_the_function_reads_is_told_that_it_is_slow() -> (
    None
):
    batches = [vector("NUMPY", n, 2 * n) for n in range(12)]
    step = TinyJit(lambda x: x + len(batches))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for n, batch in enumerate(batches):
            assert step(batch).tolist() == [n + 12, 2 * n + 12]
    assert ["that its code reads, too" in str(w.message) for w in told] == [True]


def test_an_argument_that_is_written_may_not_be_what_the_function_reads(device: str) -> None:
    w = vector(device, 1, 2)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        x += 1
        return w * 2

    for _ in range(3):
        assert step(vector(device, 0, 0)).tolist() == [2, 4]
    with pytest.raises(JitError, match="argument 0 and a tensor that the function reads"):
        step(w)
    assert w.tolist() == [1, 2]


def test_an_argument_given_twice_and_handed_on_may_not_be_two(device: str) -> None:
    step = TinyJit(lambda x, y, z: (z * 2, y))
    x, z = vector(device, 1, 2), vector(device, 3, 4)
    for _ in range(3):
        assert step(x, x, z)[1] is x
    with pytest.raises(JitError, match="arguments 0 and 1 were one tensor"):
        step(x, vector(device, 5, 6), z)


def test_a_view_from_outside_is_handed_on_beside_an_argument_that_shows_the_same(
    device: str,
) -> None:
    table = Tensor([[1.0, 2.0], [3.0, 4.0]], device).realize()
    row = table[1]
    step = TinyJit(lambda x: (x * 2, row))
    for call in range(4):
        row_again = step(table[0])[1]
        table[1] = float(call)
        assert row_again.tolist() == [call, call]
