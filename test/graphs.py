"""Small graphs of lazy nodes that many tests use, and values for their leaves."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tinyml import Tensor, lazy
from tinyml.dtype import ALL, DType, bool_, float32, int32, to_compute, to_storage
from tinyml.errors import DTypeError
from tinyml.faults import Fault
from tinyml.graph import toposort
from tinyml.lazy import LazyBuffer
from tinyml.ops import REDUCE, UNARY, Op

Array = npt.NDArray[Any]
DEVICE = "CPU"  # only a word here: it is not NUMPY, so kernels are fused


def leaf(*shape: int, dtype: DType = float32) -> LazyBuffer:
    return lazy.data(shape, dtype, DEVICE)


def memory(*shape: int, dtype: DType = float32, device: str = DEVICE) -> Tensor:
    """A tensor of which only shape and dtype count: however large, it takes no memory."""
    return Tensor._of(lazy.data(shape, dtype, device))


def const(value: float, like: LazyBuffer) -> LazyBuffer:
    return lazy.const(value, like.dtype, DEVICE, like.shape)


def add(x: LazyBuffer, y: LazyBuffer) -> LazyBuffer:
    return lazy.map_(Op.ADD, x, y)


def mul(x: LazyBuffer, y: LazyBuffer) -> LazyBuffer:
    return lazy.map_(Op.MUL, x, y)


def sub(x: LazyBuffer, y: LazyBuffer) -> LazyBuffer:
    return add(x, lazy.map_(Op.NEG, y))


def total(x: LazyBuffer, *axes: int) -> LazyBuffer:
    return lazy.reduce_(Op.ADD, x, axes)


def spread(x: LazyBuffer, shape: tuple[int, ...]) -> LazyBuffer:
    """x with axes of size 1 put in front, then repeated."""
    return lazy.expand(lazy.reshape(x, (1,) * (len(shape) - len(x.shape)) + x.shape), shape)


def softmax(x: LazyBuffer) -> LazyBuffer:
    """Of the last axis."""
    last = len(x.shape) - 1
    peak = lazy.reduce_(Op.MAX, x, (last,))
    e = lazy.map_(Op.EXP, sub(x, spread(peak, x.shape)))
    return lazy.map_(Op.DIV, e, spread(total(e, last), x.shape))


def attention(rows: int, keys: int, depth: int, width: int) -> LazyBuffer:
    """softmax(q @ k.T) @ v"""
    scores = matmul(leaf(rows, depth), lazy.permute(leaf(keys, depth), (1, 0)))
    return matmul(softmax(scores), leaf(keys, width))


def layernorm(x: LazyBuffer) -> LazyBuffer:
    last = len(x.shape) - 1
    mean = total(mul(x, const(1 / x.shape[last], x)), last)
    centred = sub(x, spread(mean, x.shape))
    variance = total(mul(mul(centred, centred), const(1 / x.shape[last], x)), last)
    root = lazy.map_(Op.SQRT, add(variance, const(1e-5, variance)))
    return lazy.map_(Op.DIV, centred, spread(root, x.shape))


def matmul(a: LazyBuffer, b: LazyBuffer) -> LazyBuffer:
    (m, k), (_, n) = a.shape, b.shape
    left = lazy.expand(lazy.reshape(a, (m, k, 1)), (m, k, n))
    right = lazy.expand(lazy.reshape(b, (1, k, n)), (m, k, n))
    return lazy.reshape(total(mul(left, right), 1), (m, n))


def linear_relu(m: int, k: int, n: int, dtype: DType = float32) -> LazyBuffer:
    made = matmul(leaf(m, k, dtype=dtype), leaf(k, n, dtype=dtype))
    biased = add(made, spread(leaf(n, dtype=dtype), (m, n)))
    return lazy.map_(Op.MAX, biased, const(0, biased))


def convolution(n: int, cin: int, height: int, width: int, cout: int) -> LazyBuffer:
    """3x3, padded by one."""
    x, w = leaf(n, cin, height, width), leaf(cout, cin, 3, 3)
    shape = (n, cin, height + 2, width + 2, 3, 3)
    p = lazy.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    p = lazy.expand(lazy.reshape(p, (*shape[:4], 1, 1)), shape)
    p = lazy.skew(lazy.skew(p, 2, 4, 1, height), 3, 5, 1, width)
    walked = (n, cout, cin, height, width, 3, 3)
    p = lazy.expand(lazy.reshape(p, (n, 1, cin, height, width, 3, 3)), walked)
    w = lazy.expand(lazy.reshape(w, (1, cout, cin, 1, 1, 3, 3)), walked)
    return lazy.reshape(total(mul(p, w), 2, 5, 6), (n, cout, height, width))


def window_gradient(rows: int, size: int, window: int, step: int) -> LazyBuffer:
    """Of sums over windows that move by `step` and are weighted: what each element contributed."""
    places = (size - window) // step + 1
    g, w = leaf(rows, places), leaf(window)
    g = lazy.expand(lazy.reshape(g, (rows, places, 1)), (rows, places, window))
    product = mul(g, lazy.expand(lazy.reshape(w, (1, 1, window)), g.shape))
    spread = lazy.reshape(product, (rows, places, 1, window))
    spread = lazy.pad(spread, ((0, 0), (0, 0), (0, step - 1), (0, 0)))
    spread = lazy.reshape(spread, (rows, places * step, window))
    return lazy.reshape(total(lazy.skew(spread, 1, 2, -1, size), 2), (rows, size))


def gradient_of_transposed_windows(width: int, dtype: DType = float32) -> LazyBuffer:
    """Of 6 channels side by side, each read from its end to its start."""
    x, w = memory(1, 4, 2, dtype=dtype), memory(4, 6, width, dtype=dtype)
    seed = memory(1, 6, 2 * width, dtype=dtype)
    (made,) = (x.conv_transpose2d(w, stride=width) * seed).sum().gradient(x)
    return made.lazy


def embedding(rows: int, width: int, count: int) -> LazyBuffer:
    index = lazy.reshape(leaf(count, dtype=int32), (count, 1))
    return lazy.gather(leaf(rows, width), lazy.expand(index, (count, width)), 0)


def embedding_gradient(rows: int, width: int, count: int) -> LazyBuffer:
    index = lazy.expand(lazy.reshape(leaf(count, dtype=int32), (count, 1)), (count, width))
    return lazy.scatter(leaf(rows, width), index, leaf(count, width), 0)


def elementwise(*shape: int, dtype: DType = float32) -> LazyBuffer:
    x, y = leaf(*shape, dtype=dtype), leaf(*shape, dtype=dtype)
    return add(mul(x, y), const(1, x))


def values(roots: Iterable[LazyBuffer], seed: int = 0) -> dict[LazyBuffer, Array]:
    """Numbers for every leaf below `roots`: floats around 0, whole numbers from 0 to 4."""
    rng = np.random.default_rng(seed)
    found: dict[LazyBuffer, Array] = {}
    for node in toposort(roots):
        if isinstance(node, lazy.Data):
            found[node] = numbers(rng, node.shape, node.dtype)
    return found


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    """Random values that a buffer of `dtype` can hold, as numbers to compute with."""
    if dtype is bool_:
        return rng.random(shape) > 0.5
    if dtype.is_float:
        drawn = rng.standard_normal(prod(shape)).reshape(shape).astype(dtype.compute)
        return to_compute(to_storage(drawn, dtype), dtype)
    return rng.integers(0, 5, shape).astype(dtype.compute)


# ---- one graph per op and dtype ----

POSITIVE = frozenset({Op.LOG, Op.LOG2, Op.SQRT, Op.POW})


FAULT = Fault(ValueError, "{} is not itself")


def admits(op: Op, dtype: DType) -> bool:
    """Whether `op` is recorded on operands of `dtype`."""
    if op in (Op.CAST, Op.BITCAST):
        return False  # see casts
    if op is Op.REQUIRE:
        return True
    try:
        apply(op, dtype, (1,))
    except DTypeError:
        return False
    return True


def apply(op: Op, dtype: DType, shape: tuple[int, ...]) -> LazyBuffer:
    """`op` on leaves of `dtype`."""
    x = leaf(*shape, dtype=dtype)
    if op is Op.REQUIRE:  # what holds for all numbers, but is not seen to
        same = lazy.map_(Op.EQUAL, x, x)
        return lazy.require(FAULT, x, lazy.map_(Op.OR, same, lazy.map_(Op.NOT, same)))
    if op in UNARY:
        return lazy.map_(op, x)
    y = leaf(*shape, dtype=dtype)
    if op is Op.WHERE:
        return lazy.map_(op, leaf(*shape, dtype=bool_), x, y)
    if op in (Op.FMA, Op.LOGISTIC):
        return lazy.map_(op, x, y, leaf(*shape, dtype=dtype))
    return lazy.map_(op, x, y)


def op_table(dtype: DType, shape: tuple[int, ...]) -> dict[str, LazyBuffer]:
    """Everything that can be done to numbers of `dtype`, by name."""
    table = {op.name: apply(op, dtype, shape) for op in Op if admits(op, dtype)}
    x = leaf(*shape, dtype=dtype)
    for target in ALL:
        if target is not dtype:
            table[f"CAST {target}"] = lazy.cast(x, target)
        same_size = target is not dtype and target.itemsize == dtype.itemsize
        if same_size and bool_ not in (target, dtype):
            table[f"BITCAST {target}"] = lazy.bitcast(x, target)
    if dtype is not bool_:
        for op in sorted(REDUCE, key=lambda op: op.name):
            table[f"fold {op.name}"] = lazy.reduce_(op, x, (len(shape) - 1,))
            at = lazy.data((5, *shape[1:]), int32, DEVICE)
            source = leaf(5, *shape[1:], dtype=dtype)
            table[f"scatter {op.name}"] = lazy.scatter(x, at, source, 0, op)
    return table


def corner_values(node: LazyBuffer, seed: int = 0) -> dict[LazyBuffer, Array]:
    """Numbers for the leaves of one op, extreme ones among them where the op defines them."""
    rng = np.random.default_rng(seed)
    op = node.op if isinstance(node, lazy.Map) else None
    found: dict[LazyBuffer, Array] = {}
    for source in toposort([node]):
        if isinstance(source, lazy.Data):
            drawn = numbers(rng, source.shape, source.dtype)
            if source.dtype.is_float:
                unsigned = op is Op.CAST and node.dtype.kind == "u"
                drawn = np.abs(drawn) * 3 if op in POSITIVE or unsigned else drawn * 3
                drawn = to_compute(to_storage(drawn, source.dtype), source.dtype)
            if op is not None and drawn.size > 16:
                flat = drawn.reshape(-1)
                corners = _corners(op, source.dtype, node.dtype)
                flat[: len(corners)] = rng.permutation(np.asarray(corners, flat.dtype))
            found[source] = drawn
    return found


def _corners(op: Op, dtype: DType, target: DType) -> list[Any]:
    if dtype is bool_:
        return [True, False]
    if not dtype.is_float:
        return [dtype.min, dtype.max, 0, 1]
    if op is Op.CAST and not target.is_float:
        low = 0.0 if target.kind == "u" else -2.5
        return [0.0, 0.5, 1.5, low, 2.75] if target is not bool_ else [0.0, -0.0, 0.5]
    if op in (Op.BITCAST, Op.ERF, Op.TANH, Op.EXP, Op.EXP2, Op.MOD, Op.LOGISTIC, Op.NDTR):
        return [0.0, -0.0, 1.0, -1.0, 8.0, -8.0]
    finite = [0.0, -0.0, 1.0]
    return [*finite, float("inf"), float("nan"), *([] if op in POSITIVE else [float("-inf"), -1.0])]
