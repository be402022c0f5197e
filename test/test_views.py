"""A view shows what is assigned to its root, and the root what is assigned to its views."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import numpy as np
import pytest

from tinyml import Tensor, TinyJit, dtypes, no_grad
from tinyml.errors import DTypeError, GradientError, JitError, ShapeError


def grid() -> Tensor:
    return Tensor(np.arange(12, dtype=np.float32).reshape(3, 4))


VIEWS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[np.ndarray], np.ndarray]]] = {
    "row": (lambda x: x[1], lambda x: x[1]),
    "steps": (lambda x: x[::2, 3:0:-2], lambda x: x[::2, 3:0:-2]),
    "transposed": (lambda x: x.T, lambda x: x.T),
    "flattened": (lambda x: x.reshape(-1), lambda x: x.reshape(-1)),
    "of views": (lambda x: x.T[1:, None][0, 0, 1:], lambda x: x.T[1:, None][0, 0, 1:]),
    "detached": (lambda x: x.detach()[2], lambda x: x[2]),
    "diagonal": (lambda x: x.diagonal(1)[::2], lambda x: np.einsum("ii->i", x[:, 1:])[::2]),
    "turned diagonal": (
        lambda x: x.reshape(2, 2, 3).diagonal(-1, 2, 0)[1:],
        lambda x: np.einsum("iji->ji", x.reshape(2, 2, 3)[:, :, 1:])[1:],
    ),
    "split": (lambda x: x.split([1, 2])[1].flatten(), lambda x: x[1:].reshape(-1)),
}


@pytest.mark.parametrize("realized", [True, False])
@pytest.mark.parametrize("name", VIEWS)
def test_reads_and_writes_go_both_ways(device: str, name: str, realized: bool) -> None:
    ours, numpys = VIEWS[name]
    x, y = grid() if realized else grid() * 1, np.arange(12, dtype=np.float32).reshape(3, 4)
    view, other = ours(x), numpys(y)
    before = view * 10  # a value: what was read then
    kept = other * 10
    x += 100
    y += 100
    view += 1
    other += 1
    view[0] = -5
    other[0] = -5
    view.assign(view * 2)
    other[...] = other * 2
    np.testing.assert_array_equal(view.numpy(), other)
    np.testing.assert_array_equal(x.numpy(), y)
    np.testing.assert_array_equal(before.numpy(), kept)


def test_what_is_no_view_keeps_its_values(device: str) -> None:
    x = grid()
    ops: dict[str, Callable[[Tensor], Tensor]] = {
        "clone": lambda x: x.clone(),
        "flip": lambda x: x.flip(0, 1),
        "roll": lambda x: x.roll(0, 0),
        "repeat": lambda x: x.repeat(1, 1),
        "interleave": lambda x: x.repeat_interleave(1, 0),
        "cat": lambda x: Tensor.cat(x),
        "stack": lambda x: Tensor.stack(x),
        "tensor index": lambda x: x[Tensor([0, 1, 2])],
        "sum of nothing": lambda x: x.sum(axis=()),
        "sum of ones": lambda x: x.reshape(3, 1, 4).sum(1),
        "scan of one": lambda x: x.reshape(1, 12).cumsum(0),
        "pad": lambda x: x.pad((0, 0)),
        "unfold": lambda x: x.unfold(0, 1, 1),
    }
    made = {name: op(x) for name, op in ops.items()}
    before = {name: op(grid()).numpy() for name, op in ops.items()}
    x *= -1
    for name, tensor in made.items():
        np.testing.assert_array_equal(tensor.numpy(), before[name], err_msg=name)
        tensor.assign(tensor * 0)
    np.testing.assert_array_equal(x.numpy(), -np.arange(12).reshape(3, 4))


UNCHANGED: dict[str, tuple[Tensor, Callable[[Tensor], Tensor]]] = {
    "sign of bools": (Tensor([True, True]), Tensor.sign),
    "trunc of whole numbers": (Tensor([1, 1]), Tensor.trunc),
    "logsumexp": (Tensor(1.0), Tensor.logsumexp),
    "cummax": (Tensor(1.0), lambda x: x.cummax(0)),
    "cummin": (Tensor(1), lambda x: x.cummin(0)),
    "sort": (Tensor(1.0), lambda x: x.sort()[0]),
    "topk": (Tensor(1.0), lambda x: x.topk(1)[0]),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_a_function_that_has_nothing_to_do_gives_a_value_of_its_own(device: str, name: str) -> None:
    like, op = UNCHANGED[name]
    x = like.to(device).clone()
    made = op(x)
    x.assign(x.zeros_like())
    assert (made.sum().item(), x.sum().item()) == (like.numel(), 0)
    x.assign(like.to(device))
    made.assign(made.zeros_like())
    assert (made.sum().item(), x.sum().item()) == (0, like.numel())


def test_a_view_of_bits(device: str) -> None:
    x = Tensor([1.0, 2.0, 3.0]).realize()
    x[:2].bitcast(dtypes.uint32).assign(Tensor([0x40800000, 0x40400000], dtype=dtypes.uint32))
    assert x.tolist() == [4, 3, 3]
    halves, wide = x.bitcast("uint16"), x[1:].bitcast("int64")
    halves[1] = 0x4000  # the high half of the first
    assert x.tolist() == [2, 3, 3]
    wide.assign(wide * 0)
    assert (x.tolist(), halves.tolist()) == ([2, 0, 0], [0, 0x4000, 0, 0, 0, 0])


def test_repeated_elements_cannot_be_assigned_to() -> None:
    with pytest.raises(ShapeError, match="several elements of the target are one"):
        Tensor([1.0]).expand(3).assign(Tensor([1.0, 2.0, 3.0]))


def test_an_assigned_value_is_cast_within_its_kind(device: str) -> None:
    counts = Tensor([1, 2], device).realize()
    counts.assign(counts.cast("int64").sum())
    assert (counts.dtype, counts.tolist()) == (dtypes.int32, [3, 3])
    halves = Tensor([1.0, 2.0], device, "float16").realize()
    halves.assign(counts + 0.5).assign(halves * Tensor([2.0, 4.0], device))
    assert (halves.dtype, halves.tolist()) == (dtypes.float16, [7.0, 14.0])
    with pytest.raises(DTypeError, match="float32 cannot go to int32"):
        counts.assign(halves.float())
    with pytest.raises(DTypeError, match="int32 cannot go to bool"):
        (counts > 0).assign(counts)
    counts[0] = 2.75  # a place is set like in numpy and torch: what is left of it
    assert counts.tolist() == [2, 3]


def test_in_place_ops_keep_shape_and_dtype() -> None:
    x = Tensor([1, 2, 3])
    with pytest.raises(DTypeError, match="keeps the dtype"):
        x += 0.5
    with pytest.raises(ShapeError, match="keeps the shape"):
        x += Tensor([[1, 2, 3], [4, 5, 6]])
    y = x
    x **= 2
    x //= 2
    x %= 3
    x <<= 1
    x |= 1
    x ^= 2
    x &= 7
    x >>= 1
    assert x is y
    assert x.tolist() == [((((n**2 // 2 % 3) << 1 | 1) ^ 2) & 7) >> 1 for n in (1, 2, 3)]


def test_the_memory_of_a_view_lives_as_long_as_one_of_its_views(device: str) -> None:
    x = grid()
    upper, lower = x[:2], x[1:]
    del x
    upper += 100
    assert lower[0].tolist() == [104, 105, 106, 107]


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_siblings_of_a_value_that_nobody_holds(device: str, dtype: str) -> None:
    def siblings() -> tuple[Tensor, Tensor, Tensor]:
        x = Tensor(np.arange(6), device, dtype) + 0
        return x[:4], x[1:], x.reshape(2, 3)

    head, tail, table = siblings()
    old = head * 2
    tail += 10
    del tail
    assert table.tolist() == [[0, 11, 12], [13, 14, 15]]
    table[0, 1] = 5
    del table
    assert (head.tolist(), old.tolist()) == ([0, 5, 12, 13], [0, 2, 4, 6])
    head, tail, table = siblings()
    Tensor.realize(head, tail)
    head.detach()[1:3] *= -1
    del head
    assert table.tolist() == [[0, -1, -2], [3, 4, 5]]
    first, *_ = rows = [row[1:] for row in siblings()[2]]
    first.realize()
    rows[1] *= 2
    assert [row.tolist() for row in rows] == [[1, 2], [8, 10]]


@pytest.mark.parametrize("name", VIEWS)
def test_a_computed_view_does_not_share_the_memory_of_its_copies(name: str) -> None:
    ours, numpys = VIEWS[name]
    w = grid().realize()
    view = ours(w).realize()
    copy, taken = view.contiguous(), view * 0
    taken.assign(view)
    copy += 1
    taken -= 1
    Tensor.realize(copy, taken)
    wanted = numpys(w.numpy())
    for ours_now, numpys_now in ((view, wanted), (copy, wanted + 1), (taken, wanted - 1)):
        np.testing.assert_array_equal(ours_now.numpy(), numpys_now)
    first, second = ours(w), Tensor(ours(w))  # one node, of a view and of none
    Tensor.realize(second, first)
    second += 1
    np.testing.assert_array_equal(second.numpy(), wanted + 1)
    np.testing.assert_array_equal(first.numpy(), wanted)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("written", ["tensor", "view"])
def test_views_of_equal_tensors_show_their_own(device: str, written: str, together: bool) -> None:
    x = grid().realize()
    first, second = x * 2, x * 2
    seen, other, later = first.detach(), second.detach(), first.detach() - 1
    if together:
        Tensor.realize(other, first, seen, second)
    else:
        Tensor.realize(first, second)
    target = first if written == "tensor" else seen
    target += 1
    target.realize()
    wanted = x.numpy() * 2
    for ours in (first, seen):
        np.testing.assert_array_equal(ours.numpy(), wanted + 1)
    for ours in (second, other, later + 1):
        np.testing.assert_array_equal(ours.numpy(), wanted)
    other -= 1
    np.testing.assert_array_equal(second.numpy(), wanted - 1)
    np.testing.assert_array_equal(first.numpy(), wanted + 1)


def test_a_view_outlives_a_value_that_was_computed_or_changed(device: str) -> None:
    with no_grad():
        w = grid().realize()
        x, y = w * 2, w * 3
        turned, row = x.T, y[1]
        w.assign(w * 0).realize()
        y += 1
        del x, y
    assert turned[0].tolist() == [0, 8, 16]
    assert row.tolist() == [13, 16, 19, 22]


def test_a_value_is_not_kept_for_its_only_view(device: str) -> None:
    with no_grad():
        x = grid() + 1
        gone = weakref.ref(x)
        turned = x.reshape(4, 3).T  # beside a view in between, for a while
        del x
        assert turned.realize()[0].tolist() == [1, 4, 7, 10]
    assert gone() is None


def test_gradients_flow_through_what_views_wrote(device: str) -> None:
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = x * 2
    part = y[1:]
    part *= x[0]  # 2 * x0 * x[1:]
    first = y[:1]
    y *= 3
    (part.sum() + first.sum()).backward()
    assert y.tolist() == [6, 12, 18]
    assert x.grad is not None
    assert x.grad.tolist() == [6 * 5 + 6, 6, 6]


def test_what_is_written_to_a_view_of_a_passing_value_is_kept(device: str) -> None:
    x = Tensor([[1.0, 2.0], [3.0, 4.0]], device, requires_grad=True)
    turned = (x * 2).T
    first = turned[0]
    turned += x
    assert turned.tolist() == [[3.0, 8.0], [7.0, 12.0]]
    first *= 10
    assert first.tolist() == [30.0, 80.0]
    y = x * 1
    y[:, Tensor([1, 0], device)] += x
    assert y.tolist() == [[3.0, 3.0], [7.0, 7.0]]
    (grad,) = y.sum().gradient(x)
    assert grad.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_a_parameter_is_not_changed_while_gradients_are_recorded() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    drawn = Tensor.rand(2, requires_grad=True)
    for leaf in (w, drawn):
        with pytest.raises(GradientError, match="leaf requires a gradient"):
            leaf[:1] += 1
    w.detach()[0] = 7
    assert w.requires_grad
    (w * 3).sum().backward()
    assert w.grad is not None
    assert (w.tolist(), w.grad.tolist()) == ([7, 2], [3, 3])


def test_what_is_written_without_recording_leaves_gradients_as_they_were(device: str) -> None:
    w = Tensor([1.0, 2.0], device, requires_grad=True)
    h, kept = w * 2, (w * 1).exp()
    first = h[:1]
    h.detach()[0] = 7
    with no_grad():
        first += 1
        kept *= 0
    (h * h + kept).sum().backward()
    assert (h.tolist(), kept.tolist()) == ([8, 4], [0, 0])
    assert w.grad is not None
    np.testing.assert_allclose(w.grad.numpy(), [4 * 8 + np.exp(1), 4 * 4 + np.exp(2)], rtol=1e-5)


def test_a_detached_view_has_the_gradient_of_what_is_written_to_it(device: str) -> None:
    w, x = Tensor([1.0, 2.0], device, requires_grad=True), Tensor([3.0, 4.0], device)
    cut = x.detach()
    cut *= w
    assert (x.requires_grad, x.tolist(), cut.tolist()) == (None, [3, 8], [3, 8])
    (grad,) = cut.sum().gradient(w)
    assert grad.tolist() == [3, 4]
    with pytest.raises(GradientError, match="view of a detached"):
        cut[0] *= w[0]
    cut = w.detach()
    cut *= w
    with pytest.raises(GradientError, match="was assigned to"):
        cut.sum().backward()


def test_views_of_a_detached_view_have_the_gradient_of_what_is_written_to_it() -> None:
    w, x = Tensor([1.0, 2.0, 3.0], requires_grad=True), Tensor([3.0, 4.0, 5.0])
    cut = x.detach()
    pair = cut[1:]
    cut *= w
    (grad,) = (pair * pair).sum().gradient(w)
    assert grad.tolist() == [0, 64, 150]
    cut[2] = 7.0
    assert pair.sum().gradient(w)[0].tolist() == [0, 4, 0]
    cut[...] = 7.0
    assert pair.tolist() == [7, 7]
    assert not any(t.requires_grad for t in (cut, pair))


def test_a_detached_leaf_does_not_take_a_gradient() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    leaf = w.detach().requires_grad_()
    with pytest.raises(GradientError, match="leaf requires a gradient"):
        leaf *= w


def test_each_gradient_is_a_tensor_of_its_own(device: str) -> None:
    x, y = (Tensor([v, v], requires_grad=True) for v in (1.0, 2.0))
    for _ in range(2):
        (x + y).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    x.grad *= 10
    assert (x.grad.tolist(), y.grad.tolist()) == ([20, 20], [2, 2])


# ---- under TinyJit ----


def test_views_outside_see_what_a_replay_writes(device: str) -> None:
    w = grid().realize()
    row, column = w[1], w[:, 2].realize()

    @TinyJit
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        w[0] += x
        w.T[2].assign(column * 2)
        return row + 0, w[0]

    y = w.numpy()
    for i in range(5):
        x = np.full(4, i, np.float32)
        value, view = step(Tensor(x))
        y[0] += x
        y[:, 2] *= 2
        for ours, numpys in ((w, y), (row, y[1]), (column, y[:, 2]), (value, y[1]), (view, y[0])):
            np.testing.assert_array_equal(ours.numpy(), numpys)
        w += 1
        y += 1
        np.testing.assert_array_equal(view.numpy(), y[0])


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_that_a_step_returns_follows_what_it_is_of(name: str) -> None:
    w = grid().realize()
    ours, numpys = VIEWS[name]
    step = TinyJit(lambda x: (x + 1, ours(w)))
    for call in range(4):
        _, view = step(Tensor([float(call)]).realize())
        w += 1
        np.testing.assert_array_equal(view.numpy(), numpys(w.numpy()))


def test_a_step_does_not_write_through_an_argument_that_is_a_view(device: str) -> None:
    step = TinyJit(lambda x: x.assign(x + 1))
    big = grid().realize()
    step(big[0])
    with pytest.raises(JitError, match="argument 0 is a view"):
        step(big[1])
    other = TinyJit(lambda x: x.assign(x + 1))
    for _ in range(3):
        other(grid()[0].clone().realize())
    with pytest.raises(JitError, match="argument 0, and it is a view"):
        other(big[0])


def test_a_view_requires_a_gradient_once_what_it_shows_does() -> None:
    w, x = Tensor([1.0, 2.0], requires_grad=True), Tensor([0.0, 0.0])
    view, cut = x.unsqueeze(0), x.detach()
    x[...] = w * 2
    assert view.requires_grad
    assert not cut.requires_grad
