"""Training attention without its scores in memory: kernels make them again, and so gradients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import graphs
import numpy as np
import pytest
import stages
from attentions import (
    KEYS,
    QUERIES,
    TARGETS,
    Attention,
    assert_trained,
    causal,
    largest,
    limit,
    memory,
    plain,
    stored,
    training,
)
from cards import CARD, compiled, on_emu

from tinyml import Tensor
from tinyml.codegen.choose import c_online as choose_c_online
from tinyml.codegen.choose import cuda_cascade
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import OptKind
from tinyml.codegen.target import Target
from tinyml.dtype import DType, bfloat16, float16, float32
from tinyml.runtime.emu import ThreadOrder
from tinyml.schedule import fuse, recompute

LIMITS = recompute.LIMITS  # of devices as they are
pytestmark = pytest.mark.usefixtures("short")


def window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows, columns = Tensor.arange(q.shape[-2]).unsqueeze(-1), Tensor.arange(k.shape[-2])
    near = (rows - columns).abs() < 5
    return q.scaled_dot_product_attention(k, v, attn_mask=near)


def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.transpose(-2, -1) / 5).tanh() * 5).softmax(-1) @ v


def shifted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = memory(k.shape[-2]).detach()
    return q.scaled_dot_product_attention(k, v, attn_mask=bias.expand(q.shape[-2], k.shape[-2]))


def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    Tensor.manual_seed(7)
    with Tensor.train():
        return q.scaled_dot_product_attention(k, v, dropout_p=0.2, is_causal=True)


def thinned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same as people write it."""
    Tensor.manual_seed(7)
    with Tensor.train():
        return (q @ k.transpose(-2, -1)).softmax(-1).dropout(0.25) @ v


@TARGETS
@pytest.mark.parametrize("attend", [plain, causal, window, capped, shifted])
def test_a_step_of_training_is_four_kernels_and_no_scores(
    attend: Attention, target: Target
) -> None:
    """The result with what rows need; a sum over it; the queries' gradient; of keys and values."""
    kernels = training(attend, memory(1, QUERIES, 3), memory(1, KEYS, 3), memory(1, KEYS, 2))
    assert len(kernels) == 4
    assert largest(kernels) < QUERIES * KEYS
    assert {int(np.prod(output.shape)) for output in kernels.pop(1).outputs} == {QUERIES}
    for k in kernels:
        assert OptKind.ONLINE in {opt.kind for opt in choose(lower(k), target)[0]}
        stages.assert_right(k, 1e-4, target)


@pytest.mark.parametrize(
    ("attend", "long"),
    [(plain, 16), (causal, 16), (window, 16), (capped, 16), (shifted, 16), (causal, 1024)],
)
def test_many_heads_make_scores_again_once_for_all_gradients(
    attend: Attention, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the queries is added up in memory, where keys are walked in order."""
    monkeypatch.setattr(choose_c_online, "LONG", long)
    monkeypatch.setattr(fuse, "FEW_ROWS", 2)
    kernels = training(attend, *(memory(2, n, 3) for n in (QUERIES, KEYS, KEYS)))
    *_, zeros, gradients = kernels
    assert len(gradients.outputs) == 3
    assert [o.across for o in gradients.outputs].count(()) == 2
    assert zeros.outputs[0].shape == (2, QUERIES, 3)
    steps = OptKind.ONLINE in {opt.kind for opt in choose(lower(gradients), stages.C)[0]}
    assert steps == (long == 16)
    stages.assert_right(gradients, 1e-4, stages.C)


@pytest.mark.parametrize(
    ("attend", "stored"), [(plain, True), (shifted, True), (causal, False), (window, False)]
)
def test_scores_that_a_mask_leaves_some_of_are_not_stored_though_they_are_smaller(
    attend: Attention, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, 1 << 28, 1 << 24)
    given = [memory(2, n, 3) for n in (QUERIES, KEYS, KEYS)]
    assert largest(training(attend, *given)) >= QUERIES * KEYS
    limit(monkeypatch, 1 << 28, QUERIES * KEYS)
    assert (largest(training(attend, *given)) >= QUERIES * KEYS) == stored


@TARGETS
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_what_scores_are_sums_of_is_stored_as_little(dtype: DType, target: Target) -> None:
    """Queries, keys and values may be sums themselves, as those of a model are."""

    def of_one(x: Tensor, weights: Tensor) -> Tensor:
        q, k, v = (x @ weights).chunk(3, -1)
        return causal(q, k, v)

    kernels = training(of_one, memory(2, KEYS, 6, dtype=dtype), memory(6, 18, dtype=dtype))
    assert largest(kernels) < 2 * KEYS * KEYS
    for k in kernels:
        stages.assert_right(k, 2e-2 if dtype.is_half else 1e-4, target, cancels=dtype.is_half)


def test_products_of_products_that_are_made_again() -> None:
    """What a kernel's inner folds are made of changes with each step of the outer one."""
    x, w = memory(3, 40, 64, dtype=bfloat16), memory(64, 48, dtype=bfloat16)
    y = (x @ w).relu()
    gradients = (y @ y.transpose(1, 2)).square().mean().gradient(x, w)
    for k in stages.kernels(*gradients):
        assert compile(k, CARD, verify=True).source


def test_few_heads_share_their_rows_out() -> None:
    kernels = training(plain, *(memory(2, n, 3) for n in (QUERIES, KEYS, KEYS)))
    assert not any(output.across for k in kernels for output in k.outputs)


@pytest.mark.parametrize("queries", [QUERIES, 37])
def test_gradients_that_are_added_up_in_memory_are_those_of_numpy(queries: int) -> None:
    def made(device: str) -> list[np.ndarray]:
        rng = np.random.default_rng(3)
        given = [
            Tensor(rng.standard_normal(shape).astype(np.float32), device=device).requires_grad_()
            for shape in ((16, queries, 20), (16, KEYS, 20), (16, KEYS, 9))
        ]
        y = causal(*given)
        return [g.numpy() for g in y.square().sum().gradient(*given)]

    for mine, right in zip(made("CPU"), made("NUMPY"), strict=True):
        np.testing.assert_allclose(mine, right, 1e-4, 1e-5)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q.scaled_dot_product_attention(k, v, is_causal=True, enable_gqa=True)


def interleaved(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    times = q.shape[-3] // k.shape[-3]
    return plain(q, k.repeat_interleave(times, -3), v.repeat_interleave(times, -3))


def expanded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each head of queries next to one that has other keys."""
    times = q.shape[1] // k.shape[1]

    def tiled(x: Tensor) -> Tensor:
        many = x.unsqueeze(1).expand(x.shape[0], times, *x.shape[1:])
        return many.reshape(x.shape[0], -1, *x.shape[2:])

    return causal(q, tiled(k), tiled(v))


SHARED = pytest.mark.parametrize("attend", [grouped, interleaved, expanded])


@TARGETS
@pytest.mark.parametrize("dtype", [float32, bfloat16, float16], ids=str)
@SHARED
def test_heads_that_share_keys(attend: Attention, dtype: DType, target: Target) -> None:
    given = [memory(1, h, n, 12, dtype=dtype) for h, n in ((4, QUERIES), (2, KEYS), (2, KEYS))]
    kernels = training(attend, *given)
    assert len(kernels) == (6 if dtype.is_half else 4)
    assert largest(kernels) < 4 * QUERIES * KEYS
    chosen = [{opt.kind for opt in choose(lower(k), target)[0]} for k in kernels]
    cores = target is CARD and dtype.is_half
    assert sum(OptKind.FRAGMENT in kinds for kinds in chosen) == (3 if cores else 0)
    for k in kernels:
        stages.assert_right(k, 2e-2 if dtype.is_half else 1e-4, target, cancels=dtype.is_half)


@SHARED
def test_smaller_scores_are_stored_where_heads_share_keys(
    attend: Attention, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even behind a mask: gradients of queries are not made beside those of what heads share."""
    limit(monkeypatch, 4 * QUERIES * KEYS + 1, QUERIES * KEYS)
    given = [memory(1, h, n, 3) for h, n in ((4, QUERIES), (2, KEYS), (2, KEYS))]
    assert largest(training(attend, *given)) == 4 * QUERIES * KEYS


@pytest.mark.parametrize("device", ["CPU", "EMU"])
@SHARED
def test_gradients_of_heads_that_share_keys_are_those_of_numpy(
    attend: Attention, device: str
) -> None:
    shapes = [(2, heads, rows, 5) for heads, rows in ((6, 19), (2, 27), (2, 27))]
    assert_trained(attend, device, shapes, 12 * 19 * 27, 1e-4, 1e-5)


@SHARED
@pytest.mark.parametrize("sizes", [(2, 8, 2, 1024), (1, 8, 1, 1024), (1, 8, 2, 513)])
def test_a_card_stores_nothing_of_shared_keys_that_is_much_larger_than_they_are(
    attend: Attention, sizes: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though rows of keys that many heads share are few."""
    monkeypatch.setattr(recompute, "LIMITS", LIMITS)
    batch, heads, groups, rows = sizes
    q, k, v = (
        graphs.memory(batch, h, rows, 64, device="CUDA").requires_grad_()
        for h in (heads, groups, groups)
    )
    gradients = (attend(q, k, v) * graphs.memory(*q.shape, device="CUDA")).sum().gradient(q, k, v)
    assert largest(stages.kernels(*gradients)) <= 8 * q.numel()


@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
@pytest.mark.parametrize("attend", [plain, causal, window])
def test_tensor_cores_take_all_products_of_halves(attend: Attention, dtype: DType) -> None:
    """The result with what rows need, the queries' gradient, that of both others.

    And a sum for each row, of the result times its gradient.
    """
    given = [memory(2, n, 12, dtype=dtype) for n in (QUERIES, KEYS, KEYS)]
    kernels = training(attend, *given)
    assert [len(k.outputs) for k in kernels] == [4, 1, 1, 2]
    assert largest(kernels) < 2 * QUERIES * KEYS
    for k in kernels:
        opts, _ = choose(lower(k), CARD)
        assert (OptKind.FRAGMENT in {opt.kind for opt in opts}) == (k is not kernels[1])
        stages.assert_right(k, 2e-2, CARD, cancels=True)


def test_what_two_products_read_is_staged_once() -> None:
    for k in training(plain, *(memory(2, n, 16, dtype=bfloat16) for n in (QUERIES, KEYS, KEYS))):
        _, nest = choose(lower(k), CARD)
        assert len(nest.nests[0].tiles) == 4  # queries, keys, values, the result's gradient


@pytest.mark.parametrize("order", ThreadOrder)
def test_warps_of_a_card_in_any_order(order: ThreadOrder) -> None:
    card = replace(CARD, cores=1)  # several warps to a block
    for k in training(causal, *(memory(1, n, 20, dtype=bfloat16) for n in (70, 20, 20))):
        program = compile(k, card, verify=True)
        assert "add_product" in program.source
        stages.assert_made(k, on_emu(program, order), 2e-2, cancels=True)


@pytest.mark.parametrize("order", ThreadOrder)
def test_blocks_share_the_columns_of_wide_heads(order: ThreadOrder) -> None:
    """Sums of 136 columns for keys and as many for values are more than a warp has registers."""
    kernels = training(causal, *(memory(2, n, 136, dtype=bfloat16) for n in (QUERIES, KEYS, KEYS)))
    assert not any(shape[-2:] == (QUERIES, KEYS) for k in kernels for shape, _ in k.slots)
    programs = [compile(k, CARD, verify=True) for k in kernels]
    assert [p.grid for p in programs] == [2 * 2, 2 * 2, 2 * 2 * 2]  # heads, rows, columns
    for k, program in zip(kernels, programs, strict=True):
        assert "add_product" in program.source
        stages.assert_made(k, on_emu(program, order), 2e-2, cancels=True)


@pytest.mark.parametrize("order", ThreadOrder)
@pytest.mark.parametrize(("width", "columns"), [(144, 144), (40, 24)])
def test_tensor_cores_make_gradients_of_keys_and_values_one_by_one(
    width: int, columns: int, order: ThreadOrder
) -> None:
    """If they are not equally wide; or if blocks would share their columns, and make more again."""
    shapes = (QUERIES, width), (KEYS, width), (KEYS, columns), (QUERIES, columns)
    q, k, v, g = (
        graphs.memory(2, *shape, dtype=bfloat16, device="EMU").requires_grad_() for shape in shapes
    )
    y = causal(q, k, v)
    gradients = (y * g.detach()).sum().gradient(q, k, v)
    kernels = stages.kernels(y, *gradients)
    assert [len(kernel.outputs) for kernel in kernels] == [3, 1, 1, 1]
    for kernel in kernels:
        program = compile(kernel, CARD, verify=True)
        assert program.grid == 2 * 2
        assert "add_product" in program.source
        stages.assert_made(kernel, on_emu(program, order), 2e-2, cancels=True)


def test_a_card_trains_without_scores() -> None:
    """What its kernels make together is what numpy makes of the graph."""
    shapes = [(2, QUERIES, 3), (2, KEYS, 3), (2, KEYS, 5)]
    assert_trained(causal, "EMU", shapes, QUERIES * KEYS, 1e-4, 1e-5)


@pytest.mark.parametrize("order", ThreadOrder)
def test_threads_of_a_card_in_any_order(order: ThreadOrder) -> None:
    for k in training(causal, memory(1, 37, 20), memory(1, KEYS, 20), memory(1, KEYS, 9)):
        stages.assert_made(k, on_emu(compile(k, CARD, verify=True), order), 1e-4)


@pytest.mark.parametrize("order", ThreadOrder)
@pytest.mark.parametrize("attend", [plain, causal])
def test_blocks_share_what_few_keys_fold(
    attend: Attention, order: ThreadOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_cascade, "PART", 4)
    rows = 40 if attend is causal else 20
    given = [memory(1, n, 12, dtype=bfloat16) for n in (1100, rows, rows)]
    (k,) = (k for k in training(attend, *given) if len(k.outputs) == 2)
    program = compile(k, CARD, verify=True)
    assert program.grid > -(-rows // 16)
    stages.assert_made(k, on_emu(program, order), 2e-2, cancels=True)


@pytest.mark.parametrize("order", ThreadOrder)
@pytest.mark.parametrize("cache", [6000, 3000, 800])
def test_what_has_no_room_in_tiles_stays_in_memory(cache: int, order: ThreadOrder) -> None:
    """A warp's rows first, and then what they meet."""
    for k in training(causal, *(memory(1, n, 40, dtype=bfloat16) for n in (QUERIES, KEYS, KEYS))):
        program = compile(k, replace(CARD, cache=cache), verify=True)
        assert "add_product" in program.source
        assert program.shared <= cache
        stages.assert_made(k, on_emu(program, order), 2e-2, cancels=True)


@pytest.mark.parametrize("order", ThreadOrder)
@pytest.mark.parametrize("cache", [2500, 1400])
def test_blocks_have_few_rows_where_shared_memory_is_small(cache: int, order: ThreadOrder) -> None:
    """Not even there each thread makes scores of its own."""
    card = replace(CARD, cache=cache, capability=75)
    for k in training(causal, *(memory(2, n, 20) for n in (QUERIES, KEYS, KEYS))):
        program = compile(k, card, verify=True)
        assert 0 < program.shared <= cache
        stages.assert_made(k, on_emu(program, order), 1e-4)


@pytest.mark.parametrize("attend", [plain, causal])
def test_long_rows_whose_gradient_reads_the_result(attend: Attention) -> None:
    """The sum of weights times their gradient is made in groups of steps, of products of tiles."""
    given = [memory(1, rows, 16, dtype=bfloat16) for rows in (24, 1100, 1100)]
    y = attend(*given)
    gradients = y.float().square().sum().gradient(*given)
    for k in stages.kernels(y, *gradients):
        stages.assert_right(k, 0.04, CARD, cancels=True)  # powers are rounded in steps


@pytest.mark.parametrize("width", [128, 256, 384, 512])
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_registers_of_a_card_suffice(dtype: DType, width: int, tmp_path: Path) -> None:
    given = [memory(8, 4096, width, dtype=dtype) for _ in range(3)]
    for k in training(causal, *given):
        program = compile(k, CARD)
        rows = all(o.value.size == 8 * 4096 for o in k.outputs)  # a sum for each
        assert ("add_product" in program.source) == (dtype.is_half and not rows)
        resources, _ = compiled(program, "sm_90a", tmp_path)
        assert program.shared <= CARD.cache
        assert not resources.spills
        assert not resources.stack


def test_weights_that_are_wanted_are_stored() -> None:
    q, k, v = memory(1, QUERIES, 3), memory(1, KEYS, 3), memory(1, KEYS, 2)
    weights = (q @ k.transpose(-2, -1)).softmax(-1)
    gradients = (weights @ v * memory(1, QUERIES, 2)).sum().gradient(q, k, v)
    kernels = stages.kernels(weights, *gradients)
    assert largest(kernels) == QUERIES * KEYS
    assert stored(kernels, QUERIES * KEYS) == 1


@TARGETS
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("attend", [dropped, thinned])
def test_the_bits_that_drop_weights_are_made_again(
    attend: Attention, dtype: DType, target: Target
) -> None:
    kernels = training(attend, *(memory(2, n, 12, dtype=dtype) for n in (QUERIES, KEYS, KEYS)))
    assert largest(kernels) == 2 * KEYS * 12
    for k in kernels:
        stages.assert_right(k, 2e-2 if dtype.is_half else 1e-4, target, cancels=True)


@pytest.mark.parametrize("device", ["CPU", "EMU"])
@pytest.mark.parametrize("attend", [dropped, thinned])
def test_gradients_of_dropped_weights_are_those_of_numpy(attend: Attention, device: str) -> None:
    shapes = [(2, 37, 5), (2, 41, 5), (2, 41, 9)]
    assert_trained(attend, device, shapes, 37 * 41, 1e-4, 1e-5)


def test_a_lane_makes_the_bits_for_four_weights_at_once() -> None:
    """Not of the gradients of keys: there it has weights side by side along queries."""
    rounds, share = 20, "13107u"  # of two words; a fifth of what 16 bits may be
    given = [memory(1, 64, 64, dtype=bfloat16) for _ in range(3)]
    for k, most in zip(training(dropped, *given), (3, 3, 1), strict=True):
        source = compile(k, CARD).source
        calls, weights = source.count("rotl_uint32(") // rounds, source.count(share)
        assert weights > most * calls > 0


def test_a_result_alone_is_one_kernel() -> None:
    y = plain(memory(1, QUERIES, 3), memory(1, KEYS, 3), memory(1, KEYS, 2))
    assert len(stages.kernels(y)) == 1


def sigmoid(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) * 0.3).sigmoid() @ v


def squares(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1)).relu() ** 2 @ v


def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return q @ k.transpose(-2, -1) @ v


def earlier(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1)).sigmoid().tril() @ v


SINGLE = pytest.mark.parametrize("attend", [sigmoid, squares, linear, earlier])


@SINGLE
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize(("device", "target"), [("CPU", stages.C), ("EMU", CARD)])
def test_weights_of_one_fold_are_not_stored(
    attend: Attention, dtype: DType, device: str, target: Target
) -> None:
    given = [graphs.memory(2, n, 3, dtype=dtype, device=device) for n in (64, 72, 72)]
    kernel = stages.kernel_of(attend(*given))
    stages.assert_right(kernel, 2e-2 if dtype.is_half else 1e-4, target, cancels=True)


@SINGLE
@pytest.mark.parametrize("device", ["CPU", "EMU"])
def test_results_of_one_fold_are_those_of_numpy(attend: Attention, device: str) -> None:
    rng = np.random.default_rng(3)
    given = [rng.normal(size=(2, n, 3)).astype(np.float32) for n in (61, 67, 67)]
    made, right = (attend(*(Tensor(x, device=d) for x in given)) for d in (device, "NUMPY"))
    np.testing.assert_allclose(made.numpy(), right.numpy(), 1e-4, 1e-4)


@SINGLE
@TARGETS
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_training_with_weights_of_one_fold_stores_no_scores(
    attend: Attention, dtype: DType, target: Target
) -> None:
    given = [memory(2, n, 12, dtype=dtype) for n in (QUERIES, KEYS, KEYS)]
    kernels = training(attend, *given)
    assert len(kernels) <= 4
    assert largest(kernels) == 2 * KEYS * 12
    for k in kernels:
        stages.assert_right(k, 2e-2 if dtype.is_half else 1e-4, target, cancels=True)


@SINGLE
@pytest.mark.parametrize("device", ["CPU", "EMU"])
def test_gradients_of_weights_of_one_fold_are_those_of_numpy(
    attend: Attention, device: str
) -> None:
    shapes = [(2, 37, 5), (2, 41, 5), (2, 41, 9)]
    assert_trained(attend, device, shapes, 2 * 37 * 41, 1e-3, 1e-3)


@pytest.mark.parametrize("device", ["CPU", "EMU"])
@pytest.mark.parametrize(("depth", "width"), [(64, 3), (3, 1025)])
def test_products_that_are_small_or_wide_are_stored(depth: int, width: int, device: str) -> None:
    a, b, c = (graphs.memory(*s, device=device) for s in ((64, depth), (depth, 72), (72, width)))
    assert len(stages.kernels(a @ b @ c)) == 2
