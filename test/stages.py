"""Every way there is to run a graph, so that tests can ask which value first goes wrong.

interpreted   the lazy graph, node by node
"kernel"      its kernels, on whole arrays
"plain"       their loops without Opts, every thread at once
"optimized"   their loops with Opts
machines      their text, compiled: see `on_machine`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import graphs
import numpy as np
import numpy.typing as npt
from simulate import simulate

from tinyml import Tensor, interpret, kernel
from tinyml.codegen import linear, nest
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.linearize.linearize import linearize
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import Opt, optimize
from tinyml.codegen.target import Target
from tinyml.device import OpenDevice, open_device
from tinyml.dtype import to_compute, to_storage
from tinyml.graph import toposort
from tinyml.kernel import Kernel
from tinyml.lazy import LazyBuffer
from tinyml.program import Language
from tinyml.runtime.machine import Buffer, Executable, Machine
from tinyml.schedule import CopyItem, Schedule, schedule

Array = npt.NDArray[Any]
Values = Mapping[LazyBuffer, Array]
Runner = Callable[[Kernel, Sequence[Array]], None]

C = Target(Language.C, vector_bytes=32, vector_registers=16, cores=2)
CUDA = Target(Language.CUDA, cores=4, cache=48 << 10, capability=80)
TARGETS = {"C": C, "CUDA": CUDA}


def simulated(target: Target, opts: Sequence[Opt] | None = ()) -> Runner:
    """Runs a kernel's LinearKernel; `opts` None lets the rules of thumb choose."""

    def run(k: Kernel, arrays: Sequence[Array]) -> None:
        plain = lower(k)
        nest.verify(plain)
        optimized = choose(plain, target)[1] if opts is None else optimize(plain, opts)
        nest.verify(optimized)
        linearized = linearize(optimized, vectors=target.language is Language.C)
        linear.verify(linearized)
        assert f"{optimized}{linearized}", "all that passes between rooms prints"
        simulate(linearized, arrays)

    return run


def assert_right(
    k: Kernel, tolerance: float = 2e-5, target: Target = C, cancels: bool = False
) -> None:
    """With the Opts that the rules of thumb choose, a kernel is what its whole arrays give."""
    assert_made(k, simulated(target, None), tolerance, cancels)


def assert_made(k: Kernel, runner: Runner, tolerance: float = 2e-5, cancels: bool = False) -> None:
    """A runner makes what the kernel's whole arrays give.

    Where much `cancels` in sums, small ones are as wrong as most others of their row.
    """
    rng = np.random.default_rng(5)
    arrays = [graphs.numbers(rng, shape, dtype) for shape, dtype in k.slots]
    wanted = [a.copy() for a in arrays]
    kernel.run(k, wanted)
    runner(k, arrays)
    for output in k.outputs:
        both = (output.within(values[output.slot]) for values in (arrays, wanted))
        made, right = (values.astype(np.float64) for values in both)
        usual = np.maximum(1, np.abs(right).mean(-1, keepdims=True)) if cancels else 1
        np.testing.assert_allclose(made / usual, right / usual, tolerance, tolerance)


def drawn(k: Kernel) -> tuple[list[Array], list[Array]]:
    """Normal numbers, as a kernel's dtypes hold them, and what its whole arrays make of them."""
    rng = np.random.default_rng(5)
    arrays = [
        to_compute(to_storage(rng.standard_normal(shape).astype(t.compute), t), t)
        for shape, t in k.slots
    ]
    wanted = [a.copy() for a in arrays]
    kernel.run(k, wanted)
    return arrays, wanted


@cache
def device(name: str) -> OpenDevice:
    return open_device(name)


def on_machine(name: str, kernels: Iterable[Kernel], opts: Sequence[Opt] | None = None) -> Runner:
    """A runner for `kernels`, all compiled at once."""
    wanted = list(dict.fromkeys(kernels))
    runners = dict(zip(wanted, compiled(name, [(k, opts) for k in wanted]), strict=True))
    return lambda k, arrays: runners[k](k, arrays)


def compiled(name: str, made: Sequence[tuple[Kernel, Sequence[Opt] | None]]) -> list[Runner]:
    """A runner for each kernel with its Opts, all compiled at once."""
    opened = device(name)
    assert opened.target is not None
    programs = [compile(k, opened.target, opts, verify=True) for k, opts in made]
    return [launched(opened.machine, executable) for executable in opened.machine.load(programs)]


def launched(machine: Machine, executable: Executable) -> Runner:
    """Runs what a machine has loaded, on buffers of its own."""

    def run(k: Kernel, arrays: Sequence[Array]) -> None:
        pairs = zip(arrays, k.slots, strict=True)
        buffers = [Buffer(machine, a.size, t).write(to_storage(a, t)) for a, (_, t) in pairs]
        executable.launch([b.memory for b in buffers])
        machine.synchronize()
        for output in k.outputs:
            shape, dtype = k.slots[output.slot]
            arrays[output.slot][...] = to_compute(buffers[output.slot].read(), dtype).reshape(shape)

    return run


def interpreted(roots: Sequence[LazyBuffer], known: Values) -> list[Array]:
    found = interpret.interpret(roots, known)
    return [found[root] for root in roots]


def kernels(*made: LazyBuffer | Tensor) -> list[Kernel]:
    """What graphs become together, or the tensors that hold them."""
    return kernels_of(schedule([m.lazy if isinstance(m, Tensor) else m for m in made]))


def kernel_of(*made: LazyBuffer | Tensor) -> Kernel:
    """Likewise, if that is one kernel."""
    (k,) = kernels(*made)
    return k


def kernels_of(made: Schedule) -> list[Kernel]:
    return [item.kernel for item in made.items if not isinstance(item, CopyItem) and _works(item)]


def _works(item: Any) -> bool:
    return any(output.value.size for output in item.kernel.outputs)


def run(made: Schedule, known: Values, runner: Runner) -> list[Array]:
    """The values of a schedule's roots, each of its kernels run by `runner`."""
    memory = {node: np.array(values) for node, values in known.items()}
    memory |= {node: memory[leaf] for node, leaf in made.in_place.items()}
    for item in made.items:
        shapes = [node.shape for node in item.nodes]
        if not isinstance(item, CopyItem):
            shapes = [shape for shape, _ in item.kernel.slots]
        for node, shape in zip(item.nodes, shapes, strict=True):
            if node not in memory:  # behind filled rows there is nothing
                nothing = np.nan if node.dtype.is_float else 0
                memory[node] = np.full(shape, nothing, node.dtype.compute)
        if isinstance(item, CopyItem):
            memory[item.output] = memory[item.source].copy()
        elif _works(item):
            runner(item.kernel, [memory[node] for node in item.nodes])
    return [memory[root] for root in made.roots]


def agree(
    roots: Sequence[LazyBuffer],
    known: Values,
    runners: Mapping[str, Runner],
    rtol: float = 1e-4,
    atol: float = 1e-4,
) -> Schedule:
    """Assert that all runners give what the interpreter gives; the message names the first."""
    made = schedule(roots)
    for item in made.items:
        if not isinstance(item, CopyItem):
            kernel.verify(item.kernel)
    wanted = interpreted(roots, known)
    for name, runner in runners.items():
        for root, array, right in zip(made.roots, run(made, known, runner), wanted, strict=True):
            same(array.reshape(right.shape), right, root, name, rtol, atol)
    return made


def same(array: Array, right: Array, node: LazyBuffer, name: str, rtol: float, atol: float) -> None:
    """Assert equality of whole numbers, closeness of floats, with a message that says where."""
    if node.dtype.is_float:
        wide = array.astype(np.float64), right.astype(np.float64)
        np.testing.assert_allclose(*wide, rtol, atol, err_msg=f"{name}: {node!r}")
    else:
        np.testing.assert_array_equal(array, right, err_msg=f"{name}: {node!r}")


def simple_runners() -> dict[str, Runner]:
    """Those that need no compiler."""
    return {
        "kernel": kernel.run,
        "plain": simulated(C, ()),
        "optimized for C": simulated(C, None),
        "optimized for CUDA": simulated(CUDA, None),
    }


def described(roots: Sequence[LazyBuffer]) -> str:
    """The graph below `roots`, and the kernels it becomes: what one needs to repeat a failure."""
    order = toposort(roots)
    number = {node: f"n{n}" for n, node in enumerate(order)}
    lines = [f"{number[n]} = {n!r} of {[number[s] for s in n.sources]}" for n in order]
    kernels = [str(k) for k in kernels_of(schedule(roots))]
    return "\n".join([*lines, f"roots {[number[r] for r in roots]}", *kernels])
