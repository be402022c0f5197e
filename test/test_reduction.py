"""Reductions agree with numpy, along every kind of axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinyml import Tensor, dtypes

Compare = Callable[..., None]


@pytest.mark.parametrize("axis", [None, 1, -1, (0, 2)])
def test_along_axes(device: str, compare: Compare, rng: np.random.Generator, axis: Any) -> None:
    x = rng.uniform(0.5, 2, (3, 5, 2)).astype(np.float32)
    t = Tensor(x)
    pairs = {}
    for keep in (False, True):
        for name in ("sum", "mean", "max", "min", "prod", "var", "std"):
            extra = {"ddof": 1} if name in ("var", "std") else {}
            wanted = getattr(np, name)(x, axis=axis, keepdims=keep, **extra)
            pairs[f"{name} {keep}"] = getattr(t, name)(axis, keepdim=keep), wanted
    pairs["logsumexp"] = t.logsumexp(axis), np.log(np.exp(x).sum(axis))
    pairs["any"] = (t > 1.9).any(axis), (x > 1.9).any(axis)
    pairs["all"] = (t > 0.6).all(axis), (x > 0.6).all(axis)
    compare(pairs, 1e-4, 1e-5)


def test_nothing_to_reduce(device: str, compare: Compare) -> None:
    empty = Tensor.zeros(0, 3)
    compare(
        {
            "sum": (empty.sum(0), np.zeros(3)),
            "prod": (empty.prod(0), np.ones(3)),
            "max": (empty.max(1), np.zeros(0)),
            "argmin": (empty.argmin(1), np.zeros(0)),
            "softmax": (empty.softmax(0), np.zeros((0, 3))),
            "logsumexp": (empty.logsumexp(0), np.full(3, -np.inf)),
            "all": (empty.all(), True),
            "any": (empty.any(), False),
            "mean": (empty.mean(), np.nan),
            "rows": (empty.sum(1), np.zeros(0)),
            "number": (Tensor(3.0).sum(), 3.0),
        }
    )


def test_nan_is_kept_and_ties_take_the_first(device: str, compare: Compare) -> None:
    x = np.array([[1, 3, 3, 0], [2, np.nan, 0, np.nan], [-np.inf, 5, 5, np.inf]], np.float32)
    t = Tensor(x)
    compare(
        {
            "max": (t.max(1), x.max(1)),
            "min": (t.min(1), x.min(1)),
            "argmax": (t.argmax(1), x.argmax(1)),
            "argmin": (t.argmin(1), x.argmin(1)),
            "flat": (t.argmax(), x.argmax()),
        }
    )


def test_variance_of_fewer_than_the_correction(device: str, compare: Compare) -> None:
    """It is infinite, and its gradient what torch says: of all axes, and of some."""
    t = Tensor([[1.0, 2.0, 6.0], [3.0, 3.0, 3.0]])
    (of_all,) = t.var(correction=9).gradient(t)
    (of_rows,) = t.var(1, correction=5).sum().gradient(t)
    (of_roots,) = t[:1].std(1, correction=5).sum().gradient(t)
    all_wanted = np.array([[1, 1, 1], [np.nan] * 3]) * np.inf
    compare(
        {
            "var": (t.var(1, correction=5), [np.inf, np.nan]),
            "all axes": (of_all, all_wanted),
            "rows": (of_rows, [[2, 1, -3], [0, 0, 0]]),
            "roots": (of_roots, np.zeros((2, 3))),
        }
    )


def test_dtypes_of_sums(device: str) -> None:
    big = Tensor(np.array([2**31 - 1, 5], np.int32))
    half = Tensor(np.full(4096, 1.001, np.float16))
    flags = Tensor([True, True, False])
    results = [big.sum(), half.sum(), half.mean(), flags.sum(), big.sum(dtype="float32")]
    results[0].realize(*results[1:])
    assert [r.dtype.name for r in results] == ["int64", "float16", "float16", "int64", "float32"]
    assert results[0].item() == 2**31 + 4
    assert results[1].item() == pytest.approx(4100, rel=2e-3)
    assert results[2].item() == pytest.approx(1.001, rel=1e-3)
    assert results[3].item() == 2
    assert flags.max().dtype is dtypes.bool


def test_the_largest_of_what_comparisons_say(device: str) -> None:
    """Integers wrap around: gcc may not turn a > -b into -a < b, which the least number breaks."""
    x = Tensor(np.linspace(-1, 1, 3 * 64, dtype=np.float32).reshape(3, 64))
    results = [(x > 4).int().max(1), (x > 4).any(1), (x > 0.9).any(1), (x > -2).all(1)]
    Tensor.realize(*results)
    wanted = [[0, 0, 0], [False] * 3, [False, False, True], [True] * 3]
    assert [r.tolist() for r in results] == wanted


def test_a_costly_condition_that_two_reductions_read(device: str) -> None:
    """It waits in a tile, where a bool takes a byte, whatever a lane takes."""
    x = np.random.default_rng(0).random((3, 200), np.float32)
    t = Tensor(x).realize()
    small = t.exp() < 2
    largest = small.where(t, -9).max(-1, keepdim=True)
    first = (small & (t == largest)).where(Tensor.arange(200), 200).min(-1)
    assert first.tolist() == np.where(np.exp(x) < 2, x, -9).argmax(-1).tolist()


@pytest.mark.parametrize(("rows", "columns"), [(33, 32), (16, 48)])
def test_a_number_that_is_repeated_is_added_up_as_often_as_it_is_there(
    rows: int, columns: int, device: str
) -> None:
    """Its sums over one axis and over both, in one kernel: lanes lie along one of the axes."""
    x = Tensor([0.5]).realize()
    sums = x.reshape(1, 1).expand(rows, columns).sum(0)
    (slope,) = (sums.square() / 2 + sums).sum().gradient(x)
    Tensor.realize(sums, slope)
    np.testing.assert_allclose(sums.numpy(), rows / 2)
    np.testing.assert_allclose(slope.numpy(), [(rows / 2 + 1) * rows * columns])
