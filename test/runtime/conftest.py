"""Emulators that keep what they compiled while a file's tests run."""

from __future__ import annotations

import pytest

from tinyml.cache import DiskCache
from tinyml.runtime.emu import EmuMachine, ThreadOrder


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return DiskCache(tmp_path_factory.mktemp("cache"))


@pytest.fixture(params=ThreadOrder, ids=lambda order: order.name.lower())
def emu(request, cache):
    return EmuMachine(cache, request.param)


@pytest.fixture
def forward(cache):
    return EmuMachine(cache)


@pytest.fixture
def watched(cache):
    """One that looks for races."""
    return EmuMachine(cache, watched=True)
