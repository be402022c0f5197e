"""What a card's product makes of a factor itself, as it puts it into tiles, and what it is given.

The statistics of rows that a factor is made of are stored, one number a row; the factor is not,
where the product repeats it for two tiles of columns at most.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import stages
from cards import CARD, compiled, instructions, on_emu

from tinyml import Device, Tensor
from tinyml.codegen.compile import compile
from tinyml.dtype import DType, bfloat16, float32
from tinyml.kernel import Kernel
from tinyml.runtime.emu import ThreadOrder
from tinyml.schedule import schedule

WIDE, DEEP = (40, 96), 96  # of what has rows; of its fold
NORMS: dict[str, Callable[..., Tensor]] = {
    "layernorm": lambda x, g: x.layernorm() * g + g,
    "rmsnorm": lambda x, g: x.rmsnorm() * g,
    "softmax": lambda x, g: x.softmax() * g,
    "divided by its norm": lambda x, g: x / x.norm(axis=-1, keepdim=True),
}
TOLERANCE = {float32: 1e-4, bfloat16: 2e-2}


def memory(*shape: int, dtype: DType = float32, device: str = "EMU") -> Tensor:
    return Tensor(np.ones(shape, np.float32), device=device).cast(dtype).realize()


def kernels(*made: Tensor) -> list[Kernel]:
    return stages.kernels_of(schedule([t.lazy for t in made]))


def stored(*made: Tensor) -> list[tuple[int, ...]]:
    """The shapes of what kernels write."""
    return [k.slots[output.slot][0] for k in kernels(*made) for output in k.outputs]


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_only_statistics_are_stored(name: str, dtype: DType) -> None:
    x, w, g = memory(*WIDE, dtype=dtype), memory(DEEP, 24, dtype=dtype), memory(DEEP, dtype=dtype)
    *first, last = kernels(NORMS[name](x, g) @ w)
    assert len(first) == 1
    assert all(first[0].slots[output.slot][0] == (40, 1) for output in first[0].outputs)
    assert WIDE in [shape for shape, _ in last.slots]


@pytest.mark.parametrize("name", ["layernorm", "softmax"])
def test_the_more_it_takes_the_fewer_columns(name: str) -> None:
    x, g = memory(*WIDE), memory(DEEP)
    made = NORMS[name](x, g)
    most = {"layernorm": 256, "softmax": 56}[name]  # 4 and 18 units of work an element
    assert WIDE not in stored(made @ memory(DEEP, most))
    assert WIDE in stored(made @ memory(DEEP, most + 1))


def test_an_activation_is_made_in_tiles_too() -> None:
    x = memory(*WIDE)
    assert stored(x.relu().sqrt() @ memory(DEEP, 128)) == [(40, 128)]
    assert stored(x.exp() @ memory(DEEP, 128)) == [WIDE, (40, 128)]


def test_what_several_read_is_stored() -> None:
    for device in ("EMU", "CPU"):
        made = memory(*WIDE, device=device).layernorm()
        w, v = memory(DEEP, 16, device=device), memory(DEEP, 24, device=device)
        assert stored(made @ w, made @ v).count(WIDE) == 1
        assert stored(made, made @ w).count(WIDE) == 1


def test_what_is_made_of_two_arrays_is_stored() -> None:
    """To read both again takes as long as to store and read what is made of them."""
    x, y, w = memory(*WIDE), memory(*WIDE), memory(DEEP, 16)
    total = x + y
    assert WIDE in stored(total.layernorm() @ w)
    assert stored(total, total.layernorm() @ w).count(WIDE) == 1  # it is there anyway


def test_a_stream_of_residuals_is_there_for_others() -> None:
    x, v, w, u = memory(40, 64), memory(64, 96), memory(DEEP, 16), memory(16, 96)
    stream = x @ v + memory(*WIDE)
    result = stream + stream.layernorm() @ w @ u
    assert stored(result).count(WIDE) == 2


def test_windows_and_other_machines_store_it() -> None:
    """A CPU stores rows in the time in which it would make them again: see docs/design.md."""
    x, w = memory(*WIDE, device="CPU"), memory(DEEP, 16, device="CPU")
    assert WIDE in stored(x.layernorm() @ w)
    image = memory(2, 8, 12, 12)
    assert (2, 8, 12, 12) in stored((image.exp() + 1).conv2d(memory(4, 8, 3, 3), padding=1))


@pytest.mark.skipif(not Device.available("EMU"), reason="no C++ compiler")
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("size", [(40, 96), (37, 200), (70, 133)], ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_threads_in_any_order(name: str, size: tuple[int, int], dtype: DType) -> None:
    """Also where the last tiles are masked, and where rows do not begin at 16 bytes."""
    deep = size[1]
    x, w, g = memory(*size, dtype=dtype), memory(deep, 40, dtype=dtype), memory(deep, dtype=dtype)
    for k in kernels(NORMS[name](x, g) @ w):
        program = compile(k, CARD, verify=True)
        stages.assert_made(k, stages.simulated(CARD, None), TOLERANCE[dtype])
        for order in ThreadOrder:
            stages.assert_made(k, on_emu(program, order), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_what_is_infinite_beyond_the_edge_is_not_added_up(dtype: DType) -> None:
    """A quotient by what a mask makes 0, times 0."""
    x, w = (memory(*size, dtype=dtype) for size in ((40, 200), (200, 40)))
    (k,) = kernels((1 / x) @ w)
    shape = (np.full((40, 40), 200.0), np.ones((40, 200)), np.ones((200, 40)))
    right, *arrays = (a.astype(np.float32) for a in shape)
    made = [np.zeros_like(right), *arrays]
    stages.simulated(CARD, None)(k, made)
    np.testing.assert_array_equal(made[0], right)


@pytest.mark.skipif(not Device.available("EMU"), reason="no C++ compiler")
@pytest.mark.parametrize("columns", [24, 300])
def test_gradients(columns: int, rng: np.random.Generator) -> None:
    arrays = [rng.standard_normal(s).astype(np.float32) for s in (WIDE, (DEEP, columns), (DEEP,))]
    found = []
    for device in ("NUMPY", "EMU"):
        x, w, g = (Tensor(a, device=device).requires_grad_() for a in arrays)
        y = NORMS["layernorm"](x, g) @ w
        found.append([t.numpy() for t in (y, *(y * y).sum().gradient(x, w, g))])
    for right, made in zip(*found, strict=True):
        np.testing.assert_allclose(made, right, rtol=1e-3, atol=1e-3 * np.abs(right).max())


@pytest.mark.parametrize("columns", [64, 256])
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_registers_suffice(columns: int, architecture: str, tmp_path: Path) -> None:
    x, w, g = (memory(*s, dtype=bfloat16) for s in ((8192, 1024), (1024, columns), (1024,)))
    *_, product = kernels(NORMS["layernorm"](x, g) @ w)
    resources, cubin = compiled(compile(product, CARD), architecture, tmp_path)
    assert resources.spill_stores == resources.spill_loads == resources.stack == 0
    found = instructions(cubin)
    assert any(name.startswith("HMMA") for name in found)
    assert found["LDS.128"]  # of what was copied, and is normalised where it lies
    loaded = sum(n for name, n in found.items() if name.startswith("LDG.E"))
    assert loaded < sum(n for name, n in found.items() if name.startswith("LDGSTS"))
