"""Rows that a mask leaves nothing of are NaN, but no gradient goes back through their scores."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from tinyml import Tensor
from tinyml.codegen.crop import met
from tinyml.index import Axis, Valid, inside, linear

N, LOST = 48, 5
INF = float("inf")

MASKS: dict[str, Callable[..., Tensor]] = {
    "causal, without the last": lambda i, j: (i >= j) & (i < N - LOST),
    "later keys": lambda i, j: j > i * 2 + 20,
    "earlier keys": lambda i, j: j < i - 20,
    "later keys of the first": lambda i, j: (j >= i + 3) & (j < N - 10),
}


def gradients(device: str, mask: str, known: bool) -> list[np.ndarray]:
    """Those of queries and keys, where rows that see a key alone are asked for."""
    rng = np.random.default_rng(0)
    given = [rng.standard_normal((1, 2, N, 8)).astype(np.float32) for _ in range(3)]
    q, k, v = (Tensor(a, device=device, requires_grad=True) for a in given)
    meets = MASKS[mask](np.arange(N)[:, None], np.arange(N))
    rows = np.flatnonzero(meets.any(1))
    assert len(rows) < N
    at = Tensor.arange(N, device=device)
    chosen = MASKS[mask](at.unsqueeze(-1), at) if known else Tensor(meets, device=device)
    scores = chosen.where(q @ k.transpose(-2, -1) * 8**-0.5, -INF)
    asked = (scores.softmax(-1) @ v)[:, :, int(rows[0]) : int(rows[-1]) + 1]
    found = asked.sum().gradient(q, k)
    Tensor.realize(asked, *found)
    return [t.numpy() for t in (asked, *found)]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("known", [True, False], ids=["of positions", "of data"])
def test_gradients_of_queries_and_keys_are_those_of_rows_that_see_some(
    mask: str, known: bool, device: str
) -> None:
    made, wanted = gradients(device, mask, known), gradients("NUMPY", mask, known)
    for own, reference in zip(made, wanted, strict=True):
        assert np.isfinite(reference).all()
        np.testing.assert_allclose(own, reference, 1e-4, 1e-5)


@pytest.mark.parametrize("low", [-3, 0, 4])
@pytest.mark.parametrize("stride", [-1, 1, 2])
def test_rows_that_meet_a_step_are_told_by_conditions_on_rows(low: int, stride: int) -> None:
    i, j = Axis("i", 9), Axis("j", 7)
    valid = (
        inside(linear(j) - linear(i) * stride, low, 20),
        inside(linear(j) + linear(i), -20, 8),
        inside(linear(j), 0, 4),
    )

    def holds(conditions: Valid, **at: int) -> bool:
        known = {axis: linear(at[axis.name]) for axis in (i, j) if axis.name in at}
        return all(c.low <= c.index.substitute(known).constant <= c.high for c in conditions)

    found = met(valid, [j])
    some = {a for a, b in product(range(i.size), range(j.size)) if holds(valid, i=a, j=b)}
    told = {a for a in range(i.size) if found is not None and holds(found, i=a)}
    assert told == some
