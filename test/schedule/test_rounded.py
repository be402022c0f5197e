"""What is compared with one of its own elements has the same bits wherever it is made."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest

from tinyml import Tensor
from tinyml.lazy import Map
from tinyml.ops import Op
from tinyml.schedule import Schedule, rounded, schedule

Random = np.random.Generator
MADE: dict[str, Callable[..., Tensor]] = {
    "two products": lambda b, c, d, e: b * c + d * e,
    "less a product": lambda b, c, d, e: d * e - b * c,
    "three": lambda b, c, d, e: b * c + d * e + d * c,
    "turned": lambda b, c, d, e: (b * c + d * e).flip(1),
    "beneath an op": lambda b, c, d, e: (b * c + d * e) * e,
}


def given(rng: Random, device: str, n: int, k: int) -> list[Tensor]:
    shapes = (2, n, k), (2, n, k), (1, n, k), (1, 1, k)
    made = [Tensor(rng.standard_normal(s).astype(np.float32), device=device) for s in shapes]
    return [t.realize().requires_grad_() for t in made]


@pytest.mark.parametrize("name", MADE)
def test_where_sums_of_products_are_largest_so_far_is_found(
    name: str, device: str, rng: Random
) -> None:
    for n, k in ((18, 5), (19, 35)):
        tensors = given(rng, device, n, k)
        (ours,) = MADE[name](*tensors).cummax(1).sum().gradient(tensors[1])
        stored = MADE[name](*tensors).contiguous().realize()
        (right,) = stored.cummax(1).sum().gradient(tensors[1])
        np.testing.assert_allclose(ours.numpy(), right.numpy(), 1e-4, 1e-4, err_msg=f"{n} x {k}")


def fused(plan: Schedule) -> set[Op]:
    """Ops of all kernels that add up a product, or fuse it with a sum."""
    nodes = [node for item in plan.items for node, _ in getattr(item, "units", ())]
    found, stack = set[Op](), nodes
    while stack:
        node = stack.pop()
        stack += node.sources
        if isinstance(node, Map) and node.op in (Op.ADD, Op.FMA) and node.dtype.is_float:
            found.add(node.op)
    return found


def test_sums_of_products_that_are_compared_with_themselves_say_what_they_fuse(
    rng: Random,
) -> None:
    b, c, d, e = given(rng, "CPU", 8, 8)
    x = b * c + d * e
    compared = {
        "argmax": x.argmax(1),
        "equal": x == x.max(2, keepdim=True),
        "windows": x.max_pool2d(2, return_indices=True)[1],
        "gradient": x.max(1).sum().gradient(e)[0],
        "order": x.argsort(1),
    }
    for name, tensor in compared.items():
        assert fused(schedule([tensor.lazy])) == {Op.FMA}, name
    others = {"largest": x.max(1), "sign": (x < 0).where(x, 1), "sum": x.sum(1)}
    for name, tensor in others.items():
        assert fused(schedule([tensor.lazy])) == {Op.ADD}, name


@pytest.mark.parametrize("steps", [50, 100])
def test_what_many_comparisons_read_is_walked_once_for_each_side(steps: int) -> None:
    x, a, b = (Tensor.rand(8, device="CPU").realize() for _ in range(3))
    for _ in range(steps):
        y = x * a + b
        x = (y > x).where(y, x * 0.5)
    with mock.patch.object(rounded, "_passed", wraps=rounded._passed) as passed:
        schedule([x.lazy])
    assert 0 < passed.call_count <= 2 * 10 * steps  # sides, nodes of a step
