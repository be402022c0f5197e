"""Maps whose rows are shorter than a vector, or end early in their second one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import stages
from graphs import memory
from stages import kernel_of

from tinyml import Tensor
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.lower import lower
from tinyml.codegen.nest import Kind
from tinyml.codegen.target import Target
from tinyml.dtype import DType, float32, float64, int32
from tinyml.kernel import Kernel

ROWS = 65  # some are left over

MADE: dict[str, Callable[[int, DType], Tensor]] = {
    "bias": lambda n, t: memory(ROWS, n, dtype=t) + memory(n, dtype=t),
    "scale": lambda n, t: memory(ROWS, n, dtype=t) * memory(ROWS, 1, dtype=t),
    "backwards": lambda n, t: memory(ROWS, n, dtype=t).flip(1) + 1,
    "cut": lambda n, t: memory(ROWS, n + 1, dtype=t)[:, 1:] + 1,
    "padded": lambda n, t: memory(ROWS, n - 1, dtype=t).pad((0, 1)),
    "joined": lambda n, t: Tensor.cat(
        memory(ROWS, n // 2, dtype=t), memory(ROWS, n - n // 2, dtype=t), dim=1
    ),
}


def are_vectors(k: Kernel, target: Target) -> bool:
    """Whether the first nest is vectors that are written out, with nothing left over."""
    nest = choose(lower(k), target)[1]
    rows = nest.nests[0].rows
    whole = not any(split.rest for split in nest.splits if split.inner in rows)
    written = Kind.LOOP not in map(nest.kind, rows)
    masked = nest.nests[0].asks
    return whole and written and not masked and any(nest.kind(a) is Kind.LANE for a in rows)


@pytest.mark.parametrize("dtype", [float32, float64, int32], ids=str)
@pytest.mark.parametrize("bytes_", [16, 32, 64])
@pytest.mark.parametrize("size", [3, 5, 6, 7, 10])
@pytest.mark.parametrize("name", MADE)
def test_few_rows_are_whole_vectors(name: str, size: int, bytes_: int, dtype: DType) -> None:
    k, target = kernel_of(MADE[name](size, dtype)), replace(stages.C, vector_bytes=bytes_)
    lanes = bytes_ // dtype.itemsize
    if size % lanes and size < lanes:
        assert are_vectors(k, target)
    stages.assert_right(k, target=target)


@pytest.mark.parametrize("name", MADE)
def test_what_they_are_made_of_is_picked_out_of_vectors(name: str) -> None:
    target = replace(stages.C, vector_bytes=64)
    text = compile(kernel_of(MADE[name](6, float32)), target).source
    assert "picked" in text
    assert "x16){slot" not in text  # listed one by one


def test_of_rows_that_end_late_the_last_vector_is_masked() -> None:
    for size, joined in ((9, True), (12, True), (15, False)):
        assert are_vectors(kernel_of(MADE["bias"](size, float32)), stages.C) == joined


def test_what_is_demanded_of_a_row_is_asked_once() -> None:
    k = kernel_of(memory(ROWS, dtype=int32).one_hot(6).float())
    assert not are_vectors(k, stages.C)
    stages.assert_right(k)
