"""What can be done with a tensor: every public op by its name, which is in `functional/`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinyml.functional import (
    activation,
    attention,
    convolution,
    creation,
    decomposition,
    elementwise,
    grids,
    indexing,
    joining,
    linear_algebra,
    loss,
    missing,
    movement,
    random_,
    reduction,
    resize,
    scan,
    sort,
    unary,
    values,
)
from tinyml.functional.axes import spelled_either_way


@spelled_either_way
class Methods:
    """The methods that Tensor has, by family."""

    if not TYPE_CHECKING:  # else every name would be known
        __getattr__ = missing.no_attribute

    # ---- functional/creation ----

    full = classmethod(creation.full)
    zeros = classmethod(creation.zeros)
    ones = classmethod(creation.ones)
    empty = classmethod(creation.empty)
    eye = classmethod(creation.eye)
    arange = classmethod(creation.arange)
    linspace = classmethod(creation.linspace)
    from_blob = classmethod(values.from_blob)
    full_like = creation.full_like
    zeros_like = creation.zeros_like
    ones_like = creation.ones_like

    # ---- functional/elementwise ----

    add = elementwise.add
    sub = elementwise.sub
    mul = elementwise.mul
    div = elementwise.div
    idiv = elementwise.idiv
    mod = elementwise.mod
    maximum = elementwise.maximum
    minimum = elementwise.minimum
    copysign = elementwise.copysign
    atan2 = elementwise.atan2
    logaddexp = elementwise.logaddexp
    lerp = elementwise.lerp
    isclose = elementwise.isclose
    allclose = elementwise.allclose
    bitwise_and = elementwise.bitwise_and
    bitwise_or = elementwise.bitwise_or
    bitwise_xor = elementwise.bitwise_xor
    bitwise_not = elementwise.bitwise_not
    lshift = elementwise.lshift
    rshift = elementwise.rshift
    logical_not = elementwise.logical_not
    logical_and = elementwise.logical_and
    logical_or = elementwise.logical_or
    logical_xor = elementwise.logical_xor
    where = elementwise.where
    masked_fill = elementwise.masked_fill
    clip = elementwise.clip
    lt = elementwise.lt
    le = elementwise.le
    gt = elementwise.gt
    ge = elementwise.ge
    eq = elementwise.eq
    ne = elementwise.ne
    neg = unary.neg
    sign = unary.sign
    sqrt = unary.sqrt
    rsqrt = unary.rsqrt
    exp = unary.exp
    exp2 = unary.exp2
    expm1 = unary.expm1
    log = unary.log
    log2 = unary.log2
    log10 = unary.log10
    log1p = unary.log1p
    sin = unary.sin
    cos = unary.cos
    tan = unary.tan
    asin = unary.asin
    acos = unary.acos
    atan = unary.atan
    sinh = unary.sinh
    cosh = unary.cosh
    tanh = unary.tanh
    asinh = unary.asinh
    acosh = unary.acosh
    atanh = unary.atanh
    erf = unary.erf
    erfinv = unary.erfinv
    lgamma = unary.lgamma
    digamma = unary.digamma
    reciprocal = unary.reciprocal
    square = unary.square
    trunc = unary.trunc
    floor = unary.floor
    ceil = unary.ceil
    isnan = unary.isnan
    isinf = unary.isinf
    isfinite = unary.isfinite
    pow = elementwise.pow_
    abs = unary.abs_
    round = unary.round_
    clamp = elementwise.clip

    # ---- functional/movement ----

    reshape = movement.reshape
    permute = movement.permute
    transpose = movement.transpose
    expand = movement.expand
    flatten = movement.flatten
    unflatten = movement.unflatten
    squeeze = movement.squeeze
    unsqueeze = movement.unsqueeze
    flip = movement.flip
    shrink = movement.shrink
    shrink_to = movement.shrink_to
    pad = movement.pad
    pad_to = movement.pad_to
    unfold = movement.unfold
    cat = joining.cat
    stack = joining.stack
    split = movement.split
    chunk = movement.chunk
    unbind = movement.unbind
    repeat = movement.repeat
    repeat_interleave = indexing.repeat_interleave
    roll = movement.roll
    triu = grids.triu
    tril = grids.tril
    diag = grids.diag
    diagonal = grids.diagonal
    meshgrid = grids.meshgrid
    view = movement.reshape
    _broadcast_to = movement.broadcast_to
    _reshape_to = movement.reshape_to

    # ---- functional/reduction ----

    prod = reduction.prod
    mean = reduction.mean
    var = reduction.var
    std = reduction.std
    std_mean = reduction.std_mean
    var_mean = reduction.var_mean
    logsumexp = reduction.logsumexp
    argmax = reduction.argmax
    argmin = reduction.argmin
    sum = reduction.sum_
    max = amax = reduction.max_
    min = amin = reduction.min_
    norm = reduction.norm
    any = reduction.any_
    all = reduction.all_

    # ---- functional/linear_algebra ----

    dot = linear_algebra.dot
    linear = linear_algebra.linear
    matmul = linear_algebra.dot
    einsum = staticmethod(linear_algebra.einsum)

    # ---- functional/activation ----

    relu = activation.relu
    relu6 = activation.relu6
    sigmoid = activation.sigmoid
    logsigmoid = activation.logsigmoid
    silu = activation.silu
    gelu = activation.gelu
    quick_gelu = activation.quick_gelu
    elu = activation.elu
    celu = activation.celu
    selu = activation.selu
    softplus = activation.softplus
    mish = activation.mish
    softsign = activation.softsign
    leaky_relu = activation.leaky_relu
    hardtanh = activation.hardtanh
    hardsigmoid = activation.hardsigmoid
    hardswish = activation.hardswish
    softmax = activation.softmax
    log_softmax = activation.log_softmax
    layernorm = activation.layernorm
    rmsnorm = activation.rmsnorm
    batchnorm = activation.batchnorm
    sequential = activation.sequential
    swish = activation.silu
    qr = decomposition.qr
    svd = decomposition.svd
    cholesky = decomposition.cholesky
    solve = decomposition.solve
    inverse = decomposition.inverse
    det = decomposition.det
    newton_schulz = decomposition.newton_schulz
    rearrange = decomposition.rearrange
    scaled_dot_product_attention = attention.scaled_dot_product_attention
    interpolate = resize.interpolate

    # ---- functional/convolution ----

    conv2d = convolution.conv2d
    conv_transpose2d = convolution.conv_transpose2d
    max_pool2d = convolution.max_pool2d
    avg_pool2d = convolution.avg_pool2d
    max_unpool2d = convolution.max_unpool2d

    # ---- functional/indexing ----

    gather = indexing.gather
    index_select = indexing.index_select
    scatter = indexing.scatter
    scatter_reduce = indexing.scatter_reduce
    masked_select = indexing.masked_select
    nonzero = indexing.nonzero
    one_hot = indexing.one_hot
    _gather = indexing._gather

    # ---- functional/scan ----

    cumsum = scan.cumsum
    cumprod = scan.cumprod
    cummax = scan.cummax
    cummin = scan.cummin
    logcumsumexp = scan.logcumsumexp

    # ---- functional/sort ----

    argsort = sort.argsort
    topk = sort.topk
    sort = sort.sort

    # ---- functional/loss ----

    nll_loss = loss.nll_loss
    cross_entropy = loss.cross_entropy
    sparse_categorical_crossentropy = loss.sparse_categorical_crossentropy
    binary_crossentropy = loss.binary_crossentropy
    binary_crossentropy_logits = loss.binary_crossentropy_logits

    # ---- functional/random_ ----

    rand = classmethod(random_.rand)
    randn = classmethod(random_.randn)
    randint = classmethod(random_.randint)
    uniform = classmethod(random_.uniform)
    normal = classmethod(random_.normal)
    scaled_uniform = classmethod(random_.scaled_uniform)
    glorot_uniform = classmethod(random_.glorot_uniform)
    kaiming_uniform = classmethod(random_.kaiming_uniform)
    kaiming_normal = classmethod(random_.kaiming_normal)
    randperm = classmethod(random_.randperm)
    rand_like = random_.rand_like
    randn_like = random_.randn_like
    multinomial = random_.multinomial
    bernoulli = random_.bernoulli
    dropout = random_.dropout
    manual_seed = staticmethod(random_.manual_seed)
