"""What lies between kernels of halves: halves, so that tensor cores multiply them as they are."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
import stages

from tinyml import Tensor
from tinyml.codegen.fragments import sides_of
from tinyml.codegen.lower import lower
from tinyml.dtype import bfloat16
from tinyml.kernel import Kernel
from tinyml.schedule import schedule


def halves(*shape: int) -> Tensor:
    return Tensor(np.ones(shape, np.float32)).bfloat16().realize().requires_grad_()


def kernels(*tensors: Tensor) -> list[Kernel]:
    return stages.kernels_of(schedule([t.lazy for t in tensors]))


@pytest.mark.parametrize("activation", ["gelu", "relu", "silu", "softmax"])
def test_products_of_a_step_multiply_halves(activation: str) -> None:
    x, w, v = halves(24, 40), halves(40, 56), halves(56, 32)
    y = getattr(x.layernorm() @ w, activation)() @ v
    loss = (y * y).sum()
    found = [sides_of(lower(k).nests[0]) for k in kernels(loss, *loss.gradient(x, w, v))]
    factors = [(s.a.dtype, s.b.dtype) for s in found if s is not None]
    assert factors == [(bfloat16, bfloat16)] * 6


@pytest.mark.parametrize("stride", [1, 2])
def test_windows_of_what_is_computed_are_not_stored(stride: int) -> None:
    x, w = halves(2, 8, 12, 12), halves(8, 8, 3, 3)
    y = (x.exp() + 1).conv2d(w, padding=1, stride=stride)
    image, convolved = kernels(y)
    assert image.slots[0] == ((2, 8, 12, 12), bfloat16)
    assert max(prod(shape) for shape, _ in convolved.slots) == prod(x.shape)


def test_the_gradient_of_an_image_is_one_kernel() -> None:
    """Products of all windows are added up before they are rounded, as those of floats are."""
    x, w = halves(2, 8, 12, 12), halves(8, 8, 3, 3)
    (gradient,) = x.conv2d(w, padding=1).gradient(x, gradient=halves(2, 8, 12, 12))
    assert len(kernels(gradient)) == 1


def test_so_do_those_of_attention_and_its_gradients() -> None:
    given = [halves(2, 24, 16) for _ in range(3)]
    y = given[0].scaled_dot_product_attention(*given[1:], is_causal=True)
    made = kernels(y, *y.gradient(*given, gradient=halves(2, 24, 16)))
    found = [sides_of(one) for k in made for one in lower(k).nests]
    factors = [(s.a.dtype, s.b.dtype) for s in found if s is not None]
    assert set(factors) == {(bfloat16, bfloat16)}
