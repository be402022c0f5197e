"""Sorting and selection: stable, NaN last, all dtypes, few kernels for any length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from against_torch import Case, disagreements, pair, same

from tinyml import Tensor
from tinyml.functional import sort
from tinyml.schedule import KernelItem, schedule

Array = npt.NDArray[Any]
inf, nan = float("inf"), float("nan")
SPECIAL = np.array([2, nan, -0.0, 0, inf, -inf, 0, -0.0, -nan, 1e-40, -3, inf], np.float32)
LONG = sort.COUNTED + 70


def sorted_by(label: str, dim: int, descending: bool, x: Any, **options: Any) -> Case:
    ours, theirs = (lambda t: t.sort(dim, descending=descending)), {"stable": True, "dim": dim}
    return pair(
        f"sort {label} {descending}",
        ours,
        lambda t: t.sort(**theirs, descending=descending),
        x,
        narrow=True,
        **options,
    )


def many(dtype: str, n: int = LONG) -> Array:
    """Rows with ties, and with the bounds of the dtype."""
    rng = np.random.default_rng(3)
    if dtype == "bool":
        return rng.random((2, n)) > 0.4
    if dtype.startswith("float"):
        x = (rng.integers(-200, 200, (2, n)) / 8).astype(dtype)
        x[:, :12] = SPECIAL
        return x
    bounds = np.iinfo(dtype)
    x = rng.integers(bounds.min, bounds.max, (2, n), dtype, endpoint=True)
    x[:, ::3] = x[:, 1:2]
    x[:, :2] = bounds.min, bounds.max
    return x


def short() -> list[Case]:
    cases = [sorted_by("special", 0, d, SPECIAL, grad=False) for d in (False, True)]
    cases += [sorted_by("axis", 0, d, (3, 5, 2)) for d in (False, True)]
    cases += [sorted_by("number", 0, False, ()), sorted_by("one", 1, True, (3, 1))]
    cases += [sorted_by("empty", 1, True, (3, 0)), sorted_by("no rows", 1, True, (0, 3))]
    cases += [
        same("argsort", lambda x: x.argsort(1, descending=True), (3, 5), narrow=True),
        same("topk", lambda x: x.topk(2), (3, 5), narrow=True),
        same("topk axis", lambda x: x.topk(2, 0, largest=False), (3, 5), narrow=True),
        same("topk none", lambda x: x.topk(0), (3, 5), narrow=True),
        same("topk number", lambda x: x.topk(1), (), narrow=True),
    ]
    return cases


TYPES = ("bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64")


def types() -> list[Case]:
    return [
        sorted_by(dtype, 1, descending, many(dtype, n), grad=False)
        for dtype in TYPES
        for descending in (False, True)
        for n in (14, 150, LONG)
    ]


def gradients() -> list[Case]:
    cases = [sorted_by("long", -1, d, (2, LONG)) for d in (False, True)]
    cases += [
        same(f"topk {n}", lambda x, n=n: x.topk(n, largest=n < 9), (2, LONG), narrow=True)
        for n in (3, 40)
    ]
    middle = (2, sort.SORTED + 9)  # sorted by counting, selected by digits
    cases.append(same("topk middle", lambda x: x.topk(3), middle, narrow=True))
    return cases


@pytest.mark.parametrize("device", ["NUMPY", "CPU"], indirect=True)
@pytest.mark.parametrize("cases", [short, types, gradients], ids=lambda f: f.__name__)
def test_as_torch(device: str, cases: Callable[[], list[Case]]) -> None:
    found = disagreements(cases())
    assert not found, "\n".join(found)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_nan_of_either_sign_is_last(device: str, dtype: str) -> None:
    x = Tensor(np.array([3, -1, nan, 2, -nan, -1, 0])).cast(dtype)
    (values, order), down = x.sort(), x.argsort(descending=True)
    Tensor.realize(values, order, down)
    assert values.dtype is x.dtype
    assert order.tolist() == [1, 5, 6, 3, 0, 2, 4]
    assert down.tolist() == [2, 4, 0, 3, 6, 1, 5]


def test_on_every_device(device: str) -> None:
    x = many("float32")
    (order, down), key = (Tensor(x).argsort(), Tensor(x).sort(descending=True)[0]), x + 0.0
    top, where = Tensor(x).topk(9, largest=False)
    Tensor.realize(order, down, top, where)
    wanted = np.argsort(key, kind="stable")
    np.testing.assert_array_equal(order.numpy(), wanted)
    np.testing.assert_array_equal(down.numpy(), np.sort(x)[:, ::-1])
    np.testing.assert_array_equal(where.numpy(), wanted[:, :9])
    np.testing.assert_array_equal(top.numpy(), np.take_along_axis(x, wanted[:, :9], 1))


@pytest.mark.parametrize("k", [1, 7, 255])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_selection_is_the_start_of_a_sort(k: int, dtype: str) -> None:
    """Also among many equal values, which come in the order they have."""
    x = Tensor(many(dtype))
    for largest in (True, False):
        values, order = x.topk(k, largest=largest)
        all_values, all_order = x.sort(descending=largest)
        Tensor.realize(values, order, all_values, all_order)
        np.testing.assert_array_equal(order.numpy(), all_order.numpy()[:, :k])
        np.testing.assert_array_equal(values.numpy(), all_values.numpy()[:, :k])


def test_all_passes_share_their_kernels() -> None:
    """What is compiled does not grow with the number of passes, nor much with the length."""
    for n in (5_000, 1_000_000):
        x = Tensor.empty(n, device="CPU").realize()
        for made in (x.sort(), x.topk(5)):
            items = schedule([t.lazy for t in made]).items
            kernels = {item.kernel for item in items if isinstance(item, KernelItem)}
            assert len(kernels) <= 30
            assert len(items) <= 130


def test_values_and_indices_have_names(device: str) -> None:
    x = Tensor([3.0, 1.0, 2.0])
    assert x.sort().values.tolist() == [1, 2, 3]
    assert x.sort().indices.tolist() == [1, 2, 0]
    values, indices = best = x.topk(2)
    assert (best.values is values, best.indices is indices) == (True, True)
    assert (values.tolist(), indices.tolist()) == ([3, 2], [0, 2])
