"""Threads, forks and Ctrl-C: whoever computes at the same time, everybody gets their own values."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tinyml import Device, Tensor, TinyJit, autograd, defaults, dtypes, launch, ledger, no_grad
from tinyml import realize as realizing
from tinyml.autograd import mode
from tinyml.roster import Roster

THREADS = 4


@pytest.fixture(autouse=True)
def often_another_thread() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def at_once(function: Callable[[int], Any]) -> list[Any]:
    """function(0), function(1), ... in threads that begin together."""
    start = threading.Barrier(THREADS)

    def begin(number: int) -> Any:
        start.wait()
        return function(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(THREADS)))


def test_threads_compute_new_kernels_and_known_ones(device: str) -> None:
    def compute(number: int) -> list[float]:
        own = [(Tensor.ones(number + 2) * k).sum().item() for k in (1.0, 2.0)]
        return [*own, (Tensor([1.0, 2.0]) + number).sum().item()]

    assert at_once(compute) == [[n + 2, 2 * n + 4, 3 + 2 * n] for n in range(THREADS)]


def test_one_tensor_is_realized_by_several_threads_once(device: str) -> None:
    x = Tensor([1.0, 2.0]).realize()
    for expected in ([2.0, 3.0], [3.0, 4.0]):
        x.assign(x + 1)
        assert at_once(lambda _: x.tolist()) == [expected] * THREADS


def test_readers_of_overwritten_values_are_not_forgotten(device: str) -> None:
    """While others note so many tensors that the list of them is tidied up."""

    def overwrite(number: int) -> list[float]:
        x, seen = Tensor([float(number)]).realize(), []
        for _ in range(6):
            before, dead = x * 2, [x + 1 for _ in range(40)]
            del dead
            x += 1
            x.realize()
            seen.append(before)
        return [s.item() for s in seen]

    assert at_once(overwrite) == [[2.0 * (n + k) for k in range(6)] for n in range(THREADS)]


def test_a_roster_that_is_tidied_up_forgets_nobody() -> None:
    class Somebody:
        pass

    def note(_: int) -> list[Somebody]:
        alive = []
        for _ in range(1000):
            alive.append(Somebody())
            roster.note(alive[-1])
            roster.note(Somebody())
            if len(alive) % 50 == 0:
                roster.retain(lambda _: True)
        return alive

    roster = Roster()
    noted = {id(somebody): somebody for alive in at_once(note) for somebody in alive}
    assert noted.keys() == {id(somebody) for somebody in roster.members()}


def test_no_grad_is_of_one_thread() -> None:
    @no_grad()
    def quiet(step: threading.Barrier) -> bool:
        step.wait()
        return (x * 2).requires_grad is True

    x = Tensor([1.0], requires_grad=True)
    inside = threading.Barrier(2)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(quiet, inside)
        assert (x * 2).requires_grad
        with no_grad():
            inside.wait()
            assert not waits.result()
            assert not (x * 2).requires_grad
        assert pool.submit(lambda: (x * 2).requires_grad).result()
    assert not autograd.in_blocks()


def test_blocks_of_settings_are_of_one_thread() -> None:
    def settings() -> tuple[Any, ...]:
        return Tensor.training, Device.DEFAULT, dtypes.default_float, dtypes.default_int

    def inside(number: int) -> bool:
        device, chosen = ("NUMPY", "CPU")[number % 2], (dtypes.float16, dtypes.float64)[number % 2]
        own = (True, device, chosen, dtypes.int64)
        with Tensor.train(), defaults(device, chosen), of_ints:
            together.wait()
            within = settings() == own
            together.wait()
        return within and settings() == before  # whoever ends first

    before, together = settings(), threading.Barrier(THREADS)
    of_ints = defaults(default_int="int64")  # one for all, as a decorator is
    assert at_once(inside) == [True] * THREADS
    Tensor.training = True
    assert at_once(lambda _: Tensor.training) == [True] * THREADS
    with Tensor.train(False):
        Tensor.training = True
        assert Tensor.training
    Tensor.training = False
    assert settings() == before


def test_blocks_of_settings_are_of_one_task() -> None:
    """Of asyncio: what waits in a block leaves the others as they are."""

    async def quiet() -> bool:
        with no_grad(), defaults(default_float="float64"):
            await asyncio.sleep(0)
            return (x * 2).requires_grad or Tensor([1.5]).dtype is not dtypes.float64

    async def other() -> bool:
        return (x * 2).requires_grad and Tensor([1.5]).dtype is dtypes.float32

    async def both() -> list[bool]:
        return await asyncio.gather(quiet(), other(), quiet(), other())

    x = Tensor([1.0], requires_grad=True)
    assert asyncio.run(both()) == [False, True] * 2


def test_a_decorated_function_is_called_by_several_threads() -> None:
    @no_grad()
    def quiet(number: int) -> bool:
        with no_grad():
            return mode.recording

    def after(number: int) -> tuple[bool, bool]:
        return any(quiet(number) for _ in range(50)), mode.recording

    assert at_once(after) == [(False, True)] * THREADS


def test_gradients_are_of_the_thread_that_asks(device: str) -> None:
    """A graph stays for a second backward, whatever other threads assign to meanwhile."""

    def train(number: int) -> list[float]:
        x = Tensor([1.0, 2.0], requires_grad=True)
        loss = (x * x * number).sum()
        for _ in range(2):
            loss.backward()
            walked.wait()
        with no_grad():
            x -= 0
        assert x.grad is not None
        return x.grad.tolist()

    walked = threading.Barrier(THREADS)
    assert at_once(train) == [[4.0 * n, 8.0 * n] for n in range(THREADS)]


def test_draws_of_threads_are_independent(device: str) -> None:
    Tensor.manual_seed(3)
    drawn = at_once(lambda _: [Tensor.rand(1) for _ in range(8)])
    values = [t.item() for draws in drawn for t in draws]
    assert len(set(values)) == THREADS * 8
    Tensor.manual_seed(3)
    assert sorted(values) == sorted(Tensor.rand(1).item() for _ in values)


def test_threads_replay_one_captured_step(device: str) -> None:
    total = Tensor([0.0]).realize()

    @TinyJit
    def add(x: Tensor) -> Tensor:
        total.assign(total + x.sum())
        return ((x + 1).sum() * 2).realize()

    calls = 3
    for _ in range(2):
        add(Tensor.ones(5).contiguous())
    given = [Tensor([float(n)] * 5) for n in range(THREADS)]
    assert at_once(lambda n: [add(given[n]).item() for _ in range(calls)]) == [
        [10.0 * (n + 1)] * calls for n in range(THREADS)
    ]
    assert total.item() == 10 + calls * 5 * sum(range(THREADS))


def test_a_capture_leaves_alone_what_another_thread_is_assigning_to(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = TinyJit(lambda x: (x * 2).realize())
    step(Tensor([1.0]))
    theirs = Tensor([1.0, 2.0]).realize()
    theirs += 1  # waits to be computed, and what is assigned next reads it
    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as patch:
        count = autograd.note_assignment

        def capture() -> int:  # in the middle of the assignment
            patch.undo()
            assert pool.submit(step, Tensor([2.0])).result().tolist() == [4.0]
            return count()

        patch.setattr(autograd, "note_assignment", capture)
        theirs += 10
    assert step.captured is not None
    assert theirs.tolist() == [12.0, 13.0]


def test_tensors_that_were_equal_are_written_by_two_threads(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs, third = (Tensor([1.0, 2.0], device=device) * 2 for _ in range(3))
    Tensor.realize(mine, theirs, third)
    kept = theirs * 3
    with ThreadPoolExecutor(1) as pool, monkeypatch.context() as patch:
        count = autograd.note_assignment

        def other() -> None:
            for n in (100, 1000):
                theirs.assign(theirs + n)
                theirs.realize()

        def between() -> int:  # in the middle of the assignment
            patch.undo()
            pool.submit(other).result()
            return count()

        patch.setattr(autograd, "note_assignment", between)
        mine += 10
    third += 1
    assert (mine.tolist(), theirs.tolist()) == ([12.0, 14.0], [1102.0, 1104.0])
    assert (third.tolist(), kept.tolist()) == ([3.0, 5.0], [6.0, 12.0])


def test_a_capture_takes_what_another_thread_prepared_as_data(device: str) -> None:
    def prepare() -> tuple[Tensor, ...]:
        assigned, scaled = Tensor([0.0, 0.0]).realize(), Tensor([1.0, 2.0]).realize() * 2
        assigned += 3
        return assigned, assigned[1], scaled, scaled + 1, scaled + 1

    with ThreadPoolExecutor(1) as pool:
        weights = pool.submit(prepare).result()
    step = TinyJit(lambda x: (x + weights[0] + weights[1] + weights[2] * weights[3]).realize())
    for call in range(1, 5):
        assert step(Tensor([1.0, 1.0])).tolist() == [11.0 + 2 * call, 25.0 + 2 * call]
        assert (step.captured is not None) == (call > 1)
        weights[0].assign(weights[0] + 1)
    weights[4].assign([0.0, 0.0])
    assert weights[3].tolist() == [3.0, 5.0]


def test_what_a_call_uses_for_the_first_time_is_captured_in_the_next(device: str) -> None:
    first, second = (Tensor([n]).realize() * 2 for n in (1.0, 2.0))
    step = TinyJit(lambda x: (x + (first if call == 1 else second)).realize())
    for call in range(1, 6):
        assert step(Tensor([1.0])).tolist() == [(3.0 if call == 1 else 5.0) + 2 * max(call - 3, 0)]
        assert (step.captured is not None) == (call > 2)
        second.assign(second + 2) if call > 2 else None


def test_a_capture_is_not_of_what_other_threads_upload_and_read(device: str) -> None:
    reads = Tensor([1.0, 2.0]).realize()
    with ThreadPoolExecutor(1) as pool:

        @TinyJit
        def step(x: Tensor) -> Tensor:
            y = x * 2
            loaded.append(pool.submit(lambda: Tensor([float(len(loaded)), 1.0])).result())
            return y

        loaded: list[Tensor] = [reads]
        for k in range(3):
            assert step(Tensor([1.0, float(k)])).tolist() == [2.0, 2.0 * k]
    assert [t.tolist() for t in loaded[1:]] == [[1.0, 1.0], [2.0, 1.0]]


def test_a_capture_is_not_of_what_other_threads_record(device: str) -> None:
    mine, theirs = Tensor([0.0, 0.0]).realize(), Tensor([1.0, 2.0]).realize()
    made: list[Tensor] = []

    def other() -> None:
        theirs.assign(theirs + 1)
        made.append(theirs * 10)
        made.append(mine + 5)  # which the step overwrites

    with ThreadPoolExecutor(1) as pool:

        @TinyJit
        def step(x: Tensor) -> Tensor:
            pool.submit(other).result()
            mine.assign(mine + x)
            return (mine * 2).realize()

        for call in range(1, 6):
            assert step(Tensor([1.0, 2.0])).tolist() == [2.0 * call, 4.0 * call]
    assert theirs.tolist() == [3.0, 4.0]  # of two calls; the others were replays
    assert [m.tolist() for m in made] == [[20.0, 30.0], [5.0, 5.0], [30.0, 40.0], [6.0, 7.0]]
    assert step.captured is not None
    assert len(step.captured.parts.states) == 1


@pytest.mark.parametrize("late", [False, True])
def test_what_another_thread_assigns_while_one_captures_is_done_once(
    device: str, late: bool
) -> None:
    mine, theirs = Tensor([0.0, 0.0]).realize(), Tensor([1.0, 2.0]).realize()
    with ThreadPoolExecutor(1) as pool:

        @TinyJit
        def step(x: Tensor) -> Tensor:
            for assigns in (late, not late):
                if assigns:
                    mine.assign(mine + x)
                elif call < 3:  # reads what the step overwrites
                    pool.submit(lambda: theirs.assign(theirs + mine)).result()
            return (mine * 2).realize()

        total = 0
        for call in range(1, 6):
            total += (call if late else call - 1) if call < 3 else 0
            assert step(Tensor([1.0, 2.0])).tolist() == [2.0 * call, 4.0 * call]
            assert theirs.tolist() == [1.0 + total, 2.0 + 2 * total]
            assert (step.captured is not None) == (call > 1)


@pytest.mark.parametrize("kept", [0, 1])
def test_a_step_made_of_what_another_thread_assigns_meanwhile_is_captured_later(
    device: str, kept: int
) -> None:
    mine, theirs = Tensor([0.0, 0.0]).realize(), Tensor([1.0, 2.0]).realize()
    with ThreadPoolExecutor(1) as pool:

        @TinyJit
        def step(x: Tensor) -> Tensor:
            if call < 3:
                pool.submit(lambda: theirs.assign(theirs * kept + mine + 1)).result()
            mine.assign(mine + x * theirs)
            return (mine * 2).realize()

        now, theirs_now = 0.0, 1.0
        for call in range(1, 6):
            theirs_now = theirs_now * kept + now + 1 if call < 3 else theirs_now
            now += theirs_now
            assert step(Tensor([1.0, 1.0])).tolist()[0] == 2 * now
            assert (step.captured is not None) == (call > 2)  # the second call is no capture
        theirs.assign([0.0, 0.0])
        assert step(Tensor([1.0, 1.0])).tolist()[0] == 2 * now


FORK = """
import os, sys, threading
from tinyml import Tensor, no_grad

weight = Tensor.arange(20000).float().contiguous().realize()  # enough for several threads
known = lambda: (weight * 2).sum().item()
first, done = known(), threading.Event()

def busy():
    with no_grad():
        while not done.is_set():
            (weight + 1).sum().item()

other = threading.Thread(target=busy)
other.start()
for _ in range(3):
    child = os.fork()
    if child == 0:
        new = (weight[:7] * 3).sum().item()  # a kernel that the parent never made
        os._exit(0 if known() == first and new == 63 and (weight + 1).tolist()[1] == 2 else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
done.set()
other.join()
assert known() == first
"""


def test_a_forked_child_computes_on() -> None:
    """Though at the time of the fork another thread is computing."""
    environment = {**os.environ, "DEVICE": "CPU", "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK]
    done = subprocess.run(command, env=environment, timeout=600)
    assert done.returncode == 0


@pytest.fixture
def _ctrl_c() -> Iterator[None]:
    """Ctrl-C raises, also where whoever began the tests had it ignored, as in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c")
def test_an_interrupt_while_compiling_changes_nothing(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = Tensor([1.0, 2.0, 3.0]).realize()
    x += 5
    y = x.reshape(3, 1) * x

    def interrupted(*_: Any) -> Any:
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        if device == "NUMPY":
            patch.setattr("tinyml.interpret.interpret", interrupted)
        else:
            patch.setattr(
                "tinyml.plan_cache._entry", lambda *_: None
            )  # no plan comes from the disk
            patch.setattr("tinyml.prepare.cached_program", interrupted)
            patch.setattr("tinyml.prepare._executables", {})
            patch.setattr(realizing, "_runners", {})
        with pytest.raises(KeyboardInterrupt):
            Tensor.realize(x, y)
    assert x.tolist() == [6.0, 7.0, 8.0]
    assert y.sum().item() == 21.0**2
    assert at_once(lambda n: (x * n).sum().item()) == [21.0 * n for n in range(THREADS)]


@pytest.mark.usefixtures("_ctrl_c")
def test_an_interrupt_waits_while_memory_is_overwritten(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = Tensor([1.0, 2.0]).realize(), Tensor([3.0]).realize()
    execute = launch.execute

    def interrupted(*args: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        execute(*args)

    monkeypatch.setattr(launch, "watched", lambda: True)  # so that calls are issued one by one
    monkeypatch.setattr(launch, "execute", interrupted)
    monkeypatch.setattr(realizing, "execute", interrupted)
    x += 1
    y.assign(y * x.sum())
    with pytest.raises(KeyboardInterrupt):
        Tensor.realize(x, y)
    monkeypatch.undo()
    assert (x.tolist(), y.tolist()) == ([2.0, 3.0], [15.0])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupted_capture_can_be_repeated(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupts = iter([False, True, False])

    @TinyJit
    def step(x: Tensor) -> Tensor:
        y = (x + 1).realize()
        if next(interrupts):
            raise KeyboardInterrupt
        return y * 2

    assert step(Tensor([1.0])).tolist() == [4.0]
    with pytest.raises(KeyboardInterrupt):
        step(Tensor([2.0]))
    assert step(Tensor([3.0])).tolist() == [8.0]
    assert step.captured is not None
    assert step(Tensor([4.0])).tolist() == [10.0]


def test_leaves_may_be_collected_while_memory_is_searched() -> None:
    before = gc.get_threshold()
    kept = [Tensor([float(n)]).realize() for n in range(40)]
    try:
        for soon in range(2, 60):
            gc.disable()
            circle: list[Any] = [Tensor([float(n)]).realize() for n in range(4)]
            circle.append(circle)
            del circle
            gc.set_threshold(gc.get_count()[0] + soon)
            gc.enable()
            assert len(ledger.in_memory()) >= len(kept)
    finally:
        gc.enable()
        gc.set_threshold(*before)
