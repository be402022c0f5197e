"""How gradients are asked for, added up, refused and freed. What they are: test_gradients."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinyml import Device, Tensor, dtypes, lazy, no_grad, trace
from tinyml.errors import GradientError


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


EXTREMES: dict[str, Callable[[Tensor], Tensor]] = {
    "largest": lambda x: x.max(2),
    "smallest": lambda x: x.min(-1),
    "windows": lambda x: x.max_pool2d(2, 1),
    "so far": lambda x: (x + x.square() * 0.5).cummax(2),
    "by index": lambda x: x[..., :4].scatter_reduce(3, x[..., :4].int() + 1, x[..., 4:], "amax"),
}


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_that_are_in_memory_are_found_among_elements_that_are_made_again(
    name: str, device: str, rng: np.random.Generator
) -> None:
    """With gradients other kernels make the elements, and round them otherwise."""
    shapes = (1, 2, 5, 32), (1, 2, 2, 32), (1, 2, 2, 8)
    given = [Tensor(rng.standard_normal(s).astype(np.float32)).realize() for s in shapes]
    q, k, v = [x.requires_grad_() for x in given]
    slopes = []
    for first in (True, False):
        found = EXTREMES[name](q.scaled_dot_product_attention(k, v, is_causal=True).erf())
        if first:
            found.realize()
        slopes.append((found * found).sum().gradient(q, k, v))
    for ours, right in zip(*slopes, strict=True):
        np.testing.assert_allclose(ours.numpy(), right.numpy(), 1e-4, 1e-5)


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
    (slope,) = (zero**0 + zero * zero).sum().gradient(zero)
    assert slope.sum().gradient(zero)[0].tolist() == [2, 2, 2]


def test_gradient_needs_no_flag() -> None:
    x, y = Tensor([2.0, 3.0]), Tensor([5.0, 7.0])
    dx, dy = (x * y).sum().gradient(x, y)
    assert (dx.tolist(), dy.tolist()) == ([5, 7], [2, 3])
    cube = x * x * x
    (first,) = cube.gradient(x, gradient=Tensor([1.0, 1.0]))
    (second,) = first.sum().gradient(x)
    assert second.tolist() == [12, 18]
    assert x.grad is None
    assert (x * x).sum().gradient(x, gradient=Tensor([3.0]))[0].tolist() == [12, 18]


def test_what_has_no_gradient_says_so() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(GradientError, match="one number"):
        (x * 2).backward()
    one = Tensor([3.0], requires_grad=True)
    (one * one).backward()  # one number, too
    assert one.grad is not None
    assert one.grad.tolist() == [6.0]
    with pytest.raises(GradientError, match="not in the graph"):
        (x * 2).sum().gradient(Tensor([1.0]))
    with pytest.raises(GradientError, match="only floats"):
        (x * 2).sum().gradient(Tensor([1]))
    with pytest.raises(GradientError, match="requires"):
        (x > 0).sum().backward()
    with pytest.raises(GradientError, match="only floats"):
        Tensor([1], requires_grad=True)
    with pytest.raises(GradientError, match="only floats"):
        Tensor([1, 2]).requires_grad = True
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


def test_who_forgets_to_detach_a_state_is_told_so() -> None:
    w, state = Tensor([0.5], requires_grad=True), Tensor([1.0])
    state = state * w
    state.sum().backward()
    w.assign(w.detach() - 0.1)
    with pytest.raises(GradientError, match=r"h = h\.detach\(\)"):
        (state * w).sum().backward()


def test_what_is_added_in_place_to_what_was_freed_goes_on_from_it() -> None:
    x, total = Tensor([2.0, 3.0], requires_grad=True), Tensor([1.0, 1.0])
    total += x * x
    total.sum().backward()
    total += total * 2
    with pytest.raises(GradientError, match="freed"):
        total.sum().backward()


def test_a_gradient_is_not_asked_for_past_what_was_freed() -> None:
    x = Tensor([2.0, -3.0], requires_grad=True)
    freed = x * x
    freed.sum().backward(retain_graph=False)
    with pytest.raises(GradientError, match="freed"):
        (freed + x).sum().gradient(x)
    assert (x * 3).sum().gradient(x)[0].tolist() == [3.0, 3.0]


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


def test_hooks_are_called_in_their_order_though_nobody_holds_them() -> None:
    x = Tensor([1.0], requires_grad=True)
    for factor in (2, 3):
        x.register_hook(lambda grad, factor=factor: grad * factor + 1)
    x.sum().backward()
    assert x.grad.tolist() == [(1 * 2 + 1) * 3 + 1]


def test_a_tensor_between_retains_its_gradient_if_asked() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    hidden, other = x * 3, x * 2
    assert (x.is_leaf, hidden.is_leaf) == (True, False)
    hidden.retain_grad()
    loss = (hidden * other).sum()
    loss.backward()
    assert hidden.grad is not None
    assert x.grad is not None
    with pytest.warns(UserWarning, match="retain_grad"):
        assert other.grad is None
    assert (hidden.grad.tolist(), x.grad.tolist()) == ([2, 4], [12, 24])
    with pytest.raises(GradientError, match="require"):
        Tensor([1.0]).retain_grad()


def test_gradients_go_through_a_list_of_tensors_as_through_stack() -> None:
    w = Tensor([2.0, 3.0], requires_grad=True)
    losses = Tensor([w[0] * w[1], 1.0, [w[0], w[0] * w[0]][1]], dtype="float64")
    assert losses.dtype is dtypes.float64
    losses.sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [3 + 4, 2]
    leaf = Tensor([w[0], w[1]], requires_grad=True)
    (leaf * leaf).sum().backward()
    assert (leaf.grad.tolist(), w.grad.tolist()) == ([4, 6], [7, 2])
    assert Tensor([w[0], w[1]], requires_grad=False).requires_grad is False
    with no_grad():
        assert Tensor([w[0], w[1]]).requires_grad is None
    parameter = type("Parameter", (Tensor,), {})([w[0] * 2, 1.0])
    parameter.sum().backward()
    assert w.grad.tolist() == [9, 2]


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


def test_what_a_gradient_is_not_made_of_may_be_assigned_to() -> None:
    """Those of sigmoid and softmax are made of their results."""
    for of in (Tensor.sigmoid, Tensor.softmax):
        x = Tensor([0.5, -1.0, 2.0]).requires_grad_()
        weight, inner = Tensor([3.0, 1.0, 2.0]), x * 1.5
        y = (of(inner) * weight).sum()
        (wanted,) = y.gradient(x)
        right = wanted.numpy()
        inner.assign(Tensor.zeros(3))
        np.testing.assert_array_equal(y.gradient(x)[0].numpy(), right)


@pytest.mark.parametrize("realized", [False, True])
def test_readers_of_what_is_assigned_to_later_have_the_gradient_of_what_they_read(
    realized: bool,
) -> None:
    def found(read: Callable[[Tensor], Tensor], write: Callable[[Tensor], None]) -> list[float]:
        x = Tensor([1.0, 2.0], requires_grad=True)
        y = x * 3
        if realized:
            y.realize()
        before = read(y)
        write(y)
        return (before.sum() + y.sum()).gradient(x)[0].tolist()

    def add(y: Tensor) -> None:
        y += 1

    def unrecorded(y: Tensor) -> None:
        with no_grad():
            y += 1

    def put(y: Tensor) -> None:
        y[0] = 5.0

    readers: dict[Callable[[Tensor], Tensor], tuple[list[float], list[float]]] = {
        Tensor.clone: ([6, 6], [3, 6]),
        Tensor.relu: ([6, 6], [3, 6]),
        (lambda y: Tensor.stack(y, y * 2)): ([12, 12], [9, 12]),
        (lambda y: y * y): ([21, 39], [18, 39]),  # its own values, which were overwritten
        (lambda y: y[0] * y[0]): ([21, 3], [18, 3]),  # through a view
        (lambda y: y[0]): ([6, 3], [0, 3]),  # a view shows what is there now
    }
    for read, (added, replaced) in readers.items():
        assert found(read, add) == added
        assert found(read, put) == replaced
        assert found(read, unrecorded) == added


@pytest.mark.usefixtures("no_garbage")
def test_versions_are_forgotten_with_the_graph() -> None:
    w, y = Tensor([2.0, 3.0], "NUMPY", requires_grad=True), Tensor([1.0, 1.0], "NUMPY").realize()
    sizes = []
    for _ in range(12):
        y.requires_grad = None
        y.assign(w * 2)
        read = y * y
        y += w
        w.grad = None
        (read.sum() + y.sum()).backward()
        assert w.grad is not None
        Tensor.realize(w.grad, y)
        y.assign(y.detach())
        assert not y._past
        sizes.append(len(lazy.known))
    assert sizes[-1] == sizes[2]


@pytest.mark.usefixtures("no_garbage")
def test_memory_stays_flat_without_the_garbage_collector() -> None:
    w = Tensor(np.ones((3, 3)), "NUMPY", requires_grad=True)
    x = Tensor(np.ones((2, 3)), "NUMPY")
    sizes = {}
    for count in range(1000):
        w.grad = None
        loss = (x @ w).relu().mean()
        loss.backward()
        assert w.grad is not None
        with no_grad():
            w.assign(w - w.grad * 0.001)
        w.realize(loss)
        if count in (10, 999):
            sizes[count] = len(lazy.known)  # looks at all there are
    assert sizes[999] == sizes[10]


def test_gradients_of_operands_that_broadcast_have_their_shapes() -> None:
    x = Tensor(np.arange(12.0).reshape(4, 3), requires_grad=True)
    row, column, number = (Tensor(np.full(s, 2.0), requires_grad=True) for s in ((3,), (4, 1), ()))
    found = (x * row - column / number).sum().gradient(x, row, column, number)
    assert found[0].tolist() == [[2.0] * 3] * 4
    assert found[1].tolist() == [18.0, 22.0, 26.0]
    assert found[2].tolist() == [[-1.5]] * 4
    assert found[3].item() == 6.0


def test_an_operand_that_broadcasts_keeps_what_the_gradient_reads() -> None:
    x, row = Tensor(np.ones((2, 3)), requires_grad=True), Tensor(np.ones(3))
    product, total = (x * row).sum(), (x + row).sum()
    row.assign(row + 1)
    total.backward()
    with pytest.raises(GradientError, match="was assigned to after"):
        product.backward()


def test_what_was_assigned_over_has_a_gradient_of_zero_and_can_be_added_to() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = x * 2
    y[...] = 3
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0]
    for count in (1, 2):  # what was freed by now is as if it had never been
        y[...] = 0
        y += x * x
        y.sum().backward()
        assert x.grad.tolist() == [2.0 * count, 4.0 * count]


def test_a_state_that_is_cut_off_after_each_step_goes_on() -> None:
    w, state = Tensor([2.0], requires_grad=True), Tensor([1.0])
    for _ in range(3):
        state.assign(state * w)
        state.sum().backward()
        state.assign(state.detach())
    assert w.grad is not None
    assert (state.item(), w.grad.item(), state.grad) == (8.0, 7.0, None)


def test_a_norm_has_second_derivatives_where_an_element_is_0() -> None:
    x = Tensor([0.0, 3.0, 4.0], requires_grad=True)
    slope = x.norm().gradient(x)[0]
    assert slope[0].gradient(x)[0].tolist() == pytest.approx([0.2, 0.0, 0.0])


def test_a_gradient_through_a_detached_view_that_took_one_is_not_lost_in_silence() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    x = w * 1
    cut = x.detach()
    cut.assign(w * 3)
    later = cut + 1
    x[1] = 0
    with pytest.raises(GradientError, match="was assigned to after"):
        later.sum().backward()


def test_no_gradient_goes_by_way_of_what_a_tensor_was_before_it_took_one() -> None:
    w, x = Tensor([1.0, 2.0], requires_grad=True), Tensor([3.0, 4.0])
    p = Tensor([0.5, 0.25])
    root = (p * x).exp()
    y = root * w
    root *= w
    (y + root).sum().backward()
    e = np.exp([1.5, 1.0])
    np.testing.assert_allclose(w.grad.numpy(), 2 * e, rtol=1e-6)
    np.testing.assert_allclose(y.sum().gradient(p)[0].numpy(), [3, 8] * e, rtol=1e-6)


def test_what_a_tensor_was_is_not_kept_once_its_graph_is_freed() -> None:
    w = Tensor([1.0, 2.0], device="CPU", requires_grad=True)
    state = Tensor([3.0, 4.0], device="CPU").realize()
    state.assign(state.detach() + w)
    (state * state).sum().backward()
    Tensor([1.0]).assign(Tensor([2.0]))  # as an optimizer does
    with trace.listen(trace.Launched) as launched:
        state.realize()
    assert (state.tolist(), len(launched)) == ([4, 6], 1)


def test_the_gradient_of_what_took_a_leaf_is_the_leaf_s() -> None:
    w = Tensor([5.0, 6.0], requires_grad=True)
    x = Tensor([1.0, 2.0])
    for target in (x, x * 1, x.realize(), x.detach(), w * 2, x[:], Tensor([[1.0, 2.0]])):
        target.assign(w)
        (target * target).sum().backward()
        assert w.grad is not None
        with pytest.warns(UserWarning, match="retain_grad"):
            assert target.grad is None
        assert w.grad.tolist() == [10, 12]
        w.grad = None


def test_a_hook_waits_for_the_gradient_of_what_the_tensor_was() -> None:
    w = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    x, seen = w * 2, []
    x.register_hook(lambda grad: seen.append(grad.tolist()))
    before = x * 3
    x[0] = w[1]
    (before + x * x).sum().backward()
    assert seen == [[3.0, 11.0, 15.0]]
    assert w.grad is not None
    assert w.grad.tolist() == [6, 22 + 4, 30]
