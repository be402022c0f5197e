"""Values of which neighbouring lanes have the same, made once for several vectors.

Two lanes side by side have both halves of a random word, or both copies of what is repeated. So
a vector of words has each of them twice, and two such vectors are one: it is made, and its lanes
are spread over both. What is made has no loads in it, so that lanes nobody asks for do no harm.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TypeAlias

from tinyml.codegen.expr import Alu, Expr, Part, Place, with_sources
from tinyml.graph import toposort
from tinyml.index import Axis, Linear, Quotient, linear

Spread: TypeAlias = tuple[Expr, Linear]  # a vector, and which lane of it each lane has


def shared_by(values: Iterable[Expr], lanes: Iterable[Axis]) -> list[Axis]:
    """The lanes along which numbers may be those of neighbours, too."""
    places = [e for e in values if isinstance(e, Place)]
    return [lane for lane in lanes if any(e.index.stride(lane) is None for e in places)]


def made_once(values: Sequence[Expr], lane: Axis, known: Container[Expr] = ()) -> Sequence[Expr]:
    """The same values, out of vectors in which no two lanes are alike, if there is less to make.

    What is `known` is made already.
    """
    order = [e for e in toposort(values, known) if e not in known]
    found = _spread(order, lane)
    ends = _ends(order, found, values)
    several = [found[e][0] for e in toposort(ends) if e in found and isinstance(e, Alu)]
    if len(several) - len({*several}) <= len(ends):
        return values
    made: dict[Expr, Expr] = {e: Part(*found[e]) for e in ends}
    for e in order:
        if e not in made:
            made[e] = with_sources(e, tuple([made.get(s, s) for s in e.sources]))
    return [made.get(value, value) for value in values]


def _of_neighbours(index: Linear, lane: Axis) -> tuple[Linear, Linear] | None:
    """An index that several lanes in a row have in common, as one of which each lane has its own.

    And which lane of that each lane has: (lane + 8) // 2, say.
    """
    along = [(atom, factor) for atom, factor in index.terms if lane in atom.free]
    if len(along) != 1 or along[0][1] != 1 or index.looked:
        return None
    (atom, _), first = along[0], index.constant % lane.size
    if not isinstance(atom, Quotient) or atom.inner is not linear(lane):
        return None
    own = linear(atom) + first
    return (index - own + linear(lane), own) if own.high < lane.size else None


def _spread(order: Iterable[Expr], lane: Axis) -> Mapping[Expr, Spread]:
    """All values that depend on the lane by such indices alone."""
    found: dict[Expr, Spread] = {}
    for e in order:
        if lane not in e.free:
            continue
        if isinstance(e, Place) and (places := _of_neighbours(e.index, lane)) is not None:
            found[e] = Place(places[0], e.dtype), places[1]
        elif type(e) is Alu:
            along = [found.get(s) for s in e.operands if lane in s.free]
            first = along[0]
            if first is not None and all(s is not None and s[1] is first[1] for s in along):
                vectors = [found[s][0] if s in found else s for s in e.operands]
                found[e] = Alu(e.op, e.dtype, tuple(vectors)), first[1]
    return found


def _ends(order: Sequence[Expr], found: Mapping[Expr, Spread], values: Iterable[Expr]) -> set[Expr]:
    """Those of them that others are made of; where all these are made of one, it is that one."""
    readers: dict[Expr, list[Expr]] = {}
    for e in order:
        for source in e.sources:
            readers.setdefault(source, []).append(e)
    ends = {e for e in found if any(r not in found for r in readers.get(e, ()))}
    ends |= {e for e in values if e in found}
    for e in reversed([e for e in found if e not in ends]):
        mine = readers.get(e, [])
        if len(mine) > 1 and ends.issuperset(mine):
            ends -= {*mine}
            ends.add(e)
    return ends
