"""Matrices taken apart, and axes rearranged by name."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING

from tinyml.errors import ShapeError

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


def qr(x: Tensor) -> tuple[Tensor, Tensor]:
    """(Q, R) with x = Q @ R: Q orthogonal (.., m, m), R upper triangular, by Householder."""
    if x.ndim < 2:
        raise ShapeError(f"qr: expected a matrix, got {x.shape}")
    batch, (m, n) = x.shape[:-2], x.shape[-2:]
    right = x
    left = x._eye_like(m)._broadcast_to((*batch, m, m))
    for i in range(min(m, n)):
        column = right[..., i:, i : i + 1]
        length = (column * column).sum(-2, keepdim=True).sqrt()
        head = column[..., :1, :]
        sign = (head < 0).where(-1.0, 1.0)
        rest = column[..., 1:, :]
        scale = head + sign * length
        w = (head.ones_like()).cat(rest / (scale == 0).where(1, scale), dim=-2)
        tau = (length == 0).where(0, sign * scale / (length == 0).where(1, length))
        mirrored = right[..., i:, :]
        lower = mirrored - (w * tau) @ (w.transpose(-2, -1) @ mirrored)
        right = right[..., :i, :].cat(lower, dim=-2).contiguous()
        turned = left[..., :, i:]
        columns = turned - (turned @ w) @ (w * tau).transpose(-2, -1)
        left = left[..., :, :i].cat(columns, dim=-1).contiguous()
    return left, right.triu()


def svd(x: Tensor, full_matrices: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """(U, S, V) with x = U @ diag(S) @ V, by one-sided Jacobi rotations of columns."""
    if x.ndim < 2:
        raise ShapeError(f"svd: expected a matrix, got {x.shape}")
    m, n = x.shape[-2:]
    if m < n:
        u, s, v = svd(x.transpose(-2, -1), full_matrices)
        return v.transpose(-2, -1), s, u.transpose(-2, -1)
    columns, turns = _jacobi(x)
    lengths = (columns * columns).sum(-2).sqrt()
    values, order = lengths.sort(dim=-1, descending=True)
    index = order.unsqueeze(-2)
    u = columns.gather(-1, index.expand(columns.shape)) / (values == 0).where(1, values).unsqueeze(
        -2
    )
    v = turns.gather(-1, index.expand(turns.shape)).transpose(-2, -1)
    if full_matrices and m > n:
        basis, triangle = qr(u)
        signs = (triangle[..., :n, :n] * x._eye_like(n)).sum(-2)
        front = basis[..., :, :n] * signs.unsqueeze(-2)
        u = front.cat(basis[..., :, n:], dim=-1)
    return u, values, v


def _jacobi(x: Tensor, sweeps: int = 8) -> tuple[Tensor, Tensor]:
    """Columns turned in pairs until all are orthogonal, and the turns as a matrix."""
    n = x.shape[-1]
    turns = x._eye_like(n)._broadcast_to((*x.shape[:-2], n, n))
    for _ in range(sweeps):
        for pairs in _rounds(n):
            x, turns = _turn(x, turns, pairs)
    return x, turns


def _rounds(n: int) -> list[list[tuple[int, int]]]:
    """Every pair of columns once, as rounds of pairs that do not touch (a tournament)."""
    ring = list(range(n + n % 2))
    rounds = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        rounds.append([(min(p), max(p)) for p in pairs if max(p) < n])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds if n > 1 else []


def _turn(x: Tensor, turns: Tensor, pairs: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    n = x.shape[-1]
    partner, sign = list(range(n)), [0.0] * n
    for i, j in pairs:
        partner[i], partner[j], sign[i], sign[j] = j, i, -1.0, 1.0
    other, signs = x._coerce(partner), x._coerce(sign).cast(x.dtype)
    swapped = x[..., other]
    own, across = (x * x).sum(-2), (x * swapped).sum(-2)
    theirs = own[..., other]
    gap = (theirs - own) * -signs  # of the second column over the first
    zeta = gap / ((across == 0).where(1, across) * 2)
    tangent = (zeta < 0).where(-1.0, 1.0) / (zeta.abs() + (zeta * zeta + 1).sqrt())
    tangent = ((across == 0) | (signs == 0)).where(0, tangent)
    cosine = (tangent * tangent + 1).rsqrt()
    sine = (cosine * tangent * signs).unsqueeze(-2)
    cosine = cosine.unsqueeze(-2)
    new_turns = turns * cosine + turns[..., other] * sine
    return (x * cosine + swapped * sine).contiguous(), new_turns.contiguous()


def newton_schulz(
    x: Tensor,
    steps: int,
    params: tuple[float, ...] = (3.4445, -4.7750, 2.0315),
    eps: float = 1.0e-7,
) -> Tensor:
    """Nearly U @ V of the singular value decomposition, by steps of an odd polynomial."""
    if x.ndim < 2:
        raise ShapeError(f"newton_schulz: expected a matrix, got {x.shape}")
    norm = (x * x).sum((-2, -1), keepdim=True).sqrt()
    g = x / (norm + eps)
    wide = g.shape[-2] > g.shape[-1]
    g = g.transpose(-2, -1) if wide else g
    for _ in range(steps):
        square = g @ g.transpose(-2, -1)
        total, power = g * params[0], g
        for factor in params[1:]:
            power = square @ power
            total = total + power * factor
        g = total
    return g.transpose(-2, -1) if wide else g


def rearrange(x: Tensor, formula: str, **sizes: int) -> Tensor:
    """Axes named, split, merged and reordered: x.rearrange("b (h w) c -> b c h w", h=4)."""
    left, arrow, right = formula.partition("->")
    if not arrow:
        raise ShapeError(f"rearrange: {formula!r} needs an arrow")
    source, target = _groups(left, x.ndim), _groups(right, x.ndim)
    if len(source) != x.ndim:
        raise ShapeError(f"rearrange: {left!r} names {len(source)} axes, {x.shape} has {x.ndim}")
    known = dict(sizes)
    for group, n in zip(source, x.shape, strict=True):
        _fill_sizes(group, n, known)
    names = [name for group in source for name in group]
    wanted = [name for group in target for name in group]
    if sorted(names) != sorted(wanted) or len(set(names)) != len(names):
        raise ShapeError(f"rearrange: both sides of {formula!r} must name each axis once")
    split = x.reshape(tuple(known[name] for name in names))
    ordered = split.permute([names.index(name) for name in wanted])
    return ordered.reshape(tuple(prod(known[name] for name in group) for group in target))


def _groups(side: str, ndim: int) -> list[list[str]]:
    """One list of names per axis; "..." stands for as many axes as are left."""
    tokens = re.findall(r"\([^()]*\)|\.\.\.|[^\s()]+", side)
    if side.count("(") != side.count(")") or any("(" in t[1:] for t in tokens):
        raise ShapeError(f"rearrange: parentheses in {side!r} do not match")
    groups: list[list[str]] = []
    hidden = [f"...{i}" for i in range(ndim - len([t for t in tokens if t != "..."]))]
    for token in tokens:
        if token == "...":
            groups.extend([name] for name in hidden)
        elif token.startswith("("):
            inner = token[1:-1].split()
            groups.append([n for t in inner for n in (hidden if t == "..." else [t])])
        else:
            groups.append([] if token == "1" else [token])
    return groups


def _fill_sizes(group: list[str], n: int, known: dict[str, int]) -> None:
    missing = [name for name in group if name not in known]
    rest = prod(known[name] for name in group if name in known)
    if len(missing) > 1:
        raise ShapeError(f"rearrange: only one size of ({' '.join(group)}) can be left out")
    if missing and rest and n % rest == 0:
        known[missing[0]] = n // rest
    elif missing or rest != n:
        raise ShapeError(f"rearrange: ({' '.join(group)}) does not make {n} with {known}")
