"""What nobody reads any more is overwritten by who reads it last, where elements meet their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import graphs
import numpy as np
import numpy.typing as npt
import pytest
from graphs import add, leaf, mul, total

from tinyml import Tensor, TinyJit, defaults, lazy, trace
from tinyml.device import Device
from tinyml.dtype import float32
from tinyml.kernel import Kernel, Output, takers
from tinyml.lazy import LazyBuffer
from tinyml.schedule import KernelItem, schedule


def made_of(*roots: LazyBuffer) -> tuple[Kernel, list[LazyBuffer]]:
    """The last kernel of a graph, and the node that each of its slots is."""
    item = schedule(roots).items[-1]
    assert isinstance(item, KernelItem)
    return item.kernel, [*item.nodes]


def overwritten(x: LazyBuffer, *roots: LazyBuffer) -> bool:
    """Whether an output of the last kernel may have the memory of `x`."""
    kernel, nodes = made_of(*roots)
    return nodes.index(x) in takers(kernel)


X, Y = leaf(32, 48), leaf(32, 48)
A, B = leaf(32, 16), leaf(16, 48)

CASES: dict[str, tuple[bool, Callable[[], list[LazyBuffer]]]] = {
    "an op on elements": (True, lambda: [mul(X, Y)]),
    "what meets a sum of products": (True, lambda: [mul(graphs.matmul(A, B), X)]),
    "twice in one result": (True, lambda: [mul(add(X, Y), X)]),
    "another order": (False, lambda: [add(lazy.permute(X, (1, 0)), leaf(48, 32))]),
    "elements side by side": (False, lambda: [add(lazy.flip(X, (1,)), X)]),
    "a part": (False, lambda: [lazy.shrink(X, ((0, 16), (0, 48)))]),
    "in a fold": (False, lambda: [total(mul(X, Y), 1)]),
    "in a fold, and beside it": (False, lambda: [graphs.softmax(X)]),
    "in one result, and a fold of it": (False, lambda: [mul(X, Y), total(mul(X, Y), 1)]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_result_may_have_the_memory_of_what_it_alone_reads_element_by_element(case: str) -> None:
    wanted, make = CASES[case]
    assert overwritten(X, *make()) is wanted


def test_what_two_results_read_stays() -> None:
    first, second = (lazy.node(lazy.Slot, (4, 6), float32, "", (), n) for n in (2, 3))
    made = (mul(first, second), add(first, first))
    part = tuple(Output(n, (4, 6), value, (0, 1)) for n, value in enumerate(made))
    assert takers(Kernel((part,), (((4, 6), float32),) * 4)) == {3: 0}


def test_a_factor_stays() -> None:
    kernel, nodes = made_of(graphs.matmul(leaf(32, 32), leaf(32, 32)))
    assert len(nodes) == 3
    assert takers(kernel) == {}


@pytest.fixture(params=["CPU", "EMU"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    if not Device.available(request.param):
        pytest.skip(f"no {request.param} here")
    with defaults(device=request.param):
        yield request.param


Array = npt.NDArray[np.float32]


def drawn(*shapes: tuple[int, int]) -> tuple[list[Array], list[Tensor]]:
    """Numbers, and real tensors of them."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    return arrays, [Tensor(a).realize() for a in arrays]


FOUR = (33, 20), (20, 45), (33, 24), (24, 45)


def launched(*wanted: Tensor) -> list[tuple[Any, ...]]:
    """The buffers of each launch that `wanted` take, outputs first."""
    with trace.listen(trace.Launched) as found:
        Tensor.realize(*wanted)
    return [event.buffers for event in found]


def test_a_product_that_meets_another_is_stored_over_it(device: str) -> None:
    (a, b, c, d), (x, y, z, w) = drawn(*FOUR)
    result = (x @ y) * (z @ w)
    first, second = launched(result)
    assert second[0] is first[0]
    np.testing.assert_allclose(result.numpy(), (a @ b) * (c @ d), 1e-4, 1e-4)


@pytest.mark.parametrize("beside", ["asked for", "read by a fold"])
def test_what_somebody_else_wants_is_there(beside: str, device: str) -> None:
    (a, b, c, d), (x, y, z, w) = drawn(*FOUR)
    product = x @ y
    other, right = (product, a @ b) if beside == "asked for" else (product.sum(0), (a @ b).sum(0))
    result = product * (z @ w)
    launched(result, other)
    np.testing.assert_allclose(other.numpy(), right, 1e-4, 1e-4)
    np.testing.assert_allclose(result.numpy(), (a @ b) * (c @ d), 1e-4, 1e-4)


def test_what_was_in_memory_before_stays(device: str) -> None:
    (a, b, c), (x, y, z) = drawn((33, 45), *FOUR[2:])
    result = x * (y @ z)
    launched(result)
    np.testing.assert_allclose(result.numpy(), a * (b @ c), 1e-4, 1e-4)
    np.testing.assert_array_equal(x.numpy(), a)


def test_a_replay_overwrites_what_is_its_own(device: str) -> None:
    (a, b, c, d), (x, y, z, w) = drawn(*FOUR)

    @TinyJit
    def step(x: Tensor) -> Tensor:
        return ((x @ y) * (z @ w)).realize()

    results = [step(Tensor(a + n).realize()) for n in range(4)]
    for n, result in enumerate(results):
        np.testing.assert_allclose(result.numpy(), ((a + n) @ b) * (c @ d), 1e-3, 1e-3)
    np.testing.assert_array_equal(x.numpy(), a)
