"""A composition that repeats its steps records what it records when it is made as it is written."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tinyml import Tensor, TinyJit, defaults, dtypes, lazy, no_grad
from tinyml.autograd import record_of
from tinyml.errors import GradientError, ShapeError
from tinyml.functional import (
    activation,
    attention,
    convolution,
    elementwise,
    grids,
    indexing,
    joining,
    linear_algebra,
    loss,
    movement,
    reduction,
    scan,
)
from tinyml.functional.steps import composition

ROWS = [[1.0, -2.0, 3.0, 0.5], [0.25, 0.0, -1.0, 2.0]]
OPERANDS: dict[str, Callable[[], Tensor]] = {
    "in memory": lambda: Tensor(ROWS).realize(),
    "with a gradient": lambda: Tensor(ROWS, requires_grad=True),
    "computed": lambda: Tensor(ROWS).exp(),
    "a product": lambda: Tensor(ROWS) * Tensor(ROWS[0]),
    "a sum": lambda: Tensor([ROWS, ROWS]).sum(0),
    "reshaped": lambda: Tensor(ROWS).exp().reshape(4, 2).reshape(2, 4),
    "repeated": lambda: Tensor(ROWS[0]).exp().expand(2, 4),
    "turned": lambda: Tensor(ROWS).reshape(4, 2).T,
    "constant": lambda: Tensor.full((2, 4), 1.5),
    "halves": lambda: Tensor(ROWS).half(),
    "integers": lambda: Tensor([[1, 2, 0, 1], [0, 1, 3, 1]]),
}
COMPOSITIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "softmax": (activation.softmax, (0,)),
    "layernorm": (activation.layernorm, ()),
    "gelu": (activation.gelu, ()),
    "batchnorm": (activation.batchnorm, (Tensor(ROWS[0]), None, Tensor(ROWS[0]), Tensor(ROWS[1]))),
    "var": (reduction.var, (1,)),
    "argmax": (reduction.argmax, ()),
    "clip": (elementwise.clip, (0.0, 2)),
    "tril": (grids.tril, ()),
    "gather": (indexing.gather, (1, Tensor([[0, 3], [1, -1]]))),
    "cat": (joining.cat, (Tensor(ROWS), Tensor([[1, 2, 3, 4]]))),
    "linear": (linear_algebra.linear, (Tensor(ROWS).T, Tensor([1.0, 2.0]))),
    "cross entropy": (loss.cross_entropy, (Tensor([1, 3]),)),
    "repeat": (movement.repeat, (2, 1)),
    "cumsum": (scan.cumsum, (1,)),
    "convolution": (convolution.conv2d, (Tensor.ones(3, 2, 2).contiguous().realize(),)),
    "attention": (attention.scaled_dot_product_attention, (Tensor(ROWS), Tensor(ROWS))),
}


def graph(tensor: Tensor) -> list[object]:
    """A tensor's node, and the records that it comes from, with their inputs."""
    found: list[object] = [tensor._lazy, tensor.requires_grad or None]
    record = record_of(tensor)
    if record is not None:
        found += [type(record), *[part for source in record.inputs for part in graph(source)]]
    return found


@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_steps_are_the_nodes_and_records_of_what_is_written(name: str, operand: str) -> None:
    function, args = COMPOSITIONS[name]
    written = getattr(function, "__wrapped__", function)
    for _ in range(2):
        x = OPERANDS[operand]()
        with lazy.known:
            results = [f(x, *args) for f in (function, function, written)]
        one, other, plain = [r if isinstance(r, tuple) else (r,) for r in results]
        assert one[0] is not other[0]
        for made, again, expected in zip(one, other, plain, strict=True):
            assert graph(made) == graph(again) == graph(expected)  # equal nodes are one object
    with no_grad(), lazy.known:
        assert function(x, *args)._lazy is written(x, *args)._lazy
        assert function(x, *args)._record is None


def test_numbers_that_are_equal_are_not_the_same_argument() -> None:
    x, ints = Tensor(ROWS), Tensor([1, 2])
    assert x.clip(0.0)._lazy is not x.clip(-0.0)._lazy
    dtypes_of_results = [ints.clip(n).dtype for n in (1, 1.0, True)]
    assert dtypes_of_results == [dtypes.int32, dtypes.float32, dtypes.int32]
    with pytest.raises(TypeError, match="axis"):
        Tensor(ROWS).softmax(1.0)  # type: ignore[arg-type]


def test_a_constant_and_its_moves_are_part_of_the_kind() -> None:
    written = []

    @composition
    def raised(x: Tensor) -> Tensor:
        written.append(x)
        return x.exp() + 1

    for value in (1.0, 1.0, 2.0):
        raised(Tensor.full((3,), value).pad((1, 1)))
    assert len(written) == 2


def test_defaults_are_part_of_the_kind() -> None:
    x = Tensor([1, 2])
    assert x.softmax().dtype is dtypes.float32
    with defaults(default_float=dtypes.float64):
        assert x.softmax().dtype is dtypes.float64


def test_a_mistake_is_told_each_time_at_the_line_that_made_it() -> None:
    for _ in range(2):
        with pytest.raises(ShapeError, match="cannot multiply") as caught:
            Tensor(ROWS).dot(Tensor(ROWS))
        assert caught.value.__context__ is None
        assert any("Tensor(ROWS).dot" in (f.line or "") for f in traceback.extract_tb(caught.tb))


def test_what_is_left_of_a_call_that_failed_is_nothing_to_compute() -> None:
    x = Tensor(ROWS).realize()
    with pytest.raises(ShapeError) as caught:  # it keeps the frames of the call, and stand-ins
        linear_algebra.linear(x, x.T.contiguous().realize(), Tensor([1.0, 2.0, 3.0]))
    step = TinyJit(lambda x: (x + 1).realize())
    assert [step(x).tolist() for _ in range(3)] == [(x + 1).tolist()] * 3
    assert caught.tb is not None


def test_what_gives_a_view_of_an_operand_gives_one() -> None:
    @composition
    def flat(x: Tensor) -> Tensor:
        return x.reshape(-1)

    for _ in range(2):
        x = Tensor(ROWS)
        view = flat(x)
        view += 1
        assert x.tolist() == [[n + 1 for n in row] for row in ROWS]


def test_steps_are_differentiated_more_than_once() -> None:
    for _ in range(2):
        x = Tensor(ROWS, requires_grad=True)
        (slope,) = x.layernorm().exp().sum().gradient(x)
        (slope * slope).sum().backward()
        assert x.grad is not None
        assert x.grad.abs().sum().item() > 0


@pytest.mark.parametrize("realized", [False, True])
def test_steps_that_are_recorded_late_have_the_values_of_the_call(realized: bool) -> None:
    grads = []
    for changed in (False, True):
        x, scale = Tensor(ROWS, requires_grad=True).realize(), Tensor(ROWS)
        y = x.softmax()
        if realized:
            y.realize()
        if changed:
            with no_grad():
                x.assign(x * 0 + 7).realize()
        (y * scale).sum().backward()
        assert x.grad is not None
        grads.append(x.grad.tolist())
    assert grads[0] == [pytest.approx(row, rel=1e-4, abs=1e-6) for row in grads[1]]


def test_what_was_read_may_not_be_assigned_to_before_backward() -> None:
    for _ in range(2):
        x, weight = Tensor(ROWS, requires_grad=True), Tensor(ROWS).T.contiguous().realize()
        y = x.linear(weight)
        weight.assign(weight * 2)
        with pytest.raises(GradientError, match="assigned to"):
            y.sum().backward()


def test_what_may_change_is_no_kind_of_argument() -> None:
    @dataclass(eq=False)
    class Factor:
        by: int

    @composition
    def scaled(x: Tensor, factor: Factor) -> Tensor:
        return x * factor.by + 1

    x, factor = Tensor([1.0, 2.0]), Factor(2)
    assert scaled(x, factor).tolist() == [3, 5]
    factor.by = 3
    assert scaled(x, factor).tolist() == [4, 7]
