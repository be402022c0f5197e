"""Functions of one's own: their gradients, of one result and of several, and those of these."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import pytest

from tinyml import Function, Tensor
from tinyml.errors import ArgumentError, GradientError

T = TypeVar("T")


class SinCos(Function):
    """Two results, one of which is saved, and one that is a constant."""

    def forward(self, x: Tensor, scale: float) -> Any:
        sine, cosine, sign = (x * scale).sin(), (x * scale).cos(), x > 0
        size = x.abs()
        self.save_for_backward(sine, cosine, scale)
        self.mark_non_differentiable(size)
        return sine, cosine, sign, size

    def backward(self, *grads: Tensor) -> Any:
        sine, cosine, scale = self.saved_tensors
        return (grads[0] * cosine - grads[1] * sine) * scale, None


def test_a_function_of_ones_own() -> None:
    class Cube(Function):
        def forward(self, x: Tensor, scale: float) -> Tensor:
            self.save(x, scale)
            return x * x * x * scale

        def backward(self, *grads: Tensor) -> Any:
            x, scale = self.saved
            return grads[0] * x * x * (3 * scale), None

    x = Tensor([2.0], requires_grad=True)
    (first,) = Cube.apply(x, 2.0).sum().gradient(x)
    (second,) = first.sum().gradient(x)
    assert (first.item(), second.item()) == (24, 24)


def test_functions_are_written_as_in_torch() -> None:
    class Exp(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x.exp())
            return x.exp()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (power,) = ctx.saved_tensors
            return grad * power

    x = Tensor([0.5], dtype="float64", requires_grad=True)
    Exp.apply(x).sum().backward()
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), np.exp([0.5]))


def test_several_results_have_one_backward() -> None:
    x = Tensor([0.5, -1.0], dtype="float64", requires_grad=True)
    sine, cosine, sign, size = SinCos.apply(x, 2.0)
    assert (sign.tolist(), size.requires_grad) == ([True, False], None)
    (sine * 3 + cosine * sine + size).sum().backward()
    assert x.grad is not None
    y = x.numpy() * 2
    np.testing.assert_allclose(x.grad.numpy(), 2 * (3 * np.cos(y) + np.cos(2 * y)))


def test_results_that_nothing_came_of_have_zero_gradients() -> None:
    x = Tensor([0.5, -1.0], dtype="float64", requires_grad=True)
    (_, cosine, _, _) = SinCos.apply(x, 2.0)
    (grad,) = cosine.sum().gradient(x)
    np.testing.assert_allclose(grad.numpy(), -2 * np.sin(2 * x.numpy()))


def test_gradients_go_through_saved_results_again() -> None:
    x = Tensor([0.5, -1.0], dtype="float64", requires_grad=True)
    sine, cosine, _, _ = SinCos.apply(x, 2.0)
    (first,) = (sine + cosine).sum().gradient(x)
    (second,) = first.sum().gradient(x)
    y = x.numpy() * 2
    np.testing.assert_allclose(second.numpy(), -4 * (np.sin(y) + np.cos(y)))


def test_what_init_was_given_is_not_lost_in_silence() -> None:
    """`Scaled(3.0).apply(x)` would make another Scaled, of the default scale."""

    class Scaled(Function):
        def __init__(self, scale: float = 2.0) -> None:
            self.scale = scale

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    @dataclass
    class Given(Function):
        scale: float = 3.0

    for given in (lambda: Scaled(3.0), lambda: Scaled(scale=3.0), lambda: Given(4.0)):
        with pytest.raises(TypeError, match=r"write (Scaled|Given)\.apply\(\.\.\.\), all of which"):
            given()
    assert Scaled.apply(Tensor([2.0])).item() == 4


def test_a_function_may_have_other_parents() -> None:
    """None of which is kept from what it does with its subclasses."""

    class Listed:
        names: ClassVar[list[str]] = []

        def __init_subclass__(cls, name: str) -> None:
            super().__init_subclass__()
            cls.names.append(name)

    class Same(Function, Listed, Generic[T], name="same"):
        def forward(self, x: Tensor) -> Tensor:
            return x

    assert Same[int].apply(Tensor([2.0])).item() == 2
    assert Listed.names == ["same"]


def test_an_argument_may_be_the_result_and_may_have_no_gradient() -> None:
    class First(Function):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x

        def backward(self, *grads: Tensor) -> Any:
            assert self.needs_input_grad == (True, False)
            return grads[0] * 2, None

    x, y = Tensor([1.0], requires_grad=True), Tensor([3.0])
    First.apply(x, y).sum().backward()
    assert x.grad is not None
    assert (x.grad.item(), y.grad) == (2, None)


def test_mistakes_in_backward_are_named() -> None:
    class Wrong(Function):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x * y

        def backward(self, *grads: Tensor) -> Any:
            return grads[0]

    class Unshaped(Wrong):
        def backward(self, *grads: Tensor) -> Any:
            return grads[0].sum(), None

    class Missing(Function):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    x, y = Tensor([1.0], requires_grad=True), Tensor([3.0])
    with pytest.raises(GradientError, match="1 gradients for 2 arguments"):
        Wrong.apply(x, y).sum().backward()
    with pytest.raises(GradientError, match=r"a gradient of \(\) for an input \(1,\)"):
        Unshaped.apply(x, y).sum().backward()
    with pytest.raises(GradientError, match="Missing has no backward"):
        Missing.apply(x).sum().backward()


def test_what_is_no_tensor_is_named() -> None:
    class Array(Function):
        def forward(self, x: Tensor) -> Any:
            return x.numpy() * 2

    class Gradient(Function):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

        def backward(self, *grads: Tensor) -> Any:
            return grads[0].numpy() * 2

    x = Tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(ArgumentError, match=r"Array.forward: a result must be a Tensor.*Tensor\("):
        Array.apply(x)
    with pytest.raises(ArgumentError, match=r"Gradient.backward: a gradient must be a Tensor"):
        Gradient.apply(x).sum().backward()
    with pytest.raises(TypeError, match=r"write Gradient.apply\(...\)"):
        Gradient()(x)


def test_a_gradient_has_the_dtype_of_its_argument() -> None:
    class Sign(Function):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

        def backward(self, *grads: Tensor) -> Any:
            return (grads[0] > 0).cast("int32")

    x = Tensor([1.0, 2.0], requires_grad=True)
    Sign.apply(x).sum().backward()
    assert x.grad is not None
    assert (x.grad.dtype, x.grad.tolist()) == (x.dtype, [1.0, 1.0])


def test_saved_results_do_not_keep_themselves() -> None:
    x = Tensor([0.5, -1.0], requires_grad=True)
    gc.disable()
    try:
        watched = weakref.ref(SinCos.apply(x, 2.0)[0])
        assert watched() is None
    finally:
        gc.enable()


def test_what_was_saved_is_what_it_was() -> None:
    class Times(Function):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            self.save(x, y)
            return x * y

        def backward(self, grad: Tensor) -> Any:
            x, y = self.saved
            return grad * y, grad * x

    w, y = Tensor([2.0, 3.0], requires_grad=True), Tensor([5.0, 7.0])
    x = w * 1
    product = Times.apply(x, y)
    x *= 10
    (grad,) = product.sum().gradient(w)
    assert grad.tolist() == [5, 7]
    assert (product * product).sum().gradient(w)[0].sum().gradient(w)[0].tolist() == [50, 98]
    y += 1
    with pytest.raises(GradientError, match="was assigned to after"):
        product.sum().backward()
