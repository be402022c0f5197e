"""The CUDA machine, without a card: the real PyCUDA on a fake driver (test/fakecuda)."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinyml.errors import DeviceError
from tinyml.runtime import cuda
from tinyml.runtime.cuda import CudaMachine

FAKECUDA = Path(__file__).parents[1] / "fakecuda"
SCENARIOS = (
    *("launches", "timing", "timing_of_boxes", "large_shared_memory", "public_interface"),
    *(
        "allocation",
        "out_of_memory",
        "memory_limit",
        "room_for_kernels",
        "freed_memory_is_reused_in_order",
    ),
    *("staging", "copies_do_not_wait_for_launches"),
    *("fault_while_timed", "refused_launches", "faults", "noted_faults"),
    *("other_threads", "machine_of_another_thread"),
    *("forked", "forked_before", "forked_tensors"),
    *(
        "graphs",
        "plans_without_graphs",
        "copies_of_others_while_launches_are_captured",
        "a_driver_that_refuses_graphs",
        "fault_in_a_graph",
    ),
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


@pytest.mark.parametrize("wanted", ["", "0"])
def test_products_of_halves(fake, cache, wanted):
    succeeds(child("products_of_halves", cache, fake / "site", fake, WARPGROUPS=wanted))


@pytest.mark.parametrize(
    ("words", "of_a_kernel"),
    [
        ("an illegal memory access was encountered", True),
        ("misaligned address", True),
        ("unspecified launch failure", True),
        ("the launch timed out and was terminated", True),
        ("operation not supported on global/shared address space", True),
        ("out of memory", False),
        ("invalid argument", False),
    ],
)
def test_a_driver_s_words_tell_whether_a_kernel_failed(words, of_a_kernel):
    assert cuda._is_fault(Exception(f"cuStreamSynchronize failed: {words}")) is of_a_kernel


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
