"""Crop: steps of a loop are left out where it is known beforehand what they would give.

A sum of p[r] * x[r], where p is 0 unless r <= i, needs no step beyond i; nor does the largest of
what is -inf there. What is known is read from the expression: a Select gives its other value
where its conditions do not hold, and what ops make of that value follows (interpret.known_result).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence, Set
from heapq import heappop, heappush
from itertools import chain, combinations, pairwise, product

from tinyml.codegen.expr import (
    Alu,
    Const,
    Expr,
    Fold,
    Load,
    Select,
    Stored,
    const,
    nodes,
    rewrite,
    select,
    with_sources,
)
from tinyml.codegen.linear import Begin
from tinyml.codegen.matrices import Bundle, Product
from tinyml.codegen.nest import Nest, Tile, Walk
from tinyml.codegen.scope import Known, at_each
from tinyml.frozen import replace
from tinyml.graph import toposort
from tinyml.index import ZERO, Axis, Linear, Range, Valid, both, inside, linear, moved
from tinyml.interpret import identity, known_result
from tinyml.ops import WORK, Op

LEAST = 4  # steps of a loop that is worth bounds
WHOLE = 32  # steps without conditions that are worth a text of their own

Between = tuple[Linear | None, Linear | None]  # the first step, and the one behind the last, if any


def needed(folds: Sequence[Fold]) -> Valid:
    """Conditions without which none of the folds' bodies, walked together, changes anything."""
    every = []
    common = frozenset.intersection(*(fold.free for fold in folds)).union(folds[0].axes)
    for fold in folds:
        start = identity(fold.op, fold.dtype)
        for body in terms(fold):
            found = [r for r, known in _known(body, {*fold.axes}) if known.value == start]
            every.append({r.index: r for r in (_weaker(r, common) for r in found)})
            if not every[-1]:
                return ()
    return _around(every, every[0])


def _weaker(r: Range, common: frozenset[Axis]) -> Range:
    """What a condition asks of some axes, whatever all others are."""
    own = Linear(tuple((a, f) for a, f in r.index.terms if a.free <= common), 0)
    rest = r.index - own
    return inside(own, r.low - rest.high, r.high - rest.low)


def met(valid: Sequence[Range], along: Iterable[Axis]) -> Valid | None:
    """Conditions on other axes, without which no step along these meets all of `valid`."""
    walked = {*along}
    apart = [*valid]
    for one, two in combinations(valid, 2):
        for other in (two, Range(two.index * -1, -two.high, -two.low)):
            index = one.index + other.index
            if index.free.isdisjoint(walked):  # what both ask of a step is asked of what is left
                apart.append(inside(index, one.low + other.low, one.high + other.high))
    rest = frozenset[Axis]().union(*(r.free for r in apart)) - walked
    return both(_weaker(r, rest) for r in apart)


def terms(fold: Fold) -> tuple[Expr, ...]:
    """What has to be the start of a fold, so that it changes nothing: of a product, one factor."""
    body = fold.body
    while type(body) is Fold and body.op is fold.op:
        body = body.body
    if isinstance(body, Product):
        return body.a.values if isinstance(body.a, Bundle) else (body.a,)
    return (body,)


def changing(
    folds: Sequence[Fold], bodies: Sequence[Expr], steps: Sequence[Known]
) -> Iterator[tuple[int, int, Expr]]:
    """What changes a fold at a step of what is written out, after the numbers of both."""
    starts = [const(identity(fold.op, fold.dtype), fold.dtype) for fold in folds]
    for number, values in enumerate(zip(*at_each(bodies, steps), strict=True)):
        for n, value in enumerate(values):
            if value is not starts[n] and _number(value) is not starts[n]:
                yield n, number, value


def _number(value: Expr) -> Const | None:
    """The number that an op makes of those among its operands, whatever the others are."""
    if not isinstance(value, Alu):
        return None
    return _made(value, [o if isinstance(o, Const) else None for o in value.operands])


def steady(values: Sequence[Expr], axes: Iterable[Axis]) -> tuple[Valid, tuple[Expr, ...]]:
    """Conditions along the axes without which all values, of which some cost much, are the same.

    That is a number, or what an op makes of one and of what has fewer axes: where a mask leaves
    nothing of an element, a softmax is 0 divided by the sum of the row, NaN if that is empty, too.
    """
    along = {*axes}
    if not along or not any(map(_costly, values)):
        return (), ()
    found = []
    for value in values:
        found.append(
            {r.index: (r, _made_there(value, r, n, along)) for r, n in _known(value, along)}
        )
        if not found[-1]:
            return (), ()
    common = [index for index in found[0] if all(index in one for one in found)]
    numbers = [tuple(one[index][1] for one in found) for index in common]
    same = [index for index, each in zip(common, numbers, strict=True) if each == numbers[0]]
    ranges = [{index: r for index, (r, _) in one.items()} for one in found]
    return _around(ranges, same), (*numbers, ())[0]


def _made_there(value: Expr, r: Range, number: Const, along: set[Axis]) -> Expr:
    """What the last op that is not sure of its `number` makes of `value` without `r`.

    -inf plus what is not known is taken for -inf, and 0 divided by it for 0; so it stays where that
    has fewer axes than what `r` asks.
    """
    if isinstance(value, Select) and r in value.valid:
        return _made_there(value.other, r, number, along)
    if not isinstance(value, Alu):
        return number
    found = [o if isinstance(o, Const) else dict(_known(o, along)).get(r) for o in value.operands]
    operands = list[Expr]()
    for operand, known in zip(value.operands, found, strict=True):
        if known is None and r.free <= operand.free:
            return number
        if known is not None and None not in found:
            operands.append(_made_there(operand, r, known, along))
        else:
            operands.append(operand if known is None else known)
    made = with_sources(value, tuple(operands))
    return number if all(isinstance(o, Const) for o in operands) else made


def plain(walks: Iterable[Walk], numbers: Iterable[Expr]) -> list[Walk]:
    """The walks, with numbers for values."""
    left = iter(numbers)
    return [
        replace(walk, stores=tuple(replace(store, value=next(left)) for store in walk.stores))
        for walk in walks
    ]


def _costly(value: Expr) -> bool:
    return value.has_fold or any(
        isinstance(e, Alu) and WORK[e.op] >= WORK[Op.EXP] for e in nodes(value)
    )


def _around(every: Sequence[Mapping[Linear, Range]], indices: Iterable[Linear]) -> Valid:
    """Of each index that all have a range of, the range around these."""
    return tuple(
        Range(index, min(one[index].low for one in every), max(one[index].high for one in every))
        for index in indices
        if all(index in one for one in every)
    )


def known_outside(value: Expr, axes: Iterable[Axis]) -> tuple[tuple[Range, Const], ...]:
    """Conditions along some of the axes, and the number that `value` is without each of them."""
    return tuple(_known(value, {*axes}))


def _known(value: Expr, axes: set[Axis]) -> list[tuple[Range, Const]]:
    order = toposort([value], (), lambda e: () if isinstance(e, Fold) else e.sources)
    asking: dict[Range, list[int]] = {}
    for at, e in enumerate(order):
        ranges = e.valid if isinstance(e, Select) else ()
        ranges = tuple(r for r, _ in e.outside) if isinstance(e, Stored) else ranges
        for r in dict.fromkeys(ranges):
            if not r.free.isdisjoint(axes) and not r.index.looked:
                asking.setdefault(r, []).append(at)
    if not asking:  # most often
        return []
    readers: dict[Expr, list[int]] = {}
    always: dict[Expr, Const | None] = {}  # the number of each, whatever holds
    for at, e in enumerate(order):
        for source in e.sources:
            readers.setdefault(source, []).append(at)
        always[e] = _number_of(e, None, always)
    each = ((r, _without(r, order, ChainMap({}, always), at, readers)) for r, at in asking.items())
    return [(r, known) for r, known in each if known is not None]


def _without(
    r: Range,
    order: Sequence[Expr],
    known: MutableMapping[Expr, Const | None],
    first: Sequence[int],
    readers: Mapping[Expr, Sequence[int]],
) -> Const | None:
    """The number that the last of `order` is wherever `r` does not hold.

    Only `first`, which ask it, and what reads those, are other than what is `known` of all.
    """
    waiting = [*first]
    while waiting:
        at = heappop(waiting)
        number = _number_of(order[at], r, known)
        if number is not known[order[at]]:
            known[order[at]] = number
            for reader in readers.get(order[at], ()):
                heappush(waiting, reader)
    return known[order[-1]]


def _number_of(e: Expr, r: Range | None, known: Mapping[Expr, Const | None]) -> Const | None:
    """The number that `e` is wherever `r` does not hold, by those of its operands."""
    match e:
        case Const():
            return e
        case Select(valid=valid, value=value, other=other):
            same = known.get(value) is not None and known[value] is known.get(other)
            return known.get(other) if r in valid or same else None
        case Stored(outside=outside):
            return next((number for known_by, number in outside if known_by is r), None)
        case Alu():
            return _made(e, [known.get(o) for o in e.operands])
    return None


def _made(e: Alu, operands: list[Const | None]) -> Const | None:
    if not any(operands):
        return None
    values = [None if o is None else o.value for o in operands]
    number = known_result(e.op, e.dtype, values, [o.dtype for o in e.operands])
    return None if number is None else const(number, e.dtype)


def begin(
    axis: Axis, only: Iterable[Range], known: Known, fixed: Iterable[Axis], least: int = LEAST
) -> Begin:
    """A loop over the steps of `axis` where the conditions can hold, given the `fixed` axes."""
    starts: dict[Linear, None] = {}
    stops: dict[Linear, None] = {}
    for r in only if axis.size >= least else ():
        start, stop = _between(axis, r, known, {*fixed})
        starts.update({start: None} if start is not None and start.high > 0 else {})
        stops.update({stop: None} if stop is not None and stop.low < axis.size else {})
    return Begin(axis, tuple(starts), tuple(stops))


def asked(folds: Sequence[Fold]) -> Valid:
    """What bodies that are walked together ask at their steps."""
    if any(fold.body.has_fold for fold in folds):
        return ()
    chosen = [e for fold in folds for e in nodes(fold.body) if isinstance(e, Select)]
    return tuple(dict.fromkeys(r for e in chosen for r in e.valid if not r.index.looked))


def asked_of(one: Nest) -> Valid:
    """What stores and values ask."""
    read = [e.valid for e in one.exprs if isinstance(e, (Select, Load))]
    asked = chain(*read, *(store.valid for store in one.stores))
    return tuple(dict.fromkeys(r for r in asked if not r.index.looked))


def pieces(
    axis: Axis, asked: Iterable[Range], known: Known, fixed: Iterable[Axis], most: int
) -> list[range]:
    """The steps of `axis` in runs, in each of which every condition holds or fails or may do both.

    Nothing if all steps are alike, or if there are more runs than `most`. A rest that is walked
    after them is not asked for.
    """
    outer, points = {*fixed}, {0, axis.size}
    for r in asked:
        for always in (False, True):
            found = _between(axis, r, known, outer, always)
            points |= {at.constant for at in found if at is not None and not at.terms}
    runs = [range(*run) for run in pairwise(sorted(p for p in points if 0 <= p <= axis.size))]
    alike = len(runs) == 1 and not axis.more
    return [] if alike or len(runs) > most else runs


def parts(
    loop: Begin, asked: Iterable[Range], known: Known, fixed: Iterable[Axis]
) -> list[tuple[Begin, Mapping[Range, bool]]]:
    """A loop in up to three, and what is sure to hold, or to fail, at all steps of each.

    Steps where a condition holds for some of what is made at once, and for the rest not, are at
    the ends of a loop that leaves steps out, and between two parts of another one.
    """
    axis, outer = loop.axis, {*fixed}
    if not (loop.starts or loop.stops):
        return _turned(loop, asked, known, outer) or [(loop, {})]
    every = {r: _between(axis, r, known, outer, always=True) for r in asked}
    bounds = {r: between for r, between in every.items() if between != (None, None)}
    starts = dict.fromkeys(s for s, _ in bounds.values() if s is not None)
    stops = dict.fromkeys(s for _, s in bounds.values() if s is not None)
    all_hold = next(_beyond(starts, 1), None), next(_beyond(stops, -1), None)
    for start, stop in dict.fromkeys([all_hold, *bounds.values()][:2]):
        held = [r for r, between in bounds.items() if _implied(between, start, stop)]
        first = () if start is None or start in loop.starts else (start,)
        last = () if stop is None or stop in loop.stops else (stop,)
        whole = _loop(axis, (*loop.starts, *first), (*loop.stops, *last))
        ends = product((ZERO, *whole.starts), (linear(axis.size), *whole.stops))
        longest = min((e - s).high for s, e in ends)
        if held and (longest >= WHOLE or not (first or last)):
            none: Mapping[Range, bool] = {}
            before = [(_loop(axis, loop.starts, (*loop.stops, *first)), none)] if first else []
            after = [(_loop(axis, (*loop.starts, *first, *last), loop.stops), none)] if last else []
            return [*before, (whole, dict.fromkeys(held, True)), *after]
    return [(loop, {})]


def _turned(
    loop: Begin, asked: Iterable[Range], known: Known, outer: Set[Axis]
) -> list[tuple[Begin, Mapping[Range, bool]]]:
    """A loop before, while and after a condition turns from what it is at the beginning."""
    size = loop.axis.size
    for r in asked:
        always = _between(loop.axis, r, known, outer, always=True)
        ever = _between(loop.axis, r, known, outer)
        for holds, (first, last) in ((True, (always[1], ever[1])), (False, (ever[0], always[0]))):
            if first is None or last is None or None not in always:
                continue
            within = first.high > 0 and last.low < size
            if within and size - (last - first).high >= WHOLE:
                before, after = replace(loop, stops=(first,)), replace(loop, starts=(last,))
                between = replace(loop, starts=(first,), stops=(last,))
                return [(before, {r: holds}), (between, {}), (after, {r: not holds})]
    return []


def _beyond(bounds: Collection[Linear], sign: int) -> Iterator[Linear]:
    """The last of some steps, or with -1 the first; several where it is not known which is."""
    for b in bounds:
        if not any(c is not b and ((c - b) * sign).low >= 0 for c in bounds):
            yield b


def _implied(between: Between, start: Linear | None, stop: Linear | None) -> bool:
    """Whether a condition that holds between two steps holds from `start` to `stop`."""
    begins, ends = between
    begun = begins is None or (start is not None and (start - begins).low >= 0)
    lasts = ends is None or (stop is not None and (ends - stop).low >= 0)
    return begun and lasts


def without(value: Expr, held: Mapping[Range, bool]) -> Expr:
    """A value where it is known of conditions whether they hold."""
    if not held:
        return value

    def one(e: Expr) -> Expr | None:
        if not isinstance(e, Select) or not any(r in held for r in e.valid):
            return None
        left = tuple(r for r in e.valid if not held.get(r, False))
        fails = any(not held.get(r, True) for r in left)
        return e.other if fails else select(left, e.value, e.other)

    return rewrite(value, one)


def _loop(axis: Axis, starts: Sequence[Linear], stops: Sequence[Linear]) -> Begin:
    """A loop, without bounds that others make needless."""
    return Begin(axis, tuple(_beyond(starts, 1)), tuple(_beyond(stops, -1)))


def _between(axis: Axis, r: Range, known: Known, outer: Set[Axis], always: bool = False) -> Between:
    """The first step of `axis` where a condition can hold, and the one behind the last, if any.

    Or where it `always` holds, whatever other axes than the outer ones are.
    """
    condition = moved(r, known)
    stride = condition.index.stride(axis)
    if not stride:
        return None, None
    low = condition.low if r.low > r.index.low else None  # None: it holds by itself
    high = condition.high if r.high < r.index.high else None
    index = condition.index - linear(axis) * stride
    if stride < 0:
        low, high = (None if x is None else -x for x in (high, low))
        stride, index = -stride, index * -1
    steady = Linear(tuple((a, f) for a, f in index.terms if a.free <= outer), index.constant)
    varying = index - steady
    least, most = (varying.high, varying.low) if always else (varying.low, varying.high)
    start = None if low is None else ((steady + most - low) // stride) * -1
    stop = None if high is None else (high - steady - least) // stride + 1
    return start, stop


def steps(
    over: Axis, values: Sequence[Expr], filled: Sequence[Tile], known: Known, fixed: Iterable[Axis]
) -> Begin:
    """The loop over steps that combine values, without those that add nothing to any of them.

    `filled` are the tiles of one step, of which they may read theirs. What is read of a tile
    that is filled further inside may change at any step.
    """
    made = {tile.name: tile.value for tile in filled}
    values = [made.get(v.name, v) if isinstance(v, Stored) else v for v in values]
    folds = [e for e in toposort(values) if isinstance(e, Fold)]
    if not folds or any(isinstance(v, Stored) for v in values):
        return Begin(over, (), ())
    first, *others = [begin(over, needed([f]), known, fixed, 2) for f in folds]
    return Begin(
        over,
        tuple(s for s in first.starts if all(s in b.starts for b in others)),
        tuple(s for s in first.stops if all(s in b.stops for b in others)),
    )
