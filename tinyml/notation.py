"""How a graph is written down: a line for each node, as one would write it on a whiteboard.

    v0 = slot1 * slot2               : 128x784x10 float32
    v1 = sum(v0) over axis 1         : 128x1x10 float32

Leaves and constants have no line: they stand where they are read. Moving a constant about
leaves it what it is, so that `expand(reshape(2))` is just 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from tinyml import lazy
from tinyml.dtype import from_text
from tinyml.lazy import LazyBuffer, Shape
from tinyml.ops import SIGN, Movement, Op

_REDUCTION = {Op.ADD: "sum", Op.MUL: "prod"}
_SHAPE_SAYS_IT = (Movement.RESHAPE, Movement.EXPAND)  # their argument is the shape of the result


@lru_cache(maxsize=1024)
def shape_text(shape: Shape) -> str:
    """(4, 256) as 4x256; no axes as ()."""
    return "x".join(map(str, shape)) or "()"


class Line(NamedTuple):
    """What is written of a node: what it is called, how it is computed, its shape and dtype."""

    name: str
    text: str
    kind: str

    def __str__(self) -> str:
        return f"{self.name:>4} = {self.text:32} : {self.kind}"


def kind_text(node: LazyBuffer) -> str:
    """Its shape and dtype: 4x256 float32."""
    return f"{shape_text(node.shape)} {node.dtype.name}"


def write(
    order: Iterable[LazyBuffer], leaves: Mapping[LazyBuffer, str] | None = None
) -> tuple[dict[LazyBuffer, Line], dict[LazyBuffer, str]]:
    """The lines of the nodes in `order` (sources first), and how each node is called in them."""
    names = dict(leaves or {})
    numbers: set[LazyBuffer] = set()  # constants, wherever they were moved to
    lines: dict[LazyBuffer, Line] = {}
    for node in order:
        moved = type(node) is lazy.Move and node.sources[0] in numbers
        moved = moved and node.arg[0] is not Movement.PAD
        if moved or type(node) is lazy.Const:
            numbers.add(node)
        if node in names:
            continue
        sources = [names[s] for s in node.sources]
        text = names[node] = sources[0] if moved else _text(node, sources)
        if node not in numbers and not isinstance(node, (lazy.Slot, lazy.Data)):
            names[node] = f"v{len(lines)}"
            lines[node] = Line(names[node], text, kind_text(node))
    return lines, names


def _text(node: LazyBuffer, sources: list[str]) -> str:
    match node:
        case lazy.Move():  # most are
            return _moved(node, sources[0])
        case lazy.Map(arg=op) if op in SIGN:
            return f"{sources[0]} {SIGN[op]} {sources[1]}"
        case lazy.Slot(arg=slot):
            return f"slot{slot}"
        case lazy.Data(arg=number):
            return f"data{number}"
        case lazy.Const(value=value):
            return f"{value:.8g}" if isinstance(value, float) else str(value)
        case lazy.Reduce(op=op, axes=axes):
            words = "axis" if len(axes) == 1 else "axes"
            head = _REDUCTION.get(op, op.name.lower())
            return f"{head}({sources[0]}) over {words} {', '.join(map(str, axes))}"
        case lazy.Map(op=op):
            target = f", {node.dtype}" if op in (Op.CAST, Op.BITCAST) else ""
            return f"{op.name.lower()}({', '.join(sources)}{target})"
        case lazy.Iota():
            return f"0, 1 .. {node.size - 1}"
        case lazy.Gather(axis=axis):
            return f"{sources[0]}[{sources[1]} on axis {axis}]"
        case lazy.Scatter(op=op, axis=axis):
            base, index, source = sources
            sign = "" if op is None else SIGN.get(op, op.name.lower())
            return f"{base} with [{index} on axis {axis}] {sign}= {source}"
        case lazy.Copy():
            return f"copy of {sources[0]} on {node.device}"
        case lazy.Assign():
            return f"{sources[0]} := {sources[1]}"
    return f"{type(node).__name__.lower()}({', '.join(sources)})"


def _moved(node: lazy.Move, source: str) -> str:
    movement, arg = node.arg
    if movement in _SHAPE_SAYS_IT:
        return f"{movement.name.lower()}({source})"
    if movement is Movement.SHRINK:
        return f"{source}[{_spans(node.sources[0].shape, arg)}]"
    if movement is Movement.PAD:
        counts, value = arg
        sides = ", ".join(f"{before}+{after}" for before, after in counts)
        return f"pad({source}, {sides} with {from_text(value, node.dtype):g})"
    return f"{movement.name.lower()}({source}, {arg})"


def _spans(shape: Shape, spans: Iterable[tuple[int, int]]) -> str:
    pairs = zip(shape, spans, strict=True)
    return ", ".join(":" if (a, b) == (0, n) else f"{a}:{b}" for n, (a, b) in pairs)
