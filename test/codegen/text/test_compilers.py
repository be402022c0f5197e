"""The same kernels by each compiler at hand, with all of this processor's vectors and without."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence

import graphs
import numpy as np
import pytest
import stages
from expressions import EXPRESSIONS

from tinyml import Tensor, config, defaults, lazy
from tinyml.codegen.compile import compile
from tinyml.codegen.optimize.opts import parse
from tinyml.codegen.target import Target
from tinyml.codegen.text import c_choices, c_masked
from tinyml.codegen.text.render import LIBM
from tinyml.device import Device
from tinyml.dtype import ALL, DType, bfloat16, by_name, float16, float32, float64, int64
from tinyml.errors import DeviceError
from tinyml.kernel import Kernel
from tinyml.ops import Op
from tinyml.program import Language, translation_unit
from tinyml.runtime import cpu
from tinyml.runtime.compiler import FLAGS
from tinyml.runtime.cpu import CpuMachine
from tinyml.schedule import schedule

Compiled = Callable[[Sequence[Kernel]], stages.Runner]

# all other tests use gcc and the widest vectors there are; these are 64, 32 and 16 bytes
FAR = {Op.SIN, Op.COS, Op.TAN}
WAYS = ("clang", "gcc -mno-avx512f", "clang -mno-avx", "gcc -mno-avx", "gcc-11")


@pytest.fixture(params=WAYS)
def compiled(request: pytest.FixtureRequest) -> Compiled:
    if not shutil.which(request.param.split()[0]) or not Device.available("CPU"):
        pytest.skip(f"{request.param} is not here")
    with config.override(compiler=request.param):
        try:
            machine = CpuMachine()
        except DeviceError:
            pytest.skip(f"{request.param} does not know this processor")
    if " " in request.param and cpu.vectors(machine.compiler) == cpu.vectors():
        pytest.skip("this processor has no such vectors")
    target = Target(Language.C, *cpu.vectors(machine.compiler), cores=2)

    def runner(kernels: Sequence[Kernel]) -> stages.Runner:
        wanted = list(dict.fromkeys(kernels))
        loaded = machine.load([compile(k, target, None, verify=True) for k in wanted])
        runners = {k: stages.launched(machine, e) for k, e in zip(wanted, loaded, strict=True)}
        return lambda k, arrays: runners[k](k, arrays)

    return runner


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_corners_of_each_op(dtype: DType, compiled: Compiled) -> None:
    table = graphs.op_table(dtype, (3, 67))
    run = compiled([k for node in table.values() for k in stages.kernels(node)])
    tolerance = 1e-4 if dtype.itemsize > 2 else 3e-2
    for node in table.values():
        stages.agree([node], graphs.corner_values(node), {"C": run}, tolerance, tolerance)


def test_expressions(compiled: Compiled) -> None:
    with defaults(device="CPU"):
        made = [[t.lazy for t in e.make()] for e in EXPRESSIONS.values()]
    run = compiled([k for roots in made for k in stages.kernels(*roots)])
    for roots in made:
        stages.agree(roots, graphs.values(roots), {"C": run}, 1e-3, 1e-3)


def test_products_and_windows(compiled: Compiled) -> None:
    made = [
        [graphs.linear_relu(67, 130, 45, float32)],
        [graphs.linear_relu(128, 256, 96, float64)],
        [graphs.convolution(2, 8, 13, 13, 16)],
        [graphs.attention(70, 70, 32, 32)],
    ]
    run = compiled([k for roots in made for k in stages.kernels(*roots)])
    for roots in made:
        stages.agree(roots, graphs.values(roots), {"C": run}, 1e-3, 1e-3)


def test_what_is_read_backwards_is_added_once(compiled: Compiled) -> None:
    made = [[graphs.gradient_of_transposed_windows(2, dtype)] for dtype in (float32, float64)]
    run = compiled([k for roots in made for k in stages.kernels(*roots)])
    for roots in made:
        stages.agree(roots, graphs.values(roots), {"C": run}, 1e-3, 1e-3)


@pytest.mark.parametrize("goal", [float32, float64], ids=str)
@pytest.mark.parametrize("kind", ["int64", "uint64"])
def test_long_integers_are_rounded_once(kind: str, goal: DType, compiled: Compiled) -> None:
    x = graphs.leaf(4096, dtype=by_name(kind))
    root = lazy.cast(x, goal)
    known = {x: np.random.default_rng(3).integers(0, 1 << 64, 4096, np.uint64).astype(kind)}
    known[x] >>= np.arange(4096).astype(kind) % 64  # of all lengths
    known[x][:4] = np.iinfo(kind).min, np.iinfo(kind).max, 2**53 + 1, 0
    edges = [2**51 - 1, 2**51, 2**52 - 1, 2**52, 2**24 + 1, 2**24 + 3, 2**50 + 2**26, 2**50 + 1]
    known[x][64:128] = np.repeat(np.array([*edges, *(-n for n in edges)]), 4).astype(kind)
    made = schedule([root])
    (got,) = stages.run(made, known, compiled(stages.kernels_of(made)))
    np.testing.assert_array_equal(got, known[x].astype(goal.name))


def test_long_integers_are_divided_by_numbers(compiled: Compiled) -> None:
    x = graphs.leaf(4096, dtype=int64)
    numbers = np.random.default_rng(3).integers(0, 1 << 64, 4096, np.uint64).astype(np.int64)
    known = {x: numbers >> np.arange(4096) % 64}  # of all lengths
    divisors = [3, 7, 10, 641, 1000003, 2**32 - 1, 2**32 + 1, 2**62 + 1, 2**63 - 1, 2, 1, -10]
    ends = [np.iinfo(np.int64).min, np.iinfo(np.int64).max, 0, -1, 1]
    near = [n * k + d for n in divisors for k in (-1, 1) for d in (-1, 0, 1)]
    edges = np.array([n for n in (*ends, *near) if ends[0] <= n <= ends[1]])
    known[x][: len(edges)] = edges
    roots = [lazy.map_(op, x, graphs.const(n, x)) for n in divisors for op in (Op.IDIV, Op.MOD)]
    made = schedule(roots)
    results = stages.run(made, known, compiled(stages.kernels_of(made)))
    wanted = [f(known[x], n) for n in divisors for f in (np.floor_divide, np.remainder)]
    for root, got, right in zip(roots, results, wanted, strict=True):
        np.testing.assert_array_equal(got, right, err_msg=str(root.sources))


@pytest.mark.parametrize("kind", [float32, float64], ids=str)
def test_floats_become_integers_as_numbers_of_64_bits_do(kind: DType, compiled: Compiled) -> None:
    """The least one of what these cannot hold, and wrapped around where there are fewer bits."""
    x = graphs.leaf(4096, dtype=kind)
    powers = [
        2.0**n + d for n in (15, 16, 31, 32, 51, 52, 53, 63, 64, 70) for d in (-1, -0.5, 0, 2)
    ]
    edges = np.array([np.nan, np.inf, 0.0, -0.0, 0.5, 0.99, 1.5, 2.5, *powers])
    numbers = np.random.default_rng(3).normal(scale=1000, size=4096)  # of which most vectors are
    for begin in (0, 1001, 2002):
        numbers[begin : begin + 2 * len(edges)] = np.concatenate([edges, -edges])
    known = {x: numbers.astype(kind.name)}
    goals = [by_name(name) for name in ("int64", "int32", "int16", "uint8")]
    made = schedule([lazy.cast(x, goal) for goal in goals])
    results = stages.run(made, known, compiled(stages.kernels_of(made)))
    with np.errstate(invalid="ignore"):
        whole = known[x].astype(np.int64)
    for goal, got in zip(goals, results, strict=True):
        np.testing.assert_array_equal(got, whole.astype(goal.name), err_msg=goal.name)


def test_products_and_sums_are_rounded_once(compiled: Compiled) -> None:
    """Of 1 + 2**-12, squared, what is added says to which of two floats, however little it is."""
    x, y = graphs.leaf(67), graphs.leaf(67)
    root = lazy.map_(Op.FMA, x, x, y)
    little = np.resize(np.float32([2**-60, -(2**-60)]), 67)
    known = {x: np.full(67, 1 + 2**-12, np.float32), y: little}
    made = schedule([root])
    (got,) = stages.run(made, known, compiled(stages.kernels_of(made)))
    wanted = np.where(little > 0, 1 + 2**-11 + 2**-23, 1 + 2**-11)
    np.testing.assert_array_equal(got.reshape(67).astype(np.float64), wanted)


@pytest.mark.parametrize("command", ["gcc", "gcc-11", "clang"])
def test_a_loop_over_lanes_becomes_instructions_of_vectors(command: str) -> None:
    table = graphs.op_table(float32, (4096,))
    for op in ("SQRT", "TRUNC", "FMA", "NDTR"):
        k = stages.kernel_of(table[op])
        text = translation_unit((compile(k, Target(Language.C, 32, 16, cores=2), None),))
        made = _made(command, text)
        assert re.search(r"\tv[a-z0-9]+ps\t", made), op
        assert not re.search(r"\t(v[a-z0-9]+ss|call)\t(?!.*rip)", made), op


@pytest.mark.parametrize("command", ["gcc", "clang"])
@pytest.mark.parametrize(
    ("dtype", "processor"),
    [(float32, "haswell"), (float32, "x86-64-v2"), (float64, "haswell")],
    ids=str,
)
def test_functions_on_lanes_call_no_library(command: str, dtype: DType, processor: str) -> None:
    """But for angles and remainders so far away that no polynomial is exact. Where there are no
    instructions: for a number that is left over, and for what is rounded once in float64.
    """
    table = graphs.op_table(dtype, (4099 if processor == "haswell" else 4096,))
    nodes = [table[op.name] for op in (*LIBM, Op.NDTR, Op.LOGISTIC) if op not in FAR]
    kernels = [k for node in nodes for k in stages.kernels(node)]
    target = Target(Language.C, 32 if processor == "haswell" else 16, 16, cores=2)
    text = translation_unit(tuple(compile(k, target, None) for k in kernels))
    assert not re.findall(r"\t(?:call|jmp)q?\t(\w+)@", _made(command, text, processor))


@pytest.mark.parametrize(("element", "count"), [("float", 8), ("double", 4), ("char", 32)])
def test_a_choice_by_lanes_that_are_known_is_one_move(element: str, count: int) -> None:
    """gcc takes three steps for what `&` and `^` say, which clang sees through."""
    own = {"float": "int", "double": "long"}.get(element, "signed char")
    kinds = [f"{e} __attribute__((vector_size(32)))" for e in (element, own)]
    names = "\n".join(f"typedef {k} {n};" for k, n in zip(kinds, ("kind", "bits"), strict=True))
    known = c_choices.choose("known", "kind", "bits", "bits", "m", count)
    mask = ", ".join(str(-(n % 2)) for n in range(count))
    text = f"{names}\n{known}\nkind odd(kind a, kind b) {{ return known((bits){{{mask}}}, a, b); }}"
    moves = re.findall(r"\t(v\w+)\t.*%ymm", _by_gcc(text))
    assert [m for m in moves if "blend" in m or "shuf" in m]
    assert not [m for m in moves if "and" in m or "or" in m]


@pytest.mark.parametrize("command", ["gcc", "clang"])
@pytest.mark.parametrize(("kind", "element"), [("f32x8", "float"), ("f64x4", "double")])
def test_a_choice_of_a_number_by_lanes_that_are_known_is_one_move(
    kind: str, element: str, command: str
) -> None:
    """Of what chooses between other vectors, compilers make up to five steps."""
    bits, own = kind.replace("f", "i"), {"float": "int", "double": "long"}[element]
    pairs = [(element, kind), (own, bits)]
    names = "\n".join(f"typedef {e} {n} __attribute__((vector_size(32)));" for e, n in pairs)
    count = int(kind.partition("x")[2])
    mask = ", ".join(str(-(n > 0)) for n in range(count))
    number = c_choices.choose_number("one", "known", kind)
    both = f"{c_choices.choose('known', kind, bits, bits, 'm', count)}\n{number}"
    made = f"one((({bits}){{{mask}}}), (*a - ({kind}){{0}}), (1 - ({kind}){{0}}), {2**count - 2})"
    text = f"{names}\n{both}\nvoid f({kind} *b, {element} *a) {{ *b *= {made}; }}"
    steps = re.findall(r"\t(v(?!mov|zero|mul)\w+)\t", _made(command, text))
    assert len([step for step in steps if "blend" in step]) == 1, steps
    assert not [step for step in steps if not re.match("vbroadcast|vblend", step)], steps


@pytest.mark.parametrize(("element", "own"), [("float", "int"), ("double", "long")])
@pytest.mark.parametrize("either", [True, False])
def test_clang_chooses_by_lanes_of_whole_registers_in_one_step(
    element: str, own: str, either: bool
) -> None:
    """Not three; and of something and 0 it expands no lanes."""
    count = 16 if element == "float" else 8
    kind, bits = f"f{512 // count}x{count}", f"i{512 // count}x{count}"
    pairs = zip((element, own), (kind, bits), strict=True)
    names = "\n".join(f"typedef {e} {n} __attribute__((vector_size(64)));" for e, n in pairs)
    known = c_choices.blend("known", kind, bits, bits, "m", True, either, False)
    mask, other = (
        ", ".join(str(-(n < 3)) for n in range(count)),
        "b" if either else f"({kind}){{0}}",
    )
    call = f"{kind} few({kind} a, {kind} b) {{ return known(({bits}){{{mask}}}, a, {other}); }}"
    made = _made("clang", f"{names}\n{known}\n{call}", "skylake-avx512")
    (step,) = re.findall(r"\t(v(?!mov)\w+)\t.*%[xyz]mm", made)
    assert re.match("vp?(blend|perm|shuf|insert)" if either else "vp?and", step), step


def test_gcc_makes_an_op_under_a_mask_that_it_knows() -> None:
    """Bits of every other lane are shifted, not those of all lanes, of which half are left out."""
    names = "typedef int i32x16 __attribute__((vector_size(64)));"
    known = c_choices.blend("known", "i32x16", "i32x16", "i32x16", "m", True, True, False)
    mask = ", ".join(str(-(n % 2)) for n in range(16))
    call = f"i32x16 few(i32x16 a) {{ return known((i32x16){{{mask}}}, a >> 4, a & 15); }}"
    made = _made("gcc", f"{names}\n{known}\n{call}", "skylake-avx512")
    steps = re.findall(r"\t(v\w+)\t.*%zmm.*", made)
    assert re.search(r"\tvpsrad\t.*{%k\d}", made), made
    assert not [step for step in steps if re.match("vpternlog|vpblend", step)], made


def test_clang_expands_no_lanes_of_memory_under_a_mask_that_it_knows() -> None:
    x = graphs.memory(64, 10, device="CPU")
    k = stages.kernel_of(x.sum(0))
    opts = [parse("pad i0 16"), parse("lanes i0 16")]
    text = translation_unit((compile(k, Target(Language.C, 64, 32, cores=2), opts),))
    made = _made("clang", text, "skylake-avx512")
    assert "vandps" in made
    assert "expand" not in made


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_a_choice_of_floats_is_a_move_of_floats(dtype: DType) -> None:
    """gcc moves bytes by a mask of integers; a choice of 0 is an `and`."""
    x, y, z = (graphs.memory(256, dtype=dtype, device="CPU") for _ in range(3))
    for other, moves in ((z, ["vblendvps" if dtype is float32 else "vblendvpd"]), (0, [])):
        k = stages.kernel_of((x < y).where(x, other))
        opts = [parse(f"lanes i0 {32 // dtype.itemsize}")]
        made = compile(k, Target(Language.C, 32, 16, cores=2), opts)
        assert re.findall(r"\t(v\w*blend\w*)\t", _by_gcc(made.text)) == moves


@pytest.mark.parametrize("command", ["gcc", "clang"])
def test_a_truth_as_a_float_is_one_step_of_its_mask(command: str) -> None:
    """Not three: a mask, less 0, is a number of integers before it is one of floats."""
    x, y = (graphs.memory(256, device="CPU") for _ in range(2))
    k = stages.kernel_of((x < y).int().float())
    for processor, size in ("haswell", 32), ("skylake-avx512", 64):
        opts = [parse(f"lanes i0 {size // 4}")]
        text = translation_unit((compile(k, Target(Language.C, size, 16, cores=2), opts),))
        made = _made(command, text, processor)
        assert not re.search(r"\tv(?:cvtdq2ps|psubd|psrld|pabsd)\t", made), processor


@pytest.mark.parametrize("command", ["gcc", "clang"])
def test_bools_of_bytes_are_not_widened(command: str) -> None:
    """With SSE2, gcc would take them apart one by one."""
    x, y = (graphs.memory(256, dtype=by_name(name), device="CPU") for name in ("bool", "uint8"))
    k = stages.kernel_of(x | (y < 7))
    for processor, size in ("haswell", 32), ("x86-64", 16):
        made = compile(k, Target(Language.C, size, 16, cores=2), None)
        text = _made(command, translation_unit((made,)), processor)
        assert not re.search(r"\tv?(?:pmovzx|punpck)\w+\t", text), processor


def test_a_range_that_is_required_of_a_number_is_one_comparison() -> None:
    """Of two, joined, clang sets a byte each."""
    classes = graphs.memory(256, dtype=by_name("int64"), device="CPU")
    k = stages.kernel_of(classes.one_hot(8))
    text = translation_unit((compile(k, Target(Language.C, 32, 16, cores=2), None),))
    assert not re.search(r"\tset\w+\t", _made("clang", text))


@pytest.mark.parametrize("command", ["gcc", "clang"])
def test_long_integers_become_doubles_lane_by_lane_at_once(command: str) -> None:
    x = graphs.memory(256, dtype=by_name("int64"), device="CPU")
    k = stages.kernel_of(x.cast("float64"))
    made = compile(k, Target(Language.C, 32, 16, cores=2), [parse("lanes i0 4")])
    assert "vcvtsi2sd" not in _made(command, translation_unit((made,)))


@pytest.mark.parametrize("command", ["gcc", "clang"])
def test_most_long_integers_become_floats_by_digits_of_doubles(command: str) -> None:
    x = graphs.memory(256, dtype=by_name("int64"), device="CPU")
    k = stages.kernel_of(x.float())
    made = compile(k, Target(Language.C, 32, 16, cores=2), [parse("lanes i0 4")])
    assert "vcvtpd2ps" in _made(command, translation_unit((made,)))


def test_clang_stores_a_vector_whole_that_was_loaded_number_by_number() -> None:
    x = graphs.memory(64, 64, device="CPU")
    k = stages.kernel_of(x.transpose(0, 1).contiguous())
    made = compile(k, Target(Language.C, 32, 16, cores=2), [parse("lanes i1 8")])
    text = _made("clang", translation_unit((made,)))
    assert re.search(r"\tvmovup[sd]\t%ymm\d+, \S*\(%r", text)
    assert not re.search(r"\tvmovup[sd]\t%xmm\d+, \S*\(%r", text)


@pytest.mark.parametrize("command", ["gcc", "clang"])
@pytest.mark.parametrize(("processor", "size"), [("haswell", 32), ("skylake-avx512", 64)])
def test_long_integers_are_divided_lane_by_lane_at_once(
    command: str, processor: str, size: int
) -> None:
    """Compilers take each number out of a vector for a product of its own."""
    x = graphs.memory(256, dtype=int64, device="CPU")
    k = stages.kernel_of(x // 10 + x % 7)
    opts = [parse(f"lanes i0 {size // 8}")]
    made = compile(k, Target(Language.C, size, size // 2, cores=2), opts)
    assert not re.search(r"\t(i?mul|mulx|vpextr|vpinsr)q\t", _made(command, made.text, processor))


@pytest.mark.parametrize("command", ["gcc", "clang"])
def test_the_end_of_a_row_of_every_second_number_asks_for_nothing(command: str) -> None:
    """What it has is picked out of whole vectors that lie in memory, wherever the row does."""
    pooled = graphs.memory(64, 10, 24, device="CPU").max_pool2d(2)
    k = stages.kernel_of(pooled)
    made = compile(k, Target(Language.C, 32, 16, cores=2), None)
    assert "_by2" not in made.text
    assert len(re.findall(r"\tj[a-z]+\t", _made(command, made.text))) <= 4  # loops over rows


def test_gcc_puts_no_mask_of_bytes_that_it_knows_into_memory() -> None:
    """One of 64 lanes of int32, which no register has, it stored lane by lane for each row."""
    x = graphs.memory(64, 100, dtype=by_name("uint8"), device="CPU")
    for row in (x.max(1), x.min(1)):
        k = stages.kernel_of(row)
        text = translation_unit((compile(k, Target(Language.C, 64, 32, cores=2), None),))
        assert _by_gcc(text, "skylake-avx512").count("\tmovl\t") < 16


def test_repeated_elements_wait_for_no_memory() -> None:
    """gcc puts a list of them into memory by halves, and reads them at once."""
    x = graphs.memory(256, device="CPU").repeat_interleave(4)
    k = stages.kernel_of(x + 1)
    made = compile(k, Target(Language.C, 32, 16, cores=2), [parse("lanes i0 8")])
    assert "(%rsp)" not in _by_gcc(made.text)


NARROWED = [(8, "uint8"), (8, "int16"), (8, "int32"), (4, "int16"), (4, "uint8")]


@pytest.mark.parametrize("processor", ["haswell", "skylake-avx512"])
@pytest.mark.parametrize(("wide", "narrow"), NARROWED)
def test_low_bytes_of_lanes_move_together_in_few_steps(
    wide: int, narrow: str, processor: str
) -> None:
    """gcc would make five or six without AVX-512: a mask of what goes, and packs of halves."""
    x = graphs.memory(256, dtype=by_name(f"int{8 * wide}"), device="CPU")
    k = stages.kernel_of(x.cast(narrow))
    size = 32 if processor == "haswell" else 64
    opts = [parse(f"lanes i0 {size // wide}")]
    made = compile(k, Target(Language.C, size, size // 2, cores=2), opts)
    text = _by_gcc(made.text, processor)
    assert len(re.findall(MOVES, text)) + text.count("\tvpand") <= 3


def test_halves_are_widened_rounded_and_stored_without_a_step_too_many() -> None:
    """gcc would widen 16 of them by halves, and clear bits that are shifted out after."""
    x, y = (graphs.memory(256, dtype=bfloat16, device="CPU") for _ in range(2))
    k = stages.kernel_of(x + y)
    for processor, size, moves in (("haswell", 32, 2), ("skylake-avx512", 64, 0)):
        made = compile(
            k, Target(Language.C, size, size // 2, cores=2), [parse(f"lanes i0 {size // 4}")]
        )
        text = _by_gcc(made.text, processor)
        assert len(re.findall(r"\tvpmovzxwd\t", text)) == 2
        assert len(re.findall(MOVES, text)) == moves
        assert len(re.findall(r"\tvpand\w*\t", text)) <= 2  # the last bit, and those of a NaN


def test_what_is_stored_as_float16_is_rounded_once() -> None:
    """Also without an instruction: then by a few ops for all lanes, not by branches for each."""
    k = stages.kernel_of(graphs.memory(256, device="CPU").half())
    for processor, size, moves in (("haswell", 32, r"\tvcvtp[hs]2p[hs]\t"), ("x86-64", 16, "ssdw")):
        opts = [parse(f"lanes i0 {size // 4}")]
        made = compile(k, Target(Language.C, size, 16, cores=2), opts)
        text = _by_gcc(made.text, processor)
        assert len(re.findall(moves, text)) == 1, processor


@pytest.mark.parametrize("command", ["gcc", "clang"])
def test_places_that_lanes_look_up_are_no_vectors_of_long(command: str) -> None:
    """clang would compute all of them as such, and take each out again: 1.6 times as slow."""
    x = graphs.memory(8, 4, 16, 56, device="CPU")
    kernels = stages.kernels(x.interpolate((16, 112)))
    target = Target(Language.C, 32, 16, cores=2)
    texts = [translation_unit((compile(k, target, None),)) for k in kernels]
    (looked,) = [text for text in texts if "look_lane(v" in text]
    assert "vpextrq" not in _made(command, looked)


@pytest.mark.parametrize("command", ["gcc", "clang"])
def test_four_halves_are_converted_by_one_instruction(command: str) -> None:
    """As many as there are numbers of 8 bytes with AVX2: each by itself took five times as long."""
    x, y = (graphs.memory(64, dtype=kind, device="CPU") for kind in (float16, float64))
    made = compile(stages.kernel_of((x * y).half()), Target(Language.C, 32, 16, cores=2), None)
    text = _made(command, translation_unit((made,)))
    assert text.count("vcvtph2ps") == text.count("vcvtps2ph") < 4  # clang writes steps out


MOVES = (
    r"\tv(?:perm\w+|shuf\w+|p\w*blend\w*|p?unpck\w+|pack\w+|ppack\w+|pshuf\w+|[ei]\w+128"
    r"|inserti64x4)\t"
)


def _by_gcc(text: str, processor: str = "haswell") -> str:
    return _made("gcc", text, processor)


def _made(command: str, text: str, processor: str = "haswell") -> str:
    """What a compiler makes of a text for a processor, with AVX2 if not said."""
    if not shutil.which(command) or platform.machine() != "x86_64":
        pytest.skip(f"no {command}, or not x86")
    flags = [f"-march={processor}" if flag == "-march=native" else flag for flag in FLAGS]
    line = [command, *flags, "-S", "-x", "c", "-", "-o", "-"]
    return subprocess.run(line, input=text, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("kind", ["i32x4", "u32x4", "i16x8", "u16x8"])
def test_gcc_takes_the_larger_of_integers_at_once(kind: str) -> None:
    sign, size = "unsigned " * (kind[0] == "u"), int(kind[1:3])
    word = "short" if size == 16 else "int"
    named = [(kind, sign + word), (f"i{kind[1:]}", word)]
    text = "".join(f"typedef {t} {n} __attribute__((vector_size(16)));\n" for n, t in {*named})
    text += c_choices.extreme("larger", Op.MAX, kind, f"i{kind[1:]}", False)
    text += f"\n{kind} of_both({kind} a, {kind} b) {{ return larger(a, b); }}"
    made = _by_gcc(text)
    assert f"vpmax{kind[0].replace('i', 's')}{'w' if size == 16 else 'd'}" in made
    assert "vpcmpgt" not in made


KNOWN = """
typedef float f32x8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int i32x8 __attribute__((vector_size(32), aligned(4), may_alias));
LOAD
STORE
void move(float *restrict out, const float *restrict in, int n, long size) {
  const i32x8 m = (n - (i32x8){0} <= 3) & ((i32x8){0, 1, 2, 3, 4, 5, 6, 7} <= 3);
  for (long i = 0; i < 128; ++i) store(out + 8 * i, load(in, 16 * i, size, m), m);
}"""


@pytest.mark.parametrize("command", ["gcc", "gcc-11", "clang"])
@pytest.mark.parametrize("processor", ["haswell", "skylake-avx512"])
def test_masks_of_which_a_part_is_known_compile(command: str, processor: str) -> None:
    if not shutil.which(command) or platform.machine() != "x86_64":
        pytest.skip(f"no {command}, or not x86")
    vector, taken = ("f32x8", "float", "i32x8"), "*(const f32x8 *)(p + at)"
    load = c_masked.masked_load("load", *vector, "i32x8", "m", 4, 8, 1, taken)
    text = KNOWN.replace("LOAD", load).replace(
        "STORE", c_masked.masked_store("store", *vector, 4, 8)
    )
    flags = [f"-march={processor}" if flag == "-march=native" else flag for flag in FLAGS]
    line = [command, *flags, "-S", "-x", "c", "-", "-o", os.devnull]
    done = subprocess.run(line, input=text, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


@pytest.mark.parametrize("command", ["gcc", "gcc-11", "clang"])
@pytest.mark.parametrize(
    ("element", "word", "mark"), [("float", "int", "ps"), ("double", "long", "pd")]
)
def test_avx_moves_lanes_under_a_mask_at_once(
    command: str, element: str, word: str, mark: str
) -> None:
    size = 4 if mark == "ps" else 8
    lanes = 32 // size
    kind, bits = f"{element}x{lanes}", f"{word}x{lanes}"
    types = [(kind, element, 32), (bits, word, 32), (f"i32x{lanes}", "int", 4 * lanes)]
    attributes = "__attribute__((vector_size({}), aligned(4), may_alias))"
    text = "\n".join(f"typedef {t} {name} {attributes.format(n)};" for name, t, n in types)
    own = "m" if size == 4 else f"__builtin_convertvector(m, {bits})"
    vector = kind, element, f"i32x{lanes}"
    text += c_masked.masked_load("load", *vector, bits, own, size, lanes, 1, f"*({kind} *)(p + at)")
    text += c_masked.masked_store("store", *vector, size, lanes)
    text += f"""
void move({element} *out, const {element} *in, long at, i32x{lanes} m) {{
  store(out, load(in, at, 100, m), m);
}}"""
    moved = _made(command, text)
    assert re.search(rf"vp?maskmov({mark}|[dq])", moved)
    assert not re.search(r"vp?(extr|insr|insertps|movhp)", moved)  # one by one


def test_few_bytes_are_widened_and_chosen_at_once(device: str) -> None:
    """gcc 11 and 12 fail where they make that one instruction of what lies in memory."""
    bits = Tensor(np.arange(-8, 8).reshape(2, 8))
    chosen, wanted = bits > 0, np.where(np.arange(-8, 8) > 0, np.arange(-8, 8), 7).reshape(2, 8)
    pairs = [("int8", "int64"), ("uint8", "int16"), ("int16", "int64"), ("int8", "int32")]
    made = [chosen.where(bits.cast(a).realize().cast(b), 7) for a, b in pairs]
    Tensor.realize(*made)
    for result in made:
        assert result.tolist() == wanted.tolist()
