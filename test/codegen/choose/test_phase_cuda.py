"""Gradients of strided and grouped convolutions on a card: products of each phase and group."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import graphs
import numpy as np
import pytest
import stages
from cards import CARD, compiled, instructions, on_emu

from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.fragments import products_of
from tinyml.codegen.optimize.opts import OptError, OptKind, optimize, parse
from tinyml.codegen.target import Target
from tinyml.device import Device
from tinyml.dtype import DType, bfloat16, float16, float32
from tinyml.kernel import Kernel
from tinyml.runtime.emu import ThreadOrder

TF32 = replace(CARD, tf32=True)
Case = tuple[DType, Target]
CASES = {
    "bfloat16": (bfloat16, CARD),
    "float16": (float16, CARD),
    "float32": (float32, CARD),
    "float32 as tf32": (float32, TF32),
}


memory = partial(graphs.memory, device="EMU")


def gradient(
    images: int,
    inner: int,
    outer: int,
    size: int,
    window: int,
    stride: int,
    dtype: DType,
    groups: int = 1,
) -> list[Kernel]:
    """The kernels that make that of images."""
    x, w = (
        memory(*shape, dtype=dtype)
        for shape in ((images, inner, size, size), (outer, inner // groups, window, window))
    )
    y = x.requires_grad_().conv2d(w, stride=stride, padding=window // 2, groups=groups)
    (made,) = y.gradient(x, gradient=memory(*y.shape, dtype=dtype))
    return stages.kernels(made)


@pytest.mark.parametrize("case", CASES.values(), ids=[*CASES])
@pytest.mark.parametrize(
    ("size", "groups"),
    [
        ((2, 32, 48, 13, 3, 2), 1),
        ((1, 20, 36, 15, 5, 3), 1),
        ((2, 32, 48, 13, 3, 1), 2),
        ((1, 60, 96, 12, 3, 2), 3),
        ((2, 24, 24, 11, 3, 1), 3),  # half of each tile is beyond its group
    ],
    ids=str,
)
def test_every_phase_is_a_product(size: tuple[int, ...], groups: int, case: Case) -> None:
    """Of each group."""
    dtype, target = case
    (k,) = gradient(*size, dtype, groups)
    opts, _ = choose(lower(k), target)
    products = [o for o in opts if o.kind is OptKind.FRAGMENT]
    on_tensor_cores = dtype is not float32 or target.tf32
    assert len(products) == (size[-1] ** 2 if on_tensor_cores else 0)
    agrees(k, target)


def agrees(k: Kernel, target: Target) -> None:
    """On EMU, with threads in three orders."""
    program = compile(k, target, verify=True)
    arrays, wanted = stages.drawn(k)
    runners = [stages.simulated(target, None)]
    if Device.available("EMU"):
        runners += [on_emu(program, order) for order in ThreadOrder]
    for runner in runners:
        found = [a.copy() for a in arrays]
        runner(k, found)
        np.testing.assert_allclose(
            found[0], wanted[0], rtol=0.01, atol=0.01 * np.abs(wanted[0]).max()
        )


def test_phases_that_are_no_products_leave_warps_whole() -> None:
    """An instruction that a warp makes together waits for all of its threads."""
    x, w = (memory(*shape, dtype=float32) for shape in ((1, 24, 5, 7), (10, 24, 3, 3)))
    y = x.requires_grad_().half().conv2d(w.half(), stride=2).relu()
    (made,) = y.gradient(x, gradient=memory(*y.shape, dtype=float16))
    k = stages.kernels(made)[-1]
    nest = choose(lower(k), CARD)[1]
    assert {bool(products_of(replace(nest, nests=(one,)))) for one in nest.nests} == {True, False}
    agrees(k, CARD)


@pytest.mark.parametrize(
    ("size", "dtype", "target"),
    [
        ((2, 4, 256, 13, 2, 3), bfloat16, CARD),  # phases of 64 and 32 threads for each sum,
        ((2, 16, 64, 5, 5, 2), float32, replace(CARD, cores=20, capability=75)),  # of 16 and 32
        ((2, 8, 128, 9, 4, 2), float32, replace(CARD, cores=20, capability=75)),  # and of 8
    ],
    ids=["64 and 32", "16 and 32", "8 and 32"],
)
def test_phases_share_folds_among_as_many_threads(
    size: tuple[int, ...], dtype: DType, target: Target
) -> None:
    """By the number of columns, each would have others, but a block has as many for all."""
    (k,) = gradient(*size, dtype)
    nest = choose(lower(k), target)[1]
    folding = {a.size for one in nest.nests for a in one.axes if a.name == "tx"}
    assert len(nest.nests) > 1
    assert len(folding) == 1
    agrees(k, target)


PHASES = "phase i2 2, phase i3 2, phase i3p1 2, collapse i2 3, pad i2 32, pad r2 32"


@pytest.mark.parametrize("opt", ["thread r2 16", "fragment r2 16"])
def test_threads_that_share_a_fold_do_so_in_all_phases(opt: str) -> None:
    """Those of a block are numbered in one way: neither fewer share another, nor whole warps."""
    (k,) = gradient(2, 32, 48, 13, 3, 2, bfloat16)
    optimize(lower(k), [parse(text) for text in f"{PHASES}, {opt}".split(", ")])
    with pytest.raises(OptError, match=f"cannot {opt}|cannot make matrix products"):
        optimize(lower(k), [parse(text) for text in f"{PHASES}, thread r2p1 32, {opt}".split(", ")])


def test_parts_of_a_kernel_have_the_same_shared_memory() -> None:
    """A block computes one of them: what it needs is what the largest needs."""
    (k,) = gradient(4, 64, 64, 56, 3, 2, bfloat16)
    program = compile(k, CARD)
    assert program.source.count("= (__nv_bfloat16 *)(tinyml_shared_16);") == 4
    assert program.shared <= CARD.cache // 4


def test_tiles_fit() -> None:
    """Also those of long folds over windows, which a card without tensor cores stages."""
    for dtype in (float32, bfloat16):
        (k,) = gradient(1, 512, 512, 14, 3, 2, dtype)
        for target in (CARD, replace(CARD, capability=75, cache=64 << 10)):
            assert compile(k, target).shared <= target.cache


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_registers_suffice(architecture: str, tmp_path: Path) -> None:
    (k,) = gradient(8, 64, 128, 56, 3, 2, bfloat16)
    resources, cubin = compiled(compile(k, CARD), architecture, tmp_path)
    assert not resources.spills
    found = instructions(cubin)
    matrices = sum(n for op, n in found.items() if op.startswith("HMMA"))
    loads = sum(n for op, n in found.items() if op.startswith("LDSM"))
    assert matrices >= 2 * loads > 0
