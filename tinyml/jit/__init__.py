"""TinyJit: what a function launches is captured once, and launched again with new arguments.

The first call runs the function plainly, the second captures it, all later ones replay what
was captured and do not call the function. So whatever a function does besides computing with
tensors happens in the first two calls only; what can be seen to go wrong that way raises.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
import weakref
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from tinyml import config
from tinyml.errors import JitError
from tinyml.functional import missing
from tinyml.functional.axes import wrong_type
from tinyml.functional.views import shown_by
from tinyml.jit.capture import capture
from tinyml.jit.outside import (
    Named,
    Trained,
    are_still,
    are_trained,
    constant_gradients,
    named_arguments,
    prepare,
    trained,
    used,
)
from tinyml.jit.record import RESET, Outline, capturing, record
from tinyml.jit.saved import findable
from tinyml.jit.step import Step
from tinyml.jit.structure import (
    check_objects,
    difference,
    fits,
    flatten,
    looks,
    objects,
    rebuild,
    records,
)
from tinyml.jit.walk import walked_from
from tinyml.jit.watch import (
    Place,
    Watch,
    check_places,
    constants,
    named,
    reference,
    there_are,
    watched,
)
from tinyml.lazy import Data
from tinyml.tensor import Tensor
from tinyml.turn import turn

_P = ParamSpec("_P")
_Q = ParamSpec("_Q")
_S = TypeVar("_S")
_R = TypeVar("_R")


class TinyJit(Generic[_P, _R]):
    """`@TinyJit` on a function or method of tensors, other values, and containers of them.

    Tensors among the arguments may have other values in each call; shapes, dtypes, devices,
    and all other values must be those of the capture, also what its code reads besides
    (`watch.py`). Tensors that the function uses besides may be assigned to, inside and outside.
    Results are new tensors in each call, and carry no gradient. Dataclasses are containers, too.

    Threads replay in turn. What other threads record while one captures is no part of it; where
    the step is made of what they assign meanwhile, or of tensors that wait to be computed and
    were not used by the call before, a later call captures; after four in vain a warning says why.

    A pickle of one that has captured replays where it is read, without its function; in one pickle
    with a model it uses that model's tensors. A copy captures for itself.
    """

    def __init__(self, function: Callable[_P, _R]) -> None:
        if not callable(function):
            raise wrong_type("TinyJit", "what it captures", "a function", function)
        self._function: Callable[..., _R] = function
        self._methods: dict[int, tuple[weakref.ref[Any], TinyJit[_P, _R]]] = {}
        self.reset()
        functools.update_wrapper(self, function)

    def __getstate__(self) -> dict[str, Any]:
        """What was captured goes along in a pickle; the function if it can be found again."""
        function = findable(self._function) if self._step is not None else self._function
        return {**vars(self), "_function": function, "__wrapped__": function, **_ALONE}

    def __copy__(self) -> TinyJit[_P, _R]:
        return TinyJit(self._function)

    def __deepcopy__(self, memo: dict[int, Any]) -> TinyJit[_P, _R]:
        """A copy of a model captures for itself."""
        return TinyJit(deepcopy(self._function, memo))

    def reset(self) -> None:
        """Forget what was captured: the next call runs plainly, the one after it captures."""
        self._arguments: Any = None  # structure of the last call that was not a replay
        self._training = False
        self._outline: Outline | None = None
        self._results: Any = None
        self._step: Step | None = None
        self._used: list[weakref.ref[Tensor]] = []  # in the last call that was not a replay
        self._trained: list[Trained] = []  # likewise
        self._left: list[weakref.ref[Tensor]] = []  # behind, by that call
        self._assumed: list[Place] = []  # likewise
        self._objects: list[Callable[[], Any]] = []  # that it returned
        self._named: list[Named] = []
        self._in_vain = 0  # so many calls were to be captured, and were not

    @property
    def captured(self) -> Step | None:
        """What replays run, once it is captured."""
        return self._step

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self._call((), args, kwargs)

    @overload
    def __get__(self, instance: None, owner: Any = None) -> TinyJit[_P, _R]: ...

    @overload
    def __get__(
        self: TinyJit[Concatenate[_S, _Q], _R], instance: _S, owner: Any = None
    ) -> _Method[_Q, _R]: ...

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else _Method(self._of(instance), instance)

    def _of(self, instance: Any) -> TinyJit[_P, _R]:
        """The TinyJit of one instance: each captures for itself."""
        key = id(instance)
        reference, method = self._methods.get(key, (None, None))
        if method is None or reference is None or reference() is not instance:
            methods = self._methods

            def forget(gone: weakref.ref[Any]) -> None:
                if key in methods and methods[key][0] is gone:
                    del methods[key]

            method = TinyJit(self._function)
            methods[key] = weakref.ref(instance, forget), method
        return method

    def _call(self, bound: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _R:
        if capturing.active or not config.current.jit or config.current.debug_nan:
            return self._function(*bound, *args, **kwargs)
        tensors: list[Tensor] = []
        with turn:
            if self._step is not None and not self._is_outdated(self._step):
                positional, by_name = self._arguments.parts
                fit = fits(positional, args, tensors) and fits(by_name, kwargs, tensors)
                changed = self._step.changed(tensors) if fit else []
                other = [tensors[i] for i in changed]
                if not fit or looks(other) != [self._looks[i] for i in changed]:
                    self._complain(flatten((args, kwargs), []), len(bound))
                if are_still(self._named, tensors):
                    return self._replay(self._step, tensors, changed, other)
                in_vain = self._in_vain
                self.reset()
                self._in_vain = in_vain
                tensors.clear()
            arguments = flatten((args, kwargs), tensors)
            function = functools.partial(self._function, *bound, *args, **kwargs)
            besides = records((*args, *kwargs.values()))
            if self._arguments is not None and are_trained(self._trained):
                return self._capture(function, arguments, tensors, bound, besides)
            prepare(tensors, [])  # as for a capture, which so has these kernels already
        return self._first(function, arguments, besides)

    def _is_outdated(self, step: Step) -> bool:
        """Whether a constant was assigned to that is a part of kernels: it has memory from now on.

        As a parameter of ones, if a model was evaluated before it was trained.
        """
        assigned = step.parts.assumed.assigned()
        if assigned:
            Tensor.realize(*assigned)
            self.reset()
        return bool(assigned)

    def _replay(
        self, step: Step, tensors: list[Tensor], changed: Sequence[int], other: list[Tensor]
    ) -> _R:
        if Tensor.training != self._training:
            raise JitError(
                f"Tensor.training was {self._training} when {self._name} was captured, and is "
                f"{Tensor.training} now: use two TinyJits. {RESET}"
            )
        for tensor in other:
            if type(tensor._lazy) is not Data or tensor._view is not None:
                Tensor.realize(*other)
                break
        found: _R = rebuild(self._results, iter(step.replay(tensors, changed)))
        return found

    def _first(self, function: functools.partial[_R], arguments: Any, besides: list[Any]) -> _R:
        training = Tensor.training
        with record(refuse_reads=False) as recording:
            result = function()
            results: list[Tensor] = []
            structure = flatten(result, results, in_order=True)
            # what is assigned to has memory from now on: a capture can write to nothing else
            wanted = [*results, *recording.assigned(), *constant_gradients(recording)]
            Tensor.realize(*wanted) if wanted else None
        self._outline = recording.outline()
        self._assumed = watched(walked_from(function, besides))
        self._objects = [*map(reference, objects(structure))]
        given = [weakref.ref(shown_by(t)[0]) for t in results]  # perhaps untouched
        self._used = [*used(recording), *given]
        self._trained = trained(recording, self._used)
        self._left = list(map(weakref.ref, recording.left()))
        self._arguments, self._training = arguments, training
        return result

    def _capture(
        self,
        function: functools.partial[_R],
        arguments: Any,
        tensors: list[Tensor],
        bound: tuple[Any, ...],
        besides: list[Any],
    ) -> _R:
        setting = arguments, Tensor.training
        self._looks = looks(tensors)
        same = setting == (self._arguments, self._training)
        there, names = there_are(walked_from(function, besides))
        left = self._left if same else []
        captured = capture(function, tensors, self._used, left, names)
        found, structure, step, outline, self._used, self._left, obstacle = captured
        before, self._outline = self._outline, outline
        walk = walked_from(function, besides)
        self._assumed = watched(walk, self._assumed if same else None)
        check_places(there, walk.places(), () if step is None else step.parts.reads())
        check_objects(structure, self._objects)
        self._objects = [*map(reference, objects(structure))]
        self._arguments, self._training = setting
        if step is not None:
            if same and before is not None:
                outline.check_same(before)
            self._outline, self._results, self._step = None, structure, step
            step.parts.assumed = Watch(self._assumed, constants(walk))
            self._named = named_arguments(tensors, named(self._function, *bound))
            if self._named:
                obstacle = "it is given tensors, now and then others, that its code reads, too"
            self._used, self._left, self._assumed = [], [], []
        self._trained = []
        self._count_in_vain(obstacle)
        result: _R = rebuild(structure, iter(found))
        return result

    def _count_in_vain(self, obstacle: str) -> None:
        """Count a call that was to be captured, and say if there were many."""
        self._in_vain += 1
        if self._in_vain == _PATIENCE and obstacle:
            warnings.warn(
                f"TinyJit: {self._name} was run plainly {_PATIENCE + 1} times, and is not captured "
                f"yet: {obstacle}. It goes on like this, right but slow",
                RuntimeWarning,
                stacklevel=5,
            )

    @property
    def _name(self) -> str:
        return getattr(self._function, "__name__", repr(self._function))

    def _complain(self, given: Any, bound: int) -> None:
        """JitError that says which argument is not what was captured."""
        captured: Any = self._arguments
        (args, kwargs), (new_args, new_kwargs) = captured.parts, given.parts
        if len(args.parts) != len(new_args.parts):
            text = (
                f"was captured with {len(args.parts)} positional arguments, and is called with "
                f"{len(new_args.parts)}"
            )
        elif args != new_args:
            names = self._names(bound) + [str(i) for i in range(len(args.parts))]
            paths = [f"argument {name}" for name in names]
            pairs = zip(args.parts, new_args.parts, paths, strict=False)
            text = next(t for t in (difference(*three) for three in pairs) if t is not None)
        else:
            text = difference(kwargs, new_kwargs, "keyword argument ") or ""
        if set(kwargs.keys) != set(new_kwargs.keys):
            names = [", ".join(keys) or "none" for keys in (kwargs.keys, new_kwargs.keys)]
            text = f"was captured with {names[0]} by name, and is called with {names[1]}"
        raise JitError(
            f"{self._name}: {text}. A replay does what was captured: pass what changes as a "
            f"Tensor, or use one TinyJit for each case. {RESET}"
        )

    def _names(self, bound: int) -> list[str]:
        try:
            parameters = inspect.signature(self._function).parameters.values()
        except (TypeError, ValueError):
            return []
        return [p.name for p in parameters if p.kind in _POSITIONAL][bound:]


# what a pickle does not take along
_ALONE: dict[str, Any] = {
    "_methods": {},
    "_used": [],
    "_trained": [],
    "_left": [],
    "_assumed": [],
    "_objects": [],
}
_PATIENCE = 4  # captures in vain until there is a warning: threads may disturb one or two
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class _Method(Generic[_P, _R]):
    """A TinyJit bound to an instance."""

    __slots__ = ("_instance", "_jit")

    def __init__(self, jit: TinyJit[..., _R], instance: Any) -> None:
        self._jit, self._instance = jit, instance

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self._jit._call((self._instance,), args, kwargs)

    @property
    def captured(self) -> Step | None:
        """What replays run, once it is captured."""
        return self._jit.captured

    def reset(self) -> None:
        """Forget what was captured for this instance."""
        self._jit.reset()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jit, name)  # __name__ and what else the function has


sys.modules[__name__].__class__ = missing.Uncalled  # jit(step), as in jax
