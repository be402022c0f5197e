"""Training attention without its scores in memory: kernels make them again, and so gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import stages

from tinyml import Tensor
from tinyml.codegen import choose_c_online
from tinyml.codegen.heuristic import choose
from tinyml.codegen.lower import lower
from tinyml.codegen.opts import OptKind
from tinyml.dtype import DType, bfloat16, float16, float32
from tinyml.kernel import Kernel
from tinyml.schedule import remake, schedule

QUERIES, KEYS = 18, 26
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products are large ones."""
    monkeypatch.setattr(remake, "LARGE", QUERIES * KEYS)
    monkeypatch.setattr(remake, "LONG", 16)
    monkeypatch.setattr(choose_c_online, "LONG", 16)
    monkeypatch.setattr(choose_c_online, "STEP", 8)


def memory(*shape: int, dtype: DType = float32) -> Tensor:
    made = Tensor(np.zeros(shape, np.float32), device="CPU").cast(dtype).realize().detach()
    return made.requires_grad_()


def training(attend: Attention, *given: Tensor) -> list[Kernel]:
    """The kernels of a result and of the gradients of queries, keys and values."""
    y = attend(*given)
    gradients = (y * memory(*y.shape, dtype=y.dtype)).sum().gradient(*given)
    return stages.kernels_of(schedule([y.lazy, *(g.lazy for g in gradients)]))


def largest(kernels: list[Kernel]) -> int:
    return max(int(np.prod(shape)) for k in kernels for shape, _ in k.slots)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.scaled_dot_product_attention(k, v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.scaled_dot_product_attention(k, v, is_causal=True)


def window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows, columns = Tensor.arange(q.shape[-2]).unsqueeze(-1), Tensor.arange(k.shape[-2])
    near = (rows - columns).abs() < 5
    return q.scaled_dot_product_attention(k, v, attn_mask=near)


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.transpose(-2, -1) / 5).tanh() * 5).softmax(-1) @ v


def biased(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = memory(k.shape[-2]).detach()
    return q.scaled_dot_product_attention(k, v, attn_mask=bias.expand(q.shape[-2], k.shape[-2]))


@pytest.mark.parametrize("attend", [plain, causal, window, capped, biased])
def test_a_step_of_training_is_three_kernels_and_no_scores(attend: Attention) -> None:
    """The result with what rows need; the queries' gradient; those of keys and values."""
    kernels = training(attend, memory(1, QUERIES, 3), memory(1, KEYS, 3), memory(1, KEYS, 2))
    assert len(kernels) == 3
    assert largest(kernels) < QUERIES * KEYS
    for k in kernels:
        assert OptKind.ONLINE in {opt.kind for opt in choose(lower(k), stages.C)[0]}
        stages.assert_right(k)


@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
def test_halves_and_heads_that_share_keys(dtype: DType) -> None:
    def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q.scaled_dot_product_attention(k, v, is_causal=True, enable_gqa=True)

    given = [memory(1, h, n, 2, dtype=dtype) for h, n in ((2, QUERIES), (1, KEYS), (1, KEYS))]
    kernels = training(grouped, *given)
    assert largest(kernels) < QUERIES * KEYS
    for k in kernels:
        stages.assert_right(k, 2e-2)


def test_weights_that_are_wanted_are_stored() -> None:
    q, k, v = memory(1, QUERIES, 3), memory(1, KEYS, 3), memory(1, KEYS, 2)
    weights = (q @ k.transpose(-2, -1)).softmax(-1)
    gradients = (weights @ v).sum().gradient(q, k, v)
    made = schedule([weights.lazy, *(g.lazy for g in gradients)])
    assert largest(stages.kernels_of(made)) == QUERIES * KEYS


def test_a_result_alone_is_one_kernel() -> None:
    y = plain(memory(1, QUERIES, 3), memory(1, KEYS, 3), memory(1, KEYS, 2))
    assert len(stages.kernels_of(schedule([y.lazy]))) == 1
