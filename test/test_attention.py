"""Attention is the same in every dtype, but for what that one rounds."""

from __future__ import annotations

import numpy as np
import pytest

from tinyml import Tensor
from tinyml.dtype import DType, bfloat16, float16, float32, float64
from tinyml.lazy import Shape

HALVES = pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
OTHERS = pytest.mark.parametrize("dtype", [bfloat16, float16, float64], ids=str)
ROUNDED = {bfloat16: 2e-2, float16: 3e-3, float64: 1e-5}


def attended(
    dtype: DType, device: str, *shapes: Shape, dropout_p: float = 0.0
) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    """A result and the gradients of queries, keys and values, of the same numbers in each dtype."""
    rng = np.random.default_rng(3)
    drawn = [Tensor(rng.standard_normal(s).astype(np.float32), device) for s in shapes]
    given = [x.cast(bfloat16).cast(dtype).realize().detach() for x in drawn]
    q, k, v = (x.requires_grad_() for x in given)
    Tensor.manual_seed(5)
    with Tensor.train():
        y = q.scaled_dot_product_attention(k, v, dropout_p=dropout_p)
    assert y.dtype is dtype
    gradients = y.gradient(q, k, v, gradient=y.ones_like())
    return [made.cast(float32).numpy() for made in (y, *gradients)]


def test_heads_without_numbers_attend_to_all_keys_alike(device: str) -> None:
    q, k, v = (Tensor.zeros(*shape, device=device).realize() for shape in ((3, 0), (5, 0), (5, 4)))
    values = np.arange(20, dtype=np.float32).reshape(5, 4)
    made = (q @ k.T).softmax(-1) @ (v + Tensor(values, device))
    np.testing.assert_allclose(made.numpy(), np.tile(values.mean(0), (3, 1)), 1e-6)


@OTHERS
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize(
    "batches", [((), (), ()), ((), (), (2,)), ((3, 1), (2,), ()), ((2,), (), (3, 1))], ids=str
)
def test_heads_that_share_queries_keys_or_values(
    batches: tuple[Shape, Shape, Shape],
    dropout_p: float,
    dtype: DType,
    device: str,
) -> None:
    """Gradients are of their shapes, and the same weights are dropped on the way back."""
    shapes = [(*b, *own) for b, own in zip(batches, ((14, 14), (32, 14), (32, 2)), strict=True)]
    made = attended(dtype, device, *shapes, dropout_p=dropout_p)
    for mine, right in zip(
        made, attended(float32, device, *shapes, dropout_p=dropout_p), strict=True
    ):
        assert mine.shape == right.shape
        assert np.abs(mine - right).max() < ROUNDED[dtype] * np.abs(right).max()


@OTHERS
def test_queries_without_keys_give_0(dtype: DType, device: str) -> None:
    y, *gradients = attended(dtype, device, (3, 4), (0, 4), (0, 5))
    np.testing.assert_array_equal(y, np.zeros((3, 5)))
    np.testing.assert_array_equal(gradients[0], np.zeros((3, 4)))


@HALVES
def test_values_of_another_dtype_are_not_rounded(dtype: DType, device: str) -> None:
    q, k = (Tensor.ones(n, 4, device=device).cast(dtype) for n in (3, 1))
    v = Tensor([[1.0001, 2.0001]], device)
    y = q.scaled_dot_product_attention(k, v)
    assert y.dtype is float32
    np.testing.assert_array_equal(y.numpy(), np.repeat(v.numpy(), 3, axis=0))
