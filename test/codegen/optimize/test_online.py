"""Folds that read each other in one walk over what they fold, with what they mean at infinities."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
import stages
from cards import CARD, compiled, instructions, on_emu
from graphs import memory
from stages import kernel_of

from tinyml import Tensor
from tinyml.codegen.choose import c_online as choose_c_online
from tinyml.codegen.choose import cuda_online as choose_cuda_online
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.linear import Begin, PutTile, end_of
from tinyml.codegen.linearize.linearize import linearize
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import Opt, OptKind
from tinyml.codegen.target import Target
from tinyml.dtype import DType, bfloat16, float16, int32
from tinyml.kernel import Kernel
from tinyml.program import REGISTERS
from tinyml.runtime.emu import ThreadOrder

CUDA = replace(CARD, capability=70)  # where tensor cores keep no rows
TARGETS = pytest.mark.parametrize("target", [stages.C, CUDA], ids=["C", "CUDA"])
SIZES = [(1, 2, 16, 24, 2), (2, 1, 33, 37, 3), (1, 1, 37, 25, 2)]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds of a few steps are long ones."""
    monkeypatch.setattr(choose_c_online, "LONG", 24)
    monkeypatch.setattr(choose_c_online, "STEP", 8)
    monkeypatch.setattr(choose_cuda_online, "STEPS", (8,))


def walks(k: Kernel, target: Target) -> int:
    """How often a kernel walks what it folds."""
    return sum(opt.kind is OptKind.ONLINE for opt in choose(lower(k), target)[0])


def assert_right(k: Kernel, target: Target, tolerance: float = 2e-5, times: int = 1) -> None:
    assert walks(k, target) == times
    stages.assert_right(k, tolerance, target)


@TARGETS
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_attention_of_any_size(size: tuple[int, ...], causal: bool, target: Target) -> None:
    b, h, n, m, d = size
    q, k, v = memory(b, h, n, d), memory(b, h, m, d), memory(b, h, m, d + 1)
    assert_right(kernel_of(q.scaled_dot_product_attention(k, v, is_causal=causal)), target)


def variants(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    """Attention as people write it."""
    n, m = q.shape[-2], k.shape[-2]
    rows, columns = Tensor.arange(n).unsqueeze(-1), Tensor.arange(m)
    near = (rows - columns).abs() < 5
    scores = q @ k.transpose(-2, -1)
    capped = ((scores / 5).tanh() * 5).softmax(-1)
    powers = scores.exp()  # nobody looks for the largest
    return {
        "added": q.scaled_dot_product_attention(k, v, attn_mask=memory(n, m)),
        "window": near.where(scores, -float("inf")).softmax(-1) @ v,
        "capped": capped @ v,
        "bias": (scores + memory(m)).softmax(-1) @ v,
        "base 2": (scores - scores.max(-1, keepdim=True)).exp2() @ v,
        "shares": powers / powers.sum(-1, keepdim=True) @ v,
        "mean": (powers @ v) / powers.sum(-1, keepdim=True),
    }


@TARGETS
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    "variant", ["added", "window", "capped", "bias", "base 2", "shares", "mean"]
)
def test_attention_as_people_write_it(variant: str, target: Target) -> None:
    q, k, v = memory(1, 18, 3), memory(1, 26, 3), memory(1, 26, 2)
    assert_right(kernel_of(variants(q, k, v)[variant]), target)


@TARGETS
@pytest.mark.usefixtures("short")
def test_heads_that_share_keys_and_halves(target: Target) -> None:
    q, k, v = (memory(1, h, 24, 4, dtype=bfloat16) for h in (4, 2, 2))
    assert_right(kernel_of(q.scaled_dot_product_attention(k, v, enable_gqa=True)), target, 2e-2)


@TARGETS
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("times", "masked", "walks"), [(1, False, 1), (1e5, False, 2), (1e-6, False, 2), (1, True, 2)]
)
def test_weights_are_rounded_to_float16_undivided_if_that_holds_them(
    target: Target, times: float, masked: bool, walks: int
) -> None:
    """Others could overflow or underflow, as where a mask leaves out what leads them."""
    q, k, v = (memory(1, 2, 24, 4, dtype=float16) for _ in range(3))
    scores = (q @ k.transpose(-2, -1)).float() * 9
    powers = (scores - scores.max(-1, keepdim=True)).exp() * times
    near = Tensor.arange(24, device="CPU").unsqueeze(1) > Tensor.arange(24, device="CPU") - 3
    powers = near.where(powers, 0) if masked else powers
    made = (powers / powers.sum(-1, keepdim=True)).half() @ v
    assert_right(kernel_of(made), target, 2e-3, times=walks)


@TARGETS
@pytest.mark.usefixtures("short")
def test_what_is_not_a_factor_waits_for_the_whole_fold(target: Target) -> None:
    q, k, v = memory(1, 18, 3), memory(1, 26, 3), memory(1, 26, 2)
    scores = q @ k.transpose(-2, -1)
    made = (scores - scores.max(-1, keepdim=True)).sin() @ v
    assert_right(kernel_of(made), target, times=2)


@TARGETS
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("way", ["doubled", "a tenth", "beside"])
def test_what_the_largest_so_far_does_not_bound_waits_too(way: str, target: Target) -> None:
    """exp(s - 2 * m) is infinite for the first steps of a row that grows towards 0."""
    q, k, v = memory(1, 18, 3), memory(1, 26, 3), memory(1, 26, 2)
    scores = q @ k.transpose(-2, -1)
    top = scores.max(-1, keepdim=True)
    exponents = {
        "doubled": scores - 2 * top,
        "a tenth": scores * 0.1 - top,
        "beside": scores - top + memory(26),
    }
    assert_right(kernel_of(exponents[way].exp() @ v), target, times=2)


def test_a_power_of_less_than_twice_the_largest_is_finite() -> None:
    rng = np.random.default_rng(0)
    q, k = (rng.random((n, 4)).astype(np.float32) + 0.5 for n in (40, KEYS))
    k *= np.linspace(-60, -1, KEYS, dtype=np.float32)[:, None]
    v = rng.standard_normal((KEYS, 4)).astype(np.float32)
    x, y, z = (Tensor(a, device="CPU").realize() for a in (q, k, v))
    made = ((s := x @ y.T) - 2 * s.max(-1, keepdim=True)).exp() @ z
    scores = q.astype(np.float64) @ k.astype(np.float64).T
    right = np.exp(scores - 2 * scores.max(-1, keepdims=True)) @ v
    np.testing.assert_allclose(made.numpy(), right, 1e-4, 1e-3)


@TARGETS
@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    "way", ["at least 0", "of a multiple", "smallest", "negative", "masked", "finite"]
)
def test_what_it_does_bound_does_not(way: str, target: Target) -> None:
    q, k, v = memory(1, 18, 3), memory(1, 26, 3), memory(1, 26, 2)
    scores = q @ k.transpose(-2, -1)
    top, near = scores.max(-1, keepdim=True), Tensor.arange(26) > Tensor.arange(18).unsqueeze(1)
    largest = near.where(scores, -float("inf")).max(-1, keepdim=True)
    weights = {
        "at least 0": (scores - top.maximum(0)).exp(),
        "of a multiple": (scores * 0.5 - (scores * 0.5).max(-1, keepdim=True)).exp(),
        "smallest": (scores.min(-1, keepdim=True) - scores).exp(),
        "negative": ((scores - top) * -0.5).exp(),
        "masked": near.where((scores - largest).exp(), 0),
        "finite": (scores - top.isfinite().where(top, 0)).exp(),  # as logsumexp does
    }
    assert_right(kernel_of(weights[way] @ v), target)


@TARGETS
@pytest.mark.usefixtures("short")
def test_nor_is_what_was_cut_off_to_integers_a_factor(target: Target) -> None:
    q, k = memory(1, 18, 3), memory(1, 26, 3)
    scores = q @ k.transpose(-2, -1)
    powers = (scores - scores.max(-1, keepdim=True)).exp()
    made = (powers * 9).cast("int32") @ memory(1, 26, 2, dtype=int32)
    assert_right(kernel_of(made), target, times=2)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("order", ThreadOrder)
def test_threads_of_a_card_in_any_order(order: ThreadOrder) -> None:
    """Several rows and columns of each, and rows and keys that are no whole steps."""
    q, k, v = (memory(3, n, 36) for n in (70, 45, 45))
    made = kernel_of(q.scaled_dot_product_attention(k, v, is_causal=True))
    program = compile(made, replace(CARD, cores=1), verify=True)
    assert program.block == (1, 128, 1)
    stages.assert_made(made, on_emu(program, order))


@TARGETS
@pytest.mark.usefixtures("short")
def test_blocks_are_walked_in_the_order_of_rows(target: Target) -> None:
    """Not in that of a set, another one in each process: kernels are kept by their text."""
    q, k, v = (memory(2, n, 3, d).transpose(1, 2) for n, d in ((18, 4), (26, 4), (26, 2)))
    nest = lower(kernel_of(q.scaled_dot_product_attention(k, v)))
    heads = [a.name for a in nest.nests[0].rows[:2]]
    grids = [opt.axis for opt in choose(nest, target)[0] if opt.kind is OptKind.GRID]
    assert [name for name in grids if name in heads] == heads


def test_a_multiprocessor_has_two_blocks_of_attention(tmp_path: Path) -> None:
    """Sums that one thread alone adds to are in its registers, and weights lie where scores did.

    128 threads have 8 x 8 sums each.
    """
    q, k, v = (memory(2, 8, 4096, 64) for _ in range(3))
    made = kernel_of(q.scaled_dot_product_attention(k, v))
    walk = linearize(choose(lower(made), CARD)[1], vectors=False)
    instrs = walk.parts[0].instrs
    begin = next(n for n, i in enumerate(instrs) if isinstance(i, Begin) and i.axis.name == "r0o")
    step = instrs[begin : end_of(instrs, begin)]
    put = {i.tile.rstrip("0123456789") for i in step if isinstance(i, PutTile)}
    assert put == {"tile", "kept", "top", "scale"}
    program = compile(made, CARD)
    resources, cubin = compiled(program, "sm_90a", tmp_path)
    assert not resources.spills
    assert 2 * prod(program.block) * resources.registers <= REGISTERS
    assert 2 * program.shared <= CARD.cache
    found = instructions(cubin)
    assert found["LDS.128"] > found["LDS"]  # all that is multiplied, four steps of a fold at once


@pytest.mark.parametrize(
    ("width", "architecture", "cache"),
    [(512, "sm_75", 64), (256, "sm_75", 64), (256, "sm_80", 163), (128, "sm_90a", 227)],
)
def test_registers_of_a_card_suffice(
    width: int, architecture: str, cache: int, tmp_path: Path
) -> None:
    q, k, v = (memory(8, 16, 4096, width) for _ in range(3))
    made = kernel_of(q.scaled_dot_product_attention(k, v, is_causal=True))
    program = compile(made, replace(CARD, cache=cache << 10))
    assert program.shared <= cache << 10
    resources, _ = compiled(program, architecture, tmp_path)
    assert not resources.spills
    assert not resources.stack


def test_memory_does_not_grow_with_the_length_of_a_row() -> None:
    """Not on the stack of a kernel, and there is but one kernel."""

    def held(keys: int) -> int:
        q, k, v = memory(1 << 15, 8), memory(keys, 8), memory(keys, 8)
        one = kernel_of(q.scaled_dot_product_attention(k, v, is_causal=True))
        made = linearize(choose(lower(one), stages.C)[1])
        return sum(local.size for local in made.locals)

    assert held(1 << 17) == held(1 << 11)


@pytest.mark.parametrize(("registers", "height", "rest"), [(32, 8, False), (16, 6, True)])
def test_a_register_tile_leaves_no_rows_unless_its_sums_would_be_waited_for(
    registers: int, height: int, rest: bool
) -> None:
    target = replace(stages.C, vector_registers=registers)
    q, k, v = (memory(1, 2, 2048, 64) for _ in range(3))
    kernel = kernel_of(q.scaled_dot_product_attention(k, v))
    opts, nest = choose(lower(kernel), target)
    assert [o.amount for o in opts if o.kind is OptKind.UNROLL and "i2" in o.axis] == [height]
    assert any(split.rest for split in nest.splits) == rest


KEYS = 1300  # not in whole steps


def attended(scores: np.ndarray, v: np.ndarray, empty: float) -> np.ndarray:
    """softmax(scores) @ v in float64; rows of -inf give `empty`."""
    with np.errstate(invalid="ignore"):
        top = scores.max(-1, keepdims=True)
        power = np.exp(scores - np.where(np.isinf(top) & (top < 0), 0, top))
        total = power.sum(-1, keepdims=True)
        return np.where(total == 0, empty, power @ v / total)


@pytest.fixture(scope="module")
def given() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(3)
    return tuple(rng.standard_normal((n, 4)).astype(np.float32) for n in (40, KEYS, KEYS))


@pytest.mark.parametrize("masked", [False, True], ids=["bias", "mask"])
def test_rows_of_infinities_and_nan_are_what_they_are_all_at_once(
    given: tuple[np.ndarray, ...], masked: bool
) -> None:
    """A bias of -inf at all keys makes NaN, as it does everywhere; a mask of no key gives 0."""
    q, k, v = given
    bias = np.zeros((40, KEYS), np.float32)
    bias[3] = -np.inf  # nobody
    bias[4, :-1] = -np.inf  # the last one only
    bias[5, :1200] = -np.inf  # nobody for many steps
    bias[6, 700:] = -np.inf
    bias[7] = np.linspace(-30, 30, KEYS)  # a larger one at each step
    bias[8] = np.linspace(30, -30, KEYS)
    q[9, 1] = np.nan
    scores = q.astype(np.float64) @ k.T.astype(np.float64) / 2 + bias
    wanted = attended(scores, v.astype(np.float64), 0 if masked else np.nan)
    x, y, z, b = (Tensor(a, device="CPU").realize() for a in (q, k, v, bias))

    def made() -> np.ndarray:
        if masked:
            return x.scaled_dot_product_attention(y, z, attn_mask=b).numpy()
        return ((x @ y.T / 2 + b).softmax(-1) @ z).numpy()

    np.testing.assert_allclose(made(), wanted, 2e-5, 1e-6)
    assert np.array_equal(made(), made(), equal_nan=True)


@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
@pytest.mark.parametrize("fill", [-1e9, -3.4e38])
def test_a_mask_of_large_numbers_leaves_nothing(fill: float, dtype: DType) -> None:
    """Of one row all, which then are alike; of the others the first half."""
    rng = np.random.default_rng(0)
    drawn = (rng.standard_normal((1, 1, 128, 64)).astype(np.float32) for _ in range(3))
    q, k, v = (Tensor(x, device="EMU").cast(dtype).realize() for x in drawn)
    added = np.zeros((128, 128), np.float32)
    added[:, :64] = added[3] = fill
    mask = Tensor(added, device="EMU").realize()
    made = q.scaled_dot_product_attention(k, v, attn_mask=mask).float().numpy()[0, 0]
    a, b, c = (t.float().numpy()[0, 0].astype(np.float64) for t in (q, k, v))
    scores = (a @ b.T / 8 + added).astype(np.float32).astype(np.float64)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    right = weights / weights.sum(-1, keepdims=True) @ c
    np.testing.assert_allclose(made, right, rtol=2e-2, atol=2e-2)


@TARGETS
def test_a_largest_of_sums_is_no_sum_of_all_that_is_written_out(target: Target) -> None:
    """Where all of a score is below 0, that would lead powers beyond what a float holds."""
    q, k, v = (memory(1, 1, rows, 8) for rows in (64, 32, 32))
    made = kernel_of((q.abs() * -30).scaled_dot_product_attention(k.abs(), v, scale=1.0))
    opts = [Opt(OptKind.ONLINE, "r0"), Opt(OptKind.UNROLL, "r0", 4)]
    device = "CPU" if target is stages.C else "EMU"
    stages.assert_made(made, stages.on_machine(device, [made], opts))


def test_integers_that_wrap_around_are_scaled_before_the_largest_is_known() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 9000)).astype(np.float32)
    y = rng.integers(-5, 6, x.shape).astype(np.int32)
    largest = (Tensor(y, device="EMU").realize() * 715827883).max(1)
    made = Tensor(x, device="EMU").realize().logsumexp(1) + largest.cast("float32") * 1e-9
    with np.errstate(over="ignore"):
        right = (y * np.int32(715827883)).max(1) * 1e-9
    right = right + np.log(np.exp(x.astype(np.float64)).sum(1))
    np.testing.assert_allclose(made.numpy(), right, rtol=1e-5)
