"""The emulator: it computes what a card would, and notices what a card would not tell."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cards import launched

import tinyml
from tinyml.cache import DiskCache
from tinyml.codegen.text.cuda_text import FRAGMENTS
from tinyml.dtype import bfloat16_bits, bfloat16_values
from tinyml.errors import CompileError, DeviceError, KernelError, OutOfMemoryError
from tinyml.program import Language, Program
from tinyml.runtime import translation_units
from tinyml.runtime.emu import EmuMachine, ThreadOrder

Array = npt.NDArray[Any]
HALF = "#include <cuda_fp16.h>"
BFLOAT16 = "#include <cuda_bf16.h>"


def program(
    name: str,
    signature: str,
    body: str,
    grid: int = 1,
    block: tuple[int, int, int] = (32, 1, 1),
    **more: Any,
) -> Program:
    threads = block[0] * block[1] * block[2]
    source = f"""extern "C" __global__ void __launch_bounds__({threads})
{name}({signature}) {{
{body}
}}"""
    more.setdefault("prelude", ())
    slots = signature.count("*")
    return Program(name, Language.CUDA, source=source, slots=slots, grid=grid, block=block, **more)


def floats(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape, dtype=np.float32)


def failure(machine: EmuMachine, p: Program, *arrays: Array) -> str:
    with pytest.raises(KernelError) as caught:
        launched(machine, p, *arrays)
    return str(caught.value)


# ---------------------------------------------------------------- it computes

ADD = program(
    "add",
    "float* __restrict__ out, const float* __restrict__ a, const float* __restrict__ b",
    "int i = blockIdx.x * 128 + threadIdx.x;\nif (i < 1000) out[i] = a[i] + b[i];",
    grid=8,
    block=(128, 1, 1),
)


def test_elementwise(emu):
    a, b = floats(1000), floats(1000) + 1
    np.testing.assert_array_equal(launched(emu, ADD, np.empty_like(a), a, b), a + b)


def test_float4(emu):
    p = program(
        "scale4",
        "float* __restrict__ out, const float* __restrict__ a",
        """int i = blockIdx.x * 32 + threadIdx.x;
float4 v = *reinterpret_cast<const float4*>(a + 4 * i);
*reinterpret_cast<float4*>(out + 4 * i) = make_float4(2 * v.x, 3 * v.y, 4 * v.z, 5 * v.w);""",
        grid=2,
    )
    a = floats(64, 4)
    expected = a * np.array([2, 3, 4, 5], np.float32)
    np.testing.assert_array_equal(launched(emu, p, np.empty_like(a), a), expected)


TILED = """__shared__ float left[16][17], right[16][17];
int x = threadIdx.x, y = threadIdx.y;
int row = blockIdx.x / 4 * 16 + y, column = blockIdx.x % 4 * 16 + x;
float sum = 0.0f;
for (int k = 0; k < 64; k += 16) {
  left[y][x] = a[row * 64 + k + x];
  right[y][x] = b[(k + y) * 64 + column];
  __syncthreads();
  for (int i = 0; i < 16; i++) sum += left[y][i] * right[i][x];
  __syncthreads();
}
out[row * 64 + column] = sum;"""
MATRICES = "float* __restrict__ out, const float* __restrict__ a, const float* __restrict__ b"


def test_matmul_through_shared_memory(emu):
    p = program("matmul", MATRICES, TILED, grid=16, block=(16, 16, 1))
    a, b = floats(64, 64), floats(64, 64).T.copy()
    np.testing.assert_allclose(
        launched(emu, p, np.empty_like(a), a, b), a @ b, rtol=1e-4, atol=1e-5
    )


def test_reduction_by_shuffles_shared_memory_and_atomics(emu):
    p = program(
        "sum",
        "double* __restrict__ out, const float* __restrict__ a",
        """__shared__ double partial[4];
double sum = a[blockIdx.x * 128 + threadIdx.x];
for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
__syncthreads();
if (threadIdx.x == 0) atomicAdd(out, partial[0] + partial[1] + partial[2] + partial[3]);""",
        grid=5,
        block=(128, 1, 1),
    )
    a = floats(640)
    result = launched(emu, p, np.zeros(1), a)
    np.testing.assert_allclose(result, a.astype(np.float64).sum())


@pytest.mark.parametrize("kind", ["int", "float", "double", "long long", "unsigned long long"])
def test_shuffles_move_values_between_lanes(forward, kind):
    storage = {"int": np.int32, "float": np.float32, "double": np.float64}.get(kind, np.int64)
    p = program(
        f"shuffles_{kind.replace(' ', '_')}",
        f"{kind}* __restrict__ out",
        f"""{kind} mine = threadIdx.x;
out[threadIdx.x] = __shfl_sync(0xffffffffu, mine, 5);
out[32 + threadIdx.x] = __shfl_xor_sync(0xffffffffu, mine, 3);
out[64 + threadIdx.x] = __shfl_down_sync(0xffffffffu, mine, 4);
out[96 + threadIdx.x] = __shfl_up_sync(0xffffffffu, mine, 4);
out[128 + threadIdx.x] = __shfl_down_sync(0xffffffffu, mine, 4, 8);""",
    )
    lane = np.arange(32)
    down, up = np.where(lane + 4 < 32, lane + 4, lane), np.where(lane >= 4, lane - 4, lane)
    segment = np.where(lane % 8 + 4 < 8, lane + 4, lane)
    expected = np.stack([np.full(32, 5), lane ^ 3, down, up, segment])
    np.testing.assert_array_equal(launched(forward, p, np.empty((5, 32), storage)), expected)


def test_votes(forward):
    p = program(
        "votes",
        "unsigned* __restrict__ out",
        """out[threadIdx.x] = __ballot_sync(0xffffffffu, threadIdx.x % 3 == 0);
out[32 + threadIdx.x] = __any_sync(0xffffffffu, threadIdx.x == 7)
    + 2 * __all_sync(0xffffffffu, threadIdx.x < 31);""",
    )
    ballot = sum(1 << lane for lane in range(0, 32, 3))
    expected = np.repeat(np.array([[ballot], [1]], np.uint32), 32, axis=1)
    np.testing.assert_array_equal(launched(forward, p, np.empty((2, 32), np.uint32)), expected)


@pytest.mark.parametrize("kind", ["int", "unsigned", "unsigned long long", "float", "double"])
def test_atomic_add(emu, kind):
    storage = {"int": np.int32, "unsigned": np.uint32, "float": np.float32, "double": np.float64}
    name = f"count_{kind.replace(' ', '_')}"
    p = program(name, f"{kind}* out", f"atomicAdd(out + threadIdx.x % 3, ({kind})2);", grid=4)
    out = np.zeros(3, storage.get(kind, np.uint64))
    np.testing.assert_array_equal(launched(emu, p, out), [2 * 4 * 11, 2 * 4 * 11, 2 * 4 * 10])


def test_kernels_of_one_unit_have_their_own_shared_memory(forward):
    bodies = [
        f"__shared__ float s[8192];\ns[threadIdx.x] = {i};\n__syncthreads();\nout[threadIdx.x] = "
        "s[31 - threadIdx.x] + (threadIdx.x ? 0.0f : s[40]);"
        for i in range(9)
    ]
    programs = [program(f"unit_{i}", "float* out", body) for i, body in enumerate(bodies)]
    for i, executable in enumerate(forward.load(programs)):
        out = forward.allocate(128)
        executable.launch([out])
        result = np.empty(32, np.float32)
        forward.copy_out(result, out)
        np.testing.assert_array_equal(result, [np.nan] + 31 * [i])


def test_the_first_kernel_of_a_unit_aligns_an_array_for_all(forward, monkeypatch):
    """Behind the variables of each, as a card's compiler has it; other names are other arrays."""
    monkeypatch.setattr(translation_units, "_START", 1 << 30)  # one unit
    body = """__shared__ float one;
extern __shared__ {} unsigned char {}[];
if (threadIdx.x == 0) one = 1.0f;
__syncthreads();
out[threadIdx.x] = one * ((unsigned long long){} % 1024);"""
    made = {"a_16": "all", "b_1024": "all", "c_1024": "other", "d": "own", "e_64": "helped"}
    programs = []
    for name, array in made.items():
        size = name.partition("_")[2]
        text = body.format(f"__align__({size})" if size else "", array, array)
        programs.append(program(f"align_{name}", "float* out", text, shared=64))
    found = []
    for executable in forward.load(programs):
        memory, result = forward.allocate(128), np.empty(32, np.float32)
        executable.launch([memory])
        forward.copy_out(result, memory)
        found.append(result[0])
    assert found == [16, 16, 0, 16, 64]


def test_dynamic_shared_memory(emu):
    p = program(
        "reverse",
        "float* __restrict__ out, const float* __restrict__ a",
        """extern __shared__ __align__(16) unsigned char tinyml_shared[];
float* row = reinterpret_cast<float*>(tinyml_shared);
for (int i = threadIdx.x; i < 20000; i += 256) row[i] = a[i];
__syncthreads();
for (int i = threadIdx.x; i < 20000; i += 256) out[i] = row[19999 - i];""",
        block=(256, 1, 1),
        shared=80000,
    )
    a = floats(20000)
    np.testing.assert_array_equal(launched(emu, p, np.empty_like(a), a), a[::-1])


def all_halves() -> Array:
    return np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


def test_every_half_becomes_the_right_float(forward):
    p = program(
        "widen",
        "float* out, const __half* a",
        "int i = blockIdx.x * 256 + threadIdx.x;\nout[i] = __half2float(a[i]);",
        grid=256,
        block=(256, 1, 1),
        prelude=(HALF,),
    )
    halves = all_halves().view(np.float16)
    result = launched(forward, p, np.empty(1 << 16, np.float32), halves)
    np.testing.assert_array_equal(result, halves.astype(np.float32))


def hard_floats() -> Array:
    """Values around every place where rounding to 16 bits changes its mind."""
    halves = all_halves().view(np.float16).astype(np.float32)
    between = all_halves()[:-1].view(np.float16).astype(np.float64)
    with np.errstate(all="ignore"):
        middle = (between[1:] + between[:-1]) / 2
        near = [np.nextafter(middle, -np.inf), middle, np.nextafter(middle, np.inf)]
    random = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, np.uint32).view(np.float32)
    return np.concatenate([halves, random, *(n.astype(np.float32) for n in near)])


@pytest.mark.parametrize("kind", ["__half", "__nv_bfloat16"])
@pytest.mark.parametrize("wide", ["float", "double"])
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
def test_rounding_to_16_bits(forward, kind, wide):
    values = hard_floats().astype({"float": np.float32, "double": np.float64}[wide])
    if wide == "double":
        values = np.concatenate([values, np.nextafter(values, 0), np.nextafter(values, np.inf)])
    blocks = -(-values.size // 256)
    p = program(
        f"narrow_{wide}{kind}",
        f"{kind}* out, const {wide}* a",
        f"int i = blockIdx.x * 256 + threadIdx.x;\nif (i < {values.size}) out[i] = {kind}(a[i]);",
        grid=blocks,
        block=(256, 1, 1),
        prelude=(HALF, BFLOAT16),
    )
    bits = launched(forward, p, np.empty(values.size, np.uint16), values)
    if kind == "__half":
        expected = values.astype(np.float16)
        np.testing.assert_array_equal(bits.view(np.float16), expected)
    elif wide == "float":
        expected = bfloat16_values(bfloat16_bits(values))
        np.testing.assert_array_equal(bfloat16_values(bits), expected)


def test_half_arithmetic_rounds_after_each_operation(forward):
    p = program(
        "fused",
        "__half* out, const __half* a, const __nv_bfloat16* b, float* wide",
        """int i = threadIdx.x;
out[i] = a[i] * a[i] + a[i];
wide[i] = __bfloat162float(__float2bfloat16_rn(__bfloat162float(b[i]) * 3.0f));
atomicAdd(out + 32, a[i]);""",
        prelude=(HALF, BFLOAT16),
    )
    a, b = floats(32).astype(np.float16), floats(32)
    out, wide = np.zeros(33, np.float16), np.empty(32, np.float32)
    result = launched(forward, p, out, a, bfloat16_bits(b), wide)
    np.testing.assert_array_equal(result[:32], a * a + a)
    assert result[32] == sum(a.tolist(), np.float16(0))


MATHEMATICS = (
    *("expf(x)", "exp2f(x)", "logf(x)", "log2f(x)", "sinf(x)", "cosf(x)", "tanhf(x)", "erff(x)"),
    *("sqrtf(x)", "truncf(x)", "floorf(x)", "rsqrtf(x)", "powf(x, 1.5f)", "fmodf(x, 0.3f)"),
    *("fminf(x, 1.0f)", "__expf(x)", "max(x, 2.0f)", "isnan(x)"),
)


def test_math_functions(forward):
    lines = [f"out[{n} * 32 + threadIdx.x] = {term};" for n, term in enumerate(MATHEMATICS)]
    body = "\n".join(["float x = a[threadIdx.x];", *lines])
    p = program("mathematics", "float* out, const float* a", body)
    x = np.abs(floats(32)) + 0.1
    result = launched(forward, p, np.empty((len(MATHEMATICS), 32), np.float32), x)
    expected = [np.exp(x), np.exp2(x), np.log(x), np.log2(x), np.sin(x), np.cos(x), np.tanh(x)]
    np.testing.assert_allclose(result[:7], expected, rtol=2e-6)
    np.testing.assert_allclose(result[8:12], [x**0.5, np.trunc(x), np.floor(x), x**-0.5], 2e-6)
    other = [x**1.5, np.fmod(x, np.float32(0.3)), np.minimum(x, 1), np.exp(x), np.maximum(x, 2)]
    np.testing.assert_allclose(result[12:], [*other, np.zeros(32)], rtol=2e-6)


def test_a_wide_multiplication_for_random_numbers(forward):
    p = program(
        "high",
        "unsigned* out, const unsigned* a",
        "int i = threadIdx.x;\n"
        "out[i] = __umulhi(a[i], 0xD2511F53u) ^ __funnelshift_l(a[i], a[i], 7);",
    )
    a = np.random.default_rng(0).integers(0, 1 << 32, 32, np.uint32)
    wide = a.astype(np.uint64)
    rotated = (wide << 7 | wide >> 25) & 0xFFFFFFFF
    expected = (wide * 0xD2511F53 >> 32) ^ rotated
    np.testing.assert_array_equal(launched(forward, p, np.empty_like(a), a), expected)


# ---------------------------------------------------------------- fragments

MMA = """__shared__ __align__(16) unsigned short left[16][24], right[{columns}][24];
for (int i = threadIdx.x; i < 256; i += 32) left[i / 16][i % 16] = a[i];
for (int i = threadIdx.x; i < 128; i += 32) right[i / {width}][i % {width}] = b[i];
__syncthreads();
int lane = threadIdx.x;
unsigned fa[4], fb[4];
float d[4] = {{0.5f, 0.5f, 0.5f, 0.5f}};
tinyml_ldmatrix_x4(fa, &left[lane % 16][lane / 16 * 8]);
tinyml_ldmatrix_x4{trans}(fb, &right[{address}]);
unsigned pair[2] = {{fb[0], fb[1]}};
{multiply}
for (int i = 0; i < 4; i++) out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];"""


MULTIPLY = {
    "f16": "tinyml_mma_m16n8k16_f16(d, fa, pair);",
    "bf16": "tinyml_mma_m16n8k16_bf16(d, fa, pair);",
    "f16 by halves": "tinyml_mma_m16n8k8_f16(d, fa, pair);\n"
    "tinyml_mma_m16n8k8_f16(d, fa + 2, pair + 1);",
}


def fragments_program(kind: str, transposed: bool) -> Program:
    # b lies in memory as (8 columns, 16 k), or transposed as (16 k, 8 columns).
    shape = {"columns": 16, "width": 8} if transposed else {"columns": 8, "width": 16}
    address = "lane % 16][0" if transposed else "lane % 8][lane / 8 % 2 * 8"
    trans = "_trans" if transposed else ""
    body = MMA.format(multiply=MULTIPLY[kind], trans=trans, address=address, **shape)
    signature = "float* out, const unsigned short* a, const unsigned short* b"
    return program(
        f"mma_{kind.replace(' ', '_')}{trans}", signature, body, prelude=(HALF, FRAGMENTS)
    )


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", MULTIPLY)
def test_tensor_core_fragments(emu, kind, transposed):
    a, b = floats(16, 16), floats(16, 8)
    if kind.startswith("f16"):
        bits_a, bits_b = (x.astype(np.float16).view(np.uint16) for x in (a, b))
        a, b = (x.astype(np.float16).astype(np.float32) for x in (a, b))
    else:
        bits_a, bits_b = bfloat16_bits(a), bfloat16_bits(b)
        a, b = bfloat16_values(bits_a), bfloat16_values(bits_b)
    stored = bits_b if transposed else np.ascontiguousarray(bits_b.T)
    p = fragments_program(kind, transposed)
    result = launched(emu, p, np.empty((16, 8), np.float32), bits_a, stored)
    np.testing.assert_allclose(result, a @ b + 0.5, rtol=1e-5, atol=1e-5)


TF32 = """int lane = threadIdx.x, row = lane / 4, k = lane % 4;
unsigned fa[4] = {a[row * 8 + k], a[(row + 8) * 8 + k], a[row * 8 + k + 4],
                  a[(row + 8) * 8 + k + 4]};
unsigned fb[2] = {b[k * 8 + row], b[(k + 4) * 8 + row]};
float d[4] = {};
tinyml_mma_m16n8k8_tf32(d, fa, fb);
for (int i = 0; i < 4; i++) out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];"""


def test_tf32_fragments(forward):
    p = program(
        "mma_tf32", "float* out, const unsigned* a, const unsigned* b", TF32, prelude=(FRAGMENTS,)
    )
    a, b = floats(16, 8), floats(8, 8)
    result = launched(
        forward, p, np.empty((16, 8), np.float32), a.view(np.uint32), b.view(np.uint32)
    )
    np.testing.assert_allclose(result, a @ b, rtol=1e-2, atol=1e-2)
    assert np.abs(result - a @ b).max() > 1e-6  # it has fewer bits than float32


FEW = """__shared__ __align__(16) float tile[96];
int t = threadIdx.x;
tinyml_cp_async_few<4>(&tile[t], a + t);
tinyml_cp_async_few<8>(&tile[32 + 2 * t % 32], a + 32 + 2 * t % 32);
tinyml_cp_async_few_or_zero<4>(&tile[64 + t], a + 64 + t, t % 3 > 0);
tinyml_cp_async_commit();
tinyml_cp_async_wait<0>();
__syncthreads();
for (int i = t; i < 96; i += 32) out[i] = tile[i];"""


def test_a_few_bytes_are_copied_ahead(forward):
    p = program("few", "float* out, const float* a", FEW, prelude=(FRAGMENTS,))
    a = floats(96)
    wanted = np.where((np.arange(96) >= 64) & (np.arange(96) % 32 % 3 == 0), 0, a)
    np.testing.assert_array_equal(launched(forward, p, np.empty(96, np.float32), a), wanted)


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        ("rough_exp(x)", np.exp),
        ("rough_tanh(x)", np.tanh),
        ("rough_logistic(x, -x, 0.0f)", lambda x: x / (1 + np.exp(-x))),
        ("rough_logistic(x, x, 2.0f)", lambda x: x / (1 + 3 * np.exp(x))),
        ("rough_div(x, x * x + 1.0f)", lambda x: x / (x * x + 1)),
    ],
)
def test_numbers_that_end_as_halves_have_more_digits_than_these(forward, call, wanted):
    a = np.concatenate([np.linspace(-120, 120, 4001), np.geomspace(1e-30, 1, 1000)])
    a = np.concatenate([a, -a]).astype(np.float32)
    body = f"""int i = blockIdx.x * 32 + threadIdx.x;
if (i < {a.size}) {{ float x = a[i]; out[i] = {call}; }}"""
    blocks = -(-a.size // 32)
    p = program("rough", "float* out, const float* a", body, grid=blocks, prelude=(FRAGMENTS,))
    made = launched(forward, p, np.empty_like(a), a)
    with np.errstate(over="ignore"):
        right = wanted(a.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(made, right, rtol=2e-5, atol=1e-36)


def test_the_first_bytes_of_a_piece_are_copied_ahead(forward):
    body = """__shared__ __align__(16) float tile[128];
int t = threadIdx.x;
tinyml_cp_async16_begin(&tile[4 * t], a + 4 * t, t != 3, 4 * (50 - 4 * t));
tinyml_cp_async_commit();
tinyml_cp_async_wait<0>();
for (int i = 4 * t; i < 4 * t + 4; i++) out[i] = tile[i];"""
    p = program("begin", "float* out, const float* a", body, prelude=(FRAGMENTS,))
    a, at = floats(128), np.arange(128)
    wanted = np.where((at < 50) & (at // 4 != 3), a, 0)
    np.testing.assert_array_equal(launched(forward, p, np.empty_like(a), a), wanted)


def test_more_bytes_than_an_int_counts_may_be_left_of_a_row(forward):
    body = """__shared__ __align__(16) float tile[4];
tinyml_cp_async16_begin(tile, a, true, (1ll << 33) - 4);
tinyml_cp_async_commit();
tinyml_cp_async_wait<0>();
for (int i = 0; i < 4; i++) out[i] = tile[i];"""
    signature = "float* out, const float* a"
    p = program("left", signature, body, block=(1, 1, 1), prelude=(FRAGMENTS,))
    a = floats(4)
    np.testing.assert_array_equal(launched(forward, p, np.empty_like(a), a), a)


PIPELINE = """__shared__ __align__(16) float tile[2][128];
int t = threadIdx.x;
tinyml_cp_async16(&tile[0][4 * t], a + 4 * t);
tinyml_cp_async_commit();
tinyml_cp_async16_or_zero(&tile[1][4 * t], a + 128 + 4 * t, t < 16);
tinyml_cp_async_commit();
WAIT
__syncthreads();
for (int i = t; i < 256; i += 32) out[i] = tile[i / 128][i % 128];"""


def pipeline(wait: str) -> Program:
    name = "pipeline_" + "".join(filter(str.isalnum, wait))
    signature = "float* __restrict__ out, const float* __restrict__ a"
    return program(name, signature, PIPELINE.replace("WAIT", wait), prelude=(FRAGMENTS,))


def test_asynchronous_copies_arrive_when_waited_for(emu):
    a = floats(256)
    whole = launched(emu, pipeline("tinyml_cp_async_wait<0>();"), np.empty_like(a), a)
    np.testing.assert_array_equal(whole, np.where(np.arange(256) < 192, a, 0))
    first = launched(emu, pipeline("tinyml_cp_async_wait<1>();"), np.empty_like(a), a)
    np.testing.assert_array_equal(first[:128], a[:128])
    assert np.isnan(first[128:]).all()
    assert np.isnan(launched(emu, pipeline(""), np.empty_like(a), a)).all()


# ---------------------------------------------------------------- it notices


def test_a_missing_barrier_shows(emu):
    p = program(
        "missing_barrier",
        "float* out",
        """__shared__ float row[256];
row[threadIdx.x] = threadIdx.x;
out[threadIdx.x] = row[(threadIdx.x + 37) % 256];""",
        block=(256, 1, 1),
    )
    result = launched(emu, p, np.empty(256, np.float32))
    assert not np.array_equal(result, (np.arange(256) + 37) % 256)


def test_an_order_dependent_missing_barrier_shows_when_shuffled(cache):
    p = program(
        "ordered",
        "float* out",
        """__shared__ float row[65];
if (threadIdx.x == 0) row[0] = 0.0f;
row[threadIdx.x + 1] = row[threadIdx.x] + 1.0f;
__syncthreads();
out[threadIdx.x] = row[threadIdx.x + 1];""",
        block=(64, 1, 1),
    )
    expected = np.arange(1, 65, dtype=np.float32)
    lucky = launched(EmuMachine(cache), p, np.empty(64, np.float32))
    np.testing.assert_array_equal(lucky, expected)
    for order in (ThreadOrder.BACKWARD, ThreadOrder.SHUFFLED):
        result = launched(EmuMachine(cache, order), p, np.empty(64, np.float32))
        assert not np.array_equal(result, expected)


MISTAKES = {
    "divergent_barrier": (
        "if (threadIdx.x < 100) __syncthreads();\nelse {\n__syncthreads(); }",
        ["divergent barrier", "line 3", "line 5", "thread (0,0,0)", "thread (100,0,0)"],
    ),
    "early_exit": (
        "if (threadIdx.x == 7) return;\n__syncthreads();",
        ["early exit", "thread (7,0,0)", "line 4"],
    ),
    "barrier_and_shuffle": (
        "if (threadIdx.x < 7) {\nout[0] = __shfl_xor_sync(0xffffffffu, 1.0f, 1); }\n"
        "else __syncthreads();",
        ["dead-lock", "__shfl_xor_sync() at line 4"],
    ),
    "absent_lanes": (
        "if (threadIdx.x < 7) out[0] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);",
        ["dead-lock", "__shfl_xor_sync() at line 3", "already returned: thread (7,0,0)"],
    ),
    "different_collectives": (
        "if (threadIdx.x % 2) out[0] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);\n"
        "else out[0] = __shfl_xor_sync(0xffffffffu, 2.0f, 2);",
        ["divergent warp", "line 3", "line 4"],
    ),
    "wrong_mask": ("__syncwarp(0xffu);", ["mask 0xff", "its own lane", "thread (8,0,0)"]),
    "mask_lacks_source": (
        "if (threadIdx.x < 8) out[0] = __shfl_sync(0xffu, 1.0f, 9);",
        ["reads lane 9", "lacks"],
    ),
    "past_the_end": (
        "out[threadIdx.x + 130] = 1.0f;",
        ["illegal memory access", "thread (126,0,0)", "slot 0: byte 1,024 of 1,024"],
    ),
    "far_away": ("out[1ll << 40] = 1.0f;", ["illegal memory access", "none of its buffers"]),
    "before_the_start": ("out[-1 - (int)threadIdx.x] = 1;", ["just before its start", "slot 0"]),
    "misaligned": (
        "float4 v = *reinterpret_cast<const float4*>(out + 1);\nout[0] = v.x;",
        ["misaligned access", "thread (0,0,0)"],
    ),
    "beyond_shared": (
        "__shared__ float row[32];\nrow[threadIdx.x] = 1;\nout[threadIdx.x] = row[threadIdx.x];",
        ["outside a fixed-size array", "thread (32,0,0)"],
    ),
    "division": (
        "reinterpret_cast<int*>(out)[0] = 7 / (int)(threadIdx.x - 3);",
        ["integer division by zero", "thread (3,0,0)"],
    ),
    "trap": ("if (threadIdx.x == 9) __trap();", ["__trap() at line 3", "thread (9,0,0)"]),
    "misaligned_few": (
        "__shared__ __align__(16) float row[64];\ntinyml_cp_async_few<8>(&row[1], out);",
        ["misaligned cp.async", "multiples of 8"],
    ),
    "misaligned_copy": (
        "__shared__ __align__(16) float row[64];\ntinyml_cp_async16(&row[1], out);",
        ["misaligned cp.async"],
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_an_error_and_the_process_goes_on(forward, name):
    body, expected = MISTAKES[name]
    p = program(f"mistake_{name}", "float* out", body, block=(256, 1, 1))
    message = failure(forward, p, np.zeros(256, np.float32))
    assert message.startswith(f"mistake_{name}: ")
    for part in expected:
        assert part in message, f"{part!r} is not in {message!r}"
    test_elementwise(forward)


def test_a_write_into_the_slack_after_a_buffer_is_found(forward):
    p = program("slack", "float* out, float* other", "other[5] = 1.0f;", block=(1, 1, 1))
    message = failure(forward, p, np.zeros(8, np.float32), np.zeros(5, np.float32))
    assert "slot 1: bytes just after its end were overwritten (it has 20)" in message


def test_the_inside_of_a_buffer_may_be_passed(forward):
    memory = forward.allocate(8000)
    forward.copy_in(memory, np.ones(2000, np.float32))
    (add,) = forward.load([ADD])
    add.launch([memory + 4000, memory, memory])
    result = np.empty(2000, np.float32)
    forward.copy_out(result, memory)
    np.testing.assert_array_equal(result, np.repeat(np.float32([1, 2]), 1000))


def test_an_overflowing_stack_is_an_error(forward):
    body = "volatile float large[60000];\nfor (int i = 0; i < 60000; i++) large[i] = i;\n"
    p = program("stack", "float* out", body + "out[0] = large[7];", block=(1, 1, 1))
    assert "illegal memory access" in failure(forward, p, np.zeros(4, np.float32))


def test_what_nobody_wrote_reads_as_nan(forward):
    p = program("copy", "float* out, const float* a", "out[threadIdx.x] = a[threadIdx.x];")
    out, unwritten = forward.allocate(128), forward.allocate(128)
    forward.load([p])[0].launch([out, unwritten])
    result = np.zeros(32, np.float32)
    forward.copy_out(result, out)
    assert np.isnan(result).all()


def test_a_block_that_is_too_large(forward):
    large = program("large", "float* out", "out[0] = 1.0f;", block=(1025, 1, 1))
    assert "1025 threads; it must be 1 to 1024" in failure(forward, large, np.zeros(4, np.float32))
    greedy = program("greedy", "float* out", "out[0] = 1.0f;", shared=1 << 20)
    assert "bytes of shared memory" in failure(forward, greedy, np.zeros(4, np.float32))
    body = "__shared__ float s[16384];\ns[threadIdx.x] = 1.0f;\nout[0] = s[0];"
    message = failure(forward, program("fixed", "float* out", body), np.zeros(4, np.float32))
    assert "65536 bytes of shared variables" in message


def test_a_wrong_number_of_buffers(forward):
    (executable,) = forward.load([ADD])
    with pytest.raises(KernelError, match="add takes 3 buffers, got 1"):
        executable.launch([forward.allocate(16)])


# ---------------------------------------------------------------- compiling, memory, plans


def test_source_that_does_not_compile(forward):
    bad = program("bad", "float* out", "out[0] = undeclared;")
    with pytest.raises(CompileError, match=r"(?s)EMU: program bad.*bad:3.*undeclared"):
        forward.load([bad, ADD])


def test_programs_in_c_are_refused(forward):
    p = Program("plain", Language.C, (), "", 0)
    with pytest.raises(CompileError, match="EMU runs CUDA C; plain is C"):
        forward.load([p])


def test_no_compiler(cache):
    with pytest.raises(DeviceError, match=r"no-such-compiler: not found on PATH.*apt install g"):
        EmuMachine(cache, cxx="no-such-compiler")


def test_units_are_made_when_another_process_has_made_room_in_the_cache(tmp_path):
    machine = EmuMachine(DiskCache(tmp_path))
    for place in tmp_path.rglob("*.*"):
        place.unlink()
    p = program("fives", "float* out", "out[threadIdx.x] = 5.0f;")
    np.testing.assert_array_equal(launched(machine, p, np.empty(32, np.float32)), 5)


def test_memory_is_counted_reused_and_limited(cache):
    machine = EmuMachine(cache, memory_limit=1 << 20)
    first = machine.allocate(1000)
    assert first % 16 == 0
    assert machine.memory_stats().in_use == 1000
    machine.free(first, 1000)
    assert machine.allocate(1000) == first
    with pytest.raises(OutOfMemoryError, match=r"1,048,576 bytes: 1,000 of at most 1,048,576"):
        machine.allocate(1 << 20)
    assert machine.allocate(0) != machine.allocate(0)


def test_faults_outside_a_kernel_stay_fatal(tmp_path):
    here = str(Path(__file__).parent)
    script = f"""
import ctypes, sys
sys.path[:0] = {[str(Path(tinyml.__file__).parents[1]), here, str(Path(here).parent)]}
from pathlib import Path
from test_emu import ADD, EmuMachine
from tinyml.cache import DiskCache
machine = EmuMachine(DiskCache(Path({str(tmp_path)!r})))
memory = machine.allocate(4000)
machine.load([ADD])[0].launch([memory] * 3)
ctypes.memset(memory + 4096, 0, 1)
"""
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, env=os.environ)
    assert child.returncode == -11, child.stderr.decode()


def grid_sizes() -> Sequence[int]:
    return [1, 2, 7, 1000003]


@pytest.mark.parametrize("blocks", grid_sizes())
def test_every_block_runs_once(emu, blocks):
    p = program(f"blocks_{blocks}", "int* out", "out[blockIdx.x] += 1;", blocks, (1, 1, 1))
    result = launched(emu, p, np.zeros(blocks, np.int32))
    np.testing.assert_array_equal(result, 1)
