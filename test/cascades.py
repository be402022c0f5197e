"""Attention's kernels on a card with warpgroups, and what is asserted of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import stages
from cards import CARD, on_emu
from graphs import memory

from tinyml import Tensor
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import OptKind
from tinyml.device import Device
from tinyml.dtype import DType
from tinyml.kernel import Kernel
from tinyml.runtime.emu import ThreadOrder

HOPPER = replace(CARD, cores=2, warpgroups=True)


def given(b: int, h: int, n: int, m: int, d: int, dtype: DType) -> list[Tensor]:
    """Queries, keys and values."""
    return [memory(b, h, rows, d, dtype=dtype, device="EMU") for rows in (n, m, m)]


def assert_right(k: Kernel, runner: stages.Runner) -> None:
    arrays, wanted = stages.drawn(k)
    runner(k, arrays)
    for made, right in zip(arrays, wanted, strict=True):
        np.testing.assert_allclose(made, right, rtol=0.02, atol=0.02 * np.abs(right).max())


def agree(k: Kernel, orders: Sequence[ThreadOrder] = (ThreadOrder.BACKWARD,)) -> str:
    """Simulated and emulated it is what the interpreter gives."""
    opts, _ = choose(lower(k), HOPPER)
    assert OptKind.WARPGROUP in {opt.kind for opt in opts}
    assert_right(k, stages.simulated(HOPPER, opts))
    program = compile(k, HOPPER, verify=True)
    for order in orders if Device.available("EMU") else ():
        assert_right(k, on_emu(program, order))
    return program.source


def assert_deferred(text: str) -> None:
    """A step's sums are begun with the next one's scores, and the last ones behind the loop."""
    step, behind = text.split("tinyml_wgmma_wait<1>()")
    assert "_late = v" not in step
    assert "_late = v" in behind
    assert step.count("_late.at") == behind.count("_late.at") > 0
    assert text.count("if (r0 - r0_first > 0) {") == 2  # there has been a step
    assert text.count("if (r0 - r0_first <= 0) {") == 1
