"""Lowering: what is folded over, and within which loops."""

from __future__ import annotations

import pytest
import stages
from graphs import DEVICE, matmul, mul, total

from tinyml import lazy
from tinyml.dtype import float32
from tinyml.kernel import Kernel, Output
from tinyml.lazy import LazyBuffer


def squares_of_products(rows: int, depth: int, between: int, columns: int) -> Kernel:
    """For each row the sum of the squares of (a @ b) @ c, with nothing stored on the way."""
    shapes = (rows, 1), (rows, depth), (depth, between), (between, columns)

    def slot(number: int) -> LazyBuffer:
        return lazy.node(lazy.Slot, shapes[number], float32, DEVICE, (), number)

    products = matmul(matmul(slot(1), slot(2)), slot(3))
    output = Output(0, (rows, 1), total(mul(products, products), 1), rows=(0,))
    return Kernel(((output,),), tuple((shape, float32) for shape in shapes))


@pytest.mark.parametrize("sizes", [(3, 4, 5, 4), (3, 4, 4, 4), (3, 5, 4, 4), (3, 4, 5, 6)], ids=str)
def test_folds_of_the_same_size_that_are_within_each_other_walk_axes_of_their_own(
    sizes: tuple[int, int, int, int],
) -> None:
    """Those of depth are in the loop over what is between, and that is in the one over columns."""
    k = squares_of_products(*sizes)
    for runner in (stages.simulated(stages.C, ()), stages.simulated(stages.C, None)):
        stages.assert_made(k, runner)
