"""What only values can show to be wrong is an error when it is computed, and harms nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import nan

import numpy as np
import pytest
import stages

from tinyml import Tensor, TinyJit, nn, search
from tinyml.codegen.compile import compile
from tinyml.device import open_device
from tinyml.errors import LinAlgError
from tinyml.nn.optim import SGD
from tinyml.schedule import KernelItem, schedule

X = np.arange(15, dtype=np.float32).reshape(5, 3)


def table() -> Tensor:
    return Tensor(X)


def labels(*values: int) -> Tensor:
    return Tensor(np.array(values, np.int64))


WRONG: dict[str, tuple[Callable[[], Tensor], str]] = {
    "index": (lambda: table()[labels(1, 7)], "index 7 is out of bounds for axis 0 of (5, 3)"),
    "two indices, of which the flat one would fit": (
        lambda: table()[labels(0, 1), labels(2, 3)],
        "index 3 is out of bounds for axis 1 of (5, 3)",
    ),
    "small dtype": (lambda: table()[Tensor(np.array([-6], np.int8))], "index -6 is out of bounds"),
    "no wrap around": (
        lambda: table()[Tensor(np.array([2**32 - 1], np.uint32))],
        "index 4294967295 is out of bounds",
    ),
    "in a vector": (
        lambda: Tensor(X.reshape(-1))[labels(*range(12), 15, *range(7))],
        "index 15 is out of bounds for axis 0 of (15,)",
    ),
    "below, in a vector of few bits": (
        lambda: Tensor(X.reshape(-1))[Tensor(np.array([*range(12), -16, 1, 2, 3], np.int32))],
        "index -16 is out of bounds for axis 0 of (15,)",
    ),
    "gather": (
        lambda: table().gather(1, labels(0, 3).reshape(2, 1)),
        "index 3 is out of bounds for axis 1 of (5, 3) (gather)",
    ),
    "scatter": (
        lambda: table().scatter(0, labels(0, -6).reshape(2, 1), 1.0),
        "index -6 is out of bounds for axis 0 of (5, 3) (scatter)",
    ),
    "what is the same everywhere": (lambda: Tensor.zeros(5)[labels(4, 5)], "index 5 is out of"),
    "False everywhere": (
        lambda: Tensor.zeros(5, dtype="bool")[labels(0, 5)],
        "index 5 is out of bounds for axis 0 of (5,)",
    ),
    "a place, of which there is one": (
        lambda: Tensor([5.0]).scatter(0, labels(1), 1.0),
        "index 1 is out of bounds for axis 0 of (1,) (scatter)",
    ),
    "cross_entropy": (
        lambda: table().cross_entropy(labels(0, 1, 2, -1, 0)),
        "cross_entropy: class -1 is out of bounds for 3 classes; ignore_index names one that does",
    ),
    "sparse_categorical_crossentropy": (
        lambda: table().sparse_categorical_crossentropy(labels(0, 1, -1, 3, 0)),
        "class 3 is out of bounds for 3 classes",
    ),
    "one_hot": (lambda: labels(0, 5).one_hot(5), "one_hot: class 5 is out of bounds for 5"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_out_of_range_is_named(device: str, name: str) -> None:
    make, message = WRONG[name]
    for _ in range(2):  # the second time by a known plan
        with pytest.raises(IndexError, match=re.escape(message)):
            make().realize()
    assert table()[labels(4, -5)].tolist() == [[12, 13, 14], [0, 1, 2]]


def test_where_there_is_one_place_only_that_is_overwritten(device: str) -> None:
    x = Tensor.zeros(1).contiguous().realize()
    x[labels(0)] = 2
    x[labels(1)] = 3
    with pytest.raises(IndexError, match=r"index 1 is out of bounds for axis 0 of \(1,\)"):
        x.realize()


def matrix(*rows: list[float]) -> Tensor:
    return Tensor(np.array(rows, np.float32))


REFUSED: dict[str, tuple[Callable[[], Tensor], type[Exception], str]] = {
    "indefinite": (
        lambda: matrix([1, 0], [0, -1]).cholesky(),
        LinAlgError,
        "not positive definite",
    ),
    "NaN": (lambda: matrix([nan, 0], [0, 1]).cholesky(), LinAlgError, "not positive"),
    "singular": (lambda: matrix([1, 0], [0, 0]).inverse(), LinAlgError, "matrix is singular"),
    "negative weight": (lambda: matrix([1, -1]).multinomial(), RuntimeError, "weight is negative"),
    "no weight": (lambda: matrix([0, 0]).multinomial(2, True), RuntimeError, "too few weights"),
    "one weight for two": (lambda: matrix([0, 3]).multinomial(2), RuntimeError, "too few weights"),
    "scores for chances": (
        lambda: matrix([2, -1]).binary_crossentropy(matrix([1, 0])),
        RuntimeError,
        r"between 0 and 1; of scores write x.binary_crossentropy_logits\(y\)",
    ),
    "no chance": (lambda: matrix([0, 1, nan]).bernoulli(), RuntimeError, "bernoulli: .*0 and 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_op_cannot_take_is_refused(device: str, name: str) -> None:
    make, error, message = REFUSED[name]
    with pytest.raises(error, match=message):
        make().realize()


def test_nothing_is_demanded_where_a_value_is_not_asked_for(device: str) -> None:
    """Beyond the edge of a padding, and in steps that threads and lanes take for nothing, an index
    is computed from zeros."""
    rng = np.random.default_rng(0)
    places = rng.integers(100, 140, (37,))
    weights = rng.standard_normal((40, 33)).astype(np.float32)
    other = rng.standard_normal((33, 29)).astype(np.float32)
    rows = Tensor(weights)[Tensor(places) - 100]
    right = weights[places - 100]
    padded, product = rows.pad(((2, 3), (1, 0))), rows @ Tensor(other)
    counted = Tensor(weights).transpose(0, 1)[:, Tensor.arange(13) * 3]
    Tensor.realize(padded, product, counted)
    np.testing.assert_array_equal(padded.numpy(), np.pad(right, ((2, 3), (1, 0))))
    np.testing.assert_allclose(product.numpy(), right @ other, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(counted.numpy(), weights.T[:, ::3][:, :13])


PROVEN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "counted": lambda x, _: x[x._arange(5) * 2 - 4],
    "bounded by hand": lambda x, i: x[i.clip(0, 4)],
    "a remainder": lambda x, i: x[i % 5],
    "a bool": lambda x, i: x[(i > 0).cast("int32")],
    "few bits": lambda x, i: x.cat(*[x] * 51)[i.cast("uint8")],
    "asked for already": lambda x, i: x.nll_loss(i, x[0] + 1),
}


@pytest.mark.parametrize("name", PROVEN)
def test_what_cannot_fail_is_not_asked(name: str) -> None:
    x, i = Tensor(X, "NUMPY").realize(), Tensor(np.arange(5) % 3, "NUMPY").realize()
    items = schedule([PROVEN[name](x, i).lazy]).items
    kernels = [item.kernel for item in items if isinstance(item, KernelItem)]
    for target in stages.TARGETS.values():
        asked = {fault for k in kernels for fault in compile(k, target).faults}
        assert len(asked) == (name == "asked for already")


def test_a_replay_raises_and_the_next_one_is_right(device: str) -> None:
    total = Tensor.zeros(3).contiguous().realize()

    @TinyJit
    def step(places: Tensor) -> Tensor:
        rows = Tensor(X)[places].sum(0)
        return total.assign(total + rows).sum().realize()

    for places in ([0, 1], [1, 2], [2, 3]):
        step(labels(*places))
    before = total.numpy()
    with pytest.raises(IndexError, match="index 5 is out of bounds"):
        step(labels(0, 5)).item()
    if device == "CUDA":  # nobody waits within a replay
        total.assign(Tensor(before)).realize()
    np.testing.assert_array_equal(total.numpy(), before)
    step(labels(3, 4))
    np.testing.assert_array_equal(total.numpy(), before + X[3] + X[4])


# ---- what was to hold the value ----


def test_a_step_on_a_wrong_label_does_not_happen(device: str) -> None:
    with Tensor.train():
        model = nn.Embedding(5, 3)
        optimizer = SGD([model.weight], lr=0.5)
        start = model.weight.numpy()

        def step(places: Tensor, classes: Tensor) -> None:
            optimizer.zero_grad()
            model(places).cross_entropy(classes).backward()
            optimizer.step()

        with pytest.raises(IndexError, match="cross_entropy: class 3"):
            step(labels(1, 4), labels(0, 3))
        np.testing.assert_array_equal(model.weight.numpy(), start)
        step(labels(1, 4), labels(0, 2))
        assert (model.weight.numpy() != start).any(1).tolist() == [False, True, False, False, True]


def test_assignments_beside_a_fault_are_done_once(device: str) -> None:
    counter, x, y = Tensor([0, 0]).realize(), table().realize(), table().realize()
    counter.assign(counter + 1)
    x.assign(x[labels(0, 1, 2, 3, 5)])
    y[labels(4)] = 7.0
    y[labels(5)] = 8.0
    with pytest.raises(IndexError, match="index 5"):
        Tensor.realize(counter, x, y)
    assert counter.tolist() == [1, 1]
    np.testing.assert_array_equal(x.numpy(), X)
    np.testing.assert_array_equal(y.numpy()[3:], [X[3], [7, 7, 7]])
    counter.assign(counter + 1)
    x += 1
    Tensor.realize(counter, x)
    assert counter.tolist() == [2, 2]
    np.testing.assert_array_equal(x.numpy(), X + 1)


def test_nothing_is_overwritten_before_a_fault(device: str) -> None:
    """The write depends on nothing that is required, so that only the order puts it later."""
    first, second = Tensor(X).realize(), Tensor(X + 1).realize()
    kept = first * 2
    first.assign(first + 100)
    wrong = (second.sum(0, keepdim=True).expand(5, 3) + second)[labels(9)]
    with pytest.raises(IndexError, match="index 9"):
        Tensor.realize(first, wrong)
    np.testing.assert_array_equal(kept.numpy(), X * 2)
    np.testing.assert_array_equal(first.numpy(), X + 100)


def test_a_search_leaves_kernels_that_find_fault_with_drawn_numbers_alone() -> None:
    values = Tensor(X.reshape(-1), "CPU").realize()
    rows = values[Tensor(np.arange(100, 103), "CPU").realize() - 100]
    (item,) = schedule([rows.lazy]).items
    assert isinstance(item, KernelItem)
    assert search.found(item.kernel, open_device("CPU"), 1, 0.1) is None
