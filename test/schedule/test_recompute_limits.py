"""From which sizes on a card makes products again, and that a CPU then stores them."""

from __future__ import annotations

import sys
from math import prod
from pathlib import Path

import graphs
import numpy as np
import pytest
import stages

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import steps
from benchmarks.scheduled import kernels_of
from benchmarks.steps import GPTSize
from tinyml import Tensor, defaults
from tinyml.dtype import DType, bfloat16, float32, int32
from tinyml.graph import toposort
from tinyml.schedule import recompute, schedule

MADE_AGAIN = [(64, 128, 64), (2048, 32, 16), (8, 512, 320), (1, 4096, 64)]
FEW = [(1, 128, 64), (1, 2048, 64), (4, 512, 128), (1, 2048, 512)]  # rows
LONG = [(4, 8192, 640), (1, 4096, 320), (1, 8192, 1024)]  # times the width
WIDE = [(8, 2048, 576), (8, 4096, 1024), (1, 1056, 768)]
STORED = [(2048, 24, 16), (1, 16384, 1280)]


def memory(*shape: int, device: str, dtype: DType = float32) -> Tensor:
    return graphs.memory(*shape, device=device, dtype=dtype).requires_grad_()


def stored(y: Tensor, *given: Tensor) -> int:
    """Elements of the largest array that a step of training has in memory."""
    gradients = y.square().sum().gradient(*given)
    kernels = stages.kernels(y, *gradients)
    return max(int(np.prod(shape)) for k in kernels for shape, _ in k.slots)


@pytest.mark.parametrize(("heads", "rows", "width"), [*MADE_AGAIN, *FEW, *LONG, *WIDE])
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
def test_scores_of_short_or_very_wide_rows_are_stored(heads: int, rows: int, width: int) -> None:
    given = [memory(heads, rows, width, device="EMU") for _ in range(3)]
    y = given[0].scaled_dot_product_attention(*given[1:])
    assert stored(y, *given) == heads * rows * max(rows, width)


@pytest.mark.parametrize(
    ("dtype", "queries", "keys"),
    [
        *((float32, 16384, 1024), (float32, 1024, 16384), (bfloat16, 16384, 1024)),
        *((bfloat16, 1 << 17, 40), (bfloat16, 300, 16384)),
    ],
)
def test_one_head_of_any_ratio_stores_no_scores(dtype: DType, queries: int, keys: int) -> None:
    """Blocks share what few keys or queries fold, of halves; of floats a sixteenth will do."""
    given = [memory(1, n, 8, device="EMU", dtype=dtype) for n in (queries, keys, keys)]
    y = given[0].scaled_dot_product_attention(*given[1:])
    assert stored(y, *given) == max(queries, keys) * 8


@pytest.mark.parametrize(("rows", "width"), [(512, 784), (512, 640), (6400, 1024)])
def test_a_result_alone_is_one_kernel(rows: int, width: int) -> None:
    given = [memory(2, rows, width, device="EMU") for _ in range(3)]
    made = schedule([given[0].scaled_dot_product_attention(*given[1:]).lazy])
    assert len(stages.kernels_of(made)) == 1


@pytest.mark.parametrize(("heads", "width", "kernels"), [(16, 128, 1), (16, 320, 2), (1, 128, 2)])
def test_weights_of_heads_are_made_within_where_one_block_makes_them(
    heads: int, width: int, kernels: int
) -> None:
    """What one product alone folds, without a softmax: of a single head it may be hidden units."""
    q, k, v = (memory(heads, 512, width, device="EMU") for _ in range(3))
    made = schedule([((q @ k.transpose(-2, -1)).sigmoid() @ v).lazy])
    assert len(stages.kernels_of(made)) == kernels


def test_logits_of_wide_rows_are_stored() -> None:
    """They lead each other as scores do, but meet no other product."""
    x, w = memory(1024, 640, device="EMU"), memory(4096, 640, device="EMU")
    loss = (x @ w.transpose(0, 1)).logsumexp(1).sum()
    assert stored(loss, x, w) == 1024 * 4096


@pytest.mark.parametrize(("rows", "width", "hidden"), [(2048, 64, 512), (1 << 17, 256, 2048)])
def test_hidden_units_are_stored(rows: int, width: int, hidden: int) -> None:
    """A fold over the rows of a batch leaves too few of them for a card to share out."""
    shapes = (rows, width), (width, hidden), (hidden, 16)
    x, up, down = (memory(*shape, device="EMU") for shape in shapes)
    assert stored((x @ up).relu() @ down, x, up, down) == rows * hidden


@pytest.mark.parametrize("dim", [128, 256, 512])
def test_hidden_units_before_a_norm_are_stored(dim: int) -> None:
    """Its gradient, which they meet, is made of their own product: they are no scores for that."""
    shapes = (4 * dim, dim), (dim, 4 * dim), (4 * dim, dim)
    x, up, down = (memory(*shape, device="EMU") for shape in shapes)
    y = x + (x.layernorm() @ up).gelu() @ down
    roots = [g.lazy for g in y.layernorm().square().sum().gradient(x, up, down)]
    assert not recompute.recomputed(toposort(roots), roots)


def test_what_norms_are_made_of_is_stored() -> None:
    """Their folds lead each other along rows, and meet other products: they are no scores."""
    x, w, up = (memory(*s, device="EMU") for s in ((2048, 640), (640, 640), (640, 640)))
    y = (x + x @ w).layernorm()
    roots = [g.lazy for g in (y + y @ up).layernorm().square().sum().gradient(x, w, up)]
    assert not recompute.recomputed(toposort(roots), roots)


def test_layers_store_what_they_did_however_many_logits_there_are() -> None:
    """Logits are made again; streams of residuals, of which norms are made, are not."""
    with defaults(device="EMU"):
        few, many = (
            len(kernels_of(steps.gpt(GPTSize(2, 768, 12, 1024, 8, vocabulary))))
            for vocabulary in (256, 50304)
        )
    assert many >= few


def test_what_scores_are_sums_of_is_stored() -> None:
    """Nobody makes projections again, though they are read both ways, and few."""
    x, w = (memory(*shape, device="EMU") for shape in ((4, 64, 64), (64, 192)))
    q, k, v = (x @ w).reshape(4, 64, 3, 2, 32).permute(2, 0, 3, 1, 4)
    y = q.scaled_dot_product_attention(k, v, is_causal=True)
    roots = [g.lazy for g in y.square().sum().gradient(x, w)]
    made = recompute.recomputed(toposort(roots), roots)
    assert len(made) == 2  # scores, and the gradient of weights
    assert {node.size for node in made} == {4 * 2 * 64 * 64}


def test_products_whose_rows_nobody_leads_are_stored_until_they_are_large() -> None:
    for rows, wanted in ((64, 64), (1024, 16)):
        x = memory(4, rows, 16, device="EMU")
        roots = [g.lazy for g in (x @ x.transpose(1, 2)).square().sum().gradient(x)]
        kernels = stages.kernels(*roots)
        assert max(prod(shape) for k in kernels for shape, _ in k.slots) == 4 * rows * wanted


def test_logits_of_which_a_loss_picks_one_a_row_are_stored_and_made_once() -> None:
    """Made again, they would be stored for the loss all the same, and as floats."""
    tokens, words, depth = 8192, 50257, 768
    x, w = (memory(n, depth, device="EMU", dtype=bfloat16) for n in (tokens, words))
    loss = (x @ w.T).cross_entropy(graphs.memory(tokens, device="EMU", dtype=int32))
    found = stages.kernels(loss, *loss.gradient(x, w))
    of_logits = {t for k in found for shape, t in k.slots if prod(shape) >= tokens * words}
    assert (len(found), of_logits) == (5, {bfloat16})
