"""Pieces: 16 bytes of memory that a card copies to a tile past the registers, if they lie so."""

from __future__ import annotations

from collections.abc import Sequence

from tinyml.codegen.expr import Load
from tinyml.codegen.nest import Tile
from tinyml.codegen.optimize.tiles import by_stride
from tinyml.graph import toposort
from tinyml.index import Axis, Linear, steps_by, uniform


def copied(tile: Tile) -> Load | None:
    """What is copied to a tile 16 bytes at a time, ahead: all that it holds, or is made of there.

    What it is made of besides is small: statistics of rows, say.
    """
    value, order = tile.value, by_stride(tile, together=True)
    found = [e for e in toposort([value]) if isinstance(e, Load) and e.free >= {*tile.axes}]
    if tile.stages == 1 or len(found) != 1 or found[0].dtype is not value.dtype:
        return None
    (source,) = found
    whole = source is value or order[-1].size * value.dtype.itemsize % 16 == 0
    plain = value.dtype.is_half if source is value else False  # panels are made of halves
    fits = whole and (plain or not tile.panels)
    return source if fits and in_pieces(source, tile.index, order) else None


def in_pieces(source: Load, index: Linear, order: Sequence[Axis]) -> bool:
    """Whether source and tile lie in the same pieces of 16 bytes, each valid or not as a whole."""
    size, along, length = 16 // source.dtype.itemsize, list[Axis](), 1
    for axis in reversed(order):
        if length % size:
            along.append(axis)
            length *= axis.size
    return (
        not source.sources
        and all(steps_by(i, along, size) for i in (index, source.position))
        and all(v.free.isdisjoint(along) or uniform(v, along, size) for v in source.valid)
    )
