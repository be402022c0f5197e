"""The CPU machine: its memory, its compiler, and what the disk remembers."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import tinyml
from tinyml import config, dtype, trace
from tinyml.cache import DiskCache
from tinyml.errors import CompileError, DeviceError, OutOfMemoryError
from tinyml.program import Language, Program
from tinyml.runtime import compiler as compilers
from tinyml.runtime import memory as memory_module
from tinyml.runtime.cpu import CpuMachine, thread_count, vectors
from tinyml.runtime.machine import Buffer, Machine
from tinyml.runtime.memory import HostMemory, NumpyMachine, size_class
from tinyml.runtime.translation_units import share, work

PRELUDE = "typedef float f32;\nstatic inline f32 twice(f32 x) { return x + x; }"


def program(number: int, padding: int = 0, body: str = "") -> Program:
    """out[b] = 2 * in[b] + number."""
    body = body or f"out[b] = twice(in[b]) + {number};"
    source = f"""// {"-" * padding}
void twice_add_{number}(void *const *buffers, long start, long end) {{
    f32 *out = buffers[0]; const f32 *in = buffers[1];
    for (long b = start; b < end; b++) {body}
}}"""
    return Program(f"twice_add_{number}", Language.C, (PRELUDE,), source, slots=2, grid=8)


def result(machine: Machine, executable) -> list[float]:
    out = Buffer(machine, 8, dtype.float32)
    given = Buffer(machine, 8, dtype.float32).write(np.arange(8, dtype=np.float32))
    executable.launch([out.memory, given.memory])
    machine.synchronize()
    return out.read().tolist()


def expected(number: int) -> list[float]:
    return [2.0 * i + number for i in range(8)]


@pytest.fixture
def cpu(tmp_path):
    return CpuMachine(DiskCache(tmp_path))


@pytest.fixture
def compiled():
    with trace.listen(trace.Compiled) as events:
        yield events


def test_programs_loaded_together_compute(cpu, compiled):
    executables = cpu.load([program(i) for i in range(3)])
    assert [result(cpu, e) for e in executables] == [expected(i) for i in range(3)]
    (event,) = compiled
    assert event.device == "CPU"
    assert not event.cached
    assert event.names == ("twice_add_0", "twice_add_1", "twice_add_2")
    assert "-march=native" in event.command


CLANG = compilers.CLANG + compilers.UNMOVED


@pytest.mark.skipif(sys.platform != "linux", reason="linkers of other systems are told nothing")
@pytest.mark.parametrize("name", ["gcc", "clang"])
def test_constants_lie_beside_the_code(tmp_path: Path, name: str) -> None:
    """Under a mask of no lanes one is read slowly from a page that none else has read."""
    if not shutil.which(name):
        pytest.skip(f"no {name}")
    text = "const double numbers[8] = {1.5, 2.5}; double one(long i) { return numbers[i]; }"
    cache = DiskCache(tmp_path)
    made = compilers.load(compilers.find(name, cache, text), cache, text).binary
    at = [ctypes.addressof(ctypes.c_char.in_dll(made, part)) for part in ("numbers", "one")]
    held = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    assert any(all(int(a, 16) <= n < int(b, 16) for n in at) for a, b in held)


@pytest.mark.skipif(not shutil.which("ld.gold"), reason="no gold, a linker that knows less")
def test_a_linker_is_told_nothing_that_it_does_not_know(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    found = compilers.find("gcc -fuse-ld=gold", cache, text := "int one(void) { return 1; }")
    assert not {*found.libraries} & {*compilers.BESIDE}
    assert compilers.load(found, cache, text).binary.one() == 1


@pytest.mark.parametrize("name", ["gcc", "gcc -mno-avx512f", "clang", "clang -mno-avx512f"])
def test_a_compiler_is_told_what_it_needs_and_no_other(name, tmp_path):
    if shutil.which(name.split()[0]) is None:
        pytest.skip(f"no {name} here")
    found = compilers.find(name, DiskCache(tmp_path), "int one(void) { return 1; }")
    gcc = compilers.GCC if found.defines("__AVX512F__") else compilers.GCC + compilers.FEW
    own = CLANG if found.defines("__clang__") else gcc
    x86 = found.defines("__x86_64__")
    assert found.flags[len(compilers.FLAGS) :] == (own if x86 else ())


def test_a_clang_that_does_not_know_an_option_of_llvm_is_not_told(tmp_path):
    if shutil.which("clang") is None:
        pytest.skip("no clang here")
    own = tmp_path / "clang"
    own.write_text('#!/bin/sh\ncase "$*" in *-mllvm*) exit 1; esac\nexec clang "$@"\n')
    own.chmod(0o755)
    found = compilers.find(str(own), DiskCache(tmp_path / "cache"), EMPTY)
    x86 = found.defines("__x86_64__")
    assert found.flags[len(compilers.FLAGS) :] == (compilers.CLANG if x86 else ())


def test_much_source_is_compiled_in_parallel(cpu, compiled, monkeypatch):
    together, build = threading.Barrier(2), compilers.build

    def noted(*args):
        together.wait(timeout=600)
        return build(*args)

    monkeypatch.setattr(cpu._functions, "processes", 2)
    monkeypatch.setattr(compilers, "build", noted)
    executables = cpu.load([program(i, padding=9000) for i in range(2)])
    assert [result(cpu, e) for e in executables] == [expected(i) for i in range(2)]
    assert [len(event.names) for event in compiled] == [1, 1]


def test_compilers_start_before_the_last_program_is_made(cpu, monkeypatch):
    started, build = threading.Event(), compilers.build

    def noted(*args):
        started.set()
        return build(*args)

    def programs():
        yield program(0, padding=9000)
        assert started.wait(timeout=600)
        yield program(1)

    monkeypatch.setattr(compilers, "build", noted)
    assert [result(cpu, e) for e in cpu.load(programs())] == [expected(0), expected(1)]


def test_a_program_that_cannot_be_made_leaves_the_machine_usable(cpu):
    def programs():
        yield program(0, padding=5000)
        raise ValueError("no second one")

    with pytest.raises(ValueError, match="no second one"):
        cpu.load(programs())
    (executable,) = cpu.load([program(0, padding=5000)])
    assert result(cpu, executable) == expected(0)


def test_a_unit_is_a_share_without_a_name_twice():
    programs = {program(i): size for i, size in enumerate([9000, 100, 50000, 40000, 200])}

    def shared(most: float) -> list[int]:
        return sorted(programs[p] for p in share(programs, most))

    assert shared(59200) == [200, 9000, 50000]
    assert shared(59100) == [100, 9000, 50000]
    assert shared(10) == [50000]  # one in any case
    assert shared(99000) == [100, 200, 9000, 40000, 50000]  # the last are worth no start
    assert share({program(1): 9000, program(1, padding=5): 8000}, 20000) == (program(1),)


def test_the_work_of_a_program_counts_its_loops_and_the_functions_that_it_calls():
    plain = program(0)
    assert work(dataclasses.replace(plain, source=plain.source + "\n")) == work(plain) + 1
    for more in ("out[0] = twice(out[0]);", "for (;;) break;"):
        assert work(program(0, body=program(0).source + more)) > work(plain) + 2 * len(more)


def test_every_program_is_compiled_once_in_whatever_units(tmp_path, compiled):
    programs = [program(i, padding=700 * (i % 5) ** 2) for i in range(20)]
    found = CpuMachine(DiskCache(tmp_path)).load(iter(programs))
    assert [e.program for e in found] == programs
    names = [name for e in compiled for name in e.names if name.startswith("twice")]
    assert sorted(names) == sorted(p.name for p in programs)


def test_equal_programs_are_loaded_once(cpu, compiled):
    first, second = cpu.load([program(1), program(1)])
    (third,) = cpu.load([program(1)])
    assert first is second is third
    assert len(compiled) == 1


def test_programs_of_one_name_do_not_meet(cpu):
    one, other = program(1), program(1, body="out[b] = -in[b];")
    first, second = cpu.load([one, other])
    assert result(cpu, first) == expected(1)
    assert result(cpu, second) == [-float(i) for i in range(8)]


def test_the_disk_remembers_programs_in_any_company(tmp_path, compiled):
    CpuMachine(DiskCache(tmp_path)).load([program(i) for i in range(4)])
    compiled.clear()
    later = CpuMachine(DiskCache(tmp_path))
    two, five, three = later.load([program(2), program(5), program(3)])
    assert [result(later, e) for e in (two, five, three)] == [expected(i) for i in (2, 5, 3)]
    assert {(e.names, e.cached) for e in compiled if e.cached} == {
        (("twice_add_2",), True),
        (("twice_add_3",), True),
    }
    assert [e.names for e in compiled if not e.cached] == [("twice_add_5",)]


SECOND = """
import sys
from pathlib import Path
from tinyml import trace
from test_cpu import CpuMachine, DiskCache, expected, program, result
with trace.listen(trace.Compiled) as events:
    cpu = CpuMachine(DiskCache(Path(sys.argv[1])))
    executables = cpu.load([program(i) for i in range(3)])
assert [result(cpu, e) for e in executables] == [expected(i) for i in range(3)]
print(*(e.cached for e in events))
"""


def start(folder: Path) -> subprocess.Popen[str]:
    path = os.pathsep.join([os.path.dirname(__file__), os.getcwd(), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", SECOND, str(folder)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_processes_share_the_disk_cache(tmp_path):
    for process in [start(tmp_path), start(tmp_path)]:  # at once, both on an empty folder
        _, complaint = process.communicate()
        assert process.returncode == 0, complaint
    output, complaint = start(tmp_path).communicate()
    assert (output, complaint) == ("True True True\n", "")


def truncate(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip(content: bytes) -> bytes:
    return content[:5000] + bytes([content[5000] ^ 255]) + content[5001:]


@pytest.mark.parametrize("damage", [truncate, flip, lambda c: b""], ids=["cut", "flipped", "empty"])
def test_a_damaged_binary_is_compiled_again(tmp_path, compiled, damage):
    CpuMachine(DiskCache(tmp_path)).load([program(7)])
    for place in tmp_path.rglob("*.so"):  # a new file: the old one is mapped into this process
        content = damage(place.read_bytes())
        place.unlink()
        place.write_bytes(content)
    compiled.clear()
    again = CpuMachine(DiskCache(tmp_path))
    assert result(again, again.load([program(7)])[0]) == expected(7)
    assert [e.cached for e in compiled] == [False]


def test_a_cache_that_cannot_be_written_does_not_stop_a_run(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        cpu = CpuMachine(DiskCache(tmp_path / "file" / "cache"))
    assert result(cpu, cpu.load([program(1)])[0]) == expected(1)


def test_a_refused_program_is_named_with_the_reason_and_a_file(cpu):
    wrong = program(2, body="out[b] = no_such_thing;")
    with pytest.raises(CompileError, match="no_such_thing") as refused:
        cpu.load([program(1), wrong, program(3)])
    message = str(refused.value)
    assert "program twice_add_2" in message
    assert "twice_add_1" not in message
    kept = [Path(word.split(":")[0]) for word in message.split() if "tinyml-refused-" in word]
    assert wrong.source in kept[0].read_text()
    kept[0].unlink()
    assert result(cpu, cpu.load([program(1)])[0]) == expected(1)


def test_a_program_must_define_its_function(cpu):
    nameless = Program("absent", Language.C, (), "int present;", slots=0)
    with pytest.raises(CompileError, match="does not define absent"):
        cpu.load([nameless])


EMPTY = "int works(void) { return 0; }"


def test_a_missing_compiler_says_what_to_install(tmp_path, monkeypatch):
    with pytest.raises(DeviceError, match="CC names, no-such-cc"):
        compilers.find("no-such-cc", DiskCache(tmp_path), EMPTY)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match="apt install gcc"):
        compilers.find("", DiskCache(tmp_path), EMPTY)


def test_what_a_process_does_while_a_compiler_works(tmp_path):
    """It is done once, and not where nothing has to be compiled."""
    done: list[str] = []
    for folder in ("one", "one", "other"):
        CpuMachine(DiskCache(tmp_path / folder), meanwhile=lambda: done.append("loaded"))
    assert len(done) == 2
    assert compilers.run(["echo", "said"], lambda: done.append("waited")) == "said\n"
    assert done[2:] == ["waited"]


def test_a_compiler_is_asked_once_until_it_is_another_file(tmp_path, monkeypatch):
    if not Path("/proc/cpuinfo").exists():
        pytest.skip("the system does not say what its processor knows")
    own, asked = tmp_path / "cc", tmp_path / "asked"
    own.write_text(f'#!/bin/sh\necho "$*" >> {asked}\nexec {shutil.which("cc")} "$@"\n')
    own.chmod(0o755)
    found = compilers.find(str(own), DiskCache(tmp_path / "cache"), EMPTY)
    once = asked.read_text()
    assert "--version" in once
    assert compilers.find(str(own), DiskCache(tmp_path / "cache"), EMPTY) == found
    assert asked.read_text() == once
    own.write_text(own.read_text() + "# newer\n")
    compilers.find(str(own), DiskCache(tmp_path / "cache"), EMPTY)
    assert asked.read_text().count("--version") == 2 * once.count("--version")


def test_a_compiler_that_does_not_work_is_passed_over(tmp_path, monkeypatch):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho broken; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    assert compilers.find("", DiskCache(tmp_path / "cache"), EMPTY).command != ("cc",)
    with pytest.raises(DeviceError, match="broken"):
        compilers.find("cc", DiskCache(tmp_path / "cache"), EMPTY)


def test_the_binary_depends_on_flags_and_processor(cpu):
    same = dataclasses.replace(cpu.compiler)
    for change in ({"flags": ("-O3",)}, {"version": "13"}, {"macros": "#define __AVX512F__ 1"}):
        other = dataclasses.replace(cpu.compiler, **change)
        assert other.fingerprint != same.fingerprint == cpu.compiler.fingerprint


def test_vectors_and_threads_of_the_host():
    assert vectors()[0] in (8, 16, 32, 64)
    assert thread_count() >= 1
    with config.override(threads=5):
        assert thread_count() == 5


@pytest.mark.parametrize(
    ("macros", "found"),
    [
        (("__SSE2__", "__AVX__", "__AVX2__", "__AVX512F__"), (64, 32)),
        (("__SSE2__", "__AVX__", "__AVX2__"), (32, 16)),
        (("__SSE2__",), (16, 16)),
        (("__ARM_NEON", "__aarch64__"), (16, 32)),
        (("__ARM_NEON",), (16, 16)),  # of ARM with 32 bits
        ((), (8, 16)),
    ],
)
def test_bytes_and_number_of_vector_registers_follow_from_what_a_compiler_predefines(
    cpu, macros, found
):
    text = "\n".join(f"#define {macro} 1" for macro in macros)
    assert vectors(dataclasses.replace(cpu.compiler, macros=text)) == found


@pytest.mark.parametrize("machine", ["cpu", "numpy"])
@pytest.mark.parametrize("size", [0, 1, 17, 100_000])
def test_memory_holds_what_was_copied_in(cpu, machine, size):
    chosen: Machine = cpu if machine == "cpu" else NumpyMachine()
    data = np.arange(size, dtype=np.int16)
    buffer = Buffer(chosen, size, dtype.int16).write(data)
    assert (buffer.read() == data).all()
    assert not buffer.clear().read().any()
    del buffer
    assert chosen.memory_stats().in_use == 0


def test_numpy_runs_no_programs():
    with pytest.raises(DeviceError, match="reference interpreter"):
        NumpyMachine().load([program(1)])


@pytest.mark.parametrize("nbytes", [0, 1, 64, 65, 5000, 1 << 20, (4 << 20) + 1])
def test_memory_is_aligned_and_reused(nbytes):
    memory = HostMemory("CPU")
    address = memory.allocate(nbytes)
    assert address % 64 == 0
    assert nbytes < (2 << 20) or address % (2 << 20) == 0
    memory.free(address, nbytes)
    assert memory.allocate(nbytes) == address


def test_memory_is_given_back_after_the_names_of_its_module_are_gone(monkeypatch):
    """As at exit, when a finalizer may come late."""
    memory = HostMemory("CPU")
    address = memory.allocate(12345)
    size_class.cache_clear()
    for name in ("size_class", "_LINE", "trace"):
        monkeypatch.setattr(memory_module, name, None)
    memory.free(address, 12345)
    assert memory.stats().in_use == 0


EXIT = """
import atexit, builtins, gc, sys, threading
from tinyml import Tensor, TinyJit
gc.disable()
class Circle: pass
@TinyJit
def step(x): return (x + 1).realize()
def held():
    circle = Circle()
    circle.own, circle.tensors = circle, [step(Tensor([1.0, 2.0])) for _ in range(4)]
    return circle
module, builtins.kept, sys.modules["kept"], Tensor._kept = held(), held(), held(), held()
thread = threading.Thread(target=lambda own: threading.Event().wait(), args=(held(),), daemon=True)
thread.start()
atexit.register(held)
"""


def test_whatever_is_held_at_exit_is_given_back_in_silence():
    environment = {
        **os.environ,
        "DEVICE": "CPU",
        "PYTHONPATH": str(Path(tinyml.__file__).parents[1]),
    }
    command = [sys.executable, "-c", EXIT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_size_classes_waste_at_most_an_eighth():
    for nbytes in (*range(1, 5000, 7), *(3**k for k in range(8, 30))):
        size = size_class(nbytes)
        assert size % 64 == 0
        assert nbytes <= size <= max(nbytes + 63, nbytes * 1.125 + 64)
        assert size_class(size) == size


def test_statistics_follow_what_is_held():
    memory = HostMemory("CPU", keep=1 << 20)
    addresses = [memory.allocate(512 << 10) for _ in range(3)]
    for address in addresses:
        memory.free(address, 512 << 10)
    stats = memory.stats()
    assert (stats.in_use, stats.cached, stats.peak) == (0, 1 << 20, 3 << 19)


def test_out_of_memory_empties_the_cache_first_and_then_says_what_is_held():
    machine = CpuMachine(memory_limit=1 << 20)
    kept = machine.allocate(256 << 10)
    machine.free(machine.allocate(512 << 10), 512 << 10)
    other = machine.allocate(640 << 10)  # fits only without the 512 KiB that are kept
    assert machine.memory_stats().cached == 0
    machine.free(other, 640 << 10)
    with pytest.raises(OutOfMemoryError, match=r"10,000,000 bytes: 262,144 of at most 1,048,576"):
        machine.allocate(10_000_000)
    machine.free(kept, 256 << 10)
    assert machine.allocate(1 << 20)


def test_more_than_any_machine_has_is_refused():
    with pytest.raises(OutOfMemoryError):
        CpuMachine().allocate(1 << 60)
    with pytest.raises(OutOfMemoryError):
        NumpyMachine().allocate(1 << 60)
