"""A TinyJit in a pickle replays what was captured; a copy captures for itself."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest

from tinyml import Tensor, TinyJit, nn
from tinyml.errors import JitError


def counting() -> TinyJit[[Tensor], tuple[Tensor, Tensor, Tensor]]:
    """A captured step with a weight, a constant, draws and a state that it writes."""
    weight, calls = Tensor([1.0, 2.0, 3.0]).realize(), Tensor([0.0]).realize()

    @TinyJit
    def step(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        calls.assign(calls + 1)
        return (x * weight).sum() + Tensor([5.0, 6.0]).sum(), x + Tensor.rand(3), calls

    for _ in range(2):
        step(Tensor.zeros(3).contiguous())
    return step


class Model:
    """A layer, and a TinyJit of its own method."""

    def __init__(self) -> None:
        self.layer = nn.Linear(3, 2)
        self.run = TinyJit(self.forward)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).relu()


def captured_model(x: Tensor) -> Model:
    model = Model()
    for _ in range(2):
        model.run(x)
    return model


def test_a_pickled_step_goes_on_by_itself(device: str) -> None:
    step = counting()
    copied = pickle.loads(pickle.dumps(step))
    again = pickle.loads(pickle.dumps(copied))
    results = []
    for own in (step, copied, again):
        Tensor.manual_seed(3)
        results.append([[t.tolist() for t in own(Tensor([1.0, 1.0, 1.0]))] for _ in range(2)])
    assert results[0] == results[1] == results[2]
    assert [count for _, _, count in results[0]] == [[3.0], [4.0]]
    copied.reset()
    with pytest.raises(JitError, match="function, which has no name"):
        copied(Tensor([1.0, 1.0, 1.0]))


def test_a_model_is_pickled_with_its_step(device: str) -> None:
    x = Tensor([[1.0, 2.0, 3.0]]).realize()
    model = captured_model(x)
    copied = pickle.loads(pickle.dumps(model))
    assert copied.run.captured is not None
    assert copied.run(x).tolist() == model.run(x).tolist()
    copied.layer.weight.assign(Tensor.zeros(2, 3))
    copied.layer.bias.assign(Tensor([1.0, 2.0]))
    assert copied.run(x).tolist() == [[1.0, 2.0]] != model.run(x).tolist()
    copied.run.reset()
    assert copied.run(x * 2).tolist() == [[1.0, 2.0]]


def test_a_copy_captures_for_itself() -> None:
    x = Tensor([[1.0, 2.0, 3.0]]).realize()
    model = captured_model(x)
    assert copy.copy(model.run).captured is None
    twin = copy.deepcopy(model)
    twin.layer.weight.assign(Tensor.zeros(2, 3))
    twin.layer.bias.assign(Tensor([1.0, 2.0]))
    for _ in range(3):
        assert twin.run(x).tolist() == [[1.0, 2.0]]
    assert model.run(x).tolist() == model.forward(x).tolist() != [[1.0, 2.0]]


def test_another_process_replays(device: str) -> None:
    reads = "import pickle, sys; f, x = pickle.load(sys.stdin.buffer); print(f(x)[0].item())"
    content = pickle.dumps((counting(), Tensor([1.0, 1.0, 1.0])))
    run = subprocess.run(
        [sys.executable, "-c", reads], input=content, capture_output=True, check=True
    )
    assert float(run.stdout) == 17


class Trained:
    """A weight, its optimizer and a captured step."""

    def __init__(self) -> None:
        self.weight = Tensor([1.0, 2.0], requires_grad=True)
        self.optimizer = nn.optim.SGD([self.weight], lr=0.5, momentum=0.5)
        self.run = TinyJit(self.step)

    def step(self) -> Tensor:
        with Tensor.train():
            self.optimizer.zero_grad()
            loss = self.weight.square().sum().backward()
            self.optimizer.step()
        return loss


def test_a_loaded_step_refuses_another_momentum_than_it_was_captured_with() -> None:
    model = Trained()
    for _ in range(3):
        model.run()
    copied = pickle.loads(pickle.dumps(model))
    assert copied.run().tolist() == model.run().tolist()
    assert copied.weight.tolist() == model.weight.tolist()
    copied.optimizer.momentum = 0.9
    with pytest.raises(JitError, match=r"momentum was 0\.5"):
        copied.run()


def test_a_step_whose_optimizer_nobody_holds_is_pickled_too() -> None:
    model = Trained()
    for _ in range(3):
        model.run()
    captured = pickle.loads(pickle.dumps(model.run.captured))
    assert {assumed.holder() for assumed in captured.parts.assumed.every} == {None}
    again = pickle.loads(pickle.dumps(captured))
    again.parts.assumed.check()
