"""Ops on every element of two tensors: arithmetic, comparisons, bits, and choosing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tinyml import lazy, mlops
from tinyml.dtype import DType, bool_, int16
from tinyml.dtypes import dtypes
from tinyml.errors import ArgumentError, DTypeError
from tinyml.functional import assignment
from tinyml.functional.axes import apart, check_tensors, is_tensor, number
from tinyml.functional.composed import in_float32, to_float, with_gradient
from tinyml.functional.operands import (
    alike,
    check_fits,
    common_dtype,
    constant,
    holding,
    operands,
    ordered,
    weak_dtype,
)
from tinyml.functional.steps import composition
from tinyml.ops import Op
from tinyml.shape import broadcast_shape

if TYPE_CHECKING:
    from tinyml.tensor import Scalar, Tensor

    Operator = Callable[[Tensor, Tensor | Scalar], Tensor]


# ---- two operands ----


def add(x: Tensor, y: Tensor | Scalar) -> Tensor:
    """x + y, in the dtype that both promote to; of bools `x | y`."""
    x, y = alike("add", x, y)
    return x | y if x._lazy.dtype is bool_ else x._apply(mlops.Add(), y)


def sub(x: Tensor, y: Tensor | Scalar, reverse: bool = False) -> Tensor:
    """x - y, or y - x if `reverse`; DTypeError for bools."""
    if type(y) in (int, float) and not reverse and x._lazy.dtype.is_float:
        return add(x, -y or -0.0)  # no op has to negate a number; -0.0 is what changes nothing
    x, y = ordered("sub", x, y, reverse)
    if x._lazy.dtype is bool_:
        raise DTypeError("sub: bool has no subtraction; use ^, or cast to an integer")
    return x._apply(mlops.Sub(), y)


def mul(x: Tensor, y: Tensor | Scalar) -> Tensor:
    """x * y, in the dtype that both promote to; of bools `x & y`."""
    x, y = alike("mul", x, y)
    return x & y if x._lazy.dtype is bool_ else x._apply(mlops.Mul(), y)


def div(
    x: Tensor, y: Tensor | Scalar, rounding_mode: str | None = None, reverse: bool = False
) -> Tensor:
    """x / y, a float; "trunc" and "floor" round it and keep integers integers."""
    if rounding_mode is None:
        x, y = ordered("div", *_as_floats("div", x, y), reverse)
        return x._apply(mlops.Div(), y)
    x, y = ordered("div", x, y, reverse)
    if rounding_mode not in ("trunc", "floor"):
        raise DTypeError(f'div: rounding_mode {rounding_mode!r} is not None, "trunc" or "floor"')
    if x.dtype.is_float:
        return _rounded_quotient(x, y, rounding_mode)
    if x.dtype is bool_:
        x, y = x.cast(dtypes.default_int), y.cast(dtypes.default_int)
    floored = _bits(Op.IDIV, "idiv", x, y)
    if rounding_mode == "floor":
        return floored
    inexact = (floored * y != x) & ((x < 0) != (y < 0))
    return floored + inexact.cast(floored.dtype)


def _as_floats(op: str, x: Tensor, y: Any) -> tuple[Tensor, Any]:
    """The operands of what is a float: of integers both are first, so that int8 / 300 has 300."""
    if not x._lazy.dtype.is_float:
        if not (is_tensor(y) or isinstance(y, (bool, int, float, np.generic))):
            y = x._coerce(y, op)
        if not is_tensor(y):
            return to_float(x), y
        if not y._lazy.dtype.is_float:
            return to_float(x), to_float(y)
    return x, y


def idiv(x: Tensor, y: Tensor | Scalar, reverse: bool = False) -> Tensor:
    """x / y rounded towards 0, as C divides integers; the operator // rounds down."""
    return div(x, y, "trunc", reverse)


def floordiv(x: Tensor, y: Tensor | Scalar, reverse: bool = False) -> Tensor:
    """x // y, rounded down."""
    return div(x, y, "floor", reverse)


@composition
def _rounded_quotient(x: Tensor, y: Tensor, rounding_mode: str) -> Tensor:
    """Of steps, whose gradient is zero, also where the quotient is infinite."""
    compute = _floor_quotient if rounding_mode == "floor" else lambda x, y: (x / y).trunc()
    return with_gradient(compute, lambda grad, out, x, y: (x.zeros_like(), y.zeros_like()), x, y)


def _floor_quotient(x: Tensor, y: Tensor) -> Tensor:
    """floor(x / y) of the exact quotient, where rounding x / y first may be off by one."""
    exact = ((x - x._apply(mlops.Mod(), y)) / y).round()
    opposite = ((x < 0) != (y < 0)) & (x != 0)
    unbounded = y.isinf() & x.isfinite()
    below = -opposite.cast(x.dtype)  # -1 or 0
    return copysign(unbounded.where(below, (y == 0).where(x / y, exact)), x / y)


def mod(x: Tensor, y: Tensor | Scalar, reverse: bool = False) -> Tensor:
    """x % y, with the sign of y."""
    x, y = ordered("mod", x, y, reverse)
    if x.dtype is bool_:
        x, y = x.cast(dtypes.default_int), y.cast(dtypes.default_int)
    return x._apply(mlops.Mod(), y)


def divmod_(x: Tensor, y: Tensor | Scalar) -> tuple[Tensor, Tensor]:
    """(x // y, x % y)."""
    return floordiv(x, y), mod(x, y)


def rdivmod(x: Tensor, y: Tensor | Scalar) -> tuple[Tensor, Tensor]:
    """(y // x, y % x)."""
    return floordiv(x, y, reverse=True), mod(x, y, reverse=True)


def pow_(x: Tensor, y: Tensor | Scalar, reverse: bool = False) -> Tensor:
    """x ** y (or y ** x)."""
    if isinstance(y, (bool, int, float)) and not reverse:
        return _power(x, y)
    x, y = ordered("pow", x, y, reverse)
    if x.dtype.is_float:
        return x._apply(mlops.Pow(), y)
    return _int_power(x.cast(dtypes.default_int) if x.dtype is bool_ else x, y)


_POWERS: dict[float, Callable[[Any], Any]] = {
    0: lambda x: x._full(x.shape, True, bool_).where(1, x),  # every gradient is 0, at 0 too
    1: lambda x: x * 1,  # values of its own, which cost nothing where they are read
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    0.5: lambda x: x.sqrt(),  # NaN of -inf, as torch has it
    -0.5: lambda x: x.rsqrt(),
    -1: lambda x: x.reciprocal(),
    -2: lambda x: x.reciprocal().square(),  # in this order the gradient at 0 is no NaN
}


def _power(x: Tensor, exponent: Scalar) -> Tensor:
    if x.dtype.is_float:
        if exponent in _POWERS:
            return cast("Tensor", _POWERS[exponent](x))
        return x._apply(mlops.Pow(), x._full(x.shape, exponent, x.dtype))
    if isinstance(exponent, float):
        return _power(x.cast(dtypes.default_float), exponent)
    if exponent < 0:
        raise DTypeError(
            f"pow: {x.dtype} ** {exponent} is no integer; cast the base to a float first"
        )
    x = x.cast(weak_dtype(x.dtype, exponent))
    result, square = x._full(x.shape, 1, x.dtype), x
    while exponent:
        if exponent & 1:
            result = result * square
        exponent >>= 1
        square = square * square if exponent else square
    return result


@composition
def _int_power(x: Tensor, y: Tensor) -> Tensor:
    """By squaring: one step for each bit that an exponent may usefully have."""
    y = y.cast(x.dtype)
    result, square = x._full(x.shape, 1, x.dtype), x
    for bit in range(8 * x.dtype.itemsize - (x.dtype.kind == "i")):
        chosen = ((y >> bit) & 1) != 0
        result = chosen.where(result * square, result)
        square = square * square
    negative = (x == 1).where(1, (x == -1).where(1 - 2 * (y & 1), 0)) if x.dtype.kind == "i" else 0
    return (y < 0).where(negative, result)


def reflected(function: Callable[..., Tensor]) -> Operator:
    """The operator y op x, for the function of x op y."""

    def operator(x: Tensor, y: Tensor | Scalar) -> Tensor:
        return function(x, y, reverse=True)

    return operator


def in_place(function: Callable[..., Tensor]) -> Operator:
    """The operator x op= y, for the function of x op y."""

    def assigned(x: Tensor, y: Tensor | Scalar) -> Tensor:
        return assignment.in_place(x, function(x, y))

    return assigned


def asking(function: Callable[..., Tensor], reflected: str) -> Operator:
    """The operator of a function. An operand that it does not know is asked for an answer."""

    def operator(x: Tensor, y: Tensor | Scalar) -> Tensor:
        try:
            return function(x, y)
        except TypeError:
            answer: Any = NotImplemented
            if not is_tensor(y) and hasattr(type(y), reflected):
                answer = getattr(type(y), reflected)(y, x)
            if answer is NotImplemented:
                raise
            return cast("Tensor", answer)

    return operator


def maximum(x: Tensor, y: Tensor | Scalar) -> Tensor:
    """The greater of x and y, elementwise; NaN if one is. A tie shares the gradient."""
    x, y = holding("maximum", x, y)
    return x._apply(mlops.Max(), y)


def minimum(x: Tensor, y: Tensor | Scalar) -> Tensor:
    """The lesser of x and y, elementwise; NaN if one is. A tie shares the gradient."""
    x, y = holding("minimum", x, y)
    return x._apply(mlops.Min(), y)


def _comparison(op: Op, name: str, sign: str, swap: bool = False) -> Operator:
    def compared(x: Tensor, y: Tensor | Scalar) -> Tensor:
        x, y = ordered(name, x, y, swap)
        return x._of(lazy.mapped(op, (x.lazy, y.lazy)))

    compared.__name__, compared.__doc__ = name, f"x {sign} y, elementwise; bools."
    return compared


lt = _comparison(Op.LESS, "lt", "<")
le = _comparison(Op.LESS_EQUAL, "le", "<=")
gt = _comparison(Op.LESS, "gt", ">", swap=True)
ge = _comparison(Op.LESS_EQUAL, "ge", ">=", swap=True)
eq = _comparison(Op.EQUAL, "eq", "==")


def ne(x: Tensor, y: object) -> Tensor:
    """x != y, elementwise; bools."""
    x, y = alike("ne", x, y)
    return x._of(lazy.map_(Op.NOT, lazy.mapped(Op.EQUAL, (x.lazy, y.lazy))))


# ---- bits ----


def _bits(op: Op, name: str, x: Tensor, y: Any, reverse: bool = False) -> Tensor:
    x, y = ordered(name, x, y, reverse)
    if x.dtype.is_float:
        raise DTypeError(f"{name} works on integers, got {x.dtype}; cast first")
    return x._of(lazy.mapped(op, (x.lazy, y.lazy)))


def _bitwise(op: Op, name: str, sign: str) -> Operator:
    def applied(x: Tensor, y: Tensor | Scalar) -> Tensor:
        return _bits(op, name, x, y)

    applied.__name__ = name
    applied.__doc__ = f"x {sign} y of integers or bools; DTypeError for floats."
    return applied


bitwise_and = _bitwise(Op.AND, "bitwise_and", "&")
bitwise_or = _bitwise(Op.OR, "bitwise_or", "|")
bitwise_xor = _bitwise(Op.XOR, "bitwise_xor", "^")


def bitwise_not(x: Tensor) -> Tensor:
    """~x of integers or bools; DTypeError for floats."""
    if x.dtype.is_float:
        raise DTypeError(f"bitwise_not works on integers, got {x.dtype}; cast first")
    return x._of(lazy.map_(Op.NOT, x.lazy))


def lshift(x: Tensor, y: Tensor | Scalar, reverse: bool = False) -> Tensor:
    """x << y of integers, or y << x if `reverse`; DTypeError for floats."""
    return _bits(Op.SHL, "lshift", x, y, reverse)


def rshift(x: Tensor, y: Tensor | Scalar, reverse: bool = False) -> Tensor:
    """x >> y of integers, which keeps the sign, or y >> x if `reverse`; not for floats."""
    return _bits(Op.SHR, "rshift", x, y, reverse)


def logical_not(x: Tensor) -> Tensor:
    """Where x is 0; bools."""
    return bitwise_not(x.cast(bool_))


def _logical(name: str, function: Operator, text: str) -> Operator:
    def applied(x: Tensor, y: Tensor | Scalar) -> Tensor:
        x, y = alike(name, x, y)
        return function(x.cast(bool_), y.cast(bool_))

    applied.__name__, applied.__doc__ = name, text
    return applied


logical_and = _logical("logical_and", bitwise_and, "Where neither x nor y is 0; bools.")
logical_or = _logical("logical_or", bitwise_or, "Where x and y are not both 0; bools.")
logical_xor = _logical("logical_xor", bitwise_xor, "Where only one of x and y is 0; bools.")


# ---- choosing ----


def where(condition: Tensor, x: Tensor | Scalar, y: Tensor | Scalar) -> Tensor:
    """x where the condition holds, y elsewhere."""
    a, b = _alternatives(condition, x, y)
    chooser, first, second = condition._lazy, a._lazy, b._lazy
    if chooser.device != first.device:
        raise apart("where", condition, a)
    if not chooser.shape == first.shape == second.shape:
        broadcast_shape("where", chooser.shape, first.shape, second.shape)
    return condition.cast(bool_)._apply(mlops.Where(), a, b)


def _alternatives(condition: Tensor, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    if is_tensor(x):
        if x._lazy.dtype is bool_ and condition._lazy.dtype is not bool_:
            raise DTypeError("where: the condition comes first, as in (x > 0).where(x, 0)")
        return holding("where", x, y)
    if is_tensor(y):
        b, a = holding("where", y, x)
        return a, b
    for value in (x, y):
        if not isinstance(value, (bool, int, float)):
            return alike("where", condition._coerce(x, "where"), condition._coerce(y, "where"))
    dtype = weak_dtype(weak_dtype(bool_, x), y)
    return constant(condition, x, dtype), constant(condition, y, dtype)


def masked_fill(x: Tensor, mask: Tensor, value: Tensor | Scalar) -> Tensor:
    """x, with `value` where the mask holds; the dtype stays that of x."""
    check_tensors("masked_fill", x, mask=mask)
    if isinstance(value, (bool, int, float)):
        check_fits("masked_fill", value, x.dtype)
        return where(mask, constant(x, value, x.dtype), x)
    return where(mask, x._coerce(value, "masked_fill").cast(x.dtype), x)


@composition
def clip(
    x: Tensor, min_: Tensor | Scalar | None = None, max_: Tensor | Scalar | None = None
) -> Tensor:
    """x, not below min_ and not above max_; NaN if one of them is. A bound passes gradient."""
    if min_ is None and max_ is None:
        raise RuntimeError("clip: at least one of min_ and max_ must be given")
    bounds = {"min_": min_, "max_": max_}
    tensors = [b for b in bounds.values() if is_tensor(b)]
    dtype = common_dtype(x, *tensors)
    for name, bound in bounds.items():
        if bound is not None and not is_tensor(bound):
            dtype = weak_dtype(dtype, number(bound, "clip", name))
    if dtype.is_int:
        bounds = {name: _reachable(dtype, name, bound) for name, bound in bounds.items()}
    result = x.cast(dtype)
    if (low := bounds["min_"]) is not None:
        result = _bounded(result, low, type(x).lt, type(x).ge)
    if (high := bounds["max_"]) is not None:
        result = _bounded(result, high, type(x).gt, type(x).le)
    return result


def _reachable(dtype: DType, name: str, bound: Any) -> Any:
    """A bound of integers; a number that is beyond them all is the last of them."""
    if not isinstance(bound, (int, float)) or dtype.min <= bound <= dtype.max:
        return bound
    if (bound > dtype.max) is (name == "min_"):
        raise DTypeError(f"clip: {name} {bound} is beyond all {dtype}; cast the tensor first")
    return dtype.max if bound > dtype.max else dtype.min


def _bounded(x: Tensor, bound: Tensor | Scalar, beyond: Operator, within: Operator) -> Tensor:
    bound = bound.cast(x.dtype) if is_tensor(bound) else bound
    x_or_nan = within(x, bound).where(x, math.nan) if x.dtype.is_float else x
    return beyond(x, bound).where(bound, x_or_nan)


@composition
def lerp(x: Tensor, end: Tensor, weight: Tensor | Scalar) -> Tensor:
    """x + (end - x) * weight."""
    if not is_tensor(weight):
        number(weight, "lerp", "weight")
    check_tensors("lerp", x, end=end)
    if x.dtype.kind == "u" and is_tensor(weight):  # as images are blended: in 8 bits
        bits = (weight * 128 + 0.5).cast(int16)
        wide = x.cast(int16)
        return (wide + (((end.cast(int16) - wide) * bits + 64) >> 7)).cast(x.dtype)
    return x + (end - x) * weight


@composition
def copysign(x: Tensor, y: Tensor | Scalar) -> Tensor:
    """The magnitude of x with the sign of y; -0.0 has one."""
    x, y = operands("copysign", *_as_floats("copysign", x, y))
    return x._apply(mlops.CopySign(), y)


def _angle(y: Tensor, x: Tensor) -> Tensor:
    rise, run = y.abs(), x.abs()
    level = (rise == 0) & (run == run)  # of two zeros or infinities there is no quotient
    steep = (rise == run).where(math.pi / 4, (rise / run).atan())
    angle = level.where(0.0, steep)
    behind = constant(x, 1.0, x.dtype).copysign(x) < 0  # of -0.0, too
    return behind.where(math.pi - angle, angle).copysign(y)


@composition
def atan2(x: Tensor, y: Tensor | Scalar) -> Tensor:
    """The angle of the point that lies y to the right and x above, a float in [-pi, pi].

    Signs of zeros choose among half turns, and the gradient at the origin is 0, as in torch.
    """
    return _atan2(*operands("atan2", *_as_floats("atan2", x, y)))


@in_float32
def _atan2(x: Tensor, y: Tensor) -> Tensor:
    def rule(grad: Tensor, _: Tensor, x: Tensor, y: Tensor) -> mlops.Grads:
        square = x * x + y * y
        share = (square == 0).where(0.0, grad / square)
        return share * y, share * -x

    return with_gradient(_angle, rule, x, y.cast(x.dtype))


def _log_of_sum(x: Tensor, y: Tensor) -> Tensor:
    less = (x == y).where(0, -(x - y).abs())  # infinities that are equal differ by nothing
    return maximum(x, y) + less.exp()._apply(mlops.Log1p())


@composition
def logaddexp(x: Tensor, y: Tensor | Scalar) -> Tensor:
    """log(exp(x) + exp(y)) without overflow."""
    return _logaddexp(*operands("logaddexp", *_as_floats("logaddexp", x, y)))


@in_float32
def _logaddexp(x: Tensor, y: Tensor) -> Tensor:
    def rule(grad: Tensor, _: Tensor, x: Tensor, y: Tensor) -> mlops.Grads:
        return grad * (x - y).sigmoid(), grad * (y - x).sigmoid()

    return with_gradient(_log_of_sum, rule, x, y.cast(x.dtype))


@composition
def isclose(
    x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """|x - y| <= atol + rtol * |y|; infinities are close to themselves."""
    if not (rtol >= 0 and atol >= 0):
        raise ArgumentError(f"isclose: a tolerance is not below 0, got rtol {rtol}, atol {atol}")
    x, y = [t.cast(int16) if t.dtype is bool_ else t for t in operands("isclose", x, y)]
    near = x.isfinite() & y.isfinite() & ((x - y).abs() <= atol + rtol * y.abs())
    close = near | (x == y)
    return close | (x.isnan() & y.isnan()) if equal_nan else close


def allclose(
    x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Whether all of x is close to y."""
    return bool(isclose(x, y, rtol, atol, equal_nan).all().item())
