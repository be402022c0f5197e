"""Expressions of the Tensor API, with how many kernels each should take, and why.

Each entry is made by a function of nothing that returns the tensors to realize, whose inputs
are realized before. The same table is compiled for other targets by other tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tinyml import Tensor, nn
from tinyml.dtype import float16
from tinyml.nn.optim import Optimizer

Made = list[Tensor]
Make = Callable[[], Made]


@dataclass(frozen=True)
class Expression:
    name: str
    kernels: int
    why: str
    make: Make
    missing: str = ""  # what keeps it from the count that is wanted


_found: list[Expression] = []


def expression(kernels: int, why: str, missing: str = "") -> Callable[[Make], Make]:
    def found(make: Make) -> Make:
        _found.append(Expression(make.__name__, kernels, why, make, missing))
        return make

    return found


def real(*shape: int, requires_grad: bool = False) -> Tensor:
    """A tensor in memory."""
    drawn = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    return Tensor(drawn, requires_grad=requires_grad).realize()


def whole(high: int, *shape: int) -> Tensor:
    drawn = np.random.default_rng(high).integers(0, high, shape).astype(np.int32)
    return Tensor(drawn).realize()


# ---- elementwise, movement, broadcast ----


@expression(1, "elementwise ops fuse")
def chain() -> Made:
    x, y = real(64, 65), real(64, 65)
    return [((x + y) * x - 3).exp().relu() / (y * y + 1)]


@expression(1, "a broadcast operand is only read differently")
def broadcast() -> Made:
    return [real(64, 65) * real(65) + real(64, 1)]


@expression(1, "movements are index arithmetic")
def views() -> Made:
    x = real(12, 20)
    moved = (
        x.permute(1, 0).reshape(4, 5, 12).flip(1).pad((1, 1, 2, 0)).shrink(((0, 4), (1, 6), (2, 9)))
    )
    return [moved + 1]


@expression(1, "a transpose is a copy with other positions")
def transpose() -> Made:
    return [real(37, 21).T.contiguous()]


@expression(1, "a cheap value with several readers is computed again")
def shared() -> Made:
    x = real(64, 65)
    y = x * 2 + 1
    return [y * y + y.relu()]


@expression(1, "a costly value with several readers stays in registers")
def shared_costly() -> Made:
    x = real(64, 65)
    y = x.exp().sin().tanh()
    return [y * (1 - y) + y.relu()]


@expression(1, "the pieces are told apart by position")
def cat() -> Made:
    return [Tensor.cat(real(5, 8), real(7, 8), real(4, 8))]


@expression(1, "as cat")
def stack() -> Made:
    return [Tensor.stack(real(5, 8), real(5, 8), real(5, 8))]


@expression(1, "numbers and positions need no memory")
def triangle() -> Made:
    return [real(33, 33).triu(1)]


@expression(1, "a cast is elementwise")
def half() -> Made:
    return [(real(64, 65).cast(float16) * 2).float()]


# ---- rows ----


@expression(1, "a reduction takes what is before and after it")
def sum_of_rows() -> Made:
    x = real(40, 65)
    return [((x * x + 1).sum(1) * 2).sqrt()]


@expression(1, "the same over the leading axis")
def sum_of_columns() -> Made:
    return [real(65, 40).sum(0) + 1]


@expression(1, "dependent reductions of a row are walks of one row")
def softmax() -> Made:
    return [real(40, 65).softmax()]


@expression(1, "as softmax")
def log_softmax() -> Made:
    return [real(40, 65).log_softmax()]


@expression(1, "as softmax")
def logsumexp() -> Made:
    return [real(40, 65).logsumexp(1)]


@expression(1, "mean, variance and the final map of a row")
def layernorm() -> Made:
    return [real(40, 65).layernorm() * real(65) + real(65)]


@expression(1, "as layernorm")
def rmsnorm() -> Made:
    return [real(40, 65).rmsnorm()]


@expression(3, "totals of blocks; running totals; blocks with the total before them, as one row")
def running_sum() -> Made:
    return [real(5, 1024).cumsum(1)]


@expression(1, "the mean is part of the row's first walk")
def variance() -> Made:
    return [real(40, 65).var(1)]


@expression(1, "both from one walk over the same row")
def std_and_mean() -> Made:
    return list(real(40, 65).std_mean(1))


@expression(1, "value and position of the greatest are reductions of one row")
def argmax() -> Made:
    return [real(40, 65).argmax(1)]


@expression(1, "the row's softmax is computed again from its input")
def softmax_backward() -> Made:
    x = real(40, 65, requires_grad=True)
    return x.softmax().gradient(x, gradient=real(40, 65))


@expression(1, "sums over the row of the gradient and the normalized values")
def layernorm_backward() -> Made:
    x = real(40, 65, requires_grad=True)
    return x.layernorm().gradient(x, gradient=real(40, 65))


@expression(2, "rows; then both sums down the columns, though only one of them waits for the rows")
def layernorm_with_weights_backward() -> Made:
    x, weight, bias, upstream = real(40, 65), real(65), real(65), real(40, 65)
    y = x.layernorm() * weight + bias
    return [y, *y.gradient(x, weight, bias, gradient=upstream)]


@expression(1, "as layernorm")
def rmsnorm_backward() -> Made:
    x = real(40, 65, requires_grad=True)
    return x.rmsnorm().gradient(x, gradient=real(40, 65))


@expression(1, "as softmax")
def logsumexp_backward() -> Made:
    x = real(40, 65, requires_grad=True)
    return x.logsumexp(1).gradient(x, gradient=real(40))


@expression(2, "tall columns have pieces, so that whole rows are read; then sums of the pieces")
def columns() -> Made:
    return [(real(2049, 257) * real(2049, 1)).sum(0)]


@expression(1, "nothing is split that reads what was folded down the columns before")
def softmax_of_columns() -> Made:
    return [real(2049, 257).softmax(0)]


@expression(2, "one folds along memory, the other across: together they would read a square so")
def both_ways() -> Made:
    a, x = real(256, 256), real(256)
    return [a @ x + a.transpose(0, 1) @ x]


@expression(2, "a large sum to one result has pieces, and a sum of the pieces")
def full_sum() -> Made:
    return [real(512, 512).sum()]


@expression(1, "a small one is not worth a second launch")
def small_sum() -> Made:
    return [(real(30, 40) * 2).sum()]


# ---- contractions ----


@expression(1, "product, sum, bias and activation")
def linear_relu() -> Made:
    return [(real(64, 48) @ real(48, 32) + real(32)).relu()]


@expression(1, "as relu")
def linear_gelu() -> Made:
    return [(real(64, 48) @ real(48, 32) + real(32)).gelu()]


@expression(1, "the residual is read where the result is written")
def linear_residual() -> Made:
    return [real(64, 48) @ real(48, 32) + real(32) + real(64, 32)]


@expression(1, "a cast of the operands is a prologue")
def half_matmul() -> Made:
    a, b = real(64, 48).cast(float16).realize(), real(48, 32).cast(float16).realize()
    return [(a @ b).float() + 1]


@expression(2, "a long product is pieces, so that all cores have some; attention's is not")
def long_product() -> Made:
    return [real(24, 16384) @ real(16384, 24)]


@expression(2, "the weights' gradient of many pixels is made image by image, and added up")
def convolution_weights() -> Made:
    x, w = real(16, 2, 32, 32), real(16, 2, 3, 3, requires_grad=True)
    return x.conv2d(w, padding=1).gradient(w, gradient=real(16, 16, 32, 32))


@expression(2, "a product of rows that are folded along its own axis stays whole")
def long_softmax_product() -> Made:
    return [real(257, 16384).softmax() @ real(16384, 3)]


@expression(2, "one per layer: the second reads every element of the first again and again")
def mlp() -> Made:
    hidden = (real(64, 48) @ real(48, 32) + real(32)).relu()
    return [hidden @ real(32, 10) + real(10)]


@expression(2, "the gradient of each operand is a contraction of its own")
def matmul_backward() -> Made:
    a, b = real(64, 48, requires_grad=True), real(48, 32, requires_grad=True)
    return (a @ b).gradient(a, b, gradient=real(64, 32))


@expression(1, "windows are positions; bias and activation follow the sum")
def convolution() -> Made:
    made = real(2, 3, 12, 12).conv2d(real(8, 3, 3, 3), real(8), padding=1)
    return [made.relu()]


@expression(1, "a reduction over windows")
def max_pool() -> Made:
    return [real(2, 3, 12, 12).max_pool2d((2, 2))]


@expression(1, "the same with a sum")
def avg_pool() -> Made:
    return [real(2, 3, 12, 12).avg_pool2d((2, 2))]


@expression(1, "scores, their softmax and the mean of values, a block of rows at a time")
def attention() -> Made:
    q, k, v = (real(2, 4, 16, 8) for _ in range(3))
    return [q.scaled_dot_product_attention(k, v)]


@expression(1, "the mask is made in the kernel; two queries share a key")
def causal_attention_of_grouped_heads() -> Made:
    q, k, v = real(2, 4, 16, 8), real(2, 2, 16, 8), real(2, 2, 16, 8)
    return [q.scaled_dot_product_attention(k, v, is_causal=True, enable_gqa=True)]


@expression(3, "the weights are asked for: they go to memory, and so do the scores")
def attention_and_its_weights() -> Made:
    q, k, v = (real(2, 4, 16, 8) for _ in range(3))
    weights = (q @ k.transpose(-2, -1)).softmax(-1)
    return [weights @ v, weights]


@expression(1, "a block of its rows waits in the last cache")
def attention_to_many() -> Made:
    q, k, v = real(1, 8, 64), real(1, 9000, 64), real(1, 9000, 64)
    return [q.scaled_dot_product_attention(k, v)]


@expression(1, "a few keys at a time wait there")
def attention_to_very_many() -> Made:
    q, k, v = real(1, 300, 2), real(1, 70000, 2), real(1, 70000, 2)
    return [q.scaled_dot_product_attention(k, v)]


# ---- losses, indices, random numbers ----


@expression(
    1,
    "one row per example: logsumexp, and the logit that the label picks",
)
def cross_entropy_rows() -> Made:
    return [real(64, 10).cross_entropy(whole(10, 64), reduction="none")]


@expression(2, "the rows, then their mean")
def cross_entropy() -> Made:
    return [real(64, 10).cross_entropy(whole(10, 64))]


@expression(1, "the softmax of the row, less what is 0 but where the label picks")
def cross_entropy_backward() -> Made:
    x = real(64, 10, requires_grad=True)
    return x.cross_entropy(whole(10, 64)).gradient(x)


@expression(2, "a product that is added up to one number is made in tiles")
def total_of_a_product() -> Made:
    return [(real(30, 40) @ real(40, 50)).sum()]


@expression(2, "each gradient is one sum of products; what padding cut off is never computed")
def padded_convolution_backward() -> Made:
    x, w = real(2, 3, 8, 8, requires_grad=True), real(4, 3, 3, 3, requires_grad=True)
    return x.conv2d(w, padding=1).sum().gradient(x, w)


@expression(1, "between the pixels that a transposed convolution moved apart nothing is computed")
def strided_transposed_convolution_backward() -> Made:
    x, w = real(2, 3, 5, 5, requires_grad=True), real(3, 4, 4, 4)
    made = x.conv_transpose2d(w, stride=2, padding=1)
    return made.gradient(x, gradient=real(*made.shape))


@expression(1, "rows are read where the index says")
def embedding() -> Made:
    layer = nn.Embedding(50, 16)
    layer.weight.realize()
    return [layer(whole(50, 4, 8))]


@expression(2, "a kernel that fills with zeros, one that accumulates by index")
def embedding_backward() -> Made:
    layer = nn.Embedding(50, 16)
    weight = layer.weight.realize()
    weight.requires_grad = True
    return layer(whole(50, 4, 8)).gradient(weight, gradient=real(4, 8, 16))


@expression(1, "an index tensor picks, as an embedding does")
def picked() -> Made:
    return [real(20, 6)[whole(20, 9)]]


@expression(
    1,
    "random numbers are computed where they are used",
)
def dropout() -> Made:
    with Tensor.train():
        return [(real(64, 65) * 2).dropout(0.5)]


@expression(1, "numbers of a counter")
def random() -> Made:
    return [Tensor.rand(64, 65)]


# ---- updates ----


def _step(kind: type[Optimizer], **settings: float) -> Made:
    shapes = ((48, 32), (32,), (32, 10), (10,))
    parameters = [real(*shape, requires_grad=True) for shape in shapes]
    optimizer = kind(parameters, **settings)
    with Tensor.train():
        for step in range(2):  # states that began as equal zeros have memory of their own by then
            for parameter in parameters:
                parameter.grad = real(*parameter.shape)
            made = optimizer.schedule_step()
            if step == 0:
                Tensor.realize(*made)
    return made


@expression(1, "independent updates share a launch, whatever their shapes")
def sgd() -> Made:
    return _step(nn.optim.SGD, lr=0.1)


@expression(1, "a parameter and its momentum are outputs of one part")
def sgd_momentum() -> Made:
    return _step(nn.optim.SGD, lr=0.1, momentum=0.9)


@expression(
    2, "the bias corrections, which every parameter reads; then all parameters and moments at once"
)
def adam() -> Made:
    return _step(nn.optim.Adam, lr=0.1)


@expression(2, "as Adam")
def adamw() -> Made:
    return _step(nn.optim.AdamW, lr=0.1)


@expression(1, "an assignment writes its target's memory")
def assign() -> Made:
    x = real(64, 65)
    return [x.assign(x * 2 + real(64, 65))]


@expression(5, "places and weights, the same along both axes; rows are blended once, then columns")
def bilinear() -> Made:
    return [Tensor.randn(2, 3, 7, 7).realize().interpolate((21, 21))]


EXPRESSIONS = {e.name: e for e in _found}
