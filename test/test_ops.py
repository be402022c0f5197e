"""Every table about ops is complete, and every op means the same wherever it runs."""

from __future__ import annotations

import graphs
import numpy as np
import pytest
import stages

from tinyml import interpret, kernel, mlops, moves
from tinyml.codegen.compile import compile
from tinyml.codegen.text.c_text import FUNCTIONS
from tinyml.codegen.text.render import LIBM
from tinyml.device import Device
from tinyml.dtype import ALL, DType, float16, float32, float64
from tinyml.ops import COMPARE, FLOAT_ONLY, MEANING, REDUCE, UNARY, WORK, Movement, Op
from tinyml.schedule import schedule

SHAPE = (7, 9)
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-5, "float64": 1e-12}

# why these have no gradient rule of their own
NO_GRADIENT = {
    Op.BITCAST: "bits are not numbers one can nudge",
    Op.NOT: "of bools and integers",
    Op.IDIV: "of integers",
    Op.SHL: "of integers",
    Op.SHR: "of integers",
    Op.AND: "of bools and integers",
    Op.OR: "of bools and integers",
    Op.XOR: "of bools and integers",
    Op.ROTL: "of unsigned integers",
    Op.LESS: "gives a bool",
    Op.LESS_EQUAL: "gives a bool",
    Op.EQUAL: "gives a bool",
    Op.CAST: "mlops.Cast, which carries a dtype",
    Op.REQUIRE: "mlops.Require, which carries a fault",
}


def subclasses(kind: type) -> list[type]:
    return [c for s in kind.__subclasses__() for c in (s, *subclasses(s))]


def test_every_op_has_a_meaning_and_a_cost() -> None:
    assert set(MEANING) == set(Op) - {Op.CAST, Op.BITCAST, Op.REQUIRE}
    assert set(WORK) == set(Op)
    assert UNARY.isdisjoint(COMPARE | REDUCE)


def test_functions_are_of_floats_and_cost_more_than_what_has_an_instruction() -> None:
    functions = {*LIBM} | {op for op, kinds in FUNCTIONS.items() if {*kinds} == {"f"}}
    assert functions <= FLOAT_ONLY
    assert {op for op in functions if WORK[op] == 1} == {Op.ABS, Op.TRUNC, Op.FMA}


def test_every_reduction_has_a_fold_and_a_start() -> None:
    for op in REDUCE:
        assert interpret.ACCUMULATE[op].reduce([2.0, 3.0]) == MEANING[op](2.0, 3.0)
        for kind in (float32, float16, float64):
            start = np.asarray(interpret.identity(op, kind), kind.compute)
            assert MEANING[op](start, np.asarray(2.5, kind.compute)) == 2.5


def test_every_movement_can_be_interpreted() -> None:
    assert set(interpret.MOVE) == set(Movement)


def test_every_op_has_a_gradient_or_a_reason() -> None:
    own = {c.op for c in subclasses(mlops.Elementwise) if hasattr(c, "op")}
    assert own.isdisjoint(NO_GRADIENT)
    assert own | set(NO_GRADIENT) == set(Op)
    folds = {c.op for c in subclasses(mlops.Reduction) if hasattr(c, "op")}
    assert folds == REDUCE


def test_every_function_says_its_value_and_its_gradient() -> None:
    rooms = mlops.__name__, moves.__name__
    rules = [f for f in subclasses(mlops.Function) if f.__module__ in rooms]
    last = [f for f in rules if not f.__subclasses__()]
    for function in last:
        assert callable(function.forward), function
        refuses = function is mlops.Fma  # only in compositions whose gradient is written down
        has_gradient = function.backward is not mlops.Function.backward
        assert has_gradient or bool(getattr(function, "slopes", ())) != refuses, function
    assert {m.name.title() for m in Movement} <= {f.__name__ for f in last}


@pytest.mark.parametrize("dialect", stages.TARGETS)
@pytest.mark.parametrize("kind", ALL, ids=str)
def test_every_op_has_text(kind: DType, dialect: str) -> None:
    target = stages.TARGETS[dialect]
    for name, node in graphs.op_table(kind, (4, 64)).items():
        for item in schedule([node]).items:
            for opts in ([], None):
                assert compile(item.kernel, target, opts, verify=True).source, name


@pytest.mark.parametrize("name", ["CPU", "EMU"])
@pytest.mark.parametrize("kind", ALL, ids=str)
def test_every_op_computes_what_it_means(kind: DType, name: str) -> None:
    if not Device.available(name):
        pytest.skip(f"{name} does not answer")
    table = graphs.op_table(kind, SHAPE)
    made = {title: schedule([node]) for title, node in table.items()}
    runner = stages.on_machine(name, [k for m in made.values() for k in stages.kernels_of(m)])
    wrong = []
    for title, node in table.items():
        known = graphs.corner_values(node)
        (right,) = stages.interpreted([node], known)
        tolerance = TOLERANCE.get(node.dtype.name, 0.0)
        for way, how in (("numpy", kernel.run), (name, runner)):
            (array,) = stages.run(made[title], known, how)
            try:
                stages.same(array, right, node, f"{title} by {way}", tolerance, tolerance)
            except AssertionError as error:
                wrong.append(str(error))
    assert not wrong, "\n".join(wrong)
