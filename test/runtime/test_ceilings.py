"""What machines can do at best: measured once, kept, and what follows from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tinyml import trace
from tinyml.cache import DiskCache
from tinyml.ceilings import Ceilings, Level, loads
from tinyml.device import open_device
from tinyml.runtime.cpu import CpuMachine
from tinyml.runtime.cuda_driver import Properties, nominal

KNOWN = Ceilings(
    flops=1e11,
    lanes=8,
    threads=2,
    launch=1e-6,
    levels=(Level(1 << 15, 2e11, 1e11), Level(1 << 60, 2e10, 1e10)),
)


def test_a_processor_is_measured_once_and_then_remembered(tmp_path):
    first = CpuMachine(DiskCache(tmp_path)).ceilings()
    assert first.flops > 1e8
    assert first.launch < 1e-2
    assert all(level.read > 1e8 and level.write > 1e8 for level in first.levels)
    sizes = [level.size for level in first.levels]
    assert sizes == sorted(sizes)
    with trace.listen(trace.Compiled) as compiled:
        again = CpuMachine(DiskCache(tmp_path)).ceilings()
    assert again == first
    assert not compiled


def test_measuring_leaves_no_trace_in_the_memory_figures(tmp_path):
    machine = CpuMachine(DiskCache(tmp_path))
    before = machine.memory_stats()
    machine.ceilings()
    assert machine.memory_stats() == before


def test_ceilings_are_kept_as_text():
    assert loads(KNOWN.dumps()) == KNOWN


def test_the_roofline_is_the_slower_of_bytes_and_arithmetic():
    assert KNOWN.roofline(flops=10**11, nbytes=1) == pytest.approx(1)
    assert KNOWN.roofline(flops=1, nbytes=2 * 10**10) == pytest.approx(1)
    assert KNOWN.roofline(flops=0, nbytes=1 << 16) == pytest.approx((1 << 16) / 2e11)  # fits


def test_memory_takes_what_is_stored_while_it_delivers_the_rest():
    both = replace(KNOWN, levels=(Level(1 << 60, 2e10, 1e10, copied=3e10),))
    assert loads(both.dumps()) == both
    assert both.roofline(0, nbytes=2 * 10**10, stored=10**10) == pytest.approx(2 / 3)
    assert both.roofline(0, nbytes=2 * 10**10, stored=10**9) == pytest.approx(0.95)
    assert both.roofline(0, nbytes=2 * 10**10) == pytest.approx(1)


def test_a_multiply_add_is_one_instruction_of_each_thread():
    assert KNOWN.instruction == pytest.approx(2 * 8 * 2 / 1e11)


@pytest.mark.parametrize("name", ["NUMPY", "EMU"])
def test_what_has_no_speed_has_no_ceilings(name):
    assert open_device(name).machine.ceilings() is None
    assert open_device(name).machine.identity


def test_a_card_is_taken_at_the_word_of_its_driver():
    card = Properties("H100", (9, 0), 132, 227 << 10, 80 << 30, clock=1.98e9, bandwidth=3.35e12)
    found = nominal(card)
    assert found is not None
    assert found.flops == pytest.approx(66.9e12, rel=0.01)  # as its data sheet says
    assert found.levels[-1].read == 3.35e12


def test_a_driver_that_has_no_clocks_gives_no_ceilings():
    assert nominal(Properties("new", (12, 0), 100, 1, 1, clock=0, bandwidth=0)) is None
