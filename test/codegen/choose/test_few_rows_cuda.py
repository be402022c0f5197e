"""Few rows or columns, as channels of images or biases: many threads fold each."""

from __future__ import annotations

import re
from math import prod

import graphs
import numpy as np
import pytest
import stages
from cards import CARD, on_emu

from tinyml import Device, kernel
from tinyml.codegen.compile import compile
from tinyml.dtype import DType, bfloat16, float32
from tinyml.kernel import Kernel
from tinyml.runtime.emu import ThreadOrder

WHOLE = [(32, 128, 4, 4), (32, 64, 8, 8), (32, 128, 7, 7), (8, 96, 14, 14)]
SHAPES = [(32, 3, 4, 4), (3, 5, 7, 7), (5, 2, 6, 10), (2, 3, 40, 40), (9, 2, 1, 65), (70, 4, 2, 2)]


def norm(*shape: int, dtype: DType = float32) -> Kernel:
    """Channels less their mean, by their deviation."""
    x = graphs.memory(*shape, device="EMU", dtype=dtype)
    apart = x - x.mean((0, 2, 3), keepdim=True)
    y = apart / (apart.square().mean((0, 2, 3), keepdim=True) + 1e-5).sqrt()
    return stages.kernel_of(y)


@pytest.mark.parametrize("shape", WHOLE, ids=str)
def test_a_channel_has_a_warp_at_least_and_each_thread_few_elements(
    shape: tuple[int, ...],
) -> None:
    program = compile(norm(*shape), CARD)
    threads, channels = program.grid * prod(program.block), shape[1]
    assert threads >= 32 * channels
    assert prod(shape) <= 16 * threads
    assert "for (" not in program.source.partition("__global__")[2]  # all of it in registers


def test_many_rows_of_a_few_elements_are_threads() -> None:
    program = compile(norm(2, 1 << 16, 2, 2), CARD)
    assert program.grid * prod(program.block) == 1 << 16


def test_neighbours_are_read_together_where_they_lie_so() -> None:
    for size, together in ((4, True), (7, False)):
        source = compile(norm(32, 128, size, size), CARD).source
        assert ("pack<float, 4>" in source) == together


@pytest.mark.skipif(not Device.available("EMU"), reason="no C++ compiler")
@pytest.mark.parametrize("order", ThreadOrder)
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_threads_in_any_order(shape: tuple[int, ...], dtype: DType, order: ThreadOrder) -> None:
    agree(norm(*shape, dtype=dtype), dtype, order)


def agree(k: Kernel, dtype: DType, order: ThreadOrder) -> None:
    """What EMU makes of a kernel, and what the interpreter does."""
    rng = np.random.default_rng(7)
    arrays = [graphs.numbers(rng, shape, dtype) for shape, dtype in k.slots]
    wanted = [a.copy() for a in arrays]
    kernel.run(k, wanted)
    on_emu(compile(k, CARD, verify=True), order)(k, arrays)
    found, right = (a[0].astype(np.float64) for a in (arrays, wanted))
    close = 0.02 if dtype is bfloat16 else 1e-4
    np.testing.assert_allclose(found, right, rtol=close, atol=close * np.abs(right).max())


# ---- columns ----

SUMS = [(1024, 256), (128, 512), (512, 768), (256, 3072), (70, 20), (515, 6), (300, 33)]


def column_sums(rows: int, columns: int, dtype: DType = float32) -> Kernel:
    """Of an array and of its squares, as gradients of a shift and a scale."""
    x = graphs.memory(rows, columns, device="EMU", dtype=dtype)
    y = x.float().sum(0) + 2 * x.float().square().sum(0)
    return stages.kernel_of(y)


@pytest.mark.parametrize(("rows", "columns"), SUMS[:4])
def test_threads_of_a_block_share_a_column_before_blocks_do(rows: int, columns: int) -> None:
    program = compile(column_sums(rows, columns), CARD)
    across = program.block[0]
    assert 4 <= across <= 32
    assert prod(program.block) == 256
    (parts,) = re.findall(r"comes_last\(.*, (\d+)\)\)", program.source) or ["1"]
    assert int(parts) <= 32  # which one block brings together
    assert int(parts) == max(1, rows // 256)


@pytest.mark.skipif(not Device.available("EMU"), reason="no C++ compiler")
@pytest.mark.parametrize("order", ThreadOrder)
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(1024, 256), *SUMS[4:]])
def test_columns_by_threads_in_any_order(
    rows: int, columns: int, dtype: DType, order: ThreadOrder
) -> None:
    agree(column_sums(rows, columns, dtype), dtype, order)


# ---- images ----


def small_images(images: int, channels: int, size: int, dtype: DType = float32) -> Kernel:
    x, w = (
        graphs.memory(*shape, device="EMU", dtype=dtype)
        for shape in ((images, channels, size, size), (channels, channels, 3, 3))
    )
    return stages.kernel_of(x.conv2d(w, padding=1))


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_images_too_small_for_a_tile_share_one(dtype: DType) -> None:
    program = compile(small_images(32, 128, 4, dtype), CARD)
    assert program.shared > 0
    assert program.grid <= 132


@pytest.mark.skipif(not Device.available("EMU"), reason="no C++ compiler")
@pytest.mark.parametrize("order", ThreadOrder)
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize(("images", "channels", "size"), [(8, 32, 4), (5, 40, 3), (20, 32, 2)])
def test_small_images_by_threads_in_any_order(
    images: int, channels: int, size: int, dtype: DType, order: ThreadOrder
) -> None:
    agree(small_images(images, channels, size, dtype), dtype, order)
