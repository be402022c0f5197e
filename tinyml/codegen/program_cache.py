"""The program cache: programs that were generated before, by any process, come from the disk.

A program follows from its kernel, its target, the Opts that were asked for, and the generator
itself; the key of its entry is made of all four. So a process whose kernels are all known loads
no generator. Where somebody looks at the values on the way, or wants them verified, they are made.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tinyml import kernel, trace
from tinyml.cache import DiskCache, key
from tinyml.codegen.target import Target
from tinyml.kernel import Kernel
from tinyml.program import Program

if TYPE_CHECKING:
    from tinyml.codegen.optimize.opts import Opt


def cached_program(
    k: Kernel, target: Target, opts: Sequence[Opt] | None, verify: bool, disk: DiskCache
) -> Program:
    """The program that computes `k` on `target`: as it was generated before, or is now."""
    made_by = generator()
    if verify or made_by is None or disk.folder is None or trace.wanted(trace.KernelLowered):
        return _generated(k, target, opts, verify)
    asked = "rules" if opts is None else "\n".join(map(str, opts))
    place = key("program", made_by, kernel.spelled(k), repr(target), asked)
    content = disk.get(place, ".program")
    if content is not None:
        # As much to be trusted as the machine code beside it.
        known: Program = pickle.loads(content)
        return known
    program = _generated(k, target, opts, verify)
    disk.put(place, ".program", pickle.dumps(program))
    return program


def _generated(k: Kernel, target: Target, opts: Sequence[Opt] | None, verify: bool) -> Program:
    from tinyml.codegen.compile import compile

    return compile(k, target, opts, verify)


@cache
def generator() -> str | None:
    """A digest of all files that schedules and programs may depend on; None if there are none."""
    texts = [file.read_bytes() for file in files()]
    return key(*texts) if texts else None


def files() -> list[Path]:
    """What schedules and programs may depend on."""
    root = Path(__file__).parents[1]
    patterns = ("*.py", "schedule/*.py", "codegen/**/*.py", "codegen/**/*.cuh")
    return sorted(file for pattern in patterns for file in root.glob(pattern))
