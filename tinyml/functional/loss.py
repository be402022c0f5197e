"""How wrong an answer is, as one number (or one per example)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinyml import mlops
from tinyml.dtype import float32
from tinyml.errors import DTypeError, ShapeError
from tinyml.functional import bounded
from tinyml.functional.activation import log_softmax, logsigmoid
from tinyml.functional.axes import check_tensors
from tinyml.functional.composed import with_gradient
from tinyml.functional.operands import operands
from tinyml.functional.precision import in_float32
from tinyml.functional.steps import composition

if TYPE_CHECKING:
    from tinyml.tensor import Tensor

REDUCTIONS = ("mean", "sum", "none")


def _check(
    op: str, x: Tensor, reduction: str, /, smoothing: float = 0.0, **others: Tensor | None
) -> None:
    check_tensors(op, x, **others)
    if reduction not in REDUCTIONS:
        raise ValueError(f"{op}: reduction is one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    if not 0.0 <= smoothing <= 1.0:
        raise ValueError(f"{op}: label_smoothing is between 0 and 1, got {smoothing}")


def _reduced(x: Tensor, reduction: str) -> Tensor:
    return x.mean() if reduction == "mean" else (x.sum() if reduction == "sum" else x)


def _class_axis(scores: Tensor) -> int:
    return 1 if scores.ndim > 1 else 0


def _classes(op: str, scores: Tensor, classes: Tensor, axis: int) -> Tensor:
    """The classes, one for each place beside the class axis of the scores."""
    if classes.shape != (*scores.shape[:axis], *scores.shape[axis + 1 :]):
        raise ShapeError(
            f"{op}: classes {classes.shape} do not fit scores {scores.shape}: one class for each "
            f"place beside axis {axis}"
        )
    if not classes.dtype.is_int:
        raise DTypeError(f"{op}: classes are integers, got {classes.dtype}; cast them")
    return bounded.classes(op, classes, scores.shape[axis])


def _at(scores: Tensor, classes: Tensor, axis: int) -> Tensor:
    """scores[.., classes[..], ..], where the axis is."""
    shape = classes.shape
    index = classes._reshape_to((*shape[:axis], 1, *shape[axis:]))
    return scores._gather(axis, index)._reshape_to(shape)


@composition
@in_float32
def nll_loss(
    x: Tensor,
    Y: Tensor,
    weight: Tensor | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-x at the right class, where x are log probabilities (n, classes, ...)."""
    _check("nll_loss", x, reduction, Y=Y, weight=weight)
    counts = Y.ne(ignore_index) if ignore_index is not None else None
    axis = _class_axis(x)
    classes = _classes("nll_loss", x, Y if counts is None else counts.where(Y, 0), axis)
    losses = -_at(x, classes, axis)
    scale = None if weight is None else weight.cast(x.dtype)[classes]
    if counts is not None:
        mask = counts.cast(x.dtype)
        scale = mask if scale is None else scale * mask
        losses = counts.where(losses, 0)
    if scale is None:
        return _reduced(losses, reduction)
    losses = losses if weight is None else losses * scale
    return losses.sum() / scale.sum() if reduction == "mean" else _reduced(losses, reduction)


@composition
@in_float32
def cross_entropy(
    x: Tensor, Y: Tensor, reduction: str = "mean", label_smoothing: float = 0.0
) -> Tensor:
    """The surprise at Y (class indices, or probabilities like x) of logits (n, classes, ...)."""
    _check("cross_entropy", x, reduction, label_smoothing, Y=Y)
    axis = _class_axis(x)
    scores = log_softmax(x, axis)
    if Y.ndim < x.ndim:
        losses = -_at(scores, _classes("cross_entropy", scores, Y, axis), axis)
        if label_smoothing:
            losses = losses * (1 - label_smoothing) - scores.mean(axis) * label_smoothing
        return _reduced(losses, reduction)
    if Y.shape != x.shape:
        raise ShapeError(f"cross_entropy: Y {Y.shape} are neither classes nor like x {x.shape}")
    wanted = Y.cast(x.dtype)
    if label_smoothing:
        wanted = wanted * (1 - label_smoothing) + label_smoothing / x.shape[axis]
    return _reduced(-(scores * wanted).sum(axis), reduction)


@composition
@in_float32
def sparse_categorical_crossentropy(
    x: Tensor,
    Y: Tensor,
    ignore_index: int = -1,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """The surprise at classes Y (..) of logits (.., classes); ignored ones do not count."""
    op, axis = "sparse_categorical_crossentropy", x.ndim - 1
    _check(op, x, reduction, label_smoothing, Y=Y)
    counts, scores = Y.ne(ignore_index), log_softmax(x, -1)
    chosen = _at(scores, _classes(op, scores, counts.where(Y, 0), axis), axis)
    losses = chosen * (label_smoothing - 1)
    if label_smoothing:
        losses = losses - scores.mean(-1) * label_smoothing
    losses = counts.where(losses, 0)
    if reduction == "mean":
        return losses.sum() / counts.cast(float32).sum()
    return _reduced(losses, reduction)


def _bounded_log(x: Tensor) -> Tensor:
    return x.log().maximum(-100)


def _surprise(x: Tensor, target: Tensor) -> Tensor:
    return -(target * _bounded_log(x) + (1 - target) * _bounded_log(1 - x))


def _surprise_rule(grad: Tensor, _: Tensor, x: Tensor, target: Tensor) -> mlops.Grads:
    steepness = ((1 - x) * x).maximum(1e-12)
    return (
        grad * (x - target) / steepness,
        grad * (_bounded_log(1 - x) - _bounded_log(x)),
    )


@composition
@in_float32
def binary_crossentropy(x: Tensor, Y: Tensor, reduction: str = "mean") -> Tensor:
    """The surprise at Y (0 to 1) of probabilities x; at most 100, with a finite gradient."""
    _check("binary_crossentropy", x, reduction, Y=Y)
    x, target = operands("binary_crossentropy", x, Y.cast(x.dtype))
    return _reduced(with_gradient(_surprise, _surprise_rule, x, target), reduction)


@composition
@in_float32
def binary_crossentropy_logits(
    x: Tensor, Y: Tensor, reduction: str = "mean", pos_weight: Tensor | None = None
) -> Tensor:
    """The surprise at Y (0 to 1) of logits x, without overflow."""
    _check("binary_crossentropy_logits", x, reduction, Y=Y, pos_weight=pos_weight)
    target = Y.cast(x.dtype)
    right = target * logsigmoid(x)
    if pos_weight is not None:
        right = right * pos_weight
    return _reduced(-(right + (1 - target) * logsigmoid(-x)), reduction)
