"""Convolutions: pixels are packed in panels, with zeros where windows reach beyond an edge."""

from __future__ import annotations

from dataclasses import replace

import pytest
import stages
from graphs import leaf
from products import convolution
from stages import kernel_of

from tinyml import Tensor, lazy
from tinyml.codegen.choose.chooser import contraction_of
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.expr import Load
from tinyml.codegen.linear import Let
from tinyml.codegen.linearize.linearize import linearize
from tinyml.codegen.lower import lower
from tinyml.codegen.nest import LoopNest
from tinyml.codegen.optimize.change import LOADS
from tinyml.codegen.optimize.opts import OptKind
from tinyml.device import Device
from tinyml.kernel import Kernel
from tinyml.ops import Op


def chosen(k: Kernel) -> LoopNest:
    return choose(lower(k), stages.C)[1]


@pytest.mark.parametrize(
    ("images", "inner", "outer", "size", "stride"),
    [(1, 3, 24, 8, 1), (2, 2, 13, 15, 1), (1, 3, 12, 57, 2), (1, 2, 25, 61, 2), (1, 2, 12, 31, 1)],
)
def test_edges_are_zeros(images: int, inner: int, outer: int, size: int, stride: int) -> None:
    stages.assert_right(convolution(images, inner, outer, size, stride), 1e-4)


@pytest.mark.parametrize("size", [6, 7, 12, 14, 20, 28])
def test_rows_of_windows_are_copied_once(size: int) -> None:
    """Vectors of pixels go on in the next row; a window's rows read the same ones."""
    k = convolution(1, 3, 24, size)
    tile = next(tile for one in chosen(k).nests for tile in one.tiles)
    assert tile.size < size * size * 3 * 9 / 1.5  # of 3 channels and 9 steps
    stages.assert_right(k, 1e-4)


@pytest.mark.parametrize(("registers", "loops"), [(16, True), (32, False)])
def test_steps_of_windows_are_written_out_where_registers_are_left(
    registers: int, loops: bool
) -> None:
    """gcc loads ahead, and stored sums where 12 of 16 registers had one."""
    target = replace(stages.C, vector_registers=registers)
    made = Tensor(leaf(4, 16, 64)).conv2d(Tensor(leaf(24, 16, 5)), padding=2)
    k = kernel_of(made.lazy)
    opts = choose(lower(k), target)[0]
    assert ("unroll r1 5" not in map(str, opts)) == loops


@pytest.mark.parametrize(
    ("images", "inner", "outer", "size", "window"),
    [(8, 3, 16, 12, 3), (3, 2, 40, 12, 3), (5, 4, 24, 11, 1), (1, 2, 17, 10, 3), (4, 1, 64, 9, 3)],
)
def test_short_rows_of_every_second_pixel_are_rows_of_register_tiles(
    images: int, inner: int, outer: int, size: int, window: int
) -> None:
    """Lanes lie along channels, whose weights are packed for several images."""
    k = convolution(images, inner, outer, size, 2, window)
    opts = choose(lower(k), stages.C)[0]
    channels = "i1" if images > 1 else "i0"
    assert next(opt.axis for opt in opts if opt.kind is OptKind.LANES) == channels
    stages.assert_right(k, 1e-4)


def test_steps_that_go_backwards_are_held_once_too() -> None:
    """As those of a gradient's windows do; what whole vectors hold besides is not read."""
    image, weights = leaf(1, 1, 40, 1), leaf(1, 24, 1, 5)
    moved = lazy.skew(lazy.expand(image, (1, 24, 40, 5)), 2, 3, -1, 44)
    product = lazy.map_(Op.MUL, moved, lazy.expand(weights, (1, 24, 44, 5)))
    k = kernel_of(lazy.reduce_(Op.ADD, product, (3,)))
    stages.assert_right(k, 1e-4)


def test_only_vectors_at_edges_are_masked() -> None:
    """A row is two vectors: of three steps of a window, one leaves it at either side."""
    kernel = linearize(chosen(convolution(1, 3, 24, 16)))
    lanes = {lane for lane in kernel.lanes if "tile" in lane.name}
    lets = [i.value for part in kernel.parts for i in part.instrs if isinstance(i, Let)]
    copied = [e for e in lets if isinstance(e, Load) and lanes & e.free]
    masked = [e for e in copied if any(lanes & v.free for v in e.valid)]
    assert len(masked) * 3 == len(copied) > 0


def test_columns_that_fill_two_panels_but_for_a_few_are_one_nest() -> None:
    assert len(chosen(convolution(1, 3, 24, 53, 2)).nests) == 1  # 27 of 32
    opts = choose(lower(convolution(1, 3, 24, 41, 2)), stages.C)[0]  # 21 of 32
    assert OptKind.PAD not in [opt.kind for opt in opts if opt.axis == "i3"]


@pytest.mark.parametrize(
    ("size", "stride", "padding", "joined"),
    [
        *(((23, 23), 2, 1, True), ((55, 55), 2, 1, True), ((3, 23), 2, 1, True)),
        *(((14, 14), 1, 0, True), ((24, 24), 1, 1, False), ((53, 53), 2, 1, False)),
    ],
)
def test_rows_of_pixels_that_are_no_vectors_are_joined(
    size: tuple[int, int], stride: int, padding: int, joined: bool
) -> None:
    """As many as are whole vectors; those that end in the next row are read in two parts."""
    x, w = (Tensor.ones(*shape).realize() for shape in ((1, 3, *size), (24, 3, 3, 3)))
    k = kernel_of(x.conv2d(w, stride=stride, padding=padding).lazy)
    opts = choose(lower(k), stages.C)[0]
    assert joined == any(o.kind is OptKind.COLLAPSE and o.amount == LOADS for o in opts)
    stages.assert_right(k, 1e-4)
    if Device.available("CPU"):
        stages.assert_made(k, stages.on_machine("CPU", [k], opts), 1e-4)


@pytest.mark.parametrize(
    ("outer", "size", "window", "packed"), [(3, 32, 3, False), (24, 32, 3, True), (24, 7, 7, True)]
)
def test_pixels_at_edges_are_read_as_they_lie_by_few_rows(
    outer: int, size: int, window: int, packed: bool
) -> None:
    """Masks take little beside sums, unless the step of a window is found by division."""
    x, w = (Tensor.ones(*s).realize() for s in ((2, 16, size, size), (outer, 16, window, window)))
    k = kernel_of(x.conv2d(w, padding=window // 2).lazy)
    assert packed == any(one.tiles for one in chosen(k).nests)


def test_places_of_a_window_are_walked_before_the_next_channel() -> None:
    """However a gradient says it: else each step would read another line of the weights."""
    image, weights = leaf(24, 1, 5, 3), leaf(1, 32, 5, 3)
    places = (lazy.permute(lazy.expand(x, (24, 32, 5, 3)), (0, 1, 3, 2)) for x in (image, weights))
    k = kernel_of(lazy.reduce_(Op.ADD, lazy.map_(Op.MUL, *places), (2, 3)))
    folds = [fold for one in chosen(k).nests for fold in one.folds]
    assert {tuple(a.size for a in fold.axes) for fold in folds} == {(15,)}  # which then are one
    stages.assert_right(k, 1e-4)


def test_gradients_of_groups_are_contractions() -> None:
    """Channels are one axis of an image there, and two of weights and of what they made."""
    shapes = (2, 8, 16, 16), (24, 4, 3, 3), (2, 24, 16, 16)
    x, weights, seed = (Tensor.ones(*shape).realize() for shape in shapes)
    made = x.requires_grad_().conv2d(weights, groups=2, padding=1)
    k = kernel_of(made.gradient(x, gradient=seed)[0].lazy)
    opts, nest = choose(lower(k), stages.C)
    assert "split i1 4" in map(str, opts)
    assert all(contraction_of(one) is not None for one in nest.nests)
    stages.assert_right(k, 1e-4)


def test_pixels_of_a_row_pass_over_the_same_weights() -> None:
    """Where lanes lie along channels, as rows of pixels are no vectors; rows are shared out."""
    x, w = (Tensor.ones(*shape).realize() for shape in ((64, 6, 14, 14), (16, 6, 5, 5)))
    k, wide = kernel_of(x.conv2d(w).lazy), replace(stages.C, vector_bytes=64, vector_registers=32)
    nest = choose(lower(k), wide)[1]
    assert [nest.grid(one) for one in nest.nests] == [(tile.after,) for tile in nest.nests[0].tiles]
    stages.assert_right(k, 1e-4, wide)
