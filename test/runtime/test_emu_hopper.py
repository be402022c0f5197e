"""What only Hopper has, emulated: barriers in shared memory, copies of boxes, warpgroups."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cards import launched

from tinyml.codegen.text.cuda_text import HOPPER
from tinyml.dtype import bfloat16_bits, bfloat16_values
from tinyml.errors import KernelError
from tinyml.frozen import replace
from tinyml.program import Box, Language, Program

Array = npt.NDArray[Any]
HALVES = ("#include <cuda_fp16.h>", "#include <cuda_bf16.h>", HOPPER)
KB = 1024


def program(body: str, slots: int, boxes: tuple[Box, ...] = (), **more: Any) -> Program:
    """A kernel that fills `out` from `in0`, ..., with all shared memory that a block has."""
    inputs = [f"const unsigned short *in{n}" for n in range(slots - 1)]
    maps = [f"const tinyml_tensor_map *map{n}" for n in range(len(boxes))]
    name = f"hopper_{zlib.crc32(repr((body, boxes, more)).encode())}"
    source = f"""extern "C" __global__ void {name}({", ".join(["float *out", *inputs, *maps])}) {{
extern __shared__ __align__(1024) unsigned char tile[];
__shared__ unsigned long long barrier;
int t = threadIdx.x;
{body}
}}"""
    more.setdefault("block", (128, 1, 1))
    return Program(name, Language.CUDA, HALVES, source, slots, shared=128 * KB, boxes=boxes, **more)


def halves(kind: str, *shape: int) -> tuple[Array, Array]:
    """Drawn numbers as 16 bits, and what they are worth."""
    drawn = np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)
    if kind == "f16":
        return drawn.astype(np.float16).view(np.uint16), drawn.astype(np.float16).astype(float)
    return bfloat16_bits(drawn), bfloat16_values(bfloat16_bits(drawn)).astype(float)


# ---------------------------------------------------------------- products of warpgroups

# a is 64 x 64, in rows along k; or crosswise, 64 k of 64 rows. b likewise, of `columns`.
PRODUCT = """unsigned char *second = tile + 8192;
for (int i = t; i < 64 * 64; i += 128) {{
  int place = i * 2 ^ (i / 64 & 7) << 4;
  *(unsigned short *)(tile + place) = in0[i];
}}
for (int i = t; i < 64 * {columns}; i += 128) {{
  int line = {b_crosswise} ? i / {columns} : i / 64, at = {b_crosswise} ? i % {columns} : i % 64;
  int place = (line * 128 + at % 64 * 2 ^ (line & 7) << 4) + at / 64 * 8192;
  *(unsigned short *)(second + place) = in1[i];
}}
tinyml_fence_async();
__syncthreads();
float d[{sums}];
for (int i = 0; i < {sums}; ++i) d[i] = 0.5f;
tinyml_wgmma_hold(d);
tinyml_wgmma_begin();
for (int k = 0; k < 4; ++k) {{
  unsigned long long a = tinyml_matrix(tile + k * {a_step}, 0, 8192, 1024);
  unsigned long long b = tinyml_matrix(second + k * {b_step}, 0, 8192, 1024);
  tinyml_wgmma_m64n{columns}k16_{kind}<{a_crosswise}, {b_crosswise}>(d, a, b);
}}
tinyml_wgmma_commit();
tinyml_wgmma_wait<0>();
tinyml_wgmma_made(d);
int row = t / 32 * 16 + t % 32 / 4;
for (int i = 0; i < {sums}; ++i)
  out[(row + i / 2 % 2 * 8) * {columns} + i / 4 * 8 + t % 4 * 2 + i % 2] = d[i];"""


def product(columns: int, kind: str, crosswise: tuple[bool, bool], text: str = PRODUCT) -> Program:
    a, b = map(int, crosswise)
    steps = {"a_step": 2048 if a else 32, "b_step": 2048 if b else 32}
    words = {"a_crosswise": a, "b_crosswise": b, "sums": columns // 2, "kind": kind, **steps}
    return program(text.format(columns=columns, **words), 3)


@pytest.mark.parametrize(
    ("columns", "kind", "crosswise"),
    [
        (64, "f16", (False, False)),
        (64, "bf16", (True, False)),
        (128, "f16", (True, True)),
        (192, "f16", (False, True)),
        (256, "bf16", (False, True)),
    ],
)
def test_products_of_a_warpgroup(emu, columns, kind, crosswise):
    (a_bits, a), (b_bits, b) = halves(kind, 64, 64), halves(kind, columns, 64)
    pairs = zip((a_bits, b_bits), crosswise, strict=True)
    given = [np.ascontiguousarray(x.T) if c else x for x, c in pairs]
    result = launched(
        emu, product(columns, kind, crosswise), np.zeros((64, columns), np.float32), *given
    )
    np.testing.assert_allclose(result, a @ b.T + 0.5, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("tinyml_wgmma_begin();", "", "nothing has begun"),
        ("tinyml_matrix(tile", "tinyml_matrix(tile + 8", "multiples of 16 bytes"),
        ("tinyml_wgmma_wait<0>();", "", "before wgmma has made them"),
        ("tinyml_wgmma_wait<0>();", "tinyml_wgmma_wait<1>();", "before wgmma has made them"),
    ],
)
def test_a_mistake_with_products_is_noticed(forward, old, new, why):
    p = product(64, "f16", (False, False), PRODUCT.replace(old, new))
    bits = halves("f16", 64, 64)[0]
    with pytest.raises(KernelError, match=why):
        launched(forward, p, np.zeros((64, 64), np.float32), bits, bits)


COPIED = """tinyml_cp_async16(tile + t * 16, in0 + t * 8);
tinyml_cp_async_commit();
tinyml_cp_async_wait<0>();
"""
FENCED = COPIED + "tinyml_fence_async();\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (PRODUCT, ""),
        (PRODUCT.replace("tinyml_fence_async();", ""), "no fence is behind"),
        (PRODUCT.replace("float d", COPIED + "float d"), "no fence is behind"),
        (PRODUCT.replace("tinyml_wgmma_wait", FENCED + "tinyml_wgmma_wait"), "shared memory that"),
        # into a place that no product reads: nobody asks for its fence
        (PRODUCT.replace("float d", COPIED.replace("tile +", "unread +") + "float d"), ""),
    ],
    ids=["right", "no fence", "copied before", "copied beside", "copied elsewhere"],
)
def test_products_read_what_fences_are_behind_and_nobody_overwrites(watched, text, why):
    p = product(64, "f16", (False, False), text.replace("unread", "(tile + 24576)"))
    bits = halves("f16", 64, 64)[0]
    given = np.zeros((64, 64), np.float32), bits, bits
    if why:
        with pytest.raises(KernelError, match=why):
            launched(watched, p, *given)
    else:
        launched(watched, p, *given)


# ---------------------------------------------------------------- copies of boxes

COPY = """if (t == 0) tinyml_mbarrier_init(&barrier, 1);
__syncthreads();
if (t == 0) {
  tinyml_mbarrier_expect(&barrier, 2048);
  tinyml_copy_box(tile, map0, -3, 5, 1, &barrier);
}
tinyml_mbarrier_wait(&barrier, 0);
for (int i = t; i < 16 * 64; i += 128) {
  int place = i * 2 ^ (i / 64 & 7) << 4;
  out[i] = *(unsigned short *)(tile + place);
}"""
BOX = Box(1, 2, 16, (70, 18, 2), (160, 160 * 20), (64, 16))


def test_a_box_is_copied_with_zeros_around_it(emu):
    """Of an array that begins eight elements into the slot; 80 elements are between its lines."""
    given = np.arange(1, 2 * 20 * 80 + 9, dtype=np.uint16)
    result = launched(emu, program(COPY, 2, (BOX,)), np.zeros((16, 64), np.float32), given)
    array = given[8:].reshape(2, 20, 80)[1, :18, :70]
    expected = np.zeros((16, 64))
    expected[:13, 3:] = array[5:, :61]
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    "wrong",
    [{"offset": 4}, {"strides": (152, 160 * 20)}, {"strides": (160, 152)}, {"box": (64, 257)}],
)
def test_a_box_that_no_card_takes_is_refused(forward, wrong):
    given = np.arange(1, 2 * 20 * 80 + 9, dtype=np.uint16)
    p = program(COPY, 2, (replace(BOX, **wrong),))
    with pytest.raises(KernelError, match="no card has a tensor map"):
        launched(forward, p, np.zeros((16, 64), np.float32), given)


def test_a_copy_that_nobody_waits_for_shows(forward):
    given = np.arange(1, 2 * 20 * 80 + 9, dtype=np.uint16)
    for old, why in (
        ("tinyml_mbarrier_wait", "before a bulk copy has arrived"),
        ("tinyml_mbarrier_expect", "dead-lock"),
        ("if (t == 0) tinyml_mbarrier_init", "nobody has begun"),
    ):
        line = next(line for line in COPY.splitlines() if old in line)
        with pytest.raises(KernelError, match=why):
            launched(
                forward,
                program(COPY.replace(line, ""), 2, (BOX,)),
                np.zeros((16, 64), np.float32),
                given,
            )


# One thread brings values, the others take them: two places, seven steps.
RING = """__shared__ unsigned long long full[2], empty[2];
__shared__ int ring[2][96];
if (t == 0) {
  for (int n = 0; n < 2; ++n) {
    tinyml_mbarrier_init(full + n, 32);
    tinyml_mbarrier_init(empty + n, 96);
  }
}
__syncthreads();
if (t >= 96) {
  for (int s = 0; s < 7; ++s) {
    EMPTY
    for (int n = 0; n < 3; ++n) ring[s % 2][n * 32 + t % 32] = s * 100 + n * 32 + t % 32;
    tinyml_mbarrier_arrive(full + s % 2);
  }
} else {
  float sum = 0;
  for (int s = 0; s < 7; ++s) {
    tinyml_mbarrier_wait(full + s % 2, s / 2 % 2);
    sum = sum * 2 + ring[s % 2][95 - t];
    tinyml_mbarrier_arrive(empty + s % 2);
  }
  out[t] = sum;
}"""
EMPTY = "if (s >= 2) tinyml_mbarrier_wait(empty + s % 2, s / 2 % 2 ^ 1);"


def ring_sums() -> Array:
    sums = np.zeros(96)
    for s in range(7):
        sums = sums * 2 + s * 100 + np.arange(96)[::-1]
    return sums


def test_a_warp_that_brings_and_others_that_take(emu):
    p = program(RING.replace("EMPTY", EMPTY), 1)
    np.testing.assert_array_equal(launched(emu, p, np.zeros(96, np.float32)), ring_sums())


def test_who_does_not_wait_for_takers_is_noticed(forward):
    """Phases pass that nobody has seen."""
    with pytest.raises(KernelError, match="dead-lock"):
        launched(forward, program(RING.replace("EMPTY", ""), 1), np.zeros(96, np.float32))
