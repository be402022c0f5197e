"""The PAIR Opt: two steps of a fold become one, of pairs."""

from __future__ import annotations

from tinyml.codegen.crop import needed
from tinyml.codegen.expr import Alu, Expr, Fold, alu, substitute
from tinyml.codegen.nest import Kind, LoopNest, rewritten
from tinyml.codegen.optimize.change import OptError
from tinyml.codegen.pairs import Dot, paired
from tinyml.dtype import bfloat16, float32
from tinyml.frozen import replace
from tinyml.index import Axis, linear
from tinyml.ops import Op


def pair(nest: LoopNest, axis: Axis) -> LoopNest:
    """Every fold over `axis`, a sum of products of bfloat16, in half as many steps.

    The last one of an odd number is added to the sum behind all others.
    """
    plain = nest.kind(axis) is Kind.LOOP and not any(s.inner is axis for s in nest.splits)
    folds = [f for one in nest.nests for f in one.folds if axis in f.axes]
    if not (plain and folds) or axis.more or axis.size < 4:
        raise OptError(f"cannot pair steps of {axis.name}: no sum walks it whole")
    if axis.size % 2 and any(fold.axes != (axis,) for fold in folds):
        raise OptError(f"cannot pair steps of {axis.name}: they are odd; pad it first")
    if not all(is_of_halves(fold, axis) for fold in folds):
        raise OptError(f"cannot pair steps of {axis.name}: no product of bfloat16 is summed")
    half = Axis(axis.name, axis.size // 2)
    steps = [{axis: linear(half) * 2 + n} for n in (0, 1)]

    def halved(e: Expr) -> Expr | None:
        if not (isinstance(e, Fold) and axis in e.axes):
            return None
        a, b = (paired(*(substitute(f, at) for at in steps)) for f in _factors(e))
        made: Expr = Fold(e.op, Dot(a, b), tuple(half if x is axis else x for x in e.axes))
        last = substitute(e.body, {axis: linear(axis.size - 1)})
        return alu(Op.ADD, e.dtype, made, last) if axis.size % 2 else made

    return replace(nest, nests=tuple(rewritten(one, halved) for one in nest.nests))


def is_of_halves(fold: Fold, axis: Axis) -> bool:
    """Whether products of bfloat16 are summed along an axis, all of them."""
    factors = _factors(fold)
    return (
        fold.op is Op.ADD
        and fold.dtype is float32
        and len(factors) == 2
        and all(axis in f.free and f.dtype is bfloat16 for f in factors)
        and not needed([fold])  # steps that are left out are more than half
    )


def _factors(fold: Fold) -> list[Expr]:
    """The factors of a product, as they were before they were widened."""
    body = fold.body
    if not (isinstance(body, Alu) and body.op is Op.MUL):
        return []
    return [e.operands[0] for e in body.operands if isinstance(e, Alu) and e.op is Op.CAST]
