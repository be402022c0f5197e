"""What is computed again in backward has the same gradients, and is not kept until then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinyml import Tensor, TinyJit, checkpoint, defaults, dtypes, nn, no_grad, trace
from tinyml.device import open_device
from tinyml.errors import GradientError
from tinyml.schedule.schedule import schedule

Block = Callable[[Tensor], Tensor]


def weights(count: int, n: int = 3) -> list[Tensor]:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((n, n)).astype(np.float32) * n**-0.5 for _ in range(count)]
    made = [Tensor(a, requires_grad=True) for a in arrays]
    Tensor.realize(*made)
    return made


def block(w: Tensor) -> Block:
    return lambda x: (x @ w).tanh().dropout(0.25) @ w.T


def through(x: Tensor, ws: list[Tensor], again: bool) -> Tensor:
    for w in ws:
        x = checkpoint(block(w), x) if again else block(w)(x)
    return x


def gradients(again: bool) -> list[Any]:
    Tensor.manual_seed(3)
    ws, x = weights(2), Tensor([[1.0, -2.0, 0.5]], requires_grad=True)
    with Tensor.train():
        loss = through(x, ws, again).square().sum()
    loss.backward()
    return [loss.item(), *(t.grad.numpy() for t in [x, *ws] if t.grad is not None)]


@pytest.mark.parametrize("device", ["NUMPY", "CPU"], indirect=True)
def test_values_draws_and_gradients_are_the_same(device: str) -> None:
    for got, wanted in zip(gradients(True), gradients(False), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("captured", [False, True])
def test_what_it_assigns_to_is_assigned_to_once(device: str, captured: bool) -> None:
    def train(again: bool) -> list[Any]:
        norm, count = nn.BatchNorm(3), Tensor([0.0]).realize()
        (w,) = weights(1)

        def part(x: Tensor) -> Tensor:
            with no_grad():
                count.assign(count * 2 + 1)
            return norm((x @ w).reshape(-1, 3, 1)) * count.clone()

        def step(x: Tensor) -> list[Tensor]:
            with Tensor.train():
                loss = sum((checkpoint(part, x) if again else part(x)).exp().sum() for _ in "ab")
            state = [norm.running_mean, norm.running_var, norm.num_batches_tracked, count]
            return [loss, *loss.gradient(w, norm.weight), *(t + 0 for t in state)]

        function = TinyJit(step) if captured else step
        given = [Tensor(np.eye(4, 3, n, dtype=np.float32)).realize() for n in range(3)]
        return [t.numpy() for x in given for t in function(x)]

    for got, wanted in zip(train(True), train(False), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


def test_an_argument_is_assigned_to_without_recording_only() -> None:
    def twice(x: Tensor) -> Tensor:
        x *= 2
        return x * x

    w = Tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(GradientError, match="assigns to tensor argument 0"):
        checkpoint(twice, w * 3)
    scale = Tensor([3.0, 4.0]).realize()
    y = checkpoint(lambda x: no_grad(twice)(x) * w, scale)
    (grad,) = y.sum().gradient(w)
    assert (grad.tolist(), scale.tolist()) == ([36.0, 64.0], [6.0, 8.0])


def test_defaults_are_those_of_the_first_time() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    with defaults(default_float=dtypes.float64):
        y = checkpoint(lambda x: x * Tensor([0.1, 0.2]), x)
    (grad,) = y.sum().gradient(x)
    assert y.dtype is dtypes.float64
    assert grad.tolist() == np.float32([0.1, 0.2]).tolist()


def test_gradients_of_gradients() -> None:
    def second(again: bool) -> list[Any]:
        ws, x = weights(2), Tensor([[1.0, -2.0, 0.5]], "NUMPY", requires_grad=True)
        ws = [w.to("NUMPY").detach().requires_grad_() for w in ws]
        (first,) = through(x, ws, again).square().sum().gradient(x)
        return [g.numpy() for g in first.square().sum().gradient(x, *ws)]

    for got, wanted in zip(second(True), second(False), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_an_argument_that_depends_on_what_the_function_reads_besides() -> None:
    def found(again: bool) -> list[Any]:
        (w,), x = weights(1), Tensor([[1.0, -2.0, 0.5]])
        x.requires_grad = True
        (first,) = through(x, [w, w, w], again).square().sum().gradient(w)
        return [first.numpy(), *(g.numpy() for g in first.square().sum().gradient(w, x))]

    for got, wanted in zip(found(True), found(False), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_what_it_made_of_a_tensor_is_assigned_to_a_view_of_it() -> None:
    def found(again: bool) -> list[float]:
        (w,), x = weights(1), Tensor([1.0, -2.0, 0.5, 3.0, 2.0, -1.0])
        rows, function = x.reshape(2, 3), lambda rows, x: rows @ w * x.sum()
        y = checkpoint(function, rows, x) if again else function(rows, x)
        rows[1] = y[0].tanh()
        (grad,) = x.square().sum().gradient(w)
        return grad.reshape(-1).tolist()

    np.testing.assert_allclose(found(True), found(False), rtol=1e-5)


def test_what_it_reads_besides_is_not_to_be_assigned_to_before_the_gradient() -> None:
    (w,), offset = weights(1), Tensor([1.0, 2.0, 3.0]).realize()
    for assigned in (w * 2, offset):
        read = lambda x: checkpoint(lambda y: y * assigned, x @ w) + 1  # noqa: B023, E731
        y = checkpoint(read, w)
        y *= 2
        y.sum().gradient(w)
        assigned *= 2
        with pytest.raises(GradientError, match=r"checkpoint: a tensor .* was assigned to after"):
            y.sum().gradient(w)


def test_what_it_reads_was_computed_from_may_be_assigned_to() -> None:
    """Values that were there before the function are not computed again."""
    x, offset = Tensor([1.0, 2.0], requires_grad=True), Tensor([1.0, 2.0]).realize()
    scale = offset + 1
    y = checkpoint(lambda x: checkpoint(lambda y: y * scale, x) + x, x)
    offset *= 5
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3, 4]


def test_what_is_no_result_has_no_gradient_of_an_argument() -> None:
    x, kept = Tensor([1.0, 2.0], requires_grad=True), list[Tensor]()

    def part(x: Tensor) -> Tensor:
        kept.append(x * 3)
        return x * 2

    y = checkpoint(part, x)
    with pytest.raises(GradientError, match=r"checkpoint: .* by way of what is no result"):
        (y + kept[0]).sum().backward()


def test_the_gradient_of_what_it_assigned_is_that_of_the_value() -> None:
    x, square = Tensor([3.0, 4.0], requires_grad=True), Tensor([0.0, 0.0]).realize()
    checkpoint(lambda x: x * square.assign(x * x), x).sum().backward()
    assert x.grad is not None
    assert (x.grad.tolist(), square.tolist()) == ([27, 48], [9, 16])


def test_two_of_them_assign_to_the_same_tensor() -> None:
    """What they read of it is what it was in each."""
    x, total = Tensor([3.0, 4.0], requires_grad=True), Tensor([0.0, 0.0]).realize()

    def part(x: Tensor) -> Tensor:
        total.assign(total + x.detach())
        return x * total

    checkpoint(part, checkpoint(part, x)).sum().backward()
    assert x.grad is not None
    assert (x.grad.tolist(), total.tolist()) == ([36, 80], [12, 20])


def test_it_assigns_to_the_same_tensor_twice() -> None:
    (w,), count = weights(1), Tensor([0.0, 1.0, 2.0]).realize()

    @no_grad
    def step() -> None:
        count.assign(count * 2 + 1)

    def part(x: Tensor) -> Tensor:
        step()
        step()
        return x * count

    (grad,) = checkpoint(part, w).sum().gradient(w)
    assert (grad[0].tolist(), count.tolist()) == ([3, 7, 11], [3, 7, 11])


def test_several_results_and_other_arguments() -> None:
    def parts(x: Tensor, scale: float, index: Tensor, *, power: int) -> Any:
        return x[index] * scale, x**power, x > 0

    x, index = Tensor([1.0, -2.0, 3.0], requires_grad=True), Tensor([2, 0])
    picked, powers, positive = checkpoint(parts, x, 5.0, index, power=2)
    (picked.sum() + powers.sum()).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [7, -4, 11]
    assert positive.tolist() == [True, False, True]
    with pytest.raises(TypeError, match="power"):
        checkpoint(parts, x, 5.0, index)


def most_in_use(again: bool) -> float:
    """The most memory in use during forward and backward, in units of one activation."""
    ws, x = weights(8, 16), Tensor.ones(64, 16).contiguous().realize()

    def part(pair: list[Tensor]) -> Block:
        return lambda x: (x @ pair[0]).tanh().matmul(pair[1]).tanh()

    for pair in (ws[i : i + 2] for i in range(0, 8, 2)):
        x = checkpoint(part(pair), x) if again else part(pair)(x)
    x.square().sum().backward()
    machine, seen = open_device(x.device).machine, []
    before = machine.memory_stats().in_use
    stop = trace.subscribe(
        trace.Launched, lambda _: seen.append(machine.memory_stats().in_use - before)
    )
    Tensor.realize(*(w.grad for w in ws if w.grad is not None))
    stop()
    return max(seen) / (64 * 16 * 4)


@pytest.mark.usefixtures("no_garbage")
@pytest.mark.parametrize("device", ["CPU"], indirect=True)
def test_less_memory_is_in_use(device: str) -> None:
    assert most_in_use(True) + 1 < most_in_use(False)


def test_what_is_in_between_is_computed_twice() -> None:
    ws, x = weights(8), Tensor.ones(2, 3).contiguous().realize()
    x.requires_grad = True
    plain, again = through(x, ws, False), through(x, ws, True)
    kernels = []
    for y in (plain, again):
        y.square().sum().backward()
        kernels.append(len(schedule([w.grad.lazy for w in ws if w.grad is not None]).items))
        for w in ws:
            w.grad = None
    assert kernels[1] > kernels[0]  # work is done twice


@pytest.mark.parametrize("device", ["CPU"], indirect=True)
def test_a_captured_step_recomputes_with_new_draws(device: str) -> None:
    ws = weights(2)

    def step(x: Tensor) -> Any:
        x = x.detach().requires_grad_()
        with Tensor.train():
            loss = through(x, ws, True).square().sum()
        return [g.realize() for g in loss.gradient(x, *ws)]

    x, found = Tensor([[1.0, -2.0, 0.5]]).realize(), []
    for function in (step, TinyJit(step)):
        Tensor.manual_seed(3)
        found.append([[g.numpy() for g in function(x)] for _ in range(5)])
    for plain, captured in zip(*found, strict=True):
        for got, wanted in zip(captured, plain, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


Call = Callable[..., Tensor]
BESIDES: dict[str, Callable[[Call, Tensor, Tensor], Tensor]] = {
    "a leaf itself": lambda call, z, w: w,
    "a leaf in another": lambda call, z, w: z * call(lambda q: z * w, w),
    "the argument alone": lambda call, z, w: call(lambda q: (z * z).tanh(), z),
    "a leaf": lambda call, z, w: z.sin() * w.tanh(),
}


@pytest.mark.parametrize("way", BESIDES)
def test_what_is_read_besides_has_its_gradients_of_all_orders(device: str, way: str) -> None:
    """Leaves, what was computed from them before, and arguments of a checkpoint around."""

    def found(call: Call) -> list[Tensor]:
        w = Tensor([0.3, -0.6, 0.9], device=device, requires_grad=True)
        y = w.exp()
        made = call(lambda z: BESIDES[way](call, z, w) + y * z, w.cos()) * w
        (first,) = made.sum().gradient(w)
        return [made, first, *first.sin().sum().gradient(w)]

    for got, want in zip(found(checkpoint), found(lambda f, x: f(x)), strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), 1e-4, 1e-5)


def test_hooks_are_called_once_with_all_that_comes(device: str) -> None:
    """Of a leaf and of what was computed outside, which a checkpoint reads besides."""
    w = Tensor([1.0, 2.0], device=device, requires_grad=True)
    h = w * 3
    calls = list[list[float]]()
    for tensor in (w, h):
        tensor.register_hook(lambda grad: calls.append(grad.tolist()))
    h.retain_grad()
    (checkpoint(lambda z: z * h * w, w.detach()) + h).sum().backward()
    assert calls == [[2.0, 5.0], [9.0, 27.0]]
    assert h.grad is not None
    assert h.grad.tolist() == [2.0, 5.0]


def test_a_name_that_stands_for_another_tensor_in_backward_is_refused() -> None:
    """As the state in a loop whose lambda reads it."""
    w = Tensor([0.5, 0.25], requires_grad=True)
    h = w
    for _ in range(2):
        h = checkpoint(lambda x: x * h * w, w)  # noqa: B023
    with pytest.raises(GradientError, match="reads another tensor than before"):
        h.sum().backward()
