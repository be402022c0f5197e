"""Programs of views, in-place writes and readers give what numpy gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tinyml import Tensor
from tinyml.device import Device
from tinyml.errors import ShapeError

Array = npt.NDArray[Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]
quick = settings(max_examples=40)


class Twins:
    """Tensors, and numpy arrays that alias each other in the same way."""

    def __init__(self, draw: Draw, tensors: list[Tensor], arrays: list[Array]) -> None:
        self.draw, self.told = draw, list[str]()
        self.tensors, self.arrays = tensors, arrays

    def one(self) -> int:
        return int(self.draw(st.integers(0, len(self.tensors) - 1)))

    def tell(self, text: str) -> None:
        self.told.append(text)

    def add(self, tensor: Tensor, array: Array, text: str) -> None:
        self.tensors.append(tensor)
        self.arrays.append(np.asarray(array))
        self.tell(f"t{len(self.tensors) - 1} = {text}")

    @contextmanager
    def unless_repeated(self) -> Iterator[None]:
        """What an expand shows several times cannot be written to."""
        try:
            yield
        except ShapeError as error:
            if "several elements of the target are one" not in str(error):
                raise
            self.tell("refused:")

    def like(self, shape: tuple[int, ...]) -> tuple[Any, Array, str]:
        """A value for this shape: a number, or what some tensor holds, perhaps reversed."""
        fitting = [n for n, a in enumerate(self.arrays) if a.shape == shape]
        if not fitting or self.draw(st.integers(0, 3)) == 0:
            number = self.draw(st.integers(-4, 4))
            return float(number), np.full(shape, number, np.float32), str(number)
        n = self.draw(st.sampled_from(fitting))
        if shape and self.draw(st.booleans()):
            axes = tuple(a for a in range(len(shape)) if self.draw(st.booleans()))
            return self.tensors[n].flip(axes), np.flip(self.arrays[n], axes).copy(), f"t{n}.flip"
        if len(shape) == 2 and shape[0] == shape[1] and self.draw(st.booleans()):
            return self.tensors[n].T, self.arrays[n].T.copy(), f"t{n}.T"
        return self.tensors[n], self.arrays[n].copy(), f"t{n}"

    def basic(self, shape: tuple[int, ...]) -> tuple[Any, ...]:
        """Integers, slices with steps, None and dots."""
        bound = st.none() | st.integers(-4, 4)
        step = st.sampled_from([None, 1, 2, -1, -2])
        items: list[Any] = []
        for n in shape[: self.draw(st.integers(0, len(shape)))]:
            if n and self.draw(st.integers(0, 2)) == 0:
                items.append(self.draw(st.integers(-n, n - 1)))
            else:
                items.append(slice(self.draw(bound), self.draw(bound), self.draw(step)))
        if self.draw(st.integers(0, 4)) == 0:
            items.append(Ellipsis)
        if self.draw(st.integers(0, 4)) == 0:
            items.insert(self.draw(st.integers(0, len(items))), None)
        return tuple(items)

    def advanced(self, shape: tuple[int, ...]) -> tuple[Any, ...]:
        """Slices, and integers or a mask for one axis: duplicates count, the last one wins."""
        axis = self.draw(st.integers(0, len(shape) - 1))
        n = shape[axis]
        if self.draw(st.booleans()) or not n:
            chosen = np.array(self.draw(st.lists(st.booleans(), min_size=n, max_size=n)), bool)
        else:
            places = st.lists(st.integers(-n, n - 1), min_size=1, max_size=4)
            chosen = np.array(self.draw(places), np.int64)
        before = (slice(None, None, self.draw(st.sampled_from([1, 2, -1]))),) * axis
        return (*before, chosen)


def _ours(x: Tensor, index: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(Tensor(i, x.device) if isinstance(i, np.ndarray) else i for i in index)


def _indexed(a: Array, index: tuple[Any, ...]) -> Array:
    """A view, also where one number is left."""
    return np.asarray(a[index] if Ellipsis in index else a[(*index, Ellipsis)])


# ---- steps ----


def _view(t: Twins) -> None:
    n = t.one()
    x, a = t.tensors[n], t.arrays[n]
    kind = t.draw(
        st.sampled_from(["index", "index", "T", "detach", "flat", "repeated", "diagonal"])
    )
    if kind == "index":
        index = t.basic(a.shape)
        t.add(x[index], _indexed(a, index), f"t{n}[{index}]")
    elif kind == "T":
        t.add(x.T, a.T, f"t{n}.T")
    elif kind == "repeated" and a.ndim:
        repeated = np.lib.stride_tricks.as_strided(a[:1], (2, *a.shape[1:]), (0, *a.strides[1:]))
        if a.shape[0]:
            t.add(x[:1].expand(2, *a.shape[1:]), repeated, f"t{n}[:1].expand(2, ..)")
    elif kind == "diagonal" and a.ndim == 2:
        t.add(
            x.diagonal(), np.einsum("ii->i", a[: min(a.shape), : min(a.shape)]), f"t{n}.diagonal()"
        )
    elif kind == "detach":
        t.add(x.detach(), a[...], f"t{n}.detach()")
    elif a.flags.c_contiguous:
        t.add(x.reshape(-1), a.reshape(-1), f"t{n}.reshape(-1)")


def _derive(t: Twins) -> None:
    """A value: what is read now, whenever it is computed."""
    n = t.one()
    x, a = t.tensors[n], t.arrays[n]
    kind = t.draw(st.sampled_from(["clone", "scale", "sum", "cast"]))
    if kind == "clone":
        t.add(x.clone(), a.copy(), f"t{n}.clone()")
    elif kind == "scale":
        t.add((x * 2 - 1).clip(-9, 9), np.clip(a * 2 - 1, -9, 9), f"(t{n} * 2 - 1).clip(-9, 9)")
    elif kind == "cast":
        t.add(x.int().float() * 0.5, np.trunc(a) * np.float32(0.5), f"t{n}.int().float() * 0.5")
    elif a.ndim:
        found = np.clip(a.sum(0, keepdims=True) - a, -9, 9)
        t.add((x.sum(0, keepdim=True) - x).clip(-9, 9), found, f"t{n}.sum(0) - t{n}")


def _siblings(t: Twins) -> None:
    """Views of a value that nobody holds."""
    n = t.one()
    x, a = t.tensors[n] * 0.5, np.asarray(t.arrays[n] * np.float32(0.5))
    index = t.basic(a.shape)
    t.add(x[index], _indexed(a, index), f"(t{n} * 0.5)[{index}]")
    t.add(x.T, a.T, "the same .T")


def _forget(t: Twins) -> None:
    n = t.one()
    if len(t.tensors) > 2:
        del t.tensors[n], t.arrays[n]
        t.tell(f"forget t{n}: the later ones move up")


def _differentiate(t: Twins) -> None:
    """A gradient of what a tensor holds now."""
    n = t.one()
    x, a = t.tensors[n], t.arrays[n]
    (grad,) = (x * x).sum().gradient(x)
    t.add(grad.clip(-9, 9), np.clip(2 * a, -9, 9), f"the gradient of t{n} squared")


def _assign(t: Twins) -> None:
    n = t.one()
    value, array, text = t.like(t.arrays[n].shape)
    with t.unless_repeated():
        t.tensors[n].assign(value)
        t.arrays[n][...] = array
    t.tell(f"t{n}.assign({text})")


def _in_place(t: Twins) -> None:
    n = t.one()
    x, a = t.tensors[n], t.arrays[n]
    value, array, text = t.like(a.shape)
    with t.unless_repeated():
        x += value
        a += array
        x *= 0.5
        a *= 0.5
    t.tell(f"t{n} += {text}; t{n} *= 0.5")


def _set(t: Twins) -> None:
    n = t.one()
    x, a = t.tensors[n], t.arrays[n]
    index = t.basic(a.shape) if not a.ndim or t.draw(st.booleans()) else t.advanced(a.shape)
    value, array, text = t.like(a[index].shape)
    more = t.draw(st.booleans())
    with t.unless_repeated():
        if more:
            x[_ours(x, index)] += value
            a[index] += array
        else:
            x[_ours(x, index)] = value
            a[index] = array
    t.tell(f"t{n}[{index}] {'+=' if more else '='} {text}")


def _shift(t: Twins) -> None:
    """A tensor copied onto itself."""
    n = t.one()
    x, a = t.tensors[n], t.arrays[n]
    if a.ndim:
        with t.unless_repeated():
            x[1:] = x[:-1]
            a[1:] = a[:-1].copy()
        t.tell(f"t{n}[1:] = t{n}[:-1]")


def _other_device(t: Twins) -> None:
    n = t.one()
    x = t.tensors[n]
    with t.unless_repeated():
        x.assign(x.to("CPU" if x.device == "NUMPY" else "NUMPY").to(x.device) + 1)
        t.arrays[n][...] = t.arrays[n] + 1
    t.tell(f"t{n}.assign(elsewhere + 1)")


def _realize(t: Twins) -> None:
    n, m = t.one(), t.one()
    Tensor.realize(t.tensors[n], t.tensors[m])
    t.tell(f"realize(t{n}, t{m})")


def _look(t: Twins) -> None:
    n = t.one()
    np.testing.assert_allclose(t.tensors[n].numpy(), t.arrays[n], 1e-5, 1e-5, err_msg=f"t{n}")
    t.tell(f"look at t{n}")


WRITES = (
    _view, _view, _view, _siblings, _derive, _derive, _differentiate, _assign, _in_place, _set,
    _set, _shift, _forget,
)  # fmt: skip


def _start(device: str) -> tuple[list[Tensor], list[Array]]:
    values = np.random.default_rng(0).integers(-4, 5, (2, 3, 3)).astype(np.float32)
    return [Tensor(v.copy(), device=device).realize() for v in values], [v.copy() for v in values]


@pytest.mark.parametrize("device", ["NUMPY", "CPU"])
@quick
@given(data=st.data())
def test_random_programs_of_views(device: str, data: st.DataObject) -> None:
    if not Device.available(device):
        pytest.skip(f"{device} does not answer")
    twins = Twins(data.draw, *_start(device))
    for _ in range(data.draw(st.integers(1, 9))):
        data.draw(st.sampled_from((*WRITES, _other_device, _realize, _look)))(twins)
    note("\n".join(twins.told))
    for n in data.draw(st.permutations(range(len(twins.tensors)))):
        got, wanted = twins.tensors[n].numpy(), twins.arrays[n]
        np.testing.assert_allclose(got, wanted, 1e-4, 1e-4, err_msg=f"t{n}")
