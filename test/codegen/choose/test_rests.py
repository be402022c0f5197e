"""What is left of a row after whole vectors goes through functions in lanes, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import stages
from graphs import memory
from stages import kernel_of

from tinyml import Tensor
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.lower import lower
from tinyml.codegen.nest import Kind
from tinyml.codegen.target import Target
from tinyml.dtype import DType, bfloat16, float32, float64, int32, int64
from tinyml.kernel import Kernel

COSTLY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gelu": lambda x, bias: (x + bias).gelu(),
    "tanh": lambda x, bias: (x * bias).tanh(),
    "softmax": lambda x, bias: (x + bias).softmax(-1),
    "log-softmax": lambda x, bias: x.log_softmax(-1) * bias,
    "sum of exp": lambda x, bias: (x + bias).exp().sum(-1),
}


def one_by_one(k: Kernel, target: Target = stages.C) -> int:
    """How many elements are left to be made one by one."""
    nest = choose(lower(k), target)[1]
    return max((s.rest for s in nest.splits if nest.kind(s.inner) is Kind.LANE), default=0)


@pytest.mark.parametrize("dtype", [float32, bfloat16, float64], ids=str)
@pytest.mark.parametrize("size", [7, 10, 31, 100, 1003])
@pytest.mark.parametrize("name", COSTLY)
def test_rests_have_lanes(name: str, size: int, dtype: DType) -> None:
    k = kernel_of(COSTLY[name](memory(33, size, dtype=dtype), memory(size, dtype=dtype)))
    assert one_by_one(k) <= 1
    stages.assert_right(k)


def test_of_what_is_cheap_short_rests_are_made_one_by_one() -> None:
    assert one_by_one(kernel_of(memory(33, 31) + memory(31))) == 0
    assert one_by_one(kernel_of(memory(33, 35) + memory(35))) == 3


@pytest.mark.parametrize("size", [10, 18, 35])
@pytest.mark.parametrize("bytes_", [32, 64])
def test_rows_that_are_walked_again_or_whose_largest_is_looked_for_have_lanes(
    size: int, bytes_: int
) -> None:
    x, target = memory(33, size), replace(stages.C, vector_bytes=bytes_)
    centred = x - x.mean(1, keepdim=True)
    for made in (centred, centred.square().sum(1), x.max(1), x.argmax(1)):
        assert one_by_one(kernel_of(made), target) <= 1
        stages.assert_right(kernel_of(made), target=target)


@pytest.mark.parametrize("bytes_", [32, 64])
def test_rows_of_truths_that_become_numbers_have_lanes(bytes_: int) -> None:
    """Of single ones compilers make branches, which cannot be foreseen."""
    x, target = memory(33, 18), replace(stages.C, vector_bytes=bytes_)
    classes = memory(33, dtype=int64)
    for made in ((x > x[:, :1]) * x, classes.one_hot(18).float()):
        assert one_by_one(kernel_of(made), target) == 0
        stages.assert_right(kernel_of(made), target=target)


def test_of_rows_that_are_added_up_once_rests_are_made_one_by_one() -> None:
    assert one_by_one(kernel_of(memory(33, 18).sum(1))) == 2


def test_nothing_is_divided_by_what_a_mask_leaves_out() -> None:
    x, y = memory(33, 31, dtype=int32), memory(31, dtype=int32)
    k = kernel_of((x // y).float().exp())
    assert one_by_one(k) == 0
    stages.assert_right(k)


def test_long_arrays_are_not_masked_in_every_piece() -> None:
    k = kernel_of(memory(100_003).exp())
    nest = choose(lower(k), stages.C)[1]
    assert not nest.nests[0].asks
    stages.assert_right(k)


def test_without_masks_in_memory_elements_are_made_one_by_one() -> None:
    k = kernel_of((memory(33, 31) + memory(31)).gelu())
    assert one_by_one(k, replace(stages.C, vector_bytes=16)) == 3
