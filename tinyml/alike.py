"""Alike: kernels of one schedule that differ in numbers only become one, which reads the numbers.

All turns of a loop are one schedule if nobody reads meanwhile what they make: a cell goes along a
sequence, a sampler along a list of variances. Each turn reads another slice, or has other numbers
beside its tensors, and would have kernels of its own. Of many such kernels the numbers are data,
as those of graphs are that differ in numbers only (`tinyml/varying.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tinyml import lazy
from tinyml.dtype import DType
from tinyml.frozen import replace
from tinyml.graph import toposort
from tinyml.kernel import Kernel, said
from tinyml.lazy import Data, LazyBuffer
from tinyml.ops import Movement
from tinyml.schedule import Item, KernelItem
from tinyml.varying import Number, besides, numbers, with_data

FEW = 8  # kernels that differ in numbers and are compiled as they are

Held = dict[tuple[str, DType, str], Data]  # the leaf that holds a number, as text, on a device


def alike(items: Sequence[Item]) -> tuple[list[Item], Held]:
    """The items, of which many that differ in numbers have one kernel, and what these read."""
    families: dict[Hashable, list[tuple[int, KernelItem]]] = {}
    for place, item in enumerate(items):
        if isinstance(item, KernelItem):
            k = item.kernel  # of which only values have numbers that can be data
            others = tuple(o for o in k.outputs if o.index is not None or o.where is not None)
            family = item.device, said(k, besides), others
            families.setdefault(family, []).append((place, item))
    found, held = [*items], Held()
    for members in families.values():
        if len({item.kernel for _, item in members}) > FEW:
            each = [numbers(item.kernel.nodes) for _, item in members]
            texts = [{n.text for n in those} for those in zip(*each, strict=True)]
            differ = [i for i, of_all in enumerate(texts) if len(of_all) > 1]
            if all(_can_be_data(own[i]) for own in each for i in differ):
                for (place, item), own in zip(members, each, strict=True):
                    found[place] = _reading(item, [own[i] for i in differ], held)
    return found, held


def _can_be_data(number: Number) -> bool:
    """A float; or where a slice of no sums begins, unless there are vectors along it."""
    node = number.node
    if number.axis < 0:
        return node.dtype.is_float
    along = number.axis == len(node.shape) - 1 and node.shape[-1] > 1
    folded = any(isinstance(below, lazy.Reduce) for below in toposort([node]))
    return node.arg[0] is Movement.SHRINK and not along and not folded


def _reading(item: KernelItem, differ: Sequence[Number], held: Held) -> KernelItem:
    """The item with a kernel that reads these numbers."""
    k, inputs = item.kernel, [*item.inputs]
    slots, read = [*k.slots], dict[Number, LazyBuffer]()
    for number in differ:
        dtype, device = number.dtype, number.node.device
        read[number] = lazy.node(lazy.Slot, (), dtype, device, (), len(slots))
        slots.append(((), dtype))
        key = number.text, dtype, item.device
        inputs.append(held.setdefault(key, lazy.data((), dtype, item.device)))
    values = iter(with_data([o.value for o in k.outputs], read))
    parts = tuple(tuple(replace(o, value=next(values)) for o in part) for part in k.parts)
    return replace(item, kernel=Kernel(parts, tuple(slots)), inputs=tuple(inputs))
