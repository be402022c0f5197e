"""Rules of thumb for contractions in C that are dot products: vectors lie along the fold.

Where both factors lie side by side along the fold, and rows are few, to pack them would cost about
as much as to multiply them. Then vectors of both are loaded as they lie, a few rows of each at a
time, and the lanes of a sum are added up at its end. So it is with the gradients of a
convolution's weights where images or channels are few.
"""

from __future__ import annotations

from math import prod

from tinyml.codegen.choose.c_tilings import plain
from tinyml.codegen.choose.chooser import Chooser, Contraction
from tinyml.codegen.choose.estimate import Factor, Product
from tinyml.codegen.expr import Fold, Load
from tinyml.codegen.optimize.opts import OptKind
from tinyml.codegen.optimize.pair_steps import is_of_halves
from tinyml.frozen import replace
from tinyml.index import Axis

SHARE = 4  # of the cache, for what a step of the fold reads


def dots(chooser: Chooser, number: int, found: Contraction) -> bool:
    """Choose lanes along the fold; False if it is not a contraction for that."""
    lanes, along = chooser.lanes, found.fold.axes[-1]
    sides = [(found.kept, found.kept_load), (found.streamed, found.streamed_load)]
    plain = [
        (len(load.valid), -axis.size, axis.name, axis, load)
        for own, load in sides
        if load is not None and load.position.stride(along) == 1
        for axis in [max(own, key=lambda a: (a.size, a.name))]
    ]
    if len(plain) < 2 or along.size % lanes:
        return False
    # masks are computed for each vector that is loaded: better for the fewer of them
    (*_, more, _), (*_, less, _) = sorted(plain, key=lambda side: side[:3])
    counts = _count(more, 4, 2), _count(less, 2, 3)
    if _packing_pays(chooser, number, found, more, less, counts):
        return False
    outer, inside = found.fold.axes[0], {*found.fold.axes, more, less}
    if _paired(chooser, found.fold):
        chooser.apply(OptKind.PAIR, along)
    step = _step(chooser, outer, [side[-1] for side in plain], inside)
    pieces = prod(a.size for a in chooser.one(number).rows if a not in inside)
    chooser.apply(OptKind.LANES, along, lanes)
    for axis, count in ((more, counts[0]), (less, counts[1])):
        if count > 1:
            chooser.apply(OptKind.UNROLL, axis, count)
    many = pieces >= 2 * chooser.target.cores
    written_out = (f"{more.name}u", f"{less.name}u")
    chooser.bind_grid(number, but=(*written_out, less.name, *([more.name] if many else [])))
    if outer is not along and step < outer.size:
        chooser.apply(OptKind.BLOCK, outer.name, step)
    return True


def _paired(chooser: Chooser, fold: Fold) -> bool:
    """Whether lanes take pairs: two steps of the fold at once."""
    along = fold.axes[-1]
    even = along.size % (2 * chooser.lanes) == 0
    return chooser.target.pairs and even and is_of_halves(fold, along)


def _count(axis: Axis, *counts: int) -> int:
    return next((n for n in counts if axis.size % n == 0), 1)


def _packing_pays(
    chooser: Chooser,
    number: int,
    found: Contraction,
    more: Axis,
    less: Axis,
    counts: tuple[int, int],
) -> bool:
    """Whether it is estimated to take less if vectors of one factor are put together."""
    one, lanes = chooser.one(number), chooser.lanes
    stored = one.walks[0].stores[0].position
    columns, rows = (more, less) if stored.stride(more) == 1 else (less, more)
    product = Product(
        others=prod(a.size for a in one.rows if a not in (more, less)),
        rows=rows.size,
        panels=-(-columns.size // (2 * lanes)),
        depth=prod(a.size for a in found.fold.axes) // (1 + _paired(chooser, found.fold)),
        itemsize=chooser.target.vector_bytes // lanes,
        nbytes=chooser.nbytes,
        scattered=True,
        apart=0,
        columns=Factor(lanes),
        other=Factor(),
        target=replace(chooser.target, cores=1),
    )
    height = min(rows.size, chooser.target.tile_height)
    packed = min(product.cycles(t, product.depth) for t in plain(product, 2, height))
    return packed < product.cycles_of_dots(columns.size, counts)


def _step(chooser: Chooser, outer: Axis, loads: list[Load], inside: set[Axis]) -> int:
    """As many elements of the fold as what is read for them fits its share of the cache."""
    inner = inside - {outer}
    sizes = [prod(a.size for a in load.free & inner) * load.dtype.itemsize for load in loads]
    most = max(chooser.target.cache // SHARE // sum(sizes), 1)
    return max(n for n in range(1, min(most, outer.size) + 1) if outer.size % n == 0)
