"""Who writes a part of a tensor touches that part, and nothing else of its memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import stages

from tinyml import Tensor, TinyJit, config, trace
from tinyml.codegen.compile import cost
from tinyml.codegen.lower import lower
from tinyml.kernel import Kernel
from tinyml.schedule import schedule

SHAPE = (33, 5, 64)
RNG = np.random.default_rng(3)
NUMBERS = RNG.standard_normal(SHAPE).astype(np.float32)
PARTS: dict[str, Any] = {
    "a row": 7,
    "the last row": -1,
    "rows": slice(4, 9),
    "columns": (slice(None), slice(None), slice(3, 21)),
    "a block": (slice(2, 9), 3, slice(8, None)),
    "a number": (32, 4, 63),
    "rows, backwards": slice(9, 4, -1),
    "a new axis": (None, slice(1, 3)),
}


def given(device: str = "CPU") -> Tensor:
    return Tensor(NUMBERS.copy(), device=device).realize()


def of_target(x: Tensor) -> list[Kernel]:
    """The kernels for x that touch as much as it has."""
    kernels = stages.kernels(x)
    return [k for k in kernels if cost(lower(k)).nbytes >= NUMBERS.nbytes]


def values(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.asarray(RNG.standard_normal(shape), np.float32)


def touched(x: Tensor) -> int:
    """Bytes that the kernels for x read and write."""
    return sum(cost(lower(k)).nbytes for k in stages.kernels(x))


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_all_that_is_touched(name: str) -> None:
    x, part = given(), PARTS[name]
    new = values(NUMBERS[part].shape)
    x[part] = Tensor(new, device="CPU").realize()
    written = new.nbytes
    assert touched(x) == 2 * written
    x = given()
    x[part] = 2
    assert touched(x) == written
    x = given()
    x[part] += x[part] * 2
    assert touched(x) == 2 * written


@pytest.mark.parametrize("name", [*PARTS, "every third"])
def test_what_lies_beside_a_part_stays(device: str, name: str) -> None:
    """Also where something else is made of the tensor at the same time."""
    x, wanted = given(device), NUMBERS.copy()
    part = PARTS.get(name, slice(1, None, 3))
    new = values(NUMBERS[part].shape)
    alone = x.clone().realize()
    alone[part] = Tensor(new, device=device)
    before = x * 2
    x[part] = Tensor(new, device=device)
    wanted[part] = new
    after = x * 2
    Tensor.realize(after, x, before)
    np.testing.assert_array_equal(before.numpy(), NUMBERS * 2)
    np.testing.assert_array_equal(after.numpy(), wanted * 2)
    np.testing.assert_array_equal(x.numpy(), wanted)
    np.testing.assert_array_equal(alone.numpy(), wanted)


def at(place: int, device: str) -> Tensor:
    return Tensor(np.array(place, np.int32), device=device).realize()


ALL = slice(None)
LINES: dict[str, Callable[[Any], tuple[Any, Any]]] = {  # what is written, and with which values
    "x[i]": lambda i: (i, 0),
    "x[:, :, i]": lambda i: ((ALL, ALL, i), (ALL, ALL, 0)),
    "x[:, [i]]": lambda i: ((ALL, i.reshape(1)), (ALL, slice(1))),
    "x[i, 2]": lambda i: ((i, 2), (0, 0)),
    "x[i, i]": lambda i: ((i, i), (0, 0)),
}


def write(name: str, x: Any, i: Any, new: Any) -> None:
    if name in LINES:
        part, of = LINES[name](i)
        x[part] = new[of]
    elif isinstance(x, Tensor):
        x.assign(x.scatter(1, i.expand(33, 1, 64), new[:, :1]))
    else:
        x[:, i] = new[:, 0]


@pytest.mark.parametrize("name", [*LINES, "scatter"])
def test_a_place_that_data_name_is_all_that_is_touched(device: str, name: str) -> None:
    new = values(SHAPE)
    for i in (2, -1):
        x = given(device)
        write(name, x, at(i, device), Tensor(new, device=device).realize())
        if device == "CPU":
            assert not of_target(x)
        wanted = NUMBERS.copy()
        write(name, wanted, np.array(i), new)
        np.testing.assert_array_equal(x.numpy(), wanted)


@pytest.mark.parametrize("name", [*LINES, "scatter"])
def test_a_place_outside_leaves_everything_as_it_was(device: str, name: str) -> None:
    x = given(device)
    write(name, x, at(64, device), Tensor(values(SHAPE), device=device))
    with pytest.raises(IndexError, match="64"):
        x.numpy()
    np.testing.assert_array_equal(x.numpy(), NUMBERS)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_loop_over_slices_touches_the_slices(device: str, axis: int) -> None:
    x, wanted = given(device), NUMBERS.copy()
    with config.override(debug=1), trace.listen(trace.KernelRan) as ran:
        for i in range(4):
            part = (*(slice(None),) * axis, slice(i, i + 2))
            new = values(wanted[part].shape)
            wanted[part] = new
            x[part] = Tensor(new, device=device).realize()
            x.realize()
    np.testing.assert_array_equal(x.numpy(), wanted)
    assert all(e.program.cost.nbytes < NUMBERS.nbytes for e in ran)
    assert device == "NUMPY" or len(ran) == 4


def test_a_corner_of_running_sums_is_written_before_they_are_computed(device: str) -> None:
    """Some of what is left over beside vectors has sums, and some has none."""
    x = np.arange(36, dtype=np.int32).reshape(3, 3, 4)
    wanted, made = x.cumsum(0), Tensor(x).realize().cumsum(0)
    wanted[:-1, 1:] = 7
    made[:-1, 1:] = 7
    assert made.tolist() == wanted.tolist()


def test_several_writes_before_anything_is_computed_are_one_pass(device: str) -> None:
    x, wanted = given(device), NUMBERS.copy()
    for part in (0, slice(5, 9), (slice(None), 2)):
        new = values(wanted[part].shape)
        x[part] = Tensor(new, device=device)
        wanted[part] = new
    if device != "NUMPY":
        made = schedule([x.lazy])
        (k,) = stages.kernels_of(made)
        assert len(k.outputs) == len(made.in_place) == 1
    np.testing.assert_array_equal(x.numpy(), wanted)


@pytest.mark.parametrize("realized", [False, True])
def test_writes_of_what_was_written_elsewhere_come_in_order(device: str, realized: bool) -> None:
    x, wanted = given(device), NUMBERS.copy()
    for i in range(4):
        wanted[i + 1] = wanted[i] * 0.5 + 1
        x[i + 1] = x[i] * 0.5 + 1
        if realized:
            x.realize()
    np.testing.assert_array_equal(x.numpy(), wanted)


def test_what_is_assigned_and_asked_for_has_memory_of_its_own(device: str) -> None:
    x, new = given(device), values((1, 5, 64))
    y = x.scatter(0, at(3, device).expand(1, 5, 64), Tensor(new, device=device))
    x.assign(y)
    made = schedule([y.lazy, x.lazy])
    assert len({made.in_place.get(root, root) for root in made.roots}) == 2
    Tensor.realize(y, x)
    x[3] = 1
    wanted = NUMBERS.copy()
    wanted[3] = new[0]
    np.testing.assert_array_equal(y.numpy(), wanted)
    wanted[3] = 1
    np.testing.assert_array_equal(x.numpy(), wanted)


def test_a_captured_step_writes_where_its_argument_says(device: str) -> None:
    x, wanted = given(device), NUMBERS.copy()

    @TinyJit
    def step(place: Tensor, row: Tensor) -> Tensor:
        x[:, place] = row
        return x.sum(1).realize()

    for i in (0, 3, 1, 4, 4):
        row = values((33, 64))
        wanted[:, i] = row
        got = step(at(i, device), Tensor(row, device=device).realize())
        np.testing.assert_allclose(got.numpy(), wanted.sum(1), rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(x.numpy(), wanted)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("places", [[3, 1, -2], [1, 1, 4, 1], [[0, 2], [2, 0]]], ids=str)
def test_of_several_values_for_one_place_the_last_stays(
    device: str, axis: int, places: list[Any]
) -> None:
    x, wanted = given(device), NUMBERS.copy()
    part = (*(ALL,) * axis, np.array(places))
    new = values(wanted[part].shape)
    wanted[part] = new
    index = Tensor(part[-1], device=device).realize()
    x[(*part[:-1], index)] = Tensor(new, device=device).realize()
    if device == "CPU":
        *_, last = stages.kernels(x)
        assert cost(lower(last)).nbytes < 2.2 * new.nbytes
    np.testing.assert_array_equal(x.numpy(), wanted)


def test_only_the_value_that_stays_has_a_gradient(device: str) -> None:
    x, new = given(device), Tensor(values((3, 5, 64)), device=device, requires_grad=True)
    index = Tensor([7, 2, 7], device=device)
    old = x.clone().requires_grad_()
    y = old * 1
    y[index] = new
    (y * x).sum().backward()
    assert new.grad is not None
    assert old.grad is not None
    kept, written = NUMBERS.copy(), NUMBERS[[7, 2, 7]]
    kept[[2, 7]], written[0] = 0, 0
    np.testing.assert_array_equal(old.grad.numpy(), kept)
    np.testing.assert_array_equal(new.grad.numpy(), written)
