"""A Target: what codegen knows about the machine that will run the text."""

from __future__ import annotations

from tinyml.frozen import dataclass
from tinyml.program import Language

THREAD = 1 << 8  # registers of a card's thread, at most
WORKING = 80  # of them, that it takes beside sums


@dataclass(frozen=True)
class Target:
    """Sizes that decide which Opts are worth it."""

    language: Language
    vector_bytes: int = 16  # of one vector register (C)
    vector_registers: int = 16  # (C)
    pairs: bool = False  # whether lanes multiply pairs of bfloat16 (C)
    cores: int = 1  # of the machine (C), or multiprocessors (CUDA), to keep busy
    cache: int = 1 << 19  # bytes close to one core (C) or of shared memory per block (CUDA)
    last_cache: int = 32 << 20  # bytes of the one that all cores share (C)
    capability: int = 0  # of a card: 80 is 8.0 (CUDA)
    warpgroups: bool = False  # whether they multiply, as on Hopper (CUDA)
    tf32: bool = False  # whether tensor cores may round the factors of float32 products (CUDA)

    @property
    def tile_height(self) -> int:
        """Rows of a tile of sums, two vectors wide, that its registers hold (C)."""
        return 6 if self.vector_registers == 16 else 12
