"""Every op of Tensor has a gradient that finite differences measure, and so has its gradient.

One table says for each method how it is differentiated; another, why some are not. A method
that is in neither fails a test.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tinyml import Device, Tensor

Op = Callable[..., Tensor]
Array = Any
X = (2, 3)
UP = 2.5  # lifts numbers of (-2, 2) above zero

FLAGS = np.array([[True, False, True], [False, False, True]])
INDEX, PLACES = np.array([1, 0, 1]), np.array([[0, 2, 0], [1, 1, 2]])
CLASSES = np.array([0, 2])


def on(array: Array) -> Tensor:
    """Constants of a case: masks, indices, targets."""
    return Tensor(array)


def target(x: Tensor) -> Tensor:
    return on(np.linspace(0.1, 0.9, x.numel()).reshape(x.shape))


def unary(*names: str, shift: float = 0.0, scale: float = 1.0) -> dict[str, tuple[Op, list[Any]]]:
    """Methods of one tensor, at scale * x + shift."""
    return {n: (lambda x, n=n: getattr(x * scale + shift, n)(), [X]) for n in names}


def binary(*names: str, shift: float = 0.0) -> dict[str, tuple[Op, list[Any]]]:
    """Methods of two tensors that broadcast; the second one shifted."""
    return {n: (lambda x, y, n=n: getattr(x, n)(y + shift), [X, (3,)]) for n in names}


def over(*names: str, **how: Any) -> dict[str, tuple[Op, list[Any]]]:
    """Methods along the last axis."""
    return {n: (lambda x, n=n: getattr(x, n)(-1, **how), [X]) for n in names}


TABLE: dict[str, tuple[Op, list[Any]]] = {
    # one number
    **unary(
        "abs", "neg", "square", "exp", "exp2", "expm1", "sin", "cos", "tanh", "erf", "atan", "sinh"
    ),
    **unary("cosh", "asinh", "sign", "floor", "ceil", "round", "trunc", "clone", "contiguous"),
    **unary("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", shift=UP),
    **unary("tan", "asin", "acos", "atanh", "erfinv", scale=0.4),
    **unary("lgamma", "digamma", shift=UP),
    **unary("acosh", shift=4.0),
    **unary("relu", "sigmoid", "logsigmoid", "silu", "swish", "gelu", "quick_gelu", "elu", "celu"),
    **unary("selu", "softplus", "mish", "softsign", "leaky_relu", "hardtanh", "hardsigmoid"),
    **unary("relu6", "hardswish", scale=2.3),
    **unary("double", "T", "mT") | {"T": (lambda x: x.T * x.T, [X]), "mT": (lambda x: x.mT, [X])},
    "cast": (lambda x: (x * x).cast("float64"), [X]),
    "cpu": (lambda x: x.cpu().square().to("NUMPY"), [X]),
    "to": (lambda x: x.to("CPU").square().to("NUMPY"), [X]),
    # two or three numbers
    **binary("add", "sub", "mul", "maximum", "minimum", "copysign", "logaddexp", "atan2"),
    **binary("div", "mod", shift=UP),
    "pow": (lambda x, y: (x + UP).pow(y) + x**3 + 2**y + (x + UP) ** -1.5, [X, (3,)]),
    "lerp": (lambda x, y, w: x.lerp(y, w) + x.lerp(y, 0.3), [X, X, X]),
    "where": (lambda x, y: on(FLAGS).where(x * x, y), [X, (3,)]),
    "masked_fill": (lambda x: x.square().masked_fill(on(FLAGS), 2.0), [X]),
    "clip": (lambda x, y: (x * x).clip(0.5, y + 3), [X, (3,)]),
    "clamp": (lambda x: (x * x * x).clamp(-1, 1), [X]),
    # reductions
    **over("sum", "mean", "max", "min", "prod", "var", "std", "logsumexp"),
    "std_mean": (lambda x: x.std_mean(1)[0] * x.std_mean(1)[1], [X]),
    "var_mean": (lambda x: x.var_mean(0, correction=0)[0] * x.var_mean(0)[1], [X]),
    # along an axis
    **over("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "softmax", "log_softmax"),
    **over("layernorm", "rmsnorm"),
    "sort": (lambda x: x.sort(1)[0].square() * on(np.arange(3.0)), [X]),
    "topk": (lambda x: x.topk(2, 1)[0].square(), [X]),
    "batchnorm": (
        lambda x, w, b: x.batchnorm(w, b, x.mean(0), (x.var(0) + 1).rsqrt()),
        [(3, 2), (2,), (2,)],
    ),
    # movement
    "reshape": (lambda x: x.square().reshape(3, 2), [X]),
    "view": (lambda x: x.square().view(6), [X]),
    "permute": (lambda x: x.square().permute(1, 0), [X]),
    "transpose": (lambda x: x.square().transpose(), [X]),
    "expand": (lambda x: x.unsqueeze(1).expand(2, 2, 3).square(), [X]),
    "flatten": (lambda x: x.square().flatten(), [X]),
    "unflatten": (lambda x: x.square().unflatten(1, (3, 1)), [X]),
    "squeeze": (lambda x: x.square().unsqueeze(0).squeeze(0), [X]),
    "unsqueeze": (lambda x: x.square().unsqueeze(1), [X]),
    "flip": (lambda x: x.square().flip(0, 1), [X]),
    "shrink": (lambda x: x.square().shrink(((0, 2), (1, 3))), [X]),
    "shrink_to": (lambda x: x.square().shrink_to(2, 2), [X]),
    "pad_to": (lambda x: x.square().pad_to(3, 4), [X]),
    "pad": (
        lambda x: x.square().pad((1, -1, 1, 0)).sum() + x.square().pad((1, 2), "reflect"),
        [X],
    ),
    "unfold": (lambda x: x.square().unfold(1, 2, 1), [X]),
    "cat": (lambda x, y: x.square().cat(y, x, dim=1), [X, (2, 1)]),
    "stack": (lambda x, y: x.square().stack(y, dim=1), [X, X]),
    "split": (lambda x: x.split([1, 2], 1)[1].square(), [X]),
    "chunk": (lambda x: x.chunk(2, 1)[0].square(), [X]),
    "repeat": (lambda x: x.square().repeat(2, 2), [X]),
    "repeat_interleave": (lambda x: x.square().repeat_interleave(2, 1), [X]),
    "roll": (lambda x: x.square().roll((1, 2), (0, 1)), [X]),
    "triu": (lambda x: x.square().triu(1), [(3, 3)]),
    "tril": (lambda x: x.square().tril(), [(3, 3)]),
    "diag": (lambda x: x.square().diag(), [(3,)]),
    "diagonal": (lambda x: x.square().diagonal(), [(3, 3)]),
    "meshgrid": (lambda x, y: x.meshgrid(y)[0] * x.meshgrid(y)[1], [(2,), (3,)]),
    "rearrange": (lambda x: x.square().rearrange("a (b c) -> (c a) b", b=3), [X]),
    # by position
    "gather": (lambda x: x.square().gather(1, on(PLACES)), [X]),
    "scatter": (
        lambda x, y: sum(
            x.square().scatter(1, on(places), y * y) for places in (PLACES[:, 1:], PLACES[:, 1:2])
        ),
        [X, X],
    ),
    "scatter_reduce": (
        lambda x, y: sum(
            (x.scatter_reduce(1, on(PLACES), y * y, how) for how in ("mean", "prod", "amax")),
            x.scatter(1, on(PLACES), y * x, "add"),
        ),
        [X, X],
    ),
    "masked_select": (lambda x: x.square().masked_select(on(FLAGS)), [X]),
    "__getitem__": (lambda x: x.square()[on(INDEX), 1:] + x[1, ::-2] * x[0, None, 0], [X]),
    # products
    "dot": (lambda x, y: x.dot(y), [X, (3,)]),
    "matmul": (lambda x, y: x.matmul(y), [(2, 2, 3), (3, 2)]),
    "linear": (lambda x, w, b: x.linear(w, b), [X, (3, 2), (2,)]),
    "einsum": (lambda x, y: Tensor.einsum("ij,kj,jj->ik", x, x, y), [X, (3, 3)]),
    "conv2d": (
        lambda x, w, b: x.conv2d(w, b, padding=1, stride=2, groups=2),
        [(1, 2, 3, 2), (2, 1, 2, 2), (2,)],
    ),
    "conv_transpose2d": (
        lambda x, w: x.conv_transpose2d(w, stride=2, padding=1),
        [(1, 2, 2, 2), (2, 1, 3, 2)],
    ),
    "scaled_dot_product_attention": (
        lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True),
        [X, X, X],
    ),
    "qr": (lambda x: x.qr()[0] @ (x.qr()[1] * x.qr()[1]), [(2, 2)]),
    "svd": (lambda x: x.svd()[1], [(2, 2)]),
    "inverse": (lambda x: (x @ x.T + 1).inverse(), [(2, 2)]),
    "det": (lambda x: x.det(), [(2, 2)]),
    "solve": (lambda x, y: (x @ x.T + 1).solve(y), [(2, 2), (2, 1)]),
    "cholesky": (lambda x: (x @ x.T + 1).cholesky(), [(2, 2)]),
    "newton_schulz": (lambda x: x.newton_schulz(2), [(2, 2)]),
    # windows
    "max_pool2d": (lambda x: x.square().max_pool2d(2, 1, padding=1), [(1, 3, 2)]),
    "avg_pool2d": (lambda x: x.square().avg_pool2d(2, 1, padding=1), [(1, 3, 2)]),
    "max_unpool2d": (
        lambda x: x.square().max_unpool2d(on(np.array([[[0, 3]]])), 2),
        [(1, 1, 2)],
    ),
    "interpolate": (lambda x: x.square().interpolate((5,)) + x.interpolate((5,), "nearest"), [X]),
    # losses
    "cross_entropy": (lambda x: x.cross_entropy(on(CLASSES), label_smoothing=0.1), [X]),
    "nll_loss": (lambda x: x.log_softmax().nll_loss(on(CLASSES)), [X]),
    "sparse_categorical_crossentropy": (
        lambda x: x.sparse_categorical_crossentropy(on(CLASSES)),
        [X],
    ),
    "binary_crossentropy": (lambda x: (x * 0.2 + 0.5).binary_crossentropy(target(x)), [X]),
    "binary_crossentropy_logits": (lambda x: x.binary_crossentropy_logits(target(x)), [X]),
    **over("amax", "amin"),
    "norm": (lambda x: x.norm(axis=0) + x.norm(3).exp(), [X]),
    "unbind": (lambda x: x.unbind(1)[0] * x.unbind(1)[2], [X]),
    "index_select": (lambda x: x.index_select(1, on(np.array([2, 0, 2]))), [X]),
    # others
    "sequential": (lambda x: x.sequential([Tensor.exp, Tensor.sin]), [X]),
    "dropout": (lambda x: x.square().dropout(0.5), [X]),
}

WITHOUT = {
    "creates a tensor": "arange bernoulli empty eye from_blob from_dlpack full full_like "
    "glorot_uniform kaiming_normal kaiming_uniform linspace normal ones ones_like rand rand_like "
    "randint randn randn_like randperm scaled_uniform uniform zeros zeros_like",
    "gives integers or bools": "all any argmax argmin argsort bool eq ge gt int isclose allclose "
    "isfinite isinf isnan le logical_and logical_not logical_or logical_xor long lt multinomial "
    "ne nonzero one_hot short idiv",
    "is of integers": "bitwise_and bitwise_not bitwise_or bitwise_xor lshift rshift",
    "is of bits": "bitcast",
    "rounds more than differences can tell": "bfloat16 float half",
    "cuts off on purpose": "detach assign",
    "is `to`, of a device that may be missing": "cuda",
    "is no op": "backward data device dim dtype element_size grad gradient is_floating_point "
    "is_leaf item lazy manual_seed nbytes ndim numel numpy realize register_hook requires_grad "
    "requires_grad_ retain_grad shape size tolist train",
}


def drawn(name: str, shapes: Sequence[Any]) -> list[Array]:
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return [rng.uniform(-2, 2, s) for s in shapes]


def slopes(f: Op, arrays: list[Array], step: float = 1e-5) -> list[Array]:
    """Central differences of the sum of f(*arrays), in float64."""
    found = []
    for i, array in enumerate(arrays):
        slope = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            ends = []
            for sign in (1, -1):
                moved = [a.copy() for a in arrays]
                moved[i][place] += sign * step
                ends.append(f(*map(Tensor, moved)).numpy().sum())
            slope[place] = (ends[0] - ends[1]) / (2 * step)
        found.append(slope)
    return found


@pytest.fixture(autouse=True)
def _reference() -> Any:
    before, Device.DEFAULT = Device.DEFAULT, "NUMPY"
    yield
    Device.DEFAULT = before


def weighted(f: Op, name: str) -> Op:
    """The sum of f times fixed numbers, so that no two elements have the same gradient."""

    def total(*tensors: Tensor) -> Tensor:
        Tensor.manual_seed(0)
        with Tensor.train():
            out = f(*tensors)
        (weights,) = drawn(f"weights {name}", [out.shape])
        return (out * Tensor(weights)).sum()

    return total


@pytest.mark.parametrize("name", TABLE)
def test_gradients_are_slopes_and_so_are_theirs(name: str) -> None:
    f, shapes = TABLE[name]
    total, arrays = weighted(f, name), drawn(name, shapes)
    tensors = [Tensor(a) for a in arrays]
    grads = total(*tensors).gradient(*tensors)
    for grad, wanted in zip(grads, slopes(total, arrays), strict=True):
        assert grad.dtype is tensors[0].dtype
        np.testing.assert_allclose(grad.numpy(), wanted, rtol=1e-5, atol=1e-6)

    def slope(*given: Tensor) -> Tensor:
        sides = zip(total(*given).gradient(*given), drawn(f"again {name}", shapes), strict=True)
        # the square keeps every input in the graph, also of a slope that is constant
        parts = [(g * Tensor(w)).sum() for g, w in sides] + [(t * t).sum() for t in given]
        return sum(parts[1:], parts[0])

    seconds = slope(*tensors).gradient(*tensors)
    for second, wanted in zip(seconds, slopes(slope, arrays), strict=True):
        np.testing.assert_allclose(second.numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_every_method_is_in_one_of_the_tables() -> None:
    reasons = [name for names in WITHOUT.values() for name in names.split()]
    public = {name for name in dir(Tensor) if not name.startswith("_")}
    answered = set(TABLE) | set(reasons)
    assert public - answered == set(), "has no gradient test, and no reason for none"
    assert answered - public - {"__getitem__"} == set(), "is no method"
    assert not set(TABLE) & set(reasons)


SAMPLE = ("asinh", "pow", "clip", "prod", "std", "cummax", "softplus", "max_pool2d", "unfold",
          "scatter_reduce", "conv_transpose2d", "binary_crossentropy", "layernorm")  # fmt: skip


def test_a_device_agrees_with_the_reference() -> None:
    found = []
    for name in SAMPLE:
        f, shapes = TABLE[name]
        for device in ("NUMPY", "CPU"):
            Device.DEFAULT = device
            tensors = [Tensor(a.astype(np.float32)) for a in drawn(name, shapes)]
            found.append((name, weighted(f, name)(*tensors).gradient(*tensors)))
    Tensor.realize(*(g for _, grads in found[1::2] for g in grads))
    for (name, wanted), (_, got) in zip(found[::2], found[1::2], strict=True):
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), 1e-3, 1e-4, err_msg=name)
