"""One spelling for what the workloads need, in each library's own best way of saying it.

A workload is written once, on an `Ops`. What all libraries write alike (`a * b`, `a @ b`, `.T`,
`reshape`) it says directly. numpy's dialect has two uses: in float64 it is the reference that
every result is checked against, in float32 it is one of the peers.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import numpy as np

Array = Any  # a tensor of the library that speaks


class Ops(Protocol):
    """What a library is asked to do."""

    def exp(self, x: Array) -> Array: ...
    def sin(self, x: Array) -> Array: ...
    def tanh(self, x: Array) -> Array: ...
    def sigmoid(self, x: Array) -> Array: ...
    def relu(self, x: Array) -> Array: ...
    def gelu(self, x: Array) -> Array: ...
    def sum(self, x: Array, axis: int | None) -> Array: ...
    def softmax(self, x: Array) -> Array: ...
    def log_softmax(self, x: Array) -> Array: ...
    def layer_norm(self, x: Array, weight: Array, bias: Array) -> Array: ...
    def rms_norm(self, x: Array, weight: Array) -> Array: ...
    def transposed(self, x: Array) -> Array: ...
    def linear(self, x: Array, weight: Array, bias: Array | None) -> Array: ...
    def conv2d(
        self, x: Array, weight: Array, bias: Array | None, stride: int = 1, groups: int = 1
    ) -> Array: ...  # padded by half the window
    def batch_norm(self, x: Array, weight: Array, bias: Array) -> Array: ...  # by this batch
    def max_pool(self, x: Array) -> Array: ...
    def swap(self, x: Array, first: int, second: int) -> Array: ...
    def cat(self, first: Array, second: Array, axis: int) -> Array: ...
    def expand(self, x: Array, shape: tuple[int, ...]) -> Array: ...
    def dropout(self, x: Array, share: float) -> Array: ...  # a training step's
    def attention(
        self, q: Array, k: Array, v: Array, causal: bool, window: int = 0
    ) -> Array: ...  # k and v may have fewer heads; window: of each query's last keys
    def embedding(self, weight: Array, tokens: Array) -> Array: ...
    def cross_entropy(self, logits: Array, labels: Array) -> Array: ...


class _Methods:
    """What libraries spell alike: methods of the tensor.

    `half`: products multiply bfloat16, all else is float32, as torch.autocast has it.
    """

    def __init__(self, half: bool = False) -> None:
        self.half = half

    def _narrow(self, *given: Array | None) -> list[Array | None]:
        return [x.cast("bfloat16") if self.half and x is not None else x for x in given]

    def _wide(self, x: Array) -> Array:
        return x.cast("float32") if self.half else x

    def exp(self, x: Array) -> Array:
        return x.exp()

    def sin(self, x: Array) -> Array:
        return x.sin()

    def tanh(self, x: Array) -> Array:
        return x.tanh()

    def sigmoid(self, x: Array) -> Array:
        return x.sigmoid()

    def relu(self, x: Array) -> Array:
        return x.relu()

    def gelu(self, x: Array) -> Array:
        return x.gelu()

    def sum(self, x: Array, axis: int | None) -> Array:
        return x.sum(axis)

    def softmax(self, x: Array) -> Array:
        return x.softmax(-1)

    def log_softmax(self, x: Array) -> Array:
        return x.log_softmax(-1)

    def layer_norm(self, x: Array, weight: Array, bias: Array) -> Array:
        return self._wide(x).layernorm() * weight + bias

    def rms_norm(self, x: Array, weight: Array) -> Array:
        return x * ((x * x).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight

    def transposed(self, x: Array) -> Array:
        return x.T.contiguous()

    def linear(self, x: Array, weight: Array, bias: Array | None) -> Array:
        x, weight, bias = self._narrow(x, weight, bias)
        return x.linear(weight.T, bias)

    def conv2d(
        self, x: Array, weight: Array, bias: Array | None, stride: int = 1, groups: int = 1
    ) -> Array:
        half = weight.shape[-1] // 2
        x, weight, bias = self._narrow(x, weight, bias)
        return x.conv2d(weight, bias, stride=stride, padding=half, groups=groups)

    def batch_norm(self, x: Array, weight: Array, bias: Array) -> Array:
        x = self._wide(x)
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
        return x.batchnorm(weight, bias, mean, (variance + 1e-5).rsqrt())

    def cat(self, first: Array, second: Array, axis: int) -> Array:
        return first.cat(second, dim=axis)

    def expand(self, x: Array, shape: tuple[int, ...]) -> Array:
        return x.expand(*shape)

    def max_pool(self, x: Array) -> Array:
        return x.max_pool2d()

    def swap(self, x: Array, first: int, second: int) -> Array:
        return x.transpose(first, second)

    def attention(self, q: Array, k: Array, v: Array, causal: bool, window: int = 0) -> Array:
        q, k, v = self._narrow(q, k, v)
        mask = band(type(q).arange(q.shape[-2], device=q.device), window) if window else None
        return q.scaled_dot_product_attention(
            k, v, mask, is_causal=causal and not window, enable_gqa=q.shape[1] != k.shape[1]
        )

    def cross_entropy(self, logits: Array, labels: Array) -> Array:
        return self._wide(logits).sparse_categorical_crossentropy(labels)


class TinymlOps(_Methods):
    """tinyml."""

    def dropout(self, x: Array, share: float) -> Array:
        with type(x).train():
            return x.dropout(share)

    def embedding(self, weight: Array, tokens: Array) -> Array:
        return weight[tokens]


class TinygradOps(_Methods):
    """tinygrad."""

    def dropout(self, x: Array, share: float) -> Array:
        with importlib.import_module("tinygrad").Context(TRAINING=1):
            return x.dropout(share)

    def embedding(self, weight: Array, tokens: Array) -> Array:
        kind = importlib.import_module("tinygrad.nn").Embedding
        layer = kind.__new__(kind)
        layer.vocab_sz, layer.embed_sz = weight.shape
        layer.weight = weight
        return layer(tokens)


class TorchOps(_Methods):
    """torch: its fused functions where it has some."""

    def __init__(self) -> None:
        super().__init__()
        import torch

        self._torch, self._f = torch, torch.nn.functional

    def gelu(self, x: Array) -> Array:
        return self._f.gelu(x, approximate="tanh")

    def sum(self, x: Array, axis: int | None) -> Array:
        return x.sum() if axis is None else x.sum(axis)

    def layer_norm(self, x: Array, weight: Array, bias: Array) -> Array:
        return self._f.layer_norm(x, x.shape[-1:], weight, bias)

    def rms_norm(self, x: Array, weight: Array) -> Array:
        return self._f.rms_norm(x, x.shape[-1:], weight, 1e-5)

    def linear(self, x: Array, weight: Array, bias: Array | None) -> Array:
        return self._f.linear(x, weight, bias)

    def conv2d(
        self, x: Array, weight: Array, bias: Array | None, stride: int = 1, groups: int = 1
    ) -> Array:
        return self._f.conv2d(x, weight, bias, stride, weight.shape[-1] // 2, groups=groups)

    def batch_norm(self, x: Array, weight: Array, bias: Array) -> Array:
        return self._f.batch_norm(x, None, None, weight, bias, training=True)

    def cat(self, first: Array, second: Array, axis: int) -> Array:
        return self._torch.cat((first, second), axis)

    def max_pool(self, x: Array) -> Array:
        return self._f.max_pool2d(x, 2)

    def dropout(self, x: Array, share: float) -> Array:
        return self._f.dropout(x, share)

    def attention(self, q: Array, k: Array, v: Array, causal: bool, window: int = 0) -> Array:
        mask = None
        if window:
            mask = band(self._torch.arange(q.shape[-2], device=q.device), window)
            causal = False
        grouped = q.shape[1] != k.shape[1]
        return self._f.scaled_dot_product_attention(
            q, k, v, mask, is_causal=causal, enable_gqa=grouped
        )

    def embedding(self, weight: Array, tokens: Array) -> Array:
        return self._f.embedding(tokens, weight)

    def cross_entropy(self, logits: Array, labels: Array) -> Array:
        return self._f.cross_entropy(logits, labels.long())


def band(positions: Array, window: int) -> Array:
    """Which keys a query sees: itself and those before it, `window` in all."""
    ahead = positions[:, None] - positions
    return (ahead >= 0) & (ahead < window)


class _Arrays:
    """What numpy and jax spell alike: functions of a module."""

    _np: Any = np

    def log_softmax(self, x: Array) -> Array:
        x = x - x.max(-1, keepdims=True)
        return x - self._np.log(self._np.exp(x).sum(-1, keepdims=True))

    def exp(self, x: Array) -> Array:
        return self._np.exp(x)

    def sin(self, x: Array) -> Array:
        return self._np.sin(x)

    def tanh(self, x: Array) -> Array:
        return self._np.tanh(x)

    def sum(self, x: Array, axis: int | None) -> Array:
        return x.sum(axis)

    def linear(self, x: Array, weight: Array, bias: Array | None) -> Array:
        return x @ weight.T if bias is None else x @ weight.T + bias

    def cat(self, first: Array, second: Array, axis: int) -> Array:
        return self._np.concatenate((first, second), axis)

    def expand(self, x: Array, shape: tuple[int, ...]) -> Array:
        return self._np.broadcast_to(x, shape)

    def max_pool(self, x: Array) -> Array:
        n, c, height, width = x.shape
        return x.reshape(n, c, height // 2, 2, width // 2, 2).max(axis=(3, 5))

    def swap(self, x: Array, first: int, second: int) -> Array:
        return x.swapaxes(first, second)

    def embedding(self, weight: Array, tokens: Array) -> Array:
        return weight[tokens]

    def cross_entropy(self, logits: Array, labels: Array) -> Array:
        return -self.log_softmax(logits)[self._np.arange(len(labels)), labels].mean()


class NumpyOps(_Arrays):
    """numpy, without gradients: formulas from the textbook."""

    def sigmoid(self, x: Array) -> Array:
        return 1 / (1 + np.exp(-x))

    def relu(self, x: Array) -> Array:
        return np.maximum(x, 0)

    def gelu(self, x: Array) -> Array:
        return 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * (x * x * x))))

    def softmax(self, x: Array) -> Array:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def layer_norm(self, x: Array, weight: Array, bias: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred / np.sqrt(variance + 1e-5) * weight + bias

    def rms_norm(self, x: Array, weight: Array) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight

    def transposed(self, x: Array) -> Array:
        return np.ascontiguousarray(x.T)

    def conv2d(
        self, x: Array, weight: Array, bias: Array | None, stride: int = 1, groups: int = 1
    ) -> Array:
        rows = windows(x, weight.shape[-1], stride, groups)  # (n, groups, h, w, -1)
        n, _, height, width, _ = rows.shape
        kernels = weight.reshape(groups, 1, len(weight) // groups, -1)
        out = (rows @ np.swapaxes(kernels, -1, -2)).transpose(0, 1, 4, 2, 3)
        out = out.reshape(n, len(weight), height, width)
        return out if bias is None else out + bias.reshape(1, -1, 1, 1)

    def batch_norm(self, x: Array, weight: Array, bias: Array) -> Array:
        centred = x - x.mean((0, 2, 3), keepdims=True)
        scale = 1 / np.sqrt((centred * centred).mean((0, 2, 3)) + 1e-5)
        return centred * (scale * weight).reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)

    def dropout(self, x: Array, share: float) -> Array:
        return x / (1 - share)  # of what is not dropped

    def attention(self, q: Array, k: Array, v: Array, causal: bool, window: int = 0) -> Array:
        k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
        scores = q @ np.swapaxes(k, -1, -2) * q.dtype.type(q.shape[-1] ** -0.5)
        if causal:
            taken = band(np.arange(q.shape[-2]), window or q.shape[-2])
            scores = np.where(taken, scores, -np.inf)
        return self.softmax(scores) @ v


def windows(x: Array, size: int, stride: int, groups: int) -> Array:
    """What each place of a padded convolution sees: (n, groups, h, w, channels * size²)."""
    n, channels, half = x.shape[0], x.shape[1] // groups, size // 2
    padded = np.pad(x, ((0, 0), (0, 0), (half, half), (half, half)))
    views = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(2, 3))
    views = views[:, :, ::stride, ::stride]
    views = views.reshape(n, groups, channels, *views.shape[2:]).transpose(0, 1, 3, 4, 2, 5, 6)
    return views.reshape(*views.shape[:4], -1)


class JaxOps(_Arrays):
    """jax."""

    def __init__(self) -> None:
        self._jax: Any = importlib.import_module("jax")
        self._np, self._nn = self._jax.numpy, self._jax.nn

    def sigmoid(self, x: Array) -> Array:
        return self._nn.sigmoid(x)

    def relu(self, x: Array) -> Array:
        return self._nn.relu(x)

    def gelu(self, x: Array) -> Array:
        return self._nn.gelu(x, approximate=True)

    def softmax(self, x: Array) -> Array:
        return self._nn.softmax(x)

    def log_softmax(self, x: Array) -> Array:
        return self._nn.log_softmax(x)

    def layer_norm(self, x: Array, weight: Array, bias: Array) -> Array:
        return self._nn.standardize(x, epsilon=1e-5) * weight + bias

    def rms_norm(self, x: Array, weight: Array) -> Array:
        return x * self._jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight

    def transposed(self, x: Array) -> Array:
        return x.T.copy()

    def conv2d(
        self, x: Array, weight: Array, bias: Array | None, stride: int = 1, groups: int = 1
    ) -> Array:
        half = (weight.shape[-1] // 2,) * 2
        out = self._jax.lax.conv_general_dilated(
            x, weight, (stride, stride), (half, half), feature_group_count=groups
        )
        return out if bias is None else out + bias.reshape(1, -1, 1, 1)

    def batch_norm(self, x: Array, weight: Array, bias: Array) -> Array:
        mean, variance = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
        normal = (x - mean) * self._jax.lax.rsqrt(variance + 1e-5)
        return normal * weight.reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)

    def dropout(self, x: Array, share: float) -> Array:
        random = self._jax.random
        kept = random.bernoulli(random.key(0), 1 - share, x.shape)
        return self._np.where(kept, x / (1 - share), 0.0)

    def attention(self, q: Array, k: Array, v: Array, causal: bool, window: int = 0) -> Array:
        q, k, v = (self.swap(x, 1, 2) for x in (q, k, v))
        local = (window - 1, 0) if window else None
        made = self._nn.dot_product_attention(q, k, v, is_causal=causal, local_window_size=local)
        return self.swap(made, 1, 2)
