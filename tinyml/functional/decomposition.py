"""Matrices taken apart, and axes rearranged by name."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING

from tinyml.dtype import promote
from tinyml.errors import LinAlgError, ShapeError
from tinyml.functional.axes import check_tensors
from tinyml.functional.bounded import required
from tinyml.functional.composed import in_float32
from tinyml.functional.steps import composition
from tinyml.mlops import Step
from tinyml.shape import broadcast_shape

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


def matrix_of(x: Tensor, op: str, square: bool = False) -> tuple[int, int]:
    """Rows and columns of x, matrices in its last two axes; ShapeError where it has none."""
    if x.ndim < 2 or (square and x.shape[-1] != x.shape[-2]):
        raise ShapeError(f"{op}: expected a {'square ' * square}matrix, got {x.shape}")
    return x.shape[-2], x.shape[-1]


@in_float32
def qr(x: Tensor) -> tuple[Tensor, Tensor]:
    """(Q, R) with x = Q @ R: Q orthogonal (.., m, m), R upper triangular (.., m, n).

    torch.linalg.qr of more rows than columns keeps Q[..., :n] and R[..., :n, :] of these.
    """
    m, n = matrix_of(x, "qr")
    units = x._eye_like(m)._broadcast_to((*x.shape[:-2], m, m))
    rows, turned, _ = triangular(x, units, min(m - 1, n))
    return turned.transpose(-2, -1), _moved(rows).triu()


def triangular(x: Tensor, b: Tensor, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, its first columns made 0 below the diagonal, each row begun at the diagonal (`_moved`);
    b, to which the same was done; and the determinant of what did that.

    A reflection for each column (Golub and Van Loan, Matrix computations, 5.2): stable for any
    matrix. Signs are LAPACK's, which leaves a column alone that is 0 below the diagonal already;
    here it is reflected and turned back, because the gradient needs the reflection.

    What is done with, the first row, goes behind all others, and what is left of x moves to where
    x was: so each step is the same kernels, and with `Step` each of the gradient's.
    """
    sign = x._full(x.shape[:-2], 1, x.dtype)
    (m, n), steps = x.shape[-2:], max(steps, 0)
    rows, done = x._full(x.shape, 0, x.dtype), b._full(b.shape, 0, b.dtype)
    for _ in range(steps):
        x, b, rows, done, turned = _reflected(x, b, rows, done)
        sign = sign * turned
    rest_of_x = x[..., : m - steps, : n - steps].pad((0, steps))
    rows = rows[..., m - steps :, :].cat(rest_of_x, dim=-2)
    return rows, done[..., m - steps :, :].cat(b[..., : m - steps, :], dim=-2), sign


@composition
def _reflected(x: Tensor, b: Tensor, rows: Tensor, done: Tensor) -> tuple[Tensor, ...]:
    """A step of `triangular`: what is left of x and b, what is done, and the determinant."""
    column = x[..., :1]
    largest = column.detach().abs().max(-2, keepdim=True)
    column = column / (largest == 0).where(1, largest)  # so that no square under- or overflows
    length = (column * column).sum(-2, keepdim=True).sqrt()
    head, rest = column[..., :1, :], column[..., 1:, :]
    side = (head < 0).where(-1.0, 1.0)
    scale = head + side * length
    w = head.ones_like().cat(rest / (scale == 0).where(1, scale), dim=-2)
    tau = (length == 0).where(0, side * scale / (length == 0).where(1, length))
    back = (rest.detach().abs().sum(-2, keepdim=True) == 0) & (length != 0)
    turned = back.where(-1.0, 1.0)
    x, b = (t - (w * tau) @ (w.transpose(-2, -1) @ t) for t in (x, b))
    rows = rows[..., 1:, :].cat(x[..., :1, :] * turned, dim=-2)._apply(Step())
    done = done[..., 1:, :].cat(b[..., :1, :] * turned, dim=-2)._apply(Step())
    x, b = (
        x[..., 1:, 1:].pad((0, 1, 0, 1))._apply(Step()),
        b[..., 1:, :].pad((0, 0, 0, 1))._apply(Step()),
    )
    return x, b, rows, done, -turned[..., 0, 0]


def _moved(rows: Tensor) -> Tensor:
    """Row i moved to the right by i."""
    m, n = rows.shape[-2:]
    line = rows.pad((0, m + 1)).flatten(-2)[..., : m * (m + n)]
    return line.unflatten(-1, (m, m + n))[..., :n]


@in_float32
def svd(x: Tensor, full_matrices: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """(U, S, V) with x = U @ diag(S) @ V; U and V orthogonal, S descending, all of it for any x.

    x = Q @ R, then Jacobi's rotations make the columns of R.T orthogonal: R.T @ W = C. So
    x = (Q @ W) @ C.T, and C = V.T @ diag(S) (Drmac and Veselic, New fast and accurate Jacobi
    SVD algorithm, 2008).
    """
    m, n = matrix_of(x, "svd")
    if m < n:
        u, s, v = svd(x.transpose(-2, -1), full_matrices)
        return v.transpose(-2, -1), s, u.transpose(-2, -1)
    if n == 0:
        basis = qr(x)[0]
        return basis if full_matrices else basis[..., :0], x.sum(-2), x.transpose(-2, -1) @ x
    largest = x.detach().abs().max((-2, -1), keepdim=True)
    largest = (largest == 0).where(1, largest)
    basis, right = qr(x / largest)
    columns, turns = _orthogonal_columns(right[..., :n, :].transpose(-2, -1))
    lengths, order = (columns * columns).sum(-2).sqrt().sort(dim=-1, descending=True)
    order = order.unsqueeze(-2)._broadcast_to(columns.shape)
    directions, triangle = qr(columns._gather(columns.ndim - 1, order))
    signs = ((triangle * x._eye_like(n)).sum(-2) < 0).where(-1.0, 1.0)
    u = basis[..., :n] @ turns._gather(columns.ndim - 1, order)
    if full_matrices:
        u = u.cat(basis[..., n:], dim=-1)
    return u, lengths * largest[..., 0], (directions * signs.unsqueeze(-2)).transpose(-2, -1)


def _orthogonal_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    """(x @ W, W), W orthogonal and made of rotations of two columns until all are orthogonal.

    Columns sit around a table and each turns with the one opposite; then all but the first move
    on by a seat. After n - 1 rounds everybody has met, and sits where they began: a sweep.
    Convergence is quadratic; no matrix of the tests needs more than 4 + log2(n) sweeps.
    """
    n = x.shape[-1]
    both = x.cat(x._eye_like(n)._broadcast_to(x.shape), dim=-2)
    both = both.pad((0, n % 2))  # somebody to sit opposite
    for _ in range((4 + n.bit_length()) * (both.shape[-1] - 1) if n > 1 else 0):
        both = _round(both, n)
    return both[..., :n, :n], both[..., n:, :n]


@composition
def _round(both: Tensor, n: int) -> Tensor:
    """One round of rotations, and everybody one seat on; the first n rows say which angles."""
    half = both.shape[-1] // 2
    p, q = both[..., :half], both[..., half:].flip(-1)
    above, below = p[..., :n, :], q[..., :n, :]
    gap = (below * below).sum(-2, keepdim=True) - (above * above).sum(-2, keepdim=True)
    across = (above * below).sum(-2, keepdim=True) * 2
    largest = gap.detach().abs().maximum(across.detach().abs())
    largest = (largest == 0).where(1, largest)
    gap, across = gap / largest, across / largest
    hypotenuse = gap.abs() + (gap * gap + across * across).sqrt()
    hypotenuse = (hypotenuse == 0).where(1, hypotenuse)
    tangent = ((gap < 0).where(-1.0, 1.0) * across / hypotenuse).contiguous()
    cosine = (tangent * tangent + 1).rsqrt()
    sine = cosine * tangent
    p, q = p * cosine - q * sine, p * sine + q * cosine
    if half == 1:
        return p.cat(q, dim=-1).contiguous()
    seats = (p[..., :1], q[..., :1], p[..., 1:], q[..., 1:].flip(-1))
    return seats[0].cat(*seats[1:], dim=-1).contiguous()


@in_float32
def cholesky(x: Tensor) -> Tensor:
    """The lower triangular L with L @ L.T = the symmetric part of x.

    LinAlgError, when it is computed, where that is not positive definite.
    """
    n, _ = matrix_of(x, "cholesky", square=True)
    rest = (x + x.transpose(-2, -1)) * 0.5
    done = x._full(x.shape, 0, x.dtype)
    for _ in range(n):  # each step is the same kernels: see `triangular`
        rest, done = _without_first(rest, done)
    return _moved(done).transpose(-2, -1) if n else x


@composition
def _without_first(rest: Tensor, done: Tensor) -> tuple[Tensor, Tensor]:
    """A step of `cholesky`: what is left of the matrix, and its first column's row of L.T."""
    pivot = rest[..., :1, :1]
    pivot = required(pivot, pivot > 0, LinAlgError, "cholesky: not positive definite")
    column = rest[..., :, :1] / pivot.sqrt()
    row = column.transpose(-2, -1)
    done = done[..., 1:, :].cat(row, dim=-2)._apply(Step())
    return (rest - column * row)[..., 1:, 1:].pad((0, 1, 0, 1))._apply(Step()), done


@in_float32
def solve(x: Tensor, b: Tensor) -> Tensor:
    """The y with x @ y = b, b a vector (.., n) or matrix (.., n, k), as torch.linalg.solve.

    x is made triangular by reflections, which is stable. LinAlgError, when it is computed, where
    there is a 0 on the diagonal then; what is singular but for rounding gives large numbers.
    """
    check_tensors("solve", x, b=b)
    n, _ = matrix_of(x, "solve", square=True)
    vector = b.ndim == 1 or b.shape == x.shape[:-1]
    dtype = promote(x.dtype, b.dtype)
    x, b = x.cast(dtype), (b.unsqueeze(-1) if vector else b).cast(dtype)
    if b.shape[-2] != n:
        raise ShapeError(f"solve: {x.shape} needs {n} rows on the right, got {b.shape}")
    batch = broadcast_shape("solve", x.shape[:-2], b.shape[:-2])
    x, b = x._broadcast_to((*batch, n, n)), b._broadcast_to((*batch, *b.shape[-2:]))
    right, b, _ = triangular(x, b, n - 1)
    y = b._full(b.shape, 0, dtype)
    for _ in range(n):  # from the last row on, which comes first then, as in `triangular`
        right, b, y = _substituted(right, b, y)
    return y.squeeze(-1) if vector else y


@composition
def _substituted(right: Tensor, b: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A step of `solve`: the last row of y, and what is left above it of the others."""
    pivot = right[..., -1:, :1]
    pivot = required(pivot, pivot != 0, LinAlgError, "solve: the matrix is singular")
    row = (b[..., -1:, :] - right[..., -1:, 1:] @ y[..., :-1, :]) / pivot
    y = row.cat(y[..., :-1, :], dim=-2)._apply(Step())
    right = right[..., :-1, :].pad((0, 0, 1, 0))._apply(Step())
    return right, b[..., :-1, :].pad((0, 0, 1, 0))._apply(Step()), y


def inverse(x: Tensor) -> Tensor:
    """The matrix whose product with x is the unit matrix; of a singular one inf, NaN or nonsense.

    No error tells of it: values are not looked at before they are computed. See `solve`.
    """
    n, _ = matrix_of(x, "inverse", square=True)
    return solve(x, x._eye_like(n)._broadcast_to(x.shape))


@in_float32
def det(x: Tensor) -> Tensor:
    """The determinant, by making x triangular."""
    n, _ = matrix_of(x, "det", square=True)
    rows, _, sign = triangular(x, x[..., :0], n - 1)
    return rows[..., :1].sum(-1).prod(-1) * sign


@composition
def newton_schulz(
    x: Tensor,
    steps: int,
    params: tuple[float, ...] = (3.4445, -4.7750, 2.0315),
    eps: float = 1.0e-7,
) -> Tensor:
    """Nearly U @ V of the singular value decomposition, by steps of an odd polynomial."""
    matrix_of(x, "newton_schulz")
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
    """Axes named, split, merged and reordered: x.rearrange("b (h w) c -> b c h w", h=4).

    "..." or "…" stands for the axes that have no name, "1" and "()" for an axis of size 1. As
    in einops (https://openreview.net/forum?id=oapKSVM2bcj).
    """
    sides = formula.replace("…", "...").split("->")
    if len(sides) != 2:
        raise ShapeError(f"rearrange: {formula!r} needs one arrow, from old axes to new ones")
    if re.search(r"\([^)]*\.\.\.", sides[0]) or len({s.count("...") for s in sides}) != 1:
        raise ShapeError(f'rearrange: in {formula!r}, "..." is on one side or in a group to split')
    hidden = x.ndim - len(_groups(sides[0], 0))
    source, target = (_groups(side, hidden) for side in sides)
    if len(source) != x.ndim:
        raise ShapeError(
            f"rearrange: {sides[0]!r} names {len(source)} axes, {x.shape} has {x.ndim}"
        )
    names = [name for group in source for name in group]
    wanted = [name for group in target for name in group]
    if sorted(names) != sorted(wanted) or len(set(names)) != len(names):
        raise ShapeError(f"rearrange: both sides of {formula!r} must name each axis once")
    if unknown := set(sizes) - set(names):
        raise ShapeError(f"rearrange: {formula!r} names no {', '.join(sorted(unknown))}")
    known = dict(sizes)
    for group, n in zip(source, x.shape, strict=True):
        _fill_sizes(group, n, known)
    split = x.reshape(tuple(known[name] for name in names))
    ordered = split.permute([names.index(name) for name in wanted])
    return ordered.reshape(tuple(prod(known[name] for name in group) for group in target))


def _groups(side: str, hidden: int) -> list[list[str]]:
    """One list of names per axis; "..." stands for `hidden` axes."""
    groups: list[list[str]] = []
    inside: list[str] | None = None
    for token in re.findall(r"[()]|[^\s()]+", side):
        if token == "(" and inside is None:
            inside = []
        elif token == ")" and inside is not None:
            groups.append(inside)
            inside = None
        elif token in "()":
            raise ShapeError(f"rearrange: parentheses in {side!r} do not match, or hold others")
        elif inside is not None:
            inside += _axis_names(token, hidden)
        elif token == "1":
            groups.append([])
        else:
            groups += [[name] for name in _axis_names(token, hidden)]
    if inside is not None:
        raise ShapeError(f"rearrange: a parenthesis in {side!r} is not closed")
    return groups


def _axis_names(token: str, hidden: int) -> list[str]:
    if token == "...":
        return [f"...{i}" for i in range(hidden)]
    if token == "1":
        return []
    if not token.isidentifier() or token.strip("_") != token:
        raise ShapeError(f"rearrange: {token!r} is not a name; those are of letters, digits and _")
    return [token]


def _fill_sizes(group: list[str], n: int, known: dict[str, int]) -> None:
    missing = [name for name in group if name not in known]
    rest = prod(known[name] for name in group if name in known)
    if len(missing) > 1:
        raise ShapeError(f"rearrange: only one size of ({' '.join(group)}) can be left out")
    if missing and rest and n % rest == 0:
        known[missing[0]] = n // rest
    elif missing or rest != n:
        raise ShapeError(f"rearrange: ({' '.join(group)}) does not make {n} with {known}")
