"""Attention by two warpgroups for which the card copies boxes (sm_90a): 128 keys at a step."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cards import compiled, instructions
from cascades import HOPPER, agree, assert_deferred, given
from graphs import memory
from stages import kernel_of

from tinyml import Tensor
from tinyml.codegen.choose import cuda_cascade
from tinyml.codegen.compile import compile
from tinyml.dtype import DType, bfloat16, float16
from tinyml.kernel import Kernel
from tinyml.runtime.emu import ThreadOrder


def place(rows: int, keys: int) -> Tensor:
    """How far behind a key a row is."""
    return Tensor.arange(rows, device="EMU").unsqueeze(-1) - Tensor.arange(keys, device="EMU")


def attention(
    size: tuple[int, int, int, int, int],
    dtype: DType = bfloat16,
    meets: Tensor | None = None,
    causal: bool = False,
) -> Kernel:
    b, h, n, m, d = size
    q, k, v = given(b, h, n, m, d, dtype)
    return kernel_of(q.scaled_dot_product_attention(k, v, meets, is_causal=causal))


def assert_by_boxes(text: str) -> None:
    """A producer fills stages that each warp of the others releases, once it has read them."""
    assert "tinyml_copy_box" in text
    assert_deferred(text)
    products = [line for line in text.splitlines() if "tinyml_wgmma_m64n128k16" in line]
    assert any("<0, 0>" in line for line in products)  # 128 keys
    (warps,) = re.findall(r"mbarrier_init\(empty_r0 \+ ty, (\d+)\)", text)
    assert int(warps) == 256 // 32
    release = text.index("tinyml_mbarrier_arrive(empty_r0")
    assert text.rindex("tinyml_wgmma_wait<0>", 0, release) > text.index("_late.at")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops of four steps are long, so that an emulator goes through them in time."""
    monkeypatch.setattr(cuda_cascade, "LONG", 2)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("size", "dtype"),
    [
        ((1, 2, 256, 1024, 128), bfloat16),
        ((1, 3, 200, 570, 128), float16),  # what is beyond an end is masked
        ((2, 1, 256, 400, 104), bfloat16),  # a head is filled up
    ],
    ids=str,
)
def test_attention(size: tuple[int, int, int, int, int], dtype: DType) -> None:
    assert_by_boxes(agree(attention(size, dtype), [*ThreadOrder]))


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("offset", [400, 100, -100])
def test_rows_have_steps_of_their_own(offset: int) -> None:
    """All but few keys, few, and none for some rows, whose blocks' loops have other ends."""
    size = 1, 2, 384, 700, 128
    meets = place(384, 700) >= -offset
    assert_by_boxes(agree(attention(size, meets=meets), [*ThreadOrder]))


@pytest.mark.usefixtures("short")
def test_heads_that_share_keys() -> None:
    q = memory(1, 4, 256, 128, dtype=bfloat16, device="EMU")
    k, v = (memory(1, 2, 600, 128, dtype=bfloat16, device="EMU") for _ in range(2))
    made = kernel_of(q.scaled_dot_product_attention(k, v, enable_gqa=True))
    assert_by_boxes(agree(made))


KEPT: dict[str, Callable[[], Kernel]] = {
    "few steps": lambda: attention((1, 4, 256, 1024, 128)),
    "half of few": lambda: attention((1, 4, 2048, 2048, 128), causal=True),
    "powers take longer": lambda: attention((1, 4, 256, 2048, 64)),
    "a step that is not the first": lambda: attention(
        (1, 2, 4096, 4096, 128), meets=(place(4096, 4096) >= 0) & (place(4096, 4096) < 1024)
    ),
    "a bias": lambda: attention(
        (1, 2, 256, 2048, 128), meets=memory(1, 2, 256, 2048, device="EMU")
    ),
    "few blocks": lambda: attention((1, 1, 128, 4096, 128)),
}


@pytest.mark.parametrize("kind", list(KEPT))
def test_threads_copy_where_boxes_would_not_pay(kind: str) -> None:
    text = compile(KEPT[kind](), HOPPER).source
    assert "tinyml_cp_async16" in text
    assert "tinyml_copy_box" not in text


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_registers_suffice(causal: bool, tmp_path: Path) -> None:
    program = compile(
        attention((8, 16, 4096, 4096, 128), causal=causal),
        replace(HOPPER, cores=132),
    )
    assert program.block == (1, 3 * 128, 1)
    resources, cubin = compiled(program, "sm_90a", tmp_path)
    assert not resources.spills
    found = instructions(cubin)
    assert sum(n for op, n in found.items() if op.startswith("WARPGROUP")) <= 7
