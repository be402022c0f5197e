"""What the README says is so: its program runs, its settings, files and commands exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from tinyml import Tensor, config

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def test_the_program_runs(device, capsys: pytest.CaptureFixture[str]):
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(program.replace("range(100)", "range(3)"), "README.md", "exec"), {})
    assert 0 < float(capsys.readouterr().out) < 5
    assert not Tensor.training


def test_every_setting_is_explained():
    table = re.findall(r"^\| (`.*?) \|", README.split("## Settings")[1], re.MULTILINE)
    explained = {name for row in table for name in re.findall(r"`([A-Z][A-Z0-9_]*)", row)}
    names = {"cache": "TINYML_CACHE", "compiler": "CC", "omp_threads": "OMP_NUM_THREADS"}
    assert explained == {names.get(f.name, f.name.upper()) for f in fields(config.Config)}


def test_every_file_it_names_exists():
    named = {name for name in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in name}
    named |= set(re.findall(r"`((?:examples|tinyml|test|docs)/[\w/.]+)`", README))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_its_commands_are_in_the_makefile():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make (\w+)", README, re.MULTILINE)) <= targets
