"""Simulate products: what each thread has of a product of matrices, once all have theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tinyml.codegen.matrices import WARP
from tinyml.codegen.optimize.fragments import EDGE, PLACES, WARPS, a_place

Array = npt.NDArray[Any]
HIGH = 0xFFFF0000  # the half of a float32 that a bfloat16 is


def product(a: Array, b: Array, count: int, by_warpgroup: bool) -> Array:
    """The `count` sums that each thread has of a product of what warps or warpgroups hold."""
    return _of_warpgroups(a, b) if by_warpgroup else _of_warps(a, b, count)


def _of_warpgroups(a: Array, b: Array) -> Array:
    """What each thread gets: of 16 rows of its warp, eight columns after the other.

    The first factor is a matrix for each warpgroup; or what each thread holds of one.
    """
    if a.ndim == 2:
        a = _gathered(a, 0).reshape(-1, WARPS * EDGE, EDGE)
    sums = np.einsum("wik,wjk->wij", a.astype(np.float32), b.astype(np.float32))
    count, _, columns = sums.shape
    # warpgroup, warp, h, q, g, r, p: a thread has g, h, p
    places = sums.reshape(count, WARPS, 2, 8, columns // 8, 4, 2)
    share: Array = places.transpose(0, 1, 3, 5, 4, 2, 6).reshape(-1, columns // 2)
    return share


def _of_warps(a: Array, b: Array, count: int) -> Array:
    """What each lane gets of the product of what the lanes of its warp hold."""
    q, r = np.arange(WARP) // 4, np.arange(WARP) % 4
    sums = np.einsum("wik,wjk->wij", _gathered(a, 0), _gathered(b, 1))
    places = [a_place(n, q, r) for n in range(count)]
    share = [sums[:, row, column] for row, column in places]
    return np.stack(share, axis=-1).reshape(len(a), count)


def _gathered(held: Array, side: int) -> Array:
    """The matrix that the lanes of each warp hold."""
    q, r, lanes = np.arange(WARP) // 4, np.arange(WARP) % 4, held.shape[1]
    matrix = np.zeros((len(held) // WARP, EDGE, 2 * lanes), np.float32)
    for n in range(lanes):
        edge, step = PLACES[lanes][side](n, q, r)
        matrix[:, edge, step] = (held if lanes == 8 else tf32(held))[:, n].reshape(-1, WARP)
    return matrix


def tf32(values: Array) -> Array:
    """Floats rounded to their upper 19 bits."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded: Array = np.where(np.isnan(values), bits, (bits + 0x1000) & 0xFFFFE000).view(np.float32)
    return rounded


def pair_of(low: Array, high: Array) -> Array:
    """What a Pair is, of values as float32."""
    low, high = np.broadcast_arrays(low, high)
    made: Array = low.copy().view(np.uint32) >> 16 | high.copy().view(np.uint32) & HIGH
    return made


def dot_of(a: Array, b: Array) -> Array:
    """What a Dot is. A processor takes denormal numbers for 0 there."""
    (low, other), (high, another) = (
        [(x & HIGH).view(np.float32) for x in (a << shift, b << shift)] for shift in (16, 0)
    )
    return high * another + low * other
