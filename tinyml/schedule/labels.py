"""Labels: by which axis of a reader each axis of what it reads is indexed.

A reader loops over its own axes 0, 1, 2, ... Followed down from it through maps and moves, every
axis of a node below has one label: the number of the reader's axis that is its index, unchanged;
FIXED where the index is constant; or MIXED for anything else (merged, shifted, gathered).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import mul

from tinyml import lazy
from tinyml.frozen import dataclass
from tinyml.lazy import LazyBuffer, Shape
from tinyml.ops import Movement
from tinyml.shape import replaced

FIXED = -1
MIXED = -2
ALL = frozenset(Movement)
WHOLE = ALL - {Movement.PAD, Movement.SKEW}  # without zeros, or other numbers, of their own
ONE_TO_ONE = ALL - {Movement.EXPAND}
PLACED = (Movement.RESHAPE, Movement.PERMUTE, Movement.EXPAND)  # nothing comes beside, or goes
Labels = tuple[int, ...]


@dataclass(frozen=True)
class Use:
    """`node` is read, and its axes are walked as `labels` say."""

    node: LazyBuffer
    labels: Labels


def trace(
    starts: Iterable[tuple[LazyBuffer, Labels]], stop: Container[LazyBuffer]
) -> tuple[list[Use], int]:
    """Every leaf or node in `stop` that the starts read, labelled; and the number of nodes."""
    uses: list[Use] = []
    stack = list(starts)
    seen: set[tuple[LazyBuffer, Labels]] = set()
    while stack:
        each = node, labels = stack.pop()
        if each in seen:
            continue
        seen.add(each)
        if node in stop or type(node) is lazy.Data:
            uses.append(Use(node, labels))
        elif type(node) is lazy.Map:  # most are
            stack += [(source, labels) for source in node.sources]
        else:
            stack += step(node, labels)
    return uses, len(seen)


def step(node: LazyBuffer, labels: Labels) -> list[tuple[LazyBuffer, Labels]]:
    """The sources of a node, labelled as the node is; what a reduction folds is MIXED."""
    if isinstance(node, lazy.Move):
        return [(node.sources[0], through(node, labels))]
    if isinstance(node, lazy.Reduce):
        return [
            (node.sources[0], tuple(MIXED if a in node.axes else x for a, x in enumerate(labels)))
        ]
    if isinstance(node, lazy.Gather):
        data, index = node.sources
        looked = tuple(MIXED if a == node.axis else x for a, x in enumerate(labels))
        return [(data, looked), (index, labels)]
    return [(source, labels) for source in node.sources]


def through(node: lazy.Move, labels: Labels) -> Labels:
    """The labels of the source of a movement whose result has `labels`."""
    source, (_, arg) = node.sources[0], node.arg
    match node.movement:
        case Movement.PERMUTE:
            below = [FIXED] * len(labels)
            for out, axis in enumerate(arg):
                below[axis] = labels[out]
            return tuple(below)
        case Movement.EXPAND:
            sizes = zip(labels, source.shape, node.shape, strict=True)
            return tuple([x if n == m else FIXED for x, n, m in sizes])
        case Movement.RESHAPE:
            return _reshaped(labels, node.shape, source.shape)
        case Movement.SHRINK | Movement.PAD | Movement.SKEW | Movement.FLIP:
            if node.movement is Movement.SKEW and labels[arg[1]] != FIXED:
                labels = replaced(labels, arg[0], MIXED)  # a window moves, though it has one place
            turned = {Movement.FLIP: arg, Movement.SKEW: arg[:1]}.get(node.movement, ())
            return tuple(
                x if n == m and a not in turned else _moved(x, n)
                for a, (x, n, m) in enumerate(zip(labels, source.shape, node.shape, strict=True))
            )


def edges(node: LazyBuffer) -> Sequence[int]:
    """The axes along which a movement puts something else beside what it moves."""
    if lazy.is_move(node, Movement.PAD):
        return [a for a, count in enumerate(node.arg[1][0]) if any(count)]
    return node.arg[1][:2] if lazy.is_move(node, Movement.SKEW) else ()


def _moved(label: int, size: int) -> int:
    return FIXED if label == FIXED or size == 1 else MIXED


@lru_cache(maxsize=4096)
def _reshaped(labels: Labels, shape: Shape, below: Shape) -> Labels:
    """Labels survive a reshape where one axis stays one axis."""
    if 0 in shape:
        return (MIXED,) * len(below)
    out: list[int] = [FIXED] * len(below)
    for tops, bottoms in factor_groups(shape, below):
        tops = [a for a in tops if shape[a] > 1]
        bottoms = [a for a in bottoms if below[a] > 1]
        if len(tops) == len(bottoms) == 1:
            out[bottoms[0]] = labels[tops[0]]
        elif any(labels[a] != FIXED for a in tops):
            for a in bottoms:
                out[a] = MIXED
    return tuple(out)


@lru_cache(maxsize=4096)
def factor_groups(shape: Shape, other: Shape) -> list[tuple[list[int], list[int]]]:
    """The shortest runs of axes of two shapes (of equal size > 0) whose products agree."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(shape) or j < len(other):
        tops, bottoms, left, right = [], [], 1, 1
        while True:
            if left <= right and i < len(shape):
                left *= shape[i]
                tops.append(i)
                i += 1
            elif j < len(other):
                right *= other[j]
                bottoms.append(j)
                j += 1
            if left == right and ((tops and bottoms) or i == len(shape) or j == len(other)):
                break
        groups.append((tops, bottoms))
    return groups


@lru_cache(maxsize=4096)
def merges(shape: Shape, below: Shape) -> bool:
    """Whether an axis of `shape`, as a reshape makes it, walks several of those below."""
    return not {*accumulate(below, mul)} <= {1, *accumulate(shape, mul)}


def unmoved(node: LazyBuffer, kinds: Container[Movement] = ALL) -> LazyBuffer:
    """What is below moves of some kinds."""
    while isinstance(node, lazy.Move) and node.movement in kinds:
        node = node.sources[0]
    return node


def constant_of(node: LazyBuffer) -> lazy.Const | None:
    """The number that a node is everywhere, if it is one."""
    node = unmoved(node, WHOLE)
    return node if isinstance(node, lazy.Const) else None


def unshaped(unit: LazyBuffer) -> LazyBuffer:
    """What lies in memory as the unit does, as it was computed."""
    return unmoved(unit, (Movement.RESHAPE,))
