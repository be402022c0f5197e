"""Contractions are tiled by what ways to do it are estimated to take."""

from __future__ import annotations

from dataclasses import replace

import graphs
import pytest
import stages
from graphs import leaf, memory

from tinyml import Tensor, lazy
from tinyml.codegen.choose.c import CChooser
from tinyml.codegen.choose.c_contraction import packed
from tinyml.codegen.choose.chooser import contraction_of
from tinyml.codegen.choose.estimate import Factor, Product, Tiling
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.linearize.linearize import linearize
from tinyml.codegen.lower import lower
from tinyml.codegen.nest import LoopNest
from tinyml.codegen.optimize.opts import Opt, OptKind
from tinyml.kernel import Kernel
from tinyml.ops import Op

ONE = replace(stages.C, cores=1)
WIDE = replace(ONE, vector_bytes=64, vector_registers=32)


def plain(m: int, k: int, n: int) -> LoopNest:
    root = graphs.matmul(leaf(m, k), leaf(k, n))
    return lower(stages.kernels(root)[-1])


def chosen(m: int, k: int, n: int, target: stages.Target = ONE) -> list[Opt]:
    return choose(plain(m, k, n), target)[0]


def of(opts: list[Opt], kind: OptKind, axis: str) -> list[int]:
    return [opt.amount for opt in opts if opt.kind is kind and opt.axis == axis]


def test_columns_are_packed_for_many_rows_but_not_for_few():
    assert OptKind.STAGE in [opt.kind for opt in chosen(96, 512, 512)]
    assert OptKind.STAGE not in [opt.kind for opt in chosen(8, 512, 512)]


def test_columns_that_lie_apart_are_not_packed_if_a_panel_of_them_stays_close():
    """The first rows that pass over a panel bring its lines, as those of 1x1 weights do."""
    assert OptKind.STAGE not in [opt.kind for opt in chosen(64, 64, 3136, WIDE)]
    assert OptKind.STAGE in [opt.kind for opt in chosen(512, 1024, 3136, WIDE)]


def test_rows_that_lie_side_by_side_are_not_packed_where_lines_of_them_stay_close():
    """Each step of A.T @ B is in another line, which has the numbers of a register tile."""
    two = replace(WIDE, cores=2)
    for size, target, packs in ((640, two, 1), (1280, two, 1), (1024, stages.C, 2)):
        root = graphs.matmul(lazy.permute(leaf(1024, size), (1, 0)), leaf(1024, size))
        k = stages.kernel_of(root)
        tiles = [tile for one in choose(lower(k), target)[1].nests for tile in one.tiles]
        assert len([tile for tile in tiles if tile.copies]) == packs


def test_columns_that_lie_apart_are_not_packed_for_rows_that_lie_side_by_side():
    """Lanes lie along columns, of which vectors are loaded, and not along a long row's numbers."""
    assert of(chosen(64, 4096, 64, replace(WIDE, cores=2)), OptKind.LANES, "i1") == [16]


def test_columns_are_packed_if_they_are_rows_too():
    x = leaf(52, 300)
    k = stages.kernel_of(graphs.matmul(x, lazy.permute(x, (1, 0))))
    opts, nest = choose(lower(k), ONE)
    assert OptKind.STAGE in [opt.kind for opt in opts]
    assert len(nest.nests[0].tiles) == 1
    stages.assert_right(k, 1e-4, ONE)


@pytest.mark.parametrize(("columns", "padded"), [(509, [32]), (480, []), (456, [])])
def test_the_last_panel_is_masked_where_little_is_lost(columns: int, padded: list[int]):
    nest = choose(plain(48, 64, columns), WIDE)[1]
    opts = chosen(48, 64, columns, WIDE)
    assert of(opts, OptKind.PAD, "i1") == padded
    assert (len(nest.nests) > 1) == (columns == 456)


def test_what_is_beyond_the_last_column_is_not_stored():
    root = graphs.matmul(leaf(48, 64), leaf(64, 509))
    k = stages.kernel_of(root)
    stages.assert_right(k, 1e-4, WIDE)


def test_rows_are_divided_evenly():
    assert of(chosen(8, 512, 512), OptKind.UNROLL, "i0") == [4]
    assert of(chosen(20, 512, 512), OptKind.UNROLL, "i0") == [5]


def test_register_tiles_are_lower_where_no_rows_are_left_over_then():
    """Those of 64 rows would be 11 high, and walk the last 9 in a nest of its own."""
    opts, nest = choose(plain(64, 24, 128), WIDE)
    assert of(opts, OptKind.UNROLL, "i0") == [8]
    assert all(split.rest == 0 for split in nest.splits)


@pytest.mark.parametrize(
    ("size", "target", "height", "rests"),
    [(512, WIDE, 8, []), (1024, WIDE, 4, []), (512, ONE, 6, [2])],
)
def test_register_tiles_are_lower_unless_their_sums_would_be_waited_for(
    size: int, target: stages.Target, height: int, rests: list[int]
):
    """Many registers hold 12 rows of 2 vectors, or 6 of 4; few hold 6 of 2, and 4 are too few."""
    opts, nest = choose(plain(size, size, size), target)
    assert of(opts, OptKind.UNROLL, "i0") == [height]
    assert [split.rest for split in nest.splits] == rests


def test_rows_that_pass_over_columns_a_page_apart_find_them_packed():
    """Lines of such columns push each other out of the closest cache."""

    def packs(rows: int, columns: int) -> bool:
        return OptKind.STAGE in [opt.kind for opt in chosen(rows, 128, columns, WIDE)]

    assert [packs(512, columns) for columns in (1008, 1024, 1040)] == [False, True, False]
    assert not packs(48, 1024)


def test_long_rows_are_read_once_rather_than_for_each_panel():
    assert of(chosen(8192, 512, 64), OptKind.PEEL, "i1") == [64]


@pytest.mark.parametrize(("depth", "rows"), [(1024, [6]), (1040, [12]), (2048, [6])])
def test_rows_a_page_apart_are_read_few_at_a_time(depth: int, rows: list[int]):
    assert of(chosen(1021, depth, 1040, WIDE), OptKind.UNROLL, "i0") == rows


def test_rows_of_large_factors_are_asked_for_while_others_are_multiplied():
    """Where few registers hold the sums, that would take more loads than there are."""

    def rows(opts: list[Opt]) -> bool:
        return any(o.kind is OptKind.AHEAD and o.axis in ("i0", "i0s") for o in opts)

    assert rows(chosen(2048, 512, 64, WIDE))
    assert not rows(chosen(64, 64, 8192, WIDE))
    assert not rows(chosen(2048, 512, 64))
    opts = chosen(220, 600, 64, WIDE)
    assert rows(opts)
    k = stages.kernel_of(graphs.matmul(leaf(44, 20), leaf(20, 64)))
    stages.assert_made(k, stages.simulated(WIDE, opts), 1e-4)


def test_columns_that_are_one_panel_as_they_lie_are_not_copied():
    assert OptKind.STAGE not in [opt.kind for opt in chosen(64, 1024, 64, WIDE)]
    assert OptKind.STAGE in [opt.kind for opt in chosen(512, 1024, 128, WIDE)]


@pytest.mark.parametrize("cores", [2, 8, 64])
def test_there_is_work_for_all_cores(cores: int):
    opts = chosen(512, 512, 512, replace(stages.C, cores=cores))
    (columns,) = of(opts, OptKind.PEEL, "i1")[:1]
    pieces = [512 // rows for rows in of(opts, OptKind.SPLIT, "i0")]
    assert 512 // columns * (pieces or [1])[0] >= cores


def test_a_short_rest_of_rows_is_no_piece_of_work_more():
    two = replace(stages.C, cores=2)
    product = Product(1, 16384, 4, 512, 4, 36 << 20, False, 0, Factor(), Factor(), two)
    even, rest = (product.cycles(Tiling(2, 6, 4, piece), 512) for piece in (2048, 2046))
    assert rest < 1.02 * even


@pytest.mark.parametrize("jump", [0, 1])
def test_a_factor_that_jumps_is_packed_if_it_is_read_often(jump: float):
    product = Product(1, 512, 32, 512, 4, 3 << 20, False, 0, Factor(), Factor(0, jump), ONE)
    tilings = [Tiling(2, 6, 16, 516, 128, repacks=packs) for packs in (True, False)]
    packed, plain = (product.cycles(tiling, 128) for tiling in tilings)
    assert (packed < plain) == bool(jump)


@pytest.mark.parametrize("shape", [(96, 1 << 17, 512), (1 << 14, 512, 512), (512, 512, 1 << 14)])
def test_tiles_fit_a_stack(shape: tuple[int, int, int]):
    made = linearize(choose(plain(*shape), ONE)[1], vectors=True)
    assert sum(local.size * local.dtype.itemsize for local in made.locals) <= 2 << 20


@pytest.mark.parametrize(("depth", "rows", "lane"), [(64, 96, "i1"), (4096, 1024, "i0")])
def test_lanes_lie_where_the_fold_does_not_jump_though_results_are_stored_apart(
    depth: int, rows: int, lane: str
):
    """As in attention's gradients: weights are read by columns, for few columns of results."""
    root = graphs.matmul(lazy.permute(leaf(depth, rows), (1, 0)), leaf(depth, 32))
    k = stages.kernel_of(root)
    opts = choose(lower(k), ONE)[0]
    assert of(opts, OptKind.LANES, lane) == [stages.C.vector_bytes // 4]


def test_columns_that_are_left_over_take_as_long_as_others():
    def cycles(columns: int) -> float:
        chooser = CChooser(plain(96, 512, columns), WIDE)
        found = contraction_of(chooser.one)
        assert found is not None
        way = packed(chooser, found)
        assert way is not None
        return way.cycles

    assert cycles(48) > 1.3 * cycles(32)


def test_lanes_do_not_lie_where_pairs_would_be_put_together_of_twice_as_many_numbers():
    """As of weights along the channels of results: those of a pair are places of a window apart."""
    images, weights = Tensor.ones(2, 16, 16, 16), Tensor.ones(32, 16, 3, 3)
    x, w = (t.cast("bfloat16").realize() for t in (images, weights))
    k = stages.kernel_of(x.conv2d(w, stride=2, padding=1))
    opts = choose(lower(k), replace(stages.C, pairs=True))[0]
    assert OptKind.PAIR in [opt.kind for opt in opts]
    assert of(opts, OptKind.LANES, "i3") == [8]


def test_few_rows_pass_over_a_matrix_as_it_lies():
    """In long runs of each of a few rows: lines of many pages in turn would be waited for."""
    opts = chosen(4, 1024, 4096)
    assert of(opts, OptKind.BLOCK, "r0") == [8]
    assert OptKind.STAGE not in [opt.kind for opt in opts]


def test_what_is_heavy_is_done_with_one_register_tile_after_the_other():
    sums = graphs.matmul(leaf(50, 24), leaf(24, 64))
    functions = [lazy.map_(Op.EXP, lazy.map_(op, sums)) for op in (Op.NEG, Op.TANH, Op.SIN)]
    k = stages.kernel_of(*functions)
    opts = choose(lower(k), ONE)[0]
    assert of(opts, OptKind.BLOCK, "r0") == [24]
    assert of(opts, OptKind.PEEL, "i0") == [5]
    stages.assert_right(k, target=ONE)


@pytest.mark.parametrize(("batch", "pieces"), [(16, 8), (40, 8), (12, 12)])
def test_products_of_a_batch_pass_over_panels_that_are_packed_once(batch: int, pieces: int):
    """Positions are added to all texts of it, so that these are no rows of one product."""
    x, weights, positions = (memory(*shape) for shape in ((batch, 24, 32), (32, 32), (24, 32)))
    k = stages.kernel_of(x @ weights.transpose(0, 1) + positions)
    nest = choose(lower(k), replace(WIDE, cores=2))[1]
    (grid,), (tile,) = nest.grid(nest.nests[0]), nest.nests[0].tiles
    assert (grid.size, tile.after) == (pieces, grid)
    stages.assert_right(k, 1e-4, replace(WIDE, cores=2))


def test_products_that_share_columns_leave_pieces_for_all_cores():
    two = replace(WIDE, cores=2)
    product = Product(12, 64, 1, 128, 4, 1 << 20, 1, 0, Factor(), Factor(), two, alike=12)
    assert [product.passing(Tiling(2, 8, 1, piece)) for piece in (0, 32, 16)] == [1, 3, 6]
    assert product.passing(Tiling(2, 8, 1, 16, packs=False)) == 1


def test_rows_that_are_in_other_lines_at_each_step_push_each_other_out():
    """Texts of a batch, of each of which a line has one number for a register tile."""

    def product(texts: int, depth: int) -> Kernel:
        x, weights = memory(texts, depth, 16), memory(256, depth)
        return stages.kernel_of(x.transpose(1, 2) @ weights.transpose(0, 1))

    target = replace(stages.C, cores=2, cache=1 << 20, vector_bytes=32)
    opts = choose(lower(product(32, 256)), target)[0]
    assert of(opts, OptKind.LANES, "i1") == [8]
    stages.assert_made(product(2, 64), stages.simulated(target, opts), 1e-4)
