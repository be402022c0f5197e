"""Which dtype an op computes in: torch's lattice, with weak numbers; and what whole numbers do."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from tinyml import Tensor, defaults, dtypes
from tinyml.dtype import by_name, promote
from tinyml.dtypes import DTYPES_DICT, least_upper_dtype, least_upper_float
from tinyml.errors import DTypeError
from tinyml.interpret import rounded

torch = pytest.importorskip("torch", reason="torch is an optional reference: pip install torch")
NAMES = [d.name for d in dtypes.all]

OPERATORS = [operator.add, operator.mul, operator.sub, operator.truediv, operator.floordiv]
OPERATORS += [operator.mod, operator.pow, operator.eq, operator.lt, operator.and_, operator.lshift]


def _method(name: str, x: Any, y: Any) -> Any:
    return getattr(x, name)(y)


METHODS = [partial(_method, name) for name in ("atan2", "copysign", "logaddexp", "maximum")]


def _dtype_of(op: Callable[..., Any], *operands: Any) -> str:
    """The name of the result's dtype, or "" where the library has none."""
    try:
        return str(op(*operands).dtype).removeprefix("torch.")
    except (RuntimeError, TypeError):
        return ""


def _disagree(op: Callable[..., Any], ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> str:
    """What is wrong with our dtype, where torch has one ("" if nothing)."""
    wanted, got = _dtype_of(op, *theirs), _dtype_of(op, *ours)
    narrow = (got, wanted) == ("int32", "int64")  # a Python int is an int32 here
    return "" if not wanted or got == wanted or narrow else f"{op}: {got}, not {wanted}"


def test_a_dtype_is_equal_to_its_names_and_to_types_of_numpy() -> None:
    """As numpy's are: who compares with a string is not told False in silence."""
    for found in dtypes.all:
        equal = [name for name in DTYPES_DICT if found == name]
        assert [DTYPES_DICT[name] for name in equal] == [found, found][: len(equal)]
        assert found.name in equal
        assert (found == dtypes.int8) == (found is dtypes.int8)

    class Named:
        dtype = "of no array"

    own, equal = dtypes.float32, ("float32", "float", np.float32, np.dtype("float32"))
    assert all(own == other and other == own for other in equal)
    assert not any(own != other for other in equal)
    others = ("float16", "flaot32", float, np.floating, np.dtype("O"), Named, None, 4)
    assert not any(own == other or other == own for other in others)
    assert own != dtypes.float64
    assert any(dtypes.float64 == other for other in (float,))
    assert {own: 1}[own] == 1


@pytest.mark.parametrize("a", NAMES)
def test_any_two_dtypes_are_promoted_as_torch_does(a: str) -> None:
    """Tensors with axes and without; a Python number on either side."""
    wrong = []
    for shape, b, other in product([(2,), ()], NAMES, [(2,), ()]):
        ours = Tensor.ones(shape, dtype=a), Tensor.ones(other, dtype=b)
        theirs = [torch.ones(s, dtype=getattr(torch, d)) for s, d in ((shape, a), (other, b))]
        wrong += [_disagree(op, ours, tuple(theirs)) for op in (*OPERATORS, *METHODS)]
    mine, yours = Tensor.ones(2, dtype=a), torch.ones(2, dtype=getattr(torch, a))
    for op, number in product(OPERATORS, (True, 2, 2.5)):
        wrong.append(_disagree(op, (mine, number), (yours, number)))
        wrong.append(_disagree(op, (number, mine), (number, yours)))
    assert [w for w in wrong if w] == []


def test_promotion_is_a_lattice() -> None:
    """The smallest dtype above both: whatever the order, and whatever the grouping but for one."""
    for a, b in product(dtypes.all, dtypes.all):
        assert promote(a, b) is promote(b, a)
        assert promote(a, a) is a
        assert not promote(a, b) < a
    assert least_upper_dtype(dtypes.int64, dtypes.uint64) is dtypes.uint64
    assert least_upper_dtype(dtypes.uint16, dtypes.int16) is dtypes.int32
    assert dtypes.int8 < dtypes.int16 < dtypes.float16 < dtypes.float32
    assert not dtypes.int8 < dtypes.uint8


@pytest.mark.parametrize("name", NAMES)
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
    results = [x.int(), x.bool(), x.cast("uint8"), x.half(), x.bfloat16(), x.bitcast("int32")]
    results[0].realize(*results[1:])
    assert results[0].tolist() == [-1, 0, 1, 300]
    assert results[1].tolist() == [True, False, True, True]
    assert results[2].tolist()[1:] == [0, 1, 44]
    assert results[3].numpy().dtype == np.float16
    np.testing.assert_allclose(results[4].numpy(), x.numpy(), rtol=1e-2)
    np.testing.assert_array_equal(results[5].numpy(), x.numpy().view(np.int32))


def test_a_number_that_is_cast_wraps_around(device: str) -> None:
    """As an element of memory does, though it is known when code is generated."""
    places = Tensor.arange(3)
    cases = (300, "uint8", 44), (200, "int8", -56), (-1, "uint32", 2**32 - 1), (-1, "uint8", 255)
    for value, dtype, wrapped in cases:
        number = Tensor.full((3,), value, dtype="int32").cast(dtype)
        results = [number.cast("int64") + places, number.cast("float64") + places]
        Tensor.realize(*results)
        assert all(x.tolist() == [wrapped, wrapped + 1, wrapped + 2] for x in results), dtype


def test_an_element_that_the_dtype_does_not_have_is_refused() -> None:
    x, yes = Tensor([1, 2], dtype="int8"), Tensor([True, False])
    made: dict[str, Callable[[Any], Tensor]] = {
        "Tensor": lambda n: Tensor([1, n], dtype="int8") + Tensor(n, dtype="int8"),
        "full": lambda n: Tensor.full((2,), n, dtype="int8"),
        "full_like": lambda n: x.full_like(n),
        "where": lambda n: yes.where(x, n) + yes.where(n, x),
        "maximum": lambda n: x.maximum(n),
        "minimum": lambda n: x.minimum(n),
        "pad": lambda n: x.pad((1, 1), value=n),
        "scatter": lambda n: x.scatter(0, Tensor([0]), n),
        "masked_fill": lambda n: x.masked_fill(yes, n),
        "arange": lambda n: Tensor.arange(0, n + 1, n, dtype="int8"),
    }
    for name, make in made.items():
        assert make(127).dtype is dtypes.int8
        with pytest.raises(OverflowError, match=f"{name}: int8 .* -128 to 127, and not 128"):
            make(128)
    for value in (-1, [-1, 2**63], [2**64], float("nan")):
        with pytest.raises(OverflowError, match="Tensor: uint64 has the integers from 0"):
            Tensor(value, dtype="uint64")
    with pytest.raises(OverflowError, match="not 300"):
        x[0] = 300
    assert x.tolist() == [1, 2]


def test_casts_out_of_range_are_as_documented(device: str) -> None:
    """By way of int64, whose least value stands for what it cannot hold: docs/dtypes.md.

    The same in vectors and alone.
    """
    odd = [float("nan"), float("inf"), -1e20, 3e9, -3e9, 300.7, -1.5]
    odd += [-(2.0**31), 2.0**31, 3 * 2.0**53, 2.0**55, 8388607.5]
    odd += [2.0**54 + 2**31, -(2.0**54) - 2**31]
    x = Tensor(odd * 3).contiguous()  # whole vectors and a rest
    names = ["int8", "uint8", "int16", "int32", "uint32", "int64", "bool"]
    results = [x.cast(name) for name in names]
    Tensor.realize(*results)
    least = -(2**63)
    whole = [least, least, least, 3 * 10**9, -3 * 10**9, 300, -1]
    whole += [-(2**31), 2**31, 3 * 2**53, 2**55, 8388607, 2**54 + 2**31, -(2**54) - 2**31]
    whole = np.array(whole * 3)
    for name, ours in zip(names[:-1], results, strict=False):
        np.testing.assert_array_equal(ours.numpy(), whole.astype(name), name)
    assert results[-1].tolist() == [True] * 42


@pytest.mark.parametrize("source", ["float32", "float64"])
def test_a_number_out_of_range_is_cast_like_an_element(source: str, device: str) -> None:
    """Alone, where a condition chooses it, and where compilers see that it is one number."""
    odd = [float("inf"), float("-inf"), float("nan"), 1e20, -1e20, 2.0**31, 3 * 2.0**31, -(2.0**31)]
    in_memory = Tensor(odd, dtype=source).contiguous().realize()
    for name in ("int8", "uint16", "int32", "int64"):
        wanted = in_memory.cast(name).tolist()
        for size in (1, 33):
            chosen = Tensor([False] * size).contiguous().realize()
            whole, made = Tensor.full((size,), 5.0, dtype=source), list[Tensor]()
            for number in odd:
                made += [Tensor.full((size,), number, dtype=source), chosen.where(whole, number)]
            casts = [x.cast(name) + Tensor.zeros(size, dtype=name) for x in made]
            got = Tensor.stack(*casts).tolist()
            assert got == [[w] * size for w in wanted for _ in range(2)], (name, size)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_floats_become_halves_by_their_nearest(name: str, device: str) -> None:
    """The same in vectors and alone, computed or in memory; numbers of the program too."""
    bits = np.random.default_rng(0).integers(0, 2**32, 1203, dtype=np.uint32)
    x = np.concatenate([bits.view(np.float32), np.float32([65519.9, 65520, 2**-25, 1.5, -0.0])])
    x[:3] = np.array([0x7F800001, 0x7FFFFFFF, 0xFFC00000], np.uint32).view(np.float32)
    dtype = by_name(name)
    with np.errstate(all="ignore"):
        kept = rounded(x, dtype).astype(np.float32)
    stored = Tensor(x).cast(name).contiguous()
    for ours in (stored.float(), Tensor(x).cast(name).float(), (stored * 1).float()):
        np.testing.assert_array_equal(ours.numpy(), kept)
    tenth = (Tensor.arange(11) > 3).where(Tensor.full((11,), 0.1, dtype=name), 0)
    assert tenth.float().numpy()[-1] == rounded(np.full(1, 0.1), dtype)[0]


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_sums_of_halves_are_rounded_once(name: str, device: str) -> None:
    x = Tensor.full((3, 3000), 1.0, dtype=name).contiguous()
    results = [x.sum(1), x.mean(1), x.cumsum(1)[:, -1]]
    Tensor.realize(*results)  # an accumulator of 16 bits would stop at 2048, or at 256
    assert [r.dtype.name for r in results] == [name] * 3
    for ours, exact in zip(results, (3000, 1, 3000), strict=True):
        np.testing.assert_allclose(ours.numpy(), exact, rtol=4e-3)


def test_halves_accumulate_in_float32(device: str) -> None:
    row = Tensor(np.full((1, 3000), 1.001, np.float16))
    product = row @ row.T
    assert product.item() == pytest.approx(3006, rel=2e-3)  # adding up halves would stop at 2048


SIGNED, UNSIGNED = ["int8", "int16", "int32", "int64"], ["uint8", "uint16", "uint32", "uint64"]


def test_whole_numbers_wrap_around_and_round_down(device: str) -> None:
    """As numpy's: +, *, and the sign of // and % for all signs; an // or % by 0 is 0."""
    results, wanted = [], []
    for name in SIGNED + UNSIGNED:
        least, most = (int(v) for v in (np.iinfo(name).min, np.iinfo(name).max))
        values = [most, most - 1, 7, 6, 1, 0, least] + ([-1, -6, -7] if least else [])
        x, y = np.array(
            [(a, b) for a, b in product(values, values) if (a, b) != (least, -1)], name
        ).T
        a, b, safe = Tensor(x), Tensor(y), np.where(y == 0, 1, y)
        results += [a + b, a * b, a - b, a // b, a % b, a & b, a ^ b, ~a]
        with np.errstate(all="ignore"):
            wanted += [x + y, x * y, x - y, np.where(y == 0, 0, x // safe)]
            wanted += [np.where(y == 0, 0, x % safe), x & y, x ^ y, ~x]
    Tensor.realize(*results)
    for i, (ours, theirs) in enumerate(zip(results, wanted, strict=True)):
        assert ours.numpy().dtype == theirs.dtype
        np.testing.assert_array_equal(ours.numpy(), theirs, err_msg=str(i))


def test_shifts_may_go_beyond_the_width(device: str) -> None:
    names = SIGNED + UNSIGNED
    numbers = {n: [1, 5, int(np.iinfo(n).max), int(np.iinfo(n).min)] for n in names}
    by = [0, 1, 3, 7, 8, 31, 32, 64, 100]
    results = [op(Tensor([numbers[n]], dtype=n), Tensor(by, dtype=n).reshape(-1, 1))
               for n in names for op in (operator.lshift, operator.rshift)]  # fmt: skip
    Tensor.realize(*results)
    for i, ours in enumerate(results):
        name, op = names[i // 2], (operator.lshift, operator.rshift)[i % 2]
        exact = [[op(v, b) for v in numbers[name]] for b in by]
        span, least = 2 ** (8 * np.dtype(name).itemsize), int(np.iinfo(name).min)
        assert ours.tolist() == [[(v - least) % span + least for v in row] for row in exact], name


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_numbers_beyond_the_largest_are_infinite(device: str, name: str) -> None:
    """Those that are nearer to it than to the next one there would be are the largest."""
    x = Tensor([1.0, -0.5], dtype=name).realize()
    for number in (65519.0, 65520.0, 1e39, -1e300, 3.4028235677e38, 3.4028235678e38):
        with np.errstate(over="ignore"):
            wanted = np.array([1, -0.5], name) * np.array(number).astype(name)
        np.testing.assert_array_equal((x * number).numpy(), wanted)


def test_comparisons_and_logic_give_bool() -> None:
    x, y = Tensor([1, 2, 0]), Tensor([1.5, 2.0, 0.0])
    results = [x < y, x <= y, x == y, x != y, x > 1, x.logical_not(), (x > 0) & (y > 1)]
    results += [y.isnan(), y.isfinite(), x.any(), y.all(), y.isclose(x), ~(x == y)]
    assert {r.dtype for r in results} == {dtypes.bool}


def test_bits_are_read_as_other_dtypes(device: str) -> None:
    """The last axis grows or shrinks, as with torch's view(dtype)."""
    raw = (np.arange(48, dtype=np.uint8) * 5 % 100).reshape(2, 24)  # no NaN has these bytes
    x, names = Tensor(raw), [n for n in NAMES if n != "bool"]
    there = {n: x.bitcast(n) for n in names}
    back = {n: there[n].bitcast("uint16").bitcast("uint8") for n in names}
    Tensor.realize(*there.values(), *back.values())
    for name in names:
        wanted = torch.from_numpy(raw).view(getattr(torch, name)).to(torch.float64)
        np.testing.assert_array_equal(there[name].numpy().astype(np.float64), wanted, name)
        np.testing.assert_array_equal(back[name].numpy(), raw, name)
    nothing = Tensor(np.zeros((0, 3), np.int16)).pad((0, 0, 1, 0))  # an int, in C++
    assert (nothing.bitcast("uint16") ^ 5).tolist() == [[5, 5, 5]]
    with pytest.raises(RuntimeError, match="does not make whole float32"):
        Tensor([[1, 2, 3]], dtype="int8").bitcast("float32")
    with pytest.raises(RuntimeError, match="must be there"):
        Tensor(1.0).bitcast("int8")
    with pytest.raises(DTypeError, match="no pattern of bits"):
        Tensor([True]).bitcast("int8")


def test_defaults_can_be_set_for_a_while() -> None:
    with defaults(default_float=dtypes.float64, default_int=dtypes.int64):
        assert Tensor([1.5]).dtype is Tensor.rand(2).dtype is dtypes.float64
        assert (Tensor([1]) / 2).dtype is dtypes.float64
        assert Tensor([1]).dtype is dtypes.int64
        assert Tensor([1, 2]).argmax().dtype is dtypes.int32
    assert Tensor([1.5]).dtype is dtypes.float32
    with pytest.raises(DTypeError, match="default_float is one of"):
        dtypes.default_float = dtypes.int32
    with defaults():
        dtypes.default_float, dtypes.default_int = "float64", np.int64
        assert Tensor([1.5]).dtype is dtypes.float64
        assert Tensor([1]).dtype is dtypes.int64
    with defaults(device="NUMPY"):
        assert Tensor([1]).device == "NUMPY"


def test_the_namespace() -> None:
    assert dtypes.half is dtypes.float16
    assert all(getattr(dtypes, name) is found for name, found in DTYPES_DICT.items())
    assert all(by_name(name) is found for name, found in DTYPES_DICT.items())
    assert dtypes.iinfo(dtypes.int8) == (-128, 127)
    assert dtypes.float64.bitsize == 64
    assert set(dtypes.fields()) == set(DTYPES_DICT)
    assert least_upper_dtype(dtypes.int8, dtypes.uint8) is dtypes.int16
    assert dtypes.min(dtypes.int8) == -128
    assert dtypes.max(dtypes.float32) == np.inf
    assert dtypes.finfo(dtypes.float16) == (5, 10)
    assert dtypes.from_py([1, 2.0]) is dtypes.default_float
    assert dtypes.is_unsigned(dtypes.uint8)


def test_a_half_of_one_kind_becomes_one_of_the_other(device: str) -> None:
    """In vectors, of memory and within a kernel, where it was rounded to the first."""
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32) * 100
    brain = Tensor(values, device=device).bfloat16().realize()
    right = brain.float().numpy().astype(np.float16)
    np.testing.assert_array_equal(brain.half().numpy(), right)
    np.testing.assert_array_equal(Tensor(values, device=device).bfloat16().half().numpy(), right)
