"""No value lies outside of its bounds, and what is plain to see is seen."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
from hypothesis import given, settings

from tinyml import interpret
from tinyml.codegen.bounds import bounds, require, settled
from tinyml.codegen.expr import Alu, Const, Expr, Load, Name, Place, Require, alu, const
from tinyml.dtype import bool_, int8, int32, uint8
from tinyml.faults import Fault
from tinyml.graph import toposort
from tinyml.index import Axis, linear
from tinyml.ops import COMPARE, MEANING, Op

N, FAULT = Axis("n", 12), Fault(IndexError, "{}")
PLACE: Expr = Place(linear(N) - 4, int32)
LOADED: Expr = Load(0, int32, linear(N), ())
HELD = np.array([-(2**31), 2**31 - 1, -130, 300, *range(-4, 4)], np.int32)

numbers = st.sampled_from([PLACE, LOADED, *(const(n, int32) for n in (-3, 0, 2, 7, 2**31 - 1))])
ARITHMETIC = (
    *(Op.ADD, Op.MUL, Op.IDIV, Op.MOD, Op.MAX, Op.MIN),
    *(Op.AND, Op.OR, Op.XOR, Op.SHL, Op.SHR),
)


def _grown(parts: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    def chosen(low: Expr, x: Expr, high: Expr, joined: Op, order: Op, value: Expr) -> Expr:
        inside = alu(joined, bool_, alu(order, bool_, low, x), alu(Op.LESS, bool_, x, high))
        return alu(Op.WHERE, int32, inside, x, value)

    def through(small: bool, x: Expr) -> Expr:
        return alu(Op.CAST, int32, alu(Op.CAST, int8 if small else uint8, x))

    pairs = st.builds(
        lambda op, a, b: alu(op, int32, a, b), st.sampled_from(ARITHMETIC), *[parts] * 2
    )
    joined, order = st.sampled_from([Op.AND, Op.OR]), st.sampled_from([Op.LESS, Op.LESS_EQUAL])
    return (
        pairs
        | st.builds(lambda x: alu(Op.NEG, int32, x), parts)
        | st.builds(through, st.booleans(), parts)
        | st.builds(chosen, parts, parts, parts, joined, order, parts)
    )


def values_of(root: Expr) -> npt.NDArray[np.int64]:
    done: dict[Expr, npt.NDArray[np.int32]] = {}
    for e in toposort([root]):
        match e:
            case Const():
                done[e] = np.full(N.size, e.value, e.dtype.compute)
            case Place():
                done[e] = np.arange(-4, 8, dtype=np.int32)
            case Load():
                done[e] = HELD
            case Alu(op=Op.CAST, operands=(x,)):
                done[e] = interpret.cast(done[x], x.dtype, e.dtype)
            case Alu(op=op, operands=operands):
                kind = bool_ if op in COMPARE else e.dtype
                found = MEANING[op](*[done[o] for o in operands])
                done[e] = interpret.rounded(np.asarray(found), kind)
    return done[root].astype(np.int64)


@settings(max_examples=150)
@given(st.recursive(numbers, _grown, max_leaves=8))
def test_values_lie_within_their_bounds(e: Expr) -> None:
    low, high = bounds(e)
    with np.errstate(all="ignore"):
        values = values_of(e)
    assert low <= values.min() <= values.max() <= high


def less(a: Expr | int, b: Expr | int) -> Expr:
    given = [const(x, int32) if isinstance(x, int) else x for x in (a, b)]
    return alu(Op.LESS, bool_, *given)


def test_what_is_proven_is_not_required() -> None:
    holds = alu(Op.AND, bool_, less(-5, PLACE), less(PLACE, 8))
    assert require(FAULT, (PLACE, holds), ()) is PLACE
    assert isinstance(require(FAULT, (PLACE, less(PLACE, 7)), ()), Require)
    asked = require(FAULT, (LOADED, alu(Op.AND, bool_, less(-1, LOADED), less(LOADED, 9))), ())
    assert bounds(asked) == (0, 8)
    assert require(FAULT, (asked, less(asked, 9)), ()) is asked


def test_bits_of_bytes_are_places_in_a_table_of_so_many() -> None:
    byte: Expr = Load(0, uint8, linear(N), ())
    low = alu(Op.AND, uint8, byte, const(15, uint8))
    high = alu(Op.SHR, uint8, byte, const(4, uint8))
    assert bounds(low) == bounds(high) == (0, 15)
    assert bounds(alu(Op.OR, uint8, low, const(16, uint8))) == (16, 31)
    assert bounds(alu(Op.SHR, int32, LOADED, const(4, int32)))[0] < 0
    at = alu(Op.CAST, int32, low)
    wrapped = alu(Op.WHERE, int32, less(at, 0), alu(Op.ADD, int32, at, const(16, int32)), at)
    assert settled(wrapped) is at
    assert settled(alu(Op.WHERE, int32, less(at, 15), at, LOADED)) is not at


def test_an_index_from_the_end_is_a_place_once_it_is_required() -> None:
    """By names, too, where a program keeps to the range; not where it notes a fault and goes on."""
    n = const(9, int32)
    for least, place in ((const(-9, int32), (0, 8)), (less(LOADED, 3), None)):
        below = less(LOADED, n)
        above = alu(Op.LESS_EQUAL, bool_, least, LOADED) if place else least
        asked: Expr = Require(FAULT, (LOADED, alu(Op.AND, bool_, above, below)))
        name: Expr = Name("v0", int32, 1)
        wrapped = alu(Op.WHERE, int32, less(name, 0), alu(Op.ADD, int32, name, n), name)
        found = bounds(wrapped, {"v0": asked})
        assert found == place if place else found[0] < 0
