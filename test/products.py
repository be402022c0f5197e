"""Products as kernels, for tests of how they are tiled."""

from __future__ import annotations

import graphs
import numpy as np
import stages
from graphs import leaf

from tinyml import Tensor, lazy
from tinyml.dtype import DType, bfloat16, float16, float32
from tinyml.kernel import Kernel
from tinyml.lazy import LazyBuffer
from tinyml.ops import Op

TOLERANCE = {float16: 0.01, bfloat16: 0.05, float32: 0.01}  # float32 with 10 bits of fraction


def product(
    m: int, k: int, n: int, dtype: DType, crosswise: tuple[bool, bool] = (False, False)
) -> LazyBuffer:
    """relu(x @ y + z), sums in float32; a factor that is crosswise lies mirrored in memory."""

    def factor(rows: int, columns: int, mirrored: bool) -> LazyBuffer:
        shape = (columns, rows) if mirrored else (rows, columns)
        given = lazy.cast(leaf(*shape, dtype=dtype), float32)
        return lazy.permute(given, (1, 0)) if mirrored else given

    summed = graphs.matmul(factor(m, k, crosswise[0]), factor(k, n, crosswise[1]))
    biased = graphs.add(lazy.cast(summed, dtype), graphs.spread(leaf(n, dtype=dtype), (m, n)))
    return lazy.map_(Op.MAX, biased, graphs.const(0, biased))


def weights_gradient(images: int, inner: int, outer: int, size: int, stride: int = 1) -> Kernel:
    """The kernel that makes it for 3 x 3 windows, with zeros around an image."""
    x = Tensor(np.ones((images, inner, size, size), np.float32), device="CPU").realize()
    w = Tensor(np.ones((outer, inner, 3, 3), np.float32), device="CPU", requires_grad=True)
    y = x.conv2d(w, stride=stride, padding=1)
    upstream = Tensor(np.ones(y.shape, np.float32), device="CPU").realize()
    (gradient,) = y.gradient(w, gradient=upstream)
    return stages.kernels(gradient)[-1]


def by_heads(batch: int, heads: int, rows: int, columns: int, across: int) -> LazyBuffer:
    """The gradient of a projection behind attention, whose output lies by heads."""
    attended = lazy.permute(leaf(batch, heads, rows, columns, dtype=bfloat16), (0, 2, 1, 3))
    x = lazy.reshape(attended, (batch, rows, heads * columns, 1))
    y = lazy.reshape(leaf(batch, rows, across, dtype=bfloat16), (batch, rows, 1, across))
    shape = (batch, rows, heads * columns, across)
    wide = (lazy.expand(lazy.cast(each, float32), shape) for each in (x, y))
    return lazy.reshape(lazy.reduce_(Op.ADD, graphs.mul(*wide), (0, 1)), shape[2:])


def convolution(
    images: int, inner: int, outer: int, size: int, stride: int = 1, window: int = 3
) -> Kernel:
    """The kernel of one with square windows, with zeros around an image."""
    x = Tensor(np.ones((images, inner, size, size), np.float32), device="CPU").realize()
    w = Tensor(np.ones((outer, inner, window, window), np.float32), device="CPU").realize()
    made = x.conv2d(w, stride=stride, padding=window // 2)
    return stages.kernels(made)[-1]
