"""Keep: what folds read of other folds waits in a tile, a block of rows at a time.

In softmax(q @ k.T) @ v, each score is read by three folds over the keys: the largest, the sum of
exps, the mean of values. Computed for a block of rows at once and kept in cache, scores never go
to memory. Nothing here knows that: kept is, innermost first,

    a fold that another fold reads, with what is made of it element by element
    a factor of a product that the other factor's rows would have computed again and again
    a fold that more rows read than it has

    what costs much, and what several loops of a row would compute again, as softmax's exp

each at one step of an axis, filled before what reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from math import inf
from operator import attrgetter

from tinyml.codegen.crop import known_outside, met
from tinyml.codegen.expr import Alu, Const, Expr, Fold, Select, Stored, alu, const, nodes, select
from tinyml.codegen.linear import TX
from tinyml.codegen.nest import Kind, LoopNest, Nest, Tile, rewritten, roots
from tinyml.codegen.optimize.change import Change, OptError
from tinyml.codegen.optimize.filled import by_fold, read_before
from tinyml.codegen.optimize.tiles import (
    ORDER,
    check_filled,
    reading,
    walked_before,
    with_tile,
    within_fold,
)
from tinyml.codegen.pairs import factors_of
from tinyml.dtype import FLOAT16_MAX, bfloat16
from tinyml.frozen import replace
from tinyml.graph import toposort
from tinyml.index import Axis, Linear, Valid, both, inside, linear, row_major
from tinyml.ops import WORK, Op

PIECE = 4  # elements that a thread of a card reads at once
COSTLY = 12  # work on an element that takes longer than to bring it back from a cache


def keep(nest: LoopNest, after: Axis, amount: int) -> LoopNest:
    """One more value kept for each step of `after`, its rows as long as whole steps of `amount`."""
    alone = all(a.name != TX for one in nest.nests for a in one.axes)
    if nest.kind(after) not in (Kind.GRID, Kind.LOOP) or not alone or within_fold(nest, after):
        raise OptError(f"cannot keep anything for {after.name}: it is walked by many at once")
    kept, kinds = [], dict(nest.kinds)
    number = sum(len(one.tiles) for one in nest.nests)
    for one in nest.nests:
        one = divided_last(one)
        same = (
            _next_values(nest, one, walked_before(nest, one, after), after)
            if after in one.axes
            else ()
        )
        if not same:
            kept.append(one)
            continue
        made, own = _kept(nest, one, same, after, f"kept{number}", amount)
        check_filled(nest, made)
        if any(by_fold(made, tile) and read_before(made, tile) for tile in made.tiles):
            raise OptError(f"cannot keep anything for {after.name}: a fold fills what it reads")
        kinds.update((b, nest.kind(a)) for a, b in own.items() if nest.kind(a) is not Kind.LOOP)
        kept.append(made)
        number += 1
    if number == sum(len(one.tiles) for one in nest.nests):
        raise OptError(f"cannot keep anything for {after.name}: no fold reads another there")
    return replace(nest, nests=tuple(kept), kinds=tuple(kinds.items()))


def _kept(
    nest: LoopNest, one: Nest, same: Sequence[Expr], after: Axis, name: str, amount: int
) -> tuple[Nest, dict[Axis, Axis]]:
    """A value in a tile, whose axes stand for axes of `one`, and so do those that it folds.

    `same` are the value and what is equal to it but for its one axis.
    """
    value, outside = same[0], walked_before(nest, one, after)
    folds = [e for e in nodes(value) if isinstance(e, Fold)]
    bound = {a for e in folds if e.free - outside for a in e.axes}  # others are made before it
    inner = list(value.free - outside)
    rows = _written_out(nest, one)
    inner.sort(key=lambda a: (a not in rows, ORDER[nest.kind(a)], a in one.folded, a.name))
    if any(not {s.outer, s.inner}.isdisjoint({after, *inner, *bound}) for s in nest.splits):
        raise OptError(f"cannot keep {value}: a last step is shorter")
    if any(e.free - outside and not {*e.axes}.isdisjoint(inner) for e in folds):
        raise OptError(f"cannot keep {value}: what it folds walks its own axis")
    own = {a: Axis(f"{a.name}_{name}", a.size) for a in sorted({*inner, *bound}, key=str)}
    last = inner[-1]
    whole = -(-last.size // amount) * amount if amount else last.size
    if whole > last.size and any(last in e.free for e in nodes(value) if isinstance(e, Stored)):
        raise OptError(f"cannot keep {value}: a tile that it reads has no whole steps")
    sizes = [*(a.size for a in inner[:-1]), whole]
    by_threads = nest.kind(last) is Kind.THREAD and nest.kind(inner[0]) is Kind.LOOP
    index = (_in_pieces if by_threads else row_major)([linear(a) for a in inner], sizes)
    stored: Expr = Stored(name, value.dtype, index, after, known_outside(value, inner))
    own[last] = Axis(f"{last.name}_{name}", whole)
    guard = both([inside(linear(own[last]), 0, last.size - 1)]) if whole > last.size else ()
    assert guard is not None
    image = {a: linear(b) for a, b in own.items()}
    renamed = Change(image, {a: (own[a],) for a in bound}, {}).expr(value)
    masked = Change({}, {}, {own[last]: guard}).expr(renamed) if guard else renamed
    tile = Tile(name, tuple(own[a] for a in inner), index.substitute(image), masked, after)
    made = one
    for e in same:
        (other,) = (e.free - value.free) or (last,)
        made = reading(made, e, stored.substitute({last: linear(other)}))
    return with_tile(made, tile), own


def _in_pieces(index: Sequence[Linear], sizes: Sequence[int]) -> Linear:
    """Rows of threads one beside the other, of which each has a few elements side by side."""
    if sizes[0] % PIECE:
        return row_major(index, sizes)
    first, *rows = index
    shape = sizes[0] // PIECE, *sizes[1:], PIECE
    return row_major([first // PIECE, *rows, first % PIECE], shape)


def divided_last(one: Nest) -> Nest:
    """Sums of quotients by what the sum does not walk become quotients of sums.

    Quotients that are rounded to halves, too, if what is rounded instead has an exponent there: in
    float16 shares of a sum, of which the largest term is known to be 1 or more, and none too large.
    """

    def rule(e: Expr) -> Expr | None:
        if not isinstance(e, Fold) or (found := _divisor(e)) is None:
            return None
        whole, divisor = found
        fold = Fold(e.op, whole, e.axes)
        return alu(Op.DIV, e.dtype, rule(fold) or fold, divisor)

    return rewritten(one, rule) if any(_divisor(fold) for fold in one.folds) else one


@lru_cache(maxsize=64)  # one pass after the other asks for the same
def _divisor(fold: Fold) -> tuple[Expr, Expr] | None:
    """What a sum adds up without a divisor, and the divisor, if there is one."""
    adds = fold.op is Op.ADD and not fold.dtype.is_half
    return next(_Divisors(fold).of(fold.body), None) if adds else None


class _Divisors:
    """Looks for divisors that a fold does not walk, and but once where there are none."""

    def __init__(self, fold: Fold) -> None:
        self.fold, self.without = fold, set[Expr]()

    def of(self, body: Expr, known: Valid = ()) -> Iterator[tuple[Expr, Expr]]:
        """The body without a divisor, and the divisor.

        That is 1 where what is `known` of all that is divided leaves nothing of the sum: it stays
        0, also where the divisor is NaN.
        """
        if body in self.without:
            return
        found = False
        for each in _divisors(body, self, known):
            found = True
            yield each
        if not found:
            self.without.add(body)


def _divisors(body: Expr, below: _Divisors, known: Valid) -> Iterator[tuple[Expr, Expr]]:
    fold = below.fold
    if isinstance(body, Select) and isinstance(body.other, Const) and body.other.value == 0:
        for whole, divisor in below.of(body.value, known + body.valid):
            yield select(body.valid, whole, body.other), divisor
    if not (isinstance(body, Alu) and body.dtype is fold.dtype):
        return
    left, right = (*body.operands, body)[:2]
    if body.op is Op.CAST and isinstance(left, Alu) and left.op is Op.CAST and left.dtype.is_half:
        for whole, divisor in below.of(left.operands[0], known):
            if left.dtype is bfloat16 or _is_share(whole, divisor):
                yield alu(Op.CAST, body.dtype, alu(Op.CAST, left.dtype, whole)), divisor
    if body.op is Op.NEG:
        yield from ((alu(Op.NEG, body.dtype, x), y) for x, y in below.of(left, known))
    made = isinstance(left.value if isinstance(left, Select) else left, (Alu, Fold))
    if body.op is Op.DIV and right.free.isdisjoint(fold.axes) and made:
        yield left, select(met(known, fold.axes), right, const(1, right.dtype))
    elif body.op is Op.MUL:
        yield from ((alu(Op.MUL, body.dtype, x, right), y) for x, y in below.of(left, known))
        yield from ((alu(Op.MUL, body.dtype, left, x), y) for x, y in below.of(right, known))


def _is_share(whole: Expr, divisor: Expr) -> bool:
    """Whether float16 holds a value as well before it is divided as it does after that."""
    divisor = divisor.value if isinstance(divisor, Select) else divisor
    if not (isinstance(divisor, Fold) and divisor.op is Op.ADD):
        return False
    least = _largest(divisor.body, (), divisor.axes)
    return 1 <= least < inf and _largest(whole) <= FLOAT16_MAX


def _largest(e: Expr, known: Valid = (), along: tuple[Axis, ...] = ()) -> float:
    """What a value's magnitude never exceeds where all that is `known` holds; inf if unknown.

    If it is asked for all steps `along` axes, it is that of one of them.
    """
    if isinstance(e, Select):
        zero = isinstance(e.other, Const) and e.other.value == 0
        return _largest(e.value, known + e.valid, along) if zero else inf
    if not isinstance(e, Alu):
        return inf
    match e.op, e.operands:
        case ((Op.EXP | Op.EXP2), (Alu(op=Op.ADD, operands=(x, Alu(op=Op.NEG, operands=(top,)))),)):
            return 1 if isinstance(top, Fold) and _leads(top, x, known, along) else inf
        case (Op.MUL, (x, Const(value=times))) | (Op.MUL, (Const(value=times), x)):
            return _largest(x, known, along) * abs(times)
        case Op.WHERE, (_, x, Const(value=0)) if not along:
            return _largest(x, known)
    return inf


def _leads(top: Fold, e: Expr, known: Valid, along: tuple[Axis, ...]) -> bool:
    """Whether `e` is never larger than what a fold finds, and as large for one step `along`."""
    (own, x), (others, y) = unmasked(e), unmasked(top.body)
    if top.op is not Op.MAX or x is not y or not {*others} <= {*own, *known}:
        return False
    return not along or (top.axes == along and {*own, *known} <= {*others})


def unmasked(e: Expr) -> tuple[Valid, Expr]:
    """What is -inf where conditions do not hold: these, and it without them."""
    found: Valid = ()
    while isinstance(e, Select) and isinstance(e.other, Const) and e.other.value == -inf:
        found, e = found + e.valid, e.value
    return found, e


def _next_values(nest: LoopNest, one: Nest, outside: set[Axis], after: Axis) -> tuple[Expr, ...]:
    """The first value to be kept: see the top of this file; and what else is equal to it.

    Where folds are made in steps, only those values are there that a step makes. Of rows that are
    written out, folds wait in registers, but for what the fill of a tile would make again.
    """
    order, ends = one.exprs, {*roots(one)}
    below, readers = _folds_below(order), _readers(order)
    known = outside | _written_out(nest, one)
    found = chain(_nested(order, below), _factors(order), _statistics(one, outside))
    whole = all(tile.over is not after for tile in one.tiles)

    def whole_of(value: Expr) -> Expr:
        """What is made of a value element by element, as far as nothing else reads it before."""
        while value not in ends and len(readers[value]) == 1:
            if not _goes_with(readers[value][0], value, below):
                break
            value = readers[value][0]
        return value

    for value in map(whole_of, found):
        if value.free - known and (whole or after in value.free):
            return (value,)
    again = made_again(one, known) if whole else ()
    folds = [e for e in order if again and e in below[again[0]] and e.free - outside]
    return (whole_of(folds[0]),) if folds else again


def _written_out(nest: LoopNest, one: Nest) -> set[Axis]:
    """Rows that are walked at the same time."""
    return {a for a in one.rows if nest.kind(a) is Kind.UNROLL}


def _readers(order: Iterable[Expr]) -> dict[Expr, list[Expr]]:
    """By expression, who reads it."""
    readers: dict[Expr, list[Expr]] = {}
    for e in order:
        readers[e] = []
        for source in dict.fromkeys(e.sources):
            readers[source].append(e)
    return readers


def _folds_below(order: Iterable[Expr]) -> dict[Expr, frozenset[Expr]]:
    """The folds that each expression is made of."""
    below: dict[Expr, frozenset[Expr]] = {}
    for e in order:
        found = [below[s] | {s} if type(s) is Fold else below[s] for s in e.folding]
        below[e] = frozenset().union(*found)
    return below


def _goes_with(reader: Expr, value: Expr, below: dict[Expr, frozenset[Expr]]) -> bool:
    """Whether a reader is made of the same elements as `value`, and of nothing else folded."""
    same = reader.free == value.free and below[reader] <= below[value] | {value}
    return same and isinstance(reader, (Alu, Select))


def _nested(order: Sequence[Expr], below: dict[Expr, frozenset[Expr]]) -> list[Expr]:
    """The folds that other folds read."""
    read = {f for e in order if isinstance(e, Fold) for f in below[e]}
    return [e for e in order if e in read]


def _factors(order: Sequence[Expr]) -> Iterator[Expr]:
    """Factors that are computed, and that a fold would compute again for the other's rows."""
    pairs = [found for e in order if isinstance(e, Fold) and (found := factors_of(e))]
    both = [each for pair in pairs for each in (pair, pair[::-1])]
    yield from (a for a, b in both if b.free - a.free and _made(a))


def _made(e: Expr) -> bool:
    return isinstance(e, (Alu, Select)) and any(
        isinstance(s, Alu) and s.op is not Op.CAST for s in nodes(e)
    )


def _statistics(one: Nest, outside: set[Axis]) -> Iterator[Expr]:
    """The folds that fewer rows have than read them."""
    for store in one.stores:
        for e in nodes(store.value):
            if isinstance(e, Fold) and e.free - outside < store.position.free - outside:
                yield e


def made_again(one: Nest, outside: set[Axis]) -> tuple[Expr, ...]:
    """A costly value that several loops along an axis compute, as each of them writes it."""
    work: dict[Expr, int] = {}
    for e in one.exprs:
        own = WORK[e.op] if isinstance(e, Alu) else 0
        hoisted = isinstance(e, Fold) or e.free <= outside
        work[e] = 0 if hoisted else min(1 << 20, own + sum([work[s] for s in e.sources]))
    costly = [e for e, n in work.items() if n >= COSTLY and isinstance(e, (Alu, Select))]
    if not costly:
        return ()
    loops, below = _loops(one, outside), _folds_below(one.exprs)
    walked = {axis for found in loops.values() for _, axis in found}
    largest: tuple[Expr, ...] = ()
    for e in costly:
        if e not in loops:
            continue
        if largest and not (below[e] == below[largest[0]] and largest[0] in nodes(e)):
            continue
        (axis,) = e.free - outside
        others = {a for a in walked if a.size == axis.size}
        same = dict.fromkeys([e, *(e.substitute({axis: linear(a)}) for a in others)])
        found = tuple(x for x in same if x in loops)
        if len({number for x in found for number, _ in loops[x]}) > 1:
            largest = found
    return largest


def _loops(one: Nest, outside: set[Axis]) -> dict[Expr, set[tuple[object, Axis]]]:
    """The loops that compute each value that has one axis of its own, and that axis.

    Folds share a loop if they are equally deep in one another.
    """
    depth: dict[Expr, int] = {}
    for e in toposort(roots(one), (), attrgetter("folding")):
        depth[e] = (type(e) is Fold) + max([depth[s] for s in e.folding], default=0)
    bodies: list[tuple[object, tuple[Axis, ...], Expr]] = []
    bodies += [(depth[fold], fold.axes, fold.body) for fold in one.folds]
    bodies += [((n,), w.axes, s.value) for n, w in enumerate(one.walks) for s in w.stores]
    bodies += [(tile.name, tile.axes, tile.value) for tile in one.tiles]
    loops, folds = dict[Expr, set[tuple[object, Axis]]](), {*one.folds}
    for number, axes, body in bodies:
        for e in toposort([body], folds):
            inner = e.free - outside
            if len(inner) == 1 and inner.issubset(axes):
                loops.setdefault(e, set()).update([((number, axes), axis) for axis in inner])
    return loops
