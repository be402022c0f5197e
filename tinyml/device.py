"""A device joins a machine (where memory is) to a target (what its kernels say).

NUMPY   the reference: graphs are interpreted with numpy
CPU     generated C, the host's compiler, all cores
CUDA    generated CUDA C, PyCUDA
EMU     the same CUDA C, run thread by thread on the host
"""

from __future__ import annotations

import difflib
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from tinyml import config, trace
from tinyml.ceilings import Ceilings
from tinyml.codegen.target import Target
from tinyml.dtype import NAMES
from tinyml.errors import DeviceError
from tinyml.frozen import dataclass
from tinyml.program import Language
from tinyml.runtime.machine import Machine, MemoryStats
from tinyml.runtime.memory import NumpyMachine
from tinyml.setting import Setting
from tinyml.turn import turn


class DeviceName(str):
    """What `x.device` is: equal to all that `device=` takes for it, as "cpu" and "cuda:0"."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, _upper(other) if isinstance(other, str) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    if not TYPE_CHECKING:  # else every name would be known

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"a device has no attribute {name!r}: it is its name, compare x.device == {self!r}"
            )


def _upper(name: str) -> str:
    return name.upper().removesuffix(":0")


@dataclass(frozen=True)
class OpenDevice:
    """A device that answers. Without a target it runs no programs."""

    name: str
    machine: Machine
    target: Target | None


def _numpy() -> OpenDevice:
    return OpenDevice("NUMPY", NumpyMachine(), None)


def _cpu() -> OpenDevice:
    from tinyml.runtime import cpu, limits
    from tinyml.runtime.cpu_ceilings import caches

    machine = cpu.CpuMachine(meanwhile=_load_generator)
    target = Target(
        Language.C,
        *cpu.vectors(),
        pairs=cpu.multiplies_pairs(),
        cores=limits.all_cores(),  # not those that this process may use: the same bits on any
        last_cache=caches()[-1],
    )
    return OpenDevice("CPU", machine, target)


def _load_generator() -> None:
    """Load what a process needs next whose disk cache is empty."""
    import tinyml.codegen.compile
    import tinyml.schedule  # noqa: F401  to be there, as the one above
    from tinyml.codegen.program_cache import generator

    generator()


def _cuda() -> OpenDevice:
    from tinyml.runtime.cuda_driver import open_driver

    open_driver()  # where there is none, all that follows need not be loaded
    from tinyml.runtime.cuda import CudaMachine

    machine = CudaMachine()
    found = machine.properties
    major, minor = found.capability
    target = Target(
        Language.CUDA,
        cores=found.multiprocessors,
        cache=found.shared_per_block,
        capability=10 * major + minor,
        warpgroups=(major, minor) == (9, 0) and config.current.warpgroups is not False,
        tf32=config.current.tf32,
    )
    return OpenDevice("CUDA", machine, target)


def _emu() -> OpenDevice:
    from tinyml.runtime.emu import EmuMachine

    hopper = config.current.warpgroups is True
    target = Target(
        Language.CUDA,
        cores=4,
        cache=(227 if hopper else 163) << 10,  # as a card of this capability has
        capability=90 if hopper else 80,
        warpgroups=hopper,
        tf32=config.current.tf32,
    )
    return OpenDevice("EMU", EmuMachine(watched=config.current.verify), target)


_OPENERS: dict[str, Callable[[], OpenDevice]] = dict(
    zip(config.DEVICES, (_numpy, _cpu, _cuda, _emu), strict=True)
)

_opened: dict[str, OpenDevice] = {}


@cache  # which may call it twice, if threads come at once
def open_device(name: str) -> OpenDevice:
    """The device of that name; DeviceError that says what is missing."""
    with turn:
        if name not in _opened:
            start = time.perf_counter()
            opened = _opened[name] = _OPENERS[name]()
            trace.emit(trace.DeviceOpened(name, opened.target, time.perf_counter() - start))
        return _opened[name]


def along_folds() -> frozenset[str]:
    """Open devices whose products of floats want both factors along what is folded."""
    targets = {name: opened.target for name, opened in _opened.items()}
    return frozenset(name for name, t in targets.items() if t and t.tf32 and t.warpgroups)


def _forget_card() -> None:
    """In a child process: whoever opens its parent's card again says that it cannot be used."""
    _opened.pop("CUDA", None)
    open_device.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_card)


@cache
def ceilings(name: str) -> Ceilings | None:
    """What an open device can do at best: measured, if nobody asked before on this machine."""
    return open_device(name).machine.ceilings()


default_device: Setting[str | None] = Setting("device", None)  # None: nobody has asked yet


class _Devices:
    """The devices of this process: `Device.DEFAULT` is where new tensors go."""

    __slots__ = ()  # nothing else can be set

    @property
    def DEFAULT(self) -> str:
        """The device of tensors that name none; settable. At first DEVICE, or the fastest."""
        return DeviceName(self.canonical(None))

    @DEFAULT.setter
    def DEFAULT(self, name: str) -> None:
        default_device.now = self.canonical(name)

    def _default(self) -> str:
        name = default_device.now
        if name is None:
            wish = config.current.device
            name = default_device.now = self.canonical(wish) if wish else self._fastest()
            open_device(name)
        return name

    @staticmethod
    def _fastest() -> str:
        for name in ("CUDA", "CPU"):
            try:
                open_device(name)
            except DeviceError as error:
                reason = str(error)  # the error itself would keep what its callers hold
                trace.emit(trace.DevicePassedOver(name, reason))
            else:
                return name
        sys.stderr.write(f"tinyml: using the slow NUMPY device: {reason}\n")
        return "NUMPY"

    def available(self, name: str) -> bool:
        """Whether the device answers."""
        try:
            open_device(self.canonical(name))
        except DeviceError:
            return False
        return True

    def canonical(self, name: str | None) -> str:
        """The device's name as tinyml spells it; None is the default. DeviceError if unknown."""
        if name is None:
            return self._default()
        if not isinstance(name, str):
            raise TypeError(
                f"a device is named by a str, one of {', '.join(_OPENERS)}; got {name!r} "
                f"({type(name).__name__})"
            )
        upper = _upper(name)
        if upper not in _OPENERS:
            near = ["CUDA"] if "GPU" in upper else difflib.get_close_matches(upper, _OPENERS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            hint = f"; it is a dtype: write x.cast({name!r})" if name in NAMES else hint
            raise DeviceError(f"no device {name!r}; there are: {', '.join(_OPENERS)}{hint}")
        return upper

    def memory_stats(self, name: str | None = None) -> MemoryStats:
        """Bytes in use, cached, at most in use so far, and of programs, on one device."""
        return open_device(self.canonical(name)).machine.memory_stats()

    def synchronize(self, name: str | None = None) -> None:
        """Wait until a device has done all its work."""
        open_device(self.canonical(name)).machine.synchronize()


Device = _Devices()
