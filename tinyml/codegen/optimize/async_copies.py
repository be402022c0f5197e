"""Asynchronous copies: 16, 8 or 4 bytes that a card copies to a tile past the registers."""

from __future__ import annotations

from collections.abc import Sequence

from tinyml.codegen.expr import Load
from tinyml.codegen.nest import Tile
from tinyml.codegen.optimize.tiles import by_stride
from tinyml.index import Axis, Linear, Range, steps_by, uniform

SIZES = 16, 8, 4  # bytes


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
