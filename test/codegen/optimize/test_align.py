"""Axes that begin where a vector of memory does, in rows that begin anywhere."""

from __future__ import annotations

import re

import graphs
import numpy as np
import pytest
import stages
from cards import CARD, on_emu
from graphs import leaf

from tinyml import lazy
from tinyml.codegen.compile import compile
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import Opt, OptError, optimize, parse
from tinyml.device import Device
from tinyml.dtype import DType, bfloat16, float32
from tinyml.lazy import LazyBuffer
from tinyml.runtime.emu import ThreadOrder


def opts(text: str) -> list[Opt]:
    return [parse(part) for part in text.split(", ")]


def agree(root: LazyBuffer, chosen: str) -> str:
    """Made right in whatever order threads come; the text of the kernel."""
    k = stages.kernel_of(root)
    program = compile(k, CARD, opts(chosen), verify=True)
    runners = {"simulated": stages.simulated(CARD, opts(chosen))}
    if Device.available("EMU"):
        for order in ThreadOrder:
            runners[order.name] = on_emu(program, order)
    stages.agree([root], graphs.values([root]), runners, rtol=2e-2, atol=2e-2)
    return program.source.partition('extern "C"')[2]


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("n", [65, 66, 71])
def test_rows_are_read_and_stored_in_vectors_wherever_they_begin(n: int, dtype: DType) -> None:
    lanes = 16 // dtype.itemsize
    walked = (f"align {a} {lanes}, lanes {a} {lanes}, thread {a} 32" for a in ("r0", "j0"))
    body = agree(graphs.softmax(leaf(9, n, dtype=dtype)), ", ".join(walked) + ", grid i0")
    assert re.search(r"[=?] \*\(const pack<|read_if\(.*\(const pack<", body)
    assert "put_some(" in body
    assert not re.search(r"slot\d\[", body)  # no element by itself


def test_a_map_ends_within_a_vector() -> None:
    added = graphs.add(leaf(7, 19), leaf(7, 19))
    body = agree(added, "collapse i0, align i0 4, lanes i0 4, grid i0")
    assert body.count("*(const pack<float, 4> *)(slot") == 2
    assert "put_some(" in body


def test_what_begins_elsewhere_is_read_one_by_one() -> None:
    """A bias beside rows: most of what lies along the axis says where that begins."""
    root = graphs.add(leaf(6, 21), lazy.expand(leaf(1, 21), (6, 21)))
    body = agree(root, "align i1 4, lanes i1 4, grid i0, grid i1")
    assert body.count("*(const pack<float, 4> *)(slot1") == 1
    assert body.count("slot2[") == 4


def test_a_row_that_is_cut_off_another_begins_where_that_says() -> None:
    root = graphs.total(lazy.shrink(leaf(6, 48), ((0, 6), (3, 43))), 1)
    body = agree(root, "align r0 4, lanes r0 4, grid i0")
    assert "*(const pack<float, 4> *)(slot1" in body
    assert "for (int r0 = 0; r0 < 11; ++r0)" in body


def test_vectors_are_masked_where_threads_are_too_many() -> None:
    root = graphs.total(leaf(5, 83, dtype=bfloat16), 1)
    body = agree(root, "align r0 8, lanes r0 8, thread r0 32, grid i0")
    assert "(const pack<__nv_bfloat16, 8> *)(slot1" in body


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("align r0 4", "it is whole vectors"),
        ("align i1 4", "its rows begin in a way of their own"),
        ("grid i0, align i0 8", "before anything else"),
    ],
)
def test_what_cannot_be_aligned_says_why(text: str, why: str) -> None:
    factors = leaf(12, 32), leaf(32, 21)
    k = stages.kernel_of(graphs.matmul(*factors))
    with pytest.raises(OptError, match=why):
        optimize(lower(k), opts(text))


def test_no_result_of_a_masked_lane_is_stored() -> None:
    """Neither before the first row nor behind the last one."""
    root = graphs.add(leaf(3, 37), leaf(3, 37))
    k = stages.kernel_of(root)
    runner = stages.simulated(CARD, opts("align i1 4, lanes i1 4, grid i0"))
    rng = np.random.default_rng(0)
    arrays = [graphs.numbers(rng, shape, dtype) for shape, dtype in k.slots]
    runner(k, arrays)
    np.testing.assert_allclose(arrays[0], arrays[1] + arrays[2], 1e-6)
