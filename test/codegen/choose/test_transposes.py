"""Large squares of what is read across are copied to tiles in whole vectors."""

from __future__ import annotations

from dataclasses import replace

import graphs
import pytest
import stages
from graphs import leaf

from tinyml import lazy
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import OptKind
from tinyml.codegen.target import Target
from tinyml.dtype import DType, bool_, float16, float32, float64
from tinyml.kernel import Kernel
from tinyml.lazy import LazyBuffer
from tinyml.ops import Op


def turned(*shape: int, dtype: DType = float32) -> LazyBuffer:
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    return lazy.permute(leaf(*shape, dtype=dtype), order)


def kernel_of(root: LazyBuffer) -> Kernel:
    return stages.kernel_of(lazy.contiguous(root))


def tiles(k: Kernel, target: Target = stages.C) -> int:
    opts, _ = choose(lower(k), target)
    return sum(opt.kind is OptKind.STAGE for opt in opts)


@pytest.mark.parametrize("dtype", [float32, float64, float16, bool_], ids=str)
@pytest.mark.parametrize("shape", [(70, 4096), (2, 131, 2048)], ids=str)
def test_rows_that_begin_far_apart(shape: tuple[int, ...], dtype: DType) -> None:
    k = kernel_of(turned(*shape, dtype=dtype))
    assert tiles(k) == 1
    stages.assert_right(k, 0)


def test_other_rows_stay_where_they_are_while_caches_hold_them() -> None:
    k = kernel_of(turned(70, 300))
    assert tiles(k) == 0
    assert tiles(k, replace(stages.C, last_cache=1 << 10)) == 1
    stages.assert_right(k, 0)


def test_rows_pages_apart_are_copied_once_they_leave_the_own_cache_of_a_core() -> None:
    k, small = kernel_of(turned(70, 2308)), replace(stages.C, cache=1 << 18)
    assert tiles(k, small) == 1
    assert tiles(k, replace(stages.C, cache=1 << 21)) == 0
    assert tiles(kernel_of(turned(70, 1999)), small) == 0
    stages.assert_right(k, 0)


def test_squares_of_one_image_come_after_each_other() -> None:
    _, nest = choose(lower(kernel_of(turned(5, 70, 300))), stages.C)
    sizes = [(a.name, a.size) for a in nest.nests[0].rows[:3]]
    assert sizes == [("i0", 5), ("i1", 18), ("i2", 4)]


def test_what_is_made_of_them_is_copied_ready_made() -> None:
    both = lazy.map_(Op.MAX, turned(70, 1024), turned(70, 1024))
    k = kernel_of(lazy.map_(Op.NEG, both))
    assert tiles(k) == 1
    stages.assert_right(k, 0)


def test_nothing_is_copied_with_what_would_then_be_read_across() -> None:
    """It is read as it lies, beside the tile of what is turned."""
    x = leaf(512, 512)
    for other in (x, leaf(512, 512)):
        k = kernel_of(graphs.add(lazy.map_(Op.NEG, lazy.permute(x, (1, 0))), other))
        assert tiles(k) == 1
        stages.assert_right(k, 0)
