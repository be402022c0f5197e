"""What is measured on a card, in a process that is told what to measure.

The clock is the card's own: two events around a call. Before each, memory is copied that is
larger than its caches, so that nothing is in them, and that takes as long as the host needs to
queue the call behind it. What the call is to write holds NaN before.

Several such processes may be at work: the card is used by the one whose turn it is, while others
make inputs, compile or compare.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import importlib.metadata
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks import cublas, machine, peers, run, search, steps, workloads
from benchmarks.peers import Work
from benchmarks.scheduled import kernels_of
from benchmarks.steps import GPTSize, Step
from tinyml import Device, config, trace
from tinyml.device import open_device
from tinyml.dtype import by_name
from tinyml.errors import DeviceError, TinymlError

ROUNDS = 20
SECONDS = 2.0  # of rounds, at most
SCRATCH = 512 << 20  # bytes that are copied: more than any cache
OWN = "tinyml"
BEAM = "beam"  # tinyml after a search, beside its rules of thumb
RATIO = "default / best"
CEILINGS, PRODUCTS = "ceilings", "products"
BY_WARPS = "WARPGROUPS=0"  # beside Hopper's own products
ROUNDED = 1e-3  # of the largest value: what factors of 11 bits may be off
HALVED = 1e-2  # of the convnet's fourth loss, of which autocast's rounding leaves 7e-4 to 4e-3 to
# chance (results/2026-11-26-autocast.md); three updates make a fifth of it


@dataclass(frozen=True)
class Item:
    """A workload, and the environment in which tinyml is asked for it."""

    work: Work
    settings: tuple[str, ...] = ()
    first: bool = False  # of a process: with empty caches, then with what it left there

    @property
    def name(self) -> str:
        return ", ".join([self.work.name, *self.settings, *["first call"] * self.first])

    @property
    def dtype(self) -> str:
        """What its products multiply."""
        dtype = "bfloat16" if getattr(self.work, "half", False) else self.work.dtype
        return "tf32" if dtype == "float32" and "TF32=1" in self.settings else dtype

    @property
    def searched(self) -> bool:
        """Whether its kernels are searched for, too."""
        return self.name in search.ON_CARDS

    @property
    def of_peers(self) -> bool:
        """Whether others do it too; once is enough."""
        return BY_WARPS not in self.settings


def items(small: bool = False) -> list[Item]:
    """All that is measured; small: the same on tiny inputs, where nothing means anything."""
    kernels = [*workloads.kernels(), *workloads.for_cards()]
    plain: list[Work] = [w.shrunk() if small else w for w in kernels]
    products = [w for w in plain if w.group == "contraction" and not w.gradients]
    floats = [w for w in products if w.dtype == "float32"]
    coarse = [replace(w, rtol=ROUNDED) for w in floats]
    halves = [w for w in products if w.dtype != "float32"]
    models = _models(small)
    return [
        *map(Item, plain),
        *map(Item, models),
        *(
            Item(w, first=True)
            for w in models
            if isinstance(w, Step) and w.half and "GPT" in w.name
        ),
        *(Item(w, ("TF32=1",)) for w in coarse if w.name == "matmul 4096" or "B.T" in w.name),
        *(Item(w, (BY_WARPS,)) for w in halves),
        *(Item(w, ("TF32=1", BY_WARPS)) for w in coarse if "B.T" in w.name),
    ]


def _models(small: bool) -> list[Work]:
    """Steps, in float32 and as torch.autocast has them, and the decoding of a token."""
    if small:
        size = GPTSize(1, 16, 2, 8, 2, 11)
        found = [steps.digits(4), steps.updates(size), steps.bottlenecks((1, 1), 4, 8, 2)]
    else:
        size = GPTSize(12, 768, 12, 1024, 8, 50304)
        found = [*steps.steps(), steps.updates(size), steps.bottlenecks()]
    found.append(steps.gpt(size))
    halves = [
        replace(step, name=f"{step.name}, bf16 autocast", half=True, rtol=HALVED)
        for step in found[-2:]
    ]
    token = steps.decode(replace(size, batch=1))
    half = replace(token, name=f"{token.name}, bf16", dtype="bfloat16", rtol=3e-2)
    return [*found, *halves, token, half]


# ---- the process that measures ----


def serve(
    pipe: Connection, device: str, small: bool, beam: float = 0.0, turns: str = os.devnull
) -> None:
    """Answer (who, name) with what was measured, or with what went wrong, until None is asked."""
    known = {item.name: item for item in items(small)}
    try:
        bench = Bench(device, beam, Turn(turns))
        pipe.send(bench.facts())
    except (TinymlError, ImportError, OSError) as error:
        pipe.send({"error": run.words(error, 600)})
        return
    while (asked := pipe.recv()) is not None:
        who, name = asked
        try:
            pipe.send(bench.ceilings() if name == CEILINGS else bench.measure(who, known[name]))
        except NotImplementedError as error:
            pipe.send({"error": f"left out: {error}"})
        except Exception as error:
            pipe.send({"error": run.words(error, 600)})


class Turn:
    """The card is this process's meanwhile; one that dies gives it back."""

    def __init__(self, path: str = os.devnull) -> None:
        """`path`: a file that all name who take turns. By default nobody else does."""
        self.path, self._depth = path, 0

    def __enter__(self) -> None:
        if self._depth == 0 and self.path != os.devnull:
            self._file = open(self.path)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self.path != os.devnull:
            self._file.close()


class Clock(Protocol):
    def seconds(self, call: Callable[[], Any]) -> float:
        """What the device spends on a call that only starts its work."""
        ...


class HostClock:
    """The host's, for what has no other."""

    def __init__(self, synchronize: Callable[[], Any]) -> None:
        self._synchronize = synchronize

    def seconds(self, call: Callable[[], Any]) -> float:
        start = time.perf_counter()
        call()
        self._synchronize()
        return time.perf_counter() - start


class CardClock:
    """tinyml's, on its stream."""

    def __init__(self, card: Any) -> None:
        self._card = card
        self._held = [card.driver.mem_alloc(SCRATCH) for _ in range(2)]  # of nobody's statistics
        self._from, self._to = (int(m) for m in self._held)

    def flush(self) -> None:
        self._card.driver.memcpy_dtod_async(self._to, self._from, SCRATCH, self._card.stream)

    def seconds(self, call: Callable[[], Any]) -> float:
        self.flush()
        return float(self._card.timed(call, "what is timed"))

    def bandwidth(self) -> float:
        """Bytes per second, read and written, of a copy from memory to memory."""
        return 2 * SCRATCH / min(self.seconds(self.flush) for _ in range(ROUNDS))


class TorchClock:
    """torch's, on its stream."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._from, self._to = (
            torch.empty(SCRATCH, dtype=torch.uint8, device="cuda") for _ in range(2)
        )

    def seconds(self, call: Callable[[], Any]) -> float:
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._to.copy_(self._from)
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3


class Bench:
    """A device, with what is measured on it."""

    def __init__(self, device: str, beam: float = 0.0, turn: Turn | None = None) -> None:
        Device.DEFAULT = device
        self.turn = turn or Turn()
        self.device = device = Device.DEFAULT  # in capitals
        self.beam = beam  # seconds of a search for each kernel
        self.machine: Any = open_device(device).machine
        self.clock: Any = (
            CardClock(self.machine) if device == "CUDA" else HostClock(self.machine.synchronize)
        )
        self.torch = torch_with_cuda() if device == "CUDA" else None

    def facts(self) -> dict[str, Any]:
        """What a figure means nothing without."""
        found = {"card": self.machine.identity, "commit": machine.commit()}
        found |= {"python": sys.version.split()[0], "numpy": np.__version__}
        for name in ("torch", "triton", "tinygrad", "pycuda"):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found[name] = importlib.metadata.version(name)
        if self.device == "CUDA":
            found["driver"] = f"CUDA {self.machine.driver.get_driver_version()}"
        return found

    def ceilings(self) -> dict[str, Any]:
        """Bytes per second of a copy, FLOPs per second of a library's products of matrices.

        Under `PRODUCTS` is who made those, or why nobody did.
        """
        if not isinstance(self.clock, CardClock):
            return {}
        found: dict[str, Any] = {"copy": self.clock.bandwidth()}
        if self.torch is not None:
            return found | {PRODUCTS: f"torch {self.torch.__version__}"} | self._rates_of_torch()
        newest = self.machine.driver.get_driver_version() // 1000
        try:
            library = cublas.opened(self.machine.stream.handle, newest)
            rates = cublas.rates(library, self.machine, partial(timed, self.clock), cublas.SIZE)
            library.close()
        except DeviceError as error:
            return found | {PRODUCTS: f"nobody, {run.words(error)}"}
        return found | {PRODUCTS: f"cuBLAS {library.version}"} | rates

    def _rates_of_torch(self) -> dict[str, float]:
        torch, found, size = self.torch, {}, cublas.SIZE
        for name in ("bfloat16", "float16", "tf32", "float32"):
            torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
            dtype = getattr(torch, name, torch.float32)
            a, b = (torch.randn(size, size, device="cuda").to(dtype) for _ in range(2))
            times = timed(TorchClock(torch), partial(torch.matmul, a, b))
            found[name] = 2 * size**3 / statistics.median(times)
        return found

    def measure(self, who: str, item: Item) -> dict[str, Any]:
        """Seconds of one call; tinyml's results are checked before, its kernels listed."""
        if item.first:
            return self._first(who, item.work)
        if who == BEAM:
            return self._searched(item.work)
        if who == OWN:
            return self._own(item.work) | {"dtype": item.dtype}
        return self._peers(who, item)

    def _peers(self, who: str, item: Item) -> dict[str, Any]:
        inputs = item.work.inputs()
        if self.torch is not None:  # float32 stays float32, as in tinyml
            allowed = "TF32=1" in item.settings
            backends = self.torch.backends
            backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = allowed
            self.torch.cuda.reset_peak_memory_stats()
        with self.turn:
            peer, clock = self._peer(who)
            call = peer.prepare(item.work, inputs)
        if who == "compile":  # the host is busy for long, the card for one call
            _tunes(self.turn)
            call()
        with self.turn:
            result = _seconds(timed(clock, call))
            if self.torch is not None and who != "tinygrad":
                peak = int(self.torch.cuda.max_memory_allocated())
                result["peak bytes"] = peak - 2 * SCRATCH  # the clock's
                self.torch.cuda.empty_cache()
        return result

    def _peer(self, who: str) -> tuple[peers.Peer, Clock]:
        if who == "tinygrad":
            if self.device == "CUDA":
                importlib.import_module("tinygrad").Device.DEFAULT = "CUDA"
            return peers.TinygradPeer(), HostClock(lambda: None)
        if self.torch is None:
            raise NotImplementedError("torch is not here, or sees no card")
        kind = {"torch": peers.TorchPeer, "compile": peers.CompilePeer}[who]
        return kind(1, device="cuda"), TorchClock(self.torch)

    def _first(self, who: str, work: Work) -> dict[str, Any]:
        """Seconds from inputs to results, with all that is made only once."""
        peer: peers.Peer = peers.TinymlPeer() if who == OWN else self._peer(who)[0]
        inputs = work.inputs()
        start = time.perf_counter()
        peer.numpy(peer.prepare(work, inputs)()[0])
        return {"seconds": time.perf_counter() - start}

    def _searched(self, work: Work) -> dict[str, Any]:
        """How far the rules of thumb are from what a search finds for each kernel."""
        found = [search.compared(k, self.device, self.beam) for k in kernels_of(work)]
        every = search.together(found)
        ratio = every.default / every.best
        return {"seconds": every.best, RATIO: ratio, "kernels": [asdict(f) for f in found]}

    def _own(self, work: Work) -> dict[str, Any]:
        inputs = work.inputs()
        peer = peers.TinymlPeer()
        with self.turn:
            expected = self._reference(work, inputs)
            with trace.listen(trace.Compiled) as compiled:
                kernels = self._kernels(peer, work, inputs)
            call = peer.launched(work, inputs)
            with trace.listen(trace.Allocated) as taken:
                for _ in range(3):  # a JIT runs plainly, captures, then replays
                    call()
            self._poison(work, expected)
            results = [peer.numpy(result) for result in call()]
        error = run.off(work, results, expected)
        with self.turn:
            result = _seconds(timed(self.clock, call)) | {"error of largest": error}
            result |= {"kernels": kernels, "host seconds": self._host_seconds(call)}
        result |= {"compile seconds": sum(e.seconds for e in compiled if not e.cached)}
        moved = sum(work.traffic(inputs, expected))
        peak = max((event.in_use for event in taken), default=0)
        return result | {"bytes": moved, "flops": work.flops, "peak bytes": peak}

    def _kernels(self, peer: peers.TinymlPeer, work: Work, inputs: Any) -> list[tuple[str, float]]:
        """Every launch of a call, and its seconds."""
        with config.override(jit=False):  # each kernel is to be seen
            call = peer.launched(work, inputs)
            for _ in range(2):
                with trace.listen(trace.KernelRan) as launches:
                    call()
        return [(launch.program.name, launch.seconds) for launch in launches]

    def _host_seconds(self, call: Callable[[], Any]) -> float:
        """What the host needs to start a call."""
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
            self.machine.synchronize()
        return statistics.median(times)

    def _poison(self, work: Work, expected: list[npt.NDArray[Any]]) -> None:
        """Memory that is given out next is full of NaN: what a kernel leaves out shows."""
        size = by_name(work.dtype).itemsize if expected else 0
        wrong = [np.full(right.size * size, 0xFF, np.uint8) for right in expected]
        held = [(self.machine.allocate(bits.nbytes), bits) for bits in wrong if bits.nbytes]
        for memory, bits in held:
            self.machine.copy_in(memory, bits)
        self.machine.synchronize()
        for memory, bits in held:
            self.machine.free(memory, bits.nbytes)

    def _reference(self, work: Work, inputs: Any) -> list[npt.NDArray[Any]]:
        """In float64: by torch on the card, where it fits; else on the host."""
        if self.torch is not None and not getattr(work, "dropped", 0.0):
            with contextlib.suppress(RuntimeError):  # out of memory
                wide = replace(work, dtype="float64")
                if isinstance(wide, Step):
                    wide = replace(wide, half=False)
                call = peers.TorchPeer(1, device="cuda").prepare(wide, inputs)
                for _ in range(steps.CHECKED if isinstance(work, Step) else 1):
                    results = call()
                found = [np.asarray(x.detach().cpu().numpy()) for x in results]
                del call, results
                self.torch.cuda.empty_cache()
                return found
        return work.reference(inputs)


def timed(clock: Clock, call: Callable[[], Any]) -> list[float]:
    """Seconds of as many calls as there is time for, after three that warm up."""
    times = [clock.seconds(call) for _ in range(3)]
    rounds = max(3, min(ROUNDS, int(SECONDS / max(times[-1], 1e-9))))
    return [clock.seconds(call) for _ in range(rounds)]


def _seconds(times: list[float]) -> dict[str, Any]:
    return {"seconds": statistics.median(times), "least": min(times), "most": max(times)}


def _tunes(turn: Turn) -> None:
    """Have torch.compile choose among kernels when the card is this process's."""
    tuner = importlib.import_module("torch._inductor.runtime.triton_heuristics").CachingAutotuner
    chosen = tuner.benchmark_all_configs
    if not hasattr(chosen, "in_turn"):

        def in_turn(*args: Any, **options: Any) -> Any:
            with turn:
                return chosen(*args, **options)

        in_turn.in_turn = True  # type: ignore[attr-defined]
        tuner.benchmark_all_configs = in_turn


def torch_with_cuda() -> Any:
    """torch, if it is installed and sees the card."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None
