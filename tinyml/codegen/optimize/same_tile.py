"""Same tile: what is staged twice in the same places, perhaps by other axes, lies there once.

As columns of one product, which are steps of what the next one folds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from tinyml.codegen.expr import Expr, substitute
from tinyml.codegen.nest import Nest, Tile
from tinyml.frozen import replace
from tinyml.index import Axis, Linear, numbered


def same_tile(one: Nest, tile: Tile) -> str | None:
    """The name of a tile that holds the same elements in the same places, if there is one."""
    for other in one.tiles:
        index, value = other.index, other.value
        if replace(tile, name=other.name, axes=other.axes, index=index, value=value) != other:
            continue
        parts = _parts(tile.axes, other.axes)
        if parts is not None and _held(tile, parts) == _held(other, parts):
            return other.name
    return None


def _held(tile: Tile, parts: Mapping[Axis, Linear]) -> tuple[Linear, Expr]:
    """Where a tile has what, in terms of parts of its axes."""
    return tile.index.substitute(parts), substitute(tile.value, parts)


def _parts(a: Sequence[Axis], b: Sequence[Axis]) -> Mapping[Axis, Linear] | None:
    """The axes of two lists in terms of those that both can be divided into, if they walk alike."""
    every = sorted({*_strides(a), *_strides(b)})
    if _strides(a)[-1] != _strides(b)[-1] or any(n % m for m, n in pairwise(every)):
        return None
    parts = {m: Axis(f"part{m}", n // m) for m, n in pairwise(every)}
    image = {}
    for axes in (a, b):
        for axis, (least, most) in zip(reversed(axes), pairwise(_strides(axes)), strict=True):
            own = [part for m, part in parts.items() if least <= m < most]
            image[axis] = numbered(own[::-1])
    return image


def _strides(axes: Sequence[Axis]) -> list[int]:
    """How many steps of all axes further on each has, the last one first; and all of them."""
    found = [1]
    for axis in reversed(axes):
        found.append(found[-1] * axis.size)
    return found
