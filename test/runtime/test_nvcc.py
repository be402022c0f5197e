"""CUDA C to cubins, without a card."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from cards import compiled, instructions

from tinyml import trace
from tinyml.cache import DiskCache
from tinyml.codegen.text.cuda_text import FRAGMENTS, HOPPER
from tinyml.errors import CompileError, DeviceError
from tinyml.program import Language, Program
from tinyml.runtime import nvcc
from tinyml.runtime.nvcc import CudaBuilder, Images, Nvcc, Resources, Toolchain


def _toolchains() -> dict[str, Toolchain]:
    found: dict[str, Toolchain] = {}
    with contextlib.suppress(DeviceError):
        found["nvcc"] = nvcc.find_nvcc()
    library = nvcc.find_nvrtc()
    if library is not None:
        found["nvrtc"] = library
    return found


TOOLCHAINS = _toolchains()


@pytest.fixture(params=["nvcc", "nvrtc"])
def toolchain(request):
    if request.param not in TOOLCHAINS:
        pytest.skip(f"no {request.param} on this machine")
    return TOOLCHAINS[request.param]


def program(name: str, body: str = "out[threadIdx.x] = in[threadIdx.x];", **more) -> Program:
    source = f"""extern "C" __global__ void __launch_bounds__(128)
{name}(float* __restrict__ out, const float* __restrict__ in) {{
{body}
}}"""
    more.setdefault("prelude", ())
    more |= {"block": (128, 1, 1), "bounds": (128,)}
    return Program(name, Language.CUDA, source=source, slots=2, **more)


STAGED = """__shared__ float row[128];
row[threadIdx.x] = in[threadIdx.x];
__syncthreads();
out[threadIdx.x] = row[127 - threadIdx.x];"""

# One thread that needs 300 values at once has to spill: there are 255 registers.
SPILLING = """float v[300];
const volatile float* once = in;
#pragma unroll
for (int i = 0; i < 300; i++) v[i] = once[i * 128 + threadIdx.x];
#pragma unroll
for (int i = 0; i < 300; i++) out[i * 128 + threadIdx.x] = v[299 - i] * v[(i * 7) % 300];"""


def test_a_cubin_and_its_resources(toolchain):
    text = program("staged", STAGED).text + program("spilling", SPILLING).source
    cubin, output = toolchain.compile(text, "sm_90a")
    assert cubin.startswith(b"\x7fELF")
    resources = nvcc.parse_resources(output)
    assert set(resources) == {"staged", "spilling"}
    assert resources["staged"].shared == 512
    assert 0 < resources["staged"].registers < 32
    assert not resources["staged"].spills
    assert resources["spilling"].spills
    assert resources["spilling"].stack > 0


ALL_HELPERS = """__shared__ __align__(16) unsigned short tile[16][16];
unsigned a[4], b[4];
tinyml_cp_async16(&tile[0][0], in);
tinyml_cp_async16_or_zero(&tile[1][0], in + 4, threadIdx.x < 5);
tinyml_cp_async_few<4>(&tile[2][0], in);
tinyml_cp_async_few_or_zero<8>(&tile[3][0], in + 4, threadIdx.x < 5);
tinyml_cp_async16_begin(&tile[4][0], in, threadIdx.x < 5, (int)threadIdx.x);
tinyml_cp_async16_begin(&tile[5][0], in, threadIdx.x < 5, 1ll << threadIdx.x);
tinyml_cp_async_commit();
tinyml_cp_async_wait<1>();
tinyml_named_barrier(1, 128);
tinyml_ldmatrix_x4(a, tile[threadIdx.x % 16]);
tinyml_ldmatrix_x4_trans(b, tile[threadIdx.x % 16]);
float d[4] = {};
unsigned pair[2] = {b[0], b[1]};
tinyml_mma_m16n8k16_f16(d, a, pair);
tinyml_mma_m16n8k16_bf16(d, a, pair);
tinyml_mma_m16n8k8_tf32(d, a, pair);
tinyml_mma_m16n8k8_f16(d, a, pair);
out[threadIdx.x] = d[0] + __half2float(__float2half_rn(d[1]))
    + __bfloat162float(__float2bfloat16_rn(d[2])) + d[3];"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_every_fragment_helper_is_valid_ptx(toolchain, arch):
    prelude = ("#include <cuda_fp16.h>", "#include <cuda_bf16.h>", FRAGMENTS)
    p = program("helpers", ALL_HELPERS, prelude=prelude)
    cubin, _ = toolchain.compile(p.text, arch)
    assert cubin.startswith(b"\x7fELF")


def test_an_older_card_has_helpers_that_load_and_multiply_halves(toolchain):
    known = ("__shared__", "unsigned", "tinyml_ldmatrix", "float d", "tinyml_mma_m16n8k8_f16")
    body = [line for line in ALL_HELPERS.splitlines() if line.startswith(known)]
    body.append("out[threadIdx.x] = d[0];")
    p = program("helpers", "\n".join(body), prelude=("#include <cuda_fp16.h>", FRAGMENTS))
    cubin, _ = toolchain.compile(p.text, "sm_75")
    assert cubin.startswith(b"\x7fELF")


HOPPER_HELPERS = """extern __shared__ __align__(1024) unsigned char tile[];
__shared__ unsigned long long full, empty;
if (threadIdx.x == 0) {
  tinyml_mbarrier_init(&full, 1);
  tinyml_mbarrier_init(&empty, 128);
}
__syncthreads();
if (threadIdx.x == 0) {
  tinyml_mbarrier_expect(&full, 8192);
  tinyml_copy_box(tile, (const tinyml_tensor_map *)in, 0, 1, 2, &full);
}
tinyml_mbarrier_wait(&full, 0);
tinyml_fence_async();
float d[COLUMNS / 2] = {};
tinyml_wgmma_hold(d);
tinyml_wgmma_begin();
for (int k = 0; k < 4; ++k)
  tinyml_wgmma_m64nCOLUMNSk16_KIND<0, 1>(d, tinyml_matrix(tile + 32 * k, 0, 0, 1024),
                                         tinyml_matrix(tile, 16384 + 4096 * k, 8192, 1024));
tinyml_wgmma_commit();
tinyml_wgmma_wait<0>();
tinyml_wgmma_made(d);
tinyml_mbarrier_arrive(&empty);
for (int i = 0; i < COLUMNS / 2; ++i) out[threadIdx.x * (COLUMNS / 2) + i] = d[i];"""


@pytest.mark.parametrize(
    ("columns", "kind"), [(64, "f16"), (128, "bf16"), (192, "bf16"), (256, "bf16")]
)
def test_hopper_s_helpers_are_its_instructions(columns, kind, tmp_path):
    body = HOPPER_HELPERS.replace("COLUMNS", str(columns)).replace("KIND", kind)
    p = program("hopper", body, prelude=(HOPPER,))
    resources, cubin = compiled(p, "sm_90a", tmp_path)
    assert not resources.spills
    assert not resources.stack
    found = instructions(cubin)
    name = {"f16": "", "bf16": ".BF16"}[kind]
    assert found[f"HGMMA.64x{columns}x16.F32{name}"] == 4
    assert found["UTMALDG.3D"] == 1
    assert found["SYNCS.PHASECHK.TRANS64.TRYWAIT"] > 0  # a thread sleeps where it waits


def test_wrong_source_is_an_error_with_the_compiler_s_words(toolchain):
    with pytest.raises(CompileError, match=r'(?s)failed.*"undeclared" is undefined'):
        toolchain.compile(program("bad", "out[0] = undeclared;").text, "sm_90a")


@pytest.mark.skipif(not TOOLCHAINS, reason="neither nvcc nor NVRTC on this machine")
def test_a_cubin_needs_no_card():
    assert nvcc.find().compile(program("copy").text, "sm_90a")[0].startswith(b"\x7fELF")


def test_no_compiler_is_a_device_error():
    with pytest.raises(DeviceError, match="no CUDA compiler: no-such-nvcc not found"):
        nvcc.find("no-such-nvcc")


@pytest.mark.parametrize(
    ("capability", "name"), [((8, 6), "sm_86"), ((9, 0), "sm_90a"), ((10, 0), "sm_100a")]
)
def test_architectures(capability, name):
    assert nvcc.architecture(capability) == name


SAID = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 512 bytes smem, 368 bytes cmem[0]
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
"""


def test_resources_are_read_from_what_ptxas_says():
    assert nvcc.parse_resources(SAID) == {
        "first": Resources(12, shared=512, spill_stores=4, spill_loads=8, stack=16),
        "second": Resources(8, shared=0, spill_stores=0, spill_loads=0, stack=0),
    }
    assert nvcc.parse_resources("") == {}


class CountingToolchain:
    """Returns the source as the binary, and remembers what it was asked."""

    command, fingerprint = "counting", "1"

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.in_order: list[bool] = []

    def compile(self, source: str, architecture: str, in_order: bool = False) -> tuple[bytes, str]:
        self.compiled.append(source)
        self.in_order.append(in_order)
        if "undeclared" in source:
            raise CompileError("undeclared")
        return source.encode(), f"said of {architecture}"


def images(folder: Path, toolchain: Toolchain) -> Images:
    return Images("CUDA", CudaBuilder(toolchain, "sm_90a"), DiskCache(folder), processes=2)


def test_programs_are_built_together_and_found_again(tmp_path):
    first, second = CountingToolchain(), CountingToolchain()
    programs = [program("one"), program("two")]
    with trace.listen(trace.Compiled) as events:
        (_, one), (_, two) = images(tmp_path, first).units(programs)
        ((_, again),) = images(tmp_path, second).units(programs[1:])
    assert one is two
    assert again == two
    assert len(first.compiled) == 1
    assert not second.compiled
    assert [(e.names, e.cached, e.output) for e in events] == [
        (("one", "two"), False, "said of sm_90a"),
        (("two",), True, "said of sm_90a"),
    ]


def test_programs_whose_order_is_kept_have_a_unit_of_their_own(tmp_path):
    toolchain = CountingToolchain()
    kept = program("kept", in_order=True)
    images(tmp_path, toolchain).units([program("one"), kept, program("two")])
    by_order = dict(zip(toolchain.in_order, toolchain.compiled, strict=True))
    assert re.findall(r"(\w+)\(float", by_order[True]) == ["kept"]
    assert sorted(re.findall(r"(\w+)\(float", by_order[False])) == ["one", "two"]


@pytest.mark.parametrize("name", TOOLCHAINS)
def test_a_toolchain_keeps_the_order_that_it_is_asked_for(name):
    tools = TOOLCHAINS[name]
    plain, kept = (tools.compile(program("k", STAGED).text, "sm_90a", o)[0] for o in (False, True))
    assert plain != kept


def test_the_program_to_blame_is_named(tmp_path):
    with pytest.raises(CompileError, match="CUDA: program bad: undeclared"):
        images(tmp_path, CountingToolchain()).units([program("good"), program("bad", "undeclared")])


class FullToolchain(CountingToolchain):
    """Says what kernels spill that take 64 registers, by their bounds."""

    def __init__(self, **spilled: dict[str, int]) -> None:
        super().__init__()
        self.spilled = spilled

    def compile(self, source: str, architecture: str, in_order: bool = False) -> tuple[bytes, str]:
        said = ""
        for name, by_bounds in self.spilled.items():
            bounds = re.search(rf"__launch_bounds__\((.*?)\)\s+{name}\(", source)[1]
            said += (
                f"Compiling entry function '{name}' for\n{by_bounds[bounds]} bytes spill stores\n"
            )
            said += "Used 64 registers\n"
        return super().compile(source, architecture)[0], said


def built(**spilled: dict[str, int]) -> tuple[list[str], int]:
    """Bounds that two kernels end up with, and how often they were compiled."""
    toolchain = FullToolchain(**spilled)
    builder = CudaBuilder(toolchain, "sm_90a")
    text, output = builder.build((program("one"), program("two")))
    assert toolchain.compiled[-1] == text.decode()
    assert nvcc.parse_resources(output)["one"].spilled == min(spilled["one"].values())
    return re.findall(r"__launch_bounds__\((.*?)\)", text.decode()), len(toolchain.compiled)


def test_what_spills_is_compiled_again_for_fewer_blocks():
    """128 threads with 64 registers: eight blocks ran at a time."""
    kept = {"128": 0}
    assert built(one=kept, two=kept) == (["128", "128"], 1)
    assert built(one={"128": 8, "128, 7": 0}, two=kept) == (["128, 7", "128"], 2)
    never = {"128": 8, "128, 7": 12, "128, 1": 8}
    assert built(one=never, two=kept) == (["128", "128"], 4)
    best = {"128": 8, "128, 7": 4, "128, 1": 16}
    last = {"128": 8, "128, 7": 8, "128, 1": 0}
    assert built(one=best, two=last) == (["128, 7", "128, 1"], 4)


def test_a_named_nvcc_is_preferred_to_nvrtc():
    if "nvcc" not in TOOLCHAINS:
        pytest.skip("no nvcc on this machine")
    path = TOOLCHAINS["nvcc"].path
    found = nvcc.find(path)
    assert isinstance(found, Nvcc)
    assert found.path == path
