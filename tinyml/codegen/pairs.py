"""Pairs: two steps of a fold share a lane, where processors multiply pairs of bfloat16.

    pair ::= Pair(low, high)     two bfloat16 as the halves of a uint32
           | Load of uint32      the same, where they lie side by side in a slot of bfloat16
    dot  ::= Dot(pair, pair)     the sum of both products, in float32

Added to a sum, as it always is, a Dot is two fused multiply-adds, that of the high halves first.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import ClassVar

from tinyml.codegen.expr import Alu, Const, Expr, Fold, Held, Load, Select, is_number, select
from tinyml.dtype import DType, float32, uint32
from tinyml.index import Axis, Linear, linear
from tinyml.ops import Op


class _OfTwo(Held):
    __slots__ = ()
    made: ClassVar[DType]

    def __init__(self, a: Expr, b: Expr) -> None:
        self.dtype, self.free, self.lanes = self.made, a.free | b.free, 0
        self._of((a, b))

    def again(self, sources: tuple[Expr, ...], known: Mapping[Axis, Linear]) -> Expr:
        return type(self)(*sources)

    def written(self, sources: list[str]) -> str:
        return f"{type(self).__name__.lower()}({', '.join(sources)})"


class Pair(_OfTwo):
    """The bits of two values of bfloat16, the first of them in the low half."""

    __slots__ = ()
    made = uint32


class Dot(_OfTwo):
    """What two pairs give, multiplied half by half."""

    __slots__ = ()
    made = float32


def paired(low: Expr, high: Expr) -> Expr:
    """A pair; in one access, if the halves lie side by side."""
    if isinstance(low, Load) and isinstance(high, Load) and low.slot == high.slot:
        beside = high.position - low.position == linear(1)
        if beside and high.valid == low.valid:
            return Load(low.slot, uint32, low.position, low.valid)
    return Pair(low, high)


def factors_of(fold: Fold) -> tuple[Expr, ...]:
    """What a sum of products multiplies, before it is masked or cast; none of another fold."""
    body = fold.body
    while isinstance(body, Select) or (isinstance(body, Alu) and body.op is Op.CAST):
        body = body.sources[0]
    product = isinstance(body, Dot) or (isinstance(body, Alu) and body.op is Op.MUL)
    return body.sources if product and fold.op is Op.ADD else ()


def multiple(e: Expr) -> tuple[Expr, Const] | None:
    """What is multiplied by a number, and that; also if a mask puts -inf in place of some."""
    if isinstance(e, Select) and is_number(e.other, -inf):
        found = multiple(e.value)
        kept = found is not None and found[1].value > 0
        return (select(e.valid, found[0], e.other), found[1]) if kept and found else None
    factors = e.sources if isinstance(e, Alu) and e.op is Op.MUL else ()
    return (factors[0], factors[1]) if factors and isinstance(factors[1], Const) else None
