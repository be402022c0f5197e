"""Opts never change what a kernel computes, alone or together, also where sizes are odd."""

from __future__ import annotations

import contextlib
from unittest import mock

import graphs
import numpy as np
import pytest
import stages
from graphs import leaf
from hypothesis import given, note, settings
from hypothesis import strategies as st
from products import product
from simulate import simulate
from stages import kernel_of

from tinyml import kernel, lazy
from tinyml.codegen import nest
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.linearize.linearize import linearize
from tinyml.codegen.lower import lower
from tinyml.codegen.nest import Kind, LoopNest, Nest
from tinyml.codegen.optimize.change import LOADS, Change
from tinyml.codegen.optimize.opts import Opt, OptError, OptKind, apply, find, optimize, parse
from tinyml.device import Device
from tinyml.dtype import bfloat16, float16, float32, int32
from tinyml.kernel import Kernel
from tinyml.lazy import LazyBuffer
from tinyml.ops import Op

GRAPHS = {
    "elementwise": lambda: graphs.elementwise(5, 11),
    "halves": lambda: graphs.elementwise(3, 13, dtype=float16),
    "softmax": lambda: graphs.softmax(leaf(3, 11)),
    "layernorm": lambda: graphs.layernorm(leaf(5, 7)),
    "column sum": lambda: graphs.total(leaf(11, 5), 0),
    "matmul": lambda: graphs.linear_relu(5, 7, 11),
    "transposed matmul": lambda: graphs.matmul(lazy.permute(leaf(3, 5), (1, 0)), leaf(3, 9)),
    "half matmul": lambda: graphs.matmul(
        lazy.cast(leaf(16, 32, dtype=float16), float32),
        lazy.cast(leaf(32, 16, dtype=float16), float32),
    ),
    "bfloat16 matmul": lambda: product(6, 12, 20, bfloat16),
    "bfloat16 matmul, odd": lambda: product(5, 7, 18, bfloat16, (True, False)),
    "convolution": lambda: graphs.convolution(1, 2, 3, 5, 4),
    "window": lambda: graphs.window_gradient(2, 9, 3, 2),
    "attention": lambda: graphs.attention(5, 7, 3, 9),
    "padded": lambda: lazy.pad(leaf(3, 6), ((1, 0), (3, 2)), 5.0),
    "embedding": lambda: graphs.embedding(6, 5, 7),
    "scatter": lambda: graphs.embedding_gradient(6, 5, 7),
}
# one kernel per graph: the last, which has something to say
KERNELS: dict[str, Kernel] = {name: stages.kernels(make())[-1] for name, make in GRAPHS.items()}
SIZES = {
    OptKind.COLLAPSE: (0, 1, 2, 3), OptKind.GRID: (0,), OptKind.ORDER: (0,), OptKind.STAGE: (0,),
    OptKind.SPLIT: (2, 3), OptKind.THREAD: (2, 4), OptKind.LANES: (4, 8),
    OptKind.UNROLL: (2, 3), OptKind.PEEL: (2, 4), OptKind.CUT: (2, 3), OptKind.PHASE: (2, 3),
    OptKind.ALIGN: (2, 4), OptKind.PAD: (2, 4), OptKind.BLOCK: (2, 3), OptKind.KEEP: (0, 4),
    OptKind.ONLINE: (2, 4), OptKind.AHEAD: (0,), OptKind.STREAM: (0,), OptKind.PAIR: (0,),
    OptKind.FRAGMENT: (8, 16), OptKind.PIPELINE: (2, 3),
    OptKind.WARPGROUP: (64, 128), OptKind.BULK: (2, 3), OptKind.PERSIST: (2, 3),
    OptKind.FILL: (0,), OptKind.DEFER: (0,),
}  # fmt: skip


def arrays_of(k: Kernel) -> list[graphs.Array]:
    """Buffers for the slots of a kernel: indices are small, outputs start as zeros."""
    rng = np.random.default_rng(3)
    written = {output.slot for output in k.outputs}
    found = []
    for slot, (shape, dtype) in enumerate(k.slots):
        drawn = graphs.numbers(rng, shape, dtype)
        found.append(np.zeros_like(drawn) if slot in written else drawn)
    return found


WANTED: dict[str, list[graphs.Array]] = {}
for _name, _kernel in KERNELS.items():
    WANTED[_name] = arrays_of(_kernel)
    kernel.run(_kernel, WANTED[_name])


def choices(plain: LoopNest) -> list[Opt]:
    """Every Opt that could be tried on a nest."""
    axes = dict.fromkeys(a.name for one in plain.nests for a in one.axes)
    slots = range(len(plain.slots))
    return [
        Opt(kind, axis, amount, slot)
        for kind in OptKind
        for axis in axes
        for amount in SIZES[kind]
        for slot in (slots if kind is OptKind.STAGE else (0,))
    ]


def assert_known(one: Nest) -> None:
    """What is known of a nest before its expressions are made is what they say."""
    plain = Nest(one.rows, tuple(one.walks), one.tiles)
    assert (one.axes, one.folded, one.groups) == (plain.axes, plain.folded, plain.groups)
    assert (one.adds, one.asks, one.ordered) == (plain.adds, plain.asks, plain.ordered)


def assert_unchanged(name: str, nest_: LoopNest) -> None:
    """Both dialects of the nest compute what the kernel does."""
    nest.verify(nest_)
    for one in nest_.nests:
        assert_known(one)
    k = KERNELS[name]
    kinds = {kind for _, kind in nest_.kinds}
    for vectors in (True, False):
        if vectors and (nest.Kind.THREAD in kinds or nest.Kind.LANE not in kinds):
            continue  # C has no threads of a block; without lanes both dialects are alike
        found = arrays_of(k)
        simulate(linearize(nest_, vectors), found)
        for output in k.outputs:
            got, wanted = found[output.slot], WANTED[name][output.slot]
            half = output.value.dtype.is_half
            np.testing.assert_allclose(
                got.astype(np.float64), wanted.astype(np.float64), 2e-2 if half else 1e-4, 1e-4
            )


def spread(plain: LoopNest, opt: Opt) -> LoopNest:
    """All rows but the one that `opt` is about walked by blocks, which is quick to simulate."""
    if opt.kind in (OptKind.COLLAPSE, OptKind.ORDER):
        return plain
    rows = dict.fromkeys(a.name for one in plain.nests for a in one.rows if a.name != opt.axis)
    return optimize(plain, [Opt(OptKind.GRID, name) for name in rows])


def test_opts_in_a_row_rewrite_expressions_once() -> None:
    """Unless somebody looks at what each of them made, which is the same."""
    opts = [*map(parse, ("lanes i1 4", "unroll i1 2", "order i1", "grid i0"))]
    with mock.patch.object(Change, "walks", autospec=True, side_effect=Change.walks) as rewritten:
        at_once = optimize(lower(KERNELS["matmul"]), opts)
        assert [len(one.stores) for one in at_once.nests] == [1]
    assert rewritten.call_count == 1
    one_by_one = lower(KERNELS["matmul"])
    for opt in opts:
        one_by_one = apply(one_by_one, opt)
        nest.verify(one_by_one)
    assert str(at_once) == str(one_by_one)
    assert at_once == one_by_one


@pytest.mark.parametrize("name", KERNELS)
def test_each_opt_alone(name: str) -> None:
    plain = lower(KERNELS[name])
    applied: set[OptKind] = set()
    for opt in choices(plain):
        try:
            changed = apply(spread(plain, opt), opt)
        except OptError:
            continue
        applied.add(opt.kind)
        try:
            assert_unchanged(name, changed)
        except Exception as error:
            raise AssertionError(f"{opt} changes {name}: {error}\n{changed}") from error
    assert {OptKind.GRID, OptKind.LANES, OptKind.UNROLL, OptKind.SPLIT} <= applied


@settings(max_examples=100)
@given(st.data())
def test_opts_together(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(KERNELS)))
    changed = lower(KERNELS[name])
    applied: list[Opt] = []
    for _ in range(data.draw(st.integers(2, 4))):
        opt = data.draw(st.sampled_from(choices(changed)))
        try:
            changed = apply(changed, opt)
        except OptError:
            continue
        applied.append(opt)
    rows = dict.fromkeys(a.name for one in changed.nests for a in one.rows)
    for axis in rows:  # what is left is walked by blocks: quick to simulate
        with contextlib.suppress(OptError):
            if changed.kind(find(changed, axis)) is nest.Kind.LOOP:
                changed = apply(changed, Opt(OptKind.GRID, axis))
    note(f"{name}: {[str(o) for o in applied]}\n{changed}")
    assert_unchanged(name, changed)


def test_what_is_staged_may_be_folded_along_the_axis_that_it_walks() -> None:
    """The place of the smallest of a row: where an element equals what a fold of all finds."""
    x = leaf(3, 4, 5)
    smallest = lazy.expand(lazy.reduce_(Op.MIN, x, (2,)), (3, 4, 5))
    places = lazy.reshape(lazy.iota(5, int32, "CPU"), (1, 1, 5))
    found = lazy.map_(
        Op.WHERE, lazy.map_(Op.EQUAL, x, smallest), places, lazy.const(5, int32, "CPU")
    )
    k = kernel_of(lazy.reduce_(Op.MIN, found, (2,)))
    stages.assert_made(k, stages.simulated(stages.C, [parse("stage i0 slot1")]))


def test_threads_that_a_part_does_not_need_add_nothing() -> None:
    opts = [Opt(OptKind.PEEL, "i0", 2), Opt(OptKind.PEEL, "i1", 2), Opt(OptKind.THREAD, "i0", 2)]
    assert_unchanged("scatter", optimize(lower(KERNELS["scatter"]), opts))


@pytest.mark.parametrize("machine", ["CPU", "EMU"])
def test_opts_on_machines(machine: str) -> None:
    if not Device.available(machine):
        pytest.skip(f"{machine} does not answer")
    common = (OptKind.GRID, OptKind.UNROLL, OptKind.LANES)
    kinds = common if machine == "CPU" else (*common, OptKind.THREAD)
    chosen = {(name, opt) for name in KERNELS for kind in kinds for opt in first_of(kind, name)}
    made = sorted(chosen, key=str)
    assert_right_on(machine, [(name, [opt]) for name, opt in made], 2e-2, 1e-3)


@pytest.mark.skipif(not Device.available("EMU"), reason="EMU does not answer")
def test_threads_of_no_whole_warp_fold_together() -> None:
    """A block smaller than a warp, or whose last warp lacks lanes; y threads by x of them."""
    blocks = [(1, 4), (1, 16), (3, 8), (3, 16), (5, 16), (3, 32), (3, 96)]
    made = [
        (name, [Opt(OptKind.THREAD, "i0", y)] * (y > 1) + [Opt(OptKind.THREAD, fold, x)])
        for y, x in blocks
        for name, fold in (("softmax", "r0"), ("column sum", "r0"), ("layernorm", "r1"))
    ]
    fit = [(name, opts) for name, opts in made if fits(name, opts)]
    assert {(len(opts), opts[-1].amount) for _, opts in fit} >= {(1, 4), (1, 16), (2, 8), (2, 96)}
    assert_right_on("EMU", fit, 1e-5, 1e-5)


def assert_right_on(
    machine: str, made: list[tuple[str, list[Opt]]], rtol: float, atol: float
) -> None:
    """Kernels with Opts, compiled together, store on a machine what they are to."""
    runners = stages.compiled(machine, [(KERNELS[name], opts) for name, opts in made])
    for (name, opts), runner in zip(made, runners, strict=True):
        k, found = KERNELS[name], arrays_of(KERNELS[name])
        runner(k, found)
        for output in k.outputs:
            wide = (a[output.slot].astype(np.float64) for a in (found, WANTED[name]))
            np.testing.assert_allclose(*wide, rtol, atol, err_msg=f"{name} {opts}")


def fits(name: str, opts: list[Opt]) -> bool:
    with contextlib.suppress(OptError):
        return bool(optimize(lower(KERNELS[name]), opts))
    return False


def first_of(kind: OptKind, name: str) -> list[Opt]:
    """The first Opt of a kind that fits a kernel, if one does."""
    plain = lower(KERNELS[name])
    for opt in choices(plain):
        with contextlib.suppress(OptError):
            if opt.kind is kind and apply(plain, opt):
                return [opt]
    return []


# ---- what does not fit ----


def plain_of(root: LazyBuffer) -> LoopNest:
    k = kernel_of(root)
    return lower(k)


@pytest.mark.parametrize(
    ("opt", "why"),
    [
        (Opt(OptKind.UNROLL, "nowhere", 2), "no axis nowhere"),
        (Opt(OptKind.UNROLL, "i0", 1), "cannot unroll i0 1"),
        (Opt(OptKind.LANES, "i0", 99), "i0 has 13 steps"),
        (Opt(OptKind.GRID, "r0"), "blocks that share a fold make it once"),
        (Opt(OptKind.PEEL, "r0", 2), "only row axes"),
        (Opt(OptKind.COLLAPSE, "r0"), "cannot collapse"),
        (Opt(OptKind.THREAD, "r0", 3), "share a fold are whole warps"),
        (Opt(OptKind.THREAD, "r0", 48), "share a fold are whole warps"),
    ],
)
def test_an_opt_that_does_not_fit_says_why(opt: Opt, why: str) -> None:
    with pytest.raises(OptError, match=why):
        apply(plain_of(graphs.matmul(leaf(13, 5), leaf(5, 7))), opt)


def test_as_many_threads_fold_as_walk() -> None:
    one = apply(lower(KERNELS["layernorm"]), Opt(OptKind.THREAD, "r0", 2))
    nest.verify(apply(one, Opt(OptKind.THREAD, "j0", 2)))
    with pytest.raises(OptError, match="as many threads"):
        apply(one, Opt(OptKind.THREAD, "j0", 4))


def test_axes_that_are_read_apart_are_not_collapsed() -> None:
    x = lazy.permute(leaf(4, 6), (1, 0))
    with pytest.raises(OptError, match="read apart"):
        apply(plain_of(graphs.add(x, leaf(6, 4))), Opt(OptKind.COLLAPSE, "i0"))


def test_a_value_read_in_two_ways_is_not_staged() -> None:
    x = leaf(6, 6)
    both = graphs.matmul(x, lazy.permute(x, (1, 0)))
    with pytest.raises(OptError, match="cannot stage"):
        apply(plain_of(both), Opt(OptKind.STAGE, "r0", slot=1))


def test_a_fold_made_in_steps_keeps_its_sums_in_a_tile() -> None:
    plain = plain_of(graphs.matmul(leaf(12, 20), leaf(20, 16)))
    opts = [
        Opt(OptKind.PAD, "r0", 7), Opt(OptKind.PAD, "i0", 5), Opt(OptKind.LANES, "i1", 8),
        Opt(OptKind.SPLIT, "i0", 5), Opt(OptKind.GRID, "i0"), Opt(OptKind.UNROLL, "i0s", 5),
        Opt(OptKind.BLOCK, "r0", 7), Opt(OptKind.STAGE, "r0", slot=1),
        Opt(OptKind.STAGE, "r0", slot=2),
    ]  # fmt: skip
    blocked = optimize(plain, opts)
    first, second, sums = blocked.nests[0].tiles
    assert sums.over is not None
    assert sums.over.size == 3
    assert sums.size == 5 * 16
    assert {first.after, second.after} == {sums.over}
    k = kernel_of(graphs.matmul(leaf(12, 20), leaf(20, 16)))
    found = arrays_of(k)
    simulate(linearize(blocked), found)
    np.testing.assert_allclose(found[0], found[1] @ found[2], 1e-4, 1e-5)


def test_rows_of_a_tile_that_are_filled_in_turn_lie_an_odd_number_of_lines_apart() -> None:
    plain = plain_of(graphs.matmul(lazy.permute(leaf(64, 24), (1, 0)), leaf(64, 16)))
    opts = ["unroll i0 4", "grid i1", "stage i1 slot1"]
    blocked = optimize(plain, [parse(opt) for opt in ["peel i1 8", "lanes i1 8", *opts]])
    (tile,) = blocked.nests[0].tiles
    assert tile.size == 5 * (64 * 4 + 16) + 64 * 4


def test_a_tile_of_what_lies_apart_is_filled_a_vector_at_a_time() -> None:
    """One after the other, not those of a register tile in turn: their lines would meet."""
    node = graphs.matmul(leaf(24, 64), lazy.permute(leaf(32, 64), (1, 0)))
    opts = ["lanes i1 8", "unroll i1 2", "grid i1", "stage i1 slot2"]
    staged = optimize(plain_of(node), [parse(opt) for opt in opts])
    (tile,) = staged.nests[0].tiles
    kinds = [(axis.size, staged.kind(axis)) for axis in tile.axes]
    assert kinds == [(64, Kind.LOOP), (2, Kind.LOOP), (8, Kind.LANE)]
    k = kernel_of(node)
    found = arrays_of(k)
    simulate(linearize(staged), found)
    np.testing.assert_allclose(found[0], found[1] @ found[2].T, 1e-4, 1e-5)


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("rows", [24, 21])
def test_a_tile_of_single_numbers_is_filled_in_vectors_along_memory(
    across: bool, rows: int
) -> None:
    """Four rows of a register tile, where these lie side by side; else eight steps of the fold."""
    x = leaf(64, rows) if across else leaf(rows, 64)
    left = lazy.permute(x, (1, 0)) if across else x
    node = graphs.matmul(left, leaf(64, 16))
    opts = ["pad i0 12", "lanes i1 8", "split i0 12", "grid i0", "unroll i0s 4", "stage i0 slot1"]
    staged = optimize(plain_of(node), [parse(opt) for opt in opts])
    (tile,) = staged.nests[0].tiles
    kinds = [(axis.size, staged.kind(axis)) for axis in tile.axes]
    steps = [(64, Kind.LOOP), (1, Kind.UNROLL), (4, Kind.LANE)]
    numbers = [(4, Kind.UNROLL), (8, Kind.LOOP), (8, Kind.LANE)]
    assert kinds == [(3, Kind.LOOP), *(steps if across else numbers)]
    k = kernel_of(node)
    found = arrays_of(k)
    simulate(linearize(staged), found)
    right = found[1].T if across else found[1]
    np.testing.assert_allclose(found[0], right @ found[2], 1e-4, 1e-5)


def test_the_sums_of_many_steps_are_added_up_in_groups() -> None:
    node = graphs.matmul(leaf(12, 198), leaf(198, 16))
    opts = [
        Opt(OptKind.LANES, "i1", 8), Opt(OptKind.SPLIT, "i0", 6), Opt(OptKind.GRID, "i0"),
        Opt(OptKind.UNROLL, "i0s", 3), Opt(OptKind.BLOCK, "r0", 3),
        Opt(OptKind.STAGE, "r0", slot=2),
    ]  # fmt: skip
    blocked = optimize(plain_of(node), opts)
    staged, whole, part = blocked.nests[0].tiles
    assert [tile.over.size for tile in (whole, part) if tile.over is not None] == [3, 22]
    assert (part.after, staged.after) == (whole.over, part.over)
    k = kernel_of(node)
    found = arrays_of(k)
    simulate(linearize(blocked), found)
    np.testing.assert_allclose(found[0], found[1] @ found[2], 1e-4, 1e-5)


def test_what_is_made_of_the_sums_of_a_block_is_made_in_a_loop() -> None:
    plain = plain_of(graphs.matmul(leaf(12, 20), leaf(20, 16)))
    opts = [
        Opt(OptKind.LANES, "i1", 8), Opt(OptKind.SPLIT, "i0", 6), Opt(OptKind.GRID, "i0"),
        Opt(OptKind.UNROLL, "i0s", 3), Opt(OptKind.BLOCK, "r0", 20),
    ]  # fmt: skip
    blocked = optimize(plain, opts)
    unrolled = {axis.name for axis, kind in blocked.kinds if kind is nest.Kind.UNROLL}
    assert unrolled == {"i0su_sums0"}
    (sums,) = blocked.nests[0].tiles  # of what is written out: they wait for that loop alone
    assert (sums.size, sums.after.name, sums.over) == (3 * 8, "i1", None)
    k = kernel_of(graphs.matmul(leaf(12, 20), leaf(20, 16)))
    found = arrays_of(k)
    simulate(linearize(blocked), found)
    np.testing.assert_allclose(found[0], found[1] @ found[2], 1e-4, 1e-5)


def test_several_folds_are_made_in_the_same_steps() -> None:
    """What the first of them brought to a cache is there for the others."""
    x, y = leaf(20, 32), leaf(20, 32)
    roots = [graphs.total(x, 0), graphs.total(graphs.mul(x, y), 0)]
    k = kernel_of(*roots)
    opts = ["lanes i0 8", "split i0 2", "grid i0", "block r0 4"]
    blocked = optimize(lower(k), [parse(opt) for opt in opts])
    first, second = blocked.nests[0].tiles
    assert first.over is second.over is not None
    text = str(linearize(blocked))
    assert text.count("for r0 < 5") == 1
    found = [np.zeros(32, np.float32) for _ in roots]
    rng = np.random.default_rng(1)
    found += [rng.standard_normal((20, 32), np.float32) for _ in "xy"]
    simulate(linearize(blocked), found)
    wanted = found[2].sum(0), (found[2] * found[3]).sum(0)
    np.testing.assert_allclose(found[:2], wanted, 1e-4, 1e-4)


def test_a_fold_is_blocked_by_what_divides_it_and_inside_a_piece_of_work() -> None:
    plain = plain_of(graphs.matmul(leaf(12, 20), leaf(20, 16)))
    with pytest.raises(OptError, match="pad it first"):
        apply(plain, Opt(OptKind.BLOCK, "r0", 7))
    with pytest.raises(OptError, match="not one of whole tiles in a block"):
        apply(plain, Opt(OptKind.BLOCK, "r0", 5))


def test_a_list_of_opts_is_a_value() -> None:
    opts = [Opt(OptKind.UNROLL, "i0", 4), Opt(OptKind.LANES, "i1", 8)]
    assert [str(o) for o in opts] == ["unroll i0 4", "lanes i1 8"]
    plain = plain_of(graphs.matmul(leaf(13, 5), leaf(5, 9)))
    assert optimize(plain, opts) == optimize(optimize(plain, opts[:1]), opts[1:])
    assert optimize(plain, []) is plain


def test_a_plain_loop_nest_prints_what_it_walks() -> None:
    text = str(
        optimize(plain_of(graphs.matmul(leaf(13, 5), leaf(5, 9))), [Opt(OptKind.GRID, "i0")])
    )
    assert "grid i0:13" in text
    assert "loop r0:5" in text


def test_sums_of_lanes_lie_side_by_side_whatever_order_the_rows_have() -> None:
    if not Device.available("CPU"):
        pytest.skip("CPU does not answer")
    k = kernel_of(graphs.matmul(leaf(12, 20), leaf(20, 16)))
    opts = [
        Opt(OptKind.LANES, "i1", 8), Opt(OptKind.SPLIT, "i0", 6), Opt(OptKind.GRID, "i0"),
        Opt(OptKind.UNROLL, "i0s", 3), Opt(OptKind.ORDER, "i1v"), Opt(OptKind.BLOCK, "r0", 5),
    ]  # fmt: skip
    (tile,) = optimize(lower(k), opts).nests[0].tiles
    assert tile.axes[-1].name == "i1v_sums0"
    found = arrays_of(k)
    stages.on_machine("CPU", [k], opts)(k, found)
    np.testing.assert_allclose(found[0], found[1] @ found[2], 1e-4, 1e-5)


def test_an_opt_is_read_back_from_its_text():
    for kind, sizes in SIZES.items():
        for size in sizes:
            opt = Opt(kind, "i0", size, 2 if kind is OptKind.STAGE else 0)
            assert parse(str(opt)) == opt
    for text in ("lanes", "nothing i0 4", "lanes i0 x", "lanes i0 4 4", "lanes i0 04"):
        with pytest.raises(OptError, match="is no Opt; one is written as"):
            parse(text)


@pytest.mark.parametrize("size", [2, 4])
def test_rows_shorter_than_a_vector_share_one(size: int) -> None:
    """Sums of 3 for each of 6 x size: where the lanes go is known, though they jump."""
    k = kernel_of(graphs.total(lazy.permute(leaf(6, 3, size), (0, 2, 1)), 2))
    opts, made = choose(lower(k), stages.C)
    assert Opt(OptKind.COLLAPSE, "i0", LOADS) in opts
    assert nest.Kind.LANE in {kind for _, kind in made.kinds}
    found = arrays_of(k)
    simulate(linearize(made), found)
    np.testing.assert_allclose(found[0][..., 0], found[1].sum(1), 1e-5)
