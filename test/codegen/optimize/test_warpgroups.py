"""Matrix products of warpgroups (sm_90a), with Opts written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

import graphs
import pytest
import stages
from cards import CARD, compiled, instructions, on_emu
from graphs import leaf
from products import TOLERANCE, by_heads, product
from stages import kernel_of

from tinyml import lazy
from tinyml.cache import DiskCache
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import Opt, OptError, OptKind, optimize, parse
from tinyml.device import Device, open_device
from tinyml.dtype import DType, bfloat16, float16, float32
from tinyml.lazy import LazyBuffer
from tinyml.runtime import translation_units
from tinyml.runtime.emu import EmuMachine, ThreadOrder

HOPPER = replace(CARD, warpgroups=True)
FEWER_PARTS = replace(HOPPER, cores=16)
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
        ("warpgroup r0 192, thread i0 2", (256, 128, 384), True, False),
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


PADDED_FLOATS = "pad i0 64, pad i1 64, pad r0 32, "
PADDED = "pad i0 128, pad i1 128, pad r0 64, warpgroup r0 64, unroll i1 2"


def test_what_lies_beyond_an_edge_is_zeros() -> None:
    """In boxes or pieces of 16 bytes where no piece is cut, one by one where one is."""
    for (m, k, n), ahead, mark in (
        ((72, 104, 136), "bulk r0 2", "tinyml_copy_box"),
        ((72, 104, 136), "pipeline r0 2", "tinyml_cp_async16"),
        ((67, 130, 161), "pipeline r0 2", "swizzled<64>("),
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
    assert "__launch_bounds__(384" in text  # a warpgroup, which hands most of its registers on
    assert text.index("tinyml_hand_over_registers<40>") < text.index("tinyml_take_registers<232>")


@pytest.mark.parametrize(
    ("shape", "ahead"),
    [
        ((384, 320, 192), "persist i0 2, bulk r0 3"),  # 9 tiles: the last block has one
        ((256, 256, 128), "persist i1 2, bulk r0 2"),  # whole rounds of the stages
        ((256, 128, 192), "persist i0 3, pipeline r0 2"),
        ((256, 64, 192), "persist i0 6"),  # one block, and one step
    ],
)
def test_blocks_walk_several_tiles(shape: tuple[int, int, int], ahead: str) -> None:
    """Those of boxes, whose warp runs ahead of them, and those that all threads fill."""
    *_, last = ahead.split(", ")
    after = "r0" if shape[1] > 64 else "i1"
    steps = "split r0 4, unroll r0s 4, " if after == "r0" else "unroll r0 4, "
    staged = f"grid i0, grid i1, {steps}stage {after} slot1, stage {after} slot2"
    text = agree(
        product(*shape, bfloat16), opts(f"warpgroup r0 64, thread i0 2, {staged}, {ahead}")
    )
    assert ("tinyml_copy_box" in text) == last.startswith("bulk")


@pytest.mark.parametrize("ahead", ["bulk", "pipeline"])
def test_panels_begin_where_a_swizzle_does_beside_other_kernels(
    ahead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind a shared variable, in a unit whose first kernel has tiles of plain rows."""
    if not Device.available("EMU"):
        pytest.skip("no C++ compiler")
    monkeypatch.setattr(translation_units, "_START", 1 << 30)  # one unit
    plain = "fragment r0 16, grid i0, grid i1, split r0 2, stage r0 slot1, stage r0 slot2"
    first = compile(kernel_of(product(32, 64, 32, bfloat16)), CARD, opts(plain))
    shared = "split r0 16, grid r0, split r0s 4, unroll r0ss 4, stage r0s slot1, stage r0s slot2"
    root = product(64, 1024, 64, bfloat16)
    chosen = opts(f"warpgroup r0 64, {shared}, {ahead} r0s 2")
    second = compile(kernel_of(root), CARD, chosen)
    assert first.name < second.name, "units are in the order of names"
    assert "comes_last" in second.source
    machine = EmuMachine(DiskCache(None))
    runner = stages.launched(machine, machine.load([first, second])[1])
    stages.agree([root], graphs.values([root]), {"EMU": runner}, rtol=0.05, atol=0.05)


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
        ("persist i0 2", "one part of a fold"),
        ("grid i0, persist i0 129", "there are no 129 tiles"),
        ("grid i0, persist i0 2, persist i0 2", "one part of a fold"),
    ],
)
def test_what_does_not_fit_is_refused(chosen: str, why: str) -> None:
    with pytest.raises(OptError, match=why):
        optimize(lower(kernel_of(product(128, 128, 128, float16))), opts(chosen))


@pytest.mark.parametrize(
    ("shape", "crosswise", "first", "ahead", "mark"),
    [
        ((128, 96, 128), (False, True), "", "bulk r0 2", "tinyml_copy_box"),
        ((104, 72, 120), (False, True), PADDED_FLOATS, "bulk r0 3", "tinyml_copy_box"),
        ((128, 64, 128), (True, False), "", "pipeline r0 2", "tinyml_tf32"),
    ],
)
def test_floats_lose_bits_on_their_way_to_panels(
    shape: tuple[int, int, int], crosswise: tuple[bool, bool], first: str, ahead: str, mark: str
) -> None:
    """In boxes, along the fold; else every thread turns them."""
    root = product(*shape, float32, crosswise)
    assert mark in agree(root, opts(f"{first}warpgroup r0 64, {LAST}, {ahead}"), 0.01)


@pytest.mark.parametrize(("crosswise", "kind"), [(True, "warpgroup"), (False, "fragment")])
def test_floats_that_lie_along_the_fold_are_for_warpgroups(crosswise: bool, kind: str) -> None:
    plain = lower(kernel_of(product(512, 512, 512, float32, (False, crosswise))))
    for tf32, expected in ((True, {kind}), (False, set())):
        chosen, _ = choose(plain, replace(HOPPER, tf32=tf32))
        found = {opt.kind.value for opt in chosen}
        assert found & {"warpgroup", "fragment"} == expected


def test_warpgroups_multiply_what_is_staged() -> None:
    with pytest.raises(OptError, match="not staged in panels"):
        compile(kernel_of(product(128, 128, 128, float16)), CARD, opts("warpgroup r0 64, grid i0"))


@pytest.mark.parametrize(
    ("shape", "last"),
    [
        ((200, 136, 248), "bulk r0 3"),  # beyond each edge are zeros
        ((128, 2048, 128), "bulk r0s 4"),  # blocks share the fold
        ((128, 2056, 136), "bulk r0s 4"),  # zeros beyond its end make its parts equal
    ],
)
def test_rules_of_thumb_for_a_card_with_warpgroups(shape: tuple[int, int, int], last: str) -> None:
    root = product(*shape, bfloat16)
    chosen, _ = choose(lower(kernel_of(root)), FEWER_PARTS)
    assert OptKind.WARPGROUP in {opt.kind for opt in chosen}
    assert str(chosen[-1]) == last
    agree(root, chosen)


@pytest.mark.parametrize(
    "shape",
    [
        (104, 67, 101),  # nothing lies in pieces of 16 bytes
        (128, 64, 192),  # one step, before which nothing is copied
        (128, 128, 101),  # one factor does not
    ],
)
def test_what_threads_would_load_by_themselves_is_for_warps(shape: tuple[int, int, int]) -> None:
    chosen, _ = choose(lower(kernel_of(product(*shape, bfloat16))), HOPPER)
    kinds = {opt.kind for opt in chosen}
    assert OptKind.FRAGMENT in kinds
    assert OptKind.WARPGROUP not in kinds


@pytest.mark.parametrize(
    ("shape", "cores", "grid"),
    [
        ((768, 8192, 3072), 132, 96),  # another round of parts would take longer than it spares
        ((768, 8192, 768), 132, 4 * 24),  # a part for each multiprocessor
        ((768, 512, 3072), 132, 96),  # parts would take longer to bring together
        ((1024, 8192, 4096), 128, 128),  # every one has a tile
    ],
)
def test_blocks_share_a_fold_where_multiprocessors_would_be_idle(
    shape: tuple[int, int, int], cores: int, grid: int
) -> None:
    root = product(*shape, bfloat16, (True, False))
    program = compile(kernel_of(root), replace(HOPPER, cores=cores))
    assert program.grid == grid


@pytest.mark.parametrize("warpgroups", [True, False])
def test_parts_come_together(warpgroups: bool) -> None:
    """Of each of 3 tiles 2 blocks have a part, and one multiprocessor each."""
    root = product(320, 3072, 64, bfloat16, (True, False))
    target = replace(CARD, warpgroups=warpgroups, cores=6)
    chosen, _ = choose(lower(kernel_of(root)), target)
    program = compile(kernel_of(root), target, chosen)
    assert program.grid > 3
    assert program.held
    agree(root, chosen)


def test_few_sums_of_a_long_fold_are_for_more_blocks_than_warpgroups_have_tiles() -> None:
    """Each adds up less, and their parts are brought together by several."""
    for rows, warpgroups in ((64, False), (1024, True)):
        chosen, _ = choose(lower(kernel_of(product(rows, 8192, 64, bfloat16))), HOPPER)
        assert any(opt.kind is OptKind.WARPGROUP for opt in chosen) == warpgroups


@pytest.mark.parametrize("shape", [(16, 1024, 1024), (50, 50, 50), (1024, 1024, 20)])
def test_warpgroups_are_for_products_that_fill_them(shape: tuple[int, int, int]) -> None:
    root = product(*shape, bfloat16)
    for target in (HOPPER, CARD):
        chosen, _ = choose(lower(kernel_of(root)), target)
        assert {OptKind.WARPGROUP, OptKind.FRAGMENT} & {opt.kind for opt in chosen} == {
            OptKind.FRAGMENT
        }


def test_only_a_card_that_has_warpgroups_is_asked_for_them() -> None:
    root = product(1024, 1024, 1024, bfloat16)
    chosen, _ = choose(lower(kernel_of(root)), CARD)
    assert OptKind.FRAGMENT in {opt.kind for opt in chosen}


@pytest.mark.parametrize(
    ("shape", "dtype", "name"),
    [
        ((4096, 4096, 4096), bfloat16, "HGMMA.64x256x16.F32.BF16"),
        ((4096, 4096, 4096), float16, "HGMMA.64x256x16.F32"),
        ((256, 4096, 128), float16, "HGMMA.64x64x16.F32"),
        ((8192, 3072, 768), bfloat16, "HGMMA.64x192x16.F32.BF16"),  # 256 tiles, not 192
        ((4096, 4096, 4096), float32, "HGMMA.64x256x8.F32.TF32"),
    ],
)
def test_registers_suffice_for_what_the_rules_choose(
    shape: tuple[int, int, int], dtype: DType, name: str, tmp_path: Path
) -> None:
    root = product(*shape, dtype, (False, dtype is float32))
    program = compile(kernel_of(root), replace(HOPPER, tf32=True))
    resources, cubin = compiled(program, "sm_90a", tmp_path)
    assert not resources.spills
    assert not resources.stack
    assert resources.registers * prod(program.block) <= 1 << 16
    found = instructions(cubin)
    assert found[name] > 0 == found[name] % 4
    assert found["WARPGROUP.DEPBAR.LE"] <= found[name] // 4 + 1  # none waits for the one before
    assert found["UTMALDG.3D"] > 0
    assert found["USETMAXREG.TRY_ALLOC.CTAPOOL"] == (program.block[1] > 256)


FEW = replace(HOPPER, cores=2, tf32=True)  # so that blocks walk several tiles


@pytest.mark.parametrize(("inner", "kind"), [(256, OptKind.BULK), (200, OptKind.PIPELINE)])
def test_boxes_are_counted_by_one_loop(inner: int, kind: OptKind) -> None:
    """Images and pixels are folded in one; or pieces of 16 bytes are copied, if a box is cut."""
    first, second = leaf(4, 128, inner, dtype=bfloat16), leaf(4, inner, 256, dtype=bfloat16)
    shape = 4, 128, 256, inner
    a = lazy.expand(lazy.reshape(lazy.cast(first, float32), (4, 128, 1, inner)), shape)
    b = lazy.permute(lazy.reshape(lazy.cast(second, float32), (4, inner, 1, 256)), (0, 2, 3, 1))
    root = graphs.total(graphs.total(graphs.mul(a, lazy.expand(b, shape)), 3), 0)
    chosen, _ = choose(lower(kernel_of(root)), replace(HOPPER, cores=1))
    assert {OptKind.WARPGROUP, kind} <= {opt.kind for opt in chosen}
    agree(root, chosen)


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ((2, 4, 128, 64, 128), 4),  # a head is a panel
        ((2, 3, 64, 128, 192), 5),  # two panels are, beside three
        ((1, 4, 200, 64, 128), 4),  # zeros come beyond its edge
        ((2, 3, 128, 96, 128), 0),  # it would begin in one head and end in another
    ],
)
def test_a_factor_that_lies_by_heads_goes_to_panels(shape: tuple[int, ...], boxes: int) -> None:
    root = by_heads(*shape)
    chosen, _ = choose(lower(kernel_of(root)), FEW)
    text = agree(root, chosen)
    assert text.count("tinyml_copy_box(") == boxes
    assert ("tinyml_wgmma_m64" in text) == (boxes > 0)


def test_what_lies_by_heads_in_a_step_of_gpt2_comes_in_boxes(tmp_path: Path) -> None:
    program = compile(kernel_of(by_heads(8, 12, 1024, 64, 768)), HOPPER)
    resources, cubin = compiled(program, "sm_90a", tmp_path)
    assert not resources.spills
    assert not resources.stack
    found = instructions(cubin)
    assert found["UTMALDG.3D"] > 0
    assert any(name.startswith("HGMMA.64x") for name in found)


CHOSEN = [
    ("wgmma", bfloat16, (200, 136, 248), (True, False)),
    ("persist", bfloat16, (512, 128, 512), (False, False)),
    ("split", bfloat16, (128, 2056, 136), (False, True)),
    ("tf32 wgmma", float32, (512, 96, 256), (False, True)),
    ("tf32 mma", float32, (96, 72, 80), (False, False)),
]


def chosen_for(name: str, root: LazyBuffer) -> tuple[Opt, ...]:
    chosen, _ = choose(lower(kernel_of(root)), FEWER_PARTS if name == "split" else FEW)
    kinds = {opt.kind for opt in chosen}
    assert (OptKind.PERSIST in kinds) == (name in ("persist", "tf32 wgmma"))
    assert (OptKind.WARPGROUP in kinds) == (name != "tf32 mma")
    return tuple(chosen)


@pytest.mark.parametrize(("name", "dtype", "shape", "crosswise"), CHOSEN, ids=str)
def test_what_the_rules_choose_for_few_multiprocessors(
    name: str, dtype: DType, shape: tuple[int, int, int], crosswise: tuple[bool, bool]
) -> None:
    root = product(*shape, dtype, crosswise)
    agree(root, chosen_for(name, root))


@pytest.mark.cuda
@pytest.mark.parametrize(("name", "dtype", "shape", "crosswise"), CHOSEN, ids=str)
def test_a_card_has_what_the_emulator_has(
    name: str, dtype: DType, shape: tuple[int, int, int], crosswise: tuple[bool, bool]
) -> None:
    root = product(*shape, dtype, crosswise)
    on_hopper(root, chosen_for(name, root))


@pytest.mark.cuda
@pytest.mark.parametrize("crosswise", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("shape", [(1024, 1024, 1024), (4096, 256, 4096), (256, 4096, 128)])
def test_large_products_on_a_card(
    shape: tuple[int, int, int], crosswise: tuple[bool, bool]
) -> None:
    root = product(*shape, bfloat16, crosswise)
    chosen, _ = choose(lower(kernel_of(root)), HOPPER)
    on_hopper(root, chosen)


def on_hopper(root: LazyBuffer, chosen: Sequence[Opt]) -> None:
    if not Device.available("CUDA") or open_device("CUDA").target.capability != 90:
        pytest.skip("no Hopper card")
    runners = {"CUDA": stages.on_machine("CUDA", [kernel_of(root)], chosen)}
    stages.agree([root], graphs.values([root]), runners, rtol=0.05, atol=0.05)
