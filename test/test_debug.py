"""DEBUG and DUMP, as a user meets them: in a process of their own, from its stderr."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tinyml import debug, trace

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """
import numpy as np
from tinyml import Tensor
a = Tensor(np.ones((4, 256), np.float32))
print(((a + 1) * a.to("NUMPY").sum().to(a.device)).sum().item())
"""


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    """PROGRAM in a fresh process with these settings."""
    clean = {k: v for k, v in os.environ.items() if k not in ("DEBUG", "DUMP", "NOOPT", "DEVICE")}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**clean, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


def said(**environment: str) -> str:
    done = run(**environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2097152.0\n"  # nothing else goes to stdout
    return done.stderr


def test_silent_without_settings(device: str) -> None:
    assert said(DEVICE=device) == ""


def test_level_1_says_what_was_used_and_held(device: str) -> None:
    text = said(DEVICE=device, DEBUG="1")
    assert f"tinyml: device {device}, opened in" in text
    assert re.search(rf"{device} held [\d.]+ \w?B at most", text)
    assert ("code generation: " in text) == (device != "NUMPY")
    assert "GFLOP/s" not in text


def test_level_2_has_a_line_for_each_launch(device: str) -> None:
    lines = said(DEVICE=device, DEBUG="2").splitlines()
    numbered = [line for line in lines if re.match(r" *\d+ ", line)]
    assert [int(line.split()[0]) for line in numbered] == list(range(1, len(numbered) + 1))
    if device != "NUMPY":
        launch = next(line for line in numbered if "sum_" in line and device in line)
        assert "4x256" in launch
        compared = r" +\d+ % of roof +[\d.]+ [um]?s predicted" if device != "EMU" else ""
        rates = r"[\d.]+ [um]?s +[\d.]+ GFLOP/s +[\d.]+ GB/s"
        assert re.search(rf"{rates}{compared} +[\d.]+ k?B$", launch)
        assert any("copy to NUMPY" in line for line in numbered)
    assert any(line.startswith("tinyml: ") and line.endswith("in all") for line in lines)
    assert "LoopNest" not in "".join(lines)
    assert len([line for line in lines if "written <- read" in line]) == 1


def test_ceilings_are_measured_only_to_be_shown(tmp_path: Path) -> None:
    for level, measured in (("1", 0), ("2", 1)):
        said(DEVICE="CPU", DEBUG=level, TINYML_CACHE=str(tmp_path))
        assert len(list(tmp_path.glob("*/*.ceilings"))) == measured


def test_levels_3_to_5_add_what_they_promise() -> None:
    loops = said(DEVICE="EMU", DEBUG="3")
    for word in (
        "schedule of",
        "a reduction",
        "LoopNest after the Opts",
        "LinearKernel",
        "GFLOP/s",
    ):
        assert word in loops
    assert "__global__" not in loops
    source = said(DEVICE="EMU", DEBUG="4")
    assert "__global__" in source
    assert "-std=c++17" not in source
    compiler = said(DEVICE="EMU", DEBUG="5", TINYML_CACHE="")
    assert "-std=c++17" in compiler


@pytest.mark.parametrize(("device", "suffix"), [("CPU", "c"), ("EMU", "cu")])
def test_dump_writes_each_source(tmp_path: Path, device: str, suffix: str) -> None:
    folder = tmp_path / "new" / "kernels"
    assert said(DEVICE=device, DUMP=str(folder)) == ""
    pictures = sorted(folder.glob("*.dot"))
    assert [p.name for p in pictures] == [f"schedule{n + 1}.dot" for n in range(len(pictures))]
    kernels = "".join(p.read_text() for p in pictures).count("subgraph cluster")
    files = [p for p in folder.iterdir() if p not in pictures]
    assert kernels >= len(files) > 0
    for file in files:
        text = file.read_text()
        assert file.suffix == f".{suffix}"
        assert text.startswith("// ")
        assert "slot0 = v" in text.partition("\n\n")[0]
        assert f"{file.stem}(" in text


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(DEVICE="NUMPY", DUMP=str(tmp_path / "file" / "kernels"))
    assert done.returncode != 0
    assert "cannot be written" in done.stderr
    assert "Name one that you may write, such as DUMP=kernels" in done.stderr


def test_numbers_for_people() -> None:
    assert debug.seconds_text(12.34e-6) == "12.3 us"
    assert debug.seconds_text(1.5) == "1.5 s"
    assert debug.bytes_text(1_234_567) == "1.23 MB"
    assert debug.bytes_text(12) == "12 B"
    shapes = ((4, 256), (), (256,), (256,), (256,))
    assert debug.shapes_text(shapes, 2) == "4x256, () <- 3 of 256"
    assert len(debug.shapes_text(shapes * 9, 2)) == 44


def test_resources_of_a_cuda_kernel_are_shown() -> None:
    output = (
        "ptxas info : Compiling entry function 'k' for 'sm_90a'\n"
        "8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
        "Used 40 registers, 1024 bytes smem\n"
    )
    text = debug.compiled_text(trace.Compiled("CUDA", ("k",), 0.5, False, "nvcc", output))
    assert "compiled k in 500 ms by nvcc" in text
    assert "k: 40 registers, 1024 bytes shared, spills 4 + 12 bytes" in text
