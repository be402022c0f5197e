"""Nodes: known ones that are equal are one object, and what does not fit is refused at once."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
from graphs import DEVICE, add, const, leaf, matmul, mul, total

from tinyml import dtype, lazy
from tinyml.dtype import DType, bool_, float16, float32, float64, int8, int32, uint8, uint32
from tinyml.errors import DTypeError, ShapeError
from tinyml.graph import toposort
from tinyml.lazy import LazyBuffer
from tinyml.ops import BITWISE, COMPARE, FLOAT_ONLY, INT_ONLY, UNARY, UNSIGNED_ONLY, Op


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    with lazy.known:
        yield


def test_equal_nodes_are_one_object() -> None:
    x, y = leaf(3, 4), leaf(3, 4)
    assert add(x, y) is add(x, y)
    assert add(x, y) is not add(y, x)
    assert total(add(x, y), 1) is total(add(x, y), 1)
    assert lazy.permute(x, (1, 0)) is lazy.permute(x, [1, 0])
    assert const(2, x) is const(2.0, x)


def test_data_has_an_identity() -> None:
    assert leaf(3) is not leaf(3)
    x = leaf(3)
    assert lazy.contiguous(x) is x


def test_numbers_are_kept_exactly() -> None:
    zero, minus = (lazy.const(v, float32, DEVICE) for v in (0.0, -0.0))
    assert zero is not minus
    nan = lazy.const(float("nan"), float32, DEVICE)
    assert isinstance(nan, lazy.Const)
    assert nan.value != nan.value
    wrapped = [lazy.const(v, t, DEVICE) for v, t in ((300, uint8), (-1, uint8), (200, int8))]
    assert [c.value for c in wrapped if isinstance(c, lazy.Const)] == [44, 255, -56]


def test_nodes_that_nobody_holds_are_forgotten() -> None:
    x = leaf(5)
    made = weakref.ref(add(x, x))
    gc.collect()
    assert made() is None


def test_keys_of_forgotten_nodes_do_not_pile_up() -> None:
    x = leaf(1, 2)
    lazy.known.sweep()  # the room there is depends on what lives now, not on tests before
    for size in range(10_000):
        lazy.skew(x, 0, 1, 1, size)
    assert len(lazy.known.nodes) <= 3 * len(lazy.known) + 5000
    assert lazy.skew(x, 0, 1, 1, 5) is lazy.skew(x, 0, 1, 1, 5)


def test_shapes_of_operands_broadcast() -> None:
    x, row = leaf(4, 3), leaf(3)
    wide = lazy.expand(lazy.reshape(row, (1, 3)), (4, 3))
    assert add(x, row) is add(x, wide)
    assert add(row, x) is add(wide, x)
    assert add(leaf(4, 1), row).shape == (4, 3)


def test_movements_that_move_nothing_leave_no_node() -> None:
    x = leaf(2, 6)
    assert lazy.reshape(x, (2, 6)) is x
    assert lazy.reshape(lazy.reshape(x, (3, 4)), (2, 6)) is x
    assert lazy.reshape(lazy.reshape(x, (3, 4)), (12,)) is lazy.reshape(x, (12,))
    assert lazy.permute(x, (0, 1)) is x
    assert lazy.expand(x, (2, 6)) is x
    assert lazy.pad(x, ((0, 0), (0, 0))) is x
    assert lazy.shrink(x, ((0, 2), (0, 6))) is x
    assert lazy.flip(leaf(1, 1), (0,)).sources == ()
    assert lazy.cast(x, float32) is x
    assert lazy.reduce_(Op.ADD, leaf(1, 4), (0,)).sources == ()


def test_shapes_and_dtypes_of_results() -> None:
    x = leaf(2, 1, 6)
    found = {
        lazy.reshape(x, (3, 4)): (3, 4),
        lazy.permute(x, (2, 0, 1)): (6, 2, 1),
        lazy.expand(x, (2, 5, 6)): (2, 5, 6),
        lazy.pad(x, ((0, 0), (1, 2), (3, 0))): (2, 4, 9),
        lazy.shrink(x, ((1, 2), (0, 1), (2, 5))): (1, 1, 3),
        lazy.skew(lazy.expand(x, (2, 3, 6)), 2, 1, 2, 4): (2, 3, 4),
        total(x, 0, 2): (1, 1, 1),
    }
    assert [node.shape for node in found] == list(found.values())
    assert lazy.map_(Op.LESS, x, x).dtype is bool_
    assert lazy.cast(x, float16).dtype is float16
    assert lazy.bitcast(x, int32).dtype is int32
    assert matmul(leaf(2, 3), leaf(3, 4)).shape == (2, 4)


def _x(*shape: int, dtype: DType = float32) -> LazyBuffer:
    return leaf(*shape, dtype=dtype)


SHAPE_ERRORS: dict[str, tuple[Callable[[], LazyBuffer], str]] = {
    "map": (lambda: add(_x(2), _x(3)), "do not broadcast"),
    "reshape": (lambda: lazy.reshape(_x(2, 3), (4,)), "cannot reshape"),
    "negative": (lambda: lazy.reshape(_x(2, 3), (-2, -3)), "cannot reshape"),
    "permute": (lambda: lazy.permute(_x(2, 3), (0, 0)), "no permutation"),
    "expand": (lambda: lazy.expand(_x(2, 3), (4, 3)), "only size 1 can grow"),
    "expand rank": (lambda: lazy.expand(_x(3), (2, 3)), "number of axes"),
    "pad": (lambda: lazy.pad(_x(2), ((-1, 0),)), "cannot pad"),
    "shrink": (lambda: lazy.shrink(_x(2), ((1, 3),)), "cannot shrink"),
    "skew": (lambda: lazy.skew(_x(2, 3), 1, 1, 1, 2), "cannot skew"),
    "reduce": (lambda: lazy.reduce_(Op.ADD, _x(2), (1,)), "cannot reduce axes"),
    "gather": (lambda: lazy.gather(_x(2, 3), _x(4, 5, dtype=int32), 0), "gather: index"),
    "scatter": (
        lambda: lazy.scatter(_x(2, 3), _x(4, 3, dtype=int32), _x(5, 3), 0),
        "scatter: source",
    ),
    "assign target": (lambda: lazy.assign(add(_x(2), _x(2)), _x(2)), "realize it first"),
    "assign": (lambda: lazy.assign(_x(2), _x(3)), "cannot assign"),
    "device": (
        lambda: add(_x(2), lazy.data((2,), float32, "EMU")),
        "operands on one device",
    ),
}


@pytest.mark.parametrize("name", SHAPE_ERRORS)
def test_wrong_shapes_are_refused(name: str) -> None:
    wrong, message = SHAPE_ERRORS[name]
    with pytest.raises(ShapeError, match=message):
        wrong()


DTYPE_ERRORS: dict[str, tuple[Callable[[], LazyBuffer], str]] = {
    "mixed": (lambda: add(_x(2), _x(2, dtype=float64)), "equal dtypes"),
    "where": (lambda: lazy.map_(Op.WHERE, _x(2), _x(2), _x(2)), "by a bool"),
    "iota": (lambda: lazy.iota(3, float32, DEVICE), "counts in integers"),
    "reduce op": (lambda: lazy.reduce_(Op.DIV, _x(2), (0,)), "not a reduction"),
    "reduce bool": (lambda: lazy.reduce_(Op.ADD, _x(2, dtype=bool_), (0,)), "cast first"),
    "gather": (lambda: lazy.gather(_x(2), _x(2), 0), "indices are integers"),
    "scatter": (
        lambda: lazy.scatter(_x(2), _x(2, dtype=int32), _x(2, dtype=int32), 0),
        "scatter: source",
    ),
    "bitcast": (lambda: lazy.bitcast(_x(2), float16), "sizes differ"),
    "bitcast bool": (lambda: lazy.bitcast(_x(2, dtype=uint8), bool_), "one is bool"),
}


@pytest.mark.parametrize("name", DTYPE_ERRORS)
def test_wrong_dtypes_are_refused(name: str) -> None:
    wrong, message = DTYPE_ERRORS[name]
    with pytest.raises(DTypeError, match=message):
        wrong()


@pytest.mark.parametrize("kind", [bool_, int32, uint32, float32])
def test_ops_admit_the_dtypes_they_are_for(kind: DType) -> None:
    for op in Op:
        if op in (Op.CAST, Op.BITCAST, Op.WHERE):
            continue
        operands = [leaf(2, dtype=kind)] * (1 if op in UNARY else 2)
        refused = (
            (op in FLOAT_ONLY and not kind.is_float)
            or (op in INT_ONLY and not kind.is_int)
            or (op in UNSIGNED_ONLY and kind.kind != "u")
            or (op in (*BITWISE, Op.NOT) and kind.is_float)
            or (op in (Op.NEG, Op.MOD) and kind is bool_)
        )
        if refused:
            with pytest.raises(DTypeError, match=f"{op.name} is an op on"):
                lazy.map_(op, *operands)
        else:
            assert lazy.map_(op, *operands).dtype is (bool_ if op in COMPARE else kind)


def test_a_deep_graph_is_built_and_walked_without_recursion() -> None:
    x = leaf(2)
    y = x
    for _ in range(20_000):
        y = mul(y, x)
    assert len(toposort([y])) == 20_001
    del y


def test_every_dtype_has_a_leaf() -> None:
    assert {leaf(2, dtype=t).dtype for t in dtype.ALL} == set(dtype.ALL)
