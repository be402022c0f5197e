"""What is written out: each value at every step."""

import pytest

from tinyml.codegen.ahead import Ahead
from tinyml.codegen.expr import Expr, Fold, Load, Name, alu, const, select, substitute
from tinyml.codegen.linear import Fetch, Let, Number
from tinyml.codegen.linearize.namer import Namer
from tinyml.codegen.nest import Nest
from tinyml.codegen.scope import Scope, at_each, every_step, in_turn
from tinyml.dtype import float32
from tinyml.index import Axis, Linear, inside, linear
from tinyml.ops import Op

ROW, COLUMN, STEP, WHOLE = Axis("i", 3), Axis("j", 2), Axis("r", 5), Axis("w", 4)
ELSEWHERE = linear(Axis("e", 6))


def load(slot: int, position: Linear) -> Expr:
    return Load(slot, float32, position, ())


def product() -> Expr:
    left = load(1, linear(ROW) * 5 + linear(STEP))
    right = load(2, linear(COLUMN) * 5 + linear(STEP))
    folded: Expr = Fold(Op.ADD, alu(Op.MUL, float32, left, right), (STEP,))
    return folded


def masked() -> Expr:
    """Where to take the one or the other depends on a row, and neither of them does."""
    one, other = load(3, linear(WHOLE)), const(2.0, float32)
    return select((inside(linear(ROW), 1, 1),), one, other)


@pytest.mark.parametrize("known", [{}, {WHOLE: linear(ROW) + 1}])
def test_each_root_at_every_step_is_what_substituting_makes_of_it(
    known: dict[Axis, Linear],
) -> None:
    roots = [product(), masked(), alu(Op.ADD, float32, product(), masked()), load(4, linear(STEP))]
    edges = inside(linear(ROW) + linear(STEP), 1, 5), inside(linear(COLUMN), 1, 1)
    roots += [
        Load(5, float32, linear(ROW) + linear(WHOLE), edges),
        Load(5, float32, ELSEWHERE, edges[:1]),
    ]
    steps = every_step(known, [ROW, COLUMN])
    assert at_each(roots, steps) == [[substitute(r, at) for at in steps] for r in roots]


def test_what_no_step_changes_stays_itself() -> None:
    root = product()
    assert at_each([root], every_step({}, [])) == [[root]]
    assert at_each([root], []) == [[]]


def let(made: str, *sources: str) -> Let:
    first, *others = [Name(s, float32, 1) for s in sources] or [const(1.0, float32)]
    value: Expr = first
    for other in others:
        value = alu(Op.ADD, float32, value, other)
    return Let(Name(made, float32, 1), value)


def test_chains_take_turns() -> None:
    first, second = [let("a"), let("b", "a"), let("c", "b")], [let("d"), let("e", "d")]
    assert in_turn([first, second]) == [first[0], second[0], first[1], second[1], first[2]]


def test_no_turn_comes_before_what_it_reads() -> None:
    """Two of three chains read what the first one made last."""
    first = [let("a"), let("b", "a"), let("shared", "b")]
    others = [[let("c", "shared"), let("d", "c", "outside")], [let("e"), let("f", "e", "shared")]]
    assert [i.name.name for i in in_turn([first, *others]) if isinstance(i, Let)] == [
        *("a", "e", "b", "shared", "c", "f", "d"),
    ]


def test_what_is_asked_for_ahead_stays_where_it_was() -> None:
    fetch = Fetch(1, linear(ROW))
    assert in_turn([[let("a"), fetch], [let("b")]]) == [let("a"), let("b"), fetch]


def test_an_index_with_a_name_may_be_below_zero() -> None:
    walked = Axis("i", 4)
    scope = Scope(frozenset((walked,)), None)
    named = Namer("", (), Ahead({}, set(), set(), Nest((), ()))).numbered(
        scope, linear(walked) * 2 - 3
    )
    assert (named.low, named.high) == (-3, 3)
    (number,) = (i for i in scope.instrs if isinstance(i, Number))
    assert (number.at.low, number.axes[0].high) == (0, 6)


def test_a_fold_keeps_its_axis_where_that_of_another_is_replaced() -> None:
    """As of what is compared with the largest of its row."""
    own, row = Axis("s", STEP.size), Axis("k", ROW.size)
    place = linear(ROW) * STEP.size + linear(STEP)
    largest = Fold(Op.MAX, load(1, place), (STEP,))
    made = substitute(
        alu(Op.EQUAL, float32, load(1, place), largest), {ROW: linear(row), STEP: linear(own)}
    )
    again = linear(row) * STEP.size
    folded = Fold(Op.MAX, load(1, again + linear(STEP)), (STEP,))
    assert made is alu(Op.EQUAL, float32, load(1, again + linear(own)), folded)
