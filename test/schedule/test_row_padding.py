"""Rows of intermediate arrays are filled up on a card, and nobody takes what is there for data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import graphs
import numpy as np
import pytest
import stages
from cards import CARD, compiled, instructions, on_emu
from stages import kernels

from tinyml import Device, Tensor, kernel
from tinyml.codegen.compile import compile
from tinyml.codegen.target import Target
from tinyml.dtype import DType, bfloat16, float32, int32
from tinyml.kernel import Kernel
from tinyml.program import Program
from tinyml.runtime.emu import ThreadOrder
from tinyml.schedule import balance

HOPPER = replace(CARD, warpgroups=True)
TOKENS, DEPTH, WORDS = 70, 64, 323


def trained(x: Tensor, w: Tensor, labels: Tensor) -> list[Tensor]:
    """A loss of logits, and the gradients of both factors."""
    x.requires_grad = w.requires_grad = True
    loss = (x @ w.T).cross_entropy(labels)
    return [loss, *loss.gradient(x, w)]


def step(*sizes: int, dtype: DType = bfloat16, device: str = "EMU") -> list[Tensor]:
    """One that is only scheduled: it has no values."""
    tokens, words, depth = sizes or (TOKENS, WORDS, DEPTH)
    x, w = (graphs.memory(n, depth, dtype=dtype, device=device) for n in (tokens, words))
    return trained(x, w, graphs.memory(tokens, dtype=int32, device=device))


def computed(device: str, dtype: DType = bfloat16, words: int = WORDS) -> list[Tensor]:
    rng = np.random.default_rng(2)
    x, w = (rng.standard_normal((n, DEPTH), dtype=np.float32) for n in (TOKENS, words))
    labels = np.arange(TOKENS, dtype=np.int32) * 7 % words
    given = [Tensor(a, device=device).cast(dtype).realize() for a in (x, w)]
    return trained(*given, Tensor(labels, device=device))


def wide(found: list[Kernel], tokens: int = TOKENS, words: int = WORDS) -> set[int]:
    """How wide in memory arrays are that have a row of words for each token."""
    shapes = [s for k in found for s, _ in k.slots if len(s) > 1 and s[0] == tokens]
    return {s[1] for s in shapes if s[1] >= words}


def products(*sizes: int, dtype: DType = bfloat16) -> list[Kernel]:
    """What makes the logits, and the gradients of both factors."""
    tokens, words, _ = sizes or (TOKENS, WORDS, DEPTH)
    made = kernels(*step(*sizes, dtype=dtype))
    return [k for k in made if wide([k], tokens, words) and len(k.slots) == 3]


def test_rows_of_a_card_s_products_begin_at_whole_vectors() -> None:
    """Those of logits and of their gradient: 323 halves and 5 behind them, 323 floats and 1."""
    for dtype, row in (bfloat16, 328), (float32, 324):
        made = products(dtype=dtype)
        assert (len(made), wide(made)) == (3, {row})


def test_what_others_see_or_what_lies_well_is_left_alone() -> None:
    x, w = (graphs.memory(n, DEPTH, dtype=bfloat16, device="EMU") for n in (TOKENS, WORDS))
    logits = x @ w.T
    assert wide(kernels(logits)) == {WORDS}  # asked for
    assert wide(kernels(logits, logits.softmax())) == {WORDS}
    assert wide(kernels(*step(TOKENS, 320, DEPTH)), words=320) == {320}
    assert wide(kernels(*step(TOKENS, 101, DEPTH)), words=101) == {101}  # too much to add
    stored = graphs.memory(TOKENS, WORDS, device="EMU").exp()
    assert wide(kernels(stored.sum(0), stored.softmax().sum(0))) == {WORDS}  # nobody multiplies it


def test_a_processor_s_rows_are_as_long_as_they_are() -> None:
    assert wide(kernels(*step(device="CPU"))) == {WORDS}


@pytest.mark.parametrize("dtype", [bfloat16, float32])
def test_nobody_takes_what_lies_behind_a_row_for_data(dtype: DType) -> None:
    """There is NaN until somebody writes; of the results' digits halves have few."""
    roots = [tensor.lazy for tensor in step(20, 131, DEPTH, dtype=dtype)]
    known = graphs.values(roots)
    far = 0.1 if dtype is bfloat16 else 1e-4
    optimized = {n: stages.simulated(t, None) for n, t in (("80", stages.CUDA), ("90", HOPPER))}
    stages.agree(roots, known, {"kernel": kernel.run} | optimized, far, far)


@pytest.mark.skipif(not Device.available("EMU"), reason="no C++ compiler")
@pytest.mark.parametrize("order", ThreadOrder)
def test_a_step_in_any_order_of_threads(order: ThreadOrder) -> None:
    """Products by warpgroups, one of which has boxes, and by warps; and the rows between them."""
    for target in HOPPER, replace(CARD, capability=80):
        for k in [k for k in kernels(*step(256, 323, 128)) if wide([k], 256)]:
            stages.assert_made(k, on_emu(compile(k, target, verify=True), order), 0.05)


@pytest.mark.skipif(not Device.available("EMU"), reason="no C++ compiler")
def test_a_step_on_the_emulator() -> None:
    for dtype, far in (bfloat16, 0.03), (float32, 1e-4):
        found, right = ([t.float().numpy() for t in computed(d, dtype)] for d in ("EMU", "NUMPY"))
        for a, b in zip(found, right, strict=True):
            np.testing.assert_allclose(a, b, far, far * np.abs(b).max())


def halves(*shape: int) -> Tensor:
    return graphs.memory(*shape, dtype=bfloat16, device="EMU")


def test_products_read_a_copy_of_long_rows_in_memory() -> None:
    """One that is made once for both products."""
    x, w, v = halves(8192, 4093), halves(4093, 4096), halves(4095, 4093)
    made = kernels(x @ w, x @ v.T)
    copied = [k.slots[0][0] for k in made if len(k.slots) == 2]
    assert sorted(copied) == [(4095, 4096), (8192, 4096)]
    programs = [compile(k, HOPPER) for k in made if len(k.slots) == 3]
    assert [len(program.boxes) for program in programs] == [2, 2]
    assert len(kernels(halves(64, 4093) @ w)) == 1  # not multiplied for long
    assert len(kernels(halves(8192, 4096) @ w.shrink(((0, 4090), None)).pad(((3, 3), None)))) == 1


@pytest.mark.parametrize("device", ["EMU"], indirect=True)
def test_products_of_copied_rows(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "LAUNCH", 0)
    monkeypatch.setattr(balance, "FLOPS", 1)
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal(shape, dtype=np.float32) for shape in ((141, 133), (133, 139)))
    a, b = (Tensor(t, device=device).bfloat16().realize() for t in (x, w))
    product, turned = a @ b, b.T @ a.T
    shapes = [shape for k in kernels(product, turned) for shape, _ in k.slots]
    assert {(141, 136), (133, 144)} <= {*shapes}
    right = a.float().numpy() @ b.float().numpy()
    np.testing.assert_allclose(product.float().numpy(), right, rtol=0.01, atol=0.05)
    np.testing.assert_allclose(turned.float().numpy(), right.T, rtol=0.01, atol=0.05)


def of_gpt2(target: Target = HOPPER) -> list[Program]:
    return [compile(k, target, verify=True) for k in products(4096, 50257, 768)]


def test_boxes_have_edges_where_data_end() -> None:
    """Rows are 50264 apart, of which 50257 are copied and zeros for the rest."""
    logits, *gradients = (program.boxes for program in of_gpt2())
    assert [len(boxes) for boxes in (logits, *gradients)] == [2, 2, 2]
    for boxes in gradients:
        (of_logits,) = (box for box in boxes if box.sizes[0] != 768)
        assert of_logits.sizes[:2] == (50257, 4096)
        assert of_logits.strides[0] == 2 * 50264


def test_a_compiler_makes_boxes_and_stores_of_pairs(tmp_path: Path) -> None:
    for program in of_gpt2():
        resources, cubin = compiled(program, "sm_90a", tmp_path)
        assert not resources.spills
        found = instructions(cubin)
        assert sum(n for name, n in found.items() if name.startswith("UTMALDG")) >= 2
        assert sum(n for name, n in found.items() if name.startswith("HGMMA")) >= 4
        assert not sum(n for name, n in found.items() if name.startswith(("STG.E.U16", "LDG")))


def test_a_piece_ends_where_data_do() -> None:
    """An older card copies 16 bytes at a time past the registers, also at the end of a row."""
    _, *gradients = of_gpt2(replace(CARD, capability=80))
    for program in gradients:
        assert "tinyml_cp_async16_begin(tile" in program.source
        assert "*(const pack" not in program.source  # nothing goes through registers
