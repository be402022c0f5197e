"""In registers: running sums that one thread alone reads and writes, while a loop adds to them.

    sums[t] = 0                                    var s = 0
    for r0o:                                       for r0o:
        sums[t] = sums[t] * scale[t] + part            s *= scale[t]; s += part
    slot0[i] = sums[..]                            sums[t] = s
                                                   slot0[i] = sums[..]

Who reads them behind the loop may be another thread, so they are put into the tile there.

`begun`: what a step of a loop folds, all of it written out, begins with its first value. A largest
of 64 scores in four accumulators is 60 comparisons, not 64: nobody compares with -inf or adds to 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tinyml.codegen import linear as ir
from tinyml.codegen.expr import Alu, Const, Expr, Name, Stored, nodes
from tinyml.codegen.linear import Begin, Declare, End, Instr, PutTile, Update
from tinyml.codegen.nest import Tile
from tinyml.codegen.optimize.tiles import names_read
from tinyml.codegen.scope import names_of
from tinyml.frozen import replace
from tinyml.ops import Op

MOST = 64  # of a thread


def in_registers(instrs: Sequence[Instr], tiles: Iterable[Tile], mark: str) -> tuple[Instr, ...]:
    """The instructions, with the sums of each tile in registers, if that can be."""
    for tile in tiles:
        if tile.over is not None:
            instrs = _held(instrs, tile, mark) or instrs
    return tuple(instrs)


def _held(instrs: Sequence[Instr], tile: Tile, mark: str) -> list[Instr] | None:
    loops = [n for n, i in enumerate(instrs) if isinstance(i, Begin) and i.axis is tile.over]
    groups = _groups(instrs, tile.name)
    if len(loops) != 1 or [depth for *_, depth in groups] != [1, 2]:
        return None
    loop, end = loops[0], ir.end_of(instrs, loops[0])
    (start, started, _), (step, stepped, _) = groups
    first = [i for i in instrs[start:started] if isinstance(i, PutTile)]
    puts = [i for i in instrs[step:stepped] if isinstance(i, PutTile)]
    names = {i.index: Name(f"{tile.name}_{n}{mark}", i.dtype, 1) for n, i in enumerate(first)}
    updates = [_updates(i, names.get(i.index)) for i in puts]
    others = [i for i in instrs[started:end] if i not in puts]
    if (
        not started < loop < step < end
        or {i.index for i in puts} != {*names}
        or not len(first) == len(puts) == len(names) <= MOST
        or not all(isinstance(i.value, Const) for i in first)
        or None in updates
        or any(tile.name in names_read(ir.values_of(i)) for i in others)
    ):
        return None
    each = dict(zip(map(id, puts), updates, strict=True))
    made: list[Instr] = [Declare(names[i.index], i.value) for i in first]
    behind = started + 1 + isinstance(instrs[started + 1], ir.Barrier)
    for i in instrs[behind : end + 1]:
        made += each.get(id(i)) or [i]
    last = [replace(i, value=names[i.index]) for i in first]
    made += [ir.Barrier(), instrs[start], *last, instrs[started]]
    made += [] if isinstance(instrs[end + 1], ir.Barrier) else [ir.Barrier()]
    return [*instrs[:start], *made, *instrs[end + 1 :]]


def _groups(instrs: Sequence[Instr], name: str) -> list[tuple[int, int, int]]:
    """Where loops of one step begin and end, in which a tile is put, and how deep; none if others.

    Those share its places out among threads: see fill.py.
    """
    groups: dict[int, tuple[int, int, int]] = {}
    open_: list[int] = []
    for n, instr in enumerate(instrs):
        if isinstance(instr, Begin):
            open_.append(n)
        elif isinstance(instr, End):
            open_.pop()
        elif isinstance(instr, PutTile) and instr.tile == name:
            begin = instrs[open_[-1]] if open_ else None
            if not isinstance(begin, Begin) or begin.axis.name != f"c_{name}" or instr.valid:
                return []
            groups[open_[-1]] = open_[-1], ir.end_of(instrs, open_[-1]), len(open_)
    return [*groups.values()]


def _updates(put: PutTile, name: Name | None) -> list[Instr] | None:
    """What becomes of a sum at a step, one op after the other."""
    if name is None:
        return None

    def is_own(e: Expr) -> bool:
        return isinstance(e, Stored) and e.name == put.tile and e.index == put.index

    found, e = list[Instr](), put.value
    if put.op is not None:
        return None if any(map(is_own, nodes(e))) else [Update(name, put.op, e)]
    while not is_own(e):
        if not isinstance(e, Alu) or e.op not in (Op.ADD, Op.MUL, Op.MAX, Op.MIN):
            return None
        own = [s for s in e.operands if put.tile in names_read([s])]
        if len(own) != 1:
            return None
        (other,) = (s for s in e.operands if s is not own[0])
        found.append(Update(name, e.op, other))
        e = own[0]
    return found[::-1]


def begun(instrs: Sequence[Instr]) -> tuple[Instr, ...]:
    """The instructions with accumulators of loops' steps declared where they are updated first."""
    depth, waiting = 0, dict[str, tuple[int, int]]()  # where a name is declared, and how deep
    made: list[Instr | None] = [*instrs]
    for at, instr in enumerate(instrs):
        depth += (type(instr) is Begin) - (type(instr) is End)
        read = names_of([instr])
        found = waiting.get(instr.name.name) if isinstance(instr, Update) else None
        if found is not None and found[1] == depth and isinstance(instr, Update):
            made[found[0]], made[at] = None, Declare(instr.name, instr.value)
        for name in read:
            waiting.pop(name, None)
        if isinstance(instr, Declare) and depth and instr.name.lanes == 1:
            waiting[instr.name.name] = at, depth
    return tuple([instr for instr in made if instr is not None])
