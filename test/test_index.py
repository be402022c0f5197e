"""Index arithmetic says what integer arithmetic says, within the bounds it promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyml.graph import Interned, maker
from tinyml.index import (
    ZERO,
    Atom,
    Axis,
    Linear,
    Quotient,
    Range,
    Remainder,
    both,
    inside,
    linear,
    row_major,
    substitute_valid,
    unravel,
)

AXES = (Axis("a", 3), Axis("b", 4), Axis("c", 5), Axis("d", 1))
A, B, C, D = map(linear, AXES)
Point = Mapping[Axis, int]
Meaning = Callable[[Point], int]
Pair = tuple[Linear, Meaning]  # an expression, and what it should be at a point
POINTS: list[Point] = [
    dict(zip(AXES, point, strict=True)) for point in product(*(range(a.size) for a in AXES))
]


def at(i: Linear, point: Point) -> int:
    """The value of an index, by what its atoms mean."""
    return i.constant + sum(f * _atom_at(atom, point) for atom, f in i.terms)


def _atom_at(atom: Atom, point: Point) -> int:
    match atom:
        case Axis():
            return point[atom]
        case Quotient(inner=inner, by=by):
            return at(inner, point) // by
        case Remainder(inner=inner, by=by):
            return at(inner, point) % by
    raise TypeError(atom)


def _axis(axis: Axis) -> Pair:
    return linear(axis), lambda p: p[axis]


def _number(n: int) -> Pair:
    return linear(n), lambda _: n


def _larger(pairs: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    def add(x: Pair, y: Pair) -> Pair:
        return x[0] + y[0], lambda p: x[1](p) + y[1](p)

    def subtract(x: Pair, y: Pair) -> Pair:
        return x[0] - y[0], lambda p: x[1](p) - y[1](p)

    def scale(x: Pair, n: int) -> Pair:
        return x[0] * n, lambda p: x[1](p) * n

    def divide(x: Pair, n: int) -> Pair:
        return x[0] // n, lambda p: x[1](p) // n

    def rest(x: Pair, n: int) -> Pair:
        return x[0] % n, lambda p: x[1](p) % n

    positive = st.integers(1, 13)
    return st.one_of(
        st.builds(add, pairs, pairs),
        st.builds(subtract, pairs, pairs),
        st.builds(scale, pairs, st.integers(-6, 12)),
        st.builds(divide, pairs, positive),
        st.builds(rest, pairs, positive),
    )


_start = st.one_of(st.sampled_from(AXES).map(_axis), st.integers(-20, 20).map(_number))
PAIRS = st.recursive(_start, _larger, max_leaves=10)
quick = settings(max_examples=120)


@quick
@given(PAIRS)
def test_an_index_is_what_it_was_built_from(pair: Pair) -> None:
    index, meaning = pair
    for point in POINTS:
        value = meaning(point)
        assert at(index, point) == value
        assert index.low <= value <= index.high


@quick
@given(PAIRS, PAIRS, PAIRS)
def test_substituting_is_looking_up_elsewhere(pair: Pair, first: Pair, second: Pair) -> None:
    known = {AXES[0]: first[0] % 3, AXES[1]: second[0] % 4}
    changed = pair[0].substitute(known)
    for point in POINTS:
        moved = {**point, AXES[0]: first[1](point) % 3, AXES[1]: second[1](point) % 4}
        assert at(changed, point) == pair[1](moved)


@quick
@given(PAIRS, PAIRS)
def test_each_of_several_steps_is_substituted(pair: Pair, other: Pair) -> None:
    numbers = [{AXES[0]: linear(a), AXES[1]: linear(b)} for a in range(3) for b in range(4)]
    moved = [{**at, AXES[1]: other[0] % 4} for at in numbers]
    for steps in ([], numbers, moved):
        assert pair[0].at_each(steps) == [pair[0].substitute(at) for at in steps]


@quick
@given(PAIRS, st.integers(-20, 20), st.integers(0, 20))
def test_conditions_hold_where_they_should(pair: Pair, low: int, span: int) -> None:
    condition = inside(pair[0], low, low + span)
    kept = both([condition])
    for point in POINTS:
        holds = low <= pair[1](point) <= low + span
        assert _holds(condition, point) == holds
        assert (kept is not None and all(_holds(c, point) for c in kept)) == holds


@quick
@given(PAIRS, PAIRS, st.integers(-9, 9), st.integers(0, 9))
def test_conditions_survive_substitution(pair: Pair, other: Pair, low: int, span: int) -> None:
    valid = both([inside(pair[0], low, low + span)])
    changed = None if valid is None else substitute_valid(valid, {AXES[2]: other[0] % 5})
    for point in POINTS:
        holds = low <= pair[1]({**point, AXES[2]: other[1](point) % 5}) <= low + span
        assert (changed is not None and all(_holds(c, point) for c in changed)) == holds


def _holds(condition: Range, point: Point) -> bool:
    return condition.low <= at(condition.index, point) <= condition.high


@quick
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_unravel_undoes_row_major(shape: list[int], data: st.DataObject) -> None:
    axes = [Axis(f"i{n}", size) for n, size in enumerate(shape)]
    index = [linear(axis) for axis in axes]
    assert unravel(row_major(index, shape), tuple(shape)) == tuple(index)
    point = {axis: data.draw(st.integers(0, axis.size - 1)) for axis in axes}
    position = np.ravel_multi_index([point[a] for a in axes], shape)
    assert at(row_major(index, shape), point) == position


def test_no_division_stays_where_a_stride_says_the_same() -> None:
    position = A * 20 + B * 5 + C
    assert position // 5 == A * 4 + B
    assert position % 5 is C
    assert position // 20 is A
    assert position % 20 == B * 5 + C
    assert (position % 20) // 5 is B
    assert position // 60 is ZERO
    assert (B * 5 + C) // 4 * 4 + (B * 5 + C) % 4 == B * 5 + C
    assert (A * 4 + B) // 2 == A * 2 + B // 2
    assert (B // 2) // 2 is ZERO


def test_nor_where_axes_are_flipped() -> None:
    flipped = A * 20 + (3 - B) * 5 + (4 - C)
    assert flipped // 20 is A
    assert flipped % 20 == 19 - B * 5 - C
    assert (flipped % 20) // 5 == 3 - B
    assert flipped // 5 == A * 4 + 3 - B
    assert flipped % 5 == 4 - C


def test_what_a_step_of_the_divisor_walks_is_left_out() -> None:
    pixel = B * 5 + C  # 4 x 5
    assert (A * 20 + pixel) // 40 is A // 2
    assert (A * 20 + pixel) % 40 is A % 2 * 20 + pixel


def test_equal_indices_are_one_object() -> None:
    assert A + B * 2 is B * 2 + A
    assert (A - A) is ZERO
    assert A * 0 is ZERO
    assert D is ZERO
    assert linear(3) + 4 == linear(7)


def test_an_index_knows_its_strides() -> None:
    index = A * 20 + C + (B * 3) // 2
    assert index.stride(AXES[0]) == 20
    assert index.stride(AXES[1]) is None
    assert index.factor(AXES[2]) == 1
    assert index.free == {AXES[0], AXES[1], AXES[2]}


@pytest.mark.parametrize(
    ("index", "text"),
    [(A * 20 + C, "a*20 + c"), (ZERO, "0"), (A - B * 2 - 1, "-b*2 + a - 1"), (B // 3, "(b)//3")],
)
def test_an_index_prints_as_one_would_write_it(index: Linear, text: str) -> None:
    assert str(index) == text


def test_nodes_of_equal_parts_are_one_which_is_filled_once() -> None:
    filled: list[int] = []

    class Node(Interned):
        __slots__ = ("number",)

        def __init__(self, number: int, more: int = 0) -> None:
            filled.append(number)
            self.number = number + more

    class Other(Node):
        __slots__ = ()

    one, two, other = Node(1), Node(2), Other(1)
    assert one is Node(1) is Node(1, 0), "what is left out is what it is by default"
    assert other is Other(1) is not one
    made = maker(Node)
    assert (made(1), made(2, 0), made(3)) == (one, two, Node(3))
    assert [n.number for n in (one, two, other)] == [1, 2, 1]
    assert filled == [1, 2, 1, 3]
    assert type(Linear) is type(Node) is type  # isinstance asks a metaclass in three times the time
