"""Attention of a token to all that came before: on a card one kernel, a warp to each part of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import graphs
import numpy as np
import pytest
import stages
from cards import CARD, compiled, on_emu

from tinyml import Device, Tensor
from tinyml.ceilings import Ceilings, Level
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.linearize.linearize import linearize
from tinyml.codegen.lower import lower
from tinyml.codegen.model import predict
from tinyml.codegen.nest import LoopNest
from tinyml.codegen.optimize.opts import Opt, OptError, OptKind, optimize
from tinyml.dtype import DType, bfloat16, float16, float32
from tinyml.kernel import Kernel
from tinyml.runtime.emu import ThreadOrder

memory = partial(graphs.memory, device="EMU")


def kernels_of(made: Tensor) -> list[Kernel]:
    return list(stages.kernels(made))


def kernel_of(made: Tensor) -> Kernel:
    (k,) = kernels_of(made)
    return k


def attended(
    heads: int, kept: int, width: int, dtype: DType = float32, shared: int = 1, rows: int = 1
) -> Tensor:
    q = memory(1, heads, rows, width, dtype=dtype)
    k, v = (memory(1, heads // shared, kept, width, dtype=dtype) for _ in range(2))
    return q.scaled_dot_product_attention(k, v, enable_gqa=shared > 1)


def appended() -> Tensor:
    q, k, v, *new = (memory(1, 3, n, 20) for n in (1, 100, 100, 1, 1))
    k, v = (Tensor.cat(old, more, dim=2) for old, more in zip((k, v), new, strict=True))
    return q.scaled_dot_product_attention(k, v)


def capped() -> Tensor:
    q, k, v = (memory(2, n, 32) for n in (1, 131, 131))
    return ((q @ k.transpose(-2, -1) / 5).tanh() * 5).softmax(-1) @ v


def masked_halves(times: float) -> Tensor:
    """Weights are rounded to float16: some times larger than those of a softmax."""
    q, k, v = (memory(1, 2, n, 32, dtype=float16) for n in (1, 96, 96))
    near = Tensor.arange(96, device="EMU") >= 7
    scores = near.where((q @ k.transpose(-2, -1)).float(), -float("inf"))
    powers = (scores - scores.max(-1, keepdim=True)).exp() * times
    return (powers / powers.sum(-1, keepdim=True) * 2).half() @ v


def so_far() -> Tensor:
    """Keys up to a position that is data."""
    q, k, v = (memory(1, 2, n, 32) for n in (1, 96, 96))
    mask = Tensor.arange(96, device="EMU") <= memory(1)
    return q.scaled_dot_product_attention(k, v, attn_mask=mask)


def pooled() -> Tensor:
    x, query = memory(3, 90, 33), memory(33)
    return ((x @ query).softmax(1).unsqueeze(2) * x).sum(1)


CASES: dict[str, Callable[[], Tensor]] = {
    "heads": lambda: attended(8, 256, 64),
    "one head, nothing divides": lambda: attended(1, 77, 5),
    "wide": lambda: attended(5, 70, 200),
    "halves": lambda: attended(4, 130, 64, bfloat16),
    "float16": lambda: attended(4, 130, 64, float16),
    "float16, masked and scaled": lambda: masked_halves(8.0),
    "heads that share keys": lambda: attended(8, 100, 16, shared=4),
    "several queries": lambda: attended(2, 100, 16, rows=3),
    "two to a head that shares keys": lambda: attended(4, 90, 16, shared=2, rows=2),
    "too short to share": lambda: attended(6, 3, 8),
    "appended": appended,
    "capped": capped,
    "so far": so_far,
    "pooled": pooled,
}


@pytest.mark.parametrize("name", CASES)
def test_one_kernel_is_right_in_any_order(name: str) -> None:
    k = kernel_of(CASES[name]())
    tolerance = 1e-2 if name == "halves" else 2e-3 if "float16" in name else 2e-5
    stages.assert_right(k, tolerance, CARD)
    program = compile(k, CARD, verify=True)
    assert program.block[0] == 32
    assert ("comes_last(" in program.source) == (name != "too short to share")
    if Device.available("EMU"):
        for order in ThreadOrder:
            stages.assert_made(k, on_emu(program, order), tolerance)


def test_parts_of_which_nothing_counts() -> None:
    """Whole parts of keys are masked, all of them, or infinite."""
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((2, n, 16)).astype(np.float32) for n in (1, 256, 256))
    mask = np.zeros((2, 1, 256), np.bool_)
    mask[1, :, 150:160] = True
    k[0, 3] = np.inf
    if not Device.available("EMU"):
        pytest.skip("no EMU")
    for given in (mask, ~mask):
        made = {}
        for device in ("NUMPY", "EMU"):
            tensors = [Tensor(a, device=device) for a in (q, k, v, given)]
            made[device] = tensors[0].scaled_dot_product_attention(*tensors[1:]).numpy()
        np.testing.assert_allclose(made["EMU"], made["NUMPY"], 1e-5, 1e-5)


def test_blocks_fill_a_card_whatever_the_heads() -> None:
    for heads, kept in ((8, 8192), (2, 1 << 15), (32, 1024)):
        program = compile(kernel_of(attended(heads, kept, 128, bfloat16)), CARD)
        assert program.grid * program.block[1] >= min(2 * CARD.cores, heads * 32)


def test_many_queries_go_another_way() -> None:
    for kept in (3, 64):
        q, k, v = (memory(2, n, 16) for n in (32, kept, kept))
        k = Tensor.cat(k, memory(2, 1, 16), dim=1)
        v = Tensor.cat(v, memory(2, 1, 16), dim=1)
        assert compile(kernel_of(q.scaled_dot_product_attention(k, v)), CARD).block[0] != 32


def test_a_processor_stores_scores_of_one_query() -> None:
    q, k, v = (memory(2, n, 32, device="CPU") for n in (1, 131, 131))
    assert len(kernels_of(q.scaled_dot_product_attention(k, v))) == 3


def test_weights_that_are_wanted_are_stored() -> None:
    q, k, v = (memory(2, n, 32) for n in (1, 20000, 20000))
    weights = (q @ k.transpose(-2, -1)).softmax(-1)
    assert len(stages.kernels(weights, weights @ v)) > 1


def test_the_cost_model_reads_it() -> None:
    nest = choose(lower(kernel_of(attended(2, 100, 16))), CARD)[1]
    core = Ceilings(1e11, lanes=1, threads=1, launch=1e-6, levels=(Level(1 << 60, 1e10, 1e10),))
    assert predict(linearize(nest, vectors=False), core) > 0


@pytest.mark.parametrize("times", [1e5, 1e-6])
def test_what_float16_does_not_hold_before_it_is_divided_is_stored(times: float) -> None:
    kernels = kernels_of(masked_halves(times))
    assert len(kernels) > 1
    for k in kernels:
        stages.assert_right(k, 2e-3, CARD)


def test_what_has_to_be_walked_again_is_not_shared_by_blocks() -> None:
    """The block that comes last has no more than its part to walk."""
    k = kernel_of(attended(2, 100, 16))
    opts = [o for o in choose(lower(k), CARD)[0] if o.kind is not OptKind.ONLINE]
    with pytest.raises(OptError, match="make it once"):
        optimize(lower(k), opts)


def test_one_walk_is_all_that_blocks_may_share() -> None:
    """Roots of weights need the whole sum of their row, though the lanes' sums need nothing."""
    q, k, v = (memory(2, n, 32) for n in (1, 96, 96))
    nest = lower(kernel_of((q @ k.transpose(-2, -1)).softmax(-1).sqrt() @ v))
    threads = [Opt(OptKind.THREAD, name, 32) for name in ("r1", "j0")]
    opts = [Opt(OptKind.GRID, "i0"), Opt(OptKind.ONLINE, "r0"), *threads]
    with pytest.raises(OptError, match="make it once"):
        optimize(nest, [*opts, Opt(OptKind.SPLIT, "r0", 16), Opt(OptKind.GRID, "r0")])


def test_threads_that_fold_together_are_not_divided() -> None:
    k = kernel_of(attended(2, 100, 16))
    made: LoopNest = optimize(lower(k), [Opt(OptKind.THREAD, "r1", 32)])
    with pytest.raises(OptError, match="fold at once"):
        optimize(made, [Opt(OptKind.SPLIT, "tx", 2)])


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_89", "sm_90a"])
@pytest.mark.parametrize("width", [64, 128, 576])
def test_nvcc_says_that_registers_suffice(width: int, architecture: str, tmp_path: Path) -> None:
    for dtype, shared in ((float32, 1), (bfloat16, 4), (float16, 1)):
        program = compile(kernel_of(attended(8, 4096, width, dtype, shared)), CARD)
        resources, _ = compiled(program, architecture, tmp_path)
        assert not resources.spills
        assert not resources.stack
