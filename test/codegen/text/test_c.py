"""What C says in few words."""

import graphs
import pytest
import stages
from graphs import leaf

from tinyml.codegen.compile import compile
from tinyml.codegen.optimize.opts import parse
from tinyml.dtype import DType, bfloat16, float32, float64, int32
from tinyml.schedule import schedule


@pytest.mark.parametrize("dtype", [float32, float64, int32, bfloat16], ids=str)
def test_vectors_across_rows_are_stored_by_one_call(dtype: DType) -> None:
    made = graphs.add(leaf(19, 24, dtype=dtype), leaf(19, 24, dtype=dtype))
    (k,) = stages.kernels_of(schedule([made]))
    opts = [parse("lanes i0 8")]
    lines = compile(k, stages.TARGETS["C"], opts).source.splitlines()
    called = [line for line in lines if "scattered_" in line]
    assert len(called) == (dtype is not bfloat16)  # whose bits are stored one by one
    (runner,) = stages.compiled("CPU", [(k, opts)])
    stages.assert_made(k, runner, 1e-2 if dtype is bfloat16 else 2e-5)
