"""The pass itself: from wanted nodes to kernels in order."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from math import prod

from tinyml import lazy
from tinyml.frozen import dataclass
from tinyml.graph import toposort
from tinyml.kernel import Kernel
from tinyml.lazy import LazyBuffer
from tinyml.merge import merged
from tinyml.schedule.associate import associate
from tinyml.schedule.build import build
from tinyml.schedule.fuse import Fusion
from tinyml.schedule.group import CircleError, Group, link, ordered, walked
from tinyml.schedule.labels import unshaped
from tinyml.schedule.layouts import along_folds, channels_last, copied_factors, paddings
from tinyml.schedule.levels import levels
from tinyml.schedule.parts import parts
from tinyml.schedule.recompute import in_tiles, recomputed
from tinyml.schedule.regroup import joins, regroup
from tinyml.schedule.repeats import once
from tinyml.schedule.rewrite import rewritten
from tinyml.schedule.rounded import rounded_once
from tinyml.schedule.simplify import simpler
from tinyml.schedule.split import add_up_wide, join_sums, share_assigned, split_reductions
from tinyml.schedule.sweep import sweep
from tinyml.schedule.terms import apart
from tinyml.schedule.transpose import transpose
from tinyml.schedule.units import find_units
from tinyml.schedule.writes import reads_what_it_writes, scattered


@dataclass(frozen=True)
class KernelItem:
    """Run a kernel. `outputs` and `inputs` say which node each slot is, outputs first.

    `units` are what it computes, each with the reason why that is a unit.
    """

    kernel: Kernel
    device: str
    outputs: tuple[LazyBuffer, ...]
    inputs: tuple[LazyBuffer, ...]
    units: tuple[tuple[LazyBuffer, str], ...]

    @property
    def nodes(self) -> tuple[LazyBuffer, ...]:
        return self.outputs + self.inputs

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of the memory of each node: more than its own, where rows are filled up."""
        return tuple([prod(shape) for shape, _ in self.kernel.slots])

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(f"{unit!r}: {reason}" for unit, reason in self.units)


@dataclass(frozen=True)
class CopyItem:
    """Copy the source's memory to another device."""

    output: LazyBuffer
    source: LazyBuffer

    @property
    def nodes(self) -> tuple[LazyBuffer, ...]:
        return (self.output, self.source)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of the memory of each node."""
        return (self.output.size, self.source.size)


Item = KernelItem | CopyItem


@dataclass(frozen=True)
class Schedule:
    """Items in order. `roots` are the nodes that hold what was asked for, one per question: its
    elements in the same order, though their shape may be another.

    `in_place` are the nodes whose kernel may write a leaf's own memory, and that leaf: nothing
    that runs later reads the old values. Other assignments are written to memory of their own,
    which is copied into the target's when everything else is done.
    """

    items: tuple[Item, ...]
    roots: tuple[LazyBuffer, ...]
    in_place: Mapping[LazyBuffer, LazyBuffer]


def schedule(wanted: Sequence[LazyBuffer], along: Container[str] = ()) -> Schedule:
    """The kernels and copies that compute `wanted`. Every Data below is in memory already.

    Products of floats on the devices `along` want both factors along what is folded.
    """
    with lazy.known:
        return _scheduled(merged(wanted, simpler), along)


_PASSES = (
    *(join_sums, once, add_up_wide, parts, apart, channels_last, copied_factors),
    *(associate, in_tiles, sweep, split_reductions, share_assigned),
    *(transpose, regroup, rounded_once, levels),
)


def _scheduled(wanted: Sequence[LazyBuffer], along: Container[str]) -> Schedule:
    passes = (*_PASSES, partial(along_folds, devices=along)) if along else _PASSES
    roots = _unshaped(rewritten(wanted, *passes))
    order = toposort(roots, (), lazy.read_sources)
    units = find_units(order, roots, recomputed(order, {*roots}))
    try:
        fusion = Fusion(order, units)
        groups = fusion.fuse()
        ordered(groups)
    except CircleError:
        fusion = Fusion(order, units, careful=True)
        groups = fusion.fuse()
    items: list[Item] = []
    stored = _stored(fusion, roots)
    in_place = _order_writes(order, groups, fusion, stored, roots)
    stored.difference_update(n for n in in_place if scattered(n) in in_place)
    fusion.paddings = paddings(fusion, stored, roots)
    for group in ordered(groups):
        items += _items(group, fusion, stored, in_place)
    return Schedule(tuple(items), tuple(roots), in_place)


def _unshaped(roots: Sequence[LazyBuffer]) -> list[LazyBuffer]:
    """The roots without their last reshapes: elements in the same order, but other axes.

    Along the axes that they were computed with, they may join the reduction that they read. No two
    roots become one: each has memory of its own.
    """
    taken, found = set(roots), []
    for root in roots:
        below = unshaped(root)
        made = type(below) is lazy.Map or (isinstance(below, lazy.Reduce) and joins(root))
        computed = made and below not in taken
        taken.add(below)
        found.append(below if computed else root)
    return found


def _items(
    group: Group, fusion: Fusion, stored: set[LazyBuffer], in_place: Container[LazyBuffer]
) -> list[Item]:
    first = group.members[0]
    if isinstance(first, lazy.Copy):
        return [CopyItem(first, first.sources[0])]
    units = tuple([(m, fusion.units[m]) for m in group.members])
    return [
        KernelItem(kernel, first.device, written, read, units)
        for kernel, written, read in build(group, stored, fusion, in_place)
    ]


def _stored(fusion: Fusion, roots: Sequence[LazyBuffer]) -> set[LazyBuffer]:
    """Units that need memory: asked for, assigned last, or read by another group."""
    stored = set(roots)
    assigns = [unit for unit in fusion.uses if isinstance(unit, lazy.Assign)]
    stored |= {*assigns}.difference(assign.sources[0] for assign in assigns)
    for unit, uses in fusion.uses.items():
        if isinstance(unit, lazy.Copy):
            stored.update((unit, unit.sources[0]))
        if isinstance(unit, lazy.Scatter):
            stored.add(unit)
        group = fusion.group_of[unit]
        stored.update(use.node for use in uses if fusion.group_of.get(use.node) is not group)
    return stored


def _order_writes(
    order: Iterable[LazyBuffer],
    groups: list[Group],
    fusion: Fusion,
    stored: Container[LazyBuffer],
    roots: Container[LazyBuffer],
) -> dict[LazyBuffer, LazyBuffer]:
    """Which assignments can be done in place: each with the leaf whose memory it overwrites.

    Readers of the old values are put before them. A scatter that an assignment takes its values
    from writes to the same memory, and is listed, too.
    """
    assigns: dict[LazyBuffer, list[LazyBuffer]] = {}
    for unit in fusion.uses:
        if isinstance(unit, lazy.Assign) and unit in stored:
            assigns.setdefault(lazy.assigned(unit), []).append(unit)
    readers_of: dict[LazyBuffer, set[Group]] = {}
    for unit, uses in fusion.uses.items():
        for use in uses:
            readers_of.setdefault(use.node, set()).add(fusion.group_of[unit])
    in_place: dict[LazyBuffer, LazyBuffer] = {}
    faults = _Faults(order, groups, fusion)
    for target, versions in assigns.items():
        found = scattered(versions[-1])
        # what is asked for by itself has memory of its own
        made = versions[-1] if found is None or found in roots else found
        writer = fusion.group_of[made]
        readers = readers_of.get(target, set())
        if made in versions:
            elsewhere = any(_reads_elsewhere(target, made, fusion))
        else:
            elsewhere = sum(use.node is target for use in fusion.uses[made]) > 1
        alone = len(versions) == 1 and not elsewhere
        late = any(_reaches(writer, reader) for reader in readers - {writer})
        if alone and not late and faults.come_before(writer):
            in_place.update(dict.fromkeys((versions[0], made), target))
            for reader in readers - {writer}:
                link(reader, writer)
    return in_place


class _Faults:
    """The Require nodes of a graph, and the groups whose kernels check them."""

    def __init__(
        self, order: Iterable[LazyBuffer], groups: Iterable[Group], fusion: Fusion
    ) -> None:
        self._groups: dict[LazyBuffer, list[Group]] = {}
        asked: dict[LazyBuffer, dict[LazyBuffer, None]] = {}  # what a node requires by itself
        for node in order:
            below = [] if asked.keys().isdisjoint(node.sources) else lazy.read_sources(node)
            found = {r: None for s in below if s not in fusion.uses for r in asked.get(s, ())}
            if isinstance(node, lazy.Require):
                found[node] = None
            if found:
                asked[node] = found
        for group in groups:
            for node in dict.fromkeys(r for m in group.members for r in asked.get(m, ())):
                self._groups.setdefault(node, []).append(group)
        self._later = [_after(known) for known in self._groups.values()]

    def come_before(self, writer: Group) -> bool:
        """Whether all checks come before `writer` overwrites something; orders them if it can."""
        for known, later in zip(self._groups.values(), self._later, strict=True):
            if writer in later:
                continue
            free = [g for g in known if g is not writer and not _reaches(writer, g)]
            if not free:
                return False
            link(free[0], writer)
        return True


def _after(groups: Iterable[Group]) -> set[Group]:
    """All groups that come after one of these."""
    stack, seen = [*groups], set[Group]()
    while stack:
        new = stack.pop().after - seen
        seen |= new
        stack += new
    return seen


def _reads_elsewhere(target: LazyBuffer, assign: LazyBuffer, fusion: Fusion) -> list[bool]:
    """For every read of `target` in its writer: whether it is of another element than written.

    So it is with a version of `target` that is made on the way.
    """
    writer = fusion.group_of[assign]
    beside = next(part for part in writer.parts if assign in part)
    there = reads_what_it_writes(assign, fusion.units)
    return [
        member not in beside
        or isinstance(member, lazy.Reduce)
        or len(writer.places[member]) < len(walked(member.shape))
        or writer.places[member] != writer.places[assign]  # the rows may be walked transposed
        or (use.labels != tuple(range(len(use.labels))) and not (there and member is assign))
        for member in writer.members
        for use in fusion.uses[member]
        if lazy.assigned(use.node) is target
    ]


def _reaches(start: Group, goal: Group) -> bool:
    return goal in _after([start])
