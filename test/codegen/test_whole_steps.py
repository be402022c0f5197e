"""All kernels of whole training steps, as they are made for a card, with threads in three orders.

Each runs on the emulator on what the kernels before it left in memory, and must leave what the
same kernel leaves on whole arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import stages
from cards import CARD

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import steps
from benchmarks.dialect import TinymlOps
from benchmarks.steps import GPTSize, Step, differentiated, spoken
from tinyml import Device, Tensor, kernel, nn
from tinyml.codegen.compile import compile
from tinyml.codegen.target import Target
from tinyml.dtype import to_compute
from tinyml.graph import toposort
from tinyml.kernel import Kernel
from tinyml.lazy import Data, LazyBuffer
from tinyml.ledger import memory
from tinyml.runtime.emu import EmuMachine, ThreadOrder
from tinyml.schedule import schedule

MODELS = {
    # of logits whose rows are filled up
    "GPT": steps.gpt(GPTSize(layers=1, dim=96, heads=3, context=40, batch=2, vocabulary=131)),
    "convnet": steps.residual((24, 40), size=10, batch=3),
}
CARDS = {
    "halves": (CARD, True, 4e-2),
    "warpgroups": (replace(CARD, warpgroups=True), True, 4e-2),
    "floats": (CARD, False, 5e-5),
    "tf32": (replace(CARD, tf32=True), False, 1e-2),
    "old": (replace(CARD, capability=75, cache=64 << 10), True, 4e-2),
}


def step(model: Step) -> tuple[list[LazyBuffer], stages.Values]:
    """A step that is recorded, and the values that it begins with: not of AdamW's first one."""
    parameters, data = model.split([Tensor(array, device="EMU") for array in model.inputs()])
    optimizer = nn.optim.AdamW(list(parameters.values()))
    rng = np.random.default_rng(1)
    moments = [(t.lazy, 1e-2 * rng.standard_normal(t.shape)) for t in optimizer.m]
    moments += [(t.lazy, 1e-4 * rng.random(t.shape)) for t in optimizer.v]
    assert model.loss is not None
    loss = partial(model.loss, spoken(TinymlOps(), model), parameters)
    with Tensor.train():
        results = [*differentiated(loss, parameters, data), *optimizer.schedule_step()]
    roots = [tensor.lazy for tensor in results]
    known = {leaf: held(leaf) for leaf in toposort(roots) if isinstance(leaf, Data)}
    return roots, known | {leaf: values.astype(np.float32) for leaf, values in moments}


def held(leaf: Data) -> stages.Array:
    return to_compute(memory[leaf].read(), leaf.dtype).reshape(leaf.shape)


def emulated(kernels: Sequence[Kernel], target: Target) -> dict[Kernel, list[stages.Runner]]:
    """A runner for each kernel and order."""
    programs = [compile(k, target, verify=True) for k in kernels]
    machines = [EmuMachine(order=order) for order in ThreadOrder]
    loaded = [[stages.launched(m, one) for one in m.load(programs)] for m in machines]
    return {k: list(runners) for k, *runners in zip(kernels, *loaded, strict=True)}


@pytest.mark.skipif(not Device.available("EMU"), reason="no C++ compiler")
@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("name", MODELS)
def test_every_kernel_of_a_step(name: str, card: str) -> None:
    target, half, tolerance = CARDS[card]
    roots, known = step(replace(MODELS[name], half=half))
    made = schedule(roots)
    kernels = list(dict.fromkeys(stages.kernels_of(made)))
    runners = emulated(kernels, target)

    def agree(k: Kernel, arrays: Sequence[stages.Array]) -> None:
        given = [a.copy() for a in arrays]
        kernel.run(k, arrays)
        for order, runner in zip(ThreadOrder, runners[k], strict=True):
            found = [a.copy() for a in given]
            runner(k, found)
            for output in k.outputs:
                pair = (output.within(values[output.slot]) for values in (found, arrays))
                made, right = (values.astype(np.float64) for values in pair)
                usual = tolerance * np.abs(right).mean()
                said = f"{order}: {k}"
                np.testing.assert_allclose(made, right, tolerance, usual, err_msg=said)

    loss, *_ = stages.run(made, known, agree)
    assert 0 < loss < 10
