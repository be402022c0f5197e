"""A plan that was made before comes from the disk cache, and no other does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tinyml import Tensor, TinyJit, config, plan_cache, prepare, realize, trace

DEVICES = ("CPU", "EMU")


def as_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realize, "_runners", {})
    monkeypatch.setattr(prepare, "_executables", {})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A disk cache with nothing in it, and a process that knows no plans."""
    as_a_new_process(monkeypatch)
    with config.override(cache=str(tmp_path)):
        yield tmp_path


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The plans that are made from now on, and not read."""
    found: list[object] = []

    def noted(*graph: object) -> object:
        found.append(prepared(*graph))  # type: ignore[arg-type]
        return found[-1]

    prepared = prepare.prepare
    monkeypatch.setattr(prepare, "prepare", noted)
    return found


def step(device: str, factor: float = 2.0) -> list[list[float]]:
    """A product, a row statistic of it, an index with its check, and an update in place."""
    x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4), device=device)
    at = Tensor([2, 0], device=device)
    y = (x @ x.T).softmax(1) * factor
    x.assign(x + y[at].sum())
    Tensor.realize(x, y)
    return [x.numpy().tolist(), y.numpy().tolist()]


@pytest.mark.parametrize("device", DEVICES)
def test_the_second_process_reads_what_the_first_made(
    device: str, folder: Path, made: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for _ in range(2):
        as_a_new_process(monkeypatch)
        results.append(step(device))
        count = len(made)
    assert results[0] == results[1]
    assert len(made) == count > 0


def test_other_numbers_and_settings_are_other_plans(
    folder: Path, made: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {factor: step("NUMPY", factor) for factor in (2.0, 3.0)}
    asked: list[tuple[float, dict[str, bool]]] = [(2.0, {}), (3.0, {}), (2.0, {"noopt": True})]
    for factor, settings in asked:
        as_a_new_process(monkeypatch)
        before = len(made)
        with config.override(**settings):
            np.testing.assert_allclose(step("CPU", factor)[0], wanted[factor][0], rtol=1e-5)
        assert len(made) > before
    monkeypatch.setattr(plan_cache, "generator", lambda: "a later version")
    as_a_new_process(monkeypatch)
    before = len(made)
    step("CPU")
    assert len(made) > before


def test_who_looks_on_sees_a_plan_being_made(
    folder: Path, made: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    step("CPU")
    for event in (trace.Scheduled, trace.KernelLowered):
        as_a_new_process(monkeypatch)
        with trace.listen(event) as seen:
            step("CPU")
        assert seen
    before = len(made)
    with config.override(verify=True):
        as_a_new_process(monkeypatch)
        step("CPU")
    assert len(made) > before


def test_a_damaged_plan_is_made_again(
    folder: Path, made: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = step("CPU")
    count = len(made)
    for entry in folder.rglob("*.plan"):
        entry.write_bytes(entry.read_bytes()[:-40])
    as_a_new_process(monkeypatch)
    assert step("CPU") == first
    assert len(made) == 2 * count


def test_depth_is_no_matter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        as_a_new_process(monkeypatch)
        x = Tensor([1.0, -2.0], device="CPU").realize()
        for _ in range(1500):
            x = 0.5 - x * 0.5
        np.testing.assert_allclose(x.numpy(), [1 / 3, 1 / 3], rtol=1e-6)


def test_a_fault_is_found_by_a_plan_that_was_read(
    folder: Path, made: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, at = Tensor([1.0, 2.0], device="CPU"), Tensor([5], device="CPU")
    for _ in range(2):
        as_a_new_process(monkeypatch)
        with pytest.raises(IndexError, match="5"):
            x[at].realize()
        count = len(made)
    assert len(made) == count


def test_a_plan_that_was_read_is_captured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        as_a_new_process(monkeypatch)
        run = TinyJit(lambda x: (x @ x).relu().sum(0).realize())
        x = Tensor([[1.0, -2.0], [3.0, 4.0]], device="CPU").realize()
        assert [run(x).tolist() for _ in range(3)] == [[15.0, 10.0]] * 3
        assert run.captured is not None


def test_structures_that_say_something_else_are_written_otherwise() -> None:
    structures = [(0, "x", 1, "x"), (0, "x", 1, 1), (0, "x", "x", 1), (0, "x", 1, "1")]
    structures += [(0, "x", 1), (0, "x", "1, 'x'"), (1, "x", 0, "x")]
    assert len({plan_cache._text(each) for each in structures}) == len(structures)
    assert plan_cache._text((0, ("a", 2))) == plan_cache._text((0, ("a", 2)))
