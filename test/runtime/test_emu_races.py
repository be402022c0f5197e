"""The emulator, where it looks for races: what barriers order, and atomics, it leaves alone."""

from __future__ import annotations

import numpy as np
import pytest
from cards import launched

from tinyml.codegen.text.cuda_text import FRAGMENTS
from tinyml.errors import KernelError
from tinyml.program import Language, Program
from tinyml.runtime.emu import EmuMachine

GIVEN = np.arange(256, dtype=np.float32)


def program(name: str, body: str, grid: int = 1) -> Program:
    source = f'extern "C" __global__ void {name}(float *out) {{\n{body}\n}}'
    return Program(name, Language.CUDA, (FRAGMENTS,), source, 1, grid, (GIVEN.size, 1, 1))


def failure(machine: EmuMachine, p: Program) -> str:
    with pytest.raises(KernelError) as caught:
        launched(machine, p, GIVEN)
    return str(caught.value)


# With what makes it right, without which there is a race.
TILE = "__shared__ __align__(16) float tile[256];\nint t = threadIdx.x;\n"
RACES = {
    "put": (
        TILE + "tile[t] = out[t];\nBARRIER\nout[t] = tile[255 - t];",
        "writes shared memory that thread (127,0) has read",
    ),
    "put_again": (
        TILE + "tile[t] = 1.0f;\n__syncthreads();\nout[t] = tile[t ^ 1];\nBARRIER\ntile[t] = 2.0f;",
        "reads shared memory that thread (0,0) has written",
    ),
    "copied": (
        TILE
        + """tile[t] = 1.0f;
__syncthreads();
float seen = tile[255 - t];
BARRIER
if (t < 64) tinyml_cp_async16(tile + 4 * t, out + 4 * t);
tinyml_cp_async_commit();
tinyml_cp_async_wait<0>();
__syncthreads();
out[t] = seen + tile[255 - t];""",
        "shared memory that",
    ),
    "in_place": (
        "float seen = out[255 - threadIdx.x];\nBARRIER\nout[threadIdx.x] = seen;",
        "reads global memory that thread (127,0) has written",
    ),
}


@pytest.mark.parametrize("name", RACES)
def test_a_race_is_found_where_a_barrier_is_missing(watched, name):
    body, expected = RACES[name]
    for barrier in "__syncthreads();", "":
        text = body.replace("BARRIER", barrier)
        p = program(f"{name}_{len(barrier)}", text)
        if barrier:
            launched(watched, p, GIVEN)
        else:
            message = failure(watched, p)
            assert "race: in block (0,0,0)" in message
            assert expected in message


def test_blocks_that_write_what_others_do_race_unless_by_atomics(watched):
    for text, races in (("out[t] = 1.0f;", True), ("atomicAdd(out + t, 1.0f);", False)):
        p = program(f"blocks_{races}", f"int t = threadIdx.x;\n{text}", grid=2)
        if races:
            assert "that another block has written" in failure(watched, p)
        else:
            launched(watched, p, GIVEN)
