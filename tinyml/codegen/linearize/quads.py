"""Quads: four threads side by side store whole pieces of a row, where each has two of its halves.

Of sums of matrix products a lane has two columns of every eight (see fragments.py), so that a warp
would store 16 bytes of each of eight rows at a time. With the next blocks of eight columns four
lanes have whole lines. They exchange words, so that each stores elements side by side:

    slot[p + 2q], .. + 8, .. + 16, .. + 24    two each   ->  slot[p + 8q]             eight
    slot[p + 2q], .. + 8                      two each   ->  slot[p + q//2*4 + q%2*8]  four
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from tinyml.codegen import linear as ir
from tinyml.codegen.expr import Load, Wide, looked_in
from tinyml.codegen.linear import Begin, End, Instr, Let, Put, Together
from tinyml.codegen.matrices import WARP
from tinyml.frozen import replace
from tinyml.graph import toposort
from tinyml.index import Axis, Linear, Range, Valid, both, linear, moved

QUAD = 4  # lanes
WORD = 2  # halves
BLOCK = QUAD * WORD


def by_quads(
    instrs: Sequence[Instr], threads: Sequence[Axis], block: tuple[int, int]
) -> tuple[Instr, ...]:
    """The instructions with stores of a quad's pieces, where all lanes of a warp come to them."""
    lane = threads[-1] if threads else None
    if lane is None or lane.size != QUAD or block[0] > 1 or prod(block) % WARP:
        return tuple(instrs)
    made, run = list[Instr](), list[Instr]()
    apart = list[bool]()  # whether lanes take each of the loops around by themselves
    for instr in instrs:
        if isinstance(instr, (Let, Put, Together)):
            run.append(instr)
            continue
        made += run if any(apart) else _joined(run, lane)
        made.append(instr)
        run = []
        if isinstance(instr, Begin):
            axes = {a for bound in (*instr.starts, *instr.stops) for a in bound.free}
            apart.append(any(a in threads or a.name == "ty" for a in axes))
        elif isinstance(instr, End):
            apart.pop()
    return (*made, *(run if any(apart) else _joined(run, lane)))


def _joined(run: Sequence[Instr], lane: Axis) -> list[Instr]:
    """Instructions in a row, with stores of several blocks where the last of them is stored."""
    rows: dict[object, dict[int, int]] = {}  # where stores are, by what they store
    for n, instr in enumerate(run):
        if isinstance(instr, Put) and _is_word(instr, lane):
            key = instr.slot, instr.position.terms
            rows.setdefault(key, {})[instr.position.constant] = n
    made: dict[int, list[Instr]] = {}
    for places in rows.values():
        for numbers, put in _pieces(run, places, lane):
            made |= {n: [] for n in numbers}
            made[max(numbers)] = [put]
    return [i for n, instr in enumerate(run) for i in made.get(n, [instr])]


def _is_word(put: Put, lane: Axis) -> bool:
    """Whether each lane of a quad stores two halves beside those of the next one."""
    plain = put.op is None and not (put.once or put.streams) and put.some is None
    halves = put.dtype.itemsize == 2 and len(put.values) == WORD
    return plain and halves and put.position.stride(lane) == WORD


def _pieces(
    run: Sequence[Instr], places: dict[int, int], lane: Axis
) -> Iterator[tuple[list[int], Put]]:
    """Stores of blocks side by side, by number, and the one that they become."""
    left = sorted(places)
    while left:
        size = 1
        for blocks in (QUAD, QUAD // 2):
            side = [left[0] + n * BLOCK for n in range(blocks)]
            numbers = [places[at] for at in side if at in left]
            between = run[min(numbers) : max(numbers) + 1]
            if len(numbers) < blocks or _overwrites(between):
                continue
            puts = [put for n in numbers if isinstance(put := run[n], Put)]
            if (piece := _piece(puts, lane)) is not None:
                yield numbers, piece
                size = blocks
                break
        left = [at for at in left if at not in side[:size]]


def _piece(puts: Sequence[Put], lane: Axis) -> Put | None:
    """What as many lanes as there are blocks store of them; None where a piece is not whole."""
    blocks = len(puts)
    group, number = linear(lane) // blocks, linear(lane) % blocks
    where = group * blocks + number * QUAD  # the lane whose word the piece begins with, in a row
    position = puts[0].position.substitute({lane: where})
    size = blocks * WORD
    if position.constant % size or any(f % size for _, f in position.terms):
        return None
    for n, put in enumerate(puts):
        valid = _at(put.valid, lane, where - n * QUAD)
        if valid is not None and all(_is_right(valid, puts, lane, q) for q in range(QUAD)):
            values = tuple(value for one in puts for value in one.values)
            return replace(puts[0], position=position, values=values, valid=valid, quad=lane)
    return None


def _is_right(valid: Valid, puts: Sequence[Put], lane: Axis, number: int) -> bool:
    """Whether that lane is to store its piece just where all lanes would that have words of it."""
    blocks = len(puts)
    put, first = puts[number % blocks], number // blocks * blocks
    owners = {_asked(put.valid, lane, n) for n in range(first, first + blocks)}
    return owners == {_asked(valid, lane, number)}


def _asked(valid: Valid, lane: Axis, number: int) -> frozenset[Range] | None:
    found = _at(valid, lane, linear(number))
    return None if found is None else frozenset(found)


def _at(valid: Valid, lane: Axis, number: Linear) -> Valid | None:
    return both([moved(v, {lane: number}) for v in valid])


def _overwrites(instrs: Sequence[Instr]) -> bool:
    """Whether some store what others read, so that they stay where they are."""
    puts = [i for i in instrs if isinstance(i, Put)]
    values = [value for i in instrs for value in ir.values_of(i)]
    values += [e for put in puts for e in looked_in(put.position, put.valid)]
    stored = {put.slot for put in puts}
    return any(isinstance(e, (Load, Wide)) and e.slot in stored for e in toposort(values))
