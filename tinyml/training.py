"""Whether dropout and batch statistics are active: `Tensor.training`, also for a while."""

from __future__ import annotations

from contextlib import ContextDecorator
from typing import TYPE_CHECKING

from tinyml.functional import missing
from tinyml.setting import Setting

_training = Setting("training", False)


class Trains(type):
    """A class that says whether dropout and batch statistics are active."""

    if not TYPE_CHECKING:  # else every name would be known
        __getattr__ = missing.no_attribute

    @property
    def training(cls) -> bool:
        """Whether dropout and batch statistics are active; settable."""
        return _training.now

    @training.setter
    def training(cls, training: bool) -> None:
        _training.now = training


class Training(ContextDecorator):
    """Sets `Tensor.training` for a while, in this thread."""

    def __init__(self, mode: bool = True) -> None:
        self._mode = mode

    def __enter__(self) -> Training:
        _training.begin(self._mode)
        return self

    def __exit__(self, *_: object) -> None:
        _training.end()
