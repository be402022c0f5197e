"""From which sizes on a card makes products again, and that a CPU then stores them."""

from __future__ import annotations

import numpy as np
import pytest
import stages

from tinyml import Tensor
from tinyml.schedule import schedule

MADE_AGAIN = [(64, 128, 64), (2048, 32, 16), (8, 512, 128), (8, 512, 320), (1, 4096, 64)]
LONG = [(4, 8192, 512), (1, 4096, 320), (1, 8192, 1024)]  # times the width
SMALL = [(32, 128, 64), (2048, 24, 16), (1, 2048, 64), (4, 512, 128), (8, 2048, 576)]


def memory(*shape: int, device: str) -> Tensor:
    return Tensor(np.zeros(shape, np.float32), device=device).requires_grad_()


def stored(y: Tensor, *given: Tensor) -> int:
    """Elements of the largest array that a step of training has in memory."""
    gradients = y.square().sum().gradient(*given)
    kernels = stages.kernels_of(schedule([y.lazy, *(g.lazy for g in gradients)]))
    return max(int(np.prod(shape)) for k in kernels for shape, _ in k.slots)


@pytest.mark.parametrize(("heads", "rows", "width"), [*MADE_AGAIN, *LONG])
def test_a_card_stores_no_scores(heads: int, rows: int, width: int) -> None:
    for device, wanted in (("EMU", width), ("CPU", max(rows, width))):
        given = [memory(heads, rows, width, device=device) for _ in range(3)]
        y = given[0].scaled_dot_product_attention(*given[1:])
        assert stored(y, *given) == heads * rows * wanted


@pytest.mark.parametrize(("heads", "rows", "width"), SMALL)
def test_scores_of_few_heads_short_rows_and_much_work_are_stored(
    heads: int, rows: int, width: int
) -> None:
    given = [memory(heads, rows, width, device="EMU") for _ in range(3)]
    y = given[0].scaled_dot_product_attention(*given[1:])
    assert stored(y, *given) == heads * rows * max(rows, width)


@pytest.mark.parametrize(
    ("rows", "width", "kernels"), [(512, 784, 3), (512, 640, 1), (6400, 784, 1)]
)
def test_a_result_alone_is_one_kernel_where_that_pays_or_rows_are_long(
    rows: int, width: int, kernels: int
) -> None:
    given = [memory(2, rows, width, device="EMU") for _ in range(3)]
    made = schedule([given[0].scaled_dot_product_attention(*given[1:]).lazy])
    assert len(stages.kernels_of(made)) == kernels


@pytest.mark.parametrize(("rows", "width", "hidden"), [(2048, 64, 512), (1 << 17, 256, 2048)])
def test_hidden_units_are_stored(rows: int, width: int, hidden: int) -> None:
    """A fold over the rows of a batch leaves too few of them for a card to share out."""
    shapes = (rows, width), (width, hidden), (hidden, 16)
    x, up, down = (memory(*shape, device="EMU") for shape in shapes)
    assert stored((x @ up).relu() @ down, x, up, down) == rows * hidden
