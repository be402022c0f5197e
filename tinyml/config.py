"""Settings. The one place that reads the environment; everything else receives values."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from tinyml.errors import SettingError
from tinyml.frozen import dataclass

DEVICES = ("NUMPY", "CPU", "CUDA", "EMU")


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
    warpgroups: bool | None = None  # WARPGROUPS 0: no products by them; 1: EMU is a Hopper, too
    nvtx: bool = False  # NVTX    1: launches are ranges for NVIDIA's profilers
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


_SWITCHES = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off", ""), False),
}
_VARIABLES = {_NAMES.get(f.name, f.name.upper()): f for f in fields(Config)}


def from_environment(environment: Mapping[str, str]) -> Config:
    """Read a Config out of environment variables; raise SettingError naming a bad one."""
    found: dict[str, Any] = {}
    for name, field in _VARIABLES.items():
        if (text := environment.get(name)) is not None:
            found[field.name] = _value(name, str(field.type), text)
    return Config(**found)


def _value(name: str, kind: str, text: str) -> Any:
    """What `text` says of a setting of this kind."""
    word = text.strip().lower()
    if kind.startswith("bool"):
        if word in _SWITCHES:
            return _SWITCHES[word] if word or kind == "bool" else None
        wanted = "1, true, yes or on, or 0, false, no or off"
    elif kind == "int":
        if not word or word.isdecimal():
            return int(word or 0)
        wanted = "a whole number from 0 on"
    elif name == "DEVICE":
        device = word.upper().removesuffix(":0")
        if device in ("", *DEVICES):
            return device
        wanted = f"{', '.join(DEVICES[:-1])} or {DEVICES[-1]}"
    else:
        return text
    raise SettingError(f"{name}={text!r} in the environment must be {wanted}")


def mistyped(environment: Mapping[str, str]) -> list[str]:
    """Sentences about variables that are meant to be settings, and are none.

    Such are names with a letter missing, doubled or swapped with the next one, with an underscore
    too many, or with TINYML_ before them, whose value is one that the setting could have. Names of
    less than five letters are too close to those of other programs, as SED is to SEED.
    """
    meant = {wrong: name for name in _VARIABLES for wrong in _typos(name)}
    found = []
    for wrong in sorted(meant.keys() & environment.keys() - _VARIABLES.keys()):
        text, name = environment[wrong], meant[wrong]
        try:
            _value(name, str(_VARIABLES[name].type), text)
        except SettingError:
            continue
        found.append(f"{wrong}={text!r} in the environment is no setting of tinyml; {name} is")
    return found


def _typos(name: str) -> Iterator[str]:
    yield f"TINYML_{name}"
    for i in range(1, len(name)) if len(name) > 4 else ():
        before, after = name[:i], name[i:]
        yield from (before[:-1] + after, before + before[-1] + after, f"{before}_{after}")
        yield before[:-1] + after[0] + before[-1] + after[1:]
    if len(name) > 4:
        yield from (name[:-1], name + name[-1])


try:
    current: Config = from_environment(os.environ)
except SettingError as error:
    raise error.with_traceback(None) from None  # a sentence, not how it came about
for _sentence in mistyped(os.environ):
    warnings.warn(_sentence, stacklevel=3)  # at the line that imports tinyml


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
