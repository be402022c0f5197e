"""tinyml: a small deep-learning compiler. `Tensor` is where to begin."""

from __future__ import annotations

import importlib
from typing import Any

from tinyml import config
from tinyml.autograd import enable_grad, no_grad
from tinyml.device import Device
from tinyml.dtypes import dtypes
from tinyml.function import Function
from tinyml.functional.random_ import manual_seed
from tinyml.tensor import Tensor

__version__ = "0.1.0"
__all__ = ["Device", "Function", "Tensor", "dtypes", "enable_grad", "manual_seed", "no_grad"]

if config.current.debug or config.current.dump:
    importlib.import_module("tinyml.debug").start(config.current)


def __getattr__(name: str) -> Any:
    if name == "nn":
        return importlib.import_module("tinyml.nn")
    if name == "TinyJit":
        return importlib.import_module("tinyml.jit").TinyJit
    raise AttributeError(f"module 'tinyml' has no attribute {name!r}")
