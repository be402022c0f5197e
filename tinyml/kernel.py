"""A Kernel: one fused computation, described but not yet turned into loops.

    kernel ::= Kernel(part*)
    part   ::= output*                                    outputs that walk the same rows
    output ::= Output(slot, value, rows)                  slot holds value
             | Output(slot, value, rows, where)           slot holds value where a mask does
             | Output(slot, value, rows, index, axis, op) slot[.. index ..] op= value, or = value
             | Output(slot, value, rows, across)          slot += value, along rows it has not
             | Output(slot, value, rows, padding)         slot holds value, and behind its rows
                                                          elements that are nobody's

Rows are the axes that all outputs of a part share, walked together: `rows` says which axes of
the value they are. What a value has besides, it walks inside a row. Parts are independent.

A value is a graph of the nodes of `lazy`, whose leaves are Slot, Const and Iota. Slots number
the buffers a kernel is called with: outputs first, then inputs. A kernel knows no device and
no memory, so equal kernels are one cache entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from tinyml import interpret, lazy, notation
from tinyml.dtype import DType
from tinyml.errors import VerifyError
from tinyml.frozen import cached_property, dataclass
from tinyml.graph import toposort
from tinyml.lazy import LazyBuffer, Shape
from tinyml.ops import SIGN, Movement, Op


def longer_rows(shape: Shape, more: int) -> Shape:
    """The shape with more elements along its last axis that has several."""
    last = max((a for a, n in enumerate(shape) if n > 1), default=0)
    return tuple([n + more if a == last else n for a, n in enumerate(shape)])


@dataclass(frozen=True)
class Output:
    """What one slot receives.

    With `index`, source elements are combined into it by `op`. What it has not of the value's axes,
    `across`, are rows, whose steps are added up in it. Elements for which `where`, a True that is
    moved and padded, is false stay as they are.
    """

    slot: int
    shape: Shape  # of the buffer
    value: LazyBuffer
    rows: tuple[int, ...]  # axes of the value, the first row axis first
    index: LazyBuffer | None = None
    axis: int = 0
    op: Op | None = Op.ADD
    across: tuple[int, ...] = ()
    where: LazyBuffer | None = None
    padding: int = 0  # elements behind each of the buffer's rows

    @property
    def roots(self) -> tuple[LazyBuffer, ...]:
        return tuple(e for e in (self.value, self.index, self.where) if e is not None)

    @property
    def held(self) -> Shape:
        """What of the buffer is the value's."""
        return longer_rows(self.shape, -self.padding)

    def within(self, buffer: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What of the buffer is the value's, as a view."""
        return buffer[tuple(map(slice, self.held))] if self.padding else buffer

    @property
    def keeps(self) -> bool:
        """Whether something of what the buffer held before stays in it."""
        return self.index is not None or self.where is not None


@dataclass(frozen=True)
class Kernel:
    """Parts, and the shapes and dtypes of all slots."""

    parts: tuple[tuple[Output, ...], ...]
    slots: tuple[tuple[Shape, DType], ...]

    @property
    def outputs(self) -> tuple[Output, ...]:
        return tuple(output for part in self.parts for output in part)

    @cached_property
    def nodes(self) -> list[LazyBuffer]:
        """Every node of the values, sources first."""
        return toposort(root for output in self.outputs for root in output.roots)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(k: Kernel) -> Iterable[str]:
    lines, names = notation.write(k.nodes)
    yield from map(str, lines.values())
    for output in k.outputs:
        place, value, op = f"slot{output.slot}", names[output.value], output.op
        sign = "" if op is None else SIGN.get(op, op.name.lower())
        if output.across:
            yield f"{place} += {value} over axis {', '.join(map(str, output.across))}"
        elif output.index is None:
            within = f" where {names[output.where]}" if output.where is not None else ""
            yield f"{place} = {value}{within}"
        else:
            yield f"{place}[{names[output.index]} on axis {output.axis}] {sign}= {value}"


def said(k: Kernel, of: Callable[[LazyBuffer], Any] = attrgetter("arg")) -> tuple[Any, ...]:
    """All that a kernel says, with `of` each node for its arg: no other kernel says the same."""
    number: dict[LazyBuffer | None, int] = {node: n for n, node in enumerate(k.nodes)}
    found: list[Any] = [k.slots]
    for node in k.nodes:
        sources = tuple(map(number.__getitem__, node.sources))
        kind = type(node).__name__
        found.append((kind, of(node), node.shape, node.dtype, node.device, sources))
    for part in k.parts:
        found.append(len(part))
        for o in part:
            roots = tuple(map(number.get, (o.value, o.index, o.where)))
            found.append((o.slot, o.shape, roots, o.rows, o.axis, o.op, o.across, o.padding))
    return tuple(found)


def spelled(k: Kernel) -> str:
    """Text that no other kernel has. `str` is for people, and does not say all."""
    return repr(said(k))


def name(k: Kernel) -> str:
    """What the kernel does, as an identifier: sum_mul_128x10_r784."""
    used = k.nodes
    if lazy.Require in map(type, used):  # not what is only required of values
        roots = [root for output in k.outputs for root in output.roots]
        used = toposort(roots, (), lambda n: n.sources[: 1 if type(n) is lazy.Require else None])
    folds = [n for n in used if isinstance(n, lazy.Reduce)]
    words = ["sum" if f.op is Op.ADD else f.op.name.lower() for f in folds]
    ops = dict.fromkeys([n.arg for n in used if type(n) is lazy.Map])
    words += [op.name.lower() for op in ops if op is not Op.CAST]
    words += ["gather" for n in used if isinstance(n, lazy.Gather)]
    words += ["scatter" for o in k.outputs if o.index is not None]
    head = list(dict.fromkeys(words))[:4] or ["copy"]
    largest = max((o.value.shape for o in k.outputs), key=prod)
    shape = "x".join(str(n) for n in largest if n != 1) or "1"
    folded = [str(prod(f.sources[0].shape[a] for a in f.axes)) for f in folds]
    tail = [f"r{'_'.join(dict.fromkeys(folded))}"] if folded else []
    many = [f"{len(k.outputs)}outs"] if len(k.outputs) > 1 else []
    return "_".join([*head, shape, *tail[:1], *many])[:80]


def run(k: Kernel, buffers: Sequence[npt.NDArray[Any]]) -> None:
    """Execute with numpy on whole arrays: fill the outputs among `buffers` (compute dtypes)."""
    known: dict[LazyBuffer, npt.NDArray[Any]] = {
        n: buffers[n.arg] for n in k.nodes if isinstance(n, lazy.Slot)
    }
    sums = {o: lazy.reduce_(Op.ADD, o.value, o.across) for o in k.outputs if o.across}
    roots = [root for o in k.outputs if o not in sums for root in o.roots]
    values = interpret.interpret([*roots, *sums.values()], known)
    for output in k.outputs:
        target = output.within(buffers[output.slot])
        if output in sums:
            target[...] += values[sums[output]].reshape(target.shape)
        elif output.index is None:
            within = True if output.where is None else values[output.where].reshape(target.shape)
            np.copyto(target, values[output.value].reshape(target.shape), where=within)
        else:
            dtype = output.value.dtype
            sources = [target, values[output.index], values[output.value]]
            target[...] = interpret.scatter_into(sources, output.axis, output.op, dtype)


def verify(k: Kernel) -> None:
    """Slots are what the table says, outputs are written once, leaves are leaves."""
    written: set[int] = set()
    for output in k.outputs:
        if output.slot in written:
            raise VerifyError(f"slot{output.slot} is written twice\n{k}")
        written.add(output.slot)
        shape, dtype = k.slots[output.slot]
        if output.shape != shape or output.value.dtype is not dtype:
            raise VerifyError(f"slot{output.slot} is {shape} {dtype}, but gets {output}\n{k}")
        if any(output.value.shape[a] == 1 for a in output.rows):
            raise VerifyError(f"slot{output.slot}: rows {output.rows} of size 1\n{k}")
        walked = enumerate(output.value.shape)
        kept = tuple(1 if a in output.across else n for a, n in walked)
        if output.index is None and prod(kept) != prod(output.held):
            raise VerifyError(f"slot{output.slot} is {shape}, value {output.value.shape}\n{k}")
    for node in k.nodes:
        if isinstance(node, (lazy.Data, lazy.Copy, lazy.Assign, lazy.Contiguous, lazy.Scatter)):
            raise VerifyError(f"{node!r} has no meaning inside a kernel\n{k}")
        if isinstance(node, lazy.Slot) and k.slots[node.arg] != (node.shape, node.dtype):
            raise VerifyError(f"slot{node.arg} is {k.slots[node.arg]}, read as {node!r}\n{k}")


# ---- which output may have the memory of an input that nobody needs afterwards ----


def takers(k: Kernel) -> dict[int, int]:
    """Slots of inputs that one output alone reads, element by element, and that output's slot.

    By ops on elements, so it does not matter when others are written. What is folded, or moved to
    other elements, stays.
    """
    found: dict[int, int] = {}
    elsewhere: set[int] = set()
    for output in k.outputs:
        beside, others = _slots(output)
        elsewhere |= others | (beside & found.keys())
        found |= dict.fromkeys(beside, output.slot)
    return {slot: taker for slot, taker in found.items() if slot not in elsewhere}


def _slots(output: Output) -> tuple[set[int], set[int]]:
    """The slots that an output reads at its own element only, and those it reads elsewhere."""
    whole = not (output.keeps or output.across or output.padding)
    waiting, rest = ([output.value], [*output.roots[1:]]) if whole else ([], [*output.roots])
    beside, seen = set[int](), set[LazyBuffer]()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, lazy.Slot):
            beside.add(node.arg)
        elif isinstance(node, lazy.Map) or lazy.is_move(node, Movement.RESHAPE):
            waiting += node.sources
        else:
            rest.append(node)
    return beside, {node.arg for node in toposort(rest) if isinstance(node, lazy.Slot)}
