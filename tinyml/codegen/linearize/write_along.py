"""Write along: folds of one loop of which some read how far others have come, in registers.

Which axes are walked so is decided for a nest (online.py). Sums are scaled at each step, by what
their terms change by when what they read does. A lane's share of a product has a scale for each
of its sums, those of what it holds of the factor's row.

Where blocks have parts of what is folded, that of each is set aside, and the block that comes last
goes through them as through the steps of one more loop: the sums of a part are scaled, too, by what
their terms change by when all parts are known. So are those of a thread, where threads share what
is folded.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from math import prod

from tinyml.codegen import crop
from tinyml.codegen import linear as ir
from tinyml.codegen.expr import Expr, Fold, Name, Stored, alu, nodes, substitute
from tinyml.codegen.linearize.write_loops import LoopWriter
from tinyml.codegen.matrices import TOGETHER, Aside, Bundle, Product
from tinyml.codegen.nest import Kind
from tinyml.codegen.optimize.change import OptError
from tinyml.codegen.optimize.scales import (
    Image,
    changes_alike,
    finite,
    last_scale_of,
    replaced,
    scale_of,
)
from tinyml.codegen.scope import Known, Scope, every_step
from tinyml.codegen.wide_stores import wide_loads
from tinyml.index import ZERO, Axis, linear, numbered
from tinyml.ops import Op

FEW = 8  # values that a sum takes up one after the other at a step

Accumulators = Mapping[Fold, Name]
# what a fold adds up, and what leads it
Sums = Mapping[Fold, Sequence[tuple[Fold, Sequence[Fold]]]]


class AlongWriter(LoopWriter):
    """Writes folds that run along; whoever writes the rest of a nest declares what they fill."""

    _declare: Callable[[Scope, Fold, Axis | None], Name]
    _sharing: Callable[[Fold], int]

    def _run_along(
        self, scope: Scope, group: tuple[Axis, ...], leaders: list[Fold], later: list[Fold]
    ) -> None:
        """One loop that fills the accumulators of folds, and of what reads them at each step."""
        acc = {fold: self._declare(scope, fold, None) for fold in (*leaders, *later)}
        sums = {f: [(x, led_by(x, leaders)) for x in sums_of(f)] for f in later}

        def enter(inner: Scope, known: Known) -> None:
            self._folds(inner, [substitute(fold.body, known) for fold in leaders])

        def body(inner: Scope, known: Known, unrolled: list[Axis]) -> None:
            own = inner if inner is not scope else Scope(scope.bound, scope)
            steps = every_step(known, unrolled)
            bodies = {f: f.body for f in acc}
            for axis in (a for a in unrolled if self.kind(a) is Kind.LANE):
                bodies = {f: wide_loads(e, axis) for f, e in bodies.items()}
            made = {f: _each(f.op, e, known, unrolled, steps) for f, e in bodies.items()}
            self._folds(own, [value for f in leaders for value in made[f]])
            self._lead(own, acc, {f: made[f] for f in leaders}, sums, group[0])
            now: Image = {f: f for f in leaders}
            values = {f: [replaced(v, finite(now)) for v in made[f]] for f in later}
            self._folds(own, [value for f in later for value in values[f]])
            for f, v in ((fold, v) for fold in later for v in added(fold, values[fold])):
                own.instrs.append(ir.Update(acc[f], f.op, self.emit(own, v)))
            if own is not inner:  # what follows from sums of a rest is not so once threads meet
                inner.instrs += own.instrs

        loops = self._loops(group, enter, body).cropped(crop.needed([*acc]))
        with self.ahead.in_loop():
            self._open(scope, loops, {})
        self._of_threads(scope, acc, sums, group[0])
        if self.parts:
            acc = self._brought_together(scope, group, acc, sums)
        for f in leaders:
            scope.name(f, acc[f])
        for f in later:
            scales = [last_scale_of(x, {g: g for g in led}) for x, led in sums[f]]
            self._scale(scope, acc[f], scales)
            scope.name(f, acc[f])

    def _of_threads(self, scope: Scope, acc: Accumulators, sums: Sums, step: Axis) -> None:
        """What all threads have made, each of its own steps, of what they share."""
        old = dict[Fold, Expr]()
        for f, name in acc.items():
            threads = self._sharing(f)
            if threads == 1:
                continue
            if f in sums and old:
                each = [(x, {g: g for g in led}) for x, led in sums[f]]
                scales = [scale_of(x, {g: old[g] for g in now}, now) for x, now in each]
                self._scale(scope, name, scales)
            elif f not in sums:
                old[f] = self._before(scope, f, name, step)
            scope.instrs.append(ir.AcrossThreads(name, f.op, threads))
            scope.name(f, name)

    def _lead(
        self,
        scope: Scope,
        acc: Accumulators,
        values: Mapping[Fold, Sequence[Expr]],
        sums: Sums,
        step: Axis,
    ) -> None:
        """Leaders take the values of a step, and sums are scaled by what changes with that."""
        old = dict[Fold, Expr]()
        for f, given in values.items():
            old[f] = self._before(scope, f, acc[f], step)
            scope.instrs += [ir.Update(acc[f], f.op, self.emit(scope, v)) for v in given]
            scope.name(f, acc[f], scope)
        now: Image = {f: f for f in values}
        for f, each in sums.items():
            scales = [scale_of(x, {g: old[g] for g in led}, now) for x, led in each]
            self._scale(scope, acc[f], scales)

    def _before(self, scope: Scope, fold: Fold, acc: Name, step: Axis) -> Expr:
        """What a fold is before it changes."""
        name = self._name("before", fold, 1)
        scope.instrs.append(ir.Let(name, acc))
        old = before(fold, name, step)
        scope.name(old, name, scope)
        return old

    def _brought_together(
        self, scope: Scope, group: tuple[Axis, ...], acc: Accumulators, sums: Sums
    ) -> dict[Fold, Name]:
        """What all blocks have made of their parts, several of which are read at once."""
        names = (*acc.values(),)
        if len({name.dtype for name in names}) > 1 or any(name.lanes > 1 for name in names):
            raise OptError(f"cannot share {group[0].name}: what is set aside is not alike")
        tile, part = map(numbered, (self.grid, self.parts))
        scope.instrs.append(ir.AcrossBlocks(names, tile, part))
        count = prod(a.size for a in self.parts)
        together = next(n for n in range(TOGETHER, 0, -1) if count % n == 0)
        step = Axis(f"{group[0].name}p", count // together)
        inner = Scope(scope.bound | {step}, scope)
        parts = [{f: self._name("part", f, 1) for f in acc} for _ in range(together)]
        for n, own in enumerate(parts):
            at = linear(step) * together + n
            lets = (ir.Let(own[f], Aside(name.name, name.dtype, at)) for f, name in acc.items())
            inner.instrs += lets
        whole = {f: self._declare(scope, f, None) for f in acc}
        leaders = [f for f in acc if f not in sums]
        self._lead(inner, whole, {f: [own[f] for own in parts] for f in leaders}, sums, step)
        now: Image = {f: f for f in leaders}
        for own in parts:
            then = {f: before(f, own[f], step) for f in leaders}
            for f in leaders:
                inner.name(then[f], own[f], inner)
            for f, ((x, led),) in sums.items():
                scale = scale_of(x, {g: then[g] for g in led}, now)
                value = self.emit(inner, alu(Op.MUL, f.dtype, own[f], scale))
                inner.instrs.append(ir.Update(whole[f], Op.ADD, value))
        scope.instrs += [ir.Begin(step), *inner.instrs, ir.End(step)]
        return whole

    def _scale(self, scope: Scope, sums: Name, by: list[Expr]) -> None:
        factors: list[Expr] = [self.emit_named(scope, scale) for scale in by]
        every = factors * (sums.lanes // len(by))  # rows are the same in each sixteen columns
        scope.instrs.append(ir.Update(sums, Op.MUL, abreast(every)))


def _each(
    op: Op, body: Expr, known: Known, unrolled: Sequence[Axis], steps: Sequence[Known]
) -> list[Expr]:
    """What a fold takes up of steps that are written out: of what it folds itself, all at once.

    So threads exchange what they have of it once, not for each step.
    """
    value = substitute(body, known)
    if unrolled and type(value) is Fold and value.op is op and not isinstance(value.body, Product):
        return [Fold(value.op, value.body, (*unrolled, *value.axes))]
    return [substitute(body, step) for step in steps]


def followers(folds: Iterable[Fold], leaders: Iterable[Fold]) -> list[Fold]:
    """The folds that may run along with others, which they read."""
    led = {f: f for f in leaders if f.op in (Op.MAX, Op.MIN)}
    found = []
    for fold in folds:
        if led_by(fold, led) and all(changes_alike(sums, led) for sums in sums_of(fold)):
            found.append(fold)
    return found


def sums_of(fold: Fold) -> list[Fold]:
    """The sums that a fold is: each that a lane has of a product; those in a sum are part of it."""
    if fold.op is not Op.ADD:
        return [fold]
    body, axes = fold.body, list(fold.axes)
    while type(body) is Fold and body.op is Op.ADD:
        axes += body.axes
        body = body.body
    return [_sum(alu(Op.CAST, fold.dtype, term), tuple(axes)) for term in crop.terms(fold)]


def led_by(fold: Fold, leaders: Iterable[Fold]) -> list[Fold]:
    """Those of some folds that a fold is made of."""
    below = {*nodes(fold.body)}
    return [leader for leader in leaders if leader in below]


def together(order: list[Expr], ready: Container[Fold], along: Container[str]) -> list[Fold]:
    """The folds that are ready, but are to be made with others that are not; and who reads them."""
    folds = [e for e in order if type(e) is Fold and any(a.name in along for a in e.axes)]
    waiting = {fold.axes for fold in folds if fold not in ready}
    held: set[Expr] = set()
    for e in order if waiting else ():
        if (e in folds and e.axes in waiting) or not held.isdisjoint(e.sources):
            held.add(e)
    return [e for e in order if type(e) is Fold and e in held and e in ready]


def _sum(term: Expr, axes: tuple[Axis, ...]) -> Fold:
    made = Fold(Op.ADD, term, axes)
    assert isinstance(made, Fold)
    return made


def abreast(values: list[Expr]) -> Expr:
    """One value for each sum."""
    return Bundle(tuple(values)) if len(values) > 1 else values[0]


def before(fold: Fold, name: Name, step: Axis) -> Expr:
    """What stands for a fold as it was before a step."""
    return Stored(name.name, fold.dtype, ZERO, step)


def added(fold: Fold, values: list[Expr]) -> list[Expr]:
    """What a fold takes up at a step: of many values their sum, which is made in pairs."""
    many = len(values) > FEW
    while many and len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=False)
        rest = values[len(values) // 2 * 2 :]
        values = [*(alu(fold.op, fold.dtype, *pair) for pair in pairs), *rest]
    return values
