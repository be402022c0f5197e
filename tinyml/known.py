"""Known: what an op makes of operands of which only some are known.

0 times anything is taken for 0, and -inf plus anything for -inf: only what is finite is promised.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinyml.dtype import DType
from tinyml.interpret import cast, rounded
from tinyml.ops import MEANING, Op

Number = float | int | bool
INFINITE = (float("inf"), float("-inf"))


def known_result(
    op: Op, dtype: DType, operands: Sequence[Number | None], types: Sequence[DType]
) -> Number | None:
    """The number that `op` makes of numbers; None if it depends on those that are not known."""
    known = [x for x in operands if x is not None]
    if len(known) == len(operands) and (op in MEANING or op is Op.CAST):
        arrays = [np.asarray(x, t.compute) for x, t in zip(known, types, strict=True)]
        with np.errstate(all="ignore"):
            if op is Op.CAST:
                return _number(cast(arrays[0], types[0], dtype))
            return _number(rounded(np.asarray(MEANING[op](*arrays)), dtype))
    if (op is Op.MUL and 0 in known) or (op is Op.DIV and operands[0] == 0):
        return _number(np.zeros((), dtype.compute))
    if op is Op.ADD:
        return next((x for x in known if x in INFINITE), None)
    return None


def _number(value: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Number:
    number: Number = value.item()
    return number
