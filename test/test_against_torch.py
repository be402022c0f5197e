"""Arithmetic, reductions and products: values, gradients and dtypes are PyTorch's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from against_torch import Case, disagreements, draw, method, pair, same, suffixed, torch

from tinyml import Tensor

F = torch.nn.functional
INF, NAN = float("inf"), float("nan")
SPECIAL = np.array(
    [NAN, INF, -INF, -0.0, 0.0, 1, -1, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3e38, -3e38, 1e-30, 100,
     -100, 1e4, -1e4, 0.999, -0.999, 20, -20],
    np.float32,
)  # fmt: skip
UNARY = (  # noqa: SIM905
    "neg abs sign sqrt rsqrt exp exp2 log log2 log10 sin cos tan asin acos atan sinh cosh tanh "
    "asinh acosh atanh erf erfinv lgamma floor ceil round trunc isnan isinf isfinite logical_not "
    "reciprocal square"
).split()
WHOLE = np.array([[-7, 3, 0], [5, -2, 1]], np.int32)
ODD = np.array([[2, -3, 4], [-5, 3, -1]], np.int32)
DOUBLE: dict[type, Any] = {Tensor: "float64", torch.Tensor: torch.float64}
TIES = np.array([[1, 3, 3, 0], [2, 2, 2, 2], [-1, -1, -5, 0]], np.float32)


# ---- one number ----


def unary_special() -> list[Case]:
    return [method(name, SPECIAL) for name in UNARY]


def unary_ordinary() -> list[Case]:
    inside = np.tanh(draw("inside", (4, 5)))
    beyond = {"acosh": 2.5, "log": 1.5, "log2": 1.5, "log10": 1.5, "sqrt": 1.5, "rsqrt": 1.5}
    return [method(name, inside + np.float32(beyond.get(name, 0))) for name in UNARY]


def unary_dtypes() -> list[Case]:
    half = np.array([0.25, -0.5, 0.75, 1.5, -2.5, 0.0], np.float16)
    loose = {"rtol": 2e-3, "atol": 2e-3, "grad_atol": 1e-2}
    cases = suffixed([method(n, half, grad=False, **loose) for n in UNARY], "of halves")
    cases += suffixed([method(n, WHOLE) for n in UNARY], "of int32")
    unsigned = [n for n in UNARY if n not in ("neg", "asin", "acos")]
    return cases + suffixed([method(n, np.arange(4, dtype=np.uint8)) for n in unsigned], "of uint8")


def unary_shapes() -> list[Case]:
    names = ["neg", "abs", "exp", "tan", "asinh", "erf", "round", "isnan"]
    return [
        case
        for shape in ((), (0,), (2, 0, 3))
        for case in suffixed([method(n, draw(n, shape)) for n in names], f"of {shape}")
    ]


# ---- two numbers ----

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: x / y,
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
    "<": lambda x, y: x < y,
    "<=": lambda x, y: x <= y,
    "==": lambda x, y: x == y,
    "!=": lambda x, y: x != y,
    "maximum": lambda x, y: x.maximum(y),
    "minimum": lambda x, y: x.minimum(y),
    "copysign": lambda x, y: x.copysign(y),
    "atan2": lambda x, y: x.atan2(y),
    "div floor": lambda x, y: x.div(y, rounding_mode="floor"),
    "div trunc": lambda x, y: x.div(y, rounding_mode="trunc"),
}
FLOATING: dict[str, Callable[[Any, Any], Any]] = {
    "logaddexp": lambda x, y: x.logaddexp(y),
    "lerp": lambda x, y: x.lerp(y, 0.3),
    "isclose": lambda x, y: x.isclose(y),
    "isclose nan": lambda x, y: x.isclose(y, rtol=0.5, equal_nan=True),
    "pow": lambda x, y: x.abs() ** y,
}
BITS: dict[str, Callable[[Any, Any], Any]] = {
    "&": lambda x, y: x & y,
    "|": lambda x, y: x | y,
    "^": lambda x, y: x ^ y,
    "<<": lambda x, y: x << (y & 3),
    ">>": lambda x, y: x >> (y & 3),
}


def binary() -> list[Case]:
    cases = []
    for name, f in (BINARY | FLOATING).items():
        known = name != "//"  # torch has no gradient of it
        cases.append(same(name, f, (3, 4), (3, 4), grad=known))
        cases.append(same(f"{name} broadcast", f, (2, 1, 4), (3, 1), grad=known))
    for name, f in BINARY.items():
        known = name != "//"
        cases.append(same(f"{name} of ints", f, WHOLE, ODD))
        cases.append(same(f"{name} of int and float", f, WHOLE, draw(name, (2, 3)), grad=known))
        cases.append(same(f"{name} of float and 0-d", f, (2, 3), (), grad=known))
    return cases + [same(f"{name} of ints", f, WHOLE, ODD) for name, f in BITS.items()]


def binary_special() -> list[Case]:
    few = SPECIAL[[0, 1, 2, 3, 4, 5, 6, 9, 12, 13, 15]]
    x, y = (a.reshape(-1).copy() for a in np.meshgrid(few, few))
    # Quotients of infinities and of 3e38 by 1e-30 are left out: torch's are not the exact ones.
    # Gradients beside infinities are compared where torch's are defined.
    quotients = ("//", "div floor", "div trunc", "%")
    chosen = {n: f for n, f in (BINARY | FLOATING).items() if n not in quotients}
    smooth = ("+", "-", "*", "/", "maximum", "minimum", "logaddexp")
    cases = [same(n, f, x, y, grad=n in smooth) for n, f in chosen.items()]
    mild = np.array([1, -1, 1.5, -2.5, 7, -0.0, 0.3, -100], np.float32)
    p, q = (a.reshape(-1).copy() for a in np.meshgrid(mild, mild))
    return cases + [same(n, BINARY[n], p, q, grad=n.startswith("div")) for n in quotients]


def powers() -> list[Case]:
    base = np.array([-2, -1, -0.5, -0.0, 0.0, 0.5, 1, 2, INF, -INF, NAN], np.float32)
    exponent = np.array([-2, -1, 0, 0.5, 1, 2, 3, INF, -INF, NAN], np.float32)
    x, y = (a.reshape(-1).copy() for a in np.meshgrid(base, exponent))
    cases = [same("x ** y", lambda x, y: x**y, x, y, grad=False)]
    for number in (-2, -1, 0, 0.5, 1, 2, 3, 4, 2.5, -0.5):
        # where gradients are roots, torch's differ from pow at -0 and -infinity
        chosen = base if number not in (2.5, -0.5) else base[[0, 1, 2, 4, 5, 6, 7, 8, 10]]
        cases.append(same(f"x ** {number}", lambda x, n=number: x**n, chosen))
    for number in (0.5, 1.0, 2.0, 3):
        cases.append(same(f"{number} ** x", lambda x, n=number: n**x, exponent))
    positive = np.abs(draw("positive", (3, 4)))
    cases.append(same("both", lambda x, y: x**y, positive, (4,)))
    cases.append(same("ints", lambda x, y: x**y, WHOLE, np.abs(ODD)))
    return [*cases, same("int ** 3", lambda x: x**3, WHOLE)]


def with_numbers() -> list[Case]:
    """A tensor and a Python number, in either order."""
    arithmetic = {n: BINARY[n] for n in ("+", "-", "*", "/", "//", "%", "==")}
    values = {"int32": WHOLE, "float32": draw("numbers", (2, 3)), "uint8": np.abs(WHOLE)}
    values["bool"] = WHOLE > 0
    cases = []
    for (op, f), number, kind in itertools.product(arithmetic.items(), (2, 2.5, True), values):
        array, name = values[kind].astype(kind), f"{kind} {op} {number}"
        undefined = kind == "bool" and (number is True or op in "-%")  # by torch
        if not undefined and not (op == "-" and number is True):
            how: dict[str, Any] = {"narrow": True, "grad": op != "//"}
            cases.append(same(name, lambda x, f=f, n=number: f(x, n), array, **how))
        if not undefined and op not in ("//", "%", "-") and kind != "bool":
            name = f"{number} {op} {kind}"
            cases.append(same(name, lambda x, f=f, n=number: f(n, x + 1), array, narrow=True))
    return cases


def torch_names() -> list[Case]:
    """What users of torch expect besides the names that tinyml has from elsewhere."""
    places = np.array([2, 0, -1, 2])
    flags = np.array([[0, 1.5, NAN], [0, -0.0, 1]], np.float32), np.array([[0, 0, 3], [1, 2, 0]])
    logic = ("logical_and", "logical_or", "logical_xor")
    return [
        same("amax amin", lambda x: (x.amax((0, 2)), x.amin(-1, True), x.amax()), (2, 3, 4)),
        same("unbind", lambda x: (*x.unbind(), *x.unbind(dim=-1)), (2, 3)),
        same("unbind nothing", lambda x: (*x.unbind(), x.sum()), (0, 3)),
        same("index_select", lambda x, i: x.index_select(1, i), (2, 3, 2), places % 3),
        same("of a number", lambda x, i: x.index_select(0, i), (), np.array([0])),
        same(
            "softmax in another dtype",
            lambda x, y: (x.softmax(0, dtype=y.dtype), x.log_softmax(1, dtype=y.dtype)),
            np.array([[1.0, 700.5], [-2.5, 0.25]], np.float16),
            np.zeros(0),
        ),
        same("round", lambda x: (x.round(decimals=2), x.round(decimals=-1)), WHOLE * 1.37),
        *[same(name, lambda x, y, n=name: getattr(x, n)(y), *flags) for name in logic],
        same(
            "dtype",
            lambda x: (x.to(float), x.to(int), x.to(bool), x.cpu().norm()),
            (2, 3),
            grad=False,
        ),
    ]


def choices() -> list[Case]:
    flags = np.array([[True, False, True], [False, False, True]])
    x = draw("x", (2, 3))
    return [
        pair("where", Tensor.where, torch.where, flags, x, (2, 3)),
        pair("where broadcast", Tensor.where, torch.where, flags, (1, 3), (4, 1, 1)),
        pair(
            "where number", lambda c, x: c.where(x, 2), lambda c, x: torch.where(c, x, 2), flags, x
        ),
        pair(
            "where ints and number",
            lambda c, x: c.where(x, 2.5),
            lambda c, x: torch.where(c, x, 2.5),
            flags,
            WHOLE,
        ),
        pair("where mixed", Tensor.where, torch.where, flags, WHOLE, x),
        same("clip", lambda x: x.clip(-0.5, 0.5), np.append(x, [0.5, -0.5]).astype(np.float32)),
        same("clip below", lambda x: x.clip(0.1), SPECIAL),
        same("clip above", lambda x: x.clip(None, 0.1), SPECIAL),
        same("clip crossed", lambda x: x.clip(1, -1), SPECIAL),
        same("clip ints", lambda x: x.clip(-1, 2), WHOLE),
        same("clip ints by floats", lambda x: (x.clip(-1.5, 2.5), x.clip(0.5)), WHOLE),
        same("clip tensors", lambda x, a, b: x.clip(a, b), x, -np.abs(x) / 2, np.abs(x) / 3),
        same(
            "clip by NaN",
            lambda x, a, b: (x.clip(a, b), x.clip(b, a)),
            np.float32([1, 9, -9, 2]),
            np.float32([NAN, NAN, NAN, 0]),
            np.float32([5, 5, 5, NAN]),
            grad=False,
        ),
        same(
            "clip dtypes",
            lambda x, a, b: (x.clip(a, b), x.clip(b, a), b.clip(x, a)),
            np.array(-8),
            np.float32([[-1.5, 2.5]]),
            np.array([4, 0], np.uint8),
        ),
        same("masked_fill", lambda x, m: x.masked_fill(m, -INF), x, flags),
        same("masked_fill ints", lambda x, m: x.masked_fill(m, 1.5), WHOLE, flags),
        same("masked_fill bools", lambda x, m: x.masked_fill(m, 1), ~flags, flags),
        same("masked_select", lambda x, m: x.masked_select(m), x, flags),
        same("lerp tensor", lambda x, y, w: x.lerp(y, w), x, (2, 3), (2, 3)),
        same("maximum ties", lambda x, y: x.maximum(y), TIES, TIES.copy()),
        same("minimum ties", lambda x, y: x.minimum(y), TIES, np.zeros_like(TIES)),
    ]


# ---- many numbers ----


def reductions() -> list[Case]:
    cases = []
    for axis, keep in itertools.product((0, -1, (0, 2), (0, 1, 2)), (False, True)):
        how: dict[str, Any] = {"axis": axis, "keepdim": keep}
        for name in ("sum", "mean", "var", "std", "logsumexp"):
            cases.append(
                same(
                    f"{name} {axis} {keep}", lambda x, n=name, h=how: getattr(x, n)(**h), (3, 4, 2)
                )
            )
        for name in ("max", "min"):
            cases.append(
                pair(
                    f"{name} {axis} {keep}",
                    lambda x, n=name, h=how: getattr(x, n)(**h),
                    lambda x, n=name, h=how: getattr(x, f"a{n}")(**h),
                    np.stack([TIES, TIES + 1], 2),
                )
            )
    return cases


def reductions_otherwise() -> list[Case]:
    zeros = np.array([[1, 0, 2], [0, 0, 3], [2, 4, 5]], np.float32)
    special = np.array([[INF, 1, 2], [-INF, -INF, -INF], [NAN, 1, INF], [1e30, 0, -5]], np.float32)
    cases = [
        same("prod", lambda x: (x.prod(), x.prod(0), x.prod(1, keepdim=True)), zeros),
        same("all at once", lambda x: (x.sum(), x.mean(), x.max(), x.min(), x.var()), TIES),
        same("a mean in another dtype", lambda x: x.mean(-1, dtype=DOUBLE[type(x)]), (3, 4)),
        same("sum of empty", lambda x: (x.sum(0), x.sum(), x.prod(1), x.mean(1)), (3, 0)),
        same("correction", lambda x: (x.var(1, correction=0), x.std(1, correction=2)), (3, 4)),
        pair("std_mean", lambda x: x.std_mean(1), lambda x: torch.std_mean(x, 1), (3, 4)),
        same("any all", lambda x: (x.any(1), x.all(1), x.any(), x.all(0, keepdim=True)), zeros),
        same("positions", lambda x: (x.argmax(), x.argmin()), TIES, narrow=True),
        pair("sum of a bool", lambda x: (x > 1).sum(1), lambda x: (x > 1).sum(1), zeros),
        same("sum as int32", lambda x: x.sum(0, dtype=x.dtype), WHOLE),
        same("of bools", lambda x: (x.sum(1, dtype=x.dtype), x.prod(dtype=x.dtype)), zeros > 1),
        pair(
            "as bool",
            lambda x: (x.sum(1, dtype="bool"), x.prod(0, dtype="bool")),
            lambda x: (x.sum(1, dtype=torch.bool), x.prod(0, dtype=torch.bool)),
            zeros,
            grad=False,
        ),
        same("square of bools", lambda x: (x.square(), x**2), zeros > 1, narrow=True),
        same("close bools", lambda x: x.isclose(x[0]), zeros > 1),
        same("0-d", lambda x: (x.sum(), x.max(), x.prod(), x.mean()), ()),
    ]
    for kind in ("int8", "int32", "bool", "uint8", "float16", "float64"):
        array = np.abs(WHOLE).astype(kind)
        cases.append(same(kind, lambda x: (x.sum(), x.prod(0)), array))
        cases.append(same(f"{kind} any all", lambda x: (x.any(1), x.all()), array))
        cases.append(same(f"extremes {kind}", lambda x: (x.max(), x.min()), array))
    for name in ("sum", "mean", "var", "logsumexp", "prod"):
        known = name != "prod"  # the others of an infinite factor are found by a division
        case = same(f"{name} special", lambda x, n=name: getattr(x, n)(1), special, grad=known)
        cases.append(case)
    flat = np.array([[2, 2, 2], [0, 0, 0], [1, 2, 3]], np.float32)
    return [
        *cases,
        pair("max special", lambda x: x.max(1), lambda x: x.amax(1), special),
        same("norms", lambda x: [x.norm(p=p) for p in (1, 2, 3, 0, INF, -INF)], (3, 4)),
        same("norm of 0 counts", lambda x: (x.norm(0), x.norm(0, 1)), flat),
        same("norm of half", lambda x: (x.norm(0.5), x.norm(0.5, 0)), flat),
        same("norm below 0", lambda x: (x.norm(-1), x.norm(-0.5, 1), x.norm(-2, 0)), flat),
        same(
            "norm below 0 of infinities", lambda x: x.norm(-1), np.float32([INF, -INF]), grad=False
        ),
        same("norm of 0", lambda x: (x.norm(), x.norm(1, 0), x.norm(dim=1, keepdim=True)), flat),
        same("norm special", lambda x: (x.norm(dim=1), x.norm(INF, 1)), special, grad=False),
        same("std of equals", lambda x: x.std(1), flat),
        same("std of one", lambda x: x.std(1, correction=0), flat[:, :1]),
        same("prod long", lambda x: x.prod(1), np.tile(np.float32([1, -1, 0.5, 2]), (2, 10))),
    ]


def reductions_of_few() -> list[Case]:
    """Naming no axis is naming all, but for any and all; and nothing to reduce."""
    named = [same(f"{n} of no axis", lambda x, n=n: getattr(x, n)(()), (2, 3))
             for n in ("sum", "mean", "any", "all")]  # fmt: skip
    return [
        *named,
        pair("max of no axis", lambda x: x.max(()), lambda x: x.amax(()), (2, 3)),
        same("of nothing", lambda x: (x.any(0), x.all(), x.logsumexp(0)), (0, 3)),
        same("softmax of nothing", lambda x: (x.softmax(0), x.log_softmax(1)), (0, 3)),
    ]


# ---- products ----


def products() -> list[Case]:
    shapes = [((3, 4), (4, 5)), ((4,), (4,)), ((4,), (2, 4, 3)), ((2, 3, 4), (4,)),
              ((2, 1, 3, 4), (5, 4, 2)), ((3, 0), (0, 2)), ((0, 4), (4, 2))]  # fmt: skip
    cases = [same(f"{a} @ {b}", lambda x, y: x @ y, a, b) for a, b in shapes]
    formulas = {
        "ij,jk->ik": ((3, 4), (4, 5)),
        "ij,jk": ((3, 4), (4, 5)),
        "bij,bkj->bik": ((2, 3, 4), (2, 5, 4)),
        "...ij,...jk->...ik": ((2, 3, 4), (4, 5)),
        "ii->i": ((3, 3),),
        "ii": ((3, 3),),
        "iii->i": ((3, 3, 3),),
        "jiii,ik->jk": ((2, 3, 3, 3), (3, 2)),
        "ij->ji": ((3, 4),),
        "iji->j": ((3, 4, 3),),
        "i,j,k->kij": ((2,), (3,), (4,)),
        "ij,ij->": ((3, 4), (3, 4)),
        "abc,cd,db->a": ((2, 3, 4), (4, 5), (5, 3)),
        "...,...->...": ((2, 3), (3,)),
    }
    for formula, inputs in formulas.items():
        cases.append(
            pair(
                formula,
                lambda *xs, f=formula: Tensor.einsum(f, *xs),
                lambda *xs, f=formula: torch.einsum(f, *xs),
                *inputs,
            )
        )
    half, small = draw("half", (3, 4)).astype(np.float16), np.full((3, 3), 100, np.int8)
    for formula in ("ij->i", "ii->", "ij->ji", "ij->"):
        ours, theirs = (lambda x, lib=lib, f=formula: lib.einsum(f, x) for lib in (Tensor, torch))
        cases += [pair(f"{formula} of {x.dtype}", ours, theirs, x) for x in (small, small > 0)]
    for formula in ("ij,ij->", "ij,kl->kl", "ij,j->i"):
        ours, theirs = (
            lambda x, lib=lib, f=formula: lib.einsum(f, x, x[0] if f[3:5] == "j-" else x)
            for lib in (Tensor, torch)
        )
        cases.append(pair(f"{formula} of int8", ours, theirs, small))
    return [
        *cases,
        same("dot", lambda x, y: x.dot(y), (4,), (4,)),
        same("matmul ints", lambda x, y: x.matmul(y), WHOLE, ODD.T.copy()),
        same("matmul halves", lambda x: x @ x.T, half, atol=2e-3, grad_atol=1e-2),
        pair("linear", lambda x, w, b: x.linear(w.T, b), F.linear, (2, 3, 4), (5, 4), (5,)),
    ]


# ---- out of nothing ----


def ranges() -> list[Case]:
    """Of integers between bounds that are none."""
    cases = []
    for kind in ("int32", "int64", "uint8"):
        for args in ((0.5, 5.5), (0, 5, 1.5), (0.7, 5.2, 1.0), (9.5, 2.2, -1.5), (3.9, 3.9)):
            if kind != "uint8" or len(args) < 3 or args[2] > 0:
                cases.append(_made(f"arange {args} {kind}", "arange", args, kind))
        for args in ((0.5, 5.7, 4), (2.7, 9.9, 6), (0, 10, 7), (9.9, 3.5, 1)):
            cases.append(_made(f"linspace {args} {kind}", "linspace", args, kind))
        cases.append(_made(f"linspace {kind} of sevenths", "linspace", (0, 7, 50), kind))
    large = (0, 2**53 - 1, 2)  # torch's steps are float64
    return [
        *cases,
        *(_made(f"{args}", "linspace", args, "int64") for args in ((9.9, -3.5, 6), large)),
    ]


def _made(name: str, method: str, args: tuple[float, ...], kind: str) -> Case:
    return pair(
        name,
        lambda: getattr(Tensor, method)(*args, dtype=kind),
        lambda: getattr(torch, method)(*args, dtype=getattr(torch, kind)),
    )


GROUPS = (
    unary_special,
    unary_ordinary,
    unary_dtypes,
    unary_shapes,
    binary,
    binary_special,
    powers,
    with_numbers,
    choices,
    torch_names,
    reductions,
    reductions_otherwise,
    reductions_of_few,
    products,
    ranges,
)


@pytest.mark.parametrize("device", ["NUMPY", "CPU"], indirect=True)
@pytest.mark.parametrize("cases", GROUPS, ids=lambda group: group.__name__)
def test_group(device: str, cases: Callable[[], list[Case]]) -> None:
    found = disagreements(cases())
    assert not found, "\n".join(found)


# ---- dtypes of two operands ----

DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]
OPS: dict[str, Callable[[Any, Any], Any]] = {n: BINARY[n] for n in ("+", "*", "/", "//", "==")}


def of_dtypes(a: str, b: str, op: str) -> Case | None:
    """None where torch has no such op."""
    x, y = np.array([3, 1, 0, 5]), np.array([2, 1, 1, 3])
    f = OPS.get(op)

    def ours(x: Tensor, y: Tensor) -> Tensor:
        p, q = x.cast(a), y.cast(b)
        return f(p, q) if f else (x > 1).where(p, q)

    def theirs(x: Any, y: Any) -> Any:
        p, q = x.to(getattr(torch, a)), y.to(getattr(torch, b))
        return f(p, q) if f else torch.where(x > 1, p, q)

    try:
        theirs(torch.from_numpy(x), torch.from_numpy(y))
    except RuntimeError:
        return None
    return pair(f"{a} {op} {b}", ours, theirs, x, y, rtol=1e-2)


@pytest.mark.parametrize("device", ["NUMPY", "CPU"], indirect=True)
@pytest.mark.parametrize("op", [*OPS, "where"])
def test_dtypes_of_two_operands(device: str, op: str) -> None:
    pairs = itertools.product(DTYPES, DTYPES)
    if device == "CPU":  # the dtype is decided before a device is: a few pairs show the values
        pairs = zip(DTYPES, DTYPES[3:] + DTYPES[:3], strict=True)
    found = disagreements([c for a, b in pairs if (c := of_dtypes(a, b, op))])
    assert not found, "\n".join(found)
