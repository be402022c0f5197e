"""Matrix products on tensor cores and tiles that are filled ahead, with Opts written by hand."""

from __future__ import annotations

from collections.abc import Sequence

import graphs
import numpy as np
import pytest
import stages
from cards import on_emu
from graphs import leaf
from products import TOLERANCE, product
from stages import kernel_of

from tinyml import lazy
from tinyml.codegen.compile import compile
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import Opt, OptError, optimize, parse
from tinyml.device import Device
from tinyml.dtype import DType, float16, float32, float64
from tinyml.lazy import LazyBuffer
from tinyml.runtime.emu import ThreadOrder
from tinyml.schedule import schedule

KINDS = list(TOLERANCE)


def opts(dtype: DType, *more: str) -> list[Opt]:
    """Blocks of 64 x 32 elements, four warps, 32 or 16 steps at a time."""
    depth = 8 if dtype is float32 else 16
    first = f"fragment r0 {depth}, unroll i0 2, thread i0 2, thread i1 2, grid i0"
    last = "grid i1, split r0 2, stage r0 slot1, stage r0 slot2"
    return [parse(text) for text in (*first.split(", "), *last.split(", "), *more)]


def agree(root: LazyBuffer, chosen: Sequence[Opt], tolerance: float) -> None:
    """Simulated, and emulated with threads in every order, it is what the interpreter gives."""
    runners = {"simulated": stages.simulated(stages.CUDA, chosen)}
    if Device.available("EMU"):
        program = compile(kernel_of(root), stages.CUDA, chosen, verify=True)
        runners |= {f"EMU {order.name}": on_emu(program, order) for order in ThreadOrder}
    stages.agree([root], graphs.values([root]), runners, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("y", [False, True])
@pytest.mark.parametrize("x", [False, True])
@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_matrix_products_of_warps(dtype: DType, x: bool, y: bool) -> None:
    root = product(128, 64, 64, dtype, (x, y))
    agree(root, opts(dtype), TOLERANCE[dtype])


@pytest.mark.parametrize("stages_", [2, 3, 4])
def test_tiles_are_filled_ahead(stages_: int) -> None:
    root = product(128, 160, 64, float16)
    agree(root, opts(float16, f"pipeline r0 {stages_}"), TOLERANCE[float16])


@pytest.mark.parametrize("dtype", [*KINDS, None], ids=str)
def test_blocks_share_a_fold(dtype: DType | None) -> None:
    """The last part is shorter; the last block to come adds the parts up, in their order."""
    depth = 8 if dtype is float32 else 16
    warps = f"fragment r0 {depth}, unroll i0 2, thread i0 2, thread i1 2, grid i0, grid i1"
    alone = "thread i0 16, thread i1 16, unroll i0 2, grid i0, grid i1"
    parts = f"{warps}, split r0 4" if dtype else f"{alone}, split r0 64"
    parts += ", grid r0, split r0s 2"
    staged = "stage r0s slot1, stage r0s slot2, pipeline r0s 2" if dtype else "stage r0s slot1"
    chosen = [parse(text) for text in f"{parts}, {staged}".split(", ")]
    agree(product(128, 160, 64, dtype or float32), chosen, TOLERANCE.get(dtype, 1e-4))


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_what_lies_beyond_an_edge_is_zeros(dtype: DType) -> None:
    """In pieces of 16 bytes where no piece is cut, one by one where one is."""
    for m, k, n in ((72, 72, 56), (67, 50, 33)):
        padded = [parse(text) for text in ("pad i0 64", "pad i1 32", "pad r0 32")]
        root = product(m, k, n, dtype)
        chosen = [*padded, *opts(dtype, "pipeline r0 2")]
        agree(root, chosen, TOLERANCE[dtype])
        text = compile(kernel_of(root), stages.CUDA, chosen).source
        assert ("tinyml_cp_async16_or_zero(" in text) == (m == 72)


def test_a_factor_that_is_computed_is_staged_ready_made() -> None:
    scaled = graphs.mul(leaf(128, 64, dtype=float16), leaf(128, 64, dtype=float16))
    root = graphs.matmul(
        lazy.cast(scaled, float32), lazy.cast(leaf(64, 64, dtype=float16), float32)
    )
    plain = lower(kernel_of(root))
    slots = sorted({load.slot for load in plain.nests[0].loads})
    chosen = [*opts(float16)[:-2], *(Opt(parse("stage r0 slot1").kind, "r0", 0, s) for s in slots)]
    agree(root, [*chosen, parse("pipeline r0 2")], 0.01)


def test_a_factor_that_is_not_staged_is_gathered() -> None:
    for dtype in KINDS:
        agree(product(128, 64, 64, dtype), opts(dtype)[:-2], TOLERANCE[dtype])


def test_floats_lose_their_last_bits_and_no_more() -> None:
    root = product(128, 64, 64, float32)
    known = graphs.values([root])
    made = schedule([root])
    found = stages.run(made, known, stages.simulated(stages.CUDA, opts(float32)))[0]
    wanted = stages.interpreted([root], known)[0]
    error = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert 1e-6 < error < 1e-3


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ("fragment r0 8", "cannot multiply"),
        ("fragment i0 16", "not one sum"),
        ("pipeline r0 2", "need threads"),
        ("grid r0", "make it once"),
        ("grid i0, grid i1, split r0 8, grid r0, split i0 2", "make it once"),
        ("pipeline r0 200", "no loop of 200 steps"),
        ("fragment r0 16, pipeline r0 2", "no tile"),
        ("fragment r0 16, grid i0, pipeline i0 2", "no loop"),
    ],
)
def test_what_does_not_fit_is_refused(chosen: str, why: str) -> None:
    with pytest.raises(OptError, match=why):
        optimize(
            lower(kernel_of(product(64, 64, 64, float16))), list(map(parse, chosen.split(", ")))
        )


def test_sizes_that_are_no_whole_steps_are_refused() -> None:
    for shape in ((63, 64, 64), (64, 63, 64), (64, 64, 63)):
        with pytest.raises(OptError, match="pad it first"):
            optimize(lower(kernel_of(product(*shape, float16))), [parse("fragment r0 16")])


def test_doubles_have_no_fragments() -> None:
    plain = lower(
        kernel_of(graphs.matmul(leaf(64, 64, dtype=float64), leaf(64, 64, dtype=float64)))
    )
    with pytest.raises(OptError, match="cannot multiply float64"):
        optimize(plain, [parse("fragment r0 16")])


def test_lanes_of_a_warp_stay_where_they_are() -> None:
    made = optimize(lower(kernel_of(product(64, 64, 64, float16))), [parse("fragment r0 16")])
    for opt in ("unroll i0q 2", "thread i1q 2", "order i0q", "thread r0 2"):
        with pytest.raises(OptError):
            optimize(made, [parse(opt)])


def test_a_tile_is_of_the_rows_of_who_reads_it() -> None:
    """Else the fold would be made where nobody knows which rows the tile is of."""
    plain = lower(kernel_of(graphs.convolution(1, 2, 3, 5, 4)))
    with pytest.raises(OptError, match="its rows are not those"):
        optimize(plain, [parse("stage r1 slot1")])
