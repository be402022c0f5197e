"""Phases: a row axis by its remainders, each in a nest of its own, whose folds are shorter.

The gradient of a window that moves by n is zero at most steps of its fold: `(i + r) % n == 0` says
which remain. With i = n * q + p for a fixed p, that is a condition on r alone, and the fold walks
the steps where it holds and no others. What remains is a dense sum, as that of any other window.
"""

from __future__ import annotations

from collections.abc import Iterator

from tinyml.codegen.expr import Alu, Expr, Fold, Load, Select, const, is_number, substitute
from tinyml.codegen.nest import LoopNest, Nest, rewritten
from tinyml.codegen.optimize.change import OptError, beside, is_decided
from tinyml.frozen import replace
from tinyml.index import Axis, Range, Remainder, linear
from tinyml.interpret import identity
from tinyml.ops import Op

MOST = 4  # remainders of one axis
LONGEST = 64  # steps of a fold that are looked at one by one


def phases(one: Nest) -> dict[Axis, int]:
    """Row axes whose remainder decides, at each step of some fold, whether it counts."""
    found: dict[Axis, int] = {}
    for fold in one.folds:
        for condition in _needed(fold):
            remainder = _remainder(condition)
            if remainder is None or not remainder.free & {*fold.axes}:
                continue
            for axis in remainder.free & {*one.rows}:
                if remainder.inner.stride(axis) in (1, -1) and remainder.by <= MOST:
                    found[axis] = remainder.by
    return {a: by for a, by in found.items() if a.size >= 2 * by}


def phase(nest: LoopNest, axis: Axis, by: int) -> LoopNest:
    """`axis` as `by` nests, in each of which it has one remainder."""
    if by > axis.size:
        raise OptError(f"cannot walk {axis.name} in {by} phases: it has {axis.size} steps")
    if is_decided(nest, axis):
        raise OptError(f"cannot walk {axis.name} in phases after anything else is decided")
    nests: list[Nest] = []
    others: list[Nest] = []
    for one in nest.nests:
        if axis not in one.rows:
            nests.append(one)
            continue
        made = []
        for p in range(by):
            mark = f"p{len(nest.nests) + len(others) + p - 1}" if p else ""
            size = (axis.size - p + by - 1) // by
            again = beside(one, axis, size, mark, p, by)
            made.append(rewritten(again, lambda e: _cropped(e) if isinstance(e, Fold) else None))
        nests.append(made[0])
        others += made[1:]
    return replace(nest, nests=(*nests, *others))


def _cropped(fold: Fold) -> Expr:
    axes, body = list(fold.axes), fold.body
    for condition in _needed(fold):
        if len(condition.free) != 1 or not condition.free & {*axes}:
            continue
        (axis,) = condition.free
        steps = _steps(condition, axis) if axis.size <= LONGEST else None
        if steps is None:
            continue
        if not steps:
            return const(identity(fold.op, fold.dtype), fold.dtype)
        shorter = Axis(f"{axis.name}by{steps.step}at{steps.start}", len(steps))
        body = substitute(body, {axis: linear(shorter) * steps.step + steps.start})
        axes[axes.index(axis)] = shorter
    body = _without_doubt(body)
    kept = tuple(a for a in axes if a.size > 1)
    return Fold(fold.op, body, kept) if kept else body


def _steps(condition: Range, axis: Axis) -> range | None:
    """The steps of `axis` that meet the condition; None if they are not evenly apart."""
    values = [condition.index.substitute({axis: linear(n)}).constant for n in range(axis.size)]
    met = [n for n, value in enumerate(values) if condition.low <= value <= condition.high]
    if not met:
        return range(0)
    even = range(met[0], met[-1] + 1, met[1] - met[0] if len(met) > 1 else 1)
    return even if [*even] == met else None


def _remainder(condition: Range) -> Remainder | None:
    """The remainder that a condition is about, and nothing else."""
    terms = condition.index.terms
    if len(terms) == 1 and terms[0][1] == 1 and isinstance(terms[0][0], Remainder):
        return terms[0][0] if condition.index.constant == 0 else None
    return None


def _needed(fold: Fold) -> Iterator[Range]:
    """Conditions without which a step adds nothing."""
    return _nonzero(fold.body) if fold.op is Op.ADD else iter(())


def _nonzero(e: Expr) -> Iterator[Range]:
    """Conditions without which a value is 0; of what is multiplied with itself once."""
    stack, seen = [e], set[Expr]()
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        if isinstance(e, Load):
            yield from e.valid
        elif isinstance(e, Select) and is_number(e.other, 0):
            yield from e.valid
            stack.append(e.value)
        elif isinstance(e, Alu) and e.op in (Op.CAST, Op.MUL):
            stack += e.operands[::-1]


def _without_doubt(body: Expr) -> Expr:
    """A product without conditions that one of its factors has: it is 0 times the other there."""
    if not (isinstance(body, Select) and is_number(body.other, 0)):
        return body
    inner = _without_doubt(body.value)
    if isinstance(inner, Alu) and inner.op is Op.MUL and {*body.valid} <= {*_nonzero(inner)}:
        return inner
    return Select(body.valid, inner, body.other)
