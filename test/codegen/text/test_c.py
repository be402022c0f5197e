"""What C says in few words."""

import functools
import re
from collections.abc import Callable

import graphs
import numpy as np
import pytest
import stages
from graphs import leaf

from tinyml import Tensor, lazy
from tinyml.codegen.compile import compile
from tinyml.codegen.optimize.opts import Opt, parse
from tinyml.codegen.target import Target
from tinyml.codegen.text.c import ROLLED
from tinyml.codegen.text.c_shuffles import every_second, length, picked
from tinyml.codegen.two_rows import Rows, rows_of
from tinyml.dtype import (
    ALL,
    DType,
    bfloat16,
    bool_,
    by_name,
    float32,
    float64,
    int16,
    int32,
    int64,
    uint8,
)
from tinyml.index import ZERO, Axis, linear
from tinyml.kernel import Kernel
from tinyml.ops import Op
from tinyml.program import Language, translation_unit


@pytest.mark.parametrize("dtype", [float32, float64, int32, bfloat16], ids=str)
def test_vectors_across_rows_are_stored_by_one_call(dtype: DType) -> None:
    made = graphs.add(leaf(19, 24, dtype=dtype), leaf(19, 24, dtype=dtype))
    k = stages.kernel_of(made)
    opts = [parse("lanes i0 8")]
    lines = compile(k, stages.TARGETS["C"], opts).source.splitlines()
    called = [line for line in lines if "scattered_" in line]
    assert len(called) == (dtype is not bfloat16)  # whose bits are stored one by one
    (runner,) = stages.compiled("CPU", [(k, opts)])
    stages.assert_made(k, runner, 1e-2 if dtype is bfloat16 else 2e-5)


@pytest.mark.parametrize("dtype", [float32, float64, int32, bfloat16, bool_], ids=str)
@pytest.mark.parametrize("terms", [64, 65])
def test_many_vectors_across_rows_are_loaded_by_calls(dtype: DType, terms: int) -> None:
    """As lists of elements they take compilers seconds; of a few that does not matter."""
    x = graphs.memory(19, terms, 3, dtype=dtype, device="CPU")
    columns = [x[:, t] for t in range(terms)]
    total = functools.reduce(lambda a, b: a | b if dtype is bool_ else a + b, columns)
    k = stages.kernel_of(total)
    opts = [parse("lanes i0 8")]
    assert compile(k, stages.TARGETS["C"], opts).source.count("gathered_") == terms * (terms > 64)
    (runner,) = stages.compiled("CPU", [(k, opts)])
    stages.assert_made(k, runner, 0.1 if dtype is bfloat16 else 2e-5)


def test_lanes_follow_each_other_in_rows_or_not_at_all() -> None:
    lane, row, other = Axis("v", 8), linear(Axis("i", 5)) * 64, linear(Axis("j", 9))
    plain, joined = linear(lane), linear(lane) + other
    assert rows_of(row + plain * 3, lane) == Rows(row, ZERO, 8, 3, 0)
    assert rows_of(row + plain // 4 * 32 + plain % 4 * 2, lane) == Rows(row, ZERO, 4, 2, 24)
    assert rows_of(row + plain // 3 * 32 + plain % 3, lane) == Rows(row, ZERO, 3, 1, 29)
    begun = other // 3 * 32 + other % 3
    assert rows_of(joined // 3 * 32 + joined % 3, lane) == Rows(begun, other % 3, 3, 1, 29)
    assert rows_of(plain * 2 // 3, lane) is None
    assert rows_of(plain // 3 * 32 + plain % 4, lane) is None


@pytest.mark.parametrize("by", [5, 13, 187])
def test_vectors_that_lie_outside_of_what_is_read_are_nothing(by: int) -> None:
    """As most of them are of one of the two pieces that what is rolled is made of."""
    rolled = graphs.memory(200, device="CPU").roll(by)
    k = stages.kernel_of(rolled)
    opts = [parse("lanes i0 8")]
    text = translation_unit((compile(k, stages.TARGETS["C"], opts),))
    assert text.count("return (f32x8){0};") == 1
    (runner,) = stages.compiled("CPU", [(k, opts)])
    stages.assert_made(k, runner, 0)


@pytest.mark.parametrize(("dtype", "lanes"), [(float32, 16), (float64, 8), (int32, 16)], ids=str)
def test_masks_of_whole_registers_are_not_joined(dtype: DType, lanes: int) -> None:
    x, y = (graphs.memory(67, dtype=dtype, device="CPU") for _ in range(2))
    chosen = ((x == y) | (x != x) | (y > 1)).where(x, 7)
    k = stages.kernel_of(chosen)
    opts = [parse(f"lanes i0 {lanes}")]
    text = translation_unit((compile(k, stages.TARGETS["C"], opts),))
    assert text.count(f"either_{dtype.kind}{dtype.bitsize}x{lanes}(") >= 2
    (runner,) = stages.compiled("CPU", [(k, opts)])
    stages.assert_made(k, runner, 0)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("dtype", [float64, int64, int16], ids=str)
def test_numbers_choose_numbers_of_their_size_without_another_mask(
    dtype: DType, joined: bool
) -> None:
    x, y = (graphs.memory(67, dtype=dtype, device="CPU") for _ in range(2))
    asked = ((x < y) & (y != 2)) if joined else x < y
    k = stages.kernel_of(asked.where(x + 1, y * 3))
    opts = [parse("lanes i0 8")]
    text = translation_unit((compile(k, stages.TARGETS["C"], opts),))
    assert "i32x8 m" not in text
    assert "_own(" in text
    (runner,) = stages.compiled("CPU", [(k, opts)])
    stages.assert_made(k, runner, 0)


@pytest.mark.parametrize("kind", ["int64", "int32"])
@pytest.mark.parametrize("lane", [0, 3, 6, 7])
def test_the_first_lane_out_of_range_is_named(kind: str, lane: int) -> None:
    places = np.arange(64).astype(kind) % 9
    places[40 + lane] = 77 + lane
    places[48:] = -99
    x, at = Tensor.arange(9, device="CPU").contiguous(), Tensor(places, device="CPU")
    with pytest.raises(IndexError, match=f"index {77 + lane} is out of bounds"):
        x[at].realize()


@pytest.mark.parametrize("kind", ["int32", "int64", "uint32"])
@pytest.mark.parametrize("count", [2, 64])
def test_a_place_is_asked_for_once(kind: str, count: int) -> None:
    """What is required of it is true of what follows; signed numbers are their range's least."""
    x, i = graphs.memory(50, device="CPU"), graphs.memory(count, dtype=by_name(kind), device="CPU")
    k = stages.kernel_of(x[i])
    text = translation_unit((compile(k, Target(Language.C, 32, 16, cores=2), None),))
    assert ("look" in text) == (kind == "uint32")


@pytest.mark.parametrize("kind", ["int32", "int64", "uint32"])
@pytest.mark.parametrize("count", [3, 64])
@pytest.mark.parametrize("wrong", [2**31 - 1, -(2**31), 2**62, -(2**62)])
def test_nothing_is_read_far_outside(kind: str, count: int, wrong: int) -> None:
    x, numbers = Tensor.arange(64, device="CPU") + 0.0, np.zeros(count, np.int64)
    numbers[-1] = wrong
    i = Tensor(numbers.astype(kind), "CPU")
    if int(i.numpy()[-1]):  # as many bits as the dtype has
        with pytest.raises(IndexError):
            x.contiguous()[i].realize()
        with pytest.raises(IndexError):
            x.scatter_reduce(0, i.cast("int64"), x[:count], "sum").realize()


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_the_larger_and_the_smaller_are_nan_where_either_is(dtype: DType) -> None:
    corners = np.array([np.nan, -np.nan, np.inf, -np.inf, 0, 1, -1, 1e-40, 3.5], dtype.name)
    a, b = np.tile(corners, 9), np.repeat(corners, 9)
    x, y = Tensor(a, device="CPU"), Tensor(b, device="CPU")
    np.testing.assert_array_equal(x.maximum(y).numpy(), np.maximum(a, b))
    np.testing.assert_array_equal(x.minimum(y).numpy(), np.minimum(a, b))


def test_clang_leaves_loops_whole_whose_steps_sum_up_on_their_own() -> None:
    """And only those: the steps of a short sum and of other folds it may write out."""
    rows, few = (graphs.memory(*shape, device="CPU") for shape in ((8, 1024), (4, 8, 8)))
    made = (rows.sum(1), rows.max(1), few.sum((1, 2)))
    long, *others = (stages.kernels(x)[0] for x in made)
    lines = compile(long, stages.TARGETS["C"], []).source.splitlines()
    (at,) = [n for n, line in enumerate(lines) if ROLLED in line]
    assert " r0_s = 0; " in lines[at + 1]
    assert " r0_i = 0; " in "".join(lines[at + 2 :])
    assert all(ROLLED not in compile(k, stages.TARGETS["C"], []).source for k in others)
    (runner,) = stages.compiled("CPU", [(long, [])])
    stages.assert_made(long, runner)


PICKS: dict[str, Callable[[Tensor], Tensor]] = {
    "each twice": lambda x: x.repeat_interleave(2),
    "each four times": lambda x: x.repeat_interleave(4),
    "each eight times": lambda x: x.repeat_interleave(8),
    "backwards": lambda x: x.flip(0),
    "pairs swapped": lambda x: x.reshape(-1, 2).flip(1).reshape(-1),
    "even ones twice": lambda x: x.reshape(-1, 2)[:, :1].expand(-1, 2).reshape(-1),
    "odd ones twice": lambda x: x.reshape(-1, 2)[:, 1:].expand(-1, 2).reshape(-1),
    "the last of four": lambda x: x.reshape(-1, 4)[:, 3:].expand(-1, 4).reshape(-1),
    "every third of few": lambda x: x[:192:3],
}


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
@pytest.mark.parametrize("dtype", [float32, float64, int32, uint8, int16], ids=str)
def test_elements_at_known_distances_are_picked_out_of_vectors(dtype: DType, lanes: int) -> None:
    made = {}
    for name, view in PICKS.items():
        x = view(graphs.memory(256, dtype=dtype, device="CPU")) + 1
        k = stages.kernel_of(x)
        made[name] = (k, [parse(f"lanes i0 {lanes}")])
    for name, (k, opts) in made.items():
        text = translation_unit((compile(k, stages.TARGETS["C"], opts),))
        if name in ("backwards", "pairs swapped", "each twice") and lanes >= 32 // dtype.itemsize:
            assert "picked" in text, name
        (runner,) = stages.compiled("CPU", [(k, opts)])
        stages.assert_made(k, runner, 0)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("dtype", [float32, int32], ids=str)
def test_what_is_picked_is_0_in_rows_that_are_padding(dtype: DType, lanes: int) -> None:
    """All lanes share the condition, and there is no memory where it fails."""
    x = graphs.memory(2, 16, dtype=dtype, device="CPU").pad(((1, 1), (0, 0)))
    k = stages.kernel_of(x.repeat_interleave(2, 1) + 1)
    opts = [parse(f"lanes i1 {lanes}")]
    body = compile(k, stages.TARGETS["C"], opts).source.partition("void")[2]
    loads = [line for line in body.splitlines() if "slot1 +" in line]
    assert loads
    assert all("i0 >= 1 && i0 <= 2 ?" in line for line in loads)
    (runner,) = stages.compiled("CPU", [(k, opts)])
    stages.assert_made(k, runner, 0)


@pytest.mark.parametrize("dtype", ["bool", "uint8"])
def test_bytes_of_rows_that_end_within_a_vector_are_repeated(dtype: str) -> None:
    """The choice of two rows is by places, which are int32: so are the truths of that kernel."""
    x = np.arange(19) % 2
    repeated = Tensor(x.astype(dtype), device="CPU").repeat(8)
    np.testing.assert_array_equal(repeated.numpy(), np.tile(x, 8))


@pytest.mark.parametrize("way", ["less", "equal", "other rows"])
def test_places_that_go_along_together_are_compared(way: str, device: str) -> None:
    """Their difference is the same for all lanes."""
    counted, x = np.arange(64).reshape(4, 16), np.arange(64, dtype=np.int16).reshape(4, 16) % 7
    t = Tensor(x, device=device)
    i = Tensor.arange(64, device=device).reshape(4, 16)
    j = Tensor.arange(16, device=device)
    asked = {"less": i < i, "equal": i == i, "other rows": i - 1 < j}[way]
    right = {"less": counted < counted, "equal": counted == counted}.get(way)
    right = counted - 1 < np.arange(16) if right is None else right
    np.testing.assert_array_equal((asked ^ (t > 3)).numpy(), right ^ (x > 3))


def test_what_is_picked_lies_between_the_first_element_and_the_last() -> None:
    """There may be no memory beyond them."""
    assert not length([0, 0, 1, 1], 4, 4)
    for places in ([3, 2, 1, 0], [0, 0, 2, 2, 4, 4, 6, 6], [0, 0, 0, 0, 8, 8, 8, 8], [0] * 8):
        count, hull = length(places, 4, len(places)), max(places) + 1
        text = picked("f", ["part", "more", "most"], "float", places, count)
        read = [int(n) for n in re.findall(r"p\[(\d+)\]", text)]
        assert max(read) < hull
        whole = [int(n or 0) for n in re.findall(r"\*\(const part \*\)\(?p(?: \+ (\d+))?", text)]
        assert all(n + count <= hull for n in whole)


@pytest.mark.parametrize(("lanes", "size"), [(8, 4), (4, 8)])
def test_every_second_element_is_moved_within_halves_first(lanes: int, size: int) -> None:
    text = every_second("name", "kind", "element", "places", lanes, size)
    near, across = ([*map(int, found.split(", "))] for found in re.findall(r"\){(.+?)}", text))
    both = [*range(lanes), *range(lanes - 1, 2 * lanes - 1)]  # what vectors have, from p on
    assert all((n % lanes < lanes // 2) == (at < lanes // 2) for at, n in enumerate(near))
    assert [both[near[n]] for n in across] == [*range(0, 2 * lanes, 2)]


def test_gcc_is_told_to_write_out_few_steps_without_a_loop_in_them() -> None:
    told = []
    for colours in (3, 5):
        made = graphs.add(leaf(64, colours), leaf(64, colours))
        k = stages.kernel_of(made)
        told += [compile(k, stages.TARGETS["C"], []).source.count("#pragma GCC unroll")]
    assert told == [1, 0]


def test_sums_that_a_step_adds_to_again_stay_in_order() -> None:
    """gcc before 14 would add some of it twice where it is read backwards."""
    again, told = graphs.gradient_of_transposed_windows(2), []
    for root in (again, graphs.total(leaf(7, 5), 1)):
        k = stages.kernel_of(root)
        opts = [parse("order r0"), parse("order r1")] if root is again else []
        told.append(compile(k, stages.TARGETS["C"], opts).source.count("in_order(acc0);"))
    assert told == [1, 0]


@pytest.mark.parametrize("folded", [True, False])
def test_few_steps_of_a_fold_are_written_out_with_those_around_them(folded: bool) -> None:
    """A step of the outer one loads what lies elsewhere; what is copied gains nothing by it."""
    x = graphs.memory(8, 3, 3, device="CPU")
    k = stages.kernel_of(x.sum((1, 2)) if folded else x * 2)
    source = compile(k, stages.TARGETS["C"], []).source
    assert source.count("#pragma GCC unroll 3") == 1 + folded


def test_rows_beyond_the_last_ask_nothing_at_each_step_of_a_fold() -> None:
    """clang kept sums in memory where numbers of a register tile were read under a condition."""
    a, b = graphs.memory(64, 44, device="CPU"), graphs.memory(64, 64, device="CPU")
    k = stages.kernel_of(a.T @ b)
    tiled = "pad i0 48; lanes i1 16; unroll i1 2; unroll i0 12; order i0u; order i0; grid i1"
    opts = [parse(opt) for opt in f"{tiled}; block r0 32; stage r0 slot2".split("; ")]
    source = compile(k, stages.TARGETS["C"], opts).source
    numbers = re.findall(r"const float v\d+ = (slot1|.*\?)", source)
    assert numbers == ["slot1"] * (12 + 8)
    loops = re.findall(r"for \(long (i0_\w+)", source)
    assert loops == ["i0_sums0", "i0_sums0p0"]  # one where sums begin, one for whole tiles
    (runner,) = stages.compiled("CPU", [(k, opts)])
    stages.assert_made(k, runner, 1e-4)


@pytest.mark.parametrize("joined", [True, False])
def test_vectors_are_loaded_whole_before_masks_of_them_are_joined(joined: bool) -> None:
    """clang compares what it loads under the mask that is there already, and waits for it."""
    x, y = (graphs.memory(256, device="CPU") for _ in range(2))
    k = stages.kernel_of((x > 0) & (y < 0) if joined else x > y)
    source = translation_unit((compile(k, stages.TARGETS["C"], [parse("lanes i0 16")]),))
    assert ("loaded_f32x16(" in source) == joined


@pytest.mark.parametrize(("size", "often"), [(512, True), (24, False)])
def test_most_vectors_of_a_long_row_meet_no_mask(size: int, often: bool) -> None:
    """Whether one lies at an end is one comparison, and a mask takes four steps."""
    x, weight = graphs.memory(2, 3, size, device="CPU"), graphs.memory(3, 1, 7, device="CPU")
    k = stages.kernel_of(x.conv2d(weight, groups=3, padding=3))
    masked = re.findall(r" = (.*)masked_", _source(k, None))
    assert masked
    assert all("__builtin_expect(" in before for before in masked) == often
    (runner,) = stages.compiled("CPU", [(k, None)])
    stages.assert_made(k, runner)


@pytest.mark.parametrize("columns", [8, 6])
def test_where_memory_has_all_of_a_vector_nobody_asks(columns: int) -> None:
    x = graphs.memory(4, columns, device="CPU")[:, :6]
    k = stages.kernel_of(x.sum(0))
    opts = [parse("pad i0 8"), parse("lanes i0 8")]
    assert ("at < size" in _source(k, opts)) == (columns == 6)
    (runner,) = stages.compiled("CPU", [(k, opts)])
    stages.assert_made(k, runner)


def test_a_place_is_so_many_elements_behind_a_sum_of_steps() -> None:
    """Of a sum with a number in it clang makes an `or`, and no address has one of those."""
    x, weight = graphs.memory(2, 3, 512, device="CPU"), graphs.memory(3, 1, 7, device="CPU")
    k = stages.kernel_of(x.conv2d(weight, groups=3, padding=3))
    places = re.findall(r"\*\)\((slot.*?)\)(?: |;)", _source(k, None))
    assert len(places) > 28
    assert not [place for place in places if re.search(r"[+-] \d+\)", place)]


def _source(k: Kernel, opts: list[Opt] | None) -> str:
    return translation_unit((compile(k, stages.TARGETS["C"], opts),))


@pytest.mark.parametrize("target", [16, 32, 64])
def test_a_function_has_one_text_in_all_kernels(target: int) -> None:
    """As those of a unit share their functions: by name, and with the types that these take."""
    texts = dict[str, set[str]]()
    for dtype in ALL:
        for shape in ((16,), (3, 67), (64, 5)):
            bools, x, y = leaf(*shape, dtype=bool_), leaf(*shape, dtype=dtype), leaf(*shape)
            held = lazy.map_(Op.LESS, y, y), lazy.map_(Op.OR, bools, bools), bools
            made = [lazy.map_(Op.WHERE, mask, x, lazy.const_like(x, 1)) for mask in held]
            turned = [lazy.permute(m, [*range(len(shape))][::-1]) for m in (*made, bools, x)]
            made += [lazy.contiguous(m) for m in turned]
            for k in stages.kernels(*made):
                program = compile(k, Target(Language.C, vector_bytes=target))
                for piece in program.prelude:
                    for name in re.findall(r"^[^#\n]*?(\w+)\([^()]*\) {$", piece, re.MULTILINE):
                        texts.setdefault(name, set()).add(piece)
    assert texts
    assert not {name for name, pieces in texts.items() if len(pieces) > 1}
