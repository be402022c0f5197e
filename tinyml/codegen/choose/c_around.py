"""Products in C that another fold makes anew at each of its steps, for the same rows and columns.

Both factors are those of all steps: the one that is packed has panels for each of them.
"""

from __future__ import annotations

from tinyml.codegen.choose.chooser import Chooser, Contraction
from tinyml.codegen.expr import Fold, Load, nodes
from tinyml.codegen.nest import Nest
from tinyml.frozen import replace
from tinyml.graph import toposort
from tinyml.ops import Op


def with_steps_around(one: Nest, found: Contraction) -> Contraction:
    """The product as if it folded the steps of the folds around it, too."""
    around = [f for f in one.folds if found.fold in nodes(f.body)]
    steps = dict.fromkeys(a for fold in around for a in fold.axes)
    if not steps or not {*steps} <= found.fold.body.free:
        return found
    return replace(found, fold=Fold(Op.ADD, found.fold.body, (*steps, *found.fold.axes)))


def packed_beside(chooser: Chooser, packed: Load) -> list[Load]:
    """What other products read with jumps along the lanes: it is packed, too."""
    lanes = chooser.nest.lanes
    bodies = [fold.body for fold in chooser.one.folds if not fold.body.has_fold]
    loads = [e for e in toposort(bodies) if isinstance(e, Load) and e.free & lanes]
    jump = {e.slot: e for e in loads if all(e.position.stride(a) != 1 for a in lanes & e.free)}
    return [e for slot, e in jump.items() if slot != packed.slot]
