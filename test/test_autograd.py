"""Gradients are the slopes that finite differences measure; so are gradients of gradients."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinyml import Device, Function, Tensor, no_grad
from tinyml.errors import GradientError
from tinyml.graph import count_nodes

Op = Callable[..., Tensor]


def slopes(f: Op, arrays: list[Any], seed: Any, step: float = 1e-5) -> list[Any]:
    """Central differences of sum(f(*arrays) * seed), in float64, all points in one batch."""
    found = []
    for i, array in enumerate(arrays):
        slope = np.zeros_like(array)
        for place in np.ndindex(array.shape):
            ends = []
            for sign in (1, -1):
                moved = [a.copy() for a in arrays]
                moved[i][place] += sign * step
                ends.append((f(*map(Tensor, moved)).numpy() * seed).sum())
            slope[place] = (ends[0] - ends[1]) / (2 * step)
        found.append(slope)
    return found


X, Y = (2, 3), (2, 3)
CASES: dict[str, tuple[Op, list[Any]]] = {
    "neg abs square": (lambda x: -x + x.abs() + x.square(), [X]),
    "exp exp2": (lambda x: x.exp() + x.exp2(), [X]),
    "log log2": (lambda x: (x.abs() + 1).log() + (x.abs() + 1).log2(), [X]),
    "sin cos tan": (lambda x: x.sin() * x.cos() + (x * 0.3).tan(), [X]),
    "tanh erf": (lambda x: x.tanh() + x.erf(), [X]),
    "sqrt rsqrt": (lambda x: (x * x + 1).sqrt() + (x * x + 1).rsqrt(), [X]),
    "asin acos atan": (lambda x: (x / 4).asin() * (x / 5).acos() + x.atan(), [X]),
    "hyperbolic": (lambda x: x.sinh() + x.cosh() + x.asinh() + (x / 4).atanh(), [X]),
    "acosh": (lambda x: (x.abs() + 2).acosh(), [X]),
    "sigmoid family": (lambda x: x.sigmoid() + x.silu() + x.softplus() + x.mish(), [X]),
    "elu family": (lambda x: x.elu() + x.celu(2.0) + x.selu() + x.leaky_relu(), [X]),
    "gelu": (lambda x: x.gelu() + x.gelu("none") + x.quick_gelu() + x.logsigmoid(), [X]),
    "hard family": (lambda x: x.hardtanh() + x.hardswish() + x.relu6() + x.softsign(), [X]),
    "add sub": (lambda x, y: x + y - y * 2 - 3, [X, (3,)]),
    "mul div": (lambda x, y: x * y / (y * y + 1), [X, (2, 1)]),
    "mod": (lambda x, y: (x * 3) % (y.abs() + 2), [X, Y]),
    "pow": (lambda x, y: (x.abs() + 0.5) ** y + x**3 + 2**y, [X, Y]),
    "max min": (lambda x, y: x.maximum(y) * x.minimum(y), [X, Y]),
    "where clip": (lambda x, y: (x > 0).where(x * y, y) + x.clip(-0.5, 0.5), [X, Y]),
    "logaddexp": (lambda x, y: x.logaddexp(y) + x.copysign(y) + x.lerp(y, 0.3), [X, Y]),
    "sum mean": (lambda x: x.sum(0) * x.mean(1, keepdim=True), [X]),
    "max over": (lambda x: x.max(0) * x.min(1, keepdim=True), [X]),
    "prod": (lambda x: x.prod(1), [X]),
    "var std": (lambda x: x.var(1) + x.std(1) + x.logsumexp(1), [X]),
    "softmax": (lambda x: x.softmax() * x.log_softmax(0), [X]),
    "norms": (lambda x: x.layernorm() + x.rmsnorm(), [(2, 4)]),
    "matmul": (lambda x, y: x @ y.T, [X, Y]),
    "einsum": (lambda x, y: Tensor.einsum("ij,kj->ik", x, y), [X, Y]),
    "moves": (lambda x: x.reshape(3, 2).permute(1, 0).flip(0).pad((1, 0)) * 2, [X]),
    "shrink expand": (lambda x: x[:, ::2].unsqueeze(1).expand(2, 2, 2) * 3, [X]),
    "cat": (lambda x, y: x.cat(y * 2, dim=1).roll(1, 1), [X, Y]),
    "gather": (lambda x: x[Tensor([1, 0, 1])] * x.gather(1, Tensor([[0, 0, 2]])), [X]),
    "scatter": (lambda x, y: x.scatter(0, Tensor([[0, 1, 1]]), y), [X, (1, 3)]),
    "scatter add": (lambda x, y: x.scatter(1, Tensor([[0, 0], [2, 1]]), y, "add"), [X, (2, 2)]),
    "amax": (
        lambda x, y: x.scatter_reduce(1, Tensor([[0, 0], [2, 1]]), y, "amax"),
        [X, (2, 2)],
    ),
    "conv": (lambda x, w: x.conv2d(w, padding=1, stride=2), [(1, 2, 4, 3), (2, 2, 2, 2)]),
    "pools": (lambda x: x.max_pool2d(2) * x.avg_pool2d(2), [(1, 1, 4, 4)]),
    "products": (lambda x: (x * (x > 1)).prod(1) + (x * (x > 1)).cumprod(1)[:, 2], [X]),
    "scans": (lambda x: x.cumsum(1) * x.cumprod(1) + x.cummax(1) + x.logcumsumexp(1), [X]),
    "sort": (lambda x: x.sort(1)[0] * Tensor([1.0, 2.0, 3.0]), [X]),
    "losses": (
        lambda x: x.cross_entropy(Tensor([0, 2])) + x.log_softmax().nll_loss(Tensor([1, 1])),
        [X],
    ),
    "attention": (lambda q, k: q.scaled_dot_product_attention(k, k, is_causal=True), [X, X]),
}


@pytest.mark.parametrize("name", CASES)
def test_central_differences(name: str, rng: np.random.Generator) -> None:
    """On the reference: what a device computes is compared with the reference elsewhere."""
    f, shapes = CASES[name]
    arrays = [rng.uniform(-2, 2, s) for s in shapes]
    tensors = [Tensor(a, "NUMPY", requires_grad=True) for a in arrays]
    out = f(*tensors)
    seed = rng.standard_normal(out.shape)
    (out * Tensor(seed, "NUMPY")).sum().backward()
    for tensor, wanted in zip(tensors, slopes(f, arrays, seed), strict=True):
        assert tensor.grad is not None
        assert tensor.grad.dtype is tensor.dtype
        np.testing.assert_allclose(tensor.grad.numpy(), wanted, rtol=1e-4, atol=1e-6)


SMOOTH = [
    "exp exp2",
    "sin cos tan",
    "tanh erf",
    "sqrt rsqrt",
    "mul div",
    "pow",
    "softmax",
    "matmul",
]


@pytest.mark.parametrize("name", [*SMOOTH, "conv", "gather", "scans", "norms", "max over"])
def test_gradients_of_gradients(name: str, rng: np.random.Generator) -> None:
    f, shapes = CASES[name]
    arrays = [rng.uniform(0.5, 1.5, s) for s in shapes]
    weights = [Tensor(rng.standard_normal(s), "NUMPY") for s in shapes]

    def slope(*tensors: Tensor) -> Tensor:
        grads = (f(*tensors) ** 2).sum().gradient(*tensors)
        parts = [(g * w).sum() for g, w in zip(grads, weights, strict=True)]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

    tensors = [Tensor(a, "NUMPY", requires_grad=True) for a in arrays]
    seconds = slope(*tensors).gradient(*tensors)
    for second, wanted in zip(seconds, slopes(slope, arrays, 1.0), strict=True):
        np.testing.assert_allclose(second.numpy(), wanted, rtol=1e-3, atol=1e-4)


@pytest.fixture(autouse=True)
def _reference(request: pytest.FixtureRequest) -> Any:
    """Tests without a device of their own compute on the reference."""
    before = Device.DEFAULT
    if "device" not in request.fixturenames:
        Device.DEFAULT = "NUMPY"
    yield
    Device.DEFAULT = before


def test_gradients_on_the_device(device: str) -> None:
    x = Tensor([[1.0, -2.0], [0.5, 3.0]], requires_grad=True)
    w = Tensor([[0.5, 1.0], [-1.0, 2.0]], requires_grad=True)
    (x @ w).relu().softmax().square().sum().backward()
    assert x.grad is not None
    assert w.grad is not None
    Tensor.realize(x.grad, w.grad)
    a, b = Tensor(x.numpy(), "NUMPY", requires_grad=True), Tensor(w.numpy(), "NUMPY")
    (wanted,) = (a @ b).relu().softmax().square().sum().gradient(a)
    np.testing.assert_allclose(x.grad.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-6)


def test_gradients_add_up_in_the_same_tensor(device: str) -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    (x * 3).sum().backward()
    first = x.grad
    (x * x).sum().backward()
    assert x.grad is first
    assert first is not None
    assert first.tolist() == [5, 7]
    assert not first.requires_grad


def test_ties_share_and_powers_of_zero_are_flat() -> None:
    x = Tensor([1.0, 3.0, 3.0], requires_grad=True)
    assert x.max().gradient(x)[0].tolist() == [0, 0.5, 0.5]
    zero = Tensor([0.0, 0.0, 0.0], requires_grad=True)
    power = Tensor([0.0, 1.0, 2.0], requires_grad=True)
    of_base, of_power = (zero**power).sum().gradient(zero, power)
    assert of_base.tolist() == [0, 1, 0]
    assert np.isfinite(of_power.numpy()).all()
    assert (zero.relu() + zero.abs()).sum().gradient(zero)[0].tolist() == [0, 0, 0]


def test_gradient_needs_no_flag() -> None:
    x, y = Tensor([2.0, 3.0]), Tensor([5.0, 7.0])
    dx, dy = (x * y).sum().gradient(x, y)
    assert (dx.tolist(), dy.tolist()) == ([5, 7], [2, 3])
    cube = x * x * x
    (first,) = cube.gradient(x, gradient=Tensor([1.0, 1.0]))
    (second,) = first.sum().gradient(x)
    assert second.tolist() == [12, 18]
    assert x.grad is None


def test_what_has_no_gradient_says_so() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(GradientError, match="one number"):
        (x * 2).backward()
    with pytest.raises(GradientError, match="not in the graph"):
        (x * 2).sum().gradient(Tensor([1.0]))
    with pytest.raises(GradientError, match="only floats"):
        (x * 2).sum().gradient(Tensor([1]))
    with pytest.raises(GradientError, match="requires"):
        (x > 0).sum().backward()
    with pytest.raises(GradientError, match="only floats"):
        Tensor([1], requires_grad=True)
    with no_grad():
        y = (x * 2).sum()
    with pytest.raises(GradientError, match="requires"):
        y.backward()


def test_a_graph_can_be_walked_until_something_is_assigned_to() -> None:
    x, other = Tensor([1.0, 2.0], requires_grad=True), Tensor([0.0])
    y = x * x
    loss = y.sum()
    for times in (1, 2, 3):
        loss.backward()
        assert x.grad is not None
        assert x.grad.tolist() == [2 * times, 4 * times]
    other.assign(Tensor([1.0]))
    with pytest.raises(GradientError, match="retain_graph"):
        loss.backward()
    with pytest.raises(GradientError, match="retain_graph"):
        (y * 2).sum().backward()
    kept, freed = (x * x).sum(), (x * x).sum()
    kept.backward(retain_graph=True)
    freed.backward(retain_graph=False)
    with pytest.raises(GradientError, match="retain_graph"):
        freed.backward()
    other.assign(Tensor([2.0]))
    kept.backward()


def test_a_walked_graph_is_not_kept_by_whoever_forgets_it() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    hidden = x * 2
    watched = weakref.ref(hidden)
    loss = (hidden * hidden).sum()
    loss.backward()
    del hidden, loss
    assert watched() is None


def test_hooks_see_gradients_and_may_replace_them() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    hidden = x * 3
    seen: list[Any] = []
    look = hidden.register_hook(lambda grad: seen.append(grad.tolist()))
    double = x.register_hook(lambda grad: grad * 2)
    loss = (hidden * hidden).sum()
    loss.backward()
    assert x.grad is not None
    assert seen == [[6, 12]]
    assert x.grad.tolist() == [36, 72]
    look.remove()
    double.remove()
    double.remove()
    (first,) = loss.gradient(x)
    assert (len(seen), first.tolist()) == (1, [18, 36])
    hidden.register_hook(lambda grad: grad.clip(max_=7))
    assert loss.gradient(x, hidden)[0].tolist() == [18, 21]
    hidden.register_hook(lambda grad: grad.sum())
    with pytest.raises(GradientError, match="same shape"):
        loss.backward()
    with pytest.raises(GradientError, match="no gradient"):
        x.detach().register_hook(lambda grad: None)


def test_a_tensor_between_retains_its_gradient_if_asked() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    hidden, other = x * 3, x * 2
    hidden.retain_grad()
    loss = (hidden * other).sum()
    loss.backward()
    assert hidden.grad is not None
    assert x.grad is not None
    assert other.grad is None
    assert (hidden.grad.tolist(), x.grad.tolist()) == ([2, 4], [12, 24])
    with pytest.raises(GradientError, match="require"):
        Tensor([1.0]).retain_grad()


def test_requires_grad_is_none_until_somebody_says_so() -> None:
    x = Tensor([1.0])
    assert (x.requires_grad, x.detach().requires_grad) == (None, False)
    assert x.requires_grad_().requires_grad is True
    assert (x * 2).requires_grad is True
    assert copy.deepcopy(Tensor([1.0], requires_grad=False)).requires_grad is False
    with pytest.raises(GradientError, match="only floats"):
        Tensor([1]).requires_grad_()


def test_assigning_to_what_a_gradient_needs_is_an_error() -> None:
    x, w = Tensor([1.0, 2.0], requires_grad=True), Tensor([3.0, 4.0]).realize()
    product, total = (x * w).sum(), (x + w).sum()
    w.assign(Tensor([0.0, 0.0]))
    with pytest.raises(GradientError, match="assigned"):
        product.backward()
    total.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1, 1]


def test_a_function_of_ones_own() -> None:
    class Cube(Function):
        def forward(self, x: Tensor, scale: float) -> Tensor:
            self.save(x, scale)
            return x * x * x * scale

        def backward(self, grad: Tensor) -> Any:
            x, scale = self.saved
            return grad * x * x * (3 * scale), None

    x = Tensor([2.0], requires_grad=True)
    (first,) = Cube.apply(x, 2.0).sum().gradient(x)
    (second,) = first.sum().gradient(x)
    assert (first.item(), second.item()) == (24, 24)


def test_memory_stays_flat_without_the_garbage_collector() -> None:
    w = Tensor(np.ones((3, 3)), "NUMPY", requires_grad=True)
    x = Tensor(np.ones((2, 3)), "NUMPY")
    gc.disable()
    try:
        sizes = []
        for _ in range(1000):
            w.grad = None
            loss = (x @ w).relu().mean()
            loss.backward()
            assert w.grad is not None
            with no_grad():
                w.assign(w - w.grad * 0.001)
            w.realize(loss)
            sizes.append(count_nodes())
    finally:
        gc.enable()
    assert sizes[-1] == sizes[10]
