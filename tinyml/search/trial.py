"""A trial: candidates compiled, checked against the rules' choice, and timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import inf
from typing import TypeAlias

from tinyml import kernel, trace
from tinyml.codegen import linear, nest
from tinyml.codegen.choose.heuristic import choose
from tinyml.codegen.compile import cost, render
from tinyml.codegen.linear import LinearKernel
from tinyml.codegen.linearize.linearize import linearize
from tinyml.codegen.lower import lower
from tinyml.codegen.model import predict
from tinyml.codegen.nest import LoopNest
from tinyml.codegen.optimize.opts import optimize
from tinyml.device import OpenDevice, ceilings
from tinyml.errors import CompileError, DeviceError
from tinyml.kernel import Kernel
from tinyml.program import Language, Program
from tinyml.search.candidates import Opts
from tinyml.search.runner import Given, Here, Runner, drawn_for

OpenRunner: TypeAlias = Callable[[OpenDevice, Given], Runner]

_TEXT, _MORE_TEXT = 4, 32 << 10  # times the default's text, and bytes besides: longer takes long
_LOCALS = 2 << 20  # bytes of tiles on a stack, which has 8 MB or less
_TURNS = 5


class Trial:
    """A kernel with memory to try it on, what the default makes of it, and how fast."""

    def __init__(self, k: Kernel, opened: OpenDevice, runner: OpenRunner = Here) -> None:
        assert opened.target is not None, "it runs no programs"
        self.kernel, self.opened, self.target = k, opened, opened.target
        self.plain = lower(k)
        self._cost = cost(self.plain)
        opts, optimized = choose(self.plain, self.target)
        self.default: Opts = tuple(opts)
        first = self._linear(optimized)
        program = self._rendered(first)
        self.text = program.text
        self._programs = {self.default: program}
        self._lowered: dict[Opts, LinearKernel] = {}
        self._met = {first}  # instructions that no other list need make again
        self._open_runner = runner

    # ---- from Opts to instructions ----

    def admits(self, opts: Opts) -> bool:
        """Whether codegen can say the kernel with these Opts."""
        return self._made(opts) is not None

    def promising(self, candidates: Sequence[Opts], most: int) -> list[Opts]:
        """The `most` that the cost model takes for the fastest, the best first; none twice."""
        fit: dict[Opts, float] = {}
        for opts in candidates:
            seconds = self.expected(opts)
            if seconds is not None and self._lowered[opts] not in self._met:
                self._met.add(self._lowered[opts])
                fit[opts] = seconds
        return sorted(fit, key=fit.__getitem__)[:most]

    def expected(self, opts: Opts) -> float | None:
        """Seconds by the cost model, 0 where it has no ceilings; None if the Opts do not fit."""
        made, known = self._made(opts), ceilings(self.opened.name)
        if made is None:
            return None
        self._lowered[opts] = made
        return predict(made, known) if known is not None else 0.0

    def _made(self, opts: Opts) -> LinearKernel | None:
        try:
            optimized = optimize(self.plain, opts)
            nest.verify(optimized)
            made = self._linear(optimized)
            linear.verify(made)
        except Exception:  # an Opt that does not fit, or a way through codegen that nobody went
            return None
        held = sum(local.size * local.dtype.itemsize for local in made.locals)
        most = _LOCALS if self.target.language is Language.C else self.target.cache
        return made if held <= most else None

    def _linear(self, optimized: LoopNest) -> LinearKernel:
        return linearize(optimized, vectors=self.target.language is Language.C)

    def _rendered(self, made: LinearKernel) -> Program:
        return render(made, self.kernel, self.target, self._cost)

    # ---- from instructions to seconds ----

    @cached_property
    def runner(self) -> Runner:
        """Who runs programs; DeviceError if the default cannot be run."""
        program = self._programs[self.default]
        drawn = drawn_for(self.kernel, self.plain, bool(program.faults))
        return self._open_runner(self.opened, Given(drawn, program))

    def run(
        self, candidates: Sequence[Opts], best: float, end: float
    ) -> Iterator[tuple[Opts, float]]:
        """The seconds of each candidate that computes what the default does, until `end`."""
        for opts in candidates:
            if time.perf_counter() > end:
                return
            seconds, why = None, ""
            try:
                seconds = self._tried(opts, best)
            except Exception as error:  # its text, the compiler, the launch: whatever it was
                why = f"{type(error).__name__}: {error}".partition("\n")[0]
            self._announce(opts, seconds, why)
            if seconds is not None:
                best = min(best, seconds)
                yield opts, seconds

    def _tried(self, opts: Opts, best: float) -> float:
        program = self._rendered(self._lowered.pop(opts))
        if len(program.text) > _TEXT * len(self.text) + _MORE_TEXT:
            raise CompileError("its text is so long that compiling would take long")
        self.runner.load(program)
        self.runner.check(program)
        self._programs[opts] = program
        return self.runner.seconds(program, best)

    def time_default(self) -> float:
        """Seconds of the rules' choice."""
        seconds = self.runner.seconds(self._programs[self.default], 1e9)
        self._announce(self.default, seconds, "")
        return seconds

    def _announce(self, opts: Opts, seconds: float | None, why: str) -> None:
        if trace.wanted(trace.Tried):
            name = kernel.name(self.kernel)
            trace.emit(trace.Tried(self.opened.name, name, opts, seconds, why))

    def time_in_turn(self, finalists: Sequence[Opts]) -> dict[Opts, float]:
        """Seconds of each, timed A B C A B C, so that whatever disturbs disturbs all.

        Who fails now, as one that hangs now and then, takes forever.
        """
        seconds = dict.fromkeys(finalists, 1e9)
        for _ in range(_TURNS):
            for opts in [opts for opts, least in seconds.items() if least < inf]:
                try:
                    now = self.runner.seconds(self._programs[opts], 1e9)
                except DeviceError as error:
                    self._announce(opts, None, str(error))
                    seconds[opts] = inf
                else:
                    seconds[opts] = min(seconds[opts], now)
        return seconds

    def close(self) -> None:
        """Nothing more is tried."""
        if "runner" in vars(self):
            self.runner.close()
