"""Products of few rows have their vectors along the fold."""

from __future__ import annotations

from dataclasses import replace

import graphs
import pytest
import stages
from graphs import leaf
from products import weights_gradient

from tinyml import lazy
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import Opt, OptKind
from tinyml.kernel import Kernel


def product(m: int, depth: int, n: int) -> Kernel:
    """Of a matrix and a transposed one: both lie along the fold."""
    right = lazy.permute(leaf(n, depth), (1, 0))
    return stages.kernels(graphs.matmul(leaf(m, depth), right))[-1]


def lanes(k: Kernel) -> list[str]:
    return [opt.axis for opt in choose(lower(k), stages.C)[0] if opt.kind is OptKind.LANES]


@pytest.mark.parametrize("rows", [(4, 7), (8, 3), (5, 7), (2, 2)], ids=str)
def test_few_rows_are_multiplied_along_the_fold(rows: tuple[int, int]) -> None:
    k = product(rows[0], 40, rows[1])
    assert lanes(k) == ["r0"]
    stages.assert_right(k, 1e-4)


@pytest.mark.parametrize(
    ("columns", "registers", "counts"), [(10, 32, (4, 5)), (10, 16, (2, 5)), (3, 16, (4, 3))]
)
def test_as_many_sums_are_made_at_a_time_as_take_least(
    columns: int, registers: int, counts: tuple[int, int]
) -> None:
    """Vectors are loaded for more of them, as long as all have registers."""
    k = product(16, 64, columns)
    opts, _ = choose(lower(k), replace(stages.C, vector_registers=registers))
    assert [opt.amount for opt in opts if opt.kind is OptKind.UNROLL] == [*counts]
    stages.assert_right(k, 1e-4)


def test_many_rows_are_packed() -> None:
    assert lanes(product(48, 64, 48))[0] != "r0"


def test_a_fold_of_no_whole_vectors_is_not() -> None:
    assert "r0" not in lanes(product(4, 41, 16))


@pytest.mark.parametrize(("inner", "outer"), [(3, 7), (4, 6), (1, 5), (3, 8)])
def test_so_are_the_weights_of_convolutions_to_few_channels(inner: int, outer: int) -> None:
    k = weights_gradient(4, inner, outer, 8)
    assert lanes(k) == ["r2"]
    stages.assert_right(k, 1e-4)


def test_of_equal_windows_axes_the_inner_one_is_written_out() -> None:
    opts, _ = choose(lower(weights_gradient(4, 3, 6, 8)), stages.C)
    assert [opt.axis for opt in opts if opt.kind is OptKind.UNROLL] == ["i0", "i3"]


def test_sums_wait_while_images_pass_through_the_cache() -> None:
    opts, _ = choose(lower(weights_gradient(7, 4, 6, 32)), stages.C)
    (blocked,) = [opt for opt in opts if opt.kind is OptKind.BLOCK]
    assert blocked == Opt(OptKind.BLOCK, "r0", blocked.amount)
    assert blocked.amount < 7
