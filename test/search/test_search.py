"""A search tries what may be faster, trusts nothing of it, and remembers how it ended."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import graphs
import numpy as np
import pytest
import stages
from graphs import leaf

from tinyml import Tensor, config, search, trace
from tinyml.codegen.linear import LinearKernel
from tinyml.codegen.optimize.opts import Opt, OptKind, optimize
from tinyml.device import OpenDevice, open_device
from tinyml.errors import DeviceError
from tinyml.kernel import Kernel
from tinyml.lazy import LazyBuffer
from tinyml.program import Program
from tinyml.search import beam
from tinyml.search import trial as trial_module
from tinyml.search.apart import Apart
from tinyml.search.candidates import neighbours, seeds
from tinyml.search.runner import Here, same
from tinyml.search.trial import Trial

BUDGET = 4  # looks at the clock; each candidate takes one


def kernel_of(node: LazyBuffer) -> Kernel:
    return stages.kernels(node)[-1]


MATMUL = kernel_of(graphs.matmul(leaf(24, 20), leaf(20, 40)))
ROWS = kernel_of(graphs.softmax(leaf(12, 40)))
ADD = kernel_of(graphs.add(leaf(6, 40), leaf(6, 40)))
SUBTRACT = kernel_of(graphs.sub(leaf(6, 40), leaf(6, 40)))


@pytest.fixture(params=["CPU", "EMU"])
def opened(request: pytest.FixtureRequest) -> OpenDevice:
    try:
        return open_device(request.param)
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search tries as many candidates on a machine that others use as on one that they do not."""
    ticking = SimpleNamespace(perf_counter=itertools.count().__next__)
    for module in (beam, trial_module):
        monkeypatch.setattr(module, "time", ticking)


@pytest.fixture
def cpu() -> OpenDevice:
    return open_device("CPU")


@pytest.fixture
def cached(tmp_path) -> Iterator[Any]:
    with config.override(cache=str(tmp_path)):
        yield tmp_path


def trial_of(k: Kernel, opened: OpenDevice, kind: type[Trial] = Trial, **options: Any) -> Trial:
    return kind(k, opened, **options)


@pytest.mark.parametrize("k", [MATMUL, ROWS], ids=["matmul", "rows"])
def test_what_is_found_fits_and_computes_the_same(k, opened, cached, rng):
    opts = search.found(k, opened, 1, BUDGET, Here)
    assert opts is not None
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape, _ in k.slots]
    wanted, results = ([np.copy(a) for a in arrays] for _ in range(2))
    stages.on_machine(opened.name, [k])(k, wanted)
    stages.on_machine(opened.name, [k], opts)(k, results)
    np.testing.assert_allclose(results[0], wanted[0], 1e-5, 1e-5)


def test_a_search_is_remembered(cpu, cached):
    with trace.listen(trace.Tried) as tried, trace.listen(trace.Searched) as searched:
        first = search.found(ROWS, cpu, 1, BUDGET, Here)
    assert len(tried) > 1
    assert searched[0].opts == first
    assert searched[0].seconds <= searched[0].default
    with trace.listen(trace.Tried) as tried:
        assert search.found(ROWS, cpu, 1, BUDGET, Here) == first
    assert not tried


def test_what_is_remembered_has_to_fit(cpu, cached):
    search.found(ADD, cpu, 1, 0, Here)
    (entry,) = cached.glob("*/*.opts")
    place = entry.parent.name + entry.stem
    cache = beam.host_cache(config.current.cache_folder)
    for damage in (b"opts\nlanes nowhere 8", b"opts\nlanes", b"anything"):
        cache.put(place, ".opts", damage)
        with trace.listen(trace.Tried) as tried:
            search.found(ADD, cpu, 1, 0, Here)
        assert len(tried) == 1  # the default alone: there was no time for more


class ByText(Here):
    """The less text, the faster: so a search has one right answer, whatever else is running."""

    def seconds(self, program: Program, best: float) -> float:
        return 1e-9 * len(program.text)


class Unforeseen(Trial):
    """A cost model that has no opinion."""

    def expected(self, opts: Sequence[Opt]) -> float | None:
        return None if super().expected(tuple(opts)) is None else 0.0


def test_the_fastest_wins(cpu):
    trial = trial_of(ROWS, cpu, Unforeseen, runner=ByText)
    with trace.listen(trace.Tried) as tried:
        found = search.search(trial, 1, BUDGET)
    times = {event.opts: event.seconds for event in tried if event.seconds is not None}
    assert found.opts == min(times, key=times.__getitem__)
    assert found.seconds < found.default == times[trial.default]
    assert found.tried == len(times)


def test_no_time_is_the_default(cpu):
    trial = trial_of(ROWS, cpu)
    found = search.search(trial, 4, 0)
    assert (found.opts, found.tried) == (trial.default, 1)


LANES = (Opt(OptKind.LANES, "i0", 4),)


class Wrong(Trial):
    """One candidate computes something else."""

    def _made(self, opts: Sequence[Opt]) -> LinearKernel | None:
        if opts == LANES:
            return self._linear(optimize(stages.lower(SUBTRACT), opts))
        return super()._made(tuple(opts))


class Refused(Trial):
    """The compiler gives up on one candidate."""

    def _rendered(self, made: LinearKernel) -> Program:
        program = super()._rendered(made)
        if hasattr(self, "_met"):  # after the default
            return Program("garbage", program.language, (), "garbage(", program.slots)
        return program


class Altered(Trial):
    """One candidate has another first line."""

    line = ""

    def _rendered(self, made: LinearKernel) -> Program:
        program = super()._rendered(made)
        if hasattr(self, "_met"):  # after the default
            program = replace(program, source=program.source.replace("{", "{\n" + self.line, 1))
        return program


class Hanging(Altered):
    line = "for (volatile int always = 1; always;) {}"


class Dying(Altered):
    line = "__builtin_trap();"


@pytest.mark.parametrize(
    ("kind", "why"),
    [(Wrong, "does not compute"), (Refused, "CompileError")],
)
def test_a_bad_candidate_is_left_out(kind, why, cpu):
    trial = trial_of(ADD, cpu, kind)
    with trace.listen(trace.Tried) as tried:
        assert trial.promising([LANES], 1) == [LANES]
        assert list(trial.run([LANES], 1.0, float("inf"))) == []
    (event,) = tried
    assert event.seconds is None
    assert why in event.why


def test_a_candidate_that_hangs_or_dies_does_so_in_a_process_of_its_own(cpu):
    for kind, why in ((Hanging, "no answer within"), (Dying, "it ended the process")):
        trial = trial_of(ADD, cpu, kind, runner=Apart)
        assert trial.time_default() > 0
        trial.promising([LANES], 1)
        trial.runner.patience = 0.4 if kind is Hanging else 1e9
        with trace.listen(trace.Tried) as tried:
            assert list(trial.run([LANES], 1.0, float("inf"))) == []
        assert why in tried[0].why
        trial.runner.patience = 1e9
        assert trial.time_default() > 0  # another process goes on
        trial.close()


def test_a_process_that_cannot_be_ended_is_left_alone(cpu, monkeypatch):
    trial = trial_of(ADD, cpu, runner=Apart)
    child = trial.runner._child

    def held(timeout=None):
        assert timeout is not None
        raise subprocess.TimeoutExpired("held by a driver", timeout)

    with monkeypatch.context() as patched:
        patched.setattr(child, "wait", held)
        trial.close()
    assert child.wait() < 0
    assert trial.time_default() > 0  # another process goes on
    trial.close()


def test_what_codegen_cannot_say_is_never_tried(cpu):
    trial = trial_of(ADD, cpu)
    assert trial.promising([(Opt(OptKind.LANES, "nowhere", 4),)], 1) == []
    huge = (Opt(OptKind.GRID, "i0"), Opt(OptKind.STAGE, "i0", 0, 1))
    assert trial.admits(huge)
    large = kernel_of(graphs.add(leaf(2, 1 << 20), leaf(2, 1 << 20)))
    assert not trial_of(large, cpu).admits(huge)  # 4 MB on a stack


def test_candidates_come_in_the_same_order_and_keep_what_belongs_together(cpu):
    trial = trial_of(MATMUL, cpu)
    for source in (
        lambda: list(seeds(trial.plain, trial.target)),
        lambda: list(neighbours(trial.plain, trial.default)),
    ):
        assert source() == source()
    peeled = (Opt(OptKind.PEEL, "i0", 24), Opt(OptKind.UNROLL, "i0", 6))
    assert (Opt(OptKind.PEEL, "i0", 32), Opt(OptKind.UNROLL, "i0", 8)) in neighbours(
        trial.plain, peeled
    )
    ahead = (Opt(OptKind.AHEAD, "i0", 4),)
    assert {(Opt(OptKind.AHEAD, "i0", n),) for n in (2, 8)} <= {*neighbours(trial.plain, ahead)}


def test_results_may_differ_by_rounding_and_no_more():
    right = np.array([1.0, 2.0, np.nan, np.inf], np.float32)
    off = np.array([1.0, 2.0001, np.nan, np.inf], np.float32)
    assert same(off, right, 1e-4)
    assert not same(off, right, 1e-5)
    assert not same(np.array([1, 2, 3, np.inf], np.float32), right, 1e-4)
    assert not same(np.array([1, 2]), np.array([1, 3]), 1.0)


def test_a_program_under_beam_computes_what_it_did(cached):
    with config.override(beam=1, beam_seconds=1):
        values = np.arange(12, dtype=np.float32).reshape(3, 4)
        a = Tensor(values, device="CPU")
        a += 1  # in place: a launch too many would show
        np.testing.assert_array_equal(a.numpy(), values + 1)
    assert list(cached.glob("*/*.opts"))


def test_numpy_has_nothing_to_search():
    assert search.found(ADD, open_device("NUMPY"), 1, BUDGET) is None
