"""Sinks of attention, and what else is joined with scores: no row is made that has both."""

from __future__ import annotations

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

from tinyml import Tensor
from tinyml.codegen.target import Target
from tinyml.dtype import DType, bfloat16, float32
from tinyml.graph import toposort
from tinyml.lazy import Shape
from tinyml.schedule.parts import parts

HEADS = 2
SCORES = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
pytestmark = pytest.mark.usefixtures("short")


def sinks(scores: Tensor, sink: Tensor) -> Tensor:
    """One row of numbers for each head, next to the scores of each query."""
    return sink.float().reshape(HEADS, 1, -1).expand(*scores.shape[:-1], -1)


def behind(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
    scores = scores_of(q, k)
    weights = scores.cat(sinks(scores, sink), dim=-1).softmax(-1)
    return weights[..., : k.shape[-2]].cast(v.dtype) @ v


def before(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
    """Also of what comes before a query alone."""
    causal = Tensor.ones(q.shape[-2], k.shape[-2], device=q.device).tril() != 0
    scores = causal.where(scores_of(q, k), -float("inf"))
    first = sinks(scores, sink)
    weights = first.cat(scores, dim=-1).softmax(-1)[..., first.shape[-1] :]
    return weights.cast(v.dtype) @ v


def by_hand(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
    """Powers of scores and sinks, less the largest of both; each row is divided in the end."""
    scores = scores_of(q, k)
    joined = scores.cat(sinks(scores, sink), dim=-1)
    powers = (joined - joined.max(-1, keepdim=True).detach()).exp()
    own = powers[..., : k.shape[-2]]
    return ((own @ v.float()) / powers.sum(-1, keepdim=True)).cast(v.dtype)


def padded(q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
    """A softmax whose weights may all be 0."""
    scores = scores_of(q, k) * scale.float()
    weights = scores.pad(((0, 0), (0, 0), (0, 0), (1, 0))).softmax(-1)
    return weights[..., 1:].cast(v.dtype) @ v


SINKS: dict[str, tuple[Attention, Shape]] = {
    "behind": (behind, (HEADS, 1)),
    "several": (behind, (HEADS, 3)),
    "before": (before, (HEADS, 1)),
    "by hand": (by_hand, (HEADS, 1)),
    "padded": (padded, (1,)),
}
EACH = pytest.mark.parametrize(("attend", "shape"), SINKS.values(), ids=SINKS)


@TARGETS
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@EACH
def test_no_row_of_scores_with_a_sink_is_stored(
    attend: Attention, shape: Shape, dtype: DType, target: Target
) -> None:
    given = [memory(2, HEADS, n, 12, dtype=dtype) for n in (QUERIES, KEYS, KEYS)]
    kernels = training(attend, *given, memory(*shape, dtype=dtype))
    assert largest(kernels) == 2 * HEADS * KEYS * 12
    for k in kernels:
        stages.assert_right(k, 2e-2 if dtype.is_half else 1e-4, target, cancels=True)


@EACH
def test_a_result_alone_is_one_kernel(attend: Attention, shape: Shape) -> None:
    given = [memory(2, HEADS, n, 12) for n in (QUERIES, KEYS, KEYS)]
    k = stages.kernel_of(attend(*given, memory(*shape)))
    stages.assert_right(k, 1e-4)


@pytest.mark.parametrize("device", ["CPU", "EMU"])
@EACH
def test_gradients_of_sinks_are_those_of_numpy(
    attend: Attention, shape: Shape, device: str
) -> None:
    shapes = [*((2, HEADS, n, 5) for n in (QUERIES, KEYS, KEYS)), shape]
    assert_trained(attend, device, shapes, HEADS * QUERIES * KEYS)


def test_rows_that_are_wanted_are_not_taken_apart() -> None:
    """Whether they are asked for, or multiplied by all that was joined."""
    q, k, v = (memory(1, n, 12) for n in (QUERIES, KEYS, KEYS + 1))
    weights = scores_of(q, k).pad(((0, 0), (0, 0), (0, 1))).softmax(-1)
    part = weights[..., :-1] @ k
    assert apart(part)
    assert not apart(part, weights)
    assert not apart(part, weights @ v)


def test_a_part_that_is_not_where_others_meet_stays_what_it_was() -> None:
    q, k = memory(1, QUERIES, 12), memory(1, KEYS, 12)
    joined = scores_of(q, k).cat(memory(1, QUERIES, 2), dim=-1).exp()
    assert apart(joined.sum(-1), joined[..., 1:KEYS].max(-1))
    assert not apart(joined.sum(-1), joined[..., 1 : KEYS + 1].max(-1))


@pytest.mark.parametrize(
    ("count", "part", "less"), [(41, slice(None, None, -1), 1), (45, slice(4, None), 41)]
)
def test_places_that_moved_are_not_counted_from_the_first(
    device: str, count: int, part: slice, less: int
) -> None:
    scores = (Tensor(SCORES, device) @ Tensor(SCORES[:5].T.copy(), device)).reshape(40)
    made = (Tensor.arange(count, device=device)[part] < less).where(scores.pad((0, 1)), 5.0).sum()
    right = np.pad((SCORES @ SCORES[:5].T).reshape(40), (0, 1))
    right = np.where(np.arange(count)[part] < less, right, np.float32(5)).sum()
    np.testing.assert_allclose(made.numpy(), right, 1e-5)


def test_one_place_that_is_repeated_is_counted_nowhere(device: str) -> None:
    scores = (Tensor(SCORES, device) @ Tensor(SCORES[:5].T.copy(), device)).reshape(40)
    first = Tensor.arange(1, device=device).reshape(1) < 1
    made = first.expand(41).where(scores.pad((0, 1), value=5), 3.0).sum()
    right = (SCORES @ SCORES[:5].T).sum() + 5
    np.testing.assert_allclose(made.numpy(), right, 1e-5)


def apart(*wanted: Tensor) -> bool:
    """Whether something is made in parts."""
    roots = [x.lazy for x in wanted]
    return bool(parts(toposort(roots), roots))
