"""What is trained of each pair of a query and a key: its gradient, and nothing else, is stored."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import graphs
import pytest
import stages
from attentions import (
    KEYS,
    QUERIES,
    TARGETS,
    Attention,
    assert_trained,
    biased,
    distances,
    largest,
    memory,
    stored,
    training,
)
from cards import CARD, compiled, on_emu

from tinyml import Tensor
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import OptKind
from tinyml.codegen.target import Target
from tinyml.dtype import DType, bfloat16, float32
from tinyml.kernel import Kernel
from tinyml.lazy import Shape
from tinyml.runtime.emu import ThreadOrder

pytestmark = pytest.mark.usefixtures("short")


def looked_up(q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
    """As in T5: a number for each head and a few distances, of which the last ones are one."""
    near = distances(q, k).clip(0, table.shape[0] - 1)
    return biased(q, k, v, table[near].permute(2, 0, 1))


PAIRS: dict[str, tuple[Attention, Shape]] = {
    "heads": (biased, (2, QUERIES, KEYS)),
    "all heads": (biased, (QUERIES, KEYS)),
    "a table": (looked_up, (7, 2)),
}
OF_PAIRS = pytest.mark.parametrize(("attend", "shape"), PAIRS.values(), ids=PAIRS)


@TARGETS
@pytest.mark.parametrize("widths", [(3, 3), (12, 12), (12, 5)], ids=str)
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@OF_PAIRS
def test_a_bias_of_pairs_that_a_batch_shares(
    attend: Attention, shape: Shape, dtype: DType, widths: tuple[int, int], target: Target
) -> None:
    """Nothing that all of the batch have for each pair is stored."""
    kernels = training_pairs(3, attend, shape, dtype, widths)
    assert largest(kernels) < 3 * 2 * QUERIES * KEYS
    for k in kernels:
        stages.assert_right(k, 2e-2 if dtype.is_half else 1e-4, target, cancels=True)


@TARGETS
@pytest.mark.parametrize("widths", [(12, 12), (12, 5)], ids=str)
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@OF_PAIRS
def test_a_bias_of_pairs_without_a_batch(
    attend: Attention, shape: Shape, dtype: DType, widths: tuple[int, int], target: Target
) -> None:
    """All that is stored for each pair and head is its gradient, or that of what is looked up."""
    kernels = training_pairs(1, attend, shape, dtype, widths)
    assert stored(kernels, 2 * QUERIES * KEYS) == (shape != (QUERIES, KEYS))
    for k in kernels:
        stages.assert_right(k, 2e-2 if dtype.is_half else 1e-4, target, cancels=True)


def training_pairs(
    batch: int, attend: Attention, shape: Shape, dtype: DType, widths: tuple[int, int]
) -> list[Kernel]:
    wide, other = widths
    sizes = (QUERIES, wide), (KEYS, wide), (KEYS, other)
    given = [memory(batch, 2, n, d, dtype=dtype) for n, d in sizes]
    return training(attend, *given, memory(*shape, dtype=dtype))


def of_pairs(width: int, dtype: DType = float32, batch: int = 4) -> Kernel:
    """The kernel of the gradient of a bias of pairs that a batch shares."""
    given = [memory(batch, 2, 128, width, dtype=dtype) for _ in range(3)]
    *_, last = training(biased, *given, memory(2, 128, 128, dtype=dtype))
    assert {output.shape for output in last.outputs} == {(2, 128, 128)}
    return last


@pytest.mark.parametrize(
    ("target", "dtype", "kinds"),
    [
        (stages.C, float32, {OptKind.LANES: 1, OptKind.STAGE: 2}),  # both second factors packed
        (CARD, float32, {OptKind.LANES: 0, OptKind.STAGE: 4, OptKind.PIPELINE: 1}),  # columns apart
        (CARD, bfloat16, {OptKind.FRAGMENT: 1, OptKind.STAGE: 4, OptKind.PIPELINE: 1}),
    ],
    ids=["C", "CUDA", "tensor cores"],
)
@pytest.mark.parametrize("batch", [4, 1])
def test_tiles_of_a_bias_are_made_for_one_of_a_batch_after_the_other(
    batch: int, target: Target, dtype: DType, kinds: dict[OptKind, int]
) -> None:
    made, _ = choose(lower(of_pairs(64, dtype, batch)), target)
    chosen = Counter(opt.kind for opt in made)
    assert {kind: chosen[kind] for kind in kinds} == kinds


@pytest.mark.parametrize("cache", [227 << 10, 48 << 10])
@pytest.mark.parametrize("width", [64, 440])
@pytest.mark.parametrize(("dtype", "batch"), [(float32, 4), (bfloat16, 4), (bfloat16, 1)], ids=str)
def test_tiles_of_a_bias_fit_a_card(
    dtype: DType, batch: int, width: int, cache: int, tmp_path: Path
) -> None:
    """Where whole rows of factors do not, these are read as they lie."""
    program = compile(of_pairs(width, dtype, batch), replace(CARD, cache=cache))
    assert ("add_product" in program.source) == dtype.is_half
    assert program.shared <= cache
    resources, _ = compiled(program, "sm_90a", tmp_path)
    assert not resources.spills
    assert not resources.stack


@pytest.mark.parametrize("device", ["CPU", "EMU"])
@pytest.mark.parametrize("batch", [3, 1])
@OF_PAIRS
def test_gradients_of_a_bias_of_pairs_are_those_of_numpy(
    attend: Attention, shape: Shape, batch: int, device: str
) -> None:
    shapes = [*((batch, 2, n, 5) for n in (QUERIES, KEYS, KEYS)), shape]
    added = device == "EMU" and attend is looked_up  # by threads that make them
    most = 2 * QUERIES * KEYS if added else batch * 2 * QUERIES * KEYS + (batch == 1)
    assert_trained(attend, device, shapes, most)


@pytest.mark.parametrize("order", ThreadOrder)
@pytest.mark.parametrize("batch", [3, 1])
def test_warps_add_up_a_table_of_what_they_multiply(batch: int, order: ThreadOrder) -> None:
    shapes = (batch, 2, 70, 20), (batch, 2, 70, 20), (batch, 2, 70, 20), (7, 2)
    given = [graphs.memory(*s, dtype=bfloat16, device="EMU").requires_grad_() for s in shapes]
    y = looked_up(*given)
    grad = graphs.memory(*y.shape, dtype=bfloat16, device="EMU")
    roots = [y.lazy, *(g.lazy for g in (y * grad).sum().gradient(*given))]
    (k,) = (k for k in stages.kernels(*roots) if k.outputs[0].index is not None)
    program = compile(k, CARD, verify=True)
    assert "add_product" in program.source
    stages.assert_made(k, on_emu(program, order), 2e-2)
