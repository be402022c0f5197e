"""PyCUDA and the fake driver, built once and kept in the user's cache folder.

Run as a program, this builds them, so that tests find them there.

    folder/site           PyCUDA and what it imports, for PYTHONPATH
    folder/libcuda.so.1   fakecuda.cpp, for LD_LIBRARY_PATH

Nothing is installed into the Python that runs the tests.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PYCUDA = "2026.1"
HERE = Path(__file__).parent
SHIM = HERE.parents[1] / "tinyml" / "runtime" / "emu"
_PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--retries", "1")

# What PyCUDA's ./configure.py would write. cuRAND is left out: tinyml makes its own random numbers.
# Lazy binding leaves functions of the driver that nobody calls unresolved, so that fakecuda has to
# define only the others.
_SITECONF = """CUDA_ROOT = {root!r}
CUDA_INC_DIR = [{include!r}]
CUDADRV_LIB_DIR = [{stubs!r}]
CUDADRV_LIBNAME = ["cuda"]
CUDA_ENABLE_CURAND = False
USE_SHIPPED_BOOST = True
CXXFLAGS = ["-g0", "-w", "-O1"]
LDFLAGS = ["-Wl,--no-as-needed,-z,lazy", "-s"]
"""


class CannotBuildError(Exception):
    """Something that the build needs is not on this machine."""


def built() -> Path:
    """The folder with everything, built if it is not there; CannotBuildError says why not."""
    include = find_cuda_header()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "tinyml-test" / f"fakecuda-{_fingerprint(include)}"
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        if not (folder / "site").exists():
            _build_pycuda(folder, include)
        library = folder / f"libcuda-{_hash(HERE / 'fakecuda.cpp', SHIM / 'emu_scheduler.h')}.so"
        if not library.exists():
            _build_driver(library, include)
        current = folder / "libcuda.so.1"
        if not current.exists() or current.resolve() != library.resolve():
            current.unlink(missing_ok=True)
            current.symlink_to(library.name)
    return folder


def products(folder: Path, version: int = 99) -> str:
    """The path of a library that multiplies matrices as cuBLAS does, on the host: fakecublas.c."""
    library = str(folder / f"libcublas.so.{version}")
    options = ("-std=gnu11", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library)
    command = [_compiler("cc", "gcc"), *options, str(HERE / "fakecublas.c")]
    _run(command, "fakecublas.c does not build")
    return library


def find_cuda_header() -> Path:
    """The folder of cuda.h, of the toolkit or of a pip package."""
    places = [Path("/usr/local/cuda/include"), Path("/opt/cuda/include")]
    nvidia = importlib.util.find_spec("nvidia")
    for root in (nvidia and nvidia.submodule_search_locations) or ():
        places += sorted(Path(root).glob("*/include"))
    for place in places:
        if (place / "cuda.h").exists():
            return place
    raise CannotBuildError("no cuda.h (CUDA toolkit, or `pip install nvidia-cuda-runtime`)")


def _build_pycuda(folder: Path, include: Path) -> None:
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    fetch = ("download", "--no-deps", "--no-binary", "pycuda", "-d", str(work))
    _run([*_PIP, *fetch, f"pycuda=={PYCUDA}"], "pip cannot fetch PyCUDA")
    with tarfile.open(next(work.glob("pycuda-*.tar.gz"))) as archive:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(work)
    source = work / f"pycuda-{PYCUDA}"
    _build_stub(work)
    text = _SITECONF.format(root=str(include.parent), include=str(include), stubs=str(work))
    (source / "siteconf.py").write_text(text)
    site = work / "site"
    _run([*_PIP, "install", "--target", str(site), str(source)], "PyCUDA does not build")
    site.rename(folder / "site")
    shutil.rmtree(work)


def _build_stub(folder: Path) -> None:
    """A library to link against, which only makes the linker note the name libcuda.so.1."""
    stub = folder / "stub.c"
    stub.write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
    options = ("-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so"))
    _run([_compiler("cc", "gcc"), *options, str(stub)], "no C compiler that works")


def _build_driver(library: Path, include: Path) -> None:
    options = ("-std=c++17", "-O1", "-g", "-Wall", "-fPIC", "-shared", "-fvisibility=hidden")
    paths = (f"-I{include}", f"-I{SHIM}", "-Wl,-soname,libcuda.so.1", "-ldl")
    command = [_compiler("c++", "g++"), *options, str(HERE / "fakecuda.cpp"), *paths]
    _run([*command, "-o", str(library)], "fakecuda.cpp does not build")


def _compiler(*names: str) -> str:
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return path
    raise CannotBuildError(f"none of the compilers {', '.join(names)}")


def _run(command: Sequence[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise CannotBuildError(f"{what}: {' | '.join(lines[-3:])}")


def _fingerprint(include: Path) -> str:
    python = sysconfig.get_config_var("EXT_SUFFIX")
    parts = (PYCUDA, python, platform.machine(), platform.libc_ver(), _SITECONF, str(include))
    return _hash(include / "cuda.h", extra=repr(parts))


def _hash(*paths: Path, extra: str = "") -> str:
    digest = hashlib.sha256(extra.encode())
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process builds while others wait for it."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        built()
    except CannotBuildError as error:
        sys.exit(f"cannot build PyCUDA against a fake driver: {error}")
