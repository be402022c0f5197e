"""The whole way from a Kernel to a Program, in one place."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from math import prod

from tinyml import kernel, trace
from tinyml.codegen import expr, linear, nest
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.linear import LinearKernel
from tinyml.codegen.linearize.linearize import linearize
from tinyml.codegen.lower import lower
from tinyml.codegen.nest import Kind, LoopNest
from tinyml.codegen.optimize.opts import Opt, OptError, optimize
from tinyml.codegen.target import Target
from tinyml.codegen.text.c import CRenderer
from tinyml.codegen.text.cuda import CudaRenderer
from tinyml.frozen import replace
from tinyml.index import Axis
from tinyml.kernel import Kernel
from tinyml.ops import Op
from tinyml.program import Cost, Language, Program


def compile(
    k: Kernel, target: Target, opts: Sequence[Opt] | None = None, verify: bool = False
) -> Program:
    """The program that computes `k` on `target`; `opts` None lets the rules of thumb choose."""
    start = time.perf_counter()
    plain = lower(k)
    if opts is None:
        opts, optimized = choose(plain, target)
    else:
        optimized = optimize(plain, opts)
        if target.language is Language.C:
            _check_for_c(optimized)
    linearized = linearize(optimized, vectors=target.language is Language.C)
    if verify:
        kernel.verify(k)
        nest.verify(plain)
        nest.verify(optimized)
        linear.verify(linearized)
    program = render(linearized, k, target, cost(plain))
    if trace.wanted(trace.KernelLowered):
        seconds = time.perf_counter() - start
        event = trace.KernelLowered(k, plain, tuple(opts), optimized, linearized, program, seconds)
        trace.emit(event)
    return program


def _check_for_c(optimized: LoopNest) -> None:
    """Whether C has what a list of Opts asks for."""
    for axis in (axis for one in optimized.nests for axis in one.axes):
        kind = optimized.kind(axis)
        if kind is Kind.THREAD:
            raise OptError(f"cannot walk {axis.name} by threads of a block: C has none; grid does")
        if kind is Kind.LANE and axis.size & (axis.size - 1):
            raise OptError(f"cannot walk {axis.name} by {axis.size} lanes: C has 2, 4, 8, ...")


def render(linearized: LinearKernel, k: Kernel, target: Target, spent: Cost) -> Program:
    """The instructions as text, under a name that no other text has."""
    head = [linearized.name, *str(k).splitlines()]
    in_c = target.language is Language.C
    renderer = CRenderer(linearized) if in_c else CudaRenderer(linearized, target)
    draft = renderer.render("NAME", head, spent)
    whole = "\n".join((*draft.prelude, draft.source, *map(str, draft.boxes)))
    key = hashlib.sha256(whole.encode()).hexdigest()[:8]
    name = f"{linearized.name}_{key}"
    return replace(draft, name=name, source=draft.source.replace("NAME(", f"{name}(", 1))


def cost(plain: LoopNest) -> Cost:
    """Operations on floats, and bytes of the elements that the kernel reads and writes."""
    ops = Counter[frozenset[Axis]]()  # by what they walk
    for one in plain.nests:
        for e in one.exprs:
            if isinstance(e, expr.Alu) and e.dtype.is_float and e.op is not Op.CAST:
                ops[e.free] += 1
            elif isinstance(e, expr.Fold):
                ops[e.body.free.union(e.axes)] += 1
    flops = sum(times * prod(a.size for a in axes) for axes, times in ops.items())
    read, written = _touched(plain)
    return Cost(flops, sum(read) + sum(written), sum(written))


def _touched(plain: LoopNest) -> tuple[list[int], list[int]]:
    """Bytes of each slot that are read, and that are written, no element counted twice."""
    read, written = [0] * len(plain.slots), [0] * len(plain.slots)
    for one in plain.nests:
        for load in one.loads:
            read[load.slot] += prod([a.size for a in load.free])
        for store in one.stores:
            size = prod([a.size for a in store.position.free | store.value.free])
            written[store.slot] += size
            read[store.slot] += size if store.op is not None else 0
    for slot, (shape, dtype) in enumerate(plain.slots):
        most = prod(shape)
        read[slot] = min(read[slot], most) * dtype.itemsize
        written[slot] = min(written[slot], most) * dtype.itemsize
    return read, written
