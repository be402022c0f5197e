"""Two rows: vectors that end in the next row of what they read.

Where rows of pixels are no whole vectors, several rows are walked as one axis, which positions
divide again. A vector that is no longer than a row has a part of it, and the beginning of the next.
"""

from __future__ import annotations

from tinyml.codegen.expr import Expr, Load, Select, const
from tinyml.frozen import dataclass
from tinyml.index import ZERO, Axis, Linear, Quotient, Range, Remainder, both, inside, linear


@dataclass(frozen=True)
class Rows:
    """Where a vector lies in rows of `by` lanes: its first lane at `start`, which is the lane
    `begin` of a row. Lanes are `step` apart, and those of each next row `jump` further away."""

    start: Linear
    begin: Linear
    by: int
    step: int
    jump: int


def rows_of(i: Linear, lane: Axis) -> Rows | None:
    """Where an index goes along `lane`, in one row or several; None if it is not in rows."""
    divided, step = _divided(i, lane), _step(i, lane, 1)
    if step is None:
        return None
    known = {lane: linear(0)}
    start = i.substitute(known)
    if not divided:
        return Rows(start, ZERO, lane.size, step, 0)
    if len(divided) > 1:
        return None
    ((inner, by),) = divided
    further = {Quotient: 1, Remainder: -by}  # from the end of a row to the next
    jump = sum(f * further[type(a)] for a, f in i.terms if lane in a.free and a is not lane)
    return Rows(start, inner.substitute(known) % by, by, step, jump)


def is_in_rows(i: Linear, lane: Axis) -> bool:
    """Whether an index goes evenly along `lane` but for one place where a row ends."""
    return len(_divided(i, lane)) == 1 and _step(i, lane) is not None


def two_rows(e: Load, lane: Axis) -> Expr | None:
    """The load as a choice of two, each of elements of one row; None if it is not of two."""
    found = _divided(e.position, lane)
    if len(found) != 1 or _step(e.position, lane) is None:
        return None
    if any(_step(v.index, lane) is None or _divided(v.index, lane) - found for v in e.valid):
        return None
    ((inner, by),) = found
    begin = inner.substitute({lane: linear(0)}) % by
    first = inside(begin + linear(lane), 0, by - 1)
    rest = inside(begin + linear(lane), by, by + lane.high)
    ends = [_part(e, lane, at, held) for at, held in ((0, first), (lane.high, rest))]
    return Select((first,), ends[0], ends[1])


def steps_of_rows(e: Load, lane: Axis) -> frozenset[Axis]:
    """The axes that say where rows end in vectors along `lane`, and which of a row are masked."""
    ends = [inner.free for inner, _ in _divided(e.position, lane)]
    masks = [v.free for v in e.valid if lane in v.free and _step(v.index, lane) != 0]
    return frozenset().union(*ends, *masks)


def _part(e: Load, lane: Axis, at: int, held: Range) -> Expr:
    """The load along the row of the lane `at`, where the condition holds."""

    def straight(i: Linear) -> Linear:
        return i.substitute({lane: linear(at)}) + (linear(lane) - at) * (_step(i, lane) or 0)

    own = [inside(straight(v.index), v.low, v.high) for v in e.valid]
    valid = both(own, (held,))
    if valid is None:
        return const(0, e.dtype)
    return Load(e.slot, e.dtype, straight(e.position), valid)


def _divided(i: Linear, lane: Axis) -> set[tuple[Linear, int]]:
    """What is divided along `lane`, and by what."""
    atoms = [a for a, _ in i.terms if isinstance(a, (Quotient, Remainder)) and lane in a.free]
    return {(a.inner, a.by) for a in atoms}


def _step(i: Linear, lane: Axis, least: int = 0) -> int | None:
    """From one lane to the next of a row; None if that is not one number.

    A row has `least` lanes, or else those of a vector.
    """
    step = i.factor(lane)
    for atom, factor in i.terms:
        if atom is lane or lane not in atom.free:
            continue
        if not isinstance(atom, (Quotient, Remainder)):
            return None
        if atom.inner.stride(lane) != 1 or atom.by < (least or lane.size):
            return None
        step += factor * isinstance(atom, Remainder)
    return step
