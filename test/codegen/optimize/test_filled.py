"""A fold's loop fills the tile that it is the first to read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import stages
from graphs import memory

from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.linear import Begin, End, LinearKernel, PutTile, Update
from tinyml.codegen.linearize.linearize import linearize
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.filled import by_fold
from tinyml.codegen.optimize.opts import OptError, OptKind, optimize, parse
from tinyml.codegen.optimize.tiles import names_read
from tinyml.kernel import Kernel

WIDE = replace(stages.C, vector_bytes=64, vector_registers=32)
FILLED = [parse(text) for text in ("keep i0", "fill r0")]


def softmax(*shape: int) -> Kernel:
    return stages.kernel_of(memory(*shape).softmax(-1))


def fills(k: Kernel, target: stages.Target = WIDE) -> bool:
    return OptKind.FILL in {opt.kind for opt in choose(lower(k), target)[0]}


def loops_that_put_and_update(k: LinearKernel) -> int:
    """The innermost loops that both fill a tile and add something up."""
    count, inner = 0, set[type]()
    for instr in k.parts[0].instrs:
        if isinstance(instr, (Begin, End)):
            count += {PutTile, Update} <= inner
            inner = set()
        inner.add(type(instr))
    return count


def test_a_row_longer_than_the_nearest_cache_is_added_up_while_it_is_kept() -> None:
    assert fills(softmax(9, 8192))
    assert not fills(softmax(9, 8191 // 16 * 16))


def test_sixteen_registers_do_not_hold_sums_and_what_fills() -> None:
    assert not fills(softmax(9, 8192), replace(WIDE, vector_registers=16))


def test_a_fold_fills_in_its_loop_and_no_other_loop_does() -> None:
    k = softmax(3, 40)
    apart, filled = (optimize(lower(k), opts) for opts in (FILLED[:1], FILLED))
    assert loops_that_put_and_update(linearize(apart)) == 0
    assert loops_that_put_and_update(linearize(filled)) == 1
    puts = [i for i in linearize(filled).parts[0].instrs if isinstance(i, PutTile)]
    assert len(puts) == 1


@pytest.mark.parametrize("size", [24, 37, 47])
@pytest.mark.parametrize("divided", [(), ("lanes r0 8",), ("lanes r0 8", "unroll r0 2")], ids=str)
def test_the_rest_of_a_fold_fills_the_rest_of_a_tile(size: int, divided: tuple[str, ...]) -> None:
    opts = [*FILLED, *map(parse, divided)]
    stages.assert_made(softmax(3, size), stages.simulated(stages.C, opts))
    stages.assert_made(softmax(3, size), stages.on_machine("CPU", [softmax(3, size)], opts))


@pytest.mark.parametrize("shape", [(3, 8192), (2, 8200), (2, 8195)], ids=str)
def test_long_rows_with_their_gradient(shape: tuple[int, ...]) -> None:
    x, g = memory(*shape), memory(*shape)
    x.requires_grad = True
    for made in (x.softmax(-1), x.log_softmax(-1)):
        (dx,) = made.gradient(x, gradient=g)
        for k in stages.kernels(made, dx):
            stages.assert_made(k, stages.simulated(WIDE, None))


def test_folds_in_the_same_loop_read_what_it_fills() -> None:
    """As the sum of exps and of their products with what comes from above."""
    x, g = memory(3, 40), memory(3, 40)
    x.requires_grad = True
    (dx,) = x.softmax(-1).gradient(x, gradient=g)
    k = stages.kernel_of(dx)
    nest = optimize(lower(k), FILLED)
    (one,) = nest.nests
    (tile,) = one.tiles
    assert by_fold(one, tile)
    assert sum(tile.name in names_read([fold.body]) for fold in one.folds) == 2
    assert loops_that_put_and_update(linearize(nest)) == 1
    stages.assert_made(k, stages.simulated(stages.C, FILLED))


def test_a_tile_of_several_rows_is_filled_before_it_is_read() -> None:
    with pytest.raises(OptError, match="first to read"):
        optimize(lower(softmax(4, 40)), [parse("unroll i0 2"), *FILLED])
    with pytest.raises(OptError, match="fills a tile"):
        optimize(lower(softmax(4, 40)), [*FILLED, parse("thread r0 4")])


def test_a_tile_that_another_one_is_made_of_is_filled_before_that() -> None:
    """Unless that is made of what the fold finds, too, as in a softmax of a softmax."""
    x = memory(3, 40)
    e = x.exp()
    waves = (e * 2).sin()
    k = stages.kernel_of(waves * waves.sum(-1, True) / e.sum(-1, True))
    opts = [parse("keep i0"), *FILLED]
    (one,) = optimize(lower(k), opts).nests
    assert {tile.name: by_fold(one, tile) for tile in one.tiles} == {"kept1": False, "kept0": True}
    stages.assert_made(k, stages.simulated(stages.C, opts))
    k = stages.kernel_of(x.softmax(-1).softmax(-1))
    opts = [*FILLED, parse("keep i0")]
    (one,) = optimize(lower(k), opts).nests
    assert [by_fold(one, tile) for tile in one.tiles] == [True, False]
    stages.assert_made(k, stages.simulated(stages.C, opts))


def test_what_a_fold_fills_later_is_not_there_for_another_tile() -> None:
    """Sines of exps are made of these alone, and those that add them up know their sum."""
    x, y = memory(3, 40), memory(3, 40)
    e = x.exp()
    waves = (e * y.max(-1, True)).sin()
    k = stages.kernel_of(waves * (waves * e.sum(-1, True)).max(-1, True))
    stages.assert_made(k, stages.simulated(stages.C, FILLED))
    stages.assert_made(k, stages.simulated(stages.C, [*FILLED[:1], *FILLED[:1]]))
    with pytest.raises(OptError, match="a fold fills what it reads"):
        optimize(lower(k), [*FILLED, *FILLED[:1]])
