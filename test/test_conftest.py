"""Tests on a card go on after one that hangs, and after one whose fault the card remembers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import os, time
from types import SimpleNamespace
import pytest
from tinyml import device
from tinyml.errors import KernelError

pytestmark = pytest.mark.cuda

def refuse():
    raise KernelError("an illegal address")

def test_fault():
    device._opened["CUDA"] = SimpleNamespace(machine=SimpleNamespace(synchronize=refuse))
    assert "its own" == "report"

def test_hang():
    if os.environ["PYTEST_XDIST_WORKER"]:
        time.sleep(1e6)

def test_fine():
    assert "CUDA" not in device._opened  # in another process
"""


def test_a_fault_and_a_hang_cost_one_test_each(tmp_path: Path) -> None:
    here = Path(__file__).parent
    (tmp_path / "test_on_a_card.py").write_text(TESTS)
    options = ["-m", "cuda", "-n", "1", "-p", "conftest", "-q", "-p", "no:cacheprovider"]
    made = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", here.parent / "setup.cfg", *options, tmp_path],
        env=os.environ | {"PYTHONPATH": f"{here.parent}:{here}", "TINYML_TEST_LIMIT": "15"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "'its own' == 'report'" in made.stdout
    for name in ("test_fault", "test_hang"):
        assert f"crashed while running 'test_on_a_card.py::{name}'" in made.stdout
    assert "1 passed" in made.stdout
