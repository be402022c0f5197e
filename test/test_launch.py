"""Many kernels are one call of the machine: in a replay, and in a plan that is run again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from test_scaling import calls

from tinyml import Tensor, TinyJit, config, defaults, ledger, nn, trace
from tinyml.device import Device, open_device
from tinyml.errors import GradientError, OutOfMemoryError
from tinyml.realize import compute
from tinyml.roster import Roster

WIDE = 1 << 17  # elements that are worth several threads: 256 KB at least
SLACK = 5  # calls of what happens now and then


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    if not Device.available("CPU"):
        pytest.skip("no C compiler")
    with defaults(device="CPU"):
        yield


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensors of other tests are alive that a replay would have to ask what they read."""
    monkeypatch.setattr(ledger, "_pending", Roster())


def full(value: float, *shape: int) -> Tensor:
    return Tensor(np.full(shape or (4, 4), value, np.float32)).realize()


def chain(x: Tensor, kernels: int) -> Tensor:
    """Sums along one axis and then the other: no two of them fit into one kernel."""
    for n in range(kernels):
        x = x * 0.5 + x.sum(axis=n % 2, keepdim=True) / 4
    return x


def captured(function: Callable[..., Tensor], *args: Tensor) -> TinyJit[Tensor]:
    jit = TinyJit(function)
    for _ in range(2):
        jit(*args)
    return jit


def native_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the pool's functions, as they are called from now on."""
    pool = open_device("CPU").machine._pool  # type: ignore[attr-defined]
    made: list[str] = []

    def counted(name: str) -> None:
        function = getattr(pool, name)

        def call(*args: object) -> object:
            made.append(name)
            return function(*args)

        monkeypatch.setattr(pool, name, call)

    counted("run")
    counted("run_plan")
    return made


def test_a_replay_is_one_native_call(monkeypatch: pytest.MonkeyPatch) -> None:
    made = native_calls(monkeypatch)
    step = captured(lambda x: chain(x, 40), full(1))
    made.clear()
    for i in range(3):
        step(full(i))
    assert made == ["run_plan"] * 3


def test_a_plan_that_is_run_again_is_one_native_call(monkeypatch: pytest.MonkeyPatch) -> None:
    made = native_calls(monkeypatch)
    for i in range(3):
        made.clear()
        chain(full(i), 41).realize()
    assert made == ["run_plan"]


def test_listeners_hear_of_every_kernel() -> None:
    step = captured(lambda x: chain(x, 7), full(1))
    for kind in (trace.KernelRan, trace.Launched):
        with trace.listen(kind) as replayed:
            step(full(2))
        assert len(replayed) == 7
        with trace.listen(kind) as run:
            chain(full(2), 7).realize()
        assert len(run) == 7


@pytest.mark.usefixtures("alone")
def test_python_does_the_same_for_any_number_of_kernels() -> None:
    few, many = (captured(lambda x, n=n: chain(x, n), full(1)) for n in (3, 30))
    x = full(2)
    for step in (few, many):
        step(x)
    assert abs(calls(lambda: many(x)) - calls(lambda: few(x))) <= SLACK


@pytest.mark.usefixtures("alone")
def test_python_does_the_same_for_any_number_of_states() -> None:
    def step(count: int) -> Callable[[], object]:
        states = [full(n) for n in range(count)]

        def update(x: Tensor) -> Tensor:
            for state in states:
                state.assign(state * 0.5 + x)
            return x.sum()

        jit, x = captured(update, full(1)), full(1)
        jit(x)
        return lambda: jit(x)

    assert abs(calls(step(30)) - calls(step(3))) <= SLACK


# ---- the same values as without ----


def train(threads: int, jit: bool) -> list[bytes]:
    """The losses and parameters of a few steps, as bits."""
    Tensor.manual_seed(3)
    with config.override(threads=threads):
        layers = [nn.Linear(256, 128), nn.Linear(128, 1)]
        optimizer = nn.optim.AdamW([p for layer in layers for p in nn.state.get_parameters(layer)])

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = layers[1](layers[0](x).relu()).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        run = TinyJit(step) if jit else step
        with Tensor.train():
            losses = [run(Tensor.rand(512, 256).realize()).numpy().tobytes() for _ in range(4)]
        return [*losses, *(p.numpy().tobytes() for p in optimizer.params)]


def test_replays_give_the_bits_of_plain_runs_on_any_number_of_threads() -> None:
    plain = train(1, jit=False)
    for threads in (1, 2, 3):
        assert train(threads, jit=True) == plain
        assert train(threads, jit=False) == plain


def test_results_and_interim_memory_of_one_plan_are_apart() -> None:
    x = full(1)
    for i in range(4):
        kept = [chain(x + float(i), n) for n in (1, 2, 5)]
        compute([t.lazy for t in kept])
        for n, t in zip((1, 2, 5), kept, strict=True):
            assert (t.numpy() == (1 + i) * 1.5**n).all()


@pytest.mark.usefixtures("no_garbage")
def test_a_plan_needs_no_more_memory_in_one_go() -> None:
    def peak() -> int:
        with trace.listen(trace.Allocated) as given:
            chain(full(1, 256, WIDE // 256), 12).realize()
        return max(event.in_use for event in given) - min(event.in_use for event in given)

    assert peak() <= 4 * WIDE * 4


# ---- what goes wrong ----


def test_a_replay_without_memory_raises_and_the_next_one_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = full(8)

    def halve(x: Tensor) -> Tensor:
        state.assign(state * 0.5)
        return x + state

    step, machine = captured(halve, full(1)), open_device("CPU").machine
    before = state.tolist()

    def refuse(nbytes: int) -> int:
        raise OutOfMemoryError("none left")

    with monkeypatch.context() as patched:
        x = full(2)
        patched.setattr(machine, "allocate", refuse)
        with pytest.raises(OutOfMemoryError, match="none left"):
            step(x)
    assert state.tolist() == before
    assert (step(full(2)).numpy() == 2 + before[0][0] / 2).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_replays_and_runs_plans() -> None:
    with config.override(threads=3):
        x = full(3, 256, WIDE // 256)
        step, expected = captured(lambda x: chain(x, 5), x), chain(x, 5).numpy()
        child = os.fork()
        if child == 0:
            same = (step(x).numpy() == expected).all() and (chain(x, 5).numpy() == expected).all()
            os._exit(0 if same else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (step(x).numpy() == expected).all()


# ---- what happens between replays ----


def test_two_steps_share_a_state() -> None:
    state = full(1)
    add = captured(lambda x: (state.assign(state + x) + 0).sum(), full(0))
    double = captured(lambda x: (state.assign(state * 2) + x).sum(), full(0))
    start = state[0, 0].item()
    for _ in range(3):
        add(full(1))
        double(full(0))
        start = 2 * (start + 1)
        assert (state.numpy() == start).all()
    state.assign(full(5)).realize()
    for step, expected in ((add, 6), (double, 12)):
        step(full(1))
        assert (state.numpy() == expected).all()


def test_a_replay_overwrites_for_gradients_too() -> None:
    weight = full(2)
    weight.requires_grad = True
    steps = [captured(lambda x: weight.assign(weight.detach() + x).sum(), full(1)) for _ in "ab"]
    for step in steps:
        loss = (weight * weight).sum()
        step(full(1))
        with pytest.raises(GradientError, match="assigned to after"):
            loss.backward()


def test_views_of_a_state_are_told() -> None:
    state = full(1, 4)
    step = captured(lambda x: state.assign(state + x).sum(), full(1, 4))
    shown, before = state.reshape(2, 2), state[0].item()
    for n in range(1, 4):
        step(full(1, 4))
        assert (shown.numpy() == before + n).all()
    shown.assign(Tensor([[1.0, 2.0], [3.0, 4.0]]))
    step(full(1, 4))
    assert state.tolist() == [2, 3, 4, 5]
