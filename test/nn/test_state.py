"""Finding a model's tensors, and keeping them in a file."""

from __future__ import annotations

import builtins
import collections
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinyml import Tensor, dtypes, nn, trace
from tinyml.errors import ShapeError
from tinyml.nn import state

Pair = collections.namedtuple("Pair", "left right")


@dataclass(slots=True)
class Slotted:
    scale: Tensor
    name: str = "slotted"


class Model:
    def __init__(self) -> None:
        self.layers = [nn.Linear(2, 3), Tensor.relu, nn.Linear(3, 2, bias=False)]
        self.heads = {"a": nn.LayerNorm(2)}
        self.pair = Pair(Tensor([1.0]), (Tensor([2.0]),))
        self.slotted = Slotted(Tensor([3.0]))
        self.tied = self.layers[0].weight
        self.itself = self
        self.kind = nn.Linear
        self.method = self.nothing

    def nothing(self) -> None:
        pass


def test_names_are_the_way_to_a_tensor():
    assert list(state.get_state_dict(Model())) == [
        "layers.0.weight",
        "layers.0.bias",
        "layers.2.weight",
        "heads.a.weight",
        "heads.a.bias",
        "pair.left",
        "pair.right.0",
        "slotted.scale",
        "tied",
    ]
    assert list(state.get_state_dict([Tensor([1.0])], "model")) == ["model.0"]


def test_a_shared_tensor_is_one_parameter():
    model = Model()
    found = state.get_parameters(model)
    assert len(found) == len({id(p) for p in found}) == 8


def test_a_layer_used_twice_has_two_names():
    layer = nn.Linear(1, 1, bias=False)
    assert list(state.get_state_dict([layer, layer])) == ["0.weight", "1.weight"]


def test_what_a_jit_keeps_is_not_part_of_the_model():
    jit = pytest.importorskip("tinyml.jit")

    class Jitted:
        def __init__(self) -> None:
            self.layer = nn.Linear(2, 1)
            self.forward = jit.TinyJit(lambda x: self.layer(x))

    model = Jitted()
    for i in range(3):
        model.forward(Tensor([[1.0, 1.0 * i]]))
    assert list(state.get_state_dict(model)) == ["layer.weight", "layer.bias"]


def test_load_assigns_in_place_and_casts(device):
    layer = nn.Linear(2, 3)
    weight = layer.weight
    loaded = state.load_state_dict(
        layer,
        {
            "weight": Tensor(np.arange(6).reshape(3, 2)),  # int64
            "bias": Tensor([1.0, 2.0, 3.0], dtype=dtypes.float64),
        },
    )
    assert loaded[0] is layer.weight is weight
    assert weight.dtype is dtypes.float32
    assert weight.requires_grad
    np.testing.assert_array_equal(weight.numpy(), [[0, 1], [2, 3], [4, 5]])
    np.testing.assert_array_equal(layer.bias.numpy(), [1, 2, 3])


def test_load_names_everything_that_does_not_fit():
    layer = nn.Linear(2, 3)
    before = layer.weight.numpy()
    with pytest.raises(state.StateError) as raised:
        state.load_state_dict(layer, {"weight": Tensor.zeros(2, 3), "gain": Tensor.zeros(1)})
    message = str(raised.value)
    assert "missing in the state dict: bias" in message
    assert "not in the model: gain" in message
    mismatch = "Shape mismatch in layer `weight`: Expected shape (3, 2), but found (2, 3)"
    assert mismatch in message
    with pytest.raises(ShapeError, match="`weight`"):
        state.load_state_dict(layer, {"weight": Tensor.zeros(6)}, strict=False)
    np.testing.assert_array_equal(layer.weight.numpy(), before)  # nothing was changed


def test_load_that_is_not_strict_takes_what_both_have():
    layer = nn.Linear(2, 1)
    other = {"bias": Tensor([7.0]), "gain": Tensor([1.0])}
    assert state.load_state_dict(layer, other, strict=False, verbose=False) == [layer.bias]
    assert layer.bias.item() == 7


def test_load_warns_of_what_it_skips():
    layer = nn.Linear(1, 1, bias=False)
    with pytest.warns(UserWarning, match="not in the model: gain") as caught:
        state.load_state_dict(layer, {"gain": Tensor([1.0]), "weight": Tensor([[3.0]])})
    assert caught[0].filename == __file__
    assert layer.weight.item() == 3


def test_one_number_is_loaded_from_either_shape():
    model = {"steps": Tensor(0.0), "scale": Tensor([0.0])}
    state.load_state_dict(model, {"steps": Tensor([4.0]), "scale": Tensor(5.0)})
    assert (model["steps"].shape, model["scale"].shape) == ((), (1,))
    assert (model["steps"].item(), model["scale"].item()) == (4, 5)


def test_load_can_empty_the_dict_and_leave_the_work_for_later(device):
    layer = nn.Linear(2, 1)
    values = {"weight": Tensor.ones(1, 2), "bias": Tensor([2.0])}
    before = layer.weight.realize().numpy()
    values["weight"] = values["weight"] * 3
    with trace.listen(trace.KernelRan) as ran:
        state.load_state_dict(layer, values, consume=True, realize=False)
    assert not values
    assert not ran
    assert (layer.weight.numpy() != before).all()
    np.testing.assert_array_equal(layer.weight.numpy(), [[3, 3]])


def test_models_loaded_from_one_dict_are_independent(device):
    values = {"weight": Tensor([[1.0, 2.0]])}
    first, second = (nn.Linear(2, 1, bias=False) for _ in range(2))
    for layer in (first, second):
        state.load_state_dict(layer, values)
    first.weight.assign(Tensor([[5.0, 6.0]])).realize()
    np.testing.assert_array_equal(first.weight.numpy(), [[5, 6]])
    np.testing.assert_array_equal(second.weight.numpy(), [[1, 2]])
    np.testing.assert_array_equal(values["weight"].numpy(), [[1, 2]])


ROUND_TRIP = list(dtypes.fields().values())


def test_round_trip_of_every_dtype(tmp_path: Path, device):
    numbers = np.array([[0, 1, 1], [0, 1, 0]])
    tensors = {str(d): Tensor(numbers, dtype=d) for d in ROUND_TRIP}
    tensors |= {"scalar": Tensor(2.5), "empty": Tensor.zeros(0, 3)}
    state.safe_save(tensors, tmp_path / "all.safetensors", {"made by": "a test"})
    loaded = state.safe_load(tmp_path / "all.safetensors")
    assert set(loaded) == set(tensors)
    for name, tensor in tensors.items():
        assert loaded[name].dtype is tensor.dtype
        assert loaded[name].shape == tensor.shape
        np.testing.assert_array_equal(loaded[name].numpy(), tensor.numpy())


def test_bfloat16_keeps_its_bits(tmp_path: Path, device):
    values = np.array([1.0, -3.140625, 1e30, np.inf, 2.0**-130], np.float32)
    tensor = Tensor(values).cast(dtypes.bfloat16)
    state.safe_save({"x": tensor}, tmp_path / "x.safetensors")
    content = (tmp_path / "x.safetensors").read_bytes()
    assert b"BF16" in content
    np.testing.assert_array_equal(
        np.frombuffer(content[-10:], np.uint16), tensor.bitcast(dtypes.uint16).numpy()
    )
    loaded = state.safe_load(tmp_path / "x.safetensors")["x"]
    np.testing.assert_array_equal(loaded.numpy(), tensor.numpy())


def test_numpy_reads_our_files(tmp_path: Path):
    reader = pytest.importorskip("safetensors.numpy")
    state.safe_save({"a.b": Tensor([[1.5, 2.5]])}, tmp_path / "f.safetensors")
    np.testing.assert_array_equal(
        reader.load_file(tmp_path / "f.safetensors")["a.b"], np.float32([[1.5, 2.5]])
    )


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: Any):
    path = tmp_path / "model.safetensors"
    state.safe_save({"x": Tensor([1.0])}, path)

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        state.safe_save({"x": Tensor([2.0])}, path)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
    assert state.safe_load(path)["x"].item() == 1


def test_a_cut_file_is_named(tmp_path: Path):
    path = tmp_path / "model.safetensors"
    state.safe_save({"x": Tensor([1.0, 2.0])}, path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"model\.safetensors is not a complete safetensors file"):
        state.safe_load(path)


def test_without_the_package_it_is_named(monkeypatch: Any):
    plain = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "safetensors":
            raise ImportError("no safetensors")
        return plain(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install safetensors \(tinyml's extra 'state'"):
        state.safe_load("anything")


def test_layers_that_cannot_be_walked_without_using_them_up_are_not_left_out_in_silence() -> None:
    made = [nn.Linear(2, 2)]
    for model in ((layer for layer in made), reversed(made), {*made}, nn.Linear):
        with pytest.raises(TypeError, match="a model must be an object or a list, got"):
            state.get_parameters(model)
    with pytest.warns(UserWarning, match="make a list of it: a.0") as told:
        assert state.get_state_dict({"a": [map(str, made)]}) == {}
    assert told[0].filename == __file__
    assert list(state.get_state_dict(collections.deque(made))) == ["0.weight", "0.bias"]
    assert len(state.get_parameters({"a": made}.values())) == 2
