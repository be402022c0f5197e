"""Crop: steps of a loop are left out where it is known beforehand what they would give.

A sum of p[r] * x[r], where p is 0 unless r <= i, needs no step beyond i; nor does the largest of
what is -inf there. What is known is read from the expression: a Select gives its other value
where its conditions do not hold, and what ops make of that value follows. A product with 0 is
taken for 0, and a sum with -inf for -inf, so that only what is finite is promised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tinyml.codegen.expr import Alu, Const, Expr, Fold, Select, Stored, alu, const
from tinyml.codegen.linear import Begin
from tinyml.codegen.scope import Known
from tinyml.graph import toposort
from tinyml.index import Axis, Linear, Range, Valid, inside, linear
from tinyml.interpret import identity, rounded
from tinyml.ops import MEANING, Op

LEAST = 4  # steps of a loop that is worth bounds


def needed(folds: Sequence[Fold]) -> Valid:
    """Conditions without which none of the folds' bodies, walked together, changes anything."""
    every: list[dict[Linear, Range]] = []
    for fold in folds:
        start = identity(fold.op, fold.dtype)
        found = [r for r, known in _known(fold.body, {*fold.axes}) if known.value == start]
        every.append({r.index: r for r in found})
    return tuple(
        Range(index, min(one[index].low for one in every), max(one[index].high for one in every))
        for index in every[0]
        if all(index in one for one in every)
    )


def known_outside(value: Expr, axes: Iterable[Axis]) -> tuple[tuple[Range, Const], ...]:
    """Conditions along some of the axes, and the number that `value` is without each of them."""
    return tuple(_known(value, {*axes}))


def _known(value: Expr, axes: set[Axis]) -> list[tuple[Range, Const]]:
    order = toposort([value], (), lambda e: () if isinstance(e, Fold) else e.sources)
    asked: dict[Range, None] = {}
    for e in order:
        if isinstance(e, Select):
            asked.update(dict.fromkeys(e.valid))
        elif isinstance(e, Stored):
            asked.update(dict.fromkeys(r for r, _ in e.outside))
    found = []
    for r in asked:
        if not r.free.isdisjoint(axes) and not r.index.looked:
            known = _without(r, order)
            if known is not None:
                found.append((r, known))
    return found


def _without(r: Range, order: list[Expr]) -> Const | None:
    """The number that the last of `order` is wherever `r` does not hold."""
    known: dict[Expr, Const | None] = {}
    for e in order:
        match e:
            case Const():
                known[e] = e
            case Select(valid=valid, value=value, other=other):
                same = known.get(value) is not None and known[value] is known.get(other)
                known[e] = known.get(other) if r in valid or same else None
            case Stored(outside=outside):
                known[e] = next((number for known_by, number in outside if known_by is r), None)
            case Alu():
                known[e] = _made(e, [known.get(o) for o in e.operands])
            case _:
                known[e] = None
    return known[order[-1]]


def _made(e: Alu, operands: list[Const | None]) -> Const | None:
    """What an op makes of numbers, of which some are unknown and taken for finite."""
    values = [o.value for o in operands if o is not None]
    if len(values) == len(operands):
        return _computed(e, [o for o in operands if o is not None])
    infinite = [v for v in values if v in (float("inf"), float("-inf"))]
    if (e.op is Op.MUL and 0 in values) or (e.op is Op.DIV and operands[0] and values == [0]):
        return _number(0, e)
    if e.op is Op.ADD and infinite:
        return _number(infinite[0], e)
    return None


def _computed(e: Alu, operands: list[Const]) -> Const | None:
    if e.op is Op.BITCAST:
        return None
    if e.op is Op.CAST:
        made = alu(e.op, e.dtype, *operands)
        return made if isinstance(made, Const) else None
    arrays = [np.asarray(o.value, o.dtype.compute) for o in operands]
    with np.errstate(all="ignore"):
        return _number(rounded(np.asarray(MEANING[e.op](*arrays)), e.dtype).item(), e)


def _number(value: float | int | bool, e: Expr) -> Const:
    made = const(value, e.dtype)
    assert isinstance(made, Const)
    return made


def begin(
    axis: Axis, only: Iterable[Range], known: Known, fixed: Iterable[Axis], least: int = LEAST
) -> Begin:
    """A loop over the steps of `axis` where the conditions can hold, given the `fixed` axes."""
    starts: dict[Linear, None] = {}
    stops: dict[Linear, None] = {}
    outer = {*fixed}
    for r in only if axis.size >= least else ():
        condition = inside(r.index.substitute(known), r.low, r.high)
        stride = condition.index.stride(axis)
        if not stride:
            continue
        low = condition.low if r.low > r.index.low else None  # None: it holds by itself
        high = condition.high if r.high < r.index.high else None
        index = condition.index - linear(axis) * stride
        if stride < 0:
            low, high = (None if x is None else -x for x in (high, low))
            stride, index = -stride, index * -1
        steady = Linear(tuple((a, f) for a, f in index.terms if a.free <= outer), index.constant)
        varying = index - steady
        if low is not None:
            start = ((steady + varying.high - low) // stride) * -1
            starts.update({start: None} if start.high > 0 else {})
        if high is not None:
            stop = (high - steady - varying.low) // stride + 1
            stops.update({stop: None} if stop.low < axis.size else {})
    return Begin(axis, tuple(starts), tuple(stops))
