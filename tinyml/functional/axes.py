"""What users write: axes, shapes, numbers and tensors; what it means, and what is refused."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from tinyml.errors import ArgumentError, AxisError, DeviceError, ShapeError
from tinyml.functional import missing
from tinyml.lazy import Shape

if TYPE_CHECKING:
    from tinyml.tensor import Tensor

Axes = int | Sequence[int] | None
_C = TypeVar("_C", bound=type)


def is_tensor(value: Any) -> TypeGuard[Tensor]:
    """Whether it is a Tensor, of whichever class that is made of it."""
    return hasattr(value, "_lazy")


def wrong_type(op: str, name: str, wanted: str, value: Any) -> ArgumentError:
    """The error for an argument of a type that cannot be meant."""
    got = f"{shown(value)} ({type(value).__name__})"
    made = hasattr(value, "__array__") or isinstance(value, (list, tuple, float, int))
    hint = "; Tensor(...) makes one of it" if wanted == "a Tensor" and made else ""
    return ArgumentError(f"{op}: {name} must be {wanted}, got {got}{hint}")


def shown(value: Any) -> str:
    """A value in a sentence: on one line, and not all of an array."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def whole(value: Any, op: str, name: str) -> int:
    """`value` as an int; TypeError if it is none (2.0 is none either, nor is True)."""
    if not isinstance(value, bool):
        with suppress(TypeError):
            return operator.index(value)
    raise wrong_type(op, name, "a whole number", value)


def all_whole(values: tuple[Any, ...], op: str, name: str) -> tuple[int, ...]:
    """`values` as ints; TypeError if one of them is none."""
    for value in values:
        if type(value) is not int:
            return tuple([whole(v, op, name) for v in values])
    return values


def number(value: Any, op: str, name: str) -> Any:
    """A Python number, or something that says it is one; TypeError otherwise."""
    if not isinstance(value, (int, float)) and not hasattr(value, "__float__"):
        raise wrong_type(op, name, "a number", value)
    return value


def check_numbers(op: str, /, **values: Any) -> None:
    """Each of the values is a number."""
    for name, value in values.items():
        number(value, op, name)


def check_flags(op: str, /, **flags: Any) -> None:
    """Each of the flags is a bool: torch has a number, or a size, in the place of some."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise wrong_type(op, name, "a bool", flag)


def check_tensors(op: str, x: Tensor, /, **others: Any) -> None:
    """Each of the others (None: not given) is a Tensor on the device of x."""
    for name, other in others.items():
        if other is None:
            continue
        if not is_tensor(other):
            raise wrong_type(op, name, "a Tensor", other)
        if other._lazy.device != x._lazy.device:
            raise apart(op, x, other)


def apart(op: str, x: Tensor, y: Tensor) -> DeviceError:
    """The error for tensors on different devices."""
    return DeviceError(
        f"{op}: tensors must be on one device, got {x.shape} on {x.device} and {y.shape} on "
        f"{y.device}; move one with .to({x.device!r})"
    )


def resolve_axis(axis: int, ndim: int, op: str) -> int:
    """`axis` counted from the front; AxisError (an IndexError) if there is no such axis."""
    if type(axis) is not int:
        axis = whole(axis, op, "axis")
    span = ndim or 1  # a number has an axis 0, as far as naming it goes
    if not -span <= axis < span:
        raise AxisError(
            f"{op}: axis {axis} is out of range for {ndim} dimensions; it lies in "
            f"[{-span}, {span - 1}]"
        )
    return axis % span


def resolve_axes(axis: Axes, ndim: int, op: str) -> tuple[int, ...]:
    """Which axes are meant, in order; None is all of them."""
    if axis is None or type(axis) is int:
        return _resolved(axis, ndim, op)
    named = tuple(axis) if isinstance(axis, (tuple, list, range)) else (axis,)
    return _resolved(all_whole(named, op, "axis"), ndim, op)


@lru_cache(maxsize=4096)  # programs name the same few axes
def _resolved(axis: int | tuple[int, ...] | None, ndim: int, op: str) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    named = axis if isinstance(axis, tuple) else (axis,)
    axes = tuple(sorted([resolve_axis(a, ndim, op) for a in named]))
    if len(set(axes)) != len(axes):
        raise AxisError(f"{op}: each axis can be named once, got {named}")
    return axes if ndim else ()


def as_shape(sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shape given as `f(2, 3)` or `f((2, 3))`."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        return tuple(sizes[0])
    for n in sizes:
        if type(n) is not int and isinstance(n, (tuple, list)):
            raise ShapeError(f"sizes are f(2, 3) or f((2, 3)), not both at once: {sizes}")
    return sizes


def new_shape(sizes: tuple[Any, ...], op: str) -> Shape:
    """The shape of a tensor to be made; ValueError if a size is negative or no whole number."""
    shape = all_whole(as_shape(sizes), op, "a size")
    if shape and min(shape) < 0:
        raise ShapeError(f"{op}: a size cannot be negative, got {shape}")
    return shape


def per_axis(value: Any, count: int, op: str, name: str, least: int = 1) -> tuple[int, ...]:
    """One number per axis, none below `least`, from an int or a sequence of one or all."""
    given = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    values = all_whole(given * count if len(given) == 1 else given, op, name)
    if len(values) != count:
        raise ShapeError(f"{op}: {name} needs {count} values or one, got {values}")
    if min(values, default=least) < least:
        raise ShapeError(f"{op}: {name} must be at least {least}, got {values}")
    return values


# ---- names of arguments that others know by another one ----

_SPELLINGS = {
    "axis": ("dim", "dims"),
    "dim": ("axis", "dims", "dimension"),
    "dims": ("axis", "dim"),
    "stop": ("end",),
    "shape": ("size",),
    "order": ("dims",),
    "keepdim": ("keepdims",),
    "sorted_": ("sorted",),
    "diagonal": ("k",),
    "min_": ("min",),
    "max_": ("max",),
    "min_val": ("min",),
    "max_val": ("max",),
    "neg_slope": ("negative_slope",),
    "Y": ("target",),
    "sz": ("num_features",),
    "vocab_size": ("num_embeddings",),
    "embed_size": ("embedding_dim",),
}
_PAIRS_IN_TORCH = ("max", "min", "cummax", "cummin")  # for whom dim= means values and indices


def spelled_either_way(cls: _C) -> _C:
    """Each method that takes an axis takes it as a dim, too, and so on: as others spell it.

    What is taken as `*axis` can be said by that name, too. Errors, help() and pickles know a method
    by its name as one. What no public method takes is answered with what to write (missing.py).
    """
    for name, method in list(vars(cls).items()):
        made_of = method.__func__ if isinstance(method, classmethod) else method
        if not inspect.isfunction(made_of):
            continue
        if made_of.__name__.rstrip("_") == name:  # sum_, but not what has two names
            layer: Any = made_of
            while layer is not None:  # the innermost refuses a wrong call, in Python's own words
                _known_as(name, layer)
                layer = getattr(layer, "__wrapped__", None)
        others = _other_names(made_of)
        if others or name[0] != "_":
            spelled = _spelled(made_of, others, name)
            _known_as(name, spelled)
            setattr(cls, name, spelled if made_of is method else classmethod(spelled))
    return cls


def made_either_way(cls: type[Any]) -> None:
    """As `spelled_either_way`, of what makes an object of a class."""
    if "__init__" in vars(cls):
        make: Any = cls.__init__
        setattr(cls, "__init__", _spelled(make, _other_names(make), cls.__name__))  # noqa: B010


def _known_as(name: str, method: Callable[..., Any]) -> None:
    method.__name__, method.__qualname__ = name, f"Tensor.{name}"
    method.__module__ = "tinyml.tensor"


def _other_names(function: Callable[..., Any]) -> dict[str, str]:
    """What else arguments may be called, and what they are called; "*" for all the others."""
    code = inspect.unwrap(function).__code__
    count = code.co_argcount + code.co_kwonlyargcount
    others = {o: own for own in code.co_varnames[:count] for o in _SPELLINGS.get(own, ())}
    rest = code.co_varnames[count] if code.co_flags & inspect.CO_VARARGS else ""
    return others | dict.fromkeys((rest, *_SPELLINGS[rest]), "*") if rest in _SPELLINGS else others


def _spelled(method: Callable[..., Any], others: dict[str, str], op: str) -> Callable[..., Any]:
    most, advice = missing.TOO_MANY.get(op, (0, ""))

    @wraps(method)
    def spelled(*args: Any, **named: Any) -> Any:
        if most and len(args) > most:
            known = list(inspect.signature(method).parameters)[1:]
            raise TypeError(f"{op} takes {', '.join(known)}; {advice}")
        if not named:
            return method(*args)
        for name in named:
            if name in others and others[name] not in named:
                named = {_own_name(op, n, others): value for n, value in named.items()}
                if "*" in named:
                    args = (*args, named.pop("*"))
                break
        try:
            return method(*args, **named)
        except TypeError:
            if wrong := _misfit(method, args, named, op):
                raise wrong from None
            raise

    return spelled


def _misfit(
    function: Callable[..., Any], args: tuple[Any, ...], named: Iterable[str], op: str
) -> TypeError | None:
    """What is wrong with the names in a call; None if nothing is."""
    parameters = list(inspect.signature(function).parameters.values())
    known = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL][1:]
    twice = {p.name for p in parameters[: len(args)] if p.kind is p.POSITIONAL_OR_KEYWORD}
    for name in named:
        if name in twice:
            return ArgumentError(
                f"{op}: {name} is given by name and by position; in order, its arguments are "
                f"{', '.join(known)}"
            )
        if name not in known and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return missing.no_argument(op, name, known)
    return None


def _own_name(op: str, name: str, others: dict[str, str]) -> str:
    if name == "dim" and op in _PAIRS_IN_TORCH:
        raise TypeError(f"{op}: with dim= torch gives indices, too; axis= gives the values alone")
    return others.get(name, name)
