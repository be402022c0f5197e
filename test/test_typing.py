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


def _mypy(*paths: str) -> list[str]:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    # the configuration of the repository: so what `mypy` alone has found is not looked for again
    command = [sys.executable, "-m", "mypy", "--strict", "--no-pretty", *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


MISTAKES = {
    'x.sum("a", keepdim=2)': "arg-type",
    "x.size(0).shape": "attr-defined",
    "x.max_pool2d(2, return_indices=True).exp()": "attr-defined",
    "x.typo()": "attr-defined",
    'x + "a"': "arg-type",
    'x *= "a"': "arg-type",
    "step(1)": "arg-type",
    "step(x, 2)": "call-arg",
    "nn.Linear(2)": "call-arg",
    "optim.Adam(x.item())": "arg-type",
}


def test_a_program_has_its_types_and_mistakes_are_found(tmp_path: Path) -> None:
    """Each `assert_type` in the program fails if there is Any in its place.

    One run of mypy for both, since two at once would write to one cache.
    """
    head = ["from tinyml import Tensor, TinyJit, nn", "from tinyml.nn import optim", "@TinyJit"]
    head += ["def step(x: Tensor) -> Tensor:", "    return x.realize()", "x = Tensor.ones(2)"]
    mistakes = tmp_path / "mistakes.py"
    mistakes.write_text("\n".join([*head, *MISTAKES]))
    told = _mypy("test/typed_program.py", str(mistakes))
    assert not [line for line in told if "mistakes.py" not in line and ": error" in line], told
    for number, (mistake, code) in enumerate(MISTAKES.items(), len(head) + 1):
        found = [t for t in told if f"mistakes.py:{number}:" in t and f"[{code}]" in t]
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
