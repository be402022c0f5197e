"""Rules of thumb for contractions in C that are dot products: vectors lie along the fold.

Where both factors lie side by side along the fold, and rows are few, to pack them would cost about
as much as to multiply them. Then vectors of both are loaded as they lie, a few rows of each at a
time, and the lanes of a sum are added up at its end. So it is with the gradients of a
convolution's weights where images or channels are few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod

from tinyml.codegen.choose.chooser import Candidate, Chooser, Contraction
from tinyml.codegen.choose.estimate import cycles_of_dots
from tinyml.codegen.expr import Fold, Load
from tinyml.codegen.optimize.opts import OptKind
from tinyml.codegen.optimize.pair_steps import is_of_halves
from tinyml.index import Axis, linear

SHARE = 4  # of the cache, for what a step of the fold reads


def dots(chooser: Chooser, found: Contraction) -> Candidate | None:
    """Lanes along the fold; None if it is not a contraction for that."""
    lanes, along = chooser.lanes, found.fold.axes[-1]
    if along.size % lanes:
        return None
    sides = [(found.kept, found.kept_load), (found.streamed, found.streamed_load)]
    plain = [
        (len(load.valid), -axis.size, axis.name, axis, load)
        for own, load in sides
        if load is not None and _in_a_vector(load, along, lanes)
        for axis in [max(own, key=lambda a: (a.size, a.name))]
    ]
    if len(plain) < 2:
        return None
    # masks are computed for each vector that is loaded: better for the fewer of them
    (*_, more, _), (*_, less, _) = sorted(plain, key=lambda side: side[:3])
    loads = [side[-1] for side in plain]
    ways = [(_cycles(chooser, found.fold, c), c) for c in _counts(chooser, more, less)]
    cycles = ways[0][0]  # beside packed panels: what more sums win there is less than estimated
    counts = min(ways, key=lambda way: way[0])[1]
    return Candidate(cycles, partial(_apply, chooser, found.fold, counts, loads))


def _in_a_vector(load: Load, along: Axis, lanes: int) -> bool:
    """Whether a vector in memory has what lanes along an axis read, several of them the same."""
    if (stride := load.position.stride(along)) is not None:
        return stride == 1
    lane = Axis("lane", lanes)
    steps = linear(Axis("steps", along.size // lanes)) * lanes + linear(lane)
    vector = load.position.substitute({along: steps})
    first, *others = vector.at_each([{lane: linear(n)} for n in range(lanes)])
    apart = [(e - first).constant for e in others if e.terms == first.terms]
    return len(apart) == lanes - 1 and 0 < apart[-1] < lanes and apart == sorted(apart)


def _counts(chooser: Chooser, more: Axis, less: Axis) -> list[dict[Axis, int]]:
    """How many of both may take part at a time: sums and what they take have registers."""
    most = chooser.target.vector_registers
    ways = [(a, b) for a in (4, 2, 1) for b in (2, 3, 4, 5, 1) if a * b + min(a, b) < most]
    return [{more: a, less: b} for a, b in ways if more.size % a == 0 and less.size % b == 0]


def _apply(chooser: Chooser, fold: Fold, counts: Mapping[Axis, int], loads: Sequence[Load]) -> None:
    """`counts` are those of the axes of which several elements take part at a time."""
    outer, along, inside = fold.axes[0], fold.axes[-1], {*fold.axes, *counts}
    if _paired(chooser, fold):
        chooser.apply(OptKind.PAIR, along)
    step = _step(chooser, outer, loads, inside)
    pieces = prod(a.size for a in chooser.one.rows if a not in inside)
    chooser.apply(OptKind.LANES, along, chooser.lanes)
    for axis, count in counts.items():
        chooser.apply(OptKind.UNROLL, axis, count)
    more, less = (axis.name for axis in counts)
    many = pieces >= 2 * chooser.target.cores
    loops = less, *([more] if many else [])
    chooser.bind_grid(but=(f"{more}u", f"{less}u", *loops))
    if outer is not along and step < outer.size:
        chooser.apply(OptKind.BLOCK, outer.name, step)


def _paired(chooser: Chooser, fold: Fold) -> bool:
    """Whether lanes take pairs: two steps of the fold at once."""
    along = fold.axes[-1]
    even = along.size % (2 * chooser.lanes) == 0
    return chooser.target.pairs and even and is_of_halves(fold, along)


def _cycles(chooser: Chooser, fold: Fold, counts: Mapping[Axis, int]) -> float:
    others = prod(a.size for a in chooser.one.rows if a not in counts)
    depth = prod(a.size for a in fold.axes) // (1 + _paired(chooser, fold))
    tiles = others * prod(axis.size / count for axis, count in counts.items())
    itemsize = chooser.target.vector_bytes // chooser.lanes
    return cycles_of_dots(chooser.target, tiles, depth, itemsize, [*counts.values()])


def _step(chooser: Chooser, outer: Axis, loads: Sequence[Load], inside: set[Axis]) -> int:
    """As many elements of the fold as what is read for them fits its share of the cache."""
    inner = inside - {outer}
    sizes = [prod(a.size for a in load.free & inner) * load.dtype.itemsize for load in loads]
    most = max(chooser.target.cache // SHARE // sum(sizes), 1)
    return max(n for n in range(1, min(most, outer.size) + 1) if outer.size % n == 0)
