"""One op said twice, for tinyml and for PyTorch: where do values, gradients and dtypes differ?

Cases are written as functions of tensors; every input that holds floats takes a gradient, of
the sum of all results times fixed random weights. All results of a list of cases are made real
together, so that a list is compiled as one schedule.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tinyml import Tensor

torch = pytest.importorskip("torch", reason="torch is an optional reference: pip install torch")
torch.set_num_threads(1)

Array = npt.NDArray[Any]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """`ours` and `theirs` of the same inputs should agree."""

    name: str
    ours: Function
    theirs: Function
    inputs: tuple[Array, ...]
    grad: bool = True
    narrow: bool = False  # int32 is right where torch has int64: indices, and tinyml's default
    rtol: float = 1e-3
    atol: float = 1e-6
    grad_atol: float = 1e-4


def draw(name: str, shape: Sequence[int], dtype: str = "float32") -> Array:
    """Normal numbers, the same ones for the same name."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    return np.asarray(rng.standard_normal(tuple(shape)), dtype)


def pair(name: str, ours: Function, theirs: Function, *inputs: Any, **options: Any) -> Case:
    """Inputs are arrays, or shapes of normal numbers."""
    arrays = tuple(
        x if isinstance(x, np.ndarray) else draw(f"{name} {i}", x) for i, x in enumerate(inputs)
    )
    return Case(name, ours, theirs, arrays, **options)


def same(name: str, function: Function, *inputs: Any, **options: Any) -> Case:
    """What both libraries write alike."""
    return pair(name, function, function, *inputs, **options)


def method(name: str, *inputs: Any, **options: Any) -> Case:
    """A method that both libraries have."""
    return same(name, lambda x, *ys: getattr(x, name)(*ys), *inputs, **options)


def suffixed(cases: Sequence[Case], suffix: str, **changes: Any) -> list[Case]:
    """The same cases once more, with some fields changed."""
    return [replace(case, name=f"{case.name} {suffix}", **changes) for case in cases]


# ---- running them ----


@dataclass(frozen=True)
class _Outcome:
    """What tinyml will have computed once these tensors are real."""

    case: Case
    results: tuple[Tensor, ...]
    grads: tuple[Tensor | None, ...]

    @property
    def tensors(self) -> list[Tensor]:
        return [*self.results, *(g for g in self.grads if g is not None)]


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def _weights(case: Case, i: int, shape: Sequence[int], dtype: str) -> Array:
    return draw(f"weights {case.name} {i}", shape, dtype)


def _run_ours(case: Case) -> _Outcome:
    leaves = [Tensor(a, requires_grad=case.grad and a.dtype.kind == "f") for a in case.inputs]
    results = _as_tuple(case.ours(*leaves))
    if case.grad:
        losses = [
            (r * Tensor(_weights(case, i, r.shape, "float32")).cast(r.dtype)).sum().float()
            for i, r in enumerate(results)
            if r.requires_grad
        ]
        if losses:
            sum(losses[1:], losses[0]).backward()
    return _Outcome(case, results, tuple(leaf.grad for leaf in leaves))


def _run_theirs(case: Case) -> tuple[list[Any], list[Any]]:
    leaves = [torch.from_numpy(a.copy()) for a in case.inputs]
    if case.grad:
        leaves = [x.requires_grad_() if x.is_floating_point() else x for x in leaves]
    results = _as_tuple(case.theirs(*leaves))
    losses = [
        (r * torch.from_numpy(_weights(case, i, r.shape, "float32")).to(r.dtype)).sum().float()
        for i, r in enumerate(results)
        if r.requires_grad
    ]
    if losses:
        sum(losses[1:], losses[0]).backward()
    return [r.detach() for r in results], [leaf.grad for leaf in leaves]


def _numbers(x: Any) -> Array:
    return np.asarray(x.float() if x.dtype is torch.bfloat16 else x)


def _difference(ours: Tensor, theirs: Any, rtol: float, atol: float) -> str:
    """What is wrong with one result, or ""."""
    got, wanted = ours.numpy(), _numbers(theirs)
    if got.shape != wanted.shape:
        return f"shape {got.shape}, torch has {wanted.shape}"
    with np.errstate(all="ignore"):
        close = np.isclose(got, wanted, rtol, atol, equal_nan=True)
    if close.all():
        return ""
    where = np.argwhere(~close)[0]
    at = tuple(int(i) for i in where)
    return f"{int((~close).sum())} of {close.size} differ: [{at}] is {got[at]}, not {wanted[at]}"


def _wrong_dtype(case: Case, ours: Tensor, theirs: Any) -> str:
    got, wanted = ours.dtype.name, str(theirs.dtype).removeprefix("torch.")
    fits = got == wanted or (case.narrow and (got, wanted) == ("int32", "int64"))
    return "" if fits else f"dtype {got}, torch has {wanted}"


def _wrong_gradient(case: Case, ours: Tensor | None, theirs: Any) -> str:
    if theirs is None or ours is None:
        known = ours if theirs is None else theirs
        zero = known is None or not np.asarray(known.numpy()).any()
        return "" if zero else f"gradient is {ours}, torch has {theirs}"
    return _difference(ours, theirs, case.rtol, case.grad_atol)


def _judged(outcome: _Outcome) -> list[str]:
    case = outcome.case
    results, grads = _run_theirs(case)
    if len(results) != len(outcome.results):
        return [f"{case.name}: {len(outcome.results)} results, torch has {len(results)}"]
    found = []
    for i, (ours, theirs) in enumerate(zip(outcome.results, results, strict=True)):
        wrong = _wrong_dtype(case, ours, theirs) or _difference(ours, theirs, case.rtol, case.atol)
        found += [f"{case.name}: result {i}: {wrong}"] if wrong else []
    for i, (mine, yours) in enumerate(zip(outcome.grads, grads, strict=True)):
        wrong = _wrong_gradient(case, mine, yours)
        found += [f"{case.name}: gradient of input {i}: {wrong}"] if wrong else []
    return found


def disagreements(cases: Sequence[Case]) -> list[str]:
    """A line for each result or gradient of the default device that is not torch's."""
    found, outcomes = [], []
    for case in cases:
        try:
            outcomes.append(_run_ours(case))
        except Exception as error:
            found.append(f"{case.name}: {type(error).__name__}: {error}")
    Tensor.realize(*(t for outcome in outcomes for t in outcome.tensors))
    return found + [line for outcome in outcomes for line in _judged(outcome)]
