"""What a process may use is what all the groups that it is in leave of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tinyml import device
from tinyml.runtime import limits

OURS = "0::/user.slice/job\n"  # of version 2
ITS = "3:cpu,cpuacct:/batch/job\n2:memory:/batch/job\n1:name=systemd:/else\n0::/\n"  # of version 1
GB = 1 << 30


def written(folder: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    """The groups' files, and what this process says of its own groups."""
    (folder / "own").write_text(own)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder, folder / "own"


def v1(group: str, quota: int, period: int = 100_000) -> dict[str, str]:
    """What a group of version 1 says of its time."""
    return {f"{group}/cpu.cfs_quota_us": f"{quota}\n", f"{group}/cpu.cfs_period_us": f"{period}\n"}


CORES = {
    "a container": ("0::/\n", {"cpu.max": "350000 100000\n"}, 3),
    "a container without a limit": ("0::/\n", {"cpu.max": "max 100000\n"}, 64),
    "its own group": (OURS, {"user.slice/job/cpu.max": "200000 100000\n"}, 2),
    "the group around it": (
        OURS,
        {"user.slice/cpu.max": "400000 100000\n", "user.slice/job/cpu.max": "max 100000\n"},
        4,
    ),
    "the least of both": (
        OURS,
        {"user.slice/cpu.max": "400000 100000\n", "user.slice/job/cpu.max": "200000 100000\n"},
        2,
    ),
    "somebody else's": (OURS, {"user.slice/other/cpu.max": "200000 100000\n"}, 64),
    "less than a core": (OURS, {"user.slice/job/cpu.max": "50000 100000\n"}, 1),
    "a container, version 1": (ITS, v1("cpu", 400_000), 4),
    "its own group, version 1": (ITS, v1("cpu", -1) | v1("cpu/batch/job", 200_000), 2),
    "no limit, version 1": (ITS, v1("cpu", -1) | v1("cpu/batch/job", -1), 64),
    "no groups": ("", {}, 64),
}


@pytest.mark.parametrize("case", CORES)
def test_cores_are_those_that_the_strictest_group_leaves(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, files, wanted = CORES[case]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(64)}, raising=False)
    assert limits.cores(*written(tmp_path, own, files)) == wanted


def test_affinity_counts_where_it_is_less_than_a_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    assert limits.cores(*written(tmp_path, OURS, {"user.slice/cpu.max": "400000 100000"})) == 1


@pytest.mark.parametrize(
    ("text", "wanted"), [("0\n", 1), ("0-1\n", 2), ("0-3,8,10-11\n", 7), ("", 5), ("none\n", 5)]
)
def test_all_cores_are_those_of_the_machine(
    text: str, wanted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    (tmp_path / "online").write_text(text)
    groups = written(tmp_path, "", {})
    assert limits.all_cores(tmp_path / "online", *groups) == wanted
    assert limits.all_cores(tmp_path / "nowhere", *groups) == 5


SETS = {
    "its own group": (OURS, {"user.slice/job/cpuset.cpus.effective": "0-7\n"}, 8),
    "a container, version 1": ("3:cpuset:/\n", {"cpuset/cpuset.effective_cpus": "2,5\n"}, 2),
    "a group without a set": (OURS, {"user.slice/job/cpuset.cpus.effective": "\n"}, 64),
    "a quota beside it": (
        OURS,
        {"cpuset.cpus.effective": "0-7\n", "user.slice/cpu.max": "400000 100000\n"},
        4,
    ),
    **CORES,
}


@pytest.mark.parametrize("case", SETS)
def test_a_container_is_a_machine_of_its_own(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, files, wanted = SETS[case]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    (tmp_path / "online").write_text("0-63\n")
    assert limits.all_cores(tmp_path / "online", *written(tmp_path, own, files)) == wanted


def test_kernels_are_those_of_all_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is generated, and so the order of sums, is the same whatever affinity leaves."""
    if not device.Device.available("CPU"):
        pytest.skip("no CPU device")
    (tmp_path / "online").write_text("0-63\n")
    known = (tmp_path / "online", *written(tmp_path, "", {}))
    monkeypatch.setattr(limits.all_cores, "__defaults__", known)
    found = set()
    for count in (1, 2, 64):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=count: {*range(n)}, raising=False)
        found.add(device._cpu().target)
    (target,) = found
    assert target is not None
    assert target.cores == 64


MEMORY = {
    "a container": ("0::/\n", {"memory.max": f"{GB}\n"}, GB),
    "no limit": (OURS, {"user.slice/job/memory.max": "max\n"}, 4 * GB),
    "the group around it": (
        OURS,
        {"user.slice/memory.max": f"{GB}\n", "user.slice/job/memory.max": "max\n"},
        GB,
    ),
    "its own group, version 1": (
        ITS,
        {
            "memory/memory.limit_in_bytes": f"{(1 << 63) - 4096}\n",
            "memory/batch/job/memory.limit_in_bytes": f"{GB}\n",
        },
        GB,
    ),
    "no groups": ("", {}, 4 * GB),
}


@pytest.mark.parametrize("case", MEMORY)
def test_memory_is_what_the_strictest_group_leaves(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, files, wanted = MEMORY[case]
    sizes = {"SC_PHYS_PAGES": GB >> 10, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    assert limits.memory(*written(tmp_path, own, files)) == wanted


def test_a_system_without_groups_limits_nothing(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    assert limits.cores(nowhere, nowhere) >= 1
    assert limits.memory(nowhere, nowhere) > 1 << 20
