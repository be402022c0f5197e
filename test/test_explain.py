"""`python -m tinyml`: one expression through all rooms, and what is here."""

from __future__ import annotations

import pytest

from tinyml import config
from tinyml.__main__ import main
from tinyml.device import Device
from tinyml.explain import parse_shape

VALUES = ("Schedule", "Kernel", "LoopNest", "Opts", "LinearKernel", "Program", "Launch")


@pytest.fixture(autouse=True)
def _default_again(device: str) -> None:
    """After the fixture `device`, which puts back what --device changes."""


def test_every_value_is_shown(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    # A shape that no other test has: kernels are lowered once per process.
    with config.override(noopt=False):
        assert (
            main(["(a + b).sum()", "--device", device, "--shape", "a=3x211", "--shape=b=3x211"])
            == 0
        )
    text = capsys.readouterr().out
    assert "a: 3x211 float32" in text
    assert "v0 = a + b" in text
    assert "== Result: () float32" in text
    for value in VALUES:
        assert (f"\n== {value}: " in text) == (device != "NUMPY"), value
    assert ("== Interpreter: " in text) == (device == "NUMPY")


def test_opts_by_hand(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    if device == "NUMPY":
        assert main(["a.sum(1)", "--device", device, "--opts", "lanes r0 8"]) == 2
        assert "on NUMPY this expression has 0" in capsys.readouterr().err
        return
    numbers = set()
    for opts in ("lanes r0 4;unroll i0 2", "unroll r0 3", ""):
        assert (
            main(["(a + 5).max(1)", "--shape", "a=6x36", "--device", device, "--opts", opts]) == 0
        )
        text = capsys.readouterr().out
        told = text.partition("== Opts: ")[2].partition("\n\n")[0].splitlines()[1:]
        assert [line.strip() for line in told] == (opts.split(";") if opts else ["none"])
        numbers.add(text.partition("== Result: ")[2])
    assert len(numbers) == 1


@pytest.mark.parametrize(
    ("expression", "opts", "said"),
    [
        ("a.sum(1)", "lanes q 8", "no axis q in sum_4_r256; there are: i0 4, r0 256"),
        ("a.sum(1)", "wide r0", "'wide r0' is no Opt; one is written as in 'lanes i0 8'"),
        ("a.sum(1)", "wide r0", "there are collapse, split, peel"),
        ("a.sum(1)", "lanes r0", "cannot lanes r0: say in how many steps, as in 'lanes r0 8'"),
        ("a.sum()", "grid r1", "cannot grid a fold: in C pieces of work do not"),
        ("a.sum(1)", "lanes r0 3", "cannot walk r0v by 3 lanes: C has 2, 4, 8"),
        ("a.sum(1)", "thread i0 2", "cannot walk i0t by threads of a block: C has none"),
        ("(x @ w).softmax()", "", "they are for one kernel, and on CPU this expression has 2"),
    ],
)
def test_opts_that_cannot_be(
    expression: str, opts: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([expression, "--device", "CPU", "--opts", opts]) == 2
    assert said in capsys.readouterr().err


def test_noopt_and_several_results(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["a * 2 - 7, a[i].sum(1)", "--noopt", "--device", device]) == 0
    text = capsys.readouterr().out
    assert text.count("== Result") == 2
    if device != "NUMPY":
        assert "== Opts: decisions about these loops\n    none" in text
    assert not config.current.noopt


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("(a + b", "this is no expression of Python"),
        ("(a +* b)", "(a +* b)\n        ^"),
        ("q + b", "there is no 'q'; there are a, b, c"),
        ("q + b", "--shape q=4x256 makes a tensor of that name"),
        ("a.shape", "gives tuple, and only a Tensor"),
        ("a.sum().item()", "gives float"),
        ("a @ b", "matmul: cannot multiply (4, 256) with (4, 256)"),
        ("a.summ()", "no attribute 'summ'"),
        ("a.__class__", "private"),
        ("__import__('os')", "there is no '__import__'"),
        ("[x for x in a]", "ListComp cannot be explained"),
        ("a.sum(axis=7)", "axis"),
    ],
)
def test_mistakes_teach(
    expression: str, message: str, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([expression, "--device", device]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    "arguments", [["--device", "TPU"], ["--shape", "a:4"], ["--shape", "a=4xb"]]
)
def test_bad_options_teach(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["a", *arguments]) == 2
    error = capsys.readouterr().err
    assert "there are: NUMPY" in error or "write NAME=SIZExSIZE" in error


def test_shapes() -> None:
    assert parse_shape("a=4x256") == ("a", (4, 256))
    assert parse_shape("q=()") == ("q", ())
    assert parse_shape("q=0x3") == ("q", (0, 3))


def test_env_says_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env"]) == 0
    text = capsys.readouterr().out
    for word in ("tinyml ", "numpy ", "NUMPY ", "CPU ", "CUDA ", "EMU ", "cache ", "settings "):
        assert word in text
    if not Device.available("CUDA"):
        assert "CUDA       missing: CUDA " in text


def test_dot_draws_kernels_and_the_memory_between_them(
    device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["x.softmax() @ w, x + y.sum()", "--dot", "--device", device])
    said = capsys.readouterr()
    if device == "NUMPY":
        assert code == 2
        assert "NUMPY has no kernels to draw; --device CPU or EMU" in said.err
        return
    assert code == 0
    lines = said.out.splitlines()
    assert lines[0] == "digraph schedule {"
    assert lines[-1] == "}"
    for memory in ("x", "w", "y", "result1", "result2"):
        assert any(line.startswith(f'  "{memory}" [label=') for line in lines), memory
    arrows = [line.split(" -> ") for line in lines if " -> " in line]
    starts, ends = ({arrow[side].strip().split('"')[1] for arrow in arrows} for side in (0, 1))
    assert {"x", "w", "y"} <= starts
    assert {"result1", "result2"} <= ends
    boxes = {line.strip().split('"')[1] for line in lines if "[label=" in line}
    assert starts | ends == boxes  # nothing hangs in the air, and no arrow leads to nowhere


def test_dot_gives_no_two_buffers_one_name(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    if device == "NUMPY":
        pytest.skip("NUMPY has no kernels to draw")
    named = ["--shape", "t0=64x128", "--shape", "result=128x32"]
    assert main(["t0.softmax() @ result", "--dot", "--device", device, *named]) == 0
    text = capsys.readouterr().out
    assert '"t0_" [label="t0_\\n64x128 float32"' in text
    assert '"result_" [label="result_\\n64x32 float32"' in text
