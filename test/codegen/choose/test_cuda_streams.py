"""Maps, rows and columns on a card: wide accesses, several under way, rows read once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from math import prod
from pathlib import Path

import graphs
import numpy as np
import pytest
import stages
from cards import CARD, compiled, instructions, on_emu
from graphs import leaf
from stages import kernel_of

from tinyml import Device, Tensor, defaults, lazy
from tinyml.codegen.choose import cuda
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import OptKind
from tinyml.dtype import DType, bfloat16, float32, int64
from tinyml.kernel import Kernel
from tinyml.lazy import LazyBuffer
from tinyml.ops import Op
from tinyml.program import Program
from tinyml.runtime.emu import ThreadOrder

SMALL = replace(CARD, cores=1)  # for which little is much


def added(*shape: int) -> LazyBuffer:
    return graphs.add(leaf(*shape), leaf(*shape))


def halves(*shape: int) -> LazyBuffer:
    return graphs.softmax(leaf(*shape, dtype=bfloat16))


def made(root: LazyBuffer) -> Program:
    return compile(kernel_of(root), SMALL, verify=True)


CASES: dict[str, Callable[[], LazyBuffer]] = {
    "map": lambda: added(1 << 13),
    "map of rows": lambda: added(12, 1 << 9),
    "map that nothing divides": lambda: added(37, 131),
    "row": lambda: graphs.softmax(leaf(5, 256)),
    "row of halves": lambda: halves(6, 264),
    "row for a block": lambda: graphs.softmax(leaf(3, 2052)),
    "row that nothing divides": lambda: graphs.softmax(leaf(5, 131)),
    "row of halves that nothing divides": lambda: halves(5, 523),
    "row for a block that nothing divides": lambda: graphs.softmax(leaf(3, 2051)),
    "row and bias that nothing divides": lambda: graphs.add(
        leaf(37, 131), lazy.expand(leaf(1, 131), (37, 131))
    ),
    "columns": lambda: graphs.total(leaf(200, 64), 0),
    "columns that nothing divides": lambda: graphs.total(leaf(131, 37), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_whatever_the_size_it_is_right(name: str) -> None:
    k = kernel_of(CASES[name]())
    stages.assert_right(k, target=SMALL)
    if Device.available("EMU"):
        for order in ThreadOrder:
            stages.assert_made(k, on_emu(made(CASES[name]()), order))


def test_a_map_has_several_accesses_under_way_if_blocks_are_many() -> None:
    for count, loads in ((1 << 24, 4), (1 << 18, 2)):
        text = compile(kernel_of(added(count)), CARD).source
        assert text.count("= *(const pack<float, 4> *)(slot") == loads


def test_a_row_is_read_once() -> None:
    """Each element is in the text once, or is asked for again and again in one loop."""
    for width, threads in ((1024, 128), (8192, 256), (32000, 1024)):
        program = compile(kernel_of(graphs.softmax(leaf(8192, width))), CARD)
        assert program.block[0] * program.block[1] == threads
        assert "for (" not in program.source


def labelled(rows: int, width: int, dtype: DType) -> list[Kernel]:
    """Cross-entropy and its gradient."""
    scores = graphs.memory(rows, width, dtype=dtype, device="EMU").requires_grad_()
    loss = scores.cross_entropy(graphs.memory(rows, dtype=int64, device="EMU"))
    (gradient,) = loss.gradient(scores)
    return stages.kernels(loss, gradient)


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_a_label_of_eight_bytes_makes_no_access_to_its_row_narrower(dtype: DType) -> None:
    k = labelled(3, 2048, dtype)[0]
    kind, lanes = ("float", 4) if dtype is float32 else ("__nv_bfloat16", 8)
    source = compile(k, CARD).source
    for access in (f"= *(const pack<{kind}, {lanes}> *)", f"  *(pack<{kind}, {lanes}> *)"):
        assert source.count(access) == 2048 // lanes // 256
    if Device.available("EMU"):
        stages.assert_made(k, on_emu(compile(k, CARD), ThreadOrder.FORWARD))


@pytest.mark.parametrize("width", [1021, 50257])
def test_a_row_that_begins_anywhere_is_read_in_whole_vectors(width: int, tmp_path: Path) -> None:
    """As GPT-2's logits are: 16 bytes at a time, elements by themselves only at its ends."""
    for make, kind in ((leaf, "float, 4"), (partial(leaf, dtype=bfloat16), "__nv_bfloat16, 8")):
        program = compile(kernel_of(graphs.softmax(make(512, width))), CARD)
        body = program.source.partition('extern "C"')[2]
        assert f"(const pack<{kind}> *)(slot1" in body
        assert "slot1[" not in body
        assert "slot0[" not in body
        resources, cubin = compiled(program, "sm_90a", tmp_path)
        assert not resources.spills
        found = instructions(cubin)
        assert found["LDG.E.128.CONSTANT"] > 1
        assert not found["LDG.E.CONSTANT"] + found["LDG.E.U16.CONSTANT"]


def below(x: LazyBuffer) -> LazyBuffer:
    """Rows less their largest element, less the largest square of that: no sums that run along."""
    last = len(x.shape) - 1
    under = graphs.sub(x, graphs.spread(lazy.reduce_(Op.MAX, x, (last,)), x.shape))
    most = lazy.reduce_(Op.MAX, graphs.mul(under, under), (last,))
    return graphs.sub(under, graphs.spread(most, x.shape))


def halves_below(*shape: int) -> LazyBuffer:
    return below(leaf(*shape, dtype=bfloat16))


LONG: dict[str, Callable[[int, int], LazyBuffer]] = {  # rows that registers do not hold
    "float32": lambda rows, width: below(leaf(rows, width)),
    "float32 that begins anywhere": lambda rows, width: below(leaf(rows, width - 47)),
    "halves": halves_below,
    "halves that begin anywhere": lambda rows, width: halves_below(rows, width - 47),
    "two arrays": lambda rows, width: below(added(rows, width // 2)),
}


@pytest.mark.parametrize("name", LONG)
def test_a_row_that_shared_memory_holds_is_read_once(name: str, tmp_path: Path) -> None:
    program = compile(kernel_of(LONG[name](512, 50304)), CARD)
    body = program.source.partition('extern "C"')[2]
    arrays = 2 if name == "two arrays" else 1
    assert body.count("*)(slot1 + ") + body.count("*)(slot2 + ") == arrays
    assert body.count("*)(tile") == 3 * arrays
    assert program.block[0] == (512 if name.startswith("halves") else 1024)
    resources, cubin = compiled(program, "sm_90a", tmp_path)
    assert not resources.spills
    assert program.shared + resources.shared <= CARD.cache
    assert not {"LDS", "LDS.U16", "STS.U16"} & instructions(cubin).keys()


def test_a_row_of_many_arrays_is_shared_out_among_more_threads() -> None:
    """As in a norm's gradient beside residuals: a warp's registers would hold two of them."""
    k = kernel_of(graphs.softmax(reduce(graphs.add, (leaf(5, 768) for _ in range(6)))))
    program = compile(k, CARD, verify=True)
    assert prod(program.block) == 64
    assert not program.shared
    assert program.source.count("= *(const pack<float, 4> *)(slot") == 6 * 3
    stages.assert_right(k, target=CARD)
    if Device.available("EMU"):
        for order in ThreadOrder:
            stages.assert_made(k, on_emu(program, order))


def test_what_threads_copy_of_two_long_rows_leaves_registers_for_it(tmp_path: Path) -> None:
    """Vectors of 50257 halves have eight masks each, and 1024 threads 64 registers each."""
    near = graphs.add(*(leaf(512, 50257, dtype=bfloat16) for _ in range(2)))
    program = compile(kernel_of(below(near)), CARD)
    resources, _ = compiled(program, "sm_90a", tmp_path)
    assert program.shared
    assert not resources.spills


def test_a_row_without_room_in_shared_memory_is_walked_once_for_all_folds(tmp_path: Path) -> None:
    ampere = replace(CARD, cache=163 << 10)
    assert compile(kernel_of(halves_below(512, 50304)), ampere).shared
    for target, root in (
        (ampere, graphs.softmax(leaf(512, 50304))),
        (CARD, graphs.memory(512, 128256, dtype=bfloat16).softmax(-1).lazy),
        (CARD, graphs.softmax(added(512, 50304))),
    ):
        program = compile(kernel_of(root), target)
        opts, _ = choose(lower(kernel_of(root)), target)
        assert OptKind.ONLINE in {opt.kind for opt in opts}
        assert not program.shared
        resources, cubin = compiled(program, "sm_90a", tmp_path)
        assert not resources.spills or resources.registers == 32  # and is compiled again
        assert {"LDG.E.128.CONSTANT"} == {i for i in instructions(cubin) if i.startswith("LDG")}


@pytest.mark.parametrize("width", [50257, 128256])
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_losses_of_long_rows_take_no_shared_memory(width: int, dtype: DType) -> None:
    """Where no gradient is made, nothing is read again."""
    scores, labels = graphs.memory(512, width, dtype=dtype), graphs.memory(512, dtype=int64)
    loss = scores.cross_entropy(labels, reduction="none")
    k = kernel_of(loss)
    program = compile(k, CARD)
    read = re.findall(r"\*\)\(slot\d \+ .*?\)", program.source.partition('extern "C"')[2])
    assert not program.shared
    assert len(read) == len({*read}) > 1


RUNNING: dict[str, Callable[[], LazyBuffer]] = {
    "softmax": lambda: graphs.softmax(leaf(3, 2 * 1024 * 4)),
    "of halves": lambda: graphs.memory(3, 1128, dtype=bfloat16).softmax(-1).lazy,
    "that begins anywhere": lambda: graphs.softmax(leaf(3, 1081)),
    "of two arrays": lambda: graphs.softmax(added(3, 1128)),
}


@pytest.mark.parametrize("name", RUNNING)
def test_folds_that_run_along_are_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "KEPT", 1)  # so that short rows are too long for registers
    card, k = replace(SMALL, cache=1 << 10), kernel_of(RUNNING[name]())
    assert "online r0" in map(str, choose(lower(k), card)[0])
    stages.assert_right(k, target=card)
    if Device.available("EMU"):
        for order in ThreadOrder:
            stages.assert_made(k, on_emu(compile(k, card, verify=True), order))


def test_threads_of_a_row_that_have_met_nothing_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a row that is -inf but for a few numbers: all, most, or none of a thread's elements."""
    monkeypatch.setattr(cuda, "KEPT", 1)
    k = kernel_of(graphs.softmax(leaf(4, 3000)))
    program = compile(k, replace(SMALL, cache=1 << 10), verify=True)
    scores = np.full((4, 3000), -np.inf, np.float32)
    scores[0, 7], scores[1, 1500:], scores[2, ::3] = 1, 2, np.arange(1000) / 100
    arrays = [np.zeros_like(scores), scores]
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(1, keepdims=True))
    if Device.available("EMU"):
        on_emu(program, ThreadOrder.SHUFFLED)(k, arrays)
        right = powers / powers.sum(1, keepdims=True)
        np.testing.assert_allclose(arrays[0], right, 1e-5)


def test_what_is_read_once_anyway_is_not_copied() -> None:
    assert not compile(kernel_of(graphs.total(leaf(512, 50304), 1)), CARD).shared


@pytest.mark.parametrize("name", LONG)
def test_rows_in_shared_memory_are_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "KEPT", 1)  # so that short ones are too long for registers
    root = LONG[name](5, 1128 * (1 + (name == "two arrays")))
    program = compile(kernel_of(root), SMALL, verify=True)
    assert program.shared
    stages.assert_right(kernel_of(root), target=SMALL)
    if Device.available("EMU"):
        for order in ThreadOrder:
            stages.assert_made(kernel_of(root), on_emu(program, order))


@pytest.mark.parametrize("width", [32000, 50257])
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_cross_entropy_and_its_gradient_read_no_score_twice_in_a_walk(
    width: int, dtype: DType
) -> None:
    source = compile(labelled(4096, width, dtype)[0], CARD).source.partition('extern "C"')[2]
    read = re.findall(r"\*\)\(slot3 \+ .*?\)", source)
    assert "slot3[" not in source
    assert len(read) == len({*read}) > 0


@pytest.mark.parametrize(("architecture", "kilobytes"), [("sm_75", 64), ("sm_90a", 227)])
def test_a_loss_beside_a_row_leaves_registers_for_it(
    architecture: str, kilobytes: int, tmp_path: Path
) -> None:
    """1024 threads have 64 each: 32 numbers of a row and what both are made of spilled."""
    card = replace(CARD, cache=kilobytes << 10, capability=int(architecture[3:5]))
    resources, _ = compiled(
        compile(labelled(4096, 32000, float32)[0], card), architecture, tmp_path
    )
    assert not resources.spills


def test_blocks_share_few_columns() -> None:
    program = compile(kernel_of(graphs.total(leaf(8192, 4096), 0)), CARD)
    assert program.grid >= 2 * CARD.cores
    assert "comes_last(" in program.source
    opts = choose(lower(kernel_of(graphs.total(leaf(8192, 1 << 20), 0))), CARD)[0]
    assert OptKind.SPLIT not in {opt.kind for opt in opts}


def test_sums_down_the_same_columns_are_made_together() -> None:
    """As a layernorm's gradients of weight and bias are: by whole vectors, and parts of columns."""
    with defaults(device="EMU"):
        x, g = (Tensor(np.zeros((600, 64), np.float32)).realize() for _ in range(2))
    k = kernel_of((x * g).sum(0), g.sum(0))
    opts, _ = choose(lower(k), CARD)
    assert {OptKind.LANES, OptKind.GRID} <= {opt.kind for opt in opts}
    assert "comes_last(" in compile(k, CARD).source
    stages.assert_right(k, target=CARD)
    if Device.available("EMU"):
        for order in ThreadOrder:
            stages.assert_made(k, on_emu(compile(k, CARD, verify=True), order))


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_89", "sm_90a"])
def test_nvcc_says_that_rows_stay_in_registers(architecture: str, tmp_path: Path) -> None:
    for width in (1024, 32000):
        program = compile(kernel_of(graphs.softmax(leaf(8192, width))), CARD)
        resources, cubin = compiled(program, architecture, tmp_path)
        assert not resources.spills
        if architecture == "sm_90a":
            found = instructions(cubin)
            assert found["LDG.E.128.CONSTANT"] == found["STG.E.128"] == 8


def test_what_is_asked_of_a_row_is_asked_once() -> None:
    """A fault's branch is not written out with the row, nor does it keep elements apart."""
    with defaults(device="CPU"):
        labels = Tensor(np.zeros(40, np.int32))
        scores = Tensor(np.zeros((40, 512), np.float32)).requires_grad_()
        loss = scores.sparse_categorical_crossentropy(labels)
        (gradient,) = loss.gradient(scores)
    for k in stages.kernels(gradient):
        source = compile(k, CARD).source.partition('extern "C"')[2]
        assert source.count("require<") <= 1


def test_a_warp_at_least_has_a_long_row_of_short_lines() -> None:
    """A thread would walk 7000 elements, as of the gradient of a norm of images."""
    x = leaf(9, 64, 30, 26)
    padded = lazy.pad(x, ((0, 0), (0, 0), (0, 0), (1, 1)))  # lines that do not follow each other
    assert made(graphs.total(graphs.mul(padded, padded), 0, 2, 3)).block[0] >= 32


def test_what_lines_of_a_row_and_of_two_are_walked_along_is_shared_out_once() -> None:
    """Some are stored once in a row, others for each of two lines of it."""
    x, w = leaf(3, 1, 17), leaf(3, 2, 17)
    whole = graphs.total(x, 2)
    once = graphs.mul(x, lazy.expand(whole, x.shape))
    k = kernel_of(once, graphs.mul(lazy.expand(whole, w.shape), w))
    stages.assert_right(k, target=CARD)
