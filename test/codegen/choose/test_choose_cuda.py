"""What the rules of thumb for CUDA make of products of matrices, and what nvcc makes of that."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import graphs
import numpy as np
import pytest
import stages
from cards import CARD, compiled, instructions, on_emu
from graphs import leaf
from products import TOLERANCE, product
from stages import kernel_of

from tinyml import Device, Tensor, defaults, kernel, lazy
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import compile
from tinyml.codegen.lower import lower
from tinyml.codegen.optimize.opts import Opt, OptKind
from tinyml.codegen.target import Target
from tinyml.dtype import DType, bfloat16, float16, float32, float64
from tinyml.kernel import Kernel
from tinyml.lazy import LazyBuffer
from tinyml.program import Program
from tinyml.runtime.emu import ThreadOrder
from tinyml.schedule import schedule

OLDER = replace(CARD, capability=75)
TF32 = replace(CARD, tf32=True)


def chosen(root: LazyBuffer, target: Target = CARD) -> list[Opt]:
    return choose(lower(kernel_of(root)), target)[0]


def kinds(root: LazyBuffer, target: Target = CARD) -> set[OptKind]:
    return {opt.kind for opt in chosen(root, target)}


def rounded(*shape: int) -> LazyBuffer:
    """Floats as halves, as factors of products that are summed in float32."""
    return lazy.cast(lazy.cast(leaf(*shape), float16), float32)


# ---- what is chosen ----


def test_halves_are_multiplied_on_tensor_cores_that_there_are() -> None:
    for dtype in (float16, bfloat16):
        assert {OptKind.FRAGMENT, OptKind.PIPELINE} <= kinds(product(256, 256, 256, dtype))
        older = kinds(product(256, 256, 256, dtype), OLDER)
        assert (OptKind.FRAGMENT in older) == (dtype is float16)
        assert OptKind.PIPELINE not in older


def test_floats_are_not_unless_they_may_lose_bits() -> None:
    root = product(256, 256, 256, float32)
    assert OptKind.FRAGMENT not in kinds(root)
    assert OptKind.FRAGMENT in kinds(root, TF32)
    doubles = graphs.matmul(leaf(256, 256, dtype=float64), leaf(256, 256, dtype=float64))
    assert OptKind.FRAGMENT not in kinds(doubles, TF32)


def test_copies_under_way_are_for_cards_that_know_them() -> None:
    root = product(256, 256, 256, float32)
    assert OptKind.PIPELINE in kinds(root)
    assert OptKind.PIPELINE not in kinds(root, OLDER)


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_a_block_for_most_multiprocessors(dtype: DType) -> None:
    """Large tiles where there are many, smaller ones where there would be few."""
    for size in (512, 1024, 4096):
        program = compile(kernel_of(product(size, size, size, dtype)), CARD)
        assert program.grid >= 96
        largest = size == 4096
        assert (program.grid == (size // 128) ** 2) == largest
        assert program.shared <= CARD.cache // 2


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_blocks_share_the_fold_of_few_tiles(dtype: DType) -> None:
    for m, k, n in ((64, 8192, 64), (256, 8192, 256), (64, 4096, 2048)):
        program = compile(kernel_of(product(m, k, n, dtype)), CARD)
        assert 64 <= program.grid <= 132
        assert "comes_last(" in program.source
    assert "comes_last(" not in compile(kernel_of(product(2048, 2048, 2048, dtype)), CARD).source


def test_blocks_share_what_is_made_in_pieces_elsewhere() -> None:
    for device, count in (("EMU", 1), ("CPU", 2)):
        factors = (lazy.data(shape, float32, device) for shape in ((64, 16384), (16384, 64)))
        assert len(schedule([graphs.matmul(*factors)]).items) == count


def test_neighbouring_blocks_share_columns_in_a_cache() -> None:
    source = compile(kernel_of(product(4096, 64, 4096, float16)), CARD).source
    assert "i0s = (int)blockIdx.x % 8;" in source


# ---- that it is right ----

SIZES = [
    (64, 64, 64), (16, 16, 16), (33, 47, 65), (128, 20, 40), (24, 200, 24), (200, 33, 16),
]  # fmt: skip


@pytest.mark.parametrize("size", [(64, 64, 64), (33, 47, 65)], ids=str)
def test_factors_that_are_computed_go_through_registers(size: tuple[int, int, int]) -> None:
    m, k, n = size
    root = graphs.matmul(rounded(m, k), rounded(k, n))
    runners = {"simulated": stages.simulated(CARD, None)}
    if Device.available("EMU"):
        runners["EMU"] = stages.on_machine("EMU", [kernel_of(root)], chosen(root))
    stages.agree([root], graphs.values([root]), runners, rtol=1e-2, atol=1e-2)
    wide = "pack<float, 4>" in compile(kernel_of(root), CARD).source
    assert wide == (m == 64)  # four floats at a time, where they lie so


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_products_of_many_sizes(size: tuple[int, int, int], dtype: DType) -> None:
    target = replace(CARD, tf32=True)
    root = product(*size, dtype, (size[0] % 3 == 0, size[2] % 3 == 0))
    runners = {"simulated": stages.simulated(target, None)}
    if Device.available("EMU"):
        runners["EMU"] = stages.on_machine("EMU", [kernel_of(root)], chosen(root, target))
    tolerance = TOLERANCE[dtype]
    stages.agree([root], graphs.values([root]), runners, rtol=tolerance, atol=tolerance)


def test_parts_are_added_up_in_one_order() -> None:
    """As often as one runs it, and in whatever order blocks and threads come."""
    for dtype, close in ((float32, 1e-4), (float16, 0.02)):
        root = product(50, 2000, 24, dtype)
        known = graphs.values([root])
        opts = chosen(root)
        assert Opt(OptKind.GRID, "r0") in opts
        runners = {"simulated": stages.simulated(CARD, opts)}
        if Device.available("EMU"):
            before = Device.memory_stats("EMU").programs
            runners["EMU"] = stages.on_machine("EMU", [kernel_of(root)], opts)
            made = schedule([root])
            again = [stages.run(made, known, runners["EMU"])[0] for _ in range(2)]
            np.testing.assert_array_equal(*again)
            assert Device.memory_stats("EMU").programs > before  # the parts wait in memory
        stages.agree([root], known, runners, rtol=close, atol=close)


def test_parts_are_added_up_as_they_are_used() -> None:
    """All 128 sums of a thread at once, read twice, would not fit its registers."""
    root, target = product(128, 2048, 128, float16), replace(CARD, cores=2)
    source = compile(kernel_of(root), target).source
    added, stored = (
        [m.start() for m in re.finditer(t, source)] for t in ("together<", r"\*\(pack")
    )
    before = [sum(a < b for a in added) for b in stored]
    assert sorted({*before}) == [8, 16]  # fragments of eight sums
    if Device.available("EMU"):
        runner = stages.on_machine("EMU", [kernel_of(root)], chosen(root, target))
        stages.agree([root], graphs.values([root]), {"EMU": runner}, rtol=0.02, atol=0.02)


def test_sums_of_a_warpgroup_are_added_up_as_they_are_used() -> None:
    """Some of the 128 of each thread at a time, though they are one accumulator."""
    root = product(128, 4096, 256, float16)
    target = replace(CARD, cores=2, cache=227 << 10, capability=90, warpgroups=True)
    source = compile(kernel_of(root), target).source
    assert "tinyml_wgmma_m64n256k16" in source
    first, second = (source.index(f"64>(acc0.at + {n},") for n in (0, 64))
    assert first < source.index("*(pack", first) < second < source.index("*(pack", second)
    runners = {"simulated": stages.simulated(target, None)}
    if Device.available("EMU"):
        runners["EMU"] = stages.on_machine("EMU", [kernel_of(root)], chosen(root, target))
    stages.agree([root], graphs.values([root]), runners, rtol=0.02, atol=0.02)


def test_more_warps_load_what_does_not_lie_in_pieces() -> None:
    """What a thread loads of both factors has no room beside 128 sums, where blocks share folds."""
    target = replace(CARD, cores=2)
    for depth, block in ((2048, 128), (2047, 256)):
        root = product(128, depth, 128, float16, (False, True))
        program = compile(kernel_of(root), target)
        assert program.block == (1, block, 1)
        assert program.grid == 2
        runners = {"simulated": stages.simulated(target, None)}
        if Device.available("EMU"):
            runners["EMU"] = stages.on_machine("EMU", [kernel_of(root)], chosen(root, target))
        stages.agree([root], graphs.values([root]), runners, rtol=0.02, atol=0.02)


def test_more_warps_make_sums_that_meet_rows_that_are_looked_up() -> None:
    """As behind an embedding: each row has an address of its own, beside 128 sums."""
    target = replace(CARD, cores=1)
    ids = Tensor(np.arange(128)[::-1].astype(np.int32) * 2, device="EMU").realize()
    x, w, table = (
        graphs.memory(*s, dtype=float16, device="EMU") for s in ((128, 64), (128, 64), (256, 128))
    )
    for made, threads in ((x @ w.T, 128), (x @ w.T + table[ids], 256)):
        assert compile(kernel_of(made.lazy), target).block == (1, threads, 1)


def test_more_warps_make_sums_that_meet_many_numbers_of_each_column() -> None:
    """As before a batchnorm: compilers keep them in registers for all rows, beside 128 sums."""
    target = replace(CARD, cores=1)
    x, w = (graphs.memory(128, 64, dtype=float16, device="EMU") for _ in range(2))
    columns = [graphs.memory(128, dtype=float32, device="EMU") for _ in range(4)]
    for count, threads in ((3, 128), (4, 256)):
        made = (x @ w.T).float()
        for column in columns[:count]:
            made = made * column
        assert compile(kernel_of(made.lazy), target).block == (1, threads, 1)


def convolved(
    dtype: DType,
    stride: int = 1,
    groups: int = 1,
    weights: bool = False,
    channels: int = 16,
    size: int = 9,
    window: int = 3,
) -> Callable[[], Kernel]:
    """The kernel of a convolution, of 3 x 3, or of the gradient of its weights."""

    def made() -> Kernel:
        x, w = (
            graphs.memory(*s, dtype=dtype, device="EMU").requires_grad_()
            for s in (
                (2, channels * groups, size, size),
                (24 * groups, channels, window, window),
            )
        )
        y = x.conv2d(w, padding=window // 2, stride=stride, groups=groups)
        if weights:
            upstream = graphs.memory(*y.shape, dtype=dtype, device="EMU")
            (y,) = y.gradient(w, gradient=upstream)
        return stages.kernels(y)[0]

    return made


ORDERED: dict[str, tuple[Callable[[], Kernel], Target, str]] = {
    "halves": (lambda: kernel_of(product(50, 200, 40, bfloat16)), CARD, "add_product"),
    "halves of an older card": (lambda: kernel_of(product(50, 72, 40, float16)), OLDER, "add_p"),
    "parts, of an older card": (lambda: kernel_of(product(50, 2000, 24, float16)), OLDER, "add_p"),
    "its convolution": (convolved(float16, channels=64), OLDER, "add_product"),
    "others of an older card": (lambda: kernel_of(product(50, 72, 40, bfloat16)), OLDER, "syncth"),
    "blocks share": (lambda: kernel_of(product(50, 2000, 24, float16)), CARD, "comes_last("),
    "floats": (lambda: kernel_of(product(70, 100, 70, float32)), CARD, "tinyml_cp_async"),
    "floats, shared": (lambda: kernel_of(product(64, 2000, 64, float32)), CARD, "comes_last("),
    "tf32": (lambda: kernel_of(product(50, 72, 40, float32)), TF32, "add_product"),
    "computed": (lambda: kernel_of(graphs.matmul(rounded(33, 47), rounded(47, 65))), CARD, "add_p"),
    "convolution": (convolved(bfloat16), CARD, "add_product"),
    "convolution of floats": (convolved(float32), CARD, "tinyml_cp_async_few_or_zero<4>"),
    "four halves in a piece": (
        convolved(float16, channels=96, size=14, window=1),
        CARD,
        "tinyml_cp_async_few_or_zero<8>",
    ),
    "of many channels": (convolved(float16, channels=64), CARD, "add_product"),
    "of floats, channels": (convolved(float32, channels=32), TF32, "add_product"),
    "of stride 2": (convolved(float16, stride=2), CARD, "add_product"),
    "of groups": (convolved(bfloat16, groups=2), CARD, "add_product"),
    "gradient of weights": (convolved(bfloat16, weights=True), CARD, "add_product"),
    "of weights, stride 2": (convolved(bfloat16, stride=2, weights=True), CARD, "add_product"),
    "of weights of groups": (convolved(float32, groups=2, weights=True), TF32, "add_product"),
}


@pytest.mark.skipif(not Device.available("EMU"), reason="no C++ compiler")
@pytest.mark.parametrize("order", ThreadOrder)
@pytest.mark.parametrize("name", ORDERED)
def test_threads_in_any_order(name: str, order: ThreadOrder) -> None:
    made, target, mark = ORDERED[name]
    program = compile(made(), target, verify=True)
    assert mark in program.source
    rng = np.random.default_rng(5)
    arrays = [graphs.numbers(rng, shape, dtype) for shape, dtype in made().slots]
    wanted = [a.copy() for a in arrays]
    kernel.run(made(), wanted)
    on_emu(program, order)(made(), arrays)
    found, right = (a[0].astype(np.float64) for a in (arrays, wanted))
    np.testing.assert_allclose(found, right, rtol=0.02, atol=0.02 * np.abs(right).max())


@pytest.mark.parametrize("mirrored", [False, True], ids=["as they lie", "mirrored"])
def test_nvcc_multiplies_halves_on_tensor_cores_of_older_cards(
    mirrored: bool, tmp_path: Path
) -> None:
    turing = replace(OLDER, cores=40, cache=64 << 10)
    root = product(512, 512, 512, float16, (mirrored, mirrored))
    resources, cubin = compiled(compile(kernel_of(root), turing), "sm_75", tmp_path)
    assert not resources.spills
    found = instructions(cubin)
    products = {op for op in found if op.startswith(("HMMA", "LDSM", "FFMA"))}
    assert products == {"HMMA.1688.F32", "LDSM.16.M88.4", "LDSM.16.MT88.4"}


def test_a_matrix_times_itself() -> None:
    x = lazy.cast(leaf(48, 64, dtype=bfloat16), float32)
    root = graphs.matmul(x, lazy.permute(x, (1, 0)))
    assert [opt.kind for opt in chosen(root)].count(OptKind.STAGE) == 2
    runner = stages.simulated(CARD, None)
    stages.agree([root], graphs.values([root]), {"simulated": runner}, rtol=0.05, atol=0.05)


def test_a_layer_and_its_gradients(rng: np.random.Generator) -> None:
    """Products with either factor mirrored, batches, bias, activation, residual."""
    given = [rng.standard_normal(s, dtype=np.float32) for s in ((3, 40, 64), (48, 64), (48,))]

    def run(device: str) -> list[np.ndarray]:
        x, w, b = (Tensor(a, device=device).bfloat16().requires_grad_() for a in given)
        y = x.linear(w.T, b).relu() + x[:, :, :48]
        z = y @ y.transpose(1, 2)
        (z * z).mean().backward()
        return [t.float().numpy() for t in (z, x.grad, w.grad, b.grad)]

    for found, wanted in zip(run("EMU"), run("NUMPY"), strict=True):
        close = 0.03 * np.abs(wanted).max()
        np.testing.assert_allclose(found, wanted, rtol=0.05, atol=close)


@pytest.mark.parametrize("dtype", [float16, float32], ids=str)
def test_a_convolution_and_its_gradient(rng: np.random.Generator, dtype: DType) -> None:
    """Height and width, channels and window are one axis each: images are narrow."""
    given = [rng.standard_normal(s, dtype=np.float32) for s in ((2, 20, 6, 7), (36, 20, 3, 3))]

    def run(device: str) -> list[np.ndarray]:
        x, w = (Tensor(a, device=device).cast(dtype).requires_grad_() for a in given)
        y = x.conv2d(w, padding=1)
        y.square().sum().backward()
        return [t.float().numpy() for t in (y, w.grad)]

    for found, wanted in zip(run("EMU"), run("NUMPY"), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0.01, atol=0.01 * np.abs(wanted).max())


@pytest.mark.parametrize("dtype", [float16, float32], ids=str)
def test_narrow_images_are_tiles_of_products(dtype: DType) -> None:
    x, w = (
        Tensor.zeros(*s, device="EMU").cast(dtype).contiguous().realize()
        for s in ((8, 64, 14, 14), (64, 64, 3, 3))
    )
    k = kernel_of(x.conv2d(w, padding=1))
    opts, _ = choose(lower(k), CARD)
    assert [opt.kind for opt in opts].count(OptKind.COLLAPSE) >= 3
    source = compile(k, CARD).source
    assert ("add_product" in source) == (dtype is float16)
    assert ("tinyml_cp_async_few_or_zero<4>(" in source) == (dtype is float32)


def images(*shape: int, weights: bool, stride: int = 1, dtype: DType = bfloat16) -> Program:
    """A convolution of images, or the gradient of its weights, as for a card."""
    x, w = (
        graphs.memory(*s, dtype=dtype, device="EMU").requires_grad_()
        for s in (shape, (64, shape[1], 3, 3))
    )
    y = x.conv2d(w, padding=1, stride=stride)
    if weights:
        (y,) = y.gradient(w, gradient=graphs.memory(*y.shape, dtype=dtype, device="EMU"))
    k = kernel_of(y)
    return compile(k, replace(CARD, cores=108, cache=163 << 10, capability=80))


def test_more_blocks_than_multiprocessors_wait_for_windows() -> None:
    program = images(8, 64, 56, 56, weights=True)
    assert program.grid >= 3 * 108
    assert "comes_last(" in program.source


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_what_windows_divide_is_divided_once_for_a_step(weights: bool, stride: int) -> None:
    """Elements of an image are loaded as they are, at places that have names."""
    source = images(8, 64, 28, 28, weights=weights, stride=stride).source
    loop = source[source.rindex("#pragma unroll 1") :]
    loads = re.findall(r"const unsigned short v\d+ = (.*);", loop)
    slot = 2 if weights else 1
    places = [re.fullmatch(rf".*<unsigned short>\(slot{slot}\[(n\d+).*\]\).*", t) for t in loads]
    assert len(loads) >= 8
    assert len({m[1] for m in places if m}) == 1
    assert "&&" not in "".join(loads)


@pytest.mark.parametrize("stride", [1, 2])
def test_threads_beside_each_other_read_rows_that_are(stride: int) -> None:
    """Rows of a tile are 20 floats: 4 of them apart, threads would wait for the same banks."""
    source = images(8, 64, 28, 28, weights=True, stride=stride, dtype=float32).source
    read = re.findall(r"\* tile1\[.* i1t( \* \d+)?", source)
    assert {*read} == {" * 20"}


# ---- what CUDA's own compiler says ----


KERNELS = {
    "bfloat16": lambda: (product(4096, 4096, 4096, bfloat16), CARD),
    "bfloat16 mirrored": lambda: (product(4096, 4096, 4096, bfloat16, (True, True)), CARD),
    "bfloat16 few": lambda: (product(256, 8192, 256, bfloat16), CARD),
    "float32 few": lambda: (product(256, 8192, 256, float32), CARD),
    "float16 edges": lambda: (product(1000, 1000, 1000, float16), CARD),
    "computed": lambda: (graphs.matmul(rounded(4096, 4096), rounded(4096, 4096)), CARD),
    "float32": lambda: (product(4096, 4096, 4096, float32), CARD),
    "float32 as tf32": lambda: (product(4096, 4096, 4096, float32), TF32),
}
CASES = [(name, "sm_90a") for name in KERNELS] + [
    ("bfloat16", "sm_80"), ("bfloat16", "sm_89"), ("float32", "sm_80"), ("float32", "sm_89"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "architecture"), CASES)
def test_registers_suffice(name: str, architecture: str, tmp_path: Path) -> None:
    program = compile(kernel_of(KERNELS[name]()[0]), KERNELS[name]()[1])
    resources, cubin = compiled(program, architecture, tmp_path)
    assert not resources.spills
    assert resources.stack == 4 * program.source.count("volatile float")  # sums that wait
    in_registers = name in ("float32", "float32 few")
    if not in_registers:  # whose sums of groups of steps fill a multiprocessor by themselves
        assert resources.registers * 128 * 2 <= 65536  # two blocks on a multiprocessor
    found = instructions(cubin)
    if name == "computed":
        assert found["LDG.E.128.CONSTANT"] > 0 == found["LDG.E.CONSTANT"]
        assert found["STS.64"] == found["LDG.E.128.CONSTANT"]
    else:
        assert found["LDGSTS.E.BYPASS.128"] > 0  # copies of 16 bytes past the registers
    if in_registers:
        assert found["LDS.128"] >= found["FFMA"] // 16
        assert found["LDG.E.128.CONSTANT"] > 0  # the bias
        assert not any(op.startswith("HMMA") for op in found)
    else:
        matrices = sum(n for op, n in found.items() if op.startswith("HMMA"))
        loads = sum(n for op, n in found.items() if op.startswith("LDSM"))
        assert matrices >= 2 * loads > 0  # what is loaded once is multiplied several times


def test_few_instructions_fill_tiles_with_images(tmp_path: Path) -> None:
    """A step of 32 products of tensor cores takes 48 loads, 24 stores, and no branch."""
    resources, cubin = compiled(images(8, 64, 56, 56, weights=False), "sm_80", tmp_path)
    assert not resources.spills
    found = instructions(cubin)
    products = sum(n for op, n in found.items() if op.startswith("HMMA"))
    assert products == 32
    assert found["STS"] >= 24  # of two halves
    assert sum(found.values()) <= 32 * 40  # before the loop three steps are loaded, too
    assert not found["BSSY"]


@pytest.mark.parametrize(
    ("root", "bounds"),
    [
        (product(256, 256, 256, bfloat16), "(128, 1)"),  # no more blocks than multiprocessors
        (product(2048, 1024, 64, bfloat16), "(128, 1)"),
        (product(4096, 1024, 4096, bfloat16), "(128)"),  # sums that fill the registers
        (rounded(1 << 16, 64), "(256)"),  # many blocks
    ],
)
def test_a_compiler_is_told_of_few_blocks(root: LazyBuffer, bounds: str) -> None:
    """It takes no more than it needs of the registers that they share."""
    assert f"__launch_bounds__{bounds} " in compile(kernel_of(root), CARD).source


def slope(x: Tensor, y: Tensor) -> Tensor:
    """Of gelu at x, times y: as a backward pass makes of a product."""
    (made,) = x.requires_grad_().gelu().gradient(x, gradient=y)
    return made


EPILOGUES = {
    "slope of gelu": lambda y, x: slope(x, y),
    "dropout and residual": lambda y, x: y.dropout(0.1) + x,
}


def with_epilogue(made: Callable[[Tensor, Tensor], Tensor]) -> Program:
    """A product, and what is made of it and of another array."""
    with defaults(device="EMU"), Tensor.train():
        given = (Tensor(np.zeros(s, np.float32)) for s in ((512, 64), (64, 512), (512, 512)))
        a, b, x = (t.bfloat16().realize() for t in given)
        k = kernel_of(made(a @ b, x))
    return compile(k, replace(CARD, cores=4))


@pytest.mark.parametrize(("residuals", "at_once"), [(1, 8), (4, 4), (5, 2)])
def test_sums_are_made_at_once_as_registers_hold_what_they_are_made_of(
    residuals: int, at_once: int
) -> None:
    def added(y: Tensor, x: Tensor) -> Tensor:
        halves = sum((x.clone().realize() for _ in range(residuals)), y)
        return halves.float()  # else four lanes would exchange what they store

    stored = re.findall(r"(?: +\*\(pack<.* = .*\n)+", with_epilogue(added).source)
    assert {text.count("\n") for text in stored} == {at_once}


@pytest.mark.parametrize("name", EPILOGUES)
def test_registers_suffice_for_what_is_made_of_sums(name: str, tmp_path: Path) -> None:
    """A few of them are made, then stored; of much that is made tiles are smaller."""
    program = with_epilogue(EPILOGUES[name])
    assert "add_product" in program.source
    assert program.source.count("\n") < 2000
    resources, _ = compiled(program, "sm_90a", tmp_path)
    assert not resources.spills
    assert not resources.stack
