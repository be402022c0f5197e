"""What holds for a while: where tensors go, which dtypes numbers become, whether one trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tinyml.device import Device
from tinyml.device import default_device as places
from tinyml.dtype import FLOATS, INTS
from tinyml.dtypes import DTypeLike, one_of
from tinyml.dtypes import default_float as floats
from tinyml.dtypes import default_int as ints
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
        name = None if device is None else Device.canonical(device)
        of_float = None if default_float is None else one_of(FLOATS, default_float, "default_float")
        of_int = None if default_int is None else one_of(INTS, default_int, "default_int")
        super().__init__("defaults(...)", (places, name), (floats, of_float), (ints, of_int))


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
        written = "Tensor.train()" if mode else "Tensor.train(False)"
        super().__init__(written, (_training, _flag(mode)))
