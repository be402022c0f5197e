"""Products of floats by threads: the order that they are added in, and where sums wait."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import graphs
import pytest
import stages
from cards import CARD, compiled, on_emu
from products import product
from stages import kernel_of

from tinyml import Device
from tinyml.codegen.compile import compile
from tinyml.codegen.target import Target
from tinyml.dtype import float32
from tinyml.program import Program
from tinyml.runtime.emu import ThreadOrder

FEW_CORES = replace(CARD, cores=1)
CROSSWISE = pytest.mark.parametrize(
    "crosswise", [(False, False), (True, False)], ids=["A@B", "A.T@B"]
)
Added = tuple[str, str, str]  # a sum, and both factors


def multiplied(crosswise: tuple[bool, bool], size: int = 256, depth: int = 1024) -> Program:
    root = product(size, depth, size, float32, crosswise)
    return compile(kernel_of(root), FEW_CORES)


def runs(program: Program) -> list[list[Added]]:
    """Products that are added one right after the other."""
    line = re.compile(r"(acc\d+) \+= (tile\d+\[.*?\]) \* (tile\d+\[.*?\]);")
    found: list[list[Added]] = [[]]
    for text in program.source.splitlines():
        match = line.fullmatch(text.strip())
        if match:
            found[-1].append((match[1], match[2], match[3]))
        elif found[-1]:
            found.append([])
    return [run for run in found if run]


@CROSSWISE
def test_a_product_has_a_factor_of_the_one_before(crosswise: tuple[bool, bool]) -> None:
    (run,) = runs(multiplied(crosswise))
    steps = 4
    assert len(run) == 8 * 8 * steps
    shared = [bool({*one[1:]} & {*next_[1:]}) for one, next_ in pairwise(run)]
    assert shared.count(False) < steps


@CROSSWISE
def test_each_sum_adds_up_its_products_in_the_order_of_steps(crosswise: tuple[bool, bool]) -> None:
    by_sum = dict[str, list[Added]]()
    for added in runs(multiplied(crosswise))[0]:
        by_sum.setdefault(added[0], []).append(added)
    assert len(by_sum) == 64
    for products in by_sum.values():
        for factor in 1, 2:
            places = [int(re.findall(r"\d+", one[factor])[-1]) for one in products[1:]]
            assert places == sorted({*places})


@CROSSWISE
def test_sums_of_parts_wait_in_memory_for_two_blocks_at_once(crosswise: tuple[bool, bool]) -> None:
    program = multiplied(crosswise)
    assert program.bounds == (256, 2)
    assert program.source.count("volatile float") == 64
    assert "its assembler keeps the order" in program.source
    assert program.in_order


@pytest.mark.parametrize(
    ("depth", "crosswise", "target"),
    [(1024, (False, False), CARD), (1024, (False, True), FEW_CORES), (600, (True,) * 2, FEW_CORES)],
    ids=["one block of a multiprocessor", "steps are read at once", "edges"],
)
def test_they_do_not(depth: int, crosswise: tuple[bool, bool], target: Target) -> None:
    program = compile(kernel_of(product(256, depth, 256, float32, crosswise)), target)
    assert not program.in_order
    assert program.bounds != (256, 2)
    assert "volatile" not in program.source


@CROSSWISE
def test_registers_suffice_for_two_blocks(crosswise: tuple[bool, bool], tmp_path: Path) -> None:
    program = multiplied(crosswise, 1024, 1024)
    resources, _ = compiled(program, "sm_90a", tmp_path)
    assert resources.registers <= 128
    assert not resources.spills


@CROSSWISE
def test_products_are_right_in_this_order(crosswise: tuple[bool, bool]) -> None:
    if not Device.available("EMU"):
        pytest.skip("the emulator needs a C++ compiler")
    root = product(256, 608, 128, float32, crosswise)
    program = compile(kernel_of(root), FEW_CORES)
    assert program.in_order
    known = graphs.values([root])
    stages.agree([root], known, {"EMU": on_emu(program, ThreadOrder.FORWARD)}, rtol=1e-4, atol=1e-4)
