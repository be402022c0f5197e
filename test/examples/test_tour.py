"""The tour runs, and what it says about kernels holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

TOUR = Path(__file__).resolve().parents[2] / "examples" / "tour.py"


def test_tour(device: str) -> None:
    done = subprocess.run(
        [sys.executable, str(TOUR)],
        env={**os.environ, "DEVICE": device},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for room in ("LazyBuffer", "Kernel", "LoopNest", "LinearKernel", "Program"):
        assert f"-> {room}" in done.stdout
    assert "The compiler" in done.stdout
    assert "The machine" in done.stdout
    assert "tinyml 2096128.0" in done.stdout  # 0 + 1 + ... + 2047
    assert "Softmax: 1 kernel, " in done.stdout
    assert "Matmul and relu: 1 kernel, " in done.stdout
    errors = [float(e) for e in re.findall(r"Largest difference from numpy: (\S+)", done.stdout)]
    assert len(errors) == 2
    assert max(errors) < 1e-4
