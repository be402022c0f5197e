"""Training steps: forward, backward and AdamW, on fixed data, from the same parameters.

The models are those of examples/, without dropout (each library draws other random numbers).
The reference is tinyml's NUMPY device, its numpy interpreter, in float64; the peers do not share
a line with it, so that an error of its own would show as all of them being wrong.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from benchmarks.dialect import Ops, TinymlOps
from benchmarks.workloads import Arrays, Shape, Workload

CHECKED = 4  # the step whose loss is compared
BRANCH = 0.1  # of a stream that it is added to: how large a bottleneck's result is at first
Parameters = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """A model by its parameters and its loss. The result of a call is the loss before it.

    Without a loss there is only the update, whose result is the parameters.
    """

    name: str
    parameters: dict[str, Shape]
    data: Callable[[np.random.Generator], Arrays]
    loss: Callable[..., Any] | None  # (ops, parameters, *data) -> loss; None: data is its gradients
    flops: int
    quick: bool = True
    group: str = "step"
    rtol: float = 1e-3
    dtype: str = "float32"
    half: bool = False  # products multiply bfloat16; parameters and all else stay as they are
    rate: float = 1e-3  # of learning
    scales: dict[str, float] = field(default_factory=dict)  # at first, those that are not 1

    def inputs(self, seed: int = 0) -> Arrays:
        """Parameters, in the order of `parameters`, then data."""
        random = np.random.default_rng(seed)
        arrays = [
            _initial(name, shape, random, self.scales.get(name, 1.0))
            for name, shape in self.parameters.items()
        ]
        return [*arrays, *self.data(random)]

    def split(self, tensors: list[Any]) -> tuple[Parameters, list[Any]]:
        """Inputs as parameters by name, and data."""
        count = len(self.parameters)
        return dict(zip(self.parameters, tensors[:count], strict=True)), tensors[count:]

    def reference(self, arrays: Arrays) -> Arrays:
        """The results of step number `CHECKED`."""
        from tinyml import Tensor

        wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]
        call = tinyml_step(self, [Tensor(array, device="NUMPY") for array in wide])
        for _ in range(CHECKED):
            results = call()
        return [result.numpy() for result in results]

    def traffic(self, inputs: Arrays, results: Arrays) -> tuple[int, int]:
        """Bytes: parameters and both moments are read and written, data is read."""
        parameters, data = self.split(list(inputs))
        written = 3 * sum(int(a.nbytes) for a in parameters.values())
        return written + sum(int(a.nbytes) for a in data), written


def tinyml_step(step: Step, tensors: list[Any]) -> Callable[..., tuple[Any, ...]]:
    """One training step of tinyml, without a JIT."""
    from tinyml import Tensor, nn

    parameters, data = step.split(tensors)
    for tensor in parameters.values():
        tensor.requires_grad = True
    optimizer = nn.optim.AdamW(list(parameters.values()), lr=step.rate)
    loss_of = step.loss and partial(step.loss, spoken(TinymlOps(), step), parameters)

    def call(*inputs: Any) -> tuple[Any, ...]:
        with Tensor.train():
            optimizer.zero_grad()
            results = differentiated(loss_of, parameters, list(inputs or data))
            optimizer.step()
            return results

    return call


def differentiated(
    loss_of: Callable[..., Any] | None, parameters: Parameters, data: list[Any]
) -> tuple[Any, ...]:
    """Give the parameters their gradients; the results of the step, some yet to be updated."""
    if loss_of is None:
        for parameter, gradient in zip(parameters.values(), data, strict=True):
            parameter.grad = gradient
        return tuple(parameters.values())
    loss = loss_of(*data)
    loss.backward()
    return (loss,)


def spoken(ops: Any, step: Step) -> Any:
    """A dialect as a step wants it spoken."""
    return type(ops)(half=True) if step.half else ops


def _initial(name: str, shape: Shape, random: np.random.Generator, scale: float = 1.0) -> Any:
    """Small uniform weights; ones, or another scale, and zeros for what scales and shifts."""
    if name.endswith("scale"):
        return np.full(shape, scale, np.float32)
    if name.endswith("shift"):
        return np.zeros(shape, np.float32)
    bound = 1 / math.sqrt(math.prod(shape[1:]) or 1)
    return random.uniform(-bound, bound, shape).astype(np.float32)


# ---- models ----


def _labelled(shape: Shape, classes: int) -> Callable[[np.random.Generator], Arrays]:
    def draw(random: np.random.Generator) -> Arrays:
        labels = random.integers(0, classes, shape[0]).astype(np.int32)
        return [random.standard_normal(shape, dtype=np.float32), labels]

    return draw


def digits(batch: int = 64) -> Step:
    """The convolutional network of examples/train_digits.py."""
    parameters: dict[str, Shape] = {"conv1": (16, 1, 3, 3), "conv1.shift": (16,)}
    parameters |= {"conv2": (32, 16, 3, 3), "conv2.shift": (32,)}
    parameters |= {"hidden": (64, 512), "hidden.shift": (64,), "out": (10, 64), "out.shift": (10,)}

    def loss(ops: Ops, p: Parameters, images: Any, labels: Any) -> Any:
        x = ops.relu(ops.conv2d(images, p["conv1"], p["conv1.shift"]))
        x = ops.max_pool(ops.relu(ops.conv2d(x, p["conv2"], p["conv2.shift"])))
        x = x.reshape(batch, 512)
        x = ops.relu(ops.linear(x, p["hidden"], p["hidden.shift"]))
        return ops.cross_entropy(ops.linear(x, p["out"], p["out.shift"]), labels)

    work = 64 * 9 * 16 * (1 + 32) + 512 * 64 + 640  # multiply-adds for one image
    return Step(
        "digits convnet step", parameters, _labelled((batch, 1, 8, 8), 10), loss, 6 * batch * work
    )


def mlp(sizes: tuple[int, ...] = (784, 512, 512, 10), batch: int = 128) -> Step:
    """Linear layers with relu between them."""
    parameters: dict[str, Shape] = {}
    for n, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        parameters |= {f"{n}": (fan_out, fan_in), f"{n}.shift": (fan_out,)}
    last = len(sizes) - 2

    def loss(ops: Ops, p: Parameters, x: Any, labels: Any) -> Any:
        for n in range(last):
            x = ops.relu(ops.linear(x, p[f"{n}"], p[f"{n}.shift"]))
        return ops.cross_entropy(ops.linear(x, p[f"{last}"], p[f"{last}.shift"]), labels)

    work = sum(a * b for a, b in itertools.pairwise(sizes))
    name = f"MLP {'-'.join(map(str, sizes))} step"
    return Step(name, parameters, _labelled((batch, sizes[0]), sizes[-1]), loss, 6 * batch * work)


def residual(widths: tuple[int, ...] = (32, 64, 128), size: int = 32, batch: int = 32) -> Step:
    """Residual blocks of two convolutions with batch norms, each halving the image."""
    parameters: dict[str, Shape] = {"stem": (widths[0], 3, 3, 3), "out": (10, widths[-1])}
    work, previous = widths[0] * 27 * size**2 + 10 * widths[-1], widths[0]
    for n, width in enumerate(widths):
        for part, inner, window in (("1", previous, 3), ("2", width, 3), ("skip", previous, 1)):
            parameters[f"{n}.{part}"] = (width, inner, window, window)
            parameters |= {f"{n}.{part}.scale": (width,), f"{n}.{part}.shift": (width,)}
            work += width * inner * window**2 * (size >> n + 1) ** 2
        previous = width

    def normal(ops: Ops, p: Parameters, name: str, x: Any, stride: int) -> Any:
        x = ops.conv2d(x, p[name], None, stride)
        return ops.batch_norm(x, p[f"{name}.scale"], p[f"{name}.shift"])

    def loss(ops: Ops, p: Parameters, images: Any, labels: Any) -> Any:
        x = ops.conv2d(images, p["stem"], None)
        for n in range(len(widths)):
            inner = ops.relu(normal(ops, p, f"{n}.1", x, 2))
            x = ops.relu(normal(ops, p, f"{n}.2", inner, 1) + normal(ops, p, f"{n}.skip", x, 2))
        return ops.cross_entropy(ops.linear(x.mean((2, 3)), p["out"], None), labels)

    name = f"residual convnet {'-'.join(map(str, widths))} {size}x{size} B{batch} step"
    data = _labelled((batch, 3, size, size), 10)
    return Step(name, parameters, data, loss, 6 * batch * work, quick=False)


Block = tuple[str, int]  # its name, and how far its windows move


def _bottlenecks(
    depths: tuple[int, ...], width: int, size: int
) -> tuple[dict[str, Shape], list[Block], int]:
    """Parameters, blocks, and multiply-adds for one image."""
    parameters: dict[str, Shape] = {"stem": (width, 3, 7, 7)}
    parameters |= {"stem.scale": (width,), "stem.shift": (width,)}
    blocks, previous, pixels = list[Block](), width, size // 4
    work = width * 3 * 49 * (size // 2) ** 2
    for n, m in [(n, m) for n, depth in enumerate(depths) for m in range(depth)]:
        name, inner, stride = f"{n}.{m}", width << n, 2 if n and not m else 1
        pixels //= stride
        convs = [("1", inner, previous, 1), ("2", inner, inner, 3), ("3", 4 * inner, inner, 1)]
        convs += [("skip", 4 * inner, previous, 1)] if not m else []
        for part, out, into, window in convs:
            parameters[f"{name}.{part}"] = (out, into, window, window)
            parameters |= {f"{name}.{part}.scale": (out,), f"{name}.{part}.shift": (out,)}
            work += out * into * window**2 * pixels**2
        blocks.append((name, stride))
        previous = 4 * inner
    return parameters | {"out": (1000, previous)}, blocks, work


def bottlenecks(
    depths: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, size: int = 224, batch: int = 32
) -> Step:
    """Blocks of 1x1, 3x3 and 1x1 convolutions, four times as wide outside: ResNet-50 by default.

    A block's result begins as a tenth of the stream that it is added to; who trains such nets
    begins with none of it (zero gammas), which leaves most of its weights no gradients. With a
    whole one autocast's gradients are noise, torch's too (results/2026-11-26-autocast.md).
    """
    parameters, blocks, work = _bottlenecks(depths, width, size)

    def normal(ops: Ops, p: Parameters, name: str, x: Any, stride: int = 1) -> Any:
        x = ops.conv2d(x, p[name], None, stride)
        return ops.batch_norm(x, p[f"{name}.scale"], p[f"{name}.shift"])

    def loss(ops: Ops, p: Parameters, images: Any, labels: Any) -> Any:
        x = ops.max_pool(ops.relu(normal(ops, p, "stem", images, 2)))
        for name, stride in blocks:
            inner = ops.relu(normal(ops, p, f"{name}.1", x))
            inner = ops.relu(normal(ops, p, f"{name}.2", inner, stride))
            skip = normal(ops, p, f"{name}.skip", x, stride) if f"{name}.skip" in p else x
            x = ops.relu(normal(ops, p, f"{name}.3", inner) + skip)
        return ops.cross_entropy(ops.linear(x.mean((2, 3)), p["out"], None), labels)

    name = f"convnet of {sum(depths)} bottlenecks {size}x{size} B{batch} step"
    data = _labelled((batch, 3, size, size), 1000)
    scales = {f"{block}.3.scale": BRANCH for block, _ in blocks}
    work *= 6 * batch
    return Step(name, parameters, data, loss, work, quick=False, rate=1e-4, scales=scales)


@dataclass(frozen=True)
class GPTSize:
    """How large a GPT is."""

    layers: int = 4
    dim: int = 256
    heads: int = 4
    context: int = 128
    batch: int = 8
    vocabulary: int = 128


def _gpt_parameters(size: GPTSize) -> dict[str, Shape]:
    d = size.dim
    parameters: dict[str, Shape] = {"token": (size.vocabulary, d), "position": (size.context, d)}
    for n in range(size.layers):
        parameters |= {f"{n}.1.scale": (d,), f"{n}.1.shift": (d,)}
        parameters |= {f"{n}.qkv": (3 * d, d), f"{n}.out": (d, d)}
        parameters |= {f"{n}.2.scale": (d,), f"{n}.2.shift": (d,)}
        parameters |= {f"{n}.up": (4 * d, d), f"{n}.up.shift": (4 * d,)}
        parameters |= {f"{n}.down": (d, 4 * d), f"{n}.down.shift": (d,)}
    return parameters | {"scale": (d,), "shift": (d,), "head": (size.vocabulary, d)}


def gpt(size: GPTSize, quick: bool = False) -> Step:
    """The GPT of examples/train_gpt.py."""
    d, tokens = size.dim, size.batch * size.context

    def draw(random: np.random.Generator) -> Arrays:
        shape = (size.batch, size.context + 1)
        text = random.integers(0, size.vocabulary, shape).astype(np.int32)
        return [text[:, :-1].copy(), text[:, 1:].copy().reshape(-1)]

    def loss(ops: Ops, p: Parameters, x: Any, y: Any) -> Any:
        x = ops.embedding(p["token"], x) + p["position"]

        def attend(q: Any, k: Any, v: Any, n: int) -> Any:
            return ops.attention(q, k, v, True)

        logits = _gpt_logits(ops, p, size, x, attend)
        return ops.cross_entropy(logits.reshape(size.batch * size.context, -1), y)

    products = size.layers * (12 * d * d + size.context * d) + d * size.vocabulary
    name = f"GPT {size.layers}x{d} T{size.context} B{size.batch} step"
    return Step(name, _gpt_parameters(size), draw, loss, 6 * tokens * products, quick)


def decode(size: GPTSize) -> Workload:
    """One token after `context` others, whose keys and values are kept: logits of the next."""
    shapes, d = _gpt_parameters(size), size.dim
    kept = (size.batch, size.heads, size.context, d // size.heads)
    last = [(size.batch, 1, d), *(kept,) * (2 * size.layers)]

    def initial(random: np.random.Generator, _: tuple[Shape, ...]) -> Arrays:
        arrays = [_initial(name, shape, random) for name, shape in shapes.items()]
        return arrays + [random.standard_normal(shape, dtype=np.float32) for shape in last]

    def run(ops: Ops, *inputs: Any) -> Any:
        p = dict(zip(shapes, inputs[: len(shapes)], strict=True))
        x, *memory = inputs[len(shapes) :]

        def attend(q: Any, k: Any, v: Any, n: int) -> Any:
            k, v = (ops.cat(memory[2 * n + i], new, 2) for i, new in enumerate((k, v)))
            return ops.attention(q, k, v, False)

        return _gpt_logits(ops, p, size, x, attend)

    products = size.layers * (12 * d * d + 2 * size.context * d) + d * size.vocabulary
    name = f"GPT {size.layers}x{d} T{size.context} B{size.batch}, decode of a token"
    every = (*shapes.values(), *last)
    return Workload(name, "decode", every, run, 2 * size.batch * products, initial=initial)


def _gpt_logits(ops: Ops, p: Parameters, size: GPTSize, x: Any, attend: Callable[..., Any]) -> Any:
    batch, length, d = x.shape
    for n in range(size.layers):
        normal = ops.layer_norm(x, p[f"{n}.1.scale"], p[f"{n}.1.shift"])
        qkv = ops.linear(normal, p[f"{n}.qkv"], None).reshape(batch, length, 3, size.heads, -1)
        q, k, v = (ops.swap(qkv[:, :, i], 1, 2) for i in range(3))  # (batch, heads, length, -1)
        y = ops.swap(attend(q, k, v, n), 1, 2).reshape(batch, length, d)
        x = x + ops.linear(y, p[f"{n}.out"], None)
        normal = ops.layer_norm(x, p[f"{n}.2.scale"], p[f"{n}.2.shift"])
        up = ops.gelu(ops.linear(normal, p[f"{n}.up"], p[f"{n}.up.shift"]))
        x = x + ops.linear(up, p[f"{n}.down"], p[f"{n}.down.shift"])
    x = ops.layer_norm(x, p["scale"], p["shift"])
    return ops.linear(x, p["head"], None)


def updates(size: GPTSize) -> Step:
    """AdamW's update of all that a GPT of this size learns, and nothing else."""
    parameters = _gpt_parameters(size)

    def draw(random: np.random.Generator) -> Arrays:
        shapes = parameters.values()
        return [random.standard_normal(shape, dtype=np.float32) for shape in shapes]

    name = f"AdamW of {len(parameters)} tensors, GPT {size.layers}x{size.dim}"
    return Step(name, parameters, draw, None, 0, quick=False)


def steps() -> list[Step]:
    """All training steps."""
    small = GPTSize(layers=2, dim=128, context=64)
    return [digits(), mlp(), residual(), gpt(small, quick=True), gpt(GPTSize())]
