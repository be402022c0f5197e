"""What becomes of shapes, against numpy's arrays."""

from __future__ import annotations

import numpy as np
import pytest

from tinyml import shape
from tinyml.errors import AxisError, ShapeError

X = np.empty((4, 1, 3))


def test_shapes_are_those_of_numpy() -> None:
    found = {
        shape.broadcast_shape("add", X.shape, (5, 1), ()): (X + np.empty((5, 1)) + 1).shape,
        shape.permuted_shape(X.shape, (2, 0, 1)): X.transpose(2, 0, 1).shape,
        shape.expanded_shape(X.shape, (4, 2, 3)): np.broadcast_to(X, (4, 2, 3)).shape,
        shape.reshaped_shape(X.shape, (6, 2)): X.reshape(6, 2).shape,
        shape.dropped_shape(X.shape, (1,)): X.squeeze(1).shape,
        shape.padded_shape(X.shape, ((1, 2), (0, 0), (0, 5))): (7, 1, 8),
        shape.shrunk_shape(X.shape, ((1, 3), (0, 1), (2, 2))): X[1:3, 0:1, 2:2].shape,
    }
    assert list(found) == list(found.values())
    assert shape.reduced_shape(X.shape, (2, 0, 2)) == ((0, 2), X.sum((0, 2), keepdims=True).shape)
    assert shape.permuted_shape(X.shape, (0, 1, 2)) is None


def test_an_answer_that_is_kept_is_no_answer_to_who_asks_for_less() -> None:
    for _ in range(2):
        with pytest.raises(ShapeError, match="do not broadcast"):
            shape.broadcast_shape("add", (2,), (3,))
        with pytest.raises(AxisError, match="index"):
            shape.broadcast_shape("index", (2,), (3,), error=AxisError)
