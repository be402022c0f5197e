"""A Kernel runs, prints, has a name, and is refused when it is not one."""

from __future__ import annotations

from dataclasses import replace

import graphs
import numpy as np
import pytest
import stages
from graphs import DEVICE, add, leaf, total
from stages import kernel_of

from tinyml import kernel, lazy
from tinyml.dtype import float32, int32
from tinyml.errors import VerifyError
from tinyml.kernel import Kernel, Output
from tinyml.lazy import LazyBuffer
from tinyml.ops import Op


def slot(number: int, *shape: int) -> LazyBuffer:
    return lazy.node(lazy.Slot, shape, float32, "", (), number)


def test_a_kernel_is_run_on_whole_arrays() -> None:
    made = kernel_of(graphs.softmax(leaf(3, 4)))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    out = np.empty((3, 4), np.float32)
    kernel.run(made, [out, x])
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), 1e-6)


def test_equal_graphs_make_equal_kernels() -> None:
    assert kernel_of(graphs.softmax(leaf(3, 4))) == kernel_of(graphs.softmax(leaf(3, 4)))
    assert kernel_of(graphs.softmax(leaf(3, 4))) != kernel_of(graphs.softmax(leaf(3, 5)))
    assert len({kernel_of(graphs.linear_relu(4, 5, 6)) for _ in range(3)}) == 1


def test_a_kernel_knows_no_device() -> None:
    there = lazy.data((3,), float32, "EMU")
    here = lazy.data((3,), float32, "CPU")
    assert kernel_of(add(there, there)) == kernel_of(add(here, here))


@pytest.mark.parametrize(
    ("root", "name"),
    [
        (graphs.linear_relu(128, 784, 10), "sum_mul_add_max_128x10_r784"),
        (total(leaf(128, 10), 0), "sum_1x10_r128"),
        (lazy.permute(leaf(3, 4), (1, 0)), "copy_4x3"),
        (graphs.embedding(10, 6, 5), "gather_5x6"),
        (lazy.const(1, float32, DEVICE, (2, 2)), "copy_2x2"),
    ],
)
def test_a_name_says_what_the_kernel_does(root: LazyBuffer, name: str) -> None:
    found = kernel.name(kernel_of(root))
    assert found.isidentifier()
    assert set(found.split("_")) == set(name.replace("1x10", "10").split("_"))


def test_a_kernel_prints_as_formulas() -> None:
    text = str(kernel_of(graphs.linear_relu(4, 5, 6)))
    assert "max(" in text
    assert text.splitlines()[-1].startswith("slot0 = ")
    scattered = stages.kernels(graphs.embedding_gradient(10, 6, 5))
    last = str(scattered[-1]).splitlines()[-1]
    assert last.startswith("slot0[")
    assert "=" in last


def part(*outputs: Output, slots: int = 2) -> Kernel:
    return Kernel((outputs,), (((3,), float32),) * slots)


GOOD = Output(0, (3,), slot(1, 3), (0,))
BAD = {
    "written twice": part(GOOD, GOOD),
    "but gets": part(replace(GOOD, shape=(4,))),
    "rows": Kernel(((Output(0, (1,), slot(1, 1), (0,)),),), (((1,), float32),) * 2),
    "no meaning": part(replace(GOOD, value=add(leaf(3), leaf(3)))),
    "read as": part(replace(GOOD, value=add(slot(1, 3), lazy.reshape(slot(1, 1, 3), (3,))))),
}


@pytest.mark.parametrize("message", BAD)
def test_what_is_no_kernel_is_refused(message: str) -> None:
    kernel.verify(part(GOOD))
    with pytest.raises(VerifyError, match=message):
        kernel.verify(BAD[message])


def test_several_outputs_and_scatters_are_run() -> None:
    index = lazy.node(lazy.Slot, (4,), int32, "", (), 1)
    source = lazy.node(lazy.Slot, (4,), float32, "", (), 2)
    k = Kernel(
        ((Output(0, (3,), source, (0,), index, 0, Op.ADD),),),
        (((3,), float32), ((4,), int32), ((4,), float32)),
    )
    kernel.verify(k)
    out = np.ones(3, np.float32)
    kernel.run(k, [out, np.array([0, 2, 0, 2]), np.array([1, 2, 3, 4], np.float32)])
    assert out.tolist() == [5, 1, 7]
