"""What is timed. Each workload is written once and spoken by every library (see dialect.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.dialect import NumpyOps, Ops, TinymlOps
from benchmarks.gradients import (
    Gradients,
    attention_gradient,
    biased_gradient,
    capped,
    conv_gradients,
    cross_entropy_gradient,
    dropout_gradient,
    layer_norm_gradient,
    log_softmax_gradient,
    rms_norm_gradient,
    sigmoids,
    sinks_gradient,
    softmax_gradient,
)

Shape = tuple[int, ...]
Arrays = list[npt.NDArray[Any]]
DROPPED = 0.1  # by dropout


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
    dtype: str = "float32"  # of the inputs
    # other inputs than normal ones, of the shapes
    initial: Callable[[np.random.Generator, tuple[Shape, ...]], Arrays] | None = None
    dropped: float = 0.0  # the share of each result's elements that are 0 by chance

    def inputs(self, seed: int = 0) -> Arrays:
        """Standard normal float32 values; with gradients, the upstream gradient comes last.

        For bfloat16 they are numbers that it has.
        """
        random = np.random.default_rng(seed)
        arrays = (self.initial or _normal)(random, self.shapes)
        if self.gradients is not None:
            arrays += _normal(random, (self._result_shape(arrays),))
        if self.dtype == "bfloat16":
            arrays = [_cut(a) if a.dtype == np.float32 else a for a in arrays]
        return arrays

    def _result_shape(self, arrays: Arrays) -> Shape:
        """Recorded only: to compute some of these takes a host a minute."""
        from tinyml import Tensor

        empty = [Tensor.empty(*a.shape, dtype=a.dtype.name, device="NUMPY") for a in arrays]
        shape: Shape = self.run(TinymlOps(), *empty).shape
        return shape

    def reference(self, arrays: Arrays) -> Arrays:
        """What must come out, by numpy in float64."""
        wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
        if self.gradients is None:
            return [np.asarray(self.run(NumpyOps(), *wide))]
        *inputs, upstream = wide
        return [self.run(NumpyOps(), *inputs), *self.gradients(upstream, *inputs)]

    def traffic(self, inputs: Arrays, results: Arrays) -> tuple[int, int]:
        """Bytes that must be read and written at least: each input once, each result once."""
        size = 2 if self.dtype in ("bfloat16", "float16") else 4
        sizes = [a.size * (size if a.dtype.kind == "f" else a.itemsize) for a in inputs]
        return sum(sizes), size * sum(a.size for a in results)

    def shrunk(self) -> Workload:
        """The same expression on small inputs: equal sizes stay equal."""
        small = {d: d if d <= 8 else 6 + 2 * (d % 3) for shape in self.shapes for d in shape}
        return replace(self, shapes=tuple(tuple(small[d] for d in s) for s in self.shapes))


def _cut(floats: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """To what bfloat16 has of them."""
    return (floats.view(np.uint32) & 0xFFFF0000).view(np.float32)


def _normal(random: np.random.Generator, shapes: tuple[Shape, ...]) -> Arrays:
    return [np.asarray(random.standard_normal(shape, dtype=np.float32)) for shape in shapes]


# ---- the list ----


def _chain(ops: Ops, x: Any) -> Any:
    return ops.tanh(ops.exp(ops.sin(x) * 0.5) - 1.0) * ops.sigmoid(x)


def _streams() -> list[Workload]:
    big, small = (1 << 24,), (1 << 18,)
    dropout = Workload(
        "", "stream", (big,), lambda ops, x: ops.dropout(x, DROPPED), quick=False, dropped=DROPPED
    )
    return [
        Workload("add 16M", "stream", (big, big), lambda ops, a, b: a + b),
        Workload("gelu(a*b+c) 16M", "stream", (big,) * 3, lambda ops, a, b, c: ops.gelu(a * b + c)),
        Workload("sin-exp-tanh-sigmoid 256k", "stream", (small,), _chain),
        replace(dropout, name="dropout 16M"),
        replace(
            dropout,
            name="dropout 16M, backward too",
            gradients=partial(dropout_gradient, share=DROPPED),
        ),
    ]


def _rows() -> list[Workload]:
    rows, wide, square = (8192, 1024), (8192, 4096), (4096, 4096)
    norm = (rows, (1024,), (1024,))
    soft: list[tuple[str, tuple[Shape, ...], Callable[..., Any], Gradients]] = [
        ("softmax", (rows,), lambda ops, x: ops.softmax(x), softmax_gradient),
        ("log-softmax", (rows,), lambda ops, x: ops.log_softmax(x), log_softmax_gradient),
        ("layernorm", norm, lambda ops, x, w, b: ops.layer_norm(x, w, b), layer_norm_gradient),
        ("rmsnorm", norm[:2], lambda ops, x, w: ops.rms_norm(x, w), rms_norm_gradient),
    ]
    found = [Workload(f"{n} 8192x1024", "row", s, run) for n, s, run, _ in soft]
    found += [
        Workload(f"{n} 8192x1024, backward too", "row", s, run, gradients=back)
        for n, s, run, back in soft
    ]
    for axis, name in ((0, "axis 0"), (1, "axis 1"), (None, "all")):
        run = _summing(axis)
        found.append(Workload(f"sum {name} 8192x4096", "row", (wide,), run))
    found += [
        Workload("running sum 8192x1024", "row", (rows,), lambda ops, x: x.cumsum(1)),
        Workload("transposed copy 4096", "row", (square,), lambda ops, x: ops.transposed(x)),
        Workload("softmax 512x32000", "row", ((512, 32000),), lambda ops, x: ops.softmax(x)),
        *_cross_entropies(4096, 32000),
    ]
    return found


def _cross_entropies(rows: int, classes: int) -> list[Workload]:
    """Alone, and with gradients."""
    loss = Workload(
        f"cross-entropy {rows}x{classes}",
        "row",
        ((rows, classes), (rows,)),
        lambda ops, x, labels: ops.cross_entropy(x, labels),
        quick=False,
        initial=_labelled,
    )
    back = replace(loss, name=f"{loss.name}, backward too", gradients=cross_entropy_gradient)
    return [loss, back]


def _labelled(random: np.random.Generator, shapes: tuple[Shape, ...]) -> Arrays:
    """Scores of classes, and the class of each row."""
    return [
        *_normal(random, shapes[:1]),
        random.integers(0, shapes[0][1], shapes[1], dtype=np.int32),
    ]


def _summing(axis: int | None) -> Callable[..., Any]:
    return lambda ops, x: ops.sum(x, axis)


def _product(m: int, k: int, n: int, name: str = "", quick: bool = True) -> Workload:
    name = name or (f"matmul {m}" if m == k == n else f"matmul {m}x{k}x{n}")
    shapes = (m, k), (k, n)
    return Workload(
        name, "contraction", shapes, lambda ops, a, b: a @ b, 2 * m * k * n, None, quick
    )


def _packed(rows: int) -> Workload:
    """Rows times weights of 4 bits: two of a byte, 64 with a scale, as what generates text has."""
    return Workload(
        f"4-bit weights 4096x4096, {rows} token{'s' * (rows > 1)}",
        "contraction",
        ((rows, 64, 32, 2), (4096, 64, 32), (4096, 64, 1)),
        _of_four_bits,
        2 * rows * 4096 * 4096,
        quick=False,
        initial=_scaled_bytes,
    )


def _of_four_bits(ops: Ops, x: Any, packed: Any, scales: Any) -> Any:
    n, groups, half = packed.shape
    low, high = [part.reshape(n, groups, half, 1) for part in (packed & 15, packed >> 4)]
    whole = ops.cat(low, high, 3).reshape(n, groups, 2 * half)
    return x.reshape(x.shape[0], -1) @ ((whole - 8.0) * scales).reshape(n, -1).T


def _scaled_bytes(random: np.random.Generator, shapes: tuple[Shape, ...]) -> Arrays:
    (x, scales), packed = _normal(random, (shapes[0], shapes[2])), shapes[1]
    return [x, random.integers(0, 256, packed, dtype=np.uint8), scales]


def _contractions() -> list[Workload]:
    kind, square, cube = "contraction", (1024, 1024), 2 * 1024**3
    weight, bias = (3072, 768), (3072,)
    return [
        *(_product(n, n, n, quick=n < 2048) for n in (256, 333, 512, 1021, 1024, 2048)),
        _product(16384, 512, 64),
        _product(64, 16384, 64),
        _product(4096, 4096, 1, "matrix times vector 4096"),
        _product(1, 4096, 4096, "vector times matrix 4096"),
        Workload(
            "matmul 64x(256x64x256)",
            kind,
            ((64, 256, 64), (64, 64, 256)),
            lambda ops, a, b: a @ b,
            2 * 64 * 256 * 64 * 256,
        ),
        replace(_product(1024, 1024, 1024, "matmul bf16 1024"), dtype="bfloat16", rtol=5e-3),
        Workload("A @ B.T 1024", kind, (square,) * 2, lambda ops, a, b: a @ b.T, cube),
        Workload("A.T @ B 1024", kind, (square,) * 2, lambda ops, a, b: a.T @ b, cube),
        Workload(
            "linear+gelu 1024x768->3072",
            kind,
            ((1024, 768), weight, bias),
            lambda ops, x, w, b: ops.gelu(ops.linear(x, w, b)),
            2 * 1024 * 768 * 3072,
        ),
        *_convolutions(*_CONVOLUTIONS),
        _packed(1),
        _packed(8),
    ]


# with channels of the result, size of the window, stride, and groups of channels
_CONVOLUTIONS = (
    ("conv 3x3 64->64 8x64x56x56", 64, 3, 1, 1),
    ("conv 1x1 64->64 8x64x56x56", 64, 1, 1, 1),
    ("conv 3x3, stride 2, 64->128 8x64x56x56", 128, 3, 2, 1),
    ("conv 3x3, depthwise 8x64x56x56", 64, 3, 1, 64),
)
_GROUPED = ("conv 3x3, 8 groups 8x64x56x56", 64, 3, 1, 8)


def _convolutions(*cases: tuple[str, int, int, int, int]) -> list[Workload]:
    image, work = (8, 64, 56, 56), 2 * 8 * 64 * 56 * 56
    found = []
    for name, channels, size, stride, groups in cases:
        run = partial(_conv, stride)
        shapes, flops = (image, (channels, 64 // groups, size, size)), channels * size * size
        flops *= work // groups // stride**2
        found.append(Workload(name, "contraction", shapes, run, flops))
        back = conv_gradients(stride)
        name = f"{name.split(' 8x')[0]}, backward too"
        found.append(Workload(name, "contraction", shapes, run, 3 * flops, back, quick=False))
    return found


def _conv(stride: int, ops: Ops, x: Any, w: Any) -> Any:
    return ops.conv2d(x, w, None, stride, x.shape[1] // w.shape[1])


def _attentions() -> list[Workload]:
    return [*_attentions_of(512, quick=True), *_attentions_of(4096, quick=False)]


def _attentions_of(length: int, quick: bool) -> list[Workload]:
    shapes, work = ((2, 8, length, 64),) * 3, 4 * 2 * 8 * length**2 * 64
    half = work // 2  # of the scores are masked away, and need not be computed

    def plain(ops: Ops, q: Any, k: Any, v: Any) -> Any:
        return ops.attention(q, k, v, False)

    def causal(ops: Ops, q: Any, k: Any, v: Any) -> Any:
        return ops.attention(q, k, v, True)

    name, kind, back = f"attention B2 H8 T{length} D64", "attention", attention_gradient
    backward = f"{name}, backward too", f"{name}, causal, backward too"
    causal_back = partial(back, causal=True)
    return [
        Workload(name, kind, shapes, plain, work, quick=quick),
        Workload(f"{name}, causal", kind, shapes, causal, half, quick=False),
        Workload(backward[0], kind, shapes, plain, 3 * work, back, quick=False),
        Workload(backward[1], kind, shapes, causal, 3 * half, causal_back, quick=False),
    ]


_OF_HALVES_TOO = ("matmul 1021", "matmul 64x(256x64x256)", "A @ B.T 1024", "A.T @ B 1024")


def for_cards() -> list[Workload]:
    """Products, attention and losses of halves, and what no CPU should be given."""
    sizes = [
        (8192, 8192, 8192),
        (4096, 4096, 4096),
        *((4096, 4096, n) for n in (64, 128, 256, 512)),
        (64, 16384, 64),  # few results: blocks share the fold
    ]
    products = [_product(*size, quick=False) for size in sizes]
    others = [w for w in _contractions() if w.name in _OF_HALVES_TOO]
    convolutions = _convolutions(*_CONVOLUTIONS, _GROUPED)
    attentions = [w for w in _attentions() if w.gradients is None] + _wide_attentions()
    halves = [
        *((work, 5e-3) for work in (*products, *others, *convolutions)),
        *((work, 3e-2) for work in attentions),
        *((work, 5e-2) for work in _written_attentions()),  # scores are rounded: torch's are 3.5e-2
    ]
    small = replace(products[1], name="matmul 4096 fp16", dtype="float16", rtol=5e-3)
    # of the words of GPT-2, whose rows begin anywhere, and as they are filled up for training
    losses = [*_cross_entropies(4096, 50257), *_cross_entropies(8192, 50304)]
    halves += [(work, 1e-2) for work in (*losses, *_cross_entropies(2048, 128256))]
    return [
        *(
            replace(work, name=f"{work.name} bf16", dtype="bfloat16", rtol=rtol)
            for work, rtol in halves
        ),
        small,
        products[1],
        *losses,
    ]


def _wide_attentions() -> list[Workload]:
    """Of the size that a large model trains with."""
    large, work = ((8, 16, 4096, 128),) * 3, 4 * 8 * 16 * 4096**2 * 128

    def plain(ops: Ops, q: Any, k: Any, v: Any) -> Any:
        return ops.attention(q, k, v, False)

    def causal(ops: Ops, q: Any, k: Any, v: Any) -> Any:
        return ops.attention(q, k, v, True)

    name, kind, half = "attention B8 H16 T4096 D128", "attention", work // 2
    back, causal_back = attention_gradient, partial(attention_gradient, causal=True)
    backward = f"{name}, backward too", f"{name}, causal, backward too"
    grouped = (4, 16, 4096, 128), *((4, 4, 4096, 128),) * 2
    shared = "attention, causal, 4 heads of keys B4 H16 T4096 D128"
    return [
        Workload(name, kind, large, plain, work, quick=False),
        Workload(f"{name}, causal", kind, large, causal, half, quick=False),
        Workload(backward[0], kind, large, plain, 3 * work, back, quick=False),
        Workload(backward[1], kind, large, causal, 3 * half, causal_back, quick=False),
        Workload(shared, kind, grouped, causal, half // 2, quick=False),
        Workload(
            f"{shared}, backward too",
            kind,
            grouped,
            causal,
            3 * half // 2,
            causal_back,
            quick=False,
        ),
    ]


_CAP = 5.0  # of scores


def _written_attentions() -> list[Workload]:
    """In plain ops, as people write what is something else than a softmax of scores."""

    def scores(ops: Ops, q: Any, k: Any) -> Any:
        return q @ ops.swap(k, -2, -1) * q.shape[-1] ** -0.5

    def bent(ops: Ops, q: Any, k: Any, v: Any) -> Any:
        return ops.softmax(ops.tanh(scores(ops, q, k) / _CAP) * _CAP) @ v

    def biased(ops: Ops, q: Any, k: Any, v: Any, bias: Any) -> Any:
        return ops.softmax(scores(ops, q, k) + bias) @ v

    def beside(ops: Ops, q: Any, k: Any, v: Any, sinks: Any) -> Any:
        found = scores(ops, q, k)
        joined = ops.cat(found, ops.expand(sinks, (*found.shape[:-1], 1)), -1)
        return ops.softmax(joined)[..., :-1] @ v

    def once(ops: Ops, q: Any, k: Any, v: Any) -> Any:
        return ops.sigmoid(scores(ops, q, k)) @ v

    def windowed(ops: Ops, q: Any, k: Any, v: Any) -> Any:
        return ops.attention(q, k, v, True, q.shape[-2] // 4)

    size, shapes = "B2 H8 T4096 D128", ((2, 8, 4096, 128),) * 3
    work, of_keys, of_pairs = 4 * 2 * 8 * 4096**2 * 128, (4096,), (4096, 4096)
    seen = work * 7 // 32  # the first quarter of the queries sees half a window
    back, within = attention_gradient, partial(attention_gradient, causal=True, share=4)
    of_bent = partial(back, weigh=partial(capped, most=_CAP))
    forward: list[tuple[str, Callable[..., Any], tuple[Shape, ...], int]] = [
        (f"attention, capped {size}", bent, shapes, work),
        (f"attention, biased {size}", biased, (*shapes, of_keys), work),
        (f"attention, window of 1024, {size}", windowed, shapes, seen),
    ]
    trained: list[tuple[str, Callable[..., Any], tuple[Shape, ...], int, Gradients]] = [
        ("trained bias of keys", biased, (*shapes, of_keys), work, biased_gradient),
        ("trained bias of pairs", biased, (*shapes, of_pairs), work, biased_gradient),
        ("window of 1024", windowed, shapes, seen, within),
        ("capped", bent, shapes, work, of_bent),
        ("trained sinks", beside, (*shapes, (8, 1, 1)), work, sinks_gradient),
        ("by sigmoids", once, shapes, work, partial(back, weigh=sigmoids)),
    ]
    kind = "attention"
    return [
        *(Workload(n, kind, given, run, flops, quick=False) for n, run, given, flops in forward),
        *(
            Workload(
                f"attention, {n}, backward too, {size}",
                kind,
                given,
                run,
                3 * flops,
                to,
                quick=False,
            )
            for n, run, given, flops, to in trained
        ),
    ]


def kernels() -> list[Workload]:
    """All workloads that are one expression."""
    return [*_streams(), *_rows(), *_contractions(), *_attentions()]
