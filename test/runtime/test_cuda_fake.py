"""The CUDA machine, without a card: the real PyCUDA on a fake driver (test/fakecuda)."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinyml.errors import DeviceError
from tinyml.runtime.cuda import CudaMachine

FAKECUDA = Path(__file__).parents[1] / "fakecuda"
SCENARIOS = (
    *(
        "launches",
        "timing",
        "timing_of_boxes",
        "large_shared_memory",
        "first_lines",
        "public_interface",
    ),
    *("allocation", "out_of_memory", "memory_limit", "freed_memory_is_reused_in_order"),
    *("staging", "copies_do_not_wait_for_launches"),
    *("fault_while_timed", "refused_launches", "faults", "noted_faults"),
    *("other_threads", "machine_of_another_thread"),
    *("forked", "forked_before", "forked_tensors"),
    *("graphs", "plans_without_graphs", "a_driver_that_refuses_graphs", "fault_in_a_graph"),
    *("boxes", "fault_of_a_late_map", "ranges"),
    *("array_interface", "benchmarks", "still_in_use_at_exit"),
)


@pytest.fixture(scope="session")
def fake() -> Path:
    """The folder with PyCUDA and the fake driver; the first time this takes minutes."""
    sys.path.insert(0, str(FAKECUDA))
    try:
        import build_fake
    finally:
        sys.path.remove(str(FAKECUDA))
    try:
        return build_fake.built()
    except build_fake.CannotBuildError as error:
        pytest.skip(f"cannot build PyCUDA against a fake driver: {error}")


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


def child(
    name: str, cache: Path, site: Path, library: Path | None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a scenario in a process of its own; every warning in it is an error."""
    paths = [str(site), str(FAKECUDA.parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    if library is not None:
        environment["LD_LIBRARY_PATH"] = str(library)
    command = [sys.executable, "-W", "error", str(FAKECUDA / "scenarios.py"), name, str(cache)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def succeeds(done: subprocess.CompletedProcess[str], clean: bool = True) -> None:
    assert done.returncode == 0, done.stderr
    if clean:
        assert done.stderr == ""


@pytest.mark.parametrize("name", SCENARIOS)
def test_cuda_machine(fake, cache, name):
    done = child(name, cache, fake / "site", fake)
    # After a fault PyCUDA warns that it cannot clean up what the driver has given up already.
    succeeds(done, clean="fault" not in name)


def test_kernels_are_found_in_the_disk_cache(fake, tmp_path):
    first = child("disk_cache", tmp_path, fake / "site", fake)
    second = child("disk_cache", tmp_path, fake / "site", fake)
    assert (first.stdout, second.stdout) == ("False\n", "True True\n"), first.stderr


TRIALS = {  # the first line of kernels by warpgroups, and their seconds; what is said then
    "faster": ("", "5e-4", True, "a trial took 0.5 ms by warpgroups, 1 ms by warps"),
    "slower": ("", "2e-3", False, "a trial took 2 ms by warpgroups, 1 ms by warps"),
    "wrong": ("return;", "5e-4", False, "ArithmeticError: does not compute what the default"),
    "hangs": ("for (volatile int i = 1; i;) {}", "5e-4", False, "no answer within 5 s"),
    "faults": ("__builtin_trap();", "5e-4", False, "KernelError: CUDA could not run"),
    "dies": ("__builtin_abort();", "5e-4", False, "it ended the process that ran it"),
}


def tried(fake: Path, cache: Path, kept: str, name: str = "faster", **more: str) -> list[str]:
    """Whether warpgroups multiply, how many were tried, whether a plan was made, and why."""
    line, seconds, *_ = TRIALS[name]
    given = {"TRIAL_LINE": line, "TRIAL_SECONDS": seconds, "TINYML_CACHE": kept, **more}
    done = child("trial", cache, fake / "site", fake, **given)
    # PyCUDA warns of what it cannot clean up after a fault, if the process that tried ends in time
    succeeds(done, clean="DEBUG" not in more and name != "faults")
    return [*done.stdout.strip().split(", ", 3), done.stderr]


@pytest.mark.parametrize("name", TRIALS)
def test_a_trial_says_once_whether_warpgroups_multiply(fake, cache, tmp_path, name):
    used, why = TRIALS[name][2:]
    first = tried(fake, cache, str(tmp_path), name)
    assert first[:3] == [str(used), "1 tried", "plan made: True"]
    assert why in first[3]
    again = tried(fake, cache, str(tmp_path), "slower" if used else "faster")
    assert again[:4] == [str(used), "0 tried", "plan made: False", "since:"]


def test_nothing_is_lost_where_nothing_can_be_tried(fake, cache, tmp_path):
    first = tried(fake, cache, str(tmp_path), TRIAL_PYTHON="/nowhere/python")
    assert first[:2] == ["False", "1 tried"]
    assert "no trial (FileNotFoundError" in first[3]
    assert tried(fake, cache, str(tmp_path), TRIAL_PYTHON="")[0] == "False"
    assert tried(fake, cache, str(tmp_path))[:2] == ["True", "1 tried"]


def test_without_a_cache_each_process_tries_once(fake, cache):
    for name, by in (("faster", "by warpgroups"), ("slower", "by warps, not warpgroups")):
        found = tried(fake, cache, "", name, DEBUG="1")
        assert found[:2] == [str(name == "faster"), "1 tried"]
        assert found[4].count(f"tinyml: CUDA: products {by}: {TRIALS[name][3]}") == 1


@pytest.mark.parametrize(("setting", "used"), [("1", "True"), ("0", "False")])
def test_a_setting_leaves_nothing_to_try(fake, cache, setting, used):
    assert tried(fake, cache, "", "wrong", WARPGROUPS=setting)[:2] == [used, "0 tried"]


def test_no_card(fake, cache):
    succeeds(child("no_card", cache, fake / "site", fake, FAKECUDA_NO_DEVICE="1"))


def test_no_driver(fake, cache):
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        succeeds(child("no_driver", cache, fake / "site", None))
    else:
        pytest.skip("this machine has NVIDIA's driver")


def test_no_pycuda(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycuda", None)
    monkeypatch.setitem(sys.modules, "pycuda.driver", None)
    with pytest.raises(DeviceError, match=r"pip install pycuda \(tinyml's extra 'cuda'"):
        CudaMachine()
