"""x[...] reads and writes the elements that numpy and torch say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinyml import Tensor, TinyJit, dtypes, lazy, no_grad
from tinyml.dtype import DType, int8, int64
from tinyml.interpret import toposort
from tinyml.ops import Op

Compare = Callable[..., None]
ROWS, COLUMN = np.array([0, -1, 1]), np.array([[1], [0]])


def _both(index: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(Tensor(i) if isinstance(i, np.ndarray) else i for i in index)


BASIC: list[tuple[Any, ...]] = [
    (0,),
    (-1, 2),
    (slice(1, None),),
    (slice(None, None, -2), slice(3, 0, -1)),
    (Ellipsis, slice(0, 5, 2)),
    (None, 1, Ellipsis, None),
    (slice(2, 1),),
    (slice(-2, None), slice(None), -1),
]
ADVANCED: list[tuple[Any, ...]] = [
    (ROWS,),
    (slice(None), ROWS),
    (slice(None), ROWS, COLUMN),
    (ROWS, slice(None), ROWS),
    (slice(1, None), None, ROWS, slice(None, None, 2)),
    ([0, 2], [1, 1]),
    (Ellipsis, COLUMN),
    ((True, False, True),),
]


def test_reading(device: str, compare: Compare) -> None:
    x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    compare({str(i): (Tensor(x)[_both(i)], x[i]) for i in BASIC + ADVANCED})


LISTS = [[2, 1, 0], [0, 2, 4], [-1, -2], [3], [0, 1, 2, 3, 4], [4, 1], [1, 1, 1], [-1, 0, 1], []]


@pytest.mark.parametrize("listed", LISTS, ids=str)
def test_a_list_of_numbers_that_are_alike_far_apart_is_a_slice(
    device: str, compare: Compare, listed: list[int]
) -> None:
    """Nothing is looked up then. It is no view of the tensor; two that are no neighbours are data,
    as other ones come with the next call."""
    array = np.arange(60, dtype=np.float32).reshape(3, 5, 4)
    t = Tensor(array, requires_grad=True)
    chosen = t[:, listed]
    looked = any(isinstance(node, lazy.Gather) for node in toposort([chosen.lazy]))
    assert looked == (listed in ([0, 1, 2, 3, 4], [4, 1], [1, 1, 1], [-1, 0, 1], []))
    taken, slope = array[:, listed], np.zeros_like(array)
    np.add.at(slope, (slice(None), listed), 2)
    with no_grad():
        copy = t[:, listed]
        copy += 1
    pairs = {"read": (chosen, taken), "copy": (copy, taken + 1), "from": (t, array)}
    pairs |= {"beside others": (t[1:, None, listed, 1:], array[1:, None, listed, 1:])}
    compare(pairs | {"gradient": ((chosen * 2).sum().gradient(t)[0], slope)})
    with pytest.raises(IndexError, match="index 5 is out of bounds for axis 1"):
        t[:, [3, 4, 5]]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "bool"])
def test_every_second_element_up_to_the_last(device: str, compare: Compare, dtype: str) -> None:
    """Vectors of them are taken out of whole vectors, which must not go beyond the memory."""
    x = np.arange(3 * 74).reshape(3, 74) % 7 % 2
    t = Tensor(x).cast(dtype).realize()
    pairs = {"all": (t.reshape(111, 2)[:, 1].float(), x.reshape(111, 2)[:, 1])}
    for first in (0, 1):
        ours, wanted = t[:, first::2].float(), x[:, first::2]
        pairs[f"from {first}, padded"] = ours.pad((1, 1)), np.pad(wanted, ((0, 0), (1, 1)))
    compare(pairs)


@pytest.mark.parametrize("step", [2, 33])
def test_bools_and_bytes_at_the_same_distances(device: str, compare: Compare, step: int) -> None:
    """Both are bytes in vectors, but not of one type in memory."""
    x = np.arange(64 * step, dtype=np.uint8).reshape(64, step)
    mask = x % 5 < 2
    t, m = Tensor(x).realize(), Tensor(mask).realize()
    compare({"chosen": (m[:, 0].where(t[:, 0], 3), np.where(mask[:, 0], x[:, 0], 3))})


def test_an_int_beside_tensors_is_a_slice_first_as_torch_has_it(device: str) -> None:
    x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    got = Tensor(x)[0, :, Tensor(ROWS)]
    np.testing.assert_array_equal(got.numpy(), x[0][:, ROWS])


@pytest.mark.parametrize("index", BASIC[:6] + ADVANCED[:5], ids=str)
def test_writing(device: str, index: tuple[Any, ...]) -> None:
    x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    t = Tensor(x).realize()
    value = -np.arange(x[index].size, dtype=np.float32).reshape(x[index].shape)
    t[_both(index)] = Tensor(value)
    x[index] = value
    t[0, 1] = 7
    x[0, 1] = 7
    t[1:, ::2] += 100
    x[1:, ::2] += 100
    np.testing.assert_array_equal(t.numpy(), x)


def test_writing_leaves_what_was_computed_before_alone(device: str) -> None:
    t = Tensor([1.0, 2.0, 3.0]).realize()
    copy, view, doubled = t[1:].clone(), t[1:], t * 2
    t[1] = 10
    Tensor.realize(copy, doubled, t)
    assert copy.tolist() == [2, 3]
    assert view.tolist() == [10, 3]
    assert doubled.tolist() == [2, 4, 6]
    assert t.tolist() == [1, 10, 3]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool"])
def test_one_number_is_written_where_many_indices_say(
    device: str, compare: Compare, rng: np.random.Generator, dtype: str
) -> None:
    """Places are vectors then, and the number is none."""
    pairs: dict[str, Any] = {}
    placed = rng.permutation(200)
    for count in (1, 8, 16, 37, 128):
        t, right = Tensor.ones(200, dtype=dtype).realize(), np.ones(200)
        t[Tensor(placed[:count])] = 0
        right[placed[:count]] = 0
        pairs[str(count)] = t.float(), right
    compare(pairs)


@pytest.mark.parametrize("count", [9, 15, 31])
def test_one_number_is_written_to_as_many_places_as_leave_lanes_over(
    device: str, count: int, rng: np.random.Generator
) -> None:
    x, value = np.arange(40, dtype=np.int32), np.array(-7, np.int32)
    places = rng.permutation(40)[:count]
    with_device = Tensor(x, device=device)
    with_device[Tensor(places, device=device)] = Tensor(value, device=device).realize()
    x[places] = value
    np.testing.assert_array_equal(with_device.numpy(), x)


def test_all_of_a_row_scattered_to_one_place(device: str, rng: np.random.Generator) -> None:
    source = rng.standard_normal((3, 40)).astype(np.float32)
    t, index = Tensor.zeros(3, 1), Tensor.zeros(3, 40, dtype="int32")
    summed = t.scatter_reduce(1, index, Tensor(source), "sum")
    highest = t.scatter_reduce(1, index, Tensor(source), "amax", include_self=False)
    np.testing.assert_allclose(summed.numpy()[:, 0], source.sum(1), 1e-5, 1e-5)
    np.testing.assert_array_equal(highest.numpy()[:, 0], source.max(1))


def test_what_is_scattered_to_places_that_are_folds_meets_weights(
    device: str, rng: np.random.Generator
) -> None:
    """A scatter is a kernel of its own, though nobody else reads the folds that it is made of."""
    numbers, slopes = rng.standard_normal((2, 8, 16)).astype(np.float32), []
    for place in (device, "NUMPY"):
        x = Tensor(numbers, device=place, requires_grad=True)
        (slope,) = x.softmax(-1).cummax(1).square().sum().gradient(x)
        slopes.append(slope.numpy())
    np.testing.assert_allclose(*slopes, 1e-4, 1e-6)


@pytest.mark.parametrize(("rows", "columns"), [(1, 9), (4, 9), (9, 40)])
def test_the_place_of_the_largest_is_where_something_is_read(
    rows: int, columns: int, device: str, compare: Compare, rng: np.random.Generator
) -> None:
    """In one kernel with what finds it, whose folds walk other axes than they were written with."""
    x, table = (rng.standard_normal(s).astype(np.float32) for s in ((rows, columns), (columns, 7)))
    t, places, rest = Tensor(table), Tensor(x).argmax(1), table[x.argmax(1)]
    both = Tensor.stack(places.float(), t[places, 0])
    compare(
        {
            "beside it": (both, np.stack([x.argmax(1), rest[:, 0]])),
            "folded again": (t[places].max(1) + Tensor(x).max(1), rest.max(1) + x.max(1)),
            "of a column": (Tensor(x)[:, t[:, 0].argmax()], x[:, table[:, 0].argmax()]),
        }
    )


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_halves_that_one_place_gets_are_added_up_as_floats(device: str, dtype: DType) -> None:
    """As in a sum of them: in halves 2048 more ones, or 256, would not show."""
    table = Tensor.zeros(3, 2).cast(dtype).realize().requires_grad_()
    (grad,) = table[Tensor.ones(5000, dtype=dtypes.int32)].sum().gradient(table)
    right = np.float32(5000) if dtype is dtypes.float16 else 4992
    np.testing.assert_array_equal(grad.float().numpy()[:, 0], [0, right, 0])


def test_gather_and_scatter(device: str, compare: Compare, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 4)).astype(np.float32)
    index = np.array([[0, 2, -1, 1], [2, 2, 0, 1]])
    source = rng.standard_normal((2, 4)).astype(np.float32)
    t, i, s = Tensor(x), Tensor(index), Tensor(source)
    last, added = x.copy(), x.copy()
    for row in range(2):
        last[index[row], np.arange(4)] = source[row]
    np.add.at(added, (index, np.arange(4)[None]), source)
    highest = x.copy()
    np.maximum.at(highest, (index, np.arange(4)[None]), source)
    compare(
        {
            "gather": (t.gather(0, i), np.take_along_axis(x, index, 0)),
            "scatter": (t.scatter(0, i, s), last),
            "add": (t.scatter(0, i, s, reduce="add"), added),
            "amax": (t.scatter_reduce(0, i, s, "amax"), highest),
            "sum": (
                t.scatter_reduce(0, i, s, "sum", include_self=False),
                _summed(x, index, source),
            ),
            "any": (
                (t > 0).scatter_reduce(0, i, s > 0, "sum", include_self=False),
                _summed(x, index, np.maximum(source, 0)) > 0,
            ),
            "one_hot": (Tensor([1, 0]).one_hot(3), np.eye(3)[[1, 0]]),
            "selected": (t.masked_select(t > 0), x[x > 0]),
        }
    )


def test_classes_are_compared_as_narrow_integers() -> None:
    """Twice as many of them are in a vector; that they are in range is known before."""
    made = Tensor(np.array([1, 0])).one_hot(3)
    compared = [node for node in toposort([made.lazy]) if node.arg is Op.EQUAL]
    assert [source.dtype for node in compared for source in node.sources] == [dtypes.int32] * 2


def _summed(x: np.ndarray, index: np.ndarray, source: np.ndarray) -> np.ndarray:
    out, places = x.copy(), (index, np.arange(4)[None])
    out[places] = 0
    np.add.at(out, places, source)
    return out


def test_large_tables_are_read_by_rows(device: str) -> None:
    table = Tensor(np.arange(3000, dtype=np.float32).reshape(1000, 3), requires_grad=True)
    rows = Tensor([7, 999, 7])
    picked = table[rows]
    picked.sum().backward()
    assert table.grad is not None
    Tensor.realize(picked, table.grad)
    assert picked[1].tolist() == [2997, 2998, 2999]
    assert table.grad.numpy().sum(1)[[7, 8, 999]].tolist() == [6, 0, 3]


def test_a_mask_of_numpy_is_not_read_from_a_device(device: str, compare: Compare) -> None:
    mask = np.array([True, False, True])

    @TinyJit
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        chosen = x[mask] * 2
        x[mask, 1:] = Tensor([[7.0], [8.0]])
        return chosen, x + 0

    for start in (0, 10, 20):
        array = np.arange(start, start + 6).reshape(3, 2).astype(np.float32)
        chosen, rest = step(Tensor(array.copy()).realize())
        wanted = array.copy()
        wanted[mask, 1:] = [[7], [8]]
        compare({"read": (chosen, array[mask] * 2), "written": (rest, wanted)})


@pytest.mark.parametrize("n", [131, 1031])
def test_places_beyond_one_dtype_are_of_the_next(
    n: int, device: str, compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those beyond int32 are int64, which here those beyond int8 are."""
    monkeypatch.setattr("tinyml.dtype.INDICES", (int8, int64))
    rng = np.random.default_rng(0)
    x, rows = rng.permutation(n).astype(np.float32), np.arange(n)
    order = np.argsort(-x, kind="stable")
    t, few = Tensor(x).realize(), Tensor(order[:3].copy())
    at = rng.integers(0, n, n)
    last = np.zeros(n, np.float32)
    last[at] = x
    written = Tensor.zeros(n).contiguous()
    written[Tensor(at)] = t
    source = Tensor(x[None], requires_grad=True)
    picked = source.gather(1, Tensor([[n - 1]]))
    best, place = t.reshape(1, 1, 1, n).max_pool2d((1, n), return_indices=True)
    compare(
        {
            "argmax": (t.argmax(), x.argmax()),
            "argsort": (t.argsort(descending=True), order),
            **{f"topk {k}": (t.topk(k).indices, order[:k]) for k in (1, 3, 20, 60)},
            "cat": (t.cat(t, t), np.concatenate([x, x, x])),
            "eye": (Tensor.eye(n, 2), np.eye(n, 2)),
            "linspace": (Tensor.linspace(0, n - 1, n), rows),
            "triangle": (t.reshape(1, n).tril(n - 2), np.tril(x[None], n - 2)),
            "one_hot": (few.one_hot(n), np.eye(n)[order[:3]]),
            "nonzero": ((t > n - 3).nonzero(), np.argwhere(x > n - 3)),
            "scatter": (Tensor.zeros(n).scatter(0, Tensor(at), t), last),
            "assignment": (written, last),
            "gradient": (picked.gradient(source)[0], rows[None] == n - 1),
            "pool": (place.reshape(()), x.argmax()),
            "pool's values": (best.reshape(()), n - 1),
        }
    )
    assert t.argmax().dtype is t.argsort().dtype is t.topk(3).indices.dtype is int64


def test_places_of_a_long_axis_are_asked_from_both_ends(compare: Compare) -> None:
    """From -n to n - 1 there are more than int32 counts; nobody has the elements in memory."""
    n, at = (1 << 30) + 8, np.array([0, 1 << 30, (1 << 30) + 7, -8, -1, 3, 2, 5] * 4, np.int32)
    counted = Tensor.arange(n, device="CPU")  # numpy's interpreter would make all of them
    compare({"places": (counted[Tensor(at, device="CPU")], at + n * (at < 0))})
