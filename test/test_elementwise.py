"""Ops on every element agree with numpy, at odd sizes and at the edges of the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinyml import Tensor, dtypes

Compare = Callable[..., None]

EDGES = np.array(
    [0.0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, -0.5, np.inf, -np.inf, np.nan, 1e30, 1e-30, 88, -100],
    np.float32,
)


UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": np.negative,
    "abs": np.abs,
    "exp": np.exp,
    "exp2": np.exp2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "trunc": np.trunc,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "square": np.square,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(x, 0),
    "erf": np.vectorize(math.erf, otypes=[np.float32]),
}
POSITIVE: dict[str, Callable[[Any], Any]] = {
    "log": np.log,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": np.reciprocal,
    "acosh": lambda x: np.arccosh(x),
}
WITHIN_ONE = {"asin": np.arcsin, "acos": np.arccos, "atanh": np.arctanh}


@pytest.mark.parametrize("shape", [(3, 5), (), (0, 2)])
def test_functions_of_one_number(
    device: str, compare: Compare, rng: np.random.Generator, shape: Any
) -> None:
    x = rng.uniform(-2, 2, shape).astype(np.float32)
    pairs = {n: (getattr(Tensor(x), n)(), f(x)) for n, f in UNARY.items()}
    above = np.abs(x) + np.float32(1.01)
    pairs |= {n: (getattr(Tensor(above), n)(), f(above)) for n, f in POSITIVE.items()}
    small = x * np.float32(0.45)
    pairs |= {n: (getattr(Tensor(small), n)(), f(small)) for n, f in WITHIN_ONE.items()}
    compare(pairs, 1e-4, 1e-5)


def test_the_edges_of_the_numbers(device: str, compare: Compare) -> None:
    names = [n for n in UNARY if n not in ("sin", "cos", "erf", "silu", "square", "softplus")]
    with np.errstate(all="ignore"):
        pairs = {n: (getattr(Tensor(EDGES), n)(), UNARY[n](EDGES)) for n in names}
        pairs |= {n: (getattr(Tensor(EDGES), n)(), POSITIVE[n](EDGES)) for n in ("log", "sqrt")}
        compare(pairs, 1e-4, 1e-6)


@pytest.mark.parametrize("dtype", [dtypes.float64, dtypes.float32, dtypes.float16, dtypes.bfloat16])
def test_the_size_of_a_number_has_no_sign_and_no_rounding(device: str, dtype: dtypes.DType) -> None:
    values = np.tile(EDGES, 3)
    found = Tensor(values, dtype=dtype).abs().cast(dtypes.float32).numpy()
    wanted = Tensor(values, dtype=dtype).cast(dtypes.float32).numpy()
    np.testing.assert_array_equal(found, np.abs(wanted))
    assert not np.signbit(found[~np.isnan(found)]).any()


def test_activations_overflow_nowhere(device: str) -> None:
    x = Tensor([-1e4, -100.0, 0.0, 100.0, 1e4], requires_grad=True)
    names = ["sigmoid", "logsigmoid", "silu", "gelu", "elu", "celu", "selu", "mish", "softplus"]
    names += ["softsign", "quick_gelu"]
    results = [getattr(x, n)() for n in names]
    total = sum((r.sum() for r in results), Tensor(0.0))
    total.backward()
    assert x.grad is not None
    x.grad.realize(*results)
    for name, result in zip(names, results, strict=True):
        assert np.isfinite(result.numpy()).all(), name
    assert np.isfinite(x.grad.numpy()).all()


def test_a_function_of_products_of_small_integers(device: str, rng: np.random.Generator) -> None:
    x, w = rng.integers(-9, 9, (64, 5)), rng.integers(-9, 9, (5, 1))
    made = Tensor(x.astype(np.int16), device=device) @ Tensor(w.astype(np.int16), device=device)
    quotient = made / Tensor(np.full((64, 1), 7, np.int16), device=device).realize()
    value = x @ w / 7
    wanted = value / (1 + np.exp(-value))
    np.testing.assert_allclose(quotient.silu().numpy(), wanted, 1e-5)


def test_hardsigmoid_is_flat_from_its_corners_on(device: str) -> None:
    x = Tensor([-3.0, 3.0], dtype="float64", requires_grad=True)
    y = x.hardsigmoid()
    y.sum().backward()
    assert y.tolist() == [0, 1]
    assert x.grad.tolist() == [0, 0]


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "mod": lambda a, b: a % b,
    "floor division": lambda a, b: a // b,
    "less": lambda a, b: a < b,
    "less or equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater or equal": lambda a, b: a >= b,
    "equal": lambda a, b: a == b,
    "not equal": lambda a, b: a != b,
}


@pytest.mark.parametrize(
    ("a", "b"), [((3, 5), (3, 5)), ((3, 1), (1, 5)), ((), (4,)), ((0, 3), (3,))]
)
def test_two_operands_broadcast(
    device: str, compare: Compare, rng: np.random.Generator, a: Any, b: Any
) -> None:
    x, y = (rng.uniform(-3, 3, s).astype(np.float32) for s in (a, b))
    pairs = {n: (f(Tensor(x), Tensor(y)), f(x, y)) for n, f in BINARY.items()}
    pairs["maximum"] = Tensor(x).maximum(Tensor(y)), np.maximum(x, y)
    pairs["minimum"] = Tensor(x).minimum(Tensor(y)), np.minimum(x, y)
    pairs["copysign"] = Tensor(x).copysign(Tensor(y)), np.copysign(x, y)
    pairs["atan2"] = Tensor(x).atan2(Tensor(y)), np.arctan2(x, y)
    pairs["logaddexp"] = Tensor(x).logaddexp(Tensor(y)), np.logaddexp(x, y)
    pairs["pow"] = Tensor(np.abs(x)) ** Tensor(y), np.abs(x) ** y
    compare(pairs, 1e-4, 1e-5)


def test_numbers_on_either_side(device: str, compare: Compare) -> None:
    x = np.array([1.5, -2.0, 4.0], np.float32)
    t = Tensor(x)
    pairs = {
        "2 + t": (2 + t, 2 + x),
        "2 - t": (2 - t, 2 - x),
        "2 * t": (2 * t, 2 * x),
        "2 / t": (2 / t, 2 / x),
        "7 // t": (7 // t, 7 // x),
        "7 % t": (7 % t, 7 % x),
        "2 ** t": (2**t, 2**x),
        "t ** 3": (t**3, x**3),
        "t ** -2": (t**-2, x**-2.0),
        "2 < t": (t > 2, x > 2),
    }
    compare(pairs)


def test_special_values_of_binary_ops(device: str, compare: Compare) -> None:
    some = np.array([0.0, -0.0, 1, -2, np.inf, -np.inf, np.nan], np.float32)
    x, y = np.repeat(some, 7), np.tile(some, 7)
    a, b = Tensor(x), Tensor(y)
    with np.errstate(all="ignore"):
        compare(
            {
                "max": (a.maximum(b), np.maximum(x, y)),
                "min": (a.minimum(b), np.minimum(x, y)),
                "div": (a / b, x / y),
                "pow": (a**b, x**y),
                "mod": (a % b, np.mod(x, y)),
                "less": (a < b, x < y),
                "equal": (a == b, x == y),
                "copysign": (a.copysign(b), np.copysign(x, y)),
                "atan2": (a.atan2(b), np.arctan2(x, y)),
            }
        )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_zeros_take_the_sign_of_another_number(device: str, dtype: str) -> None:
    some = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf], dtype)
    x, y = np.repeat(some[:2], 6), np.tile(some, 2)
    signs, quotients = Tensor(x).copysign(Tensor(y)), Tensor(x) // Tensor(y)
    Tensor.realize(signs, quotients)
    np.testing.assert_array_equal(np.signbit(signs.numpy()), np.signbit(y))
    known = y != 0
    opposite = np.signbit(x) != np.signbit(y)
    np.testing.assert_array_equal(np.signbit(quotients.numpy())[known], opposite[known])


def test_integers_wrap_around_and_floor(device: str, compare: Compare) -> None:
    x = np.array([7, -7, 7, -7, 2**31 - 1, -(2**31)], np.int32)
    y = np.array([2, 2, -2, -2, 3, 5], np.int32)
    a, b = Tensor(x), Tensor(y)
    with np.errstate(over="ignore"):
        pairs = {
            "+": (a + b, x + y),
            "*": (a * b, x * y),
            "//": (a // b, x // y),
            "%": (a % b, x % y),
            "&": (a & b, x & y),
            "|": (a | b, x | y),
            "^": (a ^ b, x ^ y),
            "~": (~a, ~x),
            "<<": (b.abs() << 3, np.abs(y) << 3),
            ">>": (a >> 2, x >> 2),
            "**": (b**3, y**3),
            "trunc": (a.div(b, rounding_mode="trunc"), np.trunc(x / y).astype(np.int32)),
            "idiv": (a.idiv(b), np.trunc(x / y).astype(np.int32)),
        }
        compare(pairs)
    small = Tensor(np.array([250, 5], np.uint8))
    assert (small + 10).tolist() == [4, 15]
    assert (Tensor([1, 2]) / 2).dtype is dtypes.float32


def test_where_and_clip(device: str, compare: Compare, rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 3)).astype(np.float32)
    t = Tensor(x)
    compare(
        {
            "tensors": ((t > 0).where(t, -t), np.where(x > 0, x, -x)),
            "numbers": ((t > 0).where(1, 0.5), np.where(x > 0, 1, 0.5)),
            "broadcast": ((t[:1] > 0).where(t, 2), np.where(x[:1] > 0, x, 2)),
            "clip": (t.clip(-0.5, 0.5), np.clip(x, -0.5, 0.5)),
            "clip below": (t.clip(min_=0), np.maximum(x, 0)),
            "lerp": (t.lerp(-t, 0.25), x + (-x - x) * 0.25),
            "masked_fill": (t.masked_fill(t > 0, 9), np.where(x > 0, 9, x)),
        }
    )


def test_compositions_on_halves_round_once(device: str, rng: np.random.Generator) -> None:
    x = rng.uniform(-4, 4, 17).astype(np.float16)
    t, wide = Tensor(x), Tensor(x.astype(np.float32))
    names = ("gelu", "softmax", "sigmoid", "softplus", "mish", "layernorm", "tan")
    results = [(getattr(t, n)(), getattr(wide, n)().cast(dtypes.float16)) for n in names]
    flat = [r for pair in results for r in pair]
    flat[0].realize(*flat[1:])
    for name, (half, rounded) in zip(names, results, strict=True):
        assert half.dtype is dtypes.float16
        np.testing.assert_allclose(half.numpy(), rounded.numpy(), rtol=2e-3, err_msg=name)


def test_numbers_that_are_equal_are_not_always_the_same(device: str) -> None:
    x = Tensor([2.0], device)
    signs = [math.copysign(1, (x * zero).item()) for zero in (0.0, -0.0, 0, 0.0)]
    assert signs == [1, -1, 1, 1]
    whole = Tensor([2], device)
    assert [(whole + n).dtype.name for n in (1, True, 1.0)] == ["int32", "int32", "float32"]


def test_a_number_beside_a_tensor_is_nobodys_to_change(device: str) -> None:
    x = Tensor([1.0, 2.0], device)
    first = x * 3.0
    first.assign(first + 1)
    assert ((x * 3.0).tolist(), first.tolist()) == ([3.0, 6.0], [4.0, 7.0])


def test_numbers_beyond_an_integer_are_themselves_where_the_result_is_a_float(
    device: str, compare: Compare
) -> None:
    small, numbers = Tensor([1, 100], dtype="int8"), np.array([1, 100])
    compare(
        {
            "x / y": (small / 128, numbers / 128),
            "y / x": (-300 / small, -300 / numbers),
            "of no axes": (small / Tensor(300), numbers / 300),
            "unsigned": (small.cast("uint8") / -1, -numbers),
            "atan2": (small.atan2(300), np.arctan2(numbers, 300)),
            "copysign": (small.cast("uint8").copysign(-1), -numbers),
            "logaddexp": (small.logaddexp(128), np.logaddexp(numbers, 128)),
            "clip": (small.clip(-300, 300), numbers),
            "clip of unsigned": (small.cast("uint8").clip(-1, 50), numbers.clip(-1, 50)),
        },
        1e-6,
    )
    for kind in ("float16", "bfloat16"):
        assert str((small / Tensor([1.0, 2.0], dtype=kind)).dtype) == kind
