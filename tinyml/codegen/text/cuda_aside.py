"""What blocks that share a fold set aside in memory, in CUDA C.

Numbers of a thread lie in packs of up to 16 bytes: the last block, which reads what all others have
set aside, waits for each round of loads, with nothing else to do on its multiprocessor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from tinyml.codegen import linear as ir
from tinyml.codegen.expr import Name
from tinyml.codegen.matrices import Aside
from tinyml.codegen.text.cuda_text import COMES_LAST, TOGETHER
from tinyml.codegen.text.cuda_warpgroups import WarpgroupRenderer
from tinyml.codegen.text.render import register
from tinyml.codegen.text.strength import ATOM, Text, wrap
from tinyml.dtype import DType
from tinyml.frozen import dataclass
from tinyml.index import Axis, Linear, linear
from tinyml.ops import Op

WIDEST = 16  # bytes of an access


@dataclass(frozen=True)
class Waiting:
    """Where the parts of a name are: so many packs apart; `beside` it are others, in one pack."""

    memory: str
    place: Linear  # of this block's tile
    apart: int
    beside: tuple[Name, ...]


class AsideRenderer(WarpgroupRenderer):
    """Sums of which blocks have parts."""

    aside: dict[str, Waiting]  # by name
    brought: set[str]  # packs that are together

    def across_blocks(self, across: ir.AcrossBlocks) -> Iterator[str]:
        """Parts wait in memory of the module's own, that of the first fold first."""
        first, parts = across.names[0], across.part.high + 1
        dtype, threads = register(first.dtype), prod(self.k.block)
        comes_last = f"comes_last_{threads}" if self.k.produced else "comes_last"
        last = COMES_LAST.replace("comes_last", comes_last, 1)
        self.prelude[last.replace("__syncthreads();", self.barrier())] = None
        self.prelude[TOGETHER] = None
        packs = _packs(across.names, WIDEST // dtype.itemsize)
        lanes = min(max(first.lanes, len(packs[0])), WIDEST // dtype.itemsize)
        pieces = -(-first.lanes // lanes)
        each = (across.tile.high + 1) * threads * pieces
        apart = len(packs) * each
        at = across.tile * (threads * pieces) + self.thread()
        waiting = f"parts_{first.name}"
        self.held = parts * apart * lanes * dtype.itemsize + (across.tile.high + 1) * 4
        yield f"static __device__ {self.pack(dtype, lanes)} {waiting}[{parts * apart}];"
        yield f"static __device__ unsigned came_{first.name}[{across.tile.high + 1}];"
        for n, names in enumerate(packs):
            place = wrap(self.index(across.part * apart + n * each + at), 12)
            value = names[0].name
            if names[0].lanes == 1:
                value = f"{self.pack(dtype, lanes)}{{{{{', '.join(x.name for x in names)}}}}}"
            yield f"put_aside<{threads}>({waiting} + {place}, {value});"
            held = Waiting(waiting, at + n * each, apart, names)
            self.aside.update((name.name, held) for name in names)
        came = f"came_{first.name} + {wrap(self.index(across.tile), 12)}"
        yield f"if (!{comes_last}({came}, {parts})) return;"
        self.brought = set()

    def together(self, brought: ir.Together) -> Iterator[str]:
        name, dtype, threads = brought.name, register(brought.name.dtype), prod(self.k.block)
        self.prelude[self.combine(brought.op, dtype)] = None
        held = self.aside[name.name]
        combine = f"combine_{brought.op.name.lower()}_{dtype.name}, {brought.parts}, {threads}"
        if name.lanes > 1:
            at = held.place + brought.first // min(name.lanes, WIDEST // dtype.itemsize) * threads
            sums, lanes = f"{name.name}.at + {brought.first}", brought.lanes
        else:
            at, lanes = held.place, len(held.beside)
            pack = f"all_{held.beside[0].name}"
            sums = f"{pack}.at"
            if pack not in self.brought:
                yield f"{self.pack(dtype, lanes)} {pack};"
        if name.lanes > 1 or pack not in self.brought:
            place = f"{held.memory} + {wrap(self.index(at), 12)}"
            yield f"together<{combine}, {lanes}>({sums}, {place}, {held.apart});"
        if name.lanes == 1:
            self.brought.add(pack)
            yield f"{name.name} = {pack}.at[{held.beside.index(name)}];"

    def set_aside(self, e: Aside) -> Text:
        """One part of a number."""
        held = self.aside[e.name]
        lane = [name.name for name in held.beside].index(e.name)
        return f"{held.memory}[{self.index(e.part * held.apart + held.place)[0]}].at[{lane}]", ATOM

    def thread(self) -> Linear:
        """The number of a thread in its block."""
        return linear(Axis("ty", self.k.block[1])) * self.k.block[0] + linear(
            Axis(ir.TX, self.k.block[0])
        )

    def pack(self, dtype: DType, lanes: int) -> str:
        return f"pack<{self.types[dtype.name]}, {lanes}>"

    def combine(self, op: Op, dtype: DType) -> str:
        """The struct that says how two values are combined."""
        raise NotImplementedError


def _packs(names: Sequence[Name], most: int) -> list[tuple[Name, ...]]:
    """Single numbers in as large packs as all of them fill; else each name by itself."""
    size = 1
    while names[0].lanes == 1 and 2 * size <= most and len(names) % (2 * size) == 0:
        size *= 2
    return [tuple(names[n : n + size]) for n in range(0, len(names), size)]
