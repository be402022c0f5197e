"""Tensor: a node of the lazy graph, and the record of how it was made.

What a tensor can do is in `functional/`, by family, and listed in `methods.py`; here is what it is,
and what Python's own syntax asks of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, TypeAlias, overload

from tinyml import autograd, lazy, ledger, mlops, moves
from tinyml.autograd import in_blocks, mode
from tinyml.defaults import Training, Trains
from tinyml.device import DeviceName
from tinyml.dtype import DType, index_dtype
from tinyml.dtypes import DTypeLike, to_dtype
from tinyml.errors import ShapeError
from tinyml.functional import (
    assignment,
    casts,
    creation,
    elementwise,
    exchange,
    gradients,
    indexing,
    linear_algebra,
    unary,
    values,
    views,
)
from tinyml.functional.axes import resolve_axis, shown, spelled_either_way
from tinyml.functional.missing import Data
from tinyml.lazy import LazyBuffer, Shape
from tinyml.methods import Methods

Scalar: TypeAlias = bool | int | float
# inside the class the names bool, int and float are casts
_Bool: TypeAlias = bool
_Int: TypeAlias = int
_Float: TypeAlias = float
_new = object.__new__
_node_of: Callable[[Any], LazyBuffer] = attrgetter("_lazy")


@spelled_either_way
class Tensor(Methods, metaclass=Trains):
    """An array on a device, computed when somebody looks at it."""

    # what most tensors have; an instance only stores what differs
    _requires_grad: _Bool | None = None
    _grad: Tensor | None = None
    _record: mlops.Function | None = None
    _retains_grad: _Bool = False
    _hooks: dict[_Int, Callable[[Tensor], Tensor | None]] | None = None
    _assigned_alone: _Int = 0  # the value of mode.assignments then; see _assigned
    _moments: tuple[autograd.Moment, ...] = ()  # when captured steps assigned to this
    # what it was, each with the number of the assignment that ended it; only where gradients go on
    _past: tuple[tuple[_Int, Tensor], ...] = ()
    _view: views.View | None = None  # how this follows another tensor
    _family: Callable[[], views.Family | None] | None = None  # those that follow this one
    _version: Callable[[], LazyBuffer | None] | None = None  # the last Assign of our own
    _before: Callable[[], Tensor | None] | None = None  # this version, as a tensor of its own
    _lazy: LazyBuffer

    def __init__(
        self,
        value: Any = None,
        device: str | None = None,
        dtype: DTypeLike | None = None,
        requires_grad: _Bool | None = None,
    ) -> None:
        target = None if dtype is None else to_dtype(dtype)
        values.fill(self, value, device, target, requires_grad)

    @property
    def requires_grad(self) -> _Bool | None:
        """Whether gradients are wanted; None: an optimizer that is given the tensor may set it."""
        if self._view is not None:
            views.refresh(self, self._view)  # what was assigned to its root may require one
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, wanted: _Bool | None) -> None:
        gradients.check_wanted(self, wanted)
        self._requires_grad = wanted
        if wanted:
            ledger.keep(self)

    @property
    def lazy(self) -> LazyBuffer:
        """The node that says what this tensor's values are."""
        if self._view is not None:
            views.refresh(self, self._view)
        return self._lazy

    @lazy.setter
    def lazy(self, node: LazyBuffer) -> None:
        if type(self._lazy) is lazy.Data:
            self._lazy.readers.ring()
        self._begin(node)
        if type(node) is lazy.Data and not self._requires_grad:
            self._record = None  # a leaf now, unless somebody wants to differentiate it
        if self._view is not None and self._view.family is not None:
            self._view.family.settle()
        if self._family is not None and (family := self._family()) is not None:
            family.keep(self)

    _followed = property(views.root_of)

    # ---- making tensors out of nodes; for functional/ and mlops ----

    def _begin(self, node: LazyBuffer) -> None:
        self._lazy = node
        ledger.watch(self, node)

    @classmethod
    def _of(cls, node: LazyBuffer) -> Tensor:
        tensor = _new(cls)
        tensor._begin(node)
        return tensor

    def _apply(self, function: mlops.Function, *others: Tensor) -> Tensor:
        """`function` of this tensor and others, recorded so that it can be differentiated.

        Without an input that requires a gradient the record serves `gradient()` only, and is
        dropped when the result is realized.
        """
        if self._view is not None:
            views.renew(self, self._view)
        wanted = self._requires_grad
        inputs: tuple[Tensor, ...] = (self,)
        if others:
            inputs, nodes = (self, *others), [self._lazy]
            for tensor in others:
                if tensor._view is not None:
                    views.renew(tensor, tensor._view)
                if tensor._requires_grad:
                    wanted = True
                nodes.append(tensor._lazy)
            node = function.forward(*nodes)
        else:
            node = function.forward(self._lazy)
        out = _new(Tensor)
        out._lazy = node
        ledger.watch(out, node)
        if node.dtype.is_float and (not in_blocks() or mode.recording):
            function.inputs, function.clock = inputs, mode.assignments
            out._record = function
            if wanted:
                out._requires_grad = True
        return out

    def _shown(self, kind: Callable[[Any], moves.Rearrangement], arg: Any) -> Tensor:
        """`kind(arg)` of this tensor as a view of it."""
        return views.follow(self._apply(kind(arg)), self, views.rearranged(kind, arg))

    def _own(self) -> Tensor:
        """The same values as another tensor, which is no view."""
        return self._apply(moves.Reshape(self.shape))

    @classmethod
    def _constant(cls, node: LazyBuffer) -> Tensor:
        """An operand that depends on no memory and that users never see: it is not watched."""
        tensor = _new(cls)
        tensor._lazy = node
        return tensor

    @staticmethod
    def _watch(tensors: Sequence[Tensor]) -> None:
        """Note several tensors that `_constant` made."""
        ledger.watch_all(tensors, list(map(_node_of, tensors)))

    @staticmethod
    def _passing(node: LazyBuffer) -> Tensor:
        """A tensor for the time of a composition."""
        return _Passing._of(node)

    def _full(self, shape: Shape, value: Scalar, dtype: DType) -> Tensor:
        return self._of(lazy.const(value, dtype, self._lazy.device, shape))

    def _arange(self, n: _Int) -> Tensor:
        return self._of(lazy.iota(n, index_dtype(n), self._lazy.device))

    def _eye_like(self, n: _Int) -> Tensor:
        return creation.eye(type(self), n, dtype=self.dtype, device=self.device)

    def _coerce(self, value: Any, op: str = "Tensor") -> Tensor:
        if isinstance(value, Tensor):
            return value
        if not values.has_values(value):
            raise TypeError(
                f"{op}: a Tensor goes together with tensors, numbers, lists and arrays, not with "
                f"{shown(value)} ({type(value).__name__})"
            )
        return Tensor(value, device=self.device)

    def _requiring(self, requires_grad: _Bool | None) -> Tensor:
        self.requires_grad = requires_grad
        return self

    # ---- what it is ----

    @property
    def shape(self) -> Shape:
        """The size of each axis; () for one number."""
        return self._lazy.shape

    @property
    def dtype(self) -> DType:
        """The number format of the elements."""
        return self._lazy.dtype

    @property
    def device(self) -> str:
        """Where the values are or will be computed: CPU, CUDA, EMU or NUMPY."""
        return DeviceName(self._lazy.device)

    @property
    def ndim(self) -> _Int:
        """How many axes."""
        return len(self._lazy.shape)

    def dim(self) -> _Int:
        """How many axes, as torch says it."""
        return self.ndim

    def numel(self) -> _Int:
        """How many elements."""
        return self._lazy.size

    @overload
    def size(self, dim: None = None) -> Shape: ...

    @overload
    def size(self, dim: _Int) -> _Int: ...

    def size(self, dim: _Int | None = None) -> Shape | _Int:
        """The shape, or one size of it; IndexError if there is no such axis."""
        if dim is None:
            return self.shape
        axis = resolve_axis(dim, self.ndim, "size")
        return self.shape[axis] if self.shape else 1

    def element_size(self) -> _Int:
        """Bytes of one element."""
        return self.dtype.itemsize

    def nbytes(self) -> _Int:
        """Bytes of all elements."""
        return self.numel() * self.element_size()

    def is_floating_point(self) -> _Bool:
        """Whether the dtype is a float, so that gradients are possible."""
        return self.dtype.is_float

    def __len__(self) -> _Int:
        if not self.shape:
            raise TypeError("len() and iteration need an axis, and this tensor has shape ()")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return iter([self[i] for i in range(len(self))])

    def __contains__(self, value: Any) -> _Bool:
        equal = self == value
        return equal if isinstance(equal, bool) else equal.any().item()

    __hash__ = object.__hash__  # by identity, though == compares elements

    # ---- values ----

    realize = values.realize
    numpy = values.to_numpy

    @property
    def data(self) -> Data:
        """`data()`: the values as a buffer, flat if there are none. Nothing can be put there."""
        # without values a memoryview of several axes cannot be walked
        return Data(lambda: (self.numpy() if self.numel() else self.numpy().reshape(0)).data)

    @data.setter
    def data(self, value: Any) -> None:
        raise AttributeError("data: the values of a tensor are replaced by .assign()")

    item = values.item
    tolist = values.tolist

    def __bool__(self) -> _Bool:
        return bool(values.number(self, "bool()", "say .any() or .all() of them"))

    def __int__(self) -> _Int:
        return int(values.number(self, "int()"))

    def __float__(self) -> _Float:
        return float(values.number(self, "float()"))

    __index__ = values.as_index
    __repr__ = values.describe
    __format__ = values.format_number

    # ---- arrays of other libraries ----

    __array__ = exchange.to_array
    __array_ufunc__ = exchange.ufunc
    __array_function__ = exchange.array_function
    __cuda_array_interface__ = property(exchange.interface_of)
    __dlpack__ = exchange.to_dlpack
    __dlpack_device__ = exchange.dlpack_device
    from_dlpack = classmethod(exchange.from_dlpack)

    # ---- places ----

    to = casts.to
    cpu = casts.cpu
    cuda = casts.cuda

    def detach(self) -> Tensor:
        """A view of the same values, cut off from how they were made."""
        cut = self._of(self.lazy)._requiring(False)
        return views.follow(cut, self, views.Detached())

    def contiguous(self) -> Tensor:
        """The same values in memory of their own: no view."""
        return self._apply(mlops.Contiguous())

    def clone(self) -> Tensor:
        """A copy in memory of its own: later assignments to one do not change the other."""
        return self._apply(mlops.Clone())

    def __copy__(self) -> Tensor:
        """The same memory, as in torch; `clone()` and deepcopy have memory of their own."""
        return self.detach()._requiring(self.requires_grad)

    __reduce__ = values.parts_of
    __deepcopy__ = values.deep_copy

    # ---- dtypes ----

    cast = casts.cast
    bitcast = casts.bitcast
    float = casts.float_
    double = casts.double
    half = casts.half
    bfloat16 = casts.bfloat16
    short = casts.short
    int = casts.int_
    long = casts.long
    bool = casts.bool_

    # ---- gradients ----

    def requires_grad_(self, requires_grad: _Bool = True) -> Tensor:
        """Set `requires_grad`; TypeError if not a bool, GradientError if this is not of floats."""
        return self._requiring(requires_grad)

    @property
    def grad(self) -> Tensor | None:
        """What `backward` added up, None so far; settable: a Tensor of the same shape."""
        if self._grad is None and self._record is not None:
            gradients.warn_of_none(self)
        return self._grad

    @grad.setter
    def grad(self, grad: Tensor | None) -> None:
        gradients.check_grad(self, grad)
        self._grad = grad

    backward = gradients.backward
    retain_grad = gradients.retain_grad
    register_hook = gradients.register_hook
    gradient = gradients.gradient
    _is_computed = gradients.is_computed
    _is_leaf = property(gradients.is_leaf)

    @property
    def is_leaf(self) -> _Bool:
        """Whether `backward` ends here, or does not come here at all."""
        return not self.requires_grad or gradients.is_leaf(self)

    # ---- assignment ----

    assign = assignment.assign
    _before_assignment = assignment.before_assignment
    _changed_after = assignment.changed_after
    _version_at = assignment.version
    _assigned = property(assignment.last_assigned, assignment.set_last_assigned)

    # ---- operators ----

    __add__ = elementwise.asking(elementwise.add, "__radd__")
    __radd__ = elementwise.add
    __sub__ = elementwise.asking(elementwise.sub, "__rsub__")
    __rsub__ = elementwise.reflected(elementwise.sub)
    __mul__ = elementwise.asking(elementwise.mul, "__rmul__")
    __rmul__ = elementwise.mul
    __truediv__ = elementwise.asking(elementwise.div, "__rtruediv__")
    __rtruediv__ = elementwise.reflected(elementwise.div)
    __floordiv__ = elementwise.asking(elementwise.floordiv, "__rfloordiv__")
    __rfloordiv__ = elementwise.reflected(elementwise.floordiv)
    __mod__ = elementwise.asking(elementwise.mod, "__rmod__")
    __rmod__ = elementwise.reflected(elementwise.mod)
    __pow__ = elementwise.asking(elementwise.pow_, "__rpow__")
    __rpow__ = elementwise.reflected(elementwise.pow_)
    __and__ = elementwise.asking(elementwise.bitwise_and, "__rand__")
    __rand__ = elementwise.bitwise_and
    __or__ = elementwise.asking(elementwise.bitwise_or, "__ror__")
    __ror__ = elementwise.bitwise_or
    __xor__ = elementwise.asking(elementwise.bitwise_xor, "__rxor__")
    __rxor__ = elementwise.bitwise_xor
    __lshift__ = elementwise.asking(elementwise.lshift, "__rlshift__")
    __rlshift__ = elementwise.reflected(elementwise.lshift)
    __rshift__ = elementwise.asking(elementwise.rshift, "__rrshift__")
    __rrshift__ = elementwise.reflected(elementwise.rshift)
    __neg__ = unary.neg
    __invert__ = elementwise.bitwise_not
    __abs__ = unary.abs_
    __divmod__ = elementwise.divmod_
    __rdivmod__ = elementwise.rdivmod
    __lt__ = elementwise.asking(elementwise.lt, "__gt__")
    __le__ = elementwise.asking(elementwise.le, "__ge__")
    __gt__ = elementwise.asking(elementwise.gt, "__lt__")
    __ge__ = elementwise.asking(elementwise.ge, "__le__")
    __iadd__ = elementwise.in_place(elementwise.add)
    __isub__ = elementwise.in_place(elementwise.sub)
    __imul__ = elementwise.in_place(elementwise.mul)
    __itruediv__ = elementwise.in_place(elementwise.div)
    __ifloordiv__ = elementwise.in_place(elementwise.floordiv)
    __imod__ = elementwise.in_place(elementwise.mod)
    __ipow__ = elementwise.in_place(elementwise.pow_)
    __iand__ = elementwise.in_place(elementwise.bitwise_and)
    __ior__ = elementwise.in_place(elementwise.bitwise_or)
    __ixor__ = elementwise.in_place(elementwise.bitwise_xor)
    __ilshift__ = elementwise.in_place(elementwise.lshift)
    __irshift__ = elementwise.in_place(elementwise.rshift)
    # x @= y means x = x @ y, as in torch: the shape may be another one
    __matmul__ = elementwise.asking(linear_algebra.dot, "__rmatmul__")
    __getitem__ = indexing.getitem
    __setitem__ = indexing.setitem

    def __delitem__(self, index: Any) -> None:
        raise TypeError(f"items of a tensor {self.shape} cannot be deleted; index what is to stay")

    def __eq__(self, other: Any) -> Tensor:  # type: ignore[override]
        return elementwise.eq(self, other) if values.has_values(other) else NotImplemented

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return elementwise.ne(self, other) if values.has_values(other) else NotImplemented

    def __pos__(self) -> Tensor:
        return self

    __round__ = unary.round_

    def __rmatmul__(self, other: Any) -> Tensor:
        return linear_algebra.dot(self._coerce(other), self)

    @property
    def T(self) -> Tensor:
        """The axes in reverse order."""
        return self.permute(tuple(reversed(range(self.ndim))))

    @property
    def mT(self) -> Tensor:
        """The last two axes exchanged: each matrix transposed."""
        if self.ndim < 2:
            raise ShapeError(f"mT: a matrix has two axes at least, got shape {self.shape}")
        return self.transpose(-2, -1)

    @classmethod
    def train(cls, mode: _Bool = True) -> Training:
        """`with Tensor.train():` dropout and batch statistics are active; also a decorator.

        In this thread, whereas `Tensor.training = True` outside of such a block is for all.
        """
        return Training(mode)


class _Passing(Tensor):
    """A tensor within a composition, which has a gradient of its own.

    Nobody asks for the gradient of such a tensor, and it is gone before the next assignment: so
    it is neither recorded nor watched.
    """

    @classmethod
    def _of(cls, node: LazyBuffer) -> Tensor:
        return cls._constant(node)

    @staticmethod
    def _watch(tensors: Sequence[Tensor]) -> None:
        pass

    def _apply(self, function: mlops.Function, *others: Tensor) -> Tensor:
        nodes = [other.lazy for other in others] if others else ()
        return self._constant(function.forward(self._lazy, *nodes))

    def _shown(self, kind: Callable[[Any], moves.Rearrangement], arg: Any) -> Tensor:
        return self._apply(kind(arg))
