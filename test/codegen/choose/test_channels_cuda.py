"""Images whose channels are innermost are copied to tiles as factors of products are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import graphs
import numpy as np
import pytest
import stages
from cards import CARD, compiled, instructions, on_emu

from tinyml import Device, Tensor, kernel
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import Opt, OptKind
from tinyml.dtype import bfloat16
from tinyml.kernel import Kernel
from tinyml.runtime.emu import ThreadOrder

AMPERE = replace(CARD, cores=108, cache=163 << 10, capability=80)
WAYS = "forward", "image", "weights"  # what is made: a result, or a gradient


def image(*shape: int) -> Tensor:
    """In memory with its second axis innermost."""
    n, channels, *space = shape
    lying = graphs.memory(n, *space, channels, dtype=bfloat16, device="EMU")
    return lying.permute(0, 3, 1, 2)


def convolution(made: str, images: int, channels: int, size: int, stride: int = 1) -> Kernel:
    """A convolution of 3 x 3 as many channels, or one of its gradients."""
    x, w = image(images, channels, size, size), image(channels, channels, 3, 3)
    y = x.requires_grad_().conv2d(w.requires_grad_(), padding=1, stride=stride)
    if made == "forward":
        y = y.permute(0, 2, 3, 1).contiguous()
    else:
        (y,) = y.gradient(x if made == "image" else w, gradient=image(*y.shape))
        y = y.permute(0, 2, 3, 1).contiguous()
    return stages.kernel_of(y)


@pytest.mark.skipif(not Device.available("EMU"), reason="no C++ compiler")
@pytest.mark.parametrize("order", ThreadOrder)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("made", WAYS)
def test_threads_in_any_order(made: str, stride: int, order: ThreadOrder) -> None:
    k = convolution(made, 2, 32, 9, stride)
    program = compile(k, CARD, verify=True)
    assert "add_product" in program.source
    assert "tinyml_cp_async16_or_zero(" in program.source
    rng = np.random.default_rng(7)
    arrays = [graphs.numbers(rng, shape, dtype) for shape, dtype in k.slots]
    wanted = [a.copy() for a in arrays]
    kernel.run(k, wanted)
    on_emu(program, order)(k, arrays)
    found, right = (a[0].astype(np.float64) for a in (arrays, wanted))
    np.testing.assert_allclose(found, right, rtol=0.02, atol=0.02 * np.abs(right).max())


@pytest.mark.parametrize(("made", "copies"), [("forward", 6), ("image", 6), ("weights", 4)])
def test_nothing_goes_through_registers(made: str, copies: int, tmp_path: Path) -> None:
    """Four stages of both factors are copied: three before the loop, one at each step of it."""
    program = compile(convolution(made, 8, 64, 56), AMPERE)
    resources, cubin = compiled(program, "sm_80", tmp_path)
    assert not resources.spills
    found = instructions(cubin)
    products = sum(n for op, n in found.items() if op.startswith("HMMA"))
    loads = sum(n for op, n in found.items() if op.startswith("LDSM"))
    assert products >= 2 * loads > 0
    assert found["LDGSTS.E.BYPASS.128"] == 4 * copies
    assert found["LDGDEPBAR"] == 4
    assert not any(op.startswith(("LDG.E.U16", "STS.U16")) for op in found)
    if made != "weights":  # blocks share the fold of those
        exchanged = 4 * found["SHFL.BFLY"]  # by lanes that store pieces: each with selects
        assert sum(found.values()) - exchanged <= 15 * products


def test_pixels_of_several_images_fill_tiles() -> None:
    """Those of one are 49, of which tiles would be padded to 64."""
    opts, _ = choose(lower(convolution("forward", 32, 128, 7)), AMPERE)
    assert Opt(OptKind.COLLAPSE, "i0", 3) in opts  # 25 tiles of 64 for 32
