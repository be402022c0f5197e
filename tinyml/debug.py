"""What DEBUG and DUMP show: listeners to what the rooms announce. Everything goes to stderr.

    DEBUG=1  the device, what a search tries; at exit, the time of each step, the most memory held
    DEBUG=2  a line for each launch, copy and interpreted graph; at exit, the totals of each
    DEBUG=3  the schedule with its reasons; of each new kernel the loops, the Opts, the result
    DEBUG=4  the source of each new kernel
    DEBUG=5  the compilers: command, output, registers and spills
    DUMP=dir the source of each new kernel, with its Kernel as head comment, as a file in dir, and
             each schedule as a picture for Graphviz

A level shows what those below it show, too. From 2 on each launch is timed alone and waited
for, which costs time of its own; without DEBUG and DUMP this module is not even imported.

A line of DEBUG=2: number, device, name of the kernel, shapes written <- shapes read, time,
arithmetic and memory traffic per second (at the least: each element once), the share of the
roofline that was reached, the time that the cost model predicts, memory in use. For the last but
one the machine's ceilings are measured, once, and kept in the disk cache. The roofline is the
time that so many bytes or so much arithmetic takes at least, where data lies that a launch left.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tinyml import config, kernel, trace
from tinyml.cache import write_whole
from tinyml.codegen.linear import LinearKernel
from tinyml.codegen.model import predict
from tinyml.codegen.target import Target
from tinyml.device import Device, ceilings
from tinyml.draw import dot
from tinyml.errors import TinymlError
from tinyml.notation import shape_text
from tinyml.program import Language, Program
from tinyml.runtime.nvcc import parse_resources
from tinyml.schedule import KernelItem

SUFFIX = {Language.C: ".c", Language.CUDA: ".cu"}
_HEAD = (
    f"{'':5} {'':5} {'kernel':44} {'shapes: written <- read':44} {'time':>8} {'arithmetic':>16} "
    f"{'traffic':>13} {'reached':>14} {'cost model':>18} {'in use':>8}"
)
_MOST_KERNELS = 8  # in the list of where the time went


def start(settings: config.Config) -> Callable[[], None]:
    """Show what `settings` ask for, from now on; returns the function that ends it."""
    ends = contextlib.ExitStack()
    if settings.dump:
        dump = Dump(settings.dump)
        ends.callback(trace.subscribe(trace.KernelLowered, dump.kernel))
        ends.callback(trace.subscribe(trace.Scheduled, dump.schedule))
    for end in Report(settings.debug).subscribe() if settings.debug > 0 else ():
        ends.callback(end)
    return ends.close


def say(text: str) -> None:
    """Write to stderr; a reader that has gone away is no reason to stop."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text + "\n")


# ---- numbers for people ----


def seconds_text(seconds: float) -> str:
    """0.0000123 as 12.3 us."""
    return _scaled(seconds, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)))


def bytes_text(nbytes: float) -> str:
    """1234567 as 1.23 MB."""
    return _scaled(nbytes, (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)))


def _scaled(value: float, units: Sequence[tuple[str, float]]) -> str:
    """Three digits in the largest unit of which there is one at least."""
    unit, size = next((u for u in units if value >= u[1]), units[-1])
    number = value / size
    return f"{number:.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"


def target_text(target: Target | None) -> str:
    """What codegen knows of a device."""
    if target is None:
        return "interprets graphs with numpy"
    if target.language is Language.C:
        return f"C, vectors of {target.vector_bytes} bytes, {target.cores} cores"
    by = ", products by warpgroups" if target.warpgroups else ""
    sizes = f"{target.cores} multiprocessors, {target.cache} bytes shared by a block"
    return f"CUDA C, {sizes}{by}"


def shapes_text(shapes: Sequence[tuple[int, ...]], outputs: int) -> str:
    """Shapes written <- shapes read; equal neighbours are counted: 3 of 4x256."""
    written, read = _counted(shapes[:outputs]), _counted(shapes[outputs:])
    text = f"{written} <- {read}" if read else written
    return text if len(text) <= 44 else text[:42] + ".."


def _counted(shapes: Iterable[tuple[int, ...]]) -> str:
    counts = [(shape_text(shape), len(list(group))) for shape, group in groupby(shapes)]
    return ", ".join(f"{count} of {text}" if count > 1 else text for text, count in counts)


def rate(amount: float, seconds: float) -> float:
    """Billions per second."""
    return amount / seconds / 1e9 if seconds > 0 else 0.0


# ---- the report ----


@dataclass
class Total:
    """What launches of one kind came to."""

    count: int = 0
    seconds: float = 0.0
    flops: int = 0
    nbytes: int = 0

    def add(self, seconds: float, flops: int, nbytes: int) -> None:
        self.count += 1
        self.seconds += seconds
        self.flops += flops
        self.nbytes += nbytes

    def __str__(self) -> str:
        gflops, gbytes = rate(self.flops, self.seconds), rate(self.nbytes, self.seconds)
        return (
            f"{self.count:6}x {seconds_text(self.seconds):>9} "
            f"{gflops:9.2f} GFLOP/s {gbytes:8.2f} GB/s"
        )


class Report:
    """Prints events as they come, and sums at exit."""

    def __init__(self, level: int) -> None:
        self.level = level
        self.number = 0  # of launches, copies and interpreted graphs
        self.devices: list[str] = []
        self.steps: dict[str, Total] = {}  # scheduling, codegen, compiler ..
        self.kernels: dict[tuple[str, str], Total] = {}  # by device and name
        self.linear: dict[str, LinearKernel] = {}  # not launched yet, by name of the program
        self.expected: dict[str, float] = {}  # seconds, by name of the program

    def subscribe(self) -> list[Callable[[], None]]:
        """Listen to what this level shows; returns what ends that."""
        shown: list[tuple[type[trace.Event], trace.Listener]] = [
            (trace.DeviceOpened, self.opened),
            (trace.DevicePassedOver, self.passed_over),
            (trace.Scheduled, self.scheduled),
            (trace.KernelLowered, self.lowered),
            (trace.Compiled, self.compiled),
            (trace.Tried, self.tried),
            (trace.Searched, self.searched),
        ]
        if self.level >= 2:
            launches = (trace.KernelRan, self.ran), (trace.Copied, self.copied)
            shown += [*launches, (trace.Interpreted, self.interpreted)]
        ends = [trace.subscribe(kind, listener) for kind, listener in shown]
        atexit.register(self.totals)
        return [*ends, lambda: atexit.unregister(self.totals)]

    def opened(self, event: trace.DeviceOpened) -> None:
        self.devices.append(event.name)
        took = seconds_text(event.seconds)
        say(f"tinyml: device {event.name}, opened in {took}: {target_text(event.target)}")

    def passed_over(self, event: trace.DevicePassedOver) -> None:
        say(f"tinyml: not {event.name}: {event.reason}")

    def scheduled(self, event: trace.Scheduled) -> None:
        self._step("scheduling", event.seconds)
        if self.level >= 3:
            say(schedule_text(event))

    def lowered(self, event: trace.KernelLowered) -> None:
        self._step("code generation", event.seconds)
        if self.level >= 2:
            self.linear[event.program.name] = event.linear
        if self.level >= 3:
            say(lowered_text(event))
        if self.level >= 4:
            say(str(event.program))

    def tried(self, event: trace.Tried) -> None:
        result = event.why if event.seconds is None else seconds_text(event.seconds)
        say(f"tinyml: {event.device} {event.name}: {result}: {opts_text(event.opts)}")

    def searched(self, event: trace.Searched) -> None:
        self._step("searching", event.took)
        say(
            f"tinyml: {event.device} {event.name}: best of {event.tried}, found in "
            f"{seconds_text(event.took)}: {seconds_text(event.seconds)}, by default "
            f"{seconds_text(event.default)}: {opts_text(event.opts)}"
        )

    def compiled(self, event: trace.Compiled) -> None:
        self._step("disk cache" if event.cached else "compilers", event.seconds)
        if self.level >= 5:
            say(compiled_text(event))

    def ran(self, event: trace.KernelRan) -> None:
        program, shapes = event.program, shapes_text(event.shapes, event.outputs)
        cost = program.cost
        rates = (
            f"{rate(cost.flops, event.seconds):8.2f} GFLOP/s "
            f"{rate(cost.nbytes, event.seconds):8.2f} GB/s{self._compared(event)}"
        )
        self._line(event.device, program.name, shapes, event.seconds, rates, event.memory_used)
        self._kernel(event.device, program.name).add(event.seconds, cost.flops, cost.nbytes)

    def _compared(self, event: trace.KernelRan) -> str:
        """What was possible and what was to be expected, where the machine's ceilings are known."""
        known = ceilings(event.device)
        if known is None:
            return ""
        name, cost = event.program.name, event.program.cost
        least = known.roofline(cost.flops, cost.nbytes, cost.stored)
        share = f" {100 * least / max(event.seconds, 1e-9):4.0f} % of roof"
        if name in self.linear:
            self.expected[name] = predict(self.linear.pop(name), known)
        seconds = self.expected.get(name)
        return share if seconds is None else f"{share} {seconds_text(seconds):>8} predicted"

    def copied(self, event: trace.Copied) -> None:
        name = f"copy to {event.target}"
        rates = f"{rate(event.nbytes, event.seconds):25.2f} GB/s"
        held = Device.memory_stats(event.target).in_use
        self._line(event.source, name, bytes_text(event.nbytes), event.seconds, rates, held)
        self._kernel(event.source, name).add(event.seconds, 0, event.nbytes)

    def interpreted(self, event: trace.Interpreted) -> None:
        shapes = shapes_text(event.shapes, len(event.shapes))
        self._line(event.device, event.name, shapes, event.seconds, " " * 30, event.memory_used)
        self._kernel(event.device, event.name).add(event.seconds, 0, 0)

    def totals(self) -> None:
        """The sums, at exit."""
        for name, total in self.steps.items():
            say(f"tinyml: {name}: {total.count} in {seconds_text(total.seconds)}")
        for device in self.devices:
            peak = Device.memory_stats(device).peak
            say(f"tinyml: {device} held {bytes_text(peak)} at most")
        self._kernel_totals()

    def _kernel_totals(self) -> None:
        for device in dict.fromkeys(device for device, _ in self.kernels):
            mine = {name: t for (d, name), t in self.kernels.items() if d == device}
            everything = Total()
            for total in mine.values():
                everything.add(total.seconds, total.flops, total.nbytes)
            everything.count = sum(total.count for total in mine.values())
            say(f"tinyml: {device:5} {everything}  100 %  in all")
            longest = sorted(mine, key=lambda name: -mine[name].seconds)
            for name in longest[:_MOST_KERNELS]:
                share = 100 * mine[name].seconds / (everything.seconds or 1)
                say(f"tinyml: {device:5} {mine[name]} {share:4.0f} %  {name}")
            if len(mine) > _MOST_KERNELS:
                say(f"tinyml: {device:5} and {len(mine) - _MOST_KERNELS} more")

    def _step(self, name: str, seconds: float) -> None:
        self.steps.setdefault(name, Total()).add(seconds, 0, 0)

    def _kernel(self, device: str, name: str) -> Total:
        return self.kernels.setdefault((device, name), Total())

    def _line(
        self, device: str, name: str, shapes: str, seconds: float, rates: str, held: int
    ) -> None:
        if not self.number:
            say("tinyml: roof: what so much arithmetic or memory traffic takes here at least")
            say(_HEAD)
        self.number += 1
        say(
            f"{self.number:5} {device:5} {name:44} {shapes:44} {seconds_text(seconds):>8} "
            f"{rates} {bytes_text(held):>8}"
        )


def schedule_text(event: trace.Scheduled) -> str:
    """Every kernel and copy of a schedule, with the reasons for its boundaries."""
    lines = [f"schedule of {len(event.items)}, made in {seconds_text(event.seconds)}"]
    for number, item in enumerate(event.items, 1):
        if isinstance(item, KernelItem):
            lines.append(f"  {number}. {item.device} {kernel.name(item.kernel)}")
            lines += [f"       {reason}" for reason in item.reasons]
        else:
            lines.append(f"  {number}. copy of {item.source} to {item.output.device}")
    return "\n".join(lines)


def lowered_text(event: trace.KernelLowered) -> str:
    """The values on the way from a Kernel to a Program, without either's text."""
    pieces = [
        ("Kernel", event.kernel),
        ("LoopNest", event.nest),
        ("Opts", opts_text(event.opts)),
        ("LoopNest after the Opts", event.optimized),
        ("LinearKernel", event.linear),
    ]
    return "\n".join(f"{name}\n{textwrap.indent(str(value), '    ')}" for name, value in pieces)


def opts_text(opts: Iterable[object]) -> str:
    """A list of Opts in one line."""
    return "; ".join(map(str, opts)) or "none"


def compiled_text(event: trace.Compiled) -> str:
    """How binaries came to be, and what they take of the processor."""
    how = "from the disk cache" if event.cached else f"by {event.command}"
    lines = [f"compiled {', '.join(event.names)} in {seconds_text(event.seconds)} {how}"]
    resources = parse_resources(event.output)
    for name, found in resources.items():
        spilled = (
            f", spills {found.spill_stores} + {found.spill_loads} bytes" if found.spills else ""
        )
        lines.append(f"  {name}: {found.registers} registers, {found.shared} bytes shared{spilled}")
    if event.output and not resources:
        lines.append(textwrap.indent(event.output.strip(), "  "))
    return "\n".join(lines)


# ---- DUMP ----


class Dump:
    """Writes the source of each kernel that is lowered, and a picture of each schedule."""

    def __init__(self, folder: str) -> None:
        self.folder, self.schedules = Path(folder).expanduser(), 0
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.folder, prefix=".try-"):
                pass
        except OSError as error:
            raise TinymlError(
                f"DUMP={folder} is to be a folder for the source of kernels, but it cannot be "
                f"written ({error.strerror or error}). Name one that you may write, such as "
                "DUMP=kernels, or leave DUMP unset"
            ) from None

    def kernel(self, event: trace.KernelLowered) -> None:
        program: Program = event.program
        self._write(program.name + SUFFIX[program.language], dumped(program, opts_text(event.opts)))

    def schedule(self, event: trace.Scheduled) -> None:
        self.schedules += 1
        self._write(f"schedule{self.schedules}.dot", dot(event.items, {}) + "\n")

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        try:
            write_whole(path, text.encode())
        except OSError as error:
            say(f"tinyml: DUMP cannot write {path}: {error.strerror or error}")


def dumped(program: Program, opts: str) -> str:
    """A whole translation unit: the printed Kernel, the launch, the text."""
    lines = program.source.splitlines()
    split = next((n for n, line in enumerate(lines) if not line.startswith("//")), len(lines))
    block = "x".join(map(str, program.block))
    launch = f"grid {program.grid}, block {block}, {program.shared} bytes shared"
    cost = f"{program.cost.flops} FLOPs, {program.cost.nbytes} bytes"
    head = [*lines[:split], f"// Opts: {opts}", f"// {launch}; {cost}"]
    return "\n".join([*head, "", *program.prelude, *lines[split:], ""])
