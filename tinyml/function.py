"""Function: a step with a gradient that the user writes down.

    class Clamped(Function):
        # x between 0 and 1, with a gradient that ignores the bounds

        def forward(self, x: Tensor) -> Tensor:
            return x.clip(0, 1)

        def backward(self, grad: Tensor) -> Tensor:
            return grad

    y = Clamped.apply(x)

As with torch.autograd.Function, `forward` is computed without recording, and what `backward`
needs of it is kept with `self.save(...)` and found in `self.saved`. Other arguments than
tensors are passed through. `backward` gives one gradient per argument (None: it has none); it
is made of tensor ops, so it can be differentiated again.
"""

from __future__ import annotations

from typing import Any

from tinyml import mlops
from tinyml.autograd import mode, no_grad
from tinyml.errors import GradientError
from tinyml.mlops import Grads
from tinyml.tensor import Tensor


class Function:
    """Subclass this, write `forward` and `backward`, and call `apply`."""

    saved: tuple[Any, ...] = ()

    def save(self, *values: Any) -> None:
        """Keep values for `backward`: inputs, results, or whatever else."""
        self.saved = values

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The result, from the arguments of `apply`."""
        raise NotImplementedError(f"{type(self).__name__} needs a forward method")

    def backward(self, grad: Tensor) -> Any:
        """The gradient of each positional argument, from the gradient of the result."""
        raise GradientError(f"{type(self).__name__} has no backward method")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Tensor:
        """Compute `forward`, remembering to ask `backward` for the gradient."""
        function = cls()
        with no_grad():
            result = function.forward(*args, **kwargs)
        out = result.detach()
        inputs = tuple(a for a in args if isinstance(a, Tensor))
        if mode.recording and out.dtype.is_float:
            record = _Custom(function, tuple(isinstance(a, Tensor) for a in args))
            record.inputs, record.clock = inputs, mode.assignments
            out.requires_grad, out._record = any(t.requires_grad for t in inputs), record
        return out


class _Custom(mlops.Function):
    """The record of an applied user's Function."""

    __slots__ = ("function", "is_tensor")
    reads_inputs = True

    def __init__(self, function: Function, is_tensor: tuple[bool, ...]) -> None:
        self.function, self.is_tensor = function, is_tensor

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        given = self.function.backward(grad)
        parts = given if isinstance(given, (tuple, list)) else (given,)
        name = type(self.function).__name__
        if len(parts) != len(self.is_tensor):
            raise GradientError(
                f"{name}.backward gave {len(parts)} gradients for {len(self.is_tensor)} arguments"
            )
        kept = tuple(p for p, wanted in zip(parts, self.is_tensor, strict=True) if wanted)
        for part, source in zip(kept, self.inputs, strict=True):
            if part is not None and part.shape != source.shape:
                raise GradientError(
                    f"{name}.backward gave a gradient of {part.shape} for an input {source.shape}"
                )
        return kept
