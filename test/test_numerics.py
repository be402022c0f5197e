"""How precise elementary functions are: a sample of what docs/make_numerics.py measures."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tinyml import Tensor

SCRIPT = Path(__file__).resolve().parents[1] / "docs" / "make_numerics.py"
BOUNDS = {  # in ulps; all others: 2
    "sqrt": 0.501, "reciprocal": 0.501, "tan": 2.5, "acos": 2.5, "silu": 2.5, "mish": 2.7,
    "gelu": 3.1, "gelu none": 3,
}  # fmt: skip
PLENTY = 1 << 20  # stride of bit patterns
ODD = ["sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf", "expm1", "log1p"]


pytest.importorskip("torch")
pytest.importorskip("mpmath")


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
    found = numerics.largest_errors(functions, device, "float32", PLENTY)
    wrong = {name: error for name, error in found.items() if error[0] > BOUNDS.get(name, 2)}
    assert not wrong


@pytest.mark.parametrize("device", ["CPU"], indirect=True)
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_errors_of_other_precisions(device: str, dtype: str) -> None:
    most = 2 if dtype == "float64" else 0.51  # halves are computed wider and rounded once
    names = ("exp", "log1p", "cosh", "acos", "sigmoid")
    some = [one for one in numerics.FUNCTIONS if one.name in names]
    found = numerics.largest_errors(some, device, dtype, 1)
    assert not {name: error for name, error in found.items() if error[0] > most}


def test_ends_of_the_range(device: str) -> None:
    """Zeros keep their sign, and denormal numbers, infinities and NaN are not special."""
    x = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-39, np.inf, -np.inf, np.nan], np.float32)
    results = [getattr(Tensor(x), name)() for name in ODD]
    results[0].realize(*results[1:])
    for name, result in zip(ODD, results, strict=True):
        got = result.numpy()
        assert np.signbit(got[:2]).tolist() == [False, True], name
        about = x[:5] * np.float32(2 / np.pi**0.5 if name == "erf" else 1)
        np.testing.assert_array_max_ulp(got[:5], about, 1)
        assert np.isnan(got[7]), name
