"""Filled: rows of an intermediate array that are filled up, so that each begins at 16 bytes.

What a plan makes and reads by itself lies as its kernels like it. A card copies a factor's rows to
tiles by boxes or 16 bytes at a time, and stores a product's side by side, where all of them begin
at whole 16 bytes; rows of 50257 halves begin anywhere. So behind each row there are a few elements
that are nobody's: who writes the row may write them, and nobody takes them for data.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from tinyml import lazy
from tinyml.lazy import LazyBuffer
from tinyml.schedule.fuse import Fusion
from tinyml.schedule.group import folded
from tinyml.schedule.labels import unshaped
from tinyml.schedule.units import CARDS

PIECE = 16  # bytes at which rows begin
WIDE = 16 * PIECE  # bytes of a row that is worth it: memory grows by a sixteenth at most


def fillers(
    fusion: Fusion, stored: Iterable[LazyBuffer], roots: Iterable[LazyBuffer]
) -> dict[LazyBuffer, int]:
    """How many elements are put behind each row of what is stored, where there are any."""
    outside = {*roots, *(s for u in fusion.uses if isinstance(u, lazy.Copy) for s in u.sources)}
    found = ((u, _behind(u)) for u in stored if u not in outside and u in fusion.group_of)
    return {u: filler for u, filler in found if filler and _is_multiplied(u, fusion)}


def _behind(unit: LazyBuffer) -> int:
    """How many elements a row lacks of whole 16 bytes, if it is wide and not the only one."""
    if unit.device not in CARDS or not isinstance(unit, (lazy.Map, lazy.Reduce, lazy.Move)):
        return 0
    *before, width = [n for n in unit.shape if n != 1] or [1]
    wide = prod(before) > 1 and width * unit.dtype.itemsize >= WIDE
    return -width % (PIECE // unit.dtype.itemsize) if wide else 0


def _is_multiplied(unit: LazyBuffer, fusion: Fusion) -> bool:
    """Whether a product of matrices makes or reads it, and it is made in one go."""
    group, made = fusion.group_of[unit], unshaped(unit)
    added = not {*folded(made)}.isdisjoint(group.places.get(made, ()))
    groups = (group, *(fusion.group_of[reader] for reader in fusion.readers.get(unit, ())))
    return not added and any(each.contracts for each in groups)
