"""What the rules of thumb for CUDA make of products of floats, whose sums threads keep."""

from __future__ import annotations

import re

import graphs
import pytest
import stages
from cards import CARD
from products import product
from stages import kernel_of

from tinyml import Device
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import OptKind
from tinyml.dtype import float32

WARP, TOGETHER, PIECES = 32, 8, 8  # lanes; those of a cycle; pieces of 16 bytes in all banks
TURNED = [(a, b) for a in (False, True) for b in (False, True)]


def pieces(place: str) -> list[int]:
    """Which 16 bytes of a tile each lane of a warp reads, at the first step of all loops."""
    found = []
    for lane in range(WARP):
        index = place.replace("i0t", str(lane // 16)).replace("i1t", str(lane % 16))
        found.append(eval(re.sub(r"[a-z]\w*", "0", index).replace("/", "//")) // 4)
    return found


@pytest.mark.parametrize("turned", TURNED, ids=str)
def test_lanes_read_tiles_in_different_banks(turned: tuple[bool, bool]) -> None:
    source = compile(kernel_of(product(1024, 1024, 1024, float32, turned)), CARD).source
    places = {*re.findall(r"tile\d\[([^]]*i[01]t[^]]*)\]", source)}
    assert len(places) >= 32
    for place in places:
        read = pieces(place)
        for lane in range(0, WARP, TOGETHER):
            several = {*read[lane : lane + TOGETHER]}
            assert len({n % PIECES for n in several}) == len(several), place


@pytest.mark.parametrize("turned", TURNED, ids=str)
def test_few_steps_are_written_out(turned: tuple[bool, bool]) -> None:
    """So what one of them reads comes while the one before multiplies."""
    source = compile(kernel_of(product(1024, 1024, 1024, float32, turned)), CARD).source
    assert len(re.findall(r"#pragma unroll 4\n *for \(int r0s+ = 0; ", source)) == 1


@pytest.mark.parametrize("turned", TURNED, ids=str)
def test_products_are_right_however_factors_lie(turned: tuple[bool, bool]) -> None:
    root = product(70, 100, 130, float32, turned)
    chosen, _ = choose(lower(kernel_of(root)), CARD)
    assert OptKind.STAGE in {opt.kind for opt in chosen}
    runners = {"simulated": stages.simulated(CARD, chosen)}
    if Device.available("EMU"):
        runners["EMU"] = stages.on_machine("EMU", [kernel_of(root)], chosen)
    stages.agree([root], graphs.values([root]), runners, rtol=1e-4, atol=1e-4)
