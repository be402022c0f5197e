"""What lanes hold of matrices, and of products of such: expressions, see expr.py.

held ::= Product(a, b, bound, lane)          a lane's share of a product of matrices, summed
       | Fragment(name, index, crosswise)    a lane's share of a matrix in a tile
       | Matrix(name, index, lines, crosswise) a whole one in a tile, for a warpgroup
       | Bundle(expr*)                       values side by side
       | Piece(name, index)                  16 bytes of a tile, read at once
       | Exchanged(expr)                     pairs of what lanes side by side hold, by piece
       | Neighbours(name, first)             some values of several
       | Aside(name, part)                   what a block has set aside for the one that comes last
"""

from __future__ import annotations

from collections.abc import Mapping

from tinyml.codegen.expr import Expr, Held, lanes_of
from tinyml.dtype import DType, float32
from tinyml.index import Axis, Linear

WARP = 32  # threads, which make a product together
TOGETHER = 8  # parts of a fold that were set aside, and are read at once, at most


class Product(Held):
    """The lane's share of the sums of products that a warp makes, or the four of a warpgroup.

    A warp makes 16 x 16, a warpgroup 64 rows of them. `a` and `b` are elements along the bound
    axes: rows, columns, and what is summed over. Once it is placed (see fragments.py) nothing is
    bound, and they are what the lane holds of both; or, for a warpgroup, two matrices. `lane` says
    which lane it is, and which warp; `lanes` how many sums it has.
    """

    __slots__ = ("a", "b", "bound", "lane")

    def __init__(
        self, a: Expr, b: Expr, bound: tuple[Axis, ...], lane: tuple[Axis, ...], lanes: int
    ) -> None:
        self.a, self.b, self.bound, self.lane, self.dtype = a, b, bound, lane, float32
        self.lanes = lanes
        self.free = a.free.union(b.free).difference(bound).union(lane)
        self._of((a, b))

    def again(self, sources: tuple[Expr, ...], known: Mapping[Axis, Linear]) -> Expr:
        return Product(sources[0], sources[1], self.bound, self.lane, self.lanes)

    def written(self, sources: list[str]) -> str:
        return f"({sources[0]} @ {sources[1]})"

    @property
    def of_warpgroup(self) -> bool:
        return len(self.lane) > 2


class Fragment(Held):
    """16 bytes of a lane out of the four 8 x 8 matrices whose rows the lanes' indices are.

    Along the rows, or `crosswise`: mirrored at the diagonal.
    """

    __slots__ = ("after", "crosswise", "index", "name")

    def __init__(self, name: str, dtype: DType, index: Linear, after: Axis, crosswise: bool):
        self.name, self.dtype, self.index, self.after = name, dtype, index, after
        self.crosswise, self.lanes = crosswise, 16 // dtype.itemsize
        self.free = index.free | {after}
        self._of(())

    def again(self, sources: tuple[Expr, ...], known: Mapping[Axis, Linear]) -> Expr:
        index = self.index.substitute(known)
        return Fragment(self.name, self.dtype, index, self.after, self.crosswise)

    def written(self, sources: list[str]) -> str:
        return f"{self.name}[{self.index}]{' crosswise' * self.crosswise}x{self.lanes}"


class Matrix(Held):
    """A matrix of `lines` by 32 bytes, in panels (see panels.py) of the tile from `index` on.

    Lines are rows of a panel; or, `crosswise`, its columns, and 64 more begin `leading` bytes on.
    """

    __slots__ = ("after", "crosswise", "index", "leading", "lines", "name")

    def __init__(
        self,
        name: str,
        dtype: DType,
        index: Linear,
        after: Axis,
        lines: int,
        crosswise: bool,
        leading: int,
    ) -> None:
        self.name, self.dtype, self.index, self.after = name, dtype, index, after
        self.lines, self.crosswise, self.leading, self.lanes = lines, crosswise, leading, 0
        self.free = index.free | {after}
        self._of(())

    def again(self, sources: tuple[Expr, ...], known: Mapping[Axis, Linear]) -> Expr:
        index, shape = self.index.substitute(known), (self.lines, self.crosswise, self.leading)
        return Matrix(self.name, self.dtype, index, self.after, *shape)

    def written(self, sources: list[str]) -> str:
        return f"{self.name}[{self.index}]{' crosswise' * self.crosswise}x{self.lines}"


class Bundle(Held):
    """Values side by side, rounded to halves if they are to be that and are not."""

    __slots__ = ("values",)

    def __init__(self, values: tuple[Expr, ...], dtype: DType | None = None) -> None:
        self.values, self.dtype, self.lanes = values, dtype or values[0].dtype, len(values)
        self.free = frozenset[Axis]().union(*[v.free for v in values])
        self._of(values)

    def again(self, sources: tuple[Expr, ...], known: Mapping[Axis, Linear]) -> Expr:
        return Bundle(sources, self.dtype)

    def written(self, sources: list[str]) -> str:
        return f"[{', '.join(sources)}]"


class Piece(Held):
    """Of what all threads have put into a tile, behind the barrier for that."""

    __slots__ = ("after", "index", "name")

    def __init__(self, name: str, dtype: DType, index: Linear, after: Axis) -> None:
        self.name, self.dtype, self.index, self.after = name, dtype, index, after
        self.lanes, self.free = 16 // dtype.itemsize, index.free | {after}
        self._of(())

    def again(self, sources: tuple[Expr, ...], known: Mapping[Axis, Linear]) -> Expr:
        return Piece(self.name, self.dtype, self.index.substitute(known), self.after)

    def written(self, sources: list[str]) -> str:
        return f"{self.name}[{self.index}]x{self.lanes}"


class Exchanged(Held):
    """Pairs of values that lanes side by side hold, as many lanes as each has pairs.

    The first lane gets the first pair of each, and so on: what they get once more, they had.
    """

    __slots__ = ("lane",)

    def __init__(self, values: Expr, lane: Axis) -> None:
        self.lane, self.dtype, self.lanes = lane, values.dtype, lanes_of(values)
        self.free = values.free | {lane}
        self._of((values,))

    def again(self, sources: tuple[Expr, ...], known: Mapping[Axis, Linear]) -> Expr:
        return Exchanged(sources[0], self.lane)

    def written(self, sources: list[str]) -> str:
        return f"{sources[0]} exchanged along {self.lane.name}"


class Neighbours(Held):
    """So many of the values that a name has, from the `first` on."""

    __slots__ = ("first",)

    def __init__(self, name: Expr, first: int, lanes: int) -> None:
        self.first, self.dtype, self.lanes, self.free = first, name.dtype, lanes, name.free
        self._of((name,))

    def again(self, sources: tuple[Expr, ...], known: Mapping[Axis, Linear]) -> Expr:
        return Neighbours(sources[0], self.first, self.lanes)

    def written(self, sources: list[str]) -> str:
        return f"{sources[0]}[{self.first}:{self.first + self.lanes}]"


class Aside(Held):
    """What the block that has a part of a fold made of a name, as this thread of it has it."""

    __slots__ = ("name", "part")

    def __init__(self, name: str, dtype: DType, part: Linear) -> None:
        self.name, self.dtype, self.part = name, dtype, part
        self.lanes, self.free = 1, part.free
        self._of(())

    def again(self, sources: tuple[Expr, ...], known: Mapping[Axis, Linear]) -> Expr:
        return Aside(self.name, self.dtype, self.part.substitute(known))

    def written(self, sources: list[str]) -> str:
        return f"{self.name} of part {self.part}"


def by_warpgroup(e: Expr) -> bool:
    """Whether it is a product that four warps make together."""
    return isinstance(e, Product) and e.of_warpgroup


def makes_halves(e: Expr) -> bool:
    """Whether it is what a lane holds of a matrix of halves that were floats until then."""
    return isinstance(e, Bundle) and e.dtype.is_half and e.values[0].dtype is float32
