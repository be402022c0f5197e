"""Explain: every value on the way of one expression, from the Tensor to its numbers.

python -m tinyml "(a + b).sum()"
python -m tinyml --device EMU --shape x=8x8 "x.softmax() @ w[:8]"
python -m tinyml "x.softmax() @ w" --dot | dot -Tsvg > kernels.svg
python -m tinyml env
"""

from __future__ import annotations

import ast
import contextlib
import platform
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tinyml import config, lazy, notation, prepare, trace
from tinyml.codegen.optimize.opts import parse
from tinyml.debug import compiled_text, schedule_text, seconds_text, target_text
from tinyml.device import Device, along_folds, open_device
from tinyml.draw import dot
from tinyml.dtypes import dtypes
from tinyml.errors import DeviceError, TinymlError
from tinyml.graph import toposort
from tinyml.schedule import KernelItem, schedule
from tinyml.tensor import Tensor

Say = Callable[[str], None]

# Small enough to read what is made of them. i has whole numbers that index rows of a.
SHAPES: dict[str, tuple[int, ...]] = {
    "a": (4, 256),
    "b": (4, 256),
    "c": (256,),
    "x": (64, 128),
    "w": (128, 32),
    "y": (32,),
    "i": (8,),
}
_ROWS = 4  # i is less than this
_ALLOWED = (
    *(ast.Expression, ast.Call, ast.keyword, ast.Attribute, ast.Subscript, ast.Slice, ast.Starred),
    *(ast.Name, ast.Load, ast.Constant, ast.Tuple, ast.List),
    *(ast.BinOp, ast.UnaryOp, ast.Compare, ast.operator, ast.unaryop, ast.cmpop),
)


class ExpressionError(TinymlError, ValueError):
    """An expression that cannot be explained, and what can."""


# ---- from text to tensors ----


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """ "a=4x256" as ("a", (4, 256)); "a=()" is one number."""
    name, equals, sizes = text.partition("=")
    parts = [] if sizes in ("", "()") else sizes.split("x")
    if not equals or not name.isidentifier() or not all(p.isdigit() for p in parts):
        raise ExpressionError(f"--shape {text}: write NAME=SIZExSIZE, as in --shape a=4x256")
    return name, tuple(map(int, parts))


def named_tensors(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Tensors of these shapes in the default device's memory, the same numbers each time."""
    rng = np.random.default_rng(0)
    found = {}
    for name, shape in shapes.items():
        if name == "i":
            values = rng.integers(0, _ROWS, shape).astype(np.int32)
        else:
            values = rng.standard_normal(shape).astype(np.float32)
        found[name] = Tensor(values)
    return found


def used_names(text: str) -> list[str]:
    """The names that an expression mentions; ExpressionError if it is none."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        where = f"\n    {text.strip()}\n    {' ' * max(0, (error.offset or 1) - 1)}^"
        raise ExpressionError(f"this is no expression of Python: {error.msg}{where}") from None
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise ExpressionError(
                f"{type(node).__name__} cannot be explained: write operators, calls of Tensor's "
                'methods and indexing, as in "(a + b).sum()"'
            )
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            raise ExpressionError(f".{node.attr} is private: write operators and public methods")
    return list(dict.fromkeys(n.id for n in ast.walk(tree) if isinstance(n, ast.Name)))


def evaluate(text: str, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """The tensor, or tuple of tensors, that an expression says; nothing is computed yet."""
    known = {**tensors, "Tensor": Tensor, "dtypes": dtypes}
    for name in used_names(text):
        if name not in known:
            raise ExpressionError(
                f"there is no {name!r}; there are {', '.join(known)}. "
                f"--shape {name}=4x256 makes a tensor of that name"
            )
    # Only names and syntax that were looked at above come here, and no builtins.
    value = eval(text.strip(), {"__builtins__": {}}, known)
    found = list(value) if isinstance(value, (tuple, list)) else [value]
    if not found or not all(isinstance(tensor, Tensor) for tensor in found):
        raise ExpressionError(
            f"{text} gives {type(value).__name__}, and only a Tensor has a way to be explained: "
            "leave out what asks for numbers, such as .item(), .numpy() or .tolist()"
        )
    return found


# ---- from tensors to text ----


def graph_text(nodes: Iterable[lazy.LazyBuffer], known: Mapping[lazy.LazyBuffer, str]) -> str:
    """A lazy graph, a line for each node."""
    nodes = list(nodes)
    lines, names = notation.write(toposort(nodes), known)
    return "\n".join([*map(str, lines.values()), *(f"result = {names[node]}" for node in nodes)])


def explain(
    text: str, shapes: Mapping[str, tuple[int, ...]], say: Say, opts: str | None = None
) -> None:
    """Say every value between the expression and its numbers, on the default device.

    Its one kernel is made as `opts` say, if they are given.
    """
    tensors = named_tensors({**SHAPES, **shapes})
    found = evaluate(text, tensors)
    mentioned = set(used_names(text))
    inputs = [f"{n}: {shape_and_dtype(t)}" for n, t in tensors.items() if n in mentioned]
    say(f"{text.strip()}   on {Device.DEFAULT}" + "".join(f"\n    {line}" for line in inputs))
    known = {tensor.lazy: name for name, tensor in tensors.items()}
    graph = graph_text([tensor.lazy for tensor in found], known)
    _section(say, "LazyBuffer", "what is wanted; nothing is computed yet", graph)
    with contextlib.ExitStack() as stack:
        events: list[trace.Event] = []
        for kind in _TOLD:
            stack.callback(trace.subscribe(kind, events.append))
        if opts is not None:
            lines = (line.strip() for line in opts.replace(";", "\n").splitlines())
            prepare.use([parse(line) for line in lines if line], _only_kernel(found))
        Tensor.realize(*found)
    for event in events:
        _TOLD[type(event)](say, event)
    for tensor in found:
        with np.printoptions(precision=5, threshold=24, edgeitems=3, linewidth=96):
            _section(say, "Result", shape_and_dtype(tensor), tensor.numpy())


def _only_kernel(wanted: list[Tensor]) -> KernelItem:
    """The kernel that computes these; ExpressionError if there are none or several."""
    runs = Device.DEFAULT != "NUMPY"
    items = schedule([tensor.lazy for tensor in wanted], along_folds()).items if runs else ()
    kernels = [item for item in items if isinstance(item, KernelItem)]
    if len(kernels) != 1:
        raise ExpressionError(
            f"--opts: they are for one kernel, and on {Device.DEFAULT} this expression has "
            f"{len(kernels)}"
        )
    return kernels[0]


def drawn(text: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The kernels that an expression becomes, and the memory between them, for Graphviz."""
    if Device.DEFAULT == "NUMPY":
        raise ExpressionError("--dot: NUMPY has no kernels to draw; --device CPU or EMU has them")
    tensors = named_tensors({**SHAPES, **shapes})
    scheduled = schedule([t.lazy for t in evaluate(text, tensors)], along_folds())
    names = {tensor.lazy: name for name, tensor in tensors.items()}
    for number, root in enumerate(scheduled.roots, 1):
        name = f"result{number if len(scheduled.roots) > 1 else ''}"
        names.setdefault(root, name + "_" * (name in tensors))
    return dot(scheduled.items, names)


def shape_and_dtype(tensor: Tensor) -> str:
    """4x256 float32."""
    return f"{notation.shape_text(tensor.shape)} {tensor.dtype}"


def _section(say: Say, value: str, what: str, text: object) -> None:
    say(f"\n== {value}: {what}\n{textwrap.indent(str(text).rstrip(), '    ')}")


def _tell_lowered(say: Say, event: trace.KernelLowered) -> None:
    name = event.program.name
    _section(say, "Kernel", f"{name}, one fused computation", event.kernel)
    _section(say, "LoopNest", "its plainest loops", event.nest)
    chosen = "\n".join(map(str, event.opts)) or "none"
    _section(say, "Opts", "decisions about these loops", chosen)
    if event.opts:
        _section(say, "LoopNest", "after the Opts", event.optimized)
    _section(say, "LinearKernel", "instructions in order", event.linear)
    took = seconds_text(event.seconds)
    _section(say, "Program", f"source text, made in {took}", event.program.source)


def _tell_ran(say: Say, event: trace.KernelRan) -> None:
    cost = event.program.cost
    work = f"{cost.flops} operations on floats, {cost.nbytes} bytes at the least"
    took = seconds_text(event.seconds)
    _section(say, "Launch", event.device, f"{event.program.name} took {took}: {work}")


def _tell_interpreted(say: Say, event: trace.Interpreted) -> None:
    text = f"numpy went through the graph, node by node, in {seconds_text(event.seconds)}"
    _section(say, "Interpreter", "no kernels here: --device CPU or EMU has them", text)


_TOLD: dict[type[trace.Event], Callable[[Say, Any], None]] = {
    trace.Scheduled: lambda s, e: _section(s, "Schedule", "which kernels, why", schedule_text(e)),
    trace.KernelLowered: _tell_lowered,
    trace.Compiled: lambda say, e: _section(say, "Compiler", e.device, compiled_text(e)),
    trace.KernelRan: _tell_ran,
    trace.Interpreted: _tell_interpreted,
}


# ---- what is here ----


def environment() -> str:
    """What tinyml finds on this computer: versions, devices, compilers, cache."""
    from tinyml import __version__

    lines = [
        f"tinyml     {__version__}, in {Path(__file__).parent}",
        f"python     {platform.python_version()}, numpy {np.__version__}, {platform.platform()}",
        *(f"{name:10} {_device(name)}" for name in ("NUMPY", "CPU", "CUDA", "EMU")),
        f"default    {Device.DEFAULT}",
        *_compilers(),
        f"cache      {_cache()}",
        f"settings   {_settings()}",
    ]
    return "\n".join(lines)


def _device(name: str) -> str:
    try:
        return target_text(open_device(name).target)
    except (DeviceError, ImportError, OSError) as error:
        return f"missing: {error}"


def _compilers() -> list[str]:
    from tinyml.runtime import cpu, nvcc

    try:
        found = cpu.host_compiler()
        version = found.version.partition("\n")[0]
        host = f"{' '.join(found.command)}: {version}"
    except DeviceError:
        host = "none"
    try:
        cuda = nvcc.find(config.current.nvcc).command
    except DeviceError as error:
        cuda = f"none: {error}"
    return [f"C          {host}", f"CUDA C     {cuda}"]


def _cache() -> str:
    folder = config.current.cache_folder
    if folder is None:
        return "none (TINYML_CACHE is empty)"
    sizes = []
    for path in folder.rglob("*") if folder.is_dir() else ():
        with contextlib.suppress(OSError):  # another process may remove it meanwhile
            sizes += [path.stat().st_size] if path.is_file() else []
    return f"{folder}: {len(sizes)} files, {sum(sizes) / 1e6:.1f} MB"


def _settings() -> str:
    default = config.Config()
    changed = {
        name: value
        for name, value in vars(config.current).items()
        if value != getattr(default, name)
    }
    return ", ".join(f"{name}={value!r}" for name, value in changed.items()) or "all as they come"
