"""Random numbers: a function of (seed, number of the draw, number of the element).

The seed and the draw's number lie in a leaf of three uint32 that is uploaded when a draw is
asked for. So a draw has its values from then on, whenever it is computed and on whatever
device, and the kernel that computes it is the same one for every draw.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tinyml import config, lazy, trace
from tinyml import realize as realizing
from tinyml.device import Device
from tinyml.dtype import DType, float32, float64, index_dtype, uint32, uint64
from tinyml.dtypes import DTypeLike, dtypes, to_dtype
from tinyml.errors import ArgumentError, DTypeError, ShapeError
from tinyml.functional.axes import check_numbers, new_shape, number, whole
from tinyml.functional.bounded import probabilities, required
from tinyml.functional.steps import composition
from tinyml.lazy import LazyBuffer, Shape
from tinyml.ops import Op
from tinyml.turn import short_lock

if TYPE_CHECKING:
    from tinyml.tensor import Tensor

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
WORD, SMALL = 0xFFFFFFFF, 0xFFFF


Draws: TypeAlias = list[LazyBuffer]  # what their numbers are computed from


class _Listeners(threading.local):
    """Who notes the draws of this thread, and what it draws again instead."""

    def __init__(self) -> None:
        self.noted: list[Draws] = []
        self.repeated: list[Iterator[LazyBuffer]] = []


class Generator:
    """The stream of draws, of all threads: a seed, and how many draws there have been."""

    def __init__(self, seed: int) -> None:
        self.seed, self.draws = seed, 0
        self._here = _Listeners()
        self._counting = short_lock()

    def next_leaf(self, device: str) -> LazyBuffer:
        """Seed and number of the next draw: a new one, unless old ones are being repeated."""
        here = self._here
        if here.repeated:
            leaf = next(here.repeated[-1])
        else:
            draw = self.advance()
            words = np.array((*self.seed_words, draw & WORD), np.uint32)
            leaf = made = realizing.upload(words, uint32, device)
            trace.emit(trace.RandomDrawn(made, draw))
        for draws in here.noted:
            draws.append(leaf)
        return leaf

    @contextmanager
    def noting(self) -> Iterator[Draws]:
        """Note in a list what is drawn from now on."""
        draws: Draws = []
        self._here.noted.append(draws)
        try:
            yield draws
        finally:
            self._here.noted.pop()

    @contextmanager
    def repeating(self, draws: Draws) -> Iterator[None]:
        """Draw these again, in order."""
        self._here.repeated.append(iter(draws))
        try:
            yield
        finally:
            self._here.repeated.pop()

    def advance(self, count: int = 1) -> int:
        """The number of the next draw, which so many more follow."""
        with self._counting:
            self.draws += count
            return self.draws - count

    @property
    def seed_words(self) -> tuple[int, int]:
        """What leaves begin with, before the draw's number."""
        return self.seed & WORD, (self.seed >> 32) & WORD


generator = Generator(config.current.seed)


def manual_seed(seed: int = 0) -> None:
    """Begin the stream of random numbers anew."""
    generator.seed, generator.draws = whole(seed, "manual_seed", "the seed"), 0


def threefry(
    key: tuple[LazyBuffer, LazyBuffer], counter: tuple[LazyBuffer, LazyBuffer]
) -> tuple[LazyBuffer, LazyBuffer]:
    """Threefry-2x32 with 20 rounds (Salmon et al., Parallel random numbers, 2011)."""
    const = partial(lazy.const_like, counter[0])
    parity = lazy.map_(Op.XOR, lazy.map_(Op.XOR, *key), const(0x1BD11BDA))
    keys = (*key, parity)
    x, y = (lazy.map_(Op.ADD, c, k) for c, k in zip(counter, key, strict=True))
    for group in range(5):
        for by in _ROTATIONS[group % 2]:
            x = lazy.map_(Op.ADD, x, y)
            y = lazy.map_(Op.XOR, x, lazy.map_(Op.ROTL, y, const(by)))
        x = lazy.map_(Op.ADD, x, keys[(group + 1) % 3])
        y = lazy.map_(Op.ADD, y, lazy.map_(Op.ADD, keys[(group + 2) % 3], const(group + 1)))
    return x, y


def _counter(kind: type[Tensor], device: str | None) -> Tensor:
    """The leaf with the seed and the number of the next draw."""
    return kind._constant(generator.next_leaf(Device.canonical(device)))


def _words(counter: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Two independent uint32 for each element of `shape`."""
    leaf, count, kind = counter.lazy, math.prod(shape), type(counter)
    if not count:
        empty = kind._of(lazy.const(0, uint32, leaf.device, shape))
        return empty, empty
    k0, k1, number = (lazy.expand(lazy.shrink(leaf, ((i, i + 1),)), (count,)) for i in range(3))
    words = threefry((k0, k1), (lazy.iota(count, uint32, leaf.device), number))
    return (kind._of(lazy.reshape(words[0], shape)), kind._of(lazy.reshape(words[1], shape)))


def _small(counter: Tensor, shape: Shape) -> Tensor:
    """16 random bits for each element of `shape`, as uint32: two words have those of four.

    These are the elements 0, 1, 16 and 17 of 32, then 2, 3, 18 and 19, and so on. A lane of a card
    has such of a row of sums of products, and makes two words for four; vectors of a processor that
    lie 16 elements apart share theirs.
    """
    leaf, count, kind = counter.lazy, math.prod(shape), type(counter)
    blocks = -(-count // 32)

    def flat(numbers: LazyBuffer, *apart: int) -> LazyBuffer:
        """Numbers that lie along some of four axes, one for each element."""
        spread = lazy.expand(lazy.reshape(numbers, apart), (blocks, 2, 8, 2))
        return lazy.shrink(lazy.reshape(spread, (blocks * 32,)), ((0, count),))

    k0, k1, number = (lazy.expand(lazy.shrink(leaf, ((i, i + 1),)), (count,)) for i in range(3))
    pair = lazy.iota(2, uint32, leaf.device)
    calls = flat(lazy.iota(blocks * 8, uint32, leaf.device), blocks, 1, 8, 1)
    words, const = threefry((k0, k1), (calls, number)), partial(lazy.const_like, calls)
    first = lazy.map_(Op.LESS, flat(pair, 1, 2, 1, 1), const(1))
    lower = lazy.map_(Op.LESS, flat(pair, 1, 1, 1, 2), const(1))
    word = lazy.map_(Op.WHERE, first, *words)
    low, high = lazy.map_(Op.AND, word, const(SMALL)), lazy.map_(Op.SHR, word, const(16))
    return kind._of(lazy.reshape(lazy.map_(Op.WHERE, lower, low, high), shape))


def _unit(high: Tensor, low: Tensor, dtype: DType) -> Tensor:
    """Evenly in [0, 1): a multiple of 2 ** -p, where `dtype` has a significand of p bits."""
    if dtype is float64:  # 27 bits and 26, which add up exactly
        return (high >> 5).cast(dtype).mul(2.0**-27) + (low >> 6).cast(dtype).mul(2.0**-53)
    precision = {"float16": 11, "bfloat16": 8}.get(dtype.name, 24)
    return (high >> (32 - precision)).cast(float32).mul(2.0**-precision).cast(dtype)


@composition
def _evenly(counter: Tensor, shape: Shape, dtype: DType) -> Tensor:
    return _unit(*_words(counter, shape), dtype)


@composition
def _normally(counters: tuple[Tensor, ...], shape: Shape, dtype: DType) -> Tensor:
    """By the method of Box and Muller; of two counters each gives one of its two numbers."""
    wide = float32 if dtype.is_half else dtype
    first, *second = [_words(counter, shape) for counter in counters]
    radius = ((1 - _unit(*first, wide)).log() * -2).sqrt()
    angle = _unit(*(second[0] if second else first[::-1]), wide) * (2 * math.pi)
    return (radius * angle.cos()).cast(dtype)


@composition
def _between(counter: Tensor, shape: Shape, low: int, high: int, dtype: DType) -> Tensor:
    return (_below(high - low, *_words(counter, shape)) + low).cast(dtype)


def _float_dtype(dtype: DTypeLike | None, op: str) -> DType:
    target = to_dtype(dtype) if dtype is not None else dtypes.default_float
    if not target.is_float:
        raise DTypeError(f"{op} gives floats, not {target}; use randint, or cast the result")
    return target


def rand(
    kind: type[Tensor],
    /,
    *shape: Any,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """Evenly in [0, 1)."""
    target = _float_dtype(dtype, "rand")
    sizes = new_shape(shape, "rand")
    return _evenly(_counter(kind, device), sizes, target)._requiring(requires_grad)


def randn(
    kind: type[Tensor],
    /,
    *shape: Any,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """From the normal distribution with mean 0 and deviation 1 (Box and Muller)."""
    target = _float_dtype(dtype, "randn")
    sizes = new_shape(shape, "randn")
    counters = tuple([_counter(kind, device) for _ in range(2 if target is float64 else 1)])
    return _normally(counters, sizes, target)._requiring(requires_grad)


def _check_sizes_come_first(op: str, shape: tuple[Any, ...], names: Sequence[str]) -> None:
    """As torch and numpy have it the other way round."""
    if len(shape) > 1 and isinstance(shape[-1], (tuple, list)):
        numbers = [f"{name}={n}" for name, n in zip(names, shape[:-1], strict=False)]
        told = ", ".join([*map(str, shape[-1]), *numbers])
        raise ArgumentError(
            f"{op}: sizes come first, and numbers by name: write Tensor.{op}({told})"
        )


def randint(
    kind: type[Tensor],
    /,
    *shape: Any,
    low: int = 0,
    high: int = 10,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """Whole numbers, low <= n < high."""
    _check_sizes_come_first("randint", shape, ("low", "high")[-max(len(shape) - 1, 1) :])
    target = to_dtype(dtype) if dtype is not None else dtypes.default_int
    if not target.is_int or not (isinstance(low, int) and isinstance(high, int)):
        raise DTypeError(f"randint: integers between integers, not {target} in [{low}, {high})")
    if low >= high or low < target.min or high - 1 > target.max:
        raise ArgumentError(f"randint: low < high, within {target}; got {low} and {high}")
    sizes = new_shape(shape, "randint")
    drawn = _between(_counter(kind, device), sizes, int(low), int(high), target)
    return drawn._requiring(requires_grad)


def _below(span: int, high: Tensor, low: Tensor) -> Tensor:
    """0 <= n < span <= 2 ** 64, evenly: the upper half of the product of 64 random bits and span.

    Some n have a chance that is larger by 2 ** -64 (Lemire, Fast random integers, 2019).
    """
    a, b = high.cast(uint64), low.cast(uint64)
    if span > WORD:
        upper, lower = span >> 32, span & WORD
        if upper > WORD:
            return (a << 32) | b
        middle = a * lower + ((b * lower) >> 32)
        return a * upper + (middle >> 32) + (((middle & WORD) + b * upper) >> 32)
    return (a * span + ((b * span) >> 32)) >> 32


def uniform(
    kind: type[Tensor],
    /,
    *shape: Any,
    low: float = 0.0,
    high: float = 1.0,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """Evenly in [low, high); an integer dtype has the whole numbers there."""
    _check_sizes_come_first("uniform", shape, ("low", "high"))
    check_numbers("uniform", low=low, high=high)
    if low > high:
        raise ArgumentError(f"uniform: low is at most high, got {low} and {high}")
    shape = new_shape(shape, "uniform")
    target = to_dtype(dtype) if dtype is not None else dtypes.default_float
    drawn = rand(kind, *shape, dtype=target if target.is_float else float32, device=device)
    values = drawn * (high - low) + low
    return (values if target.is_float else values.floor().cast(target))._requiring(requires_grad)


def normal(
    kind: type[Tensor],
    /,
    *shape: Any,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: DTypeLike | None = None,
    device: str | None = None,
    requires_grad: bool | None = None,
) -> Tensor:
    """From the normal distribution with this mean and deviation."""
    _check_sizes_come_first("normal", shape, ("mean", "std"))
    check_numbers("normal", mean=mean, std=std)
    if std < 0:
        raise ArgumentError(f"normal: a deviation is not below 0, got {std}")
    shape = new_shape(shape, "normal")
    drawn = randn(kind, *shape, dtype=dtype, device=device)
    return (drawn * std + mean)._requiring(requires_grad)


def _kaiming(op: str, gain: int, sizes: Shape, a: float) -> float:
    """How far a weight of shape (out, in, *kernel) is spread, by a gain; `a` slopes the relu."""
    return math.sqrt(gain / (1 + number(a, op, "a") ** 2) / max(1, math.prod(sizes[1:])))


def scaled_uniform(kind: type[Tensor], /, *shape: Any, **options: Any) -> Tensor:
    """Evenly in [-1, 1), divided by the root of the number of elements."""
    sizes = new_shape(shape, "scaled_uniform")
    bound = math.prod(sizes) ** -0.5 if math.prod(sizes) else 1.0
    return uniform(kind, *sizes, low=-bound, high=bound, **options)


def glorot_uniform(kind: type[Tensor], /, *shape: Any, **options: Any) -> Tensor:
    """Evenly, with a variance that keeps that of activations and of gradients (Glorot 2010)."""
    sizes = new_shape(shape, "glorot_uniform")
    bound = (6 / max(1, (sizes[0] if sizes else 1) + math.prod(sizes[1:]))) ** 0.5
    return uniform(kind, *sizes, low=-bound, high=bound, **options)


def kaiming_uniform(kind: type[Tensor], /, *shape: Any, a: float = 0.01, **options: Any) -> Tensor:
    """Evenly, with a variance that keeps that of activations through a leaky relu (He 2015)."""
    sizes = new_shape(shape, "kaiming_uniform")
    bound = _kaiming("kaiming_uniform", 6, sizes, a)
    return uniform(kind, *sizes, low=-bound, high=bound, **options)


def kaiming_normal(kind: type[Tensor], /, *shape: Any, a: float = 0.01, **options: Any) -> Tensor:
    """Normal, with a variance that keeps that of activations through a leaky relu (He 2015)."""
    sizes = new_shape(shape, "kaiming_normal")
    std = _kaiming("kaiming_normal", 2, sizes, a)
    return normal(kind, *sizes, mean=0.0, std=std, **options)


def rand_like(x: Tensor, **options: Any) -> Tensor:
    """`rand` with the shape, dtype and device of x."""
    return rand(type(x), *x.shape, **{"dtype": x.dtype, "device": x.device, **options})


def randn_like(x: Tensor, **options: Any) -> Tensor:
    """`randn` with the shape, dtype and device of x."""
    return randn(type(x), *x.shape, **{"dtype": x.dtype, "device": x.device, **options})


@composition
def _shuffled(counter: Tensor, count: int) -> Tensor:
    return _words(counter, (count,))[0].argsort(dim=0)


def randperm(
    kind: type[Tensor], n: int, dtype: DTypeLike | None = None, device: str | None = None
) -> Tensor:
    """0 .. n - 1 in random order."""
    (size,) = new_shape((n,), "randperm")
    order = _shuffled(_counter(kind, device), size)
    return order.cast(to_dtype(dtype) if dtype is not None else dtypes.default_int)


def multinomial(x: Tensor, num_samples: int = 1, replacement: bool = False) -> Tensor:
    """Indices (int32) drawn with probabilities proportional to the last axis of x.

    RuntimeError, when it is computed, where a weight is negative, infinite or NaN, or too few are
    more than 0.
    """
    num_samples = whole(num_samples, "multinomial", "num_samples")
    if x.ndim not in (1, 2) or num_samples <= 0 or not x.shape[-1]:
        raise ShapeError(
            f"multinomial: a vector or matrix and a positive count, not {x.shape} and {num_samples}"
        )
    if not replacement and num_samples > x.shape[-1]:
        raise ArgumentError(
            f"multinomial: cannot draw {num_samples} of {x.shape[-1]} only once each"
        )
    weights = x.detach().cast(float32)
    fit = (weights >= 0) & (weights < math.inf)
    weights = required(weights, fit, RuntimeError, "multinomial: a weight is negative, inf or NaN")
    possible = (weights > 0).sum(-1, keepdim=True) >= (1 if replacement else num_samples)
    text = "multinomial: too few weights are more than 0"
    weights = required(weights, possible._broadcast_to(weights.shape), RuntimeError, text)
    if not replacement:  # the largest of u ** (1 / w) (Efraimidis and Spirakis 2006)
        score = (1 - rand_like(weights)).log() / weights
        score = (weights == 0).where(-math.inf, score)
        return score.topk(num_samples, dim=-1)[1]
    total = weights.cumsum(axis=-1)
    drawn = rand(type(x), *x.shape[:-1], num_samples, dtype=float32, device=x.device)
    reached = drawn.unsqueeze(-1) * total[..., -1:].unsqueeze(-2) >= total.unsqueeze(-2)
    return reached.sum(-1).cast(index_dtype(x.shape[-1]))


def bernoulli(x: Tensor) -> Tensor:
    """1 with the probabilities that x holds, else 0; RuntimeError where one is none."""
    if not x.dtype.is_float:
        raise DTypeError(f"bernoulli: probabilities are floats, not {x.dtype}")
    chances = probabilities("bernoulli", x.detach())
    return (rand(type(x), *x.shape, dtype=float32, device=x.device) < chances).cast(x.dtype)


def dropout(x: Tensor, p: float = 0.5) -> Tensor:
    """In training: each element zero with probability p, the others scaled up by as much.

    Each is drawn by 16 bits: zeros come with the nearest multiple of 2 ** -16.
    """
    dropped: Tensor = dropping(x, p)(x)
    return dropped


def dropping(like: Tensor, p: float) -> Callable[[Tensor], Tensor]:
    """What drops the same elements of each tensor that is like one."""
    if not 0 <= number(p, "dropout", "p") <= 1:
        raise ArgumentError(f"dropout: the probability p is between 0 and 1, got {p}")
    if not type(like).training or p == 0:
        return lambda x: x
    if p == 1:
        return lambda x: x * 0
    counter = _counter(type(like), like.device)
    return lambda x: _dropped(x, counter, p)


@composition
def _dropped(x: Tensor, counter: Tensor, p: float) -> Tensor:
    kept = _small(counter, x.shape) >= round(p * (SMALL + 1))
    return kept.where(x * (1 / (1 - p)), 0)
