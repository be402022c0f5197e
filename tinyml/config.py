"""Settings. The one place that reads the environment; everything else receives values."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Config:
    """One immutable set of settings; `config.current` is the one in force."""

    device: str = ""  # DEVICE  NUMPY, CPU, CUDA or EMU; "" is the fastest one present
    debug: int = 0  # DEBUG   0 to 5, see README
    debug_nan: bool = False  # DEBUG_NAN 1: a result with NaN raises, naming who made it
    dump: str = ""  # DUMP    folder that receives the source of each kernel
    noopt: bool = False  # NOOPT   1: no Opts, the plainest kernel that is right
    beam: int = 0  # BEAM    places in a search for faster Opts; 0: the rules of thumb choose
    beam_seconds: int = 10  # BEAM_SECONDS  that the search may take for one kernel
    verify: bool = False  # VERIFY  1: check every value between rooms
    jit: bool = True  # JIT     0: TinyJit calls the function plainly
    tf32: bool = False  # TF32    1: products of float32 on tensor cores, with 10 bits of a fraction
    warpgroups: bool = False  # WARPGROUPS 1: products by what only Hopper cards have
    threads: int = 0  # THREADS number of CPU threads; 0 is one per available core
    omp_threads: str = ""  # OMP_NUM_THREADS  the same wish, as OpenMP programs spell it
    seed: int = 0  # SEED    default seed of the random number generator
    cache: str | None = None  # TINYML_CACHE  folder of the disk cache; "" is none
    compiler: str = ""  # CC      C compiler; "" tries cc, gcc, clang
    nvcc: str = ""  # NVCC    CUDA compiler; "" tries nvcc on PATH and in /usr/local/cuda

    @property
    def cache_folder(self) -> Path | None:
        """The folder of the disk cache, or None when there is to be no cache."""
        if self.cache is not None:
            return Path(self.cache).expanduser() if self.cache else None
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        return Path(base) / "tinyml"


_NAMES = {
    "omp_threads": "OMP_NUM_THREADS",
    "cache": "TINYML_CACHE",
    "compiler": "CC",
    "nvcc": "NVCC",
}


def from_environment(environment: Mapping[str, str]) -> Config:
    """Read a Config out of environment variables; raise ValueError naming a bad one."""
    found: dict[str, Any] = {}
    for field in fields(Config):
        name = _NAMES.get(field.name, field.name.upper())
        text = environment.get(name)
        if text is None:
            continue
        kind = type(field.default)
        if kind in (int, bool) and text and not text.strip().isdecimal():
            raise ValueError(f"{name}={text!r} in the environment must be a whole number from 0 on")
        found[field.name] = kind(int(text or 0)) if kind in (int, bool) else text
    if "device" in found:
        found["device"] = found["device"].upper()
    return Config(**found)


current: Config = from_environment(os.environ)


@contextmanager
def override(**settings: Any) -> Iterator[Config]:
    """Run a block with some settings changed: `with config.override(noopt=True): ...`."""
    global current
    before = current
    current = replace(before, **settings)
    try:
        yield current
    finally:
        current = before
