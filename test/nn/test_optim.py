"""Each optimizer against its formula, written again in numpy from the paper that has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tinyml import Tensor, TinyJit, dtypes, nn, trace
from tinyml.errors import DeviceError, GradientError, JitError
from tinyml.nn import optim

SHAPES = [(3,), (2, 4)]
STEPS = 3


@pytest.fixture(autouse=True)
def training() -> Iterator[None]:
    with Tensor.train():
        yield


def values(*shape: int, seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def start() -> list[Any]:
    return [values(*shape, seed=i) for i, shape in enumerate(SHAPES)]


def gradients(step: int) -> list[Any]:
    return [values(*shape, seed=100 + 10 * step + i) for i, shape in enumerate(SHAPES)]


def parameters() -> list[Tensor]:
    return [Tensor(p.astype(np.float32), requires_grad=True) for p in start()]


def run(make: Callable[[list[Tensor]], optim.Optimizer], steps: int = STEPS) -> list[Any]:
    params = parameters()
    optimizer = make(params)
    for step in range(steps):
        for p, g in zip(params, gradients(step), strict=True):
            p.grad = Tensor(g.astype(np.float32))
        optimizer.step()
    return [p.numpy() for p in params]


def derive(rule: Callable[[], Callable[[Any, Any, int], Any]], steps: int = STEPS) -> list[Any]:
    """`rule()` makes, for one parameter, the function (p, gradient, t from 1) -> new p."""
    results = []
    for i, p in enumerate(start()):
        update = rule()
        for step in range(steps):
            p = update(p, gradients(step)[i], step + 1)
        results.append(p)
    return results


def assert_close(found: list[Any], expected: list[Any], tolerance: float = 2e-5) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def sgd(lr, momentum=0.0, decay=0.0, nesterov=False):
    """Sutskever et al. 2013, in the form of PyTorch's documentation."""

    def rule():
        velocity: Any = 0.0

        def update(p, g, t):
            nonlocal velocity
            g = g + decay * p
            velocity = momentum * velocity + g
            return p - lr * (g + momentum * velocity if nesterov else velocity)

        return update

    return rule


def adam(lr, decay=0.0, b1=0.9, b2=0.999, eps=1e-8, trust=False):
    """Kingma and Ba 2015, algorithm 1; Loshchilov and Hutter 2019; You et al. 2020 with trust."""

    def rule():
        m: Any = 0.0
        v: Any = 0.0

        def update(p, g, t):
            nonlocal m, v
            m = b1 * m + (1 - b1) * g
            v = b2 * v + (1 - b2) * g * g
            move = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps) + decay * p
            ratio = np.linalg.norm(p) / np.linalg.norm(move) if trust else 1.0
            return p - lr * ratio * move

        return update

    return rule


def muon(lr, momentum=0.95, decay=0.1, steps=5):
    """Jordan 2024: momentum, then Newton-Schulz towards the nearest orthogonal matrix."""
    a, b, c = 3.4445, -4.775, 2.0315

    def orthogonal(g):
        x = g.reshape(len(g), -1)
        tall = x.shape[0] > x.shape[1]
        x = x.T if tall else x
        x = x / (np.linalg.norm(x) + 1e-7)
        for _ in range(steps):
            square = x @ x.T
            x = a * x + (b * square + c * square @ square) @ x
        length = (max(x.shape) / min(x.shape)) ** 0.5 if tall else 1.0
        return length * (x.T if tall else x).reshape(g.shape)

    def rule():
        velocity: Any = 0.0

        def update(p, g, t):
            nonlocal velocity
            velocity = momentum * velocity + g
            return p - lr * (orthogonal(g + momentum * velocity) + decay * p)

        return update

    return rule


def test_sgd(device):
    assert_close(run(lambda p: optim.SGD(p, lr=0.1)), derive(sgd(0.1)))


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_with_momentum_and_decay(device, nesterov):
    found = run(lambda p: optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, nesterov=nesterov))
    assert_close(found, derive(sgd(0.1, 0.9, 0.01, nesterov)))


def test_classic_momentum_keeps_the_rate_of_its_time():
    p = Tensor([1.0], requires_grad=True)
    optimizer = optim.SGD([p], lr=1.0, momentum=0.5, classic=True)
    for rate in (1.0, 0.0):
        optimizer.lr = rate
        p.grad = Tensor([1.0])
        optimizer.step()
    assert p.item() == pytest.approx(1 - 1 - 0.5)  # the second step still carries half the first


def test_adam(device):
    assert_close(run(lambda p: optim.Adam(p, lr=0.01)), derive(adam(0.01)))


def test_adamw(device):
    found = run(lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.1))
    assert_close(found, derive(adam(0.01, 0.1)))


def test_lamb(device):
    found = run(lambda p: optim.LAMB(p, lr=0.01, weight_decay=0.1))
    assert_close(found, derive(adam(0.01, 0.1, eps=1e-6, trust=True)))


def test_lamb_moves_a_parameter_of_zeros():
    p = Tensor.zeros(2, requires_grad=True)
    optimizer = optim.LAMB([p], lr=0.5)
    p.grad = Tensor([1.0, -1.0])
    optimizer.step()
    np.testing.assert_allclose(p.numpy(), [-0.5, 0.5], rtol=1e-4)


def test_muon(device):
    found = run(lambda p: optim.Muon(p, lr=0.02))
    assert_close(found, derive(muon(0.02)), tolerance=1e-4)


def test_bias_correction_keeps_its_digits():
    p = Tensor([0.0], requires_grad=True)
    optimizer = optim.Adam([p], lr=1.0, b2=0.999999, eps=0.0)
    p.grad = Tensor([3.0])
    optimizer.step()
    assert p.item() == pytest.approx(-1.0, abs=1e-6)  # the first step is lr, whatever b2 is


def test_the_rate_can_change_between_steps():
    p = Tensor([0.0], requires_grad=True)
    optimizer = optim.SGD([p], lr=1.0)
    for rate in (0.25, Tensor([0.5])):
        optimizer.lr = rate
        p.grad = Tensor([1.0])
        optimizer.step()
    assert p.item() == -0.75
    assert optimizer.lr.numpy() == [0.5]


def test_one_realize_for_a_step(monkeypatch):
    params = parameters()
    optimizer = optim.AdamW(params)
    for p, g in zip(params, gradients(0), strict=True):
        p.grad = Tensor(g.astype(np.float32)).realize()
    calls = []
    plain = Tensor.realize
    monkeypatch.setattr(Tensor, "realize", lambda *ts: calls.append(len(ts)) or plain(*ts))
    optimizer.step()
    assert calls == [2 * 3 + 2]  # each parameter with its two moments, and the two corrections


@pytest.mark.parametrize(
    ("name", "state"),
    [("SGD", ["b"]), ("Adam", ["m", "v"]), ("LAMB", ["m", "v"]), ("Muon", ["b"])],
)
def test_a_state_dict_has_each_tensor_once(name: str, state: list[str]) -> None:
    options = {"SGD": {"momentum": 0.9}}.get(name, {})
    params = [Tensor([[1.0, 2.0]]), Tensor([[3.0]])]
    made = nn.state.get_state_dict(getattr(nn.optim, name)(params, **options))
    assert len({*map(id, made.values())}) == len(made)
    assert {f"{of}.{i}" for of in [*state, "params"] for i in range(2)} <= made.keys()


def test_half_precision_parameters_have_float32_state(device):
    p = Tensor([1.0, 2.0], dtype=dtypes.float16, requires_grad=True)
    optimizer = optim.Adam([p], lr=0.5)
    p.grad = Tensor([1e-4, -1e-4], dtype=dtypes.float16)  # its square is zero in float16
    optimizer.step()
    assert p.dtype is dtypes.float16
    assert optimizer.v[0].dtype is dtypes.float32
    np.testing.assert_allclose(p.numpy(), [0.5, 2.5], rtol=2e-3)


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam])
def test_double_precision_parameters_have_a_float64_rate_and_state(make: Any) -> None:
    moved = []
    for dtype in ("float32", "float64"):
        w = Tensor.zeros(1, dtype=dtype, requires_grad=True)
        optimizer = make([w], lr=0.1)
        optimizer.lr = 0.1
        for gradient in (3.0, 3.0):
            w.grad = Tensor([gradient], dtype=dtype)
            optimizer.step()
        assert w.dtype.name == optimizer.lr.dtype.name == dtype
        moved.append(w.item())
    expected = -0.6 if make is optim.SGD else -0.2
    assert moved[1] == pytest.approx(expected, rel=4e-9) != moved[0]


def test_an_optimizer_of_values_in_memory_compiles_nothing(device: str) -> None:
    parameters = [Tensor(np.ones(n, np.float32), device) for n in (1, 3)]
    with trace.listen(trace.Launched) as launched:
        optimizer = optim.AdamW(parameters, lr=0.5)
    assert not launched
    assert [t.tolist() for t in optimizer.m] == [[0.0], [0.0, 0.0, 0.0]]
    assert (optimizer.m_weight.item(), optimizer.lr.item()) == (0.0, 0.5)


def test_an_optimizer_that_is_made_in_a_captured_step_starts_anew_each_time(device: str) -> None:
    def descend(x: Tensor) -> Tensor:
        p = Tensor([1.0, 2.0], device)
        optimizer = optim.AdamW([p], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            (p * x).sum().backward()
            optimizer.step()
        return p.realize()

    step, x = TinyJit(descend), Tensor([3.0, 4.0], device)
    first = descend(x).tolist()
    assert [step(x).tolist() for _ in range(4)] == [first] * 4


def test_running_averages_are_not_optimized():
    norm = nn.BatchNorm(2)
    optimizer = optim.SGD(nn.state.get_parameters(norm), lr=0.1)
    assert [id(p) for p in optimizer.params] == [id(norm.weight), id(norm.bias)]
    assert len(optimizer.buffers) == 3


def test_integers_and_masks_of_a_model_are_not_optimized():
    class Model:
        def __init__(self) -> None:
            self.positions, self.mask = Tensor.arange(2), Tensor.ones(2) > 0
            self.weight = Tensor([1.0, 2.0])

        def __call__(self) -> Tensor:
            return self.mask.where(self.weight * self.positions, 0).sum()

    model = Model()
    optimizer = optim.SGD(nn.state.get_parameters(model), lr=1.0)
    model().backward()
    optimizer.step()
    assert (model.weight.tolist(), model.positions.tolist()) == ([1, 1], [0, 1])
    assert len(optimizer.params) == 1


def test_a_parameter_rests_while_it_does_not_require_a_gradient():
    a, b = (Tensor([1.0], requires_grad=True) for _ in range(2))
    optimizer = optim.SGD([a, b], lr=0.25, momentum=0.5)
    seen = []
    for required in (True, False, True):
        a.requires_grad = required
        optimizer.zero_grad()
        (a + b).sum().backward()
        optimizer.step()
        seen.append((a.item(), b.item()))
    assert seen == [(0.75, 0.75), (0.75, 0.375), (0.375, -0.0625)]


@pytest.mark.parametrize("make", [optim.Adam, optim.AdamW, optim.LAMB, optim.SGD, optim.Muon])
def test_a_parameter_that_rested_goes_on_as_if_there_had_been_no_steps(make: Any) -> None:
    """As in torch: what corrects young moments is of the steps that the parameter has seen."""

    def moves(rests: int) -> list[float]:
        a, b = (Tensor([[1.0, 2.0]], requires_grad=True) for _ in range(2))
        optimizer, values = make([a, b], lr=0.1), []
        for step in range(7):
            a.requires_grad = not 2 <= step < 2 + rests
            optimizer.zero_grad()
            (a * a + b).sum().backward()
            optimizer.step()
            values += [a[0, 0].item()] if a.requires_grad else []
        return values

    assert moves(3) == moves(0)[:4]


def test_zero_grad_and_training_a_line(device):
    layer = nn.Linear(2, 1)
    optimizer = optim.SGD(nn.state.get_parameters(layer), lr=0.3)
    x = values(8, 2, seed=1).astype(np.float32)
    y = x @ np.array([[2.0], [-1.0]], np.float32) + 0.5
    for _ in range(60):
        optimizer.zero_grad()
        assert layer.weight.grad is None
        (layer(Tensor(x)) - Tensor(y)).square().mean().backward()
        optimizer.step()
    np.testing.assert_allclose(layer.weight.numpy(), [[2, -1]], atol=1e-2)
    np.testing.assert_allclose(layer.bias.numpy(), [0.5], atol=1e-2)
    optimizer.zero_grad(set_to_none=False)
    assert layer.weight.grad.tolist() == [[0, 0]]


@pytest.mark.parametrize("wrapped", [False, True])
def test_gradients_are_added_up_by_one_capture_and_used_by_another(device, wrapped):
    def train(wrap: Callable[[Any], Any], other: Callable[[Any], Any]) -> Any:
        layer = nn.Linear(2, 1)
        layer.weight.assign(Tensor([[0.5, -1.0]]))
        layer.bias.assign(Tensor([0.25]))
        optimizer = optim.SGD(nn.state.get_parameters(layer), lr=0.1)

        def add(x: Tensor) -> Tensor:
            loss = (layer(x) - 1).square().mean()
            loss.backward()
            return loss

        def use() -> None:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

        add, use = wrap(add), other(use)
        for i in range(8):
            add(Tensor(values(4, 2, seed=i).astype(np.float32)))
            if i % 2:
                use()
        return layer.weight.numpy()

    captured = train(TinyJit, TinyJit if wrapped else lambda f: f)
    np.testing.assert_allclose(captured, train(lambda f: f, lambda f: f), 1e-5)


def test_a_captured_step_counts_and_sees_a_new_rate(device):
    def train(wrap: Callable[[Any], Any]) -> Any:
        params = parameters()
        optimizer = optim.AdamW(params, lr=0.1)

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = sum((p * p).sum() for p in params) * x.sum()
            loss.backward()
            optimizer.step()
            return loss

        step = wrap(step)
        for i in range(5):
            optimizer.lr = 0.1 / (i + 1)
            step(Tensor([1.0 + i]))
        return [p.numpy() for p in params]

    jit = pytest.importorskip("tinyml.jit")
    assert_close(train(jit.TinyJit), train(lambda f: f))


class Renamed(optim.SGD):
    """Somebody's own optimizer: its constructor hands on what it is told."""

    def __init__(self, params: list[Tensor], **told: float) -> None:
        super().__init__(params, **told)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "number", "value"),
    [
        (lambda ps: Renamed(ps, lr=0.1, momentum=0.5), "momentum", 0.8),
        (lambda ps: optim.SGD(ps, lr=0.1, momentum=np.float32(0.5)), "momentum", 0.8),
        (lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.1), "weight_decay", 0.5),
        (lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9), "momentum", 0.8),
        (lambda ps: optim.OptimizerGroup(optim.SGD(ps[:1]), optim.Adam(ps[1:])), "b1", 0.5),
        (optim.Muon, "ns_steps", 3),
    ],
)
def test_a_captured_step_refuses_other_numbers_than_it_was_captured_with(
    make: Callable[[list[Tensor]], optim.Optimizer], number: str, value: float
) -> None:
    params = [Tensor([[1.0, 2.0]], requires_grad=True), Tensor([[3.0, 4.0]], requires_grad=True)]
    optimizer = make(params)
    one = optimizer[1] if isinstance(optimizer, optim.OptimizerGroup) else optimizer

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        sum((p * x).sum() for p in params).backward()  # type: ignore[union-attr]
        optimizer.step()

    captured = TinyJit(step)
    for _ in range(3):
        captured(Tensor([1.0, 2.0]))
    before, old = params[1].numpy(), getattr(one, number)
    setattr(one, number, value)
    with pytest.raises(JitError, match=f"{type(one).__name__}: {number} was {old} .* is {value}"):
        captured(Tensor([1.0, 2.0]))
    np.testing.assert_array_equal(params[1].numpy(), before)
    setattr(one, number, old)
    captured(Tensor([1.0, 2.0]))
    assert (params[1].numpy() != before).all()


def test_a_parameter_that_is_listed_twice_counts_once():
    a, b = parameters()
    assert len(optim.SGD([a, b, a]).params) == 2


def test_a_group_steps_all_its_optimizers():
    a, b = parameters()
    group = optim.OptimizerGroup(optim.SGD([a], lr=1.0), optim.SGD([b], lr=0.5))
    before = a.numpy(), b.numpy()
    a.grad, b.grad = Tensor.ones(*a.shape), Tensor.ones(*b.shape)
    group.step()
    np.testing.assert_allclose(a.numpy(), before[0] - 1, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(b.numpy(), before[1] - 0.5, rtol=1e-5, atol=1e-6)
    group.zero_grad()
    assert a.grad is None
    assert b.grad is None


def test_mistakes_are_named():
    a, b = parameters()
    with pytest.raises(ValueError, match="the list is empty"):
        optim.SGD([])
    with pytest.raises(ValueError, match=r"parameters 0 and 1, with shape \(3,\), are the same"):
        optim.OptimizerGroup(optim.SGD([a]), optim.Adam([a]))
    with pytest.raises(TypeError, match="parameter 1 must be a Tensor, got float"):
        optim.SGD([a, 1.0])
    with pytest.raises(TypeError, match=r"got dict; for groups, write OptimizerGroup\(SGD\("):
        optim.SGD([{"params": [a], "lr": 0.1}, {"params": [b]}])
    with pytest.raises(ValueError, match="negative"):
        optim.SGD([a], lr=-1.0)
    with pytest.raises(DeviceError, match="one optimizer for each device"):
        optim.SGD([a, b.to("CPU" if a.device == "NUMPY" else "NUMPY").detach()])
    optimizer = optim.SGD([a, b])
    a.grad = Tensor.ones(*a.shape)
    before = a.numpy()
    with pytest.raises(GradientError, match=r"parameter 1 of 2, with shape \(2, 4\)"):
        optimizer.step()
    np.testing.assert_array_equal(a.numpy(), before)  # nothing was changed


def test_a_step_outside_of_training_raises():
    (a, _) = parameters()
    optimizer = optim.SGD([a])
    a.grad = Tensor.ones(*a.shape)
    with Tensor.train(False), pytest.raises(RuntimeError, match="in training only"):
        optimizer.step()


@pytest.mark.parametrize(("realized", "n"), [(False, 3), (True, 4)])  # no plans in common
def test_a_second_step_runs_by_the_first_ones_plan_though_layers_begin_alike(
    device: str, realized: bool, n: int
) -> None:
    model = [nn.Linear(5, n), nn.LayerNorm(n), nn.BatchNorm(n), nn.LayerNorm(n)]
    found = nn.state.get_parameters(model)
    if realized:
        Tensor.realize(*found)
    optimizer = optim.SGD(found, lr=0.1)
    x = Tensor(values(4, 5, seed=0).astype(np.float32))
    for step in range(3):
        with trace.listen(trace.Scheduled) as scheduled:
            optimizer.zero_grad()
            x.sequential(model).square().mean().backward()
            optimizer.step()
        assert not scheduled or step == 0
