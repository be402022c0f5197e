"""Frozen dataclasses: what they share with those of Python's library."""

from __future__ import annotations

import copy
import dataclasses
import enum
import pickle
from collections.abc import Collection
from functools import cached_property

import pytest

from tinyml.frozen import Enum, dataclass, replace


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


class Suit(Enum):
    HEARTS = enum.auto()
    SPADES = enum.auto()
    NONE = "none"


def test_members_of_an_enum_are_its_only_instances_and_have_a_name_and_a_value() -> None:
    assert [*Suit] == [Suit.HEARTS, Suit.SPADES, Suit.NONE]
    assert isinstance(Suit, Collection)
    assert len(Suit) == 3
    assert Suit.NONE in Suit
    assert "none" not in Suit
    assert [m.name for m in Suit] == ["HEARTS", "SPADES", "NONE"]
    assert [m.value for m in Suit] == [1, 2, "none"]
    assert all(type(m) is Suit for m in Suit)
    assert Suit("none") is Suit.NONE
    assert str(Suit.SPADES) == "Suit.SPADES"
    with pytest.raises(KeyError):
        Suit(3)


def test_a_copied_or_pickled_member_is_the_member() -> None:
    assert copy.deepcopy([*Suit]) == pickle.loads(pickle.dumps([*Suit])) == [*Suit]


def test_a_member_and_its_name_are_plain_attributes() -> None:
    """Python 3.11's own take 140 ns and two calls."""
    assert vars(Suit)["HEARTS"] is Suit.HEARTS
    assert vars(Suit.HEARTS) == {"name": "HEARTS", "value": 1}
    assert not hasattr(type(Suit), "__getattr__")
