"""Faults: what only values can show to be wrong, such as an index that is out of range.

A graph says so with a Require node. A program that computes one notes the first value that is wrong
in two words of memory, and goes on; the machine looks there when the work is done, and raises.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Protocol

from tinyml.frozen import dataclass


@dataclass(frozen=True)
class Fault:
    """What is raised where a condition does not hold."""

    error: type[Exception]
    text: str  # with {} where an integer that is wrong is to be named

    @cached_property
    def code(self) -> int:
        """A number for programs to note; not 0, and the same in every process."""
        digest = hashlib.sha256(f"{self.error.__name__}: {self.text}".encode()).digest()
        return int.from_bytes(digest[:6], "big") + 1

    def of(self, value: object) -> Exception:
        """The error for a value, which `fault_of` recognises."""
        error = self.error(self.text.format(value))
        vars(error)["fault"] = self
        return error


def fault_of(error: BaseException) -> Fault | None:
    """The fault that an error is about; None if it is any other error."""
    found: Fault | None = vars(error).get("fault")
    return found


class Words(Protocol):
    """Two integers: the code of the first fault, and the value that has it."""

    def __getitem__(self, number: int, /) -> Any: ...
    def __setitem__(self, number: int, word: int, /) -> None: ...


def raise_noted(words: Words, faults: Iterable[Fault]) -> None:
    """Raise the fault that stands in a machine's words, one of `faults`; the words are 0 again."""
    code, value = words[0], words[1]
    words[0] = words[1] = 0
    for fault in faults:
        if fault.code == code:
            raise fault.of(value)
