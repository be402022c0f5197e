"""The reference against numpy, primitive by primitive: everything else is measured by it."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import graphs
import numpy as np
import pytest
from graphs import Array, add, leaf, mul, total
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyml import interpret, lazy
from tinyml.dtype import (
    bfloat16,
    bfloat16_bits,
    bool_,
    float16,
    float32,
    int8,
    int32,
    int64,
    uint8,
    uint32,
)
from tinyml.lazy import LazyBuffer
from tinyml.ops import Op


def value(node: LazyBuffer, **known: Array) -> Array:
    """The value of a node whose leaves are found in the order of the keywords."""
    leaves = [n for n in interpret.toposort([node]) if isinstance(n, lazy.Data)]
    return interpret.interpret([node], dict(zip(leaves, known.values(), strict=True)))[node]


X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def moved(move: Callable[[LazyBuffer], LazyBuffer], x: Array = X) -> Array:
    return value(move(leaf(*x.shape)), x=x)


MOVES: dict[str, tuple[Callable[[LazyBuffer], LazyBuffer], Callable[[Array], Array]]] = {
    "reshape": (lambda x: lazy.reshape(x, (4, 6)), lambda x: x.reshape(4, 6)),
    "permute": (lambda x: lazy.permute(x, (2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
    "pad": (
        lambda x: lazy.pad(x, ((1, 0), (0, 2), (3, 1)), -2),
        lambda x: np.pad(x, ((1, 0), (0, 2), (3, 1)), constant_values=-2),
    ),
    "shrink": (lambda x: lazy.shrink(x, ((0, 1), (1, 3), (2, 2))), lambda x: x[0:1, 1:3, 2:2]),
    "flip": (lambda x: lazy.flip(x, (0, 2)), lambda x: x[::-1, :, ::-1]),
}


@pytest.mark.parametrize("name", MOVES)
def test_movements(name: str) -> None:
    move, wanted = MOVES[name]
    np.testing.assert_array_equal(moved(move), wanted(X))


def test_expand_repeats() -> None:
    x = X[:, :1]
    made = moved(lambda n: lazy.expand(n, (2, 5, 4)), x)
    np.testing.assert_array_equal(made, np.broadcast_to(x, (2, 5, 4)))


@pytest.mark.parametrize(("step", "size"), [(1, 3), (2, 4), (-1, 6), (-2, 9), (3, 1), (1, 0)])
def test_skew_slides_a_window(step: int, size: int) -> None:
    x = np.arange(1, 16).reshape(3, 5).astype(np.float32)
    made = moved(lambda n: lazy.skew(n, 1, 0, step, size), x)
    wanted = np.zeros((3, size), np.float32)
    for k in range(3):
        for i in range(size):
            if 0 <= i + step * k < 5:
                wanted[k, i] = x[k, i + step * k]
    np.testing.assert_array_equal(made, wanted)


UNARY = {
    Op.NEG: np.negative, Op.EXP: np.exp, Op.EXP2: np.exp2, Op.LOG: np.log, Op.LOG2: np.log2,
    Op.SIN: np.sin, Op.COS: np.cos, Op.TANH: np.tanh, Op.SQRT: np.sqrt, Op.TRUNC: np.trunc,
}  # fmt: skip


@pytest.mark.parametrize("op", UNARY)
def test_functions_of_one_operand(op: Op) -> None:
    x = np.linspace(0.1, 5, 12, dtype=np.float32)
    made = value(lazy.map_(op, leaf(12)), x=x)
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, UNARY[op](x), 1e-6)


def test_erf() -> None:
    torch = pytest.importorskip("torch")
    x = np.linspace(-4, 4, 33, dtype=np.float32)
    made = value(lazy.map_(Op.ERF, leaf(33)), x=x)
    np.testing.assert_allclose(made, torch.erf(torch.from_numpy(x)).numpy(), 1e-6, 1e-7)


def two(op: Op, a: list[float], b: list[float], dtype: graphs.DType) -> list[float]:
    x, y = (np.array(v, dtype.compute) for v in (a, b))
    node = lazy.map_(op, leaf(len(a), dtype=dtype), leaf(len(b), dtype=dtype))
    made = interpret.interpret([node], dict(zip(node.sources, (x, y), strict=True)))
    listed: list[float] = made[node].tolist()
    return listed


def test_integer_division_rounds_down_and_never_traps() -> None:
    assert two(Op.IDIV, [7, -7, 7, -7, 5], [2, 2, -2, -2, 0], int32) == [3, -4, -4, 3, 0]
    assert two(Op.MOD, [7, -7, 7, -7, 5], [2, 2, -2, -2, 0], int32) == [1, 1, -1, -1, 0]
    assert two(Op.MOD, [7, -7.5, 7], [2, 2, -4], float32) == [1, 0.5, -1]


def test_whole_numbers_wrap_around() -> None:
    assert two(Op.ADD, [127, -128], [1, -1], int8) == [-128, 127]
    assert two(Op.MUL, [200, 16], [2, 16], uint8) == [144, 0]


def test_shifts_beyond_the_width() -> None:
    assert two(Op.SHL, [1, 1, 1], [3, 31, 32], int32) == [8, -(2**31), 0]
    assert two(Op.SHR, [-8, -8, 8], [1, 40, 40], int32) == [-4, -1, 0]
    assert two(Op.SHR, [2**31, 8], [31, 32], uint32) == [1, 0]


def test_nan_goes_through_max_and_min() -> None:
    nan = float("nan")
    for op in (Op.MAX, Op.MIN):
        assert np.isnan(two(op, [nan, 1.0], [1.0, nan], float32)).all()
        node = lazy.reduce_(op, leaf(3), (0,))
        assert np.isnan(value(node, x=np.array([1, nan, 2], np.float32))).all()


def test_casts() -> None:
    floats = np.array([2.7, -2.7, 0.0, 300.0], np.float32)
    assert value(lazy.cast(leaf(4), int32), x=floats).tolist() == [2, -2, 0, 300]
    assert value(lazy.cast(leaf(4), bool_), x=floats).tolist() == [True, True, False, True]
    assert value(lazy.cast(leaf(4), uint8), x=floats).tolist() == [2, 254, 0, 44]
    bits = value(lazy.bitcast(leaf(1), int32), x=np.array([1.0], np.float32))
    assert bits.tolist() == [0x3F800000]


def test_halves_are_rounded_after_every_op() -> None:
    one = np.array([1.0], np.float32)
    step = np.array([2.0**-9], np.float32)
    for dtype, kept in ((bfloat16, 1.0), (float16, 1.0 + 2.0**-9)):
        x, y = leaf(1, dtype=dtype), leaf(1, dtype=dtype)
        known = {x: one.astype(dtype.compute), y: step.astype(dtype.compute)}
        node = add(x, y)
        assert interpret.interpret([node], known)[node].tolist() == [kept]


def test_bfloat16_rounds_to_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, np.inf, np.nan], np.float32)
    assert [hex(b) for b in bfloat16_bits(values)[:4]] == ["0x3f80", "0x3f80", "0x3f82", "0x7f80"]
    assert bfloat16_bits(values)[4] & 0x7FFF > 0x7F80


@pytest.mark.parametrize("axes", [(0,), (1, 2), (0, 1, 2), ()])
def test_reductions(axes: tuple[int, ...]) -> None:
    x = (X + 1) / 10
    for op, fold in ((Op.ADD, np.sum), (Op.MUL, np.prod), (Op.MAX, np.max), (Op.MIN, np.min)):
        made = value(lazy.reduce_(op, leaf(2, 3, 4), axes), x=x)
        np.testing.assert_allclose(made, fold(x, axis=axes, keepdims=True), 1e-5)


def test_a_reduction_of_nothing_is_its_start() -> None:
    empty = np.zeros((0, 2), np.float32)
    assert value(total(leaf(0, 2), 0), x=empty).tolist() == [[0, 0]]
    most = lazy.reduce_(Op.MAX, leaf(0, 2), (0,))
    assert value(most, x=empty).tolist() == [[-np.inf, -np.inf]]


def test_halves_are_summed_in_float32() -> None:
    x = np.full(5000, 1, np.float16)
    assert value(total(leaf(5000, dtype=float16), 0), x=x).tolist() == [5000]


def test_gather_and_scatter() -> None:
    data, source = leaf(5, 3), leaf(4, 3)
    index = leaf(4, 3, dtype=int64)
    rng = np.random.default_rng(1)
    at = rng.integers(0, 5, (4, 3))
    x, y = (rng.standard_normal(s).astype(np.float32) for s in ((5, 3), (4, 3)))
    known = {data: x, source: y, index: at}
    taken, put = lazy.gather(data, index, 0), lazy.scatter(data, index, source, 0)
    found = interpret.interpret([taken, put], known)
    np.testing.assert_array_equal(found[taken], np.take_along_axis(x, at, 0))
    wanted = x.copy()
    for i, j in np.ndindex(4, 3):
        wanted[at[i, j], j] += y[i, j]
    np.testing.assert_allclose(found[put], wanted, 1e-6)


def test_an_index_outside_stays_inside() -> None:
    node = lazy.gather(leaf(3), leaf(3, dtype=int32), 0)
    known = [np.array([5.0, 6.0, 7.0], np.float32), np.array([-4, 9, 1], np.int32)]
    made = interpret.interpret([node], dict(zip(node.sources, known, strict=True)))[node]
    assert set(made.tolist()) <= {5.0, 6.0, 7.0}


def test_where_iota_const_and_the_rest() -> None:
    node = lazy.map_(
        Op.WHERE, leaf(2, dtype=bool_), *(lazy.const(v, int32, "CPU", (2,)) for v in (1, 2))
    )
    assert value(node, x=np.array([True, False])).tolist() == [1, 2]
    assert value(lazy.iota(4, int32, "CPU")).tolist() == [0, 1, 2, 3]
    x = leaf(2)
    assert value(lazy.copy(lazy.contiguous(add(x, x)), "NUMPY"), x=np.ones(2)).tolist() == [2, 2]
    assert value(lazy.assign(x, add(x, x)), x=np.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize("move", ["pad", "skew"])
def test_what_repeats_itself_is_moved_once(move: str) -> None:
    x, there = leaf(1, 4), np.arange(4, dtype=np.float32).reshape(1, 4)
    wide = lazy.expand(x, (3, 4))
    node = lazy.pad(wide, ((0, 0), (1, 2)), 7.0) if move == "pad" else lazy.skew(wide, 1, 0, -1, 6)
    found = interpret.interpret([node], {x: there})[node]
    rows = [np.pad(there[0], (1, 2), constant_values=7)] * 3
    if move == "skew":
        rows = [np.pad(there[0], (by, 2 - by)) for by in range(3)]
    np.testing.assert_array_equal(found, rows)
    assert (found.strides[0] == 0) == (move == "pad")


LETTERS = "abcd"


@settings(max_examples=150)
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.data(),
)
def test_a_product_that_is_summed_is_einsum(sizes: list[int], data: st.DataObject) -> None:
    rank = range(len(sizes))
    axes = tuple(data.draw(st.sets(st.sampled_from(rank), min_size=1)))
    rng = np.random.default_rng(0)
    nodes, arrays = [], []
    for _ in range(2):
        has = [data.draw(st.booleans()) for _ in rank]
        shape = tuple(n if h else 1 for n, h in zip(sizes, has, strict=True))
        x = leaf(*shape)
        nodes.append(lazy.expand(x, tuple(sizes)))
        arrays.append((x, rng.standard_normal(shape).astype(np.float32)))
    node = lazy.reduce_(Op.ADD, mul(*nodes), axes)
    made = interpret.interpret([node], dict(arrays))[node]
    kept = "".join(LETTERS[a] for a in rank if a not in axes)
    full = [np.broadcast_to(a, sizes) for _, a in arrays]
    whole = LETTERS[: len(sizes)]
    wanted = np.einsum(f"{whole},{whole}->{kept}", *full)
    shape = tuple(1 if a in axes else n for a, n in enumerate(sizes))
    assert made.shape == node.shape
    np.testing.assert_allclose(made.reshape(prod(shape)), wanted.reshape(-1), 1e-4, 1e-5)


def test_contract_of_empty_arrays() -> None:
    a, b = np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)
    assert interpret.contract(a, b, (0,), float32).tolist() == [[0, 0, 0]]
