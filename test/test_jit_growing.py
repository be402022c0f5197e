"""TinyJit and what a function keeps outside: a list that would not grow in replays is an error."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from tinyml import Tensor, TinyJit, nn
from tinyml.errors import JitError


def calls(function: Callable[[Tensor], Tensor], times: int = 4) -> list[float]:
    step = TinyJit(function)
    return [step(Tensor([float(i), 1.0])).item() for i in range(times)]


class Log:
    def __init__(self) -> None:
        self.losses: list[Any] = []
        self.by_step: dict[int, Tensor] = {}
        self.last: Any = None
        self.recent = deque[Tensor](maxlen=5)


@pytest.mark.parametrize(
    ("add", "words"),
    [
        (lambda log, x: log.losses.append(x), "the list Log: losses"),
        (lambda log, x: log.losses.append({"loss": (x, 1)}), "the list Log: losses"),
        (lambda log, x: log.recent.append(x.detach()), "the deque Log: recent"),
        (lambda log, x: log.by_step.update({len(log.by_step): x}), "the dict Log: by_step"),
    ],
)
def test_what_grows_is_named(add: Callable[[Log, Tensor], None], words: str, device: str) -> None:
    log = Log()

    def step(x: Tensor) -> Tensor:
        loss = x.sum()
        add(log, loss)
        return loss

    with pytest.raises(JitError, match=f"step: each call adds a Tensor to {words}"):
        calls(step)


def test_a_method_that_appends_to_its_own_list(device: str) -> None:
    class Model:
        def __init__(self) -> None:
            self.seen: list[Tensor] = []

        @TinyJit
        def step(self, x: Tensor) -> Tensor:
            self.seen.append(x * 2)
            return x + 1

    model = Model()
    model.step(Tensor([1.0]))
    with pytest.raises(JitError, match="the list Model: seen"):
        model.step(Tensor([1.0]))


def test_what_is_replaced_or_made_once_is_renewed(device: str) -> None:
    log, cache, given = Log(), dict[str, Tensor](), list[Tensor]()
    layer = nn.Linear(2, 1)
    optimizer = nn.optim.Adam([layer.weight], lr=0.1)
    state: list[Tensor] = []

    def step(x: Tensor) -> Tensor:
        if not state:
            state.extend(Tensor.zeros(2).realize() for _ in range(3))
        if "mask" not in cache:
            cache["mask"] = (Tensor.arange(2) + 1).realize()
        for tensor in state:
            tensor.assign(tensor + x)
        optimizer.zero_grad()
        loss = (layer(x * cache["mask"]) - 1).square().sum()
        loss.backward()
        log.losses[:] = [p.grad for p in optimizer.params]
        log.last = cache["last"] = loss + 1
        optimizer.step()
        return loss

    jit = TinyJit(step)
    with Tensor.train():
        for i in range(5):
            given.append(jit(Tensor([float(i), 1.0])))
            assert log.last.item() == pytest.approx(given[-1].item() + 1)
    assert state[2].tolist() == [10, 5]
    assert len({loss.item() for loss in given}) == 5
    assert log.losses[0] is layer.weight.grad


def test_a_cache_that_grows_by_shape(device: str) -> None:
    known: dict[int, Tensor] = {}

    @TinyJit
    def step(x: Tensor) -> Tensor:
        if x.shape[0] not in known:
            known[x.shape[0]] = (Tensor.arange(x.shape[0]) + 1).realize()
        return (x * known[x.shape[0]]).sum()

    assert step(Tensor.ones(2)).item() == 3
    assert [step(Tensor.ones(3)).item() for _ in range(3)] == [6, 6, 6]


@pytest.mark.parametrize("by_place", [False, True])
def test_a_cache_that_others_fill_after_the_capture(by_place: bool, device: str) -> None:
    """What was there is watched; what came since, as of a longer text, no replay reads."""

    class Model:
        def __init__(self) -> None:
            self.known: Any = [None] * 6 if by_place else dict.fromkeys(range(3))

        def __call__(self, x: Tensor) -> Tensor:
            if (self.known[x.shape[0]] if by_place else self.known.get(x.shape[0])) is None:
                self.known[x.shape[0]] = (Tensor.arange(x.shape[0]) + 1).realize()
            return (x * self.known[x.shape[0]]).sum()

    model = Model()
    step = TinyJit(lambda x: model(x).realize())
    for _ in range(3):
        assert step(Tensor.ones(3)).item() == 6
    assert model(Tensor.ones(5)).item() == 15
    assert step(Tensor.ones(3)).item() == 6
    model.known[3] = Tensor.zeros(3).realize()
    with pytest.raises(JitError, match="known"):
        step(Tensor.ones(3))


def test_attributes_of_a_tensor_are_no_dict_that_grows(device: str) -> None:
    layers = [nn.BatchNorm(4), nn.Linear(4, 2)]
    optimizer = nn.optim.Adam(nn.state.get_parameters(layers))

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = x.sequential(layers).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    with Tensor.train():
        calls(lambda x: step(x.reshape(2, 1).expand(2, 4)))
