"""Attention in one kernel: scores wait in tiles, at any size, with masks, halves and heads."""

from __future__ import annotations

from dataclasses import replace

import graphs
import numpy as np
import pytest
import stages
from graphs import memory
from stages import kernel_of

from tinyml import Tensor, lazy
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import OptKind
from tinyml.dtype import DType, bfloat16, float32
from tinyml.kernel import Kernel, Output

SIZES = [
    (1, 2, 5, 3, 2),
    (2, 3, 13, 17, 9),
    (1, 1, 33, 33, 16),
    (2, 2, 40, 7, 8),
    (1, 1, 101, 65, 24),
]


def assert_right(k: Kernel, tolerance: float = 2e-5) -> None:
    """The rules of thumb for C keep values in tiles, and change none."""
    opts, _ = choose(lower(k), stages.C)
    assert OptKind.KEEP in {opt.kind for opt in opts}
    stages.assert_right(k, tolerance)


def queries(size: tuple[int, ...], dtype: DType = float32) -> list[Tensor]:
    b, h, n, m, d = size
    shapes = (b, h, n, d), (b, h, m, d), (b, h, m, d)
    return [memory(*shape, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_any_size(size: tuple[int, ...], causal: bool) -> None:
    q, k, v = queries(size)
    assert_right(kernel_of(q.scaled_dot_product_attention(k, v, is_causal=causal)))


def test_a_mask_that_is_added() -> None:
    q, k, v = queries((1, 2, 19, 21, 8))
    mask = memory(19, 21)
    assert_right(kernel_of(q.scaled_dot_product_attention(k, v, attn_mask=mask)))


def test_halves() -> None:
    q, k, v = queries((1, 2, 19, 21, 8), bfloat16)
    assert_right(kernel_of(q.scaled_dot_product_attention(k, v)), 2e-2)


def test_heads_that_share_keys() -> None:
    q, _, _ = queries((1, 4, 19, 19, 8))
    _, k, v = queries((1, 2, 19, 19, 8))
    assert_right(kernel_of(q.scaled_dot_product_attention(k, v, enable_gqa=True)))


def test_queries_keys_and_values_in_one_buffer() -> None:
    """A slot that is read in three ways is packed in each of them by itself."""
    all_three = memory(2, 19, 3, 2, 8).permute(2, 0, 3, 1, 4)
    k = kernel_of(all_three[0].scaled_dot_product_attention(all_three[1], all_three[2]))
    opts, _ = choose(lower(k), stages.C)
    assert sum(opt.kind is OptKind.STAGE for opt in opts) == 2
    assert_right(k)


def test_a_sum_of_other_powers_is_a_cascade_too() -> None:
    """Nothing knows of softmax: squares, divided by their largest, weigh the values."""
    q, k, v = queries((1, 1, 19, 21, 8))
    likeness = (q @ k.transpose(-2, -1)).square()
    assert_right(kernel_of((likeness / likeness.max(-1, keepdim=True)) @ v))


def test_what_is_made_of_a_kept_value_is_staged_when_that_is_filled() -> None:
    """As in the gradient of a weight before a normalisation over the batch."""
    h, w, x = memory(32, 8), memory(4, 8), memory(32, 16)
    d = (h @ w.T).softmax(1) @ w
    assert_right(kernel_of((d + (d * h).sum(0)).T @ x))


def test_what_a_stack_does_not_hold_is_allocated() -> None:
    """Rows and factors of many keys: values of one kernel on the machine, against numpy."""
    rng = np.random.default_rng(6)
    q, k, v = (rng.standard_normal((n, 32)).astype(np.float32) for n in (12, 8200, 8200))
    made = Tensor(q, device="CPU").scaled_dot_product_attention(
        *(Tensor(x, device="CPU") for x in (k, v))
    )
    one = kernel_of(made)
    target = stages.device("CPU").target
    assert target is not None
    assert "large(" in compile(one, target).source
    scores = q @ k.T * 32**-0.5
    power = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(made.numpy(), power / power.sum(-1, keepdims=True) @ v, 1e-4, 1e-5)


def test_two_products_of_pairs_in_one_kernel_are_no_cascade() -> None:
    shapes = (24, 24), (24, 32), (32, 24), (24, 32), (32, 24)
    a, b, c, d = (
        lazy.cast(lazy.node(lazy.Slot, s, bfloat16, graphs.DEVICE, (), n), float32)
        for n, s in enumerate(shapes[1:], 1)
    )
    value = graphs.sub(graphs.matmul(a, b), graphs.matmul(c, d))
    slots = ((shapes[0], float32), *((s, bfloat16) for s in shapes[1:]))
    k = Kernel(((Output(0, shapes[0], value, rows=(0, 1)),),), slots)
    stages.assert_right(k, target=replace(stages.C, pairs=True))
