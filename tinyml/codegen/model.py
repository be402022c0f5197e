"""The cost model: how long a LinearKernel takes on a machine of given ceilings.

It reads the kernel as the tree of its loops. Instructions are counted where they stand, a vector
as one, equal ones in a loop once. What memory has to deliver follows from footprints: the bytes
that a loop touches, in whole lines. Data that one step of a loop leaves in a cache is there at the
next step if all that a step touches fits; else it comes again from the level below.

    seconds = launch + the longer of and 0.3 times the shorter of
                    instructions, or the longest chain of waiting ones, or of spilled accumulators
                    bytes into a level / bandwidth of the level below, for the slowest level

It knows no ports, prefetchers or compilers, so it is good for comparing ways to do one thing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import pairwise
from math import ceil

from tinyml.ceilings import Ceilings
from tinyml.codegen import linear as ir
from tinyml.codegen.copies import written_out
from tinyml.codegen.expr import Alu, Expr, Load, Name, Place, Select, Stored, Wide
from tinyml.codegen.linear import LinearKernel
from tinyml.codegen.matrices import Fragment, Matrix, Piece, Product
from tinyml.frozen import dataclass
from tinyml.graph import toposort
from tinyml.index import Axis, Linear
from tinyml.ops import FUNCTIONS, WORK, Op

LINE = 64  # bytes that memory delivers at once
_WAIT = 8  # instructions that could start while a multiply-add waits for the one before
_STORE = 2  # a store takes the place of so many loads
_WIDTH = 0.6  # share of an instruction's time, if arithmetic, loads and stores are mixed
_FUNCTION = 2.5  # how much longer than a sum of as many parts a polynomial is, for it waits
_GAP = 128  # bytes of memory that a jump costs: lines fetched ahead in vain
_BROKEN_UP = 20  # times as long: values wider than a register, which compilers put into memory
_PRODUCT = 8  # multiply-adds in whose time a lane gets its 8 sums of 16 products of halves
_OPERANDS = 3  # registers that a loop needs besides its accumulators
_OVERLAP = 0.3  # share of the shorter of computing and fetching that shows beside the longer
_LOOP = 2  # instructions that a step of a loop costs


@dataclass(frozen=True)
class Access:
    """Elements of one buffer or tile that an instruction reads or writes."""

    place: int | str  # a slot, or the name of a tile
    writes: bool
    itemsize: int
    position: Linear
    loops: tuple[Axis, ...]  # around it, the outermost first; lanes come last


@dataclass
class Loop:
    """A loop, and what each step of it does besides inner loops."""

    axis: Axis | None
    depth: int
    inner: list[Loop] = field(default_factory=list)
    accesses: list[Access] = field(default_factory=list)
    seen: set[Expr] = field(default_factory=set)
    arithmetic: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    chains: Counter[str] = field(default_factory=Counter)  # updates in a row, by accumulator
    held: dict[str, float] = field(default_factory=dict)  # registers, by accumulator

    @property
    def steps(self) -> int:
        return 1 if self.axis is None else self.axis.size

    def below(self) -> list[Access]:
        """All accesses of a step."""
        return [*self.accesses, *(a for loop in self.inner for a in loop.below())]


Touched = dict[tuple[int | str, bool], int]  # bytes by place, and whether they are written


def predict(k: LinearKernel, ceilings: Ceilings) -> float:
    """Seconds that one launch of `k` should take, data of earlier launches lying where it fits."""
    instructions, delivered = 0.0, [0.0] * len(ceilings.levels)
    alone = k.block == (1, 1)  # other threads of a processor fill the gaps that waiting leaves
    together = 1.0 if alone else ceilings.lanes / k.block[0]
    for blocks, tree in _Builder(k, ceilings).trees():
        busy = blocks / (ceil(blocks / ceilings.threads) * ceilings.threads)
        instructions += _instructions(tree, alone) / together / ceilings.threads / busy
        for n, seconds in enumerate(_deliveries(tree, ceilings)):
            delivered[n] += seconds / busy
    computing, fetching = instructions * ceilings.instruction, max(delivered)
    both = max(computing, fetching) + _OVERLAP * min(computing, fetching)
    return ceilings.launch + both


# ---- from instructions to loops ----


class _Builder:
    """Reads the instructions of a kernel into trees of loops, one per part."""

    def __init__(self, k: LinearKernel, ceilings: Ceilings) -> None:
        self.k, self.vector_bytes = k, 4 * ceilings.lanes
        self.path: list[Loop] = []
        self._lanes: dict[Expr, int] = {}
        self.shares = k.block != (1, 1)  # then tiles are no part of the memory

    def trees(self) -> Iterator[tuple[int, Loop]]:
        """The loops of each part, and how many blocks it has."""
        for part in self.k.parts:
            self.path = [Loop(None, 0)]
            for axis in (*part.grid, *part.threads):
                self._enter(axis)
            before: ir.Instr | None = None
            for instr in written_out(part.instrs):
                match instr:
                    case ir.Begin(axis):
                        # what comes right behind a loop is another part of it, counted already
                        self._enter(axis, again=isinstance(before, ir.End) and before.axis is axis)
                    case ir.End():
                        self._spill(self.path.pop())
                    case _:
                        self._count(self.path[-1], instr)
                before = instr
            yield part.blocks, self.path[0]

    def _enter(self, axis: Axis, again: bool = False) -> None:
        loop = Loop(axis, len(self.path))
        self.path[-1].inner += [] if again else [loop]
        self.path.append(loop)

    def _spill(self, loop: Loop) -> None:
        """Where not all accumulators have a register, compilers keep them in memory."""
        registers = 32 if self.vector_bytes == 64 else 16
        held = sum(loop.held.values())
        if not self.shares and held + _OPERANDS > registers:
            loop.loads += held
            loop.stores += held * _STORE

    def _count(self, loop: Loop, instr: ir.Instr) -> None:
        match instr:
            case ir.Let(_, value) | ir.Declare(_, value):
                self._value(loop, value)
            case ir.Update(name, op, value):
                loop.chains[name.name] += 1
                loop.held[name.name] = self._vectors(name)
                self._value(loop, value, fused=op is Op.ADD)
                loop.arithmetic += _work(op) * self._vectors(name) if op else 0
            case ir.AcrossLanes(source=source):
                loop.arithmetic += source.lanes
            case ir.AcrossThreads() | ir.AcrossBlocks():
                loop.arithmetic += 2 * _WAIT
            case ir.Put(slot=slot, dtype=dtype, position=position, values=values, op=op):
                for value in values:
                    self._value(loop, value)
                for n in range(len(values) if instr.step > 1 else 1):
                    place = position + n * instr.step
                    self._access(loop, slot, op is not None, dtype.itemsize, place)
            case ir.PutTile(tile=tile, dtype=dtype, index=index, value=value):
                self._value(loop, value)
                if self.shares:
                    loop.stores += _STORE
                    return
                self._access(loop, tile, False, dtype.itemsize, index)
            case ir.Copy(slot=slot, dtype=dtype, position=position):
                loop.accesses.append(self._at(slot, False, dtype.itemsize, position))
                loop.loads += 1

    def _access(
        self, loop: Loop, place: int | str, reads: bool, itemsize: int, position: Linear
    ) -> None:
        for writes in (True, False) if reads else (True,):
            loop.accesses.append(self._at(place, writes, itemsize, position))
        loop.stores += self._apart(position) * _STORE

    def _at(self, place: int | str, writes: bool, itemsize: int, position: Linear) -> Access:
        axes = [loop.axis for loop in self.path if loop.axis is not None]
        axes += sorted(position.free.difference(axes), key=lambda a: a.name)  # lanes, tx
        return Access(place, writes, itemsize, position, tuple(axes))

    def _value(self, loop: Loop, value: Expr, fused: bool = False) -> None:
        """Count what of `value` this loop has not computed yet. `fused`: it is added to a sum."""
        order = [e for e in toposort([value], loop.seen) if e not in loop.seen]
        free = {value} if fused else set()
        for e in order:
            if isinstance(e, Alu) and e.op is Op.ADD and e.dtype.is_float:
                free |= {o for o in e.operands if isinstance(o, Alu) and o.op is Op.MUL}
        for e in order:
            loop.seen.add(e)
            match e:
                case Alu(op=op) if not (e in free and op is Op.MUL):
                    loop.arithmetic += _work(op) * self._vectors(e)
                case Select() | Place():
                    loop.arithmetic += self._vectors(e)
                case Load() | Wide():
                    loop.accesses.append(self._at(e.slot, False, e.dtype.itemsize, e.position))
                    loop.loads += self._apart(e.position)
                    loop.arithmetic += self._apart(e.position) - 1 + len(e.valid)
                case Product():
                    loop.arithmetic += _PRODUCT * e.lanes // 8
                case Fragment() | Matrix() | Piece():
                    loop.loads += 1
                case Stored() if self.shares:
                    loop.loads += 1
                case Stored():
                    loop.accesses.append(self._at(e.name, False, e.dtype.itemsize, e.index))
                    loop.loads += self._apart(e.index)

    def _vectors(self, e: Expr) -> float:
        """How many registers a value takes."""
        for part in toposort([e], self._lanes):
            own = [a.size for a in part.free & self.k.lanes]
            named = [part.lanes] if isinstance(part, Name) else []
            self._lanes[part] = max([1, *own, *named, *(self._lanes[s] for s in part.sources)])
        vectors = self._lanes[e] * e.dtype.itemsize / self.vector_bytes
        broken = vectors > 1 and not self.shares
        return max(1.0, vectors * (_BROKEN_UP if broken else 1))

    def _apart(self, position: Linear) -> float:
        """How many accesses a vector takes: one, if its elements lie side by side."""
        lanes = position.free & self.k.lanes
        return max([1] + [a.size for a in lanes if position.stride(a) != 1])


# ---- instructions ----


def _work(op: Op) -> float:
    """Instructions' time that an op takes."""
    return WORK[op] * (_FUNCTION if op in FUNCTIONS else 1)


def _instructions(loop: Loop, waits: bool) -> float:
    """How many instructions' time a loop takes, on one thread."""
    counted = loop.arithmetic, loop.loads, loop.stores
    step = max(*counted, _WIDTH * sum(counted))
    if waits and loop.axis is not None and loop.chains:
        step = max(step, _WAIT * max(loop.chains.values()))
    inner = sum(_instructions(one, waits) for one in loop.inner)
    return loop.steps * (step + inner + (_LOOP if loop.axis is not None else 0))


# ---- bytes ----


def _deliveries(tree: Loop, ceilings: Ceilings) -> Iterator[float]:
    """Seconds that each level but the closest needs for what it delivers to the level above."""
    everything = sum(touched(tree.below(), 0).values())
    for level, below in pairwise(ceilings.levels):
        if everything <= level.size * ceilings.threads:
            break
        moved = _moved(tree, level.size)
        yield sum(n / (below.write if w else below.read) for (_, w), n in moved.items())


def _moved(loop: Loop, size: int) -> Touched:
    """Bytes that come into a cache of `size` bytes, by where they come from, in all steps."""
    if sum(touched(loop.below(), loop.depth).values()) <= size:
        return touched(loop.below(), max(loop.depth - 1, 0))
    found: Counter[tuple[int | str, bool]] = Counter(touched(loop.accesses, loop.depth))
    for inner in loop.inner:
        found.update(_moved(inner, size))
    return {place: n * loop.steps for place, n in found.items()}


def touched(accesses: Iterable[Access], depth: int) -> Touched:
    """Different bytes, in whole lines, that accesses touch in all loops from `depth` on."""
    groups: dict[tuple[int | str, bool], dict[tuple[tuple[int, int], ...], set[int]]] = {}
    sizes: dict[tuple[int | str, bool], int] = {}
    for a in accesses:
        strides = ((abs(_stride(a.position, x)), x.size) for x in a.loops[depth:])
        walked = tuple(sorted((s, n) for s, n in strides if s and n > 1))
        key = a.place, a.writes
        groups.setdefault(key, {}).setdefault(walked, set()).add(a.position.constant)
        sizes[key] = a.itemsize
    return {key: _union(ways, sizes[key]) for key, ways in groups.items()}


def _stride(position: Linear, axis: Axis) -> int:
    stride = position.stride(axis)
    return 1 if stride is None else stride  # divided somewhere: neighbours, more or less


def _union(ways: dict[tuple[tuple[int, int], ...], set[int]], itemsize: int) -> int:
    """Bytes touched in several ways: their sum, or what lies between the ends if that is less."""
    low = min(min(starts) for starts in ways.values())
    high = max(max(starts) + sum(s * (n - 1) for s, n in way) for way, starts in ways.items())
    apart = sum(_footprint(way, sorted(starts), itemsize) for way, starts in ways.items())
    return min(apart, max((high - low + 1) * itemsize, LINE))


def _footprint(way: Sequence[tuple[int, int]], starts: Sequence[int], itemsize: int) -> int:
    """Bytes in whole lines: strides that reach no further than a run make the run longer."""
    run, runs = 1, 1
    for stride, count in sorted((*way, *_strides(starts))):
        if stride <= max(run, LINE // itemsize):  # within a line, or without a gap
            run += stride * (count - 1)
        else:
            runs *= count
    return runs * max(run * itemsize, LINE) + (_GAP * runs if runs > 1 else 0)


def _strides(starts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Places as strides and counts: 0 8 100 108 is two that are 8 apart, twice, 100 apart."""
    while len(starts) > 1:
        closest = min(b - a for a, b in pairwise(starts))
        heads = [starts[0], *(b for a, b in pairwise(starts) if b - a != closest)]
        yield closest, ceil(len(starts) / len(heads))
        starts = heads
