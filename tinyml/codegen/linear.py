"""A LinearKernel: instructions in program order, each one line of the text to come.

    linear ::= LinearKernel(part*)                one part per nest; parts share the launch
    part   ::= Part(grid axes, thread axes, instr*)
    instr  ::= Begin(axis, start*, stop*)         a loop, from the largest start to the least stop
             | Begin(axis, copied=True)           what is written once for every step of an axis
             | End(axis)
             | Number(axes, at)                   axes out of their row-major position
             | Let(name, value)                   a constant local
             | Declare(name, value)               an accumulator
             | Update(name, op, value)            name = name op value; without op name = value
             | AcrossLanes(name, op, source)      the lanes of a vector combined to a scalar
             | AcrossThreads(name, op, threads)   combined over so many neighbours; all get it
             | AcrossBlocks(name*, tile, part)    parts that blocks have of folds are set aside
             | Together(name, op, parts, first, lanes) and some lanes of one brought together
             | Put(store)                         to memory
             | PutTile(tile, index, value, valid, op) to a staged tile
             | Fetch(slot, position)              from memory to a cache, for later
             | Copy(tile, index, slot, position, valid, when, lanes, left)
                                                  elements to a tile, under way until waited for
             | Commit() | Await(groups)           ends a group of copies; waits for all but so many
             | Produce(around*, begin, step, stages, copy*)
                                                  a warp has boxes copied to tiles, for all steps
             | AwaitBoxes(step, stages, copy*)    until those of this step have come
             | Release(step, stages)              they may be overwritten
             | Fence()                            what was put into panels may be multiplied
             | BeginProducts(name*) | EndProducts() | AwaitProducts(name*, left)
                                                  a group of products of warpgroups; until all
                                                  groups but so many are made
             | Barrier()                          all threads of the block wait for each other

A value that depends on a LANE axis is a vector; names say how many lanes they have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from tinyml.codegen.expr import Expr, Name, place_text
from tinyml.dtype import DType
from tinyml.errors import VerifyError
from tinyml.frozen import dataclass
from tinyml.graph import toposort
from tinyml.index import Axis, Linear, Range, Valid
from tinyml.lazy import Shape
from tinyml.ops import SIGN, Op
from tinyml.program import Box

EACH = "@"  # in a name: the number of a step
FULL, EMPTY = "full", "empty"  # barriers in shared memory, one per stage of tiles
TX = "tx"  # the thread axis along which folds are combined; rows are walked by the others


class Instr:
    """Base of all instructions."""


@dataclass(frozen=True)
class Begin(Instr):
    """A loop over the steps of `axis` that no start lies behind, and that lie before every stop.

    If it is `copied`, there will be no loop, but its instructions over and over, step after step;
    or, `abreast`, each of them for all steps before the next one. Names with EACH in them are
    those of a step, and known behind the end, too, with its number.
    """

    axis: Axis
    starts: tuple[Linear, ...] = ()
    stops: tuple[Linear, ...] = ()
    copied: bool = False
    abreast: bool = False
    kept: bool = False  # behind its end, ends_of say where it began and how far it has come


@dataclass(frozen=True)
class End(Instr):
    axis: Axis


@dataclass(frozen=True)
class Number(Instr):
    """The steps of axes that together are at this row-major position."""

    axes: tuple[Axis, ...]
    at: Linear


@dataclass(frozen=True)
class Let(Instr):
    name: Name
    value: Expr


@dataclass(frozen=True)
class Declare(Instr):
    name: Name
    value: Expr


@dataclass(frozen=True)
class Update(Instr):
    name: Name
    op: Op | None
    value: Expr


@dataclass(frozen=True)
class AcrossLanes(Instr):
    name: Name
    op: Op
    source: Name


@dataclass(frozen=True)
class AcrossThreads(Instr):
    """A name combined over threads with neighbouring numbers: all along tx, or some of a warp."""

    name: Name
    op: Op
    threads: int


@dataclass(frozen=True)
class AcrossBlocks(Instr):
    """What all blocks of one `tile` have of names, each of them one `part`, is set aside.

    The block that comes last finds it, and does what follows; the others are done.
    """

    names: tuple[Name, ...]
    tile: Linear
    part: Linear


@dataclass(frozen=True)
class Together(Instr):
    """So many lanes of a name, from the `first` on: `parts` set aside, combined in their order."""

    name: Name
    op: Op
    parts: int
    first: int
    lanes: int

    @property
    def end(self) -> int:
        return self.first + self.lanes


@dataclass(frozen=True)
class Put(Instr):
    """slot[position] = values, or op= values, where valid.

    Several values go `step` apart, those of one step in one wide access. `once`: only by the
    first thread along tx, because all of them have the value. `some`: number n of the values only
    where index + n is in that range.
    """

    slot: int
    dtype: DType
    position: Linear
    values: tuple[Expr, ...]
    valid: Valid
    op: Op | None
    once: bool
    streams: bool = False  # past the caches
    step: int = 1
    some: Range | None = None


@dataclass(frozen=True)
class PutTile(Instr):
    tile: str
    dtype: DType
    index: Linear
    value: Expr
    valid: Valid
    op: Op | None = None


@dataclass(frozen=True)
class Fetch(Instr):
    """The line that slot[position] lies in, if there is such a place."""

    slot: int
    position: Linear


@dataclass(frozen=True)
class Copy(Instr):
    """Elements side by side in a slot, zeros where not valid, copied to a tile, if `when`.

    With `left` only so many, 0 if it is less, and zeros for the others.
    """

    tile: str
    dtype: DType
    index: Linear
    slot: int
    position: Linear
    valid: Valid
    when: Valid
    lanes: int  # that are 4, 8 or 16 bytes
    left: Linear | None = None


@dataclass(frozen=True)
class Commit(Instr):
    pass


@dataclass(frozen=True)
class Await(Instr):
    """Until at most so many groups of a thread's copies are under way."""

    groups: int


@dataclass(frozen=True)
class BoxCopy:
    """Boxes that begin `at` x, y, z each, copied to panels of a tile one behind the other."""

    tile: str
    index: Linear
    box: Box
    at: tuple[tuple[Linear, Linear, Linear], ...]

    @property
    def nbytes(self) -> int:
        return len(self.at) * prod(self.box.box) * self.box.itemsize


@dataclass(frozen=True)
class Produce(Instr):
    """At each step of a loop, a warp of its own has boxes copied, into one of so many stages.

    Where a stage was used before, it waits for its release. The other threads go on at once.
    `step` counts all that is produced, also where there are loops `around` it.
    """

    begin: Begin
    step: Linear
    stages: int
    copies: tuple[BoxCopy, ...]
    around: tuple[Begin | Number, ...] = ()


@dataclass(frozen=True)
class AwaitBoxes(Instr):
    """Until the boxes of a step of `axis` have come."""

    axis: Axis
    step: Linear
    stages: int
    copies: tuple[BoxCopy, ...]


@dataclass(frozen=True)
class Release(Instr):
    """This thread is done with the boxes of a step of `axis`."""

    axis: Axis
    step: Linear
    stages: int


@dataclass(frozen=True)
class Fence(Instr):
    """What this thread has put into panels may be multiplied, once all have come to a barrier."""


@dataclass(frozen=True)
class BeginProducts(Instr):
    """Products of warpgroups are added to these sums from here on."""

    names: tuple[Name, ...]


@dataclass(frozen=True)
class EndProducts(Instr):
    pass


@dataclass(frozen=True)
class AwaitProducts(Instr):
    """Until all groups but so many are made: what they multiplied may be overwritten.

    The sums may be used, unless they are `under_way`.
    """

    names: tuple[Name, ...]
    left: int
    under_way: bool = False


@dataclass(frozen=True)
class Barrier(Instr):
    pass


@dataclass(frozen=True)
class Part:
    grid: tuple[Axis, ...]  # the block number is their row-major position
    threads: tuple[Axis, ...]  # likewise for the thread number along y
    instrs: tuple[Instr, ...]

    @property
    def blocks(self) -> int:
        return prod(axis.size for axis in self.grid)


@dataclass(frozen=True)
class Local:
    """An array in shared memory (CUDA) or on the stack (C); in `panels`, see panels.py.

    It is of one part: in CUDA a block computes one alone, and all parts have the same memory.
    """

    name: str
    dtype: DType
    size: int
    panels: bool = False
    part: int = 0
    place: str = ""  # where another one lies, if not in memory of its own


@dataclass(frozen=True)
class LinearKernel:
    name: str
    parts: tuple[Part, ...]
    slots: tuple[tuple[Shape, DType], ...]
    block: tuple[int, int]  # threads along x and y
    locals: tuple[Local, ...]
    lanes: frozenset[Axis]

    @property
    def blocks(self) -> int:
        return sum(part.blocks for part in self.parts)

    @property
    def produced(self) -> tuple[Produce, ...]:
        """What warps of their own do, beside the threads of the block."""
        return tuple(i for part in self.parts for i in part.instrs if isinstance(i, Produce))

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(k: LinearKernel) -> Iterator[str]:
    yield f"{k.name}: {k.blocks} blocks of {k.block[0]}x{k.block[1]} threads"
    for local in k.locals:
        yield f"local {local.name}: {local.size} {local.dtype}{local.place and ' in '}{local.place}"
    for part in k.parts:
        depth = 1
        yield "part" + "".join(f"  {a.name}:{a.size}" for a in (*part.grid, *part.threads))
        for instr in part.instrs:
            depth -= isinstance(instr, End)
            if not isinstance(instr, End):
                yield "  " * depth + _text(instr)
            depth += isinstance(instr, Begin)


def _text(instr: Instr) -> str:
    match instr:
        case Begin(axis, starts, stops):
            low = "".join(f"{start} <= " for start in starts)
            word = "abreast" if instr.abreast else "each" if instr.copied else "for"
            return f"{word} {low}{axis.name} < {', '.join(map(str, [axis.size, *stops]))}:"
        case Number(axes, at):
            return f"{', '.join(a.name for a in axes)} at {at}"
        case Let(name, value) | Declare(name, value):
            word, lanes = "let" if isinstance(instr, Let) else "var", f" x{name.lanes}"
            kind = f"{name.dtype}{lanes if name.lanes > 1 else ''}"
            return f"{word} {name.name}: {kind} = {_bare(value)}"
        case Update(name, op, value):
            return f"{name.name} {_assigned(op)} {_bare(value)}"
        case AcrossLanes(name, op, source):
            return f"let {name.name}: {name.dtype} = {_combined(op)} of the lanes of {source.name}"
        case AcrossThreads(name, op, threads):
            return f"{name.name} = {_combined(op)} of {name.name} over {threads} threads"
        case AcrossBlocks(names, tile, part):
            parts = f"{part.high + 1} blocks of tile {tile}, this one {part}"
            return f"{', '.join(n.name for n in names)} set aside by {parts}"
        case Together(name, op, parts, first, lanes):
            some = f"[{first}:{instr.end}]" if lanes < name.lanes else ""
            return f"{name.name}{some} = {_combined(op)} of {parts} parts"
        case Put(slot=slot, position=position, values=values, op=op, valid=valid, once=once):
            place = place_text(position, valid, {})
            only = f", by the first thread along {TX}" if once else ""
            only += f", {instr.step} apart, past the caches" if instr.streams else ""
            only += f", each where {instr.some}" if instr.some else ""
            stored = ", ".join(map(_bare, values))
            return f"slot{slot}[{place}] {_assigned(op)} {stored}{only}"
        case PutTile(tile=tile, index=index, value=value, valid=valid, op=op):
            return f"{tile}[{place_text(index, valid, {})}] {_assigned(op)} {_bare(value)}"
    return _ahead_text(instr)


def _ahead_text(instr: Instr) -> str:
    """What is begun before it is needed, and what waits for it."""
    match instr:
        case Fetch(slot, position):
            return f"fetch slot{slot}[{position}]"
        case Copy(tile=tile, index=index, slot=slot, position=position, valid=valid, when=when):
            target, place = place_text(index, when, {}), place_text(position, valid, {})
            few = f", {instr.left} at most" if instr.left else ""
            return f"copy {tile}[{target}] = slot{slot}[{place}]x{instr.lanes}{few}"
        case Await(groups):
            return f"await all but {groups} groups of copies"
        case Produce(begin, _, stages, copies, around):
            loops = " ".join(map(_text, (*around, begin)))
            return f"a warp, {loops} {', '.join(map(_box_text, copies))} in {stages} stages"
        case AwaitBoxes(axis, step, _, copies):
            return f"await {', '.join(map(_box_text, copies))} of {axis.name} = {step}"
        case Release(axis, step):
            return f"release the boxes of {axis.name} = {step}"
        case BeginProducts(names):
            return f"begin products in {', '.join(n.name for n in names)}"
        case AwaitProducts(names, left):
            return f"await {', '.join(n.name for n in names)}, all but {left} groups of products"
        case Barrier() | Commit() | Fence() | EndProducts():
            return type(instr).__name__.lower()
    return str(instr)


def _box_text(copy: BoxCopy) -> str:
    begins = ", ".join(f"[{x}, {y}, {z}]" for x, y, z in copy.at)
    size = "x".join(map(str, copy.box.box[::-1]))
    return f"{copy.tile}[{copy.index}] = boxes {size} of slot{copy.box.slot} at {begins}"


def _assigned(op: Op | None) -> str:
    """The sign between a place and what it gets: = or, combined with what is there, op=."""
    return "=" if op is None else f"{SIGN.get(op, op.name.lower())}="


def _combined(op: Op) -> str:
    return "sum" if op is Op.ADD else op.name.lower()


def _bare(value: Expr) -> str:
    """A value without the parentheses that only an expression around it would need."""
    text, depth = str(value), 0
    for n, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:  # where the first parenthesis ends, if the text begins with one
            return text[1:-1] if 0 < n == len(text) - 1 else text
    return text


def end_of(instrs: Sequence[Instr], begin: int) -> int:
    """Where the loop ends that begins at a place."""
    depth = 0
    for at in range(begin, len(instrs)):
        depth += (type(instrs[at]) is Begin) - (type(instrs[at]) is End)
        if not depth:
            return at
    raise VerifyError(f"{instrs[begin]} has no end")


def verify(k: LinearKernel) -> None:
    """Loops nest; a name is made before it is used and only once in its scope."""
    for part in k.parts:
        open_axes: list[Axis] = []
        scopes: list[set[str]] = [set()]
        copied = False
        for instr in part.instrs:
            if isinstance(instr, Begin):
                open_axes.append(instr.axis)
                copied = instr.copied
                scopes += [] if copied else [set()]
            elif isinstance(instr, End):
                if not open_axes or open_axes.pop() is not instr.axis:
                    raise VerifyError(f"{k.name}: {instr} ends no open loop\n{k}")
                if copied:
                    steps = map(str, range(instr.axis.size))
                    scopes[-1] |= {n.replace(EACH, s) for s in steps for n in scopes[-1]}
                scopes, copied = scopes if copied else scopes[:-1], False
            for name in (e.name for e in toposort(values_of(instr)) if isinstance(e, Name)):
                if not any(name in scope for scope in scopes) or (EACH in name and not copied):
                    raise VerifyError(f"{k.name}: {name} is used before it is made\n{k}")
            if isinstance(instr, (Let, Declare, AcrossLanes)):
                if any(instr.name.name in scope for scope in scopes):
                    raise VerifyError(f"{k.name}: {instr.name.name} is made twice\n{k}")
                scopes[-1].add(instr.name.name)


def values_of(instr: Instr) -> tuple[Expr, ...]:
    """What an instruction computes with."""
    if isinstance(instr, (Let, Declare, PutTile)):  # most are
        return (instr.value,)
    match instr:
        case Update(name, _, value):
            return (name, value)
        case AcrossLanes(source=name) | AcrossThreads(name) | Together(name):
            return (name,)
        case AcrossBlocks(made) | BeginProducts(made) | AwaitProducts(made) | Put(values=made):
            return made
    return ()
