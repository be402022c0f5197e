"""Random networks: losses, results and gradients of every device are those of the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import Phase, example, given, note, settings
from hypothesis import strategies as st
from networks import LAYERS, NUMBERS, SIZES, Layer, Network, built

from tinyml import Tensor
from tinyml.device import Device
from tinyml.dtype import DType, float32, float64

Values = list[npt.NDArray[Any]]
CLOSE = {False: 1e-4, True: 3e-2}  # of the largest value; True: halves round on the way
MORE = 8  # times what the interpreter in float32 is away from float64
NOTHING = 1e-6  # what is left where values cancel to nothing

_numbers = st.tuples(*[st.integers(0, 59) for _ in range(NUMBERS)])
_sizes = st.sampled_from(SIZES)
_rows = st.tuples(_sizes, _sizes)
_sequences = st.tuples(st.integers(1, 4), _sizes, _sizes)
_images = st.tuples(st.integers(1, 4), st.integers(1, 33), st.integers(3, 20), st.integers(1, 20))
_FITTING = {
    2: LAYERS.keys() - {"attention", "convolution", "pooling"},
    3: [*LAYERS.keys() - {"convolution", "pooling"}, "attention", "attention"],
    4: [*LAYERS.keys() - {"attention"}, "convolution", "convolution"],
}


@dataclass(frozen=True)
class Program:
    """What a network is made of. The seed is that of its draws; odd ones classify."""

    shape: tuple[int, ...]
    layers: tuple[Layer, ...]
    seed: int = 0

    def on(self, device: str, dtype: DType) -> tuple[list[Tensor], Network]:
        net = Network(device, dtype)
        return built(net, self.shape, self.layers, self.seed), net

    @cached_property
    def reference(self) -> tuple[Values, Values, Network]:
        """By the interpreter in float64 and in float32."""
        (exact, net), (rounded, _) = (self.on("NUMPY", d) for d in (float64, float32))
        Tensor.realize(*exact, *rounded)
        return _values(exact), _values(rounded), net

    def check(self, tensors: Sequence[Tensor]) -> None:
        """AssertionError if what a device found is not the same network's."""
        exact, rounded, net = self.reference
        note("\n".join(net.told))
        for name, a, b, c in zip(net.names, exact, rounded, _values(tensors), strict=True):
            finite = np.isfinite(a) & np.isfinite(b)
            np.testing.assert_array_equal(np.isfinite(c), finite, f"{name}: finite where")
            largest = np.abs(a, where=finite, out=np.zeros_like(a)).max()
            error = np.abs(np.subtract(c, a, where=finite, out=np.zeros_like(a))).max()
            rounding = np.abs(np.subtract(b, a, where=finite, out=np.zeros_like(a))).max()
            allowed = max(MORE * rounding, CLOSE[net.is_halved] * largest, NOTHING)
            assert error <= allowed, f"{name}: off by {error} where {largest} is the largest"


def _values(tensors: Sequence[Tensor]) -> Values:
    return [t.detach().numpy().astype(np.float64) for t in tensors]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    shape = draw(st.one_of(_rows, _sequences, _sequences, _images, _images))
    names = st.sampled_from(sorted(_FITTING[len(shape)]))
    layers = draw(st.lists(st.tuples(names, _numbers), min_size=1, max_size=6))
    return Program(shape, tuple(layers), draw(st.integers(0, 9)))


def agree(device: str, found: list[Program]) -> None:
    """All computed at once, then each compared."""
    if not Device.available(device):
        pytest.skip(f"{device} does not answer")
    made = [program.on(device, float32)[0] for program in found]
    Tensor.realize(*[t for tensors in made for t in tensors])
    for program, tensors in zip(found, made, strict=True):
        program.check(tensors)


def linear(size: int) -> Layer:
    return "linear", (SIZES.index(size), *(0,) * (NUMBERS - 1))


# A column times a row is a factor that no load is.
OF_RANK_ONE = Program((16, 1), (linear(127), linear(96)))


@example([OF_RANK_ONE])
@settings(max_examples=5, phases=[Phase.explicit, Phase.generate])
@given(st.lists(programs(), min_size=6, max_size=6))
def test_the_processor_agrees(found: list[Program]) -> None:
    agree("CPU", found)


# Sums over several sequences, of as many steps as a tile has: all must have read one sequence's
# before the next one's are there.
TILE_BY_TILE = Program((2, 33, 16), (("attention", (0, SIZES.index(17), *(0,) * 7)),))
# The last step of a sum is apart, and its tile was copied ahead, as those beyond it are not.
COPIED_AHEAD = Program(
    (2, 5, 65), (("attention", (3, SIZES.index(12), 0, SIZES.index(40), 2, 0, 0, 0, 0)),)
)


@example([TILE_BY_TILE, COPIED_AHEAD])
@settings(max_examples=3, phases=[Phase.explicit, Phase.generate])
@given(st.lists(programs(), min_size=4, max_size=4))
def test_the_emulator_agrees(found: list[Program]) -> None:
    agree("EMU", found)
