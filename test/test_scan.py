"""Running values along an axis, short and long: values, gradients, exact corners, work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from against_torch import Case, disagreements, pair

from tinyml import Tensor, dtypes
from tinyml.functional import scan
from tinyml.graph import toposort
from tinyml.schedule import KernelItem, schedule

inf, nan = float("inf"), float("nan")
SPECIAL = np.array([[1, 2, nan, 1], [-inf, -inf, 3, 3], [inf, 1, -inf, 0], [0, -0.0, 0, 2]], "f4")
ZEROS = np.array([[2, 0, 3, 0, 1], [1, 2, 0, 4, 5], [1, -1, 2, 0.5, 3]], np.float32)
TIES = np.array([1, 3, 3, 2, 3, 4, 4, 0], np.float32)
LONG = 2 * scan.BLOCK + 3
NAMES = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")


def values_of(name: str) -> Callable[..., Any]:
    """The op in torch, without the indices that its extremes come with."""
    first = name in ("cummax", "cummin")
    return lambda x, axis: getattr(x, name)(axis)[0] if first else getattr(x, name)(axis)


def both(label: str, name: str, axis: int, *inputs: Any, **options: Any) -> Case:
    ours, theirs = (lambda x: getattr(x, name)(axis)), values_of(name)
    return pair(f"{name} {label}", ours, lambda x: theirs(x, axis), *inputs, **options)


def shapes() -> list[Case]:
    cases = []
    for name in NAMES:
        cases += [both("axis", name, 1, (2, 5, 3)), both("rows", name, -1, (3, 4))]
        cases += [both("one", name, 1, (4, 1)), both("number", name, 0, ())]
        cases += [both("empty", name, 1, (2, 0)), both("no rows", name, 1, (0, 2))]
    return cases


def long() -> list[Case]:
    near = np.random.default_rng(5).uniform(0.9, 1.1, (2, LONG)).astype(np.float32)
    return [both("long", name, 1, near, rtol=2e-3, grad_atol=1e-2) for name in NAMES]


def corners() -> list[Case]:
    sums = [both("special", n, 1, SPECIAL, grad=False) for n in NAMES]
    extremes = [both("ties", n, 0, TIES) for n in ("cummax", "cummin")]
    whole = np.array([[3, -2, 5], [7, 0, 1]], np.int32)
    kept = [both("ints", n, 1, whole) for n in NAMES[:4]]
    short = [both("bytes", n, 1, whole.astype(np.int8)) for n in NAMES[:4]]
    halves = [both("half", n, 1, ZEROS.astype(np.float16), grad=False) for n in NAMES]
    bools = [both("bool", n, 1, whole > 2) for n in NAMES[:4]]
    zeros = [both("zeros", "cumprod", axis, ZEROS) for axis in (0, 1)]
    dtype = [
        pair("dtype", lambda x: x.cumsum(1, dtype="int16"),
             lambda x: x.cumsum(1).short(), whole)
    ]  # fmt: skip
    return sums + extremes + kept + short + halves + bools + zeros + dtype


@pytest.mark.parametrize("device", ["NUMPY", "CPU"], indirect=True)
@pytest.mark.parametrize("cases", [shapes, long, corners], ids=lambda f: f.__name__)
def test_as_torch(device: str, cases: Callable[[], list[Case]]) -> None:
    found = disagreements(cases())
    assert not found, "\n".join(found)


def test_on_every_device(device: str, compare: Callable[..., None]) -> None:
    x = np.random.default_rng(7).uniform(0.9, 1.1, (2, 130)).astype(np.float32)
    t = Tensor(x)
    compare(
        {
            "cumsum": (t.cumsum(1), np.cumsum(x, 1)),
            "cumsum 0": (t.cumsum(0), np.cumsum(x, 0)),
            "cumprod": (t.cumprod(1), np.cumprod(x, 1)),
            "cummax": (t.cummax(1), np.maximum.accumulate(x, 1)),
            "cummin": (t.cummin(1), np.minimum.accumulate(x, 1)),
            "logcumsumexp": (t.logcumsumexp(1), np.log(np.cumsum(np.exp(x), 1))),
        },
        1e-4,
    )


def test_logcumsumexp_neither_overflows_nor_forgets_what_is_small() -> None:
    x = np.array([-inf, -1000, -999, 0, 1000, 1000, 999], np.float32)
    t = Tensor(np.tile(x, 20), requires_grad=True)
    y = t.logcumsumexp(0)
    y[1:].sum().backward()
    wanted = np.logaddexp.accumulate(np.tile(x, 20).astype(np.float64))
    np.testing.assert_allclose(y.numpy(), wanted, 1e-6)
    assert t.grad is not None
    assert np.isfinite(t.grad.numpy()).all()


def test_a_million_ones_are_counted_exactly_and_small_ones_lose_nothing() -> None:
    n = 1_000_000
    ones, tenths = Tensor.full((n,), 1.0).cumsum(), Tensor.full((n,), 0.1).cumsum()
    Tensor.realize(ones, tenths)
    np.testing.assert_array_equal(ones.numpy(), np.arange(1, n + 1, dtype=np.float32))
    exact = np.arange(1, n + 1) * float(np.float32(0.1))
    assert np.abs(tenths.numpy() / exact - 1).max() < 1e-6  # one by one it would be 1e-2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backward", [False, True])
def test_work_grows_with_the_length(name: str, backward: bool) -> None:
    """A million elements: few kernels, none of which walks more than BLOCK per element."""
    n = 1_000_000
    x = Tensor.empty(n, device="CPU").realize()
    x.requires_grad = True
    made = getattr(x, name)(0)
    if backward:
        made.sum().backward()
        made = x.grad
    items = [i for i in schedule([made.lazy]).items if isinstance(i, KernelItem)]
    assert len(items) <= (40 if backward else 15)
    for item in items:
        for output in item.kernel.outputs:
            assert work(output.value) <= 1.1 * n * scan.BLOCK, item.kernel


def work(value: Any) -> int:
    """The most elements that one node of a kernel's value has."""
    return max(node.size for node in toposort([value]))


def test_indices_and_dtypes() -> None:
    assert Tensor([1, 2]).cumsum().dtype is dtypes.int64
    assert Tensor([True]).cummax().dtype is dtypes.bool


@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((3, 1000), 40),  # whole vectors of 8
        ((3, 1024), 16),
        ((3, 100), 16),  # so that the last one is filled up
        ((3, 1000, 4), 20),  # the last axis has the lanes: as few steps as possible
        ((3, 1000, 1), 40),
    ],
)
def test_blocks_divide_an_axis_if_possible(shape: tuple[int, ...], block: int) -> None:
    x = Tensor.empty(*shape, device="CPU").realize()
    items = schedule([x.cumsum(1).lazy]).items
    totals = {n for item in items if isinstance(item, KernelItem) for n in item.outputs[0].shape}
    assert -(-shape[1] // block) in totals
