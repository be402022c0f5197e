"""A LoopNest: which axes are walked, by whom, and what is stored at each step.

    loopnest ::= LoopNest(nest*)                 independent nests in one launch
    nest     ::= Nest(rows, walk*, tile*)        the rows, and what happens in each
    walk     ::= Walk(axes, store*, after)       more axes, inside a row; or at each step of `after`
    store    ::= Store(slot, position, value, valid, op, streams, some)
    tile     ::= Tile(name, axes, index, value, after, over, op, stages)
                                                 values staged in fast memory, filled anew at
                                                 each step of the axis `after`; those of every
                                                 step of `over` combined by op; `stages` of them
                                                 side by side, of this step and the next ones

Every axis has a kind, which says who walks it:

    GRID    one block of threads (CUDA) or one piece of work for any thread (CPU); a fold over such
            an axis is combined across blocks
    TURN    a block: tile after tile of the grid, see turns.py
    THREAD  the threads of a block; a fold over such an axis is combined across threads
    LOOP    a loop
    UNROLL  written out step by step, in registers
    LANE    the lanes of a vector
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import gcd, prod
from operator import attrgetter
from typing import Any

from tinyml.codegen.expr import Expr, Fold, Load, Stored, describe, nodes, place_text, rewrite
from tinyml.codegen.linear import TX
from tinyml.codegen.matrices import WARP, Product
from tinyml.dtype import DType
from tinyml.errors import VerifyError
from tinyml.frozen import Enum, cached_property, dataclass, replace
from tinyml.graph import toposort
from tinyml.index import Axis, Linear, Range, Valid
from tinyml.lazy import Shape
from tinyml.ops import SIGN, Op


class Kind(Enum):
    """Who walks an axis."""

    GRID = "grid"
    TURN = "turn"
    THREAD = "thread"
    LOOP = "loop"
    UNROLL = "unroll"
    LANE = "lane"


@dataclass(frozen=True)
class Store:
    """slot[position] = value, or op= value; only where `valid`. `streams`: past the caches.

    Of a `row` of so many elements so many are data; what lies behind these may be stored, too.
    `some`: it is one of several side by side, of which number n is stored where index + n is in it.
    """

    slot: int
    dtype: DType
    position: Linear
    value: Expr
    valid: Valid = ()
    op: Op | None = None
    streams: bool = False
    some: Range | None = None
    row: tuple[int, int] | None = None


@dataclass(frozen=True)
class Walk:
    axes: tuple[Axis, ...]
    stores: tuple[Store, ...]
    after: Axis | None = None  # what tiles combine the steps of: these are filled, and then walked


@dataclass(frozen=True)
class Tile:
    """`value` for every step of `axes`, kept at `index` in shared memory or cache.

    It is filled at every step of the axis `after`, which the value may depend on, and on tiles
    before it. With `over` it holds the values for all steps of that axis, combined by `op`: a
    fold made in steps. A value that reads the tile itself takes the place of what it reads.
    """

    name: str
    axes: tuple[Axis, ...]
    index: Linear
    value: Expr
    after: Axis
    over: Axis | None = None
    op: Op = Op.ADD
    stages: int = 1
    panels: bool = False  # see panels.py
    bulk: bool = False  # filled by boxes.py's boxes
    late: bool = False  # read at the next step, too: by products that are deferred

    @property
    def size(self) -> int:
        return self.index.high + 1

    @property
    def nbytes(self) -> int:
        return self.size * self.value.dtype.itemsize

    @property
    def ahead(self) -> int:
        """How many steps before it is read it is filled."""
        return self.stages - 1 - self.late

    @cached_property
    def copies(self) -> bool:
        """Whether it holds what is read of slots, and nothing that was folded before."""
        made = (e for e in nodes(self.value) if isinstance(e, (Fold, Stored)))
        return self.over is None and next(made, None) is None


@dataclass(frozen=True)
class Split:
    """`outer` walks whole steps of `inner`; `rest` elements remain after the last whole step.

    They are walked when the loop over `outer` is done, by a shorter `inner`, with the axes in
    `at` where they say: `outer` behind its last step, and so are the parts it was split into.
    """

    outer: Axis
    inner: Axis
    rest: int
    at: tuple[tuple[Axis, int], ...]


@dataclass(frozen=True)
class Nest:
    rows: tuple[Axis, ...]
    walks: Sequence[Walk]
    tiles: tuple[Tile, ...] = ()

    def knowing(self, **known: Any) -> Nest:
        """This new nest, of which some of what is asked below is known beforehand."""
        self.__dict__.update(known)
        return self

    def with_rows(self, rows: tuple[Axis, ...]) -> Nest:
        """The nest with its rows in another order."""
        axes = tuple(dict.fromkeys([*rows, *self.axes]))
        made = replace(self, rows=rows).knowing(axes=axes, groups=(rows, *self.groups[1:]))
        return made.knowing(folded=self.folded, adds=self.adds, asks=self.asks)

    # asked for by every choice of an Opt, so worked out once

    @cached_property
    def exprs(self) -> tuple[Expr, ...]:
        """Every expression that is evaluated, operands first."""
        found = roots(self)
        each = map(nodes, found)
        return nodes(found[0]) if len(found) == 1 else tuple(dict.fromkeys(chain(*each)))

    @cached_property
    def folds(self) -> tuple[Fold, ...]:
        """Every fold, inner ones first."""
        found = toposort(roots(self), (), attrgetter("folding"))
        return tuple([e for e in found if type(e) is Fold])

    @cached_property
    def folded(self) -> tuple[Axis, ...]:
        """Every axis that a fold walks."""
        return tuple(dict.fromkeys([a for fold in self.folds for a in fold.axes]))

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """Every load."""
        return tuple([e for e in self.exprs if type(e) is Load])

    @cached_property
    def stores(self) -> tuple[Store, ...]:
        """Every store."""
        return tuple([store for walk in self.walks for store in walk.stores])

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """Every axis that is walked: rows, then those of walks, of folds, and of tiles."""
        walked = [a for walk in self.walks for a in walk.axes]
        steps = [tile.over for tile in self.tiles if tile.over is not None]
        filled = [a for tile in self.tiles for a in tile.axes]
        return tuple(dict.fromkeys([*self.rows, *walked, *steps, *self.folded, *filled]))

    @property
    def alike(self) -> bool:
        """Whether all folds are made in the same way and at once: blocks may share them."""
        kinds = {(fold.axes, fold.op, fold.dtype) for fold in self.folds}
        return len(kinds) == 1 and not any(fold.body.has_fold for fold in self.folds)

    @cached_property
    def adds(self) -> bool:
        """Whether something is combined with what is in memory already."""
        return any(store.op is not None for store in self.stores)

    @cached_property
    def asks(self) -> bool:
        """Whether something is stored under conditions."""
        return any(store.valid for store in self.stores)

    @cached_property
    def ordered(self) -> frozenset[Axis]:
        """Rows each of which adds to the places that the one before added to: one thread's."""
        stores = [s for s in self.stores if s.op and not s.position.looked] if self.adds else []
        return frozenset(a for a in self.rows for s in stores if a not in s.position.free)

    @cached_property
    def groups(self) -> tuple[tuple[Axis, ...], ...]:
        """Axes that are walked one inside the other: of the rows, of each walk, of each fold."""
        return (self.rows, *[w.axes for w in self.walks], *[f.axes for f in self.folds])


@dataclass(frozen=True)
class LoopNest:
    """A kernel as loops. `kinds` lists the axes that are not plain loops.

    While a step of the axes in `ahead` is computed, memory is asked for what so many steps further
    on read, and while they are folded, for what is behind the fold; of a tile's axes, a few steps.
    Folds over the axes named in `along` are made in one walk, even if they read each other.
    """

    name: str
    nests: tuple[Nest, ...]
    slots: tuple[tuple[Shape, DType], ...]
    kinds: tuple[tuple[Axis, Kind], ...] = ()
    splits: tuple[Split, ...] = ()
    ahead: tuple[tuple[Axis, int], ...] = ()
    along: tuple[str, ...] = ()

    @cached_property
    def _kind_of(self) -> dict[Axis, Kind]:
        return dict(self.kinds)

    def axis(self, name: str) -> Axis | None:
        """The axis of that name that is walked, if there is one."""
        return next((a for one in self.nests for a in one.axes if a.name == name), None)

    def kind(self, axis: Axis) -> Kind:
        return self._kind_of.get(axis, Kind.LOOP)

    @cached_property
    def lanes(self) -> frozenset[Axis]:
        """The axes of vectors."""
        return frozenset([a for a, kind in self.kinds if kind is Kind.LANE])

    def parts(self, one: Nest) -> tuple[Axis, ...]:
        """Axes of folds whose steps are shared out among blocks."""
        return tuple([a for a in one.folded if self.kind(a) is Kind.GRID])

    def grid(self, one: Nest) -> tuple[Axis, ...]:
        """Axes of rows that number blocks."""
        return tuple(a for a in one.rows if self.kind(a) is Kind.GRID)

    def turn(self, one: Nest) -> Axis | None:
        """What counts the tiles that a block walks, if it walks several."""
        return next((a for a in one.rows if self.kind(a) is Kind.TURN), None)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def with_stores(one: Nest, change: Callable[[Store], Store]) -> Nest:
    """The nest with every store changed."""
    walks = tuple(replace(w, stores=tuple(map(change, w.stores))) for w in one.walks)
    return replace(one, walks=walks)


def rewritten(one: Nest, rule: Callable[[Expr], Expr | None]) -> Nest:
    """The nest with a rule applied to all that it stores, but not to what tiles hold."""

    def changed(store: Store) -> Store:
        value = rewrite(store.value, rule)
        return store if value is store.value else replace(store, value=value)

    return with_stores(one, changed)


def roots(nest: Nest) -> list[Expr]:
    """The expressions that a nest evaluates."""
    return [*(store.value for store in nest.stores), *(tile.value for tile in nest.tiles)]


def _lines(ln: LoopNest) -> Iterator[str]:
    yield ln.name

    def named(group: tuple[Axis, ...]) -> str:
        return "  ".join(f"{ln.kind(a).value} {a.name}:{a.size}" for a in group)

    for nest in ln.nests:
        yield f"rows {named(nest.rows)}" if nest.rows else "one row"
        for tile in nest.tiles:
            stages = f", {tile.stages} stages" if tile.stages > 1 else ""
            yield f"  tile {tile.name} {named(tile.axes)} after {tile.after.name}{stages}"
        lines, text = describe(roots(nest))
        yield from (f"    {line}" for line in lines)
        for tile in nest.tiles:
            sign = f"{SIGN.get(tile.op, tile.op.name.lower())}=" if tile.over else "="
            over = f" for every {tile.over.name}:{tile.over.size}" if tile.over else ""
            yield f"  {tile.name} {sign} {text[tile.value]}{over}"
        for walk in nest.walks:
            each = f" at every {walk.after.name}:{walk.after.size}" if walk.after else ""
            yield f"  walk {named(walk.axes)}{each}" if walk.axes else "  once"
            for store in walk.stores:
                sign = f"{SIGN.get(store.op, store.op.name.lower())}=" if store.op else "="
                place = place_text(store.position, store.valid, text)
                past = ", past the caches" if store.streams else ""
                yield f"    slot{store.slot}[{place}] {sign} {text[store.value]}{past}"
        if nest.folded:
            yield f"  folds over {named(nest.folded)}"
    for axis, steps in ln.ahead:
        yield (
            f"  reads {steps} ahead of {axis.name}"
            if steps > 1
            else f"  reads ahead of {axis.name}"
        )
    for name in ln.along:
        yield f"  folds over {name} run along"
    for split in ln.splits:
        if split.rest:
            yield f"  {split.rest} of {split.inner.name} remain after {split.outer.name}"


def verify(ln: LoopNest) -> None:
    """Whatever an expression counts along, something walks; positions stay inside slots."""
    for nest in ln.nests:
        walked = set(nest.axes)
        for root in roots(nest):
            if not root.free <= walked:
                raise VerifyError(f"{ln.name}: nothing walks {root.free - walked}\n{ln}")
        for walk in nest.walks:
            for store in walk.stores:
                known = {*nest.rows, *walk.axes, walk.after}
                if not (store.position.free | store.value.free) <= known:
                    raise VerifyError(f"{ln.name}: slot{store.slot} outside its walk\n{ln}")
        _verify_tiles(ln, nest)
        if len({a.name for a in walked}) < len(walked):
            raise VerifyError(f"{ln.name}: two axes of one name\n{ln}")


def _verify_tiles(ln: LoopNest, nest: Nest) -> None:
    """Of the tiles that are filled at one place, each reads only those before it."""
    later = {tile.name: tile.after for tile in nest.tiles}
    for tile in nest.tiles:
        for e in nodes(tile.value):
            own = isinstance(e, Stored) and e.name == tile.name and tile.over is not None
            if isinstance(e, Stored) and not own and later.get(e.name) is tile.after:
                raise VerifyError(f"{ln.name}: {tile.name} reads {e.name}, filled later\n{ln}")
        del later[tile.name]


def block_of(nest: LoopNest) -> tuple[tuple[int, int], list[list[Axis]]]:
    """Threads of a block along x and y, in which all nests have room; each nest's axes along y.

    They are whole warps if there are matrix products, which all of a warp make together.
    """
    kinds = dict(nest.kinds)
    groups = [_thread_axes(one, kinds) for one in nest.nests]
    along_y = max((prod(a.size for a in group) for group in groups), default=1)
    along_x = max((a.size for one in nest.nests for a in one.axes if a.name == TX), default=1)
    if any(isinstance(e, Product) for one in nest.nests for e in one.exprs):
        along_y += -along_y % (WARP // gcd(along_x, WARP))
    return (along_x, along_y), groups


def _thread_axes(one: Nest, kinds: Mapping[Axis, Kind]) -> list[Axis]:
    """The axes that threads are numbered by; one axis if each tile has its own."""

    def of(axes: Iterable[Axis]) -> list[Axis]:
        return [a for a in axes if kinds.get(a) is Kind.THREAD and a.name != TX]

    groups = [of(axes) for axes in (*[w.axes for w in one.walks], *[t.axes for t in one.tiles])]
    if not any(groups):
        return of(one.rows)
    return [Axis("ty", max(prod(a.size for a in group) for group in groups))]
