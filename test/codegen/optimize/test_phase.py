"""A row axis by its remainders: folds walk only the steps that count."""

from __future__ import annotations

from dataclasses import replace

import graphs
import numpy as np
import pytest
import stages

from tinyml import Tensor
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.lower import lower
from tinyml.codegen.nest import Kind, LoopNest
from tinyml.codegen.optimize.opts import Opt, OptError, OptKind, apply
from tinyml.kernel import Kernel


def plain(k: Kernel) -> LoopNest:
    return lower(k)


def window(size: int = 12, window: int = 3, step: int = 2) -> Kernel:
    """The gradient of windows over 5 rows, and the kernel that computes it."""
    return stages.kernels(graphs.window_gradient(5, size, window, step))[-1]


def steps(nest: LoopNest) -> list[int]:
    """How many steps each nest folds over, 1 where nothing is left to fold."""
    return [max((f.axes[0].size for f in one.folds), default=1) for one in nest.nests]


@pytest.mark.parametrize(
    ("window_", "step", "wanted"), [(3, 2, [2, 1]), (4, 2, [2, 2]), (5, 3, [2, 2, 1])]
)
def test_each_phase_folds_what_counts(window_: int, step: int, wanted: list[int]) -> None:
    nest = plain(window(12, window_, step))
    assert steps(nest) == [window_]
    assert steps(apply(nest, Opt(OptKind.PHASE, "i1", step))) == wanted


def test_a_window_that_is_shorter_than_its_step_leaves_zeros() -> None:
    nest = apply(plain(window(12, 2, 3)), Opt(OptKind.PHASE, "i1", 3))
    assert [len(one.loads) for one in nest.nests] == [2, 2, 0]


def test_phases_of_odd_sizes_have_different_lengths() -> None:
    nest = apply(plain(window(13)), Opt(OptKind.PHASE, "i1", 2))
    assert [one.rows[1].size for one in nest.nests] == [7, 6]


@pytest.mark.parametrize("axis", ["i1", "r0"])
def test_only_long_row_axes_have_phases(axis: str) -> None:
    with pytest.raises(OptError, match=axis):
        apply(plain(window(4, 3, 1)), Opt(OptKind.PHASE, axis, 8))


@pytest.mark.parametrize("target", [stages.C, stages.CUDA], ids=["C", "CUDA"])
@pytest.mark.parametrize("size", [12, 17])
def test_every_target_chooses_phases(target: stages.Target, size: int) -> None:
    k = window(size)
    assert Opt(OptKind.PHASE, "i1", 2) in choose(lower(k), target)[0]
    stages.assert_right(k, target=target)


def test_a_strided_convolution_multiplies_no_zeros() -> None:
    x = Tensor(np.ones((2, 4, 16, 16), np.float32), device="CPU", requires_grad=True)
    w = Tensor(np.ones((8, 4, 3, 3), np.float32), device="CPU").realize()
    y = x.realize().conv2d(w, stride=2, padding=1)
    (gradient,) = y.gradient(x, gradient=Tensor(np.ones(y.shape, np.float32), device="CPU"))
    nest = choose(lower(stages.kernels(gradient)[-1]), stages.C)[1]
    taps = sum(
        np.prod([a.size for f in one.folds for a in f.axes if a.name.startswith("r")])
        for one in nest.nests
        if "e" not in one.rows[0].name  # what was peeled has the same taps
    )
    assert taps == 8 * 9  # for every four elements, of 8 channels, as many as the window has


@pytest.mark.parametrize("size", [32, 33, 67])
def test_a_phase_of_pixels_is_stored_in_vectors_two_apart(size: int) -> None:
    """The neighbours of an element are another phase's, which another thread may store."""
    k = window(size)
    assert "spread_float32x" in compile(k, stages.C).source
    stages.assert_made(k, stages.on_machine("CPU", [k]))


@pytest.mark.parametrize(
    ("size", "stride", "function"),
    [
        (8, 2, "scattered_f32x8_by4("),
        (12, 2, "scattered_f32x8_by6("),
        (24, 2, "scattered_f32x8_by12("),
        (36, 3, "scattered_f32x8_by12("),
    ],
)
def test_a_vector_of_several_rows_of_a_phase_is_stored_by_one_call(
    size: int, stride: int, function: str
) -> None:
    """Two rows of 4 pixels each, or parts of rows of 6 or 12, which end anywhere in a vector."""
    random = np.random.default_rng(size)

    def made(*shape: int) -> Tensor:
        values = random.standard_normal(shape).astype(np.float32)
        return Tensor(values, device="CPU").realize()

    x, w = made(2, 4, size, size), made(24, 4, 3, 3)
    x.requires_grad = True
    y = x.conv2d(w, stride=stride, padding=1)
    (gradient,) = y.gradient(x, gradient=made(*y.shape))
    k = stages.kernels(gradient)[-1]
    text = compile(k, stages.C).source
    assert function in text
    assert "lanes[" not in text
    stages.assert_made(k, stages.on_machine("CPU", [k]), 1e-4)


def test_lanes_do_not_lie_along_what_pushes_each_other_out_of_the_cache() -> None:
    """Channels of 32 x 32 pixels are 4096 bytes apart, even if what is added lies along them."""
    wide = replace(stages.C, vector_bytes=64, vector_registers=32)

    def made(*shape: int) -> Tensor:
        return Tensor(np.ones(shape, np.float32), device="CPU").realize()

    x, w = made(8, 32, 32, 32), made(32, 32, 3, 3)
    x.requires_grad = True
    y = x.conv2d(w, stride=2, padding=1)
    (gradient,) = y.gradient(x, gradient=made(*y.shape))
    both = gradient + made(8, 32, 32, 32).permute(0, 3, 1, 2)
    nest = choose(lower(stages.kernels(both)[-1]), wide)[1]
    for one in nest.nests:
        for store in (store for walk in one.walks for store in walk.stores):
            lanes = [a for a in store.position.free if nest.kind(a) is Kind.LANE]
            assert {store.position.stride(a) for a in lanes} <= {1, 2}


def test_a_pool_without_overlap_copies_its_gradient() -> None:
    x = Tensor(np.ones((4, 8, 8), np.float32), device="CPU", requires_grad=True).realize()
    y = x.reshape(1, 4, 8, 8).max_pool2d(2)
    (gradient,) = y.gradient(x, gradient=Tensor(np.ones(y.shape, np.float32), device="CPU"))
    nest = choose(lower(stages.kernels(gradient)[-1]), stages.C)[1]
    assert len(nest.nests) == 4
    assert not any(one.folds for one in nest.nests)
