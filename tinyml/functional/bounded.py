"""What is required of values: of indices and classes, that they lie in a range.

Where it does not hold is an error when it is computed, on every device. What the compiler can
prove is not asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinyml import mlops
from tinyml.dtype import int32, int64
from tinyml.faults import Fault

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


def required(x: Tensor, holds: Tensor, error: type[Exception], text: str) -> Tensor:
    """x; where `holds` is false, the error with that text, in which {} stands for an integer x."""
    return x._apply(mlops.Require(Fault(error, text)), holds)


def within(index: Tensor, low: int, high: int, text: str) -> Tensor:
    """The index, an integer of 32 bits or more; IndexError where not low <= index < high.

    `text` is what the error says, with {} where the index stands.
    """
    if index.dtype.itemsize < 4 or high > index.dtype.max:
        index = index.cast(int64 if high > int32.max else int32)
    holds = index < high
    if index.dtype.kind == "i":
        holds = (index >= low) & holds
    return required(index, holds, IndexError, text)


def wrapped(index: Tensor, n: int, place: str) -> Tensor:
    """The index into n elements with negative values counted from the end.

    `place` is what the elements are, for the error: "axis 0 of (5, 3)".
    """
    index = within(index, -n, n, f"index {{}} is out of bounds for {place}")
    return index if index.dtype.kind == "u" else (index < 0).where(index + n, index)


def classes(op: str, index: Tensor, n: int) -> Tensor:
    """Numbers of classes, from 0 to n - 1."""
    if not n and index.numel():
        raise IndexError(f"{op}: there are no classes to choose from")
    return within(index, 0, n, f"{op}: class {{}} is out of bounds for {n} classes")
