"""Choosing Opts: what a nest is, and how choices are made one after the other.

Each nest is one of three shapes. A map has no folds; a contraction sums a product whose two
factors each walk a row axis that the other does not; every other fold makes rows. An Opt that
turns out not to fit is left out: the kernel is right with any subset of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Concatenate, ParamSpec, TypeVar

from tinyml.codegen.expr import Expr, Fold, Load, Select, nodes
from tinyml.codegen.narrow import is_narrow
from tinyml.codegen.nest import Kind, LoopNest, Nest, Tile
from tinyml.codegen.optimize.change import joins
from tinyml.codegen.optimize.opts import Opt, OptError, OptKind, apply
from tinyml.codegen.optimize.phase import phases
from tinyml.codegen.optimize.tiles import ways
from tinyml.codegen.pairs import factors_of
from tinyml.codegen.target import Target
from tinyml.frozen import cached_property, dataclass
from tinyml.graph import toposort
from tinyml.index import Axis, Quotient, linear

MOST_NESTS = 16  # that phases make of one
REGISTER = 16  # bytes of the smallest one
_DIVIDING = OptKind.SPLIT, OptKind.LANES, OptKind.UNROLL, OptKind.THREAD
REST = 8  # times as long as what is left over of whole vectors are rows of bytes, at least
_C = TypeVar("_C", bound="Chooser")
_P = ParamSpec("_P")


@dataclass(frozen=True)
class Contraction:
    """A sum of products. `streamed` is walked along vector lanes or x, `kept` along the other."""

    fold: Fold
    kept: frozenset[Axis]  # row axes of one factor alone
    streamed: frozenset[Axis]  # row axes of the other alone
    kept_factor: Expr
    streamed_factor: Expr

    @property
    def kept_load(self) -> Load | None:
        """A load that depends on all that its factor does, if there is such."""
        return _main_load(self.kept_factor)

    @property
    def streamed_load(self) -> Load | None:
        return _main_load(self.streamed_factor)


@dataclass(frozen=True)
class Candidate:
    """A way to compute a contraction: the cycles it should take, and what applies its Opts."""

    cycles: float
    apply: Callable[[], None]


def contraction_of(one: Nest) -> Contraction | None:
    """The contraction that a nest is, if it is one."""
    for fold in one.folds:
        if factors := factors_of(fold):
            left, right = factors
            a, b = left.free & {*one.rows}, right.free & {*one.rows}
            both = all({*fold.axes} & side.free for side in (left, right))
            if a - b and b - a and both:
                return Contraction(fold, a - b, b - a, left, right)
    return None


def _along(one: Nest) -> list[Expr]:
    """What has lanes, if they lie along inner axes as memory does; a product may choose others."""
    inner = [group[-1] for group in one.groups if group]
    inner = [a for a in inner if side_by_side(one, a) > 0] or inner
    axes = {*one.axes} if contraction_of(one) is not None else {*inner}
    return [e for e in one.exprs if not axes.isdisjoint(e.free)]


def _bytes_of_lane(e: Expr) -> int:
    """In a register: masks are int32, and halves float32 while they are computed with.

    Where all are bytes, masks are bytes (narrow.py).
    """
    masked = isinstance(e, Select) or (isinstance(e, Load) and e.valid != ())
    wide = masked or not e.dtype.is_int
    return max(e.dtype.itemsize, 4 * wide)


def _divided(one: Nest) -> dict[Axis, int]:
    """Rows that something walks a quotient of, and by what they are divided."""
    atoms = [atom for load in one.loads for atom, _ in load.position.terms]
    whole = {linear(a): a for a in one.rows}
    found = [(whole.get(e.inner), e.by) for e in atoms if isinstance(e, Quotient)]
    return {a: by for a, by in found if a is not None and a.size % by == 0}


def _main_load(factor: Expr) -> Load | None:
    found = (e for e in nodes(factor) if isinstance(e, Load) and e.free == factor.free)
    return next(found, None)


class Chooser:
    """Applies Opts as it chooses them, so that each choice sees what the last one made."""

    contraction: Callable[[Contraction], bool]  # whether the nest could be given tiles
    rows: Callable[[], None]
    map: Callable[[], None]

    def __init__(self, nest: LoopNest, target: Target) -> None:
        self.nest, self.target = nest, target
        self.number = 0  # of the nest that is chosen for
        self.opts: list[Opt] = []

    @cached_property
    def lanes(self) -> int:
        """Elements of one vector register, of the widest values in the kernel.

        Values that are wider than a register are put into memory by compilers, 20 times as slow;
        and so are those of half a register by gcc, where they are small integers.
        """
        if self.narrow:
            return next(self._of_bytes())
        values = [e for one in self.nest.nests for e in _along(one)]
        lanes = self.target.vector_bytes // max(map(_bytes_of_lane, values), default=4)
        longest = max((a.size for one in self.nest.nests for a in one.axes), default=1)
        return min(lanes, max(self.target.vector_bytes // 4, 1 << longest.bit_length() - 1))

    @cached_property
    def narrow(self) -> bool:
        """Whether truths are bytes of vectors, too: where few elements are left over."""
        values = (e for one in self.nest.nests for e in one.exprs)
        return is_narrow(self.nest.slots, values) and any(self._of_bytes())

    def _of_bytes(self) -> Iterator[int]:
        """Bytes of vectors that leave hardly any elements over, one by one."""
        ends = [one.rows[-1].size for one in self.nest.nests if one.rows]
        sizes = (self.target.vector_bytes // n for n in (1, 2, 4))
        return (n for n in sizes if n >= REGISTER and all(end % n * REST <= end for end in ends))

    @property
    def nbytes(self) -> int:
        """Of all that the kernel reads and writes."""
        return sum(prod(shape) * dtype.itemsize for shape, dtype in self.nest.slots)

    def choose(self) -> None:
        self.phases()
        self.cuts()
        self.collapse(self.nest.nests)
        while self.number < len(self.nest.nests):  # to which a peeled rest is appended
            self._by_groups()
            one = self.one
            contraction = contraction_of(one)
            if contraction is None or not self.contraction(contraction):
                if one.folds:
                    self.rows()
                elif one.adds:
                    self.scatter()
                else:
                    self.map()
            self.number += 1

    def _by_groups(self) -> None:
        """Rows of which one factor walks only a quotient are two axes of a contraction.

        As channels are in the gradient of a grouped convolution, of which images have groups.
        """
        one, before, count = self.one, self.nest, len(self.opts)
        if one.folds and contraction_of(one) is None:
            for axis, by in _divided(one).items():
                self.apply(OptKind.SPLIT, axis, by)
            if contraction_of(self.one) is None:
                self.nest = before
                del self.opts[count:]

    def phases(self) -> None:
        """Folds that skip steps, by the remainders of rows, become folds of what they take."""
        number = 0
        while number < len(self.nest.nests) <= MOST_NESTS:
            found = phases(self.nest.nests[number])
            if not any(self.apply(OptKind.PHASE, axis, by) for axis, by in found.items()):
                number += 1

    def cuts(self) -> None:
        """Maps that read other arrays in some rows than in others, in pieces."""

    def scatter(self) -> None:
        """Stores that may meet in one place: walked by threads that take turns (atomics)."""
        self.map()

    def apply(self, kind: OptKind, axis: Axis | str, amount: int = 0, slot: int = 0) -> bool:
        """Make one choice; False if the nest does not admit it, or to divide by 1."""
        if amount == 1 and kind in _DIVIDING:
            return False
        name = axis if isinstance(axis, str) else axis.name
        opt = Opt(kind, name, amount, slot)
        try:
            self.nest = apply(self.nest, opt)
        except OptError:
            return False
        self.opts.append(opt)
        return True

    def keep(self, after: Axis | str, amount: int = 0) -> Tile | None:
        """The tile of one more value that is kept, if there is any to keep."""
        before = {tile.name for tile in self.one.tiles}
        if not self.apply(OptKind.KEEP, after, amount):
            return None
        return next((t for t in self.one.tiles if t.name not in before), None)

    def stage(self, after: Axis, load: Load) -> None:
        """Copy what is made of a load to a tile, ready-made, if something is."""
        found = ways(self.one, load.slot)
        which = next((n for n, e in enumerate(found, 1) if load in nodes(e)), 0)
        if which:
            self.apply(OptKind.STAGE, after, which, load.slot)

    def steps_of_masks(self, found: Iterable[Expr]) -> frozenset[Axis]:
        """The axes that conditions on the lanes of what is loaded depend on."""
        asked = {v.free for e in toposort(found) if isinstance(e, Load) for v in e.valid}
        return frozenset().union(*(own for own in asked if own & self.nest.lanes))

    def collapse(self, nests: Iterable[Nest], divided: int = 0) -> None:
        """Neighbouring axes joined wherever that is possible; see change.collapse."""
        for one in nests:
            outer = [a for group in one.groups for a in group[-2::-1]]  # none follows the last
            for name in dict.fromkeys(a.name for a in outer if self.nest.kind(a) is Kind.LOOP):
                while self._joins(name, divided) and self.apply(OptKind.COLLAPSE, name, divided):
                    pass

    def _joins(self, name: str, divided: int) -> bool:
        axis = self.nest.axis(name)
        return axis is not None and joins(self.nest, axis, divided)

    @property
    def one(self) -> Nest:
        """The nest that is chosen for."""
        return self.nest.nests[self.number]

    def share(self) -> float:
        """How much of all that is folded it folds."""
        each = ((n.rows, n.groups[1 + len(n.walks) :]) for n in self.nest.nests)
        steps = [sum(prod(a.size for a in (*rows, *f)) for f in folds) for rows, folds in each]
        return steps[self.number] / sum(steps)

    def row(self, name: str) -> Axis | None:
        return next((a for a in self.one.rows if a.name == name), None)

    def bind_grid(self, but: tuple[str, ...] = ()) -> None:
        """Every row axis that is still a loop goes to the grid."""
        for axis in self.one.rows:
            if self.nest.kind(axis) is Kind.LOOP and axis.name not in but:
                self.apply(OptKind.GRID, axis)


def all_or_nothing(
    choose: Callable[Concatenate[_C, _P], bool],
) -> Callable[Concatenate[_C, _P], bool]:
    """Takes back the Opts that a choice has applied, where the choice is False."""

    @functools.wraps(choose)
    def chosen(chooser: _C, /, *args: _P.args, **kwargs: _P.kwargs) -> bool:
        before, count = chooser.nest, len(chooser.opts)
        done = choose(chooser, *args, **kwargs)
        if not done:
            chooser.nest = before
            del chooser.opts[count:]
        return done

    return chosen


def side_by_side(one: Nest, axis: Axis) -> int:
    """How many elements are loaded beside their neighbours along `axis`, less those that jump."""
    score = 0
    for load in one.loads:
        if axis in load.free:
            elements = prod(a.size for a in load.free)
            score += elements if load.position.stride(axis) == 1 else -elements
    return score


def is_little_of_rows(one: Nest, found: Contraction) -> bool:
    """Whether each row walks more of its own than it sums up for the product, along memory.

    Lanes along rows, as a product's are, would read all that across. Another product walks what
    whole rows and columns share.
    """
    row = found.kept | found.streamed
    own = [(e.free, f.axes) for f in one.folds for e in nodes(f.body) if isinstance(e, Load)]
    folds = dict.fromkeys(axes for free, axes in own if row <= free and not free.isdisjoint(axes))
    walks = [axes for axes in (*folds, *(w.axes for w in one.walks)) if axes]
    beside = any(side_by_side(one, axes[-1]) > 0 for axes in walks)
    steps = sum(prod(a.size for a in axes) for axes in walks)
    return beside and steps > prod(a.size for a in found.fold.axes)


def padded(chooser: Chooser, walked: Sequence[Axis], sizes: Sequence[int]) -> bool:
    """Whether axes could be made whole steps of these sizes."""
    return all(
        a.size % size == 0 or chooser.apply(OptKind.PAD, a, size)
        for a, size in zip(walked, sizes, strict=True)
    )
