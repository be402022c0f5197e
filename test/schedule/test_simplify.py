"""Ops that leave their operand as it is are no ops, where that is exact to the sign of zero."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tinyml import Tensor, trace
from tinyml.merge import merged
from tinyml.schedule.simplify import simpler

Op = Callable[[Tensor], Tensor]

NO_OPS: dict[str, list[Op]] = {
    "float32": [
        lambda x: x * 1,
        lambda x: 1.0 * x,
        lambda x: x - 0,
        lambda x: x + -0.0,
        lambda x: x / 1,
        lambda x: x**1,
        lambda x: x ** Tensor(1.0, device=x.device),
        lambda x: x.neg().neg(),
        lambda x: x.T.T,
        lambda x: x.flip(0).flip(0),
        lambda x: x.double().float(),
        lambda x: x.bitcast("int32").bitcast("float32"),
        lambda x: ((x * 1 - 0) / 1).T.T,
    ],
    "int32": [
        lambda x: x + 0,
        lambda x: x - 0,
        lambda x: 0 + x,
        lambda x: x * 1,
        lambda x: x // 1,
        lambda x: x | 0,
        lambda x: x ^ 0,
        lambda x: x & -1,
        lambda x: x << 0,
        lambda x: x >> 0,
        lambda x: x.long().int(),
    ],
    "bool": [lambda x: x & True, lambda x: x | False, lambda x: ~~x],
}
OPS: list[Op] = [
    lambda x: x + 0.0,
    lambda x: 0 - x,
    lambda x: 1 / x,
    lambda x: x * 0,
    lambda x: x.half().float(),
    lambda x: x.int().float(),
    lambda x: x.T.flip(0).T,
    lambda x: x.flip(0).flip(1),
]


def simplified(x: Tensor) -> object:
    return merged([x.lazy], simpler)[0]


@pytest.mark.parametrize(
    ("dtype", "number"), [(d, n) for d in NO_OPS for n in range(len(NO_OPS[d]))]
)
def test_what_changes_nothing_is_left_out(dtype: str, number: int) -> None:
    x = Tensor(np.array([[1, 2, 3], [0, -1, 7]], dtype), device="NUMPY")
    assert simplified(NO_OPS[dtype][number](x).isnan()) is simplified(x.isnan())


@pytest.mark.parametrize("number", range(len(OPS)))
def test_what_changes_something_stays(number: int) -> None:
    x = Tensor(np.array([[1.0, 2, 3], [0, -1, 7]], np.float32), device="NUMPY")
    assert simplified(OPS[number](x).isnan()) is not simplified(x.isnan())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
def test_a_magnitude_is_that_of_the_negative(dtype: str) -> None:
    """Losses of logits have exp(-|x|) for both classes. -x of unsigned integers wraps around."""
    x = Tensor([1, 2, 3], device="NUMPY").cast(dtype).realize()
    one, other = merged([x.abs().lazy, (-x).abs().lazy], simpler)
    assert (one is other) == x.dtype.is_float


def test_results_have_memory_of_their_own(device: str) -> None:
    x = Tensor(np.array([[-0.0, 2.0], [3.0, np.nan]], np.float32)).realize()
    kept = [x * 1, x - 0, x.neg().neg(), x**1, x.clone().T.T * 1, x + 0]
    kept[0].realize(*kept[1:3])
    before = x.numpy()
    x += 1
    kept[0] *= 2
    for y in kept[1:]:
        np.testing.assert_array_equal(y.numpy(), before)
    np.testing.assert_array_equal(kept[0].numpy(), 2 * before)
    np.testing.assert_array_equal(x.numpy(), before + 1)
    assert [bool(np.signbit(y.numpy()[0, 0])) for y in kept[1:]] == [True] * 4 + [False]


def test_assignments_of_what_changes_nothing(device: str) -> None:
    x, y = Tensor([1.0, 2.0]).realize(), Tensor([3.0, 4.0]).realize()
    x *= 1
    x.assign(y * 1)
    y.assign(x - 0)
    seen = x * 1
    x += 1
    assert (x.tolist(), y.tolist(), seen.tolist()) == ([4.0, 5.0], [3.0, 4.0], [3.0, 4.0])


def test_a_fault_is_found_in_what_is_not_chosen(device: str) -> None:
    x = Tensor([1.0, 2.0])
    wrong = x[Tensor([0, 5])]
    with pytest.raises(IndexError):
        Tensor.full((2,), True).where(x, wrong).exp().numpy()


@pytest.mark.parametrize("device", ["NUMPY"], indirect=True)
def test_numpy_computes_once_what_is_said_twice(device: str) -> None:
    x = Tensor([1.0, 2.0]).realize()
    once = x.exp()
    with trace.listen(trace.Interpreted) as seen:
        (once + once).realize()
        (x.exp() + x.exp()).realize()
    assert len({event.name for event in seen}) == 1
