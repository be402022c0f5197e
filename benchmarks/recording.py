"""What one op costs in Python, beside other libraries, in interleaved rounds.

tinyml and tinygrad record the op; torch and jax compute it at once, on a dozen numbers. Primitives
are the nodes that tinyml records for it. Then graphs of a structure that is known: recorded and
computed again; and captured ones (TinyJit, jax.jit), called again. torch runs its ops one by one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from benchmarks.timing import Timings, interleave

REPEATS = 20  # ops in one call
ROUNDS, BUDGET = 9, 12.0  # of each row; seconds
ROWS = [[1.0, 2.0, 3.0]] * 4
NUMBERS: dict[str, Any] = {
    "x": ROWS,
    "y": ROWS,
    "row": [1.0, 2.0, 3.0],
    "line": [[1.0, 2.0, 3.0]],
    "weight": [[1.0, 2.0]] * 3,
    "mask": [[True, False, True]] * 4,
    "classes": [2, 0, 1, 1],
    "image": [[[[1.0] * 6] * 6] * 3] * 2,
    "filters": [[[[1.0] * 3] * 3] * 3] * 4,
    "bias": [1.0, 2.0, 3.0, 4.0],
}


FUNCTIONS = ("exp", "relu", "where", "permute", "expand", "softmax", "layernorm", "gelu", "silu")
FUNCTIONS += ("cross_entropy", "conv2d")


@dataclass(frozen=True)
class Library:
    """How a library makes a tensor, computes what was asked of it, and captures."""

    tensor: Callable[[Any], Any]
    compute: Callable[[Any], Any]
    capture: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]
    own: Mapping[str, Callable[..., Any]] = field(default_factory=dict)  # what is no method there

    def functions(self) -> SimpleNamespace:
        """What all libraries have, by the name that tinyml gives it."""
        kind = type(self.tensor(ROWS))
        return SimpleNamespace(**{n: self.own.get(n) or getattr(kind, n) for n in FUNCTIONS})

    def operands(self) -> SimpleNamespace:
        """NUMBERS as tensors."""
        return SimpleNamespace(**{name: self.tensor(value) for name, value in NUMBERS.items()})


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
    return Library(lambda v: tinyml.Tensor(v).realize(), _realize, tinyml.TinyJit)


def _torch() -> Library:
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    functions = torch.nn.functional
    own = {name: getattr(functions, name) for name in ("gelu", "silu", "cross_entropy", "conv2d")}
    own["layernorm"] = lambda x: functions.layer_norm(x, x.shape[-1:])
    own["where"] = torch.where
    return Library(torch.tensor, lambda x: x, lambda f: f, own)


def _tinygrad() -> Library:
    tinygrad: Any = importlib.import_module("tinygrad")
    return Library(lambda v: tinygrad.Tensor(v).realize(), _realize, tinygrad.TinyJit)


def _jax() -> Library:
    jax: Any = importlib.import_module("jax")
    jnp, nn = jax.numpy, jax.nn
    own: dict[str, Callable[..., Any]] = {
        "exp": jnp.exp,
        "relu": nn.relu,
        "permute": jnp.transpose,
        "expand": jnp.broadcast_to,
        "where": jnp.where,
        "softmax": nn.softmax,
        "layernorm": nn.standardize,
        "gelu": nn.gelu,
        "silu": nn.silu,
        "cross_entropy": lambda x, y: -(nn.log_softmax(x) * nn.one_hot(y, 3)).sum(-1).mean(),
        "conv2d": lambda x, w, b: jax.lax.conv(x, w, (1, 1), "VALID") + b.reshape((1, -1, 1, 1)),
    }
    # a traced value is not there to be waited for
    return Library(jnp.array, lambda x: getattr(x, "block_until_ready", lambda: x)(), jax.jit, own)


def _realize(x: Any) -> Any:
    return x.realize()


# of the functions of a library, and its operands
OPS: dict[str, Callable[[Any, Any], Any]] = {
    "exp": lambda f, t: f.exp(t.x),
    "relu": lambda f, t: f.relu(t.x),
    "x + y": lambda f, t: t.x + t.y,
    "x - y": lambda f, t: t.x - t.y,
    "x * 1.5": lambda f, t: t.x * 1.5,
    "x + row": lambda f, t: t.x + t.row,
    "x < y": lambda f, t: t.x < t.y,
    "where": lambda f, t: f.where(t.mask, t.x, t.y),
    "reshape": lambda f, t: t.x.reshape(3, 4),
    "permute": lambda f, t: f.permute(t.x, (1, 0)),
    "expand": lambda f, t: f.expand(t.line, (4, 3)),
    "sum": lambda f, t: t.x.sum(),
    "max": lambda f, t: t.x.max(),
    "mean": lambda f, t: t.x.mean(),
    "x[0]": lambda f, t: t.x[0],
    "x[1:]": lambda f, t: t.x[1:],
    "x @ weight": lambda f, t: t.x @ t.weight,
    "softmax": lambda f, t: f.softmax(t.x, -1),
    "layernorm": lambda f, t: f.layernorm(t.x),
    "gelu": lambda f, t: f.gelu(t.x),
    "silu": lambda f, t: f.silu(t.x),
    "cross entropy": lambda f, t: f.cross_entropy(t.x, t.classes),
    "conv2d": lambda f, t: f.conv2d(t.image, t.filters, t.bias),
}


def one_op(library: Library, name: str) -> Callable[[], Any]:
    """A call that asks for the op REPEATS times."""
    op, functions, operands = OPS[name], library.functions(), library.operands()

    def call() -> None:
        for _ in range(REPEATS):
            op(functions, operands)

    return call


def primitives(library: Library, name: str) -> int:
    """How many nodes tinyml records for the op."""
    lazy: Any = importlib.import_module("tinyml.lazy")
    functions, operands, made = library.functions(), library.operands(), []
    lazy.known.listeners.append(made.append)
    try:
        OPS[name](functions, operands)
    finally:
        lazy.known.listeners.remove(made.append)
    return len(made)


def graph(library: Library, ops: int) -> Callable[[], Any]:
    """A call that asks for a chain of ops and computes it."""
    x, y = library.tensor(ROWS), library.tensor(ROWS)

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

    function, x = library.capture(sums), library.tensor([[1.0, 2.0], [3.0, 4.0]])
    for _ in range(3):
        function(x)
    return lambda: function(x)


def rows() -> list[str]:
    """Two tables in microseconds: medians, or the fastest calls if the machine was never calm."""
    known = libraries()
    ours, *others = known
    lines = [f"| µs for one op | {ours} | primitives | {' | '.join(others)} |"]
    lines += ["| --- |" + " ---: |" * (len(known) + 1)]
    for name in OPS:
        timings = interleave({k: one_op(v, name) for k, v in known.items()}, ROUNDS, BUDGET)
        own, *cells = _cells(timings, known, REPEATS)
        made = str(primitives(known[ours], name))
        lines.append(_row(name, timings, [own, made, *cells]))
    lines += ["", f"| µs | {' | '.join(known)} |", "| --- |" + " ---: |" * len(known)]
    for ops in (1, 10, 100):
        timings = interleave({k: graph(v, ops) for k, v in known.items()}, ROUNDS, BUDGET)
        lines.append(_row(f"{ops} ops, computed again", timings, _cells(timings, known, 1)))
    for kernels in (1, 32, 128):
        calls = {k: captured(v, kernels) for k, v in known.items()}
        timings = interleave(calls, ROUNDS, BUDGET)
        lines.append(_row(f"{kernels} kernels, captured", timings, _cells(timings, known, 1)))
    return lines


def _cells(timings: Timings, known: Iterable[str], ops: int) -> list[str]:
    return [f"{1e6 * timings.seconds(k) / ops:.1f}" for k in known]


def _row(name: str, timings: Timings, cells: list[str]) -> str:
    mark = " (disturbed: fastest calls)" if timings.disturbed else ""
    return f"| {name}{mark} | {' | '.join(cells)} |"
