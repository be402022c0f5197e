"""Telling: objects that count how often any of them had an attribute set.

Who watches many of them, as a replay does the layers of a model, looks at each only if that number
is another one than before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any


class Telling:
    """A base class of layers and optimizers."""

    settings = 0  # of attributes, by anybody, of all such objects

    if not TYPE_CHECKING:  # else any name could be set

        def __setattr__(self, name: str, value: Any) -> None:
            object.__setattr__(self, name, value)
            Telling.settings += 1
