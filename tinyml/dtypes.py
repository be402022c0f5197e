"""`dtypes`: the number formats by name, and the two that Python's numbers become."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tinyml import dtype as formats
from tinyml.dtype import ALL, FLOATS, INTS, NAMES, DType, by_name, promote
from tinyml.errors import DTypeError, NoDTypeError
from tinyml.setting import Setting

DTypeLike: TypeAlias = DType | str | type[Any] | np.dtype[Any]  # types as numpy reads them
DTYPES_DICT = dict(NAMES)
_EXPONENT_AND_MANTISSA = {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23)}


default_float = Setting("default_float", formats.float32)
default_int = Setting("default_int", formats.int32)


class _DTypes:
    """`dtypes.float32`, `dtypes.half`, ...; `default_float` and `default_int` may be set."""

    __slots__ = ()  # nothing else can be

    bool = formats.bool_
    uint8 = uchar = formats.uint8
    uint16 = ushort = formats.uint16
    uint32 = uint = formats.uint32
    uint64 = ulong = formats.uint64
    int8 = char = formats.int8
    int16 = short = formats.int16
    int32 = int = formats.int32
    int64 = long = formats.int64
    float16 = half = formats.float16
    bfloat16 = bf16 = formats.bfloat16
    float32 = float = formats.float32
    float64 = double = formats.float64
    floats = FLOATS
    ints = INTS
    uints = tuple(d for d in INTS if d.kind == "u")
    sints = tuple(d for d in INTS if d.kind == "i")
    all = ALL

    if not TYPE_CHECKING:  # else every name would be known

        def __getattr__(self, name: str) -> DType:
            return to_dtype(name)

    @property
    def default_float(self) -> DType:
        """What a Python float becomes, and `zeros`, `rand`, an integer divided, ...; settable."""
        return default_float.now

    @default_float.setter
    def default_float(self, dtype: DTypeLike) -> None:
        default_float.now = one_of(FLOATS, dtype, "default_float")

    @property
    def default_int(self) -> DType:
        """What a Python int becomes, if it fits; settable."""
        return default_int.now

    @default_int.setter
    def default_int(self, dtype: DTypeLike) -> None:
        default_int.now = one_of(INTS, dtype, "default_int")

    @staticmethod
    def fields() -> dict[str, DType]:
        """Every dtype by its names: "float32" is also "float"."""
        return dict(DTYPES_DICT)

    @staticmethod
    def is_float(dtype: DType) -> builtins.bool:
        """Whether it is a floating dtype."""
        return dtype.is_float

    @staticmethod
    def is_int(dtype: DType) -> builtins.bool:
        """Whether it is an integer dtype; bool is none."""
        return dtype.is_int

    @staticmethod
    def is_unsigned(dtype: DType) -> builtins.bool:
        """Whether it is an integer dtype without a sign."""
        return dtype.kind == "u"

    @staticmethod
    def min(dtype: DType) -> Any:
        """The least value: -inf for floats."""
        return dtype.min

    @staticmethod
    def max(dtype: DType) -> Any:
        """The greatest value: inf for floats."""
        return dtype.max

    @staticmethod
    def iinfo(dtype: DType) -> tuple[builtins.int, builtins.int]:
        """(the least value, the greatest value)."""
        if not dtype.is_int:
            raise ValueError(f"iinfo: {dtype} is not an integer dtype")
        return builtins.int(dtype.min), builtins.int(dtype.max)

    @staticmethod
    def finfo(dtype: DType) -> tuple[builtins.int, builtins.int]:
        """(bits of the exponent, bits of the mantissa)."""
        if not dtype.is_float:
            raise ValueError(f"finfo: {dtype} is not a floating dtype")
        return _EXPONENT_AND_MANTISSA.get(dtype.name, (11, 52))

    def from_py(self, value: Any) -> DType:
        """The dtype that a Python number, or a nested list of them, becomes."""
        if isinstance(value, builtins.int) and not isinstance(value, builtins.bool):
            own = default_int.now
            return own if own.min <= value <= own.max else formats.int64
        if isinstance(value, (list, tuple)):
            return promote(*map(self.from_py, value)) if value else self.default_float
        if type(value).__name__ in ("bool", "bool_"):
            return formats.bool_
        if isinstance(value, builtins.float):
            return self.default_float
        raise DTypeError(f"no dtype for {value!r} of type {type(value).__name__}")


def one_of(formats: tuple[DType, ...], dtype: DTypeLike, what: str) -> DType:
    """A dtype for a setting; DTypeError if it is none of `formats`."""
    found = to_dtype(dtype)
    if found not in formats:
        raise DTypeError(f"{what} is one of {formats}, not {found}")
    return found


dtypes = _DTypes()


def to_dtype(dtype: DTypeLike) -> DType:
    """A dtype given by itself, its name, or a type of Python or numpy, as these have it.

    So `float` is float64 and `int` int64. NoDTypeError (an AttributeError) if it is none of these.
    """
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, (type, np.dtype)):
        try:
            return formats.from_numpy(dtype)
        except DTypeError as error:
            raise NoDTypeError(str(error)) from None
    if not isinstance(dtype, str):
        raise NoDTypeError(
            f"a dtype is one of dtypes.float32, dtypes.int8, ..., or its name; got {dtype!r} "
            f"({type(dtype).__name__})"
        )
    try:
        return by_name(dtype)
    except DTypeError as error:
        raise NoDTypeError(str(error)) from None


least_upper_dtype = promote


def least_upper_float(dtype: DType) -> DType:
    """The dtype itself if it is a float, else the default one."""
    return dtype if dtype.is_float else dtypes.default_float
