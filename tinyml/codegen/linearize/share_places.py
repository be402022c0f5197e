"""Share places: tiles that are never needed at the same time lie in the same shared memory.

A barrier is between what one of them is read for and what fills the other; or each thread puts an
element where the only element lay that it made this of, as exp(x - top) in place of x.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tinyml.codegen import linear as ir
from tinyml.codegen.expr import Stored
from tinyml.codegen.linear import Instr, Local, PutTile
from tinyml.codegen.nest import Tile
from tinyml.codegen.optimize.tiles import names_read
from tinyml.codegen.scope import read_by
from tinyml.frozen import dataclass, replace
from tinyml.graph import toposort


def share_places(
    instrs: Sequence[Instr], tiles: Iterable[Tile], held: Iterable[Local]
) -> list[Local]:
    """The arrays of a part, some of which lie where another one does that is no smaller."""
    plain = {t.name: t for t in tiles if t.stages == 1 and not t.panels}
    memory, every = _Memory.of(instrs, plain), [*held]
    places, hosts = dict[str, str](), dict[Local, list[str]]()
    for local in sorted(every, key=lambda each: -each.size):
        if (name := local.name) not in plain:
            continue
        alike = (h for h in hosts if h.dtype is local.dtype)
        host = next((h for h in alike if all(memory.may_share(name, n) for n in hosts[h])), local)
        hosts.setdefault(host, []).append(name)
        places[name] = host.name if host is not local else ""
    return [replace(local, place=places.get(local.name, "")) for local in every]


@dataclass(frozen=True)
class _Memory:
    """Who uses which tile, and in which phases each is needed: there is a barrier between two."""

    instrs: tuple[Instr, ...]
    phase: tuple[int, ...]
    used: dict[str, list[int]]
    needed: dict[str, set[int]]

    @staticmethod
    def of(instrs: Sequence[Instr], tiles: dict[str, Tile]) -> _Memory:
        used: dict[str, list[int]] = {name: [] for name in tiles}
        phase, now = list[int](), 0
        for n, instr in enumerate(instrs):
            now += isinstance(instr, ir.Barrier)
            phase.append(now)
            for name in _tiles_of(instr) & tiles.keys():
                used[name].append(n)
        begins = {n: i.axis for n, i in enumerate(instrs) if isinstance(i, ir.Begin)}
        loops = [(n, ir.end_of(instrs, n)) for n in begins]
        needed = dict[str, set[int]]()
        for name, tile in tiles.items():
            anew = [(b, e) for b, e in loops if begins[b] is tile.after and tile.over is None]
            found = set[int]()
            for first, last in _spans(used[name], anew, loops):
                found |= {*range(phase[first], phase[last] + 1)}
            for begin, end in loops:  # no barrier is between a step's end and the next one's begin
                ends = {phase[begin], phase[end]}
                found |= ends if found & ends and phase[begin] < phase[end] else set()
            needed[name] = found
        return _Memory((*instrs,), (*phase,), used, needed)

    def may_share(self, a: str, b: str) -> bool:
        both = self.needed[a] & self.needed[b]
        return not both or self._in_place(a, b, both) or self._in_place(b, a, both)

    def _in_place(self, old: str, new: str, phases: set[int]) -> bool:
        """Whether in this phase each element is only read by who puts the new one there."""
        there = [n for n in (*self.used[old], *self.used[new]) if self.phase[n] in phases]
        if len(phases) > 1:
            return False
        for n in sorted({*there}):
            instr = self.instrs[n]
            if isinstance(instr, PutTile) and instr.tile == old:
                return False
            if new in names_read(ir.values_of(instr)):
                return False
            for place in _read(instr, old):
                puts = self._puts_behind(n)
                if not any(p.tile == new and p.index == place and not p.valid for p in puts):
                    return False
        return True

    def _puts_behind(self, at: int) -> Iterator[PutTile]:
        """What is put by the same step of the same loop."""
        for instr in self.instrs[at:]:
            if isinstance(instr, (ir.Begin, ir.End)):
                return
            if isinstance(instr, PutTile):
                yield instr


def _spans(
    used: list[int], anew: list[tuple[int, int]], loops: list[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """From where to where a tile is needed: in each loop that fills it `anew`, or in all."""
    within = [(b, e) for b, e in anew if any(b < n < e for n in used)]
    if not all(any(b < n < e for b, e in within) for n in used):
        within = []
    for begin, end in within or [(-1, 1 << 62)]:
        own = [n for n in used if begin < n < end]
        around = [x for b, e in loops if begin < b and e < end for x in (b, e)]
        pairs = [*zip(around[::2], around[1::2], strict=True)]
        own += [x for b, e in pairs if any(b < n < e for n in own) for x in (b, e)]
        if own:
            yield min(own), max(own)


def _tiles_of(instr: Instr) -> set[str]:
    """The tiles that an instruction reads, or puts something into."""
    names = names_read(read_by(instr))
    return names | {instr.tile} if isinstance(instr, (PutTile, ir.Copy)) else names


def _read(instr: Instr, name: str) -> Iterator[object]:
    """The places of a tile that an instruction reads; one that is nobody's, if it is unknown."""
    for e in toposort(read_by(instr)):
        if name in names_read([e]) and not e.sources:
            yield e.index if isinstance(e, Stored) else None
