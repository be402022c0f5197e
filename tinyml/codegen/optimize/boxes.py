"""Boxes: tiles in panels that the card copies by itself, as bulk copies.

A box is rows of 128 bytes, of lines that are equally far apart: a panel. Panels lie side by side in
an array, or anywhere along its lines, as those of heads do. What lies beyond an array's edges
arrives as zeros, and floats are rounded to what tensor cores take. So the condition under which an
element is loaded has to be that of an edge.
PTX ISA, "Tensors": tiled mode, 128-byte swizzle.
"""

from __future__ import annotations

from functools import reduce
from math import gcd, prod

from tinyml.codegen.expr import Load
from tinyml.codegen.nest import Kind, LoopNest, Tile
from tinyml.codegen.optimize.change import OptError
from tinyml.codegen.optimize.panels import row_of
from tinyml.codegen.optimize.stages import pipeline
from tinyml.codegen.optimize.turns import counted
from tinyml.frozen import dataclass, replace
from tinyml.index import ZERO, Axis, Linear, linear, unravel
from tinyml.program import Box

PIECE = 16  # bytes: what begins, and what lines are apart, is a multiple of it
LINES = 256  # of a box


@dataclass(frozen=True)
class Boxed:
    """A tile as boxes, each of which begins `at` x, y, z of its own."""

    box: Box
    at: tuple[tuple[Linear, Linear, Linear], ...]


def boxed(tile: Tile) -> Boxed | None:
    """The boxes that fill a tile, if it is filled by such."""
    load, axes = tile.value, _axes(tile)
    if axes is None or not isinstance(load, Load) or load.sources:
        return None
    source = _source(tile, load, axes).within(load)
    return None if source is None else _made(tile, load, axes, source)


def bulk(nest: LoopNest, after: Axis, stages: int) -> LoopNest:
    """Tiles that are filled at a step of a loop are filled ahead, by boxes, by a warp for it."""
    one = nest.nests[0]
    own = [tile for tile in one.tiles if tile.after is after]
    waiting = any(t.after in one.folded or not t.copies for t in one.tiles if t not in own)
    if len(nest.nests) > 1 or waiting:
        raise OptError(f"cannot copy boxes ahead of {after.name}: others wait for all threads")
    outer = [a for a in one.folded if nest.kind(a) is Kind.LOOP]
    if after in outer and outer[0] is not after:
        raise OptError(f"cannot copy boxes ahead of {after.name}: the loop is in another")
    if any(boxed(tile) is None for tile in own):
        raise OptError(f"cannot copy boxes ahead of {after.name}: a tile is not made of such")
    (made,) = pipeline(nest, after, stages, counted(nest.turn(one), linear(after), after)).nests
    tiles = tuple(replace(t, bulk=True) if t.after is after else t for t in made.tiles)
    return replace(nest, nests=(replace(made, tiles=tiles),))


@dataclass(frozen=True)
class _Axes:
    """The axes of a tile: of lines and of panels, and how far apart lines are in memory."""

    lines: tuple[Axis, ...]
    panels: tuple[Axis, ...]
    apart: int


def _axes(tile: Tile) -> _Axes | None:
    load = tile.value
    if not (tile.panels and isinstance(load, Load)):
        return None
    row, strides = row_of(load.dtype), {a: tile.index.stride(a) for a in tile.axes}
    known = sorted((p, a.name, a) for a, p in strides.items() if p is not None)
    within = [(p, a) for p, _, a in known if p < row]
    others = [(p, a) for p, _, a in known if p >= row]
    beside = all(load.position.stride(a) == p for p, a in within)
    apart = load.position.stride(others[0][1]) or 0 if others else 0
    if len(known) < len(strides) or not beside or apart <= 0:
        return None
    lines = tuple(a for p, a in others if (load.position.stride(a) or 0) * row == p * apart)
    panels, size = list[Axis](), row * prod(a.size for a in lines)
    for p, axis in ((p, a) for p, a in others if a not in lines):
        if p != size:
            return None
        panels.insert(0, axis)
        size *= axis.size
    return _Axes(lines, tuple(panels), apart)


@dataclass(frozen=True)
class _Source:
    """Where elements come from, and how many there are along x and y; 0: as many as are asked."""

    x: Linear
    y: Linear
    own: frozenset[Axis]
    z: Linear = ZERO
    width: int = 0
    height: int = 0

    def within(self, load: Load) -> _Source | None:
        """With the edges that the load's conditions are about; None if they are about others."""
        found = self
        for v in load.valid:
            along, across = found.x - v.index, found.y - v.index
            if v.low > 0 and v.low > v.index.low:
                return None
            if not along.terms and not found.width:
                found = replace(found, x=v.index, width=v.high + 1)
            elif self.own.isdisjoint(across.free) and not found.height:
                z = across - across.constant
                found = replace(found, y=v.index, z=z, height=v.high + 1)
            else:
                return None
        return found


def _source(tile: Tile, load: Load, axes: _Axes) -> _Source:
    own, apart = {*tile.axes} - {*axes.panels}, axes.apart
    x = y = ZERO
    for atom, factor in load.position.terms:
        by_line = atom in axes.lines or (atom not in own and factor % apart == 0)
        if by_line:
            y = y + linear(atom) * (factor // apart)
        else:
            x = x + linear(atom) * factor
    return _Source(x, y, frozenset(own))


def _made(tile: Tile, load: Load, axes: _Axes, source: _Source) -> Boxed | None:
    step = reduce(gcd, (f for _, f in source.z.terms), 0) or source.height or source.y.high + 1
    z = Linear(tuple((a, f // step) for a, f in source.z.terms), 0)
    begins = load.position - (source.x + (source.y + source.z) * axes.apart)
    size = load.dtype.itemsize
    strides = axes.apart * size, axes.apart * step * size
    offset, count = begins.constant * size, prod(a.size for a in axes.lines)
    even = all(n % PIECE == 0 for n in (*strides, offset))
    lows = [z.low, 0 if source.width else source.x.low, 0 if source.height else source.y.low]
    if begins.terms or not even or count > LINES or min(offset, *lows) < 0:
        return None
    sizes = source.width or source.x.high + 1, source.height or source.y.high + 1, z.high + 1
    box = Box(load.slot, size, offset, sizes, strides, (row_of(load.dtype), count))
    shape, begin = tuple(a.size for a in axes.panels), dict.fromkeys(tile.axes, ZERO)
    at = []
    for n in range(prod(shape)):
        known = begin | dict(zip(axes.panels, unravel(linear(n), shape), strict=True))
        at.append((source.x.substitute(known), source.y.substitute(known), z.substitute(known)))
    return Boxed(box, tuple(at))
