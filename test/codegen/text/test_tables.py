"""Small tables that are looked up in registers, and numbers that are packed in bytes."""

import numpy as np
import numpy.typing as npt
import pytest

from tinyml import Tensor, dtypes, trace

SIZES = [1, 5, 16, 19, 32, 33]


def texts_of(x: Tensor) -> tuple[Tensor, str]:
    with trace.listen(trace.KernelLowered) as made:
        x.realize()
    return x, "".join(kernel.program.source for kernel in made)


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32", "bfloat16", "float64", "bool"])
def test_each_element_is_that_of_its_number(dtype: str, device: str) -> None:
    rng = np.random.default_rng(6)
    found: list[Tensor] = []
    right: list[npt.NDArray[np.float64]] = []
    for size in SIZES:
        entries = Tensor(rng.integers(0, 100, (3, size)), device=device)
        rows = entries.cast(getattr(dtypes, dtype)).realize()
        for n, (row, index) in enumerate(
            [(rows[1], "int32"), (rows[2], "int64"), (rows[0], "uint8")]
        ):
            at = rng.integers(0 if index == "uint8" else -size, size, 275 + n).astype(index)
            found.append(row[Tensor(at, device=device)])
            right.append(row.cast(dtypes.float64).numpy()[at])
        at = rng.integers(0, size // 2 + 1, 70).astype(np.int32)
        found.append(rows[2, : size // 2 + 1][Tensor(at, device=device)])
        right.append(rows[2].cast(dtypes.float64).numpy()[at])
    Tensor.realize(*found)
    for made, known in zip(found, right, strict=True):
        np.testing.assert_array_equal(made.cast(dtypes.float64).numpy(), known)


def test_a_number_that_the_table_lacks_is_an_error(device: str) -> None:
    at = np.arange(64) % 16
    at[37] = 16
    with pytest.raises(IndexError, match="16 is out of bounds"):
        Tensor(np.arange(16.0), device=device)[Tensor(at, device=device)].realize()


def test_a_table_of_two_vectors_at_most_is_held_in_registers() -> None:
    at = Tensor(np.arange(640, dtype=np.int32) % 4, device="CPU").realize()
    for size, held in ((16, True), (300, False)):
        table = Tensor(np.arange(size, dtype=np.float32), device="CPU").realize()
        if "f32x4" in (text := texts_of(table[at] + 1)[1]):
            pytest.skip("vectors of 16 bytes, which have no instruction for it on x86")
        assert ("entry" in text) is held


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_bits_of_small_integers_are_those_of_numpy(dtype: str, device: str) -> None:
    rng, info = np.random.default_rng(5), np.iinfo(dtype)
    values = rng.integers(info.min, info.max, 131, dtype=dtype, endpoint=True)
    counts = rng.integers(0, 20, 131).astype(dtype)
    x, n = Tensor(values, device=device), Tensor(counts, device=device)
    chosen = Tensor.where(x > 3, (x >> n) & 7, (x ^ n) >> 3)
    targets = ["float32", "int64", "uint32", "float16"]
    made = [chosen.cast(getattr(dtypes, to)) for to in targets]
    Tensor.realize(*made)
    width = np.minimum(counts, values.itemsize * 8 - 1)
    moved = np.where(counts < values.itemsize * 8, values >> width, np.where(values < 0, -1, 0))
    right = np.where(values > 3, moved.astype(dtype) & 7, (values ^ counts) >> 3)
    for cast, to in zip(made, targets, strict=True):
        np.testing.assert_array_equal(cast.numpy(), right.astype(to))


@pytest.mark.parametrize("way", ["stacked", "shifted", "halves"])
def test_weights_of_four_bits_are_unpacked_in_registers(way: str, device: str) -> None:
    """Two of a byte beside each other, or those of half a group before those of the other."""
    rng, groups, size = np.random.default_rng(3), 5, 32
    numbers = rng.integers(0, 16, (7, groups, size), dtype=np.uint8)
    scales = rng.standard_normal((7, groups, 1)).astype(np.float32)
    x = rng.standard_normal((3, groups * size)).astype(np.float32)
    pairs = numbers.reshape(7, groups, size // 2, 2)
    if way == "halves":
        pairs = numbers.reshape(7, groups, 2, size // 2).swapaxes(2, 3)
    packed = Tensor(pairs[..., 0] | pairs[..., 1] << 4, device=device).realize()
    shifts = Tensor(np.array([0, 4], np.uint8), device=device)
    unpacked = {
        "stacked": lambda: Tensor.stack([packed & 15, packed >> 4], axis=-1),
        "shifted": lambda: packed.unsqueeze(-1) >> shifts & 15,
        "halves": lambda: Tensor.cat(packed & 15, packed >> 4, axis=-1),
    }[way]()
    whole = unpacked.reshape(7, groups, size)
    wide = (whole.cast(dtypes.float32) - 8) * Tensor(scales, device=device)
    made, text = texts_of(Tensor(x, device=device) @ wide.reshape(7, -1).T)
    right = x.astype(np.float64) @ ((numbers - 8.0) * scales).reshape(7, -1).T
    np.testing.assert_allclose(made.numpy(), right, rtol=1e-4, atol=1e-4)
    if device == "CPU":
        assert "{slot" not in text.replace(" ", "")  # no list of bytes, read one by one
    levels = np.sort(rng.standard_normal(16)).astype(np.float32)
    looked = Tensor(levels, device=device)[whole.cast(dtypes.int32)]
    right = x.astype(np.float64) @ (levels.astype(np.float64)[numbers] * scales).reshape(7, -1).T
    scaled = (looked * Tensor(scales, device=device)).reshape(7, -1)
    made = Tensor(x, device=device) @ scaled.T
    np.testing.assert_allclose(made.numpy(), right, rtol=1e-4, atol=1e-4)


def test_a_choice_of_what_is_joined_asks_each_condition_once() -> None:
    """Arrays put side by side are moved, with 0 elsewhere, before one of them is chosen."""
    parts = [Tensor(np.full(640, n, np.float32), device="CPU").realize() for n in range(5)]
    with trace.listen(trace.KernelLowered) as made:
        joined = (Tensor.stack(parts, axis=-1) * 2).realize()
    assert all("else 0" not in str(kernel.nest) for kernel in made)
    np.testing.assert_array_equal(joined.numpy(), np.tile(np.arange(5) * 2.0, (640, 1)))


@pytest.mark.parametrize("rows", [2, 8, 130])
def test_weights_of_four_bits_take_no_memory_for_few_rows(rows: int, device: str) -> None:
    """Not on a card, where nobody measured what is faster."""
    rng = np.random.default_rng(rows)
    x, packed = rng.standard_normal((rows, 128)), rng.integers(0, 256, (48, 4, 16), np.uint8)
    scales = rng.standard_normal((48, 4, 1))
    held = Tensor(packed, device=device).realize()
    numbers = Tensor.stack([held & 15, held >> 4], axis=-1).reshape(48, 4, 32)
    floats = [Tensor(a.astype(np.float32), device=device).realize() for a in (x, scales)]
    wide = ((numbers.cast(dtypes.float32) - 8) * floats[1]).reshape(48, 128)
    with trace.listen(trace.Scheduled) as plans:
        made = (floats[0] @ wide.T).realize()
    if device == "CPU":
        assert [len(plan.items) for plan in plans] == [1 if rows <= 8 else 2]
    right = np.stack([packed & 15, packed >> 4], -1).reshape(48, 4, 32) - 8.0
    np.testing.assert_allclose(made.numpy(), x @ (right * scales).reshape(48, 128).T, 1e-4, 1e-4)
