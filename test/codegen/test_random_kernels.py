"""Random graphs: every way to run them gives what the interpreter gives."""

from __future__ import annotations

import graphs
import pytest
import random_graphs
import stages
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from tinyml.device import Device
from tinyml.lazy import LazyBuffer
from tinyml.schedule import schedule

Roots = list[LazyBuffer]


def seeded(examples: int, shrink: bool = True) -> settings:
    """The same examples in every run."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
    )


@seeded(200)
@given(random_graphs.graphs())
def test_simple_runners_agree(roots: Roots) -> None:
    note(stages.described(roots))
    stages.agree(roots, graphs.values(roots), stages.simple_runners())


def on_a_machine(name: str, programs: list[Roots]) -> None:
    """All graphs compiled together, then each compared."""
    if not Device.available(name):
        pytest.skip(f"{name} does not answer")
    kernels = [k for roots in programs for k in stages.kernels_of(schedule(roots))]
    for opts in (None, []):
        how = "plain" if opts == [] else "optimized"
        runner = stages.on_machine(name, kernels, opts)
        for roots in programs:
            note(stages.described(roots))
            stages.agree(roots, graphs.values(roots), {f"{name} {how}": runner})


@seeded(10, shrink=False)
@given(st.lists(random_graphs.graphs(), min_size=6, max_size=6))
def test_the_processor_agrees(programs: list[Roots]) -> None:
    on_a_machine("CPU", programs)


@seeded(4, shrink=False)
@given(st.lists(random_graphs.graphs(), min_size=4, max_size=4))
def test_the_emulator_agrees(programs: list[Roots]) -> None:
    on_a_machine("EMU", programs)
