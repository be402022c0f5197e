"""What several loops of a row would compute again waits in a tile, if it costs much."""

from __future__ import annotations

from dataclasses import replace

import graphs
import pytest
import stages
from graphs import memory
from stages import kernel_of

from tinyml import lazy
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import Opt, OptError, OptKind, optimize
from tinyml.codegen.target import Target
from tinyml.dtype import DType, bfloat16, float32, float64
from tinyml.kernel import Kernel, Output


def kept(k: Kernel, target: Target = stages.C) -> int:
    opts, _ = choose(lower(k), target)
    return sum(opt.kind is OptKind.KEEP for opt in opts)


@pytest.mark.parametrize("shape", [(3, 8), (5, 37), (2, 3, 65), (2, 2)], ids=str)
@pytest.mark.parametrize("dtype", [float32, float64, bfloat16], ids=str)
def test_a_softmax_computes_each_exponential_once(shape: tuple[int, ...], dtype: DType) -> None:
    k = kernel_of(memory(*shape, dtype=dtype).softmax(-1))
    assert kept(k) == 1
    stages.assert_right(k, 2e-2 if dtype is bfloat16 else 2e-5)


def test_with_its_gradient_too() -> None:
    x, g = memory(5, 40), memory(5, 40)
    x.requires_grad = True
    y = x.softmax(-1)
    (dx,) = y.gradient(x, gradient=g)
    k = kernel_of(y, dx)
    assert kept(k) == 1
    stages.assert_right(k)
    assert compile(k, stages.C).source.count("exp_f32x8(") == 1


def test_two_values_get_two_tiles() -> None:
    x = memory(5, 40)
    waves, logs = x.sin(), (x * x + 1).log()
    k = kernel_of(waves * waves.sum(-1, keepdim=True) + logs * logs.max(-1, keepdim=True))
    assert kept(k) == 2
    stages.assert_right(k)


def test_all_that_is_made_of_the_same_element_waits_as_one_value() -> None:
    """What is read again is the largest value that all of the loops compute."""
    x = memory(3, 24)
    value = (x.exp() + 1).log() * 3
    k = kernel_of(value / value.sum(-1, keepdim=True))
    (found,) = optimize(lower(k), [Opt(OptKind.KEEP, "i0")]).nests[0].tiles
    assert str(found.value).endswith("* 3)")
    stages.assert_right(k)


def test_cheap_values_are_computed_again() -> None:
    assert kept(kernel_of(memory(5, 37).layernorm())) == 0


def test_rows_beyond_the_cache_are_computed_again() -> None:
    k = kernel_of(memory(5, 200).softmax(-1))
    assert kept(k, replace(stages.C, cache=1600)) == 1
    assert kept(k, replace(stages.C, cache=1599)) == 0


def test_a_fold_of_the_whole_row_is_made_once() -> None:
    """The largest element stays outside of the tile that needs it, for all who read it."""
    k = kernel_of(memory(5, 40).softmax(-1))
    nest = choose(lower(k), stages.C)[1].nests[0]
    assert len([f for f in nest.folds if f.op.name == "MAX"]) == 1


def test_what_a_kept_value_folds_does_not_walk_the_axis_of_its_tile() -> None:
    """Its own loop would be in that of the tile, and share its name."""
    shapes = (4, 5), (4, 3), (3, 6), (4, 6), (6, 5)
    slots = [lazy.node(lazy.Slot, s, float32, graphs.DEVICE, (), n) for n, s in enumerate(shapes)]
    _, x, w, g, v = slots
    shares = graphs.softmax(graphs.matmul(x, w))
    whole = lazy.expand(graphs.total(graphs.mul(shares, g), 1), g.shape)
    out = graphs.matmul(graphs.mul(shares, graphs.sub(g, whole)), v)
    k = Kernel(((Output(0, (4, 5), out, rows=(0,)),),), tuple((s, float32) for s in shapes))
    opts = [Opt(OptKind.UNROLL, "i0", 2), Opt(OptKind.KEEP, "i0")]
    stages.assert_made(k, stages.simulated(stages.C, opts))
    with pytest.raises(OptError, match="walks its own axis"):
        optimize(lower(k), [*opts, Opt(OptKind.KEEP, "i0")])
