"""Weights that kernels make again are made of one number of their row, and divided by none."""

from __future__ import annotations

import numpy as np
import pytest
import stages
from attentions import KEYS, QUERIES, Attention, causal, memory, plain, training

from tinyml import Tensor, lazy
from tinyml.dtype import DType, bfloat16, float16, float32
from tinyml.graph import toposort
from tinyml.kernel import Kernel
from tinyml.ops import Op
from tinyml.schedule.labels import unmoved
from tinyml.schedule.levels import levels
from tinyml.schedule.rewrite import rewritten

HALVES = pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
pytestmark = pytest.mark.usefixtures("short")


def counted(kernel: Kernel, op: Op) -> int:
    nodes = toposort([output.value for output in kernel.outputs])
    return sum(isinstance(node, lazy.Map) and node.op is op for node in nodes)


def numbers_of_rows(kernel: Kernel) -> int:
    """How many single numbers for each query a kernel reads."""
    read = kernel.slots[len(kernel.outputs) :]
    return sum(int(np.prod(shape)) == 2 * QUERIES for shape, _ in read)


def scaled(kernel: Kernel) -> list[int]:
    """How many elements as large as scores are multiplied by a number."""
    nodes = toposort([output.value for output in kernel.outputs])
    products = [n for n in nodes if lazy.is_map(n, Op.MUL) and n.size == 2 * QUERIES * KEYS]
    return [1 for n in products if any(isinstance(unmoved(s), lazy.Const) for s in n.sources)]


@HALVES
@pytest.mark.parametrize("attend", [plain, causal])
def test_gradients_of_halves_read_a_level_and_a_mean(attend: Attention, dtype: DType) -> None:
    given = [memory(2, n, 12, dtype=dtype) for n in (QUERIES, KEYS, KEYS)]
    forward, _, *gradients = training(attend, *given)
    assert counted(forward, Op.LOG) == 1
    for kernel in gradients:
        assert (counted(kernel, Op.EXP), counted(kernel, Op.DIV)) == (1, 0)
        assert numbers_of_rows(kernel) == 2
        assert scaled(kernel) == [1]  # scores are, but no gradient of one
        stages.assert_right(kernel, 2e-2)


def test_floats_are_divided_as_they_are_written() -> None:
    _, _, *gradients = training(plain, *(memory(2, n, 12) for n in (QUERIES, KEYS, KEYS)))
    assert [numbers_of_rows(kernel) for kernel in gradients] == [3, 3]


def test_weights_that_meet_values_themselves_stay_quotients() -> None:
    """The kernel that makes the sum has no weights but after all powers are added up."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q.cast(float32) @ k.cast(float32).transpose(-2, -1)
        return scores.softmax(-1).cast(q.dtype) @ v

    given = [memory(2, n, 12, dtype=bfloat16) for n in (QUERIES, KEYS, KEYS)]
    y = attend(*given)
    made = [y.lazy, *(g.lazy for g in y.sum().gradient(*given))]
    assert rewritten(made, levels) == made


@HALVES
def test_rows_without_keys_or_with_nothing_but_nan_are_what_they_were(dtype: DType) -> None:
    rng = np.random.default_rng(5)
    drawn = [rng.standard_normal((n, 12)).astype(np.float32) for n in (QUERIES, KEYS, KEYS)]
    drawn[0][3] = np.nan
    mask = rng.random((QUERIES, KEYS)) < 0.5
    mask[5] = False
    made = {}
    for exact in (dtype, float32):
        q, k, v = (Tensor(x).cast(exact).realize().detach().requires_grad_() for x in drawn)
        y = q.scaled_dot_product_attention(k, v, attn_mask=Tensor(mask))
        gradient = y.gradient(q, gradient=y.ones_like())[0]
        made[exact] = gradient.cast(float32).numpy()
    np.testing.assert_array_equal(np.isnan(made[dtype]), np.isnan(made[float32]))
    np.testing.assert_array_equal(made[dtype][5], 0)
    np.testing.assert_allclose(made[dtype], made[float32], atol=0.02)
