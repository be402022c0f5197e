"""Write docs/numerics.md: the text of docs/numerics.in.md, with errors measured when this runs.

python docs/make_numerics.py        # needs a C compiler, torch and mpmath; takes a few minutes

float32 arguments are bit patterns: all of them at a stride, so every exponent and both signs are
met, with as many again between -20 and 20, and some around 1. The truth is torch's in float64.
Halves are all there are. For float64 a few hundred arguments are compared with mpmath, at 40
digits. What takes two is given any number with any other, numbers whose power is within the range
with exponents half of which are whole, and all pairs of what is special.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

import mpmath as mp
import numpy as np
import numpy.typing as npt
import torch

from tinyml import Tensor

HERE = Path(__file__).resolve().parent
Array = npt.NDArray[Any]
DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
LEAST = {"float16": -24, "bfloat16": -133, "float32": -149, "float64": -1074}  # log2 of an ulp


@dataclass(frozen=True)
class Function:
    """An op of Tensor, and the truth about it."""

    name: str
    truth: Callable[..., Any]  # on float64 tensors of torch
    exact: Callable[..., Any]  # on mpmath numbers
    arity: int = 1

    def __call__(self, x: Tensor, *others: Tensor) -> Tensor:
        name, _, argument = self.name.partition(" ")
        made: Tensor = getattr(x, name)(*others, *argument.split())
        return made


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


def _softplus(x: Any) -> Any:
    return mp.log1p(mp.exp(x)) if x < 100 else x + mp.exp(-x)


def _lgamma(x: Any) -> Any:
    """Not near zeros, of which digamma has one, too: few digits of doubles are left there."""
    return mp.re(mp.loggamma(x)) if x > 2.5 else mp.nan


def _digamma(x: Any) -> Any:
    return mp.digamma(x) if x > 2 else mp.nan


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.5957691216057308 * (x + 0.044715 * x**3))


def _mish(x: torch.Tensor) -> torch.Tensor:
    """torch's own loses digits where the sum 1 + exp(x) does."""
    square, power = torch.exp(-2 * x.abs()), torch.exp(-x.abs())
    below = x * (square + 2 * power) / (square + 2 * power + 2)
    return torch.where(x < 0, below, x * (1 + 2 * power) / (1 + 2 * power + 2 * square))


def _gelu_none(x: torch.Tensor) -> torch.Tensor:
    return x * torch.special.erfc(-x * 0.5**0.5) / 2


def _power(x: Any, y: Any) -> Any:
    """mpmath's, where it is to be trusted; the special cases are tested on all devices."""
    return mp.power(x, y) if x and mp.isfinite(x) and mp.isfinite(y) else mp.nan


FUNCTIONS = [
    Function("exp", torch.exp, mp.exp),
    Function("exp2", torch.exp2, lambda x: mp.power(2, x)),
    Function("expm1", torch.expm1, mp.expm1),
    Function("log", torch.log, mp.log),
    Function("log2", torch.log2, lambda x: mp.log(x, 2)),
    Function("log1p", torch.log1p, mp.log1p),
    Function("sin", torch.sin, mp.sin),
    Function("cos", torch.cos, mp.cos),
    Function("tan", torch.tan, mp.tan),
    Function("asin", torch.asin, mp.asin),
    Function("acos", torch.acos, mp.acos),
    Function("atan", torch.atan, mp.atan),
    Function("sinh", torch.sinh, mp.sinh),
    Function("cosh", torch.cosh, mp.cosh),
    Function("tanh", torch.tanh, mp.tanh),
    Function("asinh", torch.asinh, mp.asinh),
    Function("acosh", torch.acosh, mp.acosh),
    Function("atanh", torch.atanh, mp.atanh),
    Function("sqrt", torch.sqrt, mp.sqrt),
    Function("rsqrt", torch.rsqrt, lambda x: 1 / mp.sqrt(x)),
    Function("reciprocal", torch.reciprocal, lambda x: 1 / x),
    Function("erf", torch.erf, mp.erf),
    Function("erfinv", torch.erfinv, lambda x: mp.erfinv(x) if abs(x) <= 1 else mp.nan),
    Function("lgamma", torch.lgamma, _lgamma),
    Function("digamma", torch.digamma, _digamma),
    Function("sigmoid", torch.sigmoid, _sigmoid),
    Function("softplus", lambda x: -torch.nn.functional.logsigmoid(-x), _softplus),
    Function("silu", torch.nn.functional.silu, lambda x: x * _sigmoid(x)),
    Function("mish", _mish, lambda x: x * mp.tanh(_softplus(x))),
    Function("elu", torch.nn.functional.elu, lambda x: x if x > 0 else mp.expm1(x)),
    Function("gelu", _gelu, lambda x: x * _sigmoid(1.5957691216057308 * (x + 0.044715 * x**3))),
    Function("gelu none", _gelu_none, lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2),
    Function("div", torch.div, lambda x, y: x / y, 2),
    Function("pow", torch.pow, _power, 2),
]
SPECIAL = [0.0, 1.0, 2.0, 3.0, 0.5, 0.3, 126.0, 149.0, 1e-40, 3e-8, 60000.0, 3e38, np.inf, np.nan]


def arguments(dtype: str, stride: int) -> Array:
    """Numbers of all sizes and both signs, as numpy has them (bfloat16: as float32)."""
    if dtype == "float64":
        rng = np.random.default_rng(1)
        some = rng.integers(0, 2**64, 400, np.uint64).view(np.float64)
        x = np.concatenate([some, rng.uniform(-20, 20, 400), rng.normal(size=200)])
    elif dtype == "float16":
        x = np.arange(0, 2**16, dtype=np.uint16).view(np.float16)
    elif dtype == "bfloat16":
        x = (np.arange(0, 2**16, dtype=np.uint32) << 16).view(np.float32)
    else:
        every = np.arange(0, 2**32, stride, dtype=np.uint64).astype(np.uint32)
        one_bits = np.float32(1).view(np.uint32)
        about = np.arange(-2000, 2000).astype(np.int32) + one_bits.astype(np.int32)
        near = np.linspace(-20, 20, max(2**32 // stride, 1000), dtype=np.float32)
        about_one = about.astype(np.uint32).view(np.float32)
        x = np.concatenate([every.view(np.float32), near, about_one, -about_one])
    return x


def pairs(dtype: str, stride: int) -> tuple[Array, Array]:
    """Numbers of all sizes and both signs, and others that go with them."""
    x, rng = arguments(dtype, stride), np.random.default_rng(2)
    with np.errstate(all="ignore"):
        within = rng.uniform(1.1 * LEAST[dtype], -LEAST[dtype], x.size) / np.log2(abs(x), dtype="d")
        within = np.where(rng.random(x.size) < 0.5, within, np.rint(within))
        special = np.array([sign * v for v in SPECIAL for sign in (1, -1)]).astype(x.dtype)
        ys = np.concatenate([rng.permutation(x), within.astype(x.dtype), np.tile(special, 28)])
    xs = np.concatenate([x, x, np.repeat(special, 28)])
    if dtype == "bfloat16":
        xs, ys = ((v.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for v in (xs, ys))
    return xs, ys


def truth(one: Function, given: Sequence[Array]) -> Array:
    """What is right, with more digits than those given have: float64, or the objects of mpmath."""
    if given[0].dtype == np.float64:
        with mp.workdps(40):
            rows = zip(*(x.tolist() for x in given), strict=True)
            return np.array([_exact(one, row) for row in rows], object)
    with np.errstate(invalid="ignore"):  # NaN that signal
        wide = [torch.from_numpy(x.astype(np.float64)) for x in given]
    made: Array = one.truth(*wide).numpy()
    return made


def _exact(one: Function, given: Sequence[float]) -> Any:
    try:
        value = one.exact(*map(mp.mpf, given))
    except (ZeroDivisionError, ValueError, OverflowError):
        return mp.nan
    return mp.nan if isinstance(value, mp.mpc) else value


def ulps(got: Array, want: Array, dtype: str) -> Array:
    """The distance in units of the last place of `want`; infinite where only one is finite.

    Between numbers that `dtype` cannot hold and its infinities there is no distance.
    """
    if want.dtype == object:
        return np.array([_ulps_of(g, w) for g, w in zip(got.tolist(), want, strict=True)])
    largest = 2.0 ** {"float16": 16, "bfloat16": 128, "float32": 128}[dtype]
    with np.errstate(all="ignore"):
        want = np.where(
            abs(want) >= largest * (1 - 2.0 ** -(DIGITS[dtype] + 1)), np.inf * want, want
        )
        _, exponent = np.frexp(want)
        unit = np.ldexp(1.0, np.maximum(exponent - DIGITS[dtype], LEAST[dtype]))
        error = abs(got.astype(np.float64) - want) / unit
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    both = np.isfinite(got) & np.isfinite(want)
    return np.where(same, 0, np.where(both, error, np.inf))


def _ulps_of(got: float, want: Any) -> float:
    if mp.isnan(want):  # also where mpmath knows no answer
        return 0.0
    if abs(want) >= mp.ldexp(1, 1024):
        return 0.0 if abs(got) >= 1.7e308 else float("inf")
    unit = mp.ldexp(1, max(int(mp.frexp(want)[1]) - 53, LEAST["float64"])) if want else mp.mpf(1)
    return float(abs(mp.mpf(got) - want) / unit)


def computed(
    functions: list[Function], given: Sequence[Array], device: str, dtype: str
) -> list[Array]:
    """What tinyml makes of these on a device, all at once."""
    operands = [Tensor(x, device=device) for x in given]
    if dtype == "bfloat16":
        operands = [x.cast("bfloat16") for x in operands]
    results = [one(*operands) for one in functions]
    if dtype == "bfloat16":
        results = [result.cast("float32") for result in results]
    results[0].realize(*results[1:])
    return [result.numpy() for result in results]


def largest_errors(
    functions: list[Function], device: str, dtype: str, stride: int
) -> dict[str, tuple[float, str]]:
    """By name, the largest error in ulps, and the arguments where it is made."""
    x = arguments(dtype, stride)
    found = {}
    for arity, given in ((1, (x[x == x],)), (2, pairs(dtype, 4 * stride))):
        some = [one for one in functions if one.arity == arity]
        for one, got in zip(
            some, computed(some, given, device, dtype) if some else [], strict=True
        ):
            errors = ulps(got, truth(one, given), dtype)
            worst = int(np.argmax(errors))
            found[one.name] = float(errors[worst]), ", ".join(f"{x[worst]:.8g}" for x in given)
    return found


# ---- the page ----

COLUMNS = [
    *(("float32", device, stride) for device, stride in (("NUMPY", 4099), ("CPU", 1021))),
    *(("float32", "EMU", 16411), ("float64", "NUMPY", 1), ("float64", "CPU", 1)),
    *(("float16", "CPU", 1), ("bfloat16", "CPU", 1)),
]


def table() -> str:
    heads = [f"{dtype} {device}" for dtype, device, _ in COLUMNS]
    lines = [f"| op | {' | '.join(heads)} | worst on CPU at |", "|---" * (len(heads) + 2) + "|"]
    found = [largest_errors(FUNCTIONS, device, dtype, n) for dtype, device, n in COLUMNS]
    for one in FUNCTIONS:
        cells = " | ".join(f"{column[one.name][0]:.2f}" for column in found)
        lines.append(f"| {one.name} | {cells} | {found[1][one.name][1]} |")
    return "\n".join(lines)


OF_TORCH = {
    "silu": (torch.nn.functional.silu, -87),
    "mish": (torch.nn.functional.mish, -87),
    "gelu": (lambda x: torch.nn.functional.gelu(x, approximate="tanh"), -1),
    "gelu none": (torch.nn.functional.gelu, -1),
}


def of_torch() -> str:
    """The largest errors of torch on the same float32 arguments, from some argument on."""
    every = arguments("float32", 1021)
    found = []
    for one in FUNCTIONS:
        if one.name in OF_TORCH:
            function, low = OF_TORCH[one.name]
            x = every[every >= low]
            errors = ulps(function(torch.from_numpy(x)).numpy(), truth(one, [x]), "float32")
            found.append(f"{one.name} {np.max(errors):.2f} (x >= {low})")
    return f"torch {torch.__version__.partition('+')[0]}: {', '.join(found)}"


def main() -> None:
    text = (HERE / "numerics.in.md").read_text().format(table=table(), of_torch=of_torch())
    (HERE / "numerics.md").write_text(text)


if __name__ == "__main__":
    main()
