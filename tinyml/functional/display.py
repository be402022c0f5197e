"""How a tensor is shown. Nothing is ever computed for it: what is not known yet, it says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tinyml import lazy, trace
from tinyml import realize as realizing
from tinyml.dtype import to_compute

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


def describe(x: Tensor) -> str:
    """Values, abbreviated as numpy does, if they are in memory; else what they will be like."""
    grad = ", requires_grad=True" if x.requires_grad else ""
    node = x.lazy
    if type(node) is lazy.Data and not trace.wanted(trace.HostRead):  # a JIT allows no looking
        values = to_compute(realizing.download(node), node.dtype)
        text = np.array2string(values, separator=", ", prefix="Tensor(")
        sizes = "" if values.size else f"shape={x.shape}, "
    elif type(node) is lazy.Const:
        text, sizes = str(node.value), ""
    else:
        return f"<Tensor {x.shape} {x.dtype} on {x.device}{grad}, not computed yet>"
    return f"Tensor({text}, {sizes}dtype={x.dtype}, device={x.device}{grad})"


def format_number(x: Tensor, spec: str) -> str:
    """`f"{x:.2f}"` of a tensor of no axes, as its number; without a spec any tensor as it is."""
    if not x.ndim:
        return format(x.item(), spec)
    if spec:
        raise TypeError(
            f"format: {spec!r} is for one number, and this tensor has shape {x.shape}; index it, "
            "or reduce it first, or format the numbers of .tolist()"
        )
    return str(x)
