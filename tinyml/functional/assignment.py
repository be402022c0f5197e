"""Assignment: a tensor's memory holds other values from now on.

What is assigned to a view goes into the tensor that it shows (see `functional/views.py`). An
assignment that is recorded takes over the record of the value. One under no_grad leaves the
gradient to go where it went before.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from tinyml import autograd, lazy, ledger, mlops, moves, trace
from tinyml import realize as realizing
from tinyml.autograd import mode
from tinyml.errors import DTypeError, GradientError, ShapeError
from tinyml.functional import views
from tinyml.functional.axes import apart
from tinyml.functional.gradients import is_leaf
from tinyml.functional.values import to_write
from tinyml.graph import toposort
from tinyml.shape import broadcast_shape

if TYPE_CHECKING:
    from tinyml.tensor import Tensor

_KINDS = {"b": 0, "u": 1, "i": 1, "f": 2}  # what holds the numbers of a lower kind, too


def assign(x: Tensor, value: Any) -> Tensor:
    """From now on this tensor's memory holds `value`; earlier readers keep what they read.

    What is assigned to a view goes into the tensor that it shows. A value of another dtype
    is cast where that keeps its kind: not a float into integers, and no number into a bool.
    """
    other = _fitting(x, value)
    if mode.recording and other.requires_grad and is_leaf(x):
        raise GradientError(
            "assign: this leaf requires a gradient, and so do the values that it would take "
            "(x += 1 and x[0] = 1 read x); assign under no_grad(), or .detach() them"
        )
    if x._view is not None and x._view.family is not None:
        x._view.family.settle()
    if (root := views.root_of(x)) is not None:
        if views.is_detached(x):
            _write_detached(x, root, other)
        else:
            root.assign(views.written(x, root, other))
        return x
    _replace(x, other)
    return x


def _fitting(x: Tensor, value: Any) -> Tensor:
    """The value as a tensor of the dtype and the shape of x."""
    other = to_write("assign", x, value)
    if other._lazy.device != x._lazy.device:
        raise apart("assign", x, other)
    if _KINDS[other.dtype.kind] > _KINDS[x.dtype.kind]:
        raise DTypeError(f"assign: {other.dtype} cannot go to {x.dtype}; cast it first")
    other = other.cast(x.dtype)
    if other.shape != x.shape:
        if broadcast_shape("assign", other.shape, x.shape) != x.shape:
            raise ShapeError(f"assign: a value of {other.shape} does not fit {x.shape}")
        other = other.expand(x.shape)
    if mode.recording and is_leaf(other):  # x is no leaf then: its gradient is that of the value
        other = other._apply(moves.Reshape(other.shape))
    return other


def in_place(x: Tensor, result: Tensor) -> Tensor:
    """`x op= other`: whoever else has this tensor, or a view of it, sees the result."""
    if result.shape != x.shape:
        raise ShapeError(f"an in-place op keeps the shape {x.shape}, got {result.shape}")
    if _KINDS[result.dtype.kind] > _KINDS[x.dtype.kind]:
        raise DTypeError(
            f"an in-place op keeps the dtype {x.dtype}, and cannot hold a result of "
            f"{result.dtype}; cast it first, or write x = x op y"
        )
    return x.assign(result)


def _replace(x: Tensor, other: Tensor) -> None:
    if trace.wanted(trace.Assigning):
        trace.emit(trace.Assigning(x))
    node = other.lazy
    waits = type(x._lazy) not in (lazy.Data, lazy.Assign)
    if waits and is_leaf(x) and x._lazy in toposort([node]):
        realizing.realize([x])  # a parameter: else each update would repeat all those before it
    old = before_assignment(x) if x.requires_grad and not is_leaf(x) else None
    recorded = mode.recording and (other.requires_grad or old is not None)
    clock = autograd.note_assignment()
    before = old if old is not None or not recorded else before_assignment(x)
    if x._record is autograd.FREED:
        x._past, old = (), None
        x.requires_grad, recorded = None, mode.recording and bool(other.requires_grad)
    record = _recorded(x, old, other)
    if old is not None:
        old._hooks, x._hooks = x._hooks, None  # they wait for the gradient of what x was
        x._past = tuple(p for p in x._past if p[1]._record is not autograd.FREED)
    if before is not None and (recorded or old is not None):
        x._past = (*x._past, (clock, before))
    x._assigned, x._moments = clock, ()
    if _owns_memory(x):
        node = lazy.assign(x._lazy, node)
        x._version = weakref.ref(node)
    with ledger.changing:
        x.lazy = node
        x.requires_grad = True if recorded else x.requires_grad
        x._record = record


def _owns_memory(x: Tensor) -> bool:
    """Whether x is in memory, and first: what has been made of it may share the memory.

    What others have because it was equal is left to them: nobody writes to it.
    """
    node = x._lazy
    if type(node) is lazy.Data:
        if ledger.memory[node].several:
            return False
        holds = lambda t: lazy.assigned(t._lazy) is node and views.has_own(t)  # noqa: E731
        return node.readers.first(holds) is x
    return type(node) is lazy.Assign and x._version is not None and x._version() is node


def _recorded(x: Tensor, old: Tensor | None, other: Tensor) -> mlops.Function | None:
    """The record of x once it holds `other`; under no_grad the gradient goes where it went."""
    if old is None:
        return other._record if other.requires_grad and mode.recording else None
    record = mlops.Replace() if mode.recording else moves.Reshape(x.shape)
    record.inputs = (old, before_assignment(other)) if mode.recording else (old,)
    record.clock = mode.assignments
    return record


def _write_detached(x: Tensor, root: Tensor, other: Tensor) -> None:
    """Write without recording; what is differentiated as the value is, is the view x alone."""
    records = mode.recording and (other.requires_grad or (x.requires_grad and not is_leaf(x)))
    if records and x._view is not None and type(x._view.move) is not views.Detached:
        raise GradientError(
            "assign: the value, or what the target holds, requires a gradient, and the target is "
            "a view of a detached tensor, which cannot record it; .detach() the value, or .clone() "
            "the target first"
        )
    if records:
        autograd.keep_version(x, other)
    with autograd.no_grad():
        root.assign(views.written(x, root, other))
    if records:
        x.requires_grad, x._record = bool(other.requires_grad), other._record
        if x._view is not None:
            x._view.written = before_assignment(x)


# ---- versions ----


def last_assigned(x: Tensor) -> int:
    """The value of mode.assignments when x was last assigned to, also by a captured step."""
    alone, moments = x._assigned_alone, x._moments
    return max([alone, *[moment.clock for moment in moments]]) if moments else alone


def set_last_assigned(x: Tensor, clock: int) -> None:
    x._assigned_alone = clock


def changed_after(x: Tensor, clock: int) -> bool:
    """Whether x, or what it is a view of, was assigned to after `clock`."""
    root = views.root_of(x)
    return x._assigned > clock or (root is not None and root._assigned > clock)


def before_assignment(x: Tensor) -> Tensor:
    """This version of the values as a tensor of its own, for computing the next one.

    It is the same each time, so that a hook is called with all that comes back to it.
    """
    node, known = x.lazy, x._before and x._before()
    if known is not None and known._lazy is node and known._record is x._record:
        return known
    old = x._of(node)
    old.requires_grad, old._record, old._assigned = x.requires_grad, x._record, x._assigned
    x._before = weakref.ref(old)
    return old


def version(x: Tensor, clock: int) -> Tensor:
    """x as it was after that many assignments, if gradients went on from it."""
    view = x._view
    root = None if view is None else view.root()
    past = (x if root is None else root)._past
    if not past:
        return x
    old = next((tensor for until, tensor in past if until > clock), None)
    if old is None or (root is not None and (x._record is None or views.is_detached(x))):
        return x
    with autograd.enable_grad():
        return old if root is None or view is None else views.read(old, view.moves())


def state(x: Tensor) -> tuple[Any, ...]:
    """All that an assignment changes: for `restore`."""
    at = x._assigned_alone, x._moments, x._version, x._past
    return x.lazy, x.requires_grad, x._record, *at


def restore(x: Tensor, state: tuple[Any, ...]) -> None:
    """Let x be again as `state` said, whatever was assigned since."""
    x.lazy, x.requires_grad, x._record, *at = state
    x._assigned_alone, x._moments, x._version, x._past = at
