"""Function: a step with a gradient that the user writes down.

    class Clamped(Function):
        # x between 0 and 1, with a gradient that ignores the bounds

        def forward(self, x: Tensor) -> Tensor:
            return x.clip(0, 1)

        def backward(self, grad: Tensor) -> Tensor:
            return grad

    y = Clamped.apply(x)

As with torch.autograd.Function, `forward` is computed without recording, and what `backward`
needs of it is kept with `self.save(...)` and found in `self.saved`. Both may also be written as
torch has them: static methods, with `ctx` in place of `self`. Other arguments than
tensors are passed through. `backward` gets one gradient per result (zeros if nothing came of a
result) and gives one per argument (None: it has none). It is made of tensor ops, so it can be
differentiated again: by way of saved arguments and results, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from inspect import getattr_static
from typing import Any, NoReturn

from tinyml import mlops
from tinyml.autograd import mode, no_grad
from tinyml.errors import GradientError
from tinyml.functional.axes import wrong_type
from tinyml.mlops import Grads
from tinyml.tensor import Tensor


class Function:
    """Subclass this, write `forward` and `backward`, and call `apply`."""

    needs_input_grad: tuple[bool, ...] = ()  # for each argument; set before `backward`
    _saved: tuple[Any, ...] = ()
    _fixed: tuple[Tensor, ...] = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Refuses what `apply`, which makes an object for each call, would not know of."""
        if args or kwargs:
            raise TypeError(
                f"{cls.__name__}: what __init__ would be given is given to apply: write "
                f"{cls.__name__}.apply(...), all of which forward gets"
            )
        return super().__new__(cls)

    def save(self, *values: Any) -> None:
        """Keep values for `backward`: arguments, results, or whatever else."""
        self._saved = values

    @property
    def saved(self) -> tuple[Any, ...]:
        """What was saved; GradientError if a tensor was assigned to since, and not recorded."""
        return tuple(v.found() if isinstance(v, _Saved) else v for v in self._saved)

    save_for_backward = save
    saved_tensors = saved

    def mark_non_differentiable(self, *results: Tensor) -> None:
        """These results of `forward` are constants. Integers and bools are, in any case."""
        self._fixed = results

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The result, or a tuple of results, from the arguments of `apply`."""
        raise NotImplementedError(f"{type(self).__name__} needs a forward method")

    def backward(self, *grads: Tensor) -> Any:
        """The gradient of each positional argument, from the gradients of the results."""
        raise GradientError(f"{type(self).__name__} has no backward method")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Compute `forward`, remembering to ask `backward` for the gradient."""
        function = cls()
        with no_grad():
            result = _method(function, "forward")(*args, **kwargs)
        several = isinstance(result, (tuple, list))
        given = tuple(result) if several else (result,)
        for t in given:
            if not isinstance(t, Tensor):
                raise wrong_type(f"{cls.__name__}.forward", "a result", "a Tensor", t)
        inputs = tuple(a for a in args if isinstance(a, Tensor))
        results = tuple(_own(t, inputs) for t in given)
        constant = {id(t) for t in function._fixed}
        moving = [t for t, r in zip(results, given, strict=True) if id(r) not in constant]
        function._saved = tuple(_saved(v, given, results) for v in function._saved)
        function._fixed = ()
        record_results(_Custom(function, args, results), inputs, results, moving)
        return results if several else results[0]

    def __call__(self, *args: Any) -> NoReturn:
        """Not how it is meant; `apply` makes a Function of its own for each call."""
        name = type(self).__name__
        raise TypeError(
            f"a Function is not called: write {name}.apply(...), all of which forward gets"
        )


def _method(function: Function, name: str) -> Callable[..., Any]:
    """A method of a Function; a static one takes the Function as `ctx`, as in torch."""
    method: Callable[..., Any] = getattr(function, name)
    static = isinstance(getattr_static(function, name), staticmethod)
    return partial(method, function) if static else method


class _Saved:
    """A tensor as it was; a result without a reference, as its record would refer to itself."""

    def __init__(self, tensor: Tensor, is_result: bool) -> None:
        self._reference = weakref.ref(tensor) if is_result else lambda: tensor
        self._copy = tensor._of(tensor.lazy) if is_result else tensor
        self._clock = mode.assignments

    def found(self) -> Tensor:
        """The tensor; of a result that nobody has, one that nothing is differentiated by."""
        tensor = self._reference()
        if tensor is None:
            return self._copy
        then = tensor._version_at(self._clock)
        if then._changed_after(self._clock):
            raise GradientError(
                f"saved: a tensor {then.shape} was assigned to after it was saved for the "
                "gradient; assign after backward(), or save a copy (.clone())"
            )
        return then


def _own(result: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """The result, as a tensor that nobody has recorded yet."""
    known = result._record is not None or any(result is t for t in inputs)
    return result._of(result.lazy) if known or result.requires_grad else result


def _saved(value: Any, given: Sequence[Tensor], results: Sequence[Tensor]) -> Any:
    if not isinstance(value, Tensor):
        return value
    return _Saved(
        value, any(value is t and value is r for t, r in zip(given, results, strict=True))
    )


def record_results(
    record: Several, inputs: tuple[Tensor, ...], results: Sequence[Tensor], moving: list[Tensor]
) -> None:
    """Let `record` say the gradients of `inputs`, given those of the results that move.

    The results are computed from one tensor in between, which stands for all of them.
    """
    moving = [t for t in moving if t.dtype.is_float]
    if not mode.recording or not moving or not inputs:
        return
    between = inputs[0]._full((), 0, moving[0].dtype)
    required = any(t.requires_grad for t in inputs)
    record.inputs, record.clock = inputs, mode.assignments
    between._record, between.requires_grad = record, required
    for number, result in enumerate(results):
        if any(result is t for t in moving):
            part = _Result(number, len(results))
            part.inputs, part.clock = (between,), mode.assignments
            result._record, result.requires_grad = part, required


class _Gradients:
    """The gradients of several results, while they are being added up."""

    def __init__(self, parts: tuple[Tensor | None, ...]) -> None:
        self.parts = parts

    def __add__(self, other: _Gradients) -> _Gradients:
        pairs = zip(self.parts, other.parts, strict=True)
        return _Gradients(tuple(b if a is None else (a if b is None else a + b) for a, b in pairs))


class _Result(mlops.Function):
    """The record of one of several results."""

    __slots__ = ("count", "number")

    def __init__(self, number: int, count: int) -> None:
        self.number, self.count = number, count

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        parts = tuple(grad if i == self.number else None for i in range(self.count))
        together: Any = _Gradients(parts)
        return (together,)


class Several(mlops.Function):
    """The record of what has several results, and which shapes they have."""

    __slots__ = ("shapes",)
    reads_inputs = True

    def __init__(self, results: Sequence[Tensor]) -> None:
        self.shapes = [(t.shape, t.dtype) for t in results]

    def of_results(self, grad: Any) -> tuple[Tensor, ...]:
        """A gradient for each result."""
        like = self.inputs[0]
        pairs = zip(grad.parts, self.shapes, strict=True)
        return tuple(like._full(s, 0, d) if g is None else g for g, (s, d) in pairs)


class _Custom(Several):
    """The record of an applied user's Function."""

    __slots__ = ("function", "is_tensor")

    def __init__(self, function: Function, args: Sequence[Any], results: Sequence[Tensor]) -> None:
        super().__init__(results)
        self.function, self.is_tensor = function, tuple(isinstance(a, Tensor) for a in args)

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        wanted = iter(self.wanted)
        self.function.needs_input_grad = tuple(t and next(wanted) for t in self.is_tensor)
        given = _method(self.function, "backward")(*self.of_results(grad))
        parts = given if isinstance(given, (tuple, list)) else (given,)
        name = type(self.function).__name__
        if len(parts) != len(self.is_tensor):
            raise GradientError(
                f"{name}.backward gave {len(parts)} gradients for {len(self.is_tensor)} arguments "
                "of apply; it is None for what has none"
            )
        kept = (p for p, wanted in zip(parts, self.is_tensor, strict=True) if wanted)
        return tuple(_fitted(name, p, t) for p, t in zip(kept, self.inputs, strict=True))


def _fitted(name: str, grad: Any, source: Tensor) -> Tensor | None:
    """A gradient as it belongs to a source, in its dtype."""
    if grad is None:
        return None
    if not isinstance(grad, Tensor):
        raise wrong_type(f"{name}.backward", "a gradient", "a Tensor", grad)
    if grad.shape != source.shape:
        raise GradientError(
            f"{name}.backward gave a gradient of {grad.shape} for an input {source.shape}"
        )
    return grad.cast(source.dtype)
