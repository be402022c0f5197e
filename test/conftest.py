"""What every test can use: `device`, each device at hand in turn, made the default.

`pytest -m cuda` runs in processes that are replaced when a card refuses one after a fault, or a
test hangs there (for TINYML_TEST_LIMIT seconds): all that is lost then is that test.
"""

from __future__ import annotations

import faulthandler
import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers

from tinyml import Tensor
from tinyml.device import Device, _opened
from tinyml.errors import TinymlError
from tinyml.faults import fault_of

DEVICES = ("NUMPY", "CPU", "EMU", "CUDA")
# Files of few tests that take long: processes begin with these, so that they end together.
_LONG = frozenset(
    [f"test_{n}" for n in ("whole_steps", "examples", "random_networks", "estimate", "nvcc_all")]
    + [f"test_{n}" for n in ("cascade_cuda", "cascade_warpgroups", "channels", "phase_cuda")]
    + [f"test_{n}" for n in ("against_torch", "against_torch_nn", "scaling", "decomposition")]
)
_LIMIT = float(os.environ.get("TINYML_TEST_LIMIT", 120))  # seconds

# Examples are the same in every run: of no clock, no earlier failures, and no numbers that stand
# in the modules which happen to be loaded, as Hypothesis would have it; unless others are wanted.
settings.register_profile(
    "repeatable",
    derandomize=os.environ.get("TINYML_TEST_RANDOM", "") in ("", "0"),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
settings.load_profile("repeatable")
providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Other processes for tests on a card, replaced as often as need be."""
    option = config.option
    has_xdist = config.pluginmanager.hasplugin("xdist") and not hasattr(config, "workerinput")
    if option.markexpr.startswith("cuda") and has_xdist:
        if option.numprocesses is None:
            option.numprocesses = 4  # compilers are what takes time
        if option.dist == "no":
            option.dist = "loadfile"
        option.maxworkerrestart = option.maxworkerrestart or "1000000"
    option.loadscopereorder = False  # it would count tests only


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In one of several processes, files that take long come first, then those of many tests."""
    if hasattr(config, "workerinput"):
        tests = Counter(item.path for item in items)
        items.sort(key=lambda item: (item.path.stem not in _LONG, -tests[item.path]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End a process in which a test on a card hangs, or that the card refuses after it."""
    if item.get_closest_marker("cuda") is None:
        return (yield)
    faulthandler.dump_traceback_later(_LIMIT, exit=True)  # even if a driver never returns
    try:
        return (yield)
    finally:
        why = _refusal()
        faulthandler.cancel_dump_traceback_later()
        if why and hasattr(item.config, "workerinput"):
            os._exit(1)  # pytest-xdist starts another one
        elif why:
            item.session.shouldfail = f"after {item.nodeid}: {why}"


def _refusal() -> str:
    """Why the card does not answer this process any more; "" if it does, or nobody asked."""
    if "CUDA" in _opened:
        try:
            _opened["CUDA"].machine.synchronize()
        except Exception as error:
            return "" if fault_of(error) else str(error)  # of a value: the card goes on
    return ""


def _why_not(name: str) -> str:
    """Why a device cannot be used here; "" if it can."""
    chosen = os.environ.get("TINYML_TEST_DEVICES")
    if chosen and name not in chosen.upper().split(","):
        return f"not in TINYML_TEST_DEVICES={chosen}"
    try:
        values = Tensor([1.0, 2.0], device=name) + 1
        return "" if values.tolist() == [2.0, 3.0] else "computes nonsense"
    except (TinymlError, ImportError, OSError) as error:
        return f"{type(error).__name__}: {error}"


_reasons: dict[str, str] = {}


@pytest.fixture(params=[pytest.param(n, marks=[pytest.mark.cuda] * (n == "CUDA")) for n in DEVICES])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a device, which is the default while the test runs."""
    name: str = request.param
    if name not in _reasons:
        _reasons[name] = _why_not(name)
    if _reasons[name]:
        pytest.skip(f"{name}: {_reasons[name]}")
    before = Device.DEFAULT
    Device.DEFAULT = name
    yield name
    Device.DEFAULT = before


@pytest.fixture
def rng() -> np.random.Generator:
    """Numbers that are the same in every run."""
    return np.random.default_rng(7)


@pytest.fixture(autouse=True, scope="module")
def _little_garbage() -> None:
    """What is there already is no garbage: each capture looks for some, among a million objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def no_garbage() -> Iterator[None]:
    """What earlier tests left in memory is not given back while this one looks at how much is."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test draws the same random numbers, whatever ran before it."""
    Tensor.manual_seed(7)


@pytest.fixture
def compare() -> Callable[..., None]:
    """compare({name: (tensor, array), ...}, rtol, atol): one schedule for all the tensors."""

    def compared(
        pairs: dict[str, tuple[Tensor, Any]], rtol: float = 1e-5, atol: float = 1e-6
    ) -> None:
        Tensor.realize(*(tensor for tensor, _ in pairs.values()))
        for name, (tensor, wanted) in pairs.items():
            array = np.asarray(wanted)
            assert tensor.shape == array.shape, name
            np.testing.assert_allclose(tensor.numpy(), array, rtol, atol, err_msg=name)

    return compared


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say why tests were skipped, a line for each reason; what failed is listed after it."""
    skipped = terminalreporter.stats.get("skipped", [])
    for reason, count in Counter(str(report.longrepr[2]) for report in skipped).items():
        terminalreporter.write_line(f"{count} tests: {reason}")
