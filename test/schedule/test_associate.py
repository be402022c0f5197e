"""Sums of products of products are made of the other order where that is there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import stages

from tinyml import Tensor, lazy
from tinyml.device import Device
from tinyml.dtype import DType, bfloat16, float16, float32
from tinyml.graph import toposort
from tinyml.merge import merged
from tinyml.ops import Op
from tinyml.schedule.associate import associate
from tinyml.schedule.rewrite import rewritten
from tinyml.schedule.simplify import simpler

KEYS, WIDTH = 37, 5
HALVES = pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)


def drawn(*shape: int, dtype: DType = float32, device: str = "NUMPY") -> Tensor:
    made = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    return Tensor(made, device).cast(dtype).realize().detach().requires_grad_()


def attention(dtype: DType = float32, device: str = "NUMPY", **how: bool) -> list[Tensor]:
    """A result, and the gradients of queries, keys and values."""
    shapes = (2, 31, WIDTH), (2, KEYS, WIDTH), (2, KEYS, WIDTH)
    given = [drawn(*shape, dtype=dtype, device=device) for shape in shapes]
    y = given[0].scaled_dot_product_attention(*given[1:], **how)
    return [y, *y.gradient(*given, gradient=drawn(*y.shape, dtype=dtype, device=device).detach())]


def rows_added_up(tensors: Sequence[Tensor]) -> tuple[list[int], list[int]]:
    """How much each sum adds up that is no product of matrices: merged, and associated."""

    def lengths(roots: Sequence[lazy.LazyBuffer]) -> list[int]:
        folds = [n for n in toposort(roots) if isinstance(n, lazy.Reduce) and n.op is Op.ADD]
        plain = [n for n in folds if len(n.shape) == 3 or n.size == 2 * 31]
        return sorted(n.sources[0].size // n.size for n in plain)

    roots = merged([tensor.lazy for tensor in tensors], simpler)
    return lengths(roots), lengths(rewritten(roots, associate))


@pytest.mark.parametrize("how", [{}, {"is_causal": True}], ids=str)
def test_the_gradient_of_scores_sums_over_values_instead_of_keys(how: dict[str, bool]) -> None:
    before, after = rows_added_up(attention(**how))
    assert before == [KEYS, KEYS]
    assert after == [WIDTH, KEYS]


@HALVES
@pytest.mark.parametrize("how", [{}, {"is_causal": True}], ids=str)
def test_of_halves_too(how: dict[str, bool], dtype: DType) -> None:
    """Beside sums of powers and of weights."""
    before, after = rows_added_up(attention(dtype, **how))
    assert before == [KEYS, KEYS, KEYS]
    assert after == [WIDTH, KEYS, KEYS]


def test_halves_are_rounded_where_the_program_says() -> None:
    """A gradient of weights that is rounded by itself is no product."""
    q, k, v = (drawn(2, rows, WIDTH, dtype=float16) for rows in (31, KEYS, KEYS))
    weights = (q @ k.transpose(-2, -1)).float().softmax(-1).half()
    y = weights @ v
    before, after = rows_added_up([y, *y.gradient(q, k, v, gradient=drawn(*y.shape).half())])
    assert before == after


def test_without_the_result_nothing_is_multiplied_for_it() -> None:
    before, after = rows_added_up(attention()[1:2])
    assert before == after


def test_a_longer_sum_is_not_made() -> None:
    """As of a norm's gradient, behind which a wide layer follows."""
    x, w = drawn(31, 4), drawn(4, 9)
    y = x.rmsnorm() @ w
    (gradient,) = y.gradient(x, gradient=drawn(31, 9).detach())
    roots = [y.lazy, gradient.lazy]
    assert rewritten(roots, associate) == roots


def test_powers_of_powers_are_not_multiplied_out() -> None:
    x = drawn(3, 4) @ drawn(4, 3) + drawn(3, 4) @ drawn(4, 3)
    for _ in range(60):
        x = x * x
    roots = [x.sum().lazy]
    assert rewritten(roots, associate) == roots


@pytest.mark.parametrize("how", [{}, {"is_causal": True}], ids=str)
def test_values_are_those_of_the_reference(how: dict[str, bool], device: str) -> None:
    for one, other in zip(attention(**how), attention(device=device, **how), strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=1e-4, atol=1e-5)


@HALVES
@pytest.mark.parametrize("peaked", [0.1, 1, 30])
def test_what_keys_or_values_have_in_common_blurs_no_gradient(
    peaked: float, dtype: DType, device: str
) -> None:
    """As rounded gradients of weights would: by an eighth in bfloat16; or a rounded result: all."""
    rng = np.random.default_rng(3)
    q, k, v, g = (rng.standard_normal((rows, 16)) for rows in (24, 200, 200, 24))
    spread = (q * peaked, k + rng.standard_normal(16), v + 100 * rng.standard_normal(16), g)
    given = [Tensor(x.astype(np.float32), device).cast(dtype).realize().detach() for x in spread]
    inputs = [x.requires_grad_() for x in given[:3]]
    y = inputs[0].scaled_dot_product_attention(*inputs[1:])
    made = [y, *y.gradient(*inputs, gradient=given[3])]
    Tensor.realize(*made)
    q, k, v, g = (x.detach().float().numpy().astype(np.float64) for x in given)
    powers = np.exp((s := q @ k.T / 4) - s.max(-1, keepdims=True))
    p = powers / powers.sum(-1, keepdims=True)
    slopes = p * (g @ v.T - (g * (p @ v)).sum(-1, keepdims=True)) / 4
    eps = 2.0 ** (-8 if dtype is bfloat16 else -11)
    for mine, right in zip(made[1:3], (slopes @ k, slopes.T @ q), strict=True):
        wrong = mine.float().numpy() - right
        assert np.sqrt((wrong**2).mean() / (right**2).mean()) < 4 * eps


def test_gradients_of_attention_read_weights_and_no_scores() -> None:
    """exp is made once; what products of matrices read of rows and keys is one array each."""
    if not Device.available("CPU"):
        pytest.skip("no C compiler")
    made = attention(device="CPU")
    kernels = stages.kernels(*made)
    nodes = [toposort([output.value for output in k.outputs]) for k in kernels]
    assert sum(isinstance(n, lazy.Map) and n.op is Op.EXP for each in nodes for n in each) == 1
    outputs = [len(k.outputs) for k in kernels]
    square = [[s for s, _ in k.slots].count((2, 31, KEYS)) for k in kernels]
    assert sorted(zip(square, outputs, strict=True)) == [
        (0, 1),
        *[(1, 1)] * 4,
        (1, 2),
        *[(2, 1)] * 2,
    ]


@pytest.mark.parametrize("repeated", ["inner", "other"])
def test_sums_of_what_is_repeated_stay_as_they_are(repeated: str, device: str) -> None:
    """Three times the same, and two products of which one has it three times."""
    rng = np.random.default_rng(0)
    p, g, v = (rng.standard_normal(s).astype(np.float32) for s in ((5, 64), (5, 4), (64, 4)))
    x, y, z = (Tensor(a, device=device) for a in (p, g, v))
    both = (5, 64, 4, 3)
    weights, slopes, values = (
        t.reshape(*shape).expand(*both)
        for t, shape in ((x, (5, 64, 1, 1)), (y, (5, 1, 4, 1)), (z, (1, 64, 4, 1)))
    )
    inner = (slopes * values).sum((2, 3)) if repeated == "inner" else y @ z.T
    other = (weights * values).sum((1, 3)) if repeated == "other" else x @ z
    made = (x * inner).sum(1)
    Tensor.realize(made, other)
    right = (p * (g @ v.T)).sum(1) * (3 if repeated == "inner" else 1)
    np.testing.assert_allclose(made.numpy(), right, 1e-3, 1e-4)


QUOTIENTS = {  # what a product of e and v has, and what the sum of products has of it
    "a divisor less": (lambda e, s: e / s, lambda e, s: e, lambda g, s: g),
    "a factor less": (lambda e, s: e * s, lambda e, s: e, lambda g, s: g),
    "a factor, not a divisor": (lambda e, s: e / s, lambda e, s: e * s, lambda g, s: g),
    "divided by a factor": (lambda e, s: e, lambda e, s: e / s, lambda g, s: g * s),
    "divided by itself": (lambda e, s: e, lambda e, s: e * (s / s), lambda g, s: g),
    "the same": (lambda e, s: e / s, lambda e, s: e / s, lambda g, s: g),
}


@pytest.mark.parametrize("quotient", QUOTIENTS)
def test_nothing_that_may_be_0_is_divided_out(quotient: str, device: str) -> None:
    rng = np.random.default_rng(0)
    g, v, e = (rng.standard_normal(s).astype(np.float32) for s in ((31, 5), (37, 5), (31, 37)))
    s = np.array([[0], *[[1]] * 30], np.float32)

    def made(device: str) -> list[np.ndarray]:
        x, y, z, scale = (Tensor(a, device=device) for a in (g, v, e, s))
        there, wanted, slopes = QUOTIENTS[quotient]
        results = there(z, scale) @ y, (wanted(z, scale) * (slopes(x, scale) @ y.T)).sum(1)
        Tensor.realize(*results)
        return [result.numpy() for result in results]

    for ours, right in zip(made(device), made("NUMPY"), strict=True):
        np.testing.assert_allclose(ours, right, 1e-4, 1e-4)
