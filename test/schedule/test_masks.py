"""What is known of a value where a mask does not hold is what it is there, wherever that lies."""

from __future__ import annotations

import numpy as np
import pytest

from tinyml import Tensor

N = 64


@pytest.mark.parametrize("device", ["CPU", "EMU"])
@pytest.mark.parametrize("value", [0.0, 3.0])
def test_a_number_that_is_padded_is_not_that_number_everywhere(device: str, value: float) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((N * N,), (N, 8)))

    def made(device: str) -> list[Tensor]:
        beside = Tensor.full((1,), 2.0, device=device).pad((0, N * N - 1), value=value)
        mask = Tensor.arange(N * N, device=device) >= 1000
        rows = mask.where(Tensor(x, device=device).exp(), beside).reshape(N, N)
        results = [rows, rows @ Tensor(w, device=device), rows.sum(0)]
        Tensor.realize(*results)
        return results

    for one, right in zip(made(device), made("NUMPY"), strict=True):
        np.testing.assert_allclose(one.numpy(), right.numpy(), 1e-4, 1e-4)
