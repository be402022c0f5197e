"""Positions beyond 2^31 are computed in 64 bits, also where nothing that large is in memory."""

from __future__ import annotations

import numpy as np

from tinyml import Tensor, dtypes

LARGE = 3_000_000_000


def test_places_beyond_31_bits() -> None:
    places = Tensor.arange(LARGE, dtype=dtypes.int64, device="EMU")
    assert np.array_equal(places[::300_000_000].numpy(), np.arange(0, LARGE, 300_000_000))


def test_quotients_of_positions_beyond_31_bits() -> None:
    places = Tensor.arange(LARGE, dtype=dtypes.int64, device="EMU")
    rows = places.reshape(3, 1000, 1_000_000)[:, ::499, 7]
    want = np.arange(3)[:, None] * 1_000_000_000 + np.arange(0, 1000, 499) * 1_000_000 + 7
    assert np.array_equal(rows.numpy(), want)
