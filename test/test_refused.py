"""For each public name its typical mistakes: the type of the error, and what its sentence says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tinyml import Device, Tensor, dtypes
from tinyml.errors import (
    ArgumentError,
    AxisError,
    DeviceError,
    DTypeError,
    GradientError,
    ShapeError,
)
from tinyml.functional.missing import TOO_MANY

X = Tensor.zeros(2, 3)
V = Tensor.zeros(1, 1, 4, 4)
I = Tensor([1, 2])  # noqa: E741
J = Tensor([[0, 1], [1, 0]])
FAR = Tensor.zeros(2, 3, device="EMU" if Device.DEFAULT == "NUMPY" else "NUMPY")
L = Tensor([1.0, 2.0], requires_grad=True)
Case = tuple[type[Exception], str, Callable[[], Any]]

# words: a regular expression; the op's own name must be in the sentence, too
BINARY = (
    *("add", "sub", "mul", "div", "idiv", "mod", "maximum", "minimum", "copysign"),
    *(
        "logaddexp",
        "atan2",
        "logical_and",
        "logical_or",
        "logical_xor",
        "isclose",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "pow",
        "allclose",
    ),
)
CALLED = {  # what the sentence calls it, where that is another op's name
    "idiv": "div",
    "allclose": "isclose",
    "dot": "matmul",
    "view": "reshape",
    "clamp": "clip",
    "requires_grad_": "requires_grad",
    "std_mean": "std",
    "var_mean": "var",
    "argsort": "sort",
    "cast": "dtype",
    "to": "device",
    "zeros_like": "dtype",
    "ones_like": "dtype",
    "rand_like": "rand",
    "randn_like": "randn",
    "scaled_dot_product_attention": "attention",
    "swish": "silu",
    "amax": "max",
    "amin": "min",
}
FOLDS = (
    *("sum", "mean", "prod", "max", "min", "any", "all", "var", "std", "std_mean", "var_mean"),
    *("argmax", "argmin", "amax", "amin", "logsumexp"),
)
AXIS = (
    *FOLDS,
    *(
        "softmax",
        "log_softmax",
        "layernorm",
        "rmsnorm",
    ),
    *(
        "cumsum",
        "cumprod",
        "cummax",
        "cummin",
        "logcumsumexp",
        "sort",
        "argsort",
        "squeeze",
        "unsqueeze",
    ),
    *("flatten", "permute", "transpose", "flip"),
)
SHAPED = ("zeros", "ones", "empty", "rand", "randn", "randint", "uniform", "normal")
INITIAL = ("scaled_uniform", "glorot_uniform", "kaiming_uniform", "kaiming_normal")
PARAMETER = {  # ops with numbers besides the tensor
    "elu": "alpha",
    "celu": "alpha",
    "selu": "gamma",
    "softplus": "beta",
    "leaky_relu": "neg_slope",
    "hardtanh": "min_val",
    "hardsigmoid": "beta",
    "layernorm": "eps",
    "rmsnorm": "eps",
}
BITS = ("bitwise_and", "bitwise_or", "bitwise_xor", "lshift", "rshift")


def families() -> dict[str, list[Case]]:
    """Mistakes that many ops have in common."""
    found: dict[str, list[Case]] = {}
    for name in BINARY:
        op = getattr(X, name)
        found[name] = [
            (ShapeError, r"\(2, 3\) and \(2,\)", lambda op=op: op(Tensor.zeros(2))),
            (TypeError, r"'a' \(str\)", lambda op=op: op("a")),
            (TypeError, "None", lambda op=op: op(None)),
            (DeviceError, r"one device.*\.to\(", lambda op=op: op(FAR)),
        ]
    for name in BITS:
        found[name] = [
            (DTypeError, "integers.*float32.*cast", lambda name=name: getattr(X, name)(X)),
            (TypeError, "str", lambda name=name: getattr(I, name)("a")),
        ]
    for name in AXIS:
        op = getattr(X, name)
        found[name] = [
            (IndexError, r"axis 5 is out of range.*\[-\d, \d\]", lambda op=op: op(5)),
            (TypeError, r"whole number, got 'a' \(str\)", lambda op=op: op("a")),
            (TypeError, r"got 1\.0 \(float\)", lambda op=op: op(1.0)),
        ]
    words = r"keepdim must be True or False \(several axes are a tuple\), got 1 \(int\)"
    for name in FOLDS:
        by_name = name in TOO_MANY
        told = f"{name} takes axis, .*by name" if by_name else words
        found[name].append((TypeError, told, lambda name=name: getattr(X, name)(0, 1)))
        found[name].append((TypeError, words, lambda name=name: getattr(X, name)(0, keepdim=1)))
    for name in (*SHAPED, *INITIAL):
        op = getattr(Tensor, name)
        found[name] = [
            (ValueError, "negative", lambda op=op: op(2, -1)),
            (TypeError, r"2\.5 \(float\)", lambda op=op: op(2.5)),
            (TypeError, r"'a' \(str\)", lambda op=op: op("a")),
        ]
    for name, parameter in PARAMETER.items():
        call = lambda name=name, p=parameter: getattr(X, name)(**{p: "a"})  # noqa: E731
        found.setdefault(name, []).append((TypeError, f"{parameter} must be a number", call))
    return found


OWN: dict[str, list[Case]] = {
    "where": [
        (ShapeError, "broadcast", lambda: X.where(Tensor.zeros(4), 0)),
        (TypeError, "'a'", lambda: X.where(1, "a")),
        (DTypeError, "the condition comes first", lambda: X.where(X > 0, 0)),
        (DTypeError, "the condition comes first", lambda: I.where(I > 1, 0)),
        (DeviceError, "one device", lambda: X.where(FAR, 0)),
    ],
    "masked_fill": [
        (TypeError, "mask must be a Tensor", lambda: X.masked_fill([True], 0)),
    ],
    "clip": [
        (RuntimeError, "min_ and max_", lambda: X.clip()),
        (TypeError, "max_ must be a number", lambda: X.clip(0, "a")),
        (DTypeError, "max_ -1 is beyond all uint8", lambda: I.cast("uint8").clip(0, -1)),
    ],
    "clamp": [(RuntimeError, "min_ and max_", lambda: X.clamp())],
    "lerp": [
        (TypeError, "end must be a Tensor", lambda: X.lerp(1, 0.5)),
        (TypeError, "weight must be a number", lambda: X.lerp(X, "a")),
        (DeviceError, "one device", lambda: X.lerp(FAR, 0.5)),
    ],
    "bitwise_not": [(DTypeError, "integers", lambda: X.bitwise_not())],
    "div": [
        (RuntimeError, "'up'.*trunc.*floor", lambda: X.div(X, rounding_mode="up")),
    ],
    "pow": [(RuntimeError, "cast the base", lambda: I.pow(-1))],
    "neg": [
        (TypeError, r"bool.*~x.*logical_not", lambda: -(X > 0)),
        (RuntimeError, "bool", lambda: (X > 0).neg()),
    ],
    "celu": [(ValueError, "alpha.*cannot be 0", lambda: X.celu(0))],
    "hardtanh": [
        (ValueError, "min_val 2 is above max_val 1", lambda: X.hardtanh(2, 1)),
        (DTypeError, "uint8 does not reach from -1 to 1", lambda: I.cast("uint8").hardtanh()),
    ],
    "sub": [(DTypeError, r"bool.*\^", lambda: (X > 0).sub(X > 0))],
    "gelu": [(ValueError, "approximate.*'fast'", lambda: X.gelu("fast"))],
    # movement
    "reshape": [
        (ValueError, r"cannot reshape \(2, 3\) \(6 elements\)", lambda: X.reshape(5)),
        (TypeError, r"'3' \(str\)", lambda: X.reshape("3")),
        (RuntimeError, "only one size", lambda: X.reshape(-1, -1)),
        (ShapeError, "None", lambda: X.reshape(2, 3, None)),
    ],
    "view": [(ValueError, "cannot reshape", lambda: X.view(4, 2))],
    "permute": [(RuntimeError, "each axis.*once", lambda: X.permute(0, 0))],
    "flip": [(RuntimeError, "once", lambda: X.flip(0, 0))],
    "expand": [
        (RuntimeError, r"\(2, 3\) to \(2, 4\).*axis 1", lambda: X.expand(2, 4)),
        (RuntimeError, "more axes", lambda: X.expand(3)),
        (TypeError, "'a'", lambda: X.expand("a")),
    ],
    "flatten": [(ShapeError, "start_dim 1 lies behind end_dim 0", lambda: X.flatten(1, 0))],
    "unflatten": [
        (ValueError, r"axis 1 of \(2, 3\) cannot become", lambda: X.unflatten(1, (2, 2))),
        (TypeError, "sizes must be a tuple", lambda: X.unflatten(1, 3)),
    ],
    "shrink": [
        (ShapeError, "one .start, stop. per axis", lambda: X.shrink([(0, 1)])),
        (ShapeError, "start <= stop <= size", lambda: X.shrink([(0, 9), None])),
        (TypeError, "each span", lambda: X.shrink([1, 2])),
        (TypeError, "a bound must be a whole", lambda: X.shrink([(0, 1.5), None])),
    ],
    "shrink_to": [
        (ShapeError, "2 sizes", lambda: X.shrink_to(1)),
        (TypeError, "str", lambda: X.shrink_to("a", 1)),
    ],
    "pad_to": [
        (ShapeError, "2 sizes", lambda: X.pad_to(1)),
        (ShapeError, "smaller than .2, 3.", lambda: X.pad_to(-1, 3)),
    ],
    "pad": [
        (ValueError, "pairs", lambda: X.pad(((1, 1),))),
        (RuntimeError, "even number", lambda: X.pad((1, 2, 3))),
        (RuntimeError, "larger than axis", lambda: X.pad((3, 3), mode="reflect")),
        (NotImplementedError, "constant, reflect", lambda: X.pad((1, 1), mode="typo")),
        (TypeError, "padding must be", lambda: X.pad("a")),
        (TypeError, "pair", lambda: X.pad((1.5, 1))),
    ],
    "unfold": [
        (RuntimeError, "windows of 4", lambda: X.unfold(1, 4, 1)),
        (RuntimeError, "steps of 0", lambda: X.unfold(1, 1, 0)),
        (TypeError, "size must be", lambda: X.unfold(1, "a", 1)),
    ],
    "cat": [
        (ShapeError, r"\(2, 3\) and \(2, 2\).*every axis but 0", lambda: X.cat(Tensor.zeros(2, 2))),
        (TypeError, "part 1 must be a Tensor", lambda: X.cat("a")),
        (ShapeError, "axis as dim=", lambda: Tensor.cat([X, X], 0)),
        (ShapeError, "axis as dim=", lambda: Tensor.cat(X, X, 1)),
        (DeviceError, "one device", lambda: X.cat(FAR)),
        (ShapeError, "use stack", lambda: Tensor(1.0).cat(Tensor(2.0))),
    ],
    "stack": [
        (ShapeError, r"\(2, 3\) and \(2, 2\)", lambda: X.stack(Tensor.zeros(2, 2))),
        (TypeError, "part 0 must be a Tensor", lambda: Tensor.stack(1)),
        (ShapeError, "at least one", lambda: Tensor.stack([])),
    ],
    "split": [
        (ShapeError, "do not add up to 2", lambda: X.split([1, 5])),
        (TypeError, "'a'", lambda: X.split("a")),
        (ShapeError, "negative", lambda: X.split(-1)),
    ],
    "chunk": [
        (ShapeError, "positive, got 0", lambda: X.chunk(0)),
        (TypeError, "str", lambda: X.chunk("a")),
    ],
    "repeat": [
        (ShapeError, "at least 2 counts", lambda: X.repeat(2)),
        (ShapeError, "negative", lambda: X.repeat(1, -1)),
        (TypeError, "str", lambda: X.repeat("a", 1)),
    ],
    "repeat_interleave": [
        (ShapeError, "negative", lambda: X.repeat_interleave(-1)),
        (TypeError, "repeats", lambda: X.repeat_interleave("a")),
        (ShapeError, r"3 for axis 1 of \(2, 3\).*\(2,\)", lambda: X.repeat_interleave(I, 1)),
        (ShapeError, "negative, got -2", lambda: X.repeat_interleave(-I, 0)),
        (DTypeError, "integers, got float32", lambda: X.repeat_interleave(I.float(), 0)),
    ],
    "roll": [
        (RuntimeError, "length", lambda: X.roll((1, 2), 0)),
        (TypeError, "a shift", lambda: X.roll("a", 0)),
    ],
    "triu": [
        (ShapeError, r"two axes.*\(2,\)", lambda: I.triu()),
        (TypeError, "diagonal", lambda: X.triu("a")),
    ],
    "tril": [(ShapeError, r"two axes.*\(2,\)", lambda: I.tril())],
    "diag": [(ShapeError, r"vector or a matrix, got \(1, 1, 4, 4\)", lambda: V.diag())],
    "diagonal": [
        (RuntimeError, "takes two axes", lambda: X.diagonal(0, 1, -1)),
        (IndexError, r"diagonal: axis 1", lambda: I.diagonal()),
        (TypeError, "offset", lambda: X.diagonal("a")),
    ],
    "meshgrid": [
        (RuntimeError, '"ij" or "xy"', lambda: I.meshgrid(I, indexing="ab")),
        (TypeError, "must be a Tensor", lambda: I.meshgrid("a")),
    ],
    # reduction, scan
    "var": [
        (TypeError, "correction", lambda: X.var(correction="a")),
        (TypeError, "axis must be a whole number, got False", lambda: X.var(False)),
    ],
    "max": [(TypeError, r"of two tensors, write x\.maximum\(y\)", lambda: X.max(X))],
    "min": [(TypeError, r"of two tensors, write x\.minimum\(y\)", lambda: X.min(X))],
    "sum": [(AttributeError, "no dtype ''", lambda: X.sum(dtype=""))],
    "topk": [
        (RuntimeError, r"cannot take 4 of axis 1 of \(2, 3\)", lambda: X.topk(4)),
        (TypeError, "k must be", lambda: X.topk("a")),
    ],
    # matrices
    "matmul": [
        (RuntimeError, r"cannot multiply \(2, 3\) with \(2, 3\).*equal", lambda: X @ X),
        (RuntimeError, "one axis", lambda: X.matmul(Tensor(1.0))),
        (TypeError, "str", lambda: X @ "a"),
        (DeviceError, "one device", lambda: X @ FAR.T),
    ],
    "dot": [(RuntimeError, "cannot multiply", lambda: X.dot(X))],
    "linear": [
        (RuntimeError, "cannot multiply", lambda: X.linear(X)),
        (TypeError, "weight must be a Tensor", lambda: X.linear(3)),
    ],
    "einsum": [
        (RuntimeError, "2 operands, got 1", lambda: Tensor.einsum("ij,jk->ik", X)),
        (RuntimeError, "'i'.*sizes", lambda: Tensor.einsum("i,i->i", I, Tensor.zeros(3))),
        (RuntimeError, r"one \.\.\. per operand", lambda: Tensor.einsum("...i...->i", X)),
        (RuntimeError, "made of letters", lambda: Tensor.einsum("i1->i", X)),
        (TypeError, "formula", lambda: Tensor.einsum(1, X)),
        (TypeError, "operand 1", lambda: Tensor.einsum("i,i", I, 3)),
        (DeviceError, "one device", lambda: Tensor.einsum("ij,ij", X, FAR)),
    ],
    "qr": [(ShapeError, r"matrix, got \(2,\)", lambda: I.qr())],
    "svd": [(ShapeError, r"matrix, got \(2,\)", lambda: I.svd())],
    "cholesky": [(ShapeError, "square matrix", lambda: X.cholesky())],
    "det": [(ShapeError, "square matrix", lambda: X.det())],
    "inverse": [(ShapeError, "square matrix", lambda: X.inverse())],
    "solve": [
        (ShapeError, "needs 2 rows", lambda: J.float().solve(Tensor.zeros(3))),
        (TypeError, "b must be a Tensor", lambda: J.float().solve(3)),
    ],
    "bernoulli": [(DTypeError, "floats, not int32", lambda: I.bernoulli())],
    "newton_schulz": [(ShapeError, r"\(2,\)", lambda: Tensor.zeros(2).newton_schulz(1))],
    "rearrange": [
        (ValueError, "names 3 axes", lambda: X.rearrange("a b c -> a")),
        (ShapeError, "one arrow", lambda: X.rearrange("a b -> b a -> a b")),
        (ShapeError, "one side", lambda: X.rearrange("a b -> a b ...")),
        (ShapeError, "one side", lambda: X.rearrange("... a ... -> a ...")),
        (ShapeError, "group to split", lambda: X.rearrange("a (b ...) -> a b ...")),
        (ShapeError, "each axis once", lambda: X.rearrange("a b -> a c")),
        (ShapeError, "names no c", lambda: X.rearrange("a b -> b a", c=2)),
        (ShapeError, "hold others", lambda: X.rearrange("a ((b)) -> a b")),
        (ShapeError, "do not match", lambda: X.rearrange("a b) -> a b")),
        (ShapeError, "not closed", lambda: X.rearrange("a (b -> a b")),
        (ShapeError, "'...b' is not a name", lambda: X.rearrange("a ...b -> ...b a")),
        (ShapeError, "'2b' is not a name", lambda: X.rearrange("a 2b -> 2b a")),
        (ShapeError, "'_b' is not a name", lambda: X.rearrange("a _b -> _b a")),
        (RuntimeError, "left out", lambda: X.rearrange("a (b c) -> a b c")),
        (ValueError, "does not make 3", lambda: X.rearrange("a (b c) -> a b c", b=2)),
    ],
    "scaled_dot_product_attention": [
        (RuntimeError, "not both", lambda: _attention(attn_mask=X, is_causal=True)),
        (ShapeError, "go\ntogether|go together", lambda: X.scaled_dot_product_attention(I, X)),
        (TypeError, "key must be a Tensor", lambda: X.scaled_dot_product_attention(1, X)),
        (TypeError, "scale must be a number", lambda: _attention(scale="1")),
        (DTypeError, r"not int32; write mask.bool", lambda: _attention(attn_mask=Tensor([[1, 0]]))),
        (ShapeError, r"mask \(2, 3\) does not", lambda: _attention(attn_mask=X)),
        (ShapeError, "differ before", lambda: _attention(enable_gqa=True)),
        (ShapeError, "differ before", lambda: _heads(4, 2, enable_gqa=False)),
        (ShapeError, "several times as many", lambda: _heads(4, 3, enable_gqa=True)),
        (ShapeError, "several times as many", lambda: _heads(2, 4, enable_gqa=True)),
    ],
    # convolution
    "conv2d": [
        (RuntimeError, r"\(1, 1, 4, 4\).*groups=1", lambda: V.conv2d(Tensor.zeros(1, 2, 3, 3))),
        (RuntimeError, "larger than", lambda: V.conv2d(Tensor.zeros(1, 1, 5, 5))),
        (RuntimeError, "padding is one value", lambda: V.conv2d(V, padding=(1, 2, 3))),
        (RuntimeError, "stride must be at least 1", lambda: V.conv2d(V, stride=0)),
        (RuntimeError, r"bias must have shape \(1,\)", lambda: V.conv2d(V, I)),
        (TypeError, "weight must be a Tensor", lambda: V.conv2d(3)),
        (RuntimeError, "'typo'.*'same'", lambda: V.conv2d(V, padding="typo")),
        (RuntimeError, "stride 1", lambda: V.conv2d(V, padding="same", stride=2)),
        (TypeError, "padding must be", lambda: V.conv2d(V, padding=1.5)),
    ],
    "conv_transpose2d": [
        (RuntimeError, "groups=1", lambda: V.conv_transpose2d(Tensor.zeros(2, 1, 3, 3))),
        (RuntimeError, "groups=2", lambda: V.conv_transpose2d(V, groups=2)),
        (TypeError, "weight must be a Tensor", lambda: V.conv_transpose2d(3)),
        (TypeError, "padding must be", lambda: V.conv_transpose2d(V, padding="same")),
    ],
    "max_pool2d": [
        (RuntimeError, "padding", lambda: V.max_pool2d(2, padding=(1, 2, 3))),
        (RuntimeError, "larger than", lambda: V.max_pool2d(5)),
        (RuntimeError, "more than half.*pad()", lambda: V.max_pool2d(3, padding=2)),
        (RuntimeError, "fewer axes", lambda: I.max_pool2d(2)),
        (RuntimeError, "kernel_size must be at least 1", lambda: V.max_pool2d(0)),
        (TypeError, "kernel_size must be", lambda: V.max_pool2d("a")),
    ],
    "avg_pool2d": [
        (RuntimeError, "larger than", lambda: V.avg_pool2d(5)),
        (RuntimeError, "more than half", lambda: V.avg_pool2d(1, padding=1)),
        (TypeError, "stride must be", lambda: V.avg_pool2d(2, stride=1.5)),
    ],
    "max_unpool2d": [
        (RuntimeError, "one shape", lambda: V.max_unpool2d(I, 2)),
        (TypeError, "indices must be a Tensor", lambda: V.max_unpool2d(3, 2)),
    ],
    "interpolate": [
        (ValueError, "linear, bilinear", lambda: V.interpolate((2, 2), mode="area")),
        (ValueError, "align_corners", lambda: V.interpolate(2, "nearest", align_corners=True)),
        (TypeError, "size must be", lambda: V.interpolate("2")),
        (TypeError, "scale_factor must be", lambda: V.interpolate(scale_factor=I)),
        (ValueError, "either size or", lambda: V.interpolate()),
        (ValueError, "either size or", lambda: V.interpolate(2, scale_factor=2)),
        (ShapeError, "do not fit", lambda: V.interpolate(scale_factor=0.1)),
        (ShapeError, "above 0", lambda: V.interpolate(scale_factor=float("nan"))),
        (DTypeError, "cubic", lambda: V.int().interpolate(2, "bicubic")),
        (ShapeError, "do not fit", lambda: I.interpolate((2, 2))),
    ],
    "batchnorm": [
        (TypeError, "mean must be a Tensor", lambda: V.batchnorm(None, None, 1, 1)),
        (ShapeError, r"mean \(2,\)", lambda: V.batchnorm(None, None, I, I)),
    ],
    "sequential": [
        (TypeError, "a list of functions", lambda: X.sequential(abs)),
        (TypeError, "layer 0", lambda: X.sequential([3])),
    ],
    # indexing
    "gather": [
        (ShapeError, "as many axes", lambda: X.gather(0, I)),
        (DTypeError, "integers, got float32", lambda: X.gather(0, X)),
        (TypeError, "index must be a Tensor", lambda: X.gather(0, 1)),
        (ShapeError, r"larger than \(2, 3\)", lambda: X.gather(1, J.repeat(2, 1))),
    ],
    "scatter": [
        (TypeError, '"add" or "multiply"', lambda: X.scatter(0, J, X, reduce="max")),
        (TypeError, "src must be", lambda: X.scatter(0, J, "a")),
        (DTypeError, "int32 does not go into float32", lambda: X.scatter(0, J, J)),
        (IndexError, "scatter: axis 2", lambda: X.scatter(2, J, X)),
        (IndexError, "scatter: axis 2", lambda: X.scatter(2, J, X, reduce="add")),
    ],
    "scatter_reduce": [
        (RuntimeError, "'max'.*amax", lambda: X.scatter_reduce(0, J, X, "max")),
        (TypeError, "src must be a Tensor", lambda: X.scatter_reduce(0, J, 1, "sum")),
        (DTypeError, "bools", lambda: (X > 0).scatter_reduce(0, J, X > 0, "mean")),
    ],
    "masked_select": [
        (TypeError, "mask must be a Tensor", lambda: X.masked_select([True])),
        (ShapeError, "broadcast", lambda: X.masked_select(Tensor([True, False]))),
    ],
    "one_hot": [
        (DTypeError, "integers, got float32", lambda: X.one_hot(3)),
        (TypeError, "num_classes", lambda: I.one_hot("a")),
    ],
    # losses
    "nll_loss": [
        (ShapeError, r"\(3,\) do not fit scores \(2, 3\)", lambda: X.nll_loss(Tensor([0, 1, 2]))),
        (DTypeError, "classes are integers", lambda: X.nll_loss(Tensor([0.0, 1.0]))),
        (ValueError, "mean, sum, none, got 'max'", lambda: X.nll_loss(I, reduction="max")),
        (TypeError, "Y must be a Tensor", lambda: X.nll_loss([0, 1])),
        (ShapeError, r"weight \(2,\) must be \(3,\)", lambda: X.nll_loss(I, Tensor([1.0, 2.0]))),
    ],
    "cross_entropy": [
        (ShapeError, "neither classes nor", lambda: X.cross_entropy(Tensor.zeros(3, 2))),
        (ValueError, "'max'", lambda: X.cross_entropy(I, reduction="max")),
        (TypeError, "weights are weight=w", lambda: X.cross_entropy(I, Tensor.ones(3))),
        (ValueError, "between 0 and 1", lambda: X.cross_entropy(I, label_smoothing=2.0)),
        (TypeError, "Y must be a Tensor", lambda: X.cross_entropy([0, 1])),
        (DeviceError, "one device", lambda: X.cross_entropy(FAR)),
        (ShapeError, "one number for each class", lambda: X.cross_entropy(I, weight=I)),
        (TypeError, "weight must be a Tensor", lambda: X.cross_entropy(I, weight=[1, 2, 3])),
        (ValueError, "Y are probabilities", lambda: X.cross_entropy(X, ignore_index=0)),
    ],
    "sparse_categorical_crossentropy": [
        (ShapeError, r"do not fit scores \(2, 3\)", lambda: X.sparse_categorical_crossentropy(J)),
        (TypeError, "Y must be", lambda: X.sparse_categorical_crossentropy(1)),
    ],
    "binary_crossentropy": [
        (ValueError, "'max'", lambda: X.binary_crossentropy(X, reduction="max")),
        (TypeError, "Y must be", lambda: X.binary_crossentropy(1)),
        (TypeError, "weight must be", lambda: X.binary_crossentropy(X, weight=2)),
        (ShapeError, "broadcast", lambda: X.binary_crossentropy(X, weight=I)),
        (ShapeError, "does not fit", lambda: X.binary_crossentropy(X, weight=X[None])),
        (ShapeError, "several of Y", lambda: X[:, :1].binary_crossentropy(X[:, 0])),
    ],
    "binary_crossentropy_logits": [
        (ValueError, "'max'", lambda: X.binary_crossentropy_logits(X, reduction="max")),
        (TypeError, "pos_weight", lambda: X.binary_crossentropy_logits(X, pos_weight=2)),
        (ShapeError, "several of Y", lambda: X[:, 0].binary_crossentropy_logits(X[:, :1])),
    ],
    # creation
    "full": [
        (ValueError, "negative", lambda: Tensor.full((-1,), 3)),
        (TypeError, "fill_value", lambda: Tensor.full((2,), "a")),
        (TypeError, "a size", lambda: Tensor.full("a", 2)),
    ],
    "full_like": [(TypeError, "fill_value", lambda: X.full_like("a"))],
    "zeros_like": [(AttributeError, "no dtype 'typo'", lambda: X.zeros_like(dtype="typo"))],
    "ones_like": [(AttributeError, "no dtype 'typo'", lambda: X.ones_like(dtype="typo"))],
    "rand_like": [(DTypeError, "floats, not int32", lambda: I.rand_like())],
    "randn_like": [(DTypeError, "floats, not int32", lambda: I.randn_like())],
    "eye": [
        (ValueError, "negative", lambda: Tensor.eye(-2)),
        (TypeError, r"2\.5", lambda: Tensor.eye(2.5)),
    ],
    "arange": [
        (ValueError, "step cannot be 0", lambda: Tensor.arange(1, 2, 0)),
        (ValueError, "cut to 0", lambda: Tensor.arange(1, 2, 0.5, dtype="int32")),
        (ValueError, "1 do not lead from 5 to 0", lambda: Tensor.arange(5, 0)),
        (ValueError, "-1 do not lead from 0 to 5", lambda: Tensor.arange(0, 5, -1)),
        (ValueError, "finite", lambda: Tensor.arange(0, float("inf"))),
        (TypeError, "stop must be a number", lambda: Tensor.arange(1, "a")),
    ],
    "linspace": [
        (RuntimeError, "negative", lambda: Tensor.linspace(0, 1, -1)),
        (RuntimeError, "bool", lambda: Tensor.linspace(0, 1, 3, dtype="bool")),
        (TypeError, "steps", lambda: Tensor.linspace(0, 1, 2.5)),
        (TypeError, "start", lambda: Tensor.linspace("a", 1, 2)),
    ],
    "from_blob": [
        (TypeError, "address", lambda: Tensor.from_blob("a", (1,), "float32")),
        (ValueError, "address 0", lambda: Tensor.from_blob(0, (1,), "float32")),
        (ValueError, "negative", lambda: Tensor.from_blob(64, (-1,), "float32")),
    ],
    "from_dlpack": [(TypeError, "list has no __dlpack__", lambda: Tensor.from_dlpack([1.0]))],
    # random
    "randint": [
        (ArgumentError, "low < high", lambda: Tensor.randint(3, low=4, high=4)),
        (DTypeError, "integers, not float32", lambda: Tensor.randint(3, dtype="float32")),
    ],
    "uniform": [(TypeError, "low must be", lambda: Tensor.uniform(3, low="a"))],
    "normal": [(TypeError, "std must be", lambda: Tensor.normal(3, std="a"))],
    "rand": [(DTypeError, "floats, not int32", lambda: Tensor.rand(3, dtype="int32"))],
    "randperm": [(TypeError, "a size", lambda: Tensor.randperm("a"))],
    "manual_seed": [(TypeError, "seed", lambda: Tensor.manual_seed("a"))],
    "multinomial": [
        (ArgumentError, "cannot draw 5 of 3", lambda: X.multinomial(5)),
        (TypeError, "num_samples", lambda: X.multinomial("a")),
    ],
    "dropout": [
        (ArgumentError, "between 0 and 1, got 1.5", lambda: X.dropout(1.5)),
        (ArgumentError, "between 0 and 1, got nan", lambda: X.dropout(float("nan"))),
        (TypeError, "p must be a number", lambda: X.dropout("a")),
    ],
    # the tensor itself
    "cast": [
        (AttributeError, "'flot'.*did you mean 'float'", lambda: X.cast("flot")),
        (TypeError, "3", lambda: X.cast(3)),
        (AttributeError, "or its name", lambda: X.cast((dtypes.int32,))),
    ],
    "bitcast": [(ShapeError, r"\(2, 3\) float32.*whole int64", lambda: X.bitcast("int64"))],
    "to": [
        (DeviceError, "'gpu'; there are: NUMPY, CPU.*did you mean 'CUDA'", lambda: X.to("gpu")),
        (TypeError, "named by a str", lambda: X.to(3)),
    ],
    "cuda": [(DeviceError, "CUDA needs", lambda: X.cuda())] if not Device.available("CUDA") else [],
    "index_select": [
        (
            DTypeError,
            r"integers along one axis, got float32 \(2, 3\)",
            lambda: X.index_select(0, X),
        ),
        (AxisError, "axis 5", lambda: X.index_select(5, I)),
        (TypeError, "index must be a Tensor", lambda: X.index_select(0, 1)),
    ],
    "round": [
        (TypeError, "decimals must be a whole number", lambda: X.round(0.5)),
        (TypeError, "round has no argument .digits", lambda: X.round(digits=1)),
    ],
    "unbind": [(AxisError, "axis 5", lambda: X.unbind(5))],
    "norm": [
        (TypeError, "p must be a number, got .fro.", lambda: X.norm("fro")),
        (AxisError, "axis 5", lambda: X.norm(axis=5)),
    ],
    "size": [(IndexError, "axis 5", lambda: X.size(5))],
    "item": [(RuntimeError, r"exactly one element, got shape \(2, 3\)", lambda: X.item())],
    "realize": [
        (TypeError, "argument 1 must be a Tensor", lambda: X.realize(3)),
        (TypeError, "argument 0 must be a Tensor, got .*list", lambda: Tensor.realize([X, V])),
    ],
    "assign": [
        (ShapeError, r"\(3, 3\) and \(2, 3\)", lambda: X.assign(Tensor.zeros(3, 3))),
        (ShapeError, "does not fit", lambda: Tensor.zeros(3).assign(X)),
        (DTypeError, "float32 cannot go to int32; cast", lambda: J.assign(J.float())),
        (DeviceError, "one device", lambda: X.assign(FAR)),
        (TypeError, "the value must be", lambda: X.assign("a")),
    ],
    "backward": [
        (GradientError, "requires_grad=True", lambda: X.backward()),
        (GradientError, "reduce it", lambda: Tensor([1.0, 2.0], requires_grad=True).backward()),
        (TypeError, "gradient must be a Tensor", lambda: X.backward("a")),
    ],
    "requires_grad_": [
        (GradientError, "int32; cast first", lambda: J.detach().requires_grad_()),
        (GradientError, "int32; cast", lambda: setattr(J.detach(), "requires_grad", True)),
        (TypeError, "True, False or None, got 'yes'", lambda: Tensor([1.0], requires_grad="yes")),
        (TypeError, "got 1 ", lambda: Tensor.ones(2).requires_grad_(1)),
    ],
    "retain_grad": [(GradientError, "does not require", lambda: X.retain_grad())],
    "register_hook": [
        (GradientError, "has no gradient", lambda: J.register_hook(print)),
        (TypeError, "hook must be a function", lambda: L.register_hook(3)),
    ],
    "gradient": [
        (GradientError, "reduce it", lambda: X.gradient(X)),
        (TypeError, "target 0 must be a Tensor", lambda: X.gradient("a")),
        (GradientError, "not in the graph", lambda: X.sum().gradient(V)),
    ],
}
TAKES_NOTHING = "takes nothing but the tensor, and there is a result for every tensor"
UNARY = (
    *(
        "abs",
        "sign",
        "sqrt",
        "rsqrt",
        "exp",
        "exp2",
        "log",
        "log2",
        "log10",
        "reciprocal",
        "square",
    ),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh"),
    *(
        "atanh",
        "erf",
        "erfinv",
        "lgamma",
        "digamma",
        "trunc",
        "floor",
        "ceil",
        "isnan",
        "isfinite",
        "logical_not",
    ),
    *("relu", "relu6", "sigmoid", "logsigmoid", "silu", "swish", "quick_gelu", "mish", "softsign"),
    *(
        "hardswish",
        "nonzero",
        "float",
        "double",
        "half",
        "bfloat16",
        "short",
        "int",
        "long",
        "bool",
    ),
    *("numel", "element_size", "nbytes", "is_floating_point", "numpy", "data", "tolist"),
    *("detach", "contiguous", "clone", "cpu", "dim", "expm1", "log1p"),
)
REASONS: dict[str, str] = {
    **dict.fromkeys(UNARY, TAKES_NOTHING),
    "isinf": "its two flags are true or false, whatever they are",
    "train": "its flag is true or false, whatever it is",
    "lazy": "not a method: the graph's node, for the rooms below",
    **dict.fromkeys(("shape", "dtype", "device", "ndim", "T", "mT", "is_leaf"), "not a method"),
    **dict.fromkeys(("grad", "requires_grad", "training"), "not a method"),
}


def _attention(**options: Any) -> Tensor:
    return X.scaled_dot_product_attention(X, X, **options)


def _heads(queries: int, keys: int, enable_gqa: bool) -> Tensor:
    x, key = Tensor.ones(2, queries, 3, 4), Tensor.ones(2, keys, 3, 4)
    return x.scaled_dot_product_attention(key, key, enable_gqa=enable_gqa)


def everything() -> dict[str, list[Case]]:
    found = families()
    for name, cases in OWN.items():
        found[name] = [*found.get(name, []), *cases]
    return found


CASES = [(name, *case) for name, cases in everything().items() for case in cases]


@pytest.mark.parametrize(
    ("name", "kind", "words", "call"), CASES, ids=[f"{c[0]}-{c[2]}" for c in CASES]
)
def test_refused(name: str, kind: type[Exception], words: str, call: Callable[[], Any]) -> None:
    with pytest.raises(kind, match=words) as caught:
        call()
    said = str(caught.value)
    assert CALLED.get(name, name) in said or kind in (AttributeError, DeviceError), said
    assert said.count("\n") == 0
    assert len(said) < 400


def test_every_public_name_has_mistakes_or_a_reason() -> None:
    public = {name for name in dir(Tensor) if not name.startswith("_")}
    missing = public - set(everything()) - set(REASONS)
    assert not missing, f"what is refused by {sorted(missing)}? Add cases, or a reason"
    assert set(everything()) | set(REASONS) <= public | {"grad", "requires_grad", "training"}
    assert not set(everything()) & set(REASONS)
