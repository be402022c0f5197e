"""Graphs far deeper and wider than Python's stack."""

from __future__ import annotations

from typing import Any

import numpy as np
from stages import kernels_of

from tinyml import Tensor
from tinyml.graph import toposort
from tinyml.schedule import schedule


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


def _simulated(at: Any, speed: Any, steps: int) -> Any:
    """An oscillator by the midpoint rule: few values at each time, of different depths."""
    for _ in range(steps):
        half, faster = at + 0.05 * speed, speed - 0.05 * _pull(at, speed)
        at, speed = at + 0.1 * faster, speed - 0.1 * _pull(half, faster)
    return at + speed


def _pull(at: Any, speed: Any) -> Any:
    return 0.5 * at + 0.1 * speed * at * at


def test_what_a_deep_graph_stores_lies_at_one_depth(device: str) -> None:
    """Else each kernel would compute all that lies below it, ten times in all."""
    x = Tensor([0.5, -0.25], device=device)
    result = _simulated(x[0], x[1], 60)
    kernels = kernels_of(schedule([result._lazy]))
    assert len(kernels) > 1
    assert sum(len(k.nodes) for k in kernels) < 3 * len(toposort([result._lazy]))
    np.testing.assert_allclose(result.item(), _simulated(0.5, -0.25, 60), rtol=1e-4)
