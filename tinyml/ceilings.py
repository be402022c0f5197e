"""Ceilings: what a machine can do at best, in numbers that time can be predicted from."""

from __future__ import annotations

from tinyml.frozen import dataclass


@dataclass(frozen=True)
class Level:
    """A place where data can lie: a cache, or the memory behind all caches."""

    size: int  # bytes that one thread finds here; for the last level, as good as all
    read: float  # bytes per second, all threads together
    write: float  # likewise; a plain store reads the line first
    copied: float = 0.0  # read, and as many stored past the caches, at once; 0 if not known


@dataclass(frozen=True)
class Ceilings:
    """What all threads of a machine reach together, each doing nothing else."""

    flops: float  # per second, of float32; a multiply-add is two
    lanes: int  # float32 in one vector instruction
    threads: int
    launch: float  # seconds that a launch of nothing takes
    levels: tuple[Level, ...]  # from the closest to the memory

    @property
    def instruction(self) -> float:
        """Seconds that a thread needs for one vector multiply-add among many."""
        return 2 * self.lanes * self.threads / self.flops

    def level(self, nbytes: int) -> Level:
        """The closest level that holds so much, if all threads share it."""
        holds = (level for level in self.levels if nbytes <= level.size * self.threads)
        return next(holds, self.levels[-1])

    def roofline(self, flops: int, nbytes: int, stored: int = 0) -> float:
        """The least seconds for so much work: all at once, nothing ever waiting.

        `stored` of the bytes need not be read. Memory takes them while it delivers the others.
        """
        level = self.level(nbytes)
        fastest = max(level.read, level.copied)
        return max(nbytes / fastest, (nbytes - stored) / level.read, flops / self.flops)

    def dumps(self) -> bytes:
        """As text that `loads` reads: a line for the machine, and one for each level."""
        lines: list[tuple[float, ...]] = [(self.flops, self.lanes, self.threads, self.launch)]
        lines += [(one.size, one.read, one.write, one.copied) for one in self.levels]
        return "\n".join(" ".join(map(repr, line)) for line in lines).encode()


def loads(text: bytes) -> Ceilings:
    """Ceilings that `dumps` wrote."""
    (flops, lanes, threads, launch), *levels = map(str.split, text.decode().splitlines())
    found = tuple(Level(int(size), *map(float, rates)) for size, *rates in levels)
    return Ceilings(float(flops), int(lanes), int(threads), float(launch), found)
