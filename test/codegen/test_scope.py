"""What is written out: each value at every step."""

import pytest

from tinyml.codegen.expr import Expr, Fold, Load, alu, const, select, substitute
from tinyml.codegen.scope import at_each, every_step
from tinyml.dtype import float32
from tinyml.index import Axis, Linear, inside, linear
from tinyml.ops import Op

ROW, COLUMN, STEP, WHOLE = Axis("i", 3), Axis("j", 2), Axis("r", 5), Axis("w", 4)


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
    steps = every_step(known, [ROW, COLUMN])
    assert at_each(roots, steps) == [[substitute(r, at) for at in steps] for r in roots]


def test_what_no_step_changes_stays_itself() -> None:
    root = product()
    assert at_each([root], every_step({}, [])) == [[root]]
    assert at_each([root], []) == [[]]
