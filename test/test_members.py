"""Enumerations: what they share with those of Python's library."""

from __future__ import annotations

import copy
import pickle

from tinyml.members import Enum, auto
from tinyml.ops import Op


class Fruit(Enum):
    """Some."""

    APPLE = "apple"
    PEAR = auto()
    _private = 7

    def juice(self) -> str:
        return f"{self.name} juice"

    @property
    def short(self) -> str:
        return self.name[0]


class Tree(Enum):
    APPLE = "apple"


def test_values_of_the_class_are_its_members_in_order() -> None:
    assert [(fruit.name, fruit.value) for fruit in Fruit] == [("APPLE", "apple"), ("PEAR", 2)]
    assert len(Fruit) == 2
    assert Fruit.PEAR in Fruit
    assert Fruit.APPLE.juice() == "APPLE juice"
    assert Fruit.PEAR.short == "P"


def test_members_are_equal_to_themselves_alone() -> None:
    assert {Fruit.APPLE: 1, Tree.APPLE: 2}[Fruit.APPLE] == 1
    assert isinstance(Fruit.APPLE, Fruit)


def test_a_copy_of_a_member_is_the_member() -> None:
    for member in (*Fruit, Op.ADD):
        assert pickle.loads(pickle.dumps(member)) is member
        assert copy.deepcopy(member) is copy.copy(member) is member


def test_a_member_says_what_it_is() -> None:
    assert str(Fruit.APPLE) == repr(Fruit.APPLE) == "<Fruit.APPLE: 'apple'>"
    assert str(Op.ADD) == "ADD"
