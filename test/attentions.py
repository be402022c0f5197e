"""Training attention that is so short that all is made at once, as if it were long."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import graphs
import numpy as np
import pytest
import stages
from cards import CARD

from tinyml import Tensor
from tinyml.codegen.choose import c_online as choose_c_online
from tinyml.codegen.choose import cuda_online as choose_cuda_online
from tinyml.dtype import DType, float32
from tinyml.kernel import Kernel
from tinyml.lazy import Shape
from tinyml.schedule import recompute

QUERIES, KEYS = 18, 26
TARGETS = pytest.mark.parametrize("target", [stages.C, CARD], ids=["C", "CUDA"])
Attention = Callable[..., Tensor]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products are large ones."""
    limit(monkeypatch, QUERIES * KEYS, QUERIES * KEYS)
    monkeypatch.setattr(choose_c_online, "LONG", 16)
    monkeypatch.setattr(choose_c_online, "STEP", 8)
    monkeypatch.setattr(choose_cuda_online, "STEPS", (8,))


def limit(monkeypatch: pytest.MonkeyPatch, elements: int, masked: int) -> None:
    limits = recompute.Limits(elements, masked, steps=16, rows=1, led=False, depth=512)
    monkeypatch.setattr(recompute, "LIMITS", dict.fromkeys(recompute.LIMITS, limits))


def memory(*shape: int, dtype: DType = float32) -> Tensor:
    return graphs.memory(*shape, dtype=dtype).requires_grad_()


def training(attend: Attention, *given: Tensor) -> list[Kernel]:
    """The kernels of a result and of the gradients of queries, keys and values."""
    y = attend(*given)
    gradients = (y * memory(*y.shape, dtype=y.dtype)).sum().gradient(*given)
    return stages.kernels(y, *gradients)


def largest(kernels: list[Kernel]) -> int:
    return max(int(np.prod(shape)) for k in kernels for shape, _ in k.slots)


def stored(kernels: list[Kernel], size: int) -> int:
    """How many arrays of so many numbers, or of more, there are."""
    return sum(np.prod(output.shape) >= size for k in kernels for output in k.outputs)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.scaled_dot_product_attention(k, v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.scaled_dot_product_attention(k, v, is_causal=True)


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1)).float() * q.shape[-1] ** -0.5


def distances(q: Tensor, k: Tensor) -> Tensor:
    rows, columns = q._arange(q.shape[-2]), k._arange(k.shape[-2])
    return (rows.unsqueeze(-1) - columns).abs()


def biased(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (scores_of(q, k) + bias).softmax(-1).cast(v.dtype) @ v


def assert_trained(
    attend: Attention,
    device: str,
    shapes: Sequence[Shape],
    most: int,
    rtol: float = 1e-3,
    atol: float = 1e-4,
) -> None:
    """What comes out of attention and its gradients is what numpy makes of the graph."""
    made, right = (_trained(attend, d, shapes, most) for d in (device, "NUMPY"))
    for mine, wanted in zip(made, right, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol, atol)


def _trained(
    attend: Attention, device: str, shapes: Sequence[Shape], most: int
) -> list[np.ndarray]:
    """Results and gradients; no kernel stores `most` numbers."""
    rng = np.random.default_rng(2)
    given = [Tensor(rng.standard_normal(s).astype(np.float32), device=device) for s in shapes]
    for x in given:
        x.realize().requires_grad_()
    y = attend(*given)
    gradients = y.square().sum().gradient(*given)
    if device != "NUMPY":
        kernels = stages.kernels(y, *gradients)
        assert largest(kernels) < most
    return [y.numpy(), *(g.numpy() for g in gradients)]
