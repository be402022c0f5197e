"""Turns say in which order a permutation or a flip reads, and several of them as one."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pytest

from test.schedule.test_kernel_counts import items
from tinyml import Tensor
from tinyml.ops import Movement
from tinyml.schedule.inlined import Turn, after, is_none, turn_of

SHAPES = [(6, 10), (60,), (3, 4, 5), (5, 12), (2, 2, 15), (1, 60), (20, 3)]
Order = npt.NDArray[np.int64]


def order_of(turn: Turn) -> Order:
    """Which element is read first, second and so on."""
    order = np.zeros(1, np.int64)
    for size, step in turn:
        walk = np.arange(size) if step > 0 else np.arange(size)[::-1]
        order = (order[:, None] + walk * abs(step)).reshape(-1)
    return order


def drawn(draw: random.Random) -> tuple[Turn, Order]:
    shape = draw.choice(SHAPES)
    axes = range(len(shape))
    whole = np.arange(60).reshape(shape)
    if draw.random() < 0.5:
        permuted = tuple(draw.sample(axes, len(shape)))
        turn = turn_of(Movement.PERMUTE, permuted, shape)
        return turn, whole.transpose(permuted).reshape(-1)
    flipped = tuple(a for a in axes if draw.random() < 0.5)
    return turn_of(Movement.FLIP, flipped, shape), np.flip(whole, flipped).reshape(-1)


@pytest.mark.parametrize("seed", range(20))
def test_turns_one_after_the_other_are_one(seed: int) -> None:
    draw, said = random.Random(seed), 0
    for _ in range(50):
        (first, order), (last, again) = drawn(draw), drawn(draw)
        assert np.array_equal(order_of(first), order)
        assert is_none(first) == np.array_equal(order, np.arange(60))
        both = after(last, first)
        if both is not None:
            said += 1
            assert np.array_equal(order_of(both), order[again])
    assert said > 25


def test_a_single_element_and_none_are_turned_nowhere() -> None:
    for shape in ((), (1,), (1, 1), (0, 2)):
        x = Tensor.rand(*shape).realize() + 1
        again = (x.permute(tuple(range(len(shape)))[::-1]) * 2).flip(tuple(range(len(shape))))
        assert len(items((again,))) == 1
    assert is_none(turn_of(Movement.PERMUTE, (1, 0), (1, 1)))


def test_nothing_is_turned_twice() -> None:
    x = Tensor.rand(5, 0, 2, 3).realize() + 1
    assert (x.permute(0, 1, 3, 2) * 2).flip((0, 3)).sum().item() == 0


def test_what_is_read_in_two_orders_is_stored_if_it_costs_much() -> None:
    x = Tensor.rand(8, 8).realize()
    costly, cheap = x.sin().exp().sin(), x + 1
    assert len(items((costly + costly.T,))) == 2
    assert len(items((costly + costly.flip(1),))) == 2
    assert len(items((cheap + cheap.T,))) == 1


def test_what_is_turned_back_is_read_at_one_place() -> None:
    costly = Tensor.rand(8, 8).realize().sin().exp().sin()
    for back in (costly.T.reshape(64).reshape(8, 8).T, costly.reshape(64).flip(0).flip(0)):
        assert len(items((costly * 2 + back.reshape(8, 8).exp(),))) == 1
    assert len(items((costly.T.exp() + costly.T,))) == 1
