"""Sums of products of bfloat16 take two steps at once, where a lane multiplies a pair."""

from __future__ import annotations

import graphs
import numpy as np
import pytest
import stages
from graphs import leaf
from products import product
from stages import kernel_of

from tinyml import Tensor, lazy
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import OptError, OptKind, optimize, parse
from tinyml.dtype import bfloat16, float16, float32
from tinyml.frozen import replace
from tinyml.lazy import LazyBuffer
from tinyml.runtime import cpu

PAIRS = replace(stages.C, pairs=True)
TOLERANCE = 0.02  # of results in bfloat16
SIZES = [(24, 64, 48), (13, 33, 40), (50, 17, 7), (1, 96, 64), (40, 3, 40), (33, 4, 20)]
MIRRORED = [(False, False), (False, True), (True, False), (True, True)]


def widened(*shape: int) -> LazyBuffer:
    return lazy.cast(leaf(*shape, dtype=bfloat16), float32)


def convolution(images: int, inner: int, outer: int, size: int) -> LazyBuffer:
    x = Tensor(np.ones((images, inner, size, size), np.float32), device="CPU").bfloat16().realize()
    w = Tensor(np.ones((outer, inner, 3, 3), np.float32), device="CPU").bfloat16().realize()
    return x.conv2d(w, padding=1).lazy


def squared(m: int, k: int, n: int) -> LazyBuffer:
    """A factor that is computed, and rounded, before it is multiplied."""
    x = leaf(m, k, dtype=bfloat16)
    return graphs.matmul(lazy.cast(graphs.mul(x, x), float32), widened(k, n))


def pairs(root: LazyBuffer) -> bool:
    opts, _ = choose(lower(kernel_of(root)), PAIRS)
    return OptKind.PAIR in {opt.kind for opt in opts}


@pytest.mark.parametrize("crosswise", MIRRORED, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_products_are_right(size: tuple[int, int, int], crosswise: tuple[bool, bool]) -> None:
    root = product(*size, bfloat16, crosswise)
    stages.assert_right(kernel_of(root), TOLERANCE, PAIRS)


@pytest.mark.parametrize(
    "root",
    [
        squared(20, 31, 40),
        graphs.matmul(widened(96, 700), widened(700, 64)),
        convolution(2, 6, 20, 9),
        convolution(1, 3, 24, 8),
    ],
    ids=["computed", "long", "convolution", "odd convolution"],
)
def test_so_are_other_contractions(root: LazyBuffer) -> None:
    (*_, k) = stages.kernels(root)
    stages.assert_right(k, TOLERANCE, PAIRS)


def test_what_is_multiplied_in_bfloat16_comes_in_pairs() -> None:
    assert pairs(product(48, 64, 48, bfloat16))
    assert pairs(product(48, 63, 48, bfloat16))
    assert pairs(squared(48, 64, 48))
    assert not pairs(product(48, 64, 48, float16))
    assert not pairs(product(48, 64, 48, float32))


@pytest.mark.parametrize(("depth", "paired"), [(64, True), (96, True), (56, False)])
def test_so_do_few_rows_along_the_fold(depth: int, paired: bool) -> None:
    root = product(4, depth, 7, bfloat16, (False, True))
    assert pairs(root) is paired  # 56 are not whole vectors of pairs
    opts, _ = choose(lower(kernel_of(root)), PAIRS)
    assert [opt.axis for opt in opts if opt.kind is OptKind.LANES] == ["r0"]
    stages.assert_right(kernel_of(root), TOLERANCE, PAIRS)


def test_no_other_target_has_pairs() -> None:
    opts, _ = choose(lower(kernel_of(product(48, 64, 48, bfloat16))), stages.C)
    assert OptKind.PAIR not in {opt.kind for opt in opts}


def test_neighbours_are_one_access() -> None:
    _, nest = choose(lower(kernel_of(product(48, 64, 48, bfloat16, (False, True)))), PAIRS)
    assert "pair(" not in str(nest)
    assert "dot(slot1[" in str(nest)


def test_text_is_right_on_every_host() -> None:
    """Also where there is no such instruction; and in vectors of any length."""
    more = [[], ["lanes i1 2"], ["lanes i1 8"], ["lanes i0 4"], ["lanes r0 4"]]
    made = [
        (kernel_of(product(*size, bfloat16, crosswise)), ["pair r0", *opts])
        for size in ((8, 9, 16), (8, 16, 9))
        for crosswise in MIRRORED
        for opts in more
    ]
    runners = stages.compiled("CPU", [(k, [*map(parse, opts)]) for k, opts in made])
    for (k, _), runner in zip(made, runners, strict=True):
        stages.assert_made(k, runner, TOLERANCE)


@pytest.mark.parametrize(
    ("root", "opts"),
    [
        (convolution(1, 3, 8, 5), ["pair r0"]),
        (product(4, 8, 8, float16), ["pair r0"]),
        (product(4, 8, 8, float32), ["pair r0"]),
        (product(4, 2, 8, bfloat16), ["pair r0"]),
        (product(4, 8, 8, bfloat16), ["pair i0"]),
        (product(4, 8, 8, bfloat16), ["unroll r0 2", "pair r0u"]),
        (product(4, 16, 8, bfloat16), ["pair r0", "pair r0"]),
        (graphs.total(widened(4, 8), 1), ["pair r0"]),
    ],
    ids=["odd", "float16", "float32", "one pair", "row", "unrolled", "twice", "no product"],
)
def test_what_cannot_be_paired(root: LazyBuffer, opts: list[str]) -> None:
    with pytest.raises(OptError, match="cannot pair"):
        optimize(lower(kernel_of(root)), [*map(parse, opts)])


def test_steps_that_a_mask_leaves_out_are_not_paired() -> None:
    """Half of them are nothing: a causal product is sooner made of the others."""
    ones = [Tensor(np.ones((32, 32), np.float32), device="CPU").bfloat16().realize() for _ in "ab"]
    root = (ones[0].tril() @ ones[1]).lazy
    assert not pairs(root)
    stages.assert_right(kernel_of(root), TOLERANCE, PAIRS)


def test_what_is_not_finite_stays_so() -> None:
    inf, nan = float("inf"), float("nan")
    x = np.ones((16, 32), np.float32)
    x[0, 3], x[1, 4], x[2, 5], x[2, 6], x[3, :] = inf, nan, inf, -inf, 3e38
    x[4, 7], x[4, 8] = -inf, 2
    w = np.ones((32, 32), np.float32)
    w[:, 1] = 0
    made = (Tensor(x, device="CPU").bfloat16() @ Tensor(w, device="CPU").bfloat16()).float().numpy()
    assert made[0, 0] == inf
    assert np.isnan(made[0, 1])  # inf * 0
    assert np.isnan(made[1]).all()
    assert np.isnan(made[2]).all()
    assert made[3, 0] == inf
    assert made[3, 1] == 0
    assert made[4, 0] == -inf
    assert (made[5, [0, 1]] == [32, 0]).all()


@pytest.mark.skipif("not PAIRED")
def test_denormal_numbers_are_zeros_to_this_instruction() -> None:
    """As docs/numerics.md says, and torch does it too."""
    x = np.full((16, 32), 2.0**-130, np.float32)
    w = np.full((32, 32), 2.0**100, np.float32)
    made = Tensor(x, device="CPU").bfloat16() @ Tensor(w, device="CPU").bfloat16()
    assert (made.float().numpy() == 0).all()


PAIRED = cpu.multiplies_pairs()
