"""Opts: decisions about a kernel, as values. Each is applied by a pure function on LoopNests.

    COLLAPSE  two neighbouring axes become one; with an amount, even if conditions (1), stores (2)
              or loads (3) then divide it again
    SPLIT     an axis becomes an outer one and an inner one of a given size
    PEEL      what remains of a row axis after whole steps of a given size gets a nest of its own
    CUT       so many steps of a row axis stay, and the others get a nest of their own
    PHASE     a row axis is walked by its remainders, each in a nest of its own
    ALIGN     a row's or a fold's axis begins where a vector of so many elements does in memory,
              which its row begins inside of; the surplus is masked
    PAD       an axis grows to whole steps of a given size; the surplus is masked
    GRID      an axis is walked by blocks (CUDA) or pieces of work (CPU); a fold's axis (CUDA): each
              block has a part of the fold, and the last one to come brings the parts together
    PERSIST   blocks walk the grid that an axis belongs to in so many turns, tile after tile (CUDA)
    THREAD    the inner part of an axis is walked by the threads of a block
    LANES     the inner part of an axis is the lanes of a vector
    UNROLL    the inner part of an axis is written out, in registers
    ORDER     a row axis moves to the front, or a fold's axis to the front of its folds
    PAIR      a fold over an axis multiplies two steps at once, pairs of bfloat16 (AVX-512 BF16)
    FRAGMENT  a fold over an axis is made of matrix products by warps, so many steps in each: 16
              for halves; 8 for floats, which then lose 13 bits
    WARPGROUP the same by four warps together, which read tiles in shared memory: 64 rows by so many
              columns, 16 steps in each (sm_90a)
    BLOCK     a fold is made in steps of a given size; sums wait in a tile between them
    STAGE     what a slot's load reads at each step of an axis is copied to a tile first
    PIPELINE  tiles are filled ahead of an axis, so many of them at a time: while one is read, the
              next ones are on their way
    BULK      the same, for tiles of warpgroups: by a warp more, which has the card copy whole boxes
    DEFER     products of warpgroups whose factors are made of others at each step of an axis are
              made beside the first ones of the next step
    ONLINE    folds that read each other at each step of an axis are made in steps of a given size,
              all of them at once: sums are scaled when what they follow changes. Without a size:
              folds over the axis, whose sums are in registers
    KEEP      what folds read of other folds at each step of an axis is kept in a tile
    FILL      the first fold over an axis that reads a tile fills it, in its own loop
    AHEAD     while a step of an axis is computed, memory is asked for what the next one reads, or
              the one so many steps further on; while one of a fold is folded, for what is made
              with its result; while one of a tile is filled, for what a few steps later fill it
    STREAM    vectors along lanes are stored past the caches

A list of Opts can be printed, cached, searched and written by hand; it never changes results
beyond the rounding of sums in another order.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from tinyml.codegen.expr import Fold, nodes
from tinyml.codegen.linear import TX
from tinyml.codegen.matrices import WARP
from tinyml.codegen.nest import Kind, LoopNest, Nest, Tile
from tinyml.codegen.optimize.align import align
from tinyml.codegen.optimize.boxes import bulk
from tinyml.codegen.optimize.change import (
    OptError,
    bind,
    collapse,
    cut,
    find,
    first,
    is_row,
    is_shared_out,
    pad,
    peel,
    split,
)
from tinyml.codegen.optimize.filled import by_fold, filled
from tinyml.codegen.optimize.fragments import fragment, products_of, warpgroup
from tinyml.codegen.optimize.keep import keep
from tinyml.codegen.optimize.online import at_once, online, running_along
from tinyml.codegen.optimize.pair_steps import pair
from tinyml.codegen.optimize.phase import phase
from tinyml.codegen.optimize.stages import defer, pipeline
from tinyml.codegen.optimize.tiles import block, stage
from tinyml.codegen.optimize.turns import persist
from tinyml.codegen.wide_stores import stream
from tinyml.frozen import Enum, dataclass, replace
from tinyml.index import Axis

__all__ = ["Opt", "OptError", "OptKind", "apply", "find", "optimize", "parse"]


class OptKind(Enum):
    COLLAPSE = "collapse"
    SPLIT = "split"
    PEEL = "peel"
    CUT = "cut"
    PHASE = "phase"
    ALIGN = "align"
    PAD = "pad"
    GRID = "grid"
    PERSIST = "persist"
    THREAD = "thread"
    LANES = "lanes"
    UNROLL = "unroll"
    ORDER = "order"
    PAIR = "pair"
    FRAGMENT = "fragment"
    WARPGROUP = "warpgroup"
    BLOCK = "block"
    STAGE = "stage"
    PIPELINE = "pipeline"
    BULK = "bulk"
    DEFER = "defer"
    ONLINE = "online"
    KEEP = "keep"
    FILL = "fill"
    AHEAD = "ahead"
    STREAM = "stream"


@dataclass(frozen=True)
class Opt:
    """One decision. `axis` is a name; `amount` the size of the inner part; `slot` for STAGE,
    with an amount if it is read in several ways: which of them, from 1 on; for WARPGROUP, how many
    columns of what a factor is made of are made at once, if not as many as registers hold.
    """

    kind: OptKind
    axis: str
    amount: int = 0
    slot: int = 0

    def __str__(self) -> str:
        amount = f" {self.amount}" if self.amount else ""
        slot = f" slot{self.slot}" if self.kind is OptKind.STAGE else ""
        slot = f" within{self.slot}" if self.kind is OptKind.WARPGROUP and self.slot else slot
        return f"{self.kind.value} {self.axis}{amount}{slot}"


_OF_ROWS = {OptKind.PEEL, OptKind.CUT, OptKind.PHASE}
_TILED = {
    *(OptKind.BLOCK, OptKind.STAGE, OptKind.PIPELINE, OptKind.BULK),
    *(OptKind.DEFER, OptKind.KEEP, OptKind.FILL, OptKind.ONLINE),
}
_AFTER_TILES = {
    *(OptKind.PERSIST, OptKind.STAGE, OptKind.PIPELINE, OptKind.BULK),
    *(OptKind.KEEP, OptKind.FILL, OptKind.ONLINE, OptKind.AHEAD, OptKind.STREAM, OptKind.DEFER),
}
_APART = {OptKind.GRID, OptKind.THREAD}  # whose steps come in any order
_DIVIDING = {OptKind.SPLIT, OptKind.UNROLL, OptKind.LANES, OptKind.THREAD}
_TEXT = re.compile(r"(\w+) (\w+)(?: (\d+))?(?: (?:slot|within)(\d+))?")


def parse(text: str) -> Opt:
    """The Opt whose text this is; OptError if there is none."""
    found = _TEXT.fullmatch(text)
    kinds = {kind.value: kind for kind in OptKind}
    if found is not None and found[1] in kinds:
        opt = Opt(kinds[found[1]], found[2], int(found[3] or 0), int(found[4] or 0))
        if str(opt) == text:
            return opt
    raise OptError(
        f"{text!r} is no Opt; one is written as in 'lanes i0 8' or 'stage r0 slot1', and there are "
        + ", ".join(kinds)
    )


def optimize(nest: LoopNest, opts: Sequence[Opt]) -> LoopNest:
    """The nest with all opts applied, in order."""
    return functools.reduce(apply, opts, nest)


def apply(nest: LoopNest, opt: Opt) -> LoopNest:
    """The nest with one decision made; OptError if it does not fit."""
    made = _applied(nest, opt)
    for one in made.nests if opt.kind in (OptKind.GRID, OptKind.SPLIT) else ():
        if made.parts(one):
            apart = all(made.kind(a) is not Kind.LOOP for a in one.rows)
            once = apart and (_once(made, one) or at_once(made, one))
            _require(once, opt, "blocks that share a fold make it once")
    return made


def _once(nest: LoopNest, one: Nest) -> bool:
    """Whether folds that blocks share are made at once, and no others of what they make."""
    parts = {*nest.parts(one)}
    shared = [fold for fold in one.folds if not parts.isdisjoint(fold.axes)]
    read = {e for fold in one.folds for e in nodes(fold.body) if isinstance(e, Fold)}
    kinds = {(fold.axes, fold.op, fold.dtype) for fold in shared}
    alike = len(kinds) == 1 and read.isdisjoint(shared)
    return alike and not any(walk.axes for walk in one.walks)


def _applied(nest: LoopNest, opt: Opt) -> LoopNest:
    axis = find(nest, opt.axis)
    _check_tiles(nest, axis, opt)
    alone = opt.kind not in _APART or not any(axis in one.ordered for one in nest.nests)
    _require(alone, opt, "rows that add to the same places come one after the other")
    _require(opt.kind not in _OF_ROWS or is_row(nest, axis), opt, "only row axes can be")
    match opt.kind:
        case OptKind.COLLAPSE:
            return collapse(nest, axis, opt.amount)
        case OptKind.GRID:
            _require(_is_walked(nest, axis), opt, "only rows and folds are shared out")
            rest = axis.more or any(s.inner is axis for s in nest.splits)
            _require(not rest, opt, "a rest is walked after it")
            return bind(nest, axis, Kind.GRID)
        case OptKind.PERSIST:
            return persist(nest, axis, opt.amount)
        case OptKind.ORDER:
            _require(_is_walked(nest, axis), opt, "only rows and folds come in an order")
            _require(nest.kind(axis) is not Kind.THREAD, opt, "threads are numbered already")
            return first(nest, axis)
        case OptKind.PAIR | OptKind.FRAGMENT | OptKind.WARPGROUP:
            return _multiplied(nest, axis, opt)
        case OptKind.AHEAD:
            walked = nest.kind(axis) in (Kind.GRID, Kind.LOOP)
            _require(walked, opt, "no thread walks its rows one after the other")
            return replace(nest, ahead=(*nest.ahead, (axis, max(opt.amount, 1))))
        case OptKind.STREAM:
            _require(nest.kind(axis) is Kind.LANE, opt, "only vectors go past the caches")
            return stream(nest, axis)
        case OptKind.PEEL | OptKind.CUT:
            most = axis.size - (opt.kind is OptKind.CUT)
            _require(0 < opt.amount <= most, opt, f"{axis.name} has {axis.size} steps")
            return (peel if opt.kind is OptKind.PEEL else cut)(nest, axis, opt.amount)
        case OptKind.PHASE:
            _require(opt.amount > 1, opt, "there is one phase")
            return phase(nest, axis, opt.amount)
        case OptKind.PAD | OptKind.ALIGN:
            _require(opt.amount > 0 and not axis.more, opt, "a rest is walked after it")
            return (pad if opt.kind is OptKind.PAD else align)(nest, axis, opt.amount)
    return (_tiled if opt.kind in _TILED else _divided)(nest, axis, opt)


def _multiplied(nest: LoopNest, axis: Axis, opt: Opt) -> LoopNest:
    """Products by an instruction that makes several."""
    if opt.kind is OptKind.PAIR:
        return pair(nest, axis)
    if opt.kind is OptKind.FRAGMENT:
        return fragment(nest, axis, opt.amount)
    return warpgroup(nest, axis, opt.amount, opt.slot)


def _is_walked(nest: LoopNest, axis: Axis) -> bool:
    """Whether a row or a fold walks it."""
    return is_row(nest, axis) or any(axis in one.folded for one in nest.nests)


def _tiled(nest: LoopNest, axis: Axis, opt: Opt) -> LoopNest:
    """Values that wait in tiles at each step of the axis."""
    match opt.kind:
        case OptKind.STAGE:
            return stage(nest, axis, opt.slot, opt.amount)
        case OptKind.PIPELINE | OptKind.BULK:
            _require(opt.amount > 1, opt, "one is there already")
            return (bulk if opt.kind is OptKind.BULK else pipeline)(nest, axis, opt.amount)
        case OptKind.DEFER:
            return defer(nest, axis)
        case OptKind.KEEP:
            return keep(nest, axis, opt.amount)
        case OptKind.FILL:
            return filled(nest, axis)
        case OptKind.ONLINE:
            return online(nest, axis, opt.amount) if opt.amount else running_along(nest, axis)
    _require(0 < opt.amount <= axis.size, opt, f"{axis.name} has {axis.size} steps")
    return block(nest, axis, opt.amount)


def _check_tiles(nest: LoopNest, axis: Axis, opt: Opt) -> None:
    """Tiles stay what they are: only axes that they walk themselves, or do not know, change."""
    tiles = [tile for one in nest.nests for tile in one.tiles]
    if not tiles:
        return
    filled = any(by_fold(one, tile) for one in nest.nests for tile in one.tiles)
    apart = not filled or opt.kind not in (OptKind.ONLINE, OptKind.THREAD)
    _require(apart, opt, "a fold fills a tile for those after it")
    if opt.kind in _AFTER_TILES:
        return
    if opt.kind is OptKind.COLLAPSE and not is_row(nest, axis):
        return
    used = [one for one in nest.nests if one.tiles and axis in one.axes]
    outside = {a for one in used for tile in one.tiles for a in _known_before(tile)}
    free = opt.kind in _DIVIDING and axis not in outside
    even = opt.amount > 0 and axis.size % opt.amount == 0
    by_loops = opt.kind in (OptKind.UNROLL, OptKind.LANES) and nest.kind(axis) is Kind.LOOP
    _require(not used or (free and (even or by_loops)), opt, "tiles are staged last")


def _known_before(tile: Tile) -> set[Axis]:
    """The axes that a tile does not walk itself: their steps are known when it is filled."""
    known = {tile.after, *(tile.value.free - {*tile.axes})}
    return known if tile.over is None else {*known, tile.over}


def _divided(nest: LoopNest, axis: Axis, opt: Opt) -> LoopNest:
    """The axis in steps whose inner part somebody else walks."""
    enough = opt.amount <= axis.size or opt.kind is OptKind.THREAD
    told = f"say in how many steps, as in '{opt} 8'" if not opt.amount else ""
    _require(opt.amount > 1 and enough, opt, told or f"{axis.name} has {axis.size} steps")
    _require(axis.name != TX, opt, "all threads along it fold at once")
    products = products_of(nest)
    held = all(axis not in product.lane for product in products)
    _require(held, opt, "lanes of a warp hold what they hold")
    if opt.kind is OptKind.THREAD:
        whole = not products or is_row(nest, axis)
        _require(whole, opt, "matrix products are made by whole warps")
        _require(_apart(nest, axis), opt, "a fold over tx would depend on tx")
        row = is_row(nest, axis) or is_shared_out(nest, axis)
        name = f"{axis.name}t" if row else TX
        made = split(nest, axis, Axis(name, opt.amount), Kind.THREAD)
        threads = {a.size for one in made.nests for a in one.axes if a.name == TX}
        _require(len(threads) < 2, opt, "as many threads must walk all of every row")
        _require(_halved(made), opt, "threads that share a fold are whole warps, or 2, 4, 8, 16")
        return made
    letter, kind = {
        OptKind.LANES: ("v", Kind.LANE),
        OptKind.UNROLL: ("u", Kind.UNROLL),
        OptKind.SPLIT: ("s", Kind.LOOP),
    }[opt.kind]
    masked = opt.kind is OptKind.SPLIT
    made = split(nest, axis, Axis(axis.name + letter, opt.amount), kind, masked)
    changed = [new for new, old in zip(made.nests, nest.nests, strict=True) if new is not old]
    apart = kind is not Kind.LANE or _one_lane(made, changed)
    _require(apart, opt, "values would have lanes along two axes")
    _require(_tiles_along(made, changed), opt, "a tile would be filled with jumps")
    return made


def _halved(nest: LoopNest) -> bool:
    """Whether those along tx who fold together are whole warps, or may be halved down to one."""
    folds = any(a.name == TX for one in nest.nests for a in one.folded)
    most = max((a.size for one in nest.nests for a in one.axes if a.name == TX), default=1)
    return not folds or most % WARP == 0 or WARP % most == 0


def _one_lane(nest: LoopNest, nests: Sequence[Nest]) -> bool:
    """Whether no value depends on two axes of lanes, and no fold of what is the same walks two."""
    lanes = nest.lanes
    nests = [one for one in nests if len(lanes.intersection(one.axes)) > 1]
    values = [e.free for one in nests for e in one.exprs]
    values += [fold.free.union(fold.axes) for one in nests for fold in one.folds]
    places = [s.position.free | s.value.free for one in nests for s in one.stores]
    return all(len(free & lanes) < 2 for free in (*values, *places))


def _tiles_along(nest: LoopNest, nests: Sequence[Nest]) -> bool:
    """Whether every tile that is filled a vector at a time lies along the vector."""
    tiles = [tile for one in nests for tile in one.tiles]
    return all(
        tile.index.stride(a) == 1 for tile in tiles for a in tile.axes if nest.kind(a) is Kind.LANE
    )


def _apart(nest: LoopNest, axis: Axis) -> bool:
    """Whether tx stays either an axis that a fold walks or one that it depends on, never both."""
    for one in nest.nests:
        inside = {a for group in one.groups[1:] for a in group}
        for fold in one.folds:
            over = any(a.name == TX or a is axis for a in fold.axes)
            under = any(a.name == TX or a is axis for a in fold.free & inside)
            if over and under:
                return False
    return True


def _require(holds: bool, opt: Opt, why: str) -> None:
    if not holds:
        raise OptError(f"cannot {opt}: {why}")
