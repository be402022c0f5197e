"""Halves that four lanes have of a row are accessed in whole pieces, each by one of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import graphs
import pytest
import stages
from cards import CARD, compiled, instructions, on_emu
from graphs import leaf
from products import TOLERANCE, product
from stages import kernel_of

from tinyml import lazy
from tinyml.codegen.compile import compile
from tinyml.codegen.expr import Load, Name, Wide, const
from tinyml.codegen.linear import Begin, End, Instr, Let, Put
from tinyml.codegen.linearize.quads import by_quads
from tinyml.codegen.matrices import Exchanged
from tinyml.codegen.optimize.opts import Opt, parse
from tinyml.device import Device
from tinyml.dtype import DType, bfloat16, float16, float32
from tinyml.index import Axis, both, inside, linear
from tinyml.kernel import Kernel
from tinyml.ops import Op
from tinyml.runtime.emu import ThreadOrder

WARPS = "fragment r0 16, unroll i1 2, thread i0 2"  # 32 columns each
NARROW = "fragment r0 16, unroll i0 2, thread i1 2"  # 16
GROUPS = "warpgroup r0 64"
LAST = "grid i0, grid i1, split r0 4, unroll r0s 4, stage r0 slot1, stage r0 slot2"


def opts(first: str, last: str = LAST) -> list[Opt]:
    return [parse(text) for text in f"{first}, {last}".split(", ")]


STORED = r"^ *(?:if .*?)?\*\(pack<\w+, (\d+)"
LOADED = r"^ *const pack<.*?\(const pack<\w+, (\d+)> \*\)\(slot[45]"  # behind two factors


def halves_of(pattern: str, source: str) -> list[int]:
    """How many each access has that is like the pattern."""
    return [int(found) for found in re.findall(pattern, source, re.MULTILINE)]


def right(k: Kernel, chosen: Sequence[Opt], tolerance: float) -> str:
    """The text of a kernel that is right.

    Simulated, and emulated with threads in two orders, it makes what its whole arrays give.
    """
    stages.assert_made(k, stages.simulated(CARD, chosen), tolerance)
    program = compile(k, CARD, chosen, verify=True)
    for order in (ThreadOrder.FORWARD, ThreadOrder.BACKWARD) if Device.available("EMU") else ():
        stages.assert_made(k, on_emu(program, order), tolerance)
    return program.source


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize(
    ("first", "halves", "count"), [(WARPS, 8, 2), (NARROW, 4, 4), (GROUPS, 8, 4)]
)
def test_pieces_are_stored_whole(first: str, halves: int, count: int, dtype: DType) -> None:
    """Of 16 bytes where a warp has 32 columns, of 8 where it has 16."""
    k = kernel_of(product(128, 128, 128, dtype))
    assert halves_of(STORED, right(k, opts(first), TOLERANCE[dtype])) == [halves] * count


@pytest.mark.parametrize(
    ("m", "n", "halves"),
    [
        (67, 88, {8}),  # rows and columns less; pieces are whole
        (64, 92, {4}),  # rows that begin at 8 bytes
        (64, 94, {2}),  # at 4
        (67, 93, set()),  # anywhere
    ],
)
@pytest.mark.parametrize("first", [WARPS, GROUPS])
def test_pieces_that_are_not_whole_are_stored_in_parts(
    first: str, m: int, n: int, halves: set[int]
) -> None:
    padded = f"pad i0 128, pad i1 128, pad r0 64, {first}"
    text = right(kernel_of(product(m, 104, n, bfloat16)), opts(padded), TOLERANCE[bfloat16])
    assert {*halves_of(STORED, text)} == halves


def two(m: int, n: int) -> Kernel:
    """A layer's sums, and what is made of them, a residual and a bias."""
    factors = (leaf(*shape, dtype=bfloat16) for shape in ((m, 128), (128, n)))
    before = lazy.cast(graphs.matmul(*(lazy.cast(x, float32) for x in factors)), bfloat16)
    after = graphs.add(lazy.map_(Op.TANH, before), leaf(m, n, dtype=bfloat16))
    after = graphs.add(after, graphs.spread(leaf(n, dtype=bfloat16), (m, n)))
    return kernel_of(before, after)


@pytest.mark.parametrize(("m", "n"), [(128, 128), (67, 88)])
@pytest.mark.parametrize("first", [WARPS, GROUPS])
def test_several_results_are_and_what_meets_them_is_loaded_so(first: str, m: int, n: int) -> None:
    """But not what all rows share."""
    padded = "" if m == n else "pad i0 128, pad i1 128, "
    last = LAST.replace("slot2", "slot3").replace("slot1", "slot2")
    text = right(two(m, n), opts(padded + first, last), 0.05)
    count = 2 if first == WARPS else 4
    assert halves_of(STORED, text) == [8] * 2 * count
    assert sorted(halves_of(LOADED, text)) == [2] * 2 * count + [8] * count


ROW, COLUMNS, LANE = Axis("i0q", 8), Axis("i1", 2), Axis("i1q", 4)
PLACE = linear(COLUMNS) * 32 + linear(LANE) * 2
ONE = const(1.0, bfloat16)


def blocks(count: int, columns: int = 64) -> list[Put]:
    """Stores of blocks side by side, of rows that lie 64 apart and have so many columns."""
    places = [PLACE + n * 8 for n in range(count)]
    asked = [both([inside(place, 0, columns - 1)]) for place in places]
    return [
        Put(0, bfloat16, linear(ROW) * 64 + place, (ONE, ONE), valid, None, False)
        for place, valid in zip(places, asked, strict=True)
        if valid is not None
    ]


def joined(instrs: Sequence[Instr]) -> list[Instr]:
    return [*by_quads(instrs, (ROW, LANE), (1, 32))]


@pytest.mark.parametrize(
    ("columns", "halves"), [(64, [8]), (56, [8]), (60, [4, 4]), (58, [4, 2, 2]), (24, [4, 2])]
)
def test_a_piece_is_whole_or_not_there(columns: int, halves: list[int]) -> None:
    found = joined(blocks(4, columns))
    assert [len(put.values) for put in found if isinstance(put, Put)] == halves
    assert len(found) == len(halves) + sum(n > 2 for n in halves)  # with what they exchange


def test_whoever_reads_what_is_stored_reads_it_before() -> None:
    """Stores of two blocks are one where the second was, if nothing reads the slot between them."""
    first, second = blocks(2)
    mine, other = (
        Let(Name("v0", bfloat16, 1), Load(slot, bfloat16, first.position + 8, ()))
        for slot in (0, 1)
    )
    assert joined([first, mine, second]) == [first, mine, second]
    assert len(joined([first, other, second])) == 3


def test_what_is_stored_meanwhile_is_loaded_later() -> None:
    """Four loads are one where the first was, if registers need not hold all while others store."""
    puts = blocks(4)
    loads = [
        Let(Name(f"v{n}", bfloat16, 2), Wide(1, bfloat16, put.position, put.valid, 2))
        for n, put in enumerate(puts)
    ]

    def pieces(instrs: Sequence[Instr]) -> list[int]:
        values = [i.value for i in joined(instrs) if isinstance(i, Let)]
        return [value.lanes for value in values if isinstance(value, Exchanged)]

    assert pieces(loads) == [8]
    assert pieces([*loads[:2], puts[0], *loads[2:]]) == [4, 4]
    assert pieces([loads[0], puts[0], *loads[1:]]) == [4]


def test_lanes_exchange_where_all_of_them_are() -> None:
    """Not in a loop that some of them leave out, nor in blocks of parts of warps."""
    step, stop = Axis("c", 1), linear(ROW) * -1 + 6
    some = [Begin(step, (), (stop,)), *blocks(2), End(step)]
    assert joined(some) == some
    assert len(joined([Begin(step), *blocks(2), End(step)])) == 4
    assert len(by_quads(blocks(2), (ROW, LANE), (1, 64))) == 2
    assert by_quads(blocks(2), (ROW, LANE), (1, 48)) == tuple(blocks(2))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_a_compiler_accesses_16_bytes_at_once(architecture: str, tmp_path: Path) -> None:
    """And stores none else: two results of 128 x 128 by blocks of 64 x 64."""
    last = LAST.replace("slot2", "slot3").replace("slot1", "slot2")
    first = GROUPS if architecture == "sm_90a" else "fragment r0 16, unroll i1 2, thread i0 4"
    program = compile(two(128, 128), CARD, opts(first, last))
    resources, cubin = compiled(program, architecture, tmp_path)
    assert not resources.spills
    found = instructions(cubin)
    pieces = 4 if architecture == "sm_90a" else 2
    assert {name for name in found if name.startswith("STG")} == {"STG.E.128"}
    assert found["STG.E.128"] == 2 * pieces
    assert found["SHFL.BFLY"] == 4 * 3 * pieces
    assert not any(name.startswith(("LDG.E.U8", "LDG.E.U16")) for name in found)
