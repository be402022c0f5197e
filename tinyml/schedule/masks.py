"""Masks: what is known of a stored value without reading it.

Attention's weights are 0 above the diagonal, and so is the gradient of its scores. A kernel that
reads them from memory masks them again, so that its folds can leave those steps out.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from tinyml import lazy
from tinyml.graph import reached, toposort
from tinyml.interpret import Number, known_result
from tinyml.lazy import LazyBuffer
from tinyml.ops import Op
from tinyml.schedule.labels import constant_of

Known = dict[LazyBuffer, Number]  # the number that a value is wherever a mask does not hold
POSITIONS = (lazy.Iota, lazy.Const, lazy.Move, lazy.Map)
MOST = 64  # nodes that a mask is made of
_NOTHING: Known = {}


class Masks:
    """Finds masks made of positions, and what values are where these do not hold."""

    def __init__(self, units: Container[LazyBuffer]) -> None:
        self.units = units
        self.known: dict[LazyBuffer, Known] = {}
        self.masked: set[LazyBuffer] = set()  # of which something is known

    def again(self, node: LazyBuffer) -> tuple[LazyBuffer, Number] | None:
        """The mask to put on what is read of `node`, and the number beside it, if there is one."""
        return next(iter(self.of(node).items()), None)

    def of(self, node: LazyBuffer) -> Known:
        """What `node` is where each mask does not hold."""
        if node not in self.known:
            self.learn(toposort([node], self.known, _operands))
        return self.known[node]

    def learn(self, order: Iterable[LazyBuffer]) -> None:
        """Find the masks of nodes, sources first."""
        known, masked = self.known, self.masked
        for node in order:
            if node not in known:
                known[node] = _NOTHING
                may = node.arg is Op.WHERE or not masked.isdisjoint(node.sources)
                if may and isinstance(node, lazy.Map) and (found := self._without_masks(node)):
                    known[node] = found
                    masked.add(node)

    def _without_masks(self, node: lazy.Map) -> Known:
        below = [self.known[s] for s in node.sources]
        found: Known = {}
        for mask in {m: None for known in below for m in known}:
            operands = zip(node.sources, below, strict=True)
            numbers = [_at(s, known, mask) for s, known in operands]
            number = known_result(node.op, node.dtype, numbers, [s.dtype for s in node.sources])
            if number is not None:
                found[mask] = number
        other = node.sources[-1]
        if node.op is Op.WHERE and self._only_positions(node.sources[0]):
            number = _at(other, {}, node)
            if number is not None:
                found[node.sources[0]] = number
        return found

    def _only_positions(self, mask: LazyBuffer) -> bool:
        for count, node in enumerate(reached([mask], lambda e: e.sources)):
            if node in self.units or not isinstance(node, POSITIONS) or count >= MOST:
                return False
        return True


def _operands(node: LazyBuffer) -> tuple[LazyBuffer, ...]:
    return node.sources if isinstance(node, lazy.Map) else ()


def _at(node: LazyBuffer, known: Known, mask: LazyBuffer) -> Number | None:
    """What `node` is where a mask does not hold."""
    number = constant_of(node)
    return known.get(mask) if number is None else number.value
