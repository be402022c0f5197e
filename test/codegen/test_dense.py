"""What neighbouring lanes have in common is made once for several vectors."""

import graphs
import pytest
import stages

from tinyml import Tensor
from tinyml.codegen.compile import compile
from tinyml.codegen.dense import made_once
from tinyml.codegen.expr import Expr, Load, Place, alu, const
from tinyml.codegen.optimize.opts import parse
from tinyml.dtype import int32
from tinyml.index import Axis, Linear, linear
from tinyml.kernel import Kernel
from tinyml.ops import Op

LANE, STEP = Axis("v", 8), Axis("i", 5)


def costly(index: Linear) -> Expr:
    e: Expr = Place(index, int32)
    for n in range(2, 8):
        e = alu(Op.MUL, int32, alu(Op.ADD, int32, e, const(n, int32)), e)
    return e


def at(first: int, by: int = 2) -> Linear:
    return linear(STEP) * 8 + first + linear(LANE) // by


@pytest.mark.parametrize(("by", "firsts"), [(2, (0, 4)), (4, (0, 2, 6)), (3, (1, 5))])
def test_vectors_of_pairs_are_one_vector(by: int, firsts: tuple[int, ...]) -> None:
    made = made_once([costly(at(first, by)) for first in firsts], LANE)
    whole = costly(linear(STEP) * 8 + linear(LANE))
    assert [e.sources for e in made] == [(whole,)] * len(firsts)


def test_what_reads_memory_or_is_alone_or_short_stays_as_it_is() -> None:
    read = Load(1, int32, at(0), ())
    for values in (
        [costly(at(0)), costly(at(8))],  # of two vectors
        [costly(at(0))],
        [alu(Op.ADD, int32, Place(at(n), int32), const(1, int32)) for n in (0, 4)],
        [alu(Op.MUL, int32, e, read) for e in (read, costly(at(4)))],
        [costly(at(n, 3)) for n in (0, 6)],  # it ends in another vector
    ):
        assert made_once(values, LANE) is values


def dropped(count: int) -> Kernel:
    with Tensor.train():
        x = graphs.memory(count, device="CPU").dropout(0.25)
    return stages.kernels(x)[-1]


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("over", [0, 13])
def test_random_words_that_neighbours_share_are_made_once(lanes: int, over: int) -> None:
    k, rounds = dropped(12 * lanes + over), f"rotl_u32_x{lanes}("
    opts = [parse(f"lanes i0 {lanes}"), parse("unroll i0 4")]
    lines = compile(k, stages.TARGETS["C"], opts).source.splitlines()
    words = [line for line in lines if rounds in line and "for" not in line]
    if not over:
        assert 18 <= len(words) <= 24 * max(1, 8 // lanes)  # vectors of 4 have half a block
    (runner,) = stages.compiled("CPU", [(k, opts)])
    for run in (runner, stages.simulated(stages.TARGETS["C"], opts)):
        stages.assert_made(k, run, 0)


def test_random_words_of_rows_that_are_folded_first_are_made_once() -> None:
    with Tensor.train():
        x = graphs.memory(5, 64, device="CPU").softmax(-1).dropout(0.25)
    k = stages.kernels(x)[-1]
    opts = [parse(opt) for opt in ("lanes r0 8", "lanes j0 8", "unroll j0 4")]
    assert "spread_u32x8" in compile(k, stages.TARGETS["C"], opts).source
    stages.assert_made(k, stages.simulated(stages.TARGETS["C"], opts))
