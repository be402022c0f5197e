"""Two processes that compile the same kernels on one cache at once both get them right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinyml.device import Device

PROGRAM = """
import sys
import numpy as np
from tinyml import Tensor, trace
x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4), device=sys.argv[1]).realize()
sys.stdin.readline()  # both start together
with trace.listen(trace.Compiled) as compiled:
    a, b = x.softmax(), (x @ x.T).relu()
    Tensor.realize(a)
    Tensor.realize(b)
numbers = x.numpy()
np.testing.assert_allclose(b.numpy(), numbers @ numbers.T, 1e-5)
np.testing.assert_allclose(a.numpy().sum(1), 1, 1e-5)
print(*(event.cached for event in compiled))
"""


def start(device: str, cache: Path) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "TINYML_CACHE": str(cache),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, device],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> list[str]:
    output, complaint = process.communicate("go\n", timeout=600)
    assert process.returncode == 0, complaint
    return output.split()


@pytest.mark.parametrize("device", ["CPU", "EMU"])
def test_processes_compile_at_once(device: str, tmp_path: Path) -> None:
    if not Device.available(device):
        pytest.skip(f"{device} does not answer")
    together = [start(device, tmp_path) for _ in range(2)]
    for process in together:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in together:
        assert len(finish(process)) == 2
    assert finish(start(device, tmp_path)) == ["True", "True"]
    assert not list(tmp_path.rglob(".new-*")), "half-written files stay behind"
