"""How wrong an answer is, as one number (or one per example)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinyml import mlops
from tinyml.errors import ArgumentError, DTypeError, ShapeError
from tinyml.functional import bounded
from tinyml.functional.activation import log_softmax, logsigmoid
from tinyml.functional.axes import check_tensors, is_tensor
from tinyml.functional.composed import composition_of_floats, with_gradient
from tinyml.functional.movement import along
from tinyml.functional.operands import operands
from tinyml.shape import broadcast_shape

if TYPE_CHECKING:
    from tinyml.tensor import Tensor

REDUCTIONS = ("mean", "sum", "none")


def _check(
    op: str, x: Tensor, reduction: Any, /, smoothing: float = 0.0, **others: Tensor | None
) -> None:
    check_tensors(op, x, **others)
    if is_tensor(reduction):  # in torch weights stand there
        raise ArgumentError(f"{op}: reduction is a word, not a Tensor; weights are weight=w")
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
    instead = "; ignore_index names one that does not count"
    return bounded.classes(op, classes, scores.shape[axis], instead)


def _at(scores: Tensor, classes: Tensor, axis: int) -> Tensor:
    """scores[.., classes[..], ..], where the axis is."""
    shape = classes.shape
    index = classes._reshape_to((*shape[:axis], 1, *shape[axis:]))
    return scores._gather(axis, index)._reshape_to(shape)


def _of_classes(
    op: str,
    scores: Tensor,
    Y: Tensor,
    axis: int,
    weight: Tensor | None,
    ignore_index: int | None,
    reduction: str,
    smoothing: float = 0.0,
) -> Tensor:
    """-scores at the classes, each times its class's weight; a mean is of what weights count."""
    counts = None if ignore_index is None else Y.ne(ignore_index)
    classes = _classes(op, scores, Y if counts is None else counts.where(Y, 0), axis)
    share = None
    if weight is not None:
        scores = _weighted(op, scores, weight, axis)
        share = weight.cast(scores.dtype)[classes]
    losses = -_at(scores, classes, axis)
    if smoothing:
        losses = losses * (1 - smoothing) - scores.mean(axis) * smoothing
    if counts is not None:
        mask = counts.cast(losses.dtype)
        share = mask if share is None else share * mask
        losses = counts.where(losses, 0)
    if share is None or reduction != "mean":
        return _reduced(losses, reduction)
    return losses.sum() / share.sum()


def _weighted(op: str, scores: Tensor, weight: Tensor, axis: int) -> Tensor:
    """The scores of each class times its weight."""
    count = scores.shape[axis]
    if weight.shape != (count,):
        raise ShapeError(
            f"{op}: weight {weight.shape} must be {(count,)}, one number for each class of "
            f"{scores.shape}"
        )
    return scores * along(weight.cast(scores.dtype), axis, scores)


@composition_of_floats
def nll_loss(
    x: Tensor,
    Y: Tensor,
    weight: Tensor | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """-x at the right class, where x are log probabilities (n, classes, ...).

    With weights (classes,) the mean is divided by the sum of the weights that took part.
    """
    _check("nll_loss", x, reduction, Y=Y, weight=weight)
    return _of_classes("nll_loss", x, Y, _class_axis(x), weight, ignore_index, reduction)


@composition_of_floats
def cross_entropy(
    x: Tensor,
    Y: Tensor,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    """The surprise at Y (class indices, or probabilities like x) of logits (n, classes, ...).

    `weight` (classes,) and `ignore_index`, for class indices, are as those of `nll_loss`.
    """
    op, axis = "cross_entropy", _class_axis(x)
    _check(op, x, reduction, label_smoothing, Y=Y, weight=weight)
    scores = log_softmax(x, axis)
    if Y.ndim < x.ndim:
        return _of_classes(op, scores, Y, axis, weight, ignore_index, reduction, label_smoothing)
    if Y.shape != x.shape:
        raise ShapeError(f"{op}: Y {Y.shape} are neither classes nor like x {x.shape}")
    if ignore_index is not None:
        raise ArgumentError(f"{op}: ignore_index is a class, but Y are probabilities like x")
    wanted = Y.cast(x.dtype)
    if label_smoothing:
        wanted = wanted * (1 - label_smoothing) + label_smoothing / x.shape[axis]
    if weight is not None:
        scores = _weighted(op, scores, weight, axis)
    return _reduced(-(scores * wanted).sum(axis), reduction)


@composition_of_floats
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
    scores = log_softmax(x, -1)
    return _of_classes(op, scores, Y, axis, None, ignore_index, reduction, label_smoothing)


def _each(op: str, losses: Tensor, weight: Tensor | None, reduction: str) -> Tensor:
    """The losses, each times its weight, reduced."""
    if weight is not None:
        if broadcast_shape(op, losses.shape, weight.shape) != losses.shape:
            raise ShapeError(f"{op}: weight {weight.shape} does not fit losses {losses.shape}")
        losses = losses * weight.cast(losses.dtype)
    return _reduced(losses, reduction)


def _check_each(op: str, x: Tensor, Y: Tensor) -> None:
    """ShapeError if both broadcast, as (n, 1) and (n,) do: each x would meet each Y."""
    if broadcast_shape(op, x.shape, Y.shape) not in (x.shape, Y.shape):
        raise ShapeError(
            f"{op}: Y {Y.shape} does not fit x {x.shape}: each element of x would be compared "
            "with several of Y; reshape one of them, as by x.squeeze(-1)"
        )


def _bounded_log(x: Tensor) -> Tensor:
    return x.log().maximum(-100)


def _surprise(x: Tensor, target: Tensor) -> Tensor:
    instead = "; of scores write x.binary_crossentropy_logits(y)"
    x = bounded.probabilities("binary_crossentropy", x, instead)
    return -(target * _bounded_log(x) + (1 - target) * _bounded_log(1 - x))


def _surprise_rule(grad: Tensor, _: Tensor, x: Tensor, target: Tensor) -> mlops.Grads:
    steepness = ((1 - x) * x).maximum(1e-12)
    return (grad * (x - target) / steepness, grad * (_bounded_log(1 - x) - _bounded_log(x)))


@composition_of_floats
def binary_crossentropy(
    x: Tensor, Y: Tensor, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """The surprise at Y (0 to 1) of probabilities x; at most 100, with a finite gradient.

    RuntimeError, when it is computed, if x has others than probabilities.

    `weight`, whose shape broadcasts to that of x, multiplies each surprise before the reduction.
    """
    _check("binary_crossentropy", x, reduction, Y=Y, weight=weight)
    _check_each("binary_crossentropy", x, Y)
    x, target = operands("binary_crossentropy", x, Y.cast(x.dtype))
    losses = with_gradient(_surprise, _surprise_rule, x, target)
    return _each("binary_crossentropy", losses, weight, reduction)


@composition_of_floats
def binary_crossentropy_logits(
    x: Tensor,
    Y: Tensor,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """The surprise at Y (0 to 1) of logits x, without overflow.

    `pos_weight` multiplies what Y = 1 costs, `weight` each surprise; both broadcast.
    """
    op = "binary_crossentropy_logits"
    _check(op, x, reduction, Y=Y, pos_weight=pos_weight, weight=weight)
    _check_each(op, x, Y)
    target = Y.cast(x.dtype)
    right = target * logsigmoid(x)
    if pos_weight is not None:
        right = right * pos_weight
    losses = -(right + (1 - target) * logsigmoid(-x))
    return _each(op, losses, weight, reduction)
