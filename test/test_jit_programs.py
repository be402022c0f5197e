"""What TinyJit replays is what the same function does without it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from programs import NUMBERS, OPS, Run, State, Step

from tinyml import Tensor, TinyJit, ledger, no_grad
from tinyml.device import Device
from tinyml.errors import JitError

WEIGHTS = ("view", "view", "derive", "derive", "put", "put", *OPS)
_numbers = st.tuples(*[st.integers(0, 59) for _ in range(NUMBERS)])
steps = st.tuples(st.sampled_from(WEIGHTS), _numbers)
programs = st.lists(steps, min_size=1, max_size=6)
_few = st.lists(steps, max_size=3)


def _arguments(call: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    rng = np.random.default_rng(call)
    x = rng.integers(-4, 5, (3, 3)).astype(np.float32)
    places, mask = rng.integers(-3, 3, 3), rng.integers(0, 2, (3, 3)).astype(bool)
    found = Tensor(x, device), Tensor(places.astype(np.int32), device), Tensor(mask, device)
    Tensor.realize(*found)
    return found


def _function(
    state: State, program: list[Step], trained: bool, told: list[str]
) -> Callable[[Tensor, Tensor, Tensor], list[Tensor]]:
    def function(x: Tensor, places: Tensor, mask: Tensor) -> list[Tensor]:
        run = Run(state, [*state.held, x], places, mask, trained)
        found = run.go(program)
        told[:] = run.told
        return [*found, found[0].sum()]

    return function


def _outside(
    state: State, program: list[Step], device: str, trained: bool, told: list[str]
) -> list[Tensor]:
    """The tensors that a program makes of the state between the calls."""
    x, places, mask = _arguments(9, device)
    run = Run(state, [*state.held, x], places, mask, trained)
    with Tensor.train():
        made = run.go(program)[len(state.held) + 1 :]
    told += ["outside:", *run.told]
    return made


def check(
    device: str,
    program: list[Step],
    trained: bool,
    before: Sequence[Step] = (),
    between: Sequence[Step] = (),
) -> list[str]:
    """Calls, eagerly and with TinyJit. What is made outside may share memory with the state.

    `before` runs once, and makes more state; `between` runs after each call, and what it makes
    stays there until the end.
    """
    told: list[str] = []
    other = "CPU" if device == "NUMPY" else "NUMPY"
    eager, replayed = (State.of(device, other, trained) for _ in range(2))
    for state in (eager, replayed):
        state.inner = state.counting() if state is eager else TinyJit(state.counting())
        Tensor.manual_seed(99)
        state.held += _outside(state, list(before), device, trained, told)[:4]
    plain = _function(eager, program, trained, told)
    step = TinyJit(_function(replayed, program, trained, []))
    kept: dict[int, list[Tensor]] = {id(eager): [], id(replayed): []}
    for call in range(5):
        after, outside = [], list[str]()
        for function, state in ((plain, eager), (step, replayed)):
            Tensor.manual_seed(call)
            arguments = _arguments(call, device)
            waiting = state.held[0].detach() * 2 + state.held[1]
            with Tensor.train():
                found = function(*arguments)
            after.append([*found, *state.held, *arguments, waiting, *kept[id(state)]])
            kept[id(state)] += _outside(state, list(between), device, trained, outside)
        text = "; ".join([*told, *outside[: len(outside) // 2]])
        for n, (wanted, got) in enumerate(zip(*after, strict=True)):
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
            a, b = got.numpy(), wanted.numpy()
            np.testing.assert_allclose(a, b, 1e-3, 1e-3, err_msg=f"t{n} in call {call}: {text}")
        with no_grad():
            for state in (eager, replayed):
                state.held[0].assign(state.held[0].clip(-4, 4))
                if call % 2:
                    state.held[1][call % 3] = call
    return told


def check_pickled(device: str, program: list[Step], trained: bool) -> list[str]:
    """Replays, and those of a step that was pickled together with the state."""
    told: list[str] = []
    state = State.of(device, "CPU" if device == "NUMPY" else "NUMPY", trained)
    state.inner = state.counting()
    step = TinyJit(_function(state, program, trained, told))
    copied, held = step, state.held
    for call in range(4):
        after = []
        if call == 2:
            assert step.captured is not None
            copied, held = pickle.loads(pickle.dumps((step, state.held)))
        for function, there in ((step, state.held), (copied, held))[: 1 + (call > 1)]:
            Tensor.manual_seed(call)
            with Tensor.train():
                found = function(*_arguments(call, device))
            after.append([t.detach().numpy() for t in (*found, *there)])
        for n, same in enumerate(zip(*after, strict=True)):
            text = f"t{n} in call {call}: {'; '.join(told)}"
            np.testing.assert_array_equal(same[-1], same[0], text)
    return told


@settings(max_examples=16)
@given(program=programs, trained=st.booleans(), before=_few, between=_few)
def test_replays_of_random_programs(
    program: list[Step], trained: bool, before: list[Step], between: list[Step]
) -> None:
    note("\n".join(check("NUMPY", program, trained, before, between)))


@settings(max_examples=8)
@given(program=programs, trained=st.booleans())
def test_pickled_steps_of_random_programs(program: list[Step], trained: bool) -> None:
    note("\n".join(check_pickled("NUMPY", program, trained)))


@settings(max_examples=4)
@given(program=programs, trained=st.booleans(), between=_few)
def test_compiled_replays_of_random_programs(
    program: list[Step], trained: bool, between: list[Step]
) -> None:
    if not Device.available("CPU"):
        pytest.skip("no CPU device")
    note("\n".join(check("CPU", program, trained, (), between)))


# ---- what such programs have found ----


def matrix(device: str) -> Tensor:
    return Tensor(np.arange(9, dtype=np.float32).reshape(3, 3), device).realize()


def test_a_copy_realized_together_with_an_assignment_has_the_old_values(device: str) -> None:
    w = matrix(device)
    copy = w.clone()
    w.assign(w + 1)
    Tensor.realize(copy, w)
    assert (w - copy).tolist() == [[1.0] * 3] * 3


def test_a_copy_of_a_parameter_can_be_changed_in_a_step(device: str) -> None:
    w = matrix(device)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        copy = w.clone()
        w.assign(w + 1)
        copy += x
        return copy - w

    for _ in range(4):
        assert step(Tensor([3.0], device).realize()).tolist() == [[2.0] * 3] * 3
    assert w[0, 0].item() == 4


def test_a_tensor_keeps_its_memory_when_its_copy_is_changed(device: str) -> None:
    w = matrix(device)
    memory = ledger.memory[w.lazy]
    copy = w.contiguous()
    copy += 1
    assert (copy - w).tolist() == [[1.0] * 3] * 3
    assert ledger.memory[w.lazy] is memory


def test_a_step_reads_through_a_view_that_was_computed_before(device: str) -> None:
    w = matrix(device)
    turned = w.T
    turned.numpy()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return turned + x

    for call in range(4):
        w.assign(w + 1)
        assert step(Tensor([0.0], device).realize())[0, 1].item() == 4 + call


def test_a_step_may_copy_its_argument(device: str) -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        return x.clone()

    for call in range(4):
        x = Tensor([float(call)], device).realize()
        copy = step(x)
        x += 1
        assert copy.tolist() == [call]


def test_what_a_step_only_hands_on_is_what_is_there_then(device: str) -> None:
    w = matrix(device)

    @TinyJit
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return y + 1, x.contiguous(), w.contiguous(), x[0].contiguous()

    for call in range(5):
        x = Tensor([[float(call)]], device).realize()
        _, copy, state, row = step(x, Tensor([1.0], device).realize())
        w[0] += 1
        x += 1
        assert (copy.tolist(), row.tolist()) == ([[call]], [call])
        assert state[0].tolist() == [call, call + 1, call + 2]


def test_an_argument_may_be_a_copy_of_another_that_is_written(device: str) -> None:
    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        x.assign(x + 1)
        return x - y

    for _ in range(4):
        x = matrix(device)
        assert step(x, x.clone()).tolist() == [[1.0] * 3] * 3


def test_a_mask_with_a_value_for_each_place_is_refused_in_a_step() -> None:
    @TinyJit
    def step(x: Tensor, mask: Tensor) -> Tensor:
        y = x.clone()
        y[mask] = Tensor([5.0, 6.0])
        return y

    arguments = Tensor([1.0, 2.0, 3.0]), Tensor([True, False, True])
    assert step(*arguments).tolist() == [5.0, 2.0, 6.0]
    with pytest.raises(JitError, match="a mask as an index"):
        step(*arguments)


def test_arguments_that_are_equal_when_captured_may_differ_later(device: str) -> None:
    step, base = TinyJit(lambda x, y: x * 2 + y), Tensor([1.0], device).realize()
    for call in range(4):
        x, y = base * 2, base * max(call, 2)
        Tensor.realize(x, y)
        assert step(x, y).item() == 4 + max(call, 2)


def test_state_that_was_equal_is_one_tensor_each_in_a_step(device: str) -> None:
    w = matrix(device)
    first, second = w * 2, w * 2
    Tensor.realize(first, second)
    third = (w * 1).assign(first)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        before = second.detach() + x
        third.assign(first)
        first.assign(first + 1)
        return before

    for call in range(4):
        assert step(Tensor([1.0], device).realize())[0, 0].item() == 1
        assert (first - third).tolist() == [[1.0] * 3] * 3
        assert (first - second).tolist() == [[call + 1.0] * 3] * 3
