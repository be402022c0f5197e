"""What a multiprocessor has at once: blocks, and registers for the sums of their threads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from tinyml.codegen import linear as ir
from tinyml.codegen.expr import Alu, Name, Stored
from tinyml.codegen.linear import LinearKernel
from tinyml.codegen.target import WORKING, Target
from tinyml.dtype import float32
from tinyml.index import linear
from tinyml.ops import Op
from tinyml.program import REGISTERS

SUMS = 64  # registers of a thread: few
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
