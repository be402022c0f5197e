"""Images that a card's products read through windows lie with their channels innermost."""

from __future__ import annotations

import graphs
import numpy as np
import pytest
import stages

from tinyml import Tensor
from tinyml.codegen.lower import lower
from tinyml.dtype import bfloat16
from tinyml.schedule.layouts import channels_last
from tinyml.schedule.rewrite import rewritten
from tinyml.schedule.split import join_sums


def given(device: str, channels: int = 16, size: int = 7, groups: int = 1) -> list[Tensor]:
    """An image of 2 x 3 x size x size, and weights of two convolutions, the second of 3 x 3."""
    rng = np.random.default_rng(5)
    shapes = (2, 3, size, size), (channels, 3, 1, 1), (24, channels // groups, 3, 3)
    arrays = [rng.standard_normal(s, dtype=np.float32) / 4 for s in shapes]
    return [Tensor(a, device=device).realize().requires_grad_() for a in arrays]


def network(x: Tensor, first: Tensor, second: Tensor, **options: int) -> Tensor:
    """Two convolutions of halves, with statistics of channels and a slope between them."""
    y = x.bfloat16().conv2d(first.bfloat16()).float()
    y = y - y.mean((0, 2, 3), keepdim=True)
    z = (y * y.sigmoid()).bfloat16().conv2d(second.bfloat16(), **options).float()
    return (z * z).mean()


def stored(*results: Tensor) -> list[tuple[int, ...]]:
    kernels = stages.kernels(*results)
    return [k.slots[o.slot][0] for k in kernels for o in k.outputs]


def test_images_and_weights_are_stored_by_who_makes_them() -> None:
    x, first, second = given("EMU", size=46)
    loss = network(x, first, second, padding=1)
    shapes = stored(loss, *loss.gradient(x, first, second))
    assert shapes.count((2, 46, 46, 16)) >= 3  # the image, what it is made of, its gradient
    assert (24, 3, 3, 16) in shapes
    assert (2, 46, 46, 24) in shapes  # the gradient, whose windows the image's gradient reads
    assert not {(2, 16, 46, 46), (2, 24, 46, 46)} & {*shapes}


@pytest.mark.parametrize("device", ["CPU", "NUMPY"])
def test_other_devices_have_what_they_had(device: str) -> None:
    x, first, second = given(device)
    loss = network(x, first, second, padding=1)
    roots = rewritten([t.lazy for t in (loss, *loss.gradient(x, first, second))], join_sums)
    assert rewritten(roots, channels_last) == roots


def test_what_is_asked_for_stays_as_it_is() -> None:
    x, first, second = given("EMU")
    y = x.bfloat16().conv2d(first.bfloat16()).relu()
    shapes = stored(y, y.conv2d(second.bfloat16(), padding=1).float().square().mean())
    assert (2, 16, 7, 7) in shapes
    assert (2, 7, 7, 16) not in shapes


def test_who_rounds_what_is_in_memory_stores_it_so() -> None:
    image = graphs.memory(2, 16, 46, 46, device="EMU")
    weight = graphs.memory(32, 16, 3, 3, device="EMU")
    shapes = stored(image.bfloat16().conv2d(weight.bfloat16()).float().square().mean())
    assert {(2, 46, 46, 16), (32, 3, 3, 16)} <= {*shapes}


@pytest.mark.parametrize("images", [2, 64])
def test_what_is_in_memory_is_copied_where_it_is_multiplied_often(images: int) -> None:
    """An assignment to it still reaches its own memory."""
    image = graphs.memory(images, 64, 56, 56, dtype=bfloat16, device="EMU")
    weight = Tensor.zeros(64, 64, 3, 3, device="EMU").bfloat16().contiguous().realize()
    y = image.conv2d(weight, padding=1)
    weight.assign(weight * 2)
    shapes = stored(y, weight)
    assert ((64, 3, 3, 64) in shapes) == (images == 64)
    assert (64, 64, 3, 3) in shapes
    assert (images, 56, 56, 64) not in shapes


@pytest.mark.parametrize("channels", [16, 20])
def test_pieces_are_whole(channels: int) -> None:
    x, first, second = given("EMU", channels)
    shapes = stored(network(x, first, second))
    assert ((2, 7, 7, channels) in shapes) == (channels == 16)


CASES: list[dict[str, int]] = [
    {},
    {"padding": 1},
    {"padding": 2, "dilation": 2},
    {"padding": 1, "stride": 2},
    {"padding": 1, "groups": 2},
    {"stride": 3, "padding": 2},
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_a_network_and_its_gradients(options: dict[str, int], device: str) -> None:
    found = []
    for name in (device, "NUMPY"):
        made = given(name, 32, 7 + options.get("stride", 1), options.get("groups", 1))
        loss = network(*made, **options)
        found.append([t.numpy() for t in (loss, *loss.gradient(*made))])
    for mine, right in zip(*found, strict=True):
        np.testing.assert_allclose(mine, right, 0.02, 0.02 * np.abs(right).max())


@pytest.mark.parametrize(
    ("shape", "axes"), [((32, 64, 32, 32), (0, 2, 3)), ((4, 32, 32, 64), (0, 1, 2))]
)
def test_few_rows_of_a_card_do_not_walk_all_images(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    """A warp would have each of 64 rows; or a thread, with jumps."""
    x = graphs.memory(*shape, device="EMU")
    y = (x - x.mean(axes, keepdim=True)).exp()
    last = stages.kernels(y)[-1]
    assert not any(one.folds for one in lower(last).nests)


def test_columns_of_images_are_added_up_in_pieces_of_whole_rows() -> None:
    x = graphs.memory(32, 56, 56, 64, device="EMU")
    first, *_ = stages.kernels(x.sum((0, 1, 2)))
    written = first.slots[first.outputs[0].slot][0]
    assert [n for n in written if n > 1] == [32, 14, 64]


@pytest.mark.parametrize(
    ("shape", "axes", "pieces"),
    [
        ((64, 256, 256), (0, 2), [16, 256]),  # four images each
        ((64, 64, 28, 28), (0, 2, 3), [32, 64]),
        ((8, 3, 128, 128), (0, 2, 3), [8, 3, 16]),  # too few of images and channels
        ((4, 64, 256), (1, 2), [4, 16]),  # nothing lies between the axes
    ],
)
def test_a_cpu_adds_up_in_pieces_whose_steps_lie_side_by_side(
    shape: tuple[int, ...], axes: tuple[int, ...], pieces: list[int]
) -> None:
    """With pieces of the last axis a row would be a few numbers of each of all images."""
    first, *_ = stages.kernels(graphs.memory(*shape, device="CPU").sum(axes))
    written = first.slots[first.outputs[0].slot][0]
    assert [n for n in written if n > 1] == pieces
