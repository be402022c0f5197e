"""Parts: folds of what was joined are made of each part by itself, if one is a product of matrices.

A sink is one more score for each query of attention, which takes its share of a softmax and has no
value:

    softmax(cat(q @ k.T, sink))[..., :-1] @ v

As they stand scores are padded, and what is made of them is cut: so no kernel that makes scores
makes a row of weights. But the largest of a row is the larger one of the largest score and of the
sink, and a sum is one of two sums. What is left are folds of scores, and a number for each row.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from tinyml import lazy
from tinyml.dtype import float32, from_text
from tinyml.lazy import LazyBuffer
from tinyml.ops import Movement, Op
from tinyml.schedule.contracts import contracts
from tinyml.schedule.labels import constant_of, through, unmoved
from tinyml.schedule.rewrite import Changed, renewed
from tinyml.schedule.units import Readers, by_element, readers_of
from tinyml.shape import replaced, spans_along


def parts(order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer]) -> Changed:
    """The same values, with what is made of joined parts, and wanted in parts, never made whole."""
    joined = (n for n in order if _joint(n) is not None)
    pads = [n for n in joined if any(map(contracts, by_element(n.sources[0])))]
    if not pads:
        return {}
    readers, joints = readers_of(order), Joints()
    for pad in pads:
        found = _made_of(pad, readers, {*roots})
        if all(joints.get(node, joint) == joint for node, joint in found.items()):
            joints |= found
    apart = _Apart(joints)
    for node, _ in renewed(order, apart.changed):
        if node not in joints and (source := next(filter(joints.get, node.sources), None)):
            apart.changed[node] = apart.ended(node, *joints[source])
    return apart.changed


Joint = tuple[int, int]  # the axis along which parts meet, and where
Joints = dict[LazyBuffer, Joint]


def _joint(node: LazyBuffer) -> Joint | None:
    """Where a node is padded, if it is so on one side of one axis."""
    if not lazy.is_move(node, Movement.PAD):
        return None
    counts = [(a, *count) for a, count in enumerate(node.arg[1][0]) if any(count)]
    (axis, before, after), *more = counts
    return None if more or (before and after) else (axis, before or node.shape[axis] - after)


def _made_of(pad: LazyBuffer, readers: Readers, roots: Container[LazyBuffer]) -> Joints:
    """All that is made of what is padded; nothing, if some of that is wanted as a whole."""
    joint = _joint(pad)
    assert joint is not None
    found, stack = {pad: joint}, [pad]
    while stack:
        node = stack.pop()
        axis, at = found[node]
        if node in roots:
            return {}
        for reader in readers[node]:
            if _ends(reader, axis, at):
                continue
            along = _along(reader, axis)
            if along is None or found.get(reader, (along, at)) != (along, at):
                return {}
            if reader not in found:
                found[reader] = along, at
                stack.append(reader)
    return found


def _ends(node: LazyBuffer, axis: int, at: int) -> bool:
    """Whether a node folds the axis on which parts meet, or takes some of one part."""
    if isinstance(node, lazy.Reduce):
        return axis in node.axes and not contracts(node)
    if lazy.is_move(node, Movement.SHRINK):
        start, stop = node.arg[1][axis]
        return bool(stop <= at or start >= at)
    return False


def _along(node: LazyBuffer, axis: int) -> int | None:
    """The axis of a node that is an axis of what it is made of."""
    if type(node) is lazy.Map:
        return axis
    if not isinstance(node, lazy.Move) or node.movement is Movement.SKEW:
        return None
    label = through(node, tuple(range(len(node.shape))))[axis]
    return label if label >= 0 else None


class _Apart:
    """Makes parts along an axis of nodes, of what their sources became."""

    def __init__(self, joints: Joints) -> None:
        self.joints = joints
        self.changed: Changed = {}
        self.made: dict[tuple[LazyBuffer, int, int, int], LazyBuffer] = {}

    def ended(self, node: LazyBuffer, axis: int, at: int) -> LazyBuffer:
        """What ends in a fold, or in a part."""
        (source,) = node.sources
        if not isinstance(node, lazy.Reduce):
            spans = node.arg[1]
            cut = self.part(source, axis, *spans[axis])
            return lazy.shrink(cut, replaced(spans, axis, (0, cut.shape[axis])))
        wide = float32 if node.dtype.is_half and node.op is Op.ADD else node.dtype  # rounded once
        both = [self.part(source, axis, *span) for span in ((0, at), (at, source.shape[axis]))]
        folds = [lazy.reduce_(node.op, lazy.cast(x, wide), node.axes) for x in both]
        return lazy.cast(lazy.map_(node.op, *folds), node.dtype)

    def part(self, node: LazyBuffer, axis: int, start: int, stop: int) -> LazyBuffer:
        """Some of a node along an axis."""
        key = node, axis, start, stop
        if key not in self.made:
            self.made[key] = self._part(*key)
        return self.made[key]

    def _part(self, node: LazyBuffer, axis: int, start: int, stop: int) -> LazyBuffer:
        if isinstance(node, lazy.Map) and node in self.joints:
            sources = node.sources
            if node.op is Op.WHERE and (known := _known(sources[0], axis, start, stop)) is not None:
                return self.part(sources[1] if known else sources[2], axis, start, stop)
            made = tuple([self.part(s, axis, start, stop) for s in sources])
            return node.with_sources(made, made[0].shape)
        if isinstance(node, lazy.Move):
            moved = self._moved(node, axis, start, stop)
            if moved is not None:
                return moved
        spans = spans_along(node.shape, axis, start, stop)
        return lazy.shrink(self.changed.get(node, node), spans)

    def _moved(self, node: lazy.Move, axis: int, start: int, stop: int) -> LazyBuffer | None:
        """The part, if it is a move of a part, or there is the same all along the axis."""
        (source,), (movement, arg) = node.sources, node.arg
        shape = replaced(node.shape, axis, stop - start)
        if movement is Movement.PAD and any(arg[0][axis]):
            before, number = arg[0][axis][0], from_text(arg[1], node.dtype)
            if stop <= before or start >= before + source.shape[axis]:
                return lazy.const(number, node.dtype, node.device, shape)
            if start < before or stop > before + source.shape[axis]:
                return None
            inner = self.part(source, axis, start - before, stop - before)
            return lazy.pad(inner, replaced(arg[0], axis, (0, 0)), number)
        labels = through(node, tuple(range(len(node.shape))))
        if axis not in labels:
            same = movement is Movement.EXPAND
            return lazy.expand(self.changed.get(source, source), shape) if same else None
        inner = self.part(source, labels.index(axis), start, stop)
        match movement:
            case Movement.RESHAPE:
                return lazy.reshape(inner, shape)
            case Movement.EXPAND:
                return lazy.expand(inner, shape)
            case Movement.PERMUTE:
                return lazy.permute(inner, arg)
            case Movement.SHRINK:
                return lazy.shrink(inner, replaced(arg, axis, (0, stop - start)))
        return None


def _known(mask: LazyBuffer, axis: int, start: int, stop: int) -> bool | None:
    """What a comparison of positions with a number is on all of a part, if it is that."""
    size, mask = mask.shape[axis], unmoved(mask, (Movement.EXPAND,))
    if not lazy.is_map(mask, Op.LESS):
        return None
    place, number = mask.sources[0], constant_of(mask.sources[1])
    counted = lazy.is_move(place, Movement.RESHAPE) and isinstance(place.sources[0], lazy.Iota)
    along = place.shape[axis] == place.size == size  # one place may be repeated there
    if not (counted and along and number is not None):
        return None
    return True if stop <= number.value else False if start >= number.value else None
