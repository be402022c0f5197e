"""C for another processor: kernels for ARM's vectors (NEON), cross-compiled and run by qemu."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import numpy.typing as npt
import pytest
import stages
from expressions import EXPRESSIONS

from tinyml.codegen.compile import compile
from tinyml.codegen.target import Target
from tinyml.defaults import defaults
from tinyml.device import Device
from tinyml.dtype import ALL, DType, float32, float64, to_compute, to_storage
from tinyml.kernel import Kernel
from tinyml.lazy import LazyBuffer
from tinyml.program import Language, Program, translation_unit
from tinyml.runtime.compiler import FLAGS

NEON = Target(Language.C, vector_bytes=16, vector_registers=32, cores=2)
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"
OURS = ("-march=native", "-mtune=generic", "-shared")  # flags for the processor that tests run on

# reads a program's number and its buffers, runs it, and writes the buffers back
DRIVER = """
#include <stdio.h>
#include <stdlib.h>
typedef void plain(void *const *, long, long);
typedef void faulty(void *const *, long, long, long *);
struct program { void *function; long slots, grid, faults; };
static const struct program programs[] = {PROGRAMS};
int main(void) {
  long number;
  while (fread(&number, sizeof number, 1, stdin) == 1) {
    const struct program *p = &programs[number];
    void *buffers[64];
    long sizes[64], fault[2] = {0, 0};
    for (long slot = 0; slot < p->slots; slot++) {
      if (fread(&sizes[slot], sizeof(long), 1, stdin) != 1) return 1;
      buffers[slot] = aligned_alloc(64, (sizes[slot] + 127) / 64 * 64);
      if (fread(buffers[slot], 1, sizes[slot], stdin) != (size_t)sizes[slot]) return 1;
    }
    if (p->faults) ((faulty *)p->function)(buffers, 0, p->grid, fault);
    else ((plain *)p->function)(buffers, 0, p->grid);
    for (long slot = 0; slot < p->slots; slot++) {
      fwrite(buffers[slot], 1, sizes[slot], stdout);
      free(buffers[slot]);
    }
    fflush(stdout);
  }
  return 0;
}
"""


class Emulated:
    """Programs that run on an emulated processor; a stages.Runner for their kernels."""

    def __init__(self, kernels: Sequence[Kernel], folder: Path) -> None:
        made = {k: compile(k, NEON, None, verify=True) for k in dict.fromkeys(kernels)}
        programs = list({p.name: p for p in made.values()}.values())
        names = [p.name for p in programs]
        self._numbers = {k: names.index(p.name) for k, p in made.items()}
        self._process = subprocess.Popen(
            [EMULATOR, str(_build(programs, folder))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __call__(self, k: Kernel, arrays: Sequence[npt.NDArray[Any]]) -> None:
        pairs = zip(arrays, k.slots, strict=True)
        stored = [np.ascontiguousarray(to_storage(a, dtype)) for a, (_, dtype) in pairs]
        pipes = self._process.stdin, self._process.stdout
        assert pipes[0] is not None
        assert pipes[1] is not None
        pipes[0].write(struct.pack("q", self._numbers[k]))
        for values in stored:
            pipes[0].write(struct.pack("q", values.nbytes) + values.tobytes())
        pipes[0].flush()
        back = [np.frombuffer(pipes[1].read(a.nbytes), a.dtype) for a in stored]
        for output in k.outputs:
            shape, dtype = k.slots[output.slot]
            arrays[output.slot][...] = to_compute(back[output.slot], dtype).reshape(shape)

    def __enter__(self) -> Emulated:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()


def _build(programs: Sequence[Program], folder: Path) -> Path:
    rows = ", ".join(f"{{{p.name}, {p.slots}, {p.grid}, {len(p.faults)}}}" for p in programs)
    text = translation_unit(tuple(programs)) + DRIVER.replace("PROGRAMS", rows)
    source, target = folder / "unit.c", folder / "unit"
    source.write_text(text)
    flags = [flag for flag in FLAGS if flag not in OURS]
    command = [COMPILER, *flags, "-static", str(source), "-o", str(target), "-lm"]
    subprocess.run(command, check=True)
    return target


@pytest.fixture
def emulated(tmp_path: Path) -> Iterator[Any]:
    if not all(map(shutil.which, (COMPILER, EMULATOR))):
        pytest.skip(
            f"no {COMPILER} with {EMULATOR}: apt install {COMPILER[:-3]}gcc qemu-user-static"
        )
    with ExitStack() as stack:
        yield lambda kernels: stack.enter_context(Emulated(kernels, tmp_path))


def kernels_of(graphs: Sequence[Sequence[LazyBuffer]]) -> list[Kernel]:
    return [k for roots in graphs for k in stages.kernels(*roots)]


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_corners_of_each_op(dtype: DType, emulated: Any) -> None:
    table = graphs.op_table(dtype, (3, 67))
    run = emulated(kernels_of([[node] for node in table.values()]))
    tolerance = 1e-4 if dtype.itemsize > 2 else 3e-2
    for node in table.values():
        stages.agree([node], graphs.corner_values(node), {"NEON": run}, tolerance, tolerance)


def test_expressions(emulated: Any) -> None:
    if not Device.available("CPU"):
        pytest.skip("no C compiler to make the inputs with")
    with defaults(device="CPU"):
        made = [[t.lazy for t in e.make()] for e in EXPRESSIONS.values()]
    run = emulated(kernels_of(made))
    for roots in made:
        stages.agree(roots, graphs.values(roots), {"NEON": run}, 1e-3, 1e-3)


def test_tiles_of_products_fit_its_registers(emulated: Any) -> None:
    made = [
        [graphs.linear_relu(67, 130, 45, float32)],
        [graphs.linear_relu(128, 256, 96, float64)],
        [graphs.convolution(2, 8, 13, 13, 16)],
        [graphs.attention(70, 70, 32, 32)],
    ]
    run = emulated(kernels_of(made))
    for roots in made:
        stages.agree(roots, graphs.values(roots), {"NEON": run}, 1e-3, 1e-3)
