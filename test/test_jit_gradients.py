"""TinyJit where a function leaves gradients to others, reads those of others, or adds to them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tinyml import Tensor, TinyJit, nn, no_grad
from tinyml.errors import JitError

Jit = Callable[[Callable[..., Tensor]], Callable[..., Tensor]]


def weight(device: str) -> Tensor:
    """A parameter."""
    return Tensor([1.0, 2.0], device, requires_grad=True).realize()


def row(device: str, value: float) -> Tensor:
    """An argument."""
    return Tensor([value, value + 1], device).realize()


def grad(w: Tensor) -> list[float]:
    """What was added up, as numbers."""
    assert w.grad is not None
    found: list[float] = w.grad.tolist()
    return found


def adding(w: Tensor) -> TinyJit[[Tensor], Tensor]:
    """A function that adds its argument to the gradient of w."""

    @TinyJit
    def step(x: Tensor) -> Tensor:
        loss = (w * x).sum()
        loss.backward()
        return loss

    return step


def test_a_gradient_is_set_where_it_was_forgotten_since(device: str) -> None:
    w = weight(device)
    step = adding(w)
    for call in range(5):
        w.grad = None
        step(row(device, call))
        assert grad(w) == [call, call + 1]


def test_a_gradient_that_is_a_result_too_is_set_where_it_was_forgotten(device: str) -> None:
    w = weight(device)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        w.grad = None
        (w * x).sum().backward()
        assert w.grad is not None
        return w.grad

    for call in range(6):
        if call == 3:
            w.grad = None
        if call == 5:
            w.sum().backward()
        assert step(row(device, call)).tolist() == grad(w) == [call, call + 1]


def test_what_is_added_to_a_gradient_that_was_not_there_then_is_refused(device: str) -> None:
    w = weight(device)
    step = adding(w)
    for call in range(3):
        w.grad = None
        step(row(device, call))
    with pytest.raises(JitError, match="has one now, which a replay would not add to"):
        step(row(device, 1))
    assert grad(w) == [2, 3]


def test_a_gradient_is_that_of_the_last_of_several_steps(device: str) -> None:
    w = weight(device)

    def training(by: float) -> TinyJit[[Tensor], Tensor]:
        @TinyJit
        def step(x: Tensor) -> Tensor:
            w.grad = None
            loss = (w * x * by).sum()
            loss.backward()
            return loss

        return step

    steps = [training(by) for by in (1.0, 10.0, 100.0)]
    for call in range(12):
        by = (1, 10, 100)[call * 5 % 7 % 3]
        steps[call * 5 % 7 % 3](row(device, call))
        assert grad(w) == [by * call, by * (call + 1)]


def test_a_gradient_that_was_replaced_and_is_held_is_not_read_in_its_place(device: str) -> None:
    w, seen = weight(device), []
    optimizer = nn.optim.SGD([w], lr=1.0)

    @TinyJit
    def update() -> Tensor:
        optimizer.step()
        return w.sum()

    with Tensor.train():
        for _ in range(3):
            optimizer.zero_grad(set_to_none=w.grad is None)
            (w * row(device, 0)).sum().backward()
            assert w.grad is not None
            w.grad.realize()
            update()
        assert w.tolist() == [1, -1]
        seen.append(w.grad)
        optimizer.zero_grad()
        (w * row(device, 5)).sum().backward()
        with pytest.raises(JitError, match="replaced by another after the capture"):
            update()
    assert w.tolist() == [1, -1]


def test_what_is_frozen_gets_no_gradient_in_silence(device: str) -> None:
    w = weight(device)
    step = adding(w)
    for _ in range(3):
        step(row(device, 1))
    w.requires_grad = False
    with pytest.raises(JitError, match="requires_grad of a tensor"):
        step(row(device, 1))
    assert grad(w) == [3, 6]


@pytest.mark.parametrize("jit", [TinyJit, lambda step: step])
def test_a_parameter_that_is_frozen_between_the_first_two_calls_rests(
    jit: Jit, device: str
) -> None:
    w, other = weight(device), weight(device)
    optimizer = nn.optim.Adam([w, other], lr=0.1)

    @jit
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = (w * x).sum() + (other * x).sum()
        loss.backward()
        optimizer.step()
        return loss

    with Tensor.train():
        step(row(device, 1))
        other.requires_grad = False
        for _ in range(4):
            step(row(device, 1))
    ((rested, _),) = optimizer.rested.values()
    np.testing.assert_allclose(rested.item(), 0.1, rtol=1e-6)
    np.testing.assert_allclose(optimizer.m_weight.item(), 1 - 0.9**5, rtol=1e-6)


def test_a_gradient_by_an_argument_that_is_what_the_function_reads_too(device: str) -> None:
    """Its gradient would be of both, and was of one when the function was captured."""
    w = Tensor([1.0, 2.0], device=device, requires_grad=True).realize()

    def step(x: Tensor) -> Tensor:
        return (x * w * w).sum().gradient(w)[0].realize()

    jit = TinyJit(step)
    for value in (1.0, 2.0, 3.0):
        x = Tensor([value, 1.0], device=device, requires_grad=True)
        assert jit(x).tolist() == step(x).tolist()
    with pytest.raises(JitError, match="finds gradients of by another name"):
        jit(w)
    with pytest.raises(JitError, match="requires_grad of tensor argument 0 was True"):
        jit(Tensor([1.0, 1.0], device=device))


def test_a_gradient_of_an_argument_that_requires_one_since(device: str) -> None:
    w = Tensor([1.0, 2.0], device=device, requires_grad=True).realize()

    def step(x: Tensor) -> Tensor:
        loss = (x * w).sum()
        loss.backward()
        return loss.realize()

    jit = TinyJit(step)
    for _ in range(3):
        jit(Tensor([1.0, 1.0], device=device))
    with pytest.raises(JitError, match="requires_grad of tensor argument 0 was False"):
        jit(Tensor([1.0, 1.0], device=device, requires_grad=True))


def test_a_gradient_that_was_there_before_a_function_that_clears_it(device: str) -> None:
    """Without TinyJit it is added to, and stepped by."""
    w = Tensor([1.0, 2.0], device=device, requires_grad=True).realize()
    optimizer = nn.optim.SGD([w], lr=0.5)

    @Tensor.train()
    def step(x: Tensor) -> Tensor:
        (x * w).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return w.sum().realize()

    jit, x = TinyJit(step), Tensor([1.0, 1.0], device=device)
    assert [jit(x).item() for _ in range(4)] == [2.0, 1.0, 0.0, -1.0]
    (w * 3).sum().backward()
    with pytest.raises(JitError, match=r"had no gradient when .* has one now"):
        jit(x)
    optimizer.zero_grad()
    assert jit(x).item() == -2.0


def test_gradients_are_not_found_where_ops_are_not_recorded(device: str) -> None:
    w = Tensor([1.0, 2.0], device=device, requires_grad=True).realize()

    def step(x: Tensor) -> Tensor:
        loss = (x * w).sum()
        if loss.requires_grad:
            loss.backward()
        return loss.realize()

    jit, x = TinyJit(step), Tensor([1.0, 1.0], device=device)
    for _ in range(3):
        jit(x)
    with no_grad(), pytest.raises(JitError, match=r"were recorded when .* are not now"):
        jit(x)
    assert jit(x).item() == 3.0
