"""What is made of sums of groups, whose axes are joined, is made where the sums are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import stages

from tinyml import Tensor
from tinyml.schedule import schedule


def given(*shape: int, device: str = "CPU") -> Tensor:
    made = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    return Tensor(made, device=device).realize()


def convolved(device: str = "CPU", window: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Of three groups of channels; its images and weights, which have gradients."""
    x = given(2, 12, 5, 7, device=device).requires_grad_()
    w = given(18, 4, window, window, device=device).requires_grad_()
    return x.conv2d(w, padding=window // 2, groups=3), x, w


MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda y: y,
    "halves": lambda y: y.bfloat16(),
    "bias and activation": lambda y: (y + given(18, 1, 1, device=y.device)).relu(),
    "residual": lambda y: given(2, 18, 5, 7, device=y.device) - y * 2,
}


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_of_groups_is_made_with_their_sums(name: str, device: str) -> None:
    made = MADE[name](convolved(device)[0])
    if device != "NUMPY":
        assert len(schedule([made.lazy]).items) == 1
    (right,) = (MADE[name](convolved("NUMPY")[0]).float().numpy(),)
    np.testing.assert_allclose(made.float().numpy(), right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", [1, 3])
def test_gradients_of_groups_are_one_kernel_each(window: int) -> None:
    y, *inputs = convolved(window=window)
    for gradient in y.gradient(*inputs, gradient=given(*y.shape)):
        made = gradient.bfloat16()
        assert len(stages.kernels(made)) == 1


def test_sums_that_several_read_are_stored() -> None:
    """Along one axis of channels, as one of the readers has them."""
    y = convolved()[0]
    made = y - y.mean((0, 2, 3), keepdim=True)
    assert len(schedule([made.lazy]).items) == 2


def test_what_is_assigned_is_made_in_place() -> None:
    y = convolved()[0]
    target = given(2, 18, 5, 7)
    target.assign(target + y)
    made = schedule([target.lazy])
    assert len(made.in_place) == 1
