"""Every exception tinyml raises by itself, as one small tree.

Python's own types are used where Python users expect them (`IndexError` for an index out of
range, `TypeError` for an argument of the wrong kind). The classes below inherit from the
built-in type that a PyTorch or NumPy user would catch, and AssertionError where programs for
tinygrad catch that.

    TinymlError
    ├── ShapeError      (RuntimeError, ValueError,  shapes that do not go together
    │   │                AssertionError)
    │   └── AxisError   (IndexError)                an axis that is not there, or is empty
    ├── ArgumentError   (TypeError, ValueError)     an argument that cannot be meant
    ├── SettingError    (ValueError)                a variable of the environment that means nothing
    ├── DTypeError      (RuntimeError, TypeError)   dtypes that do not go together
    │   ├── NoDTypeError (AttributeError)           what was given is no dtype, nor a name of one
    │   └── RangeError  (OverflowError)             a number that an integer dtype does not have
    ├── NanError        (FloatingPointError)        a result holds NaN, and DEBUG_NAN=1
    ├── LinAlgError     (RuntimeError, numpy's)     a matrix that is singular, or not as it must be
    ├── GradientError   (RuntimeError)              autograd asked for something undefined
    ├── DeviceError     (RuntimeError)              no such device, or it cannot be used here
    │   ├── CompileError                            a compiler rejected generated source
    │   ├── OutOfMemoryError (MemoryError)          a machine's memory is full
    │   └── KernelError                             a kernel failed while it ran
    ├── JitError        (RuntimeError)              a captured step cannot be replayed
    └── VerifyError     (AssertionError)            a value between rooms is malformed: a bug
"""

from __future__ import annotations

import numpy


class TinymlError(Exception):
    """Base of all errors that are tinyml's own."""


class ShapeError(TinymlError, RuntimeError, ValueError, AssertionError):
    """Shapes that do not go together."""


class AxisError(ShapeError, IndexError):
    """An axis that is not there, or that has no elements to choose from."""


class ArgumentError(TinymlError, TypeError, ValueError):
    """An argument of a type that cannot be meant, such as a size of 2.5."""


class SettingError(TinymlError, ValueError):
    """A setting in the environment whose value means nothing."""


class DTypeError(TinymlError, RuntimeError, TypeError):
    """Dtypes that do not go together, or an op that a dtype does not have."""


class NoDTypeError(DTypeError, AttributeError):
    """What was given is no dtype, nor the name of one."""


class RangeError(DTypeError, OverflowError):
    """A number that an integer dtype does not have, where it was to be an element."""


class LinAlgError(TinymlError, numpy.linalg.LinAlgError, RuntimeError):
    """A matrix that is singular, or not positive definite."""


class GradientError(TinymlError, RuntimeError):
    """A gradient was asked for where none is defined."""


class NanError(TinymlError, FloatingPointError):
    """A result holds NaN, and DEBUG_NAN=1 asked to be told."""


class DeviceError(TinymlError, RuntimeError):
    """A device that does not exist, or cannot be used on this machine."""


class CompileError(DeviceError):
    """The compiler rejected generated source, or could not be started."""


class OutOfMemoryError(DeviceError, MemoryError):
    """A machine has no memory left, even after its cache was emptied."""


class KernelError(DeviceError):
    """A kernel failed while it ran."""


class JitError(TinymlError, RuntimeError):
    """A captured step cannot be replayed with these arguments."""


class VerifyError(TinymlError, AssertionError):
    """A value between two rooms is malformed. This is a bug in tinyml, not in the program."""
