"""The cost model puts ways to do one thing in the order in which a processor would."""

from __future__ import annotations

from collections.abc import Sequence

import graphs
import pytest
import stages
from graphs import leaf

from tinyml import lazy
from tinyml.ceilings import Ceilings, Level
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.linearize.linearize import linearize
from tinyml.codegen.lower import lower
from tinyml.codegen.model import Access, predict, touched
from tinyml.codegen.optimize.opts import Opt, OptKind, optimize
from tinyml.dtype import float64
from tinyml.index import Axis, linear
from tinyml.kernel import Kernel
from tinyml.lazy import LazyBuffer
from tinyml.program import Language

CORE = Ceilings(
    flops=1e11,
    lanes=8,
    threads=1,
    launch=1e-6,
    levels=(Level(32 << 10, 1e11, 1e11), Level(1 << 20, 5e10, 5e10), Level(1 << 60, 1e10, 1e10)),
)
LANES, UNROLL = OptKind.LANES, OptKind.UNROLL


def kernel_of(node: LazyBuffer) -> Kernel:
    return stages.kernels(node)[-1]


def seconds(
    node: LazyBuffer,
    opts: Sequence[Opt] | None,
    target: stages.Target = stages.C,
    ceilings: Ceilings = CORE,
) -> float:
    plain = lower(kernel_of(node))
    nest = choose(plain, target)[1] if opts is None else optimize(plain, opts)
    linearized = linearize(nest, vectors=target.language is Language.C)
    return predict(linearized, ceilings) - ceilings.launch


def test_lanes_are_faster_than_one_at_a_time():
    node = graphs.elementwise(4, 64)
    assert seconds(node, [Opt(LANES, "i1", 8)]) < seconds(node, []) / 3


def test_one_accumulator_waits_for_itself():
    node = graphs.total(leaf(2, 1024), 1)
    lanes = Opt(LANES, "r0", 8)
    assert seconds(node, [lanes, Opt(UNROLL, "r0", 4)]) < seconds(node, [lanes]) / 2


def test_tiles_are_faster_than_reading_a_matrix_again_and_again():
    node = graphs.matmul(leaf(512, 512), leaf(512, 512))
    flops = 2 * 512**3
    assert seconds(node, None) < 2 * flops / CORE.flops
    assert seconds(node, []) > 10 * flops / CORE.flops


@pytest.mark.parametrize("target", [stages.C, stages.CUDA], ids=["C", "CUDA"])
def test_what_streams_takes_as_long_as_its_bytes(target):
    node = graphs.add(leaf(1 << 22), leaf(1 << 22))
    least = 3 * 4 * (1 << 22) / CORE.levels[-1].read
    assert seconds(node, None, target) == pytest.approx(least, rel=0.1)


def test_what_lies_in_a_cache_is_faster_than_what_does_not():
    small, large = (graphs.add(leaf(n), leaf(n)) for n in (1 << 14, 1 << 22))
    assert seconds(large, None) > 2 * 256 * seconds(small, None)


def test_accumulators_without_a_register_are_slow():
    node = graphs.matmul(leaf(96, 96), leaf(96, 96))
    lanes = [Opt(LANES, "i1", 8), Opt(UNROLL, "i1", 2)]
    fits, spills = (seconds(node, [*lanes, Opt(UNROLL, "i0", n)]) for n in (6, 8))
    assert spills > 1.5 * fits


def test_values_wider_than_a_register_are_slow_and_not_chosen():
    node = graphs.total(leaf(64, 96, dtype=float64), 1)
    assert seconds(node, [Opt(LANES, "r0", 8)]) > 4 * seconds(node, [Opt(LANES, "r0", 4)])
    opts, _ = choose(lower(kernel_of(node)), stages.C)
    assert Opt(LANES, "r0", 4) in opts


def test_two_threads_halve_many_blocks_and_not_one():
    two = Ceilings(2 * CORE.flops, CORE.lanes, 2, CORE.launch, CORE.levels)
    many, one = graphs.softmax(leaf(64, 64)), graphs.softmax(leaf(1, 64))
    for node, gain in ((many, 2.0), (one, 1.0)):
        alone, both = (seconds(node, None, ceilings=c) for c in (CORE, two))
        assert alone / both == pytest.approx(gain, rel=0.1)  # each has caches of its own


def test_footprints_are_whole_lines_and_count_nothing_twice():
    i, j, again = Axis("i", 64), Axis("j", 32), Axis("again", 5)
    row = linear(i) * 32 + linear(j)
    column = linear(j) * 1024 + linear(i)

    def walked(*positions: object, loops: tuple[Axis, ...]) -> int:
        found = touched([Access(1, False, 4, p, loops) for p in positions], 0)
        return found[1, False]

    assert walked(row, loops=(i, j)) == 64 * 32 * 4
    assert walked(row, loops=(again, i, j)) == 64 * 32 * 4
    assert walked(row, row + 1, loops=(i, j)) <= 64 * 32 * 4 + 64
    assert walked(column, loops=(j,)) >= 32 * 64  # a line for each element
    assert walked(column, loops=(i,)) == 64 * 4
    rows = [row + n for n in (0, 8, 5000, 5008)]
    assert 4 * 64 <= walked(*rows, loops=(j,)) < 1000  # two short runs, and what lies between not


def test_every_kernel_has_a_prediction():
    nodes = [
        graphs.layernorm(leaf(5, 7)),
        graphs.convolution(1, 2, 3, 5, 4),
        graphs.embedding(6, 5, 7),
        graphs.embedding_gradient(6, 5, 7),
        lazy.pad(leaf(3, 6), ((1, 0), (3, 2)), 5.0),
    ]
    for node in nodes:
        for target in (stages.C, stages.CUDA):
            for opts in (None, []):
                assert 0 < seconds(node, opts, target) < 1e-3
