"""The lazy graph: what the user asked for, before anyone decides how to compute it.

    node ::= Data                             values that are in memory somewhere
           | Const(value)                     one number, of shape ()
           | Iota                             0, 1, 2, ... along one axis
           | Map(op, node*)                   an op on every element of equal shapes
           | Require(fault, node, bool)       a Map: the first, where the second holds; else a fault
           | Reduce(op, axes, node)           an op folded over axes, which become size 1
           | Move(movement, arg, node)        the same elements at other places
           | Gather(axis, data, index)        out[.. i ..] = data[.. index[.. i ..] ..]
           | Scatter(axis, op, base, index, source)
                                              base, with base[.. index[.. i ..] ..] op= source
           | Contiguous(node)                 the same values, in memory of their own
           | Copy(device, node)               the same values on another device
           | Assign(target, value)            the target's memory, holding value from now on
           | Slot(number)                     a kernel's argument (in kernels only)

A node never changes. When a graph is scheduled, equal nodes become one object, but for Data. Shapes
and dtypes are checked by the functions at the end of this file, when an op is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from math import prod
from operator import attrgetter
from typing import Any, TypeAlias, TypeGuard, TypeVar

from tinyml import shape as shapes
from tinyml.dtype import DType, bool_, from_text, to_text
from tinyml.errors import DTypeError, ShapeError
from tinyml.faults import Fault
from tinyml.graph import Known
from tinyml.ops import BITWISE, COMPARE, FLOAT_ONLY, INT_ONLY, REDUCE, UNSIGNED_ONLY, Movement, Op
from tinyml.roster import Roster
from tinyml.shape import Shape as Shape

Sources: TypeAlias = "tuple[LazyBuffer, ...]"
_N = TypeVar("_N", bound="LazyBuffer")


class LazyBuffer:
    """A node. `sources` are the nodes it is computed from, `arg` is all else it says."""

    __slots__ = ("__weakref__", "arg", "born", "computed", "device", "dtype", "shape", "sources")
    shape: Shape
    dtype: DType
    device: str
    sources: Sources
    arg: Any
    computed: int  # so often by plans, as far as reused.py knows: no part of what a node says
    born: int  # the age's then, likewise: no source of a node is younger

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def with_sources(self, sources: Sources, shape: Shape | None = None) -> LazyBuffer:
        """The same node on other sources of the same dtypes, and shapes if none is given."""
        if sources == self.sources:
            return self
        to = self.shape if shape is None else shape
        return node(type(self), to, self.dtype, self.device, sources, self.arg)

    def made_of(self, changed: Mapping[LazyBuffer, LazyBuffer]) -> LazyBuffer:
        """The same node on what its sources became, where they became others."""
        return self.with_sources(tuple(map(changed.get, self.sources, self.sources)))

    def __repr__(self) -> str:
        arg = "" if self.arg is None else f" {self.arg}"
        return f"<{type(self).__name__}{arg} {'x'.join(map(str, self.shape)) or '()'} {self.dtype}>"


class Data(LazyBuffer):
    """Values in memory. Each is equal to no other."""

    __slots__ = ("readers",)
    readers: Roster  # the tensors that hold (or held) this node itself


class Const(LazyBuffer):
    """One number. `arg` is its exact text, so that -0.0 is not 0.0 and NaN is NaN."""

    __slots__ = ()

    @property
    def value(self) -> float | int | bool:
        return from_text(self.arg, self.dtype)


class Iota(LazyBuffer):
    """0, 1, 2, ... along the one axis it has."""

    __slots__ = ()


def _said(place: int | None = None) -> Any:
    """What `arg` is, or what it has at a place, by a name."""
    return property(attrgetter("arg") if place is None else lambda node: node.arg[place])


class Map(LazyBuffer):
    """`arg` is the Op, applied to every element of the sources."""

    __slots__ = ()
    op: Op = _said()


class Require(Map):
    """Sources (value, bool); `arg` is what is raised where the bool is false."""

    __slots__ = ()
    op = Op.REQUIRE
    fault: Fault = _said()


class Reduce(LazyBuffer):
    """`arg` is (Op, axes). The axes have size 1 afterwards."""

    __slots__ = ()
    op: Op = _said(0)
    axes: tuple[int, ...] = _said(1)


class Move(LazyBuffer):
    """`arg` is (Movement, its argument)."""

    __slots__ = ()
    movement: Movement = _said(0)


class Gather(LazyBuffer):
    """Sources (data, index); `arg` is the axis. Shapes agree on all other axes.

    An index lies in [0, data.shape[axis]); the functional layer wraps negative ones and requires
    it. What an index outside gives is unspecified, but memory outside the data is never read.
    """

    __slots__ = ()
    axis: int = _said()


class Scatter(LazyBuffer):
    """Sources (base, index, source); `arg` is (axis, Op): base with `op=`, or `=`, at indices."""

    __slots__ = ()
    axis: int = _said(0)
    op: Op | None = _said(1)


class Contiguous(LazyBuffer):
    """The same values, stored."""

    __slots__ = ()


class Copy(LazyBuffer):
    """The source's values on this node's device."""

    __slots__ = ()


class Assign(LazyBuffer):
    """Sources (target, value): a new version of the target's memory, holding value."""

    __slots__ = ()


class Slot(LazyBuffer):
    """`arg` is a number: the kernel's argument of that number."""

    __slots__ = ()


def is_map(node: LazyBuffer, *ops: Op) -> TypeGuard[Map]:
    """Whether a node is one of these ops on elements."""
    return type(node) is Map and node.arg in ops


def is_move(node: LazyBuffer, *movements: Movement) -> TypeGuard[Move]:
    """Whether a node is one of these movements."""
    return type(node) is Move and node.arg[0] in movements


def read_sources(node: LazyBuffer) -> tuple[LazyBuffer, ...]:
    """The sources whose values `node` needs: an Assign does not read its target."""
    return node.sources[1:] if isinstance(node, Assign) else node.sources


def versions(node: LazyBuffer) -> tuple[int, LazyBuffer]:
    """How many assignments one after the other `node` is, and the leaf whose memory they write."""
    count = 0
    while isinstance(node, Assign):
        count, node = count + 1, node.sources[0]
    return count, node


def assigned(node: LazyBuffer) -> LazyBuffer:
    """The leaf whose memory an Assign writes; any other node itself."""
    return versions(node)[1]


# ---- building: each checks what it is given and returns a node ----


class Age:
    """How often graphs went on from what was kept of them."""

    now = 0


known = Known()
age = Age()
_shape_of = attrgetter("shape")


def node(
    kind: type[_N], shape: Shape, dtype: DType, device: str, sources: Sources = (), arg: Any = None
) -> _N:
    """A node of these parts: `with known:` the one that exists already, otherwise a new one.

    To look for it takes longer than to make one, and every op that is recorded makes some.
    """
    made = kind()
    made.shape, made.dtype, made.device = shape, dtype, device
    made.sources, made.arg = sources, arg
    made.computed, made.born = 0, age.now
    return known.one(made) if known.listeners else made


def data(shape: Shape, dtype: DType, device: str) -> Data:
    """A new leaf, equal to no other."""
    leaf = Data()  # not among the known nodes: nothing asks for it by what it says
    leaf.shape, leaf.dtype, leaf.device = shape, dtype, device
    leaf.sources, leaf.arg, leaf.readers = (), None, Roster()
    leaf.computed, leaf.born = 0, age.now
    for listener in filter(None, known.listeners):
        listener(leaf)
    return leaf


def const(value: Any, dtype: DType, device: str, shape: Shape = ()) -> LazyBuffer:
    """`value` everywhere in `shape`."""
    return _const(value, "" if value else str(value), dtype, device, shape)


def const_like(x: LazyBuffer, value: Any) -> LazyBuffer:
    """`value` beside each element of x."""
    return const(value, x.dtype, x.device, x.shape)


@lru_cache(maxsize=4096)  # most programs use the same few; the sign tells 0.0 and -0.0 apart
def _const(value: Any, sign: str, dtype: DType, device: str, shape: Shape) -> LazyBuffer:
    scalar = node(Const, (), dtype, device, (), to_text(value, dtype))
    return expand(reshape(scalar, (1,) * len(shape)), shape) if shape else scalar


def iota(n: int, dtype: DType, device: str) -> LazyBuffer:
    """0, 1, ..., n - 1, of shape (n,)."""
    if not dtype.is_int:
        raise DTypeError(f"iota counts in integers, not in {dtype}")
    return node(Iota, (n,), dtype, device)


def map_(op: Op, *operands: LazyBuffer) -> LazyBuffer:
    """`op` on every element. Shapes broadcast; dtypes are equal (WHERE: of the last two)."""
    return mapped(op, operands)


def mapped(op: Op, operands: Sources) -> LazyBuffer:
    """map_, of operands in a tuple. Of what is only repeated, each value is mapped once."""
    first, last = operands[0], operands[-1]
    shape, dtype, device = last.shape, last.dtype, last.device
    if len(operands) > 1:
        other = operands[1]  # of two the last
        alike = first.shape == other.shape == shape and first.device == other.device == device
        if not alike or other.dtype is not dtype:
            operands = _together(op, operands)
            shape = operands[0].shape
    elif type(last) is Move and last.arg[0] is _EXPAND:
        return expand(mapped(op, last.sources), last.shape)
    return node(Map, shape, _result_dtype(op, first.dtype, dtype), device, operands, op)


def _together(op: Op, operands: Sources) -> Sources:
    """Operands on one device, repeated to one shape; of three the last two have one dtype."""
    first, other, last = operands[0], operands[1], operands[-1]
    if not first.device == other.device == last.device:
        devices = dict.fromkeys(x.device for x in operands)
        raise ShapeError(
            f"{op.name} needs operands on one device, got {' and '.join(devices)}; move one with "
            f".to({last.device!r})"
        )
    if other.dtype is not last.dtype:
        raise DTypeError(f"{op.name} needs equal dtypes, got {[x.dtype for x in operands]}")
    to = shapes.broadcast_shape(op, *map(_shape_of, operands))
    repeated = []  # a comprehension takes longer for two
    for x in operands:
        repeated.append(x if x.shape == to else _repeated(x, to))
    return tuple(repeated)


def _repeated(x: LazyBuffer, to: Shape) -> LazyBuffer:
    """x in a shape that it is known to broadcast to."""
    new = len(to) - len(x.shape)
    if new:
        x = reshaped(x, (1,) * new + x.shape)
    return x if x.shape == to else node(Move, to, x.dtype, x.device, (x,), (_EXPAND, to))


@cache
def _result_dtype(op: Op, first: DType, dtype: DType) -> DType:
    """The dtype of `op` on operands of `dtype`, of which the first one has its own."""
    if first is not (bool_ if op is Op.WHERE else dtype):
        if op is Op.WHERE:
            raise DTypeError(f"WHERE chooses by a bool, not by {first}")
        raise DTypeError(f"{op.name} needs equal dtypes, got {[first, dtype]}")
    wrong = (
        (op in FLOAT_ONLY and not dtype.is_float)
        or (op in INT_ONLY and not dtype.is_int)
        or (op in UNSIGNED_ONLY and dtype.kind != "u")
        or ((op in BITWISE or op is Op.NOT) and dtype.is_float)
        or (op in (Op.NEG, Op.MOD) and dtype is bool_)
    )
    if wrong:
        wanted = "floats" if op in FLOAT_ONLY else f"{'unsigned ' * (op in UNSIGNED_ONLY)}integers"
        raise DTypeError(f"{op.name} is an op on {wanted}, got {dtype}; cast first")
    return bool_ if op in COMPARE else dtype


def cast(x: LazyBuffer, dtype: DType) -> LazyBuffer:
    """The values of x as `dtype`; float to int truncates, anything to bool is `!= 0`."""
    if x.dtype is dtype:
        return x
    return node(Map, x.shape, dtype, x.device, (x,), Op.CAST)


def bitcast(x: LazyBuffer, dtype: DType) -> LazyBuffer:
    """The bits of x read as another dtype of the same size."""
    if x.dtype is dtype:
        return x
    if x.dtype.itemsize != dtype.itemsize or bool_ in (x.dtype, dtype):
        raise DTypeError(f"bitcast: {x.dtype} to {dtype}: sizes differ or one is bool")
    return node(Map, x.shape, dtype, x.device, (x,), Op.BITCAST)


def require(fault: Fault, x: LazyBuffer, holds: LazyBuffer) -> LazyBuffer:
    """x, where `holds` (bool) is true everywhere; the fault is raised when it is computed."""
    if x.shape != holds.shape or holds.dtype is not bool_:
        raise ShapeError(f"require: {holds.dtype} {holds.shape} for a value of {x.shape}")
    return node(Require, x.shape, x.dtype, x.device, (x, holds), fault)


def reduce_(op: Op, x: LazyBuffer, axes: Iterable[int]) -> LazyBuffer:
    """`op` folded over `axes` (>= 0), which become size 1."""
    if op not in REDUCE:
        raise DTypeError(f"{op.name} is not a reduction")
    if x.dtype is bool_:
        raise DTypeError(f"cannot reduce bool with {op.name}; cast first")
    named, result = shapes.reduced_shape(x.shape, tuple(axes))
    return x if result == x.shape else node(Reduce, result, x.dtype, x.device, (x,), (op, named))


def gather(x: LazyBuffer, index: LazyBuffer, axis: int) -> LazyBuffer:
    """out[.. i ..] = x[.. index[.. i ..] ..] along `axis`; all other axes agree."""
    _check_index("gather", x, index, axis)
    return node(Gather, index.shape, x.dtype, x.device, (x, index), axis)


def scatter(
    base: LazyBuffer, index: LazyBuffer, source: LazyBuffer, axis: int, op: Op | None = Op.ADD
) -> LazyBuffer:
    """base with [.. index[.. i ..] ..] `op=` source[.. i ..]; None: `=`, the same if twice."""
    _check_index("scatter", base, index, axis)
    if source.shape != index.shape:
        raise ShapeError(f"scatter: source {source.shape} and index {index.shape} differ")
    if source.dtype is not base.dtype:
        raise DTypeError(f"scatter: source {source.dtype} into {base.dtype}")
    if op is not None and op not in REDUCE:
        raise DTypeError(f"scatter combines with {sorted(o.name for o in REDUCE)}, not {op.name}")
    sources = (base, index, source)
    return node(Scatter, base.shape, base.dtype, base.device, sources, (axis, op))


def _check_index(name: str, x: LazyBuffer, index: LazyBuffer, axis: int) -> None:
    if not index.dtype.is_int:
        raise DTypeError(f"{name}: indices are integers, got {index.dtype}")
    fits = len(x.shape) == len(index.shape) and all(
        a == b for i, (a, b) in enumerate(zip(x.shape, index.shape, strict=True)) if i != axis
    )
    if not fits:
        raise ShapeError(f"{name}: index {index.shape} against {x.shape} along axis {axis}")


def contiguous(x: LazyBuffer) -> LazyBuffer:
    """The values of x in memory of their own."""
    if isinstance(x, (Data, Contiguous, Assign)):
        return x
    return node(Contiguous, x.shape, x.dtype, x.device, (x,))


def copy(x: LazyBuffer, device: str) -> LazyBuffer:
    """x on another device."""
    return x if x.device == device else node(Copy, x.shape, x.dtype, device, (x,))


def assign(target: LazyBuffer, value: LazyBuffer) -> LazyBuffer:
    """The target's memory with `value` in it; whoever read the target keeps what it read."""
    if not isinstance(target, (Data, Assign)):
        raise ShapeError("assign needs a target that is in memory: realize it first")
    if target.shape != value.shape or target.dtype is not value.dtype:
        raise ShapeError(
            f"cannot assign {value.dtype} {value.shape} to {target.dtype} {target.shape}"
        )
    return node(Assign, target.shape, target.dtype, target.device, (target, value))


# ---- movement ----


_RESHAPE, _PERMUTE, _EXPAND = Movement.RESHAPE, Movement.PERMUTE, Movement.EXPAND
_PAD, _SHRINK = Movement.PAD, Movement.SHRINK


def reshape(x: LazyBuffer, to: Shape) -> LazyBuffer:
    """The same elements in row-major order, with another shape."""
    if x.shape == to:
        return x
    shapes.reshaped_shape(x.shape, to)
    return reshaped(x, to)


def reshaped(x: LazyBuffer, to: Shape) -> LazyBuffer:
    """x in another shape, of which it is known that it has as many elements."""
    while type(x) is Move and x.arg[0] is _RESHAPE:
        x = x.sources[0]  # the reshape between is not needed
        if x.shape == to:
            return x
    return node(Move, to, x.dtype, x.device, (x,), (_RESHAPE, to))


def permute(x: LazyBuffer, order: Sequence[int]) -> LazyBuffer:
    """Axis i of the result is axis order[i] of x."""
    order = tuple(order)
    to = shapes.permuted_shape(x.shape, order)
    return x if to is None else node(Move, to, x.dtype, x.device, (x,), (_PERMUTE, order))


def expand(x: LazyBuffer, to: Shape) -> LazyBuffer:
    """Axes of size 1 repeated; the number of axes stays."""
    if x.shape == to:
        return x
    shapes.expanded_shape(x.shape, to)
    return node(Move, to, x.dtype, x.device, (x,), (_EXPAND, to))


def broadcast(x: LazyBuffer, to: Shape) -> LazyBuffer:
    """New axes in front, and axes of size 1 repeated."""
    new = len(to) - len(x.shape)
    return expand(reshape(x, (1,) * new + x.shape) if new else x, to)


def pad(x: LazyBuffer, counts: shapes.Spans, value: Any = 0) -> LazyBuffer:
    """`value` added (before, after) each axis."""
    result = shapes.padded_shape(x.shape, counts)
    if result == x.shape:
        return x
    arg = counts, to_text(value, x.dtype)
    return node(Move, result, x.dtype, x.device, (x,), (_PAD, arg))


def shrink(x: LazyBuffer, spans: shapes.Spans) -> LazyBuffer:
    """Elements start <= i < stop of each axis."""
    result = shapes.shrunk_shape(x.shape, spans)
    if result == x.shape:
        return x
    return node(Move, result, x.dtype, x.device, (x,), (_SHRINK, spans))


def flip(x: LazyBuffer, axes: Iterable[int]) -> LazyBuffer:
    """Each of `axes` walked backwards."""
    kept = shapes.turned_axes(x.shape, tuple(axes))
    return node(Move, x.shape, x.dtype, x.device, (x,), (Movement.FLIP, kept)) if kept else x


def skew(x: LazyBuffer, axis: int, by: int, step: int, size: int) -> LazyBuffer:
    """out[.. i .. k ..] = x[.. i + step*k .. k ..]: a window that slides as k grows.

    i < size counts along `axis`, k along `by`; 0 where i + step*k is outside of x. With k an
    expanded axis these are the windows of a convolution; the gradient is a skew by -step.
    """
    if axis == by or step == 0 or size < 0:
        raise ShapeError(f"cannot skew axis {axis} of {x.shape} by axis {by} in steps of {step}")
    shape = shapes.replaced(x.shape, axis, size)
    return node(Move, shape, x.dtype, x.device, (x,), (Movement.SKEW, (axis, by, step, size)))
