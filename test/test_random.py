"""Draws are what they claim to be, and the same wherever and whenever they are computed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tinyml import Tensor, TinyJit, defaults, lazy, trace
from tinyml.dtype import uint32
from tinyml.functional.random_ import threefry
from tinyml.realize import compute, upload


def test_threefry_is_the_published_one(device: str) -> None:
    """The known answers of the Random123 distribution."""
    words = [np.array([v], np.uint32) for v in (0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3)]
    k0, k1, c0, c1 = (upload(w, uint32, device) for w in words)
    x, y = threefry((k0, k1), (c0, c1))
    got = [Tensor(leaf).item() for leaf in compute([x, y])]
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


def test_every_kind_of_draw_is_the_same_everywhere(device: str) -> None:
    """On each device, and replayed by a TinyJit, as numpy computes it."""

    def drawn(place: str) -> list[Tensor]:
        weights = Tensor([0.2, 0.0, 0.5], device=place)
        return [
            Tensor.rand(7, dtype="float64", device=place),
            Tensor.randint(7, low=-(2**63), high=2**63, dtype="int64", device=place),
            Tensor.randint(7, low=0, high=3 * 2**62, dtype="uint64", device=place),
            Tensor.uniform(7, low=-3, high=3, dtype="int32", device=place),
            Tensor.rand(7, dtype="bfloat16", device=place),
            Tensor.randperm(7, device=place),
            weights.multinomial(7, replacement=True),
            weights.multinomial(2),
            weights.bernoulli(),
            Tensor.randn(7, dtype="float64", device=place),
        ]

    Tensor.manual_seed(11)
    wanted = [[x.numpy() for x in drawn("NUMPY")] for _ in range(4)]
    Tensor.manual_seed(11)
    step = TinyJit(lambda: drawn(device))
    for expected in wanted:  # the last two are replayed
        got = step()
        Tensor.realize(*got)
        for ours, theirs in zip(got[:-1], expected[:-1], strict=True):
            np.testing.assert_array_equal(ours.numpy(), theirs)
        np.testing.assert_allclose(got[-1].numpy(), expected[-1], rtol=1e-12)


def test_float64_has_53_random_bits_and_wide_ranges_are_even() -> None:
    with defaults(device="NUMPY"):
        fine = np.sort(Tensor.rand(5000, dtype="float64").numpy())
        bell = np.sort(Tensor.randn(5000, dtype="float64").numpy())
        wide = Tensor.randint(5000, low=0, high=3 * 2**62, dtype="uint64").numpy()
        whole = Tensor.uniform(6000, low=-3, high=3, dtype="int32").numpy()
    assert (fine * 2.0**53 % 1 == 0).all()
    assert len(np.unique(fine * 2.0**32 % 1)) > 4990  # the bits below those of one word
    assert kolmogorov(fine, fine) < 1.63
    assert kolmogorov(bell, np.array([0.5 + 0.5 * math.erf(v / 2**0.5) for v in bell])) < 1.63
    assert kolmogorov(np.sort(wide / (3 * 2.0**62)), np.sort(wide / (3 * 2.0**62))) < 1.63
    counts = np.bincount(whole + 3, minlength=6)
    assert ((counts - 1000) ** 2 / 1000).sum() < 20.5  # chi-squared, 5 degrees of freedom


def test_bernoulli_and_what_has_no_chance() -> None:
    with defaults(device="NUMPY"):
        drawn = Tensor.full((4000,), 0.3).bernoulli()
        assert drawn.numpy().mean() == pytest.approx(0.3, abs=0.03)
        assert Tensor([0.0, 1.0], dtype="float16").bernoulli().tolist() == [0, 1]
        once = Tensor([[0.0, 2.0, 0.0]]).expand(900, 3).multinomial(1)
        assert set(once.numpy().ravel()) == {1}


def test_draws_refuse_what_they_cannot_do() -> None:
    with pytest.raises(TypeError, match="integers between integers"):
        Tensor.randint(3, low=0.5, high=3)
    with pytest.raises(TypeError, match="not float32"):
        Tensor.randint(3, dtype="float32")
    with pytest.raises(ValueError, match="within int8; got 0 and 129"):
        Tensor.randint(3, low=0, high=129, dtype="int8")
    with pytest.raises(ValueError, match="a size must be a whole number"):
        Tensor.rand(2.5)
    with pytest.raises(ValueError, match="positive count"):
        Tensor(2.0).multinomial()
    with pytest.raises(TypeError, match="probabilities are floats"):
        Tensor([1]).bernoulli()


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


@pytest.mark.parametrize("distance", [1, 8, 16, 17, 32])
def test_dropout_of_one_element_says_nothing_of_another(distance: int) -> None:
    """Though the same two words have the bits of several."""
    with Tensor.train():
        kept = (Tensor.ones(1 << 18, device="NUMPY").dropout(0.25) != 0).numpy()
    assert kept.mean() == pytest.approx(0.75, abs=0.005)
    both = kept[distance:] & kept[:-distance]
    assert both.mean() == pytest.approx(0.75**2, abs=0.005)


def test_a_draw_is_announced_with_its_leaf() -> None:
    with trace.listen(trace.RandomDrawn) as drawn:
        x = Tensor.rand(3, device="NUMPY")
        y = Tensor.rand(3, device="NUMPY")
    assert [type(event.leaf) for event in drawn] == [lazy.Data, lazy.Data]
    assert drawn[1].offset == drawn[0].offset + 1
    assert x.shape == y.shape


def test_bounds_where_torch_has_them() -> None:
    with pytest.raises(TypeError, match=r"write Tensor.randint\(2, 3, low=1, high=9\)"):
        Tensor.randint(1, 9, (2, 3))
    with pytest.raises(TypeError, match=r"write Tensor.normal\(2, 3, mean=0, std=0.5\)"):
        Tensor.normal(0, 0.5, (2, 3))
    with pytest.raises(TypeError, match=r"write Tensor.uniform\(4, low=-1, high=1\)"):
        Tensor.uniform(-1, 1, (4,))
    with pytest.raises(ValueError, match="low is at most high, got 2 and 1"):
        Tensor.uniform(4, low=2, high=1)
    with pytest.raises(ValueError, match="not below 0, got -1"):
        Tensor.normal(4, std=-1)
