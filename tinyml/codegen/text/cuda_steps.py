"""Steps in CUDA: how many of a loop a compiler may write out, in which order products are added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from tinyml.codegen import linear as ir
from tinyml.codegen.expr import Stored, Wide
from tinyml.codegen.target import THREAD
from tinyml.codegen.text.cuda_bounds import SUMS, factors
from tinyml.graph import toposort

MANY, FEW = 64, 4  # instructions of a step that compilers do not write out again; steps, at most


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
