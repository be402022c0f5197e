"""TinyJit and the values that a function reads besides its arguments: others are an error."""

from __future__ import annotations

import enum
import gc
import pickle
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tinyml import Function, Tensor, TinyJit, nn
from tinyml.errors import JitError

SCALE = 2.0


class Part:
    """A layer of somebody's, with numbers in various places."""

    shared = 1.0

    def __init__(self) -> None:
        self.scale, self.unused, self.calls = 2.0, 1, 0
        self.shift: Any = float("nan")
        self.inner = SimpleNamespace(power=2)

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.method(x) + self.shared

    def method(self, x: Tensor) -> Tensor:
        return (x * self.scale) ** self.inner.power + (0 if self.shift != self.shift else 1)

    @property
    def twice(self) -> float:
        return 2 * self.scale

    def fit(self, x: Tensor) -> Tensor:
        return self(x) * self.unused


class Heir(Part):
    """Reads nothing itself."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x)


class Model:
    """Parts by name, in a list, and with steps that are methods."""

    def __init__(self) -> None:
        self.part, self.parts, self.epoch = Part(), [Part(), Heir()], 0

    @TinyJit
    def step(self, x: Tensor) -> Tensor:
        return self.part(x).realize()

    def __call__(self, x: Tensor) -> Tensor:
        return self.step(x) + self.epoch


def captured(function: Callable[..., Tensor], *args: Any) -> TinyJit[..., Tensor]:
    step = TinyJit(function)
    for _ in range(3):
        step(*args, Tensor([1.0, 3.0]))
    return step


def refused(function: Callable[..., Tensor], change: Callable[[], None], *args: Any) -> str:
    """What is said of a replay after a change; the step goes on where all is as it was."""
    step = captured(function, *args)
    change()
    with pytest.raises(JitError, match=r"was captured|after the capture") as found:
        step(*args, Tensor([1.0, 3.0]))
    return str(found.value)


def test_a_number_of_the_function_around() -> None:
    beta = 0.5

    def change() -> None:
        nonlocal beta
        beta = 0.25

    text = refused(lambda x: (x * beta).realize(), change)
    assert text.startswith("beta was 0.5 when the function was captured, and is 0.25 now")


def test_a_global_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(x: Tensor) -> Tensor:
        return x * SCALE

    change = partial(monkeypatch.setitem, globals(), "SCALE", 3.0)
    assert refused(lambda x: scaled(x).realize(), change).startswith("SCALE was 2.0")


def test_a_global_of_what_exec_runs() -> None:
    """A doctest, or a notebook's server, has globals of its own under the name of a module."""
    scope: dict[str, Any] = {"__name__": __name__, "TinyJit": TinyJit, "SCALE": 3.0}
    scope["w"] = Tensor([1.0, 1.0])
    exec("step = TinyJit(lambda x: x * SCALE + w)", scope)
    step = scope["step"]
    for value in (1.0, 2.0, 3.0):
        np.testing.assert_equal(step(Tensor([value] * 2)).numpy(), [3 * value + 1] * 2)
    scope["SCALE"] = 4.0
    with pytest.raises(JitError, match="SCALE was 3"):
        step(Tensor([1.0, 1.0]))


@pytest.mark.parametrize(
    "function",
    [
        lambda part, x: part(x),
        lambda part, x: part.method(x),
        lambda part, x: part.twice * x,
        lambda part, x: sum(each(x) for each in [part]),
        lambda part, x: (lambda: part.scale * x)(),
    ],
    ids=["call", "method", "property", "comprehension", "lambda"],
)
def test_a_number_of_an_object_however_it_is_reached(function: Any) -> None:
    part = Part()
    change = partial(setattr, part, "scale", 3.0)
    assert refused(lambda x: function(part, x).realize(), change).startswith("Part: scale was 2.0")
    change = partial(setattr, part, "scale", 4.0)
    refused(lambda given, x: function(given, x).realize(), change, part)  # as an argument


@pytest.mark.parametrize("which", [0, 1])
def test_a_number_of_an_object_in_a_list(which: int) -> None:
    model = Model()

    def step(x: Tensor) -> Tensor:
        for part in model.parts:
            x = part.method(x)
        return x.realize()

    part = model.parts[which]
    assert "scale was 2.0" in refused(step, partial(setattr, part, "scale", 3.0))


def test_a_number_of_an_object_in_an_object_of_a_class_and_of_a_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heir = Heir()
    assert "power was 2" in refused(lambda x: heir(x), partial(setattr, heir.inner, "power", 3))
    change = partial(monkeypatch.setattr, Part, "shared", 3.0)
    assert "shared was 1.0" in refused(lambda x: heir(x), change)


@pytest.mark.parametrize(
    ("layer", "name", "value"),
    [
        (nn.BatchNorm(2), "momentum", 0.5),
        (nn.BatchNorm(2), "eps", 0.1),
        (nn.Dropout(0.25), "p", 0.75),
        (nn.LayerNorm(2), "eps", 0.5),
        (nn.Conv1d(2, 2, 1), "padding", 1),
    ],
)
def test_a_number_of_a_layer(layer: Any, name: str, value: float) -> None:
    @TinyJit
    def step(x: Tensor) -> Tensor:
        with Tensor.train():
            out: Tensor = layer(x)
            return out.realize()

    x = Tensor.ones(3, 2, 2)
    for _ in range(3):
        step(x)
    copied = pickle.loads(pickle.dumps((layer, step)))
    for layer_, step_ in ((layer, step), copied):
        step_(x)
        setattr(layer_, name, value)
        with pytest.raises(JitError, match=f"{type(layer).__name__}: {name} was .* is {value}"):
            step_(x)


@pytest.mark.parametrize(
    ("name", "other"),
    [("weight", lambda: Tensor([3.0, 4.0])), ("act", lambda: Tensor.neg), ("norm", nn.LayerNorm)],
)
def test_an_object_that_is_replaced_while_somebody_holds_the_one_before(
    name: str, other: Callable[..., Any]
) -> None:
    """As where weights are swapped with their averages, or an optimizer has a former layer's."""
    model = SimpleNamespace(weight=Tensor([1.0, 2.0]), act=Tensor.relu, norm=nn.LayerNorm(2))
    own = vars(model).copy()

    def change() -> None:
        setattr(model, name, other(2) if name == "norm" else other())

    text = refused(lambda x: model.act(model.norm(x) * model.weight).realize(), change)
    assert text.startswith(f"SimpleNamespace: {name} was replaced by another object")
    assert own[name] is not getattr(model, name)


def test_a_constant_that_is_replaced_and_lies_where_the_one_before_lay() -> None:
    model = SimpleNamespace(scale=Tensor(2.0))

    def change() -> None:
        model.scale = None
        model.scale = Tensor(5.0)

    text = refused(lambda x: (x * model.scale).realize(), change)
    assert text.startswith("SimpleNamespace: scale was replaced by another object")


def test_a_tensor_of_a_layer_that_is_replaced_while_somebody_holds_the_one_before() -> None:
    layer = nn.Linear(2, 2)
    weight = layer.weight
    change = partial(setattr, layer, "weight", Tensor.ones(2, 2))
    assert "Linear: weight was replaced" in refused(lambda x: layer(x).realize(), change)
    assert layer.weight is not weight


@pytest.mark.parametrize("options", [{"scale": 2.0, "on": True}, [2.0, 3.0]])
def test_a_number_of_a_dict_or_list_by_a_key_that_the_code_names(options: Any) -> None:
    key = 0 if isinstance(options, list) else "scale"

    def change() -> None:
        options[key] = 5.0

    functions: dict[Any, Callable[[Tensor], Tensor]] = {0: lambda x: (x * options[0]).realize()}
    functions["scale"] = lambda x: (x * options["scale"]).realize()
    assert f"options[{key!r}] was 2.0" in refused(functions[key], change)


@pytest.mark.parametrize("key", ["scale", "act"])
def test_what_is_in_a_container_beside_tensors(key: str) -> None:
    """A list or dict of its own with the same in it is as good, others may be put there."""
    model = SimpleNamespace(parts={"w": Tensor([1.0, 2.0]).realize(), "scale": 2.0})
    model.parts |= {"more": [1.0, {"act": Tensor.relu}]}
    step = captured(lambda x: model.parts["more"][1]["act"](x * model.parts["w"]).realize())
    if key == "scale":
        step = captured(lambda x: (x * model.parts["w"] * model.parts["scale"]).realize())
    model.parts = {**model.parts, "other": 3.0}
    step(Tensor([1.0, 3.0]))
    model.parts["more"][1]["act"] = Tensor.neg
    model.parts["scale"] = 3.0
    words = {"scale": r"parts\['scale'\] was 2\.0", "act": r"parts\['more'\]\[1\]\['act'\] was"}
    with pytest.raises(JitError, match=f"SimpleNamespace: {words[key]}"):
        step(Tensor([1.0, 3.0]))


class Way(enum.Enum):
    """Flags, as configurations have them."""

    UP = 1
    DOWN = -1


VALUES: dict[str, tuple[Any, Any, Callable[[Any], float]]] = {
    "None": (None, 3.0, lambda a: 2.0 if a is None else a),
    "what becomes None": (3.0, None, lambda a: 2.0 if a is None else a),
    "a member of an enum": (Way.UP, Way.DOWN, lambda a: a.value),
    "bytes": (b"a", b"b", lambda a: 2.0 if a == b"a" else 3.0),
    "a type": (int, float, lambda a: 2.0 if a is int else 3.0),
    "a range": (range(2, 4), range(2, 5), sum),
    "a tuple with None": ((2.0, None), (2.0, 1.0), lambda a: a[1] or 5.0),
    "a list": ([2.0, 3.0], [2.0, 4.0], sum),
    "a list's item": ([2.0, 3.0], [2.0, 4.0], lambda a: a[1]),
    "a list in a dict": ({"a": [2.0]}, {"a": [4.0]}, lambda a: a["a"][0]),
    "a dict's item": ({"a": 2.0}, {"a": 4.0}, lambda a: a["a"]),
    "a key that is computed": ({"a0": 2.0}, {"a0": 4.0}, lambda a: sum(a[f"a{i}"] for i in (0,))),
    "a key that is not there": ({}, {"a": 4.0}, lambda a: a.get("a", 3.0)),
    "a set": ({2, 3}, {2, 4}, sum),
    "an array": (np.ones(3), np.ones(4), lambda a: float(a.sum())),
    "an object": (SimpleNamespace(a=2.0), SimpleNamespace(a=3.0), lambda a: a.a),
}


@pytest.mark.parametrize(
    ("then", "now"), [(2, 2.0), (1, True), (0.0, -0.0), ([0.0, 1], [-0.0, 1]), ((1, 2), (1, 2.0))]
)
def test_numbers_that_are_equal_and_not_the_same(then: Any, now: Any) -> None:
    """A whole number is of another dtype, and 1 / -0.0 is another infinity."""
    owner = SimpleNamespace(value=then)

    def step(x: Tensor) -> Tensor:
        value = sum(owner.value) if isinstance(owner.value, list) else owner.value
        return (x * (value if isinstance(value, (int, float)) else value[1])).realize()

    assert "value" in refused(step, partial(setattr, owner, "value", now))
    jit = captured(lambda value, x: (x * 1).realize(), then)
    with pytest.raises(JitError, match=r"argument value"):
        jit(now, Tensor([1.0, 3.0]))


class Forwarding:
    """Asks another one for what it lacks."""

    def __init__(self, to: Any) -> None:
        self.to = to

    def __getattr__(self, name: str) -> Any:
        return getattr(self.to, name)


WAYS_TO_ASK: dict[str, Callable[[Any], float]] = {
    "vars()": lambda a: vars(a)["value"],
    "__dict__": lambda a: a.__dict__["value"],
    "__class__": lambda a: a.__class__.shared,
    "all of __dict__": lambda a: sum(a.__dict__.values()),
    "__getattr__": lambda a: Forwarding(a).value,
    "hasattr()": lambda a: 2.0 if hasattr(a, "other") else 3.0,
    "getattr()": lambda a: getattr(a, "other", 3.0),
}


@pytest.mark.parametrize("way", WAYS_TO_ASK)
def test_a_number_that_is_asked_for_by_its_name(way: str) -> None:
    class Owner(SimpleNamespace):
        shared = 2.0

    owner, ask = Owner(value=2.0), WAYS_TO_ASK[way]
    forwarding = Forwarding(owner)
    read = (lambda: forwarding.value) if way == "__getattr__" else (lambda: ask(owner))
    step = captured(lambda x: (x * read()).realize())
    if "__dict__" not in way:
        owner.unused = 1.0
    step(Tensor([1.0, 3.0]))
    names = {"__class__": "shared", "hasattr()": "other", "getattr()": "other"}
    setattr(Owner if way == "__class__" else owner, names.get(way, "value"), 5.0)
    with pytest.raises(JitError, match="was captured"):
        step(Tensor([1.0, 3.0]))


def test_a_number_whose_name_the_function_sets_of_another_object() -> None:
    one, other = SimpleNamespace(scale=1.0), SimpleNamespace(scale=2.0)

    def step(x: Tensor) -> Tensor:
        one.scale = 3.0
        return (x * other.scale).realize()

    assert "scale was 2.0" in refused(step, partial(setattr, other, "scale", 3.0))


@pytest.mark.parametrize("name", VALUES)
def test_what_is_no_number_is_watched_as_numbers_are(name: str) -> None:
    """Of an object that the function has, hands on, or has in slots, and in place."""

    class Slotted:
        __slots__ = ("value",)

    then, now, used = VALUES[name]
    for owner in (SimpleNamespace(value=then), Slotted()):
        owner.value = then
        change = partial(setattr, owner, "value", now)
        read = lambda given: used(given.value)  # noqa: E731
        assert "value" in refused(lambda x: (x * used(owner.value)).realize(), change)  # noqa: B023
        owner.value = then
        assert "value" in refused(lambda x: (x * read(owner)).realize(), change)  # noqa: B023


@pytest.mark.parametrize(
    ("made", "change"),
    [
        (lambda: [1.0, 2.0], lambda a: a.append(3.0)),
        (lambda: [1.0, 2.0], lambda a: a.__setitem__(1, 3.0)),
        (lambda: np.array([1.0, 2.0]), lambda a: a.__setitem__(1, 3.0)),
        (lambda: [Tensor([1.0, 2.0]).realize()], lambda a: a.append(Tensor([3.0, 4.0]).realize())),
        (lambda: deque([1.0, 2.0]), lambda a: a.popleft()),
    ],
    ids=["append", "item", "array", "tensors", "deque"],
)
def test_a_container_that_is_changed_in_place(
    made: Callable[[], Any], change: Callable[[Any], None]
) -> None:
    factors = made()
    text = refused(lambda x: sum((x * a for a in factors), x).realize(), partial(change, factors))
    assert "factors" in text


def test_what_a_function_changes_or_does_not_read_of_a_container_may_change() -> None:
    log, config = list[float](), {"scale": 2.0, "step": 0}

    def step(x: Tensor) -> Tensor:
        log.append(0.0)
        return (x * config["scale"]).realize()

    jit = TinyJit(step)
    for turn in range(5):
        assert jit(Tensor([1.0])).tolist() == [2.0]
        config["step"] = turn
        log.append(1.0)
    assert jit.captured is not None
    config["scale"] = 3.0
    with pytest.raises(JitError, match=r"config\['scale'\] was 2\.0"):
        jit(Tensor([1.0]))


class Settings(dict[str, Any]):
    """Whose keys are attributes."""

    __getattr__ = dict.__getitem__


class Factor:
    """What Python asks of an object is code that reads numbers, too."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __len__(self) -> int:
        return self.value

    def __bool__(self) -> bool:
        return self.value > 2

    def __iter__(self) -> Iterator[int]:
        return iter([self.value])


@pytest.mark.parametrize(
    "read", [len, sum, lambda f: 2.0 if f else 5.0], ids=["length", "elements", "truth"]
)
def test_a_number_that_a_method_of_an_operator_reads(read: Callable[[Any], float]) -> None:
    factor, settings = Factor(2), Settings(scale=2.0)
    change = partial(setattr, factor, "value", 3)
    assert "value was 2" in refused(lambda x: (x * read(factor)).realize(), change)
    change = partial(settings.__setitem__, "scale", 3.0)
    assert "scale" in refused(lambda x: (x * settings.scale).realize(), change)


def test_a_number_that_a_function_with_a_gradient_of_its_own_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Scaled(Function):
        def forward(self, x: Tensor) -> Tensor:
            return x * SCALE

    change = partial(monkeypatch.setitem, globals(), "SCALE", 3.0)
    assert refused(lambda x: Scaled.apply(x).realize(), change).startswith("SCALE was 2.0")


def test_a_number_of_what_an_argument_is_if_none_is_given() -> None:
    part = SimpleNamespace(scale=2.0)
    change = partial(setattr, part, "scale", 3.0)

    def scaled(x: Tensor, by: Any = part) -> Tensor:
        return (x * by.scale).realize()

    assert "scale was 2.0" in refused(scaled, change)
    bound = partial(lambda x, by: (x * by.scale).realize(), by=part)
    assert "scale was 3.0" in refused(bound, partial(setattr, part, "scale", 4.0))


def test_a_number_that_a_method_under_another_TinyJit_reads() -> None:
    class Jitted:
        scale = 2.0

        @TinyJit
        def step(self, x: Tensor) -> Tensor:
            return (x * self.scale).realize()

    model = Jitted()
    change = partial(setattr, model, "scale", 3.0)
    assert "scale was 2.0" in refused(lambda x: model.step(x), change)


def test_a_container_without_tensors_that_the_function_puts_something_into() -> None:
    """As a table of metrics: what others put there is not read."""
    metrics = {"epoch": 0}

    def step(x: Tensor) -> Tensor:
        metrics["size"] = x.shape[0]
        return (x * 2).realize()

    jit = captured(step)
    metrics["epoch"] = 1
    assert jit(Tensor([1.0, 3.0])).tolist() == [2.0, 6.0]


def test_what_is_gone_is_named() -> None:
    part, scales = Part(), {"scale": 2.0}
    step = captured(lambda x: part.method(x * scales["scale"]).realize())
    del part.inner.power
    with pytest.raises(JitError, match="SimpleNamespace: power: gone since"):
        step(Tensor([1.0, 3.0]))
    part.inner.power = 2
    step(Tensor([1.0, 3.0]))
    del scales["scale"]
    with pytest.raises(JitError, match=r"scales\['scale'\]: gone since"):
        step(Tensor([1.0, 3.0]))


def test_numbers_of_a_long_chain_of_objects() -> None:
    class Link:
        def __init__(self, below: Link | None) -> None:
            self.below, self.shift = below, 0.0

        def __call__(self, x: Tensor) -> Tensor:
            return x + self.shift if self.below is None else self.below(x)

    last = chain = Link(None)
    for _ in range(400):
        chain = Link(chain)
    change = partial(setattr, last, "shift", 1.0)
    assert "Link: shift was 0.0" in refused(lambda x: (chain(x) * 2).realize(), change)


def test_numbers_that_the_function_does_not_read_or_sets_itself_may_change() -> None:
    model = Model()
    for epoch in range(5):
        model.epoch, model.part.unused = epoch, epoch
        assert model.step(Tensor([1.0])).tolist() == [5.0]
    assert model.part.calls == 2
    model.part.scale = 3.0
    with pytest.raises(JitError, match=r"Part: scale was 2\.0"):
        model(Tensor([1.0]))


def test_a_number_with_the_name_of_a_method_that_is_called_may_change() -> None:
    def scaled(part: Any, x: Tensor) -> Tensor:
        return x * part.scale - x.mean()

    part = SimpleNamespace(scale=2.0, mean=1.0)
    step = captured(lambda x: scaled(part, x).realize())
    part.mean = 3.0
    assert step(Tensor([1.0, 3.0])).tolist() == [0.0, 4.0]


def test_numbers_that_did_not_matter_may_change() -> None:
    seen = []

    def step(x: Tensor) -> Tensor:
        if turn > 5:
            seen.append(turn)
        return (x + 1).realize()

    jit = TinyJit(step)
    for turn in range(8):  # noqa: B007
        assert jit(Tensor([1.0])).tolist() == [2.0]


def test_what_is_not_a_number_is_compared_as_it_is() -> None:
    part = Part()
    step = captured(lambda x: part(x).realize())
    step(Tensor([1.0, 3.0]))  # NaN is as it was
    part.shift = 0.0
    with pytest.raises(JitError, match=r"shift was nan .* is 0\.0 now"):
        step(Tensor([1.0, 3.0]))


def test_a_captured_step_keeps_no_object_alive() -> None:
    model = Model()
    step = captured(lambda x: model.part(x).realize())
    assert step.captured is not None
    gone = weakref.ref(model.part)
    model.part = Part()
    gc.collect()
    assert gone() is None


CONSTANTS: dict[str, Callable[[], Tensor]] = {
    "number": lambda: Tensor(0.5),
    "ones": lambda: Tensor.ones(2),
    "computed": lambda: Tensor.ones(2, 2).tril()[1],
    "whole numbers": lambda: Tensor.arange(2),
}


@pytest.mark.parametrize("held", ["by an object", "in a list", "in a dict", "as a view"])
@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_that_is_assigned_to_after_the_capture(
    device: str, name: str, held: str
) -> None:
    """It was a part of the kernels, and is data from now on."""
    constant, x = CONSTANTS[name](), Tensor([3.0, 4.0])
    shown = constant.reshape(-1) if held == "as a view" else constant
    model = SimpleNamespace(scale=shown, every=[constant])
    named = {"scale": constant}
    ways = {"in a list": lambda: model.every[0], "in a dict": lambda: min(named.values(), key=id)}
    read = ways.get(held, lambda: model.scale)
    step = TinyJit(lambda x: (x * read()).realize())
    kept = [step(x).tolist() for _ in range(3)][-1]
    assert (x * constant).tolist() == kept  # to look at it is no assignment
    assert step(x).tolist() == kept
    for value in (5, 6, 7, 8):
        constant.assign(constant.full_like(value))
        assert step(x).tolist() == [3.0 * value, 4.0 * value]
    assert step.captured is not None


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_that_the_function_replaces_by_one_made_of_it(name: str) -> None:
    """As a count of steps; what is made anew in each call is a constant like others."""
    model = SimpleNamespace(count=CONSTANTS[name](), mask=None)

    def step(x: Tensor) -> Tensor:
        model.mask = Tensor.ones(2, 2).tril()
        model.mask = model.mask[1] * 2
        return (x * model.mask).realize()

    def counting(x: Tensor) -> Tensor:
        model.count = model.count + 1
        return (x * model.count).realize()

    x = Tensor([3.0, 4.0])
    assert [captured(step)(x).tolist() for _ in range(2)] == [[6.0, 8.0]] * 2
    jitted = TinyJit(counting)
    jitted(x)
    with pytest.raises(JitError, match=r"made of no data.*assign\(\) to a tensor"):
        jitted(x)


WAYS_TO_GO_ON: dict[str, tuple[Callable[[Any], Tensor], Callable[[Any, Tensor], None]]] = {
    "an attribute": (lambda m: m.state, lambda m, h: setattr(m, "state", h)),
    "in a list": (lambda m: m.every[0], lambda m, h: m.every.__setitem__(0, h)),
    "in a tuple": (lambda m: m.pair[1], lambda m, h: setattr(m, "pair", (m.pair[0], h))),
    "in an object": (lambda m: m.inner.h, lambda m, h: setattr(m, "inner", SimpleNamespace(h=h))),
    "by two names": (
        lambda m: m.old + m.state,
        lambda m, h: (setattr(m, "old", m.state), setattr(m, "state", h))[0],
    ),
}


@pytest.mark.parametrize("way", WAYS_TO_GO_ON)
def test_a_state_that_the_function_replaces_though_somebody_has_the_one_before(way: str) -> None:
    """As that of a recurrent network, of which the results are kept, too."""
    first, read = Tensor([1.0, 2.0]).realize(), WAYS_TO_GO_ON[way][0]
    model = SimpleNamespace(state=first, every=[first], pair=(1.0, first), old=first)
    model.inner = SimpleNamespace(h=first)

    def step(x: Tensor) -> Tensor:
        h = (read(model) * 0.5 + x).realize()
        WAYS_TO_GO_ON[way][1](model, h)
        return h

    jit = TinyJit(step)
    before = jit(Tensor([1.0, 1.0]))
    with pytest.raises(JitError, match=r"another object in the place of.*assign\(\) to a tensor"):
        jit(Tensor([1.0, 1.0]))
    assert before is not read(model)


@pytest.mark.parametrize("place", [0, "last"])
def test_a_container_that_the_function_puts_tensors_into_and_that_is_replaced(place: Any) -> None:
    def made() -> Any:
        return [Tensor([0.0])] if place == 0 else {place: Tensor([0.0])}

    model = SimpleNamespace(seen=made())

    def step(x: Tensor) -> Tensor:
        model.seen[place] = (x * 2).realize()
        return (x + 1).realize()

    kept = model.seen
    text = refused(step, lambda: setattr(model, "seen", made()))
    assert "seen" in text
    assert kept[place].tolist() == [2.0, 6.0]


@pytest.mark.parametrize("place", ["an attribute", "a list", "a name"])
def test_a_tensor_that_the_function_leaves_somewhere_and_that_is_replaced(place: str) -> None:
    """As a hidden state that somebody resets: a replay would go on writing the one before."""
    model, last = SimpleNamespace(h=Tensor([0.0]), seen=[Tensor([0.0])]), Tensor([0.0])

    def step(x: Tensor) -> Tensor:
        nonlocal last
        if place == "a list":
            model.seen[0] = (x * 2).realize()
        elif place == "a name":
            last = (x * 2).realize()
        else:
            model.h = (x * 2).realize()
        return (x + 1).realize()

    def change() -> None:
        nonlocal last
        if place == "a list":
            model.seen[0] = Tensor([0.0])
        elif place == "a name":
            last = Tensor([0.0])
        else:
            model.h = Tensor([0.0])

    names = {"a list": "seen holds something else", "a name": "last was replaced"}
    assert names.get(place, "h was replaced") in refused(step, change)


def test_a_model_that_was_evaluated_before_it_is_trained(device: str) -> None:
    """Ones and zeros, as scales and running means begin, are parts of its kernels at first."""
    model, x = [nn.BatchNorm(2), nn.LayerNorm(2)], Tensor([[1.0, 2.0], [3.0, 5.0], [4.0, 0.0]])
    evaluate = TinyJit(lambda x: x.sequential(model).realize())
    before = [evaluate(x).tolist() for _ in range(3)][-1]
    optimizer = nn.optim.SGD(nn.state.get_parameters(model), lr=0.5)

    @TinyJit
    @Tensor.train()
    def train(x: Tensor) -> Tensor:
        loss = (x.sequential(model) - 1).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.realize()

    for _ in range(4):
        train(x)
        found = evaluate(x).numpy()
        np.testing.assert_allclose(found, x.sequential(model).numpy(), rtol=1e-4, atol=1e-6)
        assert found.tolist() != before
