"""EMU: a Machine that runs CUDA C on the host, one thread at a time, and watches it closely."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tinyml import config
from tinyml.cache import DiskCache
from tinyml.errors import CompileError, KernelError
from tinyml.faults import raise_noted
from tinyml.frozen import Enum
from tinyml.program import Box, Language, Program
from tinyml.runtime import compiler, limits
from tinyml.runtime.cpu import host_cache
from tinyml.runtime.emu import compile as emu_compile
from tinyml.runtime.emu.memory import GuardedMemory
from tinyml.runtime.machine import Executable, MemoryStats, OnHost


class ThreadOrder(Enum):
    """Whose turn it is first: a missing barrier shows when the order changes."""

    FORWARD = 0
    BACKWARD = 1
    SHUFFLED = 2


class _Launch(ctypes.Structure):
    """emu::Launch of emu_scheduler.h."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_size_t),
        ("arguments", ctypes.c_void_p),
        ("order", ctypes.c_int),
        ("fault", ctypes.c_void_p),
    )


class _BoxMap(ctypes.Structure):
    """emu::BoxMap of emu_scheduler.h."""

    _fields_ = (
        ("mark", ctypes.c_ulonglong),
        ("address", ctypes.c_ulonglong),
        ("sizes", ctypes.c_ulonglong * 3),
        ("strides", ctypes.c_ulonglong * 2),
        ("box", ctypes.c_ulonglong * 2),
        ("itemsize", ctypes.c_ulonglong),
    )


_MAP_BYTES, _MAP_ALIGNMENT, _MAP_MARK = 128, 64, 0xB0C5
_PIECE, _MOST_LINES = 16, 256  # bytes that boxes are made of, elements of one either way


def box_map(box: Box, address: int) -> bytes:
    """What the emulator takes for a tensor map of the slot at `address`.

    KernelError where a card's driver would have none.
    """
    start = address + box.offset
    if any(n % _PIECE for n in (start, *box.strides)) or max(box.box) > _MOST_LINES:
        raise KernelError(f"no card has a tensor map for {box} at {start:#x}")
    made = _BoxMap(_MAP_MARK, start, box.sizes, box.strides, box.box, box.itemsize)
    return bytes(made).ljust(_MAP_BYTES, b"\0")


# One launch at a time in a process: faults are caught by signal handlers, which it has once.
_turn = threading.RLock()


class EmuExecutable:
    """A compiled CUDA program at the address of its launcher."""

    __slots__ = (
        "_arguments",
        "_fault",
        "_launch",
        "_launcher",
        "_maps",
        "_memory",
        "_room",
        "program",
    )

    def __init__(
        self, program: Program, address: int, memory: GuardedMemory, order: ThreadOrder
    ) -> None:
        self.program = program
        self._memory = memory
        self._launcher = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.POINTER(_Launch))(address)
        self._fault = (ctypes.c_longlong * 2)()
        self._arguments = (ctypes.c_void_p * (program.slots + 1 + len(program.boxes)))()
        self._arguments[program.slots] = ctypes.addressof(self._fault)  # some programs take it
        self._room = ctypes.create_string_buffer(_MAP_BYTES * len(program.boxes) + _MAP_ALIGNMENT)
        first = -(-ctypes.addressof(self._room) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
        self._maps = [first + number * _MAP_BYTES for number in range(len(program.boxes))]
        behind = program.slots + bool(program.faults)
        self._arguments[behind : behind + len(self._maps)] = [*self._maps]
        self._launch = _Launch(
            grid=(program.grid, 1, 1),
            block=program.block,
            shared=program.shared,
            arguments=ctypes.addressof(self._arguments),
            order=order.value,
        )

    def launch(self, memories: Sequence[int]) -> None:
        """Run the program and return when it is done.

        KernelError if it does wrong, or the fault that it finds with a value.
        """
        self._check_count(memories)
        with _turn:
            self._arguments[: len(memories)] = list(memories)
            for box, place in zip(self.program.boxes, self._maps, strict=True):
                ctypes.memmove(place, box_map(box, memories[box.slot]), _MAP_BYTES)
            self._launch.fault = None
            message = self._launcher(ctypes.byref(self._launch))
            fault = self._launch.fault
        if message is not None:
            where = self._near(fault, memories) if fault is not None else ""
            raise KernelError(f"{self.program.name}: {message.decode()}{where}")
        self._check_canaries(memories)
        if self._fault[0]:
            raise_noted(self._fault, self.program.faults)

    def launch_timed(self, memories: Sequence[int]) -> float:
        """Run the program and return the seconds it took (of the emulator: no card's)."""
        start = time.perf_counter()
        self.launch(memories)
        return time.perf_counter() - start

    def _check_count(self, memories: Sequence[int]) -> None:
        if len(memories) != self.program.slots:
            raise KernelError(
                f"{self.program.name} takes {self.program.slots} buffers, got {len(memories)}"
            )

    def _near(self, fault: int, memories: Sequence[int]) -> str:
        for slot, address in enumerate(memories):
            where = self._memory.describe(fault, address)
            if where:
                return f", at slot {slot}: {where}"
        return f", at {fault:#x}, which is near none of its buffers"

    def _check_canaries(self, memories: Sequence[int]) -> None:
        for slot, address in enumerate(memories):
            damage = self._memory.damage(address)
            if damage:
                raise KernelError(f"{self.program.name}: out of bounds at slot {slot}: {damage}")


def _checked(program: Program) -> Program:
    if program.language is not Language.CUDA:
        raise CompileError(f"EMU runs CUDA C; {program.name} is {program.language.name}")
    return program


class EmuMachine(OnHost):
    """The emulated card."""

    def __init__(
        self,
        cache: DiskCache | None = None,
        order: ThreadOrder = ThreadOrder.FORWARD,
        cxx: str = "",
        memory_limit: int = 4 << 30,
        watched: bool = False,
    ) -> None:
        """`watched`: what threads touch is compared, so that races are found; slow."""
        self.name = "EMU"
        self._memory = memory = GuardedMemory(self.name, memory_limit)
        cache = host_cache(config.current.cache_folder) if cache is None else cache
        found = emu_compile.find(cxx, cache, watched)
        own = self.name, found, cache, limits.cores()
        self._functions = compiler.Functions(
            *own, lambda p, at: EmuExecutable(p, at, memory, order), emu_compile.render
        )

    def adopts(self, address: int) -> bool:
        return False  # memory of somebody else has no guard pages

    def allocate(self, nbytes: int) -> int:
        """16-byte aligned, no more: a stray access shows."""
        return self._memory.allocate(nbytes)

    def free(self, memory: int, nbytes: int) -> None:
        self._memory.free(memory)

    def load(self, programs: Iterable[Program]) -> list[Executable]:
        return self._functions.load(map(_checked, programs))

    def memory_stats(self) -> MemoryStats:
        return replace(self._memory.stats(), programs=sum(p.held for p in self._functions.loaded))

    @property
    def identity(self) -> str:
        """The host's compiler: what an emulator takes says nothing of a card."""
        return f"EMU {self._functions.compiler.fingerprint}"

    def ceilings(self) -> None:
        """None: an emulated card has no speed."""
