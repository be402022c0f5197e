"""Convolution and pooling: products and extremes over sliding windows.

A window is a skewed axis (see lazy.skew), so positions stay affine, nothing is copied, and
the gradient is a skew again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Literal, overload

from tinyml import mlops
from tinyml.dtype import DType, float32, promote
from tinyml.dtypes import dtypes
from tinyml.errors import ShapeError
from tinyml.frozen import dataclass, replace
from tinyml.functional import blocks
from tinyml.functional.axes import check_tensors, per_axis, whole, wrong_type
from tinyml.functional.composed import with_gradient
from tinyml.functional.linear_algebra import Alignment, Contraction, contract
from tinyml.functional.movement import pad_by
from tinyml.functional.path import Path
from tinyml.functional.steps import composition
from tinyml.lazy import Shape

if TYPE_CHECKING:
    from tinyml.tensor import Tensor

Sizes = int | Sequence[int]
Pairs = tuple[tuple[int, int], ...]


def paddings(padding: Any, count: int, op: str) -> Pairs:
    """(before, after) per spatial axis: one value, one per axis, or all, last axis first."""
    if isinstance(padding, int):
        return ((padding, padding),) * count
    if not isinstance(padding, (tuple, list)):
        raise wrong_type(op, "padding", "a whole number or a tuple of them", padding)
    values = tuple(padding)
    if values and all(isinstance(v, (tuple, list)) for v in values) and len(values) == count:
        return tuple((whole(b, op, "padding"), whole(a, op, "padding")) for b, a in values)
    values = tuple(whole(v, op, "padding") for v in values)
    if len(values) in (1, count):
        return tuple((p, p) for p in (values * count if len(values) == 1 else values))
    if len(values) == 2 * count:
        return tuple((values[2 * i], values[2 * i + 1]) for i in reversed(range(count)))
    raise ShapeError(
        f"{op}: padding is one value, {count} (one per axis) or {2 * count} (before and after, "
        f"last axis first), got {values}"
    )


def named_padding(
    padding: str, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], op: str
) -> Pairs:
    """What "valid" (none) and "same" (as many results as elements) stand for."""
    if padding == "valid":
        return ((0, 0),) * len(kernel)
    if padding != "same" or any(s != 1 for s in strides):
        raise ShapeError(
            f"{op}: padding={padding!r}, but it is numbers, 'valid', or 'same' with stride 1"
        )
    reach = [d * (k - 1) for k, d in zip(kernel, dilations, strict=True)]
    return tuple((n // 2, n - n // 2) for n in reach)


@composition
def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    groups: int = 1,
    stride: Sizes = 1,
    dilation: Sizes = 1,
    padding: Any = 0,
) -> Tensor:
    """Each output is the sum of a window of x times the weight: 1 to 3 spatial axes.

    x is (n, channels, *space), or one of them without n; padding numbers, "same" or "valid".
    """
    _check_operands("conv2d", x, weight, bias, whole(groups, "conv2d", "groups"))
    count, kernel = weight.ndim - 2, weight.shape[2:]
    if x.ndim == count + 1:
        return conv2d(x[None], weight, bias, groups, stride, dilation, padding).squeeze(0)
    strides = per_axis(stride, count, "conv2d", "stride")
    dilations = per_axis(dilation, count, "conv2d", "dilation")
    if isinstance(padding, str):
        padding = named_padding(padding, kernel, strides, dilations, "conv2d")
    pairs = paddings(padding, count, "conv2d")
    if blocks.are_read(strides, dilations):
        x, weight, strides, pairs = _in_blocks(x, weight, strides, pairs)
    path, how = _windows_and_filters(x.shape, weight.shape, groups, strides, dilations, pairs)
    dtype = promote(x.dtype, weight.dtype)
    # windows of wide values have gradients that are added up in one kernel before they are rounded
    wide = x.cast(float32) if dtype.is_half else x
    return _with_bias(contract(path.of(wide), weight, how, dtype), bias)


def _with_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else x + bias._reshape_to((*bias.shape, *(1,) * (x.ndim - 2)))


def _in_blocks(
    x: Tensor, weight: Tensor, strides: Shape, pairs: Pairs
) -> tuple[Tensor, Tensor, Shape, Pairs]:
    """The same convolution of blocks, over which windows move by 1."""
    kernel, count = weight.shape[2:], len(strides)
    sizes = [n + sum(pair) for n, pair in zip(x.shape[2:], pairs, strict=True)]
    _check_windows("conv2d", sizes, kernel, (1,) * count)
    columns = zip(sizes, kernel, strides, blocks.reach(kernel, strides), strict=True)
    counts = tuple((n - k) // s + reach for n, k, s, reach in columns)
    before = tuple(b for b, _ in pairs)
    x = blocks.of_space(x.shape, kernel, strides, before, counts).of(x)
    weight = blocks.of_filters(weight.shape, strides).of(weight)
    return x, weight, (1,) * count, ((0, 0),) * count


@lru_cache(maxsize=4096)  # layers are called again and again
def _windows_and_filters(
    shape: Shape, filters: Shape, groups: int, strides: Shape, dilations: Shape, pairs: Pairs
) -> tuple[Path, Contraction]:
    """How windows are read, and multiplied in the space (n, groups, made, *out, c, *kernel)."""
    kernel, count = filters[2:], len(strides)
    padded = Path(shape).pad(((0, 0), (0, 0), *pairs))
    _check_windows("conv2d", padded.shape[2:], kernel, dilations)
    read = padded.windows(kernel, strides, dilations)  # (n, c, *out, *kernel)
    n, out, ones = shape[0], read.shape[2 : 2 + count], (1,) * count
    per_group, made = shape[1] // groups, filters[0] // groups
    read = read.reshape((n, groups, 1, per_group, *out, *kernel))
    order = [0, 1, 2, *range(4, 4 + count), 3, *range(4 + count, 4 + 2 * count)]
    read = read.permute(order)
    how = Contraction(
        Alignment.straight(read.shape, read.shape),
        Alignment.straight(filters, (1, groups, made, *ones, per_group, *kernel)),
        Alignment.straight((n, groups * made, *out), (n, groups, made, *out, 1, *ones)),
        (n, groups, made, *out, per_group, *kernel),
    )
    return read, how


def _check_operands(
    op: str, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, transposed: bool = False
) -> None:
    check_tensors(op, x, weight=weight, bias=bias)
    count = weight.ndim - 2
    fits = (
        count > 0
        and groups > 0
        and x.ndim in (count + 1, count + 2)
        and x.shape[-count - 1] == (weight.shape[0] if transposed else weight.shape[1] * groups)
        and weight.shape[0] % groups == 0
    )
    if not fits:
        layout = "channels, out / groups" if transposed else "out, channels / groups"
        raise ShapeError(
            f"{op}: input {x.shape} and weight {weight.shape} do not go together with groups="
            f"{groups}: input (n, channels, *space) or (channels, *space), weight "
            f"({layout}, *kernel)"
        )
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    if bias is not None and bias.shape != (channels,):
        raise ShapeError(f"{op}: bias must have shape ({channels},), got {bias.shape}")


def _check_windows(
    op: str, sizes: Sequence[int], kernel: Sequence[int], dilations: Sequence[int]
) -> None:
    for n, k, d in zip(sizes, kernel, dilations, strict=True):
        if n < d * (k - 1) + 1:
            raise ShapeError(
                f"{op}: windows of {tuple(kernel)}, dilated by {tuple(dilations)}, are larger than "
                f"the padded input {tuple(sizes)}"
            )


@composition
def conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    groups: int = 1,
    stride: Sizes = 1,
    dilation: Sizes = 1,
    padding: Any = 0,
    output_padding: Sizes = 0,
) -> Tensor:
    """The gradient of conv2d: each input adds its multiple of the weight to a window.

    x is (n, channels, *space), or one of them without n.
    """
    groups = whole(groups, "conv_transpose2d", "groups")
    _check_operands("conv_transpose2d", x, weight, bias, groups, transposed=True)
    count = weight.ndim - 2
    if x.ndim == count + 1:
        options = (groups, stride, dilation, padding, output_padding)
        return conv_transpose2d(x[None], weight, bias, *options).squeeze(0)
    strides = per_axis(stride, count, "conv_transpose2d", "stride")
    dilations = per_axis(dilation, count, "conv_transpose2d", "dilation")
    extra = per_axis(output_padding, count, "conv_transpose2d", "output_padding", least=0)
    pairs = paddings(padding, count, "conv_transpose2d")
    kernel = weight.shape[2:]
    made = _check_made(x.shape[2:], kernel, strides, dilations, pairs, extra)
    if blocks.are_read(strides, dilations):
        shape = (x.shape[0], weight.shape[1] * groups, *made)
        return _with_bias(_made_in_blocks(x, weight, groups, strides, pairs, shape), bias)
    filters = weight.unflatten(0, (groups, -1)).transpose(1, 2)
    filters = filters.reshape((-1, weight.shape[0] // groups, *kernel))
    filters = filters.flip(tuple(range(2, filters.ndim)))
    grown = tuple(
        ((k - 1) * d - before, (k - 1) * d - after + more)
        for k, d, (before, after), more in zip(kernel, dilations, pairs, extra, strict=True)
    )
    x = pad_by(_apart(x, strides), ((0, 0), (0, 0), *grown))
    return conv2d(x, filters, bias, groups, 1, dilations, 0)


def _apart(x: Tensor, strides: Shape) -> Tensor:
    """x with zeros between the elements of its space."""
    sizes = zip(x.shape[2:], strides, strict=True)
    path = Path((*x.shape[:2], *(max(0, (n - 1) * s + 1) for n, s in sizes)))
    for i, step in enumerate(strides):
        path = path.every(2 + i, step)
    return path.back(x)


def _made_in_blocks(
    x: Tensor, weight: Tensor, groups: int, strides: Shape, pairs: Pairs, shape: Shape
) -> Tensor:
    """The same transposed convolution, to blocks, over which windows move by 1."""
    kernel = weight.shape[2:]
    reach = blocks.reach(kernel, strides)
    counts = tuple(n + more - 1 for n, more in zip(x.shape[2:], reach, strict=True))
    path = blocks.of_space(shape, kernel, strides, tuple(b for b, _ in pairs), counts)
    weight = blocks.of_filters(weight.shape, strides).of(weight)
    return path.back(conv_transpose2d(x, weight, groups=groups))


def _check_made(
    space: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pairs: Pairs,
    extra: Sequence[int],
) -> Shape:
    """The space that conv_transpose2d makes: not empty, nor more than one conv2d could read."""
    columns = zip(space, kernel, strides, dilations, pairs, extra, strict=True)
    made = tuple((n - 1) * s - sum(p) + d * (k - 1) + 1 + e for n, k, s, d, p, e in columns)
    if any(n < 1 for n in made):
        raise ShapeError(
            f"conv_transpose2d: padding {pairs} takes away all of the output, which has size {made}"
        )
    if any(e >= max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True)):
        raise ShapeError(
            f"conv_transpose2d: output_padding {tuple(extra)} must be smaller than the stride "
            f"{tuple(strides)} or the dilation {tuple(dilations)}"
        )
    return made


# ---- pooling ----


@dataclass(frozen=True)
class _Pool:
    """How windows lie: what the pooling functions were asked for, per spatial axis."""

    space: Shape
    kernel: Shape
    strides: Shape
    dilations: Shape
    pairs: Pairs
    over: Shape  # how far a last window reaches over the end

    @staticmethod
    def asked(
        op: str, x: Tensor, kernel: Any, stride: Any, dilation: Any, padding: Any, ceil: bool
    ) -> _Pool:
        """The windows on the last axes of x."""
        sizes, *how = _per_axis(op, kernel, stride, dilation, padding)
        if x.ndim < len(sizes):
            raise ShapeError(f"{op}: {x.shape} has fewer axes than the window {sizes}")
        return _laid(op, x.shape[x.ndim - len(sizes) :], sizes, *how, bool(ceil))

    def read(self, x: Tensor, value: float | int | bool) -> Tensor:
        """(.., *out, *kernel): the elements of each window on last axes."""
        return _windows(self, x.shape, value).of(x)

    @property
    def axes(self) -> tuple[int, ...]:
        """The window's axes, counted from the end."""
        return tuple(range(-len(self.kernel), 0))

    def largest(self, read: Tensor) -> Tensor:
        """Which elements of windows are the largest, or NaN; they are found anew."""
        read = read.detach()
        equal = read == read.max(self.axes, keepdim=True)
        return equal | read.isnan() if read.dtype.is_float else equal

    def to_the_first(self, grad: Tensor, best: Tensor, read: Tensor) -> mlops.Grads:
        """The gradient of a window's maximum: of several the first takes it, as torch has it."""
        count, ones = prod(self.kernel), (1,) * len(self.kernel)
        places = read._arange(count).reshape(self.kernel)
        first = self.largest(read).where(places, count).min(self.axes, keepdim=True)
        return ((places == first).where(grad.reshape((*best.shape, *ones)), 0),)


def _per_axis(
    op: str, kernel: Any, stride: Any, dilation: Any, padding: Any
) -> tuple[Shape, Shape, Shape, Pairs]:
    """Sizes, strides, dilations and paddings of windows, as pooling is asked for them."""
    count = len(kernel) if isinstance(kernel, (tuple, list)) else 2
    sizes = per_axis(kernel, count, op, "kernel_size")
    strides = per_axis(sizes if stride is None else stride, count, op, "stride")
    return sizes, strides, per_axis(dilation, count, op, "dilation"), paddings(padding, count, op)


@lru_cache(maxsize=4096)  # layers are called again and again
def _laid(
    op: str, space: Shape, kernel: Shape, strides: Shape, dilations: Shape, pairs: Pairs, ceil: bool
) -> _Pool:
    if any(2 * max(pair) > k for pair, k in zip(pairs, kernel, strict=True)):
        raise ShapeError(
            f"{op}: padding {pairs} is more than half of the window {kernel}, and windows of "
            "nothing else have no result; pad() adds more"
        )
    columns = zip(space, pairs, strides, dilations, kernel, strict=True)
    over = tuple([_overhang(*column) if ceil else 0 for column in columns])
    padded = [n + sum(p) + o for n, p, o in zip(space, pairs, over, strict=True)]
    _check_windows(op, padded, kernel, dilations)
    return _Pool(space, kernel, strides, dilations, pairs, over)


def _overhang(n: int, pair: tuple[int, int], step: int, dilation: int, kernel: int) -> int:
    """How far a last window, which must begin inside, reaches over the end."""
    before, after = pair
    length, reach = n + before + after, dilation * (kernel - 1) + 1
    last = -(-(length - reach) // step)
    if last * step >= n + before:
        last -= 1
    return max(0, last * step + reach - length)


@lru_cache(maxsize=4096)
def _windows(pool: _Pool, shape: Shape, value: float | int | bool) -> Path:
    pairs = tuple([(b, a + o) for (b, a), o in zip(pool.pairs, pool.over, strict=True)])
    padded = Path(shape).pad(((0, 0),) * (len(shape) - len(pairs)) + pairs, value)
    return padded.windows(pool.kernel, pool.strides, pool.dilations)


@overload
def max_pool2d(
    x: Tensor,
    kernel_size: Sizes = ...,
    stride: Sizes | None = ...,
    dilation: Sizes = ...,
    padding: Any = ...,
    ceil_mode: bool = ...,
    return_indices: Literal[False] = ...,
) -> Tensor: ...


@overload
def max_pool2d(
    x: Tensor,
    kernel_size: Sizes = ...,
    stride: Sizes | None = ...,
    dilation: Sizes = ...,
    padding: Any = ...,
    ceil_mode: bool = ...,
    *,
    return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...


@composition
def max_pool2d(
    x: Tensor,
    kernel_size: Sizes = (2, 2),
    stride: Sizes | None = None,
    dilation: Sizes = 1,
    padding: Any = 0,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The largest element of each window; with return_indices also where it was."""
    pool = _Pool.asked("max_pool2d", x, kernel_size, stride, dilation, padding, ceil_mode)
    read = pool.read(x, x.dtype.min)
    best = with_gradient(lambda read: read.max(pool.axes), pool.to_the_first, read)
    if not return_indices:
        return best
    size = prod(pool.space)
    places = pool.read(x._arange(size).reshape(pool.space), size)
    first = pool.largest(read).where(places, size).min(pool.axes)
    return best, first.cast(dtypes.default_int)


@composition
def avg_pool2d(
    x: Tensor,
    kernel_size: Sizes = (2, 2),
    stride: Sizes | None = None,
    dilation: Sizes = 1,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window; padding may or may not count as elements.

    Of integers it is an integer, rounded towards 0, as torch has it.
    """
    pool = _Pool.asked("avg_pool2d", x, kernel_size, stride, dilation, padding, ceil_mode)
    if x.dtype.is_half:
        wide = avg_pool2d(
            x.cast(float32), kernel_size, stride, dilation, padding, ceil_mode, count_include_pad
        )
        return wide.cast(x.dtype)
    total: Tensor = pool.read(x, 0).sum(pool.axes)
    if count_include_pad and not any(pool.over):
        return _share(total, prod(pool.kernel), x.dtype)
    ones = x._full(pool.space, 1, total.dtype if x.dtype.is_int else float32)
    if count_include_pad:  # the overhang of a last window never counts
        ones = pad_by(ones, pool.pairs, 1)
        pool = replace(pool, pairs=((0, 0),) * len(pool.kernel))
    return _share(total, pool.read(ones, 0).sum(pool.axes), x.dtype)


def _share(total: Tensor, count: Tensor | int, dtype: DType) -> Tensor:
    if dtype.is_int:
        return total.div(count, rounding_mode="trunc").cast(dtype)
    return total * (1 / count) if isinstance(count, int) else total / count


@composition
def max_unpool2d(
    x: Tensor,
    indices: Tensor,
    kernel_size: Sizes = (2, 2),
    stride: Sizes | None = None,
    dilation: Sizes = 1,
    padding: Any = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """The inverse of max_pool2d with return_indices: zero where no maximum was."""
    check_tensors("max_unpool2d", x, indices=indices)
    columns = _per_axis("max_unpool2d", kernel_size, stride, dilation, padding)
    count = len(columns[0])
    if x.ndim < count or x.shape != indices.shape:
        raise ShapeError(
            f"max_unpool2d: values {x.shape} and indices {indices.shape} must have one shape, of "
            f"{count} axes or more"
        )
    if output_size is None:
        space = tuple(
            (n - 1) * s - sum(p) + d * (k - 1) + 1
            for n, k, s, d, p in zip(x.shape[-count:], *columns, strict=True)
        )
    else:
        space = tuple(output_size)[-count:]
    if len(space) != count or any(n < 1 for n in space):
        raise ShapeError(f"max_unpool2d: an output of size {space} has no room for {x.shape}")
    batch = x.shape[:-count]
    flat, places = x.reshape((*batch, -1)), indices.reshape((*batch, -1))
    base = x._full((*batch, prod(space)), 0, x.dtype)
    return base.scatter(-1, places, flat).reshape((*batch, *space))
