"""Attention of halves in one kernel for a card: a warp's scores never leave its registers."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import graphs
import numpy as np
import pytest
import stages
from cards import CARD, compiled, instructions, on_emu
from stages import kernels

from tinyml import Tensor
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import OptError, OptKind, optimize, parse
from tinyml.codegen.target import Target
from tinyml.device import Device
from tinyml.dtype import DType, bfloat16, float16, float32
from tinyml.kernel import Kernel
from tinyml.runtime.emu import ThreadOrder

BUSY = replace(CARD, cores=1)  # where few blocks are enough, each has many warps


memory = partial(graphs.memory, device="EMU")


def given(b: int, h: int, n: int, m: int, d: int, dtype: DType = bfloat16) -> list[Tensor]:
    """Queries, keys and values."""
    return [memory(b, h, rows, d, dtype=dtype) for rows in (n, m, m)]


def one_kernel(made: Tensor) -> Kernel:
    (k,) = kernels(made)
    return k


def assert_right(k: Kernel, runner: stages.Runner) -> None:
    arrays, wanted = stages.drawn(k)
    runner(k, arrays)
    finite = np.abs(wanted[0][np.isfinite(wanted[0])])
    most = finite.max(initial=0)  # levels are drawn, too: of large weights sums cancel out
    np.testing.assert_allclose(arrays[0], wanted[0], rtol=0.01, atol=0.01 + 5e-4 * most)


@pytest.mark.parametrize("target", [CARD, BUSY], ids=["few warps", "many warps"])
@pytest.mark.parametrize(
    "size", [(2, 3, 13, 17, 9), (1, 2, 70, 200, 24), (1, 1, 9, 3, 2), (1, 1, 20, 33, 264)], ids=str
)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_any_size(size: tuple[int, ...], causal: bool, target: Target) -> None:
    q, k, v = given(*size)
    made = one_kernel(q.scaled_dot_product_attention(k, v, is_causal=causal))
    opts, _ = choose(lower(made), target)
    assert OptKind.FRAGMENT in {opt.kind for opt in opts}
    assert_right(made, stages.simulated(target, opts))


def test_a_thread_has_a_row_where_there_are_no_tensor_cores() -> None:
    q, k, v = given(2, 3, 13, 17, 9)
    made = one_kernel(q.scaled_dot_product_attention(k, v, is_causal=True))
    opts, _ = choose(lower(made), replace(CARD, capability=70))
    assert OptKind.FRAGMENT not in {opt.kind for opt in opts}
    assert_right(made, stages.simulated(CARD, opts))


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_tensor_cores_that_know_halves_alone_keep_rows_of_those(causal: bool) -> None:
    older = replace(CARD, capability=75, cache=64 << 10)
    for dtype, kept in ((float16, True), (bfloat16, False)):
        q, k, v = given(1, 2, 33, 50, 24, dtype=dtype)
        made = one_kernel(q.scaled_dot_product_attention(k, v, is_causal=causal))
        program = compile(made, older, verify=True)
        assert ("tinyml_mma_m16n8k8_f16" in program.text) == kept
        assert "cp_async" not in program.source
        assert_right(made, stages.simulated(older, None))
        if kept and Device.available("EMU"):
            for order in ThreadOrder:
                assert_right(made, on_emu(program, order))


@pytest.mark.skipif(not Device.available("EMU"), reason="no C++ compiler")
def test_threads_in_any_order() -> None:
    q, k, v = given(1, 1, 40, 150, 24, dtype=float16)
    made = one_kernel(q.scaled_dot_product_attention(k, v, is_causal=True))
    program = compile(made, BUSY, verify=True)
    assert "tinyml_cp_async_wait" in program.source
    for order in ThreadOrder:
        assert_right(made, on_emu(program, order))


def test_rows_are_walked_once_or_twice() -> None:
    """Sums follow the largest; what float16 might not hold is divided before, and so waits."""
    halves = ((float16, 1, 1), (float16, 1e5, 2), (float16, 1e-6, 2))
    for dtype, times, walks in ((bfloat16, 1e5, 1), *halves):
        q, k, v = given(1, 2, 64, 256, 32, dtype=dtype)
        scores = (q @ k.transpose(-2, -1)).float()
        powers = (scores - scores.max(-1, keepdim=True)).exp() * times
        made = one_kernel((powers / powers.sum(-1, keepdim=True)).cast(dtype) @ v)
        assert compile(made, BUSY).source.count("for (int r0 = ") == walks
        assert_right(made, stages.simulated(BUSY, None))


@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
@pytest.mark.parametrize("later", [False, True], ids=["early keys", "late keys"])
def test_rows_that_meet_nobody_for_a_while_or_ever(later: bool, dtype: DType) -> None:
    q, k, v = given(1, 1, 70, 150, 16, dtype=dtype)
    rows, columns = Tensor.arange(70, device="EMU").unsqueeze(-1), Tensor.arange(150, device="EMU")
    meets = columns > rows * 2 + 40 if later else columns < rows - 40
    scores = meets.where(q.float() @ k.float().transpose(-2, -1), -float("inf"))
    nan = scores.softmax(-1).cast(dtype) @ v
    for made in (q.scaled_dot_product_attention(k, v, attn_mask=meets), nan):
        assert_right(one_kernel(made), stages.simulated(BUSY, None))


def test_masks_heads_that_share_keys_and_one_buffer() -> None:
    q, _, _ = given(1, 4, 33, 33, 8)
    _, k, v = given(1, 2, 33, 33, 8)
    shared = q.scaled_dot_product_attention(k, v, enable_gqa=True)
    masked = q.scaled_dot_product_attention(q, q, attn_mask=memory(33, 33, dtype=float32))
    packed = memory(2, 70, 3, 2, 8, dtype=bfloat16).permute(2, 0, 3, 1, 4)
    buffer = packed[0].scaled_dot_product_attention(packed[1], packed[2])
    for made in (shared, masked, buffer):
        assert_right(one_kernel(made), stages.simulated(BUSY, None))


def test_a_sum_of_other_powers_is_a_cascade_too() -> None:
    q, k, v = (x.float() for x in given(1, 1, 19, 40, 16))
    likeness = (q @ k.transpose(-2, -1)).square()
    weights = (likeness / likeness.max(-1, keepdim=True)).bfloat16().float()
    assert_right(one_kernel(weights @ v), stages.simulated(BUSY, None))


def test_wide_rows_are_kernels_of_their_own() -> None:
    for width, dtype, count in ((1024, bfloat16, 1), (1032, float32, 3), (1032, bfloat16, 3)):
        q, k, v = given(1, 2, 33, 33, width, dtype=dtype)
        assert len(kernels(q.scaled_dot_product_attention(k, v))) == count


def test_what_a_lane_does_not_hold_is_refused() -> None:
    q, k, v = given(1, 2, 32, 32, 16)
    plain = lower(one_kernel(q.scaled_dot_product_attention(k, v)))
    with pytest.raises(OptError, match="reads other folds"):
        optimize(plain, [parse("fragment r0 8")])


@pytest.mark.parametrize(
    ("architecture", "cache", "depth"),
    [("sm_80", 163, 64), ("sm_89", 99, 256), ("sm_90a", 227, 128), ("sm_89", 99, 576)],
)
def test_registers_suffice(architecture: str, cache: int, depth: int, tmp_path: Path) -> None:
    q, k, v = given(8, 16, 4096, 4096, depth)
    made = one_kernel(q.scaled_dot_product_attention(k, v, is_causal=True))
    program = compile(made, replace(CARD, cache=cache << 10))
    resources, cubin = compiled(program, architecture, tmp_path)
    assert "r0_stop" in program.source  # what lies behind the diagonal is left out
    assert not resources.spills
    assert not resources.stack
    blocks = 1 if depth > 128 else 2  # that a multiprocessor runs at once
    assert resources.registers * program.block[1] * blocks <= 65536
    found = instructions(cubin)
    assert found["LDGSTS.E.BYPASS.128"] > 0  # keys and values come past the registers
    matrices = sum(n for op, n in found.items() if op.startswith("HMMA"))
    loads = sum(n for op, n in found.items() if op.startswith("LDSM"))
    again = 2 if depth > 128 else 3  # what the warp multiplies twice, it loads once
    assert 2 * matrices > again * loads > 0


@pytest.mark.parametrize("window", [None, 90])
@pytest.mark.parametrize("size", [(304, 304), (304, 400)], ids=str)
def test_what_is_copied_ahead_is_copied_from_the_first_step_on(
    size: tuple[int, int], window: int | None
) -> None:
    """Keys meet no queries before them; in a window, queries no keys long before them either."""
    q, k, v = given(1, 1, *size, 32)
    rows, columns = (Tensor.arange(n, device="EMU") for n in size)
    meets = rows.unsqueeze(-1) >= columns
    if window is not None:
        meets &= rows.unsqueeze(-1) < columns + window
    out = q.scaled_dot_product_attention(k, v, attn_mask=meets)
    texts = []
    loss = (out * memory(*out.shape, dtype=bfloat16)).sum()
    for made in kernels(*loss.gradient(q, k, v)):
        program = compile(made, BUSY, verify=True)
        if OptKind.FRAGMENT in {opt.kind for opt in choose(lower(made), BUSY)[0]}:
            texts.append(program.source)
            assert_right(made, stages.simulated(BUSY, None))
            if Device.available("EMU"):
                assert_right(made, on_emu(program, ThreadOrder.BACKWARD))
    begun = [text for text in texts if re.search(r"for \(int r0 = (?!0)", text)]
    assert all("tinyml_cp_async16" in text for text in begun)
    assert len(begun) == len(texts) - (window is None)
