"""Scales: what sums are multiplied by when what leads them is another, if that is one number.

A sum of exp(s - m) follows the largest m of s: it changes by exp(m before - m now), whatever s is.
While not all of s is known m is less than in the end, so powers of s - m alone stay within bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial, reduce
from math import inf

from tinyml.codegen.expr import (
    Alu,
    Const,
    Expr,
    Fold,
    Select,
    alu,
    const,
    is_number,
    nodes,
    rewrite,
    zero,
)
from tinyml.dtype import bool_
from tinyml.interpret import identity
from tinyml.ops import Op

Image = Mapping[Fold, Expr]  # what leaders are at some time
Masks = frozenset[object]  # conditions, all of which hold
Scaled = tuple[Expr, float, Masks]


def follows(fold: Fold, leaders: Image) -> bool:
    """Whether a fold is a sum that only has to be scaled when leaders change.

    Its powers are of what is less than the largest so far, or multiples of that: of anything else
    they might exceed all bounds while the largest is not known, and become 0 once it is.
    """
    alike = changes_alike(fold, leaders)
    return alike and all(_is_bounded(e, leaders, known) for e, known in _powers(fold, leaders))


def _powers(fold: Fold, leaders: Image) -> Iterator[tuple[Expr, Masks]]:
    """What powers that follow leaders are of, and where alone they are chosen."""
    waiting = [(fold.body, Masks())]
    seen = {*waiting}
    for e, known in waiting:  # grows
        if isinstance(e, Alu) and e.op in (Op.EXP, Op.EXP2) and _is_led(e, leaders):
            yield e.operands[0], known
        found = _masked(e, 0)
        below = [(found[0], known | found[1])] if found else [(s, known) for s in e.sources]
        waiting += [each for each in below if each not in seen]
        seen.update(below)


def _is_bounded(e: Expr, leaders: Image, known: Masks) -> bool:
    """Whether what a power is of is an element less what leads it, or a multiple of that."""
    if isinstance(e, Select):
        return _is_bounded(e.value, leaders, known | {*e.valid})
    if not isinstance(e, Alu):
        return False
    for one, other in (e.operands, e.operands[::-1]) if len(e.operands) == 2 else ():
        if e.op is Op.MUL and not _is_led(other, leaders):
            return _is_bounded(one, leaders, known)
        if e.op is Op.ADD and _is_led(one, leaders) and not _is_led(other, leaders):
            negative = isinstance(one, Alu) and one.op is Op.NEG
            top, x = (one.sources[0], other) if negative else (one, alu(Op.NEG, e.dtype, other))
            own, times, masks = _unscaled(x)
            led = _led_by(top, leaders)
            return any((own, times) == (y, n) and m <= masks | known for y, n, m in led)
    return e.op is Op.NEG and _is_bounded(e.operands[0], leaders, known)


def _led_by(e: Expr, leaders: Image) -> list[Scaled]:
    """What `e` leads, of which it is the largest or more, or a number where there is nothing."""
    if isinstance(e, Fold) and e in leaders:
        return [_unscaled(e.body)]
    if isinstance(e, Alu) and e.op is Op.WHERE:
        asked, chosen, other = e.operands
        top = chosen if _is_finite(asked, chosen) else other
        return _led_by(top, leaders) if top is chosen or _is_infinite(asked, top) else []
    if not isinstance(e, Alu):
        return []
    found = [each for operand in e.operands for each in _led_by(operand, leaders)]
    if e.op is Op.MUL and isinstance(e.operands[1], Const) and e.operands[1].value > 0:
        return [(x, times * e.operands[1].value, masks) for x, times, masks in found]
    return found if e.op in (Op.MAX, Op.MIN, Op.CAST) else []


def _is_infinite(asked: Expr, e: Expr) -> bool:
    """Whether a bool says that `e` is an infinity."""
    return (
        isinstance(asked, Alu)
        and asked.op is Op.EQUAL
        and e in asked.operands
        and any(isinstance(x, Const) and abs(x.value) == inf for x in asked.operands)
    )


def _is_finite(asked: Expr, e: Expr) -> bool:
    """Whether a bool says that `e` is finite."""
    size, bound = asked.operands if isinstance(asked, Alu) and asked.op is Op.LESS else (e, e)
    found = isinstance(size, Alu) and size.op is Op.ABS and size.operands[0] == e
    return found and isinstance(bound, Const) and bound.value == inf


def _unscaled(e: Expr) -> Scaled:
    """What a value is a multiple of, but for casts; that positive number; where it is chosen."""
    times, masks = 1.0, Masks()
    while True:
        if (chosen := _masked(e, inf)) is not None:
            e, masks = chosen[0], masks | chosen[1]
        elif isinstance(e, Alu) and e.op is Op.CAST:
            (e,) = e.operands
        elif (found := multiple(e)) is not None:
            e, times = found[0], times * found[1].value
        else:
            return e, times, masks


def _masked(e: Expr, other: float) -> tuple[Expr, Masks] | None:
    """What is a number, or minus that, but where something holds; and what that is."""
    if isinstance(e, Select):
        value, beside, masks = e.value, e.other, Masks(e.valid)
    elif isinstance(e, Alu) and e.op is Op.WHERE:
        condition, value, beside = e.operands
        masks = Masks((condition,))
    else:
        return None
    return (value, masks) if isinstance(beside, Const) and abs(beside.value) == other else None


def _is_led(e: Expr, leaders: Image) -> bool:
    return not leaders.keys().isdisjoint(nodes(e))


def changes_alike(fold: Fold, leaders: Image) -> bool:
    """Whether a fold is a sum whose terms all change by the same factor when leaders do."""
    return fold.op is Op.ADD and _Factor(fold, leaders, leaders).of(fold.body) is not None


def multiple(e: Expr) -> tuple[Expr, Const] | None:
    """A float and the positive number that it is multiplied by, if it is."""
    if isinstance(e, Alu) and e.op is Op.MUL and e.dtype.is_float and not e.dtype.is_half:
        value, factor = e.sources
        if isinstance(factor, Const) and 0 < factor.value < inf:
            return value, factor
    return None


def finite(image: Image) -> dict[Fold, Expr]:
    """The same, with 0 where nothing was folded."""
    return {f: alu(Op.WHERE, f.dtype, nothing(f, e), zero(f.dtype), e) for f, e in image.items()}


def nothing(leader: Fold, value: Expr) -> Expr:
    return alu(Op.EQUAL, bool_, value, const(identity(leader.op, leader.dtype), leader.dtype))


def replaced(e: Expr, image: Image) -> Expr:
    return rewrite(e, lambda found: image.get(found) if isinstance(found, Fold) else None)


def scale_of(fold: Fold, old: Image, now: Image) -> Expr:
    """What a sum is multiplied by once it is known what leads it now."""
    scale = _Factor(fold, finite(old), finite(now)).whole()
    for leader, before in old.items():
        scale = alu(Op.WHERE, fold.dtype, nothing(leader, before), zero(fold.dtype), scale)
    return scale


def last_scale_of(fold: Fold, done: Image) -> Expr:
    """What a sum is multiplied by in the end: a row of -inf gives what it gives all at once."""
    return _Factor(fold, finite(done), done).whole()


class _Factor:
    """By what the body of a sum changes with what leads it, if it does so alike at all steps."""

    def __init__(self, fold: Fold, old: Image, new: Image) -> None:
        self.fold, self.old, self.new = fold, old, new

    def whole(self) -> Expr:
        found = self.of(self.fold.body)
        assert found is not None
        return alu(Op.CAST, self.fold.dtype, found)

    def of(self, e: Expr) -> Expr | None:
        """`e` with the new ones, divided by what it was with the old ones."""
        if not self._led(e):
            return const(1, e.dtype)
        if isinstance(e, Select):
            return self.of(e.value) if is_number(e.other, 0) else None
        if not isinstance(e, Alu) or not e.dtype.is_float:  # integers were cut off
            return None
        if e.dtype.is_half and e.op is not Op.CAST:
            return None
        match e.op:
            case Op.EXP | Op.EXP2:
                shift = self.shift(e.operands[0])
                return None if shift is None else alu(e.op, e.dtype, shift)
            case Op.CAST | Op.NEG:
                return self.of(e.operands[0])
            case Op.WHERE:
                condition, value, other = e.operands
                return self.of(value) if is_number(other, 0) and not self._led(condition) else None
            case Op.MUL | Op.DIV:
                a, b = map(self.of, e.operands)
                return None if a is None or b is None else alu(e.op, a.dtype, a, b)
        return None

    def shift(self, e: Expr) -> Expr | None:
        """What is added to `e`."""
        if not self._led(e):
            return zero(e.dtype)
        if e.free.isdisjoint(self.fold.axes):
            before = alu(Op.NEG, e.dtype, replaced(e, self.old))
            return alu(Op.ADD, e.dtype, replaced(e, self.new), before)
        if isinstance(e, Select):
            return self.shift(e.value) if is_number(e.other, -inf) else None
        if not isinstance(e, Alu):
            return None
        a, b = (*e.operands, e)[:2]
        match e.op:
            case Op.ADD:
                found = [self.shift(x) for x in (a, b) if self._led(x)]
                known = [x for x in found if x is not None]
                whole = len(known) == len(found)
                return reduce(partial(alu, Op.ADD, e.dtype), known) if whole else None
            case Op.NEG:
                shift = self.shift(a)
                return None if shift is None else alu(Op.NEG, e.dtype, shift)
            case Op.MUL:
                a, b = (a, b) if self._led(a) else (b, a)
                fixed = not self._led(b) and b.free.isdisjoint(self.fold.axes)
                shift = self.shift(a) if fixed else None
                return None if shift is None else alu(Op.MUL, e.dtype, shift, b)
        return None

    def _led(self, e: Expr) -> bool:
        return _is_led(e, self.old)
