"""Order: sorting, and selection of the first few.

Values become unsigned integers that sort as the values should, so that NaN, -0.0, signs and the
direction are settled once. A short axis is sorted by counting who comes before whom. A long one
is sorted from the lowest digit to the highest, stably: an element's place is how many elements
have a smaller digit, plus how many with the same digit come before it (Blelloch 1990). All
passes have one structure, so that they share their kernels: the key moves down by a digit.

The first k of a long axis are found without sorting it. Few are found as in a tournament: only
the k groups with the smallest heads can have them. More of them digit by digit: the k-th key, by
counting how many keys are below each candidate (radix select), then whatever is not above it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from tinyml.dtype import DType, bool_, index_dtype, int32, int64, uint8, uint16, uint32, uint64
from tinyml.errors import ShapeError
from tinyml.functional.axes import resolve_axis, whole
from tinyml.functional.movement import pad_axis, part
from tinyml.functional.scan import cumsum
from tinyml.functional.steps import composition
from tinyml.moves import Scatter
from tinyml.ops import Op

if TYPE_CHECKING:
    from tinyml.tensor import Tensor

COUNTED = 1024  # the longest axis that is sorted by comparing every pair
SORTED = 128  # the longest one that is sorted for its first few
DIGIT = 4  # bits of a key that one pass looks at
KINDS = 1 << DIGIT
BLOCK = 64  # elements that are compared with each other for places among equal digits
GROUP = 8  # elements whose head, the smallest, is compared with those of other groups
COMPARED = 64  # elements at least that are put in groups
FEW = 4  # a selection of less than one in so many is no sort

_SIGNED = {uint32: int32, uint64: int64}
_BITS: dict[int, DType] = {1: uint8, 2: uint16, 4: uint32, 8: uint64}


def _keys(x: Tensor, descending: bool) -> Tensor:
    """Unsigned integers whose ascending order is the wanted one."""
    dtype = _BITS[x.dtype.itemsize]
    if x.dtype.is_float:
        x = (x == 0).where(0, x)  # -0.0 is equal to 0.0
    bits = x.cast(dtype) if x.dtype is bool_ else x.bitcast(dtype)
    top = 1 << (8 * dtype.itemsize - 1)
    if x.dtype.is_float:  # all NaN are one, the largest, of which not all bits are set
        bits = (x == x).where(bits, top - 2)
    turned = 2 * top - 1 if descending else 0
    if x.dtype.is_float:
        negative = bits._full((), 2 * top - 1 - turned, dtype)
        return bits ^ (bits >= top).where(negative, top ^ turned)
    return bits ^ (top ^ turned if x.dtype.kind == "i" else turned)


def _inverse(places: Tensor) -> Tensor:
    """Along the last axis: which element has each place."""
    mine = places._arange(places.shape[-1])._broadcast_to(places.shape)
    base = places._full(places.shape, 0, mine.dtype)
    return base._apply(Scatter(places.ndim - 1, Op.ADD), places, mine)


# ---- sorting ----


def _count(holds: Tensor) -> Tensor:
    """In how many places of the last axis it holds."""
    return holds.sum(-1, dtype=index_dtype(holds.shape[-1]))


def _earlier(key: Tensor) -> Tensor:
    """Along the last axis, for each element: whether each other element comes before it."""
    n = key.shape[-1]
    return key._arange(n) < key._arange(n).reshape((n, 1))


def _by_counting(key: Tensor, before: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """`before` says which of other keys come before one."""
    if key.dtype in _SIGNED:  # processors compare signed numbers
        signed = _SIGNED[key.dtype]
        key = (key ^ (1 << (8 * signed.itemsize - 1))).bitcast(signed)
    return _inverse(_count(before(key.unsqueeze(-2), key.unsqueeze(-1))))


def _by_digits(key: Tensor) -> Tensor:
    n, bits = key.shape[-1], 8 * key.dtype.itemsize
    key = pad_axis(key, key.ndim - 1, 0, -n % BLOCK, key.dtype.max).contiguous()
    order = key._arange(key.shape[-1])._broadcast_to(key.shape).contiguous()
    for _ in range(bits // DIGIT):
        moved, axis = _inverse(_places(key)), key.ndim - 1
        key = (key._gather(axis, moved) >> DIGIT).contiguous()
        order = order._gather(axis, moved).contiguous()
    return part(order, order.ndim - 1, 0, n)


def _places(key: Tensor) -> Tensor:
    """Where each element goes by its lowest digit."""
    digit = (key & (KINDS - 1)).cast(int32)
    digit = digit.reshape((*key.shape[:-1], -1, BLOCK))
    mine, other = digit.unsqueeze(-1), digit.unsqueeze(-2)
    counts = _count(other == key._arange(KINDS).reshape((KINDS, 1)))  # (.., blocks, KINDS)
    counts = counts.transpose(-1, -2).flatten(-2)
    before = cumsum(counts, -1, index_dtype(key.shape[-1])) - counts
    starts = before.reshape((*key.shape[:-1], KINDS, -1)).transpose(-1, -2)
    within = _count((other == mine) & _earlier(digit))
    return (starts.contiguous()._gather(digit.ndim - 1, digit) + within).reshape(key.shape)


@composition
def argsort(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """The indices that put x in order, int32 if that counts so far; equal elements keep theirs."""
    dim = resolve_axis(dim, x.ndim, "sort")
    if not x.ndim:
        return x._full((), 0, int32)
    key = _keys(x.detach(), descending).transpose(dim, -1)
    if not key.numel():
        return x._full(x.shape, 0, int32)
    if key.shape[-1] > COUNTED:
        return _by_digits(key).transpose(dim, -1)
    earlier = _earlier(key)
    spare = x.dtype.is_float and key.dtype in _SIGNED  # of floats no key is the greatest number

    def before(other: Tensor, mine: Tensor) -> Tensor:
        if spare:
            return other < earlier.where(mine + 1, mine)
        return earlier.where(other <= mine, other < mine)

    return _by_counting(key, before).transpose(dim, -1)


class Sorted(NamedTuple):
    """Values in order, and where they were."""

    values: Tensor
    indices: Tensor


@composition
def sort(x: Tensor, dim: int = -1, descending: bool = False) -> Sorted:
    """(values in order, where they were: indices), stable; NaN counts as the largest."""
    dim, order = resolve_axis(dim, x.ndim, "sort"), argsort(x, dim, descending)
    return Sorted(x._gather(dim, order) if x.ndim else x._own(), order)


# ---- selection ----


@composition
def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True) -> Sorted:
    """The k largest or smallest values along `dim`, and their indices; in order in any case."""
    dim, k = resolve_axis(dim, x.ndim, "topk"), whole(k, "topk", "k")
    n = x.shape[dim] if x.ndim else 1
    if k < 0 or k > n:
        raise ShapeError(f"topk: cannot take {k} of axis {dim} of {x.shape}")
    if k == n:  # all of an axis, or of a number without any
        return sort(x, dim, largest)
    if n <= SORTED or k * FEW > n or not k * prod(x.shape):
        values, order = sort(x, dim, largest)
        return Sorted(part(values, dim, 0, k), part(order, dim, 0, k))
    key = _keys(x.detach(), largest).transpose(dim, -1)
    if k * k <= n:
        at = key._arange(n)._broadcast_to(key.shape)
        found = _first_of_groups(key, at, k)
    else:
        key = key.contiguous()
        chosen = _first(key, k).contiguous()
        found = chosen._gather(key.ndim - 1, argsort(key._gather(key.ndim - 1, chosen)))
    found = found.transpose(dim, -1)
    return Sorted(x._gather(dim, found), found)


def _first_of_groups(key: Tensor, at: Tensor, k: int) -> Tensor:
    """The indices of the k smallest along the last axis; of equal keys those `at` a lower place.

    An element is one of them only if fewer than k groups have a smaller head than its own group.
    """
    n = key.shape[-1]
    if n <= max(GROUP * k, COMPARED):
        earlier = at.unsqueeze(-2) < at.unsqueeze(-1)
        order = _by_counting(key, lambda a, b: (a < b) | ((a == b) & earlier))
        return part(order, key.ndim - 1, 0, k)
    groups = -(-n // GROUP)
    missing = groups * GROUP - n
    members = (*key.shape[:-1], GROUP, groups)
    grouped = pad_axis(key, key.ndim - 1, 0, missing, key.dtype.max).reshape(members)
    places = pad_axis(at, key.ndim - 1, 0, missing, at.dtype.max).reshape(members)
    head = grouped.min(-2, keepdim=True)
    first = (grouped == head).where(places, at.dtype.max).min(-2)
    chosen = _first_of_groups(head.squeeze(-2).contiguous(), first.contiguous(), k)
    first_of = key._arange(GROUP).cast(at.dtype) * groups
    among = (chosen.unsqueeze(-1) + first_of).flatten(-2).contiguous()
    key, at = (t.flatten(-2)._gather(key.ndim - 1, among) for t in (grouped, places))
    return among._gather(key.ndim - 1, _first_of_groups(key.contiguous(), at.contiguous(), k))


def _first(key: Tensor, k: int) -> Tensor:
    """The indices of the k smallest along the last axis, in three runs: below, at the k-th."""
    last = _smallest(key, k)
    dtype = index_dtype(key.shape[-1])
    sides = (key < last).stack(key == last, dim=-2).cast(dtype)
    upto = cumsum(sides, -1, dtype).contiguous()
    below, equal = upto[..., 0, :], upto[..., 1, :]
    above = key._arange(key.shape[-1]) + 1 - below - equal
    fewer, same = below[..., -1:], equal[..., -1:]
    place = (key == last).where(fewer + equal, fewer + same + above)
    order = _inverse((key < last).where(below, place) - 1)
    return part(order, key.ndim - 1, 0, k)


def _smallest(key: Tensor, k: int) -> Tensor:
    """The k-th smallest along the last axis, which stays as size 1.

    It is the greatest number that fewer than k keys are below.
    """
    unit = key._full((1,), 1 << (8 * key.dtype.itemsize - DIGIT), key.dtype).contiguous()
    found = key._full((*key.shape[:-1], 1), 0, key.dtype).contiguous()
    digits = key._arange(KINDS).cast(key.dtype)
    for _ in range(8 * key.dtype.itemsize // DIGIT):
        tried = (found + digits * unit).contiguous()  # (.., KINDS)
        below = _count(key.unsqueeze(-2) < tried.unsqueeze(-1))
        digit = _count(below < k) - 1
        found = (found + digit.unsqueeze(-1).cast(key.dtype) * unit).contiguous()
        unit = (unit >> DIGIT).contiguous()
    return found
