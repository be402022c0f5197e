"""Along: folds of one loop of which some read how far others have come, with sums in registers.

Which axes are walked so is decided for a nest (online.py). Sums are scaled at each step, by what
their terms change by when what they read does. A lane's share of a product has a scale for each
of its sums, those of what it holds of the factor's row.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from tinyml.codegen.crop import terms
from tinyml.codegen.expr import Expr, Fold, Name, Stored, alu, nodes
from tinyml.codegen.matrices import Bundle
from tinyml.codegen.optimize.online import changes_alike
from tinyml.index import ZERO, Axis
from tinyml.ops import Op

FEW = 8  # values that a sum takes up one after the other at a step


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
    return [_sum(alu(Op.CAST, fold.dtype, term), tuple(axes)) for term in terms(fold)]


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
