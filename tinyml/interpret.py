"""The reference: run a graph with numpy, node by node, taking no shortcut but one.

When a backend and this file disagree, the backend is wrong. The one shortcut: a product that
is only summed goes through matmul, because the product itself may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tinyml import lazy
from tinyml.dtype import DType, bfloat16, bfloat16_bits, bfloat16_values, bool_, float32, from_text
from tinyml.faults import Fault
from tinyml.graph import toposort
from tinyml.lazy import LazyBuffer
from tinyml.ops import MEANING, REDUCE, Movement, Op

Array = npt.NDArray[Any]
Number = float | int | bool
INFINITE = (float("inf"), float("-inf"))

ACCUMULATE: dict[Op, Any] = {op: MEANING[op] for op in REDUCE}  # each has .reduce and .at


@cache
def identity(op: Op, dtype: DType) -> Any:
    """The value that leaves the other operand of `op` as it is."""
    return {Op.ADD: 0, Op.MUL: 1, Op.MAX: dtype.min, Op.MIN: dtype.max}[op]


def interpret(
    roots: Iterable[LazyBuffer], known: Mapping[LazyBuffer, Array]
) -> dict[LazyBuffer, Array]:
    """The values of `roots`, given those of the nodes in `known` (all in compute dtypes)."""
    roots = list(roots)
    order = toposort(roots, known)
    products = _products_only_summed(order, roots, known)
    last_reader = {s: node for node in order for s in _reads(node, products)}
    values: dict[LazyBuffer, Array] = {}
    with np.errstate(all="ignore"):
        for node in order:
            if node in known:
                values[node] = known[node]
                continue
            if node in products:
                continue
            values[node] = evaluate(node, values, products)
            for source in _reads(node, products):
                if last_reader[source] is node and source not in roots:
                    values.pop(source, None)  # give memory back as early as possible
    return {root: values[root] for root in roots}


def _products_only_summed(
    order: list[LazyBuffer], roots: list[LazyBuffer], known: Mapping[LazyBuffer, Array]
) -> set[LazyBuffer]:
    readers: dict[LazyBuffer, list[LazyBuffer]] = {}
    for node in order:
        for source in node.sources if node not in known else ():
            readers.setdefault(source, []).append(node)

    def qualifies(node: LazyBuffer) -> bool:
        by = readers.get(node, [])
        return (
            isinstance(node, lazy.Map)
            and node.op is Op.MUL
            and node not in known
            and node not in roots
            and len(by) == 1
            and isinstance(by[0], lazy.Reduce)
            and by[0].op is Op.ADD
        )

    return {node for node in order if qualifies(node)}


def _reads(node: LazyBuffer, products: set[LazyBuffer]) -> tuple[LazyBuffer, ...]:
    """What evaluating `node` looks at: through a product that has no array of its own."""
    return tuple(t for s in node.sources for t in (s.sources if s in products else (s,)))


def evaluate(
    node: LazyBuffer, values: Mapping[LazyBuffer, Array], products: Iterable[LazyBuffer] = ()
) -> Array:
    """The value of one node, given the values of its sources."""
    if isinstance(node, lazy.Reduce) and node.sources[0] in products:
        a, b = (values[s] for s in node.sources[0].sources)
        return rounded(contract(a, b, node.axes, node.dtype), node.dtype)
    sources = [values[s] for s in node.sources]
    match node:
        case lazy.Const(value=value):
            return rounded(np.asarray(value, node.dtype.compute), node.dtype)
        case lazy.Iota():
            return np.arange(node.shape[0]).astype(node.dtype.compute)
        case lazy.Require(fault=fault):
            return required(fault, *sources)
        case lazy.Map(op=op):
            return _map(op, node, sources)
        case lazy.Reduce(op=op, axes=axes):
            wide = (_added_up if op is Op.ADD else _accumulator)(node.dtype)
            start = identity(op, node.dtype)
            folded = ACCUMULATE[op].reduce(
                sources[0], axis=axes, dtype=wide, keepdims=True, initial=start
            )
            return rounded(np.asarray(folded), node.dtype)
        case lazy.Move(movement=movement, arg=(_, arg)):
            return MOVE[movement](sources[0], arg, node)
        case lazy.Gather(axis=axis):
            return _gather(sources[0], sources[1], axis)
        case lazy.Scatter(axis=axis, op=op):
            return scatter_into(sources, axis, op, node.dtype)
        case lazy.Contiguous() | lazy.Copy():
            return sources[0]
        case lazy.Assign():
            return sources[1]
    raise TypeError(f"cannot interpret {node!r}: its value must be known")


def _map(op: Op, node: LazyBuffer, sources: list[Array]) -> Array:
    if op is Op.CAST:
        return cast(sources[0], node.sources[0].dtype, node.dtype)
    if op is Op.BITCAST:
        return bitcast(sources[0], node.sources[0].dtype, node.dtype)
    return rounded(np.asarray(MEANING[op](*sources)), node.dtype)


def required(fault: Fault, values: Array, holds: Array) -> Array:
    """The values; the fault of the first one for which `holds` is false is raised."""
    if not holds.all():
        shape = np.broadcast_shapes(values.shape, holds.shape)
        wrong = ~np.broadcast_to(holds, shape)
        raise fault.of(np.broadcast_to(values, shape)[wrong][0])
    return values


def cast(values: Array, source: DType, target: DType) -> Array:
    """Numbers as another dtype. A float outside an integer's range wraps through int64."""
    if target is bool_:
        return np.asarray(values != 0)
    if source.is_float and target.is_int and target.itemsize < 8:
        values = values.astype(np.int64)
    return rounded(values, target)


def bitcast(values: Array, source: DType, target: DType) -> Array:
    """The same bits read as another dtype of the same size."""
    bits = bfloat16_bits(values) if source is bfloat16 else np.ascontiguousarray(values)
    read = bits.view(target.storage).reshape(values.shape)
    return bfloat16_values(read) if target is bfloat16 else read


def rounded(values: Array, dtype: DType) -> Array:
    """Numbers as `dtype` holds them, in its compute dtype."""
    if dtype is bfloat16:
        return bfloat16_values(bfloat16_bits(values.astype(np.float32, copy=False)))
    return values.astype(dtype.compute, copy=False)


def _accumulator(dtype: DType) -> np.dtype[Any]:
    return float32.compute if dtype.is_half else dtype.compute


def _added_up(dtype: DType) -> np.dtype[Any]:
    """numpy adds rows of an array one by one, and so do some libraries of its products."""
    return np.dtype(np.float64) if dtype.is_float else dtype.compute


# ---- what is known of some operands alone ----


def known_result(
    op: Op, dtype: DType, operands: Sequence[Number | None], types: Sequence[DType]
) -> Number | None:
    """The number that `op` makes of operands; None if it depends on those that are not known.

    0 times anything is taken for 0, and -inf plus anything for -inf: only what is finite is
    promised.
    """
    known = [x for x in operands if x is not None]
    if len(known) == len(operands) and (op in MEANING or op is Op.CAST):
        arrays = [np.asarray(x, t.compute) for x, t in zip(known, types, strict=True)]
        with np.errstate(all="ignore"):
            if op is Op.CAST:
                return _number(cast(arrays[0], types[0], dtype))
            return _number(rounded(np.asarray(MEANING[op](*arrays)), dtype))
    if (op is Op.MUL and 0 in known) or (op is Op.DIV and operands[0] == 0):
        return _number(np.zeros((), dtype.compute))
    if op is Op.ADD:
        return next((x for x in known if x in INFINITE), None)
    return None


def _number(value: Array) -> Number:
    number: Number = value.item()
    return number


# ---- movement ----


def _pad(x: Array, arg: Any, node: LazyBuffer) -> Array:
    counts, text = arg
    x = _once(x, {axis for axis, count in enumerate(counts) if any(count)})
    shape = [b + n + a for n, (b, a) in zip(x.shape, counts, strict=True)]
    out = np.full(shape, from_text(text, node.dtype), x.dtype)
    inside = tuple(slice(b, b + n) for n, (b, _) in zip(x.shape, counts, strict=True))
    out[inside] = x
    return np.broadcast_to(out, node.shape)


def _skew(x: Array, arg: Any, node: LazyBuffer) -> Array:
    axis, by, step, size = arg
    x = _once(x, {axis, by})
    out = np.zeros([size if a == axis else n for a, n in enumerate(x.shape)], x.dtype)
    for k in range(x.shape[by]):
        start, stop = max(0, -step * k), min(size, x.shape[axis] - step * k)
        if start < stop:
            to: list[Any] = [slice(None)] * x.ndim
            to[axis], to[by] = slice(start, stop), k
            source = list(to)
            source[axis] = slice(start + step * k, stop + step * k)
            out[tuple(to)] = x[tuple(source)]
    return np.broadcast_to(out, node.shape)


def _once(x: Array, moved: set[int]) -> Array:
    """x without its repetitions along axes on which nothing moves: they are not copied."""
    return _walked(x, [s == 0 and axis not in moved for axis, s in enumerate(x.strides)])


MOVE: dict[Movement, Callable[[Array, Any, LazyBuffer], Array]] = {
    Movement.RESHAPE: lambda x, shape, _: x.reshape(shape),
    Movement.PERMUTE: lambda x, order, _: x.transpose(order),
    Movement.EXPAND: lambda x, shape, _: np.broadcast_to(x, shape),
    Movement.PAD: _pad,
    Movement.SHRINK: lambda x, spans, _: x[tuple(slice(a, b) for a, b in spans)],
    Movement.FLIP: lambda x, axes, _: np.flip(x, axes),
    Movement.SKEW: _skew,
}


# ---- indexing ----


def _gather(x: Array, index: Array, axis: int) -> Array:
    if x.shape[axis] == 0:
        return np.zeros(index.shape, x.dtype)
    return np.take_along_axis(x, looked(index, x.shape[axis]), axis)


def looked(index: Array, size: int) -> Array:
    """The index into `size` elements; 0 for one outside, so that no foreign memory is touched."""
    index = index.astype(np.int64)
    return np.where((index >= 0) & (index < size), index, 0)


def scatter_into(sources: list[Array], axis: int, op: Op | None, dtype: DType) -> Array:
    """base with base[.. index[.. i ..] ..] `op=` source[.. i ..]; sources: base, index, source."""
    base, index, source = sources
    out = base.astype(_accumulator(dtype), copy=True)
    places: list[Array] = list(np.indices(index.shape, sparse=True))
    places[axis] = looked(index, base.shape[axis])
    if op is None:
        out[tuple(places)] = source
    elif index.size:
        ACCUMULATE[op].at(out, tuple(places), source)
    return rounded(out, dtype)


# ---- a product that is only summed ----


def contract(a: Array, b: Array, axes: tuple[int, ...], dtype: DType) -> Array:
    """sum(a * b, axes, keepdims) of broadcast arrays, as one matmul.

    An axis along which an array repeats itself (stride 0) is not walked in that array: axes
    become batch (in both, kept), m (a only), n (b only) and k (in both, summed).
    """
    wide = _added_up(dtype)
    full = a.shape
    if 0 in full:  # numpy's strides of an empty array say nothing
        return np.zeros([1 if i in axes else n for i, n in enumerate(full)], wide)
    repeats = [[s == 0 or n == 1 for s, n in zip(x.strides, full, strict=True)] for x in (a, b)]
    times = 1
    for axis in axes:  # summed, but in neither: each term comes `size` times
        if repeats[0][axis] and repeats[1][axis]:
            times *= full[axis]
    a, b = (_walked(x.astype(wide, copy=False), r) for x, r in zip((a, b), repeats, strict=True))
    a = a.sum(tuple(i for i in axes if repeats[1][i]), keepdims=True, dtype=wide)
    b = b.sum(tuple(i for i in axes if repeats[0][i]), keepdims=True, dtype=wide)
    rank = range(len(full))
    in_a = [i for i in rank if a.shape[i] != 1]
    in_b = [i for i in rank if b.shape[i] != 1]
    k = [i for i in in_a if i in in_b and i in axes]
    batch = [i for i in in_a if i in in_b and i not in axes]
    m, n = [i for i in in_a if i not in in_b], [i for i in in_b if i not in in_a]
    left, right = _as_matrix(a, batch, m, k), _as_matrix(b, batch, k, n)
    product = np.matmul(left, right).reshape([full[i] for i in batch + m + n])
    kept = sorted(batch + m + n)
    product = product.transpose([(batch + m + n).index(i) for i in kept])
    shape = [1 if i in axes else (full[i] if i in kept else 1) for i in rank]
    out = tuple(1 if i in axes else full[i] for i in rank)
    return np.broadcast_to(product.reshape(shape) * np.asarray(times, wide), out)


def _walked(x: Array, repeats: list[bool]) -> Array:
    """x without its repetitions: size 1 along the axes where it repeats itself."""
    index = [slice(0, 1) if r and n else slice(None) for r, n in zip(repeats, x.shape, strict=True)]
    walked: Array = x[tuple(index)]
    return walked


def _as_matrix(x: Array, batch: list[int], rows: list[int], columns: list[int]) -> Array:
    order = batch + rows + columns
    rest = [i for i in range(x.ndim) if i not in order]
    sizes = [int(np.prod([x.shape[i] for i in group])) for group in (batch, rows, columns)]
    matrix: Array = x.transpose(order + rest).reshape(sizes)
    return matrix
