"""Each layer against its formula in numpy, forward, and its gradients where it has its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tinyml import Tensor, dtypes, lazy, nn, no_grad
from tinyml.errors import ShapeError
from tinyml.graph import toposort
from tinyml.nn.state import get_state_dict

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def values(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def with_values(layer: Any) -> Any:
    """The layer with every parameter drawn anew, so that zeros and ones hide nothing."""
    for seed, p in enumerate(get_state_dict(layer).values()):
        if p.requires_grad:
            p.assign(Tensor(values(*p.shape, seed=seed + 10)))
    return layer


def arrays(layer: Any) -> Any:
    return {name: p.numpy() for name, p in get_state_dict(layer).items()}


def correlate(x: Any, weight: Any, stride: int, padding: int) -> Any:
    """conv2d of (batch, in, h, w) with (out, in, kh, kw), one output at a time."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    kh, kw = weight.shape[2:]
    height, width = (x.shape[2] - kh) // stride + 1, (x.shape[3] - kw) // stride + 1
    out = np.zeros((len(x), len(weight), height, width))
    for i, j in np.ndindex(height, width):
        window = x[:, :, i * stride : i * stride + kh, j * stride : j * stride + kw]
        out[:, :, i, j] = np.einsum("nchw,ochw->no", window, weight)
    return out


def normalized(x: Any, axes: tuple[int, ...], eps: float) -> Any:
    x = x.astype(np.float64)
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def test_linear_and_its_gradients(device):
    layer = with_values(nn.Linear(5, 3))
    x, up = values(2, 5), values(2, 3, seed=1)
    y = layer(Tensor(x))
    (y * Tensor(up)).sum().backward()
    p = arrays(layer)
    np.testing.assert_allclose(y.numpy(), x @ p["weight"].T + p["bias"], **CLOSE)
    np.testing.assert_allclose(layer.weight.grad.numpy(), up.T @ x, **CLOSE)
    np.testing.assert_allclose(layer.bias.grad.numpy(), up.sum(0), **CLOSE)


def test_initial_values_are_within_their_bound(device):
    weight = nn.Linear(16, 40).weight.numpy()
    assert np.abs(weight).max() <= 1 / 4
    assert np.abs(weight).max() > 0.2
    assert abs(weight.mean()) < 0.03


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (2, 1)])
def test_conv2d(device, stride, padding):
    layer = with_values(nn.Conv2d(2, 3, (3, 2), stride=stride, padding=padding))
    x = values(2, 2, 5, 6)
    p = arrays(layer)
    expected = correlate(x, p["weight"], stride, padding) + p["bias"].reshape(1, 3, 1, 1)
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), expected, **CLOSE)


def test_conv1d(device):
    layer = with_values(nn.Conv1d(2, 3, 3, bias=False))
    x = values(1, 2, 7)
    expected = correlate(x[:, :, None], layer.weight.numpy()[:, :, None], 1, 0)[:, :, 0]
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), expected, **CLOSE)


def test_padding_same_keeps_the_size():
    layer = nn.Conv2d(1, 1, (4, 3), padding="same", dilation=(1, 2))
    assert layer(Tensor.zeros(1, 1, 6, 7)).shape == (1, 1, 6, 7)
    assert nn.Conv2d(1, 1, 3, padding="valid").padding == 0
    with pytest.raises(ValueError, match="'same' with stride 1"):
        nn.Conv2d(1, 1, 3, stride=2, padding="same")


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_convolutions_take_one_image_without_a_batch(kind):
    layer, x = kind(2, 3, (2, 3), stride=2), values(1, 2, 5, 6)
    alone, batched = layer(Tensor(x[0])), layer(Tensor(x))
    assert alone.shape == batched.shape[1:]
    np.testing.assert_allclose(alone.numpy(), batched.numpy()[0], **CLOSE)


def test_groups_must_divide_the_channels():
    with pytest.raises(ShapeError, match="out_channels=3 into groups=2"):
        nn.Conv2d(4, 3, 1, groups=2)


def test_conv_transpose_is_the_adjoint_of_conv(device):
    down = with_values(nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False))
    up = nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1, output_padding=1, bias=False)
    up.weight.assign(down.weight.detach())
    x, y = values(1, 2, 6, 4), values(1, 3, 3, 2, seed=1)
    left = (down(Tensor(x)).numpy() * y).sum()
    right = (x * up(Tensor(y)).numpy()).sum()
    np.testing.assert_allclose(left, right, rtol=1e-3)


def test_batch_norm_in_training_and_after(device):
    layer = with_values(nn.BatchNorm2d(3))
    x = 2 * values(4, 3, 2, 2) + 1
    weight, bias = (p.numpy().reshape(1, 3, 1, 1) for p in (layer.weight, layer.bias))
    with Tensor.train():
        y = layer(Tensor(x))
    np.testing.assert_allclose(
        y.numpy(), normalized(x, (0, 2, 3), 1e-5) * weight + bias, rtol=1e-3, atol=1e-4
    )
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), ddof=1)
    np.testing.assert_allclose(layer.running_mean.numpy(), 0.1 * mean, **CLOSE)
    np.testing.assert_allclose(layer.running_var.numpy(), 0.9 + 0.1 * var, **CLOSE)
    assert layer.num_batches_tracked.item() == 1

    after = (x - 0.1 * mean.reshape(1, 3, 1, 1)) / np.sqrt(
        0.9 + 0.1 * var.reshape(1, 3, 1, 1) + 1e-5
    )
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), after * weight + bias, **CLOSE)


def test_batch_norm_of_one_value_per_channel():
    with Tensor.train(), pytest.raises(ShapeError, match="more than one value per channel"):
        nn.BatchNorm(3)(Tensor.zeros(1, 3))


def test_layer_norm_over_two_axes(device):
    layer = with_values(nn.LayerNorm((2, 4)))
    x, p = values(3, 2, 4), arrays(layer)
    expected = normalized(x, (1, 2), 1e-5) * p["weight"] + p["bias"]
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), expected, **CLOSE)
    with pytest.raises(ShapeError, match=r"LayerNorm over \(2, 4\)"):
        layer(Tensor.zeros(3, 4, 2))


def test_layer_norm_2d(device):
    layer = with_values(nn.LayerNorm2d(4))
    x = values(2, 4, 2, 3)
    weight, bias = (p.numpy().reshape(1, 4, 1, 1) for p in (layer.weight, layer.bias))
    expected = normalized(x, (1,), 1e-5) * weight + bias
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), expected, **CLOSE)


@pytest.mark.parametrize("groups", [2, 4])
def test_group_and_instance_norm(device, groups):
    layer = with_values(nn.GroupNorm(2, 4) if groups == 2 else nn.InstanceNorm(4))
    x = values(2, 4, 3, 2)
    weight, bias = (p.numpy().reshape(1, 4, 1, 1) for p in (layer.weight, layer.bias))
    grouped = normalized(x.reshape(2, groups, -1), (2,), 1e-5).reshape(x.shape)
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), grouped * weight + bias, **CLOSE)
    assert layer(Tensor.zeros(0, 4, 3)).shape == (0, 4, 3)


def test_group_norm_says_what_does_not_fit():
    with pytest.raises(ShapeError, match="4 channels into 3 groups"):
        nn.GroupNorm(3, 4)
    with pytest.raises(ShapeError, match="size 4 along axis 1"):
        nn.GroupNorm(2, 4)(Tensor.zeros(1, 6, 2))


def test_rms_norm(device):
    layer = with_values(nn.RMSNorm(5))
    x = values(3, 5)
    root = np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(layer(Tensor(x)).numpy(), x / root * layer.weight.numpy(), **CLOSE)


@pytest.mark.parametrize(
    "make", [lambda: nn.LayerNorm(24), lambda: nn.RMSNorm(24), lambda: nn.GroupNorm(4, 24)]
)
def test_norms_of_halves_are_rounded_once(device, make):
    def layer(dtype: Any) -> Any:
        made = with_values(make())
        for name, p in get_state_dict(made).items():
            setattr(made, name, p.detach().bfloat16().cast(dtype))
        return made

    x = Tensor(values(64, 24)).bfloat16()
    exact = layer(dtypes.float32)(x.float()).numpy()
    rounded = layer(dtypes.bfloat16)(x)
    assert rounded.dtype is dtypes.bfloat16
    np.testing.assert_allclose(rounded.float().numpy(), exact, 2**-7.99, 1e-30)
    assert layer(dtypes.float32)(x).dtype is dtypes.float32


def test_embedding_and_its_gradient(device):
    layer = nn.Embedding(6, 3)
    index = np.array([[1, 4, 1], [0, 5, 1]], np.int32)
    rows = layer(Tensor(index))
    rows.sum().backward()
    np.testing.assert_allclose(rows.numpy(), layer.weight.numpy()[index])
    counts = np.bincount(index.ravel(), minlength=6).astype(np.float32)
    np.testing.assert_allclose(layer.weight.grad.numpy(), np.repeat(counts[:, None], 3, 1))


def test_an_embedding_pads_with_zeros_that_stay(device):
    layer = nn.Embedding(6, 3, padding_idx=-2)
    index = np.array([[1, 4], [-2, 5]], np.int32)
    rows = layer(Tensor(index))
    assert layer.padding_idx == 4
    np.testing.assert_array_equal(rows.numpy() == 0, np.repeat(index[..., None] % 6 == 4, 3, 2))
    rows.sum().backward()
    counts = np.array([0, 1, 0, 0, 0, 1], np.float32)
    np.testing.assert_array_equal(layer.weight.grad.numpy(), np.repeat(counts[:, None], 3, 1))


def test_dropout(device):
    layer, x = nn.Dropout(0.25), Tensor.ones(40, 50)
    assert (layer(x).numpy() == 1).all()
    with Tensor.train():
        kept = layer(x).numpy()
    assert set(np.unique(kept.round(4))) == {0, np.float32(1.3333)}
    assert abs((kept == 0).mean() - 0.25) < 0.05
    with pytest.raises(ValueError, match="between 0 and 1"):
        nn.Dropout(1.5)


def test_lstm_cell(device):
    layer = with_values(nn.LSTMCell(3, 2))
    p = {name: a.astype(np.float64) for name, a in arrays(layer).items()}
    x = values(2, 4, 3)  # (steps, batch, input)

    def sigmoid(a: Any) -> Any:
        return 1 / (1 + np.exp(-a))

    h = c = np.zeros((4, 2))
    state = None
    for step in x:
        gates = step @ p["weight_ih"].T + p["bias_ih"] + h @ p["weight_hh"].T + p["bias_hh"]
        i, f, g, o = np.split(gates, 4, 1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        state = layer(Tensor(step), state)
    np.testing.assert_allclose(state[0].numpy(), h, **CLOSE)
    np.testing.assert_allclose(state[1].numpy(), c, **CLOSE)
    alone = layer(Tensor(x[1][0]), layer(Tensor(x[0][0])))  # without batch
    np.testing.assert_allclose(alone[0].numpy(), h[0], **CLOSE)


def test_names_and_shapes_are_those_of_pytorch():
    shapes = {
        "linear": nn.Linear(3, 2),
        "plain": nn.Linear(3, 2, bias=False),
        "conv": nn.Conv2d(4, 6, 3, groups=2),
        "up": nn.ConvTranspose1d(4, 6, 3, groups=2),
        "norm": nn.BatchNorm(2),
        "rnn": nn.LSTMCell(3, 2),
    }
    assert {name: p.shape for name, p in get_state_dict(shapes).items()} == {
        "linear.weight": (2, 3),
        "linear.bias": (2,),
        "plain.weight": (2, 3),
        "conv.weight": (6, 2, 3, 3),
        "conv.bias": (6,),
        "up.weight": (4, 3, 3),
        "up.bias": (6,),
        "norm.weight": (2,),
        "norm.bias": (2,),
        "norm.running_mean": (2,),
        "norm.running_var": (2,),
        "norm.num_batches_tracked": (),
        "rnn.weight_ih": (8, 3),
        "rnn.weight_hh": (8, 2),
        "rnn.bias_ih": (8,),
        "rnn.bias_hh": (8,),
    }


def test_a_layer_prints_what_it_holds() -> None:
    assert repr(nn.Linear(3, 4, bias=False)) == "Linear(weight=(4, 3), bias=None)"
    assert repr([nn.Dropout(0.1)]) == "[Dropout(p=0.1)]"
    assert "stride=2, dilation=1" in repr(nn.Conv2d(3, 4, 3, stride=2))
    own = (value for value in vars(nn).values() if isinstance(value, type))
    layers = [kind for kind in own if kind.__module__ == nn.layers.__name__]
    assert len(layers) > 10
    assert all(kind.__repr__ is not object.__repr__ for kind in layers)


def test_first_values_are_drawn_once_and_updates_are_not_repeated(device: str) -> None:
    layer = nn.Linear(3, 2)
    x = Tensor([[1.0, 2.0, 3.0]])
    first = layer(x).numpy()
    assert isinstance(layer.weight.lazy, lazy.Data)
    np.testing.assert_array_equal(layer(x).numpy(), first)
    weight, sizes = Tensor.uniform(3, requires_grad=True), []
    given = (weight.detach() + 0).numpy()
    for _ in range(5):
        loss = (weight * x[0]).square().sum()
        weight.grad = None
        loss.backward()
        with no_grad():
            weight -= 0.01 * weight.grad
        loss.item()
        sizes.append(len(toposort([weight.lazy])))
        given = given - 0.02 * given * np.array([1, 4, 9])
    assert max(sizes[2:]) <= max(sizes[:2])
    np.testing.assert_allclose(weight.numpy(), given, 1e-5)
