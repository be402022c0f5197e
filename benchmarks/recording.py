"""What one op costs in Python, beside other libraries, in interleaved rounds.

tinyml and tinygrad record the op; torch and jax compute it at once, on four numbers. Then graphs
of a structure that is known: recorded and computed again; and captured ones (TinyJit, jax.jit),
called again. torch runs its ops one by one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.timing import Timings, interleave

NUMBERS = [[1.0, 2.0], [3.0, 4.0]]
REPEATS = 50  # ops in one call
ROUNDS, BUDGET = 9, 12.0  # of each row; seconds


@dataclass(frozen=True)
class Library:
    """How a library makes a tensor, says relu, computes what was asked of it, and captures."""

    tensor: Callable[[], Any]
    relu: Callable[[Any], Any]
    compute: Callable[[Any], Any]
    capture: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]


def libraries() -> dict[str, Library]:
    """Those that are installed."""
    openers = {"tinyml": _tinyml, "torch": _torch, "tinygrad": _tinygrad, "jax": _jax}
    found = {}
    for name, opener in openers.items():
        try:
            found[name] = opener()
        except ImportError:
            continue
    return found


def _tinyml() -> Library:
    tinyml: Any = importlib.import_module("tinyml")
    return Library(lambda: tinyml.Tensor(NUMBERS), _relu, _realize, tinyml.TinyJit)


def _torch() -> Library:
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    return Library(lambda: torch.tensor(NUMBERS), _relu, lambda x: x, lambda f: f)


def _tinygrad() -> Library:
    tinygrad: Any = importlib.import_module("tinygrad")
    return Library(lambda: tinygrad.Tensor(NUMBERS).realize(), _relu, _realize, tinygrad.TinyJit)


def _jax() -> Library:
    jax: Any = importlib.import_module("jax")
    return Library(
        lambda: jax.numpy.array(NUMBERS),
        lambda x: jax.numpy.maximum(x, 0),
        lambda x: getattr(x, "block_until_ready", lambda: x)(),  # not while it is traced
        jax.jit,
    )


def _relu(x: Any) -> Any:
    return x.relu()


def _realize(x: Any) -> Any:
    return x.realize()


OPS: dict[str, Callable[[Library], Callable[[Any, Any], Any]]] = {
    "x + y": lambda _: lambda x, y: x + y,
    "x + 1.5": lambda _: lambda x, y: x + 1.5,
    "x * y": lambda _: lambda x, y: x * y,
    "relu": lambda library: lambda x, y: library.relu(x),
    "sum": lambda _: lambda x, y: x.sum(),
    "reshape": lambda _: lambda x, y: x.reshape(4),
    "x @ y": lambda _: lambda x, y: x @ y,
    "x[0]": lambda _: lambda x, y: x[0],
}


def one_op(library: Library, name: str) -> Callable[[], Any]:
    """A call that asks for the op REPEATS times."""
    op, x, y = OPS[name](library), library.tensor(), library.tensor()

    def call() -> None:
        for _ in range(REPEATS):
            op(x, y)

    return call


def graph(library: Library, ops: int) -> Callable[[], Any]:
    """A call that asks for a chain of ops and computes it."""
    x, y = library.tensor(), library.tensor()

    def call() -> Any:
        z = x
        for n in range(ops):
            z = z + y if n % 2 else z * y
        return library.compute(z)

    return call


def captured(library: Library, kernels: int) -> Callable[[], Any]:
    """A call of a captured function: sums along one axis and then the other, each a kernel."""

    def sums(x: Any) -> Any:
        for n in range(kernels):
            x = x * 0.5 + x.sum(n % 2)
        return library.compute(x)

    function, x = library.capture(sums), library.tensor()
    for _ in range(3):
        function(x)
    return lambda: function(x)


def rows() -> list[str]:
    """A table in microseconds: medians, or the fastest call if the machine was never calm."""
    known = libraries()
    lines = [f"| µs | {' | '.join(known)} |", "| --- |" + " ---: |" * len(known)]
    for name in OPS:
        timings = interleave({k: one_op(v, name) for k, v in known.items()}, ROUNDS, BUDGET)
        lines.append(_row(name, timings, list(known), REPEATS))
    for ops in (1, 10, 100):
        timings = interleave({k: graph(v, ops) for k, v in known.items()}, ROUNDS, BUDGET)
        lines.append(_row(f"{ops} ops, computed again", timings, list(known), 1))
    for kernels in (1, 32, 128):
        calls = {k: captured(v, kernels) for k, v in known.items()}
        timings = interleave(calls, ROUNDS, BUDGET)
        lines.append(_row(f"{kernels} kernels, captured", timings, list(known), 1))
    return lines


def _row(name: str, timings: Timings, known: list[str], ops: int) -> str:
    cells = [f"{1e6 * timings.seconds(k) / ops:.1f}" for k in known]
    mark = " (disturbed: fastest calls)" if timings.disturbed else ""
    return f"| {name}{mark} | {' | '.join(cells)} |"
