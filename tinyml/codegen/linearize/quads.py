"""Quads: four threads side by side access whole pieces of a row, where each has some of its halves.

Of sums of matrix products a lane has two columns of every eight (see fragments.py), so that a warp
would store 16 bytes of each of eight rows at a time, or load what meets them. With the next blocks
of eight columns four lanes have whole lines. They exchange pairs, so that each accesses elements
side by side:

    slot[p + 2q], .. + 8, .. + 16, .. + 24    two each   ->  slot[p + 8q]               eight
    slot[p + 2q], .. + 8                      two each   ->  slot[p + q//2*4 + q%2*8]   four
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple, TypeAlias

from tinyml.codegen.expr import Load, Name, Part, Wide
from tinyml.codegen.linear import Begin, End, Instr, Let, Put, Together
from tinyml.codegen.matrices import WARP, Bundle, Exchanged, Neighbours
from tinyml.codegen.scope import read_by
from tinyml.dtype import DType
from tinyml.frozen import replace
from tinyml.graph import toposort
from tinyml.index import Axis, Linear, Range, Valid, both, linear, moved

QUAD = 4  # lanes
PAIR = 2  # halves
BLOCK = QUAD * PAIR


class _Pair(NamedTuple):
    """Where a lane accesses two halves."""

    slot: int
    position: Linear
    valid: Valid


# what stands where instructions of these numbers did, if they access pieces together
_Made: TypeAlias = dict[int, list[Instr]]
_Join: TypeAlias = Callable[[Sequence[Instr], list[int]], _Made]


def by_quads(
    instrs: Sequence[Instr], threads: Sequence[Axis], block: tuple[int, int]
) -> tuple[Instr, ...]:
    """The instructions with accesses to a quad's pieces, where all lanes of a warp come to them."""
    if not threads or threads[-1].size != QUAD or block[0] > 1 or prod(block) % WARP:
        return tuple(instrs)
    quads = _Quads(threads)
    made, run = list[Instr](), list[Instr]()
    apart = list[bool]()  # whether lanes take each of the loops around by themselves
    for instr in instrs:
        if isinstance(instr, (Let, Put, Together)):
            run.append(instr)
            continue
        made += run if any(apart) else quads.joined(run)
        made.append(instr)
        run = []
        if isinstance(instr, Begin):
            axes = {a for bound in (*instr.starts, *instr.stops) for a in bound.free}
            apart.append(any(a in threads or a.name == "ty" for a in axes))
        elif isinstance(instr, End):
            apart.pop()
    return (*made, *(run if any(apart) else quads.joined(run)))


class _Quads:
    """Those of one part: lanes along the last of its axes of threads."""

    def __init__(self, threads: Sequence[Axis]) -> None:
        *rows, self.lane = threads
        self.rows, self.names = frozenset(rows), 0

    def joined(self, run: Sequence[Instr]) -> list[Instr]:
        """Instructions in a row: what several load is loaded first, what they store last."""
        return self._joined(self._joined(run, self._loaded, self._load), self._stored, self._store)

    def _joined(
        self, run: Sequence[Instr], pair: Callable[[Instr], _Pair | None], join: _Join
    ) -> list[Instr]:
        """The instructions with four, or two, made one of which each accesses a pair of a block."""
        rows: dict[object, dict[int, int]] = {}  # the instructions' numbers, by where they do so
        for n, instr in enumerate(run):
            if (found := pair(instr)) is not None:
                key = found.slot, found.position.terms
                rows.setdefault(key, {})[found.position.constant] = n
        made: _Made = {}
        for places in rows.values():
            left = sorted(places)
            while left:
                size = 1
                for blocks in (QUAD, QUAD // 2):
                    side = [left[0] + n * BLOCK for n in range(blocks)]
                    numbers = [places[at] for at in side if at in left]
                    if len(numbers) == blocks and (piece := join(run, numbers)):
                        made |= piece
                        size = blocks
                        break
                left = [at for at in left if at not in side[:size]]
        return [i for n, instr in enumerate(run) for i in made.get(n, [instr])]

    def _stored(self, instr: Instr) -> _Pair | None:
        """Where each lane of a quad stores a pair beside that of the next one."""
        if not isinstance(instr, Put) or instr.op or instr.once or instr.streams or instr.some:
            return None
        pair = _Pair(instr.slot, instr.position, instr.valid)
        return pair if self._is_pair(pair, instr.dtype, len(instr.values)) else None

    def _loaded(self, instr: Instr) -> _Pair | None:
        """Where each loads one; not of what all rows share, which is at hand in a cache."""
        if not isinstance(instr, Let) or not isinstance(e := instr.value, Wide):
            return None
        pair = _Pair(e.slot, e.position, e.valid)
        own = not self.rows.isdisjoint(e.position.free)
        return pair if own and self._is_pair(pair, e.dtype, e.lanes) else None

    def _is_pair(self, pair: _Pair, dtype: DType, lanes: int) -> bool:
        return dtype.itemsize == 2 and lanes == PAIR == pair.position.stride(self.lane)

    def _store(self, run: Sequence[Instr], numbers: list[int]) -> _Made:
        puts = [put for n in numbers if isinstance(put := run[n], Put)]
        pairs = [_Pair(put.slot, put.position, put.valid) for put in puts]
        piece = self._piece(pairs)
        if piece is None or _overwrites(run[min(numbers) : max(numbers) + 1]):
            return {}
        bundle = Bundle(tuple(value for put in puts for value in put.values), puts[0].dtype)
        name = self._name(bundle.dtype, bundle.lanes)
        values = tuple(Part(name, linear(n)) for n in range(bundle.lanes))
        put = replace(puts[0], position=piece.position, valid=piece.valid, values=values)
        made: _Made = {n: [] for n in numbers}
        made[max(numbers)] = [Let(name, Exchanged(bundle, self.lane)), put]
        return made

    def _load(self, run: Sequence[Instr], numbers: list[int]) -> _Made:
        lets = [let for n in numbers if isinstance(let := run[n], Let)]
        loads = [e for let in lets if isinstance(e := let.value, Wide)]
        piece = self._piece([_Pair(e.slot, e.position, e.valid) for e in loads])
        if piece is None or any(isinstance(i, Put) for i in run[min(numbers) : max(numbers)]):
            return {}  # else all is held while it is stored
        wide = Wide(piece.slot, loads[0].dtype, piece.position, piece.valid, PAIR * len(loads))
        name = self._name(wide.dtype, wide.lanes)
        made: _Made = {
            number: [Let(let.name, Neighbours(name, n * PAIR, PAIR))]
            for n, (number, let) in enumerate(zip(numbers, lets, strict=True))
        }
        made[min(numbers)].insert(0, Let(name, Exchanged(wide, self.lane)))
        return made

    def _name(self, dtype: DType, lanes: int) -> Name:
        self.names += 1
        return Name(f"piece{self.names - 1}", dtype, lanes)

    def _piece(self, pairs: Sequence[_Pair]) -> _Pair | None:
        """What as many lanes as there are blocks access of them; None where one is not whole."""
        blocks, lane = len(pairs), self.lane
        group, number = linear(lane) // blocks, linear(lane) % blocks
        where = group * blocks + number * QUAD  # the lane whose pair the piece begins with
        position = pairs[0].position.substitute({lane: where})
        size = blocks * PAIR
        if position.constant % size or any(f % size for _, f in position.terms):
            return None
        for n, pair in enumerate(pairs):
            valid = self._at(pair.valid, where - n * QUAD)
            if valid is not None and all(self._is_right(valid, pairs, q) for q in range(QUAD)):
                return _Pair(pair.slot, position, valid)
        return None

    def _is_right(self, valid: Valid, pairs: Sequence[_Pair], number: int) -> bool:
        """Whether that lane accesses its piece just where all would that have pairs of it."""
        blocks = len(pairs)
        owned, first = pairs[number % blocks].valid, number // blocks * blocks
        owners = {self._asked(owned, n) for n in range(first, first + blocks)}
        return owners == {self._asked(valid, number)}

    def _asked(self, valid: Valid, number: int) -> frozenset[Range] | None:
        found = self._at(valid, linear(number))
        return None if found is None else frozenset(found)

    def _at(self, valid: Valid, number: Linear) -> Valid | None:
        return both([moved(v, {self.lane: number}) for v in valid])


def _overwrites(instrs: Sequence[Instr]) -> bool:
    """Whether some store what others read, so that they stay where they are."""
    values = [value for i in instrs for value in read_by(i)]
    stored = {i.slot for i in instrs if isinstance(i, Put)}
    return any(isinstance(e, (Load, Wide)) and e.slot in stored for e in toposort(values))
