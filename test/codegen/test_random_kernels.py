"""Random graphs: every way to run them gives what the interpreter gives."""

from __future__ import annotations

import graphs
import pytest
import random_graphs
import stages
from graphs import leaf
from hypothesis import Phase, example, given, note, settings
from hypothesis import strategies as st

from tinyml import lazy
from tinyml.device import Device
from tinyml.dtype import int32
from tinyml.lazy import LazyBuffer
from tinyml.ops import Op

Roots = list[LazyBuffer]


def remainders(count: int, by: int) -> LazyBuffer:
    return lazy.map_(Op.MOD, leaf(count, dtype=int32), lazy.const(by, int32, "CPU", (count,)))


def one_place_for_all() -> LazyBuffer:
    """Neither the place nor the value says which of the elements is being added."""
    return lazy.scatter(leaf(1), remainders(3, 1), lazy.expand(leaf(1), (3,)), 0)


def beside_what_there_is() -> LazyBuffer:
    """Only the number that is looked up keeps the index within the data."""
    return lazy.gather(lazy.pad(leaf(3), ((1, 0),)), remainders(1, 4), 0)


@example([one_place_for_all()])
@example([beside_what_there_is()])
@settings(max_examples=200)
@given(random_graphs.graphs())
def test_simple_runners_agree(roots: Roots) -> None:
    note(stages.described(roots))
    stages.agree(roots, graphs.values(roots), stages.simple_runners())


def on_a_machine(name: str, programs: list[Roots]) -> None:
    """All graphs compiled together, then each compared."""
    if not Device.available(name):
        pytest.skip(f"{name} does not answer")
    kernels = [k for roots in programs for k in stages.kernels(*roots)]
    for opts in (None, []):
        how = "plain" if opts == [] else "optimized"
        runner = stages.on_machine(name, kernels, opts)
        for roots in programs:
            note(stages.described(roots))
            stages.agree(roots, graphs.values(roots), {f"{name} {how}": runner})


@settings(max_examples=10, phases=[Phase.generate])
@given(st.lists(random_graphs.graphs(), min_size=6, max_size=6))
def test_the_processor_agrees(programs: list[Roots]) -> None:
    on_a_machine("CPU", programs)


@settings(max_examples=4, phases=[Phase.generate])
@given(st.lists(random_graphs.graphs(), min_size=4, max_size=4))
def test_the_emulator_agrees(programs: list[Roots]) -> None:
    on_a_machine("EMU", programs)
