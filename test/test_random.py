"""Draws are what they claim to be, and the same wherever and whenever they are computed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tinyml import Tensor, lazy, trace
from tinyml.dtype import uint32
from tinyml.functional.random_ import threefry
from tinyml.realize import realize, upload


def test_threefry_is_the_published_one(device: str) -> None:
    """The known answers of the Random123 distribution."""
    words = [np.array([v], np.uint32) for v in (0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3)]
    k0, k1, c0, c1 = (upload(w, uint32, device) for w in words)
    x, y = threefry((k0, k1), (c0, c1))
    got = [Tensor(leaf).item() for leaf in realize([x, y])]
    assert got == [0xC4923A9C, 0x483DF7A0]


def test_the_seed_decides_and_each_draw_is_another(device: str) -> None:
    Tensor.manual_seed(3)
    first, second = Tensor.rand(5), Tensor.rand(5)
    Tensor.manual_seed(3)
    late = Tensor.rand(5, device="NUMPY")
    Tensor.realize(second, first)  # in whatever order they are computed
    np.testing.assert_array_equal(first.numpy(), late.numpy())
    assert (first.numpy() != second.numpy()).all()


def kolmogorov(sample: np.ndarray, cdf: np.ndarray) -> float:
    """The distance of the sample's distribution from `cdf` of the sorted sample, times root n."""
    n = len(sample)
    steps = np.arange(n + 1) / n
    return float(max((steps[1:] - cdf).max(), (cdf - steps[:-1]).max()) * n**0.5)


def test_distributions(device: str) -> None:
    flat, bell = Tensor.rand(20_000), Tensor.randn(20_000)
    whole, scaled = Tensor.randint(9_000, low=-3, high=6), Tensor.uniform(999, low=2.0, high=5.0)
    halves = Tensor.rand(5000, dtype="float16")
    Tensor.realize(flat, bell, whole, scaled, halves)
    u, z = np.sort(flat.numpy()), np.sort(bell.numpy())
    assert u[0] >= 0
    assert u[-1] < 1
    assert kolmogorov(u, u) < 1.63  # one draw in a hundred is beyond
    assert kolmogorov(z, np.array([0.5 + 0.5 * math.erf(v / 2**0.5) for v in z])) < 1.63
    counts = np.bincount(whole.numpy() + 3, minlength=9)
    assert ((counts - 1000) ** 2 / 1000).sum() < 26  # chi-squared, 8 degrees of freedom
    assert scaled.numpy().min() >= 2
    assert scaled.numpy().max() < 5
    assert halves.numpy().max() < 1
    assert abs(np.corrcoef(flat.numpy()[1:], flat.numpy()[:-1])[0, 1]) < 0.03


def test_initial_weights(device: str) -> None:
    glorot, kaiming = Tensor.glorot_uniform(40, 50), Tensor.kaiming_normal(40, 50)
    uniform, scaled = Tensor.kaiming_uniform(40, 50), Tensor.scaled_uniform(40, 50)
    Tensor.realize(glorot, kaiming, uniform, scaled)
    assert glorot.numpy().std() == pytest.approx((2 / 90) ** 0.5, rel=0.1)
    assert kaiming.numpy().std() == pytest.approx((2 / 50) ** 0.5, rel=0.1)
    assert uniform.numpy().std() == pytest.approx((2 / 50) ** 0.5, rel=0.1)
    assert np.abs(scaled.numpy()).max() <= 2000**-0.5


def test_permutations_and_choices(device: str) -> None:
    order = Tensor.randperm(50)
    weights = Tensor([[0.0, 3.0, 1.0]])
    chosen, once = weights.multinomial(2000, replacement=True), weights.multinomial(2)
    Tensor.realize(order, chosen, once)
    assert sorted(order.tolist()) == list(range(50))
    assert order.tolist() != list(range(50))
    counts = np.bincount(chosen.numpy()[0], minlength=3)
    assert counts[0] == 0
    assert counts[1] == pytest.approx(1500, abs=100)
    assert sorted(once.tolist()[0]) == [1, 2]


def test_dropout_scales_what_it_keeps_and_only_in_training(device: str) -> None:
    x = Tensor.ones(10_000, requires_grad=True)
    assert x.dropout(0.5) is x
    with Tensor.train():
        y = x.dropout(0.25)
    y.sum().backward()
    assert x.grad is not None
    Tensor.realize(y, x.grad)
    assert set(np.unique(y.numpy())) == {0, np.float32(1 / 0.75)}
    assert y.numpy().mean() == pytest.approx(1, abs=0.02)
    np.testing.assert_array_equal(y.numpy(), x.grad.numpy())


def test_a_draw_is_announced_with_its_leaf() -> None:
    with trace.listen(trace.RandomDrawn) as drawn:
        x = Tensor.rand(3, device="NUMPY")
        y = Tensor.rand(3, device="NUMPY")
    assert [type(event.leaf) for event in drawn] == [lazy.Data, lazy.Data]
    assert drawn[1].offset == drawn[0].offset + 1
    assert x.shape == y.shape
