"""Stages: tiles that are filled ahead of a loop's steps, several of them one behind the other.

What they hold may be copied asynchronously: 16, 8 or 4 bytes that a card copies past the registers.
Products of what a step makes may be deferred: made beside the first ones of the next step, so that
tensor cores multiply while threads make of a step's products what others multiply. Tiles that they
read are kept for a step more, so fewer are filled ahead; see linearize/group_products.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tinyml.codegen.expr import Expr, Load, Stored
from tinyml.codegen.nest import Kind, LoopNest, Nest, Tile, rewritten
from tinyml.codegen.optimize.change import OptError
from tinyml.codegen.optimize.tiles import by_stride, within_fold
from tinyml.frozen import replace
from tinyml.index import Axis, Linear, Range, linear, steps_by, uniform

SIZES = 16, 8, 4  # bytes
LEAST = 3  # stages of what is deferred: one is filled while those of two steps are read


def pipeline(nest: LoopNest, after: Axis, stages: int, step: Linear | None = None) -> LoopNest:
    """Tiles that are filled at a step of a loop are filled `stages` - 1 steps before.

    `step` is how steps are counted, if not from 0 in each loop.
    """
    if nest.kind(after) is not Kind.LOOP or within_fold(nest, after) or stages > after.size:
        raise OptError(f"cannot fill ahead of {after.name}: it is no loop of {stages} steps")
    if Kind.THREAD not in dict(nest.kinds).values():
        raise OptError(f"cannot fill ahead of {after.name}: copies under way need threads")
    ahead = []
    for one in nest.nests:
        filled = [tile for tile in one.tiles if tile.after is after]
        if any(not tile.copies or tile.stages > 1 for tile in filled):
            raise OptError(f"cannot fill ahead of {after.name}: what is kept in a tile is folded")
        for tile in filled:
            one = _staged(one, tile, (step or linear(after)) % stages, stages)
        ahead.append(one)
    if tuple(ahead) == nest.nests:
        raise OptError(f"cannot fill ahead of {after.name}: there is no tile")
    return replace(nest, nests=tuple(ahead))


def _staged(one: Nest, tile: Tile, stage_: Linear, stages: int) -> Nest:
    """A tile with several stages one behind the other, each read where it was filled."""
    pieces = 16 // tile.value.dtype.itemsize
    offset = stage_ * (-(-tile.size // pieces) * pieces)

    def shifted(e: Expr) -> Expr | None:
        if not (isinstance(e, Stored) and e.name == tile.name):
            return None
        return Stored(e.name, e.dtype, e.index + offset, e.after, e.outside)

    made = replace(tile, index=tile.index + offset, stages=stages)
    tiles = tuple(made if t is tile else t for t in one.tiles)
    return replace(rewritten(one, shifted), tiles=tiles)


def defer(nest: LoopNest, after: Axis) -> LoopNest:
    """Tiles that are filled ahead of an axis are read at the step after, too."""
    tiles = [tile for one in nest.nests for tile in one.tiles if tile.after is after]
    if not tiles or any(tile.stages < LEAST or tile.late for tile in tiles):
        raise OptError(f"cannot defer products at {after.name}: tiles have no {LEAST} stages")

    def made_late(one: Nest) -> Nest:
        late = tuple(replace(t, late=True) if t.after is after else t for t in one.tiles)
        return replace(one, tiles=late)

    return replace(nest, nests=tuple(map(made_late, nest.nests)))


def copied(tile: Tile) -> tuple[Load, int] | None:
    """What is copied to a tile ahead, all that it holds, and in pieces of how many elements."""
    source, order = tile.value, by_stride(tile, together=True)
    if tile.stages == 1 or not isinstance(source, Load):
        return None
    if tile.panels and not source.dtype.is_half:  # others are rounded when they are put there
        return None
    sizes = (nbytes // source.dtype.itemsize for nbytes in SIZES)
    fitting = (n for n in sizes if n and in_pieces(source, tile.index, order, n))
    size = next(fitting, 0)
    return (source, size) if size else None


def in_pieces(source: Load, index: Linear, order: Sequence[Axis], size: int) -> bool:
    """Whether source and tile lie in pieces of `size` elements, each valid or not as a whole.

    Of 16 bytes those at the end of a row may be valid up to there.
    """
    along = _along(order, size)
    end = end_of(source, order, size) if size * source.dtype.itemsize == SIZES[0] else None
    whole = (v.free.isdisjoint(along) or uniform(v, along, size) for v in source.valid if v != end)
    steps = all(steps_by(i, along, size) for i in (index, source.position))
    return not source.sources and steps and all(whole)


def end_of(source: Load, order: Sequence[Axis], size: int) -> Range | None:
    """The condition that ends within a piece, if there is one: on how far a row goes."""
    along = _along(order, size)
    ends = (v for v in source.valid if v.low <= v.index.low and steps_by(v.index, along, size))
    return next((v for v in ends if not uniform(v, along, size)), None)


def _along(order: Sequence[Axis], size: int) -> list[Axis]:
    """The axes that the elements of a piece lie along, the fastest first."""
    along, length = list[Axis](), 1
    for axis in reversed(order):
        if length % size:
            along.append(axis)
            length *= axis.size
    return along
