"""What is required of values: of indices, classes and probabilities, that they lie in a range.

Where it does not hold is an error when it is computed, on every device. What the compiler can
prove is not asked. Integers have no gradient, so that all of theirs is said on nodes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from tinyml import lazy, mlops
from tinyml.dtype import index_dtype
from tinyml.faults import Fault
from tinyml.lazy import LazyBuffer
from tinyml.ops import Op

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


def required(x: Tensor, holds: Tensor, error: type[Exception], text: str) -> Tensor:
    """x; where `holds` is false, the error with that text, in which {} stands for an integer x."""
    return x._apply(mlops.Require(Fault(error, text)), holds)


def probabilities(op: str, x: Tensor, instead: str = "") -> Tensor:
    """x; RuntimeError, as torch has it, where it does not lie between 0 and 1."""
    text = f"{op}: a probability lies between 0 and 1{instead}"
    return required(x, (x >= 0) & (x <= 1), RuntimeError, text)


_out_of_bounds = lru_cache(maxsize=4096)(Fault)  # the same few texts, each with its hash


def within(index: LazyBuffer, low: int, high: int, text: str) -> LazyBuffer:
    """The index, an integer of 32 bits or more; IndexError where not low <= index < high.

    `text` is what the error says, with {} where the index stands.
    """
    size = high - low if index.dtype.kind == "i" else high  # lanes are asked by their distance
    if index.dtype.itemsize < 4 or size > index.dtype.max:
        index = lazy.cast(index, index_dtype(size))
    holds = lazy.map_(Op.LESS, index, lazy.const_like(index, high))
    if index.dtype.kind == "i":
        not_below = lazy.map_(Op.LESS_EQUAL, lazy.const_like(index, low), index)
        holds = lazy.map_(Op.AND, not_below, holds)
    return lazy.require(_out_of_bounds(IndexError, text), index, holds)


def wrapped(index: LazyBuffer, n: int, place: str) -> LazyBuffer:
    """The index into n elements with negative values counted from the end.

    `place` is what the elements are, for the error: "axis 0 of (5, 3)".
    """
    index = within(index, -n, n, f"index {{}} is out of bounds for {place}")
    if index.dtype.kind == "u":
        return index
    negative = lazy.map_(Op.LESS, index, lazy.const_like(index, 0))
    return lazy.map_(Op.WHERE, negative, lazy.map_(Op.ADD, index, lazy.const_like(index, n)), index)


def classes(op: str, index: Tensor, n: int, instead: str = "") -> Tensor:
    """Numbers of classes, from 0 to n - 1."""
    if not n and index.numel():
        raise IndexError(f"{op}: there are no classes to choose from")
    text = f"{op}: class {{}} is out of bounds for {n} classes{instead}"
    return index._of(within(index.lazy, 0, n, text))
