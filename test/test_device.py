"""Which device a process takes, and what it leaves behind."""

from __future__ import annotations

import gc
import weakref

import pytest

from tinyml import Tensor, device, trace
from tinyml.device import Device
from tinyml.errors import DeviceError


def test_a_device_that_does_not_answer_keeps_nothing_of_who_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first weight that was drawn lived on as somebody's in frames of the error, so the first
    step did not write to its memory, and the second was scheduled anew."""

    def refuse(name: str) -> None:
        raise DeviceError(f"no {name} here")

    def ask() -> weakref.ref[Tensor]:
        held = Tensor([1.0], "NUMPY")
        assert Device._fastest() == "NUMPY"
        return weakref.ref(held)

    monkeypatch.setattr(device, "open_device", refuse)
    gc.disable()
    try:
        with trace.listen(trace.DevicePassedOver) as passed_over:
            assert ask()() is None
    finally:
        gc.enable()
    assert [(event.name, event.reason) for event in passed_over] == [
        ("CUDA", "no CUDA here"),
        ("CPU", "no CPU here"),
    ]
