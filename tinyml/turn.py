"""Turn: one thread at a time computes, and Ctrl-C waits while memory is being overwritten.

    with turn:             threads wait here for each other; within a thread turns nest
        ...                an interrupt may stop this: nothing has changed yet
        turn.hold()
        ...                an interrupt waits from here to the end of the outermost turn

Recording ops needs no turn. A process that forks does it in a turn of its own, so that the
child finds everything in order.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # without enums: 1 us, not 13
import os
import threading
from types import FrameType
from typing import Any


class Turn:
    """The right to compute, which one thread has at a time."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._handler: Any = None  # who handles interrupts when none are held
        self._held: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth or self._handler is None:
            self._lock.release()
            return
        handler, held = self._handler, self._held
        self._handler = self._held = None
        signal.signal(signal.SIGINT, handler)
        self._lock.release()
        if held is not None:
            handler(*held)

    def hold(self) -> None:
        """Let an interrupt wait until the outermost turn is over."""
        if self._handler is None and threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._held = number, frame

    def begin(self) -> bool:
        """Begin a turn if nobody has one, this thread neither; whether that is so."""
        if not self._lock.acquire(blocking=False):
            return False
        if self._depth:
            self._lock.release()
            return False
        self._depth = 1
        return True

    def end(self) -> None:
        """The end of a turn that `begin` began."""
        self.__exit__()


turn = Turn()
_locks: list[threading.RLock] = []


def short_lock() -> threading.RLock:
    """A lock for a few steps without a turn, held by nobody while a process forks."""
    _locks.append(threading.RLock())
    return _locks[-1]


def watch_forks() -> None:
    """From now on a fork takes its turn.

    Python asks whoever watched last first. Libraries that take locks of their own at a fork, as
    concurrent.futures does, and are used within turns, must have been imported before.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before_fork, after_in_parent=_forked, after_in_child=_forked)


def _before_fork() -> None:
    turn.__enter__()
    for lock in _locks:
        lock.acquire()


def _forked() -> None:
    for lock in _locks:
        lock.release()
    turn.__exit__()
