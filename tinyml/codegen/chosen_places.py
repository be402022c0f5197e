"""A choice between elements of one array, by where a row is, becomes an element at a chosen place.

    where(i2 >= 58, x[3192 + i3], where(i2 >= 2, x[i2*56 - 112 + i3], x[i3]))
    x[where(i2 >= 58, 3192, where(i2 >= 2, i2*56 - 112, 0)) + i3]

So a row of a border that is mirrored or repeated reads one row, where it read all that it might be
and took one of them: that is found out once for a row, and not for each of its vectors.
"""

from __future__ import annotations

from tinyml.codegen.crop import pieces
from tinyml.codegen.expr import Expr, Load, Place, Select
from tinyml.codegen.nest import Kind, LoopNest, Nest, rewritten
from tinyml.dtype import int64
from tinyml.frozen import dataclass
from tinyml.index import Axis, Linear, Range, Valid, linear

MOST = 8  # places


def with_chosen_places(nest: LoopNest, one: Nest) -> Nest:
    """The nest with choices made so that depend on a piece of work alone."""
    rows = {a for a in one.rows if nest.kind(a) is Kind.GRID}
    if not any(isinstance(e, Select) for e in one.exprs):
        return one
    return rewritten(one, lambda e: _at_a_place(e, rows) if isinstance(e, Select) else None)


@dataclass(frozen=True)
class _Place:
    """Where an element lies at some steps of an axis: at what they have in common, and a `step`."""

    slot: int
    same: Linear
    valid: Valid
    step: Linear


def _at_a_place(e: Select, rows: set[Axis]) -> Expr | None:
    axis = next(iter(e.valid[0].free), None)
    if axis is None or axis not in rows:
        return None
    runs = pieces(axis, _asked(e, axis), {}, (), MOST)
    found = [_place(e, axis, run) for run in runs]
    places = [place for place in found if place is not None]
    kinds = {(place.slot, place.same, place.valid) for place in places}
    if len(places) < max(len(found), 2) or len(kinds) > 1:
        return None
    ends = [
        place.step.substitute({axis: linear(at)}).constant
        for place, run in zip(places, runs, strict=True)
        for at in (run[0], run[-1])
    ]
    least = min(ends)
    chosen: Expr = Place(places[0].step - least, int64)
    for place, run in zip(places[1:], runs[1:], strict=True):
        behind = Range(linear(axis), run.start, axis.high)
        chosen = Select((behind,), Place(place.step - least, int64), chosen)
    looked = linear(chosen.looked(max(ends) - least + 1))
    (slot, same, valid) = kinds.pop()
    return Load(slot, e.dtype, same + looked + least, valid)


def _asked(e: Expr, axis: Axis) -> list[Range]:
    """What is asked of the axis alone."""
    asked: list[Range] = []
    stack = [e]
    while stack:
        e = stack.pop()
        if isinstance(e, (Select, Load)):
            asked += [v for v in e.valid if v.free == {axis}]
        if isinstance(e, Select):
            stack += [e.value, e.other]
    return asked


def _place(e: Expr, axis: Axis, run: range) -> _Place | None:
    """Where the element lies at steps of which all meet the same conditions, if it is one."""
    at = {axis: linear(run[0])}

    def held(v: Range) -> bool:
        return v.low <= v.index.substitute(at).constant <= v.high

    while isinstance(e, Select):
        if any(v.free != {axis} for v in e.valid):
            return None
        e = e.value if all(map(held, e.valid)) else e.other
    if not isinstance(e, Load) or not all(held(v) for v in e.valid if v.free == {axis}):
        return None
    own = Linear(tuple((a, f) for a, f in e.position.terms if axis in a.free), e.position.constant)
    valid = tuple(v for v in e.valid if v.free != {axis})
    plain = all(a is axis for a, _ in own.terms)
    return _Place(e.slot, e.position - own, valid, own) if plain else None
