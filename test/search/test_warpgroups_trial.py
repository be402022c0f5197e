"""What a trial of warpgroups tries; test/runtime/test_cuda_fake.py has what comes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cards import CARD
from products import kernel_of, product

from tinyml import search
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import OptKind
from tinyml.codegen.target import UndecidedError
from tinyml.device import OpenDevice, open_device
from tinyml.dtype import bfloat16
from tinyml.search import warpgroups
from tinyml.search.runner import Scratch, drawn_for

OPEN = replace(CARD, warpgroups=None)


def test_all_ways_that_warpgroups_go_are_tried() -> None:
    found = []
    for given in (*warpgroups._HALVES, warpgroups._FLOATS):
        k = warpgroups.product(*given, "CUDA")
        opts, _ = choose(lower(k), replace(CARD, warpgroups=True, tf32=True))
        kinds = {opt.kind for opt in opts}
        assert OptKind.WARPGROUP in kinds
        told = (OptKind.PERSIST, OptKind.PAD, OptKind.BULK, OptKind.PIPELINE)
        shared = any(opt.kind is OptKind.GRID and opt.axis == "r0" for opt in opts)
        found.append([kind.name for kind in told if kind in kinds] + ["share"] * shared)
    assert found == [
        ["PERSIST", "BULK"],
        ["PAD", "BULK"],
        ["PAD", "PIPELINE", "share"],
        ["PERSIST", "BULK"],
    ]


def test_only_a_product_for_warpgroups_asks_whether_they_multiply() -> None:
    for shape in ((16, 1024, 1024), (50, 50, 50)):
        k = kernel_of(product(*shape, bfloat16))
        assert choose(lower(k), OPEN) == choose(lower(k), CARD)
    large = kernel_of(product(1024, 1024, 1024, bfloat16))
    with pytest.raises(UndecidedError):
        choose(lower(large), OPEN)
    with pytest.raises(UndecidedError):  # nor does a search go on without an answer
        search.found(large, OpenDevice("CUDA", open_device("NUMPY").machine, OPEN), 1, 1.0)


def test_a_result_in_another_row_is_a_wrong_one() -> None:
    """Though all sums of positive numbers are about the same."""
    opened = open_device("CPU")
    k = warpgroups.product((64, 4096, 64), bfloat16, (True, False), "CPU")
    (executable,) = opened.machine.load([compile(k, opened.target)])
    scratch = Scratch(drawn_for(k, lower(k), False), opened.machine)
    (right,) = scratch.results(executable)
    assert scratch.agree([right], [right])
    turned = np.roll(right.reshape(64, 64), 1, 0).ravel()
    assert not scratch.agree([turned], [right])
