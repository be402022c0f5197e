"""How precise results are, and that they are the same bits again.

Of elementary functions this is a sample of what docs/make_numerics.py measures.
"""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tinyml import Tensor, config
from tinyml.device import Device, open_device
from tinyml.functional.activation import GELU_SCALE

SCRIPT = Path(__file__).resolve().parents[1] / "docs" / "make_numerics.py"
BOUNDS = {  # in ulps, just above what docs/numerics.md has met; all others: 2
    "sqrt": 0.501, "reciprocal": 0.501, "exp": 1.0, "log": 0.8, "sin": 1.1, "cos": 1.1, "tan": 1.3,
    "asin": 1.7, "acos": 2.1, "erf": 1.4, "sigmoid": 1.6, "softplus": 1.6, "silu": 1.9, "mish": 1.9,
    "gelu": 1.9, "gelu none": 2.01,
    "erfinv": 2.61, "lgamma": 1.5, "digamma": 0.6, "div": 0.501, "pow": 0.8,
}  # fmt: skip
CUDAS = {  # of its library, as met on an H200
    "exp": 1.8, "exp2": 2, "log": 0.9, "sin": 1.4, "cos": 1.5, "tan": 2.7, "sinh": 2.3,
    "sigmoid": 2.2, "softplus": 2.1, "pow": 1,
}  # fmt: skip
LANES64 = {
    **dict.fromkeys(("exp", "exp2", "log", "log2", "log1p", "sin", "cos"), 0.9),
    "expm1": 1.2,
    "tan": 1.4,
    "atan": 1.4,
    "tanh": 1.5,
    "erf": 1.3,
    "gelu none": 1.6,
    "pow": 0.95,
}
PLENTY = 1 << 16  # stride of bit patterns
ODD = ["sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf", "expm1", "log1p"]


pytest.importorskip("torch")
mp: Any = pytest.importorskip("mpmath")


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_numerics", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["make_numerics"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


numerics: Any = load()


def test_errors_of_single_precision(device: str) -> None:
    functions = numerics.FUNCTIONS if device != "EMU" else numerics.FUNCTIONS[::3]
    bounds = {**BOUNDS, **CUDAS} if device == "CUDA" else BOUNDS
    found = numerics.largest_errors(functions, device, "float32", PLENTY)
    wrong = {name: error for name, error in found.items() if error[0] > bounds.get(name, 2)}
    assert not wrong


@pytest.mark.parametrize("device", ["CPU"], indirect=True)
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_errors_of_other_precisions(device: str, dtype: str) -> None:
    most = 2 if dtype == "float64" else 0.51  # halves are computed wider and rounded once
    names = ("exp", "log1p", "cosh", "acos", "sigmoid", "silu", "mish", "gelu", "gelu none")
    names = (*names, "div", "pow")
    some = [one for one in numerics.FUNCTIONS if one.name in names]
    found = numerics.largest_errors(some, device, dtype, 1)
    assert not {name: error for name, error in found.items() if error[0] > most}


@pytest.mark.parametrize("device", ["CPU"], indirect=True)
def test_double_precision_on_lanes_rounds_little_more_than_once(device: str) -> None:
    some = [one for one in numerics.FUNCTIONS if one.name in LANES64]
    found = numerics.largest_errors(some, device, "float64", 1)
    assert not {name: error for name, error in found.items() if error[0] > LANES64[name]}


@pytest.mark.parametrize("name", ["exp", "exp2", "log", "expm1", "log1p", "log2", "tanh", "sin"])
def test_ends_of_the_range_of_double_precision(device: str, name: str) -> None:
    """Results are denormal, overflow, or are infinite and NaN where numpy's are."""
    ends = [709.78, 709.79, -708.5, -745.13, -745.14, 1023.99, 1024.0, -1022.5, -1074.0, -1075.0]
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 1e-310, 1e308, -1e308]
    x = np.array([*special, *ends, 36.8, -37.5, 37.5, 1048575.9, 1048576.1, 1e22, np.pi * 2e5])
    with np.errstate(all="ignore"):
        wanted = getattr(np, name)(x)
    got = getattr(Tensor(x), name)().numpy()
    np.testing.assert_allclose(got, wanted, 3e-16, 5e-324)
    assert (np.signbit(got) == np.signbit(wanted))[wanted == wanted].all()


@pytest.mark.parametrize(
    ("dtype", "least", "denormal"), [("float32", 1e-45, 1e-39), ("float64", 5e-324, 1e-310)]
)
def test_ends_of_the_range(device: str, dtype: str, least: float, denormal: float) -> None:
    """Zeros keep their sign, and denormal numbers, infinities and NaN are not special."""
    x = np.array([0.0, -0.0, least, -least, denormal, np.inf, -np.inf, np.nan], dtype)
    results = [getattr(Tensor(x), name)() for name in ODD]
    results[0].realize(*results[1:])
    for name, result in zip(ODD, results, strict=True):
        got = result.numpy()
        assert np.signbit(got[:2]).tolist() == [False, True], name
        about = x[:5] * x.dtype.type(2 / np.pi**0.5 if name == "erf" else 1)
        np.testing.assert_array_max_ulp(got[:5], about, 1)
        assert np.isnan(got[7]), name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_whole_numbers_keep_the_sign_of_zero(device: str, dtype: str) -> None:
    """Rounded to each side and to the nearest one, and as quotients."""
    some = [0.0, 0.3, 0.5, 0.7, 1.0, 1.5, 2.5, 8388607.5, 1e30]
    near = [np.nextafter(half, toward, dtype=dtype) for half in (0.5, 1.5) for toward in (0, 2)]
    x = np.array([sign * v for v in [*some, *near] for sign in (1, -1)], dtype)
    given = Tensor(x)
    quotients = [given // 1, given // -2, given // np.inf]
    results = [given.floor(), given.ceil(), given.round(), given.trunc(), *quotients]
    results[0].realize(*results[1:])
    wanted = [np.floor(x), np.ceil(x), np.round(x), np.trunc(x)]
    wanted += [np.floor(x), np.floor(x / -2), np.where(x < 0, -1, 0).astype(dtype)]
    wanted[-1][1] = -0.0
    for got, right in zip((result.numpy() for result in results), wanted, strict=True):
        np.testing.assert_array_equal(got, right)
        assert (np.signbit(got) == np.signbit(right)).all()


@pytest.mark.parametrize("far", [-100.0, -80.0, -20.0])
def test_logaddexp_of_numbers_far_apart(device: str, far: float) -> None:
    """What the smaller one adds is not lost where the larger one is 0; nor is infinity."""
    x = np.array([far, 0.0, np.inf, -np.inf, np.inf, far, np.nan])
    y = np.array([0.0, far, np.inf, -np.inf, -np.inf, far, 0.0])
    with np.errstate(invalid="ignore"):
        wanted = np.logaddexp(x, y)
    np.testing.assert_allclose(Tensor(x).logaddexp(Tensor(y)).numpy(), wanted, 1e-15)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_powers_and_quotients_of_what_is_special(device: str, dtype: str) -> None:
    """Every pair, to the sign of zero: C's pow, and the division of IEEE 754."""
    with np.errstate(over="ignore"):
        some = np.array([sign * v for v in numerics.SPECIAL for sign in (1, -1)]).astype(dtype)
    x, y = np.repeat(some, some.size), np.tile(some, some.size)
    power, quotient = Tensor(x) ** Tensor(y), Tensor(x) / Tensor(y)
    power.realize(quotient)
    with np.errstate(all="ignore"):
        wanted = np.power(x.astype("d"), y), x.astype("d") / y
        for got, value in zip((power.numpy(), quotient.numpy()), wanted, strict=True):
            right = value.astype(dtype)
            np.testing.assert_allclose(got, right, 2e-3 if dtype == "float16" else 1e-6, 1e-45)
            assert (np.signbit(got) == np.signbit(right))[right == right].all()


def test_powers_at_the_ends_of_the_range_of_double_precision(device: str) -> None:
    """Bases and results are denormal, or all but 1; exponents are as large as they can be."""
    bases = [5e-324, 1e-310, 2.3e-308, 1 - 2**-53, 1 + 2**-52, 1.5, 10.0, 1.7e308]
    ends = [1.0, 0.5, 1 / 3, 2.0, 3.0, 2.0**53 - 1, 2.0**53, 1e19, 6.4e18, 1.7e308, 5e-324]
    close = [1023.999, 1024.0, 1074.0, 1074.999, 1075.0, 307.9, 323.3, 323.4, 1749.5, 1750.5]
    some, exponents = ([s * v for v in values for s in (1, -1)] for values in (bases, ends + close))
    x, y = np.repeat(some, len(exponents)), np.tile(exponents, len(some))
    x, y = np.append(x, [2.0] * len(exponents)), np.append(y, exponents)
    with np.errstate(all="ignore"):
        wanted = np.power(x, y)
    got = (Tensor(x) ** Tensor(y)).numpy()
    np.testing.assert_allclose(got, wanted, 3e-16, 5e-324)
    assert (np.signbit(got) == np.signbit(wanted))[wanted == wanted].all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_are_exact(device: str, dtype: str) -> None:
    """Also next to multiples of the divisor, of denormal numbers, and of quotients of any size."""
    random, bits = np.random.default_rng(0), np.int32 if dtype == "float32" else np.int64
    y = np.exp2(random.uniform(-20, 20, 999)).astype(dtype) * random.choice([-1, 1], 999)
    x = y * np.rint(np.exp2(random.uniform(0, 60, 999)))
    x = (x.astype(dtype).view(bits) + random.integers(-2, 3, 999, bits)).view(dtype)
    some = [*numerics.SPECIAL[:-3], np.finfo(dtype).max, 5 * np.finfo(dtype).smallest_subnormal]
    special = np.array([sign * v for v in [*some, np.inf, np.nan] for sign in (1, -1)], dtype)
    x = np.concatenate([x, np.repeat(special, special.size), random.normal(size=99)]).astype(dtype)
    y = np.concatenate([y, np.tile(special, special.size), random.normal(size=99)]).astype(dtype)
    with np.errstate(all="ignore"):
        wanted = np.mod(x, y)
    got = (Tensor(x) % Tensor(y)).numpy()
    np.testing.assert_array_equal(got, wanted)
    assert (np.signbit(got) == np.signbit(wanted))[wanted == wanted].all()


def test_gates_far_from_zero(device: str) -> None:
    """Neither the exponential nor the square of an argument overflows into the result."""
    x = np.array([-1e30, -100.0, -0.0, 0.0, 100.0, 1e30, np.inf, np.nan], np.float32)
    given = Tensor(x)
    results = [given.silu(), given.mish(), given.gelu(), given.gelu("none")]
    results[0].realize(*results[1:])
    for result, tiny in zip(results, (-3.720076e-42, -3.720076e-42, -0.0, -0.0), strict=True):
        got, wanted = result.numpy(), np.array([-0.0, tiny, *x[2:]], np.float32)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=3e-45)
        assert (np.signbit(got) == np.signbit(wanted))[:-1].all()


def test_gates_have_denormal_results(device: str) -> None:
    by_tanh, exact = Tensor([-10.3, -10.45, -10.7]), Tensor([-13.3, -13.7, -14.1])
    results = by_tanh.gelu(), exact.gelu("none")
    results[0].realize(*results[1:])
    wanted = (
        [v / (1 + math.exp(-GELU_SCALE * (v + 0.044715 * v**3))) for v in by_tanh.tolist()],
        [v * math.erfc(-v * 0.5**0.5) / 2 for v in exact.tolist()],
    )
    for result, values in zip(results, wanted, strict=True):
        np.testing.assert_allclose(result.numpy(), values, rtol=0, atol=1.5e-45)


@pytest.mark.parametrize("device", ["CPU"], indirect=True)
def test_the_tail_of_the_normal_distribution_is_as_precise(device: str) -> None:
    """In double precision, until results are denormal, and 0."""
    x = np.append(np.linspace(-38.6, -8, 300), [-39.5, -60.0])
    (gelu,) = [one for one in numerics.FUNCTIONS if one.name == "gelu none"]
    errors = numerics.ulps(gelu(Tensor(x)).numpy(), numerics.truth(gelu, [x]), "float64")
    assert errors.max() < 1.6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_half_of_the_largest_number_is_finite(device: str, dtype: str) -> None:
    """What a gradient is multiplied by is at most 1, in all of the steps there."""
    x = Tensor(np.array([-1e-9, 0.0, 1e-9], dtype), requires_grad=True)
    large = Tensor(np.full(3, np.finfo(dtype).max))
    (gradient,) = x.gelu("none").gradient(x, gradient=large)
    np.testing.assert_allclose(gradient.numpy(), large.numpy() / 2, 1e-6)


# ---- sums ----


def worst_sum_error(device: str, x: np.ndarray[Any, Any], axis: int | None) -> float:
    """In units of 2**-24 of the sum of magnitudes."""
    wide = x.astype(np.float64)
    error = np.abs(Tensor(x, device=device).sum(axis).numpy() - wide.sum(axis))
    return float(np.max(error / np.abs(wide).sum(axis))) * 2**24


@pytest.mark.parametrize(
    ("shape", "axis"), [((100_003,), None), ((9001, 5), 0), ((3, 20_001), 1), ((5000, 40), 0)]
)
def test_long_sums_are_as_precise_as_pairwise_ones(
    device: str, shape: tuple[int, ...], axis: int | None
) -> None:
    assert worst_sum_error(device, np.full(shape, 0.1, np.float32), axis) < 20
    uneven = np.ones(shape, np.float32)
    uneven.reshape(-1)[0] = 2**24  # every 1 that is added to it alone is lost
    assert worst_sum_error(device, uneven, axis) < 200


def test_long_products_are_summed_as_precisely(device: str) -> None:
    a, b = np.full((3, 9001), 0.1, np.float32), np.full((9001, 17), 0.3, np.float32)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose((Tensor(a) @ Tensor(b)).numpy(), wanted, 40 * 2**-24)


def test_large_deep_products_are_no_chain_of_their_blocks(device: str) -> None:
    depth = 100_003 if device == "CPU" else 4099  # blocks of sums in memory; staged tiles
    a, b = np.full((64, depth), 0.1, np.float32), np.full((depth, 64), 0.3, np.float32)
    wanted = a[0].astype(np.float64) @ b[:, 0].astype(np.float64)
    np.testing.assert_allclose((Tensor(a) @ Tensor(b)).numpy(), wanted, 60 * 2**-24)


@pytest.mark.parametrize("device", ["CPU"], indirect=True)
def test_sums_down_many_columns_are_no_chain_either(device: str) -> None:
    assert worst_sum_error(device, np.full((20_000, 512), 0.1, np.float32), 0) < 20


def test_statistics_far_from_zero(device: str, rng: np.random.Generator) -> None:
    x = (1e4 + rng.standard_normal((3, 5001))).astype(np.float32)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(Tensor(x).var(1).numpy(), wide.var(1, ddof=1), 1e-5)
    np.testing.assert_allclose(Tensor(x).mean(1).numpy(), wide.mean(1), 3e-7)
    assert Tensor(np.full(49, 3, np.float32)).mean().item() == 3


def test_running_sums_and_logarithms_of_sums(device: str) -> None:
    steps = np.full(20_001, 0.1, np.float32)
    wanted = steps.astype(np.float64).cumsum()
    np.testing.assert_allclose(Tensor(steps).cumsum(0).numpy(), wanted, 1e-5)
    far = Tensor([[1e4, 1e4 - 1, -1e4], [-3e38, -3e38, -3e38]])
    tail = np.log1p(np.exp(-1.0))
    np.testing.assert_allclose(far.logsumexp(1).numpy(), [1e4 + tail, -3e38], 1e-6)
    np.testing.assert_allclose(far.softmax().numpy()[1], [1 / 3] * 3, 1e-6)


def test_halves_are_added_up_in_single_precision(device: str) -> None:
    for dtype, largest in (("float16", 4096), ("bfloat16", 4096)):
        ones = Tensor.ones(largest).cast(dtype).contiguous()
        assert ones.sum().item() == largest
        assert ones.dot(ones).item() == largest


# ---- the same bits ----


@pytest.mark.parametrize("device", ["CPU"], indirect=True)
def test_threads_change_no_bit(device: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((301, 1025)).astype(np.float32)
    found = []
    for threads in (1, 2, 3):
        with config.override(threads=threads):
            a = Tensor(x)
            results = [a.sum(), a.sum(0), a.softmax(), a @ a.T, a.tanh().var(1)]
            results[0].realize(*results[1:])
            found.append([result.numpy().tobytes() for result in results])
    assert found[0] == found[1] == found[2]


_SUMS = """
import hashlib, os, sys
import numpy as np
from tinyml import Tensor
from tinyml.runtime import limits

if "pinned" in sys.argv:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    assert limits.cores() == 1

rng = np.random.default_rng(0)
made = {}

def some(*shape):
    values = rng.standard_normal(shape).astype(np.float32)
    return Tensor(values, requires_grad=True)

def trained(name, function, *tensors):
    out = function(*tensors)
    loss = (out * Tensor(rng.standard_normal(out.shape).astype(np.float32))).sum()
    made[name] = [out, loss, *loss.gradient(*tensors)]

for m, k, n in ((333, 333, 333), (1000, 200, 64), (3, 4096, 512), (1, 512, 700), (16, 20000, 16)):
    trained(f"{m}x{k}x{n}", Tensor.matmul, some(m, k), some(k, n))
sizes = (512, 256), (768, 256), (768,)
trained("linear", lambda x, w, b: x.linear(w.T, b).gelu(), *(some(*size) for size in sizes))
trained("conv", lambda x, w: x.conv2d(w, padding=1), some(4, 16, 20, 20), some(32, 16, 3, 3))
trained("stride", lambda x, w: x.conv2d(w, stride=2), some(4, 3, 57, 57), some(16, 3, 7, 7))
trained("attention", Tensor.scaled_dot_product_attention, *(some(2, 3, 200, 32) for _ in "qkv"))
trained("norm", lambda x, w: x.layernorm() * w, some(900, 256), some(256))
labels = Tensor(rng.integers(0, 1000, 300))
trained("loss", lambda x, w: (x @ w).cross_entropy(labels), some(300, 64), some(64, 1000))
x = some(1000, 2000).detach()
made["sums"] = [x.sum(), x.sum(0), x.sum(1), (x * x).mean(), x.std(0), x.cumsum(1)]
every = [tensor for tensors in made.values() for tensor in tensors]
every[0].realize(*every[1:])
for name, tensors in made.items():
    print(name, *(hashlib.sha256(t.numpy().tobytes()).hexdigest()[:8] for t in tensors))
"""


def test_no_bit_is_chosen_by_the_cores_that_a_process_may_use() -> None:
    """Kernels are those of all the machine's cores: whatever THREADS and affinity say."""
    if not Device.available("CPU"):
        pytest.skip("no CPU device")
    pinned = [("0", "pinned")] if hasattr(os, "sched_setaffinity") else []
    found = []
    for threads, *how in (("1",), ("3",), ("16",), *pinned):
        environment = {**os.environ, "DEVICE": "CPU", "THREADS": threads}
        command = [sys.executable, "-c", _SUMS, *how]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        found.append(done.stdout.splitlines())
    first, *others = found
    assert len(first) == 12
    for other in others:
        assert other == first


def test_the_place_of_an_element_changes_no_bit(device: str) -> None:
    """Lanes and what is left over after them compute the same."""
    formulas: list[Callable[[Tensor], Tensor]] = [
        *(getattr(Tensor, name) for name in ("exp", "log", "sin", "tanh", "erf", "atan", "log1p")),
        lambda x: x * x + x * 0.3 - 1 / x,
        lambda x: (x * 1.1 - x * x) * (x + 0.7) + x,
    ]
    values = np.array([0.123, 0.9, 1.7, 2.9], np.float32)
    x = Tensor(np.repeat(values[:, None], 37, 1))
    wide = x.cast("float64").contiguous()
    results = [*(formula(x) for formula in formulas), wide.exp(), wide.exp2(), wide.log()]
    results += [wide.erf(), wide.gelu("none"), wide**wide]
    results[0].realize(*results[1:])
    for result in results:
        assert (result.numpy() == result.numpy()[:, :1]).all()


@pytest.mark.parametrize("device", ["CPU"], indirect=True)
def test_exponentials_whose_parts_a_register_holds_round_little_more_than_once(
    device: str,
) -> None:
    """With AVX-512; wherever numbers stand, and whatever is special about them."""
    if open_device("CPU").target.vector_bytes < 64:
        pytest.skip("registers of this processor hold fewer parts")
    (exp,) = [one for one in numerics.FUNCTIONS if one.name == "exp"]
    (error, _) = numerics.largest_errors([exp], device, "float32", PLENTY)["exp"]
    assert error < 0.76
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 3e38, 88.72, 88.73, -87.4, -103.9]
    x = np.array([*ends, -104.0, 1e-45, 1.0, *np.linspace(-9, 9, 20)], np.float32)
    got = Tensor(x).exp().numpy()
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(got, np.exp(x.astype("d")).astype("f"), 1e-7, 1.5e-45)
    for few in (1, 4, 8, 16):
        parts = [Tensor(x[n : n + few]).exp().numpy() for n in range(0, x.size, few)]
        np.testing.assert_array_equal(np.concatenate(parts), got)


def test_special_functions_at_their_poles_and_near_their_zeros(device: str) -> None:
    x = np.array([0.0, -0.0, -1, -2, np.inf, -np.inf, np.nan, 1e300, 5e-324])
    inf, nan = np.inf, np.nan
    np.testing.assert_array_equal(Tensor(x).lgamma().numpy()[:7], [inf] * 6 + [nan])
    wanted = [-inf, inf, nan, nan, inf, nan, nan]
    np.testing.assert_array_equal(Tensor(x).digamma().numpy()[:7], wanted)
    near = [1.0, 2.0, 1.0001, 1.4616321449683623, -2.457024738220801, -0.5, 0.5, 7.999, 8.0, 1e300]
    for name, true in (("lgamma", lambda v: mp.re(mp.loggamma(v))), ("digamma", mp.digamma)):
        got = getattr(Tensor(np.array(near)), name)().numpy()
        np.testing.assert_allclose(got, [float(true(mp.mpf(v))) for v in near], 1e-14, 1e-14)
    ends = np.array([1 - 2.0**-53, 2.0**-53 - 1, 1e-310, 1.0, -1.0, 1.5, -0.0])
    with mp.workdps(40):
        wanted = [float(mp.erfinv(mp.mpf(v))) for v in ends[:3]] + [inf, -inf, nan, -0.0]
    got = Tensor(ends).erfinv().numpy()
    np.testing.assert_allclose(got, wanted, 5e-16, 0)
    assert np.signbit(got[-1])
    at = Tensor(np.array([0.3, 1.0, 9.0, -1.3])).requires_grad_()
    (slope,) = at.digamma().sum().gradient(at)
    np.testing.assert_allclose(
        slope.numpy(), [float(mp.polygamma(1, mp.mpf(v))) for v in (0.3, 1.0, 9.0, -1.3)], 1e-12
    )
