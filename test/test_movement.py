"""Movements put elements where numpy puts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinyml import Tensor

Compare = Callable[..., None]


def test_shapes_and_orders(device: str, compare: Compare) -> None:
    x = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    t = Tensor(x)
    compare(
        {
            "reshape": (t.reshape(4, -1), x.reshape(4, -1)),
            "reshape None": (t.reshape(None, 12), x.reshape(2, 12)),
            "permute": (t.permute(2, 0, 1), x.transpose(2, 0, 1)),
            "transpose": (t.transpose(), x.transpose(1, 0, 2)),
            "T": (t.T, x.T),
            "expand": (t.unsqueeze(0).expand(3, -1, -1, -1), np.broadcast_to(x, (3, 2, 3, 4))),
            "flatten": (t.flatten(1), x.reshape(2, 12)),
            "unflatten": (t.unflatten(2, (2, -1)), x.reshape(2, 3, 2, 2)),
            "squeeze": (t.unsqueeze(-1).squeeze(), x),
            "flip": (t.flip(0, -1), np.flip(x, (0, 2))),
            "shrink": (t.shrink(((0, 1), None, (1, 3))), x[:1, :, 1:3]),
            "pad_to": (t.pad_to(2, 4, None), np.pad(x, ((0, 0), (0, 1), (0, 0)))),
            "roll": (t.roll((1, -2), (0, 2)), np.roll(x, (1, -2), (0, 2))),
            "roll all": (t.roll(5), np.roll(x, 5)),
            "repeat": (t.repeat(2, 1, 2), np.tile(x, (2, 1, 2))),
            "interleave": (t.repeat_interleave(3, 1), np.repeat(x, 3, 1)),
            "rearrange": (t.rearrange("a b (c d) -> c (a b) d", d=2), _rearranged(x)),
            "rearrange rest": (t.rearrange("a ... -> (...) () a"), x.reshape(2, 1, 12).T),
            "rearrange one sign": (t.rearrange("a \u2026 -> (\u2026) () a"), x.reshape(2, 1, 12).T),
            "rearrange 1": (t[:1].rearrange("1 b_0 ß -> ß b_0"), x[0].T),
        }
    )


def _rearranged(x: np.ndarray) -> np.ndarray:
    return x.reshape(2, 3, 2, 2).transpose(2, 0, 1, 3).reshape(2, 6, 2)


def test_padding(device: str, compare: Compare) -> None:
    x = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    t = Tensor(x)
    pairs = {
        "flat": (t.pad((1, 2)), np.pad(x, ((0, 0), (1, 2)))),
        "pairs": (t.pad(((1, 0), None), value=7), np.pad(x, ((1, 0), (0, 0)), constant_values=7)),
        "negative": (t.pad((-1, 1, 0, -1)), np.pad(x[:2, 1:], ((0, 0), (0, 1)))),
    }
    for mode, name in (("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")):
        pairs[mode] = t.pad((2, 1, 1, 2), mode=mode), np.pad(x, ((1, 2), (2, 1)), mode=name)
    whole: Any = {"mode": "reflect", "value": None}  # as torch's pad has it
    pairs["integers"] = t.int().pad((1, 1), **whole), np.pad(x, ((0, 0), (1, 1)), mode="reflect")
    compare(pairs)


def test_join_and_split(device: str, compare: Compare) -> None:
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    t = Tensor(x)
    a, b = t.split([2, 3])
    compare(
        {
            "cat": (t.cat(t[:2], t[:0]), np.concatenate([x, x[:2]])),
            "cat 1": (Tensor.cat(t, t + 1, dim=-1), np.concatenate([x, x + 1], 1)),
            "stack": (Tensor.stack([t, t, t], dim=1), np.stack([x, x, x], 1)),
            "split a": (a, x[:2]),
            "split b": (b, x[2:]),
            "chunk": (t.chunk(2)[1], x[3:]),
            "meshgrid": (t[0].meshgrid(t[:3, 1])[1], np.meshgrid(x[0], x[:3, 1], indexing="ij")[1]),
            "unfold": (t.unfold(0, 2, 3), np.stack([x[0:2].T, x[3:5].T])),
        }
    )


def test_triangles_and_diagonals(device: str, compare: Compare) -> None:
    x = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    t = Tensor(x)
    compare(
        {
            "tril": (t.tril(), np.tril(x)),
            "tril 1": (t.tril(1), np.tril(x, 1)),
            "triu": (t.triu(-1), np.triu(x, -1)),
            "diag": (t[0].diag(), np.diag(x[0])),
            "diagonal": (t.diagonal(1), np.diagonal(x, 1)),
            "no diagonal": (t.diagonal(-3), np.diagonal(x, -3)),
            "empty": (Tensor.zeros(0, 3).tril(), np.zeros((0, 3))),
        }
    )
