"""Setting: a value of the process, which a `with` block replaces in its own thread; such blocks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ContextDecorator
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_F = TypeVar("_F", bound=Callable[..., Any])
_B = TypeVar("_B", bound="Block")


class Setting(Generic[T]):
    """Blocks nest, and are of one thread, or of one task of asyncio.

    What is set outside of all blocks is the process's, what is set inside of one lasts as long
    as the block.
    """

    __slots__ = ("_value", "blocks")

    def __init__(self, name: str, value: T) -> None:
        self._value = value
        self.blocks: ContextVar[tuple[T, ...]] = ContextVar(name, default=())

    @property
    def now(self) -> T:
        """The value here; settable."""
        blocks = self.blocks.get()
        return blocks[-1] if blocks else self._value

    @now.setter
    def now(self, value: T) -> None:
        blocks = self.blocks.get()
        if blocks:
            self.blocks.set((*blocks[:-1], value))
        else:
            self._value = value

    def begin(self, value: T) -> None:
        """A block begins."""
        self.blocks.set((*self.blocks.get(), value))

    def end(self) -> None:
        """The innermost block ends."""
        self.blocks.set(self.blocks.get()[:-1])


class Block(ContextDecorator):
    """What holds inside of `with`, or within a function: settings, or None to leave one as it is.

    Made and left alone, it would be nothing: who does that is warned, at that line.
    """

    _unused = ""  # how it is written, until it is used

    def __init__(self, written: str, *held: tuple[Setting[Any], Any]) -> None:
        self._unused, self._held = written, held

    def __enter__(self: _B) -> _B:
        self._unused = ""
        for setting, value in self._held:
            setting.begin(setting.now if value is None else value)
        return self

    def __exit__(self, *_: object) -> None:
        for setting, _value in self._held:
            setting.end()

    def __call__(self, function: _F) -> _F:
        self._unused = ""
        return super().__call__(function)

    def __del__(self) -> None:
        if said := self._unused:
            text = f"{said} by itself does nothing: write `with {said}:`, or `@{said}`"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
