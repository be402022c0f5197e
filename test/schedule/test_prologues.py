"""What is cheap to make of a factor is made by a product of a card, as it puts it into tiles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import stages
from cards import CARD, compiled, instructions, on_emu
from stages import kernels

from tinyml import Device, Tensor
from tinyml.codegen.compile import compile
from tinyml.dtype import DType, bfloat16, float32
from tinyml.runtime.emu import ThreadOrder
from tinyml.schedule import units

WIDE, DEEP = (40, 96), 96  # of what has rows; of its fold
MADE: dict[str, Callable[..., Tensor]] = {  # of x, and of a number for each row
    "normalised": lambda x, m: (x + m) * m,
    "rectified": lambda x, m: x.relu() * m,
}
TOLERANCE = {float32: 1e-4, bfloat16: 2e-2}


def memory(*shape: int, dtype: DType = float32, device: str = "EMU") -> Tensor:
    return Tensor(np.ones(shape, np.float32), device=device).cast(dtype).realize()


def stored(*made: Tensor) -> list[tuple[int, ...]]:
    """The shapes of what kernels write."""
    return [k.slots[output.slot][0] for k in kernels(*made) for output in k.outputs]


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("name", MADE)
def test_what_is_cheap_is_made_in_tiles(name: str, dtype: DType) -> None:
    x, w, m = memory(*WIDE, dtype=dtype), memory(DEEP, 24, dtype=dtype), memory(40, 1, dtype=dtype)
    assert stored(MADE[name](x, m) @ w) == [(40, 24)]
    assert WIDE in stored(MADE[name](x, m).exp() @ w)


def test_what_several_read_is_stored() -> None:
    for device in ("EMU", "CPU"):
        made = memory(*WIDE, device=device).layernorm()
        w, v = memory(DEEP, 16, device=device), memory(DEEP, 24, device=device)
        assert stored(made @ w, made @ v).count(WIDE) == 1
        assert stored(made, made @ w).count(WIDE) == 1


@pytest.mark.skipif(not Device.available("EMU"), reason="no C++ compiler")
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("size", [(40, 96), (37, 200), (70, 133)], ids=str)
@pytest.mark.parametrize("name", MADE)
def test_threads_in_any_order(name: str, size: tuple[int, int], dtype: DType) -> None:
    """Also where the last tiles are masked, and where rows do not begin at 16 bytes."""
    deep = size[1]
    given = (size, (deep, 40), (size[0], 1))
    x, w, m = (memory(*shape, dtype=dtype) for shape in given)
    for k in kernels(MADE[name](x, m) @ w):
        program = compile(k, CARD, verify=True)
        stages.assert_made(k, stages.simulated(CARD, None), TOLERANCE[dtype])
        for order in ThreadOrder:
            stages.assert_made(k, on_emu(program, order), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_what_is_infinite_beyond_the_edge_is_not_added_up(
    dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quotient by what a mask makes 0, times 0."""
    monkeypatch.setattr(units, "CHEAP", 8)  # a quotient is made in tiles, too
    x, w = (memory(*size, dtype=dtype) for size in ((40, 200), (200, 40)))
    (k,) = kernels((1 / x) @ w)
    shape = (np.full((40, 40), 200.0), np.ones((40, 200)), np.ones((200, 40)))
    right, *arrays = (a.astype(np.float32) for a in shape)
    made = [np.zeros_like(right), *arrays]
    stages.simulated(CARD, None)(k, made)
    np.testing.assert_array_equal(made[0], right)


@pytest.mark.parametrize("columns", [64, 248])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_registers_suffice(columns: int, architecture: str, tmp_path: Path) -> None:
    x, w, m = (memory(*s, dtype=bfloat16) for s in ((8192, 1024), (1024, columns), (8192, 1)))
    (product,) = kernels(MADE["normalised"](x, m) @ w)
    resources, cubin = compiled(compile(product, CARD), architecture, tmp_path)
    assert resources.spill_stores == resources.spill_loads == resources.stack == 0
    assert any(name.startswith("HMMA") for name in instructions(cubin))
