"""Attention whose weights are sums of others: each term is folded in a kernel of its own."""

from __future__ import annotations

import graphs
import numpy as np
import pytest
import stages
from attentions import (
    KEYS,
    QUERIES,
    TARGETS,
    Attention,
    assert_trained,
    largest,
    memory,
    scores_of,
    training,
)
from cards import CARD

from tinyml import Tensor
from tinyml.codegen.target import Target
from tinyml.dtype import DType, bfloat16, float32
from tinyml.graph import toposort
from tinyml.lazy import Shape
from tinyml.schedule import recompute, terms

HEADS = 2
LIMITS = recompute.LIMITS  # of devices as they are
DEVICES = pytest.mark.parametrize(("device", "target"), [("CPU", stages.C), ("EMU", CARD)])
pytestmark = pytest.mark.usefixtures("short")


def weights(q: Tensor, k: Tensor) -> Tensor:
    return scores_of(q, k).softmax(-1).cast(q.dtype)


def different(q: Tensor, k: Tensor, p: Tensor, j: Tensor, v: Tensor, x: Tensor) -> Tensor:
    return (weights(q, k) - x * weights(p, j)) @ v


def causal(q: Tensor, k: Tensor, p: Tensor, j: Tensor, v: Tensor, x: Tensor) -> Tensor:
    """As a whole scaled, and masked, as some write it."""
    rows, columns = q._arange(q.shape[-2]), k._arange(k.shape[-2])
    before = rows.unsqueeze(-1) >= columns
    one, other = (
        before.where(scores_of(*each), -float("inf")).softmax(-1) for each in ((q, k), (p, j))
    )
    return (0.2 * (one - x.float() * other)).cast(v.dtype) @ v


def of_keys(q: Tensor, k: Tensor, p: Tensor, j: Tensor, v: Tensor, x: Tensor) -> Tensor:
    """What other keys have other numbers of is folded with them."""
    return (weights(q, k) * x + weights(p, j)) @ v


def of_a_window(q: Tensor, k: Tensor, p: Tensor, j: Tensor, v: Tensor, x: Tensor) -> Tensor:
    """Likewise, of what is read through a window with one place."""
    return (weights(q, k) - x.unfold(0, KEYS, 1)[0] * weights(p, j)) @ v


def of_one_key(q: Tensor, k: Tensor, p: Tensor, j: Tensor, v: Tensor, x: Tensor) -> Tensor:
    """Likewise, of a number for one of them, and 1 for all others."""
    return (weights(q, k) - x.pad((0, KEYS - 1), value=1.0) * weights(p, j)) @ v


def three(q: Tensor, k: Tensor, p: Tensor, j: Tensor, v: Tensor, x: Tensor) -> Tensor:
    return (-weights(q, k) + weights(p, j) / 2 - x * weights(q, j)) @ v


SUMS: dict[str, tuple[Attention, Shape]] = {
    "number": (different, (1,)),
    "heads": (different, (HEADS, 1, 1)),
    "causal": (causal, (HEADS, 1, 1)),
    "keys": (of_keys, (KEYS,)),
    "window": (of_a_window, (KEYS,)),
    "one key": (of_one_key, (1,)),
    "three": (three, (1,)),
}
EACH = pytest.mark.parametrize(("attend", "shape"), SUMS.values(), ids=SUMS)
SOME = pytest.mark.parametrize("attend", [different, three])


def sizes(width: int, own: int, shape: Shape) -> list[Shape]:
    """Of two queries with their keys, of values, and of what weights are multiplied by."""
    rows = (QUERIES, KEYS, QUERIES, KEYS)
    return [*((2, HEADS, n, width) for n in rows), (2, HEADS, KEYS, own), shape]


@EACH
@DEVICES
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_a_result_is_a_kernel_for_each_term_and_no_scores(
    attend: Attention, shape: Shape, dtype: DType, device: str, target: Target
) -> None:
    given = [graphs.memory(*s, dtype=dtype, device=device) for s in sizes(12, 9, shape)]
    kernels = stages.kernels(attend(*given))
    assert len(kernels) == (3 if attend is three else 2)
    assert largest(kernels) == 2 * HEADS * KEYS * 12
    for k in kernels:
        stages.assert_right(k, 2e-2 if dtype.is_half else 1e-4, target, cancels=True)


@EACH
@pytest.mark.parametrize("device", ["CPU", "EMU"])
def test_results_are_those_of_numpy(attend: Attention, shape: Shape, device: str) -> None:
    rng = np.random.default_rng(3)
    given = [rng.standard_normal(s).astype(np.float32) for s in sizes(5, 7, shape)]
    made, right = (attend(*(Tensor(x, device=d) for x in given)) for d in (device, "NUMPY"))
    np.testing.assert_allclose(made.numpy(), right.numpy(), 1e-4, 1e-5)


@SOME
@TARGETS
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_training_stores_no_scores(attend: Attention, dtype: DType, target: Target) -> None:
    kernels = training(attend, *(memory(*s, dtype=dtype) for s in sizes(12, 9, (1,))))
    assert largest(kernels) == 2 * HEADS * KEYS * 12
    for k in kernels:
        stages.assert_right(k, 2e-2 if dtype.is_half else 1e-4, target, cancels=True)


@SOME
@pytest.mark.parametrize("device", ["CPU", "EMU"])
def test_gradients_are_those_of_numpy(attend: Attention, device: str) -> None:
    most = 2 * HEADS * QUERIES * KEYS
    assert_trained(attend, device, sizes(5, 7, (1,)), most)


def apart(*wanted: Tensor) -> bool:
    """Whether a product is made of products of terms."""
    roots = [x.lazy for x in wanted]
    return bool(terms.apart(toposort(roots), roots))


def test_what_no_kernel_would_make_in_rows_stays_a_sum() -> None:
    """Sums of hidden units; weights that are wanted, of no row, or folded along queries."""
    q, k, p, j = (memory(*s) for s in sizes(12, 9, ())[:4])
    v = memory(2, HEADS, KEYS, 9)
    one, other = weights(q, k), weights(p, j)
    both = one - other
    assert apart(both @ v)
    assert not apart(both @ v, both)
    assert not apart(both @ v, other)
    assert not apart((one - scores_of(q, k).exp()) @ v)
    assert not apart((both * 9).cast("int32") @ v.cast("int32"))  # each would be cut off
    assert not apart(both.transpose(-2, -1) @ q)
    w = weights(q, k)
    assert not apart((w[:, :1] - w[:, 1:]) @ v[:, :1], w[:, 1:])
    x, up, gate = memory(24, 8), memory(8, 64), memory(8, 64)
    assert not apart(((x @ up).relu() + (x @ gate).relu()) @ memory(64, 8))


@pytest.mark.parametrize(
    ("device", "rows", "stored"),
    [("CPU", 1023, True), ("CPU", 1024, False), ("CUDA", 31, True), ("CUDA", 32, False)],
)
def test_of_short_rows_one_term_is_stored(
    device: str, rows: int, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes less than a product more."""
    monkeypatch.setattr(recompute, "LIMITS", LIMITS)
    shapes = *((rows, 8) for _ in range(5)), (1,)
    y = different(*(graphs.memory(*shape, device=device) for shape in shapes))
    assert largest(stages.kernels(y)) == rows * (rows if stored else 8)
