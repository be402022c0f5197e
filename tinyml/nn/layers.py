"""Layers: plain classes that hold parameters and are called with a Tensor.

Arguments and the names of parameters are those of PyTorch and tinygrad, so that their
checkpoints load. Initial values follow PyTorch's distributions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tinyml import dtype as dt
from tinyml.autograd import no_grad
from tinyml.errors import ShapeError
from tinyml.functional import missing
from tinyml.functional.axes import check_flags, check_numbers, made_either_way, whole, wrong_type
from tinyml.functional.composed import in_float32
from tinyml.functional.convolution import named_padding
from tinyml.functional.steps import composition
from tinyml.telling import Telling
from tinyml.tensor import Tensor

Sizes = int | Sequence[int]


def _parameter(tensor: Tensor) -> Tensor:
    # how the first values were drawn is not part of any gradient
    return tensor.detach().requires_grad_()


def _uniform(bound: float, *shape: int) -> Tensor:
    return _parameter(Tensor.uniform(*shape, low=-bound, high=bound))


def _ones(*shape: int) -> Tensor:
    return _parameter(Tensor.ones(*shape))


def _zeros(*shape: int) -> Tensor:
    return _parameter(Tensor.zeros(*shape))


def _tuple(sizes: Sizes, axes: int) -> tuple[int, ...]:
    return tuple(sizes) if isinstance(sizes, Sequence) else (sizes,) * axes


def _check_counts(layer: object, least: int, **counts: Any) -> None:
    for name, count in counts.items():
        if whole(count, type(layer).__name__, name) < least:
            raise ShapeError(
                f"{type(layer).__name__}: {name} must be at least {least}, got {count}"
            )


def _check_tensor(layer: object, x: Any, name: str = "the input") -> None:
    if not isinstance(x, Tensor):
        raise wrong_type(type(layer).__name__, name, "a Tensor", x)


def _check_input(layer: object, x: Any, axis: int, size: int, name: str = "the input") -> None:
    """x is a Tensor with `size` elements along `axis`."""
    _check_tensor(layer, x, name)
    if not -x.ndim <= axis < x.ndim or x.shape[axis] != size:
        raise ShapeError(
            f"{type(layer).__name__}: {name} must have size {size} along axis {axis}, got "
            f"shape {x.shape}"
        )


class _Layer(Telling):
    """What all layers have in common: how they print, and what is said of what they have not."""

    if not TYPE_CHECKING:  # else every name would be known
        __getattr__ = missing.no_part

        def __setattr__(self, name: str, value: Any) -> None:
            if name in missing.told()["part"] and type(self).__module__ == __name__:
                getattr(self, name)  # which says what to write: here it would have no effect
            super().__setattr__(name, value)

    def __init_subclass__(cls) -> None:
        made_either_way(cls)

    def __repr__(self) -> str:
        """Everything it holds by name: `Linear(weight=(8, 3), bias=(8,))`, tensors by shape."""
        held = (
            f"{name}={value.shape if isinstance(value, Tensor) else value!r}"
            for name, value in vars(self).items()
        )
        return f"{type(self).__name__}({', '.join(held)})"


class Linear(_Layer):
    """x @ weight.T + bias, with weight (out_features, in_features)."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        _check_counts(self, 0, in_features=in_features, out_features=out_features)
        check_flags(type(self).__name__, bias=bias)
        bound = 1 / math.sqrt(max(in_features, 1))
        self.weight = _uniform(bound, out_features, in_features)
        self.bias = _uniform(bound, out_features) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features)."""
        _check_input(self, x, -1, self.weight.shape[-1])
        return _linear(x, self.weight, self.bias)


@composition
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.linear(weight.transpose(), bias)


class Conv2d(_Layer):
    """Convolution over two axes, or over as many as a tuple `kernel_size` has."""

    axes = 2

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        _check_counts(self, 0, in_channels=in_channels, out_channels=out_channels)
        _check_counts(self, 1, groups=groups)
        check_flags(type(self).__name__, bias=bias)
        for what, channels in (("in", in_channels), ("out", out_channels)):
            if channels % groups:
                raise ShapeError(
                    f"cannot split {what}_channels={channels} into groups={groups} of equal size"
                )
        self.kernel_size = _tuple(kernel_size, self.axes)
        for size in self.kernel_size:
            _check_counts(self, 1, kernel_size=size)
        self.in_channels = in_channels
        self.stride, self.dilation, self.groups = stride, dilation, groups
        self.padding = self._padding(padding)
        bound = 1 / math.sqrt(max(in_channels // groups * math.prod(self.kernel_size), 1))
        self.weight = _uniform(bound, *self._weight_shape(in_channels, out_channels))
        self.bias = _uniform(bound, out_channels) if bias else None

    def _weight_shape(self, in_channels: int, out_channels: int) -> tuple[int, ...]:
        return (out_channels, in_channels // self.groups, *self.kernel_size)

    def _padding(self, padding: Sizes | str) -> Sizes:
        if not isinstance(padding, str):
            return padding
        if padding == "valid":
            return 0
        axes, name = len(self.kernel_size), type(self).__name__
        steps, spans = _tuple(self.stride, axes), _tuple(self.dilation, axes)
        pairs = named_padding(padding, self.kernel_size, steps, spans, name)
        return [n for pair in reversed(pairs) for n in pair]  # the last axis comes first

    def __call__(self, x: Tensor) -> Tensor:
        """(batch, in_channels, *sizes) to (batch, out_channels, *new sizes); or without batch."""
        _check_input(self, x, -1 - len(self.kernel_size), self.in_channels)
        return x.conv2d(self.weight, self.bias, **self._how())

    def _how(self) -> dict[str, Any]:
        across = {"stride": self.stride, "dilation": self.dilation, "padding": self.padding}
        return {"groups": self.groups, **across}  # by names that TinyJit's walk finds


class Conv1d(Conv2d):
    """Convolution over one axis."""

    axes = 1


class ConvTranspose2d(Conv2d):
    """The gradient of a convolution with respect to its input, as a layer of its own."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias
        )
        self.output_padding = output_padding

    def _weight_shape(self, in_channels: int, out_channels: int) -> tuple[int, ...]:
        return (in_channels, out_channels // self.groups, *self.kernel_size)

    def __call__(self, x: Tensor) -> Tensor:
        """(batch, in_channels, *sizes) to (batch, out_channels, *new sizes); or without batch."""
        _check_input(self, x, -1 - len(self.kernel_size), self.in_channels)
        how = {**self._how(), "output_padding": self.output_padding}
        return x.conv_transpose2d(self.weight, self.bias, **how)


class ConvTranspose1d(ConvTranspose2d):
    """`ConvTranspose2d` over one axis."""

    axes = 1


class BatchNorm(_Layer):
    """Each channel (axis 1) to mean 0 and variance 1 over the batch, then scaled and moved.

    In training the batch's own statistics are used, and running averages of them are kept;
    otherwise the running averages are used.
    """

    def __init__(
        self,
        sz: int,
        eps: float = 1e-5,
        affine: bool = True,
        track_running_stats: bool = True,
        momentum: float = 0.1,
    ) -> None:
        _check_counts(self, 0, sz=sz)
        check_numbers(type(self).__name__, eps=eps, momentum=momentum)
        check_flags(type(self).__name__, affine=affine, track_running_stats=track_running_stats)
        self.eps, self.momentum, self.track_running_stats = eps, momentum, track_running_stats
        self.sz = sz
        self.weight = _ones(sz) if affine else None
        self.bias = _zeros(sz) if affine else None
        if track_running_stats:
            self.running_mean = Tensor.zeros(sz, requires_grad=False)
            self.running_var = Tensor.ones(sz, requires_grad=False)
            self.num_batches_tracked = Tensor.zeros(dtype=dt.int64, requires_grad=False)

    def __call__(self, x: Tensor) -> Tensor:
        """(batch, sz, *sizes) to the same shape; ShapeError for one value per channel."""
        _check_input(self, x, 1, self.sz)
        if self.track_running_stats and not Tensor.training:
            mean, variance = self.running_mean, self.running_var
        else:
            mean, variance = self._statistics(x)
        return x.batchnorm(self.weight, self.bias, mean, (variance + self.eps).rsqrt())

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        axes = tuple(axis for axis in range(x.ndim) if axis != 1)
        count = math.prod(x.shape[axis] for axis in axes)  # values per channel
        mean, variance = x.mean(axis=axes), x.var(axis=axes, correction=0)
        if self.track_running_stats:
            if count < 2:
                raise ShapeError(
                    f"batch norm in training needs more than one value per channel, got {x.shape}"
                )
            with no_grad():
                self._track(self.running_mean, mean)
                self._track(self.running_var, variance * (count / (count - 1)))
                self.num_batches_tracked.assign(self.num_batches_tracked + 1)
        return mean, variance

    def _track(self, running: Tensor, new: Tensor) -> None:
        average = (1 - self.momentum) * running + self.momentum * new
        running.assign(average.cast(running.dtype))


BatchNorm1d = BatchNorm2d = BatchNorm3d = BatchNorm  # any number of axes


def _per_channel(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    shape = (1, -1, *[1] * (x.ndim - 2))
    if weight is not None:
        x = x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


class GroupNorm(_Layer):
    """Each group of channels of each sample to mean 0 and variance 1; then scaled per channel."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True
    ) -> None:
        _check_counts(self, 1, num_groups=num_groups)
        _check_counts(self, 0, num_channels=num_channels)
        check_numbers(type(self).__name__, eps=eps)
        check_flags(type(self).__name__, affine=affine)
        if num_channels % num_groups:
            raise ShapeError(f"cannot split {num_channels} channels into {num_groups} groups")
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight = _ones(num_channels) if affine else None
        self.bias = _zeros(num_channels) if affine else None

    def __call__(self, x: Tensor) -> Tensor:
        """(batch, num_channels, *sizes) to the same shape."""
        _check_input(self, x, 1, self.num_channels)

        def scaled(x: Tensor) -> Tensor:
            groups = x.unflatten(1, (self.num_groups, -1)).flatten(2).layernorm(eps=self.eps)
            return _per_channel(groups.reshape(x.shape), self.weight, self.bias)

        return _rounded_once(scaled, x, self.weight, self.bias)


class InstanceNorm(GroupNorm):
    """Each channel of each sample to mean 0 and variance 1; then scaled per channel."""

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__(num_features, num_features, eps, affine)


class LayerNorm(_Layer):
    """The last axes to mean 0 and variance 1, then scaled and moved elementwise."""

    def __init__(
        self,
        normalized_shape: Sizes,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        self.normalized_shape = _tuple(normalized_shape, 1)
        for size in self.normalized_shape:
            _check_counts(self, 0, normalized_shape=size)
        check_numbers(type(self).__name__, eps=eps)
        self.axis = tuple(range(-len(self.normalized_shape), 0))
        self.eps = eps
        self.weight = _ones(*self.normalized_shape) if elementwise_affine else None
        self.bias = _zeros(*self.normalized_shape) if elementwise_affine and bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """(..., *normalized_shape) to the same shape."""
        _check_tensor(self, x)
        if x.shape[-len(self.normalized_shape) :] != self.normalized_shape:
            raise ShapeError(
                f"{type(self).__name__} over {self.normalized_shape}: the last axes of {x.shape} "
                "differ"
            )
        return _layernorm(x, self.weight, self.bias, self.axis, self.eps)


@composition
def _layernorm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, axis: tuple[int, ...], eps: float
) -> Tensor:
    def scaled(x: Tensor) -> Tensor:
        x = x.layernorm(axis, eps)
        x = x if weight is None else x * weight
        return x if bias is None else x + bias

    return _rounded_once(scaled, x, weight, bias)


def _rounded_once(
    function: Callable[[Tensor], Tensor], x: Tensor, *parameters: Tensor | None
) -> Tensor:
    """function(x), in float32 if x and the parameters are halves of one dtype."""
    alike = all(p is None or p.dtype is x.dtype for p in parameters)
    return (in_float32(function) if alike else function)(x)


class LayerNorm2d(LayerNorm):
    """Layer norm over the channels of (batch, channels, height, width)."""

    def __call__(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) to the same shape."""
        _check_input(self, x, 1, self.normalized_shape[0])
        return super().__call__(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class RMSNorm(_Layer):
    """The last axis divided by its root mean square, then scaled elementwise."""

    def __init__(self, dim: int, eps: float = 1e-6, elementwise_affine: bool = True) -> None:
        _check_counts(self, 0, dim=dim)
        check_numbers(type(self).__name__, eps=eps)
        self.dim, self.eps = dim, eps
        self.weight = _ones(dim) if elementwise_affine else None

    def __call__(self, x: Tensor) -> Tensor:
        """(..., dim) to the same shape."""
        _check_input(self, x, -1, self.dim)

        def scaled(x: Tensor) -> Tensor:
            x = x.rmsnorm(eps=self.eps)
            return x if self.weight is None else x * self.weight

        return _rounded_once(scaled, x, self.weight)


class Embedding(_Layer):
    """A row of `weight` (vocab_size, embed_size) for each index.

    The row `padding_idx` begins as zeros and has no gradient; IndexError if there is no such row.
    """

    def __init__(self, vocab_size: int, embed_size: int, padding_idx: int | None = None) -> None:
        _check_counts(self, 0, vocab_size=vocab_size, embed_size=embed_size)
        self.vocab_size, self.embed_size = vocab_size, embed_size
        self.padding_idx, weight = padding_idx, Tensor.normal(vocab_size, embed_size)
        if padding_idx is not None:
            if not -vocab_size <= whole(padding_idx, "Embedding", "padding_idx") < vocab_size:
                raise IndexError(
                    f"Embedding: padding_idx {padding_idx} is out of range for {vocab_size} rows"
                )
            self.padding_idx = padding_idx % vocab_size
            weight = self._pads(weight).where(0, weight)
        self.weight = _parameter(weight)

    def __call__(self, idx: Tensor) -> Tensor:
        """Indices of any shape to (*shape, embed_size)."""
        weight = self.weight
        if self.padding_idx is not None:
            weight = self._pads(weight).where(weight.detach(), weight)
        return weight[idx]

    def _pads(self, weight: Tensor) -> Tensor:
        """Which rows are padding (vocab_size, 1)."""
        rows = Tensor.arange(self.vocab_size, device=weight.device)
        return rows.unsqueeze(1) == self.padding_idx


class Dropout(_Layer):
    """In training, zeroes each value with probability p and scales the others by 1/(1-p)."""

    def __init__(self, p: float = 0.5) -> None:
        check_numbers(type(self).__name__, p=p)
        if not 0 <= p <= 1:
            raise ValueError(f"Dropout: the probability {p} is not between 0 and 1")
        self.p = p

    def __call__(self, x: Tensor) -> Tensor:
        """x itself unless `Tensor.training`."""
        _check_tensor(self, x)
        return x.dropout(self.p)


class LSTMCell(_Layer):
    """One step of a long short-term memory: (x, (h, c)) to the next (h, c)."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        _check_counts(self, 0, input_size=input_size, hidden_size=hidden_size)
        bound = 1 / math.sqrt(max(hidden_size, 1))
        self.hidden_size = hidden_size
        self.weight_ih = _uniform(bound, 4 * hidden_size, input_size)
        self.weight_hh = _uniform(bound, 4 * hidden_size, hidden_size)
        self.bias_ih = _uniform(bound, 4 * hidden_size) if bias else None
        self.bias_hh = _uniform(bound, 4 * hidden_size) if bias else None

    def __call__(self, x: Tensor, hc: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """x (batch, input_size), h and c (batch, hidden_size), zeros if there are none yet.

        Or all of them without batch.
        """
        _check_input(self, x, -1, self.weight_ih.shape[-1])
        if hc is None:
            shape = (*x.shape[:-1], self.hidden_size)
            zeros = Tensor.zeros(shape, dtype=x.dtype, device=x.device)
            hc = zeros, zeros
        if not isinstance(hc, (tuple, list)) or len(hc) != 2:
            raise wrong_type("LSTMCell", "the state", "a pair of tensors (h, c)", hc)
        for name, part in zip(("h", "c"), hc, strict=True):
            _check_input(self, part, -1, self.hidden_size, name)
        gates = _linear(x, self.weight_ih, self.bias_ih)
        gates = gates + _linear(hc[0], self.weight_hh, self.bias_hh)
        take, keep, new, show = gates.chunk(4, dim=-1)  # each (batch, hidden)
        c = keep.sigmoid() * hc[1] + take.sigmoid() * new.tanh()
        return show.sigmoid() * c.tanh(), c
