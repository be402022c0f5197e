"""What lies between kernels of halves: halves, so that tensor cores multiply them as they are."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from stages import kernels

from tinyml import Device, Tensor
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.fragments import sides_of
from tinyml.dtype import bfloat16, float32
from tinyml.schedule import schedule


def halves(*shape: int) -> Tensor:
    return Tensor(np.ones(shape, np.float32)).bfloat16().realize().requires_grad_()


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


@pytest.mark.parametrize("stride", [1, 2])
def test_the_gradient_of_an_image_is_one_kernel(stride: int) -> None:
    """Products of all windows are added up before they are rounded, as those of floats are."""
    x, w = halves(2, 8, 12, 12), halves(8, 8, 3, 3)
    y = x.conv2d(w, padding=1, stride=stride)
    (gradient,) = y.gradient(x, gradient=halves(*y.shape))
    assert len(kernels(gradient)) == 1


@pytest.mark.parametrize(("rows", "count"), [(512, 2), (8, 1)], ids=["often", "seldom"])
def test_weights_that_are_read_often_are_rounded_once(rows: int, count: int) -> None:
    """Then a card copies them past its registers, and reads half as much for each tile."""
    x = Tensor(np.ones((rows, 64), np.float32), device="EMU").bfloat16().realize()
    w = Tensor(np.ones((64, 32), np.float32), device="EMU").realize()
    *rounded, product = kernels(x @ w.bfloat16())
    assert len(rounded) == count - 1
    assert (((64, 32), bfloat16) in product.slots) == bool(rounded)


def test_a_sum_of_many_arrays_is_stored_for_its_readers() -> None:
    """A stream of residuals, whose parts lie in memory as halves, is not added up by each."""
    x, found = Tensor(np.ones((16, 24), np.float32)).realize(), []
    for _ in range(20):
        x = x + halves(16, 24).float()
        found.append(x.sum(1).lazy)
    reasons = [r for item in schedule(found).items for r in getattr(item, "reasons", ())]
    assert sum("arrays, and wanted in several places" in reason for reason in reasons) == 6


def test_a_slope_is_made_again_of_what_a_product_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a bias beside it is stored as halves: that is a row, not an array."""
    monkeypatch.setattr(Device, "DEFAULT", "EMU")
    x, w, v = halves(2048, 40), halves(40, 56), halves(56, 32)
    b = Tensor(np.ones(56, np.float32)).realize().requires_grad_()
    hidden = x @ w + b.bfloat16()
    loss = (hidden.gelu() @ v).float().square().sum()
    made = kernels(loss, *loss.gradient(x, w, b, v))
    assert ((56,), bfloat16) in [k.slots[o.slot] for k in made for o in k.outputs]
    assert ((2048, 56), float32) not in [k.slots[o.slot] for k in made for o in k.outputs]
