"""Vectors that are stored past the caches: where, and that they arrive."""

from __future__ import annotations

from dataclasses import replace

import graphs
import numpy as np
import pytest
import stages
from graphs import leaf
from stages import kernel_of

from tinyml import lazy
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.linear import Put
from tinyml.codegen.linearize.linearize import linearize
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import OptError, OptKind, apply, optimize, parse
from tinyml.dtype import DType, bfloat16, bool_, float32, float64, int8
from tinyml.kernel import Kernel
from tinyml.ops import Op

SMALL = replace(stages.C, last_cache=1 << 10)


def streamed(k: Kernel) -> list[bool]:
    opts, nest = choose(lower(k), SMALL)
    asked = OptKind.STREAM in {opt.kind for opt in opts}
    found = [s.streams for one in nest.nests for walk in one.walks for s in walk.stores]
    assert asked or not any(found)
    return found


def test_results_go_past_the_caches_that_cannot_hold_them() -> None:
    assert streamed(kernel_of(graphs.add(leaf(8, 8), leaf(8, 8)))) == [False]
    assert streamed(kernel_of(graphs.add(leaf(8, 32), leaf(8, 32)))) == [True]
    assert streamed(kernel_of(graphs.softmax(leaf(8, 32)))) == [True]


def test_rows_that_begin_anywhere_do_not() -> None:
    assert streamed(kernel_of(graphs.softmax(leaf(8, 37)))) == [False]


def test_a_line_of_a_result_is_stored_at_once() -> None:
    """Also of narrow elements, and of several results: a line in parts is written in parts."""
    x = leaf(8, 256, dtype=bfloat16)
    k = kernel_of(lazy.cast(graphs.softmax(lazy.cast(x, float32)), bfloat16))
    opts, _ = choose(lower(k), SMALL)
    assert "unroll j0 4" in map(str, opts)


def test_nor_does_what_one_vector_is_not_enough_for() -> None:
    with pytest.raises(OptError, match="only vectors"):
        apply(lower(kernel_of(graphs.add(leaf(8), leaf(8)))), parse("stream i0"))


@pytest.mark.parametrize("dtype", [float32, float64, bfloat16, int8, bool_], ids=str)
def test_whoever_reads_it_finds_it_there(dtype: DType) -> None:
    """Vectors of each size, those without such an instruction too, and a rest."""
    k = kernel_of(lazy.map_(Op.MAX, leaf(163, dtype=dtype), leaf(163, dtype=dtype)))
    opts = [parse(text) for text in ("lanes i0 8", "stream i0v")]
    assert optimize(lower(k), opts).nests[0].walks[0].stores[0].streams
    rng = np.random.default_rng(1)
    arrays = [np.zeros(163, dtype.compute), *(graphs.numbers(rng, (163,), dtype) for _ in "ab")]
    stages.on_machine("CPU", [k], opts)(k, arrays)
    np.testing.assert_array_equal(arrays[0], np.maximum(arrays[1], arrays[2]))


@pytest.mark.parametrize("dtype", [float32, float64, int8], ids=str)
def test_vectors_side_by_side_are_one_store(dtype: DType) -> None:
    k = kernel_of(lazy.map_(Op.MAX, leaf(163, dtype=dtype), leaf(163, dtype=dtype)))
    opts = [parse(text) for text in ("lanes i0 8", "unroll i0 4", "stream i0v")]
    puts = [i for i in linearize(optimize(lower(k), opts)).parts[0].instrs if isinstance(i, Put)]
    assert [(len(put.values), put.step) for put in puts] == [(4, 8), (1, 1)]  # and the rest
    rng = np.random.default_rng(1)
    given = [graphs.numbers(rng, (163,), dtype) for _ in "ab"]
    for runner in (stages.on_machine("CPU", [k], opts), stages.simulated(stages.C, opts)):
        made = np.zeros(163, dtype.compute)
        runner(k, [made, *given])
        np.testing.assert_array_equal(made, np.maximum(*given))
