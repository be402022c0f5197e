"""Fuse: units are joined into groups; a group becomes one kernel.

A group walks rows: axes that all of its members share, walked together. A reduction's rows
are the axes it keeps. Inside a row, each member walks what else it has (a reduction what it
folds, a map what is left), and may read other members' values of the same row.

Two groups are joined when one reads the other row by row, so that values pass in registers:

    map into map            same elements                    chains of elementwise ops
    reduction into map      rows are axes of the map         epilogues, softmax, layernorm
    reduction into reduction  the same rows                  softmax, variance, logsumexp
    map into reduction      same elements, or one per row    prologues that others read too

Where a device keeps rows of a product close by, a cascade is one group too: a product, folds
over its rows, and a product of what they make, as in softmax(q @ k.T) @ v; or only the two
products. See `_cascade`. There a sum down rows joins what walks the rows, too. See `_join_pieces`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from math import prod
from typing import Any

from tinyml import lazy
from tinyml.lazy import LazyBuffer
from tinyml.schedule.balance import made_apart, made_within
from tinyml.schedule.contracts import contracts
from tinyml.schedule.group import (
    APART,
    FEW_ROWS,
    LONG_ROW,
    Group,
    Places,
    adds_up,
    alone,
    assigns,
    domain,
    fits,
    folded,
    idles,
    is_exact,
    joined_places,
    led,
    levels,
    link,
    nested_places,
    uses_of,
)
from tinyml.schedule.labels import FIXED, MIXED, Labels, Use, trace
from tinyml.schedule.masks import Masks
from tinyml.schedule.pieces import in_pieces, walks
from tinyml.schedule.recompute import is_worth_it
from tinyml.schedule.units import ASKED, CARDS

MOST_MEMBERS = 24
MOST_NODES = 1000  # of all members' expressions: keeps compile time in bounds
MOST_OUTPUTS = 48  # of an update of many buffers in one launch
FEW = 8  # rows of a card that share what they fold: each reads it, out of a cache


class Fusion:
    """Joins groups until nothing more fits.

    The search for circles stops at groups that lie wholly behind the reader. That keeps it short,
    and misses a circle only where a third group lies on both sides; `careful` does not stop.
    """

    def __init__(
        self, order: Sequence[LazyBuffer], units: dict[LazyBuffer, str], careful: bool = False
    ) -> None:
        self.units, self.careful = units, careful
        self.masks = Masks(units)
        self.masks.learn(order)
        self.fixed: dict[LazyBuffer, LazyBuffer] = {}  # what reads no memory, as in all kernels
        self.paddings: dict[LazyBuffer, int] = {}  # elements behind rows of what is stored
        self.recomputed = [n for n in order if isinstance(n, lazy.Reduce) and n not in units]
        self.recomputes: set[LazyBuffer] = set()  # what is made of them, but not through a unit
        for node in order if self.recomputed else ():
            inner = (s for s in lazy.read_sources(node) if s not in units)
            if any(isinstance(s, lazy.Reduce) or s in self.recomputes for s in inner):
                self.recomputes.add(node)
        traced = {u: uses_of(u, units) for u in order if u in units}
        self.uses = {u: uses for u, (uses, _) in traced.items()}
        self.position = {unit: n for n, unit in enumerate(self.uses)}
        self.tried: dict[tuple[Group, Group], Places | None] = {}
        self.group_of: dict[LazyBuffer, Group] = {}
        for position, unit in enumerate(self.uses):
            self.group_of[unit] = alone(unit, position, traced[unit][1])
        self.readers: dict[LazyBuffer, list[LazyBuffer]] = {}
        for unit in self.uses:
            for use in self.uses[unit]:
                self.readers.setdefault(use.node, []).append(unit)
                if use.node in self.group_of:
                    link(self.group_of[use.node], self.group_of[unit])
        self.ends = self._find_ends()
        self.folds = {*self.recomputed, *self.uses}
        self.walks: dict[LazyBuffer, list[Use]] = {}  # what folds read of these

    def groups(self) -> list[Group]:
        """The groups there are, in the order of their first members."""
        return list(dict.fromkeys(self.group_of.values()))

    def fuse(self) -> list[Group]:
        """Join along every use, readers in order; then once more, for what that made possible.

        Single numbers come last: two that one kernel makes, as a loss and how many labels count for
        its gradient, would keep apart the rows that one is made of and those that need the other.
        """
        for _ in range(2):
            for unit in sorted(self.uses, key=lambda u: u.size == 1):
                for use in sorted(self.uses[unit], key=self._nearest):
                    above = self.group_of.get(use.node)
                    if above is not None and above is not self.group_of[unit]:
                        self._try(above, self.group_of[unit])
        for group in self.groups():
            self._cascade(group)
        for node in reversed(self.recomputed):  # the last one is made of fewest
            self._join_ends(node)
        for node in self.recomputed:
            self._join_across(node, self._join_beside(node))
        for lead in [u for u in self.uses if isinstance(u, lazy.Reduce)]:
            self._join_pieces(lead)
        self._join_updates()
        self._join_siblings()
        return self.groups()

    def _nearest(self, use: Use) -> tuple[bool, int]:
        """Products first: what follows one element by element need not be read again."""
        group = self.group_of.get(use.node)
        return (True, 0) if group is None else (not group.contracts, -group.last)

    def _try(self, above: Group, below: Group) -> None:
        pair = above, below
        if pair not in self.tried:
            apart = above.reduces and not self.ends.isdisjoint(below.members)  # see _join_ends
            may = not apart and self._may_join(above, below)
            uses = self._uses_between(above, below) if may else []
            self.tried[pair] = joined_places(above, below, uses) if may else None
        places = self.tried[pair]
        if places is not None and not self._connected_around(above, below):
            self._join(above, below, places)

    def _uses_between(self, above: Group, below: Group) -> list[tuple[LazyBuffer, Use]]:
        return [
            (unit, use)
            for unit in below.members
            for use in self.uses[unit]
            if use.node in above.places
        ]

    def _may_join(self, above: Group, below: Group) -> bool:
        if not self._small(above, below) or above.apart or below.apart:
            return False
        if above.contracts and assigns(below):  # updates share launches instead
            return False
        if below.contracts and (above.reduces or below.rows != above.rows):
            return False
        rows = prod(above.rows) if above.reduces and not below.reduces else FEW_ROWS
        if rows < FEW_ROWS and prod(below.rows) > LONG_ROW * rows:
            return False
        if above.device in CARDS and idles(above, below, self._uses_between):
            return False
        if any(apart(above, below, self.uses) for apart in APART):
            return False
        if above.cut and below.cut and above.cut != below.cut:
            return False
        return above.device == below.device != "NUMPY"

    def _cascade(self, tail: Group) -> None:
        """Join a product with the folds that made its factor, and the product that they fold.

        Nobody else may read what lies between: then it needs no memory, only a tile in cache.
        """
        if not (tail.reduces and tail in self.group_of.values()):
            return
        self._join_long(tail)
        for middle in sorted(tail.before, key=lambda g: g.first):
            if tail.contracts and self._along(middle, tail):
                return
            if middle.contracts and tail.contracts and self._join_single(middle, tail):
                return
            if not (middle.reduces and not middle.contracts and self._only_read_by(middle, tail)):
                continue
            for head in sorted(middle.before, key=lambda g: g.first):
                known = head.reduces and self._only_read_by(head, middle, tail)
                if known and self._join_cascade(head, middle, tail):
                    return

    def _join_cascade(self, head: Group, middle: Group, tail: Group) -> bool:
        """Make three groups one. Where a card's rows share little, those of the middle are rows."""
        inner = nested_places(head, middle, self._uses_between(head, middle))
        outer = nested_places(middle, tail, self._uses_between(middle, tail))
        small = self._small(head, middle, tail) and fits(prod(middle.rows), head, middle, tail)
        if inner is None or outer is None or not small:
            return False
        rows = {
            r: outer[u][a]
            for u, place in middle.places.items()
            for a, r in place.items()
            if a in outer[u]
        }
        if not all(r in rows for u in head.places for r in inner[u].values()):
            return False  # the tail has no such row: it is of size 1 there
        moved = {u: {a: rows[r] for a, r in inner[u].items()} for u in head.places}
        uses = self._uses_between(head, tail)  # of the same rows as the middle's
        same = nested_places(head, tail, uses) if uses else moved
        if same is None or any(same[u] != moved[u] for u in moved):
            return False
        kept = {*rows.values()}
        inside = [(u, {*inner[u]}) for u in head.places]
        inside += [(u, {a for a in p if p[a] in kept}) for u, p in tail.places.items()]
        beside = tail.device in CARDS and led(middle) and self._few(inside)
        if not (beside or (head.contracts and tail.contracts)):
            return False
        self._join(middle, tail, outer)
        tail = self.group_of[tail.members[0]]
        self._join(head, tail, {**outer, **moved})
        if beside:
            self._walk_beside(tail.members[0], kept)
        return True

    def _join_single(self, head: Group, tail: Group) -> bool:
        """Join a product with one that folds it, if what lies between is not worth storing."""
        inner = nested_places(head, tail, self._uses_between(head, tail))
        if inner is None or not self._only_read_by(head, tail):
            return False
        folds = [m for m in (*head.members, *tail.members) if isinstance(m, lazy.Reduce)]
        product = folds[0]
        rows = prod(tail.rows[r] for r in {r for m in head.members for r in inner[m].values()})
        steps = {a: n for a, n in enumerate(product.shape) if n > 1 and a not in inner[product]}
        may = len(folds) == 2 and made_within(product, prod(tail.rows) // rows)
        may = may and self._small(head, tail) and fits(rows, head, tail)
        if may and is_worth_it(product, steps, few=0):
            self._join(head, tail, inner)
        return tail not in self.group_of.values()

    def _join_long(self, tail: Group) -> None:
        """Join the folds of a few long rows with what a cascade folds further, made of them."""
        between = [g for g in tail.before if not (g.reduces or g.apart)]
        for made in [g for g in between if self._only_read_by(g, tail)]:
            before = [g for g in made.before if self._only_read_by(g, made, tail)]
            for folds in [g for g in before if g.reduces]:
                known = tail.device in CARDS and led(folds) and is_exact(made)
                known = known and all(head.reduces for head in folds.before)
                uses = self._uses_between(folds, made)
                places = joined_places(folds, made, uses) if known else None
                if places is not None and not self._connected_around(folds, made):
                    self._join(folds, made, places)
                    return

    def _few(self, units: Iterable[tuple[LazyBuffer, set[int]]]) -> bool:
        """Whether few rows read the same elements of what folds walk on either side of them.

        Each unit comes with those of its axes that rows walk.
        """
        for unit, rows in units:
            fold, inner = folded(unit), {*range(len(domain(unit)))} - rows
            walk = self._walking(unit, {*fold}) & self._walking(unit, inner.difference(fold))
            if any(prod(domain(unit)) > FEW * node.size for node in walk if fold):
                return False
        return True

    def _walking(self, unit: LazyBuffer, axes: set[int]) -> set[LazyBuffer]:
        """What a fold reads elsewhere as it walks some of its axes."""
        labels = tuple(0 if a in axes else FIXED for a in range(len(domain(unit))))
        uses, _ = trace([(unit.sources[0], labels)], self.units)
        return {use.node for use in uses if {*use.labels} != {FIXED}}

    def _walk_beside(self, member: LazyBuffer, kept: set[int]) -> None:
        """Give a group of these of its rows only; what else there is each row walks inside."""
        group, number = self.group_of[member], {row: n for n, row in enumerate(sorted(kept))}
        group.rows = tuple(group.rows[row] for row in number)
        for unit, place in group.places.items():
            group.places[unit] = {a: number[row] for a, row in place.items() if row in number}

    def _along(self, middle: Group, tail: Group) -> bool:
        """Join folds over a product that is nowhere stored with what folds it along the same rows.

        What others read of the folds is stored: an element of each row.
        """
        recomputes = all(any(m in self.recomputes for m in g.members) for g in (middle, tail))
        if not recomputes or middle.contracts or not middle.reduces:
            return False
        outer = nested_places(middle, tail, self._uses_between(middle, tail))
        whole = outer is not None and all(len(outer[m]) == len(p) for m, p in middle.places.items())
        if outer is None or not whole or self._connected_around(middle, tail):
            return False
        self._join(middle, tail, outer)
        return True

    def _find_ends(self) -> set[lazy.Reduce]:
        """Folds of what products make again that no fold of such waits for."""
        ends = {u for u in self.recomputes if isinstance(u, lazy.Reduce) and not contracts(u)}
        awaited: set[LazyBuffer] = set()
        for unit in reversed(self.uses if ends else ()):
            if any(r in self.recomputes or r in awaited for r in self.readers.get(unit, ())):
                awaited.add(unit)
        return ends & (self.uses.keys() - awaited)

    def _join_ends(self, node: LazyBuffer) -> None:
        """Join what ends in folds over a product with a product that walks the same rows of it.

        That makes the same again, and so need not be behind what these folds wait for.
        """
        for end in sorted(self.ends, key=self.position.__getitem__):
            products = (u for u in self.uses if u in self.recomputes and contracts(u))
            if any(self._joined_beside(node, lead, end) for lead in products):
                self.ends.remove(end)

    def _join_beside(self, node: LazyBuffer) -> dict[tuple[int, ...], LazyBuffer]:
        """Join what folds a product that is nowhere stored along the same axes: it is made once.

        The answer is one of those that keep each axes of the product.
        """
        beside: dict[tuple[int, ...], LazyBuffer] = {}
        for lead in [u for u in self.uses if u in self.recomputes and contracts(u)]:
            axes = self._rows_along(node, lead)
            if axes is not None:
                other = beside.setdefault(tuple(sorted(axes.values())), lead)
                self._joined_beside(node, other, lead)
        return beside

    def _joined_beside(self, node: LazyBuffer, other: LazyBuffer, lead: LazyBuffer) -> bool:
        """Whether two folds of a product could be joined: the rows are the axes that both keep."""
        axes = [self._rows_along(node, first) for first in (other, lead)]
        groups = self.group_of[other], self.group_of[lead]
        if None in axes or groups[0] is groups[1]:
            return False
        rows, more = (sorted(found.values()) for found in axes if found is not None)
        apart = made_apart(other, lead, prod(node.shape[a] for a in rows))
        if rows != more or apart or self._depend(*groups) or not self._small(*groups):
            return False
        places: Places = {}
        for group, row_of in zip(groups, axes, strict=True):
            new = {row: rows.index(a) for row, a in (row_of or {}).items()}
            for member, place in group.places.items():
                places[member] = {a: new[row] for a, row in place.items() if row in new}
        self._join(*groups, places)
        self.group_of[lead].rows = tuple(node.shape[a] for a in rows)
        return True

    def _join_across(self, node: LazyBuffer, beside: Mapping[Any, LazyBuffer]) -> None:
        """Join a sum over a product that is nowhere stored with what folds that the other way.

        What each row gives of the sum is added up in memory. So the rows that the sum has not are
        walked in order, and there have to be enough of the others.
        """
        for lead, other in permutations(beside.values(), 2):
            above, below = self.group_of[lead], self.group_of[other]
            labels, row_of = self._labels(node, lead), self._rows_along(node, other)
            if above is below or labels is None or row_of is None or not adds_up(lead, above):
                continue
            place = {labels[a]: row for row, a in row_of.items() if labels[a] >= 0}
            kept = prod(below.rows[row] for a, row in place.items() if a not in folded(lead))
            whole = len(place) == len(below.rows)
            if not whole or kept < FEW_ROWS or self._depend(above, below):
                continue
            if self._small(above, below):
                self._join(above, below, {**below.places, **dict.fromkeys(above.members, place)})

    def _join_pieces(self, lead: LazyBuffer) -> None:
        """Join a sum down pieces of columns with what walks the rows that it reads.

        A row is added to its piece's sum in memory, while it lies in a cache anyway. So the rows of
        a piece are walked in order.
        """
        above, found = self.group_of[lead], in_pieces(lead)
        if found is None or not adds_up(lead, above):
            return
        for below in self._beside(above):
            if not below.reduces or below.contracts or below.apart or assigns(below):
                continue
            row_of = walks(below, found, self.uses)
            if row_of is None or not self._small(above, below) or self._waits(below, above):
                continue
            cut = (row_of[found.cut], found.count) if found.count else None
            if cut is None or below.cut in (None, cut):
                above.cut = cut
                place = found.place(row_of)
                self._join(above, below, {**below.places, **dict.fromkeys(above.members, place)})
                return

    def _beside(self, group: Group) -> list[Group]:
        """Groups that a group reads, or that read the same, last ones first."""
        read = dict.fromkeys(use.node for member in group.members for use in self.uses[member])
        found = {*group.before, *(self.group_of[u] for n in read for u in self.readers[n])}
        return sorted(found - {group}, key=lambda g: -g.last)

    def _waits(self, one: Group, other: Group) -> bool:
        """Whether one group needs the other, or is needed by it through a third."""
        around = self._connected_around
        return other in one.before or around(other, one) or around(one, other)

    def _rows_along(self, node: LazyBuffer, lead: LazyBuffer) -> dict[int, int] | None:
        """By row of the group of `lead`, which folds `node`, the axis of `node`; None if mixed."""
        labels, place = self._labels(node, lead), self.group_of[lead].places[lead]
        return None if labels is None else {place[x]: a for a, x in enumerate(labels) if x in place}

    def _labels(self, node: LazyBuffer, lead: LazyBuffer) -> Labels | None:
        """The axes that `lead`, which folds `node`, walks those of `node` along; None if mixed."""
        if lead not in self.walks:
            start = lead.sources[0], tuple(range(len(domain(lead))))
            self.walks[lead], _ = trace([start], self.folds)
        labels = [use.labels for use in self.walks[lead] if use.node is node]
        return labels[0] if len(labels) == 1 and MIXED not in labels[0] else None

    @staticmethod
    def _small(*groups: Group) -> bool:
        members = sum([len(g.members) for g in groups])
        return members <= MOST_MEMBERS and sum([g.nodes for g in groups]) <= MOST_NODES

    def _only_read_by(self, above: Group, *below: Group) -> bool:
        asked = any(self.units[m] == ASKED for m in above.members)
        return above.after <= {*below} and not asked

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

    def _join(self, above: Group, below: Group, places: Places, apart: bool = False) -> None:
        rows = below.rows if below.reduces or not above.reduces else above.rows
        joined = Group(
            parts=above.parts + below.parts if apart else [above.members + below.members],
            rows=rows,
            places=places,
            device=below.device,
            apart=above.apart or below.apart,
            reduces=above.reduces or below.reduces,
            contracts=above.contracts or below.contracts,
            cut=above.cut or below.cut,
            first=min(above.first, below.first),
            last=max(above.last, below.last),
            nodes=above.nodes + below.nodes,
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
            if not assigns(group) or group.reduces or group.device == "NUMPY":
                continue
            key = level[group], group.device
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
            if not group.reduces or group.contracts or group.device == "NUMPY":
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
