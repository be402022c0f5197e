"""Added: what a step of folds that run along adds to memory, of rows that other folds walk.

The gradient of attention's queries is a sum over keys, those of keys and values are sums over
queries, of the same scores. A kernel of rows of keys that makes a step of the latter has all that
this step's queries get of these keys: it is added to what they got of the keys before.
"""

from __future__ import annotations

from tinyml.codegen.expr import Fold
from tinyml.codegen.nest import LoopNest, Store, Walk
from tinyml.frozen import dataclass, replace
from tinyml.graph import toposort
from tinyml.index import Axis, both, inside, linear


@dataclass(frozen=True)
class Added:
    """What is added to memory at each step, while it is a tile of some axes."""

    name: str
    axes: tuple[Axis, ...]
    store: Store

    def walked(self, nest: LoopNest, number: int) -> LoopNest:
        """The nest with a walk at each step in place of the tile."""
        one, kinds = nest.nests[number], dict(nest.kinds)
        tile = next(t for t in one.tiles if t.name == self.name)
        names = {a: linear(b) for a, b in zip(self.axes, tile.axes, strict=True)}
        ranges = (inside(r.index.substitute(names), r.low, r.high) for r in self.store.valid)
        position = self.store.position.substitute(names)
        store = replace(self.store, position=position, value=tile.value, valid=both(ranges) or ())
        walk = Walk(tile.axes, (store,), tile.over)
        tiles = tuple(t for t in one.tiles if t is not tile)
        made = replace(one, walks=(*one.walks, walk), tiles=tiles)
        for a in (a for e in toposort([tile.value]) if isinstance(e, Fold) for a in e.axes):
            kinds.pop(a, None)
        nests = tuple(made if o is one else o for o in nest.nests)
        return replace(nest, nests=nests, kinds=tuple(kinds.items()))
