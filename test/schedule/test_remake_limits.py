"""From which sizes on a card makes products again, and that a CPU then stores them."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import stages

from tinyml import Tensor
from tinyml.graph import toposort
from tinyml.schedule import balance, remake, schedule

MADE_AGAIN = [(64, 128, 64), (2048, 32, 16), (8, 512, 320), (1, 4096, 64)]
FEW = [(1, 128, 64), (1, 2048, 64), (4, 512, 128), (1, 2048, 512)]  # rows
LONG = [(4, 8192, 640), (1, 4096, 320), (1, 8192, 1024)]  # times the width
STORED = [(2048, 24, 16), (8, 2048, 576), (8, 4096, 1024), (1, 16384, 1280)]


def memory(*shape: int, device: str) -> Tensor:
    return Tensor(np.zeros(shape, np.float32), device=device).requires_grad_()


def stored(y: Tensor, *given: Tensor) -> int:
    """Elements of the largest array that a step of training has in memory."""
    gradients = y.square().sum().gradient(*given)
    kernels = stages.kernels_of(schedule([y.lazy, *(g.lazy for g in gradients)]))
    return max(int(np.prod(shape)) for k in kernels for shape, _ in k.slots)


@pytest.mark.parametrize(("heads", "rows", "width"), [*MADE_AGAIN, *FEW, *LONG])
def test_a_card_stores_no_scores(heads: int, rows: int, width: int) -> None:
    for device, wanted in (("EMU", width), ("CPU", max(rows, width))):
        given = [memory(heads, rows, width, device=device) for _ in range(3)]
        y = given[0].scaled_dot_product_attention(*given[1:])
        assert stored(y, *given) == heads * rows * wanted


@pytest.mark.parametrize(("heads", "rows", "width"), [(1, 2048, 64), (2, 512, 64), (3, 256, 16)])
def test_weights_that_nothing_leads_are_made_again_if_scores_are_large(
    heads: int, rows: int, width: int
) -> None:
    """They are 8 times as large as queries, though they may be few."""
    given = [memory(heads, rows, width, device="EMU") for _ in range(3)]
    y = (given[0] @ given[1].transpose(-2, -1)).sigmoid() @ given[2]
    assert stored(y, *given) == heads * rows * width


@pytest.mark.parametrize(("heads", "rows", "width"), STORED)
def test_scores_of_short_rows_and_much_work_are_stored(heads: int, rows: int, width: int) -> None:
    given = [memory(heads, rows, width, device="EMU") for _ in range(3)]
    y = given[0].scaled_dot_product_attention(*given[1:])
    assert stored(y, *given) == heads * rows * max(rows, width)


@pytest.mark.parametrize(("width", "times"), [(384, 1.13), (512, 1.48), (513, 1.89), (1024, 3.53)])
def test_how_much_longer_a_card_takes_that_stores_no_scores(width: int, times: float) -> None:
    """By products and bytes: so heads of up to 512 are worth it, whatever their length."""
    assert balance.longer(width) == pytest.approx(times, abs=0.01)


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


def test_what_scores_are_sums_of_is_stored() -> None:
    """Nobody makes projections again, though they are read both ways, and few."""
    x, w = (memory(*shape, device="EMU") for shape in ((4, 64, 64), (64, 192)))
    q, k, v = (x @ w).reshape(4, 64, 3, 2, 32).permute(2, 0, 3, 1, 4)
    y = q.scaled_dot_product_attention(k, v, is_causal=True)
    roots = [g.lazy for g in y.square().sum().gradient(x, w)]
    made = remake.remade(toposort(roots), roots)
    assert len(made) == 2  # scores, and the gradient of weights
    assert {node.size for node in made} == {4 * 2 * 64 * 64}


def test_products_whose_rows_nobody_leads_are_stored_until_they_are_large() -> None:
    for rows, wanted in ((64, 64), (1024, 16)):
        x = memory(4, rows, 16, device="EMU")
        roots = [g.lazy for g in (x @ x.transpose(1, 2)).square().sum().gradient(x)]
        kernels = stages.kernels_of(schedule(roots))
        assert max(prod(shape) for k in kernels for shape, _ in k.slots) == 4 * rows * wanted
