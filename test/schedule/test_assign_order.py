"""Values are those of eager execution in program order, whatever is realized when."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tinyml import Tensor
from tinyml.device import Device

Array = npt.NDArray[Any]


def _assign(data: st.DataObject, tensors: list[Tensor], arrays: list[Array], i: int, j: int) -> str:
    tensors[i].assign(tensors[j])
    arrays[i][...] = arrays[j]
    return f"t{i}.assign(t{j})"


def _assign_shifted(
    data: st.DataObject, tensors: list[Tensor], arrays: list[Array], i: int, j: int
) -> str:
    """Reads other elements than it writes."""
    tensors[i].assign(tensors[j].flip(0) + 1)
    arrays[i][...] = arrays[j][::-1] + 1
    return f"t{i}.assign(t{j}.flip(0) + 1)"


def _assign_sum(
    data: st.DataObject, tensors: list[Tensor], arrays: list[Array], i: int, j: int
) -> str:
    tensors[i].assign(tensors[i] + tensors[j].sum(0, keepdim=True) * 0.5)
    arrays[i][...] = arrays[i] + arrays[j].sum(0, keepdims=True) * np.float32(0.5)
    return f"t{i}.assign(t{i} + t{j}.sum(0) * 0.5)"


def _set_part(
    data: st.DataObject, tensors: list[Tensor], arrays: list[Array], i: int, j: int
) -> str:
    tensors[i][1:3] = tensors[j][0:2]
    arrays[i][1:3] = arrays[j][0:2].copy()
    return f"t{i}[1:3] = t{j}[0:2]"


def _derive(data: st.DataObject, tensors: list[Tensor], arrays: list[Array], i: int, j: int) -> str:
    """A new tensor that reads this version of the values, realized later or never."""
    tensors.append((tensors[i] * 2 - tensors[j]).clip(-9, 9))
    arrays.append(np.clip(arrays[i] * 2 - arrays[j], -9, 9))
    return f"t{len(tensors) - 1} = (t{i} * 2 - t{j}).clip(-9, 9)"


def _view(data: st.DataObject, tensors: list[Tensor], arrays: list[Array], i: int, j: int) -> str:
    """A view is a value: later assignments to its source do not reach it."""
    tensors.append(tensors[i].reshape(3, 4).permute(1, 0).contiguous())
    arrays.append(arrays[i].reshape(3, 4).T.copy())
    return f"t{len(tensors) - 1} = t{i}.reshape(3, 4).T"


def _realize(
    data: st.DataObject, tensors: list[Tensor], arrays: list[Array], i: int, j: int
) -> str:
    Tensor.realize(tensors[i], tensors[j])
    return f"realize(t{i}, t{j})"


def _look(data: st.DataObject, tensors: list[Tensor], arrays: list[Array], i: int, j: int) -> str:
    np.testing.assert_allclose(tensors[i].numpy(), arrays[i], 1e-5, 1e-5)
    return f"look at t{i}"


def _drop(data: st.DataObject, tensors: list[Tensor], arrays: list[Array], i: int, j: int) -> str:
    if len(tensors) > 3:
        del tensors[-1], arrays[-1]
    return "forget the last"


STEPS = (
    _assign, _assign, _assign_shifted, _assign_sum, _set_part, _derive, _derive, _view, _realize,
    _look, _drop,
)  # fmt: skip


@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
@settings(max_examples=60)
@given(data=st.data())
def test_random_programs(device: str, data: st.DataObject) -> None:
    if not Device.available(device):
        pytest.skip(f"{device} does not answer")
    start = np.random.default_rng(0).integers(-4, 5, (3, 4, 3)).astype(np.float32)
    tensors = [Tensor(a.copy(), device=device).realize() for a in start]
    arrays = [a.copy() for a in start]
    told = []
    for _ in range(data.draw(st.integers(1, 10))):
        step = data.draw(st.sampled_from(STEPS))
        i, j = (data.draw(st.integers(0, len(tensors) - 1)) for _ in range(2))
        told.append(step(data, tensors, arrays, i, j))
    note("\n".join(told))
    if data.draw(st.booleans()):
        Tensor.realize(*tensors)
    for n in data.draw(st.permutations(range(len(tensors)))):
        np.testing.assert_allclose(tensors[n].numpy(), arrays[n], 1e-4, 1e-4, err_msg=f"t{n}")


@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
def test_two_tensors_swap(device: str) -> None:
    if not Device.available(device):
        pytest.skip(f"{device} does not answer")
    a, b = Tensor([1.0, 2.0], device=device).realize(), Tensor([3.0, 4.0], device=device).realize()
    old = a + 0
    a.assign(b)
    b.assign(old)
    Tensor.realize(b, a)
    assert a.tolist() == [3, 4]
    assert b.tolist() == [1, 2]


@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
def test_who_read_before_keeps_what_was_read(device: str) -> None:
    if not Device.available(device):
        pytest.skip(f"{device} does not answer")
    x = Tensor([1.0, 2.0, 3.0], device=device).realize()
    before, copy, view = x * 10, x[1:].clone(), x[1:]
    x.assign(x + 1).realize()
    assert x.tolist() == [2, 3, 4]
    assert before.tolist() == [10, 20, 30]
    assert copy.tolist() == [2, 3]
    assert view.tolist() == [3, 4]


@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
def test_assignments_joined_across_a_transpose(device: str) -> None:
    if not Device.available(device):
        pytest.skip(f"{device} does not answer")
    values = np.arange(18, dtype=np.float32).reshape(2, 3, 3)
    a, b = (Tensor(v.copy(), device=device).realize() for v in values)
    old = a.clone()
    a.assign(b)
    b.assign(old + 1)
    b.assign(a.T + b)  # walks the rows of a transposed, beside what reads the old ones plainly
    np.testing.assert_array_equal(b.numpy(), values[1].T + values[0] + 1)
    np.testing.assert_array_equal(a.numpy(), values[1])
