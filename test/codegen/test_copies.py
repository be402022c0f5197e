"""What is said once for all steps of an axis that is written out."""

from __future__ import annotations

import graphs
import numpy as np
import products
import stages
from stages import kernel_of

from tinyml import Tensor, lazy
from tinyml.codegen import linear as ir
from tinyml.codegen.copies import (
    APART,
    alike,
    alike_abreast,
    alike_in_tile,
    gathered,
    written_out,
)
from tinyml.codegen.expr import Expr, Fold, Load, Name, Stored, alu, const, select
from tinyml.codegen.linear import EACH, Instr, verify
from tinyml.codegen.linearize.linearize import linearize
from tinyml.codegen.lower import lower
from tinyml.codegen.nest import Store, Tile
from tinyml.codegen.optimize.opts import Opt, OptKind, optimize
from tinyml.codegen.text.c import CRenderer
from tinyml.dtype import float32
from tinyml.index import Axis, Valid, inside, linear
from tinyml.ops import Op
from tinyml.program import Cost

ROW, COLUMN, STEP = Axis("i", 3), Axis("j", 4), Axis("r", 5)


def product(valid: Valid = (), slot: int = 1) -> Expr:
    left = Load(slot, float32, linear(ROW) * 5 + linear(STEP), valid)
    right = Load(2, float32, linear(STEP) * 4 + linear(COLUMN), ())
    folded: Expr = Fold(Op.ADD, alu(Op.MUL, float32, left, right), (STEP,))
    return folded


def stored(value: Expr) -> list[Store]:
    return [Store(0, float32, linear(ROW) * 4 + linear(COLUMN), value, ())]


def test_steps_are_alike_unless_one_decides_or_reads_what_another_stores() -> None:
    within = {ROW, COLUMN}
    decided = (inside(linear(ROW), 1, 2),)
    asked = (inside(linear(ROW) + linear(STEP), 1, 9),)
    assert alike(ROW, stored(product()), within)
    assert alike(ROW, stored(product(asked)), within)
    assert not alike(ROW, stored(product(decided)), within)
    assert not alike(ROW, stored(select(decided, product(), const(0, float32))), within)
    assert not alike(ROW, stored(product(slot=0)), within)
    assert not alike(ROW, stored(Load(1, float32, linear(ROW), ())), within)


def test_steps_of_a_tile_are_alike_unless_one_reads_what_another_overwrites() -> None:
    def alone(value: Expr) -> bool:
        tile = Tile("tile0", (ROW, COLUMN), place, value, STEP)
        return alike_in_tile(ROW, tile, value, {ROW, COLUMN})

    place = linear(ROW) * 4 + linear(COLUMN)
    asked = (inside(linear(ROW) + linear(STEP), 1, 5),)
    own: Expr = Stored("tile0", float32, place, STEP)
    first: Expr = Stored("tile0", float32, linear(COLUMN), STEP)
    assert alone(product())
    assert alone(const(0, float32))
    assert alone(alu(Op.ADD, float32, own, product()))
    assert not alone(alu(Op.ADD, float32, first, product()))
    assert not alone(product(asked))


def test_what_a_map_stores_is_alike_unless_one_step_decides() -> None:
    def alone(value: Expr, valid: Valid = ()) -> bool:
        store = Store(0, float32, linear(ROW) * 4 + linear(COLUMN), value, valid)
        return alike_abreast(ROW, [store], {ROW, COLUMN})

    value: Expr = Load(0, float32, linear(ROW) * 4 + linear(COLUMN), ())
    decided = (inside(linear(ROW), 1, 2),)
    asked = (inside(linear(ROW) + linear(STEP), 4, 5),)
    assert alone(value)
    assert alone(value, asked)
    assert not alone(value, decided)
    assert not alone(select(decided, value, const(0, float32)))


def name(text: str) -> Name:
    made: Name = Name(text, float32, 1)
    return made


def test_what_belongs_to_a_step_is_gathered_behind_what_does_not() -> None:
    own, other, total = name(f"v0_{EACH}"), name("v1"), name(f"acc2_{EACH}")
    value = Load(1, float32, linear(ROW), ())
    first: Instr = ir.Let(own, value)
    plain: Instr = ir.Let(other, Load(2, float32, linear(COLUMN), ()))
    added: Instr = ir.Update(total, Op.ADD, alu(Op.MUL, float32, own, other))
    families = {own.name: ROW, total.name: ROW}
    begin, end = ir.Begin(ROW, copied=True), ir.End(ROW)
    assert gathered([first, plain, added], families, {ROW: False}) == (
        plain,
        begin,
        first,
        added,
        end,
    )
    apart = gathered([added, APART, added], families, {ROW: False})
    assert apart == (begin, added, end, begin, added, end)


def test_written_out_each_step_has_names_and_places_of_its_own() -> None:
    own = name(f"v0_{EACH}")
    value = Load(1, float32, linear(ROW) * 7, ())
    place, guard = linear(ROW) + 1, (inside(linear(ROW) + 1, 1, 2),)
    put = ir.Put(0, float32, place, (own,), guard, None, False)
    kept = ir.PutTile("tile0", float32, place, own, ())
    block = [ir.Begin(ROW, copied=True), ir.Let(own, value), put, kept, ir.End(ROW)]
    lines = [i for i in written_out(block) if isinstance(i, ir.Let)]
    assert [i.name.name for i in lines] == ["v0_0", "v0_1", "v0_2"]
    assert [i.value.position.constant for i in lines if isinstance(i.value, Load)] == [0, 7, 14]
    puts = [i for i in written_out(block) if isinstance(i, ir.Put)]
    assert [(p.position.constant, p.valid) for p in puts] == [(1, ()), (2, ())]  # never in row 2
    tiles = [i for i in written_out(block) if isinstance(i, ir.PutTile)]
    assert [(t.index.constant, str(t.value)) for t in tiles] == [
        (1, "v0_0"),
        (2, "v0_1"),
        (3, "v0_2"),
    ]


def test_vectors_of_a_map_are_made_once_and_each_line_is_copied_for_all() -> None:
    k = kernel_of(lazy.map_(Op.EXP, graphs.mul(graphs.leaf(37), graphs.leaf(37))))
    made = linearize(
        optimize(lower(k), [Opt(OptKind.LANES, "i0", 4), Opt(OptKind.UNROLL, "i0", 4)])
    )
    verify(made)
    begins = [i for part in made.parts for i in part.instrs if isinstance(i, ir.Begin)]
    assert [i.axis.size for i in begins if i.abreast] == [4]
    text = CRenderer(made).render("k", [], Cost(0, 0, 0)).source
    assert EACH not in text
    loaded = [line.split()[2] for line in text.splitlines() if "= *(const f32x4 *)(slot1" in line]
    assert loaded[:4] == ["v0_0", "v0_1", "v0_2", "v0_3"]  # before any product of them
    stages.assert_right(k)


def test_the_rows_of_a_register_tile_are_made_once_and_those_that_remain() -> None:
    k = kernel_of(products.product(11, 9, 16, float32))
    opts = [Opt(OptKind.LANES, "i1", 8), Opt(OptKind.UNROLL, "i0", 4)]
    made = linearize(optimize(lower(k), opts))
    updates = [i for part in made.parts for i in part.instrs if isinstance(i, ir.Update)]
    assert len(updates) == 2  # of tiles of four rows, and of the three that remain
    stages.assert_right(k)
    text = CRenderer(made).render("k", [], Cost(0, 0, 0)).source
    assert EACH not in text
    assert text.count("acc0_3 +=") == 1


def test_rows_of_a_product_are_made_one_by_one_beside_others_that_hold_a_number() -> None:
    """Lines of all rows in turn would need a register for each row's number at once."""
    x, y = (Tensor(np.ones(s, np.float32), device="CPU").realize() for s in ((48, 24), (24, 64)))
    k = kernel_of(((x @ y).tril() * 2).lazy)
    opts = [Opt(OptKind.LANES, "i1", 8), Opt(OptKind.UNROLL, "i1", 2), Opt(OptKind.UNROLL, "i0", 4)]
    opts += [Opt(OptKind.ORDER, "i0u"), Opt(OptKind.ORDER, "i0")]
    made = linearize(optimize(lower(k), opts))
    copied = [i for part in made.parts for i in part.instrs if isinstance(i, ir.Begin) and i.copied]
    assert copied
    assert not any(begin.abreast for begin in copied)
