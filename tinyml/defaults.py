"""What holds for a while: where tensors go, which dtypes numbers become, whether one trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tinyml.device import Device, default_device
from tinyml.dtypes import DTypeLike, default_float, default_int, to_dtype
from tinyml.errors import DTypeError
from tinyml.functional import missing
from tinyml.functional.axes import wrong_type
from tinyml.setting import Block, Setting


class defaults(Block):
    """`with defaults(device="NUMPY", default_float="float64"):` and `@defaults(...)`.

    What is left out stays as it is. The values of before come back at the end, however it is
    reached. Other threads keep theirs.
    """

    def __init__(
        self,
        device: str | None = None,
        default_float: DTypeLike | None = None,
        default_int: DTypeLike | None = None,
    ) -> None:
        self._device = None if device is None else Device.canonical(device)
        self._float = None if default_float is None else to_dtype(default_float)
        self._int = None if default_int is None else to_dtype(default_int)
        if self._float is not None and not self._float.is_float:
            raise DTypeError(f"defaults: default_float is a floating dtype, not {self._float}")
        if self._int is not None and not self._int.is_int:
            raise DTypeError(f"defaults: default_int is an integer dtype, not {self._int}")
        super().__init__("defaults(...)")

    def __enter__(self) -> defaults:
        self._unused = ""
        default_device.begin(self._device or Device.canonical(None))
        default_float.begin(self._float or default_float.now)
        default_int.begin(self._int or default_int.now)
        return self

    def __exit__(self, *_: object) -> None:
        for setting in (default_device, default_float, default_int):
            setting.end()


_training = Setting("training", False)


class Trains(type):
    """A class that says whether dropout and batch statistics are active."""

    if not TYPE_CHECKING:  # else every name would be known
        __getattr__ = missing.no_attribute

        def __setattr__(cls, name: str, value: Any) -> None:
            """Functions may become methods; of settings there are those below."""
            known = hasattr(type(cls), name) or name[0] == "_" or hasattr(value, "__get__")
            if not known and cls.__module__ == "tinyml.tensor":
                raise missing.no_setting(name)
            super().__setattr__(name, value)

    @property
    def training(cls) -> bool:
        """Whether dropout and batch statistics are active; settable."""
        return _training.now

    @training.setter
    def training(cls, training: bool) -> None:
        _training.now = _flag(training)

    @property
    def no_grad(cls) -> NoReturn:
        """No setting here, as it is in teenygrad: it would be without effect."""
        raise AttributeError  # then __getattr__ says what to write

    @no_grad.setter
    def no_grad(cls, _: object) -> None:
        missing.no_attribute(cls, "no_grad")


def _flag(training: Any) -> bool:
    if not isinstance(training, (bool, np.bool_)):  # "False" would be true
        raise wrong_type("Tensor", "training", "True or False", training)
    return bool(training)


class Training(Block):
    """Sets `Tensor.training` for a while, in this thread."""

    def __init__(self, mode: bool = True) -> None:
        self._mode = _flag(mode)
        super().__init__("Tensor.train()" if mode else "Tensor.train(False)")

    def __enter__(self) -> Training:
        self._unused = ""
        _training.begin(self._mode)
        return self

    def __exit__(self, *_: object) -> None:
        _training.end()
