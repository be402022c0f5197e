"""Every CUDA kernel that the tests' tables make is compiled by nvcc for a Hopper card."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import graphs
import pytest
import stages
from expressions import EXPRESSIONS

from tinyml.codegen.compile import compile
from tinyml.defaults import defaults
from tinyml.device import Device
from tinyml.dtype import ALL
from tinyml.errors import DeviceError
from tinyml.program import Program, translation_unit
from tinyml.runtime import nvcc
from tinyml.runtime.translation_units import share, work

ARCHITECTURE = "sm_90a"


def toolchain() -> nvcc.Toolchain:
    try:
        return nvcc.find()
    except DeviceError as error:
        pytest.skip(str(error))


def build(programs: list[Program]) -> dict[str, nvcc.Resources]:
    """Compile all programs in a few units; what each kernel takes of a multiprocessor."""
    tools = toolchain()
    unique = list({program.name: program for program in programs}.values())
    sizes = {program: work(program) for program in unique}
    half = share(sizes, sum(sizes.values()) / 2)
    units = [half, tuple(program for program in unique if program not in half)]
    with ThreadPoolExecutor(2) as pool:
        outputs = pool.map(lambda u: tools.compile(translation_unit(u), ARCHITECTURE)[1], units)
    found: dict[str, nvcc.Resources] = {}
    for output in outputs:
        found.update(nvcc.parse_resources(output))
    assert {p.name for p in unique} <= set(found)
    return found


def no_spills(found: dict[str, nvcc.Resources]) -> None:
    # ptxas may set one value aside to keep a kernel of many parts within 32 registers
    spilled = {name: r for name, r in found.items() if r.spill_stores + r.spill_loads > 8}
    assert not spilled, f"registers did not suffice: {spilled}"


def test_kernels_of_the_expressions() -> None:
    toolchain()
    if not Device.available("CPU"):
        pytest.skip("no C compiler to make the inputs with")
    with defaults(device="CPU"):
        kernels = [k for e in EXPRESSIONS.values() for k in stages.kernels(*e.make())]
    no_spills(build([compile(k, stages.CUDA) for k in dict.fromkeys(kernels)]))


def test_kernels_of_the_op_tables() -> None:
    toolchain()
    tables = [graphs.op_table(dtype, (4, 64)) for dtype in ALL]
    kernels = [k for table in tables for node in table.values() for k in stages.kernels(node)]
    no_spills(build([compile(k, stages.CUDA) for k in dict.fromkeys(kernels)]))
