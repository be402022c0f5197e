"""A choice between elements of one array, by where a row is, is an element at a chosen place."""

import graphs
import pytest
import stages
from stages import kernel_of

from tinyml import Tensor
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.expr import Select, nodes
from tinyml.codegen.linear import LinearKernel, values_of
from tinyml.codegen.linearize.linearize import linearize
from tinyml.codegen.lower import lower
from tinyml.dtype import by_name, int64
from tinyml.kernel import Kernel


def linearized(k: Kernel) -> LinearKernel:
    return linearize(choose(lower(k), stages.C)[1])


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_row_of_a_border_is_read_at_one_place(mode: str, dtype: str) -> None:
    k = kernel_of(
        graphs.memory(4, 9, 40, dtype=by_name(dtype), device="CPU").pad((3, 2, 2, 3), mode=mode)
    )
    parts = linearized(k).parts
    found = [e for p in parts for i in p.instrs for v in values_of(i) for e in nodes(v)]
    choices = [e for e in found if isinstance(e, Select) and "i1" in str(e.valid)]
    assert choices
    assert {e.dtype for e in choices} == {int64}  # of places
    for run in (stages.simulated(stages.C, None), *stages.compiled("CPU", [(k, None)])):
        stages.assert_made(k, run, 0)


def test_rows_of_two_arrays_and_rows_that_are_numbers_stay_choices() -> None:
    x, y = (graphs.memory(4, 9, 40, device="CPU") for _ in range(2))
    for joined in (Tensor.cat([x[:, :2], y], dim=1), x.pad((0, 0, 2, 2), value=3)):
        k = kernel_of(joined + 1)
        assert not any("look" in str(part) for part in linearized(k).parts)
        stages.assert_made(k, stages.simulated(stages.C, None), 0)
