"""What is asked about the gradients of a tensor: where they start, end, and who is told.

The walk through what was recorded is in `tinyml.autograd`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinyml import autograd, lazy, trace
from tinyml.autograd import mode
from tinyml.errors import GradientError
from tinyml.functional import views
from tinyml.functional.axes import check_tensors, is_tensor, wrong_type
from tinyml.ledger import note_gradients

if TYPE_CHECKING:
    from tinyml.tensor import Tensor


def check_wanted(x: Tensor, wanted: Any) -> None:
    """TypeError if `wanted` is no answer, GradientError if x, which is not of floats, has none."""
    if wanted is not None and not isinstance(wanted, bool):
        raise wrong_type("Tensor", "requires_grad", "True, False or None", wanted)
    if wanted and not x.dtype.is_float:
        raise GradientError(f"requires_grad: only floats have gradients, not {x.dtype}; cast first")
    if wanted is not None and type(x._lazy) is lazy.Data:
        if trace.wanted(trace.Flagged):
            trace.emit(trace.Flagged(x))
        if x._requires_grad is (not wanted):
            x._lazy.readers.ring()  # captured steps ask whether they still train it


def is_computed(x: Tensor) -> bool:
    """Whether gradients go on from here: a view of a leaf is as good as the leaf."""
    root = views.root_of(x)
    return x._record is not None and (root is None or root._record is not None)


def is_leaf(x: Tensor) -> bool:
    """Whether gradients are to end here."""
    record = autograd.record_of(x)
    return bool(x.requires_grad) and (
        record is None
        or (record is not autograd.FREED and not any(t.requires_grad for t in record.inputs))
    )


def backward(x: Tensor, gradient: Tensor | None = None, retain_graph: bool | None = None) -> Tensor:
    """Add to `.grad` of every leaf that this was computed from and that requires one.

    It can be called again until something is assigned to (see `tinyml.autograd`): then the
    graph is freed, unless retain_graph is True. False frees it at once.
    """
    check_tensors("backward", x, gradient=gradient)
    if not x.requires_grad:
        raise GradientError(
            f"backward: this {x.dtype} tensor was not computed from anything that requires "
            "a gradient; give requires_grad=True to a floating tensor before computing with it, "
            "outside of no_grad() (what TinyJit returns has no record: call backward() within)"
        )
    found = autograd.backward(x, _seed("backward", x, gradient), retain_graph)
    told = trace.wanted(trace.GradientSet)
    for leaf, grad in found.items():
        if told:
            trace.emit(trace.GradientSet(leaf))
        if (so_far := leaf._grad) is None:  # a tensor of its own: it may be assigned to
            leaf._grad = x._of(grad.lazy)
            mode.gradients_set += 1
            continue
        with autograd.no_grad():
            so_far.lazy = (so_far + grad).lazy
        so_far._assigned = mode.count()  # its views are to see it
    note_gradients(x._lazy, [leaf._grad for leaf in found if leaf._grad is not None])
    return x


def warn_of_none(x: Tensor) -> None:
    """That `backward` keeps no gradient of x, which was computed from others, unless it is told."""
    if x.requires_grad and not is_leaf(x) and not x._retains_grad:
        warnings.warn(
            f"grad: this tensor {x.shape} was computed from others, so backward() keeps no "
            "gradient of it: call its retain_grad() before, or ask what it was computed from",
            stacklevel=3,
        )


def check_grad(x: Tensor, grad: Any) -> None:
    """That what somebody sets as `.grad` can be the gradient of x."""
    mode.gradients_set += 1
    check_tensors("Tensor", x, grad=grad)
    if grad is not None and grad.shape != x.shape:
        raise GradientError(f"grad: {grad.shape} cannot be the gradient of a tensor of {x.shape}")


def gradient(x: Tensor, *targets: Tensor, gradient: Tensor | None = None) -> list[Tensor]:
    """d x / d target for each target; these can be differentiated again."""
    for number, target in enumerate(targets):
        if not is_tensor(target):
            raise wrong_type("gradient", f"target {number}", "a Tensor", target)
    check_tensors("gradient", x, gradient=gradient)
    return autograd.gradient(x, targets, _seed("gradient", x, gradient))


def _seed(op: str, x: Tensor, gradient: Tensor | None) -> Tensor:
    """Where the walk back starts: the gradient of x, which is 1 for one number."""
    if gradient is None:
        if x.numel() != 1:
            raise GradientError(
                f"{op} starts from one number, not from shape {x.shape}; reduce it with "
                ".sum() or .mean(), or pass gradient="
            )
        return x._full(x.shape, 1, x.dtype)
    if gradient.shape != x.shape and gradient.numel() == x.numel() == 1:
        gradient = gradient.reshape(x.shape)  # one number is one number
    if gradient.shape != x.shape:
        raise GradientError(f"{op}: gradient {gradient.shape} must have shape {x.shape}")
    return gradient.cast(x.dtype)


def retain_grad(x: Tensor) -> None:
    """Let `backward` set `.grad` of this tensor also if it was computed from others."""
    if not x.requires_grad:
        raise GradientError("retain_grad: this tensor does not require a gradient")
    x._retains_grad = True


def register_hook(x: Tensor, hook: Callable[[Tensor], Tensor | None]) -> autograd.Hook:
    """Call `hook` with the gradient of this tensor whenever one was found.

    What it returns takes the gradient's place, unless that is None. With `remove()` of the
    result it is called no more. In a captured step only what it computes is repeated.
    """
    if x.requires_grad is False or not x.dtype.is_float:
        raise GradientError(f"register_hook: this {x.dtype} tensor has no gradient")
    if not callable(hook):
        raise wrong_type("register_hook", "hook", "a function of the gradient", hook)
    if x._hooks is None:
        x._hooks = {}
    return autograd.Hook(x._hooks, hook)
