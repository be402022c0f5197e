"""What is computed for the second time is kept: loops that nobody told to realize do not grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graphs import numbers

from tinyml import Tensor, lazy, nn, no_grad, trace
from tinyml.device import open_device
from tinyml.dtype import float32
from tinyml.graph import numbered, toposort
from tinyml.ledger import gradients_in
from tinyml.reused import reused

State = tuple[Tensor, ...]


def random(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return numbers(np.random.default_rng(seed), shape, float32)


def is_real(tensor: Tensor) -> bool:
    return isinstance(tensor._lazy, lazy.Data)


def pendulum(x: Tensor, v: Tensor) -> State:
    return x + v * 0.1, v - x * 0.1


def newton(x: Tensor) -> State:
    return (x - (x * x - 2) / (2 * x),)


def normalised(x: Tensor) -> State:
    return (x.roll(1, 0) / x.square().sum().sqrt(),)


def layers(x: Tensor) -> State:
    for _ in range(9):
        x = x - x.mean() * 0.1
    return (x,)


LOOPS: dict[str, tuple[Callable[..., State], int]] = {
    "layers": (layers, 1),
    "newton": (newton, 1),
    "normalised": (normalised, 1),
    "pendulum": (pendulum, 2),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_whose_state_nobody_realizes_does_the_same_in_each_turn(
    name: str, device: str
) -> None:
    step, count = LOOPS[name]
    first = [abs(random(7, seed=n)) + 1 for n in range(count)]
    state, told = [tuple(Tensor(a).realize() for a in first) for _ in range(2)]
    launches, nodes = [], []
    for _ in range(8):
        state, told = step(*state), step(*told)
        Tensor.realize(*told)
        with trace.listen(trace.Launched) as launched:
            looked = sum((x * x).sum() for x in state).numpy()
        launches.append(len(launched))
        nodes.append(len(toposort([x._lazy for x in state])))
        np.testing.assert_allclose(looked, sum((x * x).sum() for x in told).numpy(), 1e-5)
    assert len({*launches[2:]}) == len({*nodes[2:]}) == 1


def test_a_loop_compiles_nothing_from_its_third_turn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    x, known = Tensor(np.full(5, 3.0, np.float32), device="CPU").realize(), []
    for _ in range(5):
        x = newton(x)[0]
        with trace.listen(trace.Scheduled) as scheduled:
            x.sum().item()
        known.append(len(scheduled))
    assert known[2:] == [0, 0, 0]


def test_a_tensor_that_is_looked_at_in_parts_is_real_from_the_second_look_on(device: str) -> None:
    a = random(5, 6)
    x, seen = (Tensor(a).realize() @ Tensor(a.T.copy()).realize()).exp(), []
    for look, known in ((Tensor.sum, np.sum), (Tensor.max, np.max), (Tensor.mean, np.mean)):
        np.testing.assert_allclose(look(x).item(), known(np.exp(a @ a.T)), 1e-4)
        seen.append(is_real(x))
    assert seen == [False, True, True]


def test_what_is_read_in_parts_only_and_what_has_no_data_stay_as_they_are(device: str) -> None:
    a = random(6, 6)
    rows, mask, x = Tensor(a).realize() * 2, Tensor.ones(6, 6).tril(), Tensor(a).realize()
    for i in range(3):
        np.testing.assert_allclose(rows[i : i + 2].sum().item(), 2 * a[i : i + 2].sum(), 1e-4)
        np.testing.assert_allclose((x * mask).sum().item(), np.tril(a).sum(), 1e-4)
    assert not is_real(rows)
    assert not is_real(mask)


def test_a_table_of_zeros_that_is_read_and_written_in_parts_does_not_grow(device: str) -> None:
    table, wanted, nodes = Tensor.zeros(5, 2), np.zeros((5, 2)), []
    for i in range(30):
        state, action, following = i * i % 5, i % 2, i * 3 % 5
        table[state, action] += 0.5 * (1 + 0.5 * table[following].max() - table[state, action])
        wanted[state, action] += 0.5 * (1 + 0.5 * wanted[following].max() - wanted[state, action])
        np.testing.assert_allclose(table[state].max().item(), wanted[state].max(), 1e-5)
        nodes.append(len(toposort([table._lazy])))
    assert max(nodes[15:]) <= max(nodes[:15])
    np.testing.assert_allclose(table.numpy(), wanted, 1e-5)


@pytest.mark.parametrize("draw", [False, True])
def test_a_large_state_that_began_with_numbers_or_draws_does_not_grow(draw: bool) -> None:
    x, nodes = Tensor.randn(600, 600) if draw else Tensor.ones(600, 600), []
    for _ in range(60):
        x = x * 0.5 + 1
        looked = x.mean().item()
        nodes.append(len(toposort([x._lazy])))
    assert max(nodes[30:]) <= max(nodes[:30])
    np.testing.assert_allclose(looked, 2, 1e-4)


def test_gradients_go_on_through_what_was_kept(device: str) -> None:
    a, b = random(3, 4), random(4, 5, seed=1)
    w = Tensor(b, requires_grad=True).realize()
    y = (Tensor(a).realize() @ w).tanh()
    for _ in range(3):
        y.sum().item()
    assert is_real(y)
    (y * y).sum().backward()
    assert w.grad is not None
    t = np.tanh(a @ b)
    np.testing.assert_allclose(w.grad.numpy(), a.T @ (2 * t * (1 - t * t)), 1e-4, 1e-5)


def test_gradients_that_nobody_announced_go_on_too(device: str) -> None:
    x = Tensor(random(5)).realize()
    y = x * x
    for look in (Tensor.sum, Tensor.max):
        look(y).item()
    assert is_real(y)
    (gradient,) = (y + x).sum().gradient(x)
    np.testing.assert_allclose(gradient.numpy(), 2 * random(5) + 1, 1e-5)


def test_what_is_far_larger_than_its_data_is_not_kept(device: str) -> None:
    a = Tensor(random(700)).realize()
    d = (a[:, None] - a[None]).square()
    for look in (Tensor.min, Tensor.max, Tensor.sum):
        look(d).item()
    assert not is_real(d)


def test_gates_that_are_cut_from_one_product_are_no_parts_of_the_state(device: str) -> None:
    w = (Tensor(random(4, 12)) * 0.1).realize()
    h, nodes = Tensor(random(1, 4)).realize(), []
    for _ in range(6):
        a, b, c = (h @ w).chunk(3, 1)
        h = a.sigmoid() * b.tanh() + c
        h.sum().item()
        nodes.append(len(toposort([h._lazy])))
    assert len({*nodes[2:]}) == 1


def test_what_was_kept_is_nobody_elses_memory(device: str) -> None:
    a = random(9)
    x = Tensor(a).realize() * 3
    same, above = x * 1, x + 1
    x.sum().item()
    x.max().item()
    x += 10
    for tensor, wanted in ((x, 3 * a + 10), (same, 3 * a), (above, 3 * a + 1)):
        np.testing.assert_allclose(tensor.numpy(), wanted, 1e-5)


def test_memory_of_turns_long_past_is_given_back() -> None:
    machine = open_device("CPU").machine
    x, used = Tensor(np.ones(1 << 16, np.float32), device="CPU").realize(), []
    for _ in range(12):
        with no_grad():
            x = x * 0.5 + 1
        x.sum().item()
        used.append(machine.memory_stats().in_use)
    assert used[-1] <= used[3]


def test_of_what_was_computed_only_the_last_is_kept(device: str) -> None:
    a = random(4, 6)
    inner = Tensor(a).realize() * 2
    x = inner.reshape(24).flip(0).exp()
    for look in (Tensor.sum, Tensor.max):
        look(x).item()
    assert is_real(x)
    assert not is_real(inner)
    for i in range(3):
        inner.T[i].sum().item()
    assert not is_real(inner)  # nor is what is read in parts of a rearrangement


def test_numbers_that_a_composition_knows_are_no_reason_to_look_through_a_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, looks = Tensor(np.eye(3, dtype=np.float32) * 2), list[object]()
    monkeypatch.setattr("tinyml.reused._reads_part", lambda *of: looks.append(of))
    for _ in range(4):
        x = data
        for _ in range(3):
            x = (x + 1).inverse() @ data  # which has a matrix of its own, computed each time
        x.numpy()
    assert not looks


def test_a_turn_makes_nothing_anew_of_turns_long_past(monkeypatch: pytest.MonkeyPatch) -> None:
    made, made_of = list[object](), lazy.LazyBuffer.made_of
    monkeypatch.setattr(lazy.LazyBuffer, "made_of", lambda *of: (made.append(of), made_of(*of))[1])
    matrix, x, counts = Tensor(np.eye(4, dtype=np.float32) * 2), Tensor.ones(4), list[int]()
    for _ in range(40):
        made.clear()
        x = matrix @ x / x.square().sum().sqrt()  # records keep them all, for gradients
        x.sum().item()
        counts.append(len(made))
    assert 0 < counts[-1] == counts[9]


def test_a_tensor_of_a_turn_long_past_goes_on_from_what_was_kept(device: str) -> None:
    x = Tensor(random(4)).realize()
    first = x * 2
    later = first + 1
    for _ in range(5):
        x = x * 2 - 1
        x.sum().item()
    for _ in range(2):
        (first * 3).sum().item()  # is kept from here on
    assert is_real(first)
    assert not is_real(later)
    assert any(isinstance(source, lazy.Data) for source in later._lazy.sources)
    np.testing.assert_allclose(later.numpy(), random(4) * 2 + 1, 1e-6)


def test_a_long_graph_with_rearrangements_is_kept_by_its_last_node() -> None:
    x = Tensor(np.ones(3, np.float32), device="NUMPY").realize()
    for _ in range(50):
        x = x.flip(0) * 0.5
    x.sum().item()
    order = numbered([x.max()._lazy])
    assert reused([*order][:1], order) == [x._lazy]


# ---- steps of training ----


def trained_head(
    outside: Tensor, batch: Callable[[Tensor, int], Tensor] = lambda x, _: x
) -> tuple[np.ndarray[Any, Any], list[bool]]:
    """A head after four steps on what was made before them; whether that is real after each."""
    head = Tensor(random(64, 2, seed=2), device=outside.device, requires_grad=True)
    optimizer, seen = nn.optim.SGD([head], lr=0.1), []
    for step in range(4):
        optimizer.zero_grad()
        (batch(outside, step) @ head).square().mean().backward()
        with Tensor.train():
            optimizer.step()
        seen.append(is_real(outside))
    return head.numpy(), seen


def wanted_head(
    outside: np.ndarray[Any, Any], batch: Callable[[Any, int], Any] = lambda x, _: x
) -> np.ndarray[Any, Any]:
    head = random(64, 2, seed=2)
    for step in range(4):
        x = batch(outside, step)
        head = head - 0.1 * x.T @ (x @ head) / len(x)
    return head


def features(device: str, rows: int) -> Tensor:
    x, w = Tensor(random(rows, 64), device=device), Tensor(random(64, 64, seed=1), device=device)
    return (x @ w).tanh()


def some_rows(x: Any, step: int) -> Any:
    index = np.random.default_rng(step).integers(0, 256, 16)
    return x[Tensor(index, device=x.device) if isinstance(x, Tensor) else index]


@pytest.mark.parametrize("batch", [lambda x, _: x, some_rows], ids=["all", "some rows"])
def test_features_that_steps_of_training_read_are_computed_in_two_of_them(
    batch: Callable[[Any, int], Any], device: str
) -> None:
    head, seen = trained_head(features(device, 256), batch)
    assert seen == [False, True, True, True]
    wanted = wanted_head(np.tanh(random(256, 64) @ random(64, 64, seed=1)), batch)
    np.testing.assert_allclose(head, wanted, 1e-4, 1e-5)


def test_of_data_less_its_mean_which_steps_read_by_rows_the_mean_is_kept(device: str) -> None:
    a = random(1 << 14, 64)
    x = Tensor(a, device=device).realize()
    outside = x - x.mean(0)
    head, seen = trained_head(outside, some_rows)
    assert not any(seen)
    assert not [node for node in toposort([outside._lazy]) if type(node) is lazy.Reduce]
    np.testing.assert_allclose(head, wanted_head(a - a.mean(0), some_rows), 1e-4, 1e-5)


def test_draws_that_steps_of_training_read_are_drawn_in_two_of_them() -> None:
    Tensor.manual_seed(3)
    head, seen = trained_head(Tensor.randn(512, 64, device="CPU"))
    assert seen == [False, True, True, True]
    Tensor.manual_seed(3)
    drawn = Tensor.randn(512, 64, device="CPU").numpy()
    np.testing.assert_allclose(head, wanted_head(drawn), 1e-4, 1e-5)


def test_what_takes_less_than_a_plan_stays_as_it_is() -> None:
    assert trained_head(features("CPU", 8))[1] == [False] * 4


def test_activations_that_nobody_holds_are_a_part_of_their_step() -> None:
    """They would be stored once more: each step makes its own."""
    x, w = Tensor(random(256, 64), device="CPU"), Tensor(random(64, 64, seed=1), device="CPU")
    head = Tensor(random(64, 2, seed=2), device="CPU", requires_grad=True)
    optimizer = nn.optim.SGD([head], lr=0.1)
    loss = ((x @ w).tanh() @ head).square().mean()
    (loss * 2).item()  # computes all of them
    loss.backward()
    with trace.listen(trace.Realized) as realized, Tensor.train():
        optimizer.step()
    (event,) = realized
    assert not any(node.shape == (256, 64) for node in event.nodes)


# ---- gradients that wait ----

Look = Callable[[Tensor, list[Tensor]], Any]


def trained(device: str, look: Look, loss_of: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Weights after three steps, in each of which somebody looks before the update."""
    x = Tensor(random(16, 8), device=device)
    weights = [Tensor(random(8, 8, seed=n), device=device, requires_grad=True) for n in (1, 2)]
    optimizer = nn.optim.SGD(weights, lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = loss_of(((x @ weights[0]).relu() @ weights[1]).square().mean())
        loss.backward()
        look(loss, weights)
        with Tensor.train():
            optimizer.step()
    return weights


def waits(weights: list[Tensor]) -> list[bool]:
    return [w.grad is not None and not is_real(w.grad) for w in weights]


def test_a_look_at_a_loss_changes_nothing_that_is_trained(device: str) -> None:
    looks: list[Look] = [lambda loss, _: loss.item(), lambda *_: None]
    looked, alone = (trained(device, look, Tensor.sqrt) for look in looks)
    for one, other in zip(looked, alone, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shown", [lambda x: x, lambda x: x * 2 + 1], ids=["itself", "a part"])
def test_gradients_are_computed_with_a_loss_that_is_looked_at(
    shown: Callable[[Tensor], Tensor],
) -> None:
    """Or all activations would be computed for the loss, and once more for them."""

    def look(loss: Tensor, weights: list[Tensor]) -> None:
        assert waits(weights) == [True, True]
        shown(loss).item()
        assert waits(weights) == [False, False]

    trained("CPU", look, lambda loss: loss)


def test_gradients_that_a_plan_needs_anyway_are_no_results_of_it() -> None:
    def look(loss: Tensor, weights: list[Tensor]) -> None:
        gradients = [w.grad.lazy for w in weights if w.grad is not None]
        assert {node for _, node in gradients_in(numbered([loss.lazy]))} == {*gradients}
        assert not gradients_in(numbered([loss.lazy, *gradients]))

    trained("CPU", look, Tensor.sqrt)
