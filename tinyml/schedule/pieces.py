"""Pieces: sums down the rows of pieces of an array, and what walks these rows anyway.

The weight's gradient of a layernorm is a sum down the rows that its input's gradient is made of.
Added up where these are made, row by row, it reads nothing from memory that is not read anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from tinyml import lazy
from tinyml.frozen import dataclass
from tinyml.lazy import LazyBuffer
from tinyml.ops import Movement
from tinyml.schedule.group import FEW_ROWS, Group, Place, walked
from tinyml.schedule.labels import Use, trace
from tinyml.schedule.split import COLUMNS


@dataclass(frozen=True)
class Pieces:
    """A sum of `source` down the last of its first axes, of which one may be cut into `count`."""

    source: LazyBuffer
    rows: tuple[int, ...]  # the first axes: pieces, and what a piece adds up
    cut: int = -1  # the axis that is cut
    count: int = 0

    def place(self, row_of: Place) -> Place:
        """Where the axes of the sum's domain lie, if those of the source lie there."""
        found: Place = {}
        for axis in self.rows:
            later = axis + (self.count > 0 and axis > self.cut)
            found[later] = row_of[axis]
            if axis == self.cut:
                found[later + 1] = row_of[axis]
        return found


def in_pieces(unit: LazyBuffer) -> Pieces | None:
    """What a unit adds up in pieces, if it does: enough of them for all cores, of few columns."""
    if not isinstance(unit, lazy.Reduce):
        return None
    shape, last = unit.sources[0].shape, max(unit.axes)
    first = [a for a in walked(shape) if a <= last and a not in unit.axes]
    before = prod(shape[a] for a in first)
    some = 1 < prod(shape[last + 1 :]) <= COLUMNS
    if before < FEW_ROWS or not some or max(first) > min(unit.axes):
        return None
    source = unit.sources[0]
    if lazy.is_move(source, Movement.RESHAPE):
        below, cut = source.sources[0], max(first)
        joined = (*shape[:cut], shape[cut] * shape[cut + 1], *shape[cut + 2 :])
        if below.shape == joined and cut + 1 in unit.axes:
            rows = tuple(a for a in walked(joined) if a < last)
            return Pieces(below, rows, cut, shape[cut])
    return Pieces(source, tuple(a for a in walked(shape) if a <= last))


def walks(group: Group, pieces: Pieces, uses: Mapping[LazyBuffer, Sequence[Use]]) -> Place | None:
    """By axis, the rows of a group that walks those of all pieces, with what they are made of."""
    source = pieces.source
    walked_by = [(use, group.places[member]) for member in group.members for use in uses[member]]
    for use, place in walked_by:  # elements that lie apart: several rows are walked at once
        if use.node.size == source.size and use.labels[walked(use.node.shape)[-1]] in place:
            return None
    read, _ = trace([(source, tuple(range(len(source.shape))))], uses)
    own = [(use, group.places[use.node]) for use in read if use.node in group.places]
    for use in (use for use in read if use.node.size == source.size):
        for place in _places(group, use.node, uses):
            found = {use.labels[axis]: row for axis, row in place.items()}
            whole = sorted(found.values()) == [*range(len(group.rows))]
            if whole and tuple(sorted(found)) == pieces.rows and _agree(own, found):
                return found
    return None


def _agree(own: Iterable[tuple[Use, Place]], found: Place) -> bool:
    """Whether all that is made in a row is read in that row."""
    return all(
        found.get(use.labels[axis]) == row for use, place in own for axis, row in place.items()
    )


def _places(
    group: Group, node: LazyBuffer, uses: Mapping[LazyBuffer, Sequence[Use]]
) -> Iterable[Place]:
    """Where the axes of what a group makes or reads lie among its rows."""
    if node in group.places:
        yield group.places[node]
    for member in group.members:
        place = group.places[member]
        for use in uses[member]:
            if use.node is node:
                yield {a: place[label] for a, label in enumerate(use.labels) if label in place}
