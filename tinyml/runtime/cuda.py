"""CUDA: an NVIDIA card, through PyCUDA.

The card's primary context is used, which other libraries of the process (PyTorch, CuPy) share.
It stays current on the main thread; any other thread makes it current for each operation. All
work goes to one stream of our own: on the default stream nothing can be captured as a graph. It
is a blocking one, so that what others put on the default stream is in order with our work.

The driver serves only the process that opened it. In a child by fork whatever needs the card is
refused, and nothing is released: it is the parent's.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import re
import struct
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from tinyml import config
from tinyml.cache import DiskCache
from tinyml.ceilings import Ceilings
from tinyml.errors import CompileError, DeviceError, KernelError, OutOfMemoryError
from tinyml.program import Language, Program
from tinyml.runtime import limits, nvcc
from tinyml.runtime.cpu import host_cache
from tinyml.runtime.cuda_boxes import TensorMaps
from tinyml.runtime.cuda_driver import FORKED, nominal, open_driver, properties
from tinyml.runtime.cuda_graph import CudaPlan, GraphDriver
from tinyml.runtime.cuda_memory import CudaFaults, CudaMemory, Staging, is_of_card
from tinyml.runtime.cuda_ranges import open_ranges
from tinyml.runtime.machine import Executable, MemoryStats
from tinyml.runtime.memory import ALIGNMENT
from tinyml.turn import short_lock

_SHARED_BY_DEFAULT = 48 << 10  # bytes of dynamic shared memory; for more, a kernel has to ask
_BALLAST = 128 << 20  # bytes: some 40 us, and no cache has anything else afterwards
_REMEMBERED = 16  # launches that a fault may be blamed on


class CudaExecutable:
    """A function of a loaded module."""

    __slots__ = ("_launch", "_machine", "_pack", "_words", "program")

    def __init__(self, program: Program, function: Any, machine: CudaMachine) -> None:
        self.program, self._machine = program, machine
        self._words = (machine.faults.address,) if program.faults else ()
        self._pack = struct.Struct(f"{_arguments(program)}P").pack
        launch = _launcher(function, program, machine.stream)
        self._launch = machine.ranges.around(program.name, launch) if machine.ranges else launch
        if program.shared > _SHARED_BY_DEFAULT:
            attribute = machine.driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
            function.set_attribute(attribute, program.shared)

    def launch(self, memories: Sequence[int]) -> None:
        machine = self._machine
        if threading.get_ident() != machine.thread:
            machine.guarded(lambda: self.enqueue(memories), self.program.name)
        else:
            try:
                self.enqueue(memories)
            except machine.driver.Error as error:
                raise machine.kernel_error(error, self.program.name) from None
        if self._words:  # nothing may be overwritten after a value that is wrong
            machine.synchronize()

    def launch_timed(self, memories: Sequence[int]) -> float:
        machine, name = self._machine, self.program.name
        machine.guarded(lambda: self.arguments(memories), name)  # maps are made before, not timed
        return machine.timed(lambda: self.enqueue(memories), name)

    def enqueue(self, memories: Sequence[int]) -> None:
        """Put a launch on the stream; the caller has a context and handles the driver's errors."""
        self._machine.recent.append(self.program.name)
        self._machine.with_room(self._start, memories)

    def _start(self, memories: Sequence[int]) -> None:
        self._launch(self._pack(*self.arguments(memories)))

    def arguments(self, memories: Sequence[int]) -> tuple[int, ...]:
        """What the function takes: an address for each slot, and where it notes faults."""
        maps, boxes = self._machine.maps, self.program.boxes
        made = (maps.address(box, memories[box.slot]) for box in boxes) if boxes else ()
        return (*memories, *self._words, *made)


def _arguments(program: Program) -> int:
    """How many arguments a program's function takes."""
    return program.slots + bool(program.faults) + len(program.boxes)


def _launcher(function: Any, program: Program, stream: Any) -> Callable[[bytes], None]:
    """A function that launches with packed arguments, by the shortest way PyCUDA has."""
    grid, block, shared = (program.grid, 1, 1), program.block, program.shared
    direct = getattr(function, "_launch_kernel", None)
    if direct is not None:  # 0.5 us; not part of PyCUDA's documented interface
        return lambda packed: direct(grid, block, packed, shared, stream)
    count = _arguments(program)
    prepared = function.prepare("P" * count)

    def launch(packed: bytes) -> None:  # 2 us
        addresses = struct.unpack(f"{count}P", packed)
        prepared.prepared_async_call(grid, block, stream, *addresses, shared_size=shared)

    return launch


class CudaMachine:
    """One card."""

    def __init__(
        self,
        cache: DiskCache | None = None,
        builder: nvcc.Builder | None = None,
        memory_limit: int | None = None,
        graphs: bool = True,
        device: int = 0,
    ) -> None:
        """`builder` compiles programs: by default CUDA's compiler, for this card."""
        self.name = "CUDA"
        self.dlpack_device = (2, device)
        self.driver = open_driver()
        card = self.driver.Device(device)
        self.properties = properties(self.driver, card)
        self._context = _primary_context(self.driver, card)
        # PyCUDA aborts when a thread ends with a context on its stack; the main one cleans up.
        on_main_thread = threading.current_thread() is threading.main_thread()
        self.thread = threading.get_ident() if on_main_thread else None
        if on_main_thread:
            self._context.push()
        self._watch()
        with self._current():
            self.stream = self.driver.Stream()
            self._timer = (self.driver.Event(), self.driver.Event())
            self.faults = CudaFaults(self.driver)
        self.capturing = short_lock()  # held by who captures launches
        self.maps = TensorMaps(self.driver, self.stream)
        self.ranges = open_ranges() if config.current.nvtx else None
        self._ballast: Any = None  # memory that is cleared before a clock starts
        self.recent: deque[str] = deque(maxlen=_REMEMBERED)  # launched since the last wait
        self._sources = ""  # the folder of the sources of what a fault may be one's of
        self._memory = CudaMemory(self.driver, memory_limit)
        self._staging = Staging(self.driver, self.stream)
        self._graphs = _graph_driver() if graphs else None
        self._plans: WeakSet[CudaPlan] = WeakSet()
        self._modules: dict[str, Any] = {}  # by key of the image
        self._loaded: dict[Program, CudaExecutable] = {}
        cache = host_cache(config.current.cache_folder) if cache is None else cache
        builder = self._default_builder() if builder is None else builder
        self._images = nvcc.Images(self.name, builder, cache, limits.cores())

    def adopts(self, address: int) -> bool:
        """Whether it is memory of the card, and aligned as programs expect it."""
        with self._current():
            return address % ALIGNMENT == 0 and is_of_card(address)

    def allocate(self, nbytes: int) -> int:
        address = None if self.forked else self._memory.reuse(nbytes)
        if address is None:
            with self._current(), self._errors("allocate memory"):
                try:
                    address = self._memory.allocate(nbytes)
                except OutOfMemoryError:
                    if self._ballast is None:
                        raise
                    self._ballast = None
                    address = self._memory.allocate(nbytes)
        return address

    def with_room(self, work: Callable[..., None], *given: object) -> None:
        """Do `work`, once more if the driver lacks memory: then with all that is kept here.

        It loads a kernel when that is first asked for or launched, and what spills needs memory.
        """
        try:
            work(*given)
        except self.driver.MemoryError:
            self._ballast = None
            self._memory.empty()
            work(*given)

    def free(self, memory: int, nbytes: int) -> None:
        """Give memory back, to be given out again; on any thread, at any time."""
        self._memory.free(memory, nbytes)

    def copy_in(self, memory: int, data: npt.NDArray[Any]) -> None:
        """Copy a C-contiguous array into memory, behind all launched work; does not wait for it."""
        with self._on_stream("copy to the card"):
            self._staging.copy_in(memory, data.reshape(-1).view(np.uint8))

    def clear(self, memory: int, nbytes: int) -> None:
        """Fill memory with zero bits, behind all launched work; does not wait for it."""
        if nbytes:
            with self._on_stream("clear memory"):
                self.driver.memset_d8_async(memory, 0, nbytes, self.stream)

    def copy_out(self, data: npt.NDArray[Any], memory: int) -> None:
        """Fill a C-contiguous array from memory, after all launched work; raises its fault."""
        with self._on_stream("copy from the card"):
            self._staging.copy_out(data.reshape(-1).view(np.uint8), memory)
        self._waited()

    def load(self, programs: Iterable[Program]) -> list[Executable]:
        programs = list(programs)
        for program in programs:
            if program.language is not Language.CUDA:
                raise CompileError(f"CUDA runs CUDA C; {program.name} is {program.language.name}")
        new = [p for p in dict.fromkeys(programs) if p not in self._loaded]
        images = self._images.units(new)
        with self._current(), self._errors("load a kernel"):
            for program, image in images:
                self.with_room(self._load, program, image)
        return [self._loaded[program] for program in programs]

    def _load(self, program: Program, image: nvcc.Image) -> None:
        module = self._modules.get(image.key)
        if module is None:
            module = self._modules[image.key] = self.driver.module_from_buffer(image.data)
        function = module.get_function(program.name)
        self._loaded[program] = CudaExecutable(program, function, self)
        self.faults.learn(program.faults)

    def plan(self, calls: Sequence[tuple[Any, Sequence[int]]]) -> CudaPlan:
        plan = CudaPlan(calls, self, self._graphs)
        self._plans.add(plan)
        return plan

    def synchronize(self) -> None:
        with self._on_stream("run its work"):
            self.stream.synchronize()
        self._waited()

    def wait_for_all(self) -> None:
        """Wait until the card has done all work, also that of others on streams of their own."""
        with self._on_stream("wait for the card"):
            self.driver.Context.synchronize()
        self._waited()

    def _waited(self) -> None:
        self.recent.clear()
        self.faults.raise_noted()

    def memory_stats(self) -> MemoryStats:
        return replace(self._memory.stats(), programs=sum(p.held for p in self._loaded))

    @property
    def identity(self) -> str:
        """The card, its driver, and the compiler for it."""
        driver = f"CUDA {self.driver.get_driver_version()}"
        return f"{self.properties.name} {driver} {self._images.builder.fingerprint}"

    def ceilings(self) -> Ceilings | None:
        """What the driver says that this card can do at best."""
        return nominal(self.properties)

    def timed(self, work: Callable[[], None], name: str) -> float:
        """Seconds that the card spends on `work`; waits for it."""
        start, end = self._timer
        seconds = 0.0

        def run() -> None:
            nonlocal seconds
            self._keep_busy()
            start.record(self.stream)
            work()
            end.record(self.stream)
            end.synchronize()
            seconds = start.time_till(end) / 1000

        self.guarded(run, name)
        self._waited()
        return seconds

    def _keep_busy(self) -> None:
        """Give the card something to do until work is queued: the host's time is not to count.

        On an H200, whose host needs 20 us for a launch, all kernels seemed to take as long.
        """
        if self._ballast is None:
            with contextlib.suppress(self.driver.Error):  # out of memory
                self._ballast = self.driver.mem_alloc(_BALLAST)
        if self._ballast is not None:
            self.driver.memset_d8_async(int(self._ballast), 0, _BALLAST, self.stream)

    def guarded(self, work: Callable[[], object], name: str) -> None:
        """Run `work`, which launches `name`, with a context; the driver's errors become ours."""
        with self._current():
            try:
                work()
            except self.driver.Error as error:
                raise self.kernel_error(error, name) from None

    def kernel_error(self, error: Exception, name: str) -> KernelError:
        """The error of a launch of `name`, or of an earlier one that shows only now."""
        if not _is_fault(error):
            return KernelError(f"CUDA could not launch {name}: {error}")
        return KernelError(
            f"CUDA could not run {name}: {error}. Launched since the last wait: "
            f"{self._suspects()}. {_AFTER_A_FAULT}"
        )

    def _suspects(self) -> str:
        """The kernels that a fault may be one's of, and where their sources are."""
        names = [*dict.fromkeys(self.recent)]
        try:
            self._sources = self._sources or tempfile.mkdtemp(prefix="tinyml-fault-")
            for program in self._loaded:
                if program.name in names:
                    Path(self._sources, f"{program.name}.cu").write_text(program.text)
        except OSError:  # there is no room for them
            self._sources = ""
        where = f" (sources in {self._sources})" if self._sources and names else ""
        return (", ".join(names) or "none") + where

    @contextmanager
    def _current(self) -> Iterator[None]:
        """The card's context is current in here, on whatever thread."""
        if threading.get_ident() == self.thread:
            yield
            return
        if self.forked:
            raise DeviceError(FORKED)
        self._context.push()
        try:
            yield
        finally:
            self._context.pop()

    @contextmanager
    def _on_stream(self, what: str) -> Iterator[None]:
        """What any thread may do, as copies of data to come, but not while a graph is captured.

        Else a copy would be a part of the graph: done late, and again in every replay.
        """
        with self._current(), self._errors(what), self.capturing:
            yield

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except self.driver.Error as error:
            if not _is_fault(error):
                raise DeviceError(f"CUDA could not {what}: {error}") from None
            raise KernelError(
                f"CUDA could not {what}, because a kernel failed: {error}. Launched since the "
                f"last wait: {self._suspects()}. {_AFTER_A_FAULT}"
            ) from None

    def _default_builder(self) -> nvcc.CudaBuilder:
        arch = nvcc.architecture(self.properties.capability)
        newest = self.driver.get_driver_version() // 1000
        return nvcc.CudaBuilder(nvcc.find(config.current.nvcc, newest), arch)

    def _watch(self) -> None:
        """Be told of forks, and of the end of the process."""
        self.forked = False  # whether this process is a child of the one that opened the card
        self._left = False  # whether the main thread is out of the context, as it forks
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._leave, after_in_parent=self._return, after_in_child=self._lose
            )
        atexit.register(self._close)

    def _leave(self) -> None:
        """Before a fork: a child could not leave the context, and PyCUDA would abort at its end."""
        if threading.get_ident() == self.thread:
            with contextlib.suppress(self.driver.Error):
                self._context.pop()
                self._left = True

    def _return(self) -> None:
        """After a fork, in the parent."""
        if threading.get_ident() == self.thread and self._left:
            self._left = False
            self._context.push()

    def _lose(self) -> None:
        """After a fork, in the child: no thread has the context, and nothing is ever released."""
        self.forked, self.thread = True, None
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))  # PyCUDA's objects release what is gone

    def _close(self) -> None:
        """Give back what the driver holds, in the order it wants, and leave the context."""
        if self.forked:
            return
        with contextlib.suppress(self.driver.Error), self._current():
            self.stream.synchronize()
            for plan in self._plans:
                plan.close()
        with self._current():
            self._staging.forget()
            self.faults.forget()
            self.maps.forget()
            self._memory.forget()
            self._ballast = None
            self._loaded.clear()
            self._modules.clear()
        if self.thread is not None:
            self._context.pop()
            self.thread = None
        # PyCUDA's own clean-up would detach from the primary context in a way made for others.
        self._context.detach()


# PyCUDA's exceptions carry no number. These are words of the driver for faults of a kernel, which
# any later call may report.
_FAULT = re.compile(
    r"illegal|misaligned|launch fail|timed out|assert|hardware stack|program counter"
    r"|address space|trap"
)
_AFTER_A_FAULT = (
    "After a fault the card refuses this process; DEVICE=EMU says what a kernel does wrong"
)


def _is_fault(error: Exception) -> bool:
    return _FAULT.search(str(error)) is not None


def _primary_context(driver: Any, card: Any) -> Any:
    try:
        return card.retain_primary_context()
    except driver.Error as error:
        raise DeviceError(f"CUDA cannot use {card.name()}: {error}") from None


def _graph_driver() -> GraphDriver | None:
    try:
        return GraphDriver()
    except (OSError, AttributeError):  # older than CUDA 12
        return None
