"""Turns: a grid has more tiles than a card runs blocks, so each block walks several of them.

A block that is there already has the next tile's boxes on their way while it stores what it made
of the last one; and tiles that follow one another in the grid are made at the same time, whoever
else is busy. In turn t, block b of n has tile t * n + b.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tinyml.codegen import crop
from tinyml.codegen import linear as ir
from tinyml.codegen.linear import Instr
from tinyml.codegen.nest import Kind, LoopNest, Nest
from tinyml.codegen.optimize.change import OptError
from tinyml.frozen import replace
from tinyml.index import Axis, Linear, linear


def persist(nest: LoopNest, axis: Axis, turns: int) -> LoopNest:
    """The grid that `axis` belongs to, in so many turns."""
    one, turn = nest.nests[0], Axis("turn", turns)
    apart = len(nest.nests) == 1 and nest.kind(axis) is Kind.GRID and not nest.parts(one)
    if not apart or nest.turn(one) is not None:
        raise OptError(f"cannot walk {axis.name} in turns: each block has one part of a fold")
    if not 1 < turns <= prod(a.size for a in nest.grid(one)):
        raise OptError(f"cannot walk {axis.name} in turns: there are no {turns} tiles")
    if any(tile.stages > 1 for tile in one.tiles) or any(crop.needed([f]) for f in one.folds):
        raise OptError(f"cannot walk {axis.name} in turns: steps are counted from 0")
    made = replace(one, rows=(turn, *one.rows))
    return replace(nest, nests=(made,), kinds=(*nest.kinds, (turn, Kind.TURN)))


def counted(turn: Axis | None, step: Linear, axis: Axis) -> Linear:
    """The number of a step of `axis`, those of the turns before counted, too."""
    return step if turn is None else linear(turn) * axis.size + step


def in_turns(
    nest: LoopNest, one: Nest, instrs: Sequence[Instr]
) -> tuple[tuple[Axis, ...], tuple[Instr, ...]]:
    """What numbers blocks, and what each does: what is done for a tile, for each of its own."""
    turn, grid = nest.turn(one), nest.grid(one)
    if turn is None:
        return (*grid, *nest.parts(one)), (*instrs,)  # parts of a tile come about together
    tiles = prod(a.size for a in grid)
    block = Axis("block", -(-tiles // turn.size))
    last = (linear(block) * -1 + (tiles - 1 + block.size)) // block.size
    begin = ir.Begin(turn, (), (last,) if last.low < turn.size else ())
    number = ir.Number(grid, linear(turn) * block.size + linear(block))
    first, ending = list[Instr](), list[Instr]()
    if isinstance(instrs[0], ir.Produce):
        first, instrs = [replace(instrs[0], around=(begin, number))], instrs[1:]
    elif one.tiles:
        ending = [ir.Await(0)] if any(tile.stages > 1 for tile in one.tiles) else []
        ending += [ir.Barrier()]  # before the next turn fills them again
    return (block,), (*first, begin, number, *instrs, *ending, ir.End(turn))
