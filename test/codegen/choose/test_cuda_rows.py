"""What rows and columns cost a card beside the memory that they read: instructions, and waiting."""

from __future__ import annotations

from pathlib import Path

import graphs
import pytest
import stages
from cards import CARD, compiled, instructions, on_emu
from graphs import leaf
from stages import kernel_of

from tinyml import Device
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import Opt, OptKind
from tinyml.dtype import DType, bfloat16, float32, int64
from tinyml.kernel import Kernel
from tinyml.runtime.emu import ThreadOrder


def loss(rows: int, classes: int, dtype: DType) -> Kernel:
    """Of each row: what a cross-entropy reads its scores for."""
    scores = graphs.memory(rows, classes, dtype=dtype, device="EMU").cast("float32")
    return kernel_of(scores.logsumexp(1))


def running(rows: int, width: int) -> list[Kernel]:
    return stages.kernels(graphs.memory(rows, width, device="EMU").cumsum(1))


def test_an_element_of_a_long_row_of_halves_takes_few_instructions(tmp_path: Path) -> None:
    """The largest of two is one, a float is taken out of its word by one, none asks for an edge.

    32 elements are read by each step of the loop, 8 behind it; memory allows for 15 of each.
    """
    resources, cubin = compiled(compile(loss(512, 50304, bfloat16), CARD), "sm_90a", tmp_path)
    found = instructions(cubin)
    assert not resources.spills
    assert found["MUFU.EX2"] >= 40
    assert found["FMNMX.NAN"] >= 40
    assert found["PRMT"] + found["FSETP.NEU.AND"] < 16
    assert found["FSEL"] < 40
    assert found.total() < 20 * 40


@pytest.mark.parametrize(
    ("classes", "dtype", "threads"),
    [(50304, bfloat16, 256), (128256, bfloat16, 512), (50304, float32, 512), (32000, float32, 512)],
)
def test_threads_of_a_row_that_is_walked_once_have_15_vectors_of_it(
    classes: int, dtype: DType, threads: int
) -> None:
    opts, _ = choose(lower(loss(512, classes, dtype)), CARD)
    assert Opt(OptKind.ONLINE, "r0") in opts
    assert Opt(OptKind.THREAD, "r0", threads) in opts


def test_conditions_of_the_last_step_of_a_fold_are_not_asked_before_it() -> None:
    k = loss(3, 8 * 1100, bfloat16)
    opts = [Opt(OptKind.ONLINE, "r0"), Opt(OptKind.LANES, "r0", 8), Opt(OptKind.THREAD, "r0", 64)]
    program = compile(k, CARD, [*opts, Opt(OptKind.UNROLL, "r0", 4)], verify=True)
    loop = program.source.partition("for (int r0 = 0;")[2].partition("\n    }\n")[0]
    loop = loop.partition("{")[2]
    assert "exp" in loop
    assert "<=" not in loop
    assert "read_if(" in program.source
    stages.assert_made(k, stages.simulated(CARD, (*opts, Opt(OptKind.UNROLL, "r0", 4))))
    if Device.available("EMU"):
        for order in ThreadOrder:
            stages.assert_made(k, on_emu(program, order))


def test_what_blocks_set_aside_of_a_thread_is_read_in_16_bytes() -> None:
    k = kernel_of(graphs.total(leaf(2048, 256), 0))
    program = compile(k, CARD)
    assert "__device__ pack<float, 4> parts_" in program.source
    assert program.source.count("put_aside<") == program.source.count("together<") == 1


def test_where_blocks_are_few_a_thread_has_many_reads_under_way(tmp_path: Path) -> None:
    """A compiler that is not told so saves registers for blocks that there are not."""
    program = compile(kernel_of(graphs.total(leaf(8192, 4096), 0)), CARD)
    resources, _ = compiled(program, "sm_90a", tmp_path)
    assert resources.registers >= 80
    assert not resources.spills


def test_a_running_sum_reads_and_stores_whole_vectors() -> None:
    sums, before, whole = running(512, 1024)
    text = compile(sums, CARD).source
    assert text.count("pack<float, 4> *)(slot1") == 4
    assert compile(before, CARD).block[0] == 1  # no warp folds what a cache has for all rows
    text = compile(whole, CARD).source
    assert "*(pack<float, 4> *)(slot0" in text
    assert "for (" not in text


@pytest.mark.parametrize("width", [64, 96, 1024])
def test_a_running_sum_is_right(width: int) -> None:
    for k in running(40, width):
        stages.assert_right(k, target=CARD)
        if Device.available("EMU"):
            stages.assert_made(k, on_emu(compile(k, CARD, verify=True), ThreadOrder.FORWARD))


@pytest.mark.parametrize(
    ("classes", "dtype", "threads"), [(32000, float32, 1024), (50304, bfloat16, 512)]
)
def test_a_long_row_is_walked_twice_rather_than_copied(
    classes: int, dtype: DType, threads: int, tmp_path: Path
) -> None:
    """Of a cross-entropy's gradient; so few rows are under way that a cache still has them."""
    scores = graphs.memory(4096, classes, dtype=dtype, device="EMU").requires_grad_()
    (gradient,) = scores.cross_entropy(graphs.memory(4096, dtype=int64, device="EMU")).gradient(
        scores
    )
    k = max(stages.kernels(gradient), key=lambda k: len(str(k)))
    program = compile(k, CARD)
    assert not program.shared
    assert program.block[0] == threads
    assert not compiled(program, "sm_90a", tmp_path)[0].spills
