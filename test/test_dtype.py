"""Which dtype an op computes in: torch's lattice, with weak Python numbers."""

from __future__ import annotations

import numpy as np
import pytest

from tinyml import Tensor, dtypes
from tinyml.dtype import by_name, promote
from tinyml.dtypes import DTYPES_DICT, least_upper_dtype, least_upper_float

# torch.promote_types, written out: each row against the columns in the same order
ORDER = ["bool", "uint8", "int8", "int16", "int32", "int64"]
ORDER += ["float16", "bfloat16", "float32", "float64"]
TABLE = """
bool     uint8   int8    int16   int32   int64   float16 bfloat16 float32 float64
uint8    uint8   int16   int16   int32   int64   float16 bfloat16 float32 float64
int8     int16   int8    int16   int32   int64   float16 bfloat16 float32 float64
int16    int16   int16   int16   int32   int64   float16 bfloat16 float32 float64
int32    int32   int32   int32   int32   int64   float16 bfloat16 float32 float64
int64    int64   int64   int64   int64   int64   float16 bfloat16 float32 float64
float16  float16 float16 float16 float16 float16 float16 float32  float32 float64
bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 float32 bfloat16 float32 float64
float32  float32 float32 float32 float32 float32 float32 float32  float32 float64
float64  float64 float64 float64 float64 float64 float64 float64  float64 float64
"""


def test_promotion_is_torchs() -> None:
    rows = [line.split() for line in TABLE.strip().splitlines()]
    for a, row in zip(ORDER, rows, strict=True):
        for b, wanted in zip(ORDER, row, strict=True):
            assert promote(by_name(a), by_name(b)).name == wanted, (a, b)


@pytest.mark.parametrize("name", ORDER)
def test_python_numbers_are_weak(name: str) -> None:
    x = Tensor([1, 0], dtype=name)
    own = by_name(name)
    assert (x + 2).dtype is (dtypes.default_int if name == "bool" else own)
    assert (x + 2.5).dtype is (own if own.is_float else dtypes.float32)
    assert (2 * x).dtype is (x * 2).dtype
    assert (x == 1).dtype is dtypes.bool
    assert (x > 0).where(x, x).dtype is own
    assert (x / 2).dtype is least_upper_float(own)


def test_result_dtypes() -> None:
    ints, half = Tensor([1, 2]), Tensor([1.0, 2.0]).half()
    assert Tensor([1, 2]).dtype is dtypes.int32
    assert Tensor([1, 2**40]).dtype is dtypes.int64
    assert Tensor([1.5]).dtype is dtypes.float32
    assert Tensor(np.array([1.5])).dtype is dtypes.float64
    assert Tensor([True]).dtype is dtypes.bool
    assert ints.exp().dtype is dtypes.float32
    assert ints.sum().dtype is dtypes.int64
    assert ints.mean().dtype is dtypes.float32
    assert half.softmax().dtype is dtypes.float16
    assert (half @ half).dtype is dtypes.float16
    assert ints.argmax().dtype is dtypes.int32
    assert Tensor.arange(3).dtype is dtypes.int32
    assert Tensor.arange(3.0).dtype is dtypes.float32


def test_casts(device: str) -> None:
    x = Tensor([-1.7, 0.0, 1.7, 300.0])
    results = [x.int(), x.bool(), x.cast("uint8"), x.half(), x.cast("bfloat16"), x.bitcast("int32")]
    results[0].realize(*results[1:])
    assert results[0].tolist() == [-1, 0, 1, 300]
    assert results[1].tolist() == [True, False, True, True]
    assert results[2].tolist()[1:] == [0, 1, 44]
    assert results[3].numpy().dtype == np.float16
    np.testing.assert_allclose(results[4].numpy(), x.numpy(), rtol=1e-2)
    np.testing.assert_array_equal(results[5].numpy(), x.numpy().view(np.int32))


def test_halves_accumulate_in_float32(device: str) -> None:
    row = Tensor(np.full((1, 3000), 1.001, np.float16))
    product = row @ row.T
    assert product.item() == pytest.approx(3006, rel=2e-3)  # adding up halves would stop at 2048


def test_the_namespace() -> None:
    assert dtypes.half is dtypes.float16
    assert set(dtypes.fields()) == set(DTYPES_DICT)
    assert least_upper_dtype(dtypes.int8, dtypes.uint8) is dtypes.int16
    assert dtypes.min(dtypes.int8) == -128
    assert dtypes.max(dtypes.float32) == np.inf
    assert dtypes.finfo(dtypes.float16) == (5, 10)
    assert dtypes.from_py([1, 2.0]) is dtypes.default_float
    assert dtypes.is_unsigned(dtypes.uint8)
