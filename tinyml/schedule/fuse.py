"""Fuse: units are joined into groups; a group becomes one kernel.

A group walks rows: axes that all of its members share, walked together. A reduction's rows
are the axes it keeps. Inside a row, each member walks what else it has (a reduction what it
folds, a map what is left), and may read other members' values of the same row.

Two groups are joined when one reads the other row by row, so that values pass in registers:

    map into map            same elements                    chains of elementwise ops
    reduction into map      rows are axes of the map         epilogues, softmax, layernorm
    reduction into reduction  the same rows                  softmax, variance, logsumexp
    map into reduction      same elements, or one per row    prologues that others read too

Where a device keeps rows of a product in cache, a cascade is one group too: a product, folds
over its rows, and a product of what they make, as in softmax(q @ k.T) @ v. See `_cascade`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from tinyml import lazy
from tinyml.errors import TinymlError
from tinyml.lazy import LazyBuffer, Shape
from tinyml.schedule.labels import MIXED, Use, step, trace
from tinyml.schedule.masks import Masks
from tinyml.schedule.units import ASKED, CARDS, contracts, multiplies_halves

MOST_MEMBERS = 24
MOST_NODES = 1000  # of all members' expressions: keeps compile time in bounds
MOST_OUTPUTS = 48  # of an update of many buffers in one launch
FEW_ROWS = 16  # fewer rows than this with long inner walks leave a machine idle
LONG_ROW = 16384
CACHED = frozenset({"CPU"})  # devices where rows of a product can wait between folds
MOST_KEPT = 1 << 16  # elements of such a row
MOST_PACKED = 1 << 22  # elements of the factor that each row of the product walks
WIDEST = 128  # what a card's product folds, and columns of what is made of it

Place = dict[int, int]  # axis of a unit's domain -> row


@dataclass(eq=False)
class Group:
    """Units that become one kernel."""

    parts: list[list[LazyBuffer]]  # members that share rows; parts are independent
    rows: tuple[int, ...]  # the size of each row axis
    places: dict[LazyBuffer, Place]
    reduces: bool
    contracts: bool  # a product of two that repeat along the rows: wants tiles, not rows
    first: int  # positions of the members in the order of the graph
    last: int
    nodes: int  # how much there is to evaluate
    reasons: list[str] = field(default_factory=list)
    before: set[Group] = field(default_factory=set)  # groups whose values this one reads
    after: set[Group] = field(default_factory=set)

    @property
    def members(self) -> list[LazyBuffer]:
        return [member for part in self.parts for member in part]


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


def walked(shape: Shape) -> tuple[int, ...]:
    """The axes that have something to walk."""
    return tuple(a for a, n in enumerate(shape) if n != 1)


def alone(unit: LazyBuffer, reason: str, position: int, nodes: int) -> Group:
    """The group of one unit: its rows are the axes it keeps."""
    shape = domain(unit)
    folded = unit.axes if isinstance(unit, lazy.Reduce) else ()
    kept = [a for a in walked(shape) if a not in folded]
    return Group(
        parts=[[unit]],
        rows=tuple(shape[a] for a in kept),
        places={unit: {a: row for row, a in enumerate(kept)}},
        reduces=isinstance(unit, lazy.Reduce),
        contracts=contracts(unit),
        first=position,
        last=position,
        nodes=nodes,
        reasons=[f"{unit!r}: {reason}"],
    )


def _assigns(group: Group) -> bool:
    return any(isinstance(member, lazy.Assign) for member in group.members)


class CircleError(TinymlError):
    """Groups that were joined depend on each other: the search was not careful enough."""


class Fusion:
    """Joins groups until nothing more fits.

    The search for circles stops at groups that lie wholly behind the reader. That keeps it short,
    and misses a circle only where a third group lies on both sides; `careful` does not stop.
    """

    def __init__(
        self, order: Iterable[LazyBuffer], units: dict[LazyBuffer, str], careful: bool = False
    ) -> None:
        self.units, self.careful = units, careful
        self.masks = Masks(units)
        traced = {u: uses_of(u, units) for u in order if u in units}
        self.uses = {u: uses for u, (uses, _) in traced.items()}
        self.position = {unit: n for n, unit in enumerate(self.uses)}
        self.group_of: dict[LazyBuffer, Group] = {}
        for position, unit in enumerate(self.uses):
            self.group_of[unit] = alone(unit, units[unit], position, traced[unit][1])
        for unit in self.uses:
            for use in self.uses[unit]:
                if use.node in self.group_of:
                    self._link(self.group_of[use.node], self.group_of[unit])

    @staticmethod
    def _link(before: Group, after: Group) -> None:
        if before is not after:
            after.before.add(before)
            before.after.add(after)

    def groups(self) -> list[Group]:
        """The groups there are, in the order of their first members."""
        return list(dict.fromkeys(self.group_of.values()))

    def fuse(self) -> list[Group]:
        """Join along every use, readers in order; then once more, for what that made possible."""
        for _ in range(2):
            for unit in self.uses:
                for use in sorted(self.uses[unit], key=self._nearest):
                    above = self.group_of.get(use.node)
                    if above is not None and above is not self.group_of[unit]:
                        self._try(above, self.group_of[unit])
        for group in self.groups():
            self._cascade(group)
        self._join_updates()
        self._join_siblings()
        return self.groups()

    def _nearest(self, use: Use) -> int:
        group = self.group_of.get(use.node)
        return 0 if group is None else -group.last

    def _try(self, above: Group, below: Group) -> None:
        places = None
        if self._may_join(above, below):
            places = joined_places(above, below, self._uses_between(above, below))
        if places is None or self._connected_around(above, below):
            return
        self._join(above, below, places)

    def _uses_between(self, above: Group, below: Group) -> list[tuple[LazyBuffer, Use]]:
        return [
            (unit, use)
            for unit in below.members
            for use in self.uses[unit]
            if use.node in above.places
        ]

    def _may_join(self, above: Group, below: Group) -> bool:
        members = [*above.members, *below.members]
        if len(members) > MOST_MEMBERS or above.nodes + below.nodes > MOST_NODES:
            return False
        if above.contracts and _assigns(below):  # updates share launches instead
            return False
        if below.contracts and (above.reduces or below.rows != above.rows):
            return False
        devices = {m.device for m in members}
        apart = any(isinstance(m, (lazy.Copy, lazy.Scatter)) or not m.size for m in members)
        return len(devices) == 1 and devices != {"NUMPY"} and not apart

    def _cascade(self, tail: Group) -> None:
        """Join a product with the folds that made its factor, and the product that they fold.

        Nobody else may read what lies between: then it needs no memory, only a tile in cache.
        """
        if not (tail.contracts and tail in self.group_of.values()):
            return
        for middle in sorted(tail.before, key=lambda g: g.first):
            if not (middle.reduces and not middle.contracts and self._only_read_by(middle, tail)):
                continue
            for head in sorted(middle.before, key=lambda g: g.first):
                if not (head.contracts and self._only_read_by(head, middle)):
                    continue
                inner = nested_places(head, middle, self._uses_between(head, middle))
                outer = nested_places(middle, tail, self._uses_between(middle, tail))
                if inner is None or outer is None or not self._fits(head, middle, tail):
                    continue
                rows = {
                    r: outer[u][a]
                    for u, place in middle.places.items()
                    for a, r in place.items()
                    if a in outer[u]
                }
                if not all(r in rows for u in head.places for r in inner[u].values()):
                    continue  # the tail has no such row: it is of size 1 there
                self._join(middle, tail, outer)
                tail = self.group_of[tail.members[0]]
                moved = {u: {a: rows[r] for a, r in inner[u].items()} for u in head.places}
                self._join(head, tail, {**outer, **moved})
                return

    def _only_read_by(self, above: Group, below: Group) -> bool:
        asked = any(self.units[m] == ASKED for m in above.members)
        return above.after == {below} and not asked

    def _fits(self, head: Group, middle: Group, tail: Group) -> bool:
        """Whether a cascade is small enough for caches, and for one kernel."""
        members = [*head.members, *middle.members, *tail.members]
        row = prod(head.rows) // max(1, prod(middle.rows))
        within = [
            prod(domain(m)) // max(1, prod(middle.rows)) for m in (*head.members, *tail.members)
        ]
        devices = {m.device for m in members}
        kept = devices <= CACHED and row <= MOST_KEPT and max(within) <= MOST_PACKED
        narrow = max(within) <= WIDEST * row and all(
            map(multiplies_halves, (*head.members, *tail.members))
        )
        return (
            (kept or (devices <= CARDS and narrow))
            and len(members) <= MOST_MEMBERS
            and head.nodes + middle.nodes + tail.nodes <= MOST_NODES
            and not any(isinstance(m, (lazy.Copy, lazy.Scatter, lazy.Assign)) for m in members)
            and all(m.size for m in members)
        )

    def _connected_around(self, above: Group, below: Group) -> bool:
        """Whether a third group reads `above` and is read by `below`: joining made a circle."""
        stack = [g for g in above.after if g is not below]
        seen: set[Group] = set()
        while stack:
            group = stack.pop()
            if group is below:
                return True
            if group not in seen and (self.careful or group.first <= below.last):
                seen.add(group)
                stack.extend(group.after)
        return False

    def _join(
        self, above: Group, below: Group, places: dict[LazyBuffer, Place], apart: bool = False
    ) -> None:
        rows = below.rows if below.reduces or not above.reduces else above.rows
        joined = Group(
            parts=above.parts + below.parts if apart else [above.members + below.members],
            rows=rows,
            places=places,
            reduces=above.reduces or below.reduces,
            contracts=above.contracts or below.contracts,
            first=min(above.first, below.first),
            last=max(above.last, below.last),
            nodes=above.nodes + below.nodes,
            reasons=above.reasons + below.reasons,
            before=(above.before | below.before) - {above, below},
            after=(above.after | below.after) - {above, below},
        )
        for group in joined.before:
            group.after -= {above, below}
            group.after.add(joined)
        for group in joined.after:
            group.before -= {above, below}
            group.before.add(joined)
        for member in joined.members:
            self.group_of[member] = joined

    def _join_updates(self) -> None:
        """Updates of buffers, independent of each other, share launches whatever their shapes."""
        level = levels(self.groups())
        bins: dict[tuple[int, str], Group] = {}
        for group in self.groups():
            if not _assigns(group) or group.reduces or group.members[0].device == "NUMPY":
                continue
            key = level[group], group.members[0].device
            other = bins.get(key)
            few = other is not None and len(other.members) + len(group.members) <= MOST_OUTPUTS
            if other is not None and few and not self._overwrites(other, group):
                self._join(other, group, {**other.places, **group.places}, apart=True)
                group = self.group_of[group.members[0]]
            bins[key] = group

    def _overwrites(self, one: Group, other: Group) -> bool:
        """Whether either group reads what the other assigns: they must not run side by side."""
        reads = [{u.node for m in g.members for u in self.uses[m]} for g in (one, other)]
        writes = [{lazy.assigned(m) for m in g.members} for g in (one, other)]
        return bool(reads[0] & writes[1] or reads[1] & writes[0])

    def _join_siblings(self) -> None:
        """Reductions of the same rows that share an input are made in one walk over it."""
        readers: dict[object, LazyBuffer] = {}
        for group in self.groups():
            if not group.reduces or group.contracts or group.members[0].device == "NUMPY":
                continue
            lead = next(m for m in group.members if isinstance(m, lazy.Reduce))
            walks = domain(lead), lead.axes, lead.device, tuple(group.places[lead].items())
            read = dict.fromkeys(u.node for m in group.members for u in self.uses[m])
            keys = [(node, walks) for node in read if node.size > prod(group.rows)]
            for other in {self.group_of[readers[key]]: None for key in keys if key in readers}:
                if self._may_join(other, group) and not self._depend(other, group):
                    self._join(other, group, {**other.places, **group.places})
                    break
            readers.update(dict.fromkeys(keys, lead))

    def _depend(self, one: Group, other: Group) -> bool:
        """Whether one of two groups needs the other."""
        return any(
            below in above.after or self._connected_around(above, below)
            for above, below in ((one, other), (other, one))
        )


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


def joined_places(
    above: Group, below: Group, uses: list[tuple[LazyBuffer, Use]]
) -> dict[LazyBuffer, Place] | None:
    """Where the members' axes lie among the joined group's rows; None if rows do not match."""
    row_of: dict[int, int | None] = {}  # row of above -> row of below; None: walked inside
    for reader, use in uses:
        walks = walked(use.node.shape)
        labels = [use.labels[a] for a in walks]
        if any(x < 0 for x in labels) or len(set(labels)) < len(labels):
            return None  # not one to one
        whole = len(labels) == len(walked(domain(reader)))
        for axis, label in zip(walks, labels, strict=True):
            row, below_row = above.places[use.node].get(axis), below.places[reader].get(label)
            if row is None:
                if below.reduces and below_row is not None:
                    return None
            elif row_of.setdefault(row, below_row) != below_row:
                return None
        if not above.reduces and not whole and (None in row_of.values() or not below.reduces):
            return None
    return _check_rows(above, below, row_of)


def nested_places(
    above: Group, below: Group, uses: list[tuple[LazyBuffer, Use]]
) -> dict[LazyBuffer, Place] | None:
    """Where above's axes lie among below's rows, of which it may have more or fewer."""
    row_of: dict[int, int | None] = {}
    for reader, use in uses:
        walks = walked(use.node.shape)
        labels = [use.labels[a] for a in walks]
        if any(x < 0 for x in labels) or len(set(labels)) < len(labels):
            return None
        for axis, label in zip(walks, labels, strict=True):
            row, below_row = above.places[use.node].get(axis), below.places[reader].get(label)
            if row is None and below_row is not None:
                return None
            if row is not None and row_of.setdefault(row, below_row) != below_row:
                return None
    places = dict(below.places)
    for unit, place in above.places.items():
        moved = {axis: row_of.get(row) for axis, row in place.items()}
        places[unit] = {axis: row for axis, row in moved.items() if row is not None}
    return places


def _check_rows(
    above: Group, below: Group, row_of: dict[int, int | None]
) -> dict[LazyBuffer, Place] | None:
    found = [r for r in row_of.values() if r is not None]
    if len(row_of) != len(above.rows) or len(set(found)) != len(found):
        return None
    if above.reduces and len(found) != len(above.rows):
        return None
    if (below.reduces or not above.reduces) and len(found) != len(below.rows):
        return None
    if above.reduces and not below.reduces and len(found) < len(below.rows):
        return _rows_of_map(above, below, {r: a for a, r in row_of.items() if r is not None})
    places = dict(below.places)
    for unit, place in above.places.items():
        moved = {axis: row_of[row] for axis, row in place.items()}
        places[unit] = {axis: row for axis, row in moved.items() if row is not None}
    if above.reduces and not below.reduces:  # the joined group keeps above's numbering
        back = {r: a for a, r in row_of.items() if r is not None}
        return {u: {axis: back[row] for axis, row in place.items()} for u, place in places.items()}
    return places


def _rows_of_map(
    above: Group, below: Group, back: dict[int, int]
) -> dict[LazyBuffer, Place] | None:
    """A map reads a reduction: the reduction's rows become its rows, the rest is inside."""
    inner = prod(n for row, n in enumerate(below.rows) if row not in back)
    if above.contracts or (prod(above.rows) < FEW_ROWS and inner > LONG_ROW):
        return None
    places = dict(above.places)
    for unit, place in below.places.items():
        places[unit] = {axis: back[row] for axis, row in place.items() if row in back}
    return places
