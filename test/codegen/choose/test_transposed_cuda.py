"""Maps that read along another axis than they store: through tiles, both in lines of memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import graphs
import numpy as np
import pytest
import stages
from cards import CARD, compiled, instructions, on_emu

from tinyml import Device, Tensor, kernel
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import OptKind
from tinyml.dtype import DType, float32, int8
from tinyml.kernel import Kernel
from tinyml.runtime.emu import ThreadOrder

AMPERE = replace(CARD, cores=108, cache=163 << 10, capability=80)


def given(*shape: int, dtype: DType = float32) -> Tensor:
    return graphs.memory(*shape, dtype=dtype, device="EMU")


def copied(x: Tensor, *order: int) -> Tensor:
    return x.permute(*order).contiguous()


CASES: dict[str, Callable[[], Tensor]] = {
    "matrix": lambda: copied(given(96, 64), 1, 0),
    "nothing divides": lambda: copied(given(77, 131), 1, 0),
    "bytes": lambda: copied(given(70, 90, dtype=int8), 1, 0),
    "to channels": lambda: copied(given(3, 40, 6, 7).bfloat16(), 0, 2, 3, 1),
    "windows of weights": lambda: copied(given(5, 72, 3, 3), 0, 2, 3, 1),
    "two": lambda: copied(given(33, 70), 1, 0) * copied(given(33, 70), 1, 0).exp(),
    "one of two": lambda: given(33, 70).T.exp() + given(70, 33),
    "padded": lambda: copied(given(40, 50).pad(((1, 2), (3, 0))), 1, 0),
}


def made(name: str) -> Kernel:
    return stages.kernel_of(CASES[name]().contiguous())


@pytest.mark.skipif(not Device.available("EMU"), reason="no C++ compiler")
@pytest.mark.parametrize("order", ThreadOrder)
@pytest.mark.parametrize("name", CASES)
def test_threads_in_any_order(name: str, order: ThreadOrder) -> None:
    k = made(name)
    opts, _ = choose(lower(k), AMPERE)
    assert [opt.kind for opt in opts].count(OptKind.STAGE) == 1 + (name == "two")
    stages.assert_right(k, 1e-2 if "to ch" in name else 2e-5, AMPERE)
    arrays = [graphs.numbers(np.random.default_rng(3), shape, dtype) for shape, dtype in k.slots]
    wanted = [a.copy() for a in arrays]
    kernel.run(k, wanted)
    on_emu(compile(k, AMPERE, verify=True), order)(k, arrays)
    found, right = (a[0].astype(np.float64) for a in (arrays, wanted))
    np.testing.assert_allclose(found, right, rtol=1e-2 if "to ch" in name else 1e-5)


@pytest.mark.parametrize(
    "near",
    [
        lambda: copied(given(96, 3), 1, 0),  # neighbours lie in one line
        lambda: copied(given(8, 64), 1, 0),  # what is stored is too short for a warp
        lambda: given(64, 64) + 1.0,
    ],
)
def test_lines_that_are_shared_need_no_tile(near: Callable[[], Tensor]) -> None:
    k = stages.kernel_of(near())
    assert OptKind.STAGE not in {opt.kind for opt in choose(lower(k), AMPERE)[0]}


def test_both_ways_in_lines(tmp_path: Path) -> None:
    k = stages.kernels(copied(given(4096, 4096), 1, 0))[0]
    resources, cubin = compiled(compile(k, AMPERE), "sm_80", tmp_path)
    assert not resources.spills
    found = instructions(cubin)
    assert found["LDG.E.128.CONSTANT"] == 1  # 32 x 32 by 256 threads
    assert found["STG.E"] == 4
    assert found["BAR.SYNC"] + found["BAR.SYNC.DEFER_BLOCKING"] == 1
