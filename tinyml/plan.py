"""A plan: a schedule whose kernels are compiled and whose buffers are numbered.

It knows no nodes, so any later graph of the same structure runs by the same plan: no
scheduling, no lowering, no compiling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tinyml import lazy
from tinyml.dtype import DType
from tinyml.frozen import dataclass
from tinyml.graph import toposort
from tinyml.lazy import Data, LazyBuffer

if TYPE_CHECKING:
    from tinyml.kernel import Kernel
    from tinyml.runtime.machine import Executable


@dataclass(frozen=True)
class KernelCall:
    """Run a kernel. `executable` is None where there is no program: numpy runs the kernel."""

    device: str
    kernel: Kernel
    executable: Executable | None
    buffers: tuple[int, ...]


@dataclass(frozen=True)
class CopyCall:
    """Copy one buffer into another, on the same or another device."""

    buffers: tuple[int, int]  # from, to


@dataclass(frozen=True)
class ReferenceCall:
    """Interpret a graph with numpy. Takes the buffers of the leaves, then those of the nodes."""

    nodes: tuple[LazyBuffer, ...]
    leaves: tuple[Data, ...]


Call = KernelCall | CopyCall


def computed_by(call: Call | ReferenceCall) -> list[LazyBuffer]:
    """The nodes that a call computes, sources first; a copy computes none."""
    if isinstance(call, KernelCall):
        return call.kernel.nodes
    return toposort(call.nodes) if isinstance(call, ReferenceCall) else []


@dataclass(frozen=True)
class NewBuffer:
    """A buffer that the plan makes."""

    size: int
    dtype: DType
    device: str


@dataclass(frozen=True)
class FixedNumber:
    """One number in memory."""

    text: str
    dtype: DType
    device: str


@dataclass(frozen=True)
class Plan:
    """Buffers are numbered: the leaves in the order of the graph, own numbers, the new ones."""

    leaves: int  # own numbers, too
    new: tuple[NewBuffer, ...]
    calls: tuple[Call, ...]
    forget: tuple[tuple[int, ...], ...]  # per call: new buffers that nothing needs any more
    results: tuple[int, ...]  # per node asked for: its buffer
    overwrites: bool  # whether a leaf has other values afterwards
    numbers: tuple[FixedNumber, ...] = ()  # its own, the same in each run


def last_versions(roots: Sequence[LazyBuffer]) -> set[LazyBuffer]:
    """The newest assignment to each target: the one whose chain of versions is the longest."""
    last: dict[LazyBuffer, tuple[int, LazyBuffer]] = {}
    for root in roots:
        if isinstance(root, lazy.Assign):
            versions, target = lazy.versions(root)
            if versions > last.get(target, (0, root))[0]:
                last[target] = versions, root
    return {root for _, root in last.values()}
