"""checkpoint: compute a part of a model again for its gradient, instead of keeping what it made.

    y = checkpoint(block, x)

The values in between are forgotten after the forward pass. Backward computes them again from
the arguments: from copies which cannot be had before the gradient of the result, so that the
scheduler neither shares the values with those of the forward pass nor computes them early
(Chen et al. 2016, "Training deep nets with sublinear memory cost").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

from tinyml import autograd
from tinyml.autograd import enable_grad, mode
from tinyml.function import Several, record_results
from tinyml.functional.random_ import Draws, generator
from tinyml.mlops import Grads
from tinyml.tensor import Tensor, Training

_P = ParamSpec("_P")
_R = TypeVar("_R")


def checkpoint(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """function(*args, **kwargs), a tensor or a tuple of them, whose insides are not kept.

    Tensors among the arguments get gradients, and so does every leaf that requires one and that
    the function reads besides. Random draws are the same ones when it is computed again. What
    it assigns to (running statistics) it assigns to twice. Works inside TinyJit.
    """
    if not mode.recording:
        return function(*args, **kwargs)
    part = _Part(function, args, kwargs)
    inputs = part.tensors
    fresh = [t.detach()._requiring(t.dtype.is_float) for t in inputs]
    with generator.noting() as part.draws:
        made = part.compute(fresh)
    several = isinstance(made, (tuple, list))
    found = tuple(made) if several else (made,)
    besides = autograd.leaves([t for t in found if t.dtype.is_float], fresh)
    results = tuple(t.detach()._requiring(None) for t in found)
    moving = [r for r, t in zip(results, found, strict=True) if t._record is not None]
    record_results(_Recomputed(part, results), (*inputs, *besides), results, moving)
    return cast(_R, results if several else results[0])


class _Part:
    """A function and its arguments, apart from the tensors among them."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> None:
        self.function, self.kwargs, self.training = function, kwargs, Tensor.training
        self.tensors = [a for a in args if isinstance(a, Tensor)]
        self.others = [None if isinstance(a, Tensor) else (a,) for a in args]
        self.draws: Draws = []

    def compute(self, tensors: Sequence[Tensor]) -> Any:
        """The function of these tensors, in the mode that it was called in first."""
        rest = iter(tensors)
        args = [next(rest) if other is None else other[0] for other in self.others]
        with Training(self.training):
            return self.function(*args, **self.kwargs)


class _Recomputed(Several):
    """The record of a checkpoint: inputs are the arguments, then the leaves besides."""

    __slots__ = ("part",)

    def __init__(self, part: _Part, results: Sequence[Tensor]) -> None:
        super().__init__(results)
        self.part = part
        part.tensors = []  # they are the record's inputs

    def backward(self, grad: Any, out: Tensor) -> Grads:
        seeds = self.of_results(grad)
        count = sum(other is None for other in self.part.others)
        after = _After(next(g for g in grad.parts if g is not None))
        arguments, besides = self.inputs[:count], self.inputs[count:]
        if not mode.recording:
            arguments = tuple(t.detach() for t in arguments)
        with enable_grad():
            fresh = [after(t) for t in arguments]
            draws = [after(Tensor._of(leaf)).lazy for leaf in self.part.draws]
            with generator.repeating(draws):
                made = self.part.compute(fresh)
        found = made if isinstance(made, (tuple, list)) else (made,)
        pairs = [(t, s) for t, s in zip(found, seeds, strict=True) if t.dtype.is_float]
        targets = (*fresh, *besides)
        partials = autograd.partials([t for t, _ in pairs], [s for _, s in pairs], targets)
        return tuple(partials.get(target) for target in targets)


class _After:
    """Gives tensors as they are, but not before a gradient is known."""

    def __init__(self, grad: Tensor) -> None:
        first = grad.detach().reshape(-1)[:1].sum()
        self._known = (first < 0) | (first >= 0) | first.isnan()

    def __call__(self, x: Tensor) -> Tensor:
        here = x.device == self._known.device
        copy = self._known.where(x, 0) if here else x.contiguous()
        return copy._requiring(True) if x.dtype.is_float else copy
