"""What a compiler says that kernels take of a card: registers, spills, stack, shared memory.

    python benchmarks/resources.py sm_80 sm_90a --out FILE     # all that cuda.py measures
    python benchmarks/resources.py sm_75 --of "conv 3x3" attention

No card is needed, only nvcc or NVRTC. All kernels of a workload are generated as for a card of
that architecture, with TF32=1 and WARPGROUPS=1 too where it knows them; equal text is compiled
once. Printed is what a card would not run as it was meant. What was compiled is in the cache.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout need not be installed

from benchmarks import card, machine, run
from benchmarks.peers import Work
from benchmarks.scheduled import kernels_of
from tinyml import Device, config, trace
from tinyml.cache import DiskCache
from tinyml.codegen.compile import compile
from tinyml.codegen.target import Target
from tinyml.errors import TinymlError
from tinyml.kernel import Kernel
from tinyml.program import REGISTERS, Language, Program
from tinyml.runtime import limits, nvcc
from tinyml.runtime.cpu import host_cache
from tinyml.runtime.nvcc import CudaBuilder, Images, Resources

TROUBLES = "does not compile", "spills", "stack", "registers", "shared memory"
NOTHING = Resources(0, 0, 0, 0, 0)
_CUDA = partial(Target, Language.CUDA)
CARDS = {  # a Tesla T4, an A100, an L40, an H100, a GeForce RTX 5090
    "sm_75": _CUDA(cores=40, cache=64 << 10, capability=75),
    "sm_80": _CUDA(cores=108, cache=163 << 10, capability=80),
    "sm_89": _CUDA(cores=142, cache=99 << 10, capability=89),
    "sm_90a": _CUDA(cores=132, cache=227 << 10, capability=90),
    "sm_120a": _CUDA(cores=170, cache=99 << 10, capability=120),
}


@dataclass(frozen=True)
class Taken:
    """One kernel of a workload, and what it takes; or why it does not compile."""

    workload: str
    program: str
    block: int
    grid: int
    shared: int = 0  # bytes of dynamic shared memory
    most_shared: int = 0  # that a block of this card may have
    resources: Resources = NOTHING
    error: str = ""

    @property
    def troubles(self) -> list[str]:
        """What a card would not run, or not as it was meant."""
        taken = self.resources
        found = (
            bool(self.error),
            taken.spills,
            taken.stack > 0 and not taken.spills,
            taken.registers * self.block > REGISTERS,
            self.shared + taken.shared > self.most_shared,
        )
        return [name for name, true in zip(TROUBLES, found, strict=True) if true]

    def __str__(self) -> str:
        if self.error:
            return f"{self.program} ({self.workload}): {self.error}"
        taken = self.resources
        return (
            f"{', '.join(self.troubles)}: {self.program} ({self.workload}), grid {self.grid}, "
            f"block {self.block}, {taken.registers} registers, {self.shared + taken.shared} B "
            f"shared, {taken.spill_stores}/{taken.spill_loads} B spilled, {taken.stack} B stack"
        )


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("architectures", nargs="+", choices=CARDS, metavar="ARCHITECTURE")
    parser.add_argument("--of", nargs="*", default=[], help="words: workloads that have one")
    parser.add_argument("--small", action="store_true", help="tiny inputs: a rehearsal")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    return parser.parse_args(given)


def main() -> None:
    args = arguments()
    tools = nvcc.find(config.current.nvcc)
    works = [i.work for i in card.items(args.small) if not (i.settings or i.first)]
    works = [work for work in works if run.matches(work, args.of)]
    found = {}
    for name in args.architectures:
        builder, disk = CudaBuilder(tools, name), host_cache(config.current.cache_folder)
        taken = []
        for one in compiled(works, targets(CARDS[name]), builder, disk):
            taken.append(one)
            if one.troubles:
                print(name, one, flush=True)
        found[name] = summary(taken)
        print(f"{name}: {json.dumps(found[name]['counts'])}", flush=True)
        record = {"commit": machine.commit(), "compiler": tools.command, "architectures": found}
        if args.out:
            args.out.write_text(json.dumps(record, indent=1) + "\n")


def summary(taken: Sequence[Taken]) -> dict[str, Any]:
    """How many kernels there are, how many have which trouble, and those."""
    counts = {"kernels": len(taken), **dict.fromkeys(TROUBLES, 0)}
    for trouble in (name for one in taken for name in one.troubles):
        counts[trouble] += 1
    return {"counts": counts, "troubled": [asdict(one) for one in taken if one.troubles]}


def targets(base: Target) -> list[Target]:
    """A card with each setting that it knows."""
    found = [base]
    found += [replace(t, tf32=True) for t in found if base.capability >= 80]
    return found + [replace(t, warpgroups=True) for t in found if base.capability == 90]


def compiled(
    works: Iterable[Work], kinds: Sequence[Target], builder: CudaBuilder, disk: DiskCache
) -> Iterator[Taken]:
    """What each program takes: of one that several workloads or settings have, once."""
    images = Images("CUDA", builder, disk, limits.cores())
    kernels, names = set[Kernel](), set[str]()
    for work in works:
        new = [k for k in dict.fromkeys(kernels_of(work)) if k not in kernels]
        kernels.update(new)
        made: list[Program] = []
        for k, target in ((k, target) for target in kinds for k in new):
            try:
                program = compile(k, target)
            except TinymlError as error:
                yield Taken(work.name, str(k.slots[0]), 0, 0, error=run.words(error, 600))
                continue
            if program.name not in names:
                names.add(program.name)
                made.append(program)
        yield from _resources(work.name, made, images, kinds[0].cache)


def _resources(
    workload: str, programs: Sequence[Program], images: Images, most: int
) -> Iterator[Taken]:
    with trace.listen(trace.Compiled) as events:
        failed = dict(_failures(programs, images))
    said: dict[str, Resources] = {}
    for event in events:
        said |= nvcc.parse_resources(event.output)
    for p in programs:
        taken = Taken(workload, p.name, prod(p.block), p.grid, p.shared, most)
        error = failed.get(p.name)
        yield replace(taken, error=error) if error else replace(taken, resources=said[p.name])


def _failures(programs: Sequence[Program], images: Images) -> Iterator[tuple[str, str]]:
    """Compile programs; what is wrong with some, by name."""
    try:
        images.units(programs)
    except TinymlError as error:
        if len(programs) == 1:
            yield programs[0].name, run.words(error, 600)
        else:
            for program in programs:
                yield from _failures([program], images)


if __name__ == "__main__":
    Device.DEFAULT = "EMU"
    main()
