"""The vocabulary: every primitive op, and what it means.

`MEANING` defines each op in numpy, on arrays of the compute dtype. Every backend agrees with it.
Floats follow IEEE 754; integers wrap around; integer division and modulo round towards minus
infinity; MAX and MIN propagate NaN; a shift by the width of the type or more gives 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import auto
from typing import Any

import numpy as np
import numpy.typing as npt

from tinyml.frozen import Enum

Array = npt.NDArray[Any]


class Op(Enum):
    """A primitive on elements. The name is the whole interface; meanings are in tables."""

    # one operand
    CAST = auto()  # to the dtype of the result; float to int truncates
    BITCAST = auto()  # the same bits, read as another dtype of the same size
    NEG = auto()
    ABS = auto()  # floats: without the sign
    NOT = auto()  # logical for bool, bitwise for integers
    EXP = auto()
    EXP2 = auto()
    EXPM1 = auto()  # exp(x) - 1, precise near 0
    LOG = auto()
    LOG2 = auto()
    LOG1P = auto()  # log(1 + x), precise near 0
    SIN = auto()
    COS = auto()
    TAN = auto()
    ATAN = auto()
    TANH = auto()
    ERF = auto()
    SQRT = auto()
    TRUNC = auto()
    # two operands
    ADD = auto()
    MUL = auto()
    DIV = auto()  # floats
    IDIV = auto()  # integers: floor; x // 0 is 0
    MOD = auto()  # integers and floats: sign of the divisor; x % 0 is 0 for integers
    POW = auto()  # floats
    NDTR = auto()  # (a, b), floats: a times the normal distribution function at b
    MAX = auto()
    MIN = auto()
    LESS = auto()
    LESS_EQUAL = auto()
    EQUAL = auto()
    AND = auto()  # logical for bool, bitwise for integers; so are OR and XOR
    OR = auto()
    XOR = auto()
    SHL = auto()
    SHR = auto()  # arithmetic for signed, logical for unsigned integers
    ROTL = auto()  # (a, n), unsigned: the bits of a rotated left by n, modulo their number
    REQUIRE = auto()  # (a, bool): a; where the bool is false, the program has a fault
    # three operands
    WHERE = auto()  # (bool, a, b)
    FMA = auto()  # (a, b, c), floats: a * b + c rounded once
    LOGISTIC = auto()  # (a, b, c), floats: a / (1 + (1 + c) * exp(b)), rounded about twice

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


UNARY = frozenset(list(Op)[: list(Op).index(Op.ADD)])
COMPARE = frozenset({Op.LESS, Op.LESS_EQUAL, Op.EQUAL})
BITWISE = frozenset({Op.AND, Op.OR, Op.XOR})
FLOAT_ONLY = frozenset(
    {Op.EXP, Op.EXP2, Op.EXPM1, Op.LOG, Op.LOG2, Op.LOG1P, Op.SIN, Op.COS, Op.TAN, Op.ATAN}
    | {Op.TANH, Op.ERF, Op.SQRT, Op.DIV, Op.POW, Op.TRUNC, Op.ABS, Op.FMA, Op.LOGISTIC, Op.NDTR}
)
INT_ONLY = frozenset({Op.IDIV, Op.SHL, Op.SHR})
UNSIGNED_ONLY = frozenset({Op.ROTL})
SIGN = {  # how people write an op between its operands; the others are written as functions
    Op.ADD: "+", Op.MUL: "*", Op.DIV: "/", Op.IDIV: "//", Op.MOD: "%", Op.LESS: "<",
    Op.LESS_EQUAL: "<=", Op.EQUAL: "==", Op.AND: "&", Op.OR: "|", Op.XOR: "^", Op.SHL: "<<",
    Op.SHR: ">>",
}  # fmt: skip
REDUCE = frozenset({Op.ADD, Op.MUL, Op.MAX, Op.MIN})


class Movement(Enum):
    """A primitive that only says which element goes where."""

    RESHAPE = auto()  # arg: the new shape
    PERMUTE = auto()  # arg: the order; out axis i is in axis order[i]
    EXPAND = auto()  # arg: the new shape; only axes of size 1 grow
    PAD = auto()  # arg: ((before, after) per axis, value); counts >= 0
    SHRINK = auto()  # arg: (start, stop) per axis
    FLIP = auto()  # arg: the axes
    SKEW = auto()  # arg: (axis, by, step, size): out[.. i .. k ..] = in[.. i + step*k .. k ..],
    #                     i < size along `axis`, k along `by`; 0 where that is outside

    def __repr__(self) -> str:
        return self.name


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    def computed(a: Array) -> Array:
        flat = np.fromiter(map(function, a.reshape(-1).tolist()), np.float64, a.size)
        return flat.reshape(a.shape)

    return computed


_erf, _erfc = _each(math.erf), _each(math.erfc)


def _ndtr(a: Array, b: Array) -> Array:
    """a * erfc(x) / 2 at x = -b / sqrt(2); what x lacks in float64 is made up to first order."""
    x = b * -np.sqrt(b.dtype.type(0.5))
    near = x.astype(np.float64)
    lost = np.where(np.isfinite(b), x - near, 0) * np.exp(-near * near) * (2 / math.pi**0.5)
    made: Array = a * ((_erfc(near) - lost) / 2)
    return made


def _rotl(a: Array, n: Array) -> Array:
    last = a.dtype.type(8 * a.itemsize - 1)
    by = n & last
    made: Array = a << by | a >> (last - by + a.dtype.type(1) & last)
    return made


def _precise(function: Callable[..., Array]) -> Callable[..., Array]:
    """In float64, and rounded once: numpy's own float32 functions are wrong by 2 ulp and more."""

    def computed(*operands: Array) -> Array:
        wide = function(*(a.astype(np.float64, copy=False) for a in operands))
        return wide.astype(operands[0].dtype, copy=False)

    return computed


def _fused(function: Callable[..., Array]) -> Callable[..., Array]:
    """Likewise where parts of the result round: of float64, those have a dozen bits more."""

    def computed(*operands: Array) -> Array:
        wide = np.longdouble if operands[0].dtype == np.float64 else np.float64
        return function(*(a.astype(wide) for a in operands)).astype(operands[0].dtype)

    return computed


# CAST and BITCAST need the dtype of the result, REQUIRE its fault: interpret.py. In numpy, too,
# x // 0 and x % 0 of integers are 0, and what is shifted out is gone, however far it was shifted
MEANING: dict[Op, Callable[..., Array]] = {
    Op.NEG: np.negative,
    Op.ABS: np.absolute,
    Op.NOT: np.invert,
    Op.EXP: _precise(np.exp),
    Op.EXP2: _precise(np.exp2),
    Op.EXPM1: _precise(np.expm1),
    Op.LOG: _precise(np.log),
    Op.LOG2: _precise(np.log2),
    Op.LOG1P: _precise(np.log1p),
    Op.SIN: _precise(np.sin),
    Op.COS: _precise(np.cos),
    Op.TAN: _precise(np.tan),
    Op.ATAN: _precise(np.arctan),
    Op.TANH: _precise(np.tanh),
    Op.ERF: _precise(_erf),
    Op.SQRT: np.sqrt,
    Op.TRUNC: np.trunc,
    Op.ADD: np.add,
    Op.MUL: np.multiply,
    Op.DIV: np.divide,
    Op.IDIV: np.floor_divide,
    Op.MOD: np.mod,
    Op.POW: _precise(np.power),
    Op.NDTR: _fused(_ndtr),
    Op.MAX: np.maximum,
    Op.MIN: np.minimum,
    Op.LESS: np.less,
    Op.LESS_EQUAL: np.less_equal,
    Op.EQUAL: np.equal,
    Op.AND: np.bitwise_and,
    Op.OR: np.bitwise_or,
    Op.XOR: np.bitwise_xor,
    Op.SHL: np.left_shift,
    Op.SHR: np.right_shift,
    Op.ROTL: _rotl,
    Op.WHERE: np.where,
    Op.FMA: _fused(lambda a, b, c: a * b + c),
    Op.LOGISTIC: _fused(lambda a, b, c: a / (1 + (1 + c) * np.exp(b))),
}


# how many operations on elements one op is taken for, in costs and fusion decisions
WORK: dict[Op, int] = {
    **dict.fromkeys(Op, 1),
    **dict.fromkeys((Op.CAST, Op.BITCAST, Op.REQUIRE), 0),
    **dict.fromkeys((Op.EXP, Op.EXP2, Op.LOG, Op.LOG2, Op.SIN, Op.COS), 12),
    **dict.fromkeys(
        (Op.EXPM1, Op.LOG1P, Op.TAN, Op.ATAN, Op.TANH, Op.ERF, Op.LOGISTIC, Op.NDTR), 16
    ),
    **dict.fromkeys((Op.POW,), 30),
    **dict.fromkeys((Op.SQRT, Op.DIV, Op.IDIV, Op.MOD), 4),
    Op.ROTL: 3,
}
# what no processor has an instruction for: a dozen of them, of which each waits for the last
FUNCTIONS = frozenset(op for op, work in WORK.items() if work >= WORK[Op.EXP])
