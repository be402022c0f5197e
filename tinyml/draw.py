"""Draw: a schedule as a picture: a box around each kernel, in the language of Graphviz (dot).

    python -m tinyml "a.softmax() @ w" --shape a=64x128 --dot | dot -Tsvg > softmax.svg

Ellipses are memory: what the user holds, what kernels pass to each other, results. Inside a box
are the nodes of a kernel's graph, each in the words of `notation`; constants stand where they are
read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from tinyml import kernel, notation
from tinyml.lazy import Data, LazyBuffer, Slot
from tinyml.schedule import CopyItem, Item, KernelItem

_HEAD = """digraph schedule {
  node [fontname="Helvetica", fontsize=11, shape=box, style=filled, fillcolor=white];
  graph [fontname="Helvetica", fontsize=12, style="rounded,filled", fillcolor="#eef2ff"];
  edge [arrowsize=0.7];"""


def dot(items: Sequence[Item], known: Mapping[LazyBuffer, str]) -> str:
    """Kernels and copies in order, and the memory between; `known` nodes have names."""
    names = _memory(items, known)
    lines = [_HEAD]
    for node, name in names.items():
        label = _quoted(name, notation.kind_text(node))
        lines.append(f"  {_quoted(name)} [label={label}, shape=ellipse];")
    for number, item in enumerate(items, 1):
        if isinstance(item, CopyItem):
            words = _quoted(f"copy to {item.output.device}")
            ends = f"{_quoted(names[item.source])} -> {_quoted(names[item.output])}"
            lines.append(f"  {ends} [label={words}];")
        else:
            lines += _kernel(item, number, names)
    return "\n".join([*lines, "}"])


def _memory(items: Sequence[Item], known: Mapping[LazyBuffer, str]) -> dict[LazyBuffer, str]:
    """What each buffer is called: no two the same."""
    names: dict[LazyBuffer, str] = {}
    for node in dict.fromkeys(n for item in items for n in item.nodes):
        name = f"data{node.arg}" if isinstance(node, Data) else f"t{len(names)}"
        while name in known.values():
            name += "_"
        names[node] = known.get(node, name)
    return names


def _kernel(item: KernelItem, number: int, memory: Mapping[LazyBuffer, str]) -> Iterator[str]:
    """A box with a line for each node of a kernel's graph, and arrows to and from memory."""
    slots = [memory[node] for node in item.nodes]
    title = _quoted(f"{number}. {item.device} {kernel.name(item.kernel)}")
    yield f"  subgraph cluster{number} {{ label={title};"
    nodes = item.kernel.nodes
    read: dict[LazyBuffer, str] = {
        node: slots[node.arg] for node in nodes if isinstance(node, Slot)
    }
    lines, _ = notation.write(nodes, read)
    boxes = {node: f"{number}.{line.name}" for node, line in lines.items()}
    for node, line in lines.items():
        text = f"{line.name} = {line.text}"
        yield f"    {_quoted(boxes[node])} [label={_quoted(text, line.kind)}];"
    yield "  }"
    starts = read | boxes
    for node, box in boxes.items():
        for source in dict.fromkeys(node.sources):
            if source in starts:
                yield f"  {_quoted(starts[source])} -> {_quoted(box)};"
    for output in item.kernel.outputs:
        for root in output.roots:
            if root in starts:
                yield f"  {_quoted(starts[root])} -> {_quoted(slots[output.slot])} [style=bold];"


def _quoted(*lines: str) -> str:
    return json.dumps("\n".join(lines), ensure_ascii=False)
