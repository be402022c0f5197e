"""Random graphs of every primitive, for hypothesis.

Values stay tame, so that the runners can be compared: whole numbers wrap around exactly, and
floats go through tanh after whatever makes them large.
"""

from __future__ import annotations

from math import prod

from graphs import DEVICE, leaf
from hypothesis import strategies as st

from tinyml import lazy
from tinyml.dtype import DType, bool_, float32, int32
from tinyml.lazy import LazyBuffer
from tinyml.ops import Op

MOST = 600  # elements of any node
Draw = st.DrawFn

INTS = (Op.ADD, Op.MUL, Op.MAX, Op.MIN, Op.IDIV, Op.MOD, Op.AND, Op.OR, Op.XOR, Op.SHL, Op.SHR)
FLOATS = (Op.ADD, Op.MUL, Op.MAX, Op.MIN)


@st.composite
def graphs(draw: Draw, most_steps: int = 9) -> list[LazyBuffer]:
    """One to three roots over shared subexpressions."""
    dtype = draw(st.sampled_from((float32, float32, int32)))
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    pool = [leaf(*shape, dtype=dtype)]
    for _ in range(draw(st.integers(1, most_steps))):
        x = pool[draw(st.integers(0, len(pool) - 1))] if draw(st.booleans()) else pool[-1]
        made = draw(st.sampled_from(STEPS))(draw, x, pool)
        if made.size <= MOST:
            pool.append(made)
    count = draw(st.integers(1, min(3, len(pool))))
    return [_stored(node) for node in dict.fromkeys([pool[-1], *pool[: count - 1]])]


def _stored(node: LazyBuffer) -> LazyBuffer:
    """A root that takes a kernel."""
    return lazy.map_(Op.NEG, node) if isinstance(node, lazy.Data) else node


# ---- one step each ----


def _unary(draw: Draw, x: LazyBuffer, pool: list[LazyBuffer]) -> LazyBuffer:
    ops = (Op.NEG, Op.ABS, Op.TANH, Op.SIN, Op.EXP) if x.dtype.is_float else (Op.NEG, Op.NOT)
    op = draw(st.sampled_from(ops))
    if op in (Op.SIN, Op.EXP):
        x = lazy.map_(Op.TANH, x)
    return lazy.map_(op, x)


def _binary(draw: Draw, x: LazyBuffer, pool: list[LazyBuffer]) -> LazyBuffer:
    op = draw(st.sampled_from(FLOATS if x.dtype.is_float else INTS))
    made = lazy.map_(op, x, _partner(draw, x, pool))
    return lazy.map_(Op.TANH, made) if x.dtype.is_float and op is Op.MUL else made


def _partner(draw: Draw, x: LazyBuffer, pool: list[LazyBuffer]) -> LazyBuffer:
    """Something of x's shape: a node there is, a number, a row or column repeated, a new leaf."""
    same = [y for y in pool if y.shape == x.shape and y.dtype is x.dtype]
    choice = draw(st.integers(0, 4))
    if choice == 0 or (choice == 1 and not x.shape):
        return lazy.const(draw(st.integers(-3, 3)), x.dtype, DEVICE, x.shape)
    if choice in (1, 2):
        kept = [draw(st.booleans()) for _ in x.shape]
        small = tuple(n if k else 1 for n, k in zip(x.shape, kept, strict=True))
        return lazy.expand(leaf(*small, dtype=x.dtype), x.shape)
    return draw(st.sampled_from(same)) if same else leaf(*x.shape, dtype=x.dtype)


def _choose(draw: Draw, x: LazyBuffer, pool: list[LazyBuffer]) -> LazyBuffer:
    """Chosen by a comparison of leaves, which no rounding can turn around."""
    a, b = (leaf(*x.shape, dtype=x.dtype) for _ in range(2))
    op = draw(st.sampled_from((Op.LESS, Op.LESS_EQUAL, Op.EQUAL)))
    chosen = lazy.map_(op, a, b)
    if draw(st.booleans()):
        chosen = lazy.map_(Op.NOT, chosen)
    return lazy.map_(Op.WHERE, chosen, x, _partner(draw, x, pool))


def _count(draw: Draw, x: LazyBuffer, pool: list[LazyBuffer]) -> LazyBuffer:
    """Positions along an axis as values."""
    if not x.shape:
        return x
    axis = draw(st.integers(0, len(x.shape) - 1))
    flat = lazy.iota(x.shape[axis], int32, DEVICE)
    placed = lazy.reshape(flat, tuple(n if a == axis else 1 for a, n in enumerate(x.shape)))
    placed = lazy.expand(lazy.cast(placed, x.dtype), x.shape)
    made = lazy.map_(Op.ADD, x, placed)
    return lazy.map_(Op.TANH, made) if x.dtype.is_float else made


def _convert(draw: Draw, x: LazyBuffer, pool: list[LazyBuffer]) -> LazyBuffer:
    if x.dtype.is_float:
        bits = lazy.bitcast(x, int32)
        return lazy.bitcast(
            lazy.map_(Op.XOR, bits, lazy.const(1 << 31, int32, DEVICE, x.shape)), float32
        )
    there: DType = draw(st.sampled_from((bool_,)))
    return lazy.cast(lazy.cast(x, there), x.dtype)


def _reduce(draw: Draw, x: LazyBuffer, pool: list[LazyBuffer]) -> LazyBuffer:
    if not x.shape:
        return x
    axes = draw(st.sets(st.integers(0, len(x.shape) - 1), min_size=1))
    op = draw(st.sampled_from((Op.ADD, Op.ADD, Op.MAX, Op.MIN)))
    made = lazy.reduce_(op, x, axes)
    made = lazy.map_(Op.TANH, made) if x.dtype.is_float and op is Op.ADD else made
    if draw(st.booleans()):
        return lazy.expand(made, x.shape)
    kept = tuple(n for a, n in enumerate(x.shape) if a not in axes)
    return lazy.reshape(made, kept) if draw(st.booleans()) else made


def _product(draw: Draw, x: LazyBuffer, pool: list[LazyBuffer]) -> LazyBuffer:
    """A contraction with a new leaf, over the last axis."""
    if not x.shape:
        return x
    *front, k = x.shape
    n = draw(st.integers(1, 5))
    full = (*front, k, n)
    if prod(full) > 4 * MOST:
        return x
    left = lazy.expand(lazy.reshape(x, (*x.shape, 1)), full)
    right = lazy.reshape(leaf(k, n, dtype=x.dtype), (1,) * len(front) + (k, n))
    both = lazy.map_(Op.MUL, left, lazy.expand(right, full))
    made = lazy.reshape(lazy.reduce_(Op.ADD, both, (len(front),)), (*front, n))
    return lazy.map_(Op.TANH, made) if x.dtype.is_float else made


def _reshape(draw: Draw, x: LazyBuffer, pool: list[LazyBuffer]) -> LazyBuffer:
    sizes: list[int] = []
    rest = x.size
    while rest > 1 and len(sizes) < 3:
        divisors = [d for d in range(1, rest + 1) if rest % d == 0]
        sizes.append(draw(st.sampled_from(divisors)))
        rest //= sizes[-1]
    return lazy.reshape(x, (*sizes, rest))


def _permute(draw: Draw, x: LazyBuffer, pool: list[LazyBuffer]) -> LazyBuffer:
    return lazy.permute(x, draw(st.permutations(range(len(x.shape)))))


def _expand(draw: Draw, x: LazyBuffer, pool: list[LazyBuffer]) -> LazyBuffer:
    at = draw(st.integers(0, len(x.shape)))
    single = lazy.reshape(x, (*x.shape[:at], 1, *x.shape[at:]))
    return lazy.expand(single, (*x.shape[:at], draw(st.integers(1, 4)), *x.shape[at:]))


def _pad(draw: Draw, x: LazyBuffer, pool: list[LazyBuffer]) -> LazyBuffer:
    counts = tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in x.shape)
    return lazy.pad(x, counts, draw(st.integers(-1, 1)))


def _shrink(draw: Draw, x: LazyBuffer, pool: list[LazyBuffer]) -> LazyBuffer:
    spans = []
    for n in x.shape:
        start = draw(st.integers(0, n - 1))
        spans.append((start, draw(st.integers(start + 1, n))))
    return lazy.shrink(x, tuple(spans))


def _flip(draw: Draw, x: LazyBuffer, pool: list[LazyBuffer]) -> LazyBuffer:
    return lazy.flip(x, [a for a in range(len(x.shape)) if draw(st.booleans())])


def _skew(draw: Draw, x: LazyBuffer, pool: list[LazyBuffer]) -> LazyBuffer:
    if len(x.shape) < 2:
        return x
    axis, by = draw(st.permutations(range(len(x.shape))))[:2]
    step = draw(st.sampled_from((-2, -1, 1, 2)))
    return lazy.skew(x, axis, by, step, draw(st.integers(1, x.shape[axis] + 2)))


def _gather(draw: Draw, x: LazyBuffer, pool: list[LazyBuffer]) -> LazyBuffer:
    if not x.shape:
        return x
    axis = draw(st.integers(0, len(x.shape) - 1))
    count = draw(st.integers(1, 6))
    small = tuple(count if a == axis else 1 for a in range(len(x.shape)))
    shape = tuple(count if a == axis else n for a, n in enumerate(x.shape))
    looked = _index(leaf(*small, dtype=int32), x.shape[axis])
    return lazy.gather(x, lazy.expand(looked, shape), axis)


def _index(x: LazyBuffer, size: int) -> LazyBuffer:
    """Whole numbers as indices into `size` elements."""
    return lazy.map_(Op.MOD, x, lazy.const(size, int32, DEVICE, x.shape))


def _scatter(draw: Draw, x: LazyBuffer, pool: list[LazyBuffer]) -> LazyBuffer:
    if not x.shape:
        return x
    axis = draw(st.integers(0, len(x.shape) - 1))
    size = draw(st.integers(1, 5))
    shape = tuple(size if a == axis else n for a, n in enumerate(x.shape))
    base = lazy.const(draw(st.integers(-1, 1)), x.dtype, DEVICE, shape)
    op = draw(st.sampled_from((Op.ADD, Op.MAX)))
    at = _index(leaf(*x.shape, dtype=int32), size)
    made = lazy.scatter(base, at, x, axis, op)
    return lazy.map_(Op.TANH, made) if x.dtype.is_float else made


def _contiguous(draw: Draw, x: LazyBuffer, pool: list[LazyBuffer]) -> LazyBuffer:
    return lazy.contiguous(x)


STEPS = (
    _unary, _binary, _binary, _choose, _count, _convert, _reduce, _reduce, _product, _reshape,
    _permute, _expand, _pad, _shrink, _flip, _skew, _gather, _scatter, _contiguous,
)  # fmt: skip
