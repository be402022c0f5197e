"""While a row is computed, memory is asked for what the next one reads: once, a line at a time."""

from __future__ import annotations

from dataclasses import replace

import graphs
import numpy as np
import pytest
import stages
from graphs import leaf
from stages import kernel_of

from tinyml import Tensor, lazy
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.linear import LinearKernel
from tinyml.codegen.linearize.linearize import linearize
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import OptKind, optimize, parse
from tinyml.codegen.target import Target
from tinyml.kernel import Kernel

SMALL = replace(stages.C, cache=1 << 10)
HALF = replace(stages.C, cache=1 << 18)
WIDE = replace(stages.C, vector_bytes=64, vector_registers=32)


def linear(k: Kernel, *opts: str) -> LinearKernel:
    return linearize(optimize(lower(k), [parse(opt) for opt in opts]))


def test_the_second_loop_asks_for_the_next_row() -> None:
    k = kernel_of(graphs.layernorm(leaf(5, 64)))  # mean, variance, result: three loops
    plain = linear(k, "grid i0", "ahead i0")
    text = str(plain)
    assert text.count("fetch") == 1
    assert "fetch slot1[i0*64 + r0 + 64]" in text
    before, after = text.split("fetch")
    assert before.count("slot1[") == 2
    assert after.count("slot1[") == 1 + 1


def test_memory_is_asked_for_as_many_rows_further_on_as_it_is_told() -> None:
    k = kernel_of(graphs.layernorm(leaf(50, 64)))
    assert asked_for(str(linear(k, "grid i0", "ahead i0 3"))) == ["slot1[i0*64 + r0 + 192]"]


def test_what_is_stored_past_the_caches_takes_so_long_that_this_loop_asks() -> None:
    """Unless a fold calls functions: that takes longer still. A quarter of a page further on."""
    opts = "grid i0", "lanes r0 8", "lanes j0 8", "stream j0v", "ahead i0"
    rows = leaf(50, 64)
    assert asked_for(str(linear(kernel_of(graphs.layernorm(rows)), *opts))) == [
        f"slot1[i0*64 + j0*8 + {64 + 256}]"
    ]
    assert asked_for(str(linear(kernel_of(graphs.softmax(rows)), *opts))) == [
        f"slot1[i0*64 + r0*8 + {64 + 256}]"
    ]


@pytest.mark.parametrize(("columns", "aside"), [(4096, 256), (4104, 0)])
def test_long_rows_are_asked_for_at_their_own_place_of_a_page(columns: int, aside: int) -> None:
    """32 kB of what is read and stored for a row are the most of a short one."""
    k = kernel_of(graphs.layernorm(leaf(50, columns)))
    opts = "grid i0", "lanes r0 8", "lanes j0 8", "stream j0v", "ahead i0"
    assert asked_for(str(linear(k, *opts))) == [f"slot1[i0*{columns} + j0*8 + {columns + aside}]"]


def test_a_line_is_asked_for_once() -> None:
    k = kernel_of(graphs.layernorm(leaf(5, 64)))
    text = str(linear(k, "grid i0", "lanes r0 8", "unroll r0 4", "ahead i0"))
    asked = [line.strip() for line in text.splitlines() if "fetch" in line]
    assert asked == ["fetch slot1[i0*64 + r0*32 + 64]", "fetch slot1[i0*64 + r0*32 + 80]"]


def test_what_is_read_once_needs_no_asking() -> None:
    assert "fetch" not in str(
        linear(kernel_of(graphs.total(leaf(5, 64), 1)), "grid i0", "ahead i0")
    )


def test_weights_that_all_rows_share_are_not_asked_for() -> None:
    x, weight = leaf(5, 64), leaf(1, 64)
    k = kernel_of(graphs.softmax(graphs.add(x, graphs.spread(weight, (5, 64)))))
    assert "fetch slot1" in str(linear(k, "grid i0", "ahead i0"))
    assert "fetch slot2" not in str(linear(k, "grid i0", "ahead i0"))


def test_numbers_that_are_spread_over_lanes_are_asked_for_where_they_are_read() -> None:
    k = kernel_of(graphs.matmul(leaf(6, 24), leaf(24, 16)))
    for opts in (
        ("lanes i1 8", "ahead i0"),
        ("lanes i1 8", "unroll i0 2", "order i0u", "ahead i0"),
    ):
        text = str(linear(k, *opts))
        step = "i0*48 + i0u*24 + r0 + 48" if len(opts) > 2 else "i0*24 + r0 + 24"
        assert [x.strip() for x in text.splitlines() if "fetch" in x] == [f"fetch slot1[{step}]"]
        assert "fetch slot2" not in text


def test_what_is_made_of_a_sum_is_asked_for_before_the_sum_is_made() -> None:
    """A line at a time, at each step that is written out; what all rows share, as a bias, too."""
    product = graphs.matmul(leaf(6, 24), leaf(24, 32))
    bias = graphs.spread(leaf(1, 32), (6, 32))
    k = kernel_of(graphs.add(graphs.mul(product, leaf(6, 32)), bias))
    slots = [slot for slot, (shape, _) in enumerate(k.slots) if shape in ((6, 32), (1, 32))][1:]
    opts = ("lanes i1 8", "unroll i1 2", "unroll i0 2", "order i0u", "ahead r0")
    text = str(linear(k, *opts))
    before, behind = text.split("for r0")
    asked = [line.strip() for line in before.splitlines() if "fetch" in line]
    assert "fetch" not in behind
    for slot in slots:
        row = "i0*64 + i0u*32 + i1*16" if k.slots[slot][0] == (6, 32) else "i1*16"
        assert f"fetch slot{slot}[{row}]" in asked
    assert len(asked) == len(slots) == 2


def test_what_is_walked_behind_the_sum_is_asked_for_by_nobody_before() -> None:
    text = str(linear(kernel_of(graphs.layernorm(leaf(5, 64))), "grid i0", "ahead r0"))
    assert "for j0" in text
    assert not any("j0" in place for place in asked_for(text))


def test_products_ask_for_what_is_made_of_long_sums() -> None:
    chosen = {}
    for depth in (16, 256):
        product = graphs.matmul(leaf(64, depth), leaf(depth, 64))
        bias = graphs.spread(leaf(1, 64), (64, 64))
        for name, root in (
            ("alone", product),
            ("bias", graphs.add(product, bias)),
            ("more", graphs.add(product, leaf(64, 64))),
        ):
            opts, _ = choose(lower(kernel_of(root)), stages.C)
            chosen[name, depth] = "ahead r0" in map(str, opts)
    assert [key for key, ahead in chosen.items() if ahead] == [("more", 256)]


def test_what_a_row_has_one_of_is_not_asked_for() -> None:
    root = graphs.total(graphs.mul(leaf(6, 24), graphs.spread(leaf(6, 1), (6, 24))), 1)
    text = str(linear(kernel_of(root), "lanes r0 8", "grid i0", "ahead i0"))
    assert "slot2[i0]" in text
    assert "fetch" not in text


def asked_for(text: str) -> list[str]:
    return [line.split("fetch ")[1] for line in text.splitlines() if "fetch" in line]


@pytest.mark.parametrize("rows", [66, 67])
@pytest.mark.parametrize("target", [stages.C, WIDE], ids=["8", "16"])
def test_remaining_columns_that_a_mask_leaves_nothing_of(rows: int, target: Target) -> None:
    """Vectors of rows have none of them, and no sum that anything is asked for before."""
    x, y = (graphs.memory(2, rows, 4) for _ in range(2))
    places = Tensor.arange(rows)
    masked = (places.unsqueeze(-1) >= places).where(x @ y.transpose(-2, -1), 0)
    stages.assert_right(kernel_of(masked.lazy), target=target)


def test_tiles_are_filled_with_what_was_asked_for_four_steps_before() -> None:
    """A line at a time, however many vectors are loaded of it."""
    k = kernel_of(graphs.matmul(leaf(6, 24), leaf(24, 32)))
    tiled = "lanes i1 8", "unroll i1 4", "grid i0", "stage i0 slot2"
    text = str(linear(k, *tiled, "ahead r0_tile0"))
    lines = ["slot2[r0_tile0*32 + 128]", "slot2[r0_tile0*32 + 144]"]
    assert asked_for(text) == lines
    assert asked_for(str(linear(k, *tiled))) == []


def test_a_vector_of_every_second_number_lies_in_two_lines() -> None:
    weights = lazy.reshape(leaf(24, 32, 2), (24, 32, 2))
    second = lazy.reshape(lazy.shrink(weights, ((0, 24), (0, 32), (1, 2))), (24, 32))
    k = kernel_of(graphs.matmul(leaf(6, 24), second))
    opts = "lanes i1 16", "grid i0", "stage i0 slot2", "ahead r0_tile0"
    steps = ["r0_tile0*64 + i1_tile0*32 + 256", "r0_tile0*64 + i1_tile0*32 + 272"]
    assert asked_for(str(linear(k, *opts))) == [f"slot2[{step}]" for step in steps]


def test_factors_that_the_cache_does_not_hold_are_asked_for_as_they_are_packed() -> None:
    chosen = {}
    for columns in (32, 1024):
        opts, _ = choose(lower(kernel_of(graphs.matmul(leaf(96, 512), leaf(512, columns)))), HALF)
        asked = {opt.axis for opt in opts if opt.kind is OptKind.AHEAD}
        chosen[columns] = any("tile" in axis for axis in asked)
    assert chosen == {32: False, 1024: True}


def test_rows_are_read_ahead_where_they_come_from_memory() -> None:
    """That is, where all is more than a cache holds, but two rows are not."""
    chosen = {}
    for shape in ((4, 16), (64, 16), (64, 512)):
        opts, _ = choose(lower(kernel_of(graphs.softmax(leaf(*shape)))), SMALL)
        chosen[shape] = OptKind.AHEAD in {opt.kind for opt in opts}
    assert chosen == {(4, 16): False, (64, 16): True, (64, 512): False}


def test_short_rows_are_asked_for_long_before_if_they_come_from_memory() -> None:
    """Longer where results go past the caches, for which memory is waited for, too."""
    tiny = replace(SMALL, last_cache=1 << 11)
    x = leaf(64, 64)
    for root, target, ahead in (
        (graphs.layernorm(x), SMALL, "ahead i0"),
        (graphs.layernorm(x), tiny, f"ahead i0 {(32 << 10) // 512}"),
        (graphs.total(graphs.layernorm(x), 1), tiny, f"ahead i0 {-(-(8 << 10) // 260)}"),
    ):
        opts, _ = choose(lower(kernel_of(root)), target)
        assert ahead in map(str, opts)


def test_the_processor_is_not_disturbed_at_the_end() -> None:
    """The last row asks for what lies behind the buffer, which nobody answers."""
    roots = [graphs.softmax(leaf(3, 40))]
    k = kernel_of(*roots)
    opts = [parse(text) for text in ("grid i0", "lanes j0 8", "ahead i0")]
    rng = np.random.default_rng(1)
    arrays = [np.zeros((3, 40), np.float32), rng.standard_normal((3, 40), np.float32)]
    stages.on_machine("CPU", [k], opts)(k, arrays)
    weights = np.exp(arrays[1])
    np.testing.assert_allclose(arrays[0], weights / weights.sum(1, keepdims=True), 1e-5)
