"""What mypy and an editor know about a program that uses tinyml."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import typed_program

ROOT = Path(__file__).parent.parent
BUILT = """
import setuptools
from setuptools.dist import Distribution
made = Distribution()
made.parse_config_files()
command = made.get_command_obj("build_py")
command.ensure_finalized()
print([(package, names) for package, _, _, names in command.data_files])
"""


def _mypy(*paths: str) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    # the configuration of the repository: so what `mypy` alone has found is not looked for again
    command = [sys.executable, "-m", "mypy", "--strict", *paths]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_a_program_has_the_types_that_its_author_expects() -> None:
    """Each `assert_type` in it fails if there is Any in its place."""
    checked = _mypy("test/typed_program.py")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_mistakes_in_types_are_found(tmp_path: Path) -> None:
    program = tmp_path / "mistakes.py"
    mistakes = {
        'x.sum("a", keepdim=2)': "arg-type",
        "x.size(0).shape": "attr-defined",
        "x.max_pool2d(2, return_indices=True).exp()": "attr-defined",
        "x.typo()": "attr-defined",
        "step(1)": "arg-type",
        "step(x, 2)": "call-arg",
        "nn.Linear(2)": "call-arg",
        "optim.Adam(x.item())": "arg-type",
    }
    head = ["from tinyml import Tensor, TinyJit, nn", "from tinyml.nn import optim", "@TinyJit"]
    head += ["def step(x: Tensor) -> Tensor:", "    return x.realize()", "x = Tensor.ones(2)"]
    program.write_text("\n".join([*head, *mistakes]))
    told = _mypy("--no-pretty", str(program)).stdout
    for line, (mistake, code) in enumerate(mistakes.items(), len(head) + 1):
        found = [t for t in told.splitlines() if f"mistakes.py:{line}:" in t and f"[{code}]" in t]
        assert found, f"{mistake}: {told}"


def test_the_program_runs(device: str) -> None:
    typed_program.main()


def test_types_are_shipped() -> None:
    """The marker that says so (PEP 561) is among the data of the package that is built."""
    built = subprocess.run(
        [sys.executable, "-c", BUILT], cwd=ROOT, capture_output=True, text=True, check=True
    )
    packages = dict(ast.literal_eval(built.stdout.splitlines()[-1]))
    assert "py.typed" in packages["tinyml"]
    assert "pool.c" in packages["tinyml.runtime"]
