"""Two rows: vectors that end in the next row of what they read.

Where rows of pixels are no whole vectors, several rows are walked as one axis, which positions
divide again. A vector that is no longer than a row has a part of it, and the beginning of the next.
"""

from __future__ import annotations

from tinyml.codegen.expr import Expr, Load, Select, const
from tinyml.frozen import dataclass
from tinyml.index import Axis, Linear, Quotient, Range, Remainder, both, inside, linear


@dataclass(frozen=True)
class Rows:
    """Where a vector lies in two rows: `start` of its first lane, from which on `count` lanes at
    least are in the same row, `step` apart; those of the next row are `jump` further away."""

    start: Linear
    count: Linear
    step: int
    jump: int


def rows_of(i: Linear, lane: Axis) -> Rows | None:
    """Where an index goes along `lane`; None if it is not in rows."""
    step = _step(i, lane)
    if step is None or not is_in_rows(i, lane):
        return None
    ((inner, by),) = _divided(i, lane)
    known = {lane: linear(0)}
    further = {Quotient: 1, Remainder: -by}  # from the end of a row to the next
    jump = sum(f * further[type(a)] for a, f in i.terms if lane in a.free and a is not lane)
    return Rows(i.substitute(known), by - inner.substitute(known) % by, step, jump)


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


def _step(i: Linear, lane: Axis) -> int | None:
    """From one lane to the next of a row; None if that is not one number."""
    step = i.factor(lane)
    for atom, factor in i.terms:
        if atom is lane or lane not in atom.free:
            continue
        if not isinstance(atom, (Quotient, Remainder)):
            return None
        if atom.inner.stride(lane) != 1 or atom.by < lane.size:
            return None
        step += factor * isinstance(atom, Remainder)
    return step
