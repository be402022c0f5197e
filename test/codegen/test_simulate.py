"""The simulator computes what the kernel says, on every kind of kernel and target."""

from __future__ import annotations

import graphs
import numpy as np
import pytest
import stages
from graphs import leaf
from simulate import simulate

from tinyml import dtype, kernel, lazy
from tinyml.codegen import linear as ir
from tinyml.codegen.expr import Load, Name, Stored, const
from tinyml.codegen.linear import LinearKernel, Local, Part
from tinyml.dtype import float32
from tinyml.errors import VerifyError
from tinyml.index import Axis, linear
from tinyml.ops import Op
from tinyml.schedule import schedule

GRAPHS = {
    "elementwise": lambda: graphs.elementwise(13, 40),
    "halves": lambda: graphs.elementwise(5, 33, dtype=dtype.float16),
    "bfloat16": lambda: graphs.elementwise(5, 33, dtype=dtype.bfloat16),
    "softmax": lambda: graphs.softmax(leaf(7, 37)),
    "layernorm": lambda: graphs.layernorm(leaf(3, 5, 19)),
    "row of one": lambda: graphs.softmax(leaf(1, 9)),
    "column sum": lambda: graphs.total(leaf(33, 17), 0),
    "sum": lambda: graphs.total(leaf(9, 41), 0, 1),
    "linear": lambda: graphs.linear_relu(33, 17, 21),
    "half linear": lambda: graphs.linear_relu(8, 16, 24, dtype.float16),
    "bfloat16 linear": lambda: graphs.linear_relu(8, 16, 24, dtype.bfloat16),
    "transposed": lambda: graphs.matmul(lazy.permute(leaf(9, 7), (1, 0)), leaf(9, 11)),
    "convolution": lambda: graphs.convolution(2, 3, 6, 5, 4),
    "embedding": lambda: graphs.embedding(10, 6, 5),
    "embedding gradient": lambda: graphs.embedding_gradient(10, 6, 5),
    "flipped and padded": lambda: lazy.pad(lazy.flip(leaf(13, 9), (0, 1)), ((1, 2), (3, 0)), 5.0),
    "iota": lambda: lazy.cast(lazy.iota(37, dtype.int32, graphs.DEVICE), float32),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_all_simple_runners_agree(name: str) -> None:
    roots = [GRAPHS[name]()]
    tolerance = 0.05 if roots[0].dtype.is_half else 1e-4
    known = graphs.values(roots)
    stages.agree(roots, known, stages.simple_runners(), rtol=tolerance, atol=tolerance)


def test_several_parts_share_a_launch() -> None:
    updates = []
    for shape in ((10, 20), (7,), (3, 3)):
        weight, gradient = leaf(*shape), leaf(*shape)
        rate = graphs.const(0.1, gradient)
        updates.append(lazy.assign(weight, graphs.sub(weight, graphs.mul(gradient, rate))))
    made = stages.agree(updates, graphs.values(updates), stages.simple_runners())
    assert len(made.items) == 1


# ---- what a careless LinearKernel would do ----

I = Axis("i", 4)  # noqa: E741
TX = Axis(ir.TX, 4)


def one_part(*instrs: ir.Instr, threads: int = 1, tile: int = 0) -> LinearKernel:
    tiles = (Local("tile0", float32, tile),) if tile else ()
    slots = (((4,), float32), ((4,), float32))
    part = Part((), (), tuple(instrs))
    return LinearKernel("k", (part,), slots, (threads, 1), tiles, frozenset())


def put(value: object, position: object, once: bool = False) -> ir.Put:
    return ir.Put(0, float32, position, (value,), (), None, once)  # type: ignore[arg-type]


def launch(k: LinearKernel) -> list[float]:
    out = np.zeros(4, np.float32)
    simulate(k, [out, np.arange(4, dtype=np.float32)])
    return out.tolist()


def test_a_loop_and_an_accumulator() -> None:
    total = Name("acc", float32, 1)
    element = Load(1, float32, linear(I), ())
    made = launch(
        one_part(
            ir.Declare(total, const(0, float32)),
            ir.Begin(I),
            ir.Update(total, Op.ADD, element),
            ir.End(I),
            put(total, linear(2)),
        )
    )
    assert made == [0, 0, 6, 0]


def test_threads_combine_what_they_have() -> None:
    total = Name("acc", float32, 1)
    element = Load(1, float32, linear(TX), ())
    across = ir.AcrossThreads(total, Op.MAX, 4)
    instrs = (ir.Declare(total, element), across, put(total, linear(TX)))
    assert launch(one_part(*instrs, threads=4)) == [3, 3, 3, 3]


def test_a_position_outside_its_slot_is_found() -> None:
    with pytest.raises(VerifyError, match="reads slot1"):
        launch(one_part(put(Load(1, float32, linear(4), ()), linear(0))))
    with pytest.raises(VerifyError, match="writes slot0"):
        launch(one_part(put(const(1, float32), linear(4))))


def test_threads_that_store_different_values_are_found() -> None:
    race = put(Load(1, float32, linear(TX), ()), linear(0))
    with pytest.raises(VerifyError, match="different values"):
        launch(one_part(race, threads=4))
    only_first = put(Load(1, float32, linear(TX), ()), linear(0), once=True)
    assert launch(one_part(only_first, threads=4)) == [0, 0, 0, 0]


def test_a_missing_barrier_is_found() -> None:
    fill = ir.PutTile("tile0", float32, linear(TX), Load(1, float32, linear(TX), ()), ())
    read = put(Stored("tile0", float32, linear(TX) * -1 + 3, TX), linear(TX))
    assert launch(one_part(fill, ir.Barrier(), read, threads=4, tile=4)) == [3, 2, 1, 0]
    assert launch(one_part(fill, read, threads=4, tile=4)) == [0, 0, 0, 0]
    with pytest.raises(VerifyError, match="while others may read"):
        launch(one_part(fill, ir.Barrier(), read, fill, threads=4, tile=4))


def test_buffers_are_filled_in_place_or_not_at_all() -> None:
    x = leaf(4, 4)
    (item,) = schedule([graphs.add(x, x)]).items
    with pytest.raises(ValueError, match="C-contiguous"):
        stages.simulated(stages.C)(item.kernel, [np.zeros((4, 4)).T[:, ::2], np.zeros((4, 4))])
    assert kernel.name(item.kernel)
