"""From which sizes on a card makes products again, and that a CPU then stores them."""

from __future__ import annotations

import numpy as np
import pytest
import stages

from tinyml import Tensor
from tinyml.schedule import schedule

SIZES = [(64, 128, 64, False), (4, 512, 128, False), (4, 512, 256, False), (1, 2048, 64, False)]
SMALL = [(32, 128, 64, True), (256, 64, 32, True), (1, 1024, 64, True)]
WIDER = [(4, 512, 264, True)]


def memory(*shape: int, device: str) -> Tensor:
    return Tensor(np.zeros(shape, np.float32), device=device).requires_grad_()


def stored(y: Tensor, *given: Tensor) -> int:
    """Elements of the largest array that a step of training has in memory."""
    gradients = y.square().sum().gradient(*given)
    kernels = stages.kernels_of(schedule([y.lazy, *(g.lazy for g in gradients)]))
    return max(int(np.prod(shape)) for k in kernels for shape, _ in k.slots)


@pytest.mark.parametrize(("heads", "rows", "width", "scores"), [*SIZES, *SMALL, *WIDER])
def test_scores_of_few_heads_and_short_rows_are_stored(
    heads: int, rows: int, width: int, scores: bool
) -> None:
    for device in ("EMU", "CPU"):
        given = [memory(heads, rows, width, device=device) for _ in range(3)]
        largest = stored(given[0].scaled_dot_product_attention(*given[1:]), *given)
        wanted = rows if scores or device == "CPU" else width
        assert largest == heads * rows * max(wanted, width)


def test_hidden_units_that_leave_a_card_few_rows_are_stored() -> None:
    x, up, down = (memory(*shape, device="EMU") for shape in ((2048, 64), (64, 512), (512, 64)))
    assert stored((x @ up).relu() @ down, x, up, down) == 2048 * 512
