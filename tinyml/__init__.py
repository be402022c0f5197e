"""tinyml: a small deep-learning compiler. `Tensor` is where to begin."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from tinyml import config, errors
from tinyml.autograd import enable_grad, no_grad
from tinyml.checkpoint import checkpoint
from tinyml.defaults import defaults
from tinyml.device import Device
from tinyml.dtypes import dtypes
from tinyml.function import Function
from tinyml.functional import missing
from tinyml.functional.random_ import manual_seed
from tinyml.tensor import Tensor

if TYPE_CHECKING:
    from tinyml import nn
    from tinyml.jit import TinyJit

__version__ = "0.1.0"
__all__ = [
    "Device",
    "Function",
    "Tensor",
    "TinyJit",
    "checkpoint",
    "defaults",
    "dtypes",
    "enable_grad",
    "errors",
    "manual_seed",
    "nn",
    "no_grad",
]

for _name in ("tinyml.tensor", "tinyml.device"):  # functions of torch
    sys.modules[_name].__class__ = missing.Uncalled
sys.modules["tinyml.autograd"].__class__ = missing.Autograd

if config.current.debug or config.current.dump:
    importlib.import_module("tinyml.debug").start(config.current)

if config.current.debug_nan:
    importlib.import_module("tinyml.blame").start()

if not TYPE_CHECKING:  # what takes time to import, and not every program uses

    def __getattr__(name: str) -> object:
        if name in ("nn", "jit"):
            return importlib.import_module(f"tinyml.{name}")
        if name == "TinyJit":
            return importlib.import_module("tinyml.jit").TinyJit
        raise missing.no_function(Tensor, dtypes.fields(), __all__, name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
