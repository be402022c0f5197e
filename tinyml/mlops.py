"""Differentiable primitives: each class says its value (on nodes) and its gradient (on tensors).

`forward` takes and returns lazy nodes. `backward` takes the gradient of the result, and the
result itself, and answers with one gradient per input (None: there is none). It is written
with the ops of Tensor, so that a gradient is a lazy graph like any other: it fuses with what
surrounds it, and it has a gradient of its own.

An applied Function is also the record of its application: `inputs` are the tensors it was
applied to. A record never refers to its result, so a graph holds no reference cycle and is
freed without the garbage collector.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log, pi
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from tinyml import lazy
from tinyml.dtype import DType, float32
from tinyml.errors import GradientError
from tinyml.faults import Fault
from tinyml.lazy import LazyBuffer, Shape
from tinyml.ops import Op
from tinyml.shape import dropped_shape, size_along

if TYPE_CHECKING:
    from tinyml.tensor import Tensor

Grads: TypeAlias = "tuple[Tensor | None, ...]"
_Slope: TypeAlias = Callable[..., Any]  # of tensors, which have no types here yet


class Function:
    """A primitive. Subclasses keep parameters in slots, and nothing else on `self`."""

    __slots__ = ("clock", "inputs", "wanted")
    reads_inputs: ClassVar[bool] = False  # backward looks at the values of the inputs
    inputs: tuple[Tensor, ...]
    clock: int  # how many assignments had been made when this was recorded
    wanted: tuple[bool, ...]  # which inputs need a gradient; set before backward is called
    forward: Callable[..., LazyBuffer]

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        """The gradients of `inputs`, given the result `out` and its gradient."""
        raise GradientError(f"{type(self).__name__} has no gradient")

    def gradients(self, grad: Tensor, out: Tensor) -> Grads:
        """Those of backward, in the shapes of the inputs."""
        return self.backward(grad, out)


class Composed(Function):
    """Other ops, with a gradient of its own: `rule(grad, out, *inputs)` gives one per input.

    For where the gradients of the parts do not add up to that of the whole: at the ends of what
    it is defined for, at ties, and where infinities cancel.
    """

    __slots__ = ("compute", "rule", "tensor")
    reads_inputs = True

    def __init__(
        self,
        tensor: Callable[[LazyBuffer], Tensor],
        compute: Callable[..., Tensor],
        rule: Callable[..., Grads],
    ) -> None:
        self.tensor, self.compute, self.rule = tensor, compute, rule

    def forward(self, *nodes: LazyBuffer) -> LazyBuffer:
        return self.compute(*map(self.tensor, nodes)).lazy

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        return self.rule(grad, out, *self.inputs)


class OfResult(Composed):
    """Other ops of one input, whose gradient is `rule(grad, out)`: what it is of is not read."""

    __slots__ = ()
    reads_inputs = False

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        return self.rule(grad, out)


# ---- one operand ----


class Elementwise(Function):
    """A Function that is one op on every element. Shapes broadcast.

    So `slopes` give gradients in the shape of the result, which are added up along what an input
    was repeated along.
    """

    __slots__ = ()
    op: ClassVar[Op]
    slopes: ClassVar[tuple[_Slope | None, ...]] = ()  # by operand: slope(grad, out, *inputs)

    def forward(self, *sources: LazyBuffer) -> LazyBuffer:
        return lazy.mapped(self.op, sources)

    def gradients(self, grad: Tensor, out: Tensor) -> Grads:
        if not self.slopes:
            return self.backward(grad, out)
        inputs, parts = self.inputs, []
        for slope, x, wanted in zip(self.slopes, inputs, self.wanted, strict=True):
            part = slope(grad, out, *inputs) if slope is not None and wanted else None
            parts.append(part if part is None else folded(part, x.shape))
        return tuple(parts)


def folded(grad: Tensor, shape: Shape) -> Tensor:
    """A gradient of what was broadcast, added up to that of `shape`."""
    if grad.shape == shape:
        return grad
    pairs = zip((1,) * (grad.ndim - len(shape)) + shape, grad.shape, strict=True)
    grown = tuple([i for i, (own, repeated) in enumerate(pairs) if own != repeated])
    return (grad.sum(grown, keepdim=True) if grown else grad)._reshape_to(shape)


def _elementwise(op: Op, *slopes: _Slope | None, reads_inputs: bool = True) -> type[Elementwise]:
    """The class of an op."""
    said = {"op": op, "slopes": slopes, "reads_inputs": reads_inputs}
    return type(op.name.capitalize(), (Elementwise,), {"__slots__": (), **said})


Neg = _elementwise(Op.NEG, lambda grad, out, x: -grad, reads_inputs=False)
Abs = _elementwise(Op.ABS, lambda grad, out, x: grad * x.sign())
Exp = _elementwise(Op.EXP, lambda grad, out, x: grad * out, reads_inputs=False)
Exp2 = _elementwise(Op.EXP2, lambda grad, out, x: grad * (out * log(2.0)), reads_inputs=False)
Expm1 = _elementwise(Op.EXPM1, lambda grad, out, x: grad * (out + 1), reads_inputs=False)
Log = _elementwise(Op.LOG, lambda grad, out, x: grad / x)
Log2 = _elementwise(Op.LOG2, lambda grad, out, x: grad / (x * log(2.0)))
Log1p = _elementwise(Op.LOG1P, lambda grad, out, x: grad / (x + 1))
Sin = _elementwise(Op.SIN, lambda grad, out, x: grad * x.cos())
Cos = _elementwise(Op.COS, lambda grad, out, x: -(grad * x.sin()))
Tan = _elementwise(Op.TAN, lambda grad, out, x: grad * (out * out + 1), reads_inputs=False)
Atan = _elementwise(Op.ATAN, lambda grad, out, x: grad / (x * x + 1))
Tanh = _elementwise(Op.TANH, lambda grad, out, x: grad * (1 - out * out), reads_inputs=False)
Erf = _elementwise(Op.ERF, lambda grad, out, x: grad * ((-(x * x)).exp() * (2 / pi**0.5)))
Sqrt = _elementwise(Op.SQRT, lambda grad, out, x: grad / (out * 2), reads_inputs=False)
# also what floor, ceil and round are made of: steps, whose gradient is zero
Trunc = _elementwise(Op.TRUNC, lambda grad, out, x: grad.zeros_like(), reads_inputs=False)


class Sign(Function):
    """-1, 0 or 1: a step."""

    __slots__ = ()

    def forward(self, x: LazyBuffer) -> LazyBuffer:
        zero, one, minus = (lazy.const_like(x, v) for v in (0, 1, -1))
        negative = lazy.map_(Op.WHERE, lazy.map_(Op.LESS, x, zero), minus, zero)
        return lazy.map_(Op.WHERE, lazy.map_(Op.LESS, zero, x), one, negative)

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        return (grad.zeros_like(),)


class Relu(Function):
    __slots__ = ()

    def forward(self, x: LazyBuffer) -> LazyBuffer:
        return lazy.map_(Op.MAX, x, lazy.const_like(x, 0))

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        return ((out <= 0).where(0, grad),)  # NaN passes it on, as torch has it


class Cast(Function):
    __slots__ = ("dtype",)

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype

    def forward(self, x: LazyBuffer) -> LazyBuffer:
        return lazy.cast(x, self.dtype)

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        return (grad.cast(self.inputs[0].dtype),)


# ---- several operands ----


Add = _elementwise(Op.ADD, lambda grad, *_: grad, lambda grad, *_: grad, reads_inputs=False)
Mul = _elementwise(Op.MUL, lambda grad, out, x, y: grad * y, lambda grad, out, x, y: grad * x)
Div = _elementwise(
    Op.DIV, lambda grad, out, x, y: grad / y, lambda grad, out, x, y: -(grad / y * out)
)
Mod = _elementwise(  # x - y * floor(x / y), of floats
    Op.MOD,
    lambda grad, out, x, y: grad,
    lambda grad, out, x, y: -(grad * (x.detach() // y.detach())),
)
Pow = _elementwise(
    Op.POW,
    lambda grad, out, x, y: (y == 0).where(0, grad * (y * x ** (y - 1))),
    lambda grad, out, x, y: _slope_of_exponent(grad, out, x, (x == 0) & (y >= 0)),
)
Max = _elementwise(
    Op.MAX,
    lambda grad, out, x, y: (x < y).where(0, _share(grad, x, y)),
    lambda grad, out, x, y: (y < x).where(0, _share(grad, x, y)),
)
Min = _elementwise(
    Op.MIN,
    lambda grad, out, x, y: (y < x).where(0, _share(grad, x, y)),
    lambda grad, out, x, y: (x < y).where(0, _share(grad, x, y)),
)
Where = _elementwise(
    Op.WHERE,
    None,
    lambda grad, out, condition, *_: condition.where(grad, 0),
    lambda grad, out, condition, *_: condition.where(0, grad),
)
Ndtr: type[Elementwise] = _elementwise(  # x times the share of the normal distribution below y
    Op.NDTR,
    lambda grad, out, x, y: grad._apply(Ndtr(), y),
    lambda grad, out, x, y: grad * x * ((y * y * -0.5).exp() * (2 * pi) ** -0.5),
)
# x / (1 + (1 + z) * exp(y)), where z, what y lacks, is a number without a gradient
Logistic: type[Elementwise] = _elementwise(
    Op.LOGISTIC,
    lambda grad, out, x, y, z: grad._apply(Logistic(), y, z),
    lambda grad, out, x, y, z: grad._apply(Logistic(), y, z) * (out - x),
    None,
)
# x * y + z in one rounding: for compositions whose gradient is written down
Fma = _elementwise(Op.FMA, reads_inputs=False)


def _slope_of_exponent(grad: Tensor, out: Tensor, x: Tensor, flat: Tensor) -> Tensor:
    """Where x is 0 and y >= 0, the gradient of y is 0, as torch has it."""
    return flat.where(0, grad * (out * flat.where(1, x).log()))


def _share(grad: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Ties share the gradient. Beside a NaN both have all of it, as torch has it."""
    return (x == y).where(grad * 0.5, grad)


class Sub(Elementwise):
    __slots__ = ()
    op, slopes = Op.ADD, (lambda grad, *_: grad, lambda grad, *_: -grad)

    def forward(self, *sources: LazyBuffer) -> LazyBuffer:
        x, y = sources
        return lazy.mapped(self.op, (x, lazy.mapped(Op.NEG, (y,))))


class CopySign(Function):
    """The magnitude of x with the sign of y: where y is 0, that of 1 / y."""

    __slots__ = ()
    reads_inputs = True

    def forward(self, x: LazyBuffer, y: LazyBuffer) -> LazyBuffer:
        zero, one = (lazy.const_like(x, v) for v in (0, 1))
        below = lazy.map_(Op.LESS, lazy.map_(Op.DIV, one, y), zero)
        negative = lazy.map_(Op.OR, lazy.map_(Op.LESS, y, zero), below)  # 1 / -inf is no sign
        size = lazy.map_(Op.ABS, x)
        return lazy.map_(Op.WHERE, negative, lazy.map_(Op.NEG, size), size)

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        x, y = self.inputs
        return (x == 0).where(0, grad * (out / x)), y.zeros_like()


# ---- reductions ----


class Reduction(Function):
    """`op` folded over axes, which become size 1, or are left out."""

    __slots__ = ("axes", "keepdim")
    op: ClassVar[Op]

    def __init__(self, axes: tuple[int, ...], keepdim: bool) -> None:
        self.axes, self.keepdim = axes, keepdim

    def forward(self, x: LazyBuffer) -> LazyBuffer:
        node = lazy.reduce_(self.op, x, self.axes)
        return node if self.keepdim else lazy.reshaped(node, dropped_shape(node.shape, self.axes))

    def kept(self, result: Tensor) -> Tensor:
        """A tensor of the result's shape, with the axes at size 1."""
        if self.keepdim:
            return result
        sizes = enumerate(self.inputs[0].shape)
        return result._reshape_to(tuple([1 if a in self.axes else n for a, n in sizes]))


class Sum(Reduction):
    __slots__ = ()
    op = Op.ADD

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        return (self.kept(grad)._broadcast_to(self.inputs[0].shape),)


class Mean(Sum):
    """The sum divided by how many there are."""

    __slots__ = ()

    def forward(self, x: LazyBuffer) -> LazyBuffer:
        total, count = Sum.forward(self, x), size_along(x.shape, self.axes)
        return lazy.mapped(Op.DIV, (total, lazy.const_like(total, count)))

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        return Sum.backward(self, grad / size_along(self.inputs[0].shape, self.axes), out)


class _ExtremeOf(Reduction):
    """Ties share the gradient; how many there are is counted in float32.

    A NaN equals nothing: the gradient beside it is NaN, as torch has it. What elements are
    compared with is found anew: if the result is in memory and x is not, another kernel makes x
    again, and may round it otherwise.
    """

    __slots__ = ()
    reads_inputs = True

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        x = self.inputs[0]
        equal = x == x._apply(type(self)(self.axes, True))
        wide = float32 if x.dtype.is_half else x.dtype
        count = equal.cast(wide).sum(self.axes, keepdim=True)
        share = (self.kept(grad).cast(wide) / count).cast(x.dtype)
        return (equal.cast(x.dtype) * share,)


class ReduceMax(_ExtremeOf):
    __slots__ = ()
    op = Op.MAX


class ReduceMin(_ExtremeOf):
    __slots__ = ()
    op = Op.MIN


class Prod(Reduction):
    """The gradient of an element is the product of the others, also where some are zero."""

    __slots__ = ()
    op = Op.MUL
    reads_inputs = True

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        x = self.inputs[0]
        zero, solid, found = zeros_apart(x)
        zeros, only = (t.sum(self.axes, keepdim=True) for t in (zero, found))
        others = product_of_others(x, solid.prod(self.axes, keepdim=True), zeros, only)
        return (self.kept(grad) * others,)


def zeros_apart(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where x is zero (as 0 or 1); x with 1 in place of zeros; and the zeros alone."""
    zero = x == 0
    return zero.cast(float32), zero.where(1, x), zero.where(x, 0)


def product_of_others(x: Tensor, product: Tensor, zeros: Tensor, only: Tensor) -> Tensor:
    """The product of all factors but x, from the product of those that are not zero.

    If one of the others is zero, so is the product; but it has a gradient in turn. Therefore
    it is multiplied with the sum of the zeros (`only`), of which there are so many (`zeros`).
    """
    zero, solid, own = zeros_apart(x)
    others, count = product / solid, zeros - zero
    return (count == 0).where(others, (count == 1).where(others * (only - own), 0))


# ---- what only values can show to be wrong ----


class Require(Function):
    """The first input; the fault is raised if the second, a bool, is false anywhere."""

    __slots__ = ("fault",)

    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    def forward(self, x: LazyBuffer, holds: LazyBuffer) -> LazyBuffer:
        return lazy.require(self.fault, x, holds)

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        return grad, None


# ---- where values are ----


class Contiguous(Function):
    __slots__ = ()

    def forward(self, x: LazyBuffer) -> LazyBuffer:
        return lazy.contiguous(x)

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        return (grad,)


class Step(Contiguous):
    """As Contiguous, and so is its gradient: of steps that are alike so are those of backward."""

    __slots__ = ()

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        return (grad.contiguous(),)


class Clone(Contiguous):
    __slots__ = ()

    def forward(self, x: LazyBuffer) -> LazyBuffer:
        return lazy.node(lazy.Contiguous, x.shape, x.dtype, x.device, (x,))


class Replace(Function):
    """The second input, assigned to the first, to which nothing of the gradient goes."""

    __slots__ = ()

    def forward(self, old: LazyBuffer, new: LazyBuffer) -> LazyBuffer:
        return new

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        return grad.zeros_like() if self.wanted[0] else None, grad


class Copy(Function):
    __slots__ = ("device",)

    def __init__(self, device: str) -> None:
        self.device = device

    def forward(self, x: LazyBuffer) -> LazyBuffer:
        return lazy.copy(x, self.device)

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        return (grad.to(self.inputs[0].device),)
