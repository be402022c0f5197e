"""Fragments: sums of products that the warps of a block make together, on tensor cores.

A warp multiplies 16 x k by k x 16 elements at once and adds the products to 16 x 16 sums, of which
each lane holds eight: with q, r = lane // 4, lane % 4, those in row q + 8h and column 2r + p + 8g,
for h, p and g below 2. What is made of the sums then is as ever: lanes are threads, h, p and g are
steps that are written out.

    FRAGMENT        i0 -> i0, i0h, i0q    i1 -> i1, i1h, i1q, i1p    r0 -> r0
                    fold r0 of x * y  ->  fold r0 of the lane's share of x @ y, whose parts are
                    i1h i0h i1p
    `placed`        x and y, element by element, become what the lane loads of their tiles

A factor may itself be made of sums of products with the same rows, as softmax(q @ k.T) is in front
of v. A lane holds of those sums what it has to hold of the factor: they never leave registers. What
is folded along their columns (a largest, a sum) is folded by each lane, then across four of them.

A warpgroup multiplies 64 x k by k x n elements at once, out of panels (panels.py). Of the sums
each of its four warps has 16 rows, whose lanes hold of each 16 columns what they hold above.

    WARPGROUP       i0 -> i0, i0w, i0h, i0q    i1 -> i1, i1g, i1h, i1q, i1p    r0 -> r0

k is 16 for halves; 8 for floats, of which tensor cores take the upper 19 bits. Numbers of lanes
and registers are those of the PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from tinyml.codegen.expr import Alu, Expr, Fold, Load, Part, Stored, nodes, substitute
from tinyml.codegen.linear import TX
from tinyml.codegen.matrices import Bundle, Fragment, Product
from tinyml.codegen.nest import Kind, LoopNest, Nest, Walk, rewritten
from tinyml.codegen.optimize.change import Change, OptError
from tinyml.codegen.optimize.keep import divided_last
from tinyml.codegen.optimize.panels import matrix
from tinyml.codegen.optimize.tiles import reading
from tinyml.dtype import float32
from tinyml.frozen import dataclass, replace
from tinyml.graph import toposort
from tinyml.index import ZERO, Axis, Linear, both, inside, linear, numbered
from tinyml.ops import Op

EDGE = 16  # rows and columns of the sums of a warp
WARPS = 4  # of a warpgroup
COLUMNS = (64, 128, 192, 256)  # of what a warpgroup multiplies at once
WITHIN = 64, 32  # of what a factor of that is made of
HELD = 160  # registers of a thread for sums of both


@dataclass(frozen=True)
class Sides:
    """A sum of products, as one of matrices: `rows` walks one factor, `columns` the other."""

    fold: Fold
    rows: Axis
    columns: Axis
    a: Expr
    b: Expr
    beside: tuple[Sides, ...] = ()  # others that walk the same
    around: tuple[Axis, ...] = ()  # steps of folds in each of which all of them are made

    @property
    def in_turn(self) -> bool:
        """Whether the others are made one after the other, and not all at each step of a fold."""
        others = any(sides.fold.axes != self.fold.axes for sides in self.beside)
        return others or self.around != ()

    @property
    def longest(self) -> Axis:
        """The axis of the fold that has most steps."""
        return max(self.fold.axes, key=lambda a: (a.size, a.name))

    @property
    def depth(self) -> int:
        """How many products tensor cores add up at once; 0 if they know no such numbers."""
        same = self.a.dtype is self.b.dtype
        return 16 if same and self.a.dtype.is_half else 8 if same and self.a.dtype is float32 else 0


def sides_of(one: Nest) -> Sides | None:
    """The folds that no other fold reads as products of matrices. Columns lie side by side.

    If the first factor is not made of folds: then rows are its own, wherever they lie.
    They may be those of a walk of their own, beside what is stored once for each row.
    If there are none, those that are made anew at each step of all the other folds.
    """
    read = {e for fold in one.folds for e in nodes(fold.body) if isinstance(e, Fold)}
    last = [fold for fold in one.folds if fold not in read]
    inner = [fold for fold in one.folds if fold in read and not fold.body.has_fold]
    return _alike(one, last) or _alike(one, inner, last)


def _alike(one: Nest, folds: Iterable[Fold], around: Iterable[Fold] = ()) -> Sides | None:
    """Those of the folds that are products of matrices, if they all walk the same."""
    walked = [a for walk in one.walks for a in walk.axes]
    products = [fold for fold in folds if _factors(fold)]
    found = [s for fold in products if (s := _sides(one, fold, walked)) is not None]
    if not found or not (len(walked) == 1 or (len(one.walks) == 1 and not walked)):
        return None
    first, *others = found
    steps = dict.fromkeys(a for fold in around for a in fold.axes)
    alike = all(_walked(sides) == _walked(first) for sides in others)
    in_turn = steps or len(found) == len(one.folds)
    same = in_turn or all(sides.fold.axes == first.fold.axes for sides in others)
    if not (alike and same) or (walked and walked != [first.columns]):
        return None
    return replace(first, beside=tuple(others), around=(*steps,))


def _walked(sides: Sides) -> tuple[object, ...]:
    return sides.rows, sides.columns, sides.a.dtype, sides.b.dtype


def _sides(one: Nest, fold: Fold, walked: list[Axis]) -> Sides | None:
    """A fold of products as one of matrices, if each factor has rows of its own."""
    left, right = _factors(fold)
    stores = [s for s in one.stores if fold in nodes(s.value)]
    position = stores[0].position

    def own(factor: Expr, other: Expr) -> Axis | None:
        """The row axis that one factor alone walks, with the smallest stride.

        Or the longest one, where that walks windows over what a longer axis of the fold walks.
        """
        axes = [a for a in (*one.rows, *walked) if a in factor.free and a not in other.free]
        found = [(_step(position, a), a.name, a) for a in axes]
        if not found:
            return None
        first, longest = min(found)[2], max(axes, key=lambda a: (a.size, a.name))
        loads = [e for e in nodes(factor) if isinstance(e, Load)]
        longer = [a for a in fold.axes if a.size > first.size]
        windows = any(overlap(load, first, a) for load in loads for a in longer)
        return longest if windows and longest.size % EDGE == 0 else first

    columns, rows = own(right, left), own(left, right)
    if columns is None or rows is None:
        return None
    across = _step(position, rows) < _step(position, columns)
    if right.has_fold or (across and not left.has_fold):
        rows, columns, left, right = columns, rows, right, left
    return Sides(fold, rows, columns, _exactly(left), _exactly(right))


def overlap(load: Load, a: Axis, b: Axis) -> bool:
    """Whether elements along one axis lie among those along another, as places of windows do."""
    first, second = (abs(_step(load.position, axis)) for axis in (a, b))
    return first <= second * (b.size - 1) and second <= first * (a.size - 1)


def _step(position: Linear, axis: Axis) -> int:
    """How far apart the first two steps of an axis lie, which may be divided later on."""
    first, second = (position.substitute({axis: linear(n)}) for n in range(2))
    apart = second + first * -1
    return apart.constant if apart.constant and not apart.terms else 1 << 60


def sides_within(one: Nest, found: Sides) -> list[Sides] | None:
    """The products of matrices that first factors are made of, if they are made of such.

    They have the same rows, and their columns are what `found` sums over. Other folds have its
    rows and fold these columns. None if there is anything else.
    """
    inner, axes = [], found.fold.axes
    last = found, *found.beside
    made = [sides.fold for sides in last]
    if found.around or all(fold in made for fold in one.folds):
        alone = all(f in made or {*f.axes} == {*found.around} for f in one.folds)
        return [] if alone and found.columns in one.rows else None
    for fold in one.folds:
        if fold in made:
            continue
        factors = _factors(fold)
        own = [f for f in factors if found.rows in f.free and axes[0] not in f.free]
        others = [f for f in factors if found.rows not in f.free and axes[0] in f.free]
        if found.columns in fold.free or any(s.b.has_fold for s in last) or len(axes) > 1:
            return None
        if own and others:
            a, b = _exactly(own[0]), _exactly(others[0])
            inner.append(Sides(fold, found.rows, axes[0], a, b))
        elif fold.axes != axes:
            return None
    return inner or None


def _factors(fold: Fold) -> tuple[Expr, ...]:
    """The two factors whose products a fold adds up, if it does."""
    products = fold.op is Op.ADD and isinstance(fold.body, Alu) and fold.body.op is Op.MUL
    return fold.body.sources if products else ()


def _exactly(factor: Expr) -> Expr:
    """The halves that a factor is made of, if it is a cast of halves."""
    if isinstance(factor, Alu) and factor.op is Op.CAST and factor.operands[0].dtype.is_half:
        return factor.operands[0]
    return factor


def fragment(nest: LoopNest, axis: Axis, depth: int) -> LoopNest:
    """The fold over `axis` made of matrix products by warps, `depth` steps of it in each."""
    return _multiplied(nest, axis, EDGE, EDGE, depth)


def warpgroup(nest: LoopNest, axis: Axis, columns: int, within: int = 0) -> LoopNest:
    """The fold over `axis` made of matrix products by warpgroups, so many columns in each.

    Of what a factor is made of as many as are `within`, or as registers hold.
    """
    if columns not in COLUMNS or within not in (0, *COLUMNS):
        raise OptError(f"cannot multiply {columns} columns at once: there are {COLUMNS}")
    return _multiplied(nest, axis, WARPS * EDGE, columns, within=within)


def _multiplied(
    nest: LoopNest, axis: Axis, rows: int, columns: int, depth: int | None = None, within: int = 0
) -> LoopNest:
    """The fold over `axis` made of products of so many rows, columns and steps: those there are."""
    number = next(n for n, one in enumerate(nest.nests) if axis in one.axes)
    one = divided_last(nest.nests[number])
    found = sides_of(one)
    inner = sides_within(one, found) if found is not None else None
    across = any(a.name == TX for other in nest.nests for a in other.axes)
    if found is None or axis not in found.fold.axes or across:
        raise OptError(f"cannot make matrix products over {axis.name}: it is not one sum of those")
    depth = found.depth if depth is None else depth
    if inner is None or any(sides.depth != EDGE or depth != EDGE for sides in inner):
        raise OptError(f"cannot make matrix products over {axis.name}: it reads other folds")
    if not depth or depth != found.depth:
        raise OptError(f"cannot multiply {found.a.dtype} by {found.b.dtype} {depth} at a time")
    if not {axis} <= found.a.free & found.b.free:
        raise OptError(f"cannot make matrix products over {axis.name}: one factor is the same")
    shape = rows, columns, depth
    wide = _columns_within(one, found, inner, columns, within) if rows > EDGE and inner else EDGE
    sizes = rows, columns, wide if inner else depth
    whole = zip((found.rows, found.columns, axis), sizes, strict=True)
    others = (*inner, *(found.beside if found.in_turn else ()))
    for changed, step in (*whole, *((sides.longest, depth) for sides in others)):
        if nest.kind(changed) is not Kind.LOOP or changed.size % step or changed.more:
            raise OptError(f"cannot walk {changed.name} in steps of {step}; pad it first")
    return _Fragments(found, axis, shape, wide).nest(nest, number, one, inner)


def _columns_within(one: Nest, found: Sides, inner: list[Sides], columns: int, most: int) -> int:
    """How many columns of what a factor is made of a warpgroup makes at once, beside its sums.

    What is read for each of them takes registers, too, with its address.
    """
    pairs = {found.rows, found.fold.axes[0]}
    each = len(inner) + 2 * sum(pairs <= load.free for load in one.loads)
    sums = columns // 2 * (1 + len(found.beside))
    if most and sums + each * most // 2 > HELD:
        raise OptError(f"cannot make {most} columns at once: registers do not hold as many")
    return most or next((n for n in WITHIN if sums + each * n // 2 <= HELD), WITHIN[-1])


class _Fragments:
    """The axes that FRAGMENT and WARPGROUP make."""

    def __init__(self, found: Sides, axis: Axis, shape: tuple[int, int, int], wide: int) -> None:
        rows, columns = found.rows, found.columns
        self.found, self.axis, self.shape, self.wide = found, axis, shape, wide
        each = Axis(f"{axis.name}g", wide // EDGE)  # sixteen columns of a factor that is made
        self.each = (each,) if each.size > 1 else ()
        self.high, self.q = Axis(f"{rows.name}h", 2), Axis(f"{rows.name}q", 8)
        self.r, self.warp = Axis(f"{columns.name}q", 4), Axis(f"{rows.name}w", shape[0] // EDGE)
        self.outer = (
            Axis(rows.name, rows.size // shape[0]),
            Axis(columns.name, columns.size // shape[1]),
        )

    def nest(self, nest: LoopNest, number: int, one: Nest, inner: list[Sides]) -> LoopNest:
        """The nest of that number, which is `one`, made of products."""
        rows, columns = self.found.rows, self.found.columns
        high, q, r = self.high, self.q, self.r
        (g, _, p) = across = self._across(columns)
        kinds = dict(nest.kinds)
        for sides in inner:
            one = reading(one, sides.fold, self._share(sides, sides.longest, "e", self.wide))
            within = *self.each, *self._across(self.axis)
            kinds.update({a: Kind.UNROLL for a in within if a is not r})
        found = sides_of(one)
        assert found is not None
        while fold := next((f for f in one.folds if self._walks_columns(f)), None):
            last = toposort([s.fold for s in (found, *found.beside)])
            along, read = self.axis.name in nest.along, fold in last
            one = reading(one, fold, self._by_lanes(fold, along, read))
            found = sides_of(one)
            assert found is not None
        for sides in (found, *found.beside):
            axis = sides.longest if found.in_turn else self.axis
            one = reading(one, sides.fold, self._share(sides, axis, "f", self.shape[1]))
        one = _in_rows_alone(one, columns)
        row = linear(self.warp) * EDGE + linear(high) * 8 + linear(q)
        index = {rows: linear(self.outer[0]) * self.shape[0] + row}
        sixteen = Axis(f"{columns.name}g", self.shape[1] // EDGE)  # columns
        whole = linear(self.outer[1]) * sixteen.size + linear(sixteen)
        index[columns] = _column(whole, across)
        listed = {rows: self.outer[:1], columns: self.outer[1:]}
        changed = Change(index, listed, {}).nest(one)
        warps = (self.warp,) if self.warp.size > 1 else ()
        several = (sixteen,) if sixteen.size > 1 else ()
        changed = replace(changed, rows=(*changed.rows, *warps, *several, high, g, q, r, p))
        kinds.update(dict.fromkeys(warps, Kind.THREAD))
        kinds.update(dict.fromkeys(several, Kind.UNROLL))
        kinds.update({high: Kind.UNROLL, g: Kind.UNROLL, p: Kind.LANE})
        kinds.update({q: Kind.THREAD, r: Kind.THREAD})
        nests = (*nest.nests[:number], changed, *nest.nests[number + 1 :])
        return replace(nest, nests=nests, kinds=tuple(kinds.items()))

    def _walks_columns(self, fold: Fold) -> bool:
        """Whether a fold walks columns of an inner product."""
        return self.axis in fold.axes and self.found.columns not in fold.free

    def _by_lanes(self, fold: Fold, along: bool, read: bool) -> Expr:
        """The fold made by those who hold the columns: apart, at each step, or once in the end."""
        steps, across = self._steps(EDGE), self._across(self.axis)
        body = substitute(fold.body, {self.axis: _column(numbered(steps), across)})
        if read and not along:
            return Fold(fold.op, body, (*steps, *across))
        if along and not read and fold.op is Op.ADD:
            return Fold(fold.op, Fold(fold.op, body, across[::2]), (*steps, self.r))
        return Fold(fold.op, Fold(fold.op, body, across), steps)

    def _steps(self, depth: int) -> tuple[Axis, ...]:
        """What walks the axis: whole steps of what a factor is made of, and of each its parts."""
        whole = depth * self.each[0].size if self.each else depth
        return Axis(self.axis.name, self.axis.size // whole), *self.each

    def _across(self, columns: Axis) -> tuple[Axis, Axis, Axis]:
        """What walks 16 columns."""
        return Axis(f"{columns.name}h", 2), self.r, Axis(f"{columns.name}p", 2)

    def _share(self, found: Sides, axis: Axis, mark: str, along: int) -> Expr:
        """That of the sums whose row and column it is, where a lane holds it."""
        (down, _, depth), warps = self.shape, (self.warp,) if self.warp.size > 1 else ()
        own = Axis(axis.name, axis.size // depth)
        steps = self._steps(depth) if axis is self.axis else (own,)
        sizes = (found.rows, down), (found.columns, along), (axis, depth)
        bound = tuple(Axis(a.name + mark, size) for a, size in sizes)
        wholes = linear(found.rows) // down, linear(found.columns) // along, numbered(steps)
        index = {
            old: whole * within.size + linear(within)
            for (old, _), whole, within in zip(sizes, wholes, bound, strict=True)
        }
        a, b = substitute(found.a, index), substitute(found.b, index)
        product: Expr = Product(a, b, bound, (self.q, self.r, *warps), along // 2)
        others = tuple(x for x in found.fold.axes if x is not axis)
        last = tuple(a for a in steps if a.size > 1)
        fold: Expr = Fold(Op.ADD, product, (*others, *last))
        row, column = linear(found.rows) % EDGE, linear(found.columns) % along
        return Part(fold, column // 8 * 4 + row // 8 * 2 + column % 2)


def _in_rows_alone(one: Nest, columns: Axis) -> Nest:
    """The nest with columns among its rows: what is stored once is stored with the first."""
    if columns in one.rows:
        return one
    first = inside(linear(columns), 0, 0)
    stores = [
        store if walk.axes else replace(store, valid=both(store.valid, [first]) or ())
        for walk in one.walks
        for store in walk.stores
    ]
    return replace(one, rows=(*one.rows, columns), walks=(Walk((), tuple(stores)),))


def _column(whole: Linear, across: tuple[Axis, Axis, Axis]) -> Linear:
    g, r, p = map(linear, across)
    return whole * EDGE + g * 8 + r * 2 + p


def products_of(nest: LoopNest) -> list[Product]:
    """Every matrix product in a nest. Warps make them: there are none without threads."""
    if Kind.THREAD not in [kind for _, kind in nest.kinds]:
        return []
    return [e for one in nest.nests for e in one.exprs if isinstance(e, Product)]


# ---- which elements a lane holds: of matrices, and of the four 8 x 8 that ldmatrix loads ----

# a place by numbers, arrays of numbers, or indices: all of them know + * // %
Place: TypeAlias = Callable[[int, Any, Any], tuple[Any, Any]]


def a_place(n: int, q: Any, r: Any) -> tuple[Any, Any]:
    """Row and step of element n of what a lane holds of 16 x 16 halves; or, of sums, column."""
    return q + n // 2 % 2 * 8, r * 2 + (n % 2 + n // 4 * 8)


# row and step of element n, column and step: of 16 x 16 halves, and of 16 x 8 floats
PLACES: dict[int, tuple[Place, Place]] = {
    8: (a_place, lambda n, q, r: (q + n // 4 * 8, r * 2 + (n % 2 + n // 2 % 2 * 8))),
    4: (
        lambda n, q, r: (q + n % 2 * 8, r + n // 2 * 4),
        lambda n, q, r: (q + n // 2 * 8, r + n % 2 * 4),
    ),
}


# ---- placed: what each lane loads ----


def placed(one: Nest) -> Nest:
    """The nest with the operands of matrix products as what a lane holds of them."""

    def place(e: Expr) -> Expr | None:
        if not (isinstance(e, Product) and e.bound):
            return None
        rows, columns, steps = e.bound
        if e.of_warpgroup:
            made = e.a.has_fold and not isinstance(e.a, Stored)
            a = _held(e, e.a, rows, steps, 0) if made else matrix(e.a, rows, steps)
            b = matrix(e.b, columns, steps)
        else:
            a, b = _held(e, e.a, rows, steps, 0), _held(e, e.b, columns, steps, 1)
        return Product(a, b, (), e.lane, e.lanes)

    if not any(isinstance(e, Product) for e in one.exprs):
        return one
    return rewritten(one, place)


def all_in_panels(one: Nest) -> bool:
    """Whether what warpgroups multiply is staged as they read it."""
    try:
        placed(one)
    except OptError:
        return False
    return True


def _held(product: Product, operand: Expr, edge: Axis, steps: Axis, side: int) -> Expr:
    """A lane's share of an operand: in one load out of a tile, if it lies well; else gathered."""
    if isinstance(operand, Stored):
        for crosswise in (False, True):
            along, across = (edge, steps) if crosswise else (steps, edge)
            if _in_rows(operand, along, across, crosswise):
                index = dict(_row_of_lane(product, edge, steps, side, crosswise))
                at = operand.index.substitute(index)
                return Fragment(operand.name, operand.dtype, at, operand.after, crosswise)
    count = 16 // operand.dtype.itemsize
    q, r = map(linear, product.lane[:2])
    where = [PLACES[count][side](n, q, r) for n in range(count)]
    first = linear(product.lane[2]) * EDGE if side == 0 and product.of_warpgroup else ZERO
    made = unrounded(operand)
    values = (substitute(made, {edge: first + x, steps: k}) for x, k in where)
    return Bundle(tuple(values), operand.dtype)


def unrounded(e: Expr) -> Expr:
    """The floats that halves are made of, which are rounded two at a time where they are held."""
    cast = isinstance(e, Alu) and e.op is Op.CAST and e.dtype.is_half
    return e.sources[0] if cast and e.sources[0].dtype is float32 else e


def _in_rows(e: Stored, along: Axis, across: Axis, crosswise: bool) -> bool:
    """Whether 16 bytes along one axis lie side by side, where an access may begin."""
    step = 16 // e.dtype.itemsize
    if e.index.stride(along) != 1 or (crosswise and step != 8):  # only halves can be mirrored
        return False
    others = [f for a, f in e.index.terms if a is not along]
    whole = all(f % step == 0 for f in others) and e.index.constant % step == 0
    return whole and e.index.stride(across) is not None


def _row_of_lane(
    product: Product, edge: Axis, steps: Axis, side: int, crosswise: bool
) -> Iterator[tuple[Axis, Linear]]:
    """Where the 16 bytes begin whose index the lane gives: row lane % 8 of matrix lane // 8.

    Matrices 0 to 3 are registers 0 to 3: for a rows change first, for b steps.
    """
    q, r = map(linear, product.lane[:2])
    lane = q * 4 + r
    in_row, odd, upper = lane % 8, lane // 8 % 2, lane // 16
    half = steps.size // 2
    of_edge, of_steps = (odd, upper) if side == 0 else (upper, odd)
    if crosswise:
        yield edge, of_edge * 8
        yield steps, of_steps * half + in_row
    else:
        yield edge, of_edge * 8 + in_row
        yield steps, of_steps * half
