"""Matrix products of warpgroups (sm_90a), with Opts written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path

import graphs
import pytest
import stages
from cards import CARD, compiled, instructions, on_emu
from graphs import leaf
from products import TOLERANCE, kernel_of, product

from tinyml import lazy
from tinyml.codegen.compile import compile
from tinyml.codegen.lower import lower
from tinyml.codegen.opts import Opt, OptError, optimize, parse
from tinyml.device import Device
from tinyml.dtype import bfloat16, float16, float32
from tinyml.lazy import LazyBuffer
from tinyml.runtime.emu import ThreadOrder

STAGED = "split r0 4, unroll r0s 4, stage r0 slot1, stage r0 slot2"
LAST = f"grid i0, grid i1, {STAGED}"


def opts(text: str) -> list[Opt]:
    return [parse(opt) for opt in text.split(", ")]


def agree(root: LazyBuffer, chosen: Sequence[Opt], tolerance: float = 0.05) -> str:
    """Simulated, and emulated with threads in every order, it is what the interpreter gives."""
    runners = {"simulated": stages.simulated(CARD, chosen)}
    program = compile(kernel_of(root), CARD, chosen, verify=True)
    if Device.available("EMU"):
        runners |= {f"EMU {order.name}": on_emu(program, order) for order in ThreadOrder}
    stages.agree([root], graphs.values([root]), runners, rtol=tolerance, atol=tolerance)
    return program.source


@pytest.mark.parametrize(
    ("first", "shape", "x", "y"),
    [
        ("warpgroup r0 64, thread i0 2", (256, 128, 128), False, False),
        ("warpgroup r0 64, unroll i0 2", (256, 128, 128), True, False),
        ("warpgroup r0 128, thread i0 2", (256, 128, 256), True, True),
        ("warpgroup r0 128, unroll i1 2", (128, 128, 512), False, True),
        ("warpgroup r0 64, unroll i1 2, thread i1 2", (128, 128, 512), False, False),
    ],
)
def test_matrix_products_of_warpgroups(
    first: str, shape: tuple[int, int, int], x: bool, y: bool
) -> None:
    """Factors that lie either way; several rows or columns of products, by one or two."""
    dtype = float16 if x is y else bfloat16
    root = product(*shape, dtype, (x, y))
    agree(root, opts(f"{first}, {LAST}, pipeline r0 2"), TOLERANCE[dtype])


PADDED = "pad i0 128, pad i1 128, pad r0 64, warpgroup r0 64, unroll i1 2"


def test_what_lies_beyond_an_edge_is_zeros() -> None:
    """In boxes or pieces of 16 bytes where no piece is cut, one by one where one is."""
    for (m, k, n), ahead, mark in (
        ((72, 104, 136), "bulk r0 2", "tinyml_copy_box"),
        ((72, 104, 136), "pipeline r0 2", "tinyml_cp_async16"),
        ((67, 130, 161), "pipeline r0 2", "swizzled("),
    ):
        assert mark in agree(product(m, k, n, bfloat16), opts(f"{PADDED}, {LAST}, {ahead}"))
    plain = lower(kernel_of(product(67, 130, 161, bfloat16)))
    with pytest.raises(OptError, match="a tile is not made of such"):
        optimize(plain, opts(f"{PADDED}, {LAST}, bulk r0 2"))


@pytest.mark.parametrize(
    ("stages_", "crosswise"), [(2, (False, False)), (3, (True, True)), (4, (False, True))]
)
def test_boxes_are_copied_ahead(stages_: int, crosswise: tuple[bool, bool]) -> None:
    """By a warp of its own, round and round as many stages as there are."""
    root = product(256, 320, 256, float16, crosswise)
    text = agree(root, opts(f"warpgroup r0 128, thread i0 2, {LAST}, bulk r0 {stages_}"), 0.02)
    assert "__launch_bounds__(288)" in text


def test_boxes_of_several_matrices() -> None:
    """Rows beyond one matrix are zeros, not those of the next."""

    def stacked(rows: int, columns: int) -> LazyBuffer:
        return lazy.cast(leaf(3, rows, columns, dtype=float16), float32)

    rows, inner, columns = 72, 128, 64
    x = graphs.spread(
        lazy.reshape(stacked(rows, inner), (3, rows, 1, inner)), (3, rows, columns, inner)
    )
    y = lazy.reshape(lazy.permute(stacked(inner, columns), (0, 2, 1)), (3, 1, columns, inner))
    root = graphs.total(graphs.mul(x, graphs.spread(y, (3, rows, columns, inner))), 3)
    made = lower(kernel_of(root))
    names = [a.name for a in made.nests[0].rows]
    assert names == ["i0", "i1", "i2"]
    staged = "grid i0, grid i1, split r0 4, unroll r0s 4, stage r0 slot1, stage r0 slot2"
    agree(root, opts(f"pad i1 128, warpgroup r0 64, {staged}, bulk r0 2"), 0.02)


def test_a_factor_that_is_computed_is_staged_ready_made() -> None:
    scaled = graphs.mul(leaf(128, 128, dtype=float16), leaf(128, 128, dtype=float16))
    root = graphs.matmul(
        lazy.cast(scaled, float32), lazy.cast(leaf(128, 128, dtype=float16), float32)
    )
    slots = sorted({load.slot for load in lower(kernel_of(root)).nests[0].loads})
    staged = ", ".join(f"stage r0 slot{slot}" for slot in slots)
    text = "warpgroup r0 64, grid i0, grid i1, split r0 4, unroll r0s 4"
    agree(root, opts(f"{text}, {staged}, pipeline r0 2"), 0.02)


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ("warpgroup r0 32", "cannot multiply 32 columns"),
        ("warpgroup r0 256", "pad it first"),
        ("warpgroup i0 64", "not one sum"),
        ("warpgroup r0 64, unroll i0w 2", "lanes of a warp"),
        ("warpgroup r0 64, grid i0, grid i1, stage r0 slot1", "in panels: pad"),
    ],
)
def test_what_does_not_fit_is_refused(chosen: str, why: str) -> None:
    with pytest.raises(OptError, match=why):
        optimize(lower(kernel_of(product(128, 128, 128, float16))), opts(chosen))


def test_warpgroups_multiply_halves_that_are_staged() -> None:
    with pytest.raises(OptError, match="cannot multiply float32"):
        optimize(lower(kernel_of(product(128, 128, 128, float32))), opts("warpgroup r0 64"))
    with pytest.raises(OptError, match="not staged in panels"):
        compile(kernel_of(product(128, 128, 128, float16)), CARD, opts("warpgroup r0 64, grid i0"))


@pytest.mark.parametrize(
    ("columns", "ahead"), [(128, "pipeline r0 3"), (128, "bulk r0 4"), (256, "bulk r0 4")]
)
def test_instructions_of_a_warpgroup(columns: int, ahead: str, tmp_path: Path) -> None:
    """Sums stay in their registers while products are made; nothing makes these wait in turn."""
    text = f"warpgroup r0 {columns}, thread i0 2, {LAST}, {ahead}"
    p = compile(kernel_of(product(1024, 1024, 1024, bfloat16)), CARD, opts(text))
    resources, cubin = compiled(p, "sm_90a", tmp_path)
    assert not resources.spills
    assert not resources.stack
    assert resources.registers * prod(p.block) <= 1 << 16
    found = instructions(cubin)
    matrices = found[f"HGMMA.64x{columns}x16.F32.BF16"]
    assert matrices > 0 == matrices % 4
    copies = "UTMALDG.3D" if "bulk" in ahead else "LDGSTS.E.BYPASS.128"
    assert found[copies] > 0
    assert found["WARPGROUP.DEPBAR.LE"] <= matrices // 4 + 1
