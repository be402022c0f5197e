"""Sums down rows are made in the kernel that walks the rows, a piece of them in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import stages

from tinyml import Tensor, kernel
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.lower import lower
from tinyml.codegen.nest import Kind
from tinyml.codegen.optimize.opts import Opt, OptError, OptKind, apply, find
from tinyml.kernel import Kernel
from tinyml.schedule import pieces, split

Made = Callable[[Tensor, Tensor, Tensor], Sequence[Tensor]]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tall and wide enough is so in small tests, too."""
    for name, value in (("TALL", 24), ("FEW_RESULTS", 4), ("PIECES", 8)):
        monkeypatch.setattr(split, name, value)
    monkeypatch.setattr(pieces, "FEW_ROWS", 4)


def memory(*shape: int, seed: int = 0, device: str = "CPU") -> Tensor:
    made = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return Tensor(made, device=device).realize()


def training(layer: Callable[[Tensor, Tensor], Tensor]) -> Made:
    """The result of a layer of rows and a vector, and both gradients."""

    def made(x: Tensor, w: Tensor, g: Tensor) -> Sequence[Tensor]:
        y = layer(x, w)
        return y, *y.gradient(x, w, gradient=g)

    return made


def biased(x: Tensor, w: Tensor, g: Tensor) -> Sequence[Tensor]:
    b = memory(x.shape[-1], seed=7, device=x.device).requires_grad_()
    y = x.layernorm() * w + b
    return y, *y.gradient(x, w, b, gradient=g)


def halves(x: Tensor, w: Tensor, g: Tensor) -> Sequence[Tensor]:
    y = (x.bfloat16().layernorm() * w).bfloat16()
    return y, *y.gradient(x, w, gradient=g.bfloat16())


def centred(x: Tensor, w: Tensor, g: Tensor) -> Sequence[Tensor]:
    """The rows need the sums first."""
    return ((x - (x * w).sum(tuple(range(len(x.shape) - 1)))).softmax(-1),)


def turned(x: Tensor, w: Tensor, g: Tensor) -> Sequence[Tensor]:
    """Rows whose elements lie apart: several are read at once."""
    x, g = x.T.contiguous().realize().T, g.T.contiguous().realize().T
    y = x.layernorm() * w
    return y, *y.gradient(w, gradient=g)


JOINED: dict[str, Made] = {
    "layernorm": training(lambda x, w: x.layernorm() * w),
    "layernorm with a bias": biased,
    "rmsnorm": training(lambda x, w: x * ((x * x).mean(-1, keepdim=True) + 1e-5).rsqrt() * w),
    "softmax of sums": training(lambda x, w: (x + w).softmax(-1)),
    "halves": halves,
}
SHAPES = [(24, 11), (40, 37), (3, 12, 9), (5, 9, 20), (8, 6, 13), (2, 1, 20, 10), (12, 2, 10)]


def numbers(made: Made, shape: tuple[int, ...], device: str) -> tuple[list[Kernel], list[Tensor]]:
    x, g = memory(*shape, device=device), memory(*shape, seed=2, device=device)
    w = memory(shape[-1], seed=1, device=device)
    found = made(x.requires_grad_(), w.requires_grad_(), g)
    kernels = stages.kernels(*found) if device != "NUMPY" else []
    Tensor.realize(*found)
    return kernels, [y.float() for y in found]


def adding(kernels: Sequence[Kernel]) -> list[Kernel]:
    return [k for k in kernels if any(output.across for output in k.outputs)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", JOINED)
def test_sums_down_rows_join_what_walks_the_rows(name: str, shape: tuple[int, ...]) -> None:
    kernels, _ = numbers(JOINED[name], shape, "CPU")
    (k,) = adding(kernels)
    kernel.verify(k)
    assert {len(output.rows) for output in k.outputs} <= {2, 3}
    stages.assert_right(k, 2e-2 if name == "halves" else 1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", [*JOINED, "centred"])
def test_the_numbers_are_those_of_numpy(name: str, shape: tuple[int, ...], device: str) -> None:
    made = JOINED.get(name, centred)
    tolerance = 5e-2 if name == "halves" else 1e-4
    pairs = zip(numbers(made, shape, device)[1], numbers(made, shape, "NUMPY")[1], strict=True)
    for found, right in pairs:
        np.testing.assert_allclose(found.numpy(), right.numpy(), tolerance, tolerance)


@pytest.mark.parametrize(
    ("made", "shape"),
    [
        (centred, (24, 11)),  # they are read by the rows
        (turned, (40, 37)),
        (JOINED["layernorm"], (23, 11)),  # too few rows
        (JOINED["layernorm"], (29, 11)),  # no pieces of the same size
        (JOINED["layernorm"], (24, 4)),  # few results share their rows out
    ],
)
def test_other_sums_have_kernels_of_their_own(made: Made, shape: tuple[int, ...]) -> None:
    assert not adding(numbers(made, shape, "CPU")[0])


def test_a_piece_is_walked_in_order() -> None:
    (k,) = adding(numbers(biased, (40, 37), "CPU")[0])
    assert [len(output.across) for output in k.outputs].count(1) == 2
    plain = lower(k)
    pieces_, rows = plain.nests[0].rows
    assert (pieces_.size, rows.size) == (8, 5)
    assert plain.nests[0].ordered == {rows}
    for opt in (Opt(OptKind.GRID, rows.name), Opt(OptKind.THREAD, rows.name, 5)):
        with pytest.raises(OptError, match="one after the other"):
            apply(plain, opt)
    for cores in (1, 2, 64):
        _, nest = choose(plain, replace(stages.C, cores=cores))
        assert nest.kind(find(nest, rows.name)) is Kind.LOOP
        assert nest.kind(find(nest, pieces_.name)) is Kind.GRID


def test_all_that_is_added_up_in_memory_begins_with_one_kernel() -> None:
    kernels, _ = numbers(biased, (40, 37), "CPU")
    (k,) = adding(kernels)
    zeros = kernels[kernels.index(k) - 1]
    assert len(zeros.outputs) == 2
    assert len(kernels) == 4


def test_sums_of_pieces_are_the_same_whatever_the_number_of_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody tells from the bits of a gradient how many threads there were."""
    monkeypatch.setattr(split, "TALL", 2048)
    x = memory(64, 384)
    k = stages.kernel_of(x.sum(0))
    found = []
    for cores in (1, 2, 8):
        arrays = [np.zeros(384, np.float32), x.numpy()]
        stages.simulated(replace(stages.C, cores=cores), None)(k, arrays)
        found.append(arrays[0].tobytes())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("turned", [False, True])
def test_pieces_of_a_product_lie_apart(monkeypatch: pytest.MonkeyPatch, turned: bool) -> None:
    monkeypatch.setattr(split, "LARGE", 64)
    monkeypatch.setattr(split, "PIECE", 32)
    a, b = memory(5, 96), memory(96, 7, seed=1)
    made = (memory(96, 5).T if turned else a) @ b
    first, second = stages.kernels(made)
    assert [n for n in first.slots[0][0] if n > 1] == [
        3,
        5,
        7,
    ]  # a core's piece has lines of its own
    for k in (first, second):
        stages.assert_right(k)
