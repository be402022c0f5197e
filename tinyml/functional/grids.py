"""Diagonals, triangles and grids: what is told by comparing positions along two axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinyml.dtype import index_dtype
from tinyml.errors import ShapeError
from tinyml.frozen import dataclass
from tinyml.functional.axes import check_tensors, resolve_axis, whole
from tinyml.functional.movement import broadcast_to, pad_by, permute, reshape
from tinyml.functional.path import Path
from tinyml.functional.steps import composition
from tinyml.functional.views import follow
from tinyml.shape import broadcast_shape, inverse_order

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


def _lower(op: str, x: Tensor, k: int) -> Tensor:
    if x.ndim < 2:
        raise ShapeError(f"{op}: two axes or more are needed, got {x.shape}")
    m, n = x.shape[-2:]
    rows = x._arange(m).reshape((m, 1)).cast(index_dtype(m + n))
    return rows + max(-m, min(k, n)) >= x._arange(n)  # further out they are all alike


@composition
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """Zero above the k-th diagonal of the last two axes."""
    return _lower("tril", x, whole(diagonal, "tril", "diagonal")).where(x, False)  # zero always


@composition
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """Zero below the k-th diagonal of the last two axes."""
    return _lower("triu", x, whole(diagonal, "triu", "diagonal") - 1).where(False, x)


@composition
def diag(x: Tensor, diagonal: int = 0) -> Tensor:
    """A vector as the k-th diagonal of a matrix of zeros; of a matrix, a copy of that diagonal."""
    k = whole(diagonal, "diag", "diagonal")
    if x.ndim == 2:
        return _Diagonal(k, 0, 1).read(x).clone()
    if x.ndim != 1:
        raise ShapeError(f"diag: expected a vector or a matrix, got {x.shape}")
    n = x.shape[0] + abs(k)
    below, right = (max(-k, 0), max(k, 0))
    column = pad_by(x, ((below, right),)).reshape(n, 1)
    places = x._arange(n)
    return (places.reshape(n, 1) + k == places).where(column, False)


@dataclass(frozen=True)
class _Diagonal:
    """The diagonal `offset` of the axes `first` and `second`: a views.Move."""

    offset: int
    first: int
    second: int

    def _last(self, ndim: int) -> tuple[int, ...]:
        """The order of axes with these two at the end."""
        axes = (self.first, self.second)
        return (*(a for a in range(ndim) if a not in axes), *axes)

    def read(self, x: Tensor) -> Tensor:
        path = Path(x.shape).permute(self._last(x.ndim))
        *sizes, rows, columns = path.shape
        down, right = min(max(-self.offset, 0), rows), min(max(self.offset, 0), columns)
        n = min(rows - down, columns - right)
        around = [(0, size) for size in sizes]
        path = path.shrink((*around, (down, down + n), (right, right + n)))
        # The square's rows one element longer than they are: its diagonal is the first column.
        path = path.reshape((*sizes, n * n)).pad((*((0, 0) for _ in sizes), (0, n)))
        path = path.reshape((*sizes, n, n + 1)).shrink((*around, (0, n), (0, 1)))
        return follow(path.reshape((*sizes, n)).of(x), x, self)

    def write(self, old: Tensor, value: Tensor) -> Tensor:
        order = self._last(old.ndim)
        if not value.numel():
            return old
        matrices = permute(old, order)
        rows, columns = matrices.shape[-2:]
        here = old._arange(rows).reshape((rows, 1)) + self.offset == old._arange(columns)
        down, n = max(-self.offset, 0), value.shape[-1]  # element k is in row k + down
        around = tuple((0, 0) for _ in value.shape[:-1])
        by_row = pad_by(value, (*around, (down, rows - down - n)))
        written = here.where(by_row.unsqueeze(-1), matrices)
        return permute(written, inverse_order(order))


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """What lies `offset` further along dim2 than along dim1, as a new last axis: a view.

    AxisError if there is no such axis, ShapeError if dim1 and dim2 are the same.
    """
    offset = whole(offset, "diagonal", "offset")
    first, second = (resolve_axis(d, x.ndim, "diagonal") for d in (dim1, dim2))
    if first == second:
        raise ShapeError(f"diagonal: it takes two axes, and dim1 and dim2 are both {first}")
    move = _Diagonal(offset, first, second)
    return move.read(x)


def meshgrid(x: Tensor, *others: Tensor, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Vectors as the coordinates of a grid, one tensor per axis."""
    if indexing not in ("ij", "xy"):
        raise RuntimeError(f'meshgrid: indexing is "ij" or "xy", got {indexing!r}')
    for part in others:
        check_tensors("meshgrid", x, part=part)
    parts = (x, *others)
    order = list(range(len(parts)))
    if indexing == "xy" and len(parts) > 1:
        order[:2] = [1, 0]
    columns = [
        reshape(p, (1,) * order[i] + (-1,) + (1,) * (len(parts) - 1 - order[i]))
        for i, p in enumerate(parts)
    ]
    shape = broadcast_shape("meshgrid", *(c.shape for c in columns))
    return tuple(broadcast_to(c, shape) for c in columns)
