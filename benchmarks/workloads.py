"""What is timed. Each workload is written once and spoken by every library (see dialect.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.dialect import NumpyOps, Ops

Shape = tuple[int, ...]
Arrays = list[npt.NDArray[Any]]
# Gradients of all inputs, from the upstream gradient and the inputs; in numpy.
Gradients = Callable[..., tuple[npt.NDArray[Any], ...]]


@dataclass(frozen=True)
class Workload:
    """One expression on inputs of given shapes, forward or forward and backward."""

    name: str
    group: str
    shapes: tuple[Shape, ...]
    run: Callable[..., Any]  # (ops, *inputs) -> output
    flops: int = 0  # that the mathematics needs; 0: bytes decide
    gradients: Gradients | None = None  # given: the workload is forward and backward
    quick: bool = True  # part of --quick
    rtol: float = 2e-4  # of the largest value of each result

    def inputs(self, seed: int = 0) -> Arrays:
        """Standard normal float32 values; with gradients, the upstream gradient comes last."""
        draw = np.random.default_rng(seed).standard_normal
        arrays = [draw(shape, dtype=np.float32) for shape in self.shapes]
        if self.gradients is not None:
            ones = [np.zeros(shape, np.float32) for shape in self.shapes]
            arrays.append(draw(self.run(NumpyOps(), *ones).shape, dtype=np.float32))
        return arrays

    def reference(self, arrays: Arrays) -> Arrays:
        """What must come out, by numpy in float64."""
        wide = [array.astype(np.float64) for array in arrays]
        if self.gradients is None:
            return [np.asarray(self.run(NumpyOps(), *wide))]
        *inputs, upstream = wide
        return [self.run(NumpyOps(), *inputs), *self.gradients(upstream, *inputs)]

    def nbytes(self, inputs: Arrays, results: Arrays) -> int:
        """What must go through memory at least: each input once, each result once, as float32."""
        return sum(a.nbytes for a in inputs) + sum(4 * r.size for r in results)

    def shrunk(self) -> Workload:
        """The same expression on small inputs: equal sizes stay equal."""
        small = {d: d if d <= 8 else 6 + 2 * (d % 3) for shape in self.shapes for d in shape}
        return replace(self, shapes=tuple(tuple(small[d] for d in s) for s in self.shapes))


# ---- gradients, for the reference ----


def _softmax_gradient(g: Any, x: Any) -> tuple[Any]:
    y = NumpyOps().softmax(x)
    return (y * (g - (g * y).sum(-1, keepdims=True)),)


def _log_softmax_gradient(g: Any, x: Any) -> tuple[Any]:
    return (g - NumpyOps().softmax(x) * g.sum(-1, keepdims=True),)


def _layer_norm_gradient(g: Any, x: Any, weight: Any, bias: Any) -> tuple[Any, Any, Any]:
    centred = x - x.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    normal, gw = centred * scale, g * weight
    means = gw.mean(-1, keepdims=True), (gw * normal).mean(-1, keepdims=True)
    return scale * (gw - means[0] - normal * means[1]), (g * normal).sum(0), g.sum(0)


def _conv_gradient(g: Any, x: Any, weight: Any) -> tuple[Any, Any]:
    conv = NumpyOps().conv2d
    gx = conv(g, weight.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1], None)
    height, width = g.shape[2:]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    gw = np.empty_like(weight)
    for i in range(3):
        for j in range(3):
            window = padded[:, :, i : i + height, j : j + width]
            gw[:, :, i, j] = np.einsum("nohw,nchw->oc", g, window, optimize=True)
    return gx, gw


def _attention_gradient(g: Any, q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    scale = q.shape[-1] ** -0.5
    weights = NumpyOps().softmax(q @ np.swapaxes(k, -1, -2) * scale)
    (scores,) = (g @ np.swapaxes(v, -1, -2),)
    scores = weights * (scores - (scores * weights).sum(-1, keepdims=True)) * scale
    return scores @ k, np.swapaxes(scores, -1, -2) @ q, np.swapaxes(weights, -1, -2) @ g


# ---- the list ----


def _chain(ops: Ops, x: Any) -> Any:
    return ops.tanh(ops.exp(ops.sin(x) * 0.5) - 1.0) * ops.sigmoid(x)


def _streams() -> list[Workload]:
    big, small = (1 << 24,), (1 << 18,)
    return [
        Workload("add 16M", "stream", (big, big), lambda ops, a, b: a + b),
        Workload("gelu(a*b+c) 16M", "stream", (big,) * 3, lambda ops, a, b, c: ops.gelu(a * b + c)),
        Workload("sin-exp-tanh-sigmoid 256k", "stream", (small,), _chain),
    ]


def _rows() -> list[Workload]:
    rows, wide = (8192, 1024), (8192, 4096)
    norm = (rows, (1024,), (1024,))
    soft: list[tuple[str, tuple[Shape, ...], Callable[..., Any], Gradients]] = [
        ("softmax", (rows,), lambda ops, x: ops.softmax(x), _softmax_gradient),
        ("log-softmax", (rows,), lambda ops, x: ops.log_softmax(x), _log_softmax_gradient),
        ("layernorm", norm, lambda ops, x, w, b: ops.layer_norm(x, w, b), _layer_norm_gradient),
    ]
    found = [Workload(f"{n} 8192x1024", "row", s, run) for n, s, run, _ in soft]
    found += [
        Workload(f"{n} 8192x1024, backward too", "row", s, run, gradients=back)
        for n, s, run, back in soft
    ]
    for axis, name in ((0, "axis 0"), (1, "axis 1"), (None, "all")):
        run = _summing(axis)
        found.append(Workload(f"sum {name} 8192x4096", "row", (wide,), run))
    return found


def _summing(axis: int | None) -> Callable[..., Any]:
    return lambda ops, x: ops.sum(x, axis)


def _product(m: int, k: int, n: int, name: str = "", quick: bool = True) -> Workload:
    name = name or (f"matmul {m}" if m == k == n else f"matmul {m}x{k}x{n}")
    shapes = (m, k), (k, n)
    return Workload(
        name, "contraction", shapes, lambda ops, a, b: a @ b, 2 * m * k * n, None, quick
    )


def _contractions() -> list[Workload]:
    kind, square, cube = "contraction", (1024, 1024), 2 * 1024**3
    weight, bias, image = (3072, 768), (3072,), (8, 64, 56, 56)
    convolving = 2 * 8 * 64 * 56 * 56 * 64 * 9
    return [
        *(_product(n, n, n, quick=n < 2048) for n in (256, 512, 1021, 1024, 2048)),
        _product(16384, 512, 64),
        _product(64, 16384, 64),
        Workload("A @ B.T 1024", kind, (square,) * 2, lambda ops, a, b: a @ b.T, cube),
        Workload("A.T @ B 1024", kind, (square,) * 2, lambda ops, a, b: a.T @ b, cube),
        Workload(
            "linear+gelu 1024x768->3072",
            kind,
            ((1024, 768), weight, bias),
            lambda ops, x, w, b: ops.gelu(ops.linear(x, w, b)),
            2 * 1024 * 768 * 3072,
        ),
        Workload(
            "conv 3x3 64->64 8x64x56x56",
            kind,
            (image, (64, 64, 3, 3)),
            lambda ops, x, w: ops.conv2d(x, w, None),
            convolving,
        ),
        Workload(
            "conv 3x3 64->64, backward too",
            kind,
            (image, (64, 64, 3, 3)),
            lambda ops, x, w: ops.conv2d(x, w, None),
            3 * convolving,
            _conv_gradient,
            quick=False,
        ),
    ]


def _attentions() -> list[Workload]:
    shape, scores = (2, 8, 512, 64), 2 * 8 * 512 * 512

    def plain(ops: Ops, q: Any, k: Any, v: Any) -> Any:
        return ops.attention(q, k, v, False)

    def causal(ops: Ops, q: Any, k: Any, v: Any) -> Any:
        return ops.attention(q, k, v, True)

    name = "attention B2 H8 T512 D64"
    forward = 4 * scores * 64
    return [
        Workload(name, "attention", (shape,) * 3, plain, forward),
        # half of the scores are masked away, and need not be computed
        Workload(f"{name}, causal", "attention", (shape,) * 3, causal, forward // 2, quick=False),
        Workload(
            f"{name}, backward too",
            "attention",
            (shape,) * 3,
            plain,
            3 * forward,
            _attention_gradient,
            quick=False,
        ),
    ]


def kernels() -> list[Workload]:
    """All workloads that are one expression."""
    return [*_streams(), *_rows(), *_contractions(), *_attentions()]
