"""For each layer, each optimizer, state and TinyJit: typical mistakes, and what is said of them.

As `test_refused.py` does for the ops. A sentence begins with the name of what was misused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tinyml import Tensor, TinyJit, nn
from tinyml.errors import DeviceError, GradientError, JitError
from tinyml.nn import optim, state

Case = tuple[type[Exception], str, Callable[[], Any]]
X = Tensor.zeros(2, 3)
IMAGES = Tensor.zeros(1, 3, 4, 4)
LAYERS: dict[str, tuple[Callable[..., Any], tuple[int, ...], str, Tensor]] = {
    # how it is made, with what, the first argument's name, and an input that does not fit
    "Linear": (nn.Linear, (4, 2), "in_features", X),
    "Conv1d": (nn.Conv1d, (2, 2, 3), "in_channels", Tensor.zeros(1, 3, 4)),
    "Conv2d": (nn.Conv2d, (2, 2, 3), "in_channels", IMAGES),
    "ConvTranspose1d": (nn.ConvTranspose1d, (2, 2, 3), "in_channels", Tensor.zeros(1, 3, 4)),
    "ConvTranspose2d": (nn.ConvTranspose2d, (2, 2, 3), "in_channels", IMAGES),
    "BatchNorm": (nn.BatchNorm, (4,), "sz", IMAGES),
    "GroupNorm": (nn.GroupNorm, (2, 4), "num_groups", IMAGES),
    "InstanceNorm": (nn.InstanceNorm, (4,), "num_groups", IMAGES),
    "LayerNorm": (nn.LayerNorm, (4,), "normalized_shape", X),
    "LayerNorm2d": (nn.LayerNorm2d, (4,), "normalized_shape", IMAGES),
    "RMSNorm": (nn.RMSNorm, (4,), "dim", X),
    "LSTMCell": (nn.LSTMCell, (4, 2), "input_size", X),
}


def weight(*shape: int) -> Tensor:
    return Tensor.ones(*(shape or (2, 2)), requires_grad=True)


def of_layers() -> dict[str, list[Case]]:
    """Mistakes that can be made with any layer."""
    found: dict[str, list[Case]] = {}
    for name, (make, sizes, first, wrong) in LAYERS.items():
        shape = str(wrong.shape).replace("(", r"\(").replace(")", r"\)")
        found[name] = [
            (ValueError, f"{first}.*at least .*-1", lambda m=make, s=sizes: m(-1, *s[1:])),
            (TypeError, f"{first}.*whole number.*2.5", lambda m=make, s=sizes: m(2.5, *s[1:])),
            (TypeError, f"{first}.*'a' .str", lambda m=make, s=sizes: m("a", *s[1:])),
            (TypeError, "must be a Tensor, got None", lambda m=make, s=sizes: m(*s)(None)),
            (ValueError, shape, lambda m=make, s=sizes, w=wrong: m(*s)(w)),
        ]
    return found


def of_optimizers() -> dict[str, list[Case]]:
    """Mistakes that can be made with any optimizer."""
    found: dict[str, list[Case]] = {}
    for make in (optim.SGD, optim.Muon, optim.LAMB, optim.Adam, optim.AdamW):
        found[make.__name__] = [
            (ValueError, "lr cannot be negative, got -1", lambda m=make: m([weight()], lr=-1)),
            (ValueError, "lr.*got nan", lambda m=make: m([weight()], lr=float("nan"))),
            (TypeError, "lr must be a number", lambda m=make: m([weight()], lr="a")),
            (TypeError, "get_parameters.*not one Tensor", lambda m=make: m(weight())),
            (TypeError, "get_parameters.*not one Linear", lambda m=make: m(nn.Linear(2, 2))),
            (TypeError, "not one dict", lambda m=make: m({"weight": weight()})),
        ]
    for make in (optim.LAMB, optim.Adam, optim.AdamW):
        found[make.__name__] += [
            (ValueError, r"b1=1.5.*below 1", lambda m=make: m([weight()], b1=1.5)),
            (TypeError, "b2 must be a number", lambda m=make: m([weight()], b2="a")),
            (ValueError, "eps cannot be negative", lambda m=make: m([weight()], eps=-1)),
        ]
    return found


def _set_rate_of_a_group() -> None:
    optim.OptimizerGroup(optim.SGD([weight()])).lr = 0.1


def _set_rate(value: Any) -> None:
    optim.SGD([weight()]).lr = value


def _step_without_gradient() -> None:
    with Tensor.train():
        optim.SGD([weight()]).step()


def _call(function: Callable[..., Any], *calls: tuple[Any, ...]) -> None:
    step = TinyJit(function)
    for arguments in calls:
        step(*arguments)


def add(x: Tensor, n: Any = 1) -> Tensor:
    return x + n


OWN: dict[str, list[Case]] = {
    "Linear": [(TypeError, "bias must be a bool, got 2", lambda: nn.Linear(8, 4, 2))],
    "Adam": [(TypeError, "fused", lambda: optim.Adam([weight()], 0.1, 0.9, 0.99, 1e-8, 0.01))],
    "Conv2d": [
        (ValueError, "kernel_size must be at least 1, got 0", lambda: nn.Conv2d(2, 2, 0)),
        (TypeError, "kernel_size.*'a'", lambda: nn.Conv2d(2, 2, "a")),
        (ValueError, "groups must be at least 1", lambda: nn.Conv2d(2, 2, 3, groups=0)),
        (ValueError, "in_channels=3 into groups=2", lambda: nn.Conv2d(3, 2, 3, groups=2)),
        (ValueError, "'typo'.*'valid', or 'same'", lambda: nn.Conv2d(2, 2, 3, padding="typo")),
    ],
    "BatchNorm": [
        (TypeError, "momentum must be a number", lambda: nn.BatchNorm(4, momentum="a")),
        (TypeError, "affine must be a bool, got 0.1", lambda: nn.BatchNorm(4, 1e-5, 0.1)),
    ],
    "GroupNorm": [
        (ValueError, "4 channels into 3 groups", lambda: nn.GroupNorm(3, 4)),
        (TypeError, "affine must be a bool", lambda: nn.GroupNorm(2, 4, 1e-5, 0.1)),
    ],
    "RMSNorm": [(TypeError, "eps must be a number", lambda: nn.RMSNorm(3, eps="a"))],
    "Embedding": [
        (ValueError, "vocab_size must be at least 0", lambda: nn.Embedding(-3, 2)),
        (IndexError, "integers, got float32", lambda: nn.Embedding(3, 2)(X)),
        (IndexError, "padding_idx 3 is out of range for 3 rows", lambda: nn.Embedding(3, 2, 3)),
        (TypeError, "padding_idx must be a whole number", lambda: nn.Embedding(3, 2, 0.5)),
    ],
    "Dropout": [
        (ValueError, "2 is not between 0 and 1", lambda: nn.Dropout(2)),
        (TypeError, "p must be a number", lambda: nn.Dropout("a")),
        (TypeError, "must be a Tensor", lambda: nn.Dropout()(1)),
    ],
    "LSTMCell": [
        (TypeError, r"a pair of tensors \(h, c\)", lambda: nn.LSTMCell(3, 2)(X, X.sum())),
        (ValueError, "h must have size 2", lambda: nn.LSTMCell(3, 2)(X, (X, X))),
    ],
    "SGD": [
        (ValueError, "at least one parameter", lambda: optim.SGD([])),
        (TypeError, "parameter 0 must be a Tensor, got int", lambda: optim.SGD([1])),
        (ValueError, "one parameter of floats", lambda: optim.SGD([Tensor([1, 2])])),
        (ValueError, "requires a gradient", lambda: optim.SGD([weight().detach()])),
        (ValueError, "momentum cannot be negative", lambda: optim.SGD([weight()], momentum=-1)),
        (ValueError, "momentum is 0", lambda: optim.SGD([weight()], nesterov=True)),
        (TypeError, "nesterov must be a bool", lambda: optim.SGD([weight()], 0.1, 0.9, 0, 5e-4)),
        (ValueError, "lr cannot be negative", lambda: _set_rate(-1.0)),
        (TypeError, "lr must be a number", lambda: _set_rate("a")),
        (
            GradientError,
            r"\(2, 2\), has no gradient: .*a mask.*requires_grad_",
            _step_without_gradient,
        ),
        (RuntimeError, "with Tensor.train", lambda: optim.SGD([weight()]).step()),
    ],
    "OptimizerGroup": [
        (ValueError, "at least one optimizer", lambda: optim.OptimizerGroup()),
        (TypeError, "argument 0 must be an optimizer", lambda: optim.OptimizerGroup(1)),
        (AttributeError, r"'lr'; .*write group\[0\].lr = 0.1", _set_rate_of_a_group),
    ],
    "safe_save": [
        (TypeError, "a dict of tensors by name", lambda: state.safe_save([X], "model")),
        (TypeError, "a name must be a str, got 1", lambda: state.safe_save({1: X}, "model")),
        (OSError, "/no/where/w", lambda: state.safe_save({"w": X}, "/no/where/w")),
        (TypeError, "'w' must be a Tensor", lambda: state.safe_save({"w": [1.0]}, "model")),
        (OSError, "No such file", lambda: state.safe_save({"w": X}, "nowhere/model")),
    ],
    "safe_load": [(OSError, "No such file", lambda: state.safe_load("nowhere/model"))],
    "load_state_dict": [
        (TypeError, "safe_load.*'model.saf", lambda: _load("model.safetensors")),
        (TypeError, "'weight' must be a Tensor", lambda: _load({"weight": 1})),
        (state.StateError, "missing in the state dict: weight", lambda: _load({})),
        (state.StateError, "not in the model: wait", lambda: _load({"wait": X})),
        (ValueError, r"`weight`.*\(2, 2\).*\(2, 3\)", lambda: _load({"weight": X})),
    ],
    "TinyJit": [
        (TypeError, "must be a function, got 3", lambda: TinyJit(3)),
        (JitError, "add: argument x was.*is now", lambda: _call(add, (X,), (X,), (X.T,))),
        (JitError, "add: argument n was 1.*is now 2", lambda: _call(add, (X, 1), (X, 1), (X, 2))),
        (JitError, "1 positional.*with 2", lambda: _call(add, (X,), (X,), (X, 2))),
        (JitError, "read on the host", lambda: _call(lambda x: x.sum().item(), (X,), (X,))),
        (JitError, "launched nothing", lambda: _call(lambda x: x, (X,), (X,))),
    ],
}


def _load(values: Any) -> None:
    state.load_state_dict(nn.Linear(2, 2, bias=False), values)


def everything() -> dict[str, list[Case]]:
    found = {**of_layers(), **of_optimizers()}
    for name, cases in OWN.items():
        found[name] = [*found.get(name, []), *cases]
    return found


CASES = [(name, *case) for name, cases in everything().items() for case in cases]


@pytest.mark.parametrize(
    ("name", "kind", "words", "call"), CASES, ids=[f"{c[0]}-{c[2]}" for c in CASES]
)
def test_refused(
    name: str,
    kind: type[Exception],
    words: str,
    call: Callable[[], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=f"(?s){words}") as caught:
        call()
    assert len(str(caught.value)) < 400
    assert list(tmp_path.iterdir()) == []


def test_every_layer_and_optimizer_has_mistakes() -> None:
    made = {n for m in (nn, optim) for n, t in vars(m).items() if isinstance(t, type)}
    made &= {*nn.__all__, *(t.__name__ for t in optim.Optimizer.__subclasses__())}
    aliases = {"BatchNorm1d", "BatchNorm2d", "BatchNorm3d"}
    assert made - aliases <= set(everything()), made - set(everything())


def test_a_parameter_is_no_result_of_another_one() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    moved = w.to("NUMPY" if w.device == "CPU" else "CPU")
    for computed in (w * 0.5, moved):
        with pytest.raises(ValueError, match="is computed from a tensor that requires"):
            optim.SGD([computed])
    with Tensor.train():
        step = optim.SGD([moved.detach().requires_grad_()], lr=0.5)
        step.params[0].square().sum().backward()
        step.step()
    assert step.params[0].tolist() == [0.0, 0.0]
    assert (moved.tolist(), w.tolist()) == ([0.0, 0.0], [1.0, 2.0])


def test_parameters_on_two_devices_need_two_optimizers() -> None:
    apart = [weight(), weight(2).to("NUMPY"), weight(2).to("EMU")]
    with pytest.raises(DeviceError, match="one optimizer for each device"):
        optim.SGD([Tensor(t.numpy(), device=t.device, requires_grad=True) for t in apart])


def test_a_checkpoint_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    state.safe_save({"w": X + 1}, file)
    with pytest.raises(TypeError, match="'b' must be a Tensor"):
        state.safe_save({"w": X, "b": None}, file)  # type: ignore[dict-item]
    assert state.safe_load(file)["w"].tolist() == (X + 1).tolist()
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("kept", [0, 5, -1])
def test_a_truncated_checkpoint_is_refused(tmp_path: Path, kept: int) -> None:
    file = tmp_path / "model.safetensors"
    state.safe_save({"w": X}, file)
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"model\.safetensors is not a complete safetensors file"):
        state.safe_load(file)
