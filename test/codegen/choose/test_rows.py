"""Rows that are folded: several at a time, or neighbouring ones in the lanes of a vector."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import graphs
import numpy as np
import pytest
import stages
from graphs import leaf, memory
from stages import kernel_of

from tinyml import Tensor, lazy
from tinyml.codegen import linear as ir
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.linearize.linearize import linearize
from tinyml.codegen.lower import lower
from tinyml.codegen.nest import Kind, LoopNest
from tinyml.codegen.text.c import CRenderer
from tinyml.dtype import DType, bool_, float32, int8, int16, int32, uint8
from tinyml.kernel import Kernel
from tinyml.ops import Op
from tinyml.program import Cost

SMALL = replace(stages.C, cache=1 << 10)


def opts(k: Kernel, cache: int = SMALL.cache) -> list[str]:
    return [str(opt) for opt in choose(lower(k), replace(SMALL, cache=cache))[0]]


@pytest.mark.parametrize("n", range(64, 192, 16))
def test_folds_have_lanes_in_the_order_in_which_they_are_made(n: int) -> None:
    """And not in that of addresses, which are others in each process."""
    k = kernel_of(graphs.add(graphs.total(leaf(8, n), 1), graphs.total(leaf(8, n + 8), 1)))
    assert [opt.split()[1] for opt in opts(k) if opt.startswith("lanes")] == ["r0", "r1"]


@pytest.mark.parametrize("n", [16, 33, 64])
def test_running_sums_of_a_block_lie_in_the_lanes_of_a_vector(n: int) -> None:
    x = Tensor(np.zeros((5, n), np.float32), device="CPU").realize()
    k = kernel_of(x.cumsum(1).lazy)
    assert {"lanes i1 8", f"unroll r0 {n}"} <= {*opts(k)}
    stages.assert_right(k, 1e-4, SMALL)


@pytest.mark.parametrize(("rows", "lanes"), [(300, "i0"), (6, "r0")])
def test_rows_that_all_fold_the_same_numbers_lie_in_lanes(rows: int, lanes: str) -> None:
    """Each number is read once for several vectors of rows, and no sum has to go across lanes."""
    x, y = (Tensor(np.arange(n) % 7, device="CPU").realize() for n in (rows, 320))
    k = kernel_of((x.reshape(rows, 1) < y).int().sum(1).lazy)
    (vectors, *_) = (opt for opt in opts(k) if opt.startswith("lanes"))
    assert vectors.split()[1] == lanes
    stages.assert_right(k, 0, SMALL)


def test_columns_that_fold_the_same_numbers_are_not_walked_in_turn() -> None:
    """Memory is read in no longer runs by that."""
    x = Tensor(np.arange(8 * 512).reshape(8, 512) % 7, device="CPU").realize()
    k = kernel_of((x.unsqueeze(2) < x.unsqueeze(1)).int().sum(2).lazy)
    assert not any(opt.startswith("block") for opt in opts(k))


def test_what_no_lane_of_a_vector_takes_is_not_added_to_it() -> None:
    x = Tensor(np.zeros((5, 16), np.float32), device="CPU").realize()
    made = linearize(choose(lower(kernel_of(x.cumsum(1).lazy)), stages.C)[1])
    added = [i for part in made.parts for i in part.instrs if isinstance(i, ir.Update)]
    assert len(added) == 8 + 16  # the first half of a row takes eight elements, the second all


@pytest.mark.parametrize(
    ("dtype", "made", "vectors"), [("bool", "all", 8), ("uint8", "sum", 8), ("int32", "sum", 4)]
)
def test_what_is_widened_fourfold_is_folded_more_vectors_at_a_time(
    dtype: str, made: str, vectors: int
) -> None:
    """A loop takes as long as few bytes do."""
    numbers = np.arange(3 * 256).reshape(3, 256) % 7
    x = Tensor(numbers.astype(dtype), device="CPU").realize()
    k = kernel_of(getattr(x, made)(1).lazy)
    assert f"unroll r0 {vectors}" in opts(k)
    stages.assert_right(k, 0, SMALL)


def test_lanes_lie_where_most_elements_do() -> None:
    """Batch normalization in parts: few sums for each channel, and all pixels of an image."""
    x, sums, shape = leaf(3, 8, 5, 32), leaf(4, 8), (3, 8, 5, 32)
    total = lazy.reshape(graphs.total(sums, 0), (1, 8, 1, 1))
    k = kernel_of(graphs.add(x, lazy.expand(total, shape)))
    assert "lanes j1 8" in opts(k)
    stages.assert_right(k, 1e-4, SMALL)


def text_of(nest: LoopNest) -> str:
    return CRenderer(linearize(nest)).render("k", [], Cost(0, 0, 0)).source


def test_functions_that_wait_for_functions_are_computed_for_four_vectors_in_turn() -> None:
    k = kernel_of(lazy.map_(Op.EXP, lazy.map_(Op.SIN, leaf(3, 109))))
    made, nest = choose(lower(k), SMALL)
    assert "unroll i0 4" in map(str, made)
    called = re.findall(r"(sin|exp)_f32x8\(", text_of(nest))
    assert called[:8] == ["sin"] * 4 + ["exp"] * 4
    stages.assert_right(k, 1e-6, SMALL)


def test_vectors_of_a_fold_go_through_functions_in_turn() -> None:
    x = lazy.map_(Op.LOG1P, lazy.map_(Op.EXP, leaf(3, 256)))
    k = kernel_of(graphs.total(x, 1))
    made, nest = choose(lower(k), SMALL)
    assert "unroll r0 4" in map(str, made)
    called = re.findall(r"(exp|log1p)_f32x8\(", text_of(nest))
    assert called[:8] == ["exp"] * 4 + ["log1p"] * 4
    stages.assert_right(k, 1e-6, SMALL)


def test_constants_are_stored_four_vectors_at_a_time_in_a_cache() -> None:
    """Beyond it the loop is not what takes longest."""
    for rows, unrolled in ((8, True), (80, False)):
        k = kernel_of(lazy.const(3.0, float32, "CPU", (rows, 64)))
        assert any(opt.startswith("unroll") for opt in opts(k, 1 << 12)) == unrolled
        stages.assert_right(k, 0, SMALL)


@pytest.mark.parametrize(("columns", "written"), [(32, 4), (64, 0)])
def test_few_vectors_of_a_row_that_masks_leave_out_have_no_loop(columns: int, written: int) -> None:
    """How many steps that has would be another number for each row, which nobody foresees."""
    x, at = images(256, columns, columns), Tensor.arange(columns, device="CPU")
    seen = at.unsqueeze(1) >= at
    k = kernel_of(seen.where(x, -math.inf).softmax().lazy)
    found = [opt for opt in opts(k) if re.match("unroll j0.*", opt)]
    assert found == ([f"unroll j0_kept1 {written}", f"unroll j0 {written}"] if written else [])
    stages.assert_right(k, 1e-5, SMALL)


@pytest.mark.parametrize(("columns", "vectors"), [(24, 3), (32, 4), (64, 2)])
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_folds_of_few_vectors_of_several_rows_have_no_loop_of_functions(
    columns: int, vectors: int, op: str
) -> None:
    k = kernel_of(getattr(images(256, columns), op)().lazy)
    assert "unroll i0 4" in opts(k)
    assert f"unroll r0 {vectors}" in opts(k)
    stages.assert_right(k, 1e-5, SMALL)


def test_twice_as_many_elements_of_near_columns_are_walked_in_turn() -> None:
    """Of those that the closest cache holds whole lines of, in a cache that delivers them fast."""
    for rows, columns, cache, steps in (
        (512, 256, 1 << 19, 16),
        (512, 256, 1 << 14, 8),
        (512, 1024, 1 << 20, 8),
    ):
        k = kernel_of(graphs.total(leaf(rows, columns), 0))
        assert f"block r0 {steps}" in opts(k, cache)
        assert "unroll r0b 8" in opts(k, cache)


def test_rounds_of_random_numbers_are_computed_for_four_vectors_in_turn() -> None:
    k = kernel_of(Tensor.rand(4, 104, device="CPU").lazy)
    made, nest = choose(lower(k), SMALL)
    assert "unroll i0 4" in map(str, made)
    named = re.findall(r"const u32x8 (\w+) = (.*);", text_of(nest))
    assert len(named) > 100
    assert not [after for (name, _), (_, after) in pairwise(named) if f"{name} " in f"{after} "]
    stages.assert_right(k, 1e-6, SMALL)


def test_a_function_alone_is_computed_for_one_vector_at_a_time() -> None:
    k = kernel_of(lazy.map_(Op.SIN, leaf(3, 109)))
    assert not any("unroll" in opt for opt in opts(k))


@pytest.mark.parametrize(
    ("dtype", "n", "lanes"),
    [(int8, 67, 32), (int16, 67, 16), (int8, 19, 16), (bool_, 67, 32), (bool_, 60, 8)],
    ids=str,
)
def test_small_integers_fill_a_vector(dtype: DType, n: int, lanes: int) -> None:
    """If rows are as long; so do bools, where nothing else is computed and little is left over."""
    x = leaf(n, dtype=dtype)
    k = kernel_of(lazy.map_(Op.MAX, x, lazy.map_(Op.MUL, x, x)))
    assert f"lanes i0 {lanes}" in opts(k)
    stages.assert_right(k, 0, SMALL)


def test_rows_are_read_in_whole_vectors_whatever_says_which() -> None:
    """An int64 that each row has one of takes no lanes."""
    index = Tensor(np.arange(5, dtype=np.int64), device="CPU").realize()
    k = kernel_of(Tensor(np.zeros((9, 40), np.float32), device="CPU").realize()[index].lazy)
    assert "lanes i1 8" in opts(k)


def test_nor_do_the_labels_of_rows_that_are_folded() -> None:
    scores = Tensor(np.zeros((5, 40), np.float32), device="CPU").realize()
    labels = Tensor(np.arange(5, dtype=np.int64), device="CPU").realize()
    k = kernel_of(scores.cross_entropy(labels, reduction="none").lazy)
    assert "lanes r0 8" in opts(k)


@pytest.mark.parametrize(
    ("n", "chosen"), [(7, "pad i3 8"), (12, "unroll i3 2"), (40, "unroll i3 5")]
)
def test_windows_of_a_short_row_are_whole_vectors(n: int, chosen: str) -> None:
    """The last vector is masked, and steps that masks depend on have no loop."""
    x, w = (Tensor(np.ones(s, np.float32), device="CPU") for s in ((2, 3, 5, n), (3, 1, 3, 3)))
    k = kernel_of(x.realize().conv2d(w.realize(), groups=3, padding=1).lazy)
    assert {chosen, "lanes i3 8", "unroll r1 3"} <= {*opts(k)}
    stages.assert_right(k, 1e-4, SMALL)


def images(*shape: int) -> Tensor:
    return Tensor(np.ones(shape, np.float32), device="CPU").realize()


@pytest.mark.parametrize(
    ("rows", "columns", "together"), [(256, 24, 4), (254, 24, 2), (256, 640, 2), (257, 24, 1)]
)
@pytest.mark.parametrize("op", ["log_softmax", "layernorm"])
def test_short_rows_whose_folds_read_folds_are_walked_several_at_a_time(
    rows: int, columns: int, together: int, op: str
) -> None:
    """Equal rows have equal results: there is no rest of other steps."""
    k = kernel_of(getattr(images(rows, columns), op)().lazy)
    found = [opt for opt in opts(k) if opt.startswith("unroll i0")]
    assert found == ([f"unroll i0 {together}"] if together > 1 else [])
    stages.assert_right(k, 1e-4, SMALL)


def test_long_rows_few_rows_and_single_folds_are_walked_one_by_one() -> None:
    for x in (images(256, 8 * 200).log_softmax(), images(64, 24).log_softmax()):
        assert not any(opt.startswith("unroll i0") for opt in opts(kernel_of(x.lazy)))
    x = images(256, 24)
    assert "unroll i0 4" not in opts(kernel_of((x / x.sum(1, keepdim=True)).lazy))


def side_by_side(x: Tensor, last_cache: int) -> int:
    """How many rows are walked at a time on a machine with a last cache of so many bytes."""
    target = replace(SMALL, vector_bytes=64, vector_registers=32, last_cache=last_cache)
    chosen, _ = choose(lower(kernel_of(x.lazy)), target)
    return next((opt.amount for opt in chosen if str(opt).startswith("unroll i0")), 1)


@pytest.mark.parametrize("op", ["layernorm", "log_softmax"])
@pytest.mark.parametrize(("columns", "far"), [(1024, 1), (64, 4)])
def test_rows_are_walked_one_by_one_where_memory_takes_longer_than_they_do(
    op: str, columns: int, far: int
) -> None:
    """To fold the lanes of the shortest ones takes longer than memory does."""
    x = getattr(images(256, columns), op)()
    assert side_by_side(x, 32 << 20) > 1
    assert side_by_side(x, 1 << 10) == far


def test_rows_that_begin_within_lines_are_not_stored_in_turn() -> None:
    """Lines that several of them have begun leave in parts."""
    whole, torn = (images(256, columns).log_softmax() for columns in (512, 504))
    assert (side_by_side(whole, 1 << 10), side_by_side(torn, 1 << 10)) == (2, 1)
    assert side_by_side(torn, 32 << 20) == 4


@pytest.mark.parametrize(
    ("heads", "size", "last_cache", "unrolled"),
    [
        (12, 24, 32 << 20, "unroll i0 4"),
        (12, 23, 32 << 20, "unroll i0 4"),  # of 23 rows no two are equal parts
        (14, 24, 32 << 20, "unroll i1 4"),  # of 14 heads four are none
        (12, 24, 1 << 10, "unroll i1 4"),  # neighbours are read in longer runs
    ],
)
def test_rows_that_are_walked_at_a_time_share_a_mask(
    heads: int, size: int, last_cache: int, unrolled: str
) -> None:
    scores, steps = memory(heads, size, size), Tensor.arange(size)
    k = kernel_of((steps <= steps.unsqueeze(1)).where(scores, -math.inf).softmax().lazy)
    target = replace(SMALL, last_cache=last_cache)
    assert next(str(o) for o in choose(lower(k), target)[0] if o.axis in ("i0", "i1")) == unrolled
    stages.assert_right(k, 1e-4, target)


def test_rows_whose_lines_push_each_other_out_are_not_walked_at_a_time() -> None:
    """Four heads of four arrays a page apart: sixteen lines of one place of pages."""
    scores, bias, seed = memory(16, 32, 32), memory(32, 32), memory(16, 32, 32)
    made = (scores.requires_grad_() + bias).softmax()
    assert "unroll i0 4" in opts(kernel_of(made.lazy))
    both = stages.kernels(made, made.gradient(scores, gradient=seed)[0])
    assert [["unroll i1 4" in opts(k), "unroll i0 4" in opts(k)] for k in both] == [[True, False]]


@pytest.mark.parametrize(("width", "together"), [(64, True), (40, False)])
def test_a_matrix_is_read_once_for_rows_of_several_images(width: int, together: bool) -> None:
    """But what single rows share is near anyway, unless they are long."""
    x, near, far = images(8, 64, width), images(8, 1, width), images(64, width)
    k = kernel_of((x * far).sum(-1).lazy)
    assert ("unroll i0 4" in opts(k)) == together
    stages.assert_right(k, 1e-4, SMALL)
    assert not any("unroll i" in opt for opt in opts(kernel_of((x * near).sum(-1).lazy)))


@pytest.mark.parametrize("op", [Tensor.sum, Tensor.max, Tensor.logsumexp])
def test_rows_are_walked_as_they_lie_in_memory(op: Callable[..., Tensor]) -> None:
    """Whatever the order of their results; where to the next one is not found out anew."""
    k = kernel_of(op(images(256, 3, 6, 32).permute(2, 1, 0, 3), -1).lazy)
    nest = choose(lower(k), SMALL)[1]
    walked = [(a.size, nest.kind(a)) for a in nest.nests[0].rows]
    assert walked[1:3] == [(3, Kind.GRID), (6, Kind.LOOP)]
    stages.assert_right(k, 1e-4, SMALL)


def test_few_rows_are_shared_out_to_the_last_one() -> None:
    k = kernel_of(images(2, 3, 6, 32).permute(2, 1, 0, 3).sum(-1).lazy)
    assert [opt for opt in opts(k) if "grid" in opt] == ["grid i2", "grid i1", "grid i0"]


def test_what_several_rows_would_compute_again_is_kept_for_each() -> None:
    """Their largest numbers, too, which filling the tile with exponentials would fold again."""
    k = kernel_of(images(256, 24).softmax().lazy)
    found = opts(k)
    assert found.count("keep i0") == 2
    assert {"unroll i0 4", "lanes j0_kept1 8"} <= {*found}
    stages.assert_right(k, 1e-5, SMALL)


def test_sums_of_all_places_of_a_window_are_made_in_one_walk() -> None:
    x, w = images(4, 16, 9, 9), images(16, 1, 3, 3)
    w.requires_grad = True
    y = x.conv2d(w, groups=16, padding=1)
    (gradient,) = (y * images(4, 16, 9, 9)).sum().gradient(w)
    found = [k for k in stages.kernels(gradient) if len(lower(k).nests[0].rows) > 2]
    assert found
    for k in found:
        assert {"unroll i1 3", "unroll i2 3"} <= {*opts(k)}
        stages.assert_right(k, 1e-4, SMALL)


@pytest.mark.parametrize(("n", "lanes"), [(12, 4), (20, 4), (16, 8), (21, 8), (60, 4)])
def test_a_short_row_has_half_a_vector_where_that_leaves_no_step_over(n: int, lanes: int) -> None:
    k = kernel_of(graphs.total(leaf(5, n), 1))
    assert f"lanes r0 {lanes}" in opts(k)
    stages.assert_right(k, 1e-5, SMALL)


@pytest.mark.parametrize(
    ("n", "chosen"), [(8, ["lanes i1 8"]), (5, ["pad i1 8", "lanes i1 8"]), (4, ["lanes i1 4"])]
)
def test_columns_that_fill_no_vector_are_a_shorter_one(n: int, chosen: list[str]) -> None:
    """Their rows would be read across; a few of them have sums of their own."""
    wide = replace(SMALL, vector_bytes=64)
    k = kernel_of(graphs.total(leaf(7, 33, n), 1))
    assert [str(opt) for opt in choose(lower(k), wide)[0]] == [*chosen, "unroll r0 3", "grid i0"]
    stages.assert_right(k, 1e-4, wide)


def test_functions_of_narrow_columns_have_whole_vectors() -> None:
    k = kernel_of(graphs.total(lazy.map_(Op.TANH, leaf(7, 33, 4)), 1))
    assert "lanes i1 4" not in [
        str(opt) for opt in choose(lower(k), replace(SMALL, vector_bytes=64))[0]
    ]


@pytest.mark.parametrize(
    ("height", "stride", "together"), [(8, 1, ["unroll i2 4"]), (7, 1, []), (8, 2, [])]
)
def test_rows_of_one_vector_that_share_a_window_are_made_several_at_a_time(
    height: int, stride: int, together: list[str]
) -> None:
    """Where pixels of a window lie side by side, and no row is left over."""
    x, w = images(8, 16, height * stride, 7 * stride), images(16, 1, 3, 3)
    k = kernel_of(x.conv2d(w, groups=16, padding=1, stride=stride).lazy)
    assert [opt for opt in opts(k) if opt.startswith("unroll i2")] == together
    stages.assert_right(k, 1e-4, SMALL)


def test_windows_of_all_rows_of_a_narrow_image_are_written_out() -> None:
    """Then it is known which rows of windows lie beyond the image: of 7 x 3 there are 19 within."""
    wide, w = replace(SMALL, vector_bytes=64, vector_registers=32), images(16, 1, 3, 3)
    whole, half = (
        kernel_of(images(8, 16, height, 7).conv2d(w, groups=16, padding=1).lazy)
        for height in (7, 14)
    )
    for k, chosen in ((whole, {"i2 7", "r0 3", "r1 3"}), (half, {"i2 7", "r1 3"})):
        found = {str(opt) for opt in choose(lower(k), wide)[0]}
        assert {opt for opt in found if "unroll" in opt} == {f"unroll {each}" for each in chosen}
        stages.assert_right(k, 1e-4, wide)
    made = linearize(choose(lower(whole), wide)[1])
    added = [i for part in made.parts for i in part.instrs if isinstance(i, ir.Update)]
    assert len(added) == 19 * 3


def test_long_folds_of_narrow_columns_have_several_sums() -> None:
    """Though they are masked: steps of one sum would wait for each other."""
    wide, w = replace(SMALL, vector_bytes=64, vector_registers=32), images(384, 1, 3, 3)
    made = images(8, 384, 14, 14).conv2d(w.requires_grad_(), groups=384, padding=1)
    k = kernel_of(made.gradient(w, gradient=images(8, 384, 14, 14))[0].lazy)
    found = [str(opt) for opt in choose(lower(k), wide)[0]]
    assert {"lanes i2 4", "unroll r2 7"} <= {*found}


def test_rows_that_look_up_the_same_columns_are_made_two_at_a_time() -> None:
    """Where a column lies is found once for both; where each row looks elsewhere, rows go alone."""
    columns = lazy.reshape(leaf(40, dtype=int32), (1, 40))
    same = kernel_of(lazy.gather(leaf(256, 9), lazy.expand(columns, (256, 40)), 1))
    assert "unroll i0 2" in opts(same)
    stages.assert_right(same, target=SMALL)
    own = kernel_of(lazy.gather(leaf(256, 9), leaf(256, 40, dtype=int32), 1))
    assert "unroll i0 2" not in opts(own)


@pytest.mark.parametrize("along", [True, False])
def test_rows_that_walk_more_than_they_sum_up_for_a_product_are_rows(along: bool) -> None:
    """As a mean over pixels whose layer makes few numbers of it does in its gradient."""
    grad, weight = (
        Tensor(np.ones(s, np.float32), device="CPU").realize() for s in [(6, 5), (5, 8)]
    )
    x = Tensor(np.ones((6, 8, 33) if along else (6, 33, 8), np.float32), device="CPU").realize()
    pixels = x if along else x.transpose(1, 2)
    k = kernel_of((pixels * (grad @ weight).unsqueeze(2)).sum(2).lazy)
    (lanes, *_) = (opt for opt in opts(k) if opt.startswith("lanes"))
    assert (lanes.split()[1] == "i1") is not along
    stages.assert_right(k, 1e-4, SMALL)


@pytest.mark.parametrize("dtype", [uint8, float32], ids=str)
@pytest.mark.parametrize("shape", [(37,), (9, 40), (20000,)], ids=str)
def test_what_bytes_say_where_to_find_is_loaded_by_elements(
    dtype: DType, shape: tuple[int, ...]
) -> None:
    """They would be widened to be taken apart. What is reckoned from them is made in vectors."""
    table, at = leaf(256, dtype=dtype), lazy.cast(leaf(*shape, dtype=uint8), int32)
    reckoned = lazy.map_(Op.ADD, at, lazy.const_like(at, -3))
    for index, alone in ((at, True), (reckoned, False)):
        flat = lazy.reshape(index, (math.prod(shape),))
        k = kernel_of(lazy.reshape(lazy.gather(table, flat, 0), shape))
        assert any(opt.startswith("lanes") for opt in opts(k)) is not alone
        stages.assert_right(k, target=SMALL)
