"""Frozen dataclasses: what they share with those of Python's library."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from functools import cached_property

import pytest

from tinyml.frozen import dataclass, replace


@dataclass(frozen=True)
class Span:
    """From where to where."""

    start: int
    stop: int = 7

    @cached_property
    def length(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Named(Span):
    put: str = "a span"


@dataclass(frozen=True, eq=False)
class Thing:
    weight: float


@dataclass(frozen=True)
class Nothing:
    def __repr__(self) -> str:
        return "nothing"


def test_it_is_made_of_its_fields_by_place_or_name_or_default() -> None:
    assert Span(1) == Span(1, 7) == Span(start=1, stop=7) != Span(1, 6)
    assert str(Named(0, put="b")).endswith("Named(start=0, stop=7, put='b')")
    with pytest.raises(TypeError, match="start"):
        Span()  # type: ignore[call-arg]


def test_equal_ones_are_one_key_and_other_classes_are_not_equal() -> None:
    assert {Span(1): 2}[Span(1, 7)] == 2
    assert Span(1) != Named(1)
    assert Span(1) != (1, 7)
    assert Thing(1.0) != Thing(1.0)
    assert Nothing() == Nothing()
    assert repr(Nothing()) == "nothing"


def test_nothing_is_changed_but_what_is_kept_for_later() -> None:
    span = Span(1)
    assert span.length == 6
    for change in (lambda: setattr(span, "start", 2), lambda: delattr(span, "start")):
        with pytest.raises(dataclasses.FrozenInstanceError, match="start"):
            change()
    assert span == Span(1)


def test_another_one_has_its_own_fields_and_keeps_nothing_else() -> None:
    span = Span(1)
    assert span.length == 6
    assert replace(span, stop=3) == Span(1, 3)
    assert replace(span, stop=3).length == 2
    with pytest.raises(TypeError, match="end"):
        replace(span, end=3)
    assert Nothing.__doc__ is None


def test_the_library_knows_them() -> None:
    named = Named(1, put="c")
    assert dataclasses.replace(named, stop=2) == Named(1, 2, "c")
    assert [field.name for field in dataclasses.fields(named)] == ["start", "stop", "put"]
    assert pickle.loads(pickle.dumps(named)) == copy.deepcopy(named) == named
    match named:
        case Span(start, stop):
            assert (start, stop) == (1, 7)
        case _:
            pytest.fail("no match")
