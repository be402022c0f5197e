"""Every public name says what it does: a docstring, and a type for each argument and result."""

from __future__ import annotations

import inspect
import pickle
import pydoc
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import tinyml
from tinyml import Tensor, dtypes, nn


def _own(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What a module defines or lists, without what it imports for itself."""
    listed = getattr(module, "__all__", None)
    for name in listed or [n for n in vars(module) if not n.startswith("_")]:
        thing = getattr(module, name)
        if not inspect.ismodule(thing) and (
            listed or getattr(thing, "__module__", "") == module.__name__
        ):
            yield f"{module.__name__}.{name}", thing


def _public() -> dict[str, Any]:
    found = {name: thing for m in (tinyml, nn, nn.optim, nn.state) for name, thing in _own(m)}
    found["tinyml.dtypes.DType"] = type(dtypes.float32)
    return {
        name: t if inspect.isroutine(t) or isinstance(t, type) else type(t)
        for name, t in found.items()
    }


def _members(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(thing, type):
        yield name, thing
        return
    ours = [kind for kind in reversed(thing.__mro__) if kind.__module__.startswith("tinyml")]
    for key, value in {k: v for kind in ours for k, v in vars(kind).items()}.items():
        function = getattr(value, "__func__", value)
        function = value.fget if isinstance(value, property) else function
        if inspect.isfunction(function) and (
            not key.startswith("_") or key in ("__init__", "__call__")
        ):
            yield f"{name}.{key}", function


OWNER = ("self", "cls")
PUBLIC = _public()
FUNCTIONS = dict(pair for name, thing in PUBLIC.items() for pair in _members(name, thing))


def test_everything_public_has_a_docstring() -> None:
    """The class's own says what its `__init__` takes."""
    told = {n: t for n, t in {**PUBLIC, **FUNCTIONS}.items() if not n.endswith(".__init__")}
    silent = [name for name, thing in told.items() if not inspect.getdoc(thing)]
    assert not silent, f"without a docstring: {silent}"
    assert len(told) > 300


def test_everything_public_is_annotated() -> None:
    lacking = []
    for name, function in FUNCTIONS.items():
        signature = inspect.signature(function)
        annotations = [p.annotation for p in signature.parameters.values() if p.name not in OWNER]
        if inspect.Signature.empty in (*annotations, signature.return_annotation):
            lacking.append(name)
    assert not lacking, f"not fully annotated: {lacking}"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sum", ["axis: ", "keepdim: ", "dtype: ", "-> "]),
        ("softmax", ["axis: ", "-> "]),  # wrapped, so that halves are computed in float32
        ("zeros", ["*shape", "dtype: "]),
        ("exp", ["x: ", "-> ", "float"]),
    ],
)
def test_help_shows_signature_and_docstring(name: str, words: list[str]) -> None:
    text = pydoc.plain(pydoc.render_doc(getattr(Tensor, name)))
    assert all(word in text for word in words), text


def test_methods_go_by_the_names_that_users_know() -> None:
    """A model's list may hold Tensor.softmax, and be pickled."""
    methods = [getattr(Tensor, name) for name in dir(Tensor) if not name.startswith("_")]
    for method in filter(inspect.isroutine, methods):
        assert pickle.loads(pickle.dumps(method)) == method
    with pytest.raises(TypeError, match=r"^exp has no argument .axes"):
        Tensor([1.0]).exp(axes=0)
