"""Number formats, and what becomes of them when two meet in one op.

Promotion (the same as PyTorch's), the smallest type that is above both:

    bool ─ uint8 ─┐
      └─── int8 ──┴ int16 ─ int32 ─ int64 ─ float16 ─┬ float32 ─ float64
                                           bfloat16 ─┘

uint16, uint32 and uint64 stand above the smaller unsigned types; with a signed type of at
most the same size they give the next larger signed type, and uint64, which has none above it,
stays uint64 (torch promotes none of these). An integer with a float is that float. A Python
number is weak, and so is a tensor of no axes against one that has some: it raises the other's
dtype only to a higher kind (bool < int < float). docs/dtypes.md has the tables.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from tinyml.errors import DTypeError

_BOUNDS: dict[str, Callable[[int], tuple[int | float | bool, int | float | bool]]] = {
    "b": lambda _: (False, True),
    "u": lambda bits: (0, (1 << bits) - 1),
    "i": lambda bits: (-1 << (bits - 1), (1 << (bits - 1)) - 1),
    "f": lambda _: (-inf, inf),
}


@dataclass(frozen=True, eq=False)
class DType:
    """One number format. There is one object per format, so `is` compares them."""

    name: str
    kind: str  # "b" bool, "u" unsigned, "i" signed, "f" floating point
    itemsize: int  # bytes
    also: str = ""  # another name for it
    is_float: bool = field(init=False)
    is_int: bool = field(init=False)  # signed or unsigned; bool is not one
    is_half: bool = field(init=False)  # a 16-bit float, whose sums are accumulated in float32
    storage: np.dtype[Any] = field(init=False)  # of the bits that memory holds
    compute: np.dtype[Any] = field(init=False)  # that numpy computes in
    min: int | float | bool = field(init=False)  # the least value: -inf for floats
    max: int | float | bool = field(init=False)  # the greatest value: inf for floats

    def __post_init__(self) -> None:  # asked for by every op, so looked up and not computed
        own = (self.name, self.name) if self.name != "bfloat16" else ("uint16", "float32")
        for name, value in (
            ("is_float", self.kind == "f"),
            ("is_int", self.kind in "ui"),
            ("is_half", self.kind == "f" and self.itemsize == 2),
            *zip(("storage", "compute"), map(np.dtype, own), strict=True),
            *zip(("min", "max"), _BOUNDS[self.kind](self.bitsize), strict=True),
        ):
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        """As in numpy: its names are equal to it, and types as numpy reads them."""
        if self is other:
            return True
        if isinstance(other, str):
            return NAMES.get(other) is self
        if isinstance(other, (type, np.dtype)):
            return _of_numpy(other) is self
        return False

    __hash__ = object.__hash__

    @property
    def bitsize(self) -> int:
        """Bits of one element."""
        return 8 * self.itemsize

    def __lt__(self, other: DType) -> bool:
        """Whether `other` stands above this in the order of promotion; where none does, False."""
        return self is not other and _promote_two(self, other) is other

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return (by_name, (self.name,))


bool_ = DType("bool", "b", 1)
uint8 = DType("uint8", "u", 1, "uchar")
uint16 = DType("uint16", "u", 2, "ushort")
uint32 = DType("uint32", "u", 4, "uint")
uint64 = DType("uint64", "u", 8, "ulong")
int8 = DType("int8", "i", 1, "char")
int16 = DType("int16", "i", 2, "short")
int32 = DType("int32", "i", 4, "int")
int64 = DType("int64", "i", 8, "long")
float16 = DType("float16", "f", 2, "half")
bfloat16 = DType("bfloat16", "f", 2, "bf16")
float32 = DType("float32", "f", 4, "float")
float64 = DType("float64", "f", 8, "double")

ALL = tuple(found for found in [*globals().values()] if isinstance(found, DType))  # in this order
FLOATS = tuple(d for d in ALL if d.kind == "f")
INTS = tuple(d for d in ALL if d.kind in "ui")

_BY_NAME = {d.name: d for d in ALL}
NAMES = _BY_NAME | {d.also: d for d in ALL if d.also}  # every spelling of every dtype
INDICES = (int32, int64)  # of places along an axis
FLOAT16_MAX = 65504.0  # the greatest finite number

_BY_NUMPY = {d.storage: d for d in ALL if d is not bfloat16}
_SIGNED = {1: int8, 2: int16, 4: int32, 8: int64}


def by_name(name: str) -> DType:
    """The dtype called `name`, e.g. "float32" or "half"; DTypeError if there is none."""
    found = NAMES.get(name)
    if found is None:
        near = difflib.get_close_matches(name.replace("fp", "float"), NAMES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise DTypeError(f"no dtype {name!r}; there are: {', '.join(_BY_NAME)}{hint}")
    return found


def from_numpy(dtype: npt.DTypeLike) -> DType:
    """The dtype of a numpy array; DTypeError where tinyml has none (complex, str, object)."""
    found = _of_numpy(dtype)
    if found is None:
        raise DTypeError(f"no tinyml dtype for numpy {dtype}; there are: {', '.join(_BY_NAME)}")
    return found


def _of_numpy(dtype: npt.DTypeLike) -> DType | None:
    try:
        return _BY_NUMPY.get(np.dtype(dtype).newbyteorder("="))
    except (TypeError, ValueError):  # an abstract type, as np.floating, or one with a `dtype`
        return None


_LARGEST = float(np.finfo(np.float32).max)


def to_text(value: Any, dtype: DType) -> str:
    """A number of this dtype, exactly: -0.0 is not 0.0, and a NaN equals itself."""
    if dtype.is_half:
        with np.errstate(over="ignore"):
            kept = to_storage(np.asarray(value, dtype.compute), dtype)
        return float(to_compute(kept, dtype)).hex()
    if dtype.kind == "f":
        number = float(value)
        if dtype is float32 and abs(number) > _LARGEST:
            with np.errstate(over="ignore"):
                number = float(np.float32(number))  # infinite, if it is not nearer to the largest
        return number.hex()
    if dtype is bool_:
        return str(bool(value))
    value = int(value)
    if not dtype.min <= value <= dtype.max:  # wraps around, as a cast does
        span = 1 << (8 * dtype.itemsize)
        value = (value - int(dtype.min)) % span + int(dtype.min)
    return str(value)


def from_text(text: str, dtype: DType) -> float | int | bool:
    """The number that was written by `to_text`."""
    if dtype.is_float:
        return float.fromhex(text)
    return text == "True" if dtype is bool_ else int(text)


def index_dtype(size: int) -> DType:
    """The smallest of `INDICES` that counts up to `size`: the dtype of places among so many."""
    return next(dtype for dtype in INDICES if size <= dtype.max)


def promote(*dtypes: DType) -> DType:
    """The dtype that an op on operands of these dtypes computes in."""
    result = dtypes[0]
    for dtype in dtypes[1:]:
        result = _promote_two(result, dtype)
    return result


def promote_weak(dtype: DType, weak: DType) -> DType:
    """The dtype of an op between axes of `dtype` and a number of dtype `weak`."""
    higher = weak.is_float if dtype.is_int else dtype is bool_
    return _promote_two(dtype, weak) if higher else dtype


@cache
def _promote_two(a: DType, b: DType) -> DType:
    if a is b:
        return a
    if a.kind == "b" or b.kind == "b":
        return b if a.kind == "b" else a
    if a.kind == b.kind:
        if a.itemsize == b.itemsize:
            return float32  # float16 with bfloat16
        return a if a.itemsize > b.itemsize else b
    if a.kind == "f" or b.kind == "f":
        return a if a.kind == "f" else b
    signed, unsigned = (a, b) if a.kind == "i" else (b, a)
    if signed.itemsize > unsigned.itemsize:
        return signed
    return _SIGNED.get(2 * unsigned.itemsize, uint64)


def bfloat16_bits(values: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """The upper half of float32 `values`, rounded to nearest even; a NaN stays a NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).reshape(values.shape)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    quiet = ((bits >> 16) | 0x40).astype(np.uint16)
    return np.where(np.isnan(values), quiet, rounded)


def bfloat16_values(bits: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """float32 values of bfloat16 `bits` (uint16)."""
    wide = np.ascontiguousarray(bits).astype(np.uint32) << np.uint32(16)
    values: npt.NDArray[np.float32] = wide.view(np.float32).reshape(bits.shape)
    return values


def to_compute(stored: npt.NDArray[Any], dtype: DType) -> npt.NDArray[Any]:
    """Memory's bits as numbers numpy can compute with."""
    return bfloat16_values(stored) if dtype is bfloat16 else stored


def to_storage(values: npt.NDArray[Any], dtype: DType) -> npt.NDArray[Any]:
    """Numbers as the bits that memory holds."""
    return bfloat16_bits(values) if dtype is bfloat16 else values.astype(dtype.storage, copy=False)
