"""What a multiprocessor has at once: blocks, and registers for the sums of their threads.

So how many steps of a loop a compiler may write out, and in which order products are added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from tinyml.codegen import linear as ir
from tinyml.codegen.expr import Alu, Name, Stored, Wide
from tinyml.codegen.linear import LinearKernel
from tinyml.codegen.target import THREAD, WORKING, Target
from tinyml.dtype import float32
from tinyml.graph import toposort
from tinyml.index import linear
from tinyml.ops import Op
from tinyml.program import REGISTERS

SUMS = 64  # registers of a thread: few
MANY, FEW = 64, 4  # instructions of a step that compilers do not write out again; steps, at most
TOGETHER, BESIDE = 2, 64  # blocks that multiply in turns; registers of a thread beside its sums


def bounds(k: LinearKernel, target: Target, threads: int, shared: int) -> tuple[int, ...]:
    """Threads of a block, and how many blocks a multiprocessor has, if those are few.

    Else a compiler saves registers for more blocks than there can be, and may spill for it.
    Beside many sums it would fetch so much ahead instead that it spills for that.
    """
    blocks = _at_once(k, target, shared)
    sums = max(_sums_of(part.instrs) for part in k.parts)
    enough = blocks * threads * (sums + WORKING) <= REGISTERS
    few = sums <= SUMS and (blocks == 1 or enough)
    return (threads, blocks) if few else (threads,)


def in_memory(k: LinearKernel, target: Target, threads: int, shared: int) -> frozenset[Name]:
    """Sums that wait in memory, if that leaves registers for another block of products.

    Then one multiplies while the other waits for its next steps. On an H200 a product of matrices
    of 4096 x 4096 floats so took 2.91 ms, 3.36 before; but nothing was gained where both factors
    are read along the fold, four steps at once, or through windows.
    """
    instrs = [i for part in k.parts for i in part.instrs]
    if _sums_of(instrs) <= SUMS or _at_once(k, target, shared) < TOGETHER:
        return frozenset()
    names, runs = _waiting(instrs), groupby(instrs, _takes_up)
    added = max(len({i.name for i in run if isinstance(i, ir.Update)}) for _, run in runs)
    fits = TOGETHER * threads * (added + BESIDE) <= REGISTERS
    chosen = len(names) == added and fits and _by_columns(instrs) and not any(map(_asks, instrs))
    return names if chosen else frozenset()


def _asks(instr: ir.Instr) -> bool:
    """Whether threads fill a tile through registers, or leave out what there is not."""
    return isinstance(instr, ir.PutTile) or (isinstance(instr, ir.Copy) and instr.valid != ())


def _by_columns(instrs: Sequence[ir.Instr]) -> bool:
    """Whether products are added up, of which a factor is not read along the fold."""
    products = [i for i in instrs if isinstance(i, ir.Update) and factors(i)]
    steps = [factors(i) for i in products if i.name == products[0].name][:2]
    return len(steps) == 2 and any(
        b.index - a.index != linear(1) for a, b in zip(*steps, strict=True)
    )


def factors(instr: ir.Instr) -> tuple[Stored, ...]:
    """Two numbers in shared memory, of which the product is added to a sum."""
    match instr:
        case ir.Update(op=Op.ADD, value=Alu(op=Op.MUL, operands=(Stored() as a, Stored() as b))):
            return a, b
    return ()


def _at_once(k: LinearKernel, target: Target, shared: int) -> int:
    """Blocks that a multiprocessor has, or has room for in its shared memory."""
    blocks = -(-k.blocks // target.cores)
    return max(1, min(blocks, target.cache // shared)) if shared else blocks


def _sums_of(instrs: Iterable[ir.Instr]) -> int:
    """Registers that a thread has of them."""
    held = (i.name for i in instrs if isinstance(i, ir.Declare))
    return sum(name.lanes * -(-name.dtype.itemsize // 4) for name in held)


def _waiting(instrs: Iterable[ir.Instr]) -> frozenset[Name]:
    """Sums that only sums are added to: they wait while those take up products."""
    updates = [i for i in instrs if isinstance(i, ir.Update)]
    others = {i.name for i in updates if i.op is not Op.ADD or _takes_up(i)}
    return frozenset(i.name for i in updates if i.name.dtype is float32) - others


def _takes_up(instr: ir.Instr) -> bool:
    """Whether a sum takes up something that is no sum."""
    return isinstance(instr, ir.Update) and not isinstance(instr.value, Name)


def steps_of(instrs: Sequence[ir.Instr], registers: int) -> Iterator[tuple[int, int]]:
    """How many steps of a loop a compiler may write out, by the loop, where all are too many.

    It would read them ahead, and put aside what registers do not hold, of which a thread of a large
    block has few; or, of steps at which all threads wait for each other, have places for each.
    Few steps that multiply much are written out by themselves, too: what one reads comes while the
    one before multiplies (a product of floats took 3.36 ms for 3.91).
    """
    most = registers // 4 if registers <= 2 * SUMS else THREAD
    for at, begin in enumerate(instrs):
        if isinstance(begin, ir.Begin) and not begin.copied:
            body = instrs[at + 1 : ir.end_of(instrs, at)]
            values = [value for i in body for value in ir.values_of(i)]
            read = sum(isinstance(e, Stored) for e in toposort(values))
            nested = any(isinstance(i, ir.Begin) for i in body)
            if any(isinstance(i, ir.Barrier) for i in body):
                yield id(begin), 1
            elif not nested and read * begin.axis.size > THREAD:
                yield id(begin), next(n for n in (4, 2, 1) if n * read <= THREAD // 2 or n == 1)
            elif not nested and read and len(body) >= MANY and begin.axis.size <= FEW:
                yield id(begin), begin.axis.size
            elif any(isinstance(i, ir.PutTile) for i in body):
                wide = [e for e in toposort(values) if isinstance(e, Wide)]
                loaded = sum(e.lanes * e.dtype.itemsize // 4 for e in wide)
                if loaded * begin.axis.size > most:
                    yield id(begin), next(n for n in (4, 2, 1) if n * loaded <= most or n == 1)


def to_and_fro(instrs: Sequence[ir.Instr]) -> tuple[ir.Instr, ...]:
    """The same, but that the rows of a thread's tile are gone through forth and back in turn.

    So each product has a factor of the one before, which an operand's cache still holds: registers
    give two numbers in a cycle, and a product that is added up has three.
    """
    made = list[ir.Instr]()
    for multiplies, group in groupby(instrs, lambda i: factors(i) != ()):
        run = [*group]
        rows = _rows(run) if multiplies else [run]
        made += (i for n, row in enumerate(rows) for i in (row[::-1] if n % 2 else row))
    return tuple(made)


def _rows(run: Sequence[ir.Instr]) -> list[list[ir.Instr]]:
    """Products that have one factor, the same as the one before."""
    second = len(run) > 1 and factors(run[0])[1] == factors(run[1])[1]
    return [[*row] for _, row in groupby(run, lambda i: factors(i)[second])]
