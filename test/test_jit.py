"""TinyJit: replays do what calling the function would have done, or raise."""

from __future__ import annotations

import gc
import math
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from tinyml import Tensor, TinyJit, config, nn, trace
from tinyml.device import Device
from tinyml.errors import JitError
from tinyml.jit.step import Span
from tinyml.jit.structure import fits, flatten, looks
from tinyml.ledger import memory
from tinyml.runtime.machine import Buffer


def full(value: float, *shape: int) -> Tensor:
    """A tensor in memory."""
    return Tensor(np.full(shape or (4,), value, np.float32))


# ---- arguments and results ----


def test_a_replay_computes_with_new_arguments(device: str) -> None:
    calls = []

    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        calls.append(1)
        return x * 2 + y

    for i in range(5):
        assert step(full(i), y=full(1)).tolist() == [2 * i + 1] * 4
    assert len(calls) == 2


def test_a_step_that_reads_what_has_no_elements(device: str) -> None:
    @TinyJit
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        nothing = (x[:0] * 2).realize()
        return nothing.pad((0, 2), value=3), nothing.cat(x + 1)

    for i in range(4):
        padded, joined = step(full(i))
        assert (padded.tolist(), joined.tolist()) == ([3, 3], [i + 1] * 4)


class Pair(NamedTuple):
    low: Tensor
    high: Tensor


def test_containers_keep_their_structure(device: str) -> None:
    @TinyJit
    def step(batch: dict[str, Any], scale: int) -> dict[str, Any]:
        x, (y, _) = batch["x"], batch["rest"]
        return {"z": Pair(x - y, x + y), "a": [(x * scale).sum(), None], "n": 3}

    for i in range(4):
        found = step({"x": full(i), "rest": [full(1), "text"]}, 2)
        assert list(found) == ["z", "a", "n"]
        assert isinstance(found["z"], Pair)
        assert found["z"].low.tolist() == [i - 1] * 4
        assert found["z"].high.tolist() == [i + 1] * 4
        assert found["a"][0].item() == 8 * i
        assert found["a"][1] is None
        assert found["n"] == 3


@dataclass
class Batch:
    """As loaders give them."""

    x: Tensor
    scale: float = 2.0


@dataclass(frozen=True)
class Answer:
    """As models return them."""

    y: Tensor
    batch: Batch


def test_dataclasses_are_containers(device: str) -> None:
    """New ones in each call, and those of before are what they were."""

    @TinyJit
    def step(batch: Batch, more: Batch) -> Answer:
        y = (batch.x * batch.scale + more.x).realize()
        return Answer(y, Batch((y + 1).realize(), 3.0))

    more, answers = Batch(Tensor([1.0, 1.0], device=device)), list[Answer]()
    for value in range(5):
        more.x = Tensor([value, 1.0], device=device)
        answers.append(step(Batch(Tensor([1.0, value], device=device)), more=more))
    assert step.captured is not None
    assert [a.y.tolist() for a in answers] == [[2.0 + i, 2.0 * i + 1] for i in range(5)]
    assert [a.batch.x.tolist() for a in answers] == [[3.0 + i, 2.0 * i + 2] for i in range(5)]
    assert {a.batch.scale for a in answers} == {3.0}
    with pytest.raises(JitError, match=r"batch\.scale was 2\.0 .* is now 4\.0"):
        step(Batch(Tensor([1.0, 1.0], device=device), 4.0), more=more)


def test_tensors_in_objects_that_a_call_makes_are_refused(device: str) -> None:
    """A replay would return the same object, whose tensors become others."""
    model = SimpleNamespace(h=None)

    def same(x: Tensor) -> Any:
        model.h = (x + 1).realize()
        return model

    step = TinyJit(same)
    assert [step(Tensor([float(i)], device=device)).h.item() for i in range(4)] == [1, 2, 3, 4]
    for made in (set, deque, lambda tensors: SimpleNamespace(h=tensors[0])):
        step = TinyJit(lambda x: made([(x + 1).realize()]))  # noqa: B023
        step(Tensor([1.0], device=device))
        with pytest.raises(JitError, match="return the same one each time"):
            step(Tensor([2.0], device=device))


def test_the_order_of_keywords_and_dicts_is_free(device: str) -> None:
    step = TinyJit(lambda **x: x["a"] - x["b"])
    step(a=full(1), b=full(2))
    step(a=full(1), b=full(2))
    assert step(b=full(1), a=full(5)).tolist() == [4] * 4


def test_arguments_may_be_expressions(device: str) -> None:
    step = TinyJit(lambda x: x.sum())
    for i in range(4):
        assert step(full(i) * 2 + 1).item() == 4 * (2 * i + 1)


def test_a_capture_has_the_kernels_of_the_first_call(device: str) -> None:
    weight = full(2, 5, 3)
    step = TinyJit(lambda x: (x * weight).sum(1))

    def kernels() -> set[str]:
        with trace.listen(trace.KernelRan) as ran:
            step(full(3, 5, 3).sqrt())
        return {event.program.name for event in ran}

    first = kernels()
    assert kernels() == first
    assert step.captured is not None


def test_earlier_results_stay(device: str) -> None:
    step = TinyJit(lambda x: (x + 1, (x * x).sum()))
    results = [step(full(i)) for i in range(6)]
    for i, (a, b) in enumerate(results):
        assert (a.tolist(), b.item()) == ([i + 1] * 4, 4 * i * i)


def test_a_result_can_be_the_next_argument(device: str) -> None:
    step = TinyJit(lambda x: x + 1)
    x = full(0)
    for i in range(6):
        x = step(x)
        assert x.tolist() == [i + 1] * 4


def test_results_that_are_arguments_or_parameters(device: str) -> None:
    w = full(0).realize()

    @TinyJit
    def step(x: Tensor) -> list[Tensor]:
        w.assign(w + x)
        y = x * 2
        return [x, w, x.detach(), w.detach(), y, y, x.reshape(4)]

    for i in range(1, 6):
        x = full(i)
        found = step(x)
        total = sum(range(1, i + 1))
        assert found[0] is x
        assert found[1] is w
        wanted = [i, total, i, total, 2 * i, 2 * i, i]
        assert [t.tolist() for t in found] == [[n] * 4 for n in wanted]


def test_copies_of_a_parameter_stay_and_views_follow(device: str) -> None:
    w = full(0).realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        w.assign(w + x)
        return w.detach()

    copies = []
    for i in range(6):
        pending = w * 10
        copies.append((w.clone(), w.detach(), step(full(1)), pending))
        assert pending.tolist() == [10 * i] * 4
    for i, (before, view, result, pending) in enumerate(copies):
        assert before.tolist() == [i] * 4
        assert view.tolist() == result.tolist() == [6] * 4
        assert pending.tolist() == [10 * i] * 4


@pytest.mark.parametrize("reads", [False, True])
def test_arguments_that_are_views_of_a_tensor_that_lives(device: str, reads: bool) -> None:
    base = Tensor(np.arange(12, dtype=np.float32).reshape(4, 3)).realize()
    step = TinyJit(lambda x, y: (x * 2 + y + base[1]).realize() if reads else x * 2 + y)
    for i in range(4):
        first, second = base[i], base[i]  # equal, and two
        known = first.tolist()
        base += 1  # a view shows what its tensor has now
        now = base.numpy()
        assert step(first, second).tolist() == (now[i] * 3 + reads * now[1]).tolist()
        assert known == (now[i] - 1).tolist()
        assert (step.captured is not None) == (i > 0)


def test_results_share_memory_as_those_of_a_call_do(device: str) -> None:
    def shared(x: Tensor) -> list[Tensor]:
        y, hidden = x * 2, x + 1
        return [y[1], y, y, hidden[:2], hidden[1:], y.detach(), x * 2]

    step = TinyJit(shared)
    for i in range(5):
        found, wanted = step(full(i)), shared(full(i))
        assert found[1] is found[2]
        for given in (found, wanted):
            given[1] += 5
            given[0].assign(given[0] + 1)
            given[3][1] = 9
            Tensor.realize(*given)
            given[5][0] = 3
        assert [t.tolist() for t in found] == [t.tolist() for t in wanted]


def test_a_result_made_of_host_values(device: str) -> None:
    step = TinyJit(lambda x: (x + 1, Tensor([1.0, 2.0])))
    for _ in range(4):
        _, constant = step(full(0))
        assert constant.tolist() == [1, 2]
        constant.assign(constant * 0).realize()


def test_results_carry_no_gradient(device: str) -> None:
    w = full(1).realize()
    w.requires_grad = True
    step = TinyJit(lambda x: (w * x).sum())
    assert step(full(2)).requires_grad
    for _ in range(2):
        assert not step(full(2)).requires_grad


def test_many_arguments_are_those_of_each_call(device: str) -> None:
    """What was bound by the call before is not bound again; all that changed is."""

    @TinyJit
    def step(*many: Tensor) -> Tensor:
        return Tensor.stack(*many).sum(1)

    many = [full(float(n)) for n in range(12)]
    values = [4.0 * n for n in range(12)]

    def check() -> None:
        assert step(*many).tolist() == values

    for _ in range(4):
        check()
    many[3], values[3] = full(30.0), 120.0  # another one
    check()
    many[5].assign(full(50.0)).realize()  # the same one, with other values
    values[5] = 200.0
    check()
    many[6] += 1  # one that waits to be computed
    values[6] += 4
    check()
    root = full(1.0)
    many[7], values[7] = root[:], 4.0  # a view, and then what it shows is assigned to
    check()
    root.assign(full(2.0))
    values[7] = 8.0
    check()
    many[7] = root
    check()
    many[0], many[1] = many[1], many[0]
    values[0], values[1] = values[1], values[0]
    check()
    with config.override(debug=1), trace.listen(trace.KernelRan):  # launched one by one
        many[2], values[2] = full(9.0), 36.0
        check()
    check()
    for n in range(5):  # memory that others had
        many[4] = full(float(n))
        values[4] = 4.0 * n
        check()
    with pytest.raises(JitError, match="argument 8"):
        step(*many[:8], full(1.0, 5), *many[9:])
    check()
    with pytest.raises(JitError, match="argument 11"):
        step(*many[:11], 1.0)  # type: ignore[arg-type]
    check()


# ---- state ----


def test_parameters_advance(device: str) -> None:
    w, total = full(0).realize(), full(0, 1).realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        w.assign(w * 0.5 + x)
        total.assign(total + w.sum())  # not returned and not realized
        return w.max()

    wanted, sums = 0.0, 0.0
    for i in range(6):
        wanted = wanted * 0.5 + i
        sums += 4 * wanted
        assert step(full(i)).item() == wanted
        assert w.tolist() == [wanted] * 4
        assert total.item() == sums


def test_assigning_outside_reaches_the_step(device: str) -> None:
    w = full(1).realize()
    step = TinyJit(lambda x: w * x)
    for i in range(6):
        w.assign(full(i) * 3)
        assert step(full(2)).tolist() == [6 * i] * 4


def test_new_memory_of_a_parameter_is_found(device: str) -> None:
    w = full(1).realize()
    step = TinyJit(lambda x: w * x)
    for i in range(6):
        w.lazy = (full(i) + 1).realize().lazy
        assert step(full(2)).tolist() == [2 * (i + 1)] * 4


def test_an_argument_is_assigned_to(device: str) -> None:
    @TinyJit
    def step(x: Tensor) -> None:
        x.assign(x + 1)

    for i in range(5):
        x = full(i).realize()
        old, pending = x.clone(), x * 2
        step(x)
        assert x.tolist() == [i + 1] * 4
        assert old.tolist() == [i] * 4
        assert pending.tolist() == [2 * i] * 4


def test_a_node_that_is_replaced_is_as_good_as_assigned(device: str) -> None:
    w = full(1).realize()
    w.requires_grad = True

    @TinyJit
    def accumulate(x: Tensor) -> Tensor:
        loss = (w * x).sum()
        loss.backward()
        return loss

    for i in range(1, 6):
        accumulate(full(i))
        assert w.grad is not None
        assert w.grad.tolist() == [sum(range(i + 1))] * 4


def test_gradients_that_stay_are_renewed(device: str) -> None:
    w = full(1).realize()
    w.requires_grad = True

    @TinyJit
    def step(x: Tensor) -> Tensor:
        w.grad = None
        loss = (w * x).sum()
        loss.backward()
        return loss

    for i in range(5):
        assert step(full(i)).item() == 4 * i
        assert w.grad is not None
        assert w.grad.tolist() == [i] * 4


def test_tensors_left_behind_are_renewed(device: str) -> None:
    class Model:
        def __init__(self) -> None:
            self.last = self.double = full(0).realize()

        @TinyJit
        def step(self, x: Tensor) -> Tensor:
            self.last = x + 1
            self.double = x * 2
            return self.last

    model = Model()
    for i in range(5):
        assert model.step(full(i)).tolist() == [i + 1] * 4
        assert model.last.tolist() == [i + 1] * 4
        assert model.double.tolist() == [2 * i] * 4


def test_methods_capture_for_each_instance(device: str) -> None:
    class Model:
        def __init__(self, value: float) -> None:
            self.w = full(value).realize()

        @TinyJit
        def step(self, x: Tensor) -> Tensor:
            return self.w * x

    models = [Model(1), Model(10)]
    for i in range(4):
        for model, factor in zip(models, (1, 10), strict=True):
            assert model.step(full(i)).tolist() == [factor * i] * 4
    models[0].step.reset()
    assert models[0].step.captured is None
    assert models[1].step.captured is not None
    watch = weakref.ref(models[1])
    del model, models
    gc.collect()
    assert watch() is None


def test_what_was_pending_before_is_data(device: str) -> None:
    """Weights that nobody realized are not computed again by each replay."""
    x = full(3).realize()
    weights = x * 2
    step = TinyJit(lambda y: weights + y)
    step(full(0))
    step(full(0))
    x.assign(full(100)).realize()
    assert step(full(1)).tolist() == [7] * 4
    assert step.captured is not None
    assert len(step.captured.parts.launches) == 1


# ---- random numbers ----


def test_random_numbers_are_those_without_jit(device: str) -> None:
    def step(x: Tensor) -> Tensor:
        return x + Tensor.rand(4) * 0.5 + Tensor.rand(4)

    def run(function: Callable[[Tensor], Tensor]) -> list[Any]:
        Tensor.manual_seed(3)
        found: list[Any] = []
        for i in range(5):
            found += [function(full(i)).tolist(), Tensor.rand(2).tolist()]
        Tensor.manual_seed(11)
        return [*found, function(full(0)).tolist()]

    assert run(TinyJit(step)) == run(step)


def test_draws_are_in_order_on_any_device_and_where_nobody_wants_them(device: str) -> None:
    def step(x: Tensor) -> Tensor:
        drawn = [Tensor.rand(4, device=d) for d in ("NUMPY", device, device, "NUMPY", device)]
        del drawn[2]
        return sum((d.to(x.device) * (n + 1) for n, d in enumerate(drawn)), x)

    def run(function: Callable[[Tensor], Tensor]) -> list[Any]:
        Tensor.manual_seed(-1)
        found = [function(full(i)).tolist() for i in range(4)]
        return [*found, Tensor.rand(2).tolist()]

    assert run(TinyJit(step)) == run(step)


def test_counters_of_draws_are_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        return sum((Tensor.rand(4) for _ in range(20)), x)

    x = Tensor.ones(4).contiguous().realize()
    for _ in range(3):
        step(x)
    written: list[int] = []
    write = Buffer.write

    def noting(buffer: Buffer, data: npt.NDArray[Any]) -> Buffer:
        written.append(data.size)
        return write(buffer, data)

    monkeypatch.setattr(Buffer, "write", noting)
    step(x).realize()
    assert len(written) == 1


# ---- training ----


def _train(device: str, jit: bool) -> tuple[list[float], list[Any]]:
    Tensor.manual_seed(5)
    rng = np.random.default_rng(0)

    class Model:
        def __init__(self) -> None:
            self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

        def __call__(self, x: Tensor) -> Tensor:
            return self.second(self.first(x).relu().dropout(0.25))

    model = Model()
    optimizer = nn.optim.AdamW(nn.state.get_parameters(model), lr=0.02)

    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).sparse_categorical_crossentropy(y)
        loss.backward()
        optimizer.step()
        return loss

    losses = []
    with config.override(jit=jit), Tensor.train():
        for i in range(8):
            x = Tensor(rng.standard_normal((5, 6), np.float32))
            y = Tensor(rng.integers(0, 3, 5).astype(np.int32))
            losses.append(step(x, y).item())
            if i == 5:
                optimizer.lr = 0.001
    return losses, [p.tolist() for p in nn.state.get_parameters(model)]


def test_training_is_the_same_with_and_without(device: str) -> None:
    (losses, weights), (plain_losses, plain_weights) = _train(device, True), _train(device, False)
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-5)
    for a, b in zip(weights, plain_weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


# ---- what raises ----


def _captured(function: Callable[..., Any], *args: Any) -> TinyJit[Any]:
    step = TinyJit(function)
    step(*args)
    step(*args)
    return step


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: (full(1, 3), 2, [full(1)]), r"x was a float32 tensor of shape \(4,\).*\(3,\)"),
        (lambda: (full(1, 3), 2, [full(1)]), r"last, smaller batch: .* pad it to 4"),
        (lambda: (full(1).cast("int32"), 2, [full(1)]), "x .*float32.*int32"),
        (lambda: (full(1), 3, [full(1)]), r"n was 2 \(int\) when captured, and is now 3"),
        (lambda: (full(1), 2.0, [full(1)]), r"n was 2 \(int\).*2.0 \(float\)"),
        (lambda: (full(1), 2, [full(1), full(1)]), "rest was a list of 1 .* a list of 2"),
        (lambda: (full(1), 2, (full(1),)), "rest was a list of 1 .* a tuple of 1"),
        (lambda: (full(1), 2, [full(1, 2)]), r"rest\[0\] was .*\(4,\)"),
        (lambda: (full(1), 2, [1.0]), r"rest\[0\] was a float32 tensor .* now 1.0"),
        (lambda: (full(1), 2), "3 positional arguments, and is called with 2"),
    ],
)
def test_other_arguments_raise(given: Callable[[], Any], words: str) -> None:
    def function(x: Tensor, n: int, rest: Any = ()) -> Tensor:
        return x.sum() * n + (sum(rest) * 2.0 if n == 1 else full(3).sum())

    step = _captured(function, full(1), 2, [full(1)])
    with pytest.raises(JitError, match=rf"(?s){words}.*reset\(\)"):
        step(*given())
    assert step(full(1), 2, [full(3)]).item() == 20
    step.reset()
    assert step(*given()) is not None


def test_another_device_raises() -> None:
    step = _captured(lambda x: x + 1, full(1).to("NUMPY"))
    if Device.available("CPU"):
        with pytest.raises(JitError, match=r"on NUMPY when captured.* on CPU"):
            step(full(1).to("CPU"))


def test_numpy_arguments_are_compared() -> None:
    step = _captured(lambda x, a: x + Tensor(a), full(1), np.ones(4, np.float32))
    assert step(full(2), np.ones(4, np.float32)).tolist() == [3] * 4
    with pytest.raises(JitError, match="argument a was array"):
        step(full(2), np.zeros(4, np.float32))


def test_one_tensor_twice(device: str) -> None:
    step = _captured(lambda x, y: x + y, full(1), full(1))
    x = full(2)
    assert step(x, x).tolist() == [4] * 4
    same = TinyJit(lambda x, y: x + y)
    same(x, x)
    same(x, x)
    assert same(x, x).tolist() == [4] * 4
    with pytest.raises(JitError, match="arguments 0 and 1 were one tensor"):
        same(x, full(1))


def test_one_tensor_twice_where_one_is_assigned_to(device: str) -> None:
    w = full(0).realize()

    def function(x: Tensor, y: Tensor) -> Tensor:
        x.assign(x + 1)
        w.assign(w + 1)
        return x + y

    step = _captured(function, full(1), full(1))
    x = full(2)
    with pytest.raises(JitError, match="share memory"):
        step(x, x)
    with pytest.raises(JitError, match="share memory"):
        step(x, w)
    for other in (x, w):
        with pytest.raises(JitError, match="argument 1, a view"):
            step(x, other[::-1])
    assert step(x, full(5)[::-1]).tolist() == [8] * 4


def _branches(x: Tensor) -> Tensor:
    return x + 1 if x.sum().item() > 0 else x - 1


def test_reading_on_the_host_raises_and_leaves_no_trace(device: str) -> None:
    step = TinyJit(_branches)
    step(full(1))
    for _ in range(2):
        with pytest.raises(JitError, match="read on the host") as caught:
            step(full(1))
        assert any("x.sum().item() > 0" in str(entry.statement) for entry in caught.traceback)
    assert full(1).sum().item() == 4
    assert step.captured is None


def test_an_exception_while_capturing(device: str) -> None:
    w, wrong = full(0).realize(), [False]

    @TinyJit
    def step(x: Tensor) -> Tensor:
        w.assign(w + x).realize()
        if wrong[0]:
            raise ValueError("wrong")
        return w * 1

    step(full(1))
    wrong[0] = True
    with pytest.raises(ValueError, match="wrong"):
        step(full(1))
    assert step.captured is None
    wrong[0] = False
    for i in range(3, 7):
        assert step(full(1)).tolist() == [i] * 4


@pytest.mark.parametrize("show", [lambda h: h, lambda h: h.detach(), lambda h: h[1:]])
def test_a_state_is_given_as_it_is_though_it_was_not_computed_yet(
    device: str, show: Callable[[Tensor], Tensor]
) -> None:
    state = full(1).realize()
    step = TinyJit(lambda x: (show(state), x + 1))
    for call in range(4):
        given, _ = step(full(call))
        given[0] = call
        np.testing.assert_array_equal(show(state).numpy(), given.numpy())
        assert given.numpy()[0] == call
        state.assign(state * 2)  # between two calls, and by nobody looked at


def test_a_state_is_given_as_it_is_after_a_call_that_could_not_be_captured(device: str) -> None:
    state, others = full(1).realize(), [full(2).realize() * n for n in range(2)]
    step = TinyJit(lambda x: (x + others[min(len(given), 1)], state.detach()))
    given: list[Tensor] = []
    for call in range(5):  # the second one finds a tensor to be computed that the first did not use
        given.append(step(full(call))[1])
        state.assign(state * 2)
    for view in given:
        np.testing.assert_array_equal(view.numpy(), state.numpy())


def test_a_function_that_can_never_be_captured_says_why(device: str) -> None:
    made = [full(0)]
    step = TinyJit(lambda x: x + made[0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for call in range(8):
            made[0] = full(call) * 2  # new in each call, and not computed
            assert step(full(1)).tolist() == [2 * call + 1] * 4
    (warning,) = caught
    assert step.captured is None
    assert warning.filename == __file__
    assert "shape (4,)" in str(warning.message)
    assert "as an argument" in str(warning.message)


def test_a_function_that_launches_nothing(device: str) -> None:
    step = TinyJit(lambda x: x)
    step(full(1))
    with pytest.raises(JitError, match="launched nothing"):
        step(full(1))


def test_changing_host_values_raise(device: str) -> None:
    count = [0.0]

    def uploads(x: Tensor) -> Tensor:
        count[0] += 1
        return x + Tensor(np.full(4, count[0], np.float32))

    def computes(x: Tensor) -> Tensor:
        count[0] += 1
        return x * (count[0] + 0.25)

    def slices(x: Tensor) -> Tensor:
        count[0] += 1
        return x[int(count[0]) % 3] + 1

    def multiplies(x: Tensor) -> Tensor:
        count[0] += 1
        return x * count[0]  # by 1, which is left out of a kernel, and then by 2

    def chooses(x: Tensor) -> Tensor:
        count[0] += 1
        return (x > count[0] - 1).where(x, 0)  # at first 0 is said twice, and one node

    constant = partial(Tensor.ones, 4)  # what is added to it would be one number at first
    for function, given in product(
        (uploads, computes, slices, multiplies, chooses), (partial(full, 1), constant)
    ):
        count[0] = 0
        step = TinyJit(function)
        step(given())
        with pytest.raises(JitError, match="not the same in its last"):
            step(given())
        assert step.captured is None


def test_a_tensor_that_is_put_in_the_place_of_another(device: str) -> None:
    class Model:
        def __init__(self) -> None:
            self.h = full(0).realize()

        @TinyJit
        def inside(self, x: Tensor) -> Tensor:
            self.h = (self.h + x).realize()
            return self.h * 1

        @TinyJit
        def outside(self, x: Tensor) -> Tensor:
            return self.h + x

    model = Model()
    model.inside(full(1))
    with pytest.raises(JitError, match="another object in its place"):
        model.inside(full(1))
    for _ in range(3):
        model.outside(full(1))
    model.h = full(5).realize()
    with pytest.raises(JitError, match="was replaced by another object"):
        model.outside(full(1))
    model.outside.reset()
    for _ in range(3):
        assert model.outside(full(1)).tolist() == [6] * 4


def test_assigning_to_a_constant_without_memory() -> None:
    count = Tensor(0.0)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        if calls.pop():
            count.assign(count + 1)
        return x + 1

    calls = [True, False]
    step(full(1))
    with pytest.raises(JitError, match=r"\.realize\(\) on it before"):
        step(full(1))


def test_training_mode_is_part_of_the_capture(device: str) -> None:
    step = _captured(lambda x: x.dropout(0.5) + 1, full(1))
    with Tensor.train(), pytest.raises(JitError, match="training"):
        step(full(1))


def test_a_capture_keeps_no_gradients_of_the_step_before(device: str) -> None:
    weight, kept = full(2), []
    weight.requires_grad = True

    @TinyJit
    def step(x: Tensor) -> Tensor:
        before = None if weight.grad is None else weakref.ref(memory[weight.grad.lazy])
        weight.grad = None
        loss = (weight * x).sum()
        loss.backward()
        kept.append(before and before())
        return loss.realize()

    for _ in range(3):
        step(full(3))
    assert kept == [None, None]  # the plain call and the capture
    assert weight.grad is not None
    assert weight.grad.tolist() == full(3).tolist()


def test_gradient_of_an_argument(device: str) -> None:
    def function(x: Tensor) -> Tensor:
        x.requires_grad, x.grad = True, None
        loss = (x * x).sum()
        loss.backward()
        return loss

    x = full(2)
    step = _captured(function, x)
    x.assign(full(3)).realize()
    step(x)
    assert x.grad is not None
    assert x.grad.tolist() == [6] * 4
    with pytest.raises(JitError, match="received a gradient"):
        step(full(1))


def test_a_gradient_that_is_a_constant_is_added_to_by_another_step(device: str) -> None:
    """As of the bias of a critic of a Wasserstein GAN, to which the player's step adds."""

    def train(wrap: Callable[[Callable[..., Tensor]], Callable[..., Tensor]]) -> list[list[float]]:
        weight, bias = (Tensor([n], requires_grad=True) for n in (0.5, 0.25))
        scale = Tensor([2.0], requires_grad=True)

        def critic(x: Tensor) -> Tensor:
            weight.grad = bias.grad = None
            return ((x - (x * scale).detach()) * weight + bias).sum().backward()

        def player(x: Tensor) -> Tensor:
            scale.grad = None
            return (x * scale * weight - bias).sum().backward()

        critic, player = wrap(critic), wrap(player)
        found = []
        for i in range(5):
            critic(Tensor([1.0, i]))
            player(Tensor([2.0, i]))
            found.append([t.grad.item() for t in (weight, bias, scale) if t.grad is not None])
        return found

    assert train(TinyJit) == train(lambda function: function)


def test_a_parameter_that_is_frozen_after_the_capture_is_not_trained_in_silence(
    device: str,
) -> None:
    w = Tensor([1.0], requires_grad=True)
    optimizer = nn.optim.SGD([w], lr=0.25)

    @TinyJit
    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        (w * x).sum().backward()
        optimizer.step()

    with Tensor.train():
        for _ in range(4):
            step(Tensor([1.0]))
        w.requires_grad = False
        with pytest.raises(JitError, match=r"requires_grad of a tensor \(1,\).* was True"):
            step(Tensor([1.0]))
        assert w.item() == 0
        w.requires_grad = True
        step(Tensor([1.0]))
    assert w.item() == -0.25


def test_a_function_may_say_itself_who_is_trained_in_it(device: str) -> None:
    """As players do that take turns: what one of them froze is nothing to the other."""

    def played(jit: Callable[[Any], Any]) -> list[float]:
        v, w = Tensor([1.5], requires_grad=True), Tensor([0.5], requires_grad=True)

        def turn(mine: Tensor, other: Tensor, sign: float) -> Any:
            optimizer = nn.optim.SGD([mine], lr=0.25)

            def step() -> None:
                mine.requires_grad, other.requires_grad = True, False
                optimizer.zero_grad()
                (sign * v * w).sum().backward()
                optimizer.step()

            return jit(step)

        turns = turn(v, w, 1.0), turn(w, v, -1.0)
        with Tensor.train():
            for _ in range(5):
                for step in turns:
                    step()
        return [v.item(), w.item()]

    assert played(TinyJit) == played(lambda step: step)


def test_a_parameter_that_was_frozen_in_the_capture_does_not_rest_in_silence_after(
    device: str,
) -> None:
    v, w = Tensor([1.0], requires_grad=True), Tensor([1.0], requires_grad=True)
    optimizer = nn.optim.SGD([v, w], lr=0.25)
    product = TinyJit(lambda: (v * w).realize())

    @TinyJit
    def step() -> None:
        optimizer.zero_grad()
        (v * w).sum().backward()
        optimizer.step()

    w.requires_grad = False
    with Tensor.train():
        for _ in range(3):
            step()
            assert product().item() == v.item()
        w.requires_grad = True
        with pytest.raises(JitError, match=r"requires_grad of a tensor \(1,\).* was False"):
            step()
        assert product().item() == v.item()
        step.reset()
        step()
    assert (v.item(), w.item()) == (0, 0.9375)


# ---- nesting, settings ----


def test_a_jit_inside_a_jit(device: str) -> None:
    inner = TinyJit(lambda x: x * 2)
    outer = TinyJit(lambda x: inner(x) + 1)
    for i in range(5):
        assert outer(full(i)).tolist() == [2 * i + 1] * 4
    for i in range(5):
        assert inner(full(i)).tolist() == [2 * i] * 4
    assert outer(full(9)).tolist() == [19] * 4


def test_without_jit_the_function_is_called(device: str) -> None:
    calls = []

    @TinyJit
    def step(x: Tensor) -> float:
        calls.append(1)
        return float((x * len(calls)).sum().item())

    with config.override(jit=False):
        assert [step(full(1)) for _ in range(4)] == [4, 8, 12, 16]


def test_every_launch_is_announced_to_who_listens(device: str) -> None:
    step = _captured(lambda x: (x.sum() + x).max(), full(1))
    assert step.captured is not None
    with trace.listen(trace.Launched) as launches:
        assert step(full(2)).item() == 10
    assert len(launches) == len(step.captured.parts.launches)
    if device != "NUMPY":
        with trace.listen(trace.KernelRan) as ran:
            step(full(2))
        assert len(ran) == len(launches)
    assert step(full(3)).item() == 15


def test_a_step_over_two_devices(device: str) -> None:
    other = "NUMPY" if device != "NUMPY" else "CPU"
    if not Device.available(other):
        pytest.skip("one device only")
    step = TinyJit(lambda x: ((x + 1).to(other) * 2).to(device) + x)
    for i in range(4):
        assert step(full(i)).tolist() == [2 * (i + 1) + i] * 4


# ---- memory ----


@pytest.mark.usefixtures("no_garbage")
def test_memory_is_flat(device: str) -> None:
    w = full(0, 256).realize()

    @TinyJit
    def step(x: Tensor) -> Tensor:
        w.assign(w * 0.5 + x)
        return (w * w).sum()

    def replay(count: int) -> None:
        for i in range(count):
            step(full(i % 3, 256)).item()

    replay(10)
    before = Device.memory_stats(device).in_use, _live_buffers()
    replay(300)
    assert (Device.memory_stats(device).in_use, _live_buffers()) == before


def _live_buffers() -> int:
    from tinyml.ledger import memory

    return len(memory)


def test_interim_memory_is_shared() -> None:
    if not Device.available("CPU"):
        pytest.skip("no CPU device")

    def chain(x: Tensor) -> Tensor:
        for _ in range(8):
            x = (x + 1).contiguous().realize()
        return x.sum()

    step = _captured(chain, full(1, 1024).to("CPU"))
    assert step.captured is not None
    spans = [b for b in step.captured.table if isinstance(b, Span)]
    assert [*{id(s._owner): s._owner.nbytes for s in spans}.values()] == [4096, 4096]


@pytest.mark.usefixtures("no_garbage")
def test_memory_returns_when_the_step_is_forgotten(device: str) -> None:
    x = full(1, 1024).realize()
    before = Device.memory_stats(device).in_use
    step = _captured(lambda x: ((x + 1).contiguous().realize() * 2).sum(), x)
    step(x)
    step.reset()
    gc.collect()
    assert Device.memory_stats(device).in_use == before


def test_state_that_was_a_constant_has_memory_after_the_first_call(device: str) -> None:
    norm, total = nn.BatchNorm(2), Tensor(0.0)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        with Tensor.train():
            total.assign(total + x.sum())
            return norm(x).square().mean()

    for _ in range(4):
        assert step(Tensor([[1.0, 2.0], [5.0, 2.0]])).item() == pytest.approx(0.5, abs=1e-3)
    assert (norm.num_batches_tracked.item(), total.item()) == (4, 40)


def test_a_replay_takes_what_has_the_structure_of_the_capture_and_nothing_else() -> None:
    row, column = Tensor(np.ones((1, 3), np.float32)), Tensor(np.ones((3, 1), np.float32))
    values = [1, 1.0, True, math.nan, "a", None, (), (1,), [1], {}, {"a": 1}, {"b": 1}]
    values += [{"a": 1, "b": row}, {"b": row, "a": 1}, np.arange(3), np.arange(3.0), np.arange(4)]
    values += [row, column, [row, column], [column, row], (row, column), row.int()]
    for captured, given in product(values, values):
        tensors: list[Tensor] = []
        others: list[Tensor] = []
        own: list[Tensor] = []
        structure = flatten(captured, own)
        alike = fits(structure, given, tensors) and looks(tensors) == looks(own)
        assert alike == (structure == flatten(given, others))
        assert structure != flatten(given, []) or list(map(id, tensors)) == list(map(id, others))


def test_another_object_that_looks_the_same() -> None:
    step = TinyJit(lambda layer, x: layer(x))
    layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
    for _ in range(3):
        step(layers[0], Tensor.ones(1, 2))
    with pytest.raises(JitError, match=r"was Linear\(.* captured, and is now another Linear"):
        step(layers[1], Tensor.ones(1, 2))


def test_other_keyword_arguments_than_those_of_the_capture() -> None:
    step = TinyJit(lambda x, scale=1.0, shift=0.0: (x * scale + shift).realize())
    for _ in range(3):
        step(Tensor([1.0]))
    with pytest.raises(JitError, match=r"with none by name, and is called with scale, shift\."):
        step(Tensor([1.0]), scale=2.0, shift=1.0)
