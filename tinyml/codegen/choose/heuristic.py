"""Rules of thumb: which Opts a kernel gets on a target."""

from __future__ import annotations

from math import prod

from tinyml.codegen.choose.c import CChooser
from tinyml.codegen.choose.cuda import CudaChooser
from tinyml.codegen.nest import LoopNest, block_of
from tinyml.codegen.optimize.opts import Opt
from tinyml.codegen.target import Target
from tinyml.program import Language

MOST_THREADS = 1024  # of a block on any card


def choose(nest: LoopNest, target: Target) -> tuple[list[Opt], LoopNest]:
    """The Opts for `nest`, in the order in which they apply, and the nest with them applied."""
    chooser = (CChooser if target.language is Language.C else CudaChooser)(nest, target)
    chooser.choose()
    if target.language is Language.CUDA and prod(block_of(chooser.nest)[0]) > MOST_THREADS:
        return [], nest  # phases of unequal sizes, each with as many as it may have alone
    return chooser.opts, chooser.nest
