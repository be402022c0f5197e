"""What scores share and is trained: its gradient comes beside those of queries and keys."""

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
    biased,
    distances,
    largest,
    memory,
    scores_of,
    training,
)

from tinyml import Tensor
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import OptKind
from tinyml.codegen.target import Target
from tinyml.dtype import DType, bfloat16, float32
from tinyml.lazy import Shape

HEADS = 2
ALONG = {OptKind.ONLINE, OptKind.FRAGMENT}  # products that are nowhere stored
pytestmark = pytest.mark.usefixtures("short")


def sloping(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    return biased(q, k, v, -slopes * distances(q, k).cast(slopes.dtype))


def sloping_so_far(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    """Of what comes before a query alone, as a mask says."""
    far = distances(q, k)
    causal = Tensor.ones(*far.shape, device=q.device).tril() != 0
    return biased(q, k, v, causal.where(slopes / (far + 1).cast(slopes.dtype), -float("inf")))


def tempered(q: Tensor, k: Tensor, v: Tensor, heat: Tensor) -> Tensor:
    return (scores_of(q, k) * heat).softmax(-1).cast(v.dtype) @ v


def keyed(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Of the shape of a mask that leaves keys out."""
    return biased(q, k, v, bias.reshape(bias.shape[0], 1, 1, -1))


SHARED: dict[str, tuple[Attention, Shape]] = {
    "keys of a batch": (keyed, (2, KEYS)),
    "keys of a head": (biased, (HEADS, 1, KEYS)),
    "keys": (biased, (KEYS,)),
    "slopes": (sloping, (HEADS, 1, 1)),
    "slopes behind a mask": (sloping_so_far, (HEADS, 1, 1)),
    "temperatures": (tempered, (HEADS, 1, 1)),
    "a temperature": (tempered, (1,)),
}
EACH = pytest.mark.parametrize(("attend", "shape"), SHARED.values(), ids=SHARED)


@TARGETS
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@EACH
def test_no_kernel_is_made_for_what_scores_share_but_to_add_up_rows(
    attend: Attention, shape: Shape, dtype: DType, target: Target
) -> None:
    """There are as many that make scores as without, and in as many ways."""
    given = [memory(2, HEADS, n, 12, dtype=dtype) for n in (QUERIES, KEYS, KEYS)]
    kernels = training(attend, *given, memory(*shape, dtype=dtype))
    assert len(kernels) == (4 if dtype.is_half else 5)
    assert largest(kernels) == 2 * HEADS * KEYS * 12
    chosen = [{opt.kind for opt in choose(lower(k), target)[0]} for k in kernels]
    assert sum(not kinds.isdisjoint(ALONG) for kinds in chosen) == 3
    for k in kernels:
        stages.assert_right(k, 2e-2 if dtype.is_half else 1e-4, target, cancels=True)


@pytest.mark.parametrize("device", ["CPU", "EMU"])
def test_what_stands_beside_a_sum_is_added_up_unless_it_is_zero_everywhere(device: str) -> None:
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal((2, HEADS, n, 5)) for n in (QUERIES, KEYS, KEYS)]
    arrays += [rng.standard_normal((HEADS, QUERIES, KEYS)) for _ in range(2)]

    def made(device: str) -> list[Tensor]:
        q, k, v, bias, far = (Tensor(x.astype(np.float32), device=device) for x in arrays)
        gradients = biased(q, k, v, bias).square().sum().gradient(q, k, v, bias)
        count = HEADS * QUERIES * KEYS
        beside = Tensor.zeros(1, device=device).pad((0, count - 1), value=5.0)
        some = Tensor.arange(count, device=device).reshape(bias.shape) % 3 != 0
        total = (some.where(gradients[3], beside.reshape(bias.shape)) * far).sum((1, 2))
        Tensor.realize(*gradients[:3], total)
        return [*gradients[:3], total]

    for one, right in zip(made(device), made("NUMPY"), strict=True):
        np.testing.assert_allclose(one.numpy(), right.numpy(), 1e-3, 1e-4)


@pytest.mark.parametrize("device", ["CPU", "EMU"])
@EACH
def test_gradients_of_what_scores_share_are_those_of_numpy(
    attend: Attention, shape: Shape, device: str
) -> None:
    shapes = [*((2, HEADS, n, 5) for n in (QUERIES, KEYS, KEYS)), shape]
    assert_trained(attend, device, shapes, HEADS * QUERIES * KEYS)
