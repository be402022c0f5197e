"""Walk three expressions through the rooms of tinyml, and explain what each room makes.

python examples/tour.py
DEVICE=EMU python examples/tour.py      # CUDA C instead of C, without a card

(a + b).sum() goes slowly, past every value. Then softmax, where several reductions become one
kernel, and a matmul with relu, where there is no primitive for either.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import textwrap
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout need not be installed

from tinyml import Device, Tensor, trace
from tinyml.explain import graph_text
from tinyml.schedule import KernelItem


def say(title: str, text: str, value: object = "") -> None:
    """A heading, an explanation, and the value itself, indented."""
    print(f"\n{title}\n{'-' * len(title)}")
    print(textwrap.fill(" ".join(text.split()), 88))
    if str(value):
        print("\n" + textwrap.indent(str(value).rstrip(), "    "))


def main() -> None:
    layout = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=layout).parse_args()
    if Device.DEFAULT == "NUMPY":
        if not Device.available("CPU"):
            sys.exit("The tour is about kernels. NUMPY has none, and there is no C compiler here.")
        print("NUMPY interprets the graph and makes no kernels: showing the device CPU instead.")
        Device.DEFAULT = "CPU"
    sum_of_two()
    softmax()
    matmul_relu()


# ---- (a + b).sum(), slowly ----


def sum_of_two() -> None:
    # Uploaded numbers: of Tensor.ones, say, there would be nothing in memory to read.
    host = np.arange(2 * 4 * 256, dtype=np.float32).reshape(2, 4, 256)
    a, b = Tensor(host[0]), Tensor(host[1])
    total = (a + b).sum()
    say(
        "1. Tensor -> LazyBuffer (tensor.py, functional/, mlops.py, lazy.py)",
        """Nothing has been computed. Each op checked its shapes and dtypes and recorded a node of
        a few primitives; equal nodes are one object. A sum keeps the axes that it folds, with
        size 1, and a reshape drops them: moving elements about costs nothing here, for it will
        end up as arithmetic on positions.""",
        graph_text([total.lazy], {a.lazy: "a", b.lazy: "b"}),
    )
    realize_aloud(total)
    say(
        "9. The result (realize.py)",
        """The tensor now points at a leaf that stands for memory; the graph behind it is
        forgotten. numpy has the same number:""",
        f"{total.lazy}\ntinyml {total.item():.1f}\nnumpy  {host.sum():.1f}",
    )


def realize_aloud(total: Tensor) -> None:
    """Realize, and explain every event that the rooms announce meanwhile."""
    with contextlib.ExitStack() as stack:
        scheduled = stack.enter_context(trace.listen(trace.Scheduled))
        lowered = stack.enter_context(trace.listen(trace.KernelLowered))
        compiled = stack.enter_context(trace.listen(trace.Compiled))
        ran = stack.enter_context(trace.listen(trace.KernelRan))
        total.realize()

    made_of = [item for event in scheduled for item in event.items if isinstance(item, KernelItem)]
    for number, made in enumerate(made_of, 1):
        say(
            f"2. LazyBuffer -> Kernel {number} of {len(made_of)} (schedule/, kernel.py)",
            """`realize` asks the scheduler, which joins nodes into kernels: the addition is
            computed where the sum reads it, and never stored. A kernel knows its expression and
            the shapes of its slots (outputs, then inputs), but no device and no memory. The
            scheduler gives its reasons: why something is stored, or is a step of its own.""",
            "\n".join([str(made.kernel), *(f"because {reason}" for reason in made.reasons)]),
        )
    for number, step in enumerate(lowered, 1):
        tell(step, f"(kernel {number} of {len(lowered)})")
    for event in compiled:
        where = "came from the disk cache" if event.cached else f"took {event.seconds:.3f} s"
        say(
            "7. The compiler (runtime/)",
            f"Compiling {', '.join(event.names)} {where}. Equal kernels are compiled once.",
            event.command,
        )
    for launch in ran:
        cost = launch.program.cost
        say(
            "8. The machine (plan.py, realize.py, runtime/)",
            f"""{launch.program.name} ran on {launch.device} in {launch.seconds * 1e6:.0f} us. At
            the least it must do {cost.flops} operations and move {cost.nbytes} bytes. A graph of
            the same structure would now run by the same plan: nothing is scheduled again.""",
        )


def tell(step: trace.KernelLowered, which: str) -> None:
    """What codegen made of one kernel."""
    say(
        f"3. Kernel -> LoopNest {which}: codegen/lower.py",
        """Lowering gives the kernel axes to walk, and turns every movement (reshape, permute,
        pad, ...) into arithmetic on positions. This is the plainest nest that is right.""",
        step.nest,
    )
    say(
        f"4. LoopNest -> LoopNest {which}: codegen/optimize/opts.py, heuristic.py",
        """Opts say who walks which axis: blocks, threads, vector lanes, loops. They are a list of
        values, chosen by rules of thumb here (NOOPT=1 chooses none). They change how the result
        is computed, never what it is. """
        + f"The Opts: {', '.join(map(str, step.opts)) or 'none'}.",
        step.optimized,
    )
    say(
        f"5. LoopNest -> LinearKernel {which}: codegen/linearize/linearize.py",
        """Everything gets its place in order: reductions become accumulators that are declared,
        updated in a loop and read after it.""",
        step.linear,
    )
    say(
        f"6. LinearKernel -> Program {which}: codegen/text/render.py, c.py, cuda.py",
        f"""And that is written down in the device's language: {step.program.language.name}. All
        of codegen took {step.seconds * 1e3:.1f} ms.""",
        step.program.source,
    )


# ---- two more, with an eye on one thing each ----


def softmax() -> None:
    host = np.linspace(-1, 1, 8 * 100, dtype=np.float32).reshape(8, 100)
    x = Tensor(host)
    result = x.softmax(axis=1)
    say(
        "Softmax: what is wanted",
        """A softmax subtracts the largest element of its row, so that exp cannot overflow, and
        divides by the sum: two reductions, the second of them over what the first one gave.""",
        graph_text([result.lazy], {x.lazy: "x"}),
    )
    with trace.listen(trace.KernelLowered) as lowered:
        result.realize()
    say(
        f"Softmax: {count(lowered)}",
        """Both reductions and the map after them walk the same rows, so one kernel does a row
        from beginning to end. What happens in a row: a fold for the maximum, a fold for the sum,
        and a walk that stores the quotients. What a fold found is never written to memory.""",
        "\n".join(str(step.optimized) for step in lowered),
    )
    powers = np.exp(host - host.max(axis=1, keepdims=True))
    compare(result, powers / powers.sum(axis=1, keepdims=True))


def matmul_relu() -> None:
    left = np.linspace(-1, 1, 32 * 48, dtype=np.float32).reshape(32, 48)
    right = np.linspace(1, -1, 48 * 64, dtype=np.float32).reshape(48, 64)
    x, w = Tensor(left), Tensor(right)
    result = (x @ w).relu()
    say(
        "Matmul and relu: what is wanted",
        """No primitive multiplies matrices. Both operands are spread out to one shape, multiplied
        element by element and summed over the axis that they share: 32 x 64 x 48 products, of
        which none is ever stored. And relu is max(x, 0).""",
        graph_text([result.lazy], {x.lazy: "x", w.lazy: "w"}),
    )
    with trace.listen(trace.KernelLowered) as lowered:
        result.realize()
    for step in lowered:
        say(
            f"Matmul and relu: {count(lowered)}",
            """The expands are gone: they are axes that a load's position does not mention. That
            leaves the three loops that one would write by hand. The maximum is taken when a sum
            is complete, before it is stored.""",
            step.nest,
        )
        say(
            "Matmul and relu: what makes it fast",
            """With three loops alone, every product would need two loads. `unroll` and `lanes` give
            a thread a small block of results to keep in registers, so that what is loaded once is
            used many times; `thread` and `grid` share the blocks out; `stage` first copies what
            many will read to fast memory; `peel` sets apart what fills no whole block.""",
            "\n".join(map(str, step.opts)) or "no Opts",
        )
    compare(result, np.maximum(left @ right, 0))


def count(lowered: list[trace.KernelLowered]) -> str:
    names = [step.program.name for step in lowered]
    return f"{len(names)} kernel{'s' if len(names) != 1 else ''}, {', '.join(names)}"


def compare(result: Tensor, wanted: object) -> None:
    error = float(np.abs(result.numpy() - wanted).max())
    print(f"\nLargest difference from numpy: {error:.1e}")


if __name__ == "__main__":
    main()
