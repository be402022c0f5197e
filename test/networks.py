"""Random networks, of sizes that reach the tiles that kernels of large tensors are made of.

    network ::= Layer+
    Layer   ::= (name, number*)

Numbers are taken modulo what there is to choose from, so that every list of numbers is a network,
and a shorter one is simpler. What would take too long is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tinyml import Tensor, dtypes
from tinyml.dtype import DType

Layer = tuple[str, tuple[int, ...]]
NUMBERS = 9
# Ends of tiles and what lies just beside them, of vectors on any processor, warps and fragments.
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 40, 48, 63, 64, 65, 96, 127, 128)


@dataclass
class Network:
    """One network on one device, with parameters that are the same on all."""

    device: str
    dtype: DType  # of all that is not halved
    most: int = 100_000  # elements of any result
    work: int = 20_000_000  # multiply-adds of any layer
    values: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    parameters: list[Tensor] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    is_halved: bool = False

    def drawn(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normally distributed numbers, that float32 holds."""
        drawn = (self.values.standard_normal(shape) * scale).astype(np.float32)
        return Tensor(drawn, self.device).cast(self.dtype).detach().realize()

    def parameter(self, *shape: int, scale: float = 1.0) -> Tensor:
        """A tensor whose gradient is asked for."""
        made = self.drawn(*shape, scale=scale).requires_grad_()
        self.parameters.append(made)
        return made

    def weight(self, inputs: int, *shape: int) -> Tensor:
        """A parameter that keeps the size of what it is multiplied with."""
        return self.parameter(*shape, scale=inputs**-0.5)

    def whole(self, high: int, *shape: int) -> Tensor:
        """Integers from 0 to below `high`."""
        return Tensor(self.values.integers(0, high, shape).astype(np.int32), self.device).realize()

    def mask(self, *shape: int) -> Tensor:
        """Bools, most of them True."""
        return Tensor(self.values.random(shape) < 0.8, self.device).realize()

    def halve(self, *tensors: Tensor, to: DType) -> list[Tensor]:
        """As float16 or bfloat16, except for the reference."""
        self.is_halved = True
        return [t if self.dtype is dtypes.float64 else t.cast(to) for t in tensors]

    @property
    def names(self) -> list[str]:
        """Of what `built` returns."""
        return ["loss", "result", *(f"gradient {p.shape}" for p in self.parameters)]

    def layer(self, x: Tensor, layer: Layer) -> Tensor:
        """What a layer makes of x; x itself if it does not fit."""
        name, numbers = layer
        before = len(self.parameters)
        made, text = LAYERS[name](self, x, iter(numbers))
        if made is x or not 0 < made.numel() <= self.most:
            del self.parameters[before:]
            return x
        self.told.append(f"{text}: {made.shape}")
        return made


Made = tuple[Tensor, str]
LEFT_OUT = ""


def _any(chosen: Iterator[int], *choices: Any) -> Any:
    return choices[next(chosen) % len(choices)]


def _size(chosen: Iterator[int], most: int = SIZES[-1]) -> int:
    return int(_any(chosen, *[n for n in SIZES if n <= most]))


# ---- layers ----


def linear(net: Network, x: Tensor, chosen: Iterator[int]) -> Made:
    """A product, either way transposed, with or without a bias, also of halves."""
    inputs, outputs = x.shape[-1], _size(chosen)
    if x.numel() * outputs > net.work:
        return x, LEFT_OUT
    turned, biased = next(chosen) % 2, next(chosen) % 2
    shape = (outputs, inputs) if turned else (inputs, outputs)
    w = net.weight(inputs, *shape)
    half: DType | None = _any(chosen, None, None, dtypes.bfloat16, dtypes.float16)
    if half is not None:
        x, w = net.halve(x, w, to=half)
    made = (x @ (w.T if turned else w)).cast(net.dtype)
    made = made + net.parameter(outputs) if biased else made
    return made, f"linear {inputs} -> {outputs} ({turned=} {biased=} {half})"


def function(net: Network, x: Tensor, chosen: Iterator[int]) -> Made:
    name = _any(chosen, *FUNCTIONS)
    return FUNCTIONS[name](x), name


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": Tensor.relu,
    "gelu": Tensor.gelu,
    "silu": Tensor.silu,
    "tanh": Tensor.tanh,
    "sigmoid": Tensor.sigmoid,
    "softplus": Tensor.softplus,
    "mish": Tensor.mish,
    "erf": Tensor.erf,
    "sin": Tensor.sin,
    "exp": lambda x: x.clip(-4, 3).exp() * 0.2,
    "log": lambda x: (x.abs() + 0.5).log(),
    "sqrt": lambda x: (x * x + 0.1).sqrt(),
}


def norm(net: Network, x: Tensor, chosen: Iterator[int]) -> Made:
    name, axis = _any(chosen, *NORMS), next(chosen) % x.ndim - x.ndim
    made = NORMS[name](x, axis)
    if next(chosen) % 2:
        made = made * net.parameter(x.shape[-1]) + net.parameter(x.shape[-1])
    return made, f"{name} {axis=}"


def _standardized(x: Tensor, axis: int) -> Tensor:
    apart = x - x.mean(axis, keepdim=True)
    return apart / (apart.square().mean(axis, keepdim=True) + 0.1).sqrt()


NORMS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "layernorm": lambda x, axis: x.layernorm(axis=axis, eps=0.1),
    "rmsnorm": lambda x, axis: x.rmsnorm(eps=0.1),
    "softmax": lambda x, axis: x.softmax(axis) * x.shape[axis] ** 0.5,
    "log-softmax": lambda x, axis: x.log_softmax(axis) * 0.3,
    "standardized": _standardized,
    "logsumexp": lambda x, axis: x - x.logsumexp(axis, keepdim=True) * 0.5,
}


def residual(net: Network, x: Tensor, chosen: Iterator[int]) -> Made:
    """x + W f(norm(x))."""
    inputs, between = x.shape[-1], _size(chosen)
    if x.numel() * between > net.work:
        return x, LEFT_OUT
    normed, _ = norm(net, x, chosen)
    hidden, name = function(net, normed @ net.weight(inputs, inputs, between), chosen)
    return x + hidden @ net.weight(between, between, inputs), f"residual {between}, {name}"


def attention(net: Network, x: Tensor, chosen: Iterator[int]) -> Made:
    """Of several heads, also grouped, also to another sequence; scores changed in some way."""
    if x.ndim != 3:
        return x, LEFT_OUT
    (batch, length, width), heads, deep = x.shape, _any(chosen, 1, 2, 3, 4), _size(chosen, 64)
    shared = 2 if heads % 2 == 0 and next(chosen) % 3 == 0 else 1
    keys = _any(chosen, length, length, _size(chosen))
    if (batch * heads * length * keys + x.numel() * heads) * deep > net.work:
        return x, LEFT_OUT
    other = x if keys == length else net.drawn(batch, keys, width)

    def projected(source: Tensor, count: int) -> Tensor:
        made = source @ net.weight(width, width, count * deep)
        return made.reshape(batch, -1, count, deep).transpose(1, 2)

    q, k, v = projected(x, heads), *(projected(other, heads // shared) for _ in range(2))
    if shared > 1:
        k, v = (t.repeat_interleave(shared, 1) for t in (k, v))
    way = _any(chosen, *SCORES)
    scores = SCORES[way](net, q @ k.transpose(-1, -2) * deep**-0.5)
    made = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, heads * deep)
    text = f"attention, {heads=} {shared=} {deep=} {keys=} {way}"
    return made @ net.weight(heads * deep, heads * deep, width), text


def _near(net: Network, scores: Tensor) -> Tensor:
    """A band around the diagonal, which every query has a key in."""
    n, m = scores.shape[-2:]
    here = Tensor.arange(n, device=net.device).minimum(m - 1).unsqueeze(1)
    there = Tensor.arange(m, device=net.device).unsqueeze(0)
    return ((here - there).abs() <= 1 + m // 4).where(scores, float("-inf"))


def _causal(net: Network, scores: Tensor) -> Tensor:
    allowed = Tensor.ones(*scores.shape[-2:], device=net.device).tril()
    return scores.masked_fill(allowed == 0, float("-inf"))


SCORES: dict[str, Callable[[Network, Tensor], Tensor]] = {
    "plain": lambda net, s: s,
    "causal": _causal,
    "biased": lambda net, s: s + net.parameter(*s.shape[1:]),
    "capped": lambda net, s: (s / 3).tanh() * 3,
    "windowed": _near,
    "masked": lambda net, s: s.masked_fill(net.mask(*s.shape[2:]).logical_not(), -1e4),
}


def convolution(net: Network, x: Tensor, chosen: Iterator[int]) -> Made:
    """Of an image, perhaps strided, padded, dilated, grouped."""
    if x.ndim != 4:
        return x, LEFT_OUT
    _, channels, *sides = x.shape
    groups = _any(chosen, 1, 1, channels, 2 if channels % 2 == 0 else 1)
    window, stride, padding, dilation = (
        _any(chosen, (3, 3), (1, 1), (2, 2), (5, 3)),
        _any(chosen, 1, 1, 2, 3),
        _any(chosen, 1, 0, 2),
        _any(chosen, 1, 1, 2),
    )
    outputs = max(_size(chosen, 64) // groups, 1) * groups
    inputs = channels // groups * window[0] * window[1]
    fits = all((w - 1) * dilation < s + 2 * padding for w, s in zip(window, sides, strict=True))
    if not fits or x.numel() // channels * inputs * outputs > net.work:
        return x, LEFT_OUT
    weight = net.weight(inputs, outputs, channels // groups, *window)
    bias = net.parameter(outputs) if next(chosen) % 2 else None
    how = {"groups": groups, "stride": stride, "dilation": dilation, "padding": padding}
    made = x.conv2d(weight, bias, **how)
    return made, f"convolution {outputs} {window} {groups=} {stride=} {padding=} {dilation=}"


def pooling(net: Network, x: Tensor, chosen: Iterator[int]) -> Made:
    window, stride = _any(chosen, 2, 3), _any(chosen, 1, 2, 3)
    if x.ndim != 4 or min(x.shape[2:]) < window:
        return x, LEFT_OUT
    pool = _any(chosen, Tensor.max_pool2d, Tensor.avg_pool2d)
    return pool(x, window, stride), f"{pool.__name__} {window} {stride}"


def movement(net: Network, x: Tensor, chosen: Iterator[int]) -> Made:
    name, axis = _any(chosen, *MOVEMENTS), next(chosen) % x.ndim
    return MOVEMENTS[name](x, axis, next(chosen)), f"{name} {axis=}"


def _halves(x: Tensor, axis: int, number: int) -> Tensor:
    """A gated unit: one half times a function of the other one."""
    if x.shape[axis] % 2:
        return x
    first, second = x.chunk(2, axis)
    return first * second.sigmoid()


def _folded(x: Tensor, axis: int, number: int) -> Tensor:
    """An image as a sequence, a sequence as rows, rows as a sequence."""
    if x.ndim == 4:
        return x.flatten(2).transpose(1, 2)
    parts = [d for d in range(1, x.shape[0] + 1) if x.shape[0] % d == 0]
    return (
        x.reshape(parts[number % len(parts)], -1, x.shape[-1]) if x.ndim == 2 else x.flatten(0, 1)
    )


MOVEMENTS: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "transposed": lambda x, axis, number: x.transpose(axis, -1),
    "flipped": lambda x, axis, number: x.flip(axis),
    "rolled": lambda x, axis, number: x.roll(number, axis),
    "folded": _folded,
    "halves": _halves,
    "padded": lambda x, axis, number: x.pad(((number % 3, number % 2),) * x.ndim),
    "doubled": lambda x, axis, number: Tensor.cat(x, x.flip(axis), dim=axis),
    "every other": lambda x, axis, number: x.transpose(0, axis)[number % 2 :: 2].transpose(0, axis),
    "lower": lambda x, axis, number: x.tril(number - 4) if x.ndim > 1 else x,
    "contiguous": lambda x, axis, number: x.contiguous(),
}


def reduction(net: Network, x: Tensor, chosen: Iterator[int]) -> Made:
    name, axis = _any(chosen, *REDUCTIONS), next(chosen) % x.ndim
    made = REDUCTIONS[name](x, axis)
    if made.shape != x.shape and (x.ndim < 3 or next(chosen) % 2):
        return x * 0.5 + made, f"{name} {axis=}, added"
    return made.squeeze(axis) if made.shape[axis] == 1 < made.ndim else made, f"{name} {axis=}"


REDUCTIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sum": lambda x, axis: x.sum(axis, keepdim=True) * x.shape[axis] ** -0.5,
    "mean": lambda x, axis: x.mean(axis, keepdim=True),
    "max": lambda x, axis: x.max(axis, keepdim=True),
    "min": lambda x, axis: x.min(axis, keepdim=True),
    "std": lambda x, axis: (x.var(axis, keepdim=True, correction=0) + 0.1).sqrt(),
    "running sum": lambda x, axis: x.cumsum(axis) * x.shape[axis] ** -0.5,
    "running logsumexp": lambda x, axis: x.logcumsumexp(axis) * 0.5,
}


def lookup(net: Network, x: Tensor, chosen: Iterator[int]) -> Made:
    """By places, or by chance."""
    kind, axis = next(chosen) % 5, next(chosen) % x.ndim
    if kind == 0 and x.ndim > 1:
        rows = _size(chosen)
        table = net.parameter(rows, x.shape[-1])
        return x + table[net.whole(rows, *x.shape[:-1])], f"embedding {rows}"
    if kind == 1:
        return x.gather(axis, net.whole(x.shape[axis], *x.shape)), f"gather {axis=}"
    if kind == 2:
        places = net.whole(x.shape[axis], _size(chosen, 33))
        return x.transpose(0, axis)[places].transpose(0, axis), f"rows {places.shape[0]} {axis=}"
    if kind == 3:
        base = Tensor.zeros(*x.shape, dtype=x.dtype, device=net.device)
        places = net.whole(x.shape[axis], *x.shape)
        return base.scatter_reduce(axis, places, x, "sum"), f"scatter {axis=}"
    return x.dropout(0.3), "dropout"


LAYERS: dict[str, Callable[[Network, Tensor, Iterator[int]], Made]] = {
    f.__name__: f
    for f in (
        linear, function, norm, residual, attention, convolution, pooling, movement, reduction,
        lookup,
    )
}  # fmt: skip


# ---- whole networks ----


def built(net: Network, shape: Sequence[int], layers: Sequence[Layer], seed: int) -> list[Tensor]:
    """The loss, the network's result, and the gradients of all parameters; nothing is computed."""
    Tensor.manual_seed(seed)
    x = net.parameter(*shape)
    net.told.append(f"input {tuple(shape)}")
    with Tensor.train():
        for layer in layers:
            x = net.layer(x, layer)
    if x.ndim == 2 and x.shape[1] > 1 and seed % 2:
        net.told.append("cross-entropy")
        loss = x.sparse_categorical_crossentropy(net.whole(x.shape[1], x.shape[0]))
    else:
        loss = (x * net.drawn(*x.shape)).sum() * x.numel() ** -0.5
    return [loss, x, *loss.gradient(*net.parameters)]
