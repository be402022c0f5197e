"""A card that is not there: what codegen is told of it, an emulator and a compiler for it."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
import stages

from tinyml.errors import DeviceError
from tinyml.program import REGISTERS, Program
from tinyml.runtime import nvcc
from tinyml.runtime.emu import EmuMachine, ThreadOrder

_TOGETHER = 8  # registers of a thread are given out by as many
CARD = replace(stages.CUDA, cores=132, cache=227 << 10, capability=90)


def on_emu(program: Program, order: ThreadOrder) -> stages.Runner:
    """It looks for races, too: to compile for that once takes less than to compile without, too."""
    machine = EmuMachine(order=order, watched=True)
    return stages.launched(machine, machine.load([program])[0])


def launched(
    machine: EmuMachine, p: Program, output: stages.Array, *inputs: stages.Array
) -> stages.Array:
    """Launch `p` on an output buffer and inputs; the output's initial content goes in as well."""
    arrays = [output, *inputs]
    memories = [machine.allocate(array.nbytes) for array in arrays]
    for memory, array in zip(memories, arrays, strict=True):
        machine.copy_in(memory, array)
    (executable,) = machine.load([p])
    executable.launch(memories)
    result = np.empty_like(output)
    machine.copy_out(result, memories[0])
    for memory, array in zip(memories, arrays, strict=True):
        machine.free(memory, array.nbytes)
    return result


@functools.cache
def tools() -> nvcc.Toolchain:
    return nvcc.find()


def compiled(program: Program, architecture: str, folder: Path) -> tuple[nvcc.Resources, Path]:
    """What a kernel takes of a multiprocessor, as a card would run it, and its cubin."""
    try:
        cubin, output = nvcc.CudaBuilder(tools(), architecture).build((program,))
    except DeviceError as error:
        pytest.skip(str(error))
    place = folder / f"{program.name}_{architecture}.cubin"
    place.write_bytes(cubin)
    taken = nvcc.parse_resources(output)[program.name]
    if "tinyml_take_registers" in program.source:  # if it were given fewer, it would wait for ever
        given = REGISTERS // prod(program.block) // _TOGETHER * _TOGETHER
        assert taken.registers == given
    return taken, place


def instructions(cubin: Path) -> Counter[str]:
    """How many there are of each, by cuobjdump; skips where there is none."""
    found = next(_dumpers(), None)
    if found is None:
        packages = "nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
        pytest.skip(f"no cuobjdump with nvdisasm: pip install {packages}")
    path = os.pathsep.join([str(found.parent), os.environ["PATH"]])
    done = subprocess.run(
        [found, "-sass", cubin], capture_output=True, text=True, check=True, env={"PATH": path}
    )
    line = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+ )?([A-Z][\w.]+)", re.MULTILINE)
    return Counter(line.findall(done.stdout))


def _dumpers() -> Iterator[Path]:
    """On the PATH, of a toolkit, or as pip installs them."""
    packages = Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin")
    folders = [*os.environ["PATH"].split(os.pathsep), "/usr/local/cuda/bin", *map(str, packages)]
    for folder in folders:
        if all(shutil.which(tool, path=folder) for tool in ("cuobjdump", "nvdisasm")):
            yield Path(folder, "cuobjdump")
