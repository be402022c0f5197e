"""Along folds: factors of floats that tensor cores read along the fold alone are stored so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import graphs
import numpy as np
import pytest
import stages
from cards import CARD

from tinyml import Device, Tensor, device
from tinyml.codegen.compile import compile
from tinyml.device import along_folds, open_device
from tinyml.dtype import DType, bfloat16, float32
from tinyml.kernel import Kernel
from tinyml.schedule import layouts as rule
from tinyml.schedule import schedule

HOPPER = replace(CARD, warpgroups=True, tf32=True)


def floats(*shape: int, dtype: DType = float32) -> Tensor:
    return graphs.memory(*shape, dtype=dtype, device="EMU")


def kernels(*results: Tensor, along: frozenset[str] = frozenset({"EMU"})) -> list[Kernel]:
    return stages.kernels_of(schedule([tensor.lazy for tensor in results], along))


def copies(made: list[Kernel]) -> list[tuple[int, ...]]:
    return [k.slots[0][0] for k in made if len(k.slots) == 2]


def test_what_lies_across_the_fold_is_stored_once_more() -> None:
    """In one kernel each; then warpgroups multiply, and boxes bring both factors."""
    a, b, c = floats(1024, 768), floats(768, 1040), floats(1024, 1048)
    for product, copied in (
        (a @ b, [(1040, 768)]),
        (a.T @ c, [(768, 1024), (1048, 1024)]),
        (a @ floats(1048, 768).T, []),
        (floats(256, 4096) @ floats(4096, 4096), [(4096, 4096)]),  # blocks have a third of the fold
    ):
        made = kernels(product)
        assert copies(made) == copied
        assert [len(compile(k, HOPPER).boxes) for k in made] == [0] * len(copied) + [2]


def test_products_share_a_copy() -> None:
    b = floats(1024, 1024)
    assert copies(kernels(floats(1000, 1024) @ b, floats(2000, 1024) @ b)) == [(1024, 1024)]
    assert copies(kernels(b @ b)) == [(1024, 1024)]  # of which one factor lies well


def test_who_needs_no_copies_makes_none() -> None:
    a, b = floats(1024, 1024), floats(1024, 1024)
    halves = floats(1024, 1024, dtype=bfloat16)
    assert len(kernels(a @ b, along=frozenset())) == 1
    assert len(kernels(halves @ halves)) == 1
    assert len(kernels(floats(16, 1024) @ b)) == 1  # not multiplied for long
    assert len(kernels(a.T[:, :1021] @ b[:1021])) == 1  # rows of 1021 would begin anywhere
    q, k, v = (floats(4, 2048, 64) for _ in range(3))
    assert len(kernels((q @ k.transpose(1, 2)).softmax(-1) @ v)) == 1  # weights are made again


def test_rows_are_turned_by_a_kernel_of_its_own() -> None:
    """A row's softmax is stored along the row, though a product wants it along the tokens."""
    x, g = floats(2048, 512), floats(2048, 1024)
    rows = x.softmax(-1)
    made = kernels(rows, rows.T @ g)
    assert copies(made) == [(2048, 512), (512, 2048), (1024, 2048)]
    assert [len(k.outputs) for k in made] == [1] * len(made)


def test_copies_of_heads_are_made_of_their_tokens() -> None:
    """What lies by heads is no one axis below a reshape: it is copied above."""
    x, heads = floats(8, 512, 768), floats(8, 512, 12, 64)
    made = kernels(heads.reshape(4096, 768).T @ x.reshape(4096, 768))
    assert len(made) == 3
    assert len(compile(made[-1], HOPPER).boxes) == 2


def test_one_number_that_is_stored_has_no_rows_to_turn() -> None:
    assert len(kernels((floats(8) * 2).sum().contiguous())) == 1


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if not Device.available("EMU"):
        pytest.skip("no C++ compiler")
    monkeypatch.setattr(rule, "FLOPS", 0.01)  # small products are worth it, too
    monkeypatch.setitem(device._opened, "EMU", replace(open_device("EMU"), target=HOPPER))
    open_device.cache_clear()
    yield "EMU"
    open_device.cache_clear()


def test_a_layer_with_gradients(hopper: str, rng: np.random.Generator) -> None:
    assert hopper in along_folds()
    given = [rng.standard_normal(s, dtype=np.float32) for s in ((192, 96), (96, 128), (192, 128))]
    results = []
    for name in hopper, "NUMPY":
        x, w, g = (Tensor(t, device=name).realize() for t in given)
        x.requires_grad = w.requires_grad = True
        y = x @ w
        results.append([t.numpy() for t in (y, *y.gradient(x, w, gradient=g))])
    for found, right in zip(*results, strict=True):
        np.testing.assert_allclose(found, right, rtol=0.01, atol=0.01 * np.abs(right).max())
