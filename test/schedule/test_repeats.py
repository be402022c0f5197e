"""Folds of what is the same all along an axis are made once, and repeated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import stages

from tinyml import Tensor, defaults, lazy
from tinyml.graph import toposort
from tinyml.schedule.repeats import MOST, once


def leaf(*shape: int, device: str | None = None) -> Tensor:
    values = np.random.default_rng(len(shape)).standard_normal(shape)
    return Tensor(values.astype(np.float32), device=device, requires_grad=True)


def folded(*wanted: Tensor) -> int:
    """How many elements all kernels together fold away."""
    nodes = (n for k in stages.kernels(*wanted) for n in k.nodes)
    return sum(n.sources[0].size for n in nodes if isinstance(n, lazy.Reduce))


def test_the_gradient_of_a_sum_of_a_product_adds_up_each_factor_once() -> None:
    x, w = leaf(60, 40, device="CPU"), leaf(40, 50, device="CPU")
    assert folded(*(x @ w).sum().gradient(x, w)) == x.numel() + w.numel()


def test_sums_along_memory_are_not_written_across_it() -> None:
    """Each sum of a row of w stands in a column of the gradient; those of columns of x in a row."""
    x, w = leaf(60, 40, device="CPU"), leaf(40, 50, device="CPU")
    across, along = (x @ w).sum().gradient(x, w)
    sums, repeated = stages.kernels(across)
    assert [output.shape for output in sums.outputs] == [(1, 1, 40)]
    assert not any(isinstance(node, lazy.Reduce) for node in repeated.nodes)
    assert len(stages.kernels(along)) == 1


def test_the_gradient_of_a_sum_of_a_convolution_reads_each_window_once() -> None:
    x, w = leaf(2, 3, 9, 9, device="CPU"), leaf(16, 3, 3, 3, device="CPU")
    windows = 2 * 7 * 7 * w[0].numel()
    assert folded(x.conv2d(w).sum().gradient(w)[0]) == windows


EXPRESSIONS: dict[str, Callable[[], Tensor]] = {
    "repeated": lambda: leaf(5, 1, 4).expand(5, 3, 4).sum(2),
    "two factors": lambda: (leaf(1, 5, 6).expand(4, 5, 6) * leaf(5, 1).expand(4, 5, 6)).sum(1),
    "a largest": lambda: leaf(3, 1, 4).expand(3, 7, 4).max(0),
    "joined axes": lambda: leaf(4, 1, 5).expand(4, 3, 5).reshape(12, 5).sum(1),
    "joined with what varies": lambda: leaf(1, 4, 5).expand(3, 4, 5).reshape(12, 5).sum(1),
    "padded": lambda: leaf(5, 1).pad(((0, 0), (1, 2))).sum(0),
    "windows": lambda: leaf(1, 1, 1, 6).expand(2, 1, 3, 6).conv2d(leaf(2, 1, 2, 2), padding=1),
    "turned": lambda: leaf(3, 1, 4).expand(3, 6, 4).permute(1, 2, 0).flip(1)[:, 1:].sum(1),
    "in a sum of its own": lambda: leaf(4, 1).expand(4, 5).sum(0).sum(),
    "one number": lambda: Tensor.full((4, 5), 2.0).sum(1),
    "empty": lambda: leaf(0, 1).expand(0, 4).sum(0),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_values_are_those_that_numpy_makes_of_all(device: str, name: str) -> None:
    made = EXPRESSIONS[name]()
    with defaults(device="NUMPY"):
        wanted = EXPRESSIONS[name]()
    np.testing.assert_allclose(made.numpy(), wanted.numpy(), 1e-5, 1e-6)


def test_a_fold_of_a_large_expression_is_looked_at_as_far_as_a_limit() -> None:
    x = leaf(3, 1).expand(3, 4)
    for _ in range(MOST):
        x = x + x
    total = x.sum(0, keepdim=True).lazy
    assert once(toposort([total]), [total]) == {}


def test_what_is_read_twice_over_and_over_is_narrowed_once() -> None:
    x = leaf(3, 1).expand(3, 4)
    for _ in range(MOST // 3):
        x = x * x
    total = x.sum(0, keepdim=True).lazy
    assert len(toposort([once(toposort([total]), [total])[total]])) < 2 * MOST
