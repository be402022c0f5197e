"""Long sums of floats as sums of short ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod

from tinyml.codegen import linear as ir
from tinyml.codegen.expr import Fold, Name
from tinyml.codegen.matrices import Product
from tinyml.codegen.scope import Known, Loops, Scope, also
from tinyml.frozen import replace
from tinyml.index import Axis, linear
from tinyml.ops import Op

STEPS = 32  # terms that a sum of floats adds up one by one, about


def groups(count: int, folds: Iterable[Fold]) -> list[int]:
    """Sizes of groups of groups in which the sums of so many steps are added up, inner ones first.

    Only sums of floats lose anything in a longer chain.
    """
    sizes = []
    rounded = any(map(is_rounded, folds))
    while rounded and count > 2 * STEPS:
        size = next((n for n in range(STEPS, STEPS // 4, -1) if count % n == 0), 0)
        if not size:
            break
        sizes.append(size)
        count //= size
    return [*sizes, count]


def is_grouped(count: int, folds: Sequence[Fold]) -> bool:
    """Whether none of these groups is a long chain of sums of floats."""
    return groups(count, folds)[-1] <= 2 * STEPS or not any(map(is_rounded, folds))


def is_rounded(fold: Fold) -> bool:
    """Whether each step of a fold rounds, as little as to matter: tensor cores cut off as much."""
    return fold.op is Op.ADD and fold.dtype.is_float and not isinstance(fold.body, Product)


def joined(scope: Scope, fold: Fold, parts: list[Name]) -> Name:
    """The parts of a fold brought together in the first of them, by halves."""
    while len(parts) > 1:
        half = len(parts) // 2
        for one, other in zip(parts[:half], parts[-half:], strict=True):
            scope.instrs.append(ir.Update(one, fold.op, other))
        parts = parts[: len(parts) - half]
    return parts[0]


class LongFold:
    """The loops of a fold. A long sum of floats becomes sums of at most STEPS terms each.

    So its error grows with the logarithm of its length, as pairwise summation's does.
    """

    def __init__(
        self,
        open_loops: Callable[[Scope, Loops, Known], None],
        open_rests: Callable[[Scope, Axis, Loops, Known], None],
        begin: Callable[[Scope, Axis, Loops, Known], ir.Begin],
        folds: list[Fold],
        terms: int,
        copies: Callable[[Fold], int],
        declare: Callable[[Scope], list[list[Name]]],
        body: Callable[[Scope, Known, list[Axis], list[list[Name]]], None],
    ) -> None:
        self.open_loops, self.open_rests, self.begin = open_loops, open_rests, begin
        self.folds, self.declare = folds, declare
        self.terms = terms  # that each sum takes up in one step of the loops
        self.body = body
        alone = not any(isinstance(fold.body, Product) for fold in folds)  # those fill registers
        self.sums = alone and any(map(is_rounded, folds))
        # where sums fill the registers, those that wait are in memory: they are added to less often
        self.steps = STEPS * 8 if sum(map(copies, folds)) >= 8 else STEPS

    def open(self, scope: Scope, loops: Loops, known: Known, into: list[list[Name]]) -> None:
        """Open the loops, and add up what they make in `into`."""

        def body(inner: Scope, known: Known, unrolled: list[Axis]) -> None:
            self.body(inner, known, unrolled, into)

        size, loops = self._step(loops), replace(loops, body=body)
        if not size:
            self.open_loops(scope, loops, known)
            return
        loops.enter(scope, known)
        first = loops.waiting[0]
        whole = first.size // size * size
        step, within = Axis(f"{first.name}_s", first.size // size), Axis(f"{first.name}_i", size)
        index = linear(step) * size + linear(within)
        self._part(scope, step, loops.in_part(first, within), also(known, first, index), into)
        if whole < first.size:
            left = Axis(f"{first.name}_l", first.size - whole)
            index = linear(left) + whole
            self._part(scope, None, loops.in_part(first, left), also(known, first, index), into)
        self.open_rests(scope, first, loops, known)

    def parted(self, loops: Loops) -> Axis | None:
        """The loop that is opened in parts, if one is."""
        return loops.waiting[0] if self._step(loops) else None

    def _step(self, loops: Loops) -> int:
        """How many steps of the outermost loop are summed apart; 0 if there is no need."""
        every = self.terms * prod(a.size for a in loops.waiting)
        if not loops.waiting or not self.sums or every <= 2 * self.steps:
            return 0
        first = loops.waiting[0].size
        size = max(1, self.steps // (every // first))
        while size * 2 * self.steps < first:
            size *= self.steps
        even = next((n for n in range(size, size // 2, -1) if first % n == 0), size)
        return even if even < first else 0

    def _part(
        self, scope: Scope, step: Axis | None, loops: Loops, known: Known, into: list[list[Name]]
    ) -> None:
        """Sum in accumulators of its own, for every `step`, and add them to `into`."""
        inner = Scope(scope.bound | ({step} if step else set()), scope)
        parts = self.declare(inner)
        self.open(inner, loops, known, parts)
        for fold, whole, part in zip(self.folds, into, parts, strict=True):
            for one, other in zip(whole, part, strict=True):
                inner.instrs.append(ir.Update(one, fold.op, other))
        if step is None:
            scope.instrs += inner.instrs
            return
        begin = self.begin(scope, step, loops, known)
        scope.instrs += [begin, *inner.instrs, ir.End(step)]
