"""What one op costs in Python, beside other libraries, in interleaved rounds.

tinyml and tinygrad record the op; torch and jax compute it at once, on a dozen numbers. Primitives
are the nodes that tinyml records for it. Then graphs of a structure that is known: recorded and
computed again; and captured ones (TinyJit, jax.jit), called again. torch runs its ops one by one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from benchmarks import machine
from benchmarks.timing import Timings, interleave

REPEATS = 20  # ops in one call
ROUNDS, BUDGET = 5, 1.0  # of each row; seconds
PAUSE = 0.01  # nobody has threads that would have to fall asleep
ROWS = [[1.0, 2.0, 3.0]] * 4
NUMBERS: dict[str, Any] = {
    "x": ROWS,
    "y": ROWS,
    "row": [1.0, 2.0, 3.0],
    "line": [[1.0, 2.0, 3.0]],
    "weight": [[1.0, 2.0]] * 3,
    "mask": [[True, False, True]] * 4,
    "classes": [2, 0, 1, 1],
    "places": [[0, 1, 2], [1, 0, 2]],
    "image": [[[[1.0] * 6] * 6] * 3] * 2,
    "filters": [[[[1.0] * 3] * 3] * 3] * 4,
    "bias": [1.0, 2.0, 3.0, 4.0],
    "heads": [[[[1.0] * 4] * 5] * 2] * 2,
}

FUNCTIONS = ("exp", "relu", "where", "permute", "expand", "flip", "pad", "unsqueeze", "squeeze")
FUNCTIONS += ("half", "softmax", "layernorm", "gelu", "silu", "cross_entropy", "einsum", "gather")
FUNCTIONS += ("sparse_categorical_crossentropy", "conv2d", "max_pool2d", "avg_pool2d", "cat")
FUNCTIONS += ("stack", "scaled_dot_product_attention")


@dataclass(frozen=True)
class Library:
    """How a library makes a tensor, computes what was asked of it, and captures."""

    tensor: Callable[[Any], Any]
    compute: Callable[[Any], Any]
    capture: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]
    own: Mapping[str, Callable[..., Any]] = field(default_factory=dict)  # what is no method there

    def functions(self) -> SimpleNamespace:
        """What libraries have (None: this one has not), by the name that tinyml gives it."""
        kind = type(self.tensor(ROWS))
        return SimpleNamespace(**{n: self.own.get(n, getattr(kind, n, None)) for n in FUNCTIONS})

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
    named = ("gelu", "silu", "cross_entropy", "conv2d", "avg_pool2d", "max_pool2d", "pad")
    own = {name: getattr(functions, name) for name in (*named, "scaled_dot_product_attention")}
    own["layernorm"] = lambda x: functions.layer_norm(x, x.shape[-1:])
    own["sparse_categorical_crossentropy"] = functions.cross_entropy
    own |= {"where": torch.where, "einsum": torch.einsum}
    own |= {"cat": lambda *parts: torch.cat(parts), "stack": lambda *parts: torch.stack(parts)}
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
        "flip": jnp.flip,
        "unsqueeze": jnp.expand_dims,
        "squeeze": jnp.squeeze,
        "einsum": jnp.einsum,
        "cat": lambda *parts: jnp.concatenate(parts),
        "stack": lambda *parts: jnp.stack(parts),
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
    "half": lambda f, t: f.half(t.x),
    "reshape": lambda f, t: t.x.reshape(3, 4),
    "permute": lambda f, t: f.permute(t.x, (1, 0)),
    "expand": lambda f, t: f.expand(t.line, (4, 3)),
    "flip": lambda f, t: f.flip(t.x, (0,)),
    "pad": lambda f, t: f.pad(t.x, (1, 1)),
    "unsqueeze": lambda f, t: f.unsqueeze(t.x, 0),
    "squeeze": lambda f, t: f.squeeze(t.line, 0),
    "x[0]": lambda f, t: t.x[0],
    "x[1:]": lambda f, t: t.x[1:],
    "sum": lambda f, t: t.x.sum(),
    "max": lambda f, t: t.x.max(),
    "mean": lambda f, t: t.x.mean(),
    "x @ weight": lambda f, t: t.x @ t.weight,
    "einsum": lambda f, t: f.einsum("ij,jk->ik", t.x, t.weight),
    "softmax": lambda f, t: f.softmax(t.x, -1),
    "layernorm": lambda f, t: f.layernorm(t.x),
    "gelu": lambda f, t: f.gelu(t.x),
    "silu": lambda f, t: f.silu(t.x),
    "cross entropy": lambda f, t: f.cross_entropy(t.x, t.classes),
    "sparse cross entropy": lambda f, t: f.sparse_categorical_crossentropy(t.x, t.classes),
    "x[tensor]": lambda f, t: t.x[t.classes],
    "embedding": lambda f, t: t.x[t.places],
    "gather": lambda f, t: f.gather(t.x, 0, t.places),
    "cat": lambda f, t: f.cat(t.x, t.y),
    "stack": lambda f, t: f.stack(t.x, t.y),
    "conv2d": lambda f, t: f.conv2d(t.image, t.filters, t.bias),
    "max_pool2d": lambda f, t: f.max_pool2d(t.image, (2, 2)),
    "avg_pool2d": lambda f, t: f.avg_pool2d(t.image, (2, 2)),
    "attention": lambda f, t: f.scaled_dot_product_attention(t.heads, t.heads, t.heads),
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


def document() -> Iterator[str]:
    """A report in markdown, block by block: the machine, one op at a time, and whole graphs."""
    facts = "\n".join(f"- {name}: {value}" for name, value in machine.facts().items())
    yield f"# Recording an op, beside other libraries\n\n{facts}\n"
    yield (
        "Microseconds, on a dozen numbers: tinyml and tinygrad record, torch computes. Medians of\n"
        "rounds in which the machine was ours; `~`: there were too few of them, and these are the\n"
        "fastest calls. Primitives are the nodes that tinyml records.\n"
    )
    yield from ops()
    yield "\nGraphs of a structure that is known, recorded and computed again; and captured ones:\n"
    yield from graphs()


def ops() -> Iterator[str]:
    """A table of single ops."""
    known = libraries()
    ours, *others = known
    yield f"| µs | {ours} | primitives | for each | {' | '.join(others)} |"
    yield "| --- |" + " ---: |" * (len(known) + 2)
    for name in OPS:
        calls = {k: call for k, v in known.items() if _works(call := one_op(v, name))}
        timings = interleave(calls, ROUNDS, BUDGET, PAUSE)
        made, seconds = primitives(known[ours], name), timings.seconds(ours) / REPEATS
        each = f"{1e6 * seconds / made:.1f}"
        own, *cells = _cells(timings, known, calls, REPEATS)
        yield _row(name, timings, [own, str(made), each, *cells])


def graphs() -> Iterator[str]:
    """A table of whole graphs."""
    known = libraries()
    yield f"| µs | {' | '.join(known)} |"
    yield "| --- |" + " ---: |" * len(known)
    found: dict[str, dict[str, Callable[[], Any]]] = {}
    for count in (1, 10, 100):
        found[f"{count} ops, computed again"] = {k: graph(v, count) for k, v in known.items()}
    for count in (1, 32, 128):
        found[f"{count} kernels, captured"] = {k: captured(v, count) for k, v in known.items()}
    for name, calls in found.items():
        timings = interleave(calls, ROUNDS, BUDGET, PAUSE)
        yield _row(name, timings, _cells(timings, known, calls, 1))


def _works(call: Callable[[], Any]) -> bool:
    """Whether the library has what is called."""
    try:
        call()
    except (AttributeError, TypeError):
        return False
    return True


def _cells(
    timings: Timings, known: Iterable[str], calls: Mapping[str, object], ops: int
) -> list[str]:
    return [f"{1e6 * timings.seconds(k) / ops:.1f}" if k in calls else "" for k in known]


def _row(name: str, timings: Timings, cells: list[str]) -> str:
    return f"| {name}{' ~' if timings.disturbed else ''} | {' | '.join(cells)} |"
