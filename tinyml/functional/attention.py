"""Attention: softmax(query @ key.T) @ value."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import TYPE_CHECKING

from tinyml.dtype import DType, bool_, float32
from tinyml.errors import DTypeError, ShapeError
from tinyml.functional.activation import powers_and_total, shares
from tinyml.functional.axes import check_tensors, number
from tinyml.functional.composed import with_gradient
from tinyml.functional.random_ import dropping
from tinyml.functional.reduction import largest
from tinyml.functional.steps import composition
from tinyml.mlops import folded

if TYPE_CHECKING:
    from tinyml.mlops import Grads
    from tinyml.tensor import Tensor


@composition
def scaled_dot_product_attention(
    x: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
    scale: float | None = None,
) -> Tensor:
    """Each query (.., n, d) gives a mean of values (.., m, e), weighted by likeness to the keys.

    Likeness is the product of query and key times `scale`, which is 1 / sqrt(d) if none is given.
    A mask is either bool (True: this pair takes part) or added to the scores. A query that takes
    part in no pair gives 0.
    """
    if is_causal and attn_mask is not None:
        raise RuntimeError("attention: give a mask or is_causal=True, not both")
    _check(x, key, value, attn_mask, enable_gqa)
    if enable_gqa:
        key = key.repeat_interleave(x.shape[-3] // key.shape[-3], dim=-3)
        value = value.repeat_interleave(x.shape[-3] // value.shape[-3], dim=-3)
    dtype = x.dtype
    wide = float32 if dtype.is_half else dtype
    scores = _likeness(x.cast(wide), key.cast(wide), _factor(x, scale), dtype)
    if is_causal:
        rows, columns = x._arange(x.shape[-2]), x._arange(key.shape[-2])
        attn_mask = rows.unsqueeze(-1) >= columns
    if attn_mask is not None:
        scores = _masked(scores, attn_mask)
    masked = attn_mask is not None and not is_causal  # causal: the first key always takes part
    powers = _powers_or_none if masked and scores.numel() else powers_and_total
    drop = dropping(scores, dropout_p)
    if value.dtype is dtype is not wide and scores.numel():
        return _means_of_halves(scores, value.cast(wide), powers, drop, dtype).cast(dtype)
    dropped: Tensor = drop(shares(scores, -1, powers).cast(dtype))
    return dropped @ value


def _check(
    x: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, enable_gqa: bool
) -> None:
    check_tensors("attention", x, key=key, value=value, attn_mask=attn_mask)
    if (
        min(x.ndim, key.ndim, value.ndim) < 2
        or x.shape[-1] != key.shape[-1]
        or key.shape[-2] != value.shape[-2]
    ):
        raise ShapeError(
            f"attention: query {x.shape}, key {key.shape} and value {value.shape} do not go "
            "together: (.., n, d), (.., m, d) and (.., m, e)"
        )
    leading = [t.shape[:-2] for t in (x, key, value)]
    heads = [shape[-1] if shape else 0 for shape in leading]
    shares = enable_gqa and min(heads) > 0 and not any(heads[0] % count for count in heads)
    sizes = zip_longest(*(s[::-1][shares:] for s in leading), fillvalue=1)
    if enable_gqa > shares or any(len({*several, 1}) > 2 for several in sizes):
        raise ShapeError(
            f"attention: query {x.shape}, key {key.shape} and value {value.shape} differ before "
            "their last two axes; with enable_gqa=True queries may have several times as many "
            "heads (axis -3)"
        )


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype.is_int:  # of ones and zeros, it would be added to scores
        raise DTypeError(
            f"attention: a mask is bool (True takes part) or a float that is added to the scores, "
            f"not {mask.dtype}; write mask.bool()"
        )
    sizes = zip(mask.shape[::-1], scores.shape[::-1], strict=False)
    if mask.ndim > scores.ndim or any(m not in (1, size) for m, size in sizes):
        raise ShapeError(
            f"attention: the mask {mask.shape} does not broadcast to the scores {scores.shape}"
        )
    if mask.dtype is bool_:
        return mask.where(scores, -float("inf"))
    return scores + mask.cast(scores.dtype)


def _factor(x: Tensor, scale: float | None) -> float:
    """What likeness is multiplied by."""
    if scale is None:
        return float(max(x.shape[-1], 1) ** -0.5)
    return float(number(scale, "attention", "scale"))


def _likeness(x: Tensor, key: Tensor, scale: float, dtype: DType) -> Tensor:
    """x @ key.T * scale. A gradient of halves is rounded to `dtype`: a factor for tensor cores.

    It is scaled when it has met the other factor, once for each number of a row.
    """
    if x.dtype is dtype:
        return x @ key.transpose(-2, -1) * scale

    def rule(grad: Tensor, _: Tensor, x: Tensor, key: Tensor) -> Grads:
        grad = grad.cast(dtype).cast(grad.dtype)
        by_x, by_key = grad @ key * scale, grad.transpose(-2, -1) @ x * scale
        return folded(by_x, x.shape), folded(by_key, key.shape)

    return with_gradient(lambda x, key: x @ key.transpose(-2, -1) * scale, rule, x, key)


_Powers = Callable[["Tensor"], "tuple[Tensor, Tensor]"]


def _means_of_halves(
    scores: Tensor, value: Tensor, powers: _Powers, drop: Callable[[Tensor], Tensor], dtype: DType
) -> Tensor:
    """softmax(scores) @ value. Powers are rounded to `dtype`: factors for tensor cores.

    So are weights for the gradient of values; but that of weights is not: of it, the gradient of
    scores is what is left when its mean is taken off. That is a mean by the same powers as the
    result's, so it is a sum of the result times its gradient (schedule/associate.py), and what all
    of a row have in common leaves nothing.
    """

    def rounded(x: Tensor) -> Tensor:
        return x.cast(dtype).cast(x.dtype)

    def compute(scores: Tensor, value: Tensor) -> Tensor:
        power, total = powers(scores)
        return rounded(drop(rounded(power))) @ value / total

    def rule(grad: Tensor, _: Tensor, scores: Tensor, value: Tensor) -> Grads:
        power, total = powers(scores)
        weights, met = power / total, rounded(power)
        slopes = drop(folded(grad @ value.transpose(-2, -1), scores.shape))
        whole = met.sum(-1, keepdim=True)
        mean = (slopes * met).sum(-1, keepdim=True) / (whole == 0).where(1, whole)
        by_value = rounded(drop(rounded(weights))).transpose(-2, -1) @ grad
        return weights * (slopes - mean), folded(by_value, value.shape)

    return with_gradient(compute, rule, scores, value)


def _powers_or_none(x: Tensor) -> tuple[Tensor, Tensor]:
    """As powers_and_total, 0 and 1 where all is -inf."""
    top = largest(x, -1)
    power = (x - (top == -float("inf")).where(0, top)).exp()
    total = power.sum(-1, keepdim=True)
    return power, (total == 0).where(1, total)
