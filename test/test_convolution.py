"""Convolutions and pools against sums over windows written out in numpy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tinyml import Tensor, trace


def convolved(x: Any, w: Any, groups: int, stride: int, dilation: int, padding: int) -> Any:
    space = w.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0)] + [(padding, padding)] * space)
    sizes = [
        (n - dilation * (k - 1) - 1) // stride + 1
        for n, k in zip(x.shape[2:], w.shape[2:], strict=True)
    ]
    out = np.zeros((x.shape[0], w.shape[0], *sizes))
    per_group, made = w.shape[1], w.shape[0] // groups
    for at in itertools.product(*map(range, sizes)):
        spans = tuple(
            slice(o * stride, o * stride + dilation * (k - 1) + 1, dilation)
            for o, k in zip(at, w.shape[2:], strict=True)
        )
        for o in range(w.shape[0]):
            c = o // made * per_group
            window = x[(slice(None), slice(c, c + per_group), *spans)]
            out[(slice(None), o, *at)] = (window * w[o]).sum(tuple(range(1, x.ndim)))
    return out


CASES = {
    "plain": ((2, 3, 6, 5), (4, 3, 3, 2), {}),
    "strided": ((1, 2, 8, 9), (2, 2, 3, 3), {"stride": 2, "padding": 1}),
    "dilated": ((1, 2, 9, 8), (2, 2, 3, 2), {"dilation": 2, "stride": 3, "padding": 2}),
    "grouped": ((1, 4, 5, 5), (6, 2, 3, 3), {"groups": 2}),
    "depthwise": ((1, 3, 5, 5), (3, 1, 3, 3), {"groups": 3, "padding": 1}),
    "one axis": ((2, 3, 9), (2, 3, 4), {"stride": 2}),
    "blocks": ((1, 2, 17, 13), (3, 2, 5, 5), {"stride": 5, "padding": 1}),
    "blocks, one axis": ((2, 4, 23), (2, 2, 13), {"stride": 6, "groups": 2, "padding": 3}),
    "parts of blocks": ((1, 1, 15, 14), (2, 1, 2, 8), {"stride": 5}),
    "three axes": ((1, 2, 4, 5, 4), (2, 2, 2, 3, 1), {"padding": 1, "stride": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_convolution(device: str, rng: np.random.Generator, name: str) -> None:
    shape, filters, options = CASES[name]
    x = rng.standard_normal(shape).astype(np.float32)
    w = rng.standard_normal(filters).astype(np.float32)
    weight = Tensor(w, requires_grad=True)
    got = Tensor(x).conv2d(weight, **options)
    settings = {"groups": 1, "stride": 1, "dilation": 1, "padding": 0} | options
    wanted = convolved(x, w, **settings)
    seed = rng.standard_normal(wanted.shape).astype(np.float32)
    (got * Tensor(seed)).sum().backward()
    assert weight.grad is not None
    Tensor.realize(got, weight.grad)
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-4)
    change = rng.standard_normal(filters).astype(np.float32)  # the op is linear in the weight
    along = (convolved(x, change, **settings) * seed).sum()
    np.testing.assert_allclose((weight.grad.numpy() * change).sum(), along, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("shape", "options", "more"),
    [
        ((7, 6), {"stride": 2, "padding": 1, "dilation": 2}, (0, 1)),
        ((22, 13), {"stride": (8, 5), "padding": (0, 2)}, (4, 4)),
        ((9, 9), {"stride": (1, 5), "padding": (1, 0)}, (0, 1)),
    ],
)
def test_transposed_convolution_is_the_gradient(
    device: str,
    rng: np.random.Generator,
    shape: tuple[int, int],
    options: dict[str, Any],
    more: tuple[int, int],
) -> None:
    x = Tensor(rng.standard_normal((2, 4, *shape)).astype(np.float32), requires_grad=True)
    w = Tensor(rng.standard_normal((6, 2, 2, 3)).astype(np.float32))
    y = x.conv2d(w, groups=2, **options)
    seed = Tensor(rng.standard_normal(y.shape).astype(np.float32))
    (y * seed).sum().backward()
    transposed = seed.conv_transpose2d(w, groups=2, output_padding=more, **options)
    assert x.grad is not None
    Tensor.realize(x.grad, transposed)
    np.testing.assert_allclose(transposed.numpy(), x.grad.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("width", [2, 3])
def test_gradients_of_transposed_windows_side_by_side(
    device: str, rng: np.random.Generator, width: int
) -> None:
    """Each step of a sum over channels adds all products of a window, from its end to its start."""
    w = rng.standard_normal((4, 6, width)).astype(np.float32)
    seed = rng.standard_normal((1, 6, 2 * width)).astype(np.float32)
    x = Tensor.zeros(1, 4, 2, requires_grad=True)
    (x.conv_transpose2d(Tensor(w), stride=width) * Tensor(seed)).sum().backward()
    wanted = np.einsum("bonk,iok->bin", seed.reshape(1, 6, 2, width), w)
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", [8, 16])
def test_windows_that_move_far_multiply_as_often_for_their_gradient(
    rng: np.random.Generator, kernel: int
) -> None:
    x = Tensor(rng.standard_normal((1, 3, 64, 64)), device="CPU", requires_grad=True)
    w = Tensor(rng.standard_normal((4, 3, kernel, kernel)), device="CPU")

    def work(made: Callable[[], Tensor]) -> int:
        with trace.listen(trace.KernelRan) as ran:
            made().realize()
        return sum(event.program.cost.flops for event in ran)

    y = x.conv2d(w, stride=8)
    seed = Tensor(rng.standard_normal(y.shape), device="CPU")
    forward = work(lambda: x.conv2d(w, stride=8))
    assert work(lambda: y.gradient(x, gradient=seed)[0]) < 2 * forward
    assert work(lambda: seed.conv_transpose2d(w, stride=8)) < 2 * forward


def test_gradients_of_few_channels_whose_windows_are_written_out(
    device: str, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((1, 1, 4, 3, 4)).astype(np.float32)
    w = rng.standard_normal((1, 2, 3, 4, 5)).astype(np.float32)

    def gradients(where: str) -> list[Any]:
        leaves = [Tensor(a, device=where, requires_grad=True) for a in (x, w)]
        made = leaves[0].conv_transpose2d(leaves[1], stride=2, padding=1, output_padding=1)
        (made * made).sum().backward()
        return [leaf.grad.numpy() for leaf in leaves if leaf.grad is not None]

    for got, wanted in zip(gradients(device), gradients("NUMPY"), strict=True):
        np.testing.assert_allclose(got, wanted, 1e-4, 1e-4)


def test_gradient_of_a_sum_over_short_rows(device: str, rng: np.random.Generator) -> None:
    x = Tensor.zeros(1, 15, 5, 5, requires_grad=True)
    w = rng.standard_normal((15, 3, 3, 3)).astype(np.float32)
    x.conv2d(Tensor(w), groups=5).sum().backward()
    assert x.grad is not None
    per_input = w.reshape(5, 3, 3, 3, 3).sum(1).reshape(15, 3, 3)
    wanted = np.zeros((1, 15, 5, 5))
    for i, j in itertools.product(range(3), range(3)):
        wanted[0, :, i : i + 3, j : j + 3] += per_input[:, i, j, None, None]
    np.testing.assert_allclose(x.grad.numpy(), wanted, rtol=1e-4, atol=1e-4)


def bottleneck(given: Mapping[str, Any], device: str, wide: str) -> list[Any]:
    """A ResNet's block as torch.autocast has it, and its gradients; all but products is `wide`."""
    p = {name: Tensor(a, device).cast(wide).detach() for name, a in given.items()}
    for tensor in p.values():
        tensor.requires_grad_()

    def normal(x: Tensor, part: str, **options: Any) -> Tensor:
        halves = [t.cast("bfloat16") for t in (x, p[part])]
        if wide == "float64":  # products of halves, rounded once
            halves = [t.cast(wide) for t in halves]
        x = halves[0].conv2d(halves[1], **options).cast("bfloat16").cast(wide)
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
        scale, shift = p[f"{part}.scale"], p[f"{part}.shift"]
        return x.batchnorm(scale, shift, mean, (variance + 1e-5).rsqrt())

    inner = normal(normal(p["x"], "1").relu(), "2", stride=2, padding=1).relu()
    made = (normal(inner, "3") + normal(p["x"], "skip", stride=2)).relu()
    results = [made, *made.gradient(*p.values(), gradient=(made.detach() + 1).log())]
    Tensor.realize(*results)
    return [result.numpy() for result in results]


def test_a_block_of_halves_rounds_what_products_read_and_make_and_nothing_else(
    device: str, rng: np.random.Generator
) -> None:
    shapes = {"x": (4, 32, 8, 8), "1": (16, 32, 1, 1), "2": (16, 16, 3, 3)}
    shapes |= {"3": (64, 16, 1, 1), "skip": (64, 32, 1, 1)}
    given = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for part in ("1", "2", "3", "skip"):
        given |= {f"{part}.scale": np.ones(len(given[part]), np.float32)}
        given |= {f"{part}.shift": rng.standard_normal(len(given[part])).astype(np.float32) / 4}
    found, wanted = bottleneck(given, device, "float32"), bottleneck(given, "NUMPY", "float64")
    for name, got, right in zip(["result", *given], found, wanted, strict=True):
        error = np.linalg.norm(got - right) / np.linalg.norm(right)
        assert error < 1e-3, name  # what lies between two halves may become the other one


def test_pools(device: str) -> None:
    x = np.arange(35, dtype=np.float32).reshape(1, 1, 5, 7) % 11
    t = Tensor(x, requires_grad=True)
    best, where = t.max_pool2d(2, return_indices=True)
    mean = t.avg_pool2d(3, stride=2, padding=1)
    uncounted = t.avg_pool2d(3, stride=2, padding=1, count_include_pad=False)
    ceiled = t.max_pool2d(2, ceil_mode=True)
    best.sum().backward()
    assert t.grad is not None
    back = Tensor.max_unpool2d(best.detach(), where, 2, output_size=(5, 7))
    Tensor.realize(best, where, mean, uncounted, ceiled, t.grad, back)
    blocks = x[0, 0, :4, :6].reshape(2, 2, 3, 2).transpose(0, 2, 1, 3).reshape(2, 3, 4)
    np.testing.assert_array_equal(best.numpy()[0, 0], blocks.max(2))
    np.testing.assert_array_equal(x.reshape(-1)[where.numpy()], best.numpy())
    assert mean.numpy()[0, 0, 0, 0] == pytest.approx(x[0, 0, :2, :2].sum() / 9)
    assert uncounted.numpy()[0, 0, 0, 0] == pytest.approx(x[0, 0, :2, :2].mean())
    assert ceiled.shape == (1, 1, 3, 4)
    np.testing.assert_allclose(t.grad.numpy().sum(), best.numel())
    np.testing.assert_allclose(back.numpy().sum(), best.numpy().sum())


def test_matmul_and_einsum(device: str, compare: Any, rng: np.random.Generator) -> None:
    shapes = [((3, 4), (4, 5)), ((4,), (4,)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (2, 4, 3))]
    pairs = {}
    for a, b in [*shapes, ((3, 0), (0, 2)), ((0, 4), (4, 2))]:
        x, y = (rng.standard_normal(s).astype(np.float32) for s in (a, b))
        pairs[f"{a} {b}"] = Tensor(x) @ Tensor(y), x @ y
    x, y = (rng.standard_normal((3, 3, 4)).astype(np.float32) for _ in range(2))
    for formula in ("ijk,ijl->ikl", "ijk,jil->", "...k,...k->...", "iik,iik->ki"):
        pairs[formula] = Tensor.einsum(formula, Tensor(x), Tensor(y)), np.einsum(formula, x, y)
    compare(pairs, 1e-4, 1e-5)


def test_attention(device: str, rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal((2, 5, 4)).astype(np.float32) for _ in range(3))
    got = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), is_causal=True)
    scores = np.where(np.tri(5, dtype=bool), q @ k.transpose(0, 2, 1) / 2, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_resizing(device: str) -> None:
    x = Tensor([[[0.0, 1.0, 4.0]]])
    near, line = x.interpolate((6,), mode="nearest"), x.interpolate((5,), align_corners=True)
    twice = x.interpolate(scale_factor=2, mode="nearest")
    cubic = x.interpolate(5, mode="cubic", align_corners=True)
    Tensor.realize(near, line, twice, cubic)
    assert near.tolist() == twice.tolist() == [[[0, 0, 1, 1, 4, 4]]]
    np.testing.assert_allclose(cubic.numpy(), [[[0, 0.21875, 1, 2.59375, 4]]], rtol=1e-6)
    np.testing.assert_allclose(line.numpy(), [[[0, 0.5, 1, 2.5, 4]]])
