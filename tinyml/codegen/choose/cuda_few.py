"""Rules of thumb in CUDA for folds that run along in few rows: a warp to each, or to a part of it.

So is attention of a token to all that came before. A warp's lanes have all that a step folds and
all columns that it is added to, and nothing is staged: what a step reads is whole lines of memory,
that no other warp asks for but those of the same block.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt, prod

from tinyml.codegen.choose.chooser import Chooser, all_or_nothing
from tinyml.codegen.choose.cuda_products import of_groups
from tinyml.codegen.matrices import TOGETHER, WARP
from tinyml.codegen.nest import Nest
from tinyml.codegen.optimize.keep import divided_last
from tinyml.codegen.optimize.online import Running, running
from tinyml.codegen.optimize.opts import OptKind
from tinyml.index import Axis

WARPS = 32  # that a multiprocessor is to have
FEW = 8  # rows that share what they fold: the warps of a block
NEIGHBOURS = 4  # rows that are a block's, if they share nothing
EACH, STEPS = 32, 8  # elements that a lane asks for at once; steps of the fold, at most
ACCESS = 16  # bytes


@all_or_nothing
def by_warps(chooser: Chooser) -> bool:
    """Choose parts of the fold, steps and rows; False if these are many, or nothing runs along."""
    of_groups(chooser)
    one = divided_last(chooser.one)
    found = running(one)
    if found is None or len(chooser.nest.nests) > 1:
        return False
    axes = _axes(one, found)
    return len(axes) > 0 and _to_warps(chooser, found.axis, axes)


def _axes(one: Nest, found: Running) -> Sequence[Axis]:
    """The axes that lanes walk: of folds at each step, and of walks; none if rows are many."""
    groups = [f.axes for f in one.folds if found.axis in f.free]
    walked = [walk.axes for walk in one.walks]
    summed = {a for fold in found.followers for a in fold.free}
    alike = all(len(axes) == 1 and summed.issuperset(axes) for axes in walked)
    axes = [*dict.fromkeys(a for group in (*groups, *walked) for a in group)]
    if not (found.leaders and groups and walked and alike and len(axes) <= len(groups + walked)):
        return ()
    read = [x.free for x in one.loads if found.axis in x.free and not x.free.isdisjoint(axes)]
    every = max((prod(a.size for a in one.rows if a not in free) for free in read), default=0)
    return axes if 0 < every <= FEW else ()


def _to_warps(chooser: Chooser, folded: Axis, axes: Sequence[Axis]) -> bool:
    each = sum(-(-axis.size // WARP) for axis in axes)
    steps = next(n for n in (STEPS, 4, 2, 1) if n * each <= EACH or n == 1)
    rows = prod(a.size for a in chooser.one.rows)
    parts = min(chooser.target.cores * WARPS // rows, isqrt(folded.size), folded.size // steps)
    parts = max(1, parts // TOGETHER * TOGETHER or parts)
    size = -(-folded.size // (parts * steps)) * steps
    chooser.apply(OptKind.PAD, folded, parts * size)
    if not chooser.apply(OptKind.ONLINE, folded.name):
        return False
    if not all(_to_lanes(chooser, axis) for axis in axes):
        return False
    last = chooser.one.rows[-1:]
    if last and last[0].size > 1:
        loads = (x for x in chooser.one.loads if last[0] not in x.free)
        together = any(not x.free.isdisjoint(axes) for x in loads)
        warps = FEW if together else NEIGHBOURS
        chooser.apply(OptKind.THREAD, last[0].name, min(last[0].size, warps))
    chooser.bind_grid()
    name = folded.name
    if size < folded.size and chooser.apply(OptKind.SPLIT, name, size):
        chooser.apply(OptKind.GRID, name)
        name = f"{name}s"
    chooser.apply(OptKind.UNROLL, name, steps)
    return True


def _to_lanes(chooser: Chooser, axis: Axis) -> bool:
    """An axis to the lanes of a warp, several neighbours to each."""
    one, name = chooser.one, axis.name
    stored = [s.dtype.itemsize for s in one.stores]
    lanes = ACCESS // max([load.dtype.itemsize for load in one.loads] + stored)
    while lanes > 1 and (axis.size % lanes or axis.size < WARP * lanes):
        lanes //= 2
    if lanes > 1 and not chooser.apply(OptKind.LANES, name, lanes):
        lanes = 1
    each = -(-axis.size // (WARP * lanes))
    done = chooser.apply(OptKind.THREAD, name, WARP)
    return done and (each == 1 or chooser.apply(OptKind.UNROLL, name, each))
