"""Missing: what torch and numpy call otherwise, or have besides, and how it is written here.

What is said of each name stands in missing.txt.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**"}

# what takes so many in a row, the tensor among them: where numpy has more, or torch another order
_BY_NAME = "the others are given by name, as torch has them in another order"
TOO_MANY = {
    "transpose": (3, "write x.permute(0, 2, 1)"),
    **dict.fromkeys(("conv2d", "conv_transpose2d", "max_pool2d", "avg_pool2d"), (3, _BY_NAME)),
    "max_unpool2d": (4, _BY_NAME),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), (2, _BY_NAME)),
}

# modules that are called, where torch has functions of these names
OF_MODULES = {
    "tinyml.jit": "write TinyJit(step)",
    "tinyml.tensor": "write Tensor([1.0, 2.0])",
    "tinyml.device": 'a device is a string: write Tensor([1.0], device="CPU"), or x.to("CPU")',
}


class Autograd(ModuleType):
    """The module `tinyml.autograd`, which says where that is which torch has there."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_name(f"module {self.__name__!r}", name, told()["autograd"].get(name, ""))


class Uncalled(ModuleType):
    """A module that says what to write instead of calling it."""

    def __call__(self, *_: object, **named: object) -> NoReturn:
        raise TypeError(f"{self.__name__} is a module; {OF_MODULES[self.__name__]}")


class Data:
    """What `x.data` is, which is called; who takes it for torch's is told what to write."""

    def __init__(self, values: Callable[[], memoryview]) -> None:
        self._values = values

    def __call__(self) -> memoryview:
        """The values as a buffer, flat if there are none. Nothing can be put there."""
        return self._values()

    def __repr__(self) -> str:
        return "x.data (x.data() is a buffer; x.detach() is what torch calls x.data)"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_name("data", name, "write x.detach(), or x.assign(y) to replace values")

        def __getitem__(self, key: object) -> NoReturn:
            raise TypeError("data: write x.detach()[i], x[i] = y to replace values, or data()")

        def __setitem__(self, key: object, value: object) -> NoReturn:
            self[key]

        def __iadd__(self, other: object) -> NoReturn:
            raise TypeError("data: write x += y, x -= y or the like within no_grad()")

        __isub__ = __imul__ = __itruediv__ = __iadd__


@cache
def told() -> dict[str, dict[str, str]]:
    """By section of missing.txt, what is said of each name."""
    text = re.sub(r"\n +", " ", Path(__file__).with_suffix(".txt").read_text())
    found: dict[str, dict[str, str]] = {}
    section: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("["):
            section = found[line.strip("[]")] = {}
        elif line and line[0] != "#":
            names, advice = line.split("  ", 1)
            section.update(dict.fromkeys(names.split(), advice))
    return found


def no_argument(function: str, name: str, known: Iterable[str]) -> TypeError:
    """The error for a keyword that a function has not."""
    advice = told()["keyword"].get(name) or _near(name, known)
    return TypeError(f"{function} has no argument {name!r}" + (f"; {advice}" if advice else ""))


def no_attribute(x: object, name: str) -> NoReturn:
    """Raise what is said where Tensor, or a tensor, has not an attribute."""
    owner = x if isinstance(x, type) else type(x)
    raise no_name("Tensor", name, _advice(owner, name) or _near(name, dir(owner)))


def no_name(owner: str, name: str, advice: str = "") -> AttributeError:
    """The error where a class or module has not a name, and what to do about it."""
    end = f"; {advice}" if advice else ""
    return AttributeError(f"{owner} has no attribute {name!r}{end}", name=name)


def no_function(
    tensor: type[Any], dtypes: Iterable[str], names: Iterable[str], name: str
) -> AttributeError:
    """The error for what the package has not, but its class Tensor perhaps has, or `dtypes`."""
    known = not name.startswith("_") and callable(getattr(tensor, name, None))
    advice = f"write Tensor.{name}(...)" if known else _advice(tensor, name) or _near(name, names)
    advice = f"write dtypes.{name}" if name in dtypes else advice
    return no_name("module 'tinyml'", name, told()["package"].get(name, advice))


def no_setting(name: str) -> AttributeError:
    """The error for what is set for all tensors, and has no effect."""
    advice = "; write Tensor.training = True" if _near(name, ["training", "train"]) else ""
    return AttributeError(f"Tensor.{name} is no setting of all tensors{advice}", name=name)


def no_part(x: object, name: str) -> NoReturn:
    """Raise what is said where a layer or optimizer has not an attribute."""
    raise no_name(type(x).__name__, name, told()["part"].get(name) or _near(name, dir(x)))


def no_optimizer(optimizers: Iterable[str], name: str) -> AttributeError:
    """The error for what `nn.optim` has not."""
    advice = told()["optim"].get(name) or _near(name, optimizers)
    return no_name("module 'tinyml.nn.optim'", name, advice)


def no_layer(tensor: type[Any], layers: Iterable[str], name: str) -> AttributeError:
    """The error for what `nn` has not: it may be a method of Tensor, as are all without weights."""
    methods = {n.replace("_", ""): n for n in dir(tensor) if n[0] != "_"}
    method = methods.get(re.sub("[13]d$", "2d", name.lower()))
    instead = {n.replace("_", ""): how for n, how in told()["Tensor"].items()}.get(name.lower())
    written = f"x.{method}(...)" if method else instead
    advice = f"write {written}" if written else _near(name, layers)
    return no_name("module 'tinyml.nn'", name, told()["nn"].get(name, advice))


def _advice(owner: type[Any], name: str) -> str:
    """What to write for `name`, which is no name of `owner`; empty if that is not known."""
    base = name.removesuffix("_")
    if instead := told()["Tensor"].get(name):
        return f"write {instead}"
    if words := told()["words"].get(name):
        return words
    if name != base and base in OPERATORS:
        return f"write x {OPERATORS[base]}= y"
    if name != base and callable(getattr(owner, base, None)):
        return f"write x.assign(x.{base}(...))"
    if base.startswith("arc") and hasattr(owner, f"a{base[3:]}"):
        return f"write x.a{base[3:]}()"
    return ""


def _near(name: str, names: Iterable[str]) -> str:
    public = () if name.startswith("_") else [n for n in names if not n.startswith("_")]
    near = difflib.get_close_matches(name, public, 1, 0.7)
    return f"did you mean {near[0]!r}?" if near else ""
