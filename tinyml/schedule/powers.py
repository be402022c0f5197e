"""Powers: what folds that follow the largest of what they read add up.

Such a sum is multiplied by what its terms change by when the largest is another, and divided when
it is whole. Numbers that were rounded to float16 after they were divided would have to have
exponents there before. A power of what is less than the largest has: it is 1 at most.
"""

from __future__ import annotations

from math import inf

from tinyml import lazy
from tinyml.dtype import FLOAT16_MAX, float16
from tinyml.lazy import LazyBuffer
from tinyml.ops import Op
from tinyml.schedule.labels import PLACED, unmoved

POWERS = {Op.EXP, Op.EXP2}


def exact(node: LazyBuffer) -> bool:
    """Whether a value is none of float16, or held as well there before it is divided."""
    node = unmoved(node)
    if node.dtype is not float16:
        return True
    return lazy.is_map(node, Op.CAST) and _largest(node.sources[0]) <= FLOAT16_MAX


def _largest(node: LazyBuffer) -> float:
    """What the magnitude of a value never exceeds before it is divided by a sum; inf if unknown.

    Sums are of powers, the largest of which is 1 or more.
    """
    node = unmoved(node, PLACED)  # numbers of a pad's own may be larger, another part is not led
    if not isinstance(node, lazy.Map):
        return inf
    x, *others = [unmoved(source, PLACED) for source in node.sources]
    numbers = [abs(float(n.value)) for n in others if isinstance(n, lazy.Const)]
    match node.op:
        case Op.EXP | Op.EXP2 if _is_led(x):
            return 1
        case Op.DIV if isinstance(others[0], lazy.Reduce) and others[0].op is Op.ADD:
            return _largest(x) if 1 <= _largest(others[0].sources[0]) < inf else inf
        case Op.MUL if numbers:
            return _largest(x) * numbers[0]
    return inf


def _is_led(node: LazyBuffer) -> bool:
    """Whether a value is the difference of another and the largest that a fold finds of it."""
    if not lazy.is_map(node, Op.ADD):
        return False
    x, negative = [unmoved(source, PLACED) for source in node.sources]
    if not lazy.is_map(negative, Op.NEG):
        return False
    top = unmoved(negative.sources[0], PLACED)
    return (
        isinstance(top, lazy.Reduce) and top.op is Op.MAX and unmoved(top.sources[0], PLACED) is x
    )
