"""A program that was generated before comes from the disk cache, and no other does."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import graphs
import pytest
import stages
from graphs import leaf
from stages import kernel_of

from tinyml import kernel, lazy, trace
from tinyml.cache import DiskCache
from tinyml.codegen import compile as compiling
from tinyml.codegen import program_cache
from tinyml.codegen.compile import compile
from tinyml.codegen.optimize.opts import Opt, OptKind
from tinyml.codegen.program_cache import cached_program
from tinyml.dtype import bool_, float32, float64, int32
from tinyml.kernel import Kernel
from tinyml.ops import Op


def plus(number: float) -> Kernel:
    x = leaf(3, 5)
    return kernel_of(graphs.add(x, lazy.const(number, float32, "CPU", (3, 5))))


@pytest.fixture
def disk(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path)


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """The kernels that are generated from now on."""
    found: list[Kernel] = []

    def noted(k: Kernel, *rest: object) -> object:
        found.append(k)
        return compile(k, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(compiling, "compile", noted)
    return found


def test_the_second_time_it_is_read(disk: DiskCache, generated: list[Kernel]) -> None:
    first = cached_program(plus(1.5), stages.C, None, False, disk)
    assert cached_program(plus(1.5), stages.C, None, False, disk) == first
    assert cached_program(plus(1.5), stages.C, None, False, DiskCache(disk.folder)) == first
    assert len(generated) == 1


def test_whatever_makes_another_program_makes_another_entry(
    disk: DiskCache, generated: list[Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    k, lanes = plus(1.5), (Opt(OptKind.LANES, "i1", 4),)
    asked = [
        (k, stages.C, None), (k, stages.C, ()), (k, stages.C, lanes), (k, stages.CUDA, None),
        (k, replace(stages.C, cores=7), None), (plus(2.5), stages.C, None),
    ]  # fmt: skip
    for _ in range(2):
        for one, target, opts in asked:
            made = cached_program(one, target, opts, False, disk)
            assert made == compile(one, target, opts)
    assert len(generated) == len(asked)
    monkeypatch.setattr(program_cache, "generator", lambda: "a later version")
    cached_program(k, stages.C, None, False, disk)
    assert len(generated) == len(asked) + 1


def test_kernels_are_spelled_to_the_last_bit() -> None:
    x = leaf(4, 6)
    roots = [
        graphs.add(x, x), lazy.reduce_(Op.ADD, x, (0,)), lazy.reduce_(Op.ADD, x, (1,)),
        lazy.reduce_(Op.MAX, x, (1,)), lazy.cast(x, float64), lazy.cast(x, int32),
        graphs.add(leaf(6, 4), leaf(6, 4)), graphs.add(x, leaf(4, 6)),
        graphs.add(leaf(4, 6, dtype=float64), leaf(4, 6, dtype=float64)),
    ]  # fmt: skip
    spelled = [kernel.spelled(kernel_of(root)) for root in roots]
    spelled += [kernel.spelled(plus(n)) for n in (0.0, -0.0, 0.1, 0.1 + 2**-30, float("nan"))]
    assert len(set(spelled)) == len(spelled)
    assert kernel.spelled(kernel_of(graphs.add(leaf(4, 6), leaf(4, 6)))) in spelled


def test_who_looks_at_the_way_sees_it(disk: DiskCache, generated: list[Kernel]) -> None:
    for verify in (False, True):
        cached_program(plus(1.5), stages.C, None, verify, disk)
    with trace.listen(trace.KernelLowered) as seen:
        cached_program(plus(1.5), stages.C, None, False, disk)
    assert len(seen) == 1
    assert len(generated) == 3


def test_a_damaged_entry_is_made_again(disk: DiskCache, generated: list[Kernel]) -> None:
    first = cached_program(plus(1.5), stages.C, None, False, disk)
    assert disk.folder is not None
    (entry,) = disk.folder.rglob("*.program")
    entry.write_bytes(entry.read_bytes()[:-40])
    assert cached_program(plus(1.5), stages.C, None, False, disk) == first
    assert len(generated) == 2


def test_without_a_folder_nothing_is_kept(generated: list[Kernel]) -> None:
    for _ in range(2):
        cached_program(plus(1.5), stages.C, None, False, DiskCache(None))
    assert len(generated) == 2


def test_a_fault_is_remembered_with_its_program(disk: DiskCache) -> None:
    x = lazy.require(graphs.FAULT, graphs.add(leaf(3), leaf(3)), leaf(3, dtype=bool_))
    programs = [cached_program(kernel_of(x), stages.C, None, False, disk) for _ in range(2)]
    assert programs[0] == programs[1]
    assert programs[1].faults == (graphs.FAULT,)


def test_a_digest_is_of_all_that_generates() -> None:
    importlib.import_module("tinyml.codegen.compile")
    known = set(program_cache.files())
    for name, module in sys.modules.items():
        if name.startswith(("tinyml.codegen", "tinyml.schedule")):
            assert Path(module.__file__ or "") in known, name
    assert {path.suffix for path in known} == {".py", ".cuh"}
