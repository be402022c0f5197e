"""Build: a group of units becomes a Kernel, which names its buffers by slot."""

from __future__ import annotations

from collections.abc import Container, Sequence

from tinyml import lazy
from tinyml.dtype import DType
from tinyml.frozen import replace
from tinyml.graph import toposort
from tinyml.kernel import Kernel, Output, longer_rows
from tinyml.lazy import LazyBuffer, Shape
from tinyml.ops import Op
from tinyml.schedule.fuse import Fusion
from tinyml.schedule.group import Group, Place, folded, walked
from tinyml.schedule.labels import unshaped
from tinyml.schedule.masks import Masks
from tinyml.schedule.writes import part as part_of

Built = tuple[Kernel, tuple[LazyBuffer, ...], tuple[LazyBuffer, ...]]


def build(
    group: Group,
    stored: Container[LazyBuffer],
    fusion: Fusion,
    in_place: Container[LazyBuffer] = (),
) -> list[Built]:
    """Kernels that compute the members of `group` that are stored.

    Each comes with the nodes that are its outputs and its inputs. A group is one kernel; but where
    values are combined in memory, as by a scatter, a first kernel writes what they are added to.
    What is assigned `in_place` is written only where it differs from what was there before.
    """
    first = group.members[0]
    if isinstance(first, lazy.Scatter):
        return _scatter(first, fusion, first in in_place)
    parts = [[m for m in part if m in stored] for part in group.parts]
    parts = [sorted(part, key=fusion.position.__getitem__) for part in parts]
    nodes = tuple(node for part in parts for node in part)
    if not nodes:  # an assignment of what was written to its place
        return []
    builder = _Builder(nodes, group.members, fusion, fusion.masks if group.reduces else None)
    built = [
        tuple(_output(group, node, part, nodes.index(node), builder, in_place) for node in part)
        for part in parts
    ]
    sums = tuple(nodes[o.slot] for part in built for o in part if o.across)
    return [*([_zeros(sums, fusion)] if sums else []), builder.finish(built)]


def _output(
    group: Group,
    node: LazyBuffer,
    part: Sequence[LazyBuffer],
    slot: int,
    builder: _Builder,
    in_place: Container[LazyBuffer],
) -> Output:
    made = unshaped(node)
    across = tuple(a for a in group.places.get(made, ()) if a in folded(made))
    written = part_of(node) if node in in_place else None
    mask, value = written or (None, made.sources[0] if across else node)
    where = None if mask is None else builder.inline(mask)
    value = builder.inline(value)
    shape, padding = builder.shape(node), builder.paddings.get(node, 0)
    walks = rows(group, node, part)
    output = Output(slot, shape, value, walks, across=across, where=where, padding=padding)
    return output if group.cut is None else _in_pieces(output, group.places[node], group.cut)


def _in_pieces(output: Output, place: Place, cut: tuple[int, int]) -> Output:
    """An output with a row that is walked in pieces, if it is not in pieces already."""
    (row, count), value = cut, output.value
    axes = [axis for axis in output.rows if place[axis] == row]
    if len(axes) != 1:
        return output
    (axis,) = axes
    shape = (*value.shape[:axis], count, value.shape[axis] // count, *value.shape[axis + 1 :])

    def moved(axes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(b for a in axes for b in ((a, a + 1) if a == axis else (a + (a > axis),)))

    value = lazy.reshape(value, shape)
    where = None if output.where is None else lazy.reshape(output.where, shape)
    rows, across = moved(output.rows), moved(output.across)
    return replace(output, value=value, rows=rows, across=across, where=where)


def _zeros(nodes: tuple[LazyBuffer, ...], fusion: Fusion) -> Built:
    """What adds up in memory begins with."""
    nothing = [lazy.const(0, node.dtype, "", node.shape) for node in nodes]
    parts = [(Output(n, v.shape, v, walked(v.shape)),) for n, v in enumerate(nothing)]
    return _Builder(nodes, nodes, fusion).finish(parts)


def rows(group: Group, node: LazyBuffer, part: Sequence[LazyBuffer]) -> tuple[int, ...]:
    """The axes of `node` that are rows of all that is stored beside it, in their order."""
    place = group.places[node]
    shared = set(place.values()).intersection(*(group.places[other].values() for other in part))
    return tuple(sorted((a for a in place if place[a] in shared), key=place.__getitem__))


def _scatter(node: lazy.Scatter, fusion: Fusion, in_place: bool) -> list[Built]:
    base, index, source = node.sources
    adding = _Builder((node,), (node,), fusion)
    value, at = adding.inline(source), adding.inline(index)
    add = Output(0, node.shape, value, walked(index.shape), at, node.axis, node.op)
    if in_place:
        return [adding.finish([(add,)])]
    filling = _Builder((node,), (node,), fusion)
    fill = Output(0, node.shape, filling.inline(base), walked(node.shape))
    return [filling.finish([(fill,)]), adding.finish([(add,)])]


class _Builder:
    """Rewrites the members of a group as values over slots."""

    def __init__(
        self,
        outputs: tuple[LazyBuffer, ...],
        members: Sequence[LazyBuffer],
        fusion: Fusion,
        masks: Masks | None = None,
    ) -> None:
        self.masks = masks
        self.outputs, self.members, self.units = outputs, set(members), fusion.units
        self.fixed, self.paddings = fusion.fixed, fusion.paddings
        self.inputs: list[LazyBuffer] = []
        self.done: dict[LazyBuffer, LazyBuffer] = {}

    def finish(self, parts: Sequence[tuple[Output, ...]]) -> Built:
        nodes = (*self.outputs, *self.inputs)
        slots: tuple[tuple[Shape, DType], ...] = tuple((self.shape(n), n.dtype) for n in nodes)
        return Kernel(tuple(parts), slots), self.outputs, tuple(self.inputs)

    def shape(self, node: LazyBuffer) -> Shape:
        """Of its memory: with what lies behind its rows."""
        padding = self.paddings.get(node, 0)
        return longer_rows(node.shape, padding) if padding else node.shape

    def inline(self, root: LazyBuffer) -> LazyBuffer:
        """`root` as an expression over slots."""
        for node in toposort([root], self.done, self._inside):
            if node not in self.done:
                self.done[node] = self._rewritten(node)
        return self.done[root]

    def _inside(self, node: LazyBuffer) -> tuple[LazyBuffer, ...]:
        """What a node is made of here. Leaves, and units of other groups, become slots."""
        if node in self.fixed:
            self.done[node] = self.fixed[node]
            return ()
        if type(node) is lazy.Data or (node in self.units and node not in self.members):
            if node not in self.done:
                self.done[node] = self._slot(node)
            return ()
        return lazy.read_sources(node)

    def _rewritten(self, node: LazyBuffer) -> LazyBuffer:
        if isinstance(node, lazy.Contiguous):
            return self.done[node.sources[0]]
        if isinstance(node, lazy.Assign):
            return self.done[node.sources[1]]
        sources = tuple([self.done[s] for s in node.sources])
        made = lazy.node(type(node), node.shape, node.dtype, "", sources, node.arg)
        if node not in self.units and all(map(self.fixed.__contains__, node.sources)):
            self.fixed[node] = made
        return made

    def _slot(self, node: LazyBuffer) -> LazyBuffer:
        number = len(self.outputs) + len(self.inputs)
        self.inputs.append(node)
        whole = lazy.node(lazy.Slot, self.shape(node), node.dtype, "", (), number)
        slot = lazy.shrink(whole, tuple((0, n) for n in node.shape))
        found = None if self.masks is None else self.masks.again(node)
        if found is None:
            return slot
        mask, outside = found
        beside = lazy.const(outside, node.dtype, "", node.shape)
        return lazy.map_(Op.WHERE, self.inline(mask), slot, beside)
