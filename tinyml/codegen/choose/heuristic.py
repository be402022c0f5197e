"""Rules of thumb: which Opts a kernel gets on a target."""

from __future__ import annotations

from tinyml.codegen.choose.c import CChooser
from tinyml.codegen.choose.cuda import CudaChooser
from tinyml.codegen.nest import LoopNest
from tinyml.codegen.optimize.opts import Opt
from tinyml.codegen.target import Target
from tinyml.program import Language


def choose(nest: LoopNest, target: Target) -> tuple[list[Opt], LoopNest]:
    """The Opts for `nest`, in the order in which they apply, and the nest with them applied."""
    chooser = (CChooser if target.language is Language.C else CudaChooser)(nest, target)
    chooser.choose()
    return chooser.opts, chooser.nest
