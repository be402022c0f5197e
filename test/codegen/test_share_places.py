"""Tiles that are never needed at the same time lie in the same places; others do not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tinyml.codegen.expr import Expr, Stored, alu, const
from tinyml.codegen.linear import Barrier, Begin, End, Instr, Local, PutTile
from tinyml.codegen.linearize.share_places import share_places
from tinyml.codegen.nest import Tile
from tinyml.dtype import float32
from tinyml.index import Axis, Linear, linear
from tinyml.ops import Op

STEPS, THREADS, MADE = Axis("r0", 8), Axis("ty", 32), Axis("c_b", 1)
OWN, OTHER = linear(THREADS), linear(THREADS) * -1 + 31
ONE = const(1, float32)
WAIT = Barrier()


def read(name: str, at: Linear = OWN) -> Expr:
    return alu(Op.ADD, float32, Stored(name, float32, at, STEPS), ONE)


def put(name: str, value: Expr = ONE, at: Linear = OWN) -> PutTile:
    return PutTile(name, float32, at, value, ())


def places(*step: Instr, sizes: Sequence[int] = (32, 32)) -> list[str]:
    """Where a and b lie, which are filled at each step of a loop; c is needed throughout."""
    tiles = [Tile(name, (THREADS,), OWN, ONE, STEPS) for name in "ab"]
    tiles.append(Tile("c", (THREADS,), OWN, ONE, THREADS, STEPS))
    instrs = [put("c"), WAIT, Begin(STEPS), *step, End(STEPS), put("c", read("c"))]
    locals_ = [Local(n, float32, size) for n, size in zip("abc", (*sizes, 32), strict=True)]
    return [local.place for local in share_places(instrs, tiles, locals_)]


def in_loop(*instrs: Instr) -> list[Instr]:
    return [Begin(MADE), *instrs, End(MADE)]


LATER = [
    put("a"),
    WAIT,
    put("c", read("a", OTHER)),
    WAIT,
    put("b"),
    WAIT,
    put("c", read("b")),
    WAIT,
]
IN_PLACE = [put("a"), WAIT, *in_loop(put("b", read("a"))), WAIT, put("c", read("b", OTHER)), WAIT]
NEVER = [
    [put("a"), put("b"), WAIT, put("c", read("a")), put("c", read("b")), WAIT],  # at once
    LATER[:3] + LATER[4:],  # b is filled while others may still read a
    LATER[:-1],  # and a, by the next step, while others may still read b
    [put("a"), WAIT, *in_loop(put("b", read("a", OTHER))), WAIT, put("c", read("b")), WAIT],
    [*IN_PLACE[:-1], put("c", read("a")), WAIT],  # what was there is asked for again
    [put("a"), WAIT, *in_loop(put("b", read("a"))), put("c", read("a", OTHER)), WAIT],
]


@pytest.mark.parametrize("step", [LATER, IN_PLACE], ids=["later", "in place"])
def test_a_tile_lies_where_another_one_is_needed_no_more(step: list[Instr]) -> None:
    assert places(*step) == ["", "a", ""]
    assert places(*step, sizes=(32, 64)) == ["b", "", ""]


@pytest.mark.parametrize("step", NEVER)
def test_what_is_needed_at_the_same_time_lies_apart(step: list[Instr]) -> None:
    assert places(*step) == ["", "", ""]
