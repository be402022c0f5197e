"""Graphs far deeper and wider than Python's stack."""

from __future__ import annotations

import numpy as np

from tinyml import Tensor


def test_a_chain_of_ten_thousand_ops(device: str) -> None:
    x = Tensor(np.ones(2, np.float32), requires_grad=True)
    y = x
    for _ in range(10_000):
        y = y + 0.5
    y.sum().backward()
    assert x.grad is not None
    Tensor.realize(y, x.grad)
    assert y.tolist() == [5001, 5001]
    assert x.grad.tolist() == [1, 1]


def test_a_stack_and_a_cat_of_ten_thousand_inputs() -> None:
    parts = [Tensor([float(i)], device="NUMPY") for i in range(10_000)]
    stacked, joined = Tensor.stack(parts), Tensor.cat(*parts)
    Tensor.realize(stacked, joined)
    np.testing.assert_array_equal(stacked.numpy()[:, 0], np.arange(10_000))
    np.testing.assert_array_equal(joined.numpy(), np.arange(10_000))
