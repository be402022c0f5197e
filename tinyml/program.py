"""A Program: what codegen hands to a machine. Source text and how to launch it.

C programs (language "c") have the signature
    void NAME(void *const *buffers, long start, long end[, long *fault])
and do the work of blocks start <= b < end of `grid` blocks; blocks are independent, so a
machine may run any split of them on any number of threads.

CUDA programs (language "cuda") have the signature
    extern "C" __global__ void NAME(T0 *slot0, const T1 *slot1, ...[, long long *fault])
with one pointer per slot, and are launched with `grid` blocks along x and `block` threads. Those
that copy boxes take a pointer more for each Box: to what the card calls a tensor map.

Programs that can find fault with a value take two words more, which are 0: the code of the first
Fault, and the value.
"""

from __future__ import annotations

from tinyml.faults import Fault
from tinyml.frozen import Enum, dataclass, replace

REGISTERS = 1 << 16  # of a CUDA multiprocessor, all of which one block may have


class Language(Enum):
    C = "c"
    CUDA = "cuda"


@dataclass(frozen=True)
class Cost:
    """What a launch must do at least: the numerators of its roofline."""

    flops: int = 0  # arithmetic operations on floats; a multiply-add counts as two
    nbytes: int = 0  # bytes of distinct buffer elements read and written
    stored: int = 0  # of which so many are written


@dataclass(frozen=True)
class Box:
    """Boxes of a slot's elements, which a card copies by itself, with zeros around the array.

    Floats (4 bytes) arrive rounded to the 19 bits that tensor cores take.

    The array begins `offset` bytes into the slot; neighbours along x lie side by side.
    """

    slot: int
    itemsize: int
    offset: int
    sizes: tuple[int, int, int]  # of the array: elements along x, y, z
    strides: tuple[int, int]  # bytes between neighbours along y and z, multiples of 16
    box: tuple[int, int]  # elements along x (128 bytes) and y


@dataclass(frozen=True)
class Program:
    """Source text, launch size and cost. Equal programs compile to equal binaries."""

    name: str  # also the name of the function: a C identifier, unique by content
    language: Language
    prelude: tuple[str, ...]  # typedefs and helper functions; equal pieces are shared
    source: str  # the kernel function alone, with a head comment
    slots: int  # number of buffers it takes
    grid: int = 1  # number of independent blocks
    block: tuple[int, int, int] = (1, 1, 1)  # CUDA threads per block: x, y, z
    shared: int = 0  # bytes of dynamic shared memory
    cost: Cost = Cost()
    faults: tuple[Fault, ...] = ()  # that it may note
    boxes: tuple[Box, ...] = ()
    held: int = 0  # bytes of memory that it has of its own, from when it is loaded on
    bounds: tuple[int, ...] = ()  # CUDA threads per block, and blocks that are to run at once
    in_order: bool = False  # CUDA: an assembler keeps the order of what is computed

    def __str__(self) -> str:
        launch = f"grid {self.grid}, block {'x'.join(map(str, self.block))}"
        return f"// {self.name}: {launch}, {self.shared} bytes shared\n{self.text}"

    def bounded(self, bounds: tuple[int, ...]) -> Program:
        """The same program, whose compiler is told of other bounds."""
        told = self.source.replace(launch_bounds(self.bounds), launch_bounds(bounds), 1)
        return replace(self, source=told, bounds=bounds)

    @property
    def text(self) -> str:
        """The whole translation unit for this program alone."""
        return translation_unit((self,))


def launch_bounds(bounds: tuple[int, ...]) -> str:
    """How a kernel's text tells a compiler of its bounds."""
    return f"__launch_bounds__({', '.join(map(str, bounds))})"


def translation_unit(programs: tuple[Program, ...]) -> str:
    """One source text that defines all of `programs`, each prelude piece once."""
    pieces = dict.fromkeys(piece for program in programs for piece in program.prelude)
    return "\n".join([*pieces, *(program.source for program in programs)])
