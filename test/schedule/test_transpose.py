"""Products lie in memory in the order in which they are read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import stages

from tinyml import Tensor


def given(*shape: int, device: str = "CPU") -> Tensor:
    made = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    return Tensor(made, device=device).realize()


def product(device: str = "CPU") -> Tensor:
    """2 x 3 x 5 x 7."""
    return given(2, 3, 5, 11, device=device) @ given(2, 3, 11, 7, device=device)


def by_tokens(y: Tensor) -> Tensor:
    return y.transpose(1, 2).reshape(2, 5, 21) @ given(21, 4, device=y.device)


def in_steps(y: Tensor) -> Tensor:
    """Two permutations, with an axis of one step between."""
    moved = y.permute(0, 1, 3, 2).unsqueeze(1).permute(4, 1, 0, 2, 3)  # 5 x 1 x 2 x 3 x 7
    return moved.reshape(5, 42) @ given(42, 4, device=y.device)


def along_both(y: Tensor) -> Tensor:
    """Vectors along which would be put together of numbers that lie apart, in both factors."""
    return y.permute(0, 2, 3, 1).reshape(70, 3) @ given(3, 4, device=y.device)


READ: dict[str, tuple[Callable[[Tensor], list[Tensor]], tuple[int, ...]]] = {
    "as it is made": (lambda y: [y.reshape(30, 7) @ given(7, 4, device=y.device)], (2, 3, 5, 7)),
    "by tokens": (lambda y: [by_tokens(y)], (2, 5, 3, 7)),
    "by tokens and as it is made": (lambda y: [by_tokens(y), (y * y).sum(-1)], (2, 5, 3, 7)),
    "in steps": (lambda y: [in_steps(y)], (5, 2, 3, 7)),
    "along an axis of both factors": (lambda y: [along_both(y)], (2, 3, 5, 7)),
    "in two orders": (lambda y: [by_tokens(y), in_steps(y)], (2, 3, 5, 7)),
    "asked for": (lambda y: [by_tokens(y), y], (2, 3, 5, 7)),
}


@pytest.mark.parametrize("name", READ)
def test_products_are_stored_as_they_are_read(name: str, device: str) -> None:
    read, stored = READ[name]
    made = read(product(device))
    if device != "NUMPY":
        first = stages.kernels(*made)[0]
        written = first.slots[first.outputs[0].slot][0]
        assert tuple(size for size in written if size > 1) == stored
    for mine, right in zip(made, read(product("NUMPY")), strict=True):
        np.testing.assert_allclose(mine.numpy(), right.numpy(), 1e-4, 1e-4)


def test_gradients_of_attention_are_put_side_by_side_as_they_lie() -> None:
    """Those of queries, keys and values, all of which are one product's columns."""
    x = given(2, 9, 4 * 6).requires_grad_()
    qkv = (x @ given(24, 72)).reshape(2, 9, 3, 4, 6)
    q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
    y = q.scaled_dot_product_attention(k, v).transpose(1, 2).reshape(2, 9, 24)
    (gradient,) = y.square().sum().gradient(x)
    shapes = [shape for k in stages.kernels(gradient) for shape, _ in k.slots]
    read = [tuple(size for size in shape if size > 1) for shape in shapes]
    assert read.count((2, 9, 4, 6)) >= 6
    assert (2, 4, 9, 6) not in read
    assert (2, 4, 6, 9) not in read


def test_products_without_an_element_have_no_order() -> None:
    """As those of attention whose batch is empty."""
    x = given(0, 4, 17, 2).requires_grad_()
    y = x @ given(0, 4, 2, 33)
    (y.transpose(1, 2).reshape(0, 17, 132) @ given(132, 3)).square().sum().backward()
    assert x.grad is not None
    assert x.grad.realize().shape == x.shape
    q, k = given(0, 4, 17, 2), given(0, 4, 33, 2)
    v = given(0, 4, 33, 8).requires_grad_()
    q.scaled_dot_product_attention(k, v).square().sum().backward()
    assert v.grad is not None
    assert v.grad.realize().shape == v.shape
