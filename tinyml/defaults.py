"""Defaults for a while: where new tensors go, and which dtypes Python's numbers become."""

from __future__ import annotations

from contextlib import ContextDecorator

from tinyml.device import Device
from tinyml.dtype import DType
from tinyml.dtypes import dtypes, to_dtype
from tinyml.errors import DTypeError


class defaults(ContextDecorator):
    """`with defaults(device="NUMPY", default_float="float64"):` and `@defaults(...)`.

    What is left out stays as it is. The values of before come back at the end, however it is
    reached. They are the process's, not one thread's.
    """

    def __init__(
        self,
        device: str | None = None,
        default_float: DType | str | None = None,
        default_int: DType | str | None = None,
    ) -> None:
        self._device = None if device is None else Device.canonical(device)
        self._float = None if default_float is None else to_dtype(default_float)
        self._int = None if default_int is None else to_dtype(default_int)
        if self._float is not None and not self._float.is_float:
            raise DTypeError(f"defaults: default_float is a floating dtype, not {self._float}")
        if self._int is not None and not self._int.is_int:
            raise DTypeError(f"defaults: default_int is an integer dtype, not {self._int}")
        self._before: list[tuple[str, DType, DType]] = []

    def __enter__(self) -> defaults:
        self._before.append((Device.DEFAULT, dtypes.default_float, dtypes.default_int))
        before = self._before[-1]
        Device.DEFAULT = self._device or before[0]
        dtypes.default_float = self._float or before[1]
        dtypes.default_int = self._int or before[2]
        return self

    def __exit__(self, *_: object) -> None:
        Device.DEFAULT, dtypes.default_float, dtypes.default_int = self._before.pop()
