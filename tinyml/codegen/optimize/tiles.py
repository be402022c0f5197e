"""Tiles: what a block reads again is copied close by, and sums wait between steps of a fold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import prod

from tinyml.codegen.ahead import LINE
from tinyml.codegen.crop import known_outside
from tinyml.codegen.expr import Alu, Expr, Fold, Load, Select, Stored, nodes, rewrite, substitute
from tinyml.codegen.long_fold import groups
from tinyml.codegen.matrices import Fragment, Matrix, Piece, Product, by_warpgroup
from tinyml.codegen.nest import Kind, LoopNest, Nest, Tile, rewritten
from tinyml.codegen.optimize.change import Change, OptError, bind, check_inner
from tinyml.codegen.optimize.overlaps import Held, position_of, run, windows
from tinyml.codegen.optimize.panels import across_panels, in_panels, row_of
from tinyml.codegen.optimize.same_tile import same_tile
from tinyml.codegen.pairs import Pair
from tinyml.codegen.two_rows import is_in_rows
from tinyml.codegen.wide_stores import asked_once
from tinyml.frozen import replace
from tinyml.graph import toposort
from tinyml.index import ZERO, Axis, Linear, linear, numbered, row_major

PIECE = 16  # bytes that are copied at once
# what lies side by side in a tile is what lanes or threads read side by side
LEAST_LANES = 4  # of vectors that numbers are copied in, if it takes no whole ones
ORDER = {Kind.LOOP: 0, Kind.UNROLL: 1, Kind.THREAD: 2, Kind.LANE: 3}


def block(nest: LoopNest, axis: Axis, amount: int) -> LoopNest:
    """Folds over `axis` in steps of `amount`: tiles hold the sums for all rows of a block.

    Where there are many steps, further tiles hold the sums of groups of them. If the only step is
    the whole axis, a tile holds what is written out or along lanes, at a step of the last loop.
    """
    if axis.size % amount or axis.more:
        raise OptError(f"cannot block {axis.name}: {amount} does not divide it; pad it first")
    inner = Axis(f"{axis.name}b", amount)
    check_inner(nest, axis, inner)
    blocked: list[Nest] = []
    kinds = dict(nest.kinds)
    for one in nest.nests:
        found = [fold for fold in one.folds if axis in fold.axes]
        if not found:
            blocked.append(one)
            continue
        sizes = groups(axis.size // amount, found) if amount < axis.size else []
        steps = [Axis(f"{axis.name}{'o' * n}", size) for n, size in enumerate(sizes)][::-1]
        index = numbered([*steps, inner])
        change = Change({axis: index}, {axis: (*steps, inner)}, {})
        number = sum(len(other.tiles) for other in (*nest.nests, *blocked))
        made, own = _accumulated(nest, change.nest(one), steps, inner, number)
        blocked.append(made)
        kinds.update((b, nest.kind(a)) for a, b in own if nest.kind(a) is not Kind.LOOP)
        # what is made of the sums needs no registers for all of them at once
        kinds.update((a, Kind.LOOP) for a, _ in own if nest.kind(a) is Kind.UNROLL)
    return replace(nest, nests=tuple(blocked), kinds=tuple(kinds.items()))


def _accumulated(
    nest: LoopNest, one: Nest, steps: Sequence[Axis], within: Axis, number: int
) -> tuple[Nest, list[tuple[Axis, Axis]]]:
    """All folds over an axis in steps made into tiles, whose axes stand for axes of `one`."""
    grid = nest.grid(one)
    rows = [a for a in one.rows if a not in grid]
    whole = all(a not in {s.outer, s.inner} for s in nest.splits for a in rows)
    whole = whole and all(nest.kind(a) is not Kind.THREAD for a in one.axes)
    alike = all({*steps, within} & {*f.axes} and f.free <= {*one.rows} for f in one.folds)
    apart = not any(fold.body.has_fold for fold in one.folds)
    shared = frozenset(rows).intersection(*(f.free for f in one.folds)) if not steps else ()
    loops = [a for a in rows if a in shared and nest.kind(a) is Kind.LOOP]
    rows = [a for a in rows if a not in loops]
    outside = [*grid, *loops]
    if not (outside and whole and alike and apart) or one.tiles:
        raise OptError(f"cannot block {within.name}: its fold is not one of whole tiles in a block")
    made, found = replace(one, rows=(*outside, *rows)), []
    pairs: list[tuple[Axis, Axis]] = []
    for n, fold in enumerate(one.folds):
        inner = sorted((a for a in rows if a in fold.free), key=lambda a: ORDER[nest.kind(a)])
        if not inner:
            raise OptError(f"cannot block {within.name}: a fold is the same for a whole block")
        tiles, stored, own = _sums(fold, inner, [outside[-1], *steps], f"sums{number + n}")
        made = reading(made, fold, stored)
        found.append(tiles)
        pairs += own
    ordered = [tile for level in zip(*found, strict=True) for tile in level]
    return replace(made, tiles=tuple(ordered)), pairs


def _sums(
    fold: Fold, inner: Sequence[Axis], steps: Sequence[Axis], name: str
) -> tuple[list[Tile], Expr, list[tuple[Axis, Axis]]]:
    """Tiles for what `fold` makes in all steps, and in groups of them, and what reads the first.

    The first of the steps begins them; where there are no others, they are not added to.
    """
    index = numbered(inner)
    value: Expr = Fold(fold.op, fold.body, tuple(a for a in fold.axes if a not in steps))
    tiles: list[Tile] = []
    pairs: list[tuple[Axis, Axis]] = []
    around: list[tuple[Axis | None, Axis]] = [*pairwise(reversed(steps))] or [(None, steps[0])]
    for level, (over, after) in enumerate(around):
        label = name + "o" * level
        own = {a: Axis(f"{a.name}_{label}", a.size) for a in inner}
        image = {a: linear(b) for a, b in own.items()}
        place, part = index.substitute(image), substitute(value, image)
        tiles.insert(0, Tile(label, tuple(own.values()), place, part, after, over, fold.op))
        value = Stored(label, fold.dtype, index, after)
        pairs += own.items()
    return tiles, value, pairs


def reading(one: Nest, old: Expr, new: Expr) -> Nest:
    """The nest with one expression replaced wherever it is read."""

    def read(e: Expr) -> Expr | None:
        return new if e is old else None

    tiles = tuple(
        [
            replace(tile, value=rewrite(tile.value, read)) if old in nodes(tile.value) else tile
            for tile in one.tiles
        ]
    )
    return replace(rewritten(one, read), tiles=tiles)


def stage(nest: LoopNest, after: Axis, slot: int, which: int = 0) -> LoopNest:
    """Loads of `slot` inside `after` read a tile that is filled at each step of `after`.

    Where they read it in several ways, `which` says in which of them, from 1 on; behind these
    are the loads alone, without what is made of them.
    """
    if nest.kind(after) not in (Kind.GRID, Kind.LOOP) or within_fold(nest, after):
        raise OptError(f"cannot stage slot{slot}: {after.name} is walked by many at once")
    number = sum(len(one.tiles) for one in nest.nests)
    staged = []
    for one in nest.nests:
        found = ways(one, slot) if after in one.axes else []
        if which and found:
            found = (found + loads_of(one, slot))[which - 1 : which]
        if not found:
            staged.append(one)
            continue
        if len(found) > 1:
            raise OptError(f"cannot stage slot{slot}: it is read {len(found)} ways")
        tile, vector, changed = _tile(nest, one, found[0], after, f"tile{number}")
        if (same := same_tile(one, tile)) is not None:
            staged.append(_tile(nest, one, found[0], after, same)[2])
            continue
        made = with_tile(changed, tile)
        check_filled(nest, made)
        staged.append(made)
        number += 1
        if (lane := vector or _lane_of(nest, tile)) is not None:
            nest = bind(nest, lane, Kind.LANE)
            if is_gathered(tile, lane):
                continue
        for axis in _written_out(nest, tile):
            nest = bind(nest, axis, Kind.UNROLL)
    return replace(nest, nests=tuple(staged))


def with_tile(one: Nest, tile: Tile) -> Nest:
    """The nest with one more tile, filled as soon as those are that it reads."""
    read = {e.name for e in nodes(tile.value) if isinstance(e, Stored)}
    place = max((n for n, other in enumerate(one.tiles, 1) if other.name in read), default=0)
    return replace(one, tiles=(*one.tiles[:place], tile, *one.tiles[place:]))


def within_fold(nest: LoopNest, axis: Axis) -> bool:
    """Whether a fold over `axis` is made at each step of another fold."""
    return any(
        isinstance(e, Fold) and axis in e.axes and e.free & {*fold.axes}
        for one in nest.nests
        if axis in one.folded
        for fold in one.folds
        for e in nodes(fold.body)
    )


def check_filled(nest: LoopNest, one: Nest) -> None:
    """Whether each tile is filled no later than those that read it: the grid comes before loops."""
    order = sorted(one.axes, key=lambda a: nest.kind(a) is not Kind.GRID)
    stored = (store.value for store in one.stores)
    made = [e for e in toposort(stored) if isinstance(e, Fold)]  # not at the step of a tile
    for tile in one.tiles:
        last = tile.after if tile.over is None else tile.over
        for e in nodes(tile.value):
            if isinstance(e, Stored) and order.index(e.after) > order.index(last):
                raise OptError(f"cannot fill {e.name}: {tile.name}, which reads it, comes earlier")
        loops = {a for a in one.rows if a in tile.value.free and nest.kind(a) is Kind.LOOP}
        for fold in made if tile.after not in one.rows else ():
            if not loops <= fold.free and tile.name in names_read([fold.body]):
                raise OptError(f"cannot fill {tile.name}: its rows are not those of who reads it")


def names_read(values: Iterable[Expr]) -> set[str]:
    """The tiles that values are made of."""
    return {e.name for e in toposort(values) if isinstance(e, (Stored, Piece, Fragment, Matrix))}


def ways(one: Nest, slot: int) -> list[Expr]:
    """The largest expressions made of a load of `slot` that walk no axis but those of the load.

    A tile holds these, and not what is loaded: each is computed once, when the tile is filled.
    """
    order = toposort(_computed(one))
    own: dict[Expr, frozenset[Axis]] = {}  # by expression, the axes of the load it is made of
    largest: dict[Expr, None] = {}
    for e in order:
        if isinstance(e, Load) and e.slot == slot:
            own[e] = e.free
        elif isinstance(e, (Alu, Select, Pair)):
            below = [s for s in e.sources if own.get(s) == e.free]
            if not below:
                continue
            own[e] = e.free
            for source in below:
                largest.pop(source, None)
        else:
            continue
        largest[e] = None
    return list(largest)


def loads_of(one: Nest, slot: int) -> list[Expr]:
    """The loads of `slot` that are no mere copies to tiles."""
    return [e for e in toposort(_computed(one)) if isinstance(e, Load) and e.slot == slot]


def _computed(one: Nest) -> list[Expr]:
    """What a nest computes, without what it only copies to tiles."""
    stored = (store.value for store in one.stores)
    return [*stored, *(tile.value for tile in one.tiles if not tile.copies)]


def _written_out(nest: LoopNest, tile: Tile) -> list[Axis]:
    """The axes of a tile that are images of unrolled ones."""
    unrolled = {a.name for a, kind in nest.kinds if kind is Kind.UNROLL}
    return [a for a in tile.axes if a.name.rsplit("_", 1)[0] in unrolled]


def _lane_of(nest: LoopNest, tile: Tile) -> Axis | None:
    """The axis of a tile that can be filled a vector at a time: the image of a lane axis."""
    last = tile.axes[-1]
    lanes = {a.name for a in nest.lanes}
    places = [e.position for e in nodes(tile.value) if isinstance(e, Load)]
    strides = {i.stride(last) for i in places if not is_in_rows(i, last)}
    plain = None not in strides and strides != {0}
    return last if last.name.rsplit("_", 1)[0] in lanes and plain else None


def is_gathered(tile: Tile, lane: Axis) -> bool:
    """Whether vectors of a tile are put together, of elements that lie apart.

    One after the other, then: there are few places for lines that are a power of two apart.
    """
    loads = (e for e in nodes(tile.value) if isinstance(e, Load))
    return any(abs(e.position.factor(lane)) > 2 for e in loads)


def walked_before(nest: LoopNest, one: Nest, after: Axis) -> set[Axis]:
    """The axes whose step is known when `after` begins one."""
    order = [a for a in one.axes if nest.kind(a) is Kind.GRID]
    within = {a for group in one.groups if after in group for a in group}
    apart = {a for fold in one.folds if after not in fold.axes for a in fold.axes} - within
    loops = [a for a in one.axes if nest.kind(a) is Kind.LOOP and a not in apart]
    return {*order, *loops[: loops.index(after) + 1]} if after in loops else {*order, after}


def _tile(
    nest: LoopNest, one: Nest, factor: Expr, after: Axis, name: str
) -> tuple[Tile, Axis | None, Nest]:
    """The tile, what it is filled along in vectors if that is an axis of its own, and the nest."""
    outside = walked_before(nest, one, after)
    folded = {*one.folded} | {e.bound[-1] for e in one.exprs if isinstance(e, Product)}
    inner = factor.free - outside
    if not inner:
        raise OptError(f"cannot stage {factor}: it is the same for all that {after.name} walks")
    if any(not {s.outer, s.inner}.isdisjoint({after, *factor.free}) for s in nest.splits):
        raise OptError(f"cannot stage {factor}: its last step is shorter")
    value, size = factor, factor.dtype.itemsize
    stands: Mapping[Axis, Linear] = {a: linear(a) for a in inner}
    panels, parted = _by_warpgroups(one, factor), None
    if panels or Kind.THREAD in dict(nest.kinds).values():
        run = row_of(factor.dtype) if panels else PIECE // size
        lines, along = _as_in_memory(inner, folded, position_of(factor), run)
        if panels and not (factor.dtype.is_half or folded & {*along}):
            lines, along = along, lines
        parted = across_panels(along, run) if panels else None
        order = [*lines, *along]
        index = in_panels(lines, along, run) if panels else _in_rows(lines, along, size)
    else:
        value, stands, order = _held_once(nest, factor, stands, folded)
        lanes = {a for a in order if nest.kind(a) is Kind.LANE}
        if not lanes and value is factor:
            order, parted = _in_vectors(nest, order, factor)
        index = _in_lines(order, lanes, position_of(value), size)
    own = _own(order, name, parted, panels)
    image = {a: numbered(b) for a, b in own.items()}
    axes = tuple(b for group in own.values() for b in group)
    index_, value = index.substitute(image), substitute(value, image)
    vector = axes[-1] if parted is not None and not panels else None
    value = asked_once(value, vector) if vector is not None else value
    tile = Tile(name, axes, index_, value, after, panels=panels)
    outer = known_outside(factor, inner)
    stored: Expr = Stored(name, factor.dtype, index.substitute(stands), after, outer)
    return tile, vector, reading(one, factor, stored)


def _own(
    order: Iterable[Axis], name: str, parted: tuple[Axis, int] | None, panels: bool
) -> dict[Axis, list[Axis]]:
    """The axes of a tile by those that they stand for; of one that is parted, two."""
    own = {a: [Axis(f"{a.name}_{name}", a.size)] for a in order}
    if parted is not None:
        axis, steps = parted
        whole, within = ("p", "") if panels else ("", "v")
        part = Axis(f"{axis.name}{whole}_{name}", axis.size // steps)
        own[axis] = [part, Axis(f"{axis.name}{within}_{name}", steps)]
    return own


def _in_vectors(
    nest: LoopNest, order: list[Axis], factor: Expr
) -> tuple[list[Axis], tuple[Axis, int] | None]:
    """The axes of a tile of single numbers, and vectors that it can be filled with all the same.

    They lie along the axis along which memory does, which comes last, or before what is written
    out if that is all of it: a row of a register tile takes the numbers of a step side by side.
    """
    loads = [e for e in nodes(factor) if isinstance(e, Load)]
    found = [a for a in order if {e.position.stride(a) for e in loads} in ({1}, {0, 1})]
    most = max((a.size for a, kind in nest.kinds if kind is Kind.LANE), default=1)
    for axis in found[:1]:
        steps = min(axis.size & -axis.size, most)
        if steps >= LEAST_LANES:
            return [*(a for a in order if a is not axis), axis], (axis, steps)
    return order, None


def _held_once(
    nest: LoopNest, factor: Expr, stands: Mapping[Axis, Linear], folded: set[Axis]
) -> tuple[Expr, Mapping[Axis, Linear], list[Axis]]:
    """A factor on the axes of its tile, what they stand for, and their order.

    Of the ways to hold each element once, the one that holds the least.
    """
    lanes = {a for a in stands if nest.kind(a) is Kind.LANE}
    found: list[Held | None] = [windows(factor, stands, lanes)]
    for lane in lanes:
        position = position_of(factor)
        above = [a for a in stands if (position.stride(a) or 0) >= lane.size and a not in lanes]
        longest = min(above, key=lambda a: (position.stride(a) or 0, a.name), default=None)
        found += [run(factor, stands, longest, 0)] if longest is not None else []
        found += [run(factor, stands, lane, lane.size)] if position.stride(lane) == 1 else []
    least = min((f for f in found if f), key=lambda f: f.size)
    value, places = least.value(factor), least.stands
    order = _as_walked(nest, [*places], folded, position_of(value), value is factor)
    # vectors that begin anywhere follow each other
    return value, places, sorted(order, key=lambda a: (a in lanes, places[a] is ZERO))


def _as_walked(
    nest: LoopNest, axes: list[Axis], folded: set[Axis], position: Linear, apart: bool
) -> list[Axis]:
    """The axes of a tile in the order in which loops walk them; as in memory, if not `apart`."""

    def key(axis: Axis) -> tuple[int, bool, int, str]:
        kind, stride = nest.kind(axis), abs(position.factor(axis))
        order = ORDER[kind] if apart else int(kind is Kind.LANE)
        return order, apart and axis in folded, -stride, axis.name

    return sorted(axes, key=key)


def _in_lines(order: list[Axis], lanes: set[Axis], position: Linear, itemsize: int) -> Linear:
    """Rows of a tile; an odd number of cache lines apart, if a part of a line of each is filled
    in turn: lines that are a power of two apart have few places in the closest cache.
    """
    first, *along = order
    length, stride = prod(a.size for a in along), abs(position.factor(first))
    further = any(abs(position.factor(a)) > stride for a in along)
    run = prod(a.size for a in along if a in lanes or abs(position.factor(a)) < stride)
    if further and run * itemsize < LINE and length * itemsize % (2 * LINE) == 0:
        length += LINE // itemsize
    return row_major([linear(first), numbered(along)], [first.size, length])


def by_stride(tile: Tile, together: bool = False) -> list[Axis]:
    """The axes of a tile, the one along which its source lies side by side last.

    Those that are divided come last, as vectors go along them, if it is not filled `together` by
    threads, which go along what lies side by side.
    """
    found = [e for e in nodes(tile.value) if isinstance(e, Load)]
    if not (tile.copies and found):
        return list(tile.axes)
    position = max(found, key=lambda e: len(e.free)).position
    if together:
        return sorted(tile.axes, key=lambda a: -_apart(position, a))
    return sorted(tile.axes, key=lambda a: -abs(position.stride(a) or 0))


def _by_warpgroups(one: Nest, factor: Expr) -> bool:
    return any(by_warpgroup(e) and factor in e.sources for e in one.exprs)


def _as_in_memory(
    inner: Iterable[Axis], folded: set[Axis], position: Linear, run: int
) -> tuple[list[Axis], list[Axis]]:
    """The axes of a tile that lies as its source does: lines, and what rows are, folded or not."""
    stride = {a: _apart(position, a, run) for a in inner}
    order = sorted(stride, key=lambda a: (-stride[a], a.name))
    last = [a for a in order if a not in folded] if folded else _side_by_side(order, stride)
    if not last or min(stride.values()) < min(stride[a] for a in last):
        last = [a for a in order if a in folded]
    lines = [a for a in order if a not in last]
    apart = min((stride[a] for a in lines), default=1 << 60)
    last = [a for a in last if stride[a] <= apart]  # what goes on beyond a line is lines, too
    return [a for a in order if a not in last], last


def _side_by_side(order: Sequence[Axis], stride: Mapping[Axis, int]) -> list[Axis]:
    """The last axes, as far as they lie in memory without gaps."""
    length, found = 1, list[Axis]()
    for axis in reversed(order):
        if stride[axis] != length:
            break
        length *= axis.size
        found.insert(0, axis)
    return found


def _apart(position: Linear, axis: Axis, run: int = 0) -> int:
    """How far neighbours along an axis lie apart: where it is divided, on average.

    But 1, if runs of so many lie side by side, as columns of heads do.
    """
    stride = position.stride(axis)
    if stride is None and run and axis.size % run == 0:
        whole, within = Axis(f"{axis.name}r", axis.size // run), Axis(axis.name, run)
        parted = position.substitute({axis: linear(whole) * run + linear(within)})
        stride = 1 if parted.stride(within) == 1 else None
    if stride is None:
        others = dict.fromkeys(position.free, ZERO)
        first, last = (position.substitute({**others, axis: linear(n)}) for n in (0, axis.size - 1))
        stride = (last.constant - first.constant) // (axis.size - 1)
    return abs(stride)


def _in_rows(lines: list[Axis], along: list[Axis], itemsize: int) -> Linear:
    """Rows an odd number of 16 bytes apart: neighbours in a column are in different banks."""
    length = prod(a.size for a in along)
    if length * itemsize % 32 == 0:
        length += 16 // itemsize
    sizes = [*(a.size for a in lines), length]
    return row_major([*map(linear, lines), numbered(along)], sizes)
