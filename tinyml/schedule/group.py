"""Groups: units that become one kernel, and where their axes lie among the rows that they share."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

from tinyml import lazy
from tinyml.errors import TinymlError
from tinyml.graph import toposort
from tinyml.lazy import LazyBuffer, Shape
from tinyml.ops import Op
from tinyml.schedule.balance import WIDEST
from tinyml.schedule.contracts import contracts, contracts_moved
from tinyml.schedule.labels import FIXED, MIXED, Use, step, trace, unshaped
from tinyml.schedule.powers import POWERS, exact
from tinyml.schedule.split import EXTREMES
from tinyml.schedule.units import CARDS

CACHED = frozenset({"CPU"})  # devices where rows of a product can wait between folds
MOST_KEPT = 1 << 22  # elements of such a row of a product
MOST_PACKED = 1 << 28  # elements of the factor that each row of the product walks
FEW_ROWS = 16  # fewer rows than this with long inner walks leave a machine idle
LONG_ROW = 16384
ACROSS = 16  # elements that stand apart in memory, and one sum is written to
LONG_WALK = 1024  # elements of a row that a warp of a card walks
WARPS, COLUMNS = 2048, 1 << 15  # rows that keep a card busy: a warp has each, or a thread

Place = dict[int, int]  # axis of a unit's domain -> row
Places = dict[LazyBuffer, Place]
_RowOf = dict[int, int | None]  # by row of one group, that of its reader; None: walked inside


@dataclass(eq=False)
class Group:
    """Units that become one kernel."""

    parts: list[list[LazyBuffer]]  # members that share rows; parts are independent
    rows: tuple[int, ...]  # the size of each row axis
    places: Places
    device: str
    apart: bool  # never joined: a copy, a scatter, or without elements
    reduces: bool
    contracts: bool  # a contraction, which wants tiles, not rows
    first: int  # positions of the members in the order of the graph
    last: int
    nodes: int  # how much there is to evaluate
    cut: tuple[int, int] | None = None  # a row, and its pieces: the rest is walked in order
    before: set[Group] = field(default_factory=set)  # groups whose values this one reads
    after: set[Group] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.members = [member for part in self.parts for member in part]


def link(before: Group, after: Group) -> None:
    """One group comes before another."""
    if before is not after:
        after.before.add(before)
        before.after.add(after)


def domain(unit: LazyBuffer) -> Shape:
    """The shape that computing `unit` walks."""
    match unit:
        case lazy.Reduce():
            return unit.sources[0].shape
        case lazy.Scatter():
            return unit.sources[1].shape
    return unit.shape


def uses_of(unit: LazyBuffer, units: Container[LazyBuffer]) -> tuple[list[Use], int]:
    """What computing `unit` reads, labelled by the axes of its domain; and how many nodes."""
    axes = tuple(range(len(domain(unit))))
    match unit:
        case lazy.Reduce():
            starts = [(unit.sources[0], axes)]
        case lazy.Assign():
            starts = [(unit.sources[1], axes)]
        case lazy.Scatter():
            base = unit.sources[0]  # computed first, by a kernel of its own
            starts = [(source, axes) for source in unit.sources[1:]]
            starts.append((base, (MIXED,) * len(base.shape)))
        case _:
            starts = step(unit, axes)
    return trace(starts, units)


@lru_cache(maxsize=4096)
def walked(shape: Shape) -> tuple[int, ...]:
    """The axes that have something to walk."""
    return tuple(a for a, n in enumerate(shape) if n != 1)


def folded(unit: LazyBuffer) -> tuple[int, ...]:
    """The axes of its domain that a unit does not keep."""
    return unit.axes if isinstance(unit, lazy.Reduce) else ()


def alone(unit: LazyBuffer, position: int, nodes: int) -> Group:
    """The group of one unit: its rows are the axes it keeps."""
    shape, within = domain(unit), folded(unit)
    kept = [a for a in walked(shape) if a not in within]
    return Group(
        parts=[[unit]],
        rows=tuple(shape[a] for a in kept),
        places={unit: {a: row for row, a in enumerate(kept)}},
        device=unit.device,
        apart=isinstance(unit, (lazy.Copy, lazy.Scatter)) or not unit.size,
        reduces=isinstance(unit, lazy.Reduce),
        contracts=contracts(unit),
        first=position,
        last=position,
        nodes=nodes,
    )


def assigns(group: Group) -> bool:
    return any(isinstance(member, lazy.Assign) for member in group.members)


def fits(rows: int, *groups: Group) -> bool:
    """Whether a cascade (see fuse.py) of so many rows is small enough for caches."""
    (head, *_, tail), rows = groups, max(1, rows)
    row = prod(head.rows) // rows
    within = [prod(domain(m)) // rows for m in (*head.members, *tail.members)]
    devices = {g.device for g in groups}
    kept = devices <= CACHED and row <= MOST_KEPT and max(within) <= MOST_PACKED
    narrow = devices <= CARDS and max(within) <= WIDEST * row
    return (kept or narrow) and not any(g.apart or assigns(g) for g in groups)


def adds_up(lead: LazyBuffer, group: Group) -> bool:
    """Whether a group is nothing but a sum whose steps can be added up in memory."""
    whole = lead.dtype.is_float and not lead.dtype.is_half and lead.device in CACHED
    single = all(unshaped(member) is lead for member in group.members)
    return whole and single and isinstance(lead, lazy.Reduce) and lead.op is Op.ADD


def led(group: Group) -> bool:
    """Whether exponentials are of what the largest was subtracted from, as in a stable softmax."""
    inside = {*group.members}
    made = toposort(inside, (), lambda e: () if _ends(e, inside) else e.sources)
    ops = {e.op for e in made if isinstance(e, (lazy.Map, lazy.Reduce)) and not _ends(e, inside)}
    return is_exact(group) and not (ops.isdisjoint(EXTREMES) or ops.isdisjoint(POWERS))


def is_exact(group: Group) -> bool:
    """Whether nothing is rounded to numbers that have other exponents."""
    return all(map(exact, group.members))


def _ends(node: LazyBuffer, inside: Container[LazyBuffer]) -> bool:
    return isinstance(node, lazy.Reduce) and node not in inside


Between = Callable[[Group, Group], Sequence[tuple[LazyBuffer, Use]]]  # what one reads of another


class CircleError(TinymlError):
    """Groups that were joined depend on each other: the search was not careful enough."""


def levels(groups: Iterable[Group]) -> dict[Group, int]:
    """How many groups come before each at least; equal levels never depend on each other."""
    level: dict[Group, int] = {}
    for group in ordered(groups):
        level[group] = max((level[g] + 1 for g in group.before), default=0)
    return level


def ordered(groups: Iterable[Group]) -> list[Group]:
    """Groups after all groups that they read.

    Of those that a group makes ready, the one with the shortest way to a result comes first: it
    is done with what it reads soonest, so that less memory is in use (the gradient of a weight
    before the gradient of the layer below).
    """
    groups = sorted(groups, key=lambda g: g.first)
    way = _ways_to_results(groups)
    waiting = {g: len(g.before) for g in groups}
    ready = [g for g in reversed(groups) if not waiting[g]]
    done: list[Group] = []
    while ready:
        group = ready.pop()
        done.append(group)
        for reader in sorted(group.after, key=lambda g: (-way[g], -g.first)):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return done


def _ways_to_results(groups: Sequence[Group]) -> dict[Group, int]:
    """How many groups come after each, on the longest way; CircleError if there is a circle."""
    unread = {g: len(g.after) for g in groups}
    last = [g for g in groups if not unread[g]]
    way = dict.fromkeys(last, 0)
    for group in last:  # grows
        for source in group.before:
            way[source] = max(way.get(source, 0), way[group] + 1)
            unread[source] -= 1
            if not unread[source]:
                last.append(source)
    if len(last) < len(groups):
        raise CircleError(f"{len(groups) - len(last)} groups depend on each other in a circle")
    return way


def idles(above: Group, below: Group, between: Between) -> bool:
    """Whether a reduction has too few rows to keep a card busy with the elementwise ops behind it.

    As statistics of channels are; or rows lie side by side, and walks are across them. Rows that
    are read to be folded stay with the walks, which then read them out of a cache.
    """
    rows, walks = prod(above.rows), prod(below.rows)
    if below.reduces or not above.reduces or walks <= LONG_WALK * rows:
        return False
    if rows < WARPS and sum(prod(domain(u)) for u in above.members) < walks:
        return True
    uses = between(above, below) if rows < COLUMNS else ()
    return any(walked(domain(unit))[-1] in use.labels for unit, use in uses)


def crosses(above: Group, below: Group, reads: Mapping[LazyBuffer, Sequence[Use]]) -> bool:
    """Whether rows are folded along memory, and then written across it, again and again.

    Apart, results are read as vectors. Walks that read what is folded find it in a cache.
    """
    if below.reduces or not above.reduces:
        return False
    made = [(unit, use) for unit in above.members for use in reads[unit]]
    own = [(unit, use) for unit in below.members for use in reads[unit]]
    if not {use.node for _, use in made}.isdisjoint(use.node for _, use in own):
        return False
    across = any(use.node in above.places and _is_across(unit, use) for unit, use in own)
    return across and any(_along(use) in folded(unit) for unit, use in made)


def turns(above: Group, below: Group, reads: Mapping[LazyBuffer, Sequence[Use]]) -> bool:
    """Whether one group copies what rows of the other make into another order.

    A card that stores it row by row stores number by number; products store squares.
    """
    rows = above.device in CARDS and not any(map(contracts_moved, above.members))
    return rows and any(
        isinstance(unit, lazy.Contiguous)
        and use.node in above.places
        and (last := walked(domain(unit))[-1:])
        and _along(use) not in (FIXED, *last)
        for unit in below.members
        for use in reads[unit]
    )


def opposes(above: Group, below: Group, reads: Mapping[LazyBuffer, Sequence[Use]]) -> bool:
    """Whether one group folds along memory, and the other down rows that lie side by side.

    As in A @ x + A.T @ x: one kernel would read a factor across, and gain nothing but its sums.
    """
    ways = [
        {
            _along(use) in folded(unit)
            for unit in group.members
            for use in reads[unit]
            if prod(domain(unit)) >= LONG_ROW and _is_spread(unit, use)
        }
        for group in (above, below)
    ]
    return all(ways) and ways[0].isdisjoint(ways[1])


def adds_products(above: Group, below: Group, reads: Mapping[LazyBuffer, Sequence[Use]]) -> bool:
    """Whether several products would be added up, and leave no registers for each one's sums.

    They have moved, as windows have, or `contracts` would keep them apart.
    """
    if not all(any(map(contracts_moved, group.members)) for group in (above, below)):
        return False
    readers = [u for u in below.members if any(use.node in above.places for use in reads[u])]
    return bool(readers) and all(isinstance(unit, lazy.Map) for unit in readers)


def _is_spread(unit: LazyBuffer, use: Use) -> bool:
    """Whether a fold reads other elements for each row, and for each step."""
    steps, walks = folded(unit), {a for a in use.labels if a >= 0}
    return _along(use) >= 0 and not walks.isdisjoint(steps) and not walks <= {*steps}


def _along(use: Use) -> int:
    """The reader's axis that walks what lies side by side."""
    walks = walked(use.node.shape)
    return use.labels[walks[-1]] if walks else MIXED


def _is_across(unit: LazyBuffer, use: Use) -> bool:
    """Whether a map has rows side by side, and walks many elements outside of them for each."""
    shape = domain(unit)
    walks = [a for a in walked(shape) if a not in use.labels]
    return walked(shape)[-1:] != (*walks[-1:],) and prod(shape[a] for a in walks) >= ACROSS


def joined_places(
    above: Group, below: Group, uses: Iterable[tuple[LazyBuffer, Use]]
) -> Places | None:
    """Where the members' axes lie among the joined group's rows; None if rows do not match."""
    row_of: _RowOf = {}
    for reader, use in uses:
        if not _matches(row_of, above.places[use.node], below.places[reader], use, below.reduces):
            return None
        whole = above.reduces or len(walked(use.node.shape)) == len(walked(domain(reader)))
        if not whole and (None in row_of.values() or not below.reduces):
            return None
    return _check_rows(above, below, row_of)


def nested_places(
    above: Group, below: Group, uses: Iterable[tuple[LazyBuffer, Use]]
) -> Places | None:
    """Where above's axes lie among below's rows, of which it may have more or fewer."""
    row_of: _RowOf = {}
    for reader, use in uses:
        if not _matches(row_of, above.places[use.node], below.places[reader], use, True):
            return None
    return {**below.places, **_moved(above.places, row_of)}


def _matches(row_of: _RowOf, rows: Place, below: Place, use: Use, folds: bool) -> bool:
    """Whether each row of what is read is one row of its reader, and the same one as so far.

    What the reader `folds` along its own rows must lie along rows of what it reads.
    """
    walks = walked(use.node.shape)
    labels = [use.labels[a] for a in walks]
    if min(labels, default=0) < 0 or len({*labels}) < len(labels):
        return False
    for axis, label in zip(walks, labels, strict=True):
        row, below_row = rows.get(axis), below.get(label)
        if row is None:
            if folds and below_row is not None:
                return False
        elif row_of.setdefault(row, below_row) != below_row:
            return False
    return True


def _check_rows(above: Group, below: Group, row_of: _RowOf) -> Places | None:
    kept = [row for row in row_of.values() if row is not None]
    if len(row_of) != len(above.rows) or len({*kept}) < len(kept):
        return None
    if above.reduces and len(kept) < len(above.rows):
        return None
    if below.reduces or not above.reduces:
        whole = len(kept) == len(below.rows)
        return {**below.places, **_moved(above.places, row_of)} if whole else None
    if above.contracts and len(kept) < len(below.rows):
        return None
    # a map reads a reduction: the reduction's rows become its rows, the rest is inside
    back = {to: row for row, to in row_of.items() if to is not None}
    return {**above.places, **_moved(below.places, back)}


def _moved(places: Places, row_of: Mapping[int, int | None]) -> Places:
    """Places among other rows; what is none of these is walked inside."""
    return {
        unit: {axis: to for axis, row in place.items() if (to := row_of.get(row)) is not None}
        for unit, place in places.items()
    }


APART = crosses, opposes, turns, adds_products  # of groups that would lose by it if joined
