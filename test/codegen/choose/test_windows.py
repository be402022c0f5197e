"""Gradients of a convolution's weights: what a piece of the fold reads is copied once for all."""

from __future__ import annotations

import pytest
import stages
from products import weights_gradient

from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.lower import lower
from tinyml.codegen.nest import Tile
from tinyml.codegen.optimize.opts import OptKind, apply, parse
from tinyml.kernel import Kernel


def tiles(k: Kernel) -> list[Tile]:
    return [tile for one in choose(lower(k), stages.C)[1].nests for tile in one.tiles]


def opts(k: Kernel) -> list[str]:
    return [str(opt) for opt in choose(lower(k), stages.C)[0]]


@pytest.mark.parametrize(
    ("images", "inner", "outer", "size"),
    [(4, 3, 8, 7), (2, 6, 16, 9), (3, 5, 11, 10), (2, 1, 8, 12), (3, 2, 24, 6)],
)
def test_each_pixel_is_copied_once(images: int, inner: int, outer: int, size: int) -> None:
    k = weights_gradient(images, inner, outer, size)
    stages.assert_right(k, 1e-4)
    copied = [tile for tile in tiles(k) if tile.copies]
    windows = [tile for tile in copied if any(a.name.count("w") for a in tile.axes)]
    assert all(tile.size % (size + 2) == 0 for tile in windows)  # with zeros on both sides
    assert len(copied) == 2 * len(windows) > 0


@pytest.mark.parametrize("size", [10, 24])
def test_pixels_that_few_steps_of_a_window_read_are_not_copied(size: int) -> None:
    """Of 3 x 3 steps that move by two pixels each meets two or so."""
    k = weights_gradient(3, 5, 16, size, 2)
    assert "order i3" in opts(k)
    assert not any("w" in a.name for tile in tiles(k) for a in tile.axes)
    stages.assert_right(k, 1e-4)


def test_sums_wait_between_pieces_of_a_long_fold() -> None:
    chosen, made = choose(lower(weights_gradient(5, 3, 16, 24)), stages.C)
    (blocked,) = [opt for opt in chosen if opt.kind is OptKind.BLOCK]
    assert blocked.amount < 5
    assert any(tile.over for one in made.nests for tile in one.tiles)


def test_places_of_which_a_window_leaves_some_out_are_copied_for_each_step() -> None:
    """A window that moves further than it is long has nothing to share."""
    k = weights_gradient(2, 2, 8, 13, 4)
    assert not any("w" in a.name for tile in tiles(k) for a in tile.axes)
    stages.assert_right(k, 1e-4)


@pytest.mark.parametrize(
    ("images", "channels", "size", "stride", "once"),
    [(8, 48, 30, 1, True), (1, 64, 7, 1, False), (16, 64, 34, 2, False), (16, 64, 32, 2, True)],
)
def test_places_are_copied_once_where_that_is_estimated_to_take_less(
    images: int, channels: int, size: int, stride: int, once: bool
) -> None:
    """Sums of few places are stored apart; pixels that lie a page apart take long to be copied."""
    k = weights_gradient(images, channels, channels, size, stride)
    assert once == ("order i3" in opts(k))  # all steps of a window in one walk


def test_a_window_can_be_staged_by_hand() -> None:
    nest = lower(weights_gradient(1, 2, 3, 6))
    for text in ("grid i0", "stage i0 slot2"):
        nest = apply(nest, parse(text))
    (tile,) = nest.nests[0].tiles
    assert tile.size == 2 * 8 * 8  # channels of 6 x 6 pixels with zeros around them
