"""checkpoint: compute a part of a model again for its gradient, instead of keeping what it made.

    y = checkpoint(block, x)

The values in between are forgotten after the forward pass. Backward computes them again from
the arguments: from copies which cannot be had before the gradient of the result, so that the
scheduler neither shares the values with those of the forward pass nor computes them early
(Chen et al. 2016, "Training deep nets with sublinear memory cost").
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, cast

from tinyml import autograd, trace
from tinyml.autograd import enable_grad, mode
from tinyml.defaults import Training, defaults
from tinyml.device import Device
from tinyml.dtypes import dtypes
from tinyml.errors import GradientError
from tinyml.function import Several, record_results
from tinyml.functional import assignment
from tinyml.functional.random_ import Draws, generator
from tinyml.mlops import Function, Grads
from tinyml.tensor import Tensor

_P = ParamSpec("_P")
_R = TypeVar("_R")


def checkpoint(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """function(*args, **kwargs), a tensor or a tuple of them, whose insides are not kept.

    Tensors among the arguments get gradients, and so does every tensor that requires one and that
    the function reads besides; GradientError if it reads another one when it is computed again.
    Then random draws are the same ones, tensors that it assigned to (running statistics) have the
    values of before, and are not assigned to again. GradientError if it assigns to an argument
    other than under no_grad(). Works inside TinyJit.
    """
    if not mode.recording:
        return function(*args, **kwargs)
    part, given, since = _Part(function, args, kwargs), _Given(), mode.count()
    source = Tensor(0.0, requires_grad=True)  # so that the arguments are no leaves
    given.inputs, given.clock = (source,), since
    inputs = part.tensors
    fresh = [t.detach()._requiring(t.dtype.is_float) for t in inputs]
    for tensor in fresh:
        tensor._record = given if tensor.requires_grad else None
    with generator.noting() as part.draws, part.assigned.noting():
        made = part.compute(fresh)
    for number, tensor in enumerate(inputs):
        if fresh[number]._record not in (None, given):
            raise GradientError(
                f"checkpoint: the function assigns to tensor argument {number} {tensor.shape}, "
                "while gradients are recorded; let it assign to a .clone(), or under no_grad()"
            )
    several = isinstance(made, (tuple, list))
    found = tuple(made) if several else (made,)
    besides = _besides(found, since, [*fresh, source])
    part.note_reads(autograd.behind(found, since).difference(fresh))
    results = tuple(t.detach()._requiring(None) for t in found)
    pairs = zip(results, found, strict=True)
    moving = [r for r, t in pairs if t._record is not None or t.requires_grad]  # or it is a leaf
    record_results(_Recomputed(part, results), (*inputs, *besides), results, moving)
    return cast(_R, results if several else results[0])


def _besides(results: Sequence[Tensor], since: int, given: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that results are differentiated by, and that were there, but for those given."""
    floats, known = [t for t in results if t.dtype.is_float], set(given)
    return [t for t in autograd.read_since(floats, since) if t not in known]


class _Given(Function):
    """The record of an argument while the function is called."""

    def backward(self, grad: Tensor, out: Tensor) -> Grads:
        raise GradientError(
            f"checkpoint: a gradient came to an argument {out.shape} by way of what is no result; "
            "let the function return that, and in the function call gradient(), not backward()"
        )


class _Assigned:
    """The tensors that a function assigned to, with what they were before."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}  # by id

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note what this thread assigns to."""

        def note(event: trace.Assigning) -> None:
            tensor = event.tensor
            if not self.has(tensor):
                self._before[id(tensor)] = weakref.ref(tensor), tensor._before_assignment()

        stop = trace.subscribe(trace.Assigning, note, here=True)
        try:
            yield
        finally:
            stop()

    def has(self, tensor: Tensor) -> bool:
        """Whether it was assigned to."""
        reference, _ = self._before.get(id(tensor), (None, None))
        return reference is not None and reference() is tensor

    @contextmanager
    def undone(self, after: _After) -> Iterator[None]:
        """Let them be as before, and then as they are now, whatever is assigned to them."""
        found = [(t, before) for made, before in self._before.values() if (t := made()) is not None]
        now = [(tensor, assignment.state(tensor)) for tensor, _ in found]
        try:
            for tensor, before in found:
                assignment.restore(tensor, (after(before).lazy, *assignment.state(before)[1:]))
            yield
        finally:
            for tensor, state in now:
                assignment.restore(tensor, state)


class _Part:
    """A function and its arguments, apart from the tensors among them."""

    def __init__(self, function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> None:
        self.function, self.kwargs, self.training = function, kwargs, Tensor.training
        self.tensors = [a for a in args if isinstance(a, Tensor)]
        self.others = [None if isinstance(a, Tensor) else (a,) for a in args]
        self.defaults = defaults(Device.DEFAULT, dtypes.default_float, dtypes.default_int)
        self.draws: Draws = []
        self.assigned = _Assigned()
        self.reads: list[weakref.ref[Tensor]] = []  # besides the arguments

    def note_reads(self, tensors: Iterable[Tensor]) -> None:
        """Note what the function reads besides, checkpoints in it too."""
        for tensor in tensors:
            self.reads.append(weakref.ref(tensor))
            if isinstance(tensor._record, _Recomputed):
                self.reads += tensor._record.part.reads

    def check_unchanged(self, clock: int) -> None:
        """GradientError if what the function reads besides has other values now."""
        for tensor in [t for reference in self.reads if (t := reference()) is not None]:
            if tensor._changed_after(clock) and not self.assigned.has(tensor):
                raise GradientError(
                    f"checkpoint: a tensor {tensor.shape} that the function reads was assigned to "
                    "after it; assign after backward(), or let it read a copy (.clone())"
                )

    def compute(self, tensors: Sequence[Tensor]) -> Any:
        """The function of these tensors, with the settings that it was called with first."""
        rest = iter(tensors)
        args = [next(rest) if other is None else other[0] for other in self.others]
        with Training(self.training), self.defaults:
            return self.function(*args, **self.kwargs)


class _Recomputed(Several):
    """The record of a checkpoint: inputs are the arguments, then what is read besides."""

    __slots__ = ("part",)

    def __init__(self, part: _Part, results: Sequence[Tensor]) -> None:
        super().__init__(results)
        self.part = part
        part.tensors = []  # they are the record's inputs

    def backward(self, grad: Any, out: Tensor) -> Grads:
        self.part.check_unchanged(self.clock)
        seeds = self.of_results(grad)
        count = sum(other is None for other in self.part.others)
        after = _After(next(g for g in grad.parts if g is not None))
        arguments, besides = self.inputs[:count], self.inputs[count:]
        if not mode.recording:
            arguments = tuple(t.detach() for t in arguments)
        with self.part.assigned.undone(after):  # gradients, too, read what was assigned then
            with enable_grad():
                fresh = [after(t) for t in arguments]
                draws = [after(Tensor._of(leaf)).lazy for leaf in self.part.draws]
                since = mode.count()
                with generator.repeating(draws):
                    made = self.part.compute(fresh)
            found = made if isinstance(made, (tuple, list)) else (made,)
            if set(_besides(found, since, fresh)) != set(besides):
                raise GradientError(
                    "checkpoint: the function reads another tensor than before, as where a name "
                    "of the function around stands for another one now: pass it as an argument"
                )
            pairs = [(t, s) for t, s in zip(found, seeds, strict=True) if t.dtype.is_float]
            roots, grads, targets = [t for t, _ in pairs], [s for _, s in pairs], (*fresh, *besides)
            partials = autograd.partials(roots, grads, targets, targets)
        return tuple(partials.get(target) for target in targets)


class _After:
    """Gives tensors as they are, but not before a gradient is known."""

    def __init__(self, grad: Tensor) -> None:
        first = grad.detach().reshape(-1)[:1].sum()
        self._known = (first < 0) | (first >= 0) | first.isnan()

    def __call__(self, x: Tensor) -> Tensor:
        here = x.device == self._known.device
        copy = self._known.where(x, 0) if here else x.contiguous()
        copy._requires_grad = x.dtype.is_float or None  # no parameter, to be kept in memory
        return copy
