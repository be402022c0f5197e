"""Defer: products of what a step of a loop makes are made beside the first ones of the next step.

Tensor cores multiply while threads make of a step's products what others multiply. Tiles that the
products read are kept for a step more, so fewer are filled ahead; see linearize/deferred.py.
"""

from __future__ import annotations

from tinyml.codegen.nest import LoopNest, Nest
from tinyml.codegen.optimize.change import OptError
from tinyml.frozen import replace
from tinyml.index import Axis

LEAST = 3  # stages: one is filled while those of two steps are read


def defer(nest: LoopNest, after: Axis) -> LoopNest:
    """Tiles that are filled ahead of an axis are read at the step after, too."""
    tiles = [tile for one in nest.nests for tile in one.tiles if tile.after is after]
    if not tiles or any(tile.stages < LEAST or tile.late for tile in tiles):
        raise OptError(f"cannot defer products at {after.name}: tiles have no {LEAST} stages")

    def made_late(one: Nest) -> Nest:
        late = tuple(replace(t, late=True) if t.after is after else t for t in one.tiles)
        return replace(one, tiles=late)

    return replace(nest, nests=tuple(map(made_late, nest.nests)))
