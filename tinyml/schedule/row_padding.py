"""Row padding: rows of an intermediate array are padded, so that each begins at 16 bytes.

What a plan makes and reads by itself lies as its kernels like it. A card copies a factor's rows to
tiles by boxes or 16 bytes at a time, and stores a product's side by side, where all of them begin
at whole 16 bytes; rows of 50257 halves begin anywhere. So behind each row there are a few elements
that are nobody's: who writes the row may write them, and nobody takes them for data. What is in
memory already stays as it is: products read a copy of it, if they multiply it for long enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod

from tinyml import lazy
from tinyml.kernel import longer_rows
from tinyml.lazy import LazyBuffer
from tinyml.ops import Movement
from tinyml.schedule.balance import factors_of, in_halves, worth_a_copy
from tinyml.schedule.channels import PIECE
from tinyml.schedule.fuse import Fusion
from tinyml.schedule.group import folded
from tinyml.schedule.labels import unshaped
from tinyml.schedule.rewrite import Changed, renewed
from tinyml.schedule.units import CARDS, contracts, widens

WIDE = 16 * PIECE  # bytes of a row that is worth it: memory grows by a sixteenth at most


def paddings(
    fusion: Fusion, stored: Iterable[LazyBuffer], roots: Iterable[LazyBuffer]
) -> dict[LazyBuffer, int]:
    """How many elements are put behind each row of what is stored, where there are any."""
    outside = {*roots, *(s for u in fusion.uses if isinstance(u, lazy.Copy) for s in u.sources)}
    found = ((u, _behind(u)) for u in stored if u not in outside and u in fusion.group_of)
    return {u: padding for u, padding in found if padding and _is_multiplied(u, fusion)}


def _behind(unit: LazyBuffer) -> int:
    """How many elements are put behind a row of what a kernel of a card makes."""
    if unit.device not in CARDS or not isinstance(unit, (lazy.Map, lazy.Reduce, lazy.Move)):
        return 0
    return _lacking(unit)


def _lacking(node: LazyBuffer) -> int:
    """How many elements a row lacks of whole pieces, if it is wide and not the only one."""
    *before, width = [n for n in node.shape if n != 1] or [1]
    wide = prod(before) > 1 and width * node.dtype.itemsize >= WIDE
    return -width % (PIECE // node.dtype.itemsize) if wide else 0


def _is_multiplied(unit: LazyBuffer, fusion: Fusion) -> bool:
    """Whether a product of matrices makes or reads it, and it is made in one go."""
    group, made = fusion.group_of[unit], unshaped(unit)
    added = not {*folded(made)}.isdisjoint(group.places.get(made, ()))
    groups = (group, *(fusion.group_of[reader] for reader in fusion.readers.get(unit, ())))
    return not added and any(each.contracts for each in groups)


# ---- what is in memory already ----


def copied_rows(order: Sequence[LazyBuffer], roots: Sequence[LazyBuffer]) -> Changed:
    """The same values; halves in memory are read from a copy whose rows are filled up."""
    times = Counter[LazyBuffer]()
    for node in order:
        if isinstance(node, lazy.Reduce) and node.device in CARDS and contracts(node):
            read = map(_read_whole, factors_of(node)) if in_halves(node) else ()
            for base in filter(None, read):
                times[base] += node.sources[0].size // max(1, base.size)
    copies = {b: _copied(b) for b, n in times.items() if _lacking(b) and worth_a_copy(b, n)}
    changed: Changed = {}
    for node, _again in renewed(order, changed) if copies else ():
        if (isinstance(node, lazy.Move) or widens(node)) and node.sources[0] in copies:
            changed[node] = node.made_of(copies)
    return changed


def _read_whole(factor: LazyBuffer) -> LazyBuffer | None:
    """What is in memory that a factor is, its rows as they lie there."""
    while isinstance(factor, lazy.Move) or widens(factor):
        if isinstance(factor, lazy.Move) and not _keeps_rows(factor):
            return None
        factor = factor.sources[0]
    return factor if isinstance(factor, lazy.Data) else None


def _keeps_rows(move: lazy.Move) -> bool:
    before, after = ([n for n in node.shape if n != 1] for node in (move.sources[0], move))
    shaped = lazy.is_move(move, Movement.RESHAPE) and before == after
    return shaped or lazy.is_move(move, Movement.PERMUTE, Movement.EXPAND)


def _copied(base: LazyBuffer) -> LazyBuffer:
    shape = longer_rows(base.shape, _lacking(base))
    more = tuple([(0, whole - n) for whole, n in zip(shape, base.shape, strict=True)])
    whole = lazy.contiguous(lazy.pad(base, more))
    return lazy.shrink(whole, tuple([(0, n) for n in base.shape]))
