"""What test_cuda_fake.py runs, each in a process of its own: python scenarios.py NAME CACHE

The real CudaMachine on the real PyCUDA; only the driver and the compiler are not NVIDIA's.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import build_fake
import numpy as np
import numpy.typing as npt

from tinyml import Device, Tensor, TinyJit, config, device, dtype, trace
from tinyml.cache import DiskCache, key
from tinyml.codegen.target import Target
from tinyml.codegen.text.cuda_text import HOPPER
from tinyml.errors import (
    CompileError,
    DeviceError,
    DTypeError,
    KernelError,
    OutOfMemoryError,
)
from tinyml.faults import Fault
from tinyml.program import Box, Language, Program
from tinyml.runtime import cuda, cuda_ranges
from tinyml.runtime.compiler import build
from tinyml.runtime.cuda import CudaMachine
from tinyml.runtime.cuda_graph import GraphError
from tinyml.runtime.emu import compile as emu_compile
from tinyml.runtime.machine import Buffer

# Functions of the driver that fakecuda does not have are looked for when they are called: never.
sys.setdlopenflags(os.RTLD_LAZY)

CACHE = DiskCache(Path(sys.argv[2]))
CARD_BYTES = 256 << 20  # TOTAL_MEMORY of fakecuda.cpp
Array = npt.NDArray[Any]


class EmuBuilder:
    """Images for fakecuda: shared objects made by the emulator's compiler."""

    def __init__(self) -> None:
        self._compiler = emu_compile.find("", CACHE)
        self.command = "emulator"
        self.fingerprint = key("fakecuda", self._compiler.fingerprint)

    def render(self, programs: tuple[Program, ...]) -> str:
        return emu_compile.render(programs)

    def build(self, programs: tuple[Program, ...]) -> tuple[bytes, str]:
        made = build(self._compiler, CACHE, self.render(programs))
        return made.binary.read_bytes(), made.output


def machine(**more: Any) -> CudaMachine:
    return CudaMachine(CACHE, EmuBuilder(), **more)


def program(name: str, body: str, block: int = 256, grid: int = 4, **more: Any) -> Program:
    source = f"""extern "C" __global__ void
{name}(float* __restrict__ out, const float* __restrict__ in) {{
int i = blockIdx.x * {block} + threadIdx.x;
{body}
}}"""
    sizes = {"slots": 2, "grid": grid, "block": (block, 1, 1)}
    return Program(name, Language.CUDA, (), source, **sizes, **more)


ADD_ONE = program("add_one", "out[i] = in[i] + 1.0f;")
DOUBLE = program("twice", "out[i] = 2.0f * in[i];")
WILD = program("wild", "out[i + 1024] = in[i];")
X = np.arange(1024, dtype=np.float32)


def buffer(owner: CudaMachine, values: Array) -> Buffer:
    return Buffer(owner, values.size, dtype.float32).write(values)


def empty(owner: CudaMachine, size: int = 1024) -> Buffer:
    return Buffer(owner, size, dtype.float32)


def same(a: Array, b: Array) -> None:
    np.testing.assert_array_equal(a, b)


def raised(kind: type[Exception], work: Callable[[], object], *parts: str) -> None:
    message = None
    try:
        work()
    except kind as error:
        message = str(error)
    assert message is not None, f"no {kind.__name__}"
    for part in parts:
        assert part in message, f"{part!r} is not in {message!r}"


# ---------------------------------------------------------------- work


def launches() -> None:
    m = machine()
    assert m.properties.capability == (9, 0)
    assert m.properties.name == "fakecuda"
    assert m.properties.shared_per_block == 227 << 10
    add_one, twice = m.load([ADD_ONE, DOUBLE])
    x, y, z = buffer(m, X), empty(m), empty(m)
    add_one.launch([y.memory, x.memory])
    twice.launch([z.memory, y.memory])
    same(z.read(), 2 * (X + 1))
    m.synchronize()


def timing() -> None:
    m = machine()
    (add_one,) = m.load([ADD_ONE])
    x, y = buffer(m, X), empty(m)
    assert 0 < add_one.launch_timed([y.memory, x.memory]) < 1
    same(y.read(), X + 1)


def timing_of_boxes() -> None:
    """What a card is told of an array the first time is no time of the kernel."""
    m = machine()
    copy, known = copying(m), list[int]()
    x, y = buffer(m, X), empty(m, 512)
    start, end = m._timer

    class Noting:
        def record(self, stream: object) -> None:
            known.append(len(m.maps._known))
            start.record(stream)

        def time_till(self, other: object) -> float:
            return start.time_till(other)

    m._timer = Noting(), end
    assert copy.launch_timed([y.memory, x.memory]) > 0
    assert known == [len(m.maps._known)] == [1]
    same(y.read(), X[256:768])


def large_shared_memory() -> None:
    m = machine()
    body = """extern __shared__ __align__(16) unsigned char tinyml_shared[];
float* row = reinterpret_cast<float*>(tinyml_shared);
for (int k = threadIdx.x; k < 40000; k += 1024) row[k] = in[i];
__syncthreads();
out[i] = row[39936 + 63 - threadIdx.x % 64];"""
    (reverse,) = m.load([program("reverse", body, block=1024, grid=1, shared=160000)])
    x, y = buffer(m, X), empty(m)
    reverse.launch([y.memory, x.memory])
    same(y.read()[:64], X[:64][::-1])


def public_interface() -> None:
    """Without PyCUDA's undocumented method, launches go through the documented one."""
    m = machine()
    function = m.driver.module_from_buffer(m._images.units([ADD_ONE])[0][1].data)
    function = function.get_function("add_one")

    class Documented:
        prepare = function.prepare

    x, y = buffer(m, X), empty(m)
    launch = cuda._launcher(Documented(), ADD_ONE, m.stream)
    launch(np.array([y.memory, x.memory], np.uint64).tobytes())
    same(y.read(), X + 1)


# ---------------------------------------------------------------- memory


def allocation() -> None:
    m = machine()
    memory = m.allocate(1000)
    assert m.memory_stats().in_use == 1024
    m.free(memory, 1000)
    assert m.memory_stats().in_use == 0
    assert m.memory_stats().cached == m.memory_stats().peak == 1024
    assert m.allocate(999) == memory
    assert m.allocate(0) % 64 == 0


def out_of_memory() -> None:
    m = machine()
    kept = m.allocate(100 << 20)
    m.free(m.allocate(100 << 20), 100 << 20)
    assert m.memory_stats().cached >= 100 << 20
    large = m.allocate(130 << 20)  # fits once the cache is emptied
    assert m.memory_stats().cached == 0
    asked = f"{50 << 20:,} bytes"
    raised(OutOfMemoryError, lambda: m.allocate(50 << 20), asked, f"the card's {CARD_BYTES:,}")
    m.free(large, 130 << 20)
    m.free(kept, 100 << 20)
    (add_one,) = m.load([ADD_ONE])
    x, y = buffer(m, X), empty(m)
    add_one.launch([y.memory, x.memory])
    same(y.read(), X + 1)


def room_for_kernels() -> None:
    """A driver that has no memory to load or to launch them gets what is kept for reuse."""
    m = machine()
    x, y = buffer(m, X), empty(m)
    driver = m.driver

    def fill() -> None:
        m.free(m.allocate(100 << 20), 100 << 20)

    def greedy(work: Callable[..., Any]) -> Callable[..., Any]:
        def done(*arguments: Any) -> Any:
            if m.memory_stats().cached:
                raise driver.MemoryError("out of memory")
            return work(*arguments)

        return done

    fill()
    m.driver = SimpleNamespace(
        **{**vars(driver), "module_from_buffer": greedy(driver.module_from_buffer)}
    )
    (add_one,) = m.load([ADD_ONE])
    m.driver = driver
    add_one._launch = greedy(add_one._launch)
    plan = m.plan([(add_one, [y.memory, x.memory])])
    for launch in (partial(add_one.launch, [y.memory, x.memory]), plan.run):
        fill()
        m.clear(y.memory, y.nbytes)
        launch()
        same(y.read(), X + 1)
        assert m.memory_stats().cached == 0


def memory_limit() -> None:
    m = machine(memory_limit=1 << 20)
    kept = m.allocate(1 << 19)
    raised(OutOfMemoryError, lambda: m.allocate(1 << 20), "of at most 1,048,576")
    m.free(kept, 1 << 19)
    m.allocate(1 << 20)


def freed_memory_is_reused_in_order() -> None:
    m = machine()
    add_one, twice = m.load([ADD_ONE, DOUBLE])
    y = empty(m)
    x = buffer(m, X)
    first = x.memory
    add_one.launch([y.memory, x.memory])
    del x  # the launch has not run yet: fakecuda is lazy
    x = buffer(m, -X)
    assert x.memory == first
    same(y.read(), X + 1)
    twice.launch([y.memory, x.memory])
    same(y.read(), -2 * X)


# ---------------------------------------------------------------- copies


def staging() -> None:
    m = machine()
    random = np.random.default_rng(0)
    sizes = [1, 3, 1 << 20, 5, (5 << 20) + 7, 100, 1 << 21, 12 << 20]
    pairs = []
    for size in [*sizes, *range(1, 3000, 37)]:
        source = random.standard_normal(size, np.float32)
        pairs.append((buffer(m, source), source.copy()))
        source[:] = np.nan  # whoever reads it later than `write` reads this
    for held, values in pairs:
        same(held.read(), values)


def copies_do_not_wait_for_launches() -> None:
    m = machine()
    (add_one,) = m.load([ADD_ONE])
    x, y = buffer(m, X), empty(m)
    add_one.launch([y.memory, x.memory])
    x.write(-X)  # behind the launch
    add_one.launch([y.memory, x.memory])
    x.clear()  # so is this
    same(y.read(), 1 - X)
    same(x.read(), np.zeros_like(X))


# ---------------------------------------------------------------- faults


def faults() -> None:
    m = machine()
    wild, add_one = m.load([WILD, ADD_ONE])
    x, y = buffer(m, X), empty(m)
    add_one.launch([y.memory, x.memory])
    m.synchronize()
    wild.launch([y.memory, x.memory])
    said = "illegal memory access", "last wait: wild (sources in ", "DEVICE=EMU"
    raised(KernelError, m.synchronize, *said)
    assert Path(m._sources, "wild.cu").read_text() == WILD.text
    raised(KernelError, lambda: add_one.launch([y.memory, x.memory]), "wild")
    raised(KernelError, y.read, "copy from the card")
    raised(KernelError, lambda: m.allocate(1 << 20), "allocate memory")


def fault_while_timed() -> None:
    m = machine()
    (wild,) = m.load([WILD])
    x, y = buffer(m, X), empty(m)
    raised(KernelError, lambda: wild.launch_timed([y.memory, x.memory]), "run wild", "illegal")


def refused_launches() -> None:
    m = machine()
    large, add_one = m.load([program("large", "out[i] = in[i];", block=2048), ADD_ONE])
    x, y = buffer(m, X), empty(m)
    raised(KernelError, lambda: large.launch([y.memory, x.memory]), "could not launch large")
    add_one.launch([y.memory, x.memory])
    same(y.read(), X + 1)
    greedy = program("greedy", "out[i] = in[i];", shared=1 << 20)
    raised(DeviceError, lambda: m.load([greedy]), "could not load a kernel")
    raised(CompileError, lambda: m.load([program("bad", "undeclared;")]), "program bad")


FAULT = Fault(IndexError, "element {} is not to be read")


def picky() -> Program:
    """y[i] = x[i], but 0 is found fault with: its number is noted."""
    body = f"""float v = in[i];
if (v == 0 && atomicCAS((unsigned long long *)fault, 0ull, {FAULT.code}ull) == 0) fault[1] = i;
out[i] = v;"""
    plain = program("picky", body, faults=(FAULT,))
    return replace(plain, source=plain.source.replace("in) {", "in, long long *fault) {"))


def noted_faults() -> None:
    """A launch waits for them, a plan leaves that to the host; the context lives, and the next
    work is fine."""
    m = machine()
    check, add_one = m.load([picky(), ADD_ONE])
    x, good, y, z = buffer(m, X - 7), buffer(m, X + 1), empty(m), empty(m)
    raised(IndexError, lambda: check.launch([y.memory, x.memory]), "element 7 is not to be read")
    left = m.plan([(check, [y.memory, x.memory])])
    for wait in (m.synchronize, z.read, lambda: add_one.launch_timed([z.memory, good.memory])):
        left.run()
        add_one.launch([z.memory, good.memory])
        raised(IndexError, wait, "element 7 is not to be read")
        m.synchronize()
        same(z.read(), X + 2)
        same(y.read(), X - 7)
    raised(IndexError, lambda: check.launch_timed([y.memory, x.memory]), "element 7")
    plan = m.plan([(check, [y.memory, good.memory]), *[(add_one, [z.memory, y.memory])] * 2])
    for run in range(5):
        if run == 3:  # the graph takes the new memory, and the words where they are
            plan.rebind(0, 1, x.memory)
        plan.run()
        if run < 3:
            same(z.read(), X + 2)
        else:
            raised(IndexError, z.read, "element 7")
    assert plan._graph is not None


# ---------------------------------------------------------------- threads


def in_a_thread(work: Callable[[], None]) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def other_threads() -> None:
    m = machine()
    (add_one,) = m.load([ADD_ONE])
    held = [buffer(m, X), empty(m)]

    def work() -> None:
        x, y = held
        (twice,) = m.load([DOUBLE])
        add_one.launch([y.memory, x.memory])
        z = empty(m)
        twice.launch_timed([z.memory, y.memory])
        same(z.read(), 2 * (X + 1))
        plan = m.plan([(add_one, [x.memory, x.memory])] * 3)
        for _ in range(3):
            plan.run()
        m.synchronize()
        same(x.read(), X + 9)
        held.clear()

    in_a_thread(work)
    assert m.memory_stats().in_use == 0


def machine_of_another_thread() -> None:
    made: list[CudaMachine] = []
    in_a_thread(lambda: made.append(machine()))
    (m,) = made
    (add_one,) = m.load([ADD_ONE])
    x, y = buffer(m, X), empty(m)
    add_one.launch([y.memory, x.memory])
    same(y.read(), X + 1)


# ---------------------------------------------------------------- forks


def in_a_child(work: Callable[[], None]) -> None:
    """Of a fork. It ends as a program does, and must not have said anything."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)  # of who has threads
        child = os.fork()
    if not child:
        work()
        sys.exit()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


REFUSED = "does not survive a fork", "is the parent's", 'multiprocessing.get_context("spawn")'


def forked() -> None:
    """A child is refused whatever needs the card, and leaves the parent's things alone."""
    m = machine()
    add_one, _ = m.load([ADD_ONE, DOUBLE])
    x, y = buffer(m, X), empty(m)
    plan = m.plan([(add_one, [y.memory, x.memory])] * 3)
    plan.run()
    plan.run()
    m.free(m.allocate(1000), 1000)
    memories = [y.memory, x.memory]
    held = [x, y, plan]
    uses: list[Callable[[], object]] = [
        *(lambda: add_one.launch(memories), lambda: add_one.launch_timed(memories)),
        *(plan.run, x.read, lambda: x.write(X), m.synchronize, m.wait_for_all),
        *(lambda: m.allocate(1000), lambda: m.allocate(1 << 20), lambda: m.load([DOUBLE])),
        *(lambda: m.load([WILD]), machine),
    ]

    def work() -> None:
        for use in uses:
            raised(DeviceError, use, *REFUSED)
            in_a_thread(lambda use=use: raised(DeviceError, use, *REFUSED))
        uses.clear()
        held.clear()
        gc.collect()
        raised(DeviceError, lambda: m.allocate(X.nbytes), *REFUSED)

    in_a_child(lambda: (work(), in_a_child(lambda: None))[0])
    in_a_thread(lambda: in_a_child(work))
    in_a_child(lambda: None)  # and all is released at its end
    x.write(-X)
    plan.run()
    same(y.read(), 1 - X)


def forked_before() -> None:
    """Who opens the card after a fork may use it, in the child and in the parent."""

    def work() -> None:
        m = machine()
        (add_one,) = m.load([ADD_ONE])
        x, y = buffer(m, X), empty(m)
        add_one.launch([y.memory, x.memory])
        same(y.read(), X + 1)

    in_a_child(work)
    in_a_child(work)
    work()
    in_a_child(lambda: raised(DeviceError, work, *REFUSED))


def forked_tensors() -> None:
    """Other devices work in a child, and a tensor on the card says why it does not."""
    m = machine()
    device._opened["CUDA"] = device.OpenDevice("CUDA", m, Target(Language.CUDA, 4, cache=48 << 10))
    step = TinyJit(lambda x: (x + 1).realize())
    x = Tensor(X, device="CUDA").realize()
    for _ in range(3):
        y = step(x)

    def work() -> None:
        for use in (y.numpy, lambda: (x * 2).realize(), lambda: step(x), lambda: x.to("CPU").sum()):
            raised(DeviceError, lambda use=use: use().realize(), *REFUSED)
        raised(DeviceError, lambda: Tensor([1.0], device="CUDA").realize(), *REFUSED)
        assert not Device.available("CUDA")
        same((Tensor(X, device="CPU") + 1).numpy(), X + 1)

    in_a_child(work)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
        worker = multiprocessing.get_context("fork").Process(target=work)
        worker.start()
    worker.join()
    assert worker.exitcode == 0
    same(step(y).numpy(), X + 2)


# ---------------------------------------------------------------- plans


def _plan_results(m: CudaMachine, graph: bool) -> None:
    add_one, twice = m.load([ADD_ONE, DOUBLE])
    x, y, z, other = buffer(m, X), empty(m), empty(m), buffer(m, 100 * X)
    calls = [(add_one, [y, x]), (twice, [z, y]), (add_one, [z, z]), (add_one, [y, z])]
    plan = m.plan([(e, [b.memory for b in buffers]) for e, buffers in calls])
    for run in range(4):
        y.write(np.zeros_like(X))
        plan.run()
        same(y.read(), 2 * (X + 1) + 2)
        assert (plan._graph is not None) == (graph and run > 0)
    plan.rebind(0, 1, other.memory)
    plan.rebind(3, 0, x.memory)
    for _ in range(2):
        plan.run()
        same(x.read(), 2 * (100 * X + 1) + 2)
        same(y.read(), 100 * X + 1)
    assert (plan._graph is not None) == graph


def graphs() -> None:
    m = machine()
    _plan_results(m, graph=True)
    plan = m.plan([(m.load([ADD_ONE])[0], [empty(m).memory] * 2)] * 5)
    plan.rebind(0, 1, plan._calls[0][1][0])
    plan.run()
    plan.run()
    del plan  # while its launches are under way


def plans_without_graphs() -> None:
    _plan_results(machine(graphs=False), graph=False)


def copies_of_others_while_launches_are_captured() -> None:
    """Threads that bring data and ask for results wait: what they do is no part of the graph."""
    m = machine()
    (add_one,) = m.load([ADD_ONE])
    x, y, z, came = buffer(m, X), empty(m), empty(m), empty(m)
    plan = m.plan([(add_one, [y.memory, x.memory])] * 3)
    plan.run()
    assert plan._driver is not None
    begin, seen = plan._driver.begin, []

    def others() -> None:
        came.write(X * 5)
        z.clear()
        seen.append(came.read())

    thread = threading.Thread(target=others)

    def begin_beside_others(*arguments: object) -> None:
        begin(*arguments)
        thread.start()
        thread.join(0.2)

    plan._driver.begin = begin_beside_others
    plan.run()
    thread.join()
    assert plan._graph is not None
    same(seen[0], X * 5)
    came.write(X * 7)
    for _ in range(2):
        plan.run()
    same(came.read(), X * 7)
    same(z.read(), 0 * X)
    same(y.read(), X + 1)


def a_driver_that_refuses_graphs() -> None:
    m = machine()

    def refuse(*arguments: object) -> None:
        raise GraphError("no")

    assert m._graphs is not None
    m._graphs.instantiate = refuse
    _plan_results(m, graph=False)


def fault_in_a_graph() -> None:
    m = machine()
    (wild,) = m.load([WILD])
    x, y, far = buffer(m, X), empty(m), empty(m, 1 << 21)
    plan = m.plan([(wild, [far.memory, x.memory])] * 3)
    plan.run()
    plan.run()
    m.synchronize()
    plan.rebind(1, 0, y.memory)
    plan.run()
    raised(KernelError, m.synchronize, "illegal memory access", "last wait: wild")
    raised(KernelError, plan.run, "wild")


COPY_BOX = """extern "C" __global__ void
copy_box(float *out, const float *in, const tinyml_tensor_map *box0) {
extern __shared__ __align__(1024) unsigned char tile[];
__shared__ unsigned long long here;
int t = threadIdx.x;
if (t == 0) tinyml_mbarrier_init(&here, 1);
__syncthreads();
if (t == 0) {
  tinyml_fence_map(box0);
  tinyml_mbarrier_expect(&here, 2048);
  tinyml_copy_box(tile, box0, 0, 8, 0, &here);
}
tinyml_mbarrier_wait(&here, 0);
for (int i = t; i < 512; i += 128)  // floats, two pieces of two bytes each
  out[i] = *(float *)(tile + (i * 4 ^ (i / 32 & 7) << 4));
}"""


BOX = Box(1, 2, 0, (64, 32, 1), (128, 4096), (64, 16))


def copying(m: CudaMachine) -> cuda.CudaExecutable:
    more = {"slots": 2, "block": (128, 1, 1), "shared": 2048, "boxes": (BOX,)}
    (copy,) = m.load([Program("copy_box", Language.CUDA, (HOPPER,), COPY_BOX, **more)])
    return copy


def boxes() -> None:
    """A card is told of an array before it copies boxes of it, also where it replays a graph."""
    m = machine()
    copy = copying(m)
    x, y, other = buffer(m, X), empty(m, 512), buffer(m, 3 * X)
    plan = m.plan([(copy, [y.memory, x.memory])] * 3)
    for run in range(4):
        plan.rebind(2, 1, (other if run % 2 else x).memory)
        plan.run()
        same(y.read(), (3 * X if run % 2 else X)[256:768])
        assert (plan._graph is not None) == (run > 0)
    odd = replace(BOX, strides=(100, 4096))
    (wrong,) = m.load([replace(copy.program, boxes=(odd,))])
    raised(KernelError, lambda: wrong.launch([y.memory, x.memory]), "no tensor map for Box(slot=1")


def fault_of_a_late_map() -> None:
    """What a card is told of an array is there before the kernel, though nobody waits for it.

    By another stream it may come later, which the fake driver makes an error.
    """
    m = machine()
    copy, (add_one,) = copying(m), m.load([ADD_ONE])
    x, y, z = buffer(m, X), empty(m, 512), empty(m)
    under_way = np.ctypeslib.as_array((ctypes.c_float * 1024).from_address(z.memory))
    add_one.launch([z.memory, x.memory])
    copy.launch([y.memory, x.memory])
    assert np.isnan(under_way).all()
    same(y.read(), X[256:768])
    same(under_way, X + 1)
    other = buffer(m, X)
    m.maps._stream = m.driver.Stream()
    copy.launch([y.memory, other.memory])
    raised(KernelError, m.wait_for_all, "because a kernel failed", "last wait: copy_box")


def ranges() -> None:
    """Profilers are told of launches, and of replays of several."""
    said: list[str] = []

    class Library:
        def nvtxRangePushA(self, name: bytes) -> None:
            said.append(name.decode())

        def nvtxRangePop(self) -> None:
            said.append("end")

    def absent(name: str) -> Library:
        raise OSError(name)

    cuda_ranges.ctypes = SimpleNamespace(CDLL=absent)
    raised(DeviceError, cuda_ranges.open_ranges, "pip install nvidia-nvtx")
    cuda_ranges.ctypes = SimpleNamespace(CDLL=lambda name: Library())
    with config.override(nvtx=True):
        m = machine()
    (add_one,) = m.load([ADD_ONE])
    x, y = buffer(m, X), empty(m)
    plan = m.plan([(add_one, [y.memory, x.memory])] * 3)
    for _ in range(3):
        plan.run()
    once = ["tinyml: add_one", "end"]  # also where launches are captured
    replay = ["tinyml: replay of 3 launches", "end"]
    assert said == [*once * 6, *replay * 2]
    same(y.read(), X + 1)


# ---------------------------------------------------------------- arrays of others


class OfOthers:
    """An array on the card, as another library would show it."""

    def __init__(self, held: Any, shape: tuple[int, ...], **more: Any) -> None:
        self.held = held
        address = {"data": (held.memory + more.pop("offset", 0), more.pop("read_only", False))}
        given = {"version": 3, "shape": shape, "typestr": "<f4", "strides": None, **address}
        self.__cuda_array_interface__ = {**given, **more}


def array_interface() -> None:
    m = machine()
    device._opened["CUDA"] = device.OpenDevice("CUDA", m, Target(Language.CUDA, 4, cache=48 << 10))
    t = Tensor(X.reshape(32, 32), device="CUDA") + 1
    said = t.__cuda_array_interface__
    assert (said["version"], said["shape"], said["typestr"]) == (3, (32, 32), "<f4")
    assert said["strides"] is said["stream"] is None
    here = np.ctypeslib.as_array((ctypes.c_float * 1024).from_address(said["data"][0]))
    same(here, X + 1)  # no work is under way: fakecuda does it when somebody waits
    assert not hasattr(Tensor([1.0], device="NUMPY"), "__cuda_array_interface__")

    (add_one,) = m.load([ADD_ONE])
    x, held = buffer(m, X), empty(m)
    add_one.launch([held.memory, x.memory])
    shared = Tensor.from_dlpack(OfOthers(held, (32, 32)))
    same((shared * 2).numpy(), 2 * (X + 1).reshape(32, 32))
    held.write(X)
    same(shared.numpy(), X.reshape(32, 32))  # what the other side writes is seen
    blob = Tensor.from_blob(held.memory, (32, 32), "float32", "CUDA")
    held.write(X + 1)
    same((blob * 2).numpy(), 2 * (X + 1).reshape(32, 32))
    held.write(X)
    askew = held.memory + 4
    raised(
        ValueError, lambda: Tensor.from_blob(askew, (3,), "float32", "CUDA"), "cannot use memory"
    )
    copies = [
        (OfOthers(held, (8, 4), strides=(4, 128)), X.reshape(32, 32)[:4, :8].T),
        (OfOthers(held, (4,), offset=12, strides=(-4,)), X[3::-1]),
        (OfOthers(held, (5,), offset=4), X[1:6]),
        (OfOthers(held, (0, 3)), X[:0].reshape(0, 3)),
        (OfOthers(held, (3,), read_only=True), X[:3]),
    ]
    for given, right in copies:
        same(Tensor.from_dlpack(given).numpy(), right)
    raised(BufferError, lambda: Tensor.from_dlpack(copies[0][0], copy=False), "cannot be shared")
    _streams_of_others(m, held)


def _streams_of_others(m: CudaMachine, held: Buffer) -> None:
    own, spare = m.driver.Stream(), m.driver.pagelocked_empty(4, np.float32)
    spare[:] = 7
    m.driver.memcpy_htod_async(held.memory, spare, own)  # not done before somebody waits
    same(Tensor.from_dlpack(OfOthers(held, (4,), stream=own.handle)).numpy(), spare)
    raised(ValueError, lambda: Tensor.from_dlpack(OfOthers(held, (4,), stream=0)), "not 0")
    raised(BufferError, lambda: Tensor.from_dlpack(OfOthers(held, (4,), mask=held)), "mask")
    raised(DTypeError, lambda: Tensor.from_dlpack(OfOthers(held, (4,), typestr="<c8")), "<c8")


def products_of_halves() -> None:
    """By what only Hopper has, as the card is one, unless somebody does not want it."""
    CudaMachine._default_builder = lambda self: EmuBuilder()
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-8, 9, (256, 256)).astype(np.float16) for _ in range(2))
    a, b = (Tensor(each, device="CUDA") for each in (x, w))
    same((a @ b).numpy(), x @ w)
    found = any(HOPPER in p.prelude for p in device.open_device("CUDA").machine._loaded)
    assert found == (config.current.warpgroups is not False)


# ---------------------------------------------------------------- benchmarks


def benchmarks() -> None:
    """What benchmarks/cuda.py asks of a card."""
    from benchmarks import card, cublas

    card.SCRATCH, cublas.SIZE, cublas._places = 1 << 20, 16, lambda newest: iter(())
    m = machine()
    device._opened["CUDA"] = device.OpenDevice("CUDA", m, Target(Language.CUDA, 4, cache=48 << 10))
    bench = card.Bench("CUDA")
    assert "fakecuda" in bench.facts()["card"]
    ceilings = bench.ceilings()
    assert ceilings.pop("copy") > 0
    assert ceilings.pop("products").startswith("nobody, DeviceError: no libcublas.so.")
    assert not ceilings
    (item,) = (i for i in card.items(small=True) if i.name == "rmsnorm 8192x1024, backward too")
    answer = bench.measure("tinyml", item)
    assert len(answer["kernels"]) > 1
    assert 0 < answer["least"] <= answer["seconds"]
    raised(NotImplementedError, lambda: bench.measure("torch", item), "no card")
    with tempfile.TemporaryDirectory() as folder:
        cublas._places = lambda newest: iter([build_fake.products(Path(folder))])
        ceilings = bench.ceilings()
    assert ceilings.pop("products") == "cuBLAS 13.3.2"
    assert ceilings.keys() == {"copy", "bfloat16", "float16", "tf32", "float32"}
    assert min(ceilings.values()) > 0


# ---------------------------------------------------------------- the process


def disk_cache() -> None:
    with trace.listen(trace.Compiled) as events:
        machine().load([ADD_ONE, DOUBLE])
    sys.stdout.write(" ".join(str(event.cached) for event in events) + "\n")


def still_in_use_at_exit() -> None:
    m = machine()
    (add_one,) = m.load([ADD_ONE])
    x, y = buffer(m, X), empty(m)
    plan = m.plan([(add_one, [y.memory, x.memory])] * 4)
    plan.run()
    plan.run()
    sys.modules["kept_until_the_end"] = (m, add_one, x, y, plan)  # type: ignore[assignment]


def no_card() -> None:
    raised(DeviceError, machine, "finds no card that answers")


def no_driver() -> None:
    raised(DeviceError, machine, "NVIDIA's driver", "libcuda.so.1", "DEVICE=EMU")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
