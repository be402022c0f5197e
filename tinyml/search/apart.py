"""A runner in a process of its own: what hangs there is killed, what dies there is known to have.

A card refuses a process after a fault of a kernel, and waits for one that hangs until the process
ends. So the process is replaced after whatever did not run to its end; the search goes on.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from dataclasses import asdict
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from tinyml import config
from tinyml.device import OpenDevice, open_device
from tinyml.errors import DeviceError
from tinyml.program import Program
from tinyml.search.runner import Given, Here

_START = """import sys
sys.path.insert(0, sys.argv[1])
from tinyml.search.apart import serve
serve(int(sys.argv[2]))"""
_COMPILING = 300.0  # seconds after which a compiler, or the default, is taken to hang
_PATIENCE = 10.0  # seconds for launches, beside those below
_LAUNCHES = 200  # of what is fastest so far: as long as one candidate may take in all


class Apart:
    """Asks another process, in which a `Here` answers."""

    def __init__(self, opened: OpenDevice, given: Given) -> None:
        self._device, self._given, self.patience = opened.name, given, _PATIENCE
        self._child: subprocess.Popen[bytes] | None = None
        self._best = float("inf")  # seconds of the fastest so far
        self._loaded: set[Program] = set()
        self._start()

    def load(self, program: Program) -> None:
        self._ask(_COMPILING, "load", program)
        self._loaded.add(program)

    def check(self, program: Program) -> None:
        self._run("check", program)

    def seconds(self, program: Program, best: float) -> float:
        found: float = self._run("seconds", program, best)
        self._best = min(self._best, found)
        return found

    def close(self) -> None:
        if self._child is not None:
            self._pipe.close()
            self._child.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it for long
                self._child.wait(_PATIENCE)
            self._child = None

    def _run(self, method: str, program: Program, *arguments: float) -> Any:
        """Launch a program, for a limited time; after an error, not in this process again."""
        if program not in self._loaded:  # by the process that is there now
            self.load(program)
        limit = min(self.patience + _LAUNCHES * self._best, _COMPILING)
        try:
            return self._ask(limit, method, program, *arguments)
        except DeviceError:
            self.close()
            raise

    def _ask(self, limit: float, *words: Any) -> Any:
        if self._child is None:
            self._start()
        return self._said(limit, words)

    def _start(self) -> None:
        if not sys.executable or getattr(sys, "frozen", False):
            raise DeviceError("this program has no Python that could run in another process")
        self._pipe, its = Pipe()
        self._loaded = {self._given.default}
        with its:
            folder, number = str(Path(__file__).resolve().parents[2]), its.fileno()
            command = [sys.executable, "-c", _START, folder, str(number)]
            # in a session of its own, Ctrl-C is for this process alone
            self._child = subprocess.Popen(command, pass_fds=[number], start_new_session=True)
        try:
            self._said(_COMPILING, (config.current, self._device, self._given))
        except DeviceError:
            self.close()  # it has no default to compare with
            raise

    def _said(self, limit: float, words: tuple[Any, ...]) -> Any:
        """The answer; DeviceError if there is none, or it is an error's text."""
        ended = False
        try:
            self._pipe.send(words)
            if not self._pipe.poll(limit):
                raise DeviceError(f"no answer within {limit:.0f} s")
            right, answer = self._pipe.recv()
            ended = True
        except (EOFError, OSError):
            raise DeviceError("it ended the process that ran it") from None
        finally:
            if not ended:
                self.close()
        if not right:
            raise DeviceError(answer)
        return answer


def serve(number: int) -> None:
    """Answer what is asked through a pipe, until nobody holds its other end."""
    with Connection(number) as pipe:
        try:
            settings, device, given = pipe.recv()
            with config.override(**asdict(settings)):
                _answer(pipe, device, given)
        except (EOFError, OSError):
            return


def _answer(pipe: Connection, device: str, given: Given) -> None:
    runner: Here | None = None
    words: tuple[Any, ...] = ()
    while True:
        try:
            if runner is None:
                runner, answer = Here(open_device(device), given), None
            else:
                answer = getattr(runner, words[0])(*words[1:])
            said = True, answer
        except Exception as error:
            said = False, f"{type(error).__name__}: {error}".partition("\n")[0]
        pipe.send(said)
        words = pipe.recv()
