"""What layers are made of: values, gradients and dtypes are PyTorch's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from against_torch import Case, disagreements, draw, pair, same, suffixed, torch

from tinyml import Tensor

F = torch.nn.functional
NARROW = np.array([-30, -3, -1, -0.5, -0.0, 0.0, 0.5, 1, 3, 5.5, 6, 30, -6, 1e-3], np.float32)
FAR = np.array([-1e4, -200, 200, 1e4, float("inf"), -float("inf"), float("nan")], np.float32)

ACTIVATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "relu": (Tensor.relu, F.relu),
    "relu6": (Tensor.relu6, F.relu6),
    "sigmoid": (Tensor.sigmoid, torch.sigmoid),
    "logsigmoid": (Tensor.logsigmoid, F.logsigmoid),
    "silu": (Tensor.silu, F.silu),
    "swish": (Tensor.swish, F.silu),
    "gelu": (Tensor.gelu, lambda x: F.gelu(x, approximate="tanh")),
    "gelu exact": (lambda x: x.gelu("none"), F.gelu),
    "quick_gelu": (Tensor.quick_gelu, lambda x: x * torch.sigmoid(x * 1.702)),
    "elu": (Tensor.elu, F.elu),
    "elu 2": (lambda x: x.elu(2.0), lambda x: F.elu(x, 2.0)),
    "celu": (lambda x: x.celu(0.5), lambda x: F.celu(x, 0.5)),
    "selu": (Tensor.selu, F.selu),
    "mish": (Tensor.mish, F.mish),
    "softplus": (Tensor.softplus, F.softplus),
    "softplus 3": (lambda x: x.softplus(3.0), lambda x: F.softplus(x, 3.0)),
    "softplus 2 1": (lambda x: x.softplus(2.0, 1.0), lambda x: F.softplus(x, 2.0, 1.0)),
    "softsign": (Tensor.softsign, F.softsign),
    "leaky_relu": (Tensor.leaky_relu, F.leaky_relu),
    "leaky_relu 0.2": (lambda x: x.leaky_relu(0.2), lambda x: F.leaky_relu(x, 0.2)),
    "hardtanh": (lambda x: x.hardtanh(-2, 0.5), lambda x: F.hardtanh(x, -2, 0.5)),
    "hardsigmoid": (Tensor.hardsigmoid, F.hardsigmoid),
    "hardswish": (Tensor.hardswish, F.hardswish),
    "softmax": (Tensor.softmax, lambda x: x.softmax(-1)),
    "log_softmax": (Tensor.log_softmax, lambda x: x.log_softmax(-1)),
}


def activations() -> list[Case]:
    loose: dict[str, Any] = {"rtol": 3e-3, "atol": 3e-3, "grad": False}
    cases = []
    for name, (ours, theirs) in ACTIVATIONS.items():
        cases.append(pair(f"{name} chosen", ours, theirs, NARROW))
        cases.append(pair(f"{name} 0-d", ours, theirs, ()))
        cases.append(pair(f"{name} half", ours, theirs, NARROW.astype(np.float16), **loose))
        if "softmax" not in name:
            finite = FAR[:4] if "gelu" in name else FAR
            cases.append(pair(f"{name} far", ours, theirs, finite, grad=False))
            # torch's own gradients at NaN depend on how many numbers there are
            cases.append(pair(f"{name} far slope", ours, theirs, finite[:6]))
    for name, axis in itertools.product(("softmax", "log_softmax"), (0, 1, -2)):
        cases.append(same(f"{name} {axis}", lambda x, n=name, a=axis: getattr(x, n)(a), (3, 4, 2)))
    large = draw("large", (3, 4)) * 200
    large[0, 1] = -float("inf")
    whole = np.arange(-4, 5)
    for bounds in ((), (-1.5, 2.5), (-3.0, 1.0), (2, 2)):
        f = lambda x, b=bounds: F.hardtanh(x, *b)  # noqa: E731
        cases.append(pair(f"whole {bounds}", lambda x, b=bounds: x.hardtanh(*b), f, whole))
    cases.append(pair("relu6 whole", Tensor.relu6, F.relu6, whole.astype(np.int32) * 2))
    return cases + [
        pair(f"{name} large", *ACTIVATIONS[name], large) for name in ("softmax", "log_softmax")
    ]


def losses() -> list[Case]:
    classes, weight = np.array([1, 0, 3, 2, 1]), np.array([1, 2, 0.5, 3], np.float32)
    chances = np.random.default_rng(0).dirichlet(np.ones(4), 5).astype(np.float32)
    yes, space = np.array([0, 1, 0.5, 1, 0.25], np.float32), np.array([[[1, 0], [2, 3]]])
    p, x = np.array([0.1, 0.25, 0.5, 0.75, 0.98], np.float32), draw("logits", (5, 4)) * 20
    cases = []
    for r in ("mean", "sum", "none"):
        how: dict[str, Any] = {"reduction": r}
        smooth, ignored = {**how, "label_smoothing": 0.1}, {**how, "ignore_index": 3}
        calls: list[tuple[str, Any, Any, Any]] = [
            ("cross_entropy", how, how, (x, classes)),
            ("cross_entropy", how, how, (x, chances)),
            ("cross_entropy", smooth, smooth, (x, classes)),
            ("cross_entropy", smooth, smooth, (x, chances)),
            ("cross_entropy", how, how, ((1, 4, 2, 2), space)),
            ("nll_loss", how, how, (x, classes)),
            ("nll_loss", ignored, ignored, (x, classes)),
        ]
        for i, (name, mine, yours, inputs) in enumerate(calls):
            cases.append(
                pair(
                    f"{name} {i} {r}",
                    lambda x, y, n=name, h=mine: getattr(x, n)(y, **h),
                    lambda x, y, n=name, h=yours: getattr(F, n)(x, y, **h),
                    *inputs,
                )
            )
        cases += [
            pair(f"sparse {r}", lambda x, y, h=ignored: x.sparse_categorical_crossentropy(y, **h),
                 lambda x, y, h=ignored: F.cross_entropy(x, y, **h), x, classes),
            pair(f"sparse smooth {r}",
                 lambda x, y, h=smooth: x.sparse_categorical_crossentropy(y, **h),
                 lambda x, y, h=smooth: F.cross_entropy(x, y, **h), x, classes),
            pair(f"weighted {r}", lambda x, y, w, h=ignored: x.nll_loss(y, w.detach(), **h),
                 lambda x, y, w, h=ignored: F.nll_loss(x, y, w.detach(), **h), x, classes, weight),
            pair(f"binary {r}", lambda x, y, h=how: x.binary_crossentropy(y.detach(), **h),
                 lambda x, y, h=how: F.binary_cross_entropy(x, y.detach(), **h), p, yes),
            pair(f"binary logits {r}", lambda x, y, h=how: x.binary_crossentropy_logits(y, **h),
                 lambda x, y, h=how: F.binary_cross_entropy_with_logits(x, y, **h),
                 x[:, 0].copy(), yes),
            pair(f"binary weighted {r}",
                 lambda x, y, w, h=how: x.binary_crossentropy_logits(y, pos_weight=w.detach(), **h),
                 lambda x, y, w, h=how: F.binary_cross_entropy_with_logits(
                     x, y, pos_weight=w.detach(), **h), (5,), yes, (5,)),
        ]  # fmt: skip
    return cases + weighted_losses()


def weighted_losses() -> list[Case]:
    """Each class, or each surprise, with a weight of its own."""
    classes, chances = np.array([[1, 0, 3], [2, 1, 0]]), np.abs(draw("chances", (2, 4, 3)))
    weight, x = np.array([1, 2, 0.5, 3], np.float32), draw("scores", (2, 4, 3))
    p, yes = np.array([[0.1, 0.25], [0.5, 0.98]], np.float32), np.array([[0, 1], [0.5, 1]])
    every: list[dict[str, Any]] = [{}, {"label_smoothing": 0.1}]
    ignored: list[dict[str, Any]] = [{"ignore_index": 0, **how} for how in every]
    cases = []
    for r, how in itertools.product(("mean", "sum", "none"), every + ignored):
        options = {"reduction": r, **how}
        for y in (classes,) if "ignore_index" in how else (classes, chances):
            cases.append(
                pair(
                    f"weighted {options} {y.dtype}",
                    lambda x, y, w, h=options: x.cross_entropy(y, weight=w.detach(), **h),
                    lambda x, y, w, h=options: F.cross_entropy(x, y, weight=w.detach(), **h),
                    *(x, y, weight),
                )
            )
    for name, w, r in itertools.product(("", "_logits"), ((2, 2), (2,)), ("mean", "none")):
        theirs = "binary_cross_entropy" + name.replace("logits", "with_logits")
        cases.append(
            pair(
                f"each weighted {name} {w} {r}",
                lambda x, y, w, n=name, r=r: getattr(x, f"binary_crossentropy{n}")(
                    y.detach(), weight=w.detach(), reduction=r
                ),
                lambda x, y, w, n=theirs, r=r: getattr(F, n)(
                    x, y.detach(), weight=w.detach(), reduction=r
                ),
                *(p, yes.astype(np.float32), w),
            )
        )
    return cases


# ---- windows ----

CONVOLUTIONS: list[tuple[Any, Any, dict[str, Any]]] = [
    ((2, 3, 9), (4, 3, 3), {}),
    ((2, 4, 9), (6, 2, 3), {"groups": 2, "stride": 2, "padding": 1}),
    ((1, 3, 6, 5), (4, 3, 3, 2), {}),
    ((1, 2, 8, 9), (2, 2, 3, 3), {"stride": 2, "padding": 1}),
    ((1, 2, 9, 8), (2, 2, 3, 2), {"dilation": 2, "stride": (3, 1), "padding": (2, 1)}),
    ((1, 3, 5, 5), (6, 1, 3, 3), {"groups": 3, "padding": 1}),
    ((1, 2, 4, 4), (3, 2, 1, 1), {"stride": 2}),
    ((1, 2, 4, 5, 4), (2, 2, 2, 3, 1), {"padding": 1, "stride": 2}),
    ((3, 9), (4, 3, 3), {"padding": "same"}),
    ((4, 6, 5), (6, 2, 3, 2), {"groups": 2, "stride": [2], "padding": [1]}),
    ((2, 4, 5, 4), (2, 2, 2, 3, 1), {}),
    ((1, 2, 6, 7), (2, 2, 4, 3), {"padding": "same", "dilation": (2, 1)}),
    ((2, 2, 6, 7), (2, 2, 4, 3), {"padding": "valid", "stride": 2}),
]
TRANSPOSED: list[tuple[Any, Any, dict[str, Any]]] = [
    ((2, 3, 5), (3, 2, 3), {"stride": 2, "output_padding": 1}),
    ((1, 3, 4, 3), (3, 2, 3, 2), {}),
    ((1, 4, 4, 3), (4, 2, 3, 3), {"groups": 2, "stride": 2, "padding": 1}),
    ((1, 2, 3, 4), (2, 2, 2, 3), {"dilation": 2, "stride": (1, 2), "output_padding": (0, 1)}),
    ((1, 2, 2, 3, 2), (2, 1, 2, 2, 2), {"stride": 2, "padding": 1}),
    ((3, 5), (3, 2, 3), {}),
    ((4, 4, 3), (4, 2, 3, 3), {"groups": 2, "stride": [2], "padding": (1,)}),
    ((2, 2, 3, 2), (2, 1, 2, 2, 2), {}),
]


def convolutions() -> list[Case]:
    cases = []
    for i, (x, w, how) in enumerate(CONVOLUTIONS):
        cases.append(
            pair(
                f"conv {i} {how}",
                lambda x, w, b, h=how: x.conv2d(w, b, **h),
                lambda x, w, b, h=how: getattr(F, f"conv{w.ndim - 2}d")(x, w, b, **h),
                *(x, w, (w[0],)),
            )
        )
    for i, (x, w, how) in enumerate(TRANSPOSED):
        bias = (w[1] * how.get("groups", 1),)
        cases.append(
            pair(
                f"conv_transpose {i} {how}",
                lambda x, w, b, h=how: x.conv_transpose2d(w, b, **h),
                lambda x, w, b, h=how: getattr(F, f"conv_transpose{w.ndim - 2}d")(x, w, b, **h),
                *(x, w, bias),
            )
        )
    asymmetric = pair(
        "padding of each side",
        lambda x, w: x.conv2d(w, padding=(1, 2, 0, -1)),
        lambda x, w: F.conv2d(F.pad(x, (1, 2, 0, -1)), w),
        *((1, 2, 5, 5), (2, 2, 3, 3)),
    )
    return [case_at(c, atol=1e-5) for c in (*cases, asymmetric)]


def case_at(case: Case, **changes: Any) -> Case:
    return suffixed([case], "", **changes)[0]


POOLS: list[tuple[Any, dict[str, Any]]] = [
    ((2, 2, 9), {"kernel_size": (3,), "stride": 2, "padding": 1}),
    ((1, 2, 6, 7), {"kernel_size": (2, 2)}),
    ((1, 2, 6, 7), {"kernel_size": (3, 2), "stride": (1, 2), "padding": (1, 0)}),
    ((1, 2, 7, 8), {"kernel_size": (3, 3), "stride": 2, "ceil_mode": True}),
    ((1, 2, 7, 8), {"kernel_size": (3, 3), "stride": 3, "padding": 1, "ceil_mode": True}),
    ((1, 2, 4, 5, 4), {"kernel_size": (2, 3, 2), "stride": 1}),
    ((2, 9), {"kernel_size": (3,), "stride": [2]}),
    ((2, 6, 7), {"kernel_size": (3, 2), "stride": [2], "padding": (1,)}),
    ((2, 4, 5, 4), {"kernel_size": (2, 3, 2), "padding": [1]}),
]


def pools() -> list[Case]:
    cases = []
    for i, (shape, how) in enumerate(POOLS):
        n = len(how["kernel_size"])
        for kind, more in (("max", {}), ("avg", {}), ("avg", {"count_include_pad": False})):
            cases.append(
                pair(
                    f"{kind}_pool {i} {how | more}",
                    lambda x, k=kind, h=how | more: getattr(x, f"{k}_pool2d")(**h),
                    lambda x, k=kind, h=how | more, n=n: getattr(F, f"{k}_pool{n}d")(x, **h),
                    shape,
                )
            )
    dilated: dict[str, Any] = {"kernel_size": (2, 3), "dilation": 2, "stride": 1}
    where: dict[str, Any] = {"kernel_size": 3, "stride": 2, "padding": 1, "return_indices": True}
    return [
        *cases,
        pair("max_pool dilated", lambda x: x.max_pool2d(**dilated),
             lambda x: F.max_pool2d(x, **dilated), (1, 2, 7, 8)),
        pair("max_pool where", lambda x: x.max_pool2d(**where),
             lambda x: F.max_pool2d(x, **where), (2, 2, 7, 8), narrow=True),
        pair("max_pool where NaN is", lambda x: x.max_pool2d(2, 1, return_indices=True),
             lambda x: F.max_pool2d(x, 2, 1, return_indices=True),
             np.array([[[1, np.nan, 0], [3, 4, 2]]], np.float32), grad=False, narrow=True),
        *(pair(f"avg_pool of ints {h}", lambda x, h=h: x.avg_pool2d(**h),
               lambda x, h=h: F.avg_pool2d(x, **h), np.arange(-30, 26).reshape(1, 1, 7, 8))
          for h in ({"kernel_size": 2}, {"kernel_size": 3, "padding": 1, "ceil_mode": True,
                                         "count_include_pad": False})),
        pair("max_pool ties", lambda x: x.max_pool2d(3, 1, padding=1),
             lambda x: F.max_pool2d(x, 3, 1, 1), np.round(draw("ties", (1, 2, 5, 5)))),
        pair("max_unpool", lambda x: x.max_unpool2d(**_places(x, Tensor)),
             lambda x: F.max_unpool2d(x, **_places(x, torch)), (1, 1, 3, 4)),
    ]  # fmt: skip


def _places(x: Any, library: Any) -> dict[str, Any]:
    indices = (np.arange(12) * 4 + np.arange(12) % 2).reshape(1, 1, 3, 4) % 48
    made = Tensor(indices) if library is Tensor else torch.from_numpy(indices)
    return {"indices": made, "kernel_size": 2, "stride": 2}


def resizing() -> list[Case]:
    shapes = [((2, 2, 5), (8,)), ((2, 2, 5), (3,)), ((1, 2, 4, 5), (7, 3)), ((1, 2, 4, 5), (2, 10)),
              ((1, 1, 3, 4, 2), (5, 2, 4))]  # fmt: skip
    smooth = {1: "linear", 2: "bilinear", 3: "trilinear"}
    cases = []
    for (shape, size), corners in itertools.product(shapes, (False, True)):
        cases.append(
            pair(
                f"linear {shape} {size} {corners}",
                lambda x, s=size, c=corners: x.interpolate(s, align_corners=c),
                lambda x, s=size, c=corners: F.interpolate(
                    x, s, mode=smooth[len(s)], align_corners=c
                ),
                shape,
            )
        )
    for (shape, size), mode in itertools.product(shapes, ("nearest", "nearest-exact")):
        cases.append(
            pair(
                f"{mode} {shape} {size}",
                lambda x, s=size, m=mode: x.interpolate(s, mode=m),
                lambda x, s=size, m=mode: F.interpolate(x, s, mode=m),
                shape,
            )
        )
    double = draw("double", (1, 1, 5, 4)).astype(np.float64)
    linear = lambda x: F.interpolate(x, (3, 9), mode="bilinear")  # noqa: E731
    cases.append(pair("float64", lambda x: x.interpolate((3, 9)), linear, double, rtol=1e-12))
    image = np.random.default_rng(0).integers(0, 256, (1, 3, 9, 4), np.uint8)
    for size, corners in itertools.product(((4, 7), (20, 3)), (False, True)):
        cases.append(
            pair(
                f"8 bits {size} {corners}",
                lambda x, s=size, c=corners: x.interpolate(s, align_corners=c),
                lambda x, s=size, c=corners: F.interpolate(x, s, mode="bilinear", align_corners=c),
                image,
            )
        )
    return cases + scaled_by_factors()


def scaled_by_factors() -> list[Case]:
    """New sizes said as factors or as one number, cubic too, under torch's names."""
    factors: tuple[Any, ...] = (1.7, 2, (0.6, 2.0))
    how: list[dict[str, Any]] = [{"scale_factor": f} for f in factors] + [{"size": 4}]
    corners: list[dict[str, Any]] = [{}, {"align_corners": True}]
    smooth = itertools.product(("bilinear", "bicubic"), how, corners)
    modes = [{"mode": m, **h, **c} for m, h, c in smooth]
    modes += [{"mode": m, **h} for m in ("nearest", "nearest-exact") for h in how]
    call = lambda x, h: x.interpolate(**h) if isinstance(x, Tensor) else F.interpolate(x, **h)  # noqa: E731
    cases = [same(str(h), lambda x, h=h: call(x, h), (1, 2, 5, 6)) for h in modes]
    image = np.random.default_rng(1).integers(0, 256, (1, 3, 9, 4), np.uint8)
    return cases + [
        same(f"8 bits {h}", lambda x, h=h: call(x, {"mode": "bilinear", **h}), image) for h in how
    ]


# ---- attention and normalisation ----


def attention() -> list[Case]:
    q, k, v = (2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 3)
    flags = np.tri(5, 6, 1, dtype=bool)
    lonely = flags & (np.arange(5) != 2)[:, None]
    theirs = F.scaled_dot_product_attention

    def ours(q: Tensor, *others: Tensor, **options: Any) -> Tensor:
        return q.scaled_dot_product_attention(*others, **options)

    grouped = ((2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 3))
    return [
        pair("plain", ours, theirs, q, k, v),
        pair("3 axes", ours, theirs, (2, 5, 4), (2, 6, 4), (2, 6, 4)),
        pair("causal", lambda *xs: ours(*xs, is_causal=True),
             lambda *xs: theirs(*xs, is_causal=True), q, k, v),
        pair("bool mask", ours, theirs, q, k, v, flags),
        pair("float mask", ours, theirs, q, k, v, (5, 6)),
        pair("a query in no pair", ours, theirs, q, k, v, lonely),
        pair("-inf for a query", ours, theirs, q, k, v,
             np.where(lonely, np.float32(0), -np.float32(np.inf)), grad=False),
        pair("grouped", lambda *xs: ours(*xs, enable_gqa=True),
             lambda *xs: theirs(*xs, enable_gqa=True), *grouped),
        pair("scaled", lambda *xs: ours(*xs, scale=0.3),
             lambda *xs: theirs(*xs, scale=0.3), q, k, v),
        pair("of no features", ours, theirs, (2, 5, 0), (2, 6, 0), (2, 6, 3)),
        pair("half", ours, theirs, *(draw(str(s), s).astype(np.float16) for s in (q, k, v)),
             grad=False, atol=4e-3),
    ]  # fmt: skip


def normalisation() -> list[Case]:
    def normal(x: Any, w: Any, b: Any) -> Any:
        return F.batch_norm(x, None, None, w, b, training=True)

    def ours(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        axes = tuple(a for a in range(x.ndim) if a != 1)
        invstd = (x.var(axes, correction=0) + 1e-5).rsqrt()
        return x.batchnorm(w, b, x.mean(axes), invstd)

    return [
        pair("layernorm", Tensor.layernorm, lambda x: F.layer_norm(x, x.shape[-1:]), (3, 4, 5)),
        pair("layernorm axes", lambda x: x.layernorm((1, 2), 1e-3),
             lambda x: F.layer_norm(x, x.shape[1:], eps=1e-3), (3, 4, 5)),
        pair("layernorm half", Tensor.layernorm, lambda x: F.layer_norm(x, x.shape[-1:]),
             draw("half", (3, 8)).astype(np.float16), grad=False, atol=3e-3),
        pair("rmsnorm", Tensor.rmsnorm, lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-5), (3, 4)),
        pair("batchnorm", ours, normal, (4, 3, 5), (3,), (3,)),
        pair("batchnorm 2d", ours, normal, (4, 3, 2, 5), (3,), (3,)),
        pair("batchnorm given",
             lambda x, w, b, m, v: x.batchnorm(w, b, m.detach(), (v.abs().detach() + 1e-5).rsqrt()),
             lambda x, w, b, m, v: F.batch_norm(x, m.detach(), v.abs().detach(), w, b),
             (4, 3, 5), (3,), (3,), (3,), (3,)),
    ]  # fmt: skip


GROUPS = (activations, losses, convolutions, pools, resizing, attention, normalisation)


@pytest.mark.parametrize("device", ["NUMPY", "CPU"], indirect=True)
@pytest.mark.parametrize("cases", GROUPS, ids=lambda group: group.__name__)
def test_group(device: str, cases: Callable[[], list[Case]]) -> None:
    found = disagreements(cases())
    assert not found, "\n".join(found)


def test_a_certain_probability_has_a_finite_gradient(device: str) -> None:
    x = Tensor([0.0, 1.0, 0.5], requires_grad=True)
    x.binary_crossentropy(Tensor([1.0, 0.25, 1.0])).backward()
    assert x.grad is not None
    assert np.isfinite(x.grad.numpy()).all()
