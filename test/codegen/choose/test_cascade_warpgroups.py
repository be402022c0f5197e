"""Attention of halves by warpgroups (sm_90a): scores stay in the registers of four warps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from cards import compiled, instructions
from cascades import HOPPER, agree, assert_deferred, given
from graphs import memory
from stages import kernel_of, kernels

from tinyml import Tensor
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.expr import Load, nodes
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import optimize
from tinyml.dtype import DType, bfloat16, float16
from tinyml.kernel import Kernel
from tinyml.runtime.emu import ThreadOrder


@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        ((1, 2, 256, 192, 64), bfloat16),
        ((1, 2, 200, 330, 128), float16),  # what is beyond an end is masked
        ((2, 2, 128, 100, 56), bfloat16),  # a head is filled up
    ],
    ids=str,
)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_attention(size: tuple[int, ...], dtype: DType, causal: bool) -> None:
    q, k, v = given(*size, dtype)
    made = kernel_of(q.scaled_dot_product_attention(k, v, is_causal=causal))
    text = agree(made, [*ThreadOrder])
    assert text.count("tinyml_wgmma_wait<0>()") == 2  # scores, and what they are multiplied by


@pytest.mark.parametrize("mask", ["none", "causal", "window"])
def test_gradients(mask: str) -> None:
    """All of them are made of scores made again, by as many products as there are."""
    q, k, v = given(1, 2, 256, 256, 64, bfloat16)
    place = Tensor.arange(256, device="EMU")
    apart = place.unsqueeze(-1) - place
    meets = {"none": None, "causal": apart >= 0, "window": (apart >= 0) & (apart < 40)}[mask]
    out = q.scaled_dot_product_attention(k, v, attn_mask=meets)
    loss = (out * memory(*out.shape, dtype=bfloat16, device="EMU")).sum()
    texts = [agree(made) for made in kernels(*loss.gradient(q, k, v))]
    assert all("tinyml_wgmma" in text for text in texts)
    begun = [text for text in texts if re.search(r"r0_first = (?!0)|for \(int r0 = (?!0)", text)]
    assert len(begun) == {"none": 0, "causal": 1, "window": len(texts)}[mask]


@pytest.mark.parametrize(
    ("heads", "rows", "causal", "threads"),
    [(1, 512, False, 256), (1, 512, True, 128), (1024, 512, True, 256), (1, 128, False, 128)],
)
def test_two_warpgroups_share_copies_but_of_few_rows_or_some_with_steps_of_their_own(
    heads: int, rows: int, causal: bool, threads: int
) -> None:
    q, k, v = given(1, heads, rows, 512, 64, bfloat16)
    made = kernel_of(q.scaled_dot_product_attention(k, v, is_causal=causal))
    assert compile(made, HOPPER).block == (1, threads, 1)


def test_a_warpgroup_has_its_own_copies_where_they_are_multiplied_often() -> None:
    """And where other results than means are kept for gradients."""
    q, k, v = given(1, 64, 512, 512, 128, bfloat16)
    out = q.scaled_dot_product_attention(k, v)
    loss = (out * memory(*out.shape, dtype=bfloat16, device="EMU")).sum()
    made = kernels(out, *loss.gradient(q, k, v))
    by_groups = [p for p in (compile(k, HOPPER) for k in made) if "wgmma" in p.source]
    assert len(by_groups) == 3  # means; gradients of queries; of keys and values
    assert all(p.block == (1, 128, 1) for p in by_groups)


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_the_largest_is_scaled_and_not_each_score(causal: bool) -> None:
    """Powers take the scale with the logarithm of their base."""
    q, k, v = given(1, 2, 256, 256, 64, bfloat16)
    made = kernel_of(q.scaled_dot_product_attention(k, v, is_causal=causal))
    text = compile(made, HOPPER).source
    powers = [line for line in text.splitlines() if "rough_exp_of_sum" in line]
    assert sum(line.count("0.125f") for line in powers) > 32
    assert not re.search(r"at\[\d+\] \* 0.125f", text)


def test_what_two_products_read_lies_there_once() -> None:
    """Keys are columns of scores, and what the gradient of queries folds: axes of other sizes."""
    q, k, v = given(1, 2, 256, 256, 64, bfloat16)
    out = q.scaled_dot_product_attention(k, v)
    loss = (out * memory(*out.shape, dtype=bfloat16, device="EMU")).sum()
    for made in kernels(*loss.gradient(q, k, v)):
        plain = lower(made)
        tiles = optimize(plain, choose(plain, HOPPER)[0]).nests[0].tiles
        slots = [e.slot for tile in tiles for e in nodes(tile.value) if isinstance(e, Load)]
        assert len(slots) == len({*slots}) > 3


@pytest.mark.parametrize(("depth", "registers"), [(64, 128), (256, 255)])
def test_registers_suffice(depth: int, registers: int, tmp_path: Path) -> None:
    q, k, v = given(8, 16, 4096, 4096, depth, bfloat16)
    made = kernel_of(q.scaled_dot_product_attention(k, v, is_causal=True))
    program = compile(made, replace(HOPPER, cores=132))
    resources, cubin = compiled(program, "sm_90a", tmp_path)
    assert resources.registers <= registers  # two blocks on a multiprocessor
    assert not resources.spills
    found = instructions(cubin)
    assert sum(n for op, n in found.items() if op.startswith("HGMMA")) == depth // 16 + 4
    assert not any(op.startswith(("HMMA", "LDSM")) for op in found)


def gradient_of_keys(
    made: Sequence[Tensor], meets: Tensor | None = None, gqa: bool = False, causal: bool = False
) -> Kernel:
    """The kernel that makes what values and keys get: four products."""
    q, k, v = made
    out = q.scaled_dot_product_attention(k, v, meets, is_causal=causal, enable_gqa=gqa)
    loss = (out * memory(*out.shape, dtype=q.dtype, device="EMU")).sum()
    return kernels(*loss.gradient(k, v))[-1]


@pytest.mark.parametrize(
    ("rows", "keys", "causal"),
    [(512, 256, False), (500, 200, True), (450, 64, True)],
    ids=["even", "odd and causal", "few keys, causal"],
)
def test_sums_are_made_beside_the_scores_of_the_next_step(
    rows: int, keys: int, causal: bool
) -> None:
    made = gradient_of_keys(given(1, 2, rows, keys, 128, bfloat16), causal=causal)
    assert_deferred(agree(made, [*ThreadOrder]))


@pytest.mark.parametrize("kind", ["window", "none for some keys", "bias"])
def test_sums_are_deferred_whatever_steps_there_are(kind: str) -> None:
    made = given(1, 1, 384, 384, 128, bfloat16)
    place = Tensor.arange(384, device="EMU")
    apart = place.unsqueeze(-1) - place
    meets = {
        "window": (apart >= 0) & (apart < 40),
        "none for some keys": apart >= 128,  # whose loop has no step
        "bias": memory(1, 1, 384, 384, device="EMU"),
    }[kind]
    assert_deferred(agree(gradient_of_keys(made, meets)))


@pytest.mark.parametrize("kind", ["all", "causal", "window", "bias"])
def test_deferred_products_are_not_waited_for_one_by_one(kind: str, tmp_path: Path) -> None:
    """As ptxas does with those whose registers are written before they are made."""
    made = given(8, 16, 4096, 4096, 128, bfloat16)
    place = Tensor.arange(4096, device="EMU")
    apart = place.unsqueeze(-1) - place
    window = (apart >= 0) & (apart < 1024) if kind == "window" else None
    bias = memory(1, 16, 4096, 4096, device="EMU") if kind == "bias" else None
    one = gradient_of_keys(made, bias if kind == "bias" else window, causal=kind == "causal")
    program = compile(one, replace(HOPPER, cores=132))
    assert "_late" in program.source
    resources, cubin = compiled(program, "sm_90a", tmp_path)
    assert not resources.spills
    found = instructions(cubin)
    assert sum(n for op, n in found.items() if op.startswith("WARPGROUP")) <= 7


def test_nothing_is_deferred_where_fewer_blocks_would_have_room() -> None:
    made = gradient_of_keys(given(8, 16, 4096, 4096, 64, bfloat16))
    assert "_late" not in compile(made, replace(HOPPER, cores=132)).source


def test_what_a_step_folds_begins_with_its_first_value() -> None:
    """Nothing is compared with -inf, or added to 0, but the two rows that a thread has of all."""
    q, k, v = given(1, 2, 256, 256, 64, bfloat16)
    made = kernel_of(q.scaled_dot_product_attention(k, v))
    text = agree(made)
    assert len(re.findall(r"float acc\d+ = -__int_as_float", text)) == 2
    assert len(re.findall(r"float acc\d+ = 0.0f", text)) == 2


def test_powers_of_masked_scores_take_the_scale_with_the_logarithm_of_their_base() -> None:
    q, k, v = given(1, 2, 256, 256, 64, bfloat16)
    out = q.scaled_dot_product_attention(k, v, is_causal=True)
    loss = (out * memory(*out.shape, dtype=bfloat16, device="EMU")).sum()
    *_, of_queries, of_both = kernels(out, *loss.gradient(q, k, v))
    for made in (of_queries, of_both):
        text = agree(made)
        assert text.count("rough_exp_of_sum(") == 32
        assert "rough_exp(" not in text


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_lanes_bring_their_sums_together_behind_the_loop(causal: bool) -> None:
    """At each step they have to agree about the largest alone."""
    q, k, v = given(1, 2, 256, 256, 64, bfloat16)
    made = kernel_of(q.scaled_dot_product_attention(k, v, is_causal=causal))
    text = agree(made, [*ThreadOrder])
    assert text.index("across<combine_max") < text.rindex("tinyml_wgmma_wait")
    assert text.index("across<combine_add") > text.rindex("tinyml_wgmma_wait")
