"""The thread pool of pool.c, compiled for this host and loaded."""

from __future__ import annotations

import atexit
import ctypes
from pathlib import Path

from tinyml.cache import DiskCache
from tinyml.runtime.compiler import Compiler
from tinyml.runtime.compiler import load as load_unit

SOURCE = Path(__file__).with_name("pool.c")


class Launch(ctypes.Structure):
    """`struct launch` of pool.c: one launch of a plan."""

    _fields_ = [
        ("function", ctypes.c_void_p),
        ("first", ctypes.c_long),  # place of its first buffer among all the plan's
        ("grid", ctypes.c_long),
        ("most_chunks", ctypes.c_int),
        ("checks", ctypes.c_int),  # whether it may find fault
    ]


class Pool:
    """The two ways to run kernels on the threads, and the end of the threads.

    `run(function, buffers, grid, chunks, wakes, fault)` and `run_plan(launches, count, buffers,
    threads, wakes, fault)` take ctypes values of the right types, unchecked: a launch has no time
    for more. They answer whether a fault was noted, and in which launch (from 1 on).
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.run = library.tinyml_run
        self.run_plan = library.tinyml_run_plan
        self.stop = library.tinyml_stop
        atexit.register(self.stop)  # so that no thread is cut off while the process ends


_pools: dict[str, Pool] = {}  # by fingerprint: two would put two threads on each core


def load(compiler: Compiler, cache: DiskCache) -> Pool:
    """The pool of this process."""
    found = _pools.get(compiler.fingerprint)
    if found is None:
        library = load_unit(compiler, cache, SOURCE.read_text()).binary
        found = _pools[compiler.fingerprint] = Pool(library)
    return found
