"""The thread pool runs every block once, whoever asks and from wherever."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from tinyml import config
from tinyml.program import Cost, Language, Program
from tinyml.runtime import pool
from tinyml.runtime.cpu import CpuMachine, host_cache

LARGE = Cost(nbytes=1 << 30)  # enough to be given to every thread

# Adds 1 + block number to each block's own counter, so that a block left out or done twice shows.
SOURCE = """
void count_blocks(void *const *buffers, long start, long end) {
    long *counters = buffers[0];
    for (long b = start; b < end; b++) counters[b] += 1 + b;
}"""


def count_blocks(grid: int, cost: Cost = LARGE) -> Program:
    return Program("count_blocks", Language.C, (), SOURCE, slots=1, grid=grid, cost=cost)


@pytest.fixture(scope="module")
def cpu():
    return CpuMachine()


def counts(cpu, grid: int, launches: int = 1) -> np.ndarray:
    (executable,) = cpu.load([count_blocks(grid)])
    counters = np.zeros(grid, np.int64)
    for _ in range(launches):
        executable.launch([counters.ctypes.data])
    return counters


@pytest.mark.parametrize("threads", [1, 2, 3, 8, 33])
@pytest.mark.parametrize("grid", [1, 2, 3, 7, 64, 1001])
def test_every_block_runs_once_on_any_number_of_threads(cpu, threads, grid):
    with config.override(threads=threads):
        assert (counts(cpu, grid, 20) == 20 * np.arange(1, grid + 1)).all()


# The first block is not done before all others are, however blocks are shared out: 100 s, then it
# gives up and its counter shows it.
WAITS = """
#include <stdatomic.h>
#include <time.h>
void waits(void *const *buffers, long start, long end) {
    _Atomic long *counters = buffers[0];
    for (long b = start; b < end; b++) {
        for (time_t late = time(NULL) + 100; !b && counters[8] < 7 && time(NULL) < late;) continue;
        counters[b] = b ? 1 : counters[8];
        counters[8]++;
    }
}"""


@pytest.mark.parametrize("threads", [2, 5])
def test_a_long_block_holds_nothing_else_up(cpu, threads):
    program = Program("waits", Language.C, (), WAITS, slots=1, grid=8, cost=LARGE)
    (executable,) = cpu.load([program])
    counters = np.zeros(9, np.int64)
    with config.override(threads=threads):
        executable.launch([counters.ctypes.data])
    assert counters.tolist() == [7, *[1] * 7, 8]


def test_an_empty_grid_runs_nothing(cpu):
    assert counts(cpu, 0).size == 0


def test_a_small_program_stays_on_its_thread(cpu):
    small, large = cpu.load([count_blocks(64, Cost(flops=100, nbytes=1024)), count_blocks(64)])
    with config.override(threads=4):
        assert (small.chunks, large.chunks) == (1, 4)
    with config.override(threads=1):
        assert large.chunks == 1


# The number of the thread that ran each block; if they meet, a block is done when two threads have
# come, or after 100 s.
WHO = """
#define _GNU_SOURCE
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>
#include <sys/syscall.h>
void who(void *const *buffers, long start, long end) {
    _Atomic long *ran = buffers[0];
    const long *meets = buffers[1];
    for (long b = start; b < end; b++) {
        ran[b] = syscall(SYS_gettid);
        time_t late = time(NULL) + 100;
        for (int met = !*meets; !met && time(NULL) < late;)
            for (int i = 0; i < 8; i++) met |= ran[i] && ran[i] != ran[b];
    }
}"""


def test_threads_that_sleep_are_woken_for_long_work_alone(cpu):
    def ran(cost: Cost, meets: int) -> set[int]:
        program = Program("who", Language.C, (), WHO, slots=2, grid=8, cost=cost)
        (executable,) = cpu.load([program])
        threads, meeting = np.zeros(8, np.int64), np.array([meets])
        executable.launch([threads.ctypes.data, meeting.ctypes.data])
        return {*threads.tolist()}

    with config.override(threads=2):
        assert len(ran(LARGE, 1)) == 2
        time.sleep(0.5)  # until all sleep
        assert ran(Cost(nbytes=100_000), 0) == {threading.get_native_id()}
        assert len(ran(LARGE, 1)) == 2


def test_threads_of_python_may_launch_at_once(cpu):
    results = {}

    def launch(name: int) -> None:
        results[name] = counts(cpu, 64, 500)

    with config.override(threads=3):
        callers = [threading.Thread(target=launch, args=(i,)) for i in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    for result in results.values():
        assert (result == 500 * np.arange(1, 65)).all()


def test_work_goes_on_after_the_pool_was_stopped(cpu):
    with config.override(threads=3):
        counts(cpu, 64, 10)
        threads = pool.load(cpu.compiler, host_cache(None))
        assert threads.stop() >= 2
        assert threads.stop() == 0
        assert (counts(cpu, 64, 10) == 10 * np.arange(1, 65)).all()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_a_pool_of_its_own(cpu):
    with config.override(threads=3):
        counts(cpu, 64, 10)
        for _ in range(5):
            child = os.fork()
            if child == 0:
                right = (counts(cpu, 64, 50) == 50 * np.arange(1, 65)).all()
                os._exit(0 if right else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (counts(cpu, 64, 10) == 10 * np.arange(1, 65)).all()


EXIT = """
from tinyml import config
from test_pool import CpuMachine, counts
with config.override(threads=4):
    counts(CpuMachine(), 64, 100)
print("last line")
"""


def test_a_process_with_busy_threads_ends_cleanly():
    path = os.pathsep.join([os.path.dirname(__file__), os.getcwd(), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", EXIT]
    said = subprocess.check_output(
        command, env=environment, stderr=subprocess.STDOUT, text=True, timeout=600
    )
    assert said == "last line\n"


def test_a_plan_runs_its_launches_in_order(cpu):
    source = """
    void append(void *const *buffers, long start, long end) {
        long *out = buffers[0]; const long *digit = buffers[1];
        for (long b = start; b < end; b++) out[b] = out[b] * 10 + *digit;
    }"""
    program = Program("append", Language.C, (), source, slots=2, grid=50, cost=LARGE)
    (append,) = cpu.load([program])
    out, digits = np.zeros(50, np.int64), np.arange(1, 5)
    address = [int(digits[i:].ctypes.data) for i in range(4)]
    with config.override(threads=3):
        plan = cpu.plan([(append, [out.ctypes.data, address[i]]) for i in (0, 1, 2)])
        plan.run()
        assert (out == 123).all()
        plan.rebind(1, 1, address[3])
        other = np.zeros(50, np.int64)
        for call in range(3):
            plan.rebind(call, 0, other.ctypes.data)
        plan.run()
    assert (out == 123).all()
    assert (other == 143).all()


def test_an_empty_plan_does_nothing(cpu):
    cpu.plan([]).run()
