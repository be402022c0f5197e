"""Blocks: a window that moves by s moves by 1 over blocks of s elements, which are channels.

The gradient of a window that moves by s takes every s-th step of a fold, another one for each
remainder. A few of them are as many nests of one kernel (`codegen/optimize/phase.py`), but those of
16 x 16 are 256. Over blocks there are none: places and steps are whole blocks, in both directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from tinyml.functional.path import Path
from tinyml.lazy import Shape

NEAREST = 5  # moves from which on blocks are read; below them there are phases


def are_read(strides: Sequence[int], dilations: Sequence[int]) -> bool:
    """Whether windows that move so are read in blocks."""
    return max(strides) >= NEAREST and max(dilations) == 1


@lru_cache(maxsize=4096)  # layers are called again and again
def of_space(
    shape: Shape, kernel: Shape, strides: Shape, before: Shape, counts: Sequence[int]
) -> Path:
    """(n, channels, *space) to (n, channels and places in a block, *blocks).

    The first of `counts` blocks begins `before` elements ahead of the space.
    """
    around = zip(shape[2:], strides, before, counts, strict=True)
    pairs = tuple((b, c * s - n - b) for n, s, b, c in around)
    path = Path(shape).pad(((0, 0), (0, 0), *pairs))
    path = _split(path, counts, strides)
    return _places_first(path, tuple(min(k, s) for k, s in zip(kernel, strides, strict=True)))


@lru_cache(maxsize=4096)
def of_filters(shape: Shape, strides: Shape) -> Path:
    """(out, channels, *kernel) to (out, channels and places in a block, *blocks)."""
    sizes = tuple(min(k, s) for k, s in zip(shape[2:], strides, strict=True))
    counts = reach(shape[2:], strides)
    around = zip(shape[2:], sizes, counts, strict=True)
    path = Path(shape).pad(((0, 0), (0, 0), *((0, c * s - k) for k, s, c in around)))
    return _places_first(_split(path, counts, sizes), sizes)


def reach(kernel: Sequence[int], strides: Sequence[int]) -> Shape:
    """How many blocks a window has, for each axis."""
    return tuple(-(-k // s) for k, s in zip(kernel, strides, strict=True))


def _split(path: Path, counts: Sequence[int], sizes: Sequence[int]) -> Path:
    """(n, channels, *space) to (n, channels, (block, place in it)*)."""
    pairs = zip(counts, sizes, strict=True)
    return path.reshape((*path.shape[:2], *(size for pair in pairs for size in pair)))


def _places_first(path: Path, sizes: Shape) -> Path:
    """(n, channels, (block, place)*) to (n, channels and the first places, *blocks)."""
    rank = len(path.shape)
    for axis, size in zip(range(3, rank, 2), sizes, strict=True):
        path = path.first(axis, size)
    path = path.permute((0, 1, *range(3, rank, 2), *range(2, rank, 2)))
    n, channels = path.shape[:2]
    return path.reshape((n, channels * prod(sizes), *path.shape[2 + len(sizes) :]))
